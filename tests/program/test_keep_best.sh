#!/bin/bash
# checkpoint.keep_best: the best checkpoint by a measured figure outlives those before and after it, in every way that the others are removed.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/tasks.sh"

# The held-out text has letters that training unlearns: its loss falls at first, and is lowest long before the end.
letters 40 3 | tr 'a-z' 'a-ca-ca-ca-ca-ca-ca-ca-ca-b' >text.txt
letters 10 4 >other.txt
make_tasks 1 7
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], validation: [{path: other.txt, name: other}, {path: text.txt, name: own}], cache_dir: cache}
train: {steps: 10, context: 32, microbatch: 4, compute: fp32}
optimizer: {lr: 3e-2}
lr_schedule: {kind: constant, warmup_steps: 0, total_steps: 40}
validation: {every: 2, samples: 8}
checkpoint: {every: 2, keep: 2, keep_best: validation/other/loss}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: run}
END
train() { "$weft" train run.yaml "$@" >out 2>err </dev/null || fail "train $*: $(tail -3 err)"; }
there() { find "$1/checkpoints" -name 'step-*' -printf '%f\n' | sort | sed 's/step-0*//' | xargs; }
best() { sed -n '/"best": {/,/}/p' "$1/checkpoints/latest/state.json" | tr -d ' \n'; }

train
# Prints the step of the lowest loss measured at a checkpoint, the first of equal ones.
least() { sed -n 's/.*"kind": "set", "name": "other", "step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/p' run/metrics.jsonl |
    awk '$1 > 0 && (!step || $2 < value) { step = $1; value = $2; text = $2 } END { print step, text }'; }
read -r step value <<<"$(least)"
[ "$step" -le 6 ] || { echo "the loss is lowest at step $step of 10: nothing to see"; exit 1; }
[ "$(there run)" = "$step 8 10" ] || fail "kept are $(there run), and the best is $step"
has err "best checkpoint so far: step $step, validation/other/loss "
[ "$(grep '"event": "best"' run/journal.jsonl | tail -1 | grep -c "\"step\": $step,")" -eq 1 ] || fail "the journal: $(grep best run/journal.jsonl)"
[ "$(best run)" = "\"best\":{\"figure\":\"validation/other/loss\",\"step\":$step,\"value\":$value}," ] || fail "state: $(best run)"
exits 0 checkpoint list run
grep -qE "^$step .*, best: validation/other/loss " out && [ "$(grep -c best out)" -eq 1 ] || fail "list: $(cat out)"

# On resuming, the best checkpoint stays the same, to the last bit of the state, and is not removed; nor is the one that the run resumed from.
train run.dir=parts train.steps=6
[ "$(there parts)" = "$(echo $step 4 6 | tr ' ' '\n' | sort -nu | xargs)" ] || fail "after six steps: $(there parts)"
train run.dir=parts
[ "$(there parts)" = "$(echo $step 6 8 10 | tr ' ' '\n' | sort -nu | xargs)" ] && [ "$(best parts)" = "$(best run)" ] || fail "a run in two parts: $(there parts), $(best parts)"
train train.steps=14
[ "$(there run)" = "$step 10 12 14" ] || fail "after four steps more: $(there run)"
exits 0 checkpoint prune run --keep 2
has out "1 removed"
[ "$(there run)" = "$step 12 14" ] || fail "prune removed the best: $(there run)"

# Another figure starts over.
train train.steps=18 checkpoint.keep_best=validation/own/loss
has err "the best checkpoint by validation/other/loss, of step $step, is kept for it no longer"
[ "$(there run)" = "14 16 18" ] || fail "by another figure: $(there run)"
[[ "$(best run)" == *'"figure":"validation/own/loss","step":1'[68]* ]] || fail "by another figure: $(best run)"
# A best checkpoint that was deleted gives a warning, and the run continues.
sed -i 's/"step": 16,/&/' run/metrics.jsonl
rm -rf gone && cp -r parts gone && rm -r gone/checkpoints/step-0000000"$step"
train run.dir=gone train.steps=12
has err "warning: the best checkpoint by validation/other/loss, of step $step, is not there any more"
[ "$(there gone)" = "10 12" ] || fail "without the best: $(there gone)"

# Of equal figures the first stays: a single document is always right or always wrong.
train run.dir=ties 'evaluation.tasks=[piqa.jsonl]' evaluation.every=2 checkpoint.keep_best=task/piqa/acc optimizer.lr=0
[ "$(there ties)" = "2 8 10" ] || fail "of equals: $(there ties)"

# A figure that is not measured is refused; one that is rarely measured gives a warning.
refused() { # FIGURE WORDS OPTION...
    local figure=$1 words=$2
    shift 2
    exits 78 train run.yaml run.dir=refused "checkpoint.keep_best=$figure" "$@"
    has err "checkpoint.keep_best: \"$figure\" is not measured: expected one of $words"
}
sets="validation/loss, validation/other/loss, validation/own/loss"
refused validation/othr/loss "$sets"
refused task/boolq/acc_norm "$sets, task/boolq/acc" 'evaluation.tasks=[boolq.jsonl]'
exits 78 train run.yaml run.dir=refused checkpoint.keep_best=loss 'data.validation=[]'
has err 'checkpoint.keep_best: "loss" is not measured: expected validation/loss, perplexity or bits_per_byte, with data.validation or'
# weft plan opens no data, and refuses what is wrong in the configuration alone.
for figure in loss validation/acc task/a/acc task/a/loss; do
    exits 78 plan run.yaml "checkpoint.keep_best=$figure"
    has err "checkpoint.keep_best: \"$figure\" is not measured: expected validation/loss"
done
exits 78 plan run.yaml checkpoint.keep_best=validation/loss 'data.validation=[]'
exits 0 plan run.yaml checkpoint.keep_best=validation/loss
train run.dir=seldom train.steps=3 checkpoint.every=3 checkpoint.keep_best=validation/loss
has err "warning: checkpoint.keep_best: checkpoints are saved every 3 steps, and validation.every is 2"

conclude
