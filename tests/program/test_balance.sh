#!/bin/bash
# ranks: 2
# Experts that start from random weights are balanced by a router bias by default, also in families whose files have no place for it. The bias
# is kept with the optimizer's states, over a stop and on other meshes. Exported models lack it, and commands that read them warn. Given weights,
# and runs that began without a bias, stay without; a run that changes the speed starts or freezes the bias. Unbalanced experts give a warning.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {family: qwen3_moe, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, head_dim: 8, num_experts: 8,
  num_experts_per_tok: 2, moe_intermediate_size: 20}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
states() { sha256sum <"$1/checkpoints/step-0000000$2/optimizer.safetensors"; }

exits 0 train run.yaml run.dir=one || cat err
has err 'experts are balanced by a bias (train.router_bias_speed 0.02), which files of the family qwen3_moe have no place for'
exits 0 inspect one/checkpoints/step-00000004/optimizer.safetensors
has out 'kept.model.layers.1.mlp.gate.balance_bias'
grep -q 'layers.1.mlp.gate.balance_bias  *F32  *\[8\]  *0\.0[0-9]*[1-9]' out || fail "the bias has not moved: $(grep balance out)"
exits 0 inspect one/checkpoints/step-00000004
hasnt out balance_bias

# The bias survives a stop, another mesh, rounded files and weight averaging.
mesh 2 two mesh.dp_shard=2 mesh.ep=2
mesh 2 piped mesh.pp=2
exits 0 train run.yaml run.dir=stopped train.steps=2 lr_schedule.total_steps=4
mesh 2 stopped mesh.dp_shard=2
for run in two piped stopped; do
    [ "$(curve $run)" = "$(curve one)" ] && [ "$(digest $run)" = "$(digest one)" ] && [ "$(states $run 4)" = "$(states one 4)" ] ||
        fail "experts are balanced differently in $run"
done
rounded='checkpoint.dtype=bf16 optimizer.ema=0.9'
exits 0 train run.yaml run.dir=rounded $rounded || cat err
exits 0 train run.yaml run.dir=rounded_stop $rounded train.steps=2 lr_schedule.total_steps=4
exits 0 train run.yaml run.dir=rounded_stop $rounded || cat err
[ "$(states rounded_stop 4)" = "$(states rounded 4)" ] || fail "the average of the bias is lost over a stop"
exits 0 inspect rounded/checkpoints/step-00000004/model.ema.safetensors
hasnt out balance_bias

# Models without optimizer states.
for command in "export one given" "generate one --prompt abc --tokens 2 --temperature 0" "train run.yaml run.dir=from model.init=one train.steps=1"; do
    exits 0 $command || cat err
    has err 'experts were trained with a bias that balances them'
done
exits 0 inspect given
hasnt out balance_bias
exits 0 inspect from/checkpoints/step-00000001/optimizer.safetensors
hasnt out balance_bias

# A run that began without a bias resumes without one, even if the key is no longer set.
exits 0 train run.yaml run.dir=plain train.router_bias_speed=0
exits 0 train run.yaml run.dir=plain_stop train.router_bias_speed=0 train.steps=2 lr_schedule.total_steps=4
exits 0 train run.yaml run.dir=plain_stop || cat err
[ "$(curve plain_stop)" = "$(curve plain)" ] && [ "$(states plain_stop 4)" = "$(states plain 4)" ] || fail "a run without a bias resumes with one"
[ "$(curve plain)" = "$(curve one)" ] && fail "the bias changes nothing"

# A resumed run starts the bias, from 0, or freezes it, and keeps that when the key is no longer set; the same on other meshes.
biases() { "$weft" inspect "$1/checkpoints/step-0000000$2/optimizer.safetensors" | grep "^kept.*balance_bias"; }
allowed='run.allow_changes=[train.router_bias_speed,optimizer.ema]'
for run in take take_two; do
    exits 0 train run.yaml run.dir=$run train.router_bias_speed=0 train.steps=2 lr_schedule.total_steps=6
done
exits 0 train run.yaml run.dir=take train.steps=6 train.router_bias_speed=0.02 "$allowed" || cat err
has err 'experts are balanced by a bias (train.router_bias_speed 0.02)'
mesh 2 take_two mesh.dp_shard=2 mesh.ep=2 train.steps=6 train.router_bias_speed=0.02 "$allowed"
biases take 6 | grep -q ' 0\.0[0-9]*[1-9]' || fail "the bias that a run took up has not moved: $(biases take 6)"
for run in rest rest_two; do exits 0 train run.yaml run.dir=$run train.steps=2 lr_schedule.total_steps=6; done
before=$(biases rest 2)
exits 0 train run.yaml run.dir=rest train.steps=4 lr_schedule.total_steps=6 train.router_bias_speed=0 "$allowed" || cat err
has err 'the bias that balances experts stays as it is'
exits 0 train run.yaml run.dir=rest train.steps=6 || cat err
mesh 2 rest_two mesh.pp=2 train.steps=6 train.router_bias_speed=0 "$allowed"
[ -n "$before" ] && [ "$before" = "$(biases rest 6)" ] || fail "a bias that rests: $before became $(biases rest 6)"
for run in take rest; do
    [ "$(curve $run)" = "$(curve ${run}_two)" ] && [ "$(states $run 6)" = "$(states ${run}_two 6)" ] || fail "$run is otherwise on two ranks"
done
[ "$(curve take | tail -1)" != "$(curve rest | tail -1)" ] || fail "a bias that rests is no bias"

# Weight averaging may also be turned on and off.
exits 0 train run.yaml run.dir=average train.steps=2 lr_schedule.total_steps=6
exits 0 train run.yaml run.dir=average train.steps=4 lr_schedule.total_steps=6 optimizer.ema=0.9 "$allowed" || cat err
exits 0 inspect average/checkpoints/step-00000004/optimizer.safetensors
has out 'average.model.layers.1.mlp.gate.balance_bias'
exits 0 train run.yaml run.dir=average train.steps=6 optimizer.ema=0 "$allowed" || cat err

# Given weights get a bias only if the key is set.
exits 0 train run.yaml run.dir=asked model.init=plain train.router_bias_speed=0.02 || cat err
biases asked 4 | grep -q ' 0\.0[0-9]*[1-9]' || fail "the bias of given weights has not moved: $(biases asked 4)"

# A last checkpoint with only weights lacks the bias: the run warns at its start, and so do commands that read the model.
mesh 2 alone mesh.dp_shard=2 checkpoint.last_weights_only=true
has err 'the last checkpoint is a model that chooses experts without the bias'
exits 0 checkpoint list alone
has out 'complete, weights only'
[ "$(biases alone 4)" = "$(biases one 4)" ] || fail "a checkpoint of weights alone has lost the bias: $(biases alone 4)"
for command in "export alone given_alone" "eval alone text.txt --context 32" "train run.yaml run.dir=from_alone model.init=alone train.steps=1"; do
    exits 0 $command || cat err
    has err 'experts were trained with a bias that balances them'
done
exits 0 train run.yaml run.dir=plain_alone train.router_bias_speed=0 checkpoint.last_weights_only=true
hasnt err 'the last checkpoint is a model that'
[ ! -e plain_alone/checkpoints/step-00000004/optimizer.safetensors ] || fail "a checkpoint of weights alone has an optimizer's file"

# Every family: the mean imbalance of the last ten of 25 steps is nearer to 1 than without a bias, by at least a fifth.
unevenness() {
    exits 0 train run.yaml run.dir=even "$@" run.overwrite=true train.steps=25 checkpoint.every=0 model.num_hidden_layers=3 >&2
    grep -o '"expert_imbalance": [0-9.]*' even/metrics.jsonl | tail -10 | awk '{ sum += $2 } END { printf "%d", 100 * sum }'
}
latent='model.head_dim=0 model.q_lora_rank=0 model.kv_lora_rank=16 model.qk_nope_head_dim=8 model.qk_rope_head_dim=8 model.v_head_dim=8
  model.n_group=1 model.topk_group=1 model.first_k_dense_replace=0'
for family in qwen3_moe mixtral olmoe gpt_oss llama4_text deepseek_v2 deepseek_v3; do
    more="model.family=$family"
    case $family in
    mixtral | olmoe | gpt_oss) more+=' model.moe_intermediate_size=0' ;;
    llama4_text) more+=' model.num_experts_per_tok=1' ;;
    deepseek*) more+=" $latent" ;;
    esac
    # DeepSeek's bias moves by a fixed amount, at most 0.025 in 25 steps by default. Three times that leaves a margin; twenty times oscillates.
    speed=
    [ $family = deepseek_v3 ] && speed=train.router_bias_speed=0.003
    with=$(unevenness $more $speed) without=$(unevenness $more train.router_bias_speed=0)
    echo "$family: $with in place of $without (1000 is even)"
    [ $((with * 5)) -lt $((without * 4)) ] || fail "$family: experts are hardly more even with the bias ($with) than without ($without)"
done

# One warning if the experts stay unbalanced.
exits 0 train run.yaml run.dir=uneven train.router_bias_speed=0 train.steps=80 checkpoint.every=0 optimizer.lr=0.003
grep -c 'experts have been unbalanced for 50 steps' err | grep -qx 1 || fail "no warning of experts that stay unbalanced: $(tail -2 uneven/metrics.jsonl)"
has err 'set train.router_bias_speed=0.02, and go on with run.allow_changes'
conclude
