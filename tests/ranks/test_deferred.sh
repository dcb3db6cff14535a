#!/bin/bash
# The engine keeps the contract of the device's queue: on a device that runs ops only when something waits for them, with the
# streams in an order drawn from a seed, a tiny model gets the same bits, on one rank and with pipelines, shards and replicas.
# ranks: 4
#   DEFERRED_SEEDS="1 2 3 4 5" tests/ranks/test_deferred.sh     more orders
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

# run FILE PP DP_REPLICATE DP_SHARD
run() {
    on_ranks $(($2 * $3 * $4)) "$WEFT_BINARY_DIR/ranks_engine" "$2" "$3" "$4" quick 3 >"$1" 2>"$1.err" ||
        fail "mesh $2 $3 $4, WEFT_DEFER=${WEFT_DEFER:-}: ended with $?: $(tail -5 "$1.err")"
    [ -s "$1" ] || fail "mesh $2 $3 $4 printed nothing"
}
in_any_order() {
    local seed
    WEFT_DEFER='' run "$1$2$3" "$@"
    for seed in ${DEFERRED_SEEDS:-1 2}; do
        WEFT_DEFER=$seed run "deferred$1$2$3" "$@"
        diff "$1$2$3" "deferred$1$2$3" || fail "mesh $*, seed $seed: different bits"
    done
}

meanwhile 1 in_any_order 1 1 1
meanwhile 2 in_any_order 2 1 1
meanwhile 2 in_any_order 1 1 2
meanwhile 4 in_any_order 2 1 2
together
conclude "the same bits on all meshes"
