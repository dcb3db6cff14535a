#!/bin/bash
# weft slurm: refusals, what the script requests from Slurm, and how it handles every end of a run, with fake srun, scontrol and sbatch.
# tests/cluster/slurm.sh tests the same with a real Slurm.
. "$(dirname "$0")/../support/prelude.sh"

mkdir bin texts
letters 20 1 >texts/a.txt
cat >run.yaml <<END
run: {dir: runs/mine}
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [texts/*.txt]}
train: {steps: 10, context: 32, microbatch: 1, tokens_per_step: 256}
END
slurm() { expect_alone "$1" slurm "${@:2}"; }

# ---- refusals, before anything is written ----
slurm 2 run.yaml
has err "-N is missing"
for nodes in 0 -1 8- 8-4 -8 4-8-9 two 99999999999; do slurm 2 run.yaml -N "$nodes"; has err "expected a number of nodes"; done
for time in 0 1: :1 1:2:3:4 1-2:3:4:5 1-2-3 soon 1d; do slurm 2 run.yaml -N 1 --time "$time"; has err "--time is \"$time\""; done
slurm 2 run.yaml -N 1 --time 4 --lead 180
has err "the time limit is 240 s"
slurm 2 run.yaml -N 1 --out - --submit
slurm 78 run.yaml -N 3 mesh.dp_replicate=2
has err "mesh.dp_replicate"
slurm 78 run.yaml -N 8-9
has err "train.tokens_per_step"
slurm 78 run.yaml -N 1 --sweep 'optimizer.lr=1e-3,fast'
has err "--sweep, member optimizer.lr=fast"
slurm 78 run.yaml -N 1 --sweep 'optimizer.speed=1'
for sweep in 'optimizer.lr' 'optimizer.lr=' 'optimizer.lr=1,' 'optimizer.lr=1,1' 'optimizer.lr=1;optimizer.lr=2' 'a.b=[1,2' 'a.b="1' 'run.dir=a,b' ';'; do
    slurm 2 run.yaml -N 1 --sweep "$sweep"
    has err "--sweep"
done
slurm 2 run.yaml -N 1 --sweep 'data.cache_dir=a/b,a_b' # one directory for two
[ ! -e runs ] || fail "a refused command left $(find runs)"
mkdir 'a"b'
(cd 'a"b' && "$weft" slurm ../run.yaml -N 1 data.sources=[../texts/a.txt] >../out 2>../err)
[ $? -eq 2 ] || fail "a directory with a quote in its name is not refused"

# ---- what the script requests from Slurm ----
slurm 0 run.yaml -N 2 --per-node 4 --time 1-12 -p long -A me
script=runs/mine/slurm.sh
for line in job-name=mine nodes=2 ntasks-per-node=4 exclusive time=1-12 partition=long account=me signal=B:USR1@180 requeue open-mode=append \
    "chdir=$directory" output=runs/mine/slurm-%j.log; do
    grep -qx -- "#SBATCH --$line" "$script" || fail "the script does not ask for $line"
done
slurm 0 run.yaml -N 2-4 --cores 3 --out -
has out "#SBATCH --nodes=2-4"
has out "#SBATCH --ntasks-per-node=1"
has out "#SBATCH --cpus-per-task=3"
hasnt out "exclusive"
slurm 0 run.yaml -N 2-4 --out -
hasnt out "#SBATCH --ntasks-per-node"
bash -n "$script" || fail "the script is no shell"

# ---- what the script does ----
export PATH=$directory/bin:$PATH SLURM_JOB_ID=17 SLURM_JOB_NUM_NODES=2 SLURM_CPUS_ON_NODE=8
cat >bin/scontrol <<'END'
#!/bin/sh
echo "$*" >>scontrol.said
exit ${SCONTROL:-0}
END
# Records its arguments, then ends as the variables say: after a signal, if SIGNALLED is set.
cat >bin/srun <<'END'
#!/bin/bash
printf '%s\n' "$@" >srun.words
[ -z "$STOPPED" ] || echo '{"event": "stopped", "step": 3}' >>runs/mine/journal.jsonl
if [ -n "$SIGNALLED" ]; then
    trap 'exit ${STATUS:-75}' USR1
    kill -USR1 "$PPID"
    for i in $(seq 1500); do sleep 0.02; done
fi
exit "${STATUS:-0}"
END
cat >bin/sbatch <<'END'
#!/bin/sh
echo "Submitted batch job 99"
echo "$*" >sbatch.words
exit ${SBATCH:-0}
END
chmod +x bin/*
# ends STATUS REQUEUED [NAME=VALUE ...]: checks how the script ends if srun behaves as the variables say.
ends() {
    local status=0
    rm -f scontrol.said srun.words
    env "${@:3}" bash "$script" >said 2>&1 || status=$?
    [ "$status" -eq "$1" ] || fail "${*:3}: status $status, expected $1: $(cat said)"
    [ "$([ -e scontrol.said ] && echo yes || echo no)" = "$2" ] || fail "${*:3}: queued again: expected $2: $(cat said)"
    [ "$2" = no ] || grep -qx 'requeue 17' scontrol.said || fail "${*:3}: scontrol $(cat scontrol.said)"
}
word() { grep -qx -- "$1" srun.words || fail "srun is not given $1: $(tr '\n' ' ' <srun.words)"; }
: >runs/mine/journal.jsonl
ends 0 no STATUS=0
for words in --mpi=pmix --kill-on-bad-exit=1 --nodes=2 --ntasks=8 --cpus-per-task=2 --cpu-bind=cores train run.yaml "$weft"; do
    [ "$words" != --mpi=pmix ] || "$weft" --version | grep -q 'Open MPI' || continue
    word "$words"
done
! grep -q overwrite srun.words || fail "a first start says run.overwrite"
for status in 2 65 66 69 78; do ends $status no STATUS=$status; done
for status in 17 71 74 76 137 143; do ends $status yes STATUS=$status; done
ends 137 yes STATUS=137 SLURM_RESTART_COUNT=9
word run.overwrite=false
has said "queued again, after 9 restarts"
ends 137 no STATUS=137 SLURM_RESTART_COUNT=10
has said "10 are allowed"
# Near the time limit the job is requeued any number of times, with any status of srun; a complete run is not.
ends 75 yes SIGNALLED=yes SLURM_RESTART_COUNT=1000
ends 137 yes SIGNALLED=yes STATUS=137 SLURM_RESTART_COUNT=1000
ends 0 no SIGNALLED=yes STATUS=0
ends 75 yes SIGNALLED=yes SCONTROL=1
has said "Slurm does not queue it again"
# A run that was asked to stop is not requeued, even if srun killed a rank that was slow to end. Earlier entries of the journal do not count.
ends 75 no STOPPED=yes STATUS=75
ends 75 no STOPPED=yes STATUS=137
ends 137 yes STATUS=137

# ---- the user's overrides ----
"$weft" slurm run.yaml -N 1 'data.sources=[{path: "a b$(touch broken)`touch broken`'"'"'"}]' >out 2>err || fail "a path with quotes: $(cat err)"
ends 0 no STATUS=0
word 'data.sources=\[{path: "a b$(touch broken)`touch broken`'"'"'"}\]'
[ ! -e broken ] || fail "a word of the user's was run"

# ---- a sweep ----
slurm 0 run.yaml -N 1 --sweep 'optimizer.lr=1e-3,2e-3; data.sources=[texts/a.txt],[{path: texts/*.txt, weight: 1}]'
grep -qx -- '#SBATCH --array=0-3' "$script" || fail "no array"
grep -qx -- '#SBATCH --output=runs/mine/slurm-%A_%a.log' "$script" || fail "no log for each member"
ends 0 no STATUS=0 SLURM_ARRAY_TASK_ID=2
word optimizer.lr=2e-3
word 'data.sources=\[texts/a.txt\]'
word 'run.dir=runs/mine/optimizer.lr=2e-3,data.sources=_texts_a.txt_'
ends 2 no STATUS=0 SLURM_ARRAY_TASK_ID=4

# ---- submitting ----
slurm 0 run.yaml -N 1 --submit
has out "Submitted batch job 99"
[ "$(cat sbatch.words)" = "$script" ] || fail "sbatch $(cat sbatch.words)"
SBATCH=1 exits 69 slurm run.yaml -N 1 --submit
PATH=/nowhere exits 69 slurm run.yaml -N 1 --submit
has err "cannot start sbatch"

conclude
