#!/bin/bash
# The page of weft watch in headless Chromium, during a run. `make interop` runs it; skipped (77) otherwise, and without Chromium.
# SHOTS=DIRECTORY keeps screenshots of the page.
[ -n "${WEFT_PYTHON:-}" ] || { echo "skipped: make interop runs it"; exit 77; }
exec "$WEFT_PYTHON" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_watch.py" --weft "${WEFT:?}" ${SHOTS:+--shots "$SHOTS"}
