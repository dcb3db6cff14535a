#!/bin/bash
# ranks: 4
# Recurrent models: one curve on every mesh, with any number of threads and after a restart; checkpoints for resuming, evaluating and
# generating; refusals.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {family: recurrent, mixer: [min_gru, min_lstm, mamba2, attention, hawk], hidden_size: 32, intermediate_size: 48, num_hidden_layers: 5,
  num_attention_heads: 4, conv_size: 3, mamba_d_head: 16, mamba_d_state: 8}
data: {sources: [{path: text.txt, split: paragraphs}], validation: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 6, context: 32, microbatch: 5, tokens_per_step: 640, compute: fp32, recompute: selective}
numerics: {mode: exact}
validation: {every: 6, samples: 20}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 3}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END

exits 0 train run.yaml run.dir=one || cat err
has err 'blocks: min_gru, min_lstm, mamba2, attention, hawk'
curve one >one.curve
[ "$(wc -l <one.curve)" -eq 6 ] || fail "no curve"
exits 0 train run.yaml run.dir=threads run.threads=2
exits 0 train run.yaml run.dir=resumed train.steps=3 lr_schedule.total_steps=6
mesh 2 resumed mesh.dp_shard=2
mesh 2 replicate mesh.dp_replicate=2 train.gradient_sync=microbatch train.recompute=full
mesh 4 both mesh.dp_shard=2 mesh.pp=2 pipeline.schedule=zbv
for run in threads resumed replicate both; do
    curve $run | cmp -s - one.curve || fail "$run has a different curve"
    [ "$(digest $run)" = "$(digest one)" ] || fail "$run has other weights"
done

last=one/checkpoints/step-00000006
exits 0 inspect $last
has out 'blocks      min_gru, min_lstm, mamba2, attention, hawk'
has out 'model.layers.1.mixer.forget.weight'
has out 'model.layers.2.mixer.A_log'
has out 'model.layers.3.mlp.gate_proj.weight'
has out 'model.layers.4.mixer.lambda'
hasnt out 'model.layers.1.mlp'
hasnt out 'model.layers.2.mlp'
grep -q '"architectures": \[ *$' $last/config.json && grep -q '"min_lstm"' $last/config.json || fail "config.json: $(cat $last/config.json)"
exits 0 generate one --prompt abc --tokens 4 --temperature 0
exits 0 train run.yaml run.dir=from model.init=$last train.steps=1
exits 0 plan run.yaml
has out 'blocks: min_gru, min_lstm, mamba2, attention, hawk'
exits 0 train run.yaml run.dir=bf16 train.steps=2 train.compute=bf16 'model.mixer=[min_gru, mamba2]' model.conv_size=0
exits 0 train run.yaml run.dir=hawk train.steps=2 train.compute=bf16 'model.mixer=[hawk, mamba2]' model.conv_size=0 model.recurrent_size=48

exits 78 train run.yaml run.dir=no model.mixer=gru
has err '"gru" is no mixer that models have: expected attention, min_gru, min_lstm, hawk or mamba2'
exits 78 train run.yaml run.dir=no model.family=llama
has err 'blocks of the family llama have attention, all of them'
exits 78 train run.yaml run.dir=no model.mixer=attention
has err 'no block has a recurrence'
exits 78 train run.yaml run.dir=no model.init=$last model.mixer=min_gru
has err 'model.mixer does not fit the weights of model.init'
exits 78 train run.yaml run.dir=one 'model.mixer=[min_gru, mamba2]'
has err 'model.mixer'
exits 78 plan run.yaml model.mixer=min_gru
has err 'model.mamba_d_state is 8, but no block has mamba2'
exits 78 plan run.yaml model.mamba_d_head=24
has err 'recurrent_size 64 is not a multiple of mamba_d_head 24'
exits 78 plan run.yaml -n 2 mesh.tp=2
has err 'mesh.tp 2: the family recurrent has recurrences, which weft does not cut yet'
exits 78 plan run.yaml -n 2 mesh.cp=2
has err 'mesh.cp 2: the family recurrent has recurrences'
conclude
