#!/bin/bash
# Compares adapters with PEFT and transformers; skipped (77) if these are missing.
python=${WEFT_PYTHON:-python3}
command -v "$python" >/dev/null || { echo "skipped: no $python"; exit 77; }
exec "$python" -B "${WEFT_SOURCE_DIR:?}/tests/interop/interop_lora.py" --weft "${WEFT:?}" --logits "${WEFT_BINARY_DIR:?}/logits"
