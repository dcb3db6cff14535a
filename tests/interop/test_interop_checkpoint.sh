#!/bin/bash
# Hugging Face's packages read what weft writes, and weft reads what they write; skipped (77) if they are not installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_checkpoint.py" --weft "${WEFT:?}"
