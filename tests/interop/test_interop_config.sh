#!/bin/bash
# Keys of config.json between weft and transformers: computed alike, or refused; skipped (77) where torch or transformers are not installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_config.py" --weft "${WEFT:?}"
