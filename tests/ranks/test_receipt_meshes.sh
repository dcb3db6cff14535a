#!/bin/bash
# Receipts on many meshes: the root of the weights does not depend on the mesh, and a step is verified on another one. With fast numerics
# on another number of data-parallel ranks bits may differ, which is no refutation.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 100 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 48, intermediate_size: 80, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
data: {sources: [text.txt], cache_dir: cache}
numerics: {mode: exact, tp_invariant_up_to: 2}
train: {steps: 6, context: 32, microbatch: 2, tokens_per_step: 256}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, receipts: true}
END
lines() { sed 's/, "h": .*//; /"begin"/d' "$1/receipts.jsonl"; }
"$weft" train run.yaml run.dir=one >/dev/null 2>err </dev/null || fail "$(tail -1 err)"
lines one >expected
run=0
for mesh in mesh.dp_shard=4 "mesh.dp_replicate=2 mesh.tp=2" "mesh.pp=2 mesh.tp=2" "mesh.dp_shard=2 mesh.pp=2"; do
    run=$((run + 1))
    # shellcheck disable=SC2086
    on_ranks 4 "$weft" train run.yaml run.dir=run$run $mesh >/dev/null 2>err </dev/null || fail "$mesh: $(tail -1 err)"
    lines run$run | cmp - expected || fail "$mesh: other receipts"
    exits 0 verify run$run --chain
done
# As many ranks as the run had; one rank; another mesh.
exits 0 verify run2 --step 5
has out "step 5 is confirmed: made again from step 4 on 4 ranks"
exits 0 verify run3 --step 5 -n 1
exits 0 verify one --step 5 -n 2 mesh.tp=2

on_ranks 2 "$weft" train run.yaml run.dir=fast numerics.mode=fast >/dev/null 2>err </dev/null || fail "$(tail -1 err)"
exits 0 verify fast --step 5
"$weft" verify fast --step 5 -n 1 >out 2>err
status=$?
[ $status -eq 0 ] || [ $status -eq 69 ] || fail "fast numerics on one rank: status $status: $(cat err)"

# Experts: each is a parameter of its own.
experts="model.family=qwen3_moe model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=16"
for mesh in mesh.dp_shard=2 "mesh.dp_shard=2 mesh.ep=2"; do
    # shellcheck disable=SC2086
    on_ranks 2 "$weft" train run.yaml run.dir="moe ${mesh##*.}" $experts $mesh >/dev/null 2>err </dev/null || fail "$mesh: $(tail -1 err)"
done
lines "moe dp_shard=2" >expected
lines "moe ep=2" | cmp - expected || fail "other receipts with ep"
conclude "receipts are the same on every mesh"
