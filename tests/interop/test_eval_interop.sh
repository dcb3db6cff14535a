#!/bin/bash
# Compares figures of tasks with lm-evaluation-harness; skipped (77) if it is not installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_eval.py" --weft "${WEFT:?}"
