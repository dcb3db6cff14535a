#!/bin/bash
# Context parallelism: with exact numerics, ranks that split the tokens of a microbatch have the bits of one rank on any mesh; with fast
# numerics, those of as many data-parallel ranks. Then runs as users start them, which resume at another degree.
#   CURVE=full tests/ranks/test_context.sh      all meshes of up to 8 ranks, 20 steps (make soak)
#   CURVE=brief tests/ranks/test_context.sh     fewer, for sanitizers
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/../support/degrees.sh"
needs_ranks

# METHOD PP DP_REPLICATE DP_SHARD CP TP CANONICAL_TP
case ${CURVE:-quick} in
full)
    steps=20
    meshes=()
    for pp in 1 2 4; do for replicas in 1 2; do for shards in 1 2 4; do for cp in 1 2 4; do for tp in 1 2; do
        for method in heads keys; do
            [ $((pp * replicas * shards * cp * tp)) -gt 8 ] || [ $((cp * tp)) -gt 4 ] || meshes+=("$method $pp $replicas $shards $cp $tp 2")
            [ $((pp * replicas * shards * cp)) -gt 8 ] || [ "$tp" -gt 1 ] || meshes+=("$method $pp $replicas $shards $cp 1 1")
        done
    done; done; done; done; done
    ;;
quick)
    steps=2
    meshes=("heads 1 1 1 1 1 1" "keys 1 1 1 2 1 1" "keys 2 1 1 2 1 1" "heads 1 1 1 4 1 1" "keys 1 1 1 4 1 1" "keys 1 2 1 2 1 1"
        "heads 1 1 1 1 1 2" "keys 1 1 1 2 2 2")
    ;;
brief) steps=2 meshes=("heads 1 1 1 1 1 1" "heads 1 1 1 2 1 1" "keys 1 1 2 2 1 1" "keys 1 1 1 4 1 1") ;;
*) echo "CURVE is ${CURVE}: expected full, quick or brief"; exit 2 ;;
esac

# run METHOD PP DP_REPLICATE DP_SHARD CP TP CANONICAL_TP
run() { curves $(($2 * $3 * $4 * $5 * $6)) "$2" "$3" "$4" "$1" "$5" "$6" 8 "$7" "$steps"; }
# shellcheck disable=SC2086
for mesh in "${meshes[@]}"; do run $mesh; done
curves_to all
grep '^exact' all >exact
one_curve exact 0 || exit 1
# Fast runs have equal bits where only other axes than cp differ.
awk '!($1 in digest) { digest[$1] = $2 } digest[$1] != $2 { print "FAILED: " $0; bad = 1 } END { exit bad }' all || exit 1
grep -q ' cp 4 tp ' exact && grep -q ' cp 4 by keys' exact || [ "${CURVE:-quick}" = brief ] || fail "no run had four ranks along cp"
[ "${CURVE:-quick}" != brief ] || { conclude; exit; }

# The same on the deferred device, which runs ops only when something waits for them.
WEFT_DEFER=1 run keys 1 1 1 2 1 1
curves_to deferred
grep ' cp 2 by keys tp 1 pp 1 - replicate 1 shard 2 ' all | grep -e '-c1-' | diff - deferred >/dev/null || fail "deferred: different bits"

# ---- as users run it ----

degrees cp 8 mesh.cp_comm=all_gather
# All-to-all by heads has the same bits.
launch heads -n 4 mesh.cp=4 mesh.cp_comm=all_to_all numerics.cp_invariant_up_to=8
# With tp as well: both kinds of splits.
launch plain numerics.cp_invariant_up_to=4 numerics.tp_invariant_up_to=2
launch crossed -n 4 mesh.cp=2 mesh.tp=2 numerics.cp_invariant_up_to=4
# Fewer KV heads than ranks, sliding windows, bf16: auto selects the all-gather of KV, with two chunks per rank.
few=(model.family=mistral model.sliding_window=10 model.num_key_value_heads=1 train.compute=bf16)
launch narrow numerics.cp_invariant_up_to=8 "${few[@]}"
launch shared -n 4 mesh.cp=4 "${few[@]}"
# Fast numerics: each cp rank adds one partial sum, and another number of ranks is reported to change the last bits.
fast() {
    train fast -n 2 mesh.cp=2 numerics.mode=fast train.steps=4 lr_schedule.total_steps=8
    went fast
    train fast -n 2 mesh.cp=2 mesh.cp_comm=all_gather numerics.mode=fast train.steps=6 lr_schedule.total_steps=8
    grep -q 'mesh.cp by keys' fast.err fast.out || fail "another method in fast numerics is not reported: $(tail -5 fast.err)"
    train fast numerics.mode=fast lr_schedule.total_steps=8
    grep -q 'is fast over 1 data-parallel rank now' fast.err fast.out || fail "another cp in fast numerics is not reported: $(tail -5 fast.err)"
}
meanwhile 2 fast
together
same heads one
same crossed plain
same shared narrow
grep -q 'cp_invariant_up_to: 8' shared/config.yaml || fail "by keys a rank has two spans: $(grep invariant shared/config.yaml)"

refused 'mesh.cp 4 by all_to_all does not divide num_key_value_heads 2: 1 or 2 would' -n 4 mesh.cp=4 model.num_key_value_heads=2 mesh.cp_comm=all_to_all
refused 'mesh.cp 4 by all_to_all does not divide the key and value heads that mesh.tp leaves a rank, 2: 1 or 2 would' -n 8 mesh.cp=4 mesh.tp=2 mesh.cp_comm=all_to_all
refused 'mesh.cp 4 by all_gather cannot have the bits of numerics.cp_invariant_up_to 12, of which a rank takes 2, 4, 8, ...: mesh.cp 1, 3 or 6 would' -n 4 mesh.cp=4 numerics.cp_invariant_up_to=12 mesh.cp_comm=all_gather
refused 'mesh.cp 4 does not divide numerics.cp_invariant_up_to 6: 1, 2, 3 or 6 would' -n 4 mesh.cp=4 numerics.cp_invariant_up_to=6
refused 'does not divide the 30 tokens of a microbatch' -n 4 mesh.cp=4 train.context=30 train.tokens_per_step=120
refused 'which is of numerics.mode: exact' -n 2 mesh.cp=2 numerics.mode=fast numerics.cp_invariant_up_to=2
refusals
conclude "context parallelism has the bits of one rank"
