#!/bin/bash
# The engine keeps the contract of the device's queue: where ops run only when something waits for them, streams in an order
# drawn from a seed, a tiny model gets the same bits, on one rank and on several: pipelines, shards, replicas.
# ranks: 4
#   DEFERRED_SEEDS="1 2 3 4 5" tests/ranks/test_deferred.sh     more orders
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
program=$WEFT_BINARY_DIR/ranks_engine
mpirun=(mpirun --allow-run-as-root --oversubscribe --bind-to none)

# run FILE PP DP_REPLICATE DP_SHARD
run() {
    timeout -k 5 600 "${mpirun[@]}" -n $(($2 * $3 * $4)) "$program" "$2" "$3" "$4" quick 3 >"$directory/$1" 2>"$directory/err" ||
        { echo "FAILED: mesh $2 $3 $4, WEFT_DEFER=${WEFT_DEFER:-}: ended with $?: $(tail -5 "$directory/err")"; exit 1; }
    [ -s "$directory/$1" ] || { echo "FAILED: mesh $2 $3 $4 printed nothing"; exit 1; }
}

for mesh in "1 1 1" "2 1 1" "1 1 2" "2 1 2"; do
    # shellcheck disable=SC2086
    WEFT_DEFER='' run at_once $mesh
    for seed in ${DEFERRED_SEEDS:-1 2}; do
        # shellcheck disable=SC2086
        WEFT_DEFER=$seed run deferred $mesh
        diff "$directory/at_once" "$directory/deferred" || { echo "FAILED: mesh $mesh, seed $seed: other bits"; exit 1; }
    done
done
echo "the same bits on all meshes"
