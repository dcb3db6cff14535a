#!/bin/bash
# Ranks are killed in a run with recovery.mode: in_place, and the others go on in the same step: losses, norms, validations, weights and
# samples are those of a run that was left alone. Ranks are killed at the start of a step (--inject), and by a seed at any moment. Needs
# Open MPI 5 with ULFM (tools/setup.sh ulfm); without it only refusals and the restart are checked.
#   KILLS=100 SEED=7 tests/ranks/test_recovery.sh     runs with a kill at a random moment, and what they are drawn from
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
RANDOM=${SEED:-1}
letters 300 3 >text.txt
cat >run.yaml <<EOF_YAML
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, audit: true, validation_fraction: 0.1}
train: {context: 32, microbatch: 2, tokens_per_step: 512, steps: 20}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 4}
checkpoint: {every: 5}
validation: {every: 5}
check: {replicas_every: 5}
metrics: {log_freq: 1}
run: {threads: 1}
mesh: {dp_replicate: 2}
recovery: {mode: in_place}
EOF_YAML
tokenized

# ---- what is refused ----

refuses() { # TEXT WORD...
    local text=$1
    shift
    "$weft" train run.yaml run.dir=refused "$@" >out 2>err </dev/null && fail "$*: not refused"
    has err "$text"
}
refuses 'recovery.mode: in_place changes how many ranks sum the gradients' numerics.mode=fast
refuses 'recovery.mode: in_place does not go with run.receipts' run.receipts=true
refuses 'recovery.mode in_place takes the weights of a dead rank from a replica' mesh.dp_replicate=1

# ---- without ULFM: a warning, and a dead rank ends the run, which restarts ----

if ! is_open_mpi_5; then
    "$weft" train run.yaml run.dir=without -n 2 --restarts 1 restart.backoff_s=0 --inject kill:rank=1,step=7 >out 2>err </dev/null ||
        fail "without ULFM: ends with $?: $(tail -3 err)"
    [ "$(grep -c 'recovery.mode in_place is not possible here' err)" -eq 2 ] || fail "not said once an attempt: $(grep in_place err)"
    has err 'has no ULFM'
fi
take_ulfm || { [ "$failures" -eq 0 ] || conclude; echo "skipped: $no_ulfm"; exit 77; }

# ---- one death ----

values() { sed -n 's/.*"kind": "validation", "step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl"; }
samples() { "$weft" audit "$1" 2>&1 | sed 's/^[^:]*: //; s/, [0-9]* attempts\?, [0-9]* steps\? done again//'; }
# equal NAME WHOLE: the records, weights and samples of a run are those of another one.
equal() {
    [ "$(curve "$1")" = "$(curve "$2")" ] || fail "$1: another curve: $(diff <(curve "$1") <(curve "$2") | head -4)"
    [ "$(values "$1")" = "$(values "$2")" ] || fail "$1: other validations: $(diff <(values "$1") <(values "$2") | head -4)"
    [ "$(digest "$1")" = "$(digest "$2")" ] || fail "$1: other weights"
    [ ! -e "$1/audit-00000.log" ] || [ "$(samples "$1")" = "$(samples "$2")" ] || fail "$1: other samples: $(samples "$1")"
}
whole() { # NAME RANKS WORD...
    "$weft" train run.yaml run.dir="$1" -n "$2" "${@:3}" >/dev/null 2>"$1.err" </dev/null || fail "$1: ends with $?: $(tail -3 "$1.err")"
    [ "$(curve "$1" | wc -l)" -ge 20 ] && [ "$(values "$1" | wc -l)" -ge 5 ] || fail "$1: not 20 steps and 5 validations"
}
# broken NAME STATUS WORD...: a run whose ranks are killed ends with this status. Open MPI 5.0.11 may crash when a rank dies while others make a
# communicator: that is no verdict on weft, and the run is made again.
broken() {
    local name=$1 expected=$2 tries status
    shift 2
    for tries in 1 2 3 4 5; do
        status=0
        rm -rf "$name"
        "$weft" train run.yaml run.dir="$name" "$@" >/dev/null 2>"$name.err" </dev/null || status=$?
        ! grep -q ompi_comm_revoke_local "$name.err" || { echo "$name: Open MPI crashed"; continue; }
        [ "$status" -eq "$expected" ] || { fail "$name: ends with $status in place of $expected: $(grep -v '│' "$name.err" | tail -3)"; return 1; }
        return 0
    done
    fail "$name: Open MPI crashed $tries times"
    return 1
}
# loses WHOLE RANKS FAULTS TEXT WORD...: the run survives the faults, and its journal says TEXT.
loses() {
    local of=$1 number=$2 faults=$3 text=$4 name
    shift 4
    name=$of-$(tr -c 'a-z0-9\n' - <<<"$faults")
    broken "$name" 0 -n "$number" "$@" --inject "$faults" || return
    equal "$name" "$of"
    grep '"event": "recovered"' "$name/journal.jsonl" | grep -q "$text" || fail "$name: the journal says $(grep recovered "$name/journal.jsonl")"
    [ "$(grep -c 'warning: rank.* recovered in' "$name.err")" -eq "$(grep -c '"event": "recovered"' "$name/journal.jsonl")" ] ||
        fail "$name: not reported once: $(grep recovered "$name.err")"
    [ "$(grep '"event": "recovered"' "$name/journal.jsonl" | grep -c '"into_step_seconds": .*"repair_seconds": .*"begin_seconds": ')" -ge 1 ] ||
        fail "$name: the journal does not say what the recovery is made of: $(grep recovered "$name/journal.jsonl")"
    ! grep -q '"event": "re\(sumed\|started\)"' "$name/journal.jsonl" || fail "$name: the run was restarted"
}
whole pair 2
loses pair 2 kill:rank=1,step=7 'rank 1 died after the update of step 6; 1 ranks go on with dp_replicate 1'
loses pair 2 kill:rank=0,step=7 'rank 0 died after the update of step 6; 1 ranks go on with dp_replicate 1'
loses pair 2 kill:rank=1,step=9 'rank 1 died in step 9' data.audit=false
loses pair 2 kill:rank=1,step=1 'rank 1 died in step 1'
loses pair 2 kill:rank=0,phase=validation,step=5 'rank 0 died after the update of step 5'
loses pair 2 kill:rank=1,phase=saving,step=10 'rank 1 died after the update of step 10'
loses pair 2 kill:rank=0,phase=saving,step=20 'rank 0 died after the update of step 20'
for axis in dp_shard tp pp cp; do
    whole "$axis" 4 "mesh.$axis=2"
    loses "$axis" 4 kill:rank=$((RANDOM % 4)),step=9 '2 ranks go on with dp_replicate 1; rank [0-3] left' "mesh.$axis=2"
    [ "$axis" = cp ] || [ "$axis" = dp_shard ] || loses "$axis" 4 kill:rank=0,step=12 'rank 0 died after the update of step 11' "mesh.$axis=2"
done

# ---- deaths at any moment ----

# ranks_of PID: the processes of a launch.
ranks_of() {
    local at=$1 child
    while child=$(pgrep -P "$at" | head -1) && [ -n "$child" ]; do
        at=$child
        ! grep -q -e prterun -e mpirun "/proc/$at/comm" 2>/dev/null || { pgrep -P "$at"; return; }
    done
}
# strike NAME WHOLE RANKS WORD...: kills one of the ranks, some time after the first step. A run that is not left before its end recovers.
strike() {
    local name=$1 of=$2 number=$3 run pids status=0
    shift 3
    "$weft" train run.yaml run.dir="$name" -n "$number" "$@" >/dev/null 2>"$name.err" </dev/null &
    run=$!
    until [ -s "$name/metrics.jsonl" ] || is_gone $run; do sleep 0.01; done
    sleep "0.$(printf %03d $((RANDOM % 500)))"
    mapfile -t pids < <(ranks_of $run)
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null
    wait $run || status=$?
    # Status 76 is that of a death after the last step or of a crash of Open MPI.
    if [ "$status" -eq 76 ] && { grep -q ompi_comm_revoke_local "$name.err" || curve "$name" | grep -q '^240 '; }; then
        ended=$((ended + 1))
        return
    fi
    [ "$status" -eq 0 ] || { fail "$name: ends with $status: $(tail -3 "$name.err")"; return; }
    equal "$name" "$of"
    recovered=$((recovered + $(grep -c '"event": "recovered"' "$name/journal.jsonl")))
}
recovered=0 ended=0
whole long 2 train.steps=240
for i in $(seq "${KILLS:-2}"); do strike "struck-$i" long 2 train.steps=240; done
echo "ranks struck in ${KILLS:-2} runs: $recovered recoveries, $ended runs ended with 76"

# ---- one death after another, until a rank has no replica ----

whole four 4 mesh.dp_replicate=4
loses four 4 'kill:rank=3,step=6;kill:rank=0,step=13' 'rank 3 died after the update of step 5; 2 ranks go on with dp_replicate 2; rank 2 left' mesh.dp_replicate=4
# A death during a recovery: one event, which names both.
loses four 4 'kill:rank=3,step=7;kill:rank=1,phase=loading,step=6' 'rank 3, 1 died in step 7; 1 ranks go on with dp_replicate 1; rank 2 left' \
    mesh.dp_replicate=4 data.audit=false
broken none 76 -n 2 --inject 'kill:rank=0,step=7;kill:rank=1,step=9'
broken half 76 -n 4 mesh.tp=2 --inject 'kill:rank=0,step=7;kill:rank=2,step=7'
[ "$(grep -c 'the others cannot go on without it: they make no whole replica' half.err)" -eq 1 ] || fail "the cause is not said once: $(tail -3 half.err)"
grep -q '"event": "failed".*they make no whole replica' half/journal.jsonl || fail "the journal says $(tail -2 half/journal.jsonl)"
conclude
