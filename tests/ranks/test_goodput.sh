#!/bin/bash
# Goodput goes on over restarts: the time since the first start is not forgotten, and lost steps count once. A rank that the others wait for is
# named, once for each window of steps.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 20, context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 5, async: false}
metrics: {log_freq: 1, tensorboard: false}
restart: {backoff_s: 2}
run: {threads: 1}
END
tokenized
# figures DIR STEP: run_seconds and goodput of a step.
figures() { sed -n "s/.*\"kind\": \"train\", \"step\": $2,.*\"run_seconds\": \([^,]*\), \"goodput\": \([^,}]*\).*/\1 \2/p" "$1/metrics.jsonl"; }

# Killed in step 9: steps 6 to 8 are lost, and at least two seconds of pause.
"$weft" train run.yaml run.dir=broken -n 2 --restarts 1 --inject kill:rank=1,step=9 >out 2>err </dev/null || fail "broken: $(tail -3 err)"
read -r before good <<<"$(figures broken 5)"
read -r after worse <<<"$(figures broken 6)"
awk -v a="$before" -v b="$after" 'BEGIN { exit !(b - a >= 2) }' || fail "the pause is forgotten: step 5 at $before, step 6 at $after s"
awk -v a="$before" -v b="$after" -v g="$good" -v w="$worse" 'BEGIN { exit !(0 < w && w < 1 && w * b >= g * a && w * b <= g * a + (b - a) - 2) }' ||
    fail "goodput of step 5 is $good of $before s, of step 6 $worse of $after s"
"$weft" report broken >out 2>&1 || fail "weft report: $(cat out)"
grep -q '>Goodput<' broken/report.html || fail "the report lacks goodput"

# Rank 1 sleeps before each of steps 1 to 6, longer than a busy machine delays the others.
slow=""
for step in 1 2 3 4 5 6; do slow+="slow:rank=1,step=$step,ms=600 "; done
"$weft" train run.yaml run.dir=slow -n 2 check.stragglers_every=6 train.steps=8 --inject "$slow" >out 2>err </dev/null || fail "slow: $(tail -3 err)"
[ "$(grep -c "warning: step 6: in 6 steps the others waited for rank 1 on host $(hostname) [0-9]*% of the time; it waited [0-9]*% itself, and" err)" -eq 1 ] ||
    fail "the straggler: $(grep waited err)"
grep -q '"event": "straggler", "step": 6' slow/journal.jsonl || fail "the journal has no straggler"
"$weft" train run.yaml run.dir=never -n 2 check.stragglers_every=0 train.steps=8 --inject "$slow" >out 2>err </dev/null || fail "never: $(tail -3 err)"
! grep -q 'the others waited for' err || fail "check.stragglers_every=0 warns: $(grep waited err)"
conclude
