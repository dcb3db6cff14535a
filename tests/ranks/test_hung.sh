#!/bin/bash
# Ranks hang in a run with recovery.mode: in_place: they stop, or are stuck in something. The others kill them after comm.watchdog_s and go on
# in the same step: losses, norms, validations, weights and samples are those of a run that was left alone.
#   STOPS=100 SEED=7 tests/ranks/test_hung.sh     runs with a stop at a random moment, over seven meshes, and what they are drawn from
# ranks: 8, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/recovery.sh"
needs_ranks
take_repairs
RANDOM=${SEED:-1}
recovery_run

# patient CHECK WORD...: on a busy machine a healthy rank may get no processor time for half of comm.watchdog_s, and rightly counts as hung. So a
# check that fails is made again, with longer limits.
patient() {
    local limit said
    said=$(mktemp said.XXXXXX)
    for limit in 3 24; do
        (failures=0; "$@" comm.watchdog_s=$limit; [ "$failures" -eq 0 ]) >"$said" && return
        echo "$*: again with a longer limit than $limit s: $(head -1 "$said")"
    done
    "$@" comm.watchdog_s=192
}
# hangs WHOLE RANKS FAULTS TEXT HOW WORD...: the run survives the faults, and its journal says TEXT, and HOW a rank hung.
hangs() {
    local of=$1 faults=$3 how=$5 name
    name=$of-$(tr -c 'A-Za-z0-9\n' - <<<"$faults")
    loses "${@:1:4}" "${@:6}"
    grep '"event": "recovered"' "$name/journal.jsonl" | grep '"hung_seconds": [0-9]' | grep -q "$how" ||
        fail "$name: the journal does not say how a rank hung: $(grep recovered "$name/journal.jsonl")"
    has "$name.err" 'it is killed, and the others go on'
}

whole pair 2
whole tp 4 mesh.tp=2
whole four 4 mesh.dp_replicate=4
for fault in 'rank=1,step=9/in step 9/step 9' 'rank=0,phase=validation,step=5/after the update of step 5/validation after step 5' \
    'rank=1,phase=saving,step=10/after the update of step 10/saving after step 10' 'rank=0,phase=comparing,step=15/after the update of step 15/.* after step 15'; do
    IFS=/ read -r what when where <<<"$fault"
    meanwhile 2 patient hangs pair 2 "stop:$what" "rank [01] died $when; 1 ranks go on" \
        "rank ${what:5:1} hung (it was stopped): rank $((1 - ${what:5:1})) had waited [0-9.]* s for .*, in $where" data.audit=false
done
# Inside a step: the passes, a collective, the norm, the update.
for action in FWD BWD REDUCED NORM UPDATE; do
    rank=$((RANDOM % 2)) when=9
    [ "$action" != UPDATE ] || when='\(9\|10\)' # the other finishes its update; rank 0 gathers the step's record
    meanwhile 2 patient hangs pair 2 "stop:rank=$rank,step=9,action=$action" "rank $rank died .*; 1 ranks go on" \
        "rank $rank hung (it was stopped): rank $((1 - rank)) had waited [0-9.]* s for .*, in step $when" data.audit=false
done
meanwhile 4 patient hangs tp 4 stop:rank=1,step=6,action=COLLECTIVE 'rank 1 died in step 6; 2 ranks go on' \
    'rank 1 hung (it was stopped): rank [023] had waited' mesh.tp=2 data.audit=false
# continued OF RANKS RANK STEP EIGHTHS WORD...: a rank stops, and is continued so many eighths of comm.watchdog_s later, which is the last word:
# while the others ask who hangs (from 1 to 1.7 limits), before or after. It is expelled, or takes part again; in both cases the run goes on.
continued() {
    local of=$1 number=$2 rank=$3 step=$4 eighths=$5 words=("${@:6}") name run pid status=0
    name=continued-$of-$rank-$eighths
    local limit=${words[-1]#comm.watchdog_s=}
    rm -rf "$name"
    "$weft" train run.yaml run.dir="$name" -n "$number" "${words[@]}" --inject "stop:rank=$rank,step=$step,action=FWD" >/dev/null 2>"$name.err" </dev/null &
    run=$!
    until pid=$(ranks_of $run | sed -n "$((rank + 1))p") && [ -n "$pid" ] && is_stopped "$pid" || is_gone $run; do sleep 0.01; done
    sleep "$(awk -v limit="$limit" -v eighths="$eighths" 'BEGIN { print limit * eighths / 8 }')"
    kill -CONT "$pid" 2>/dev/null
    wait $run || status=$?
    [ "$status" -eq 0 ] || { fail "$name: ends with $status: $(grep -v '│' "$name.err" | tail -3)"; return; }
    equal "$name" "$of"
}
for eighths in 7 9 10 11 12 13; do meanwhile 2 patient continued pair 2 1 9 "$eighths" data.audit=false; done
meanwhile 4 patient continued tp 4 0 9 10 mesh.tp=2 data.audit=false
# Busy, and not stopped: in a call that does not return.
meanwhile 2 patient hangs pair 2 slow:rank=1,phase=saving,step=5,ms=3600000 'rank 1 died after the update of step 5' \
    'rank 1 hung (it was busy without progress, in saving after step 5): rank 0 had waited'
meanwhile 4 patient hangs tp 4 stop:rank=2,step=12,action=UPDATE '2 ranks go on with dp_replicate 1; rank 3 left' 'rank 2 hung (it was stopped): rank [013] had waited' mesh.tp=2
# During a recovery from a death.
meanwhile 4 patient hangs four 4 'kill:rank=3,step=7;stop:rank=1,phase=loading,step=6' 'rank 3, 1 died in step 7; 1 ranks go on' \
    'rank 1 hung (it was stopped): rank [02] had waited' mesh.dp_replicate=4 data.audit=false
# Ranks of another machine can be killed by those there only. The name of the host tells machines apart.
cat >elsewhere.sh <<'EOF'
[ "$OMPI_COMM_WORLD_RANK" -ge "$HERE" ] || exec "$@"
exec unshare --uts sh -c 'hostname elsewhere; exec "$@"' sh "$@"
EOF
# elsewhere NAME STATUS HERE RANKS WORD...: a run of which only the first HERE ranks are on this machine.
elsewhere() {
    local name=$1 status=0
    rm -rf "$name"
    # shellcheck disable=SC2086
    HERE=$3 timeout -k 5 1500 $launcher --allow-run-as-root --oversubscribe --bind-to none --with-ft ulfm -n "$4" bash elsewhere.sh \
        "$weft" train run.yaml run.dir="$name" "${@:5}" >/dev/null 2>"$name.err" </dev/null || status=$?
    [ "$status" -eq "$2" ] || fail "$name: ends with $status in place of $2: $(grep -v '│' "$name.err" | tail -3)"
}
seen() {
    elsewhere seen 0 2 4 mesh.dp_replicate=4 --inject stop:rank=3,step=7,action=FWD "$@"
    equal seen four
    grep '"event": "recovered"' seen/journal.jsonl | grep -q 'rank 3 hung (it was stopped): rank [012] had waited [0-9.]* s for' ||
        fail "seen: the journal says $(grep recovered seen/journal.jsonl)"
}
unseen() {
    elsewhere unseen 76 1 2 --inject stop:rank=1,step=7,action=FWD "$@"
    has unseen.err 'weft: rank 1 answers nobody: it hangs, or the machine does'
}
if [ -n "$over_mpi" ] && unshare --uts true 2>/dev/null; then # ranks over sockets have a launcher of their own
    meanwhile 4 patient seen
    meanwhile 2 patient unseen
fi
together

# ---- a stop at any moment; the rank is continued after the recovery ----

recovered() { grep -qs '"event": "recovered"' "$1/journal.jsonl"; }
# strike NAME WHOLE RANKS WORD...: stops one of the ranks, some time after the first step, and continues it when the others have gone on.
strike() {
    local name=$1 of=$2 number=$3 run pids pid status=0
    shift 3
    rm -rf "$name"
    "$weft" train run.yaml run.dir="$name" -n "$number" "$@" >/dev/null 2>"$name.err" </dev/null &
    run=$!
    until [ -s "$name/metrics.jsonl" ] || is_gone $run; do sleep 0.01; done
    sleep "0.$(printf %03d $((RANDOM % 500)))"
    mapfile -t pids < <(ranks_of $run)
    pid=${pids[RANDOM % ${#pids[@]}]:-}
    [ -z "$pid" ] || kill -STOP "$pid" 2>/dev/null
    until recovered "$name" || is_gone $run; do sleep 0.01; done
    [ -z "$pid" ] || ! kill -CONT "$pid" 2>/dev/null || ! recovered "$name" || fail "$name: the rank that hung is still there after the recovery"
    wait $run || status=$?
    # Over MPI, status 76 is that of a hang after the last step or of a crash of Open MPI.
    if [ -n "$over_mpi" ] && [ "$status" -eq 76 ] && { grep -q ompi_comm_revoke_local "$name.err" || curve "$name" | grep -q "^$steps "; }; then
        echo ended >>struck
        return
    fi
    [ "$status" -eq 0 ] || { fail "$name: ends with $status: $(grep -v '│' "$name.err" | tail -3)"; return; }
    equal "$name" "$of"
    sed -n "s/.*\"event\": \"recovered\"/$name &/p" "$name/journal.jsonl" >>struck
}
# name ranks word...: with STOPS all of these in turn, otherwise the first.
meshes=('long 2' 'tp 4 mesh.tp=2' 'pp 4 mesh.pp=2' 'cp 4 mesh.cp=2' 'shard 4 mesh.dp_shard=2' "experts 4 mesh.dp_shard=2 mesh.ep=2 model.family=qwen3_moe
    model.num_experts=4 model.num_experts_per_tok=2 model.moe_intermediate_size=16" 'copy 4 mesh.dp_replicate=1 mesh.dp_shard=4 recovery.partner_copy=true')
steps=120
[ -n "${STOPS:-}" ] || meshes=("${meshes[0]}") steps=240
for mesh in "${meshes[@]}"; do
    read -rd '' name number words <<<"$mesh"
    # shellcheck disable=SC2086
    whole "whole-$name" "$number" train.steps=$steps $words
done
for i in $(seq "${STOPS:-4}"); do
    RANDOM=$((${SEED:-1} * 1000 + i))
    read -rd '' name number words <<<"${meshes[i % ${#meshes[@]}]}"
    # shellcheck disable=SC2086
    meanwhile "$number" patient strike "struck-$i-$name" "whole-$name" "$number" train.steps=$steps $words
done
together
echo "ranks stopped in ${STOPS:-4} runs: $(grep -c recovered struck) recoveries, $(grep -c ended struck) runs ended with 76"
conclude
