#!/bin/bash
# weft audit on real runs: stopped, killed and resumed, with and without a supervisor. It must also find planted damage.
. "$(dirname "$0")/../support/prelude.sh"

letters 60 3 >text.txt
letters 20 4 >more.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 1, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}, more.txt], cache_dir: cache, audit: true}
train: {steps: 200, context: 32, microbatch: 2, tokens_per_step: 256}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 20}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
# train DIR WORD... ; audit STATUS WORD...
train() { "$weft" train run.yaml run.dir="$1" "${@:2}" >/dev/null 2>err </dev/null; }
audit() { exits "$1" audit "${@:2}"; }

train whole || { cat err; exit 1; }
audit 0 whole
has out "1,600 samples in 200 steps"
has out "each sample from 0 to 1599 was used exactly once"
has out "1 attempt, 0 steps done again"
[ "$(awk '{ for (i = 1; i <= NF; i++) if ($i == "epochs" || $i == "epochs,") print ($(i - 1) > 5) }' out)" = 1 ] || fail "not several epochs: $(cat out)"

# Killed three times in the middle, then resumed to the end; another microbatch size uses the same samples.
for kill in 1 2 3; do
    train killed train.microbatch=4 --inject stop:rank=0,step=$((45 * kill)) &
    pid=$!
    await stands killed
    # The process itself, not the shell that waits for it.
    kill -KILL "$(cat killed/lock)"
    wait "$pid" 2>/dev/null
    audit 0 killed
done
train killed train.microbatch=4 || fail "resuming: $(tail -1 err)"
audit 0 killed
has out "4 attempts"
has out "each sample from 0 to 1599 was used exactly once"
audit 0 whole killed
has out "both used the same samples in each of their 200 steps"

# In a mixture, each source has its own epochs.
train mixed 'data.sources=[{path: text.txt, weight: 1}, {path: more.txt, weight: 2}]' || fail "$(tail -1 err)"
audit 0 mixed
grep -qE '^  source 0: 53[34] samples, read [0-9.]+ times$' out && grep -qE '^  source 1: 1,06[67] samples, read [0-9.]+ times$' out || fail "how often sources are read: $(cat out)"
audit 65 whole mixed
has err "step 1: sample 0 has other tokens"

# Another seed: the same sample numbers, other tokens.
train other data.seed=1 train.steps=20 || fail "$(tail -1 err)"
audit 0 other
train same train.steps=20 lr_schedule.total_steps=200 || fail "$(tail -1 err)"
audit 65 same other
has err "other tokens in same than in other"
audit 65 whole same
has err "step 21: sample 160 is used in whole and not in same"

# Truncated or changed records are found; a record that a kill cut short is not an error.
cp -r whole damaged
sed -i '/ step=50 /d' damaged/audit-00000.log
audit 65 damaged
has out "step 50 is recorded by nobody"
has out "samples 392 to 399 are missing"
cp whole/audit-00000.log damaged/
sed -i 's/ 400:/ 399:/' damaged/audit-00000.log
audit 65 damaged
has out "step 51 is recorded by nobody"
head -c -200 whole/audit-00000.log >damaged/audit-00000.log
audit 65 damaged
has out "a checkpoint holds step 200"
rm -r damaged/checkpoints
audit 0 damaged
has out "1 torn line"

# A run that starts over is independent of the previous one; for a run without records, weft audit reports that.
train killed run.overwrite=true || fail "$(tail -1 err)"
audit 0 killed
has out "1 attempt,"
train silent data.audit=false train.steps=2 || fail "$(tail -1 err)"
audit 66 silent
has err "data.audit=true"
audit 66 nowhere

# Under a supervisor.
train kept restart.backoff_s=0.05 --restarts 3 --inject stop:rank=0,step=25 &
pid=$!
await stands kept
kill -KILL "$(cat kept/lock)"
wait "$pid" || fail "the supervised run: $(tail -1 err)"
audit 0 whole kept
has out "2 attempts"

conclude
