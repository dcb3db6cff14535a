#!/bin/bash
# A run that is killed again and again, at times drawn from a seed, ends with the bits of an undisturbed one. It uses both
# optimizers, and states in both types.
#   KILLS=100 SEED=1 tests/program/test_kills.sh     (make soak)
. "$(dirname "$0")/../support/prelude.sh"
kills=${KILLS:-8}
RANDOM=${SEED:-1}

letters 200 3 >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: $((40 + 20 * kills)), context: 32, microbatch: 2, tokens_per_step: 128}
optimizer: {states: bf16, groups: [{match: mlp, kind: sgd, lr: 0.1}, {match: embed, states: fp32, lr: 1e-3}]}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 3}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
EOF

"$weft" train run.yaml run.dir=whole >/dev/null 2>err </dev/null || { cat err; exit 1; }
whole=$(digest whole)
# Checks that the finished run `killed` is equal to `whole` and leaves nothing behind.
compare() {
    [ "$(curve whole)" = "$(curve killed)" ] || { echo "FAILED: a different curve: $(diff <(curve whole) <(curve killed) | head -4)"; exit 1; }
    [ "$whole" = "$(digest killed)" ] || { echo "FAILED: other weights: $whole, $(digest killed)"; exit 1; }
    ls killed/checkpoints | grep -v '^step-\|^latest$' | grep . && { echo "FAILED: leftovers among the checkpoints"; exit 1; }
    runs=$((runs + 1))
}

done_kills=0 runs=0
while [ "$done_kills" -lt "$kills" ]; do
    "$weft" train run.yaml run.dir=killed >/dev/null 2>err </dev/null &
    pid=$!
    # From the first moments, in which data and memory are set up, to well into training.
    sleep "0.$(printf %03d $((RANDOM % 900 + 50)))"
    if kill -KILL "$pid" 2>/dev/null; then
        done_kills=$((done_kills + 1))
        wait "$pid" 2>/dev/null
    else # on a fast machine the run finishes before all kills: another run takes the rest
        wait "$pid" || { echo "FAILED: a restart ended by itself: $(tail -2 err)"; exit 1; }
        compare
        rm -rf killed
    fi
done
"$weft" train run.yaml run.dir=killed >/dev/null 2>err </dev/null || { echo "FAILED: $(tail -2 err)"; exit 1; }
compare
echo "$done_kills kills in $runs runs: the same curve and weights, $whole"
