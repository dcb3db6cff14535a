#!/bin/bash
# train.gradient_sync: auto on several ranks: has the same bits as the value that it selects, which is recorded with its reason and kept by
# a resumed run.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

awk 'BEGIN { srand(3); split("the light and dark of day night sea land was made good", w, " ")
    for (p = 0; p < 60; p++) { n = 5 + int(rand() * 30); for (i = 0; i < n; i++) printf "%s ", w[int(rand() * 12) + 1]; printf "\n\n" } }' >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 6, context: 32, microbatch: 1, tokens_per_step: 128, compute: fp32}
checkpoint: {every: 3}
metrics: {tensorboard: false}
run: {threads: 1}
END
# train DIR WORD...
train() {
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null || fail "$1: $(tail -3 "$1.err")"
}
same() { [ "$("$weft" inspect --digest "$1")" = "$("$weft" inspect --digest "$2")" ] || fail "$1 ends with other weights than $2"; }
# took DIR VALUE REASON
took() { grep -q "gradient_sync: $2 *# .*$3" "$1/config.yaml" || fail "$1: $(grep gradient_sync "$1/config.yaml")"; }

# One microbatch per step: shards hold no full gradient, and every bit is that of `step`.
train open -n 4 mesh.dp_replicate=2
train step -n 4 mesh.dp_replicate=2 train.gradient_sync=step
took open microbatch "auto: one microbatch a step"
same open step
# In a model whose gradients are larger than its workspace, the plan shows the difference.
deep=model.num_hidden_layers=24
planned() { "$weft" plan run.yaml -n 4 mesh.dp_replicate=2 $deep "$@" | sed -n 's/^ *total *\([0-9.]* [A-Za-z]*\) 100.*/\1/p' | head -1; }
[ -n "$(planned)" ] && [ "$(planned)" != "$(planned train.gradient_sync=step)" ] ||
    fail "memory of auto: $(planned), of step: $(planned train.gradient_sync=step)"

# Several microbatches: auto depends on a rank's memory. A resumed run keeps what it began with, even if the limit has changed.
train tight -n 2 $deep pipeline.memory_gib=0.0000001 train.steps=3 lr_schedule.total_steps=6
took tight microbatch "auto: nothing fits the memory of a rank, this takes least"
train tight -n 2 $deep train.steps=6 lr_schedule.total_steps=6
took tight microbatch "what the run has had so far"
train often -n 2 $deep train.gradient_sync=microbatch
same tight often
! grep -q "order of sums was" tight.err || fail "a resumed run has another order of sums: $(grep 'order of sums' tight.err)"
conclude
