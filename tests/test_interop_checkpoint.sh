#!/bin/bash
# Hugging Face's packages on what weft writes, and weft on what they write; skipped where they are not installed.
exec "${WEFT_PYTHON:-python3}" -B "$WEFT_SOURCE_DIR/tools/interop_checkpoint.py" --weft "$WEFT"
