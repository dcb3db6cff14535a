#!/bin/bash
# Ranks take the memory that weft plan reports, and it stays constant: checks every rank at every step with every pipeline schedule.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
sanitized=$("$weft" --version | grep -E '^build:.*(address|thread)')
# The step from which memory is constant. MPICH touches the cells of its message rings one after another: here all have been used within
# 40 steps, and a thousand more add nothing.
settled=2 steps=30
is_open_mpi || settled=45 steps=73

awk 'BEGIN { for (i = 0; i < 20000; i++) printf "%d sheep, ", i * 7919 % 10007 }' >text.txt
cat >run.yaml <<EOF2
model: {hidden_size: 64, intermediate_size: 128, num_hidden_layers: 6, num_attention_heads: 4}
data: {sources: [{path: text.txt}], cache_dir: cache}
train: {steps: $steps, context: 64, compute: fp32, microbatch: 1}
mesh: {pp: 2}
pipeline: {microbatches: 8}
checkpoint: {every: 0}
metrics: {log_freq: 1, all_ranks: true, tensorboard: false}
run: {threads: 1}
EOF2
# Allowance for pages that the C library and MPI take; a leak of one boundary tensor (16 KiB) per step would exceed it.
slack=$((256 * 1024))
# Allowance since the first step: what MPI sets up with the first message of a pair, file buffers, and stack pages touched for the
# first time. Some 64 KiB in all; 400 KiB with MPICH's rings.
first_slack=$((512 * 1024))
is_open_mpi || first_slack=$((1024 * 1024))

# check NAME WORD...
check() {
    local name=$1 fact total
    shift
    "$weft" plan run.yaml -n 2 -r 0 "$@" >"$name.plan" 2>&1 || { fail "$name: $(tail -3 "$name.plan")"; return; }
    "$weft" train -n 2 run.yaml run.dir="$name" "$@" >"$name.out" 2>&1 || { fail "$name: $(tail -3 "$name.out")"; return; }
    # planned_bytes is what rank 0 allocated: pools, and the copy from which a checkpoint is written.
    fact=$(sed -n 's/.*"planned_bytes": \([0-9]*\).*/\1/p' "$name/journal.jsonl")
    total=$(awk '$1 == "total" && $3 ~ /iB/ { print $2 * ($3 == "GiB" ? 1024 : $3 == "KiB" ? 1 / 1024 : 1) }' "$name.plan" | tail -1)
    awk -v took="$fact" -v total="$total" 'BEGIN { d = took / 1048576 - total; exit !(took > 0 && d < 0.02 && d > -0.02) }' ||
        fail "$name: planned $total MiB, took $fact bytes"
    # Memory outside the plan: twice the plan's own estimate, since other library versions take other amounts.
    [ -n "$sanitized" ] || awk -F'"memory_resident": |, "memory_peak": |, "memory_fraction"' -v took="$fact" '/"kind": "train"/ {
        resident = ($2 - took) / 1048576; peak = ($3 - took) / 1048576
        if (resident > 90 || peak > 90 + 96) { print "resident " resident ", peak " peak " MiB beyond the plan"; exit 1 } }' \
        "$name/metrics.jsonl" || fail "$name: more memory outside the plan than it says"
    # A sanitizer keeps freed memory for a while, so resident memory proves nothing.
    [ -z "$sanitized" ] || return
    for metrics in "$name/metrics.jsonl" "$name/metrics-00001.jsonl"; do
        sed -n 's/.*"step": \([0-9]*\),.*"memory_resident": \([0-9]*\),.*/\1 \2/p' "$metrics" >memory
        awk -v slack=$slack -v first_slack=$first_slack -v settled=$settled -v steps=$steps '$1 == 1 { first = $2 } $1 == settled { low = high = $2 }
            $1 > settled { n++; if ($2 < low) low = $2; if ($2 > high) high = $2 }
            END { exit !(n == steps - settled && low > 0 && high - low <= slack && first > 0 && high - first <= first_slack) }' memory ||
            fail "$name: $metrics: memory moves: $(tr '\n' ',' <memory)"
    done
}
for schedule in gpipe 1f1b looped_bfs interleaved_1f1b zb_h1 zb_h2 v_half dualpipev; do check $schedule pipeline.schedule=$schedule; done
check exact pipeline.schedule=zbv numerics.mode=exact model.tie_word_embeddings=true
check recompute pipeline.schedule=interleaved_zero_bubble train.recompute=full
# Experts' gradients of several ranks of ep, added up as they come.
moe='mesh.pp=1 mesh.dp_shard=2 mesh.ep=2 train.gradient_sync=microbatch model.family=qwen3_moe model.head_dim=16 model.num_experts=4
    model.num_experts_per_tok=2 model.moe_intermediate_size=64'
for numerics in fast exact; do check ep_$numerics $moe numerics.mode=$numerics; done

conclude
