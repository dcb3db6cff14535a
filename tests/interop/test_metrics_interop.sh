#!/bin/bash
# The records of a run in Weights & Biases and MLflow, offline; skipped (77) if neither package is installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_metrics.py" --weft "${WEFT:?}"
