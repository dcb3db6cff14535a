#!/bin/bash
# Compares data from an S3 server that others wrote (moto) with local files; skipped (77) if moto is missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/remote_interop.py" "${WEFT:?}"
