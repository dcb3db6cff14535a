#!/bin/bash
# Two machines, played by network namespaces with a cable between them: the cable is cut, or a machine's ranks are killed, in a run with
# recovery.mode: in_place over sockets. The larger part goes on in the same step, with the curve of a run that was left alone; the smaller
# one ends with status 76. Needs root and iproute2.
#   CUTS=50 SEED=7 tests/ranks/test_hosts.sh     further cuts and killed machines at random moments
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
RANDOM=${SEED:-1}
. "$(dirname "$script")/../support/hosts.sh"

letters 100 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, audit: true}
train: {steps: 120, context: 32, microbatch: 2, tokens_per_step: 512}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 20}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
"$weft" train run.yaml run.dir=whole >/dev/null 2>err </dev/null || fail "whole: $(tail -3 err)"
export WEFT_SILENCE_S=4

# part NAMESPACE RANKS FIRST DIR WORD...
part() {
    ip netns exec "$1" "$weft" launch -n "$2" --first "$3" --of 4 --meet 10.9.0.1:29500 --tolerant \
        "$weft" train run.yaml run.dir="$4" comm.transport=sockets recovery.mode=in_place "${@:5}" >/dev/null 2>"$4.$1.err" </dev/null
}
has_begun() { has_lines "$1/metrics.jsonl" "$2" || is_gone "$3"; }
# goes_on DIR NAMESPACE: the ranks there have finished the run.
goes_on() {
    [ "$(curve "$1")" = "$(curve whole)" ] || fail "$1: another curve: $(diff <(curve "$1") <(curve whole) | head -4)"
    [ "$(digest "$1")" = "$(digest whole)" ] || fail "$1: other weights"
    [ "$(grep -c '"event": "recovered"' "$1/journal.jsonl")" -ge 1 ] || fail "$1: nothing was recovered"
    ! grep -q '"event": "re\(sumed\|started\)"' "$1/journal.jsonl" || fail "$1: the run was restarted"
}
# parts DIR RANKS EVENT LINES WORD...: the first RANKS ranks of four are on the left; EVENT happens after so many lines of metrics.jsonl.
parts() {
    local dir=$1 ranks=$2 event=$3 lines=$4 left_pid right_pid
    shift 4
    cable up
    part "$left" "$ranks" 0 "$dir" "$@" &
    left_pid=$!
    part "$right" $((4 - ranks)) "$ranks" "$dir" "$@" &
    right_pid=$!
    await has_begun "$dir" "$lines" $left_pid
    $event
    left_status=0 right_status=0
    wait $left_pid || left_status=$?
    wait $right_pid || right_status=$?
}
cut_cable() { cable down; }
kill_left() { ip netns pids "$left" | xargs -r kill -KILL 2>/dev/null; }
kill_right() { ip netns pids "$right" | xargs -r kill -KILL 2>/dev/null; }
ends() { # DIR NAMESPACE STATUS: the smaller part
    [ "$3" -eq 76 ] || fail "$1: the smaller part ends with $3: $(tail -3 "$1.$2.err")"
    has "$1.$2.err" 'cannot be reached and may go on without'
}

parts small_right 3 cut_cable 5 mesh.dp_replicate=4
[ "$left_status" -eq 0 ] || fail "small_right: three of four ranks end with $left_status: $(tail -3 "small_right.$left.err")"
ends small_right "$right" "$right_status"
goes_on small_right
# The rank that wrote the records was cut off.
parts small_left 1 cut_cable 5 mesh.dp_replicate=4
[ "$right_status" -eq 0 ] || fail "small_left: three of four ranks end with $right_status: $(tail -3 "small_left.$right.err")"
ends small_left "$left" "$left_status"
goes_on small_left
# Of equal parts, that with the lowest rank.
parts halves 2 cut_cable 5 mesh.dp_replicate=2 mesh.dp_shard=2
[ "$left_status" -eq 0 ] || fail "halves: ends with $left_status: $(tail -3 "halves.$left.err")"
ends halves "$right" "$right_status"
goes_on halves
parts dead_left 1 kill_left 5 mesh.dp_replicate=4
[ "$right_status" -eq 0 ] || fail "dead_left: ends with $right_status: $(tail -3 "dead_left.$right.err")"
goes_on dead_left

# Spares count: with two of them and a rank of the mesh on the right, the rank on the left is the smaller part, whether it is cut off or killed. A
# spare gets the weights of the rank that is left.
for event in cut_cable kill_left; do
    parts "spares_$event" 1 $event 5 mesh.dp_replicate=2 recovery.spares=2
    [ "$right_status" -eq 0 ] || fail "spares_$event: ends with $right_status: $(tail -3 "spares_$event.$right.err")"
    [ $event = kill_left ] || ends "spares_$event" "$left" "$left_status"
    goes_on "spares_$event"
    grep '"event": "recovered"' "spares_$event/journal.jsonl" | grep -q 'rank 0 died .* 2 ranks go on with dp_replicate 2; rank 2, a spare, is rank 0 now' ||
        fail "spares_$event: the journal says $(grep recovered "spares_$event/journal.jsonl")"
done

# A cut that is shorter is waited for. The figure is for the kernels: at 4 s they need 6 to give up.
blink() {
    cable down
    sleep 2
    cable up
}
parts short 2 blink 5 mesh.dp_replicate=2 mesh.dp_shard=2
[ "$left_status" -eq 0 ] && [ "$right_status" -eq 0 ] || fail "short: ends with $left_status and $right_status: $(tail -n 2 short.*.err)"
[ "$(curve short)" = "$(curve whole)" ] || fail "short: another curve"
! grep -q '"event": "recovered"' short/journal.jsonl || fail "short: a rank was given up: $(grep recovered short/journal.jsonl)"

# At random moments. Killed ranks on the left leave half of all, without the lowest: it goes on only if a kernel said that they have ended
# (a connection with unread data is reset, which a cut cable may bring about, too).
events=(cut_cable kill_left kill_right) ended=0
for i in $(seq "${CUTS:-0}"); do
    event=${events[RANDOM % 3]}
    parts "random$i" 2 "$event" $((2 + RANDOM % 100)) mesh.dp_replicate=2 mesh.dp_shard=2
    if [ "$event" = kill_left ] && [ "$right_status" -eq 76 ]; then
        ended=$((ended + 1))
        continue
    fi
    [ "$left_status" -eq 0 ] || [ "$right_status" -eq 0 ] || fail "random$i, $event: ends with $left_status and $right_status: $(tail -n 2 "random$i".*.err)"
    goes_on "random$i"
done
[ -z "${CUTS:-}" ] || echo "$CUTS cuts and killed machines, after $ended of which the rest could not know"
conclude
