#!/bin/bash
# Ids and training against the Python package `tokenizers`; skipped (77) where it is missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/tokenizer_interop.py" "${WEFT:?}"
