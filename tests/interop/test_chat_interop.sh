#!/bin/bash
# Compares chat templates with Jinja and conversations with transformers; skipped (77) if these are missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/chat_interop.py" "${WEFT_BINARY_DIR:?}/chat_lines"
