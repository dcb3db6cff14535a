#!/bin/bash
# Models of every family between weft and transformers, both ways; skipped (77) if torch or transformers are not installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_families.py" --weft "${WEFT:?}"
