#!/bin/bash
# Runs the tests with other projects' programs: Python packages, in a separate venv, and a browser. `make interop` runs this script. Unlike
# elsewhere, a skipped test counts as a failure: skipped tests are listed at the end with their reasons, and the exit status is 69.
#   BUILD=build PYTHON=python3 tools/interop.sh
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
venv=$PWD/${VENV:-.venv-interop} build=${BUILD:-build}
log=$(mktemp)
trap 'rm -f "$log"' EXIT

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv" || exit 69
"$venv/bin/pip" install --quiet numpy safetensors tokenizers tiktoken tensorboard torch transformers peft pyarrow polars duckdb fastparquet "moto[server,s3]" \
    wandb mlflow-skinny sqlalchemy alembic lm_eval jinja2 || exit 69
"$venv/bin/python" -c "import numpy, safetensors, tokenizers, tiktoken, tensorboard, torch, transformers, peft, pyarrow, polars, duckdb, fastparquet, moto, wandb, mlflow, lm_eval, jinja2" || exit 69

WEFT_PYTHON=$venv/bin/python ctest --test-dir "$build" -L interop --verbose 2>&1 | tee "$log"
status=${PIPESTATUS[0]}

# Tests that ctest reports as skipped, and parts that a test skipped itself: `skipped: ...`, `... is skipped`, cmocka's [ SKIPPED ].
left_out=$(grep -E '\*\*\*Skipped|\(Skipped\)|^[0-9]+: (.*is )?skipped|^[0-9]+: \[ *SKIPPED *\]' "$log")
if [ -n "$left_out" ]; then
    printf '\nNOT TESTED, since something is missing here:\n%s\n' "$left_out" >&2
    [ "$status" -ne 0 ] || status=69
fi
exit "$status"
