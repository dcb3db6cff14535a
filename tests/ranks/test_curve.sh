#!/bin/bash
# One configuration, one curve: trains a tiny model for 40 steps on meshes of real ranks, with every schedule, kind of sharding and
# time of gradient reduction. Runs that must have equal bits have them: every loss, every norm and the final weights.
#   CURVE=full tests/ranks/test_curve.sh      all meshes and all combinations, 100 steps (make soak)
#   CURVE=brief tests/ranks/test_curve.sh     a few steps, for sanitizers
#   CURVE=guard tests/ranks/test_curve.sh     fewer, on a mesh of each kind, for the guard build, in which every op moves page protections
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

# PP DP_REPLICATE DP_SHARD
fall=1 # by which the loss must fall, in nats
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

# Every second mesh sends even small messages by rendezvous, as large ones are sent.
eager=(256 4096) turn=0
for mesh in "1 1 1" "${meshes[@]}"; do
    read -ra shape <<<"$mesh"
    limit=${eager[turn++ % 2]}
    OMPI_MCA_btl_vader_eager_limit=$limit OMPI_MCA_btl_sm_eager_limit=$limit curves $((shape[0] * shape[1] * shape[2])) "${shape[@]}" "${mode[@]}"
done
curves_to all
one_curve all "$fall" || exit 1
