#!/bin/sh
# Measures the cost of sharding matrices (tp 2) and tokens (cp 2): two ranks with one thread each, compared with one process with two
# threads; and of split sums: one process with 8 splits (numerics.tp_invariant_up_to), compared with one without. Runs come in pairs as in
# bench/ranks.sh, whose table it prints for each size. Judge by the second "median": that of the ratios to the run just before. (8 splits
# need a multiple of 8 heads: 125M has 12, 125M-16h has 16.)
#
#     bench/shared.sh
#     SIZES=50M ROUNDS=5 STEPS=3 bench/shared.sh
#
# Variables: SIZES, CONTEXT, TOKENS (per step), MICROBATCH (sequences), STEPS (the fastest counts), ROUNDS (pairs) and BUILD.
set -eu
cd "$(dirname "$0")/.."
: "${CONTEXT:=1024}" "${TOKENS:=8192}" "${MICROBATCH:=2}" "${STEPS:=2}" "${ROUNDS:=5}"
export CONTEXT TOKENS MICROBATCH STEPS ROUNDS
table=$(mktemp)
trap 'rm -f "$table"' EXIT

for size in ${SIZES:-50M 125M 125M-16h}; do
    case $size in
    125M) layouts="tp cp" ;;
    125M-16h) layouts="one-splits" ;;
    *) layouts="tp cp one-splits" ;;
    esac
    echo "$size, context $CONTEXT, $TOKENS tokens a step, microbatches of $MICROBATCH"
    SIZE=$size LAYOUTS=$layouts BANDWIDTH=no bench/ranks.sh >/dev/null 2>"$table" || { cat "$table" >&2; exit 1; }
    grep -v ' a rank  waited ' "$table"
done
