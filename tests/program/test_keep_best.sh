#!/bin/bash
# checkpoint.keep_best: the best checkpoint by a measured figure outlives those before and after it, whoever removes the others.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/../support/tasks.sh"

# What is held out has letters that training unlearns: its loss is lowest at the first checkpoint.
letters 40 3 | tr 'a-z' 'a-ca-ca-ca-ca-ca-ca-ca-ca-b' >text.txt
letters 10 4 >other.txt
make_tasks 1 7
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], validation: [{path: other.txt, name: other}, {path: text.txt, name: own}], cache_dir: cache}
train: {steps: 10, context: 32, microbatch: 4, compute: fp32}
optimizer: {lr: 3e-2}
schedule: {kind: constant, warmup_steps: 0}
validation: {every: 2, samples: 8}
checkpoint: {every: 2, keep: 2, keep_best: validation/other/loss}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: run}
END
train() { "$weft" train run.yaml "$@" >out 2>err </dev/null || fail "train $*: $(tail -3 err)"; }
there() { find "$1/checkpoints" -name 'step-*' -printf '%f\n' | sort | sed 's/step-0*//' | xargs; }
best() { sed -n '/"best": {/,/}/p' "$1/checkpoints/latest/state.json" | tr -d ' \n'; }

train
[ "$(there run)" = "2 8 10" ] || fail "kept are $(there run), not 2 8 10; $(grep '"name": "other"' run/metrics.jsonl | sed 's/.*"step": \([0-9]*\).*"loss": \([^,]*\),.*/\1 \2/')"
has err "best checkpoint so far: step 2, validation/other/loss "
[ "$(grep -c '"event": "best"' run/journal.jsonl)" -eq 1 ] || fail "the journal: $(grep best run/journal.jsonl)"
value=$(sed -n 's/.*"kind": "set", "name": "other", "step": 2,.*"loss": \([^,]*\),.*/\1/p' run/metrics.jsonl)
[ "$(best run)" = "\"best\":{\"figure\":\"validation/other/loss\",\"step\":2,\"value\":$value}," ] || fail "state: $(best run)"
exits 0 checkpoint list run
grep -qE '^2 .*, best: validation/other/loss ' out && [ "$(grep -c best out)" -eq 1 ] || fail "list: $(cat out)"

# Going on: the best stays what it was, to the last bit of the state, and is not removed.
train run.dir=parts train.steps=6 schedule.total_steps=10
[ "$(there parts)" = "2 4 6" ] || fail "after six steps: $(there parts)"
train run.dir=parts schedule.total_steps=10
[ "$(there parts)" = "2 8 10" ] && [ "$(best parts)" = "$(best run)" ] || fail "a run in two parts: $(there parts), $(best parts)"
train train.steps=14
[ "$(there run)" = "2 12 14" ] || fail "after four steps more: $(there run)"
exits 0 checkpoint prune run --keep 2
has out "0 removed"
[ "$(there run)" = "2 12 14" ] || fail "prune removed the best: $(there run)"

# Another figure begins anew; the loss of its own text falls, so the newest is the best.
train train.steps=18 checkpoint.keep_best=validation/own/loss
has err "the best checkpoint by validation/other/loss, of step 2, is kept for it no longer"
[ "$(there run)" = "16 18" ] || fail "by another figure: $(there run)"
[[ "$(best run)" == *own/loss*'"step":18'* ]] || fail "by another figure: $(best run)"
# One that is gone is not looked for for ever.
sed -i 's/"step": 16,/&/' run/metrics.jsonl
rm -rf gone && cp -r parts gone && rm -r gone/checkpoints/step-00000002
train run.dir=gone train.steps=12 schedule.total_steps=10
has err "warning: the best checkpoint by validation/other/loss, of step 2, is not there any more"
[ "$(there gone)" = "10 12" ] || fail "without the best: $(there gone)"

# Of equals the first stays: one document is right always or never.
train run.dir=ties 'evaluation.tasks=[piqa.jsonl]' evaluation.every=2 checkpoint.keep_best=task/piqa/acc optimizer.lr=0
[ "$(there ties)" = "2 8 10" ] || fail "of equals: $(there ties)"

# What is not measured is refused; what is seldom measured is said.
refused() { # FIGURE OPTION...
    exits 78 train run.yaml run.dir=refused "checkpoint.keep_best=$1" "${@:2}"
    has err "checkpoint.keep_best: \"$1\" is not measured: expected one of $3"
}
refused validation/othr/loss data.cache_dir=cache "validation/loss, validation/other/loss, validation/own/loss"
refused task/boolq/acc_norm 'evaluation.tasks=[boolq.jsonl]' "validation/loss, validation/other/loss, validation/own/loss, task/boolq/acc"
refused loss 'data.validation=[]' "nothing, as there is neither validation nor a task"
train run.dir=seldom train.steps=3 checkpoint.every=3 checkpoint.keep_best=validation/loss
has err "warning: checkpoint.keep_best: checkpoints are saved every 3 steps, and validation.every is 2"

conclude
