#!/bin/bash
# One config, one curve: a tiny model is trained for 40 steps on meshes of real ranks, in every schedule, kind of sharding and
# moment of summing, and what must have equal bits has: every loss, every norm, the final weights.
#   CURVE=full tests/ranks/test_curve.sh      all meshes and all combinations, 100 steps (make soak)
#   CURVE=brief tests/ranks/test_curve.sh     a few steps, for sanitizers
#   CURVE=guard tests/ranks/test_curve.sh     fewer, on a mesh of each kind, for the guard build, in which every op moves page protections
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
program=$WEFT_BINARY_DIR/ranks_engine

# PP DP_REPLICATE DP_SHARD
fall=1 # of the loss, in nats
case ${CURVE:-quick} in
full)
    mode=()
    meshes=("2 1 1" "1 2 1" "1 1 2" "4 1 1" "2 2 1" "2 1 2" "1 4 1" "1 1 4" "1 2 2" "8 1 1" "4 2 1" "4 1 2" "2 2 2" "2 1 4" "1 8 1" "1 2 4" "1 1 8")
    ;;
quick | brief)
    mode=(quick 40)
    [ "${CURVE:-quick}" = quick ] || { mode=(quick 10) fall=0; }
    meshes=("2 1 1" "1 2 1" "1 1 2" "2 1 2" "1 2 2" "2 2 2")
    ;;
guard)
    mode=(quick 3) fall=-1 # in three steps some losses still rise
    meshes=("2 1 1" "1 1 2" "2 1 2")
    ;;
*) echo "CURVE is ${CURVE}: expected full, quick, brief or guard"; exit 2 ;;
esac

# run MESH: its lines go to all. Every second mesh sends even small messages by rendezvous, as large ones go.
turn=0
run() {
    local mesh=$1 count
    read -ra shape <<<"$mesh"
    count=$((shape[0] * shape[1] * shape[2]))
    export OMPI_MCA_btl_vader_eager_limit=$((turn % 2 ? 4096 : 256)) OMPI_MCA_btl_sm_eager_limit=$((turn % 2 ? 4096 : 256))
    turn=$((turn + 1))
    if [ "$count" -eq 1 ]; then
        "$program" "${shape[@]}" "${mode[@]}"
    else
        on_ranks "$count" "$program" "${shape[@]}" "${mode[@]}"
    fi >"$directory/lines" 2>"$directory/err" || { echo "FAILED: mesh $mesh ended with $?: $(tail -5 "$directory/err")"; exit 1; }
    [ -s "$directory/lines" ] || { echo "FAILED: mesh $mesh printed nothing"; exit 1; }
    cat "$directory/lines" >>"$directory/all"
}
run "1 1 1"
for mesh in "${meshes[@]}"; do run "$mesh"; done

one_curve "$directory/all" "$fall" || exit 1
