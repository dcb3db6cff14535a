#!/bin/bash
# check.replay_every: microbatches computed again by other ranks have the same bits on every mesh, and change nothing. Flipped bits: where a
# flip in gradients or activations would change the weights, the right rank is named, the step is made again, and the weights are those of
# an undisturbed run; a rank that is wrong each time ends the run with status 18. A flip in messages is not found: documented.
# STEPS=N makes N steps with a replay in each, with each dtype of COMPUTES on every mesh, and prints how many replays raised no alarm:
#   STEPS=200 COMPUTES='fp32 bf16' tests/ranks/test_replay.sh
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: ${STEPS:-6}, context: 32, microbatch: 2, tokens_per_step: 768, compute: fp32}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 1000}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
tokenized
experts=(model.family=qwen3_moe model.head_dim=8 model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=20
    model.norm_topk_prob=true)

# run NAME WORD...: sets status; the run's messages are in NAME.err. weights NAME: the digest.
run() {
    local sockets=()
    [ "$(ranks_in "$@")" -eq 1 ] || [ -n "$over_mpi" ] || sockets=(comm.transport=sockets) # start sooner
    status=0
    timeout -k 5 1500 "$weft" train run.yaml "run.dir=$1" "${sockets[@]}" "${@:2}" >"$1.out" 2>"$1.err" </dev/null || status=$?
}
weights() { "$weft" inspect --digest "$1" 2>&1; }

# equal NAME WORD...: replays in each step raise no alarm and change no bit.
equal() {
    local name=$1 status
    shift
    run "$name" "$@"
    run "$name-again" "$@" check.replay_every=1
    [ "$status" -eq 0 ] || fail "$name: exit status $status: $(tail -3 "$name-again.err")"
    grep -q ' microbatches were computed again (check.replay_every); 0 steps were made again' "$name-again.err" || fail "$name: $(tail -3 "$name-again.err")"
    [ "$(weights "$name")" = "$(weights "$name-again")" ] || fail "$name: replays change the weights"
}

# flips NAME RANKS CULPRIT WHAT WORD...: bits of several places in what rank CULPRIT makes. At least one must matter.
flips() {
    local name=$1 ranks=$2 culprit=$3 what=$4 seed harmed=0 status
    shift 4
    run "$name" -n "$ranks" train.steps=3 "$@"
    for seed in 1 2 3 4 5; do
        local fault="bitflip:rank=$culprit,step=2,what=$what,seed=$seed"
        run "$name-$seed" -n "$ranks" train.steps=3 "$@" --inject "$fault"
        [ "$(weights "$name-$seed")" != "$(weights "$name")" ] || continue # such as a bit of a zero that is rounded away
        harmed=$((harmed + 1))
        run "$name-$seed-again" -n "$ranks" train.steps=3 "$@" check.replay_every=2 --inject "$fault"
        [ "$status" -eq 0 ] || fail "$name, seed $seed: exit status $status: $(tail -3 "$name-$seed-again.err")"
        grep -q "step 2: microbatch 0 was computed again and differs in bits, .*rank $culprit on host $(hostname) was wrong.*; the step is made again" \
            "$name-$seed-again.err" || fail "$name, seed $seed: $(tail -3 "$name-$seed-again.err")"
        grep -q '"event": "corrected", "step": 2' "$name-$seed-again/journal.jsonl" || fail "$name, seed $seed: the journal"
        [ "$(weights "$name-$seed-again")" = "$(weights "$name")" ] || fail "$name, seed $seed: other weights than undisturbed"
    done
    [ "$harmed" -gt 0 ] || fail "$name: no flip changes anything"
}

# drawn NAME WORD...: where the compared microbatch is drawn, exactly one of the step's three is, and of a flip in another one the run says
# that it is not found.
drawn() {
    local name=$1 m status found="" missed=""
    for m in 0 1 2; do
        run "$name-$m" -n 2 train.steps=3 "${@:2}" check.replay_every=3 --inject "bitflip:rank=0,step=3,what=gradients,microbatch=$m"
        [ "$status" -eq 0 ] || fail "$name, microbatch $m: exit status $status: $(tail -3 "$name-$m.err")"
        if grep -q "step 3: microbatch $m was computed again and differs in bits, .*rank 0 on host $(hostname) was wrong" "$name-$m.err"; then
            found+=$m
        else
            missed+=$(sed -n "s/.*step 3: check.replay_every compares microbatch \([0-2]\), and the injected fault is in microbatch $m: it is not found/\1/p" \
                "$name-$m.err")
        fi
    done
    [ "$missed" = "$found$found" ] && [ ${#found} -eq 1 ] || fail "$name: found in microbatch '$found', announced as compared: '$missed'"
}

# Tokens that change in memory of the host stay wrong until they are read again.
reread() {
    local status
    run "$1" -n 2 train.steps=3 mesh.dp_replicate=2
    run "$1-again" -n 2 train.steps=3 mesh.dp_replicate=2 check.replay_every=1 --inject "bitflip:rank=1,step=2,what=tokens"
    [ "$status" -eq 0 ] || fail "$1: exit status $status: $(tail -3 "$1-again.err")"
    grep -q "step 2: .*rank 1 on host $(hostname) was wrong, whose tokens had changed in memory of the host; the step is made again" "$1-again.err" ||
        fail "$1: $(tail -3 "$1-again.err")"
    [ "$(weights "$1-again")" = "$(weights "$1")" ] || fail "$1: other weights than undisturbed"
}

# restless NAME TIMES STATUS: rank 1 is wrong each time that it makes step 2, and right when it makes the microbatch again for the verdict.
restless() {
    local status
    run "$1" -n 2 train.steps=3 mesh.dp_shard=2 check.replay_every=1 --inject "bitflip:rank=1,step=2,what=gradients,times=$2"
    [ "$status" -eq "$3" ] || fail "$1: exit status $status: $(tail -3 "$1.err")"
    [ "$3" -eq 0 ] || grep -q 'rank 1 on host .* was wrong, as each time that the step was made. Leave this machine out' "$1.err" || fail "$1: $(tail -3 "$1.err")"
}

# persists NAME RANKS CULPRIT WORDS WORD...: rank CULPRIT of RANKS replicas has another weight from step 2 on.
persists() {
    local name=$1 ranks=$2 words=$4 seed status found=0
    for seed in 1 2 3 4 5 6; do
        run "$name-$seed" -n "$ranks" "${@:5}" check.replay_every=1 check.replicas_every=0 --inject "bitflip:rank=$3,step=2,seed=$seed"
        grep -q ' differs in bits' "$name-$seed.err" || continue # a weight of a token that does not occur
        found=1
        [ "$status" -eq 18 ] || fail "$name: exit status $status"
        grep -q "$words" "$name-$seed.err" || fail "$name: $(tail -3 "$name-$seed.err")"
    done
    [ "$found" -eq 1 ] || fail "$name: no weight matters"
}

for compute in ${COMPUTES:-fp32}; do
    meanwhile 1 equal "one-$compute" "train.compute=$compute"
    for numerics in fast exact; do
        same=("numerics.mode=$numerics" "train.compute=$compute") name=$numerics-$compute
        meanwhile 2 equal "dp-$name" -n 2 mesh.dp_replicate=2 "${same[@]}"
        meanwhile 4 equal "pp-$name" -n 4 mesh.pp=2 mesh.dp_shard=2 train.gradient_sync=microbatch "${same[@]}"
        # Without COMPUTES one mesh has the other dtype.
        meanwhile 4 equal "tp-$name" -n 4 mesh.tp=2 mesh.dp_shard=2 "numerics.mode=$numerics" "train.compute=$([ -n "${COMPUTES:-}" ] && echo "$compute" || echo bf16)"
        meanwhile 4 equal "cp-$name" -n 4 mesh.cp=2 mesh.dp_replicate=2 "${same[@]}"
        meanwhile 4 equal "ep-$name" -n 4 mesh.dp_shard=2 mesh.ep=2 mesh.dp_replicate=2 "${same[@]}" "${experts[@]}"
    done
done
together
sed -n 's/^\([0-9]*\) microbatches were computed again (check.replay_every); 0 steps were made again.*/\1/p' ./*-again.err |
    awk '{ n += $1 } END { print n " replays in " NR " runs, no alarm" }'
meanwhile 1 flips one-gradients 1 0 gradients
meanwhile 2 flips dp-activations 2 1 activations mesh.dp_replicate=2
meanwhile 2 flips dp-gradients 2 0 gradients mesh.dp_shard=2
meanwhile 2 drawn drawn-exact mesh.dp_shard=2 numerics.mode=exact
meanwhile 2 drawn drawn-slots mesh.dp_replicate=2 train.gradient_sync=microbatch
meanwhile 2 reread tokens
meanwhile 2 restless thrice 3 0
meanwhile 2 restless always 9 18
meanwhile 4 flips tp-activations 4 1 activations mesh.dp_replicate=2 mesh.tp=2
meanwhile 3 persists three 3 1 'rank 1 on host .* was wrong each time' mesh.dp_replicate=3
meanwhile 2 persists two 2 1 'rank 1 on host .* or rank 0 on host .* is wrong each time' mesh.dp_replicate=2
together
conclude
