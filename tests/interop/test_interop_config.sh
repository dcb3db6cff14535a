#!/bin/bash
# Keys of config.json: weft computes what transformers computes, or refuses; skipped (77) if torch or transformers are not installed.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_config.py" --weft "${WEFT:?}"
