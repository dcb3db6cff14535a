#!/bin/bash
# What a run takes of its GPUs' memory, by cause, on simulated GPUs: pools are as planned, in whole allocation pieces; driver and libraries
# are what the simulation takes for them. A run that does not fit is refused before the first step, and a later loss of memory is reported.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
simulate_gpus 2
export WEFT_SIM_GPUS

letters 30 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 20, num_hidden_layers: 2, num_attention_heads: 2}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, validation_fraction: 0.2}
train: {steps: 4, context: 16, microbatch: 1, tokens_per_step: 32, compute: fp32}
lr_schedule: {warmup_steps: 1}
validation: {every: 3, samples: 2}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, device: cuda}
END
tokenized

MIB=$((1 << 20))
# train DIR STATUS WORD...: a run on fresh GPUs, with its output in DIR.out and DIR.err. A refusal is one line.
train() {
    local dir=$1 wanted=$2 status=0
    WEFT_SIM_GPUS=$directory/gpus.$dir
    rm -rf "$dir" "$WEFT_SIM_GPUS"
    "$weft" train run.yaml run.dir="$dir" "${@:3}" >"$dir.out" 2>"$dir.err" </dev/null || status=$?
    [ $status -eq "$wanted" ] || fail "$dir: exit status $status, not $wanted: $(tail -3 "$dir.err")"
    [ "$wanted" -eq 0 ] || [ "$(grep -c '^weft: .*run.device: cuda' "$dir.err")" -eq 1 ] || fail "$dir: not one error: $(cat "$dir.err")"
}
told() { cat "$1.out" "$1.err"; }
tells() { told "$1" | grep -qE "$2" || fail "$1 does not report \"$2\": $(told "$1" | grep 'memory of')"; }
no_leak() { ! told "$1" | grep -q "no step takes any" || fail "$1: $(told "$1" | grep 'no step takes')"; }
# fact DIR NAME [STEP]: prints a figure of the journal's memory entry. is DIR NAME BYTES [STEP]: checks it.
fact() { sed -n "s/.*\"event\": \"memory\", \"step\": ${3:-0},.*\"$2\": \([0-9]*\).*/\1/p" "$1/journal.jsonl" | head -1; }
is() {
    [ "$(fact "$1" "$2" "${4:-}")" = "$3" ] || fail "$1: $2 is $(fact "$1" "$2" "${4:-}"), not $3: $(grep '"memory"' "$1/journal.jsonl")"
}
planned() { sed -n 's/.*"event": "started".*"planned_bytes": \([0-9]*\).*/\1/p' "$1/journal.jsonl"; }

# ---- one rank ----

WEFT_SIM_TAKES=total=1024,others=100,context=30,products=12,kernels=6 train one 0
pieces=$(fact one pool_pieces_bytes)
is one pool_bytes "$(planned one)"
is one pools_took_bytes "$pieces"
[ $((pieces % (2 * MIB))) -eq 0 ] && [ "$pieces" -ge "$(planned one)" ] && [ "$pieces" -le $(($(planned one) + 24 * MIB)) ] ||
    fail "pools of $(planned one) bytes take $pieces"
is one gpu_bytes $((1024 * MIB))
is one libraries_bytes $((42 * MIB))
is one nccl_bytes 0
is one others_bytes $((100 * MIB))
is one free_bytes $((882 * MIB - pieces))
is one kernels_bytes $((6 * MIB)) 1
is one free_bytes $((876 * MIB - pieces)) 1
tells one "memory of the GPU, 1.00 GiB: pools $((pieces / MIB)).00 MiB, as planned \([0-9.]+ MiB, each in multiples of 2.00 MiB\), driver and libraries 42.00 MiB, other processes, with what the driver keeps of any GPU, 100.00 MiB; [0-9.]+ MiB are free"
tells one "memory of the GPU: 6.00 MiB more for kernels that were loaded since"
no_leak one
[ "$(grep -c '"event": "memory"' one/journal.jsonl)" -eq 2 ] || fail "one: $(grep memory one/journal.jsonl)"
expect 0 plan run.yaml
has out " by which pools are rounded up to multiples of 2.00 MiB"

# Without NVML, driver and other processes are one figure.
WEFT_SIM_TAKES=total=1024,others=100,context=30,products=12,blind=1 train blind 0
is blind libraries_and_others_bytes $((142 * MIB))
is blind pools_took_bytes "$pieces"
tells blind "driver, libraries and other processes 142.00 MiB \(without NVML they are not separated\)"

# A driver with another allocation granularity is detected, and what it takes is reported.
WEFT_SIM_TAKES=total=1024,piece=4 train coarse 0
is coarse pool_pieces_bytes "$pieces"
[ "$(fact coarse pools_took_bytes)" -gt "$pieces" ] || fail "coarse: $(grep '"memory"' coarse/journal.jsonl)"
tells coarse "warning: memory of the GPU, 1.00 GiB: pools $(($(fact coarse pools_took_bytes) / MIB)).00 MiB, not as planned \(.*: $((pieces / MIB)).00 MiB; others may have come or gone meanwhile\)"

# A run that just fits, and one that lacks a single piece.
fits=$((pieces / MIB + 142))
WEFT_SIM_TAKES=total=$fits,others=100,context=30,products=12 train just 0
is just free_bytes 0
WEFT_SIM_TAKES=total=$((fits - 2)),others=100,context=30,products=12 train lacking 71
has lacking.err ": run.device: cuda: the GPU, $((fits - 2)).00 MiB: pools take $((pieces / MIB)).00 MiB, and $((pieces / MIB - 2)).00 MiB are free; planned are "
has lacking.err "taken already: driver and libraries 42.00 MiB, other processes, with what the driver keeps of any GPU, 100.00 MiB; make the model"
[ ! -s lacking/journal.jsonl ] && [ ! -s lacking/metrics.jsonl ] || fail "a run that was refused has begun"

# Memory lost inside a step is reported once, although all later steps lack it too. What the first step takes is not a loss but its need.
WEFT_SIM_TAKES=total=1024,leak=1 train early 0
is early kernels_bytes $((2 * MIB)) 1
no_leak early
many="train.steps=12 data.validation_fraction=0 checkpoint.every=0"
WEFT_SIM_GPUS=$directory/gpus.counted
# shellcheck disable=SC2086
launches=$("$weft" train run.yaml run.dir=counted metrics.profile=true $many 2>&1 | sed 's/^.*| //' | awk '$1 ~ /^[a-z_]+$/ && $2 ~ /^[0-9]+$/ { n += $2 } END { print n }')
late=$((launches * 3 / 10)) # some ops launch nothing, others several kernels
# shellcheck disable=SC2086
WEFT_SIM_TAKES=total=1024,leak=$late train leak 0 $many
[ "$(told leak | grep -c "warning: 2.00 MiB less of the memory of the GPU are free than behind the first step, and no step takes any")" -eq 1 ] ||
    fail "a leak at launch $late of some $launches is not reported: $(told leak | grep 'memory of')"
[ "$(grep -c '"event": "memory".*"fell_bytes": 2097152' leak/journal.jsonl)" -eq 1 ] || fail "leak: $(grep memory leak/journal.jsonl)"

# ---- two ranks ----

# One GPU per rank: NCCL takes memory too.
WEFT_SIM_TAKES=total=1024,context=30,products=12,wire=4 train two 0 -n 2 mesh.pp=2
is two gpu_ranks 1
is two pools_took_bytes "$(fact two pool_pieces_bytes)"
wires=$(($(fact two nccl_bytes) / MIB)) # and a piece of memory to try the communicators out with
[ "$wires" -ge 10 ] && [ $(((wires - 2) % 4)) -eq 0 ] || fail "two: NCCL has taken $wires MiB"
is two libraries_bytes $(((42 + wires) * MIB))
tells two "memory of the GPU of rank [01], which has least left, 1.00 GiB: pools .*, as planned"
WEFT_SIM_TAKES=total=32,context=2,wire=2 train small 71 -n 2 mesh.dp_shard=2
has small.err "the GPU of rank 0, 32.00 MiB: pools take "

# Both ranks on one GPU: the figures are for both.
export WEFT_SIM_DEVICES=1
WEFT_SIM_TAKES=total=1024,others=64,context=30,products=12,kernels=2 train shared 0 -n 2 mesh.pp=2
pieces=$(fact shared pool_pieces_bytes)
is shared gpu_ranks 2
is shared pools_took_bytes "$pieces"
is shared libraries_bytes $((84 * MIB))
is shared others_bytes $((64 * MIB))
is shared free_bytes $((876 * MIB - pieces))
is shared kernels_bytes $((4 * MIB)) 1
[ "$(fact shared pool_bytes)" -gt "$(planned shared)" ] || fail "shared: $(fact shared pool_bytes) bytes are not both ranks'"
tells shared "memory of the GPU of rank 0 and 1 other rank, 1.00 GiB: pools .*, as planned"
no_leak shared
WEFT_SIM_TAKES=total=$((pieces / MIB + 82)),context=30,products=12 train crowded 71 -n 2 mesh.pp=2
has crowded.err "the GPU of rank 0 and 1 other rank, "
export WEFT_SIM_DEVICES=2

# Rank 0 learns about another rank's GPU from the record of the next step.
# shellcheck disable=SC2086
WEFT_SIM_TAKES=total=1024,leak=$late,leaks_on=1 train other 0 -n 2 mesh.dp_replicate=2 train.tokens_per_step=64 $many
[ "$(told other | grep -c "warning: 2.00 MiB less of the memory of the GPU of rank 1 are free than behind the first step")" -eq 1 ] ||
    fail "a leak on rank 1 is not reported: $(told other | grep 'memory of')"
conclude "memory of GPUs adds up"
