#!/bin/bash
# ranks: 4
# Frozen parameters keep their bits, and the rest has one curve on every mesh and after a restart; the plan shows the saving.
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 3, num_attention_heads: 4, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 8, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 4}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
optimizer: {groups: [{match: "embed|layers.0|layers.1.*q_proj|layers.2.*norm", frozen: true}]}
END

exits 0 train run.yaml run.dir=one || cat err
curve one >one.curve
[ "$(wc -l <one.curve)" -eq 8 ] || fail "no curve"
exits 0 train run.yaml run.dir=free optimizer.groups=
curve free | cmp -s - one.curve && fail "freezing changes nothing"

exits 0 train run.yaml run.dir=resumed train.steps=4 lr_schedule.total_steps=8
exits 0 train run.yaml run.dir=resumed
mesh 2 shard mesh.dp_shard=2
mesh 2 replicate mesh.dp_replicate=2 train.gradient_sync=microbatch
mesh 4 both mesh.dp_shard=2 mesh.pp=2
for run in resumed shard replicate both; do
    curve $run | cmp -s - one.curve || fail "$run has a different curve"
    [ "$(digest $run)" = "$(digest one)" ] || fail "$run has other weights"
done

# If only one norm is trained, everything else stays as it began, bit for bit.
exits 0 train run.yaml run.dir=start train.steps=1 optimizer.lr=0 optimizer.groups=
exits 0 train run.yaml run.dir=norm optimizer.lr=0.1 'optimizer.groups=[{match: "^(?!model.norm)", frozen: true}]'
"$weft" inspect start/checkpoints/step-00000001 | grep -E '^ *(model|lm_head)' | grep -v model.norm >a
"$weft" inspect norm/checkpoints/step-00000008 | grep -E '^ *(model|lm_head)' | grep -v model.norm >b
[ -s a ] && cmp -s a b || fail "what was frozen has moved"
[ "$(digest start)" != "$(digest norm)" ] || fail "nothing was learned"

exits 0 plan run.yaml
cp out frozen.plan
has out frozen
exits 0 plan run.yaml optimizer.groups=
for row in gradients optimizer; do
    less=$(grep -m1 "^  $row" frozen.plan) more=$(grep -m1 "^  $row  *[0-9]" out)
    [ -n "$more" ] && [ "$less" != "$more" ] || fail "the plan shows no less of $row: $less, $more"
done
exits 78 train run.yaml run.dir=one train.steps=9 optimizer.groups=
expect 78 plan run.yaml 'optimizer.groups=[{match: ., frozen: true}]'
has err "every parameter is frozen"
conclude
