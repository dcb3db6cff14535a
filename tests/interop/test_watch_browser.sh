#!/bin/bash
# The page of weft watch in headless Chromium, while a run goes on: make interop runs it. Skipped (77) elsewhere, and where there is no
# Chromium. SHOTS=DIRECTORY keeps pictures of the page.
[ -n "${WEFT_PYTHON:-}" ] || { echo "skipped: make interop runs it"; exit 77; }
exec "$WEFT_PYTHON" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_watch.py" --weft "${WEFT:?}" ${SHOTS:+--shots "$SHOTS"}
