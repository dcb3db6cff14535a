#!/bin/bash
# ranks: 4
# LoRA adapters on a frozen base: one curve on every mesh and after a restart, checkpoints in PEFT's format, generate, eval and merge, the plan,
# and refusals.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >base.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 3, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
sed '/^model:/d; s/steps: 4/steps: 8/' base.yaml >run.yaml
cat >>run.yaml <<END
model: {init: base}
lora: {rank: 4, alpha: 8}
optimizer: {lr: 0.02}
checkpoint: {every: 4}
END

exits 0 train base.yaml run.dir=base || cat err
before=$(digest base)
exits 0 train run.yaml run.dir=one || cat err
curve one >one.curve
[ "$(wc -l <one.curve)" -eq 8 ] || fail "no curve"
[ "$(digest base)" = "$before" ] || fail "the base has changed"

# One curve, and the same adapters, on other meshes and after a restart.
exits 0 train run.yaml run.dir=resumed train.steps=4 lr_schedule.total_steps=8
exits 0 train run.yaml run.dir=resumed
exits 0 train run.yaml run.dir=full train.recompute=full
mesh 2 shard mesh.dp_shard=2
mesh 2 replicate mesh.dp_replicate=2 train.gradient_sync=microbatch
mesh 2 stages mesh.pp=2 pipeline.schedule=zb_h1
mesh 4 both mesh.dp_shard=2 mesh.pp=2
for run in resumed full shard replicate stages both; do
    curve $run | cmp -s - one.curve || fail "$run has a different curve"
    [ "$(digest $run)" = "$(digest one)" ] || fail "$run has other adapters"
done
# Context parallelism, with both methods.
exits 0 train run.yaml run.dir=spans numerics.cp_invariant_up_to=4
mesh 4 contexts numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.dp_shard=2 mesh.cp_comm=all_to_all train.steps=4 lr_schedule.total_steps=8
mesh 2 contexts numerics.cp_invariant_up_to=4 mesh.cp=2 mesh.cp_comm=all_gather
curve contexts | cmp -s - <(curve spans) || fail "context parallelism has a different curve"
[ "$(digest contexts)" = "$(digest spans)" ] || fail "ranks that share tokens have other adapters"
# Tensor parallelism, also over the two KV heads: the bits of one rank with as many splits.
leaves=(numerics.tp_invariant_up_to=4)
exits 0 train run.yaml run.dir=leaves "${leaves[@]}"
exits 0 train run.yaml run.dir=leaves_apart "${leaves[@]}" train.recompute=full train.split_backward=true
mesh 2 tensors "${leaves[@]}" mesh.tp=2 train.steps=4 lr_schedule.total_steps=8
mesh 4 tensors "${leaves[@]}" mesh.tp=4
mesh 4 tensors_sharded "${leaves[@]}" mesh.tp=2 mesh.dp_shard=2 train.recompute=full train.split_backward=true
mesh 4 tensors_stages "${leaves[@]}" mesh.tp=2 mesh.pp=2 pipeline.schedule=zb_h1
for run in leaves_apart tensors tensors_sharded tensors_stages; do
    curve $run | cmp -s - <(curve leaves) || fail "$run has a different curve"
    [ "$(digest $run)" = "$(digest leaves)" ] || fail "$run has other adapters"
done
pieces=(numerics.tp_invariant_up_to=2 numerics.cp_invariant_up_to=4 train.steps=4)
exits 0 train run.yaml run.dir=pieces "${pieces[@]}"
mesh 4 shared "${pieces[@]}" mesh.tp=2 mesh.cp=2 mesh.cp_comm=all_gather
curve shared | cmp -s - <(curve pieces) || fail "tp with cp has a different curve"
[ "$(digest shared)" = "$(digest pieces)" ] || fail "ranks that share matrices and tokens have other adapters"
# Adapters with Muon, which updates full matrices on one of the tp ranks.
muon=("${leaves[@]}" optimizer.kind=muon train.steps=2)
exits 0 train run.yaml run.dir=muon "${muon[@]}"
mesh 2 muon_shard "${muon[@]}" mesh.dp_shard=2
mesh 4 muon_both "${muon[@]}" mesh.tp=2 mesh.dp_shard=2
for run in muon_shard muon_both; do
    curve $run | cmp -s - <(curve muon) || fail "$run has a different curve"
    [ "$(digest $run)" = "$(digest muon)" ] || fail "$run has other adapters"
done
exits 0 plan run.yaml -n 4 "${muon[@]}" mesh.tp=2 mesh.dp_shard=2
has out "q_proj.lora_A"
# Resumes on another mesh.
mesh 2 moved train.steps=4 lr_schedule.total_steps=8 mesh.dp_shard=2
exits 0 train run.yaml run.dir=moved
curve moved | cmp -s - one.curve || fail "moved has a different curve"

# The checkpoint has only adapters, under PEFT's names, and the files that PEFT needs.
last=one/checkpoints/step-00000008
[ "$(ls $last)" = "$(printf '%s\n' adapter_config.json adapter_model.safetensors manifest.json optimizer.safetensors state.json tokenizer.json tokenizer_config.json)" ] ||
    fail "the checkpoint holds $(ls $last)"
"$weft" inspect --header $last/adapter_model.safetensors | awk '/lora/ { $1 = $1; print $1, $3 $4 }' >names
[ "$(wc -l <names)" -eq 42 ] || fail "$(wc -l <names) tensors"
for line in "0.self_attn.q_proj.lora_A.weight [4,32]" "0.self_attn.q_proj.lora_B.weight [32,4]" "2.self_attn.v_proj.lora_B.weight [16,4]" \
    "1.self_attn.o_proj.lora_A.weight [4,32]" "2.mlp.gate_proj.lora_B.weight [48,4]" "0.mlp.down_proj.lora_A.weight [4,48]"; do
    grep -qxF "base_model.model.model.layers.$line" names || fail "no $line in $(head -3 names)"
done
for word in '"peft_type": "LORA"' '"r": 4' '"lora_alpha": 8' '"bias": "none"' '"q_proj"' '"down_proj"' '"task_type": "CAUSAL_LM"' "base/checkpoints/step-00000004"; do
    has $last/adapter_config.json "$word"
done
hasnt $last/adapter_config.json layers
exits 0 checkpoint verify one

# Base with adapter and the merged model give the same text and, within rounding, the same loss, which differs from that of the base.
letters 8 9 >held.txt
loss() { "$weft" eval "$1" held.txt "${@:2}" --context 32 --compute fp32 --json 2>err | sed -n 's/.*"loss": \([0-9.]*\).*/\1/p'; }
exits 0 merge one merged || cat err
has out "21 of its matrices"
[ ! -e merged/adapter_config.json ] || fail "a merged model has an adapter"
adapted=$(loss one) whole=$(loss merged) plain=$(loss base)
awk -v a="$adapted" -v b="$whole" -v c="$plain" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(a > 0 && d < 1e-5 * a && (c - a > 1e-3 || a - c > 1e-3)) }' ||
    fail "loss $adapted, merged $whole, of the base $plain"
shared=$(loss one -n 2 mesh.cp=2)
awk -v a="$adapted" -v b="$shared" 'BEGIN { d = a - b; if (d < 0) d = -d; exit !(b > 0 && d < 1e-5 * a) }' || fail "loss $adapted, on ranks of cp $shared"
same=$(loss one numerics.tp_invariant_up_to=2)
[ -n "$same" ] && [ "$(loss one -n 2 mesh.tp=2)" = "$same" ] || fail "on ranks of tp eval has another loss"
exits 0 generate one --prompt abc --tokens 12 --temperature 0 --compute fp32
cp out adapted.text
exits 0 generate merged --prompt abc --tokens 12 --temperature 0 --compute fp32
cmp -s out adapted.text || fail "the merged model says something else"
exits 0 merge one rounded --dtype bf16
"$weft" inspect --header rounded | grep -q 'q_proj.weight *BF16' || fail "--dtype bf16 is not obeyed"
# A merged model is a model like any other.
exits 0 train run.yaml run.dir=further model.init=merged train.steps=1
exits 0 export merged given

# A base model that was moved.
cp -r $last carried
mv base elsewhere
exits 66 merge carried no
has err "which is not there: give its directory with --base DIR"
exits 0 merge carried again --base elsewhere
[ "$(digest again)" = "$(digest merged)" ] || fail "--base makes another model"
[ "$(loss carried --base elsewhere)" = "$adapted" ] || fail "--base has another loss"
mv elsewhere base

# Adapters on some matrices only; bf16; a rounded file that still resumes; optimizer groups for adapters.
part() { "$weft" train run.yaml run.dir="$1" train.steps=2 "${@:2}" >out 2>err </dev/null || fail "$1: $(tail -2 err)"; }
part some 'lora.match=layers.1.*(q|v)_proj' 'optimizer.groups=[{match: lora_B, lr: 0.1}]' lora.rslora=true checkpoint.every=1
has err "2 matrices, scale 4"
has some/checkpoints/step-00000002/adapter_config.json '"model.layers.1.self_attn.q_proj"'
has some/checkpoints/step-00000002/adapter_config.json '"use_rslora": true'
part half train.compute=bf16 checkpoint.dtype=bf16 train.steps=4
part halves train.compute=bf16 checkpoint.dtype=bf16 lr_schedule.total_steps=4
part halves train.compute=bf16 checkpoint.dtype=bf16 train.steps=4
cmp -s <(curve half) <(curve halves) || fail "with a rounded file it resumes differently"

# Over tp in bf16: fused or transposed matrices; norms after the layers, and norms over all heads.
for family in phi3 gpt2 olmo2; do
    exits 0 train base.yaml run.dir=$family.base model.family=$family model.num_key_value_heads=4 train.steps=1
    own=(model.init=$family.base lora.rank=3 train.steps=3 train.compute=bf16 numerics.tp_invariant_up_to=2)
    exits 0 train run.yaml run.dir=$family.one "${own[@]}"
    mesh 2 $family.two "${own[@]}" mesh.tp=2
    curve $family.two | cmp -s - <(curve $family.one) || fail "$family over tp has a different curve"
    [ "$(digest $family.two)" = "$(digest $family.one)" ] || fail "$family over tp has other adapters"
done

# The plan has no gradients and no states for the matrices of the base.
exits 0 plan run.yaml
has out "rank 4 on 21 matrices, scale 2"
has out "the base"
cp out lora.plan
exits 0 plan run.yaml lora.rank=0
for row in gradients optimizer; do
    less=$(grep -m1 "^  $row  *[0-9]" lora.plan) more=$(grep -m1 "^  $row  *[0-9]" out)
    [ -n "$less" ] && [ -n "$more" ] && [ "$less" != "$more" ] || fail "the plan shows no less of $row: $less, $more"
done

# Refusals name the key.
exits 78 train run.yaml run.dir=one train.steps=9 lora.rank=2
has err "lora.rank"
exits 78 train run.yaml run.dir=one train.steps=9 lora.alpha=16
has err "lora.alpha"
cp -r base other
exits 0 train base.yaml run.dir=other run.seed=5 run.overwrite=true
exits 78 train run.yaml run.dir=one train.steps=9 model.init=other
has err "the base is not what the checkpoint was trained with"
expect 78 plan base.yaml lora.rank=4
has err "set model.init"
expect 78 plan run.yaml lora.match=embed_tokens
has err "no matrix of a block has \"embed_tokens\" in its name"
expect 78 plan run.yaml 'lora.match=('
has err "lora.match: \"(\" is no regular expression"
expect 78 plan run.yaml lora.rank=16
has err "k_proj.weight is [16, 32]"
expect 78 plan run.yaml optimizer.ema=0.9
expect 78 plan run.yaml 'optimizer.groups=[{match: norm, lr: 1}]'
has err "nothing else is trained"
expect 78 plan run.yaml lora.dropout=0.1
expect 65 plan run.yaml model.init=one
has err "weft merge one DIR"
expect 65 export one no
has err "weft merge"
expect 65 merge base no
expect 73 merge one merged
expect 2 eval base held.txt --base one
sed 's/"use_rslora": false/"use_rslora": false, "use_dora": true/' $last/adapter_config.json >carried/adapter_config.json
expect 65 merge carried no
has err "use_dora"
sed 's/"r": 4/"r": 5/' $last/adapter_config.json >carried/adapter_config.json
expect 65 merge carried no
has err "expected [5, 32]"
[ ! -e no ] || fail "something was written where a merge failed"
conclude
