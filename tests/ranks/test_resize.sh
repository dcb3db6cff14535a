#!/bin/bash
# weft resize: a run goes on with other ranks, the same losses, norms, samples and weights; what does not fit is refused, and stops nothing.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 200 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, audit: true}
train: {steps: 24, context: 32, microbatch: 2, tokens_per_step: 768, compute: fp32}
numerics: {mode: exact, tp_invariant_up_to: 2}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 5}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
restart: {backoff_s: 0.05}
END
tokenized
# goes DIR: lets a run go on that has stopped itself, and whose rank 0 this file names.
goes() { kill -CONT "$(cat "$1/lock")"; }
# same DIR: compares its curve, its weights and its samples with those of the undisturbed run.
same() {
    diff <(curve whole) <(curve "$1") >differs || fail "$1: another curve: $(head -5 differs)"
    [ "$(digest whole)" = "$(digest "$1")" ] || fail "$1: other weights"
    "$weft" audit "$1" >out 2>err || fail "$1: the audit: $(cat err)"
    [ "$(grep -v "$1" out)" = "$(grep -v whole audited)" ] || fail "$1: another audit: $(diff audited out)"
}
resized() { sed -n 's/.*"event": "resized", "step": \([0-9]*\).*"\(from[^"]*\)".*/\1 \2/p' "$1/journal.jsonl"; }

"$weft" train run.yaml run.dir=whole >/dev/null 2>err </dev/null || { cat err; exit 1; }
"$weft" audit whole >audited 2>err || fail "the audit: $(cat err)"

# Grows from 1 rank to 2, with a pipeline, and shrinks to 1. The faults stop rank 0 before its steps 7 and 14, so that the requests come there.
"$weft" train run.yaml run.dir=alone --inject 'stop:rank=0,step=7; stop:rank=0,step=14,attempt=1' >/dev/null 2>alone.err </dev/null &
parent=$!
await stands alone
exits 0 resize alone -n 2 mesh.pp=2
has out "from 1 rank to 2, with mesh.pp=2"
goes alone
await stands alone
exits 0 resize alone -n 1 mesh.pp=1
goes alone
wait "$parent" || fail "a run resized twice ends with $?: $(tail -3 alone.err)"
[ "$(resized alone)" = $'8 from 1 rank to 2, with mesh.pp=2\n15 from 2 ranks to 1, with mesh.pp=1' ] || fail "the journal says: $(resized alone)"
grep -q '"event": "resized".*"attempt": 2' alone/journal.jsonl || fail "the journal does not count attempts"
same alone

# Without restarts left after a failure: resizing uses none. 2 ranks, refused requests, 3 ranks, which stay when rank 2 is killed.
"$weft" train run.yaml run.dir=several -n 2 run.overwrite=true --restarts 1 \
    --inject 'stop:rank=0,step=6; kill:rank=1,step=9,attempt=1; stop:rank=0,step=14,attempt=2' >/dev/null 2>several.err </dev/null &
parent=$!
await stands several
exits 78 resize several -n 4 mesh.pp=3
has err "mesh.pp 3"
has err "goes on with 2 ranks"
exits 78 resize several -n 4 mesh.dp_shard=2
exits 78 resize several -n 4 mesh.cp=4 mesh.tp=3
exits 78 resize several -n 3 train.microbatch=5
has err "train.tokens_per_step"
exits 78 resize several -n 3 optimizer.lr=0.5
has err "optimizer.lr was"
exits 78 resize several -n 3 run.dir=elsewhere
exits 78 resize several -n 3 mesh.speed=2
exits 2 resize several -n 2
exits 2 resize several
[ ! -e several/resize ] && [ ! -e several/stop ] || fail "a refused request leaves: $(ls several)"
exits 0 resize several -n 3
goes several
await stands several
grep -q 'restart 1 of 1' several.err || fail "the killed rank is not a restart: $(tail -3 several.err)"
[ "$(resized several)" = "7 from 2 ranks to 3" ] || fail "the journal says: $(resized several)"
grep -q '"ranks":3' <(tr -d ' ' <several/launch.json) || fail "the restart does not keep its ranks: $(cat several/launch.json)"
exits 0 resize several -n 4 mesh.tp=2
goes several
wait "$parent" || fail "a run resized, killed and resized ends with $?: $(tail -3 several.err)"
same several
[ ! -e several/launch.json ] || fail "launch.json stays"

# Goodput: the time between the attempts is lost, and the time since the first start goes on.
awk -F'"run_seconds": ' '/"kind": "train"/ { split($2, now, ","); if (now[1] + 0 <= last) exit 1; last = now[1] + 0 }' several/metrics.jsonl ||
    fail "the time of the run does not go on"

# A request to stop takes precedence: by weft stop, and by a signal.
for how in stop signal; do
    "$weft" train run.yaml run.dir="$how" -n 2 --inject stop:rank=0,step=6 >/dev/null 2>"$how.err" </dev/null &
    parent=$!
    await stands "$how"
    exits 0 resize "$how" -n 1
    if [ "$how" = stop ]; then "$weft" stop stop >/dev/null; else kill -TERM "$parent"; await pending "$(cat signal/lock)" 200; fi
    goes "$how"
    wait "$parent"
    status=$?
    [ "$status" -eq 75 ] || fail "a request to stop ($how) gives $status: $(tail -3 "$how.err")"
    [ -z "$(resized "$how")" ] || fail "stopped ($how), it goes on: $(resized "$how")"
done

# Nobody there to start other ranks.
exits 66 resize whole -n 2
has err "no run is going on in it"
exits 66 resize none -n 2
on_ranks 2 "$weft" train run.yaml run.dir=foreign --inject stop:rank=0,step=6 >/dev/null 2>foreign.err </dev/null &
parent=$!
await stands foreign
exits 69 resize foreign -n 1
has err "started by mpirun or srun"
has err "weft stop"
goes foreign
wait "$parent" || fail "ranks of mpirun end with $?: $(tail -3 foreign.err)"
same foreign
conclude
