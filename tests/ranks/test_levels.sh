#!/bin/bash
# Collectives over several machines have two levels (comm.two_levels): the bits are those of one level, and what goes over the cable between
# the machines falls by the number of ranks of each.
#   RANKS=8 RATE=100mbit tests/ranks/test_levels.sh     four ranks on each machine, a cable of that rate; prints seconds a step
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/hosts.sh"
ranks=${RANKS:-4} here=$((${RANKS:-4} / 2))

letters 100 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 96, intermediate_size: 256, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, audit: true}
train: {steps: 8, context: 32, microbatch: 1, tokens_per_step: $((64 * ranks)), reshard_after_forward: never}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 8}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
[ -z "${RATE:-}" ] || for side in "$left vl$$" "$right vr$$"; do
    # shellcheck disable=SC2086
    tc -n ${side/ / qdisc add dev } root tbf rate "$RATE" burst 64kb latency 50ms || exit 1
done
# Median of the steps after the first.
step_seconds() { sed -n 's/.*"kind": "train".*"step_seconds": \([^,]*\).*/\1/p' "$1/metrics.jsonl" | tail -n +2 | sort -g | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }'; }
part() { # NAMESPACE FIRST DIR WORD...
    ip netns exec "$1" "$weft" launch -n "$here" --first "$2" --of "$ranks" --meet 10.9.0.1:29500 \
        "$weft" train run.yaml run.dir="$3" comm.transport=sockets "${@:4}" >/dev/null 2>"$3.$1.err" </dev/null
}
# over_cable DIR WORD...: a run on both machines; sets `bytes` to what went over the cable.
over_cable() {
    local status=0 before
    before=$(cable_bytes)
    part "$left" 0 "$@" &
    part "$right" "$here" "$@" || status=$?
    wait $! || status=$?
    [ "$status" -eq 0 ] || fail "$1: ends with $status: $(tail -n 3 "$1".*.err)"
    bytes=$(($(cable_bytes) - before))
}
# falls NAME TIMES WORD...: with two levels the cable has a TIMES-th of the bytes, and the run has the same bits.
falls() {
    local name=$1 times=$2 flat
    shift 2
    over_cable "$name-flat" comm.two_levels=false "$@"
    flat=$bytes
    over_cable "$name" "$@"
    echo "$name: $flat bytes over the cable with one level, $bytes with two; a step $(step_seconds "$name-flat") and $(step_seconds "$name") s"
    [ "$(curve "$name")" = "$(curve "$name-flat")" ] || fail "$name: another curve: $(diff <(curve "$name") <(curve "$name-flat") | head -4)"
    [ "$(digest "$name")" = "$(digest "$name-flat")" ] || fail "$name: other weights"
    # Headers, acknowledgements and small messages are the rest.
    [ $((100 * flat)) -gt $((85 * times * bytes)) ] && [ $((100 * flat)) -lt $((115 * times * bytes)) ] ||
        fail "$name: $flat bytes over the cable with one level, $bytes with two, expected a ${times}th"
}
falls shards "$here"
falls exact "$here" numerics.mode=exact
falls replicas "$here" mesh.dp_replicate="$ranks"
falls tensors $((here / 2)) mesh.tp=2
# Over NCCL the levels are groups of sends and receives of one communicator. Each two of the four ranks count as a machine.
on_gpus() { # DIR MACHINE WORD...
    WEFT_MACHINE_RANKS=$2 on_ranks 4 "$weft" train run.yaml run.dir="$1" run.device=cuda train.tokens_per_step=256 "${@:3}" >/dev/null 2>"$1.err" ||
        fail "$1: $(tail -n 3 "$1.err")"
    ! grep -q 'through the memory of the host' "$1.err" || fail "$1: no communicators: $(cat "$1.err")"
}
if [ -e "${CUDA_SIM:-}" ]; then
    simulate_gpus 4
    for words in mesh.dp_replicate=1 mesh.dp_replicate=4; do
        on_gpus "cuda-flat-$words" 0 "$words"
        on_gpus "cuda-$words" 2 "$words"
        [ "$(curve "cuda-$words")" = "$(curve "cuda-flat-$words")" ] && [ "$(digest "cuda-$words")" = "$(digest "cuda-flat-$words")" ] ||
            fail "cuda, $words: other bits with two levels"
    done
fi
conclude
