#!/bin/bash
# `make series`: runs all tests once with each kind of kernel that this processor can run, then with the default kind until RUNS (10) runs
# are complete. The runs follow each other, with a busy loop on each core alongside. The first failure ends the series. It takes hours: on
# two cores with AMX a run takes some 23 minutes, compared with 4 without the busy loops.
#   BUILD=dir  JOBS=tests at a time  RUNS=10
set -euo pipefail
build=${BUILD:-build} jobs=${JOBS:-$((3 * $(nproc)))} runs=${RUNS:-10}

# The program lists its kinds of kernels in the error for an unknown one. A kind may need instructions that this processor lacks.
kinds=()
for kind in $(WEFT_CPU=none "$build/weft" doctor 2>&1 | sed -n 's/.*expected one of \([a-z0-9_|]*\).*/\1/p' | tr '|' ' '); do
    WEFT_CPU=$kind "$build/weft" doctor >/dev/null 2>&1 && kinds+=("$kind") || echo "$kind is not for this processor"
done
[ ${#kinds[@]} -gt 1 ] || { echo "tools/series.sh: $build/weft names no kinds of kernels: build it first" >&2; exit 1; }
while [ ${#kinds[@]} -lt "$runs" ]; do kinds+=(auto); done

busy=()
trap 'kill "${busy[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < $(nproc); i++)); do
    while :; do :; done &
    busy+=($!)
done

log=$build/series.log
for kind in "${kinds[@]}"; do
    begun=$SECONDS
    printf '%-12s ' "$kind"
    WEFT_CPU=$kind ctest --test-dir "$build" -j "$jobs" --output-on-failure >"$log" 2>&1 || { echo failed; grep -v ' Passed ' "$log" | tail -200; exit 1; }
    echo "$(grep 'tests passed' "$log"), $((SECONDS - begun)) s"
done
