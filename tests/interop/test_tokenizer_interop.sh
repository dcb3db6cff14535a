#!/bin/bash
# Compares ids and training with the Python package `tokenizers`; skipped (77) if it is missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/tokenizer_interop.py" "${WEFT:?}"
