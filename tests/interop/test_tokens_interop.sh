#!/bin/bash
# Compares exported token files with what NumPy and Megatron's layout make of them; skipped (77) if NumPy is missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/tokens_interop.py" "${WEFT:?}"
