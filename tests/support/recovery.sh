# For tests of recovery.mode: in_place: runs that lose ranks, compared with a run that was left alone. Needs prelude.sh. They run over sockets;
# with OVER_MPI=1 over MPI, which needs Open MPI 5 with ULFM (CMakeLists.txt: the tests named *_mpi).

# recovery_run: writes run.yaml and its text.
recovery_run() {
    letters 300 3 >text.txt
    cat >run.yaml <<'EOF_YAML'
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
    [ -n "$over_mpi" ] || echo 'comm: {transport: sockets}' >>run.yaml
    tokenized
}
# take_repairs: leaves the test, as skipped unless something has failed, where ranks cannot go on without those that died.
take_repairs() {
    [ -n "$over_mpi" ] || return 0
    take_ulfm && return
    [ "$failures" -eq 0 ] || conclude
    echo "skipped: $no_ulfm"
    exit 77
}
# refuses TEXT WORD...: the run is refused with this text.
refuses() {
    local text=$1
    shift
    "$weft" train run.yaml run.dir=refused "$@" >out 2>err </dev/null && fail "$*: not refused"
    has err "$text"
}
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
    name=$of-$(tr -c 'A-Za-z0-9\n' - <<<"$faults")
    broken "$name" 0 -n "$number" "$@" --inject "$faults" || return
    equal "$name" "$of"
    grep '"event": "recovered"' "$name/journal.jsonl" | grep -q "$text" || fail "$name: the journal says $(grep recovered "$name/journal.jsonl")"
    [ "$(grep -c 'warning: rank.* recovered in' "$name.err")" -eq "$(grep -c '"event": "recovered"' "$name/journal.jsonl")" ] ||
        fail "$name: not reported once: $(grep recovered "$name.err")"
    [ "$(grep '"event": "recovered"' "$name/journal.jsonl" | grep -c '"into_step_seconds": .*"repair_seconds": .*"begin_seconds": ')" -ge 1 ] ||
        fail "$name: the journal does not say what the recovery is made of: $(grep recovered "$name/journal.jsonl")"
    ! grep -q '"event": "re\(sumed\|started\)"' "$name/journal.jsonl" || fail "$name: the run was restarted"
}
# ranks_of PID: the processes of a launch.
ranks_of() {
    local at=$1 child
    while child=$(pgrep -P "$at" | head -1) && [ -n "$child" ]; do
        at=$child
        ! tr '\0' ' ' 2>/dev/null <"/proc/$at/cmdline" | grep -q -e prterun -e mpirun -e '^[^ ]* launch ' || { pgrep -P "$at"; return; }
    done
}
recovered=0 ended=0
# strike NAME WHOLE RANKS WORD...: a run of 240 steps; kills one of the ranks, some time after the first step, and with `twice` another one less
# than 0.1 s later. A run that is not left before its end recovers.
strike() {
    local name=$1 of=$2 number=$3 run pids at status=0
    shift 3
    "$weft" train run.yaml run.dir="$name" -n "$number" "$@" >/dev/null 2>"$name.err" </dev/null &
    run=$!
    until [ -s "$name/metrics.jsonl" ] || is_gone $run; do sleep 0.01; done
    sleep "0.$(printf %03d $((RANDOM % 500)))"
    mapfile -t pids < <(ranks_of $run)
    at=$RANDOM
    [ ${#pids[@]} -eq 0 ] || kill -KILL "${pids[at % ${#pids[@]}]}" 2>/dev/null
    if [ -n "${twice:-}" ] && [ ${#pids[@]} -gt 1 ]; then
        sleep "0.0$(printf %02d $((RANDOM % 100)))"
        kill -KILL "${pids[(at + 1 + RANDOM % (${#pids[@]} - 1)) % ${#pids[@]}]}" 2>/dev/null
    fi
    wait $run || status=$?
    # Over MPI, status 76 is that of a death after the last step or of a crash of Open MPI.
    if [ -n "$over_mpi" ] && [ "$status" -eq 76 ] && { grep -q ompi_comm_revoke_local "$name.err" || curve "$name" | grep -q '^240 '; }; then
        ended=$((ended + 1))
        return
    fi
    [ "$status" -eq 0 ] || { fail "$name: ends with $status: $(tail -3 "$name.err")"; return; }
    equal "$name" "$of"
    recovered=$((recovered + $(grep -c '"event": "recovered"' "$name/journal.jsonl")))
}
