#!/bin/bash
# Tensor parallelism has the bits of one rank: a tiny model on meshes of real ranks, with splits distributed over one, two or four of them,
# combined with pipelines, shards, replicas, recompute, separate dgrad and wgrad, and fixed point. Then runs as users start them, which
# resume at another degree.
#   CURVE=full tests/ranks/test_tensor.sh      all meshes of up to 8 ranks, 20 steps (make soak)
#   CURVE=brief tests/ranks/test_tensor.sh     fewer, for sanitizers
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/../support/degrees.sh"
needs_ranks

# PP DP_REPLICATE DP_SHARD TP
case ${CURVE:-quick} in
full)
    steps=20
    meshes=()
    for pp in 1 2 4; do for replicas in 1 2 4; do for shards in 1 2 4; do for tp in 1 2 4; do
        [ $((pp * replicas * shards * tp)) -gt 8 ] || meshes+=("$pp $replicas $shards $tp")
    done; done; done; done
    ;;
quick) steps=4 meshes=("1 1 1 1" "1 1 1 2" "1 1 1 4" "2 1 1 2" "2 1 1 4" "1 1 2 1" "1 2 1 2" "1 1 2 4" "2 1 2 2") ;;
brief) steps=2 meshes=("1 1 1 1" "1 1 1 2" "1 1 1 4" "2 1 1 2" "1 1 2 2" "1 2 1 1") ;;
*) echo "CURVE is ${CURVE}: expected full, quick or brief"; exit 2 ;;
esac

# run CANONICAL PP DP_REPLICATE DP_SHARD TP [KEY_HEADS]
run() { curves $(($2 * $3 * $4 * $5)) "$2" "$3" "$4" tp "$5" "$1" "$steps" "${6:-0}"; }
# shellcheck disable=SC2086
for mesh in "${meshes[@]}"; do run 4 $mesh; done
# shellcheck disable=SC2086
for mesh in "1 1 1 1" "1 1 1 2"; do run 2 $mesh; done
# Fewer KV heads than splits, and than ranks.
if [ "${CURVE:-quick}" != full ]; then
    run 4 1 1 1 1 2; run 4 1 1 1 4 2; run 4 1 1 1 1 1; run 4 1 1 1 2 1; run 4 2 1 1 2 1
else
    # shellcheck disable=SC2086
    for heads in 1 2; do for mesh in "${meshes[@]}"; do run 4 $mesh $heads; done; done
    for tp in 1 2 4 8; do run 8 1 1 1 "$tp" 2; done
fi
curves_to all
# With so few KV heads the loss need not fall in so few steps.
grep -v -e '-g[12]' all >enough
grep -e '-g[12]' all >few
one_curve enough 0 || exit 1
one_curve few -1 || exit 1
grep -q ' tp 4 ' all || [ "${CURVE:-quick}" = brief ] || fail "no run had four ranks along tp"
[ "${CURVE:-quick}" != brief ] || { conclude; exit; }

# The same on the deferred device, which runs ops only when something waits for them.
for heads in 0 1; do WEFT_DEFER=$((heads + 1)) run 4 1 1 1 2 "$heads"; done
curves_to deferred
grep ' cp 1 tp 2 pp 1 - replicate 1 shard 1 ' all | grep -e '-c4-' >at_once
for heads in 0 1; do
    awk -v g="-g$heads" 'g == "-g0" ? $1 !~ /-g[0-9]/ : index($1, g)' at_once
done | diff - deferred >/dev/null || fail "deferred: different bits"

# ---- as users run it ----

degrees tp 4
# Of fused and of transposed matrices, a rank holds row or column ranges: read and written at another degree, they give the file of one rank.
# Norms over all heads are sharded with their heads.
families=(gpt2 olmo3)
[ "${CURVE:-quick}" != full ] || families+=(phi3 olmo2)
for family in "${families[@]}"; do
    train stored numerics.tp_invariant_up_to=4 "model.family=$family" train.steps=4
    train bands -n 4 mesh.tp=4 "model.family=$family" train.steps=2 lr_schedule.total_steps=4
    train bands -n 2 mesh.tp=2 "model.family=$family" train.steps=4 lr_schedule.total_steps=4
    went stored && went bands || continue
    cmp -s bands/checkpoints/latest/model.safetensors stored/checkpoints/latest/model.safetensors || fail "$family ends with other weights"
    rm -rf stored bands
done

# The same with one KV head, which all ranks replicate.
sed -i 's/num_key_value_heads: 4/num_key_value_heads: 1/' run.yaml
rm -rf one four both piped moved
degrees tp 4

refused 'mesh.tp 3 does not fit num_attention_heads 4: 1, 2 or 4 would' -n 3 mesh.tp=3
refused 'mesh.tp 4 cannot have the bits of numerics.tp_invariant_up_to 6' -n 4 mesh.tp=4 numerics.tp_invariant_up_to=6
refused 'numerics.tp_invariant_up_to 3' numerics.tp_invariant_up_to=3
refused 'mesh.tp 4 does not fit num_key_value_heads 3: 1, 3, 6 or 12 would' -n 4 mesh.tp=4 model.hidden_size=48 model.num_attention_heads=12 model.num_key_value_heads=3
refused 'for 4 ranks would share a head, whose head_dim 6 they do not divide: 1 or 2 would' -n 4 mesh.tp=4 model.head_dim=6
refused 'mesh.cp 2 by all_gather: numerics.tp_invariant_up_to 4, more than num_key_value_heads 1, needs as many ranks along tp' -n 2 mesh.cp=2 numerics.tp_invariant_up_to=4
refused 'does not divide the 30 tokens of a microbatch' -n 4 mesh.tp=4 train.context=30 train.tokens_per_step=120
refusals
conclude "tensor parallelism has the bits of one rank"
