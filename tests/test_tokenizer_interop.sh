#!/bin/bash
# Ids and training against the Python package `tokenizers`; skipped (77) where it is missing.
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
exec python3 "${WEFT_SOURCE_DIR:?}/tools/tokenizer_interop.py" "${WEFT:?}"
