#!/bin/bash
# The first non-finite value of a step is attributed to the rank that made it, with its host and microbatch: a NaN is planted on each
# rank in turn, in a gradient and in what a pass made, on meshes with every axis, with fast and with exact numerics.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {context: 32, microbatch: 2, tokens_per_step: 512, compute: fp32, stop_after_bad: 1000}
checkpoint: {every: 1000}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
tokenized
experts=(model.family=qwen3_moe model.head_dim=8 model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=20
    "model.norm_topk_prob=true")

# found NAME STEP: what the warning about a step says, from the place on.
found() { sed -n "s/.*warning: step $2: [0-9]* non-finite gradient elements, first in \(.*\); no update/\1/p" "$1.err"; }

# plant NAME RANKS OVERRIDES...: in each step another NaN: on each rank in a gradient, then on each in an activation, of another microbatch.
plant() {
    local name=$1 ranks=$2 faults="" step=0 rank what expected microbatch
    shift 2
    for what in gradient activation; do
        for ((rank = 0; rank < ranks; rank++)); do
            step=$((step + 1))
            faults+="nan:rank=$rank,step=$step,what=${what}s,microbatch=$((step % 2)),seed=$step "
        done
    done
    timeout -k 5 1500 "$weft" train run.yaml "run.dir=$name" -n "$ranks" "train.steps=$step" lr_schedule.warmup_steps=1 "$@" \
        --inject "$faults" >"$name.out" 2>"$name.err" </dev/null || { fail "$name: $(tail -3 "$name.err")"; return; }
    for ((step = 1; step <= 2 * ranks; step++)); do
        rank=$(((step - 1) % ranks))
        [ "$step" -le "$ranks" ] && expected="the gradient of " || expected="the .* pass of "
        microbatch=" in microbatch $((step % 2))"
        # Sums of a step are read once, until a step has been skipped.
        [ "$step" -gt 1 ] || [[ $name = *exact ]] || [[ $name = fsdp* ]] || microbatch=""
        found "$name" "$step" | grep -q "^$expected[^ ]*\( [^ ]*\)*$microbatch, made by rank $rank on host $(hostname)$" ||
            fail "$name: a NaN of rank $rank in step $step: $(found "$name" "$step") $(tail -2 "$name.err")"
    done
}

for numerics in fast exact; do
    meanwhile 2 plant "dp-$numerics" 2 mesh.dp_replicate=2 "numerics.mode=$numerics"
    meanwhile 2 plant "fsdp-$numerics" 2 mesh.dp_shard=2 train.gradient_sync=microbatch "numerics.mode=$numerics" train.compute=bf16
    meanwhile 2 plant "pp-$numerics" 2 mesh.pp=2 "numerics.mode=$numerics"
    meanwhile 2 plant "tp-$numerics" 2 mesh.tp=2 "numerics.mode=$numerics"
    meanwhile 2 plant "cp-$numerics" 2 mesh.cp=2 "numerics.mode=$numerics"
    meanwhile 4 plant "ep-$numerics" 4 mesh.dp_shard=2 mesh.ep=2 mesh.pp=2 "numerics.mode=$numerics" "${experts[@]}"
    meanwhile 4 plant "tp-cp-$numerics" 4 mesh.tp=2 mesh.cp=2 "numerics.mode=$numerics" mesh.cp_comm=all_gather
done
together
conclude
