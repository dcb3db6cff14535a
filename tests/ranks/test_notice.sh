#!/bin/bash
# run.notice_file and SIGTERM to one rank: all ranks save after their step and end with 75, and the same command goes on with the same curve.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 16, context: 32, microbatch: 2, tokens_per_step: 256, compute: fp32}
lr_schedule: {warmup_steps: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, notice_file: notice}
END
tokenized
"$weft" train run.yaml run.dir=whole -n 2 >/dev/null 2>err </dev/null || { cat err; exit 1; }

# ends DIR STATUS STEPS: the run in the background, which had stopped itself before step 6, ends after one of the STEPS.
ends() {
    kill -CONT "$(cat "$1/lock")"
    local status=0
    wait "$run" || status=$?
    [ "$status" -eq "$2" ] || fail "$1 ends with $status, expected $2: $(tail -3 "$1.err")"
    [[ " $3 " == *" $(curve "$1" | tail -1 | cut -d' ' -f1) "* ]] || fail "$1 ends after step $(curve "$1" | tail -1)"
    grep -q "everything saved" "$1.err" || fail "$1 does not say that it is saved: $(tail -3 "$1.err")"
}
# begin DIR WORD...: a run that stops itself before step 6.
begin() {
    "$weft" train run.yaml run.dir="$1" -n 2 --inject stop:rank=0,step=6 "${@:2}" >/dev/null 2>"$1.err" </dev/null &
    run=$!
    await stands "$1"
}
# goes_on DIR: the same command goes on, to the same end.
goes_on() {
    "$weft" train run.yaml run.dir="$1" -n 2 >/dev/null 2>err </dev/null || fail "$1 does not go on: $(tail -3 err)"
    diff <(curve whole) <(curve "$1") >differs || fail "$1: another curve: $(head -5 differs)"
    [ "$(digest whole)" = "$(digest "$1")" ] || fail "$1: other weights"
}

# Restarts are not for it, and a request for other ranks is dropped.
begin noticed --restarts 3
exits 0 resize noticed -n 1
touch notice
ends noticed 75 7
[ "$(grep -c "step 7: notice is there on host $(hostname) (run.notice_file)" noticed.err)" -eq 1 ] || fail "the notice: $(grep notice noticed.err)"
! grep -q 'restart 1' noticed.err || fail "it was started again"
grep -q '"event": "stopped", "step": 7, "detail": "run.notice_file"' noticed/journal.jsonl || fail "the journal says: $(tail -1 noticed/journal.jsonl)"
exits 69 train run.yaml run.dir=other -n 2 run.notice_file="$PWD/notice"
has err "the machine is to be taken away"
[ ! -e other ] || fail "a refused run leaves a directory"
rm notice
goes_on noticed

# The other rank, a child of the same mpirun, is found by its parent.
begin termed
other=
mpirun=$(awk '$1 == "PPid:" { print $2 }' "/proc/$(cat termed/lock)/status") # ps pads short numbers with blanks, pgrep refuses those
for pid in $(pgrep -P "$mpirun"); do [ "$pid" = "$(cat termed/lock)" ] || other=$pid; done
[ -n "$other" ] || fail "no second rank"
kill -TERM "$other"
await took_signals "$other"
ends termed 75 "6 7" # the other rank may not have begun step 6
goes_on termed
conclude
