#!/bin/bash
# weft train --restarts: a killed run is restarted and ends with the bits of an undisturbed one; permanent errors are not
# retried; a request to stop is passed on.
. "$(dirname "$0")/../support/prelude.sh"

letters 200 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 400, context: 32, microbatch: 2, tokens_per_step: 128}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 20}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
restart: {backoff_s: 0.05}
END
long="train.steps=1000000 lr_schedule.total_steps=100" # too long to finish before it is ended
# holder DIR [PIDS [STEPS]]: waits for a process that trains in DIR, other than PIDS, and for STEPS (1) recorded steps; prints its pid.
has_holder() {
    local pid
    pid=$(cat "$1/lock" 2>/dev/null)
    [ -n "$pid" ] && [[ " ${2:-} " != *" $pid "* ]] && kill -0 "$pid" 2>/dev/null && has_lines "$1/metrics.jsonl" "${3:-1}"
}
holder() {
    await has_holder "$@" >&2
    cat "$1/lock"
}

"$weft" train run.yaml run.dir=whole >/dev/null 2>err </dev/null || { cat err; exit 1; }

# Killed twice, each time while it has stopped itself.
"$weft" train run.yaml run.dir=killed --restarts 5 --inject 'stop:rank=0,step=28; stop:rank=0,step=47,attempt=1' >/dev/null 2>killed.err </dev/null &
parent=$!
for kill in 1 2; do
    await stands killed
    victim=$(cat killed/lock)
    kill -KILL "$victim"
    await is_gone "$victim"
done
wait "$parent" || fail "a run killed twice ends with $?: $(tail -3 killed.err)"
[ "$(digest whole)" = "$(digest killed)" ] || fail "other weights after restarts"
[ "$(grep -c 'restart [0-9] of 5' killed.err)" -eq 2 ] || fail "two restarts are not two lines: $(grep restart killed.err)"
grep -q 'signal 9' killed.err || fail "the cause is not reported"
[ "$(grep -c '"event": "restarted"' killed/journal.jsonl)" -eq 2 ] || fail "the journal says: $(cat killed/journal.jsonl)"
grep '"event": "restarted"' killed/journal.jsonl | tail -1 | grep '"attempt": 2' | grep -q 'signal 9' || fail "the journal does not say why"

# A run that starts over does so only once: its restart resumes from the new checkpoints. An old run is there when it begins.
"$weft" train run.yaml run.dir=killed run.overwrite=true --restarts 5 --inject stop:rank=0,step=48 >/dev/null 2>anew.err </dev/null &
parent=$!
await stands killed
kill -KILL "$(cat killed/lock)"
wait "$parent" || fail "a run started over and killed ends with $?: $(tail -3 anew.err)"
grep -q 'resumed after step' anew.err || fail "the restart does not go on from a checkpoint"
[ "$(digest whole)" = "$(digest killed)" ] || fail "other weights after starting over and a restart"

# Errors that a restart does not repair.
"$weft" train run.yaml run.dir=bad data.sources=[none.txt] --restarts 3 >/dev/null 2>bad.err </dev/null
status=$?
[ "$status" -eq 66 ] || fail "a missing input gives $status"
! grep -q 'restart 1' bad.err || fail "a missing input was tried again"
[ "$(grep -c 'exit status 66' bad.err)" -eq 1 ] || fail "the error is reported more than once: $(cat bad.err)"
"$weft" train run.yaml train.steps=x --restarts 3 >/dev/null 2>bad.err </dev/null
[ $? -eq 78 ] || fail "a bad configuration gives another status"

# A run is restarted as often as allowed; then the exit status shows what killed it.
# shellcheck disable=SC2086
"$weft" train run.yaml run.dir=mortal $long --restarts 1 >/dev/null 2>mortal.err </dev/null &
parent=$!
victim=$(holder mortal)
kill -KILL "$victim"
victim=$(holder mortal "$victim" 2)
kill -KILL "$victim"
wait "$parent"
status=$?
[ "$status" -eq 137 ] || fail "killed once more than allowed gives $status"

# A request to stop, by a signal or a file, ends the run with everything saved; so does one during the pause before a restart.
for how in TERM INT USR1 file; do
    # shellcheck disable=SC2086
    "$weft" train run.yaml run.dir="$how" $long --restarts 3 >/dev/null 2>"$how.err" </dev/null &
    parent=$!
    holder "$how" >/dev/null
    if [ "$how" = file ]; then "$weft" stop file >/dev/null; else kill -"$how" "$parent"; fi
    wait "$parent"
    status=$?
    [ "$status" -eq 75 ] || fail "stopped by $how gives $status: $(tail -2 "$how.err")"
    grep -q '"event": "stopped"' "$how/journal.jsonl" || fail "stopped by $how: not in the journal"
done
# shellcheck disable=SC2086
"$weft" train run.yaml run.dir=paused $long restart.backoff_s=60 --restarts 3 >/dev/null 2>paused.err </dev/null &
parent=$!
kill -KILL "$(holder paused)"
await grep -q 'restart 1 of 3 in 60 s' paused.err
kill -TERM "$parent"
wait "$parent"
status=$?
[ "$status" -eq 75 ] || fail "a stop during the pause gives $status"

# If the supervisor is killed, its child saves and ends.
# shellcheck disable=SC2086
"$weft" train run.yaml run.dir=orphan $long --restarts 3 >/dev/null 2>orphan.err </dev/null &
parent=$!
victim=$(holder orphan)
kill -KILL "$parent"
wait "$parent" 2>/dev/null
await is_gone "$victim" || { fail "the child outlives its supervisor"; kill -KILL "$victim"; }
grep -q '"event": "stopped"' orphan/journal.jsonl || fail "the orphan did not save"

conclude
