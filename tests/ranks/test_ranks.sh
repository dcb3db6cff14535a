#!/bin/bash
# Runs of many ranks as users start them: the curve, the validation and the final weights do not depend on the mesh; a run stops
# on one mesh and resumes on another; checkpoints of all meshes are equal; an error is reported once, whichever rank makes it.
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
end_jobs() { kill $(jobs -p) 2>/dev/null || true; wait; } # mpirun ends its ranks too

# Documents shorter and longer than the context: microbatches have unequal numbers of target tokens.
awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { n = 3 + int(rand() * 40); for (i = 0; i < n; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >text.txt
cat >run.yaml <<EOF
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, document_mask: true, validation_fraction: 0.1, audit: true}
train: {steps: 100, context: 32, microbatch: 1, tokens_per_step: 256, compute: fp32}
numerics: {mode: exact}
optimizer: {lr: 3e-3}
lr_schedule: {warmup_steps: 4}
validation: {every: 50, samples: 11}
checkpoint: {every: 50}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
EOF

# train DIR WORD... : runs weft train and writes its exit status to DIR.status. launch: the same, concurrently with others. The time limit
# also ends ranks that wait for each other forever.
train() {
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null
    echo $? >"$1.status"
}
launch() { meanwhile "$(ranks_in "$@")" train "$@"; }
# went DIR : the run must have ended with status 0.
went() { [ "$(cat "$1.status")" -eq 0 ] || { fail "$1: exit status $(cat "$1.status"): $(tail -3 "$1.err")"; return 1; }; }
# curve DIR : prints every loss, norm and validation loss with all digits.
curve() {
    sed -n -e 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' \
        -e 's/.*"kind": "validation", "step": \([0-9]*\),.*"loss": \([^,]*\),.*"tokens": \([0-9]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"
}
last() { ls -d "$1"/checkpoints/step-* | tail -1; }
# same DIR BASE : both runs must have the same curve, weights and model file, to the last bit.
same() {
    went "$1" || return
    [ "$(curve "$1")" = "$(curve "$2")" ] || fail "$1 has a different curve than $2: $(diff <(curve "$2") <(curve "$1") | head -4)"
    [ "$("$weft" inspect --digest "$1")" = "$("$weft" inspect --digest "$2")" ] || fail "$1 ends with other weights than $2"
    cmp -s "$(last "$1")/model.safetensors" "$(last "$2")/model.safetensors" || fail "$1 writes a different model file than $2"
}
# said DIR TEXT : the run reported this error once, and no other.
said() {
    grep -qF -- "$2" "$1.err" || fail "$1: no \"$2\" in: $(tail -3 "$1.err")"
    [ "$(grep -c '^weft: ' "$1.err")" -eq 1 ] || fail "$1: not reported once: $(cat "$1.err")"
}

# The runs that are compared below, as many at a time as the declared ranks allow. The first one writes the token cache that all read.
whole='optimizer.groups=[{match: proj|embed, whole: true}]'
fast="numerics.mode=fast train.steps=30 checkpoint.every=0 validation.every=0 data.audit=false"
long="train.steps=300 checkpoint.every=0 validation.every=0"
# A schedule from a file: rank 1 takes the microbatches in another order than rank 0 sends them.
printf '0F0,0F1,0F2,0F3,0F4,0F5,0F6,0F7,0B0,0B1,0B2,0B3,0B4,0B5,0B6,0B7\n1F7,1B7,1F5,1B5,1F6,1B6,1F0,1B0,1F1,1B1,1F2,1B2,1F4,1B4,1F3,1B3\n' >own.csv
train one
went one || exit 1
launch hsdp4 -n 4 mesh.dp_replicate=2 mesh.dp_shard=2 train.gradient_sync=replica 'metrics.log_ranks=[0, 3]' metrics.all_ranks=true
launch pp2fsdp2 -n 4 mesh.pp=2 pipeline.schedule=interleaved_zero_bubble train.gradient_sync=microbatch train.recompute=full
launch whole4 -n 4 mesh.dp_replicate=2 "$whole"
launch own -n 2 mesh.pp=2 pipeline.schedule=own.csv
launch ddp2 -n 2 mesh.dp_replicate=2 train.gradient_sync=microbatch
launch fsdp8 -n 8 train.gradient_sync=step train.reshard_after_forward=never
launch quiet2 -n 2 -q mesh.pp=2 train.steps=6
launch long $long
launch fast1 $fast
launch ddp4 -n 4 mesh.dp_replicate=4 $fast
launch fsdp4 -n 4 $fast train.recompute=selective
launch wholefsdp4 -n 4 $fast "$whole"
launch hsdp22 -n 4 mesh.dp_replicate=2 $fast train.recompute=full train.reshard_after_forward=always
launch fast1f1b -n 2 mesh.pp=2 $fast 'pipeline.split=[layers.1]'
launch fastzbv -n 2 mesh.pp=2 $fast pipeline.schedule=zbv train.recompute=full
launch fast4 -n 4 mesh.pp=4 $fast pipeline.schedule=gpipe
together

# Exact numerics: 1 rank with 8 microbatches, 2 with 4, 4 with 2, 8 with 1; every kind of sharding and time of gradient reduction.
[ "$(curve one | wc -l)" -eq 103 ] || fail "100 steps and 3 validations make $(curve one | wc -l) records"
awk 'NR == 1 { first = $2 } { end = $2 } END { exit !(end < 0.5 * first) }' <(curve one) || fail "the loss does not fall"
"$weft" audit one >/dev/null || fail "weft audit of one rank"
for run in ddp2 hsdp4 fsdp8 whole4 pp2fsdp2 own; do same $run one; done
went quiet2 && [ ! -s quiet2.out ] && [ ! -s quiet2.err ] || fail "train -n 2 -q: $(head -3 quiet2.out quiet2.err)"
grep -q 'whole matrices, each on one of 2 shards' whole4.err || fail "the owners of whole matrices are not reported: $(head -40 whole4.err)"

# The selected ranks print their lines with their rank, and each writes a file of metrics.
[ "$(grep -c '^\[rank 3\] *step:' hsdp4.err)" -eq 100 ] && [ "$(grep -c '^\[rank 0\] *step:' hsdp4.err)" -eq 100 ] || fail "metrics.log_ranks: $(grep -c step: hsdp4.err) lines: $(grep step: hsdp4.err | head -2)"
! grep -q '^\[rank [12]\]' hsdp4.err || fail "ranks speak that were not asked"
[ "$(grep -c '^\[rank 3\] *validate' hsdp4.err)" -eq 3 ] || fail "rank 3 does not say how validation went"
[ "$(grep -c '^step:' ddp2.err)" -eq 100 ] || fail "steps are not reported once"
for rank in 1 2 3; do
    [ "$(grep -c '"kind": "train"' hsdp4/metrics-0000$rank.jsonl)" -eq 100 ] || fail "no metrics of rank $rank"
done
ls ddp2 | grep -q 'metrics-' && fail "metrics of other ranks that were not requested"
"$weft" audit hsdp4 >/dev/null || fail "weft audit of 4 ranks"
"$weft" audit pp2fsdp2 >/dev/null || fail "weft audit of pipelines"

# Fast numerics: DDP = FSDP = HSDP at one data-parallel degree, with any pipeline and recompute.
went ddp4
for run in fsdp4 wholefsdp4 hsdp22; do same $run ddp4; done
[ "$(curve fast1 | head -20)" != "$(curve ddp4 | head -20)" ] || fail "4 ranks have the sums of one: the test cannot tell them apart"
for run in fast1f1b fastzbv fast4; do same $run fast1; done

# A run is stopped on one mesh, by a signal and by weft stop, and resumes on others.
# stop HOW WORD... : continues the run `moved` until rank 0 stops itself, requests a stop, and lets rank 0 continue.
steps() { cat moved/metrics.jsonl 2>/dev/null | grep -c '"kind": "train"'; }
stop() {
    local how=$1 pid
    shift
    "$weft" train run.yaml run.dir=moved $long "$@" --inject "stop:rank=0,step=$(($(steps) + 6))" >/dev/null 2>moved.err </dev/null &
    pid=$!
    await stands moved
    chief=$(cat moved/lock)
    if [ "$how" = signal ]; then
        kill -USR1 $pid
        await pending "$chief" 200 # SIGUSR1
    else
        "$weft" stop moved >/dev/null
    fi
    kill -CONT "$chief"
    status=0
    wait $pid || status=$?
    [ "$status" -eq 75 ] || { fail "$* stopped by $how: exit status $status: $(tail -2 moved.err)"; return; }
    [ "$(grep -c 'everything saved' moved.err)" -eq 1 ] || fail "$*: not one message about stopping: $(tail -3 moved.err)"
}
moves() {
    stop signal -n 4 mesh.pp=4 pipeline.schedule=1f1b
    stop verb -n 4 mesh.pp=2 mesh.dp_replicate=2 pipeline.schedule=zbv
    stop signal -n 4 mesh.pp=2 "$whole" run.allow_changes=[optimizer.groups]
    stop signal -n 3 run.allow_changes=[optimizer.groups] mesh.pp=3 pipeline.schedule=interleaved_1f1b checkpoint.dtype=bf16
    train moved $long checkpoint.dtype=bf16
    went moved
    went long
    grep -q "resumed after step" moved.err || fail "moved did not go on: $(head -30 moved.err)"
    [ "$(curve moved)" = "$(curve long)" ] || fail "a run moved between meshes has a different curve: $(diff <(curve long) <(curve moved) | head -4)"
    "$weft" audit moved >audit.out || fail "weft audit of the moved run: $(tail -3 audit.out)"
    grep -q "exactly once" audit.out || fail "weft audit says: $(cat audit.out)"
    # Starting from a model: rounded to bf16, and from a Hugging Face directory.
    local in="model.init=moved train.steps=5 lr_schedule.warmup_steps=0 checkpoint.dtype=bf16"
    train in1 $in
    train in4 -n 4 mesh.pp=2 $in
    same in4 in1
    [ "$(curve in1 | head -1)" != "$(curve one | head -1)" ] || fail "weights of model.init are not used"
    # One rank also reads a model copy that several ranks wrote.
    train in4 $in train.steps=8 'run.allow_changes=[train.steps]'
    went in4
}
meanwhile 4 moves

# True when SIGUSR1 is pending for a rank. mpirun has been seen to lose a signal that came while it learned of a stopped child, so the
# launcher's signal is repeated every five seconds.
came_through() { # LAUNCHER RANK
    pending "$2" 200 && return 0
    [ $((ticks % 250)) -ne 249 ] || kill -USR1 $(cat "/proc/$1/task/$1/children")
    return 1
}
# A second SIGINT ends the run at once, without a message about saving.
impatient() {
    local pid chief status=0
    "$weft" train run.yaml run.dir=impatient $long train.steps=1000000 lr_schedule.total_steps=300 -n 2 >/dev/null 2>impatient.err </dev/null &
    pid=$!
    await has_lines impatient/metrics.jsonl 3
    # Rank 0 is stopped, so that the run does not end on the first SIGINT before the second comes. The other rank ends on the second, and
    # mpirun wakes rank 0.
    chief=$(cat impatient/lock)
    kill -STOP "$chief"
    await is_stopped "$chief"
    kill -INT $pid
    await came_through "$pid" "$chief"
    kill -INT $pid
    wait $pid || status=$?
    # If the ranks had not ended by themselves, weft would have reported it.
    [ "$status" -eq 130 ] || fail "a second SIGINT: exit status $status: $(tail -3 impatient.err)"
    hasnt impatient.err "did not end on the second SIGINT"
    ! grep -q "^weft:" impatient.err || fail "a second SIGINT: $(grep '^weft:' impatient.err)"
    # An empty --inject is refused before anything starts.
    status=0
    "$weft" train run.yaml run.dir=impatient -n 2 --inject '' >/dev/null 2>impatient.err </dev/null || status=$?
    [ "$status" -eq 2 ] || fail "--inject '': exit status $status"
    said impatient '--inject names no fault'
}
meanwhile 2 impatient

# More threads than cores: ranks that weft starts wait without spinning; for ranks started by mpirun, weft asks the user to set that.
crowds() {
    local many="run.threads=$(($(nproc) + 1)) train.steps=2"
    unset OMP_WAIT_POLICY
    train crowd -n 2 $many
    went crowd
    ! grep -q OMP_WAIT_POLICY crowd.err || fail "ranks of weft get advice on waiting: $(grep OMP_WAIT crowd.err)"
    on_ranks 2 "$weft" train run.yaml run.dir=crowd2 $many >crowd2.err 2>&1 || fail "crowd2: $(tail -2 crowd2.err)"
    [ "$(grep -c OMP_WAIT_POLICY crowd2.err)" -eq 1 ] || fail "ranks of mpirun do not get one advice on waiting: $(head -5 crowd2.err)"
}
meanwhile 2 crowds

# mpirun's files are in a separate directory, which no other job removes, and nothing of it stays.
own_sessions() {
    mkdir temporary
    TMPDIR=$directory/temporary "$weft" train run.yaml run.dir=sessions train.steps=1 \
        metrics.command="['sh', '-c', 'env >$directory/environment; cat >/dev/null']" -n 2 >sessions.out 2>sessions.err </dev/null ||
        fail "sessions: $(tail -3 sessions.err)"
    is_open_mpi || return 0 # MPICH's has none
    [ -z "$(ls -A temporary)" ] || fail "sessions stay: $(find temporary | head)"
    is_open_mpi_5 && return 0 # each job has a directory of its own
    grep -q "^OMPI_MCA_orte_tmpdir_base=$directory/temporary/weft-mpirun-" environment || fail "sessions: $(grep OMPI_MCA environment)"
}
meanwhile 2 own_sessions

# bad STATUS TEXT WORD... : the run fails with that status and reports TEXT once.
number=0
bad() { meanwhile "$(ranks_in "${@:3}")" ends_badly "bad$((number += 1))" "$@"; }
ends_badly() {
    local dir=$1 wanted=$2 text=$3 status
    shift 3
    train "$dir" "$@"
    status=$(cat "$dir.status")
    [ "$status" -eq "$wanted" ] || fail "$*: exit status $status, expected $wanted: $(tail -2 "$dir.err")"
    said "$dir" "$text"
}
bad 78 'mesh.pp 3 x mesh.dp_replicate 1 = 3 does not divide 4 ranks' -n 4 mesh.pp=3
bad 78 'needs at least 8 ranks, and there are 4' -n 4 mesh.pp=2 mesh.dp_replicate=4
bad 78 'mesh.dp_shard 3 = 3, but there are 4 ranks' -n 4 mesh.dp_shard=3
bad 78 'mesh.pp: expected a whole number' -n 4 mesh.pp=0
bad 78 'mesh.dp_shard' -n 4 mesh.dp_shard=-2
bad 78 'x mesh.tp 3 = 3 does not divide 4 ranks' -n 4 mesh.tp=3
bad 78 'mesh.cp 4 by all_to_all does not divide num_key_value_heads 2: 1 or 2 would, or mesh.cp_comm: all_gather' -n 4 mesh.cp=4 mesh.cp_comm=all_to_all
bad 78 'mesh.ep 2: the family llama has no experts: use 1' -n 4 mesh.ep=2
bad 78 'needs at least 2 ranks, and there are 1' mesh.pp=2
bad 78 'did you mean mesh.dp_shard' -n 4 mesh.dp_shards=2
bad 2 '--ranks' -n 0
bad 78 'train.tokens_per_step is 256' -n 3
bad 78 'pipeline.schedule is "2f2b"' -n 2 mesh.pp=2 pipeline.schedule=2f2b
bad 78 'pipeline.split' -n 2 mesh.pp=2 'pipeline.split=[layers.1, layers.2]'
sed 's/1F3,1B3/1F3/' own.csv >short.csv
bad 65 'short.csv: rank 1: 1B3 is missing' -n 2 mesh.pp=2 pipeline.schedule=short.csv
bad 78 'own.csv is for 2 ranks and 8 microbatches' -n 4 mesh.pp=2 pipeline.schedule=own.csv
sed 's/^\(.\)\(.*\)/\1UNSHARD,\1\2,\1REDUCE_GRAD,\1RESHARD/' own.csv >gathers.csv
bad 78 'gathers.csv: rank 0 (line 1) has the cell 0UNSHARD: a run places UNSHARD, RESHARD and REDUCE_GRAD itself' -n 2 mesh.pp=2 pipeline.schedule=gathers.csv
sed 's/$/,0REDUCE_GRAD/; 2s/0REDUCE/1REDUCE/' own.csv >reduces.csv
bad 78 'reduces.csv: rank 0 (line 1) has the cell 0REDUCE_GRAD' -n 2 mesh.pp=2 pipeline.schedule=reduces.csv
printf '0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n' >waits.csv
bad 65 'waits.csv: its SEND and RECV cells' -n 2 mesh.pp=2 pipeline.schedule=waits.csv train.microbatch=4
printf '{"text": "fine"}\n{"text": 3}\n' >broken.jsonl
bad 65 'broken.jsonl:2' -n 4 'data.sources=[broken.jsonl]' data.validation_fraction=0
bad 66 'no/such/model' -n 2 model.init=no/such/model
together
conclude "all meshes have the results of one rank"
