#!/bin/sh
# Runs the benchmarks and writes bench/results.json: one object with the results of weft, of weft on meshes of ranks
# (bench/ranks.sh), of pipeline schedules (bench/pipeline.sh) and, with the argument "torch", of PyTorch from PyPI in a separate
# venv. Prints rows of the table in docs/lab/performance.md (bench/table.py). weft and PyTorch run in turn, PAIRS
# times each. SIZES, CONTEXTS and RANKS=no select fewer of them. Both sides try number formats and microbatches, unless COMPUTE=bf16,
# PEER_FLAGS='--dtype bf16 --compile' and MICROBATCH=2, for example, choose them.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
peer=${1:-}
sizes=${SIZES:-15M 50M 125M}
contexts=${CONTEXTS:-512 1024 2048}
compute=${COMPUTE:-best}
flags=${PEER_FLAGS:---best}
part=$(mktemp)
trap 'rm -f "$part" "$part".*' EXIT

if [ "$peer" = torch ]; then
    [ -x .venv-peer/bin/python ] || ${PYTHON:-python3} -m venv .venv-peer
    .venv-peer/bin/python -c 'import torch' 2>/dev/null || .venv-peer/bin/pip install --quiet torch numpy
elif [ -n "$peer" ]; then
    echo "bench: unknown peer \"$peer\"; there is torch" >&2
    exit 2
fi

# A size with weft, then with its peer.
pair() {
    "$build/bench_train" --size "$1" --context "$2" --compute "$compute" ${MICROBATCH:+--microbatch "$MICROBATCH"} >>"$part.weft"
    [ "$peer" != torch ] ||
        .venv-peer/bin/python bench/peer_torch.py $flags --size "$1" --context "$2" ${MICROBATCH:+--microbatch "$MICROBATCH"} >>"$part.torch"
}

for size in $sizes; do
    for context in $contexts; do
        for _ in $(seq "${PAIRS:-1}"); do pair "$size" "$context"; done
    done
done

if [ "${RANKS:-yes}" = yes ] && command -v mpirun >/dev/null; then
    BUILD=$build bench/ranks.sh >"$part.ranks"
    BUILD=$build bench/pipeline.sh >"$part.pipeline"
fi

# Joins lines of JSON objects into the elements of a list.
list() { [ ! -s "$1" ] || sed '$!s/$/,/; s/^/    /' "$1"; }
{
    printf '{\n  "version": "%s",\n  "date": "%s",\n  "weft": [\n' "$("$build/weft" --version | head -1)" "$(date +%Y-%m-%d)"
    list "$part.weft"
    printf '  ],\n  "torch": [\n'
    [ "$peer" != torch ] || list "$part.torch"
    printf '  ]'
    for more in ranks pipeline; do
        [ ! -s "$part.$more" ] || { printf ',\n'; cat "$part.$more"; }
    done
    printf '\n}\n'
} >"$part"
mv "$part" bench/results.json
chmod 644 bench/results.json
"${PYTHON:-python3}" bench/table.py bench/results.json
echo "bench/results.json"
