#!/bin/bash
# Ranks that were started with different inputs (such as a stale file on a node): every such launch ends before the first step,
# with one error that names ranks and keys. Different processors are not an error.
# over MPI
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks

letters 40 1 >text.txt
letters 40 2 >other.txt # of the same length
mkdir here there
cp text.txt here/text.txt
cp other.txt there/text.txt
cat >run.yaml <<EOF
model: {hidden_size: 16, intermediate_size: 16, num_hidden_layers: 2, num_attention_heads: 2, num_key_value_heads: 1}
data: {sources: [$directory/text.txt], cache_dir: cache}
train: {steps: 2, context: 16, microbatch: 2, tokens_per_step: 96, compute: fp32}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: $directory/run}
EOF

# unlike STATUS TEXT WORD... : two ranks run run.yaml, a third adds WORDs. They end with that status, report the reason once,
# and train nothing.
unlike() {
    local wanted=$1 text=$2 status=0
    shift 2
    timeout -k 5 1500 $mpirun -n 2 "$weft" train run.yaml : -n 1 "${program:-$weft}" train run.yaml "$@" >out 2>err </dev/null || status=$?
    refused "$wanted" "$text" "$status" "$*"
}
refused() {
    [ "$3" -eq "$1" ] || fail "$4: exit status $3, expected $1: $(grep weft: err)"
    grep '^weft: ' err >said
    has said "$2"
    [ "$(wc -l <said)" -eq 1 ] || fail "$4: not reported once: $(cat said)"
    [ ! -e run/metrics.jsonl ] || fail "$4: something was trained"
    rm -rf run
}

only="the ranks do not run the same: rank 2: "
unlike 78 "${only}optimizer.lr is 0.5 (rank 0: 0.0003): give all ranks one configuration" optimizer.lr=0.5
unlike 78 "${only}data.seed is 7 (rank 0: 42)" data.seed=7
unlike 78 "${only}run.seed is 7 (rank 0: 42)" run.seed=7
unlike 78 "${only}data.sources is [{path: $directory/other.txt" "data.sources=[$directory/other.txt]"
unlike 78 "${only}train.steps is 3 (rank 0: 2)" train.steps=3
unlike 78 "${only}mesh.pp is 3 (rank 0: 1)" mesh.pp=3
unlike 78 "${only}model.hidden_size is 32 (rank 0: 16)" model.hidden_size=32
unlike 78 "${only}train.microbatch is 1 (rank 0: 2)" train.microbatch=1
unlike 78 "${only}train.compute is bf16 (rank 0: fp32)" train.compute=bf16
unlike 78 "${only}numerics.mode is exact (rank 0: fast)" numerics.mode=exact
unlike 78 "${only}train.steps is 3 (rank 0: 2), checkpoint.every is 1 (rank 0: 500)" checkpoint.every=1 train.steps=3 lr_schedule.total_steps=2
unlike 78 "train.tokens_per_step is 100" train.tokens_per_step=100
cp "$weft" another
printf x >>another # runs as it did, and is not the same file
program=./another unlike 78 "${only}the build is "
# A rank that cannot open its kernels, while the others already wait for it.
printf '#!/bin/bash\nWEFT_CPU=none exec "%s" "$@"\n' "$weft" >elsewhere
chmod +x elsewhere
program=./elsewhere unlike 69 'rank 2: WEFT_CPU: unknown CPU kernels "none"'

# Ranks that differ in the same way are reported together.
status=0
$mpirun -n 1 "$weft" train run.yaml : -n 2 "$weft" train run.yaml optimizer.lr=1 : -n 1 "$weft" train run.yaml data.seed=1 >out 2>err </dev/null || status=$?
refused 78 "ranks 1-2: optimizer.lr is 1 (rank 0: 0.0003); rank 3: data.seed is 1 (rank 0: 42)" "$status" "four ranks"

# Files with the same names and different contents.
# apart TEXT WORD... : rank 0 runs in the directory `here`, rank 1 in `there`.
apart() {
    local text=$1 status=0
    shift
    timeout -k 5 1500 $mpirun -n 1 -wdir "$directory/here" "$weft" train ../run.yaml "$@" : \
        -n 1 -wdir "$directory/there" "$weft" train ../run.yaml "$@" >out 2>err </dev/null || status=$?
    refused 65 "the ranks do not run the same: rank 1: $text" "$status" "$*"
}
apart "the fingerprint of data is " data.sources=[text.txt]
has said ", the file text.txt is "
# Held-out text and tasks: they change no weight, but select which checkpoint is kept.
apart "the validation file text.txt is " data.sources=[../text.txt] data.validation=[text.txt]
grep -q "fingerprint of data" said && fail "held-out text: $(cat said)"
printf '{"goal": "a", "sol1": "b", "sol2": "c", "label": 0}\n' >here/piqa.jsonl
printf '{"goal": "a", "sol1": "b", "sol2": "d", "label": 0}\n' >there/piqa.jsonl
apart "the task piqa is " data.sources=[../text.txt] evaluation.tasks=[piqa.jsonl]
# A file that only one rank has.
echo more >here/text2.txt
apart "the fingerprint of data is " 'data.sources=["text*.txt"]'
has said ", the file text2.txt is missing (rank 0: "
rm here/text2.txt
for where in here there; do "$weft" tokenizer train $where/text.txt -o $where/tokens.json -n 270 >/dev/null 2>&1; done
apart "the fingerprint of data is " data.tokenizer=tokens.json
grep -q "the fingerprint of tokenizer is " said || fail "another tokenizer: $(cat said)"

# Initial weights, and a checkpoint to resume from, that differ between ranks.
for where in here there; do
    (cd $where && "$weft" train ../run.yaml run.dir=start run.seed=$([ $where = here ] && echo 1 || echo 2) data.sources=[../text.txt] \
        train.tokens_per_step=32 >/dev/null 2>&1) || fail "a model to start from"
done
apart "the fingerprint of model.init is " model.init=start data.sources=[../text.txt] train.tokens_per_step=64
for where in here there; do cp -r $where/start $where/run; done
apart "the checksum of the checkpoint's manifest is " run.dir=run data.sources=[../text.txt] train.tokens_per_step=32 \
    train.microbatch=1 train.steps=3 run.allow_changes=[train.steps]

# Separate run directories: reported before the first step, and the save fails.
status=0
timeout -k 5 1500 $mpirun -n 1 -wdir "$directory/here" "$weft" train ../run.yaml run.dir=own train.tokens_per_step=64 : \
    -n 1 -wdir "$directory/there" "$weft" train ../run.yaml run.dir=own train.tokens_per_step=64 >out 2>err </dev/null || status=$?
[ "$status" -eq 73 ] || fail "two run directories: exit status $status: $(grep weft: err)"
[ "$(grep -n '^warning: rank 1 does not see the run directory of rank 0 as own: ' err | cut -d: -f1)" -lt "$(grep -n '^step: *1 ' err | cut -d: -f1)" ] ||
    fail "two run directories: $(grep -E 'warning|step:' err)"

# Different processors: one dtype for all, the run continues, and it is reported once. Selects two kinds by name, whatever this processor is.
status=0
$mpirun -n 1 "$weft" train run.yaml train.compute=auto run.device=reference : -n 2 "$weft" train run.yaml train.compute=auto run.device=portable run.threads=2 \
    >out 2>err </dev/null || status=$?
[ "$status" -eq 0 ] || fail "unlike processors: exit status $status: $(grep weft: err)"
[ "$(grep -c '^kernels of the ranks differ.*reference on rank 0, portable on ranks 1-2$' err)" -eq 1 ] || fail "different processors are not reported once: $(grep kernels err)"
grep -q '  compute: fp32  # auto: ' run/config.yaml || fail "compute: auto is not resolved: $(grep compute: run/config.yaml)"
# The same for processors that differ in bf16, if this one has it (tests/train/test_agree.c has all mixtures).
if grep -qw avx512_bf16 /proc/cpuinfo; then
    status=0
    $mpirun -n 2 "$weft" train run.yaml run.dir=mixed train.compute=auto run.device=avx512_bf16 : \
        -n 1 "$weft" train run.yaml run.dir=mixed train.compute=auto run.device=avx2 >out 2>err </dev/null || status=$?
    [ "$status" -eq 0 ] || fail "bf16 on two ranks of three: exit status $status: $(grep weft: err)"
    [ "$(grep -c '^train.compute: auto is fp32 on all ranks: 1 of 3 processors' err)" -eq 1 ] || fail "compute: auto: $(grep auto err)"
fi
# A resumed run keeps the dtype that all ranks had.
status=0
$mpirun -n 3 "$weft" train run.yaml train.compute=auto train.steps=3 lr_schedule.total_steps=2 >out 2>err </dev/null || status=$?
[ "$status" -eq 0 ] && grep -q '  compute: fp32  # what the run has had so far' run/config.yaml || fail "the run's compute is not kept: $(tail -3 err)"
has run/journal.jsonl "the kernels was "

# Different processors are refused where ranks hold replicas, since each rank updates its own.
rm -rf run
for copies in "mesh.dp_replicate=3 mesh.dp_shard=1" "mesh.tp=3 mesh.dp_shard=1 model.num_attention_heads=3 model.num_key_value_heads=3 model.hidden_size=24 model.intermediate_size=24 train.context=24"; do
    status=0
    # shellcheck disable=SC2086
    timeout -k 5 1500 $mpirun -n 2 "$weft" train run.yaml run.dir="$directory/parts" run.device=portable $copies : \
        -n 1 "$weft" train run.yaml run.dir="$directory/parts" run.device=reference $copies >out 2>err </dev/null || status=$?
    refused 78 "rank 2: the device is reference, rounding" "$status" "kernels of copies, $copies"
done
# With a pipeline, replicas are the ranks of one stage: 0-1 and 2-3. A tied embedding is replicated on the first and the last stage.
# stages STATUS TEXT DEVICE-OF-RANK-0..3 WORD...: runs with these devices; ends with STATUS and TEXT.
stages() {
    local wanted=$1 text=$2 status=0 launch=() rank
    local device=("${@:3:4}") words=(run.dir="$directory/stages" mesh.pp=2 mesh.dp_replicate=2 mesh.dp_shard=1 pipeline.microbatches=2 train.tokens_per_step=128 "${@:7}")
    for rank in 0 1 2 3; do launch+=(: -n 1 "$weft" train run.yaml run.device="${device[rank]}" "${words[@]}"); done
    # shellcheck disable=SC2086
    timeout -k 5 1500 $mpirun "${launch[@]:1}" >out 2>err </dev/null || status=$?
    [ "$status" -eq "$wanted" ] || fail "kernels ${device[*]}: exit status $status, expected $wanted: $(grep weft: err)"
    has err "$text"
    [ "$status" -eq 0 ] || [ ! -e stages/metrics.jsonl ] || fail "kernels ${device[*]}: something was trained"
    rm -rf stages
}
stages 0 "kernels of the ranks differ, and so do last bits: portable on ranks 0-1, reference on ranks 2-3" portable portable reference reference
stages 78 "ranks 1, 3: the device is reference, rounding" portable reference portable reference
stages 78 "rank 3: the device is reference, rounding" portable portable portable reference
stages 78 "ranks 2-3: the device is reference, rounding" portable portable reference reference model.tie_word_embeddings=true
conclude "no launch of ranks that differ continues without a message"
