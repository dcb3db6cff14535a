#!/bin/bash
# Tests weft slurm with a real Slurm: a private controller, four nodes and munge on this machine, for the time of the test. For maintainers
# (make cluster, which installs what it needs). Takes some ten minutes, most of which Slurm waits.
#   Checks: ranks started by srun and bound; requeueing by the signal before the time limit; a node that dies; fewer nodes; a sweep; jobs
#   that must not be requeued.
. "$(dirname "$0")/../support/prelude.sh"
PATH=$PATH:/usr/sbin:/sbin
for program in munged slurmctld slurmd sbatch srun scontrol; do
    command -v "$program" >/dev/null || { echo "$program is missing: tools/setup.sh cluster"; exit 77; }
done
[ "$(nproc)" -ge 2 ] || { echo "two cores at least are needed, to bind ranks to"; exit 77; }

# ---- the cluster ----

host=$(hostname -s) user=$(id -un) port=${SLURM_TEST_PORT:-26810}
export SLURM_CONF=$directory/slurm.conf
mkdir munge state
chmod 700 munge
head -c 1024 /dev/urandom >munge/key
chmod 600 munge/key
cat >slurm.conf <<END
ClusterName=weft
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
# cred_expire is also how long a requeued job waits; its default is 120 s.
AuthInfo=socket=$directory/munge/socket,cred_expire=5
CredType=cred/munge
SlurmctldPort=$port
StateSaveLocation=$directory/state
SlurmdSpoolDir=$directory/spool-%n
TmpFS=$directory/tmp-%n
SlurmctldPidFile=$directory/slurmctld.pid
SlurmdPidFile=$directory/slurmd-%n.pid
SlurmctldLogFile=$directory/slurmctld.log
SlurmdLogFile=$directory/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SlurmdTimeout=15
KillWait=10
ReturnToService=2
JobRequeue=1
MinJobAge=86400
SlurmdParameters=config_overrides
NodeName=node[1-4] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 4))] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 OverSubscribe=NO State=UP
END

# The nodes share a hostname and /dev/shm, where Open MPI would give shared-memory segments of ranks on different nodes the same name.
export OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=lo

node_pids=()
start_node() { # N
    mkdir -p "spool-node$1" "tmp-node$1"
    slurmd -D -N "node$1" >"slurmd$1.out" 2>&1 &
    node_pids[$1]=$!
    disown
}
# tree PID: prints the process and its descendants.
tree() { local child; echo "$1"; for child in $(pgrep -P "$1"); do tree "$child"; done; }
# steps: prints the slurmstepd processes of this cluster; is_on N PID: true if the process or a descendant belongs to node N. Both read the
# processes' environments.
steps() { for pid in $(pgrep -x slurmstepd); do tr '\0' '\n' <"/proc/$pid/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF" && echo "$pid"; done 2>/dev/null; }
is_on() { for pid in $(tree "$2"); do tr '\0' '\n' <"/proc/$pid/environ" | grep -qx "SLURMD_NODENAME=node$1" && return; done 2>/dev/null; return 1; }
# Kills everything that node N runs: its daemon, and the steps that the daemon started.
kill_node() {
    local pids step
    pids=$(tree "${node_pids[$1]}")
    for step in $(steps); do is_on "$1" "$step" && pids="$pids $(tree "$step")"; done
    # shellcheck disable=SC2086
    kill -KILL $pids 2>/dev/null
}
stop_cluster() {
    scancel --user="$user" 2>/dev/null
    sleep 1
    for n in 1 2 3 4; do [ -z "${node_pids[$n]:-}" ] || kill_node "$n"; done
}
trap 'stop_cluster; end_jobs; [ -n "${KEEP:-}" ] && echo "kept: $directory" || rm -rf "$directory"' EXIT

munged --foreground --force --key-file="$directory/munge/key" --socket="$directory/munge/socket" --pid-file="$directory/munge/pid" \
    --log-file="$directory/munge/log" --seed-file="$directory/munge/seed" >munged.out 2>&1 &
await test -S munge/socket
slurmctld -D >slurmctld.out 2>&1 &
for n in 1 2 3 4; do start_node "$n"; done
all_idle() { [ "$(sinfo -h -N -o '%T' 2>/dev/null | grep -c '^idle$')" -eq 4 ]; }
await all_idle || { tail -n 20 slurmctld.log slurmd-node1.log; exit 1; }
echo "$(sinfo --version), $("$weft" --version | grep -i mpi): four nodes are up"

# ---- jobs ----

field() { scontrol show job "$1" -o 2>/dev/null | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; } # JOB NAME
state_is() { [ "$(field "$1" JobState)" = "$2" ]; }
is_over() { case $(field "$1" JobState) in COMPLETED | FAILED | CANCELLED | TIMEOUT | NODE_FAIL) true ;; *) false ;; esac; }
restarted() { [ "$(field "$1" Restarts)" -ge "$2" ]; }
# submit WORD...: runs weft slurm WORD... --submit and sets $job to the job's number.
submit() {
    "$weft" slurm "$@" --submit >out 2>err || { fail "weft slurm $*: $(cat err)"; job=0; return 1; }
    job=$(sed -n 's/^Submitted batch job //p' out)
}
events() { grep -c "\"event\": \"$2\"" "$1/journal.jsonl" 2>/dev/null; } # DIR EVENT
has_event() { [ "$(events "$1" "$2")" -ge "$3" ] 2>/dev/null; }     # DIR EVENT COUNT
steps_of() { curve "$1" | tail -1 | cut -d' ' -f1; }
passes() { [ "$(steps_of "$1")" -gt "$2" ] 2>/dev/null; } # DIR STEP
tell() { echo "--- $1"; cat "$2"/slurm-*.log 2>/dev/null | tail -n 25; tail -n 5 "$2/journal.jsonl"; }

letters 400 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 96, intermediate_size: 256, num_hidden_layers: 3, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 1000000, context: 64, microbatch: 2, tokens_per_step: 1024}
numerics: {mode: exact}
lr_schedule: {warmup_steps: 4, total_steps: 400, min_factor: 0.1}
checkpoint: {every: 25}
metrics: {log_freq: 1, tensorboard: false}
comm: {watchdog_s: 20}
run: {threads: 1}
END
# Repeats a run without Slurm, up to the last step of the run under Slurm; all bits must be equal.
same_as_alone() { # DIR
    local steps
    steps=$(steps_of "$1")
    rm -rf alone
    "$weft" train run.yaml -n 2 run.dir=alone train.steps="$steps" >/dev/null 2>alone.err || { fail "alone: $(tail -1 alone.err)"; return; }
    [ "$(digest alone)" = "$(digest "$1")" ] || fail "$1: after $steps steps the weights are not those of a run without Slurm"
    [ "$(curve alone)" = "$(curve "$1" | sort -un)" ] || fail "$1: the curve is not that of a run without Slurm"
    echo "$1: $steps steps, the bits of a run without Slurm"
}

echo "== started by srun, on two nodes with two ranks each"
submit run.yaml -N 2 --per-node 2 run.dir=plain train.steps=120
await has_lines plain/metrics.jsonl 2
for pid in $(pgrep -x "$(basename "$weft")"); do
    tr '\0' '\n' <"/proc/$pid/environ" | grep -qxF "SLURM_CONF=$SLURM_CONF" && sed -n 's/^Cpus_allowed_list:[[:blank:]]*//p' "/proc/$pid/status"
done >bound 2>/dev/null
await is_over "$job"
state_is "$job" COMPLETED || { fail "the job is $(field "$job" JobState)"; tell plain plain; }
grep -qx 0 bound && grep -qx 1 bound && ! grep -q '[-,]' bound || fail "ranks are not bound to a core each: $(tr '\n' ' ' <bound)"
same_as_alone plain

# Slurm checks every 30 s, and its signal may come 60 s early: each attempt has at least 15 s.
echo "== the time limit: 2 minutes, with the signal 45 to 105 s before the end"
submit run.yaml -N 2 run.dir=limited --time 2 --lead 45
await restarted "$job" 1
await has_event limited resumed 1 || tell limited limited
has_event limited stopped 1 || fail "the run was not stopped before its limit"
grep -q '"event": "restarted"' limited/journal.jsonl || fail "the journal does not say that it was queued again"
passes_on=$(steps_of limited)
await passes limited $((passes_on + 20))
"$weft" stop limited --wait 60 >/dev/null 2>err || fail "weft stop: $(cat err)"
await is_over "$job"
[ "$(field "$job" ExitCode)" = 75:0 ] || { fail "stopped by weft stop, the job ends with $(field "$job" ExitCode)"; tell limited limited; }
[ "$(field "$job" Restarts)" -eq 1 ] || fail "a run that was stopped on request was queued again"
same_as_alone limited

echo "== a node dies"
submit run.yaml -N 2 run.dir=dead
await has_event dead checkpoint 2
victim=$(scontrol show hostnames "$(field "$job" NodeList)" | tail -1)
at=$(steps_of dead)
begun=$(date +%s)
kill_node "${victim#node}"
await restarted "$job" 1 || tell dead dead
echo "queued again $(($(date +%s) - begun)) s after $victim died in step $at"
await has_event dead resumed 1 || tell dead dead
await passes dead $((at + 10)) || tell dead dead
[[ " $(scontrol show hostnames "$(field "$job" NodeList)" | tr '\n' ' ') " != *" $victim "* ]] || fail "it runs on $victim, which is dead"
restarts=$(field "$job" Restarts)
scancel --signal=USR1 "$job"
await is_over "$job"
[ "$(events dead stopped)" -eq 1 ] || { fail "scancel --signal=USR1 does not save"; tell dead dead; }
[ "$(field "$job" Restarts)" -eq "$restarts" ] || fail "a run that scancel --signal=USR1 stopped was queued again"
same_as_alone dead
start_node "${victim#node}"

echo "== it goes on, on one node"
at=$(steps_of dead)
submit run.yaml -N 1 run.dir=dead train.steps=$((at + 40))
await is_over "$job"
state_is "$job" COMPLETED || { fail "on one node the job is $(field "$job" JobState)"; tell dead dead; }
same_as_alone dead

echo "== as many nodes as there are, from two to four"
await all_idle
submit run.yaml -N 2-4 run.dir=wide train.steps=40
await is_over "$job"
state_is "$job" COMPLETED || { fail "on 2-4 nodes the job is $(field "$job" JobState)"; tell wide wide; }
[ "$(field "$job" NumNodes)" -eq 4 ] || fail "of four nodes the job had $(field "$job" NumNodes)"
same_as_alone wide

echo "== a sweep"
submit run.yaml -N 1 run.dir=sweep train.steps=20 --sweep 'optimizer.lr=1e-3,2e-3; optimizer.clip=1,0'
await has_event sweep/optimizer.lr=1e-3,optimizer.clip=0 finished 1
for member in 1e-3,optimizer.clip=1 1e-3,optimizer.clip=0 2e-3,optimizer.clip=1 2e-3,optimizer.clip=0; do
    await has_event "sweep/optimizer.lr=$member" finished 1
done
"$weft" compare sweep/*/ >out 2>err
[ $? -eq 1 ] && grep -q 'optimizer.lr' out && grep -q 'optimizer.clip' out || fail "weft compare of the sweep: $(head -c 600 out)"

echo "== jobs that must not be requeued"
cp run.yaml wrong.yaml
submit wrong.yaml -N 1 run.dir=wrong
echo 'optimizer: {lr: fast}' >>wrong.yaml
await is_over "$job"
# Slurm may have ended the job before this check.
if [ ! -e wrong/metrics.jsonl ]; then
    [ "$(field "$job" ExitCode)" = 78:0 ] && [ "$(field "$job" Restarts)" -eq 0 ] ||
        fail "a wrong configuration: $(field "$job" ExitCode), $(field "$job" Restarts) restarts"
fi

conclude "weft slurm: all as expected"
