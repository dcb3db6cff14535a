#!/bin/bash
# weft compare and a report of several runs: where runs diverge, what differed, and the exit status.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
letters 60 4 >other.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [text.txt], cache_dir: cache, tokenizer: bytes, validation_fraction: 0.1}
train: {steps: 12, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
optimizer: {lr: 1e-3}
lr_schedule: {kind: constant, warmup_steps: 0}
validation: {every: 4, samples: 4}
checkpoint: {every: 6, keep: 4}
metrics: {tensorboard: false, log_freq: 1}
run: {threads: 1}
END
train() { "$weft" train run.yaml run.dir="$@" >train.out 2>&1 </dev/null || fail "train $*: $(tail -3 train.out)"; }

# The same bits, in one go and in two: status 0.
train base data.audit=true
train again data.audit=true run.threads=2 train.recompute=full
exits 0 compare base again
has out "a, b: no figure differs in 12 logged steps and 4 validations of both"
has out "samples: the same, with the same tokens, in each step"
has out "no bit depends on it: run.dir"
is_plain "compare"
[ ! -s err ] || fail "compare says on stderr: $(cat err)"

# Another learning rate from step 7 on: that step, and no earlier one, is named with the key.
cp -r base changed
rm -r changed/checkpoints/step-00000012 && ln -sfn step-00000006 changed/checkpoints/latest
train changed data.audit=true optimizer.lr=2e-3 run.allow_changes='[optimizer.lr]'
exits 1 compare base changed
has out "a, b: the first figure that differs is lr of step 7: 0.001, 0.002"
has out "before it: 6 logged steps and 2 validations of both, the same"
grep -qE '^optimizer.lr +0.001 +0.002  another curve$' out || fail "the key is not named: $(cat out)"
grep -qE '^changes on the way +none +from step 7 on: optimizer' out || fail "the change is not reported: $(cat out)"
[ ! -s err ] || fail "a difference is a failure: $(cat err)"

# Other text behind the same key, other seeds.
train text data.audit=true data.sources='[other.txt]'
exits 1 compare base text
has out "is loss of step 0 (validation):"
has out "data (fingerprint)"
has out "samples: step 1: sample 0 has other tokens in"
train seed run.seed=7
exits 1 compare base seed again
grep -qE '^run.seed .*another beginning$' out || fail "another seed: $(cat out)"
has out "a, c: no figure differs in"
hasnt out "a, b: no figure"

# As JSON.
exits 1 compare base changed --json
has out '"equal": false'
has out '"first": {"step": 7, "kind": "train", "figure": "lr", "values": [0.001, 0.002]}'
exits 0 compare base again --json
has out '"equal": true'
has out '"first": null'

# A shorter run is equal as far as it goes; steps that only one run logged are not compared; having no common step is an error.
train short train.steps=6
exits 0 compare base short
train seldom train.steps=12 metrics.log_freq=5
exits 0 compare base seldom
has out "no figure differs in 4 logged steps"
mkdir none && : >none/metrics.jsonl
exits 65 compare base none
has err "have a record of no step in common"
exits 66 compare base nowhere
exits 2 compare base
has err "compare"

# Untrusted names and values: nothing reaches the terminal or the page unescaped.
cp -r base $'evil\x1b[31m<b>'
printf 'optimizer: {lr: 5e-1}\nrun: {dir: "\\e[31m<i>"}\n' >$'evil\x1b[31m<b>/config.yaml'
exits 0 compare base $'evil\x1b[31m<b>'
is_plain "compare of a name with escapes"
exits 0 report base $'evil\x1b[31m<b>' -o evil.html
! grep -qE '<b>\[31m|<i>' evil.html || fail "markup of a run's name in a report"

# The page of several runs.
exits 0 report base changed text
has comparison.html "lr of step 7"
# Dots are explained, and each value of a key has its own box, however long it is.
has comparison.html "with dots: validation"
has comparison.html '<td class="v"><div class="long">'
has comparison.html "</html>"
has comparison.html 'class="line s3"'
! grep -q 'https\?://' comparison.html || fail "the page of several runs asks for the network"
exits 0 report base changed -o -
has out "Where they part"

# Named sets and tasks of several runs: a chart for each, with a curve of every run that has it.
for run in base changed; do
    printf '{"kind": "set", "name": "held", "step": 12, "loss": 2}\n{"kind": "task", "name": "q<b>", "step": 12, "acc": 0.5}\n' >>$run/metrics.jsonl
done
printf '{"kind": "task", "name": "prose", "step": 13, "bits_per_byte": 1.5}\n' >>changed/metrics.jsonl
exits 0 report base changed -o named.html
[ "$(grep -c '<figure id="named' named.html)" = 3 ] || fail "$(grep -c '<figure id="named' named.html) charts of 2 tasks and a set"
for title in 'held' 'q&lt;b&gt;' 'prose'; do has named.html "<figcaption><b>$title</b>"; done
! grep -q 'q<b>' named.html || fail "markup of a task's name in a report"

conclude
