#!/bin/bash
# The first hour on a GPU: numbered steps with limits of their own; one that fails does not stop the rest. A line of JSON for each
# goes to OUT/results.jsonl, what it printed to OUT/NN-NAME.log; the status is the number of steps that failed.
#   tools/gpu_check.sh [OUT]      BUILD: the build to take (build), with weft-cuda.so in it
# A dry run, on a CPU, all steps but those of compute-sanitizer:
#   TEST_BRIEF=1 STEPS=2 WEFT_SIM_DEVICES=2 WEFT_CUDA=$PWD/build/weft-cuda-sim.so tools/gpu_check.sh
# Needs what is in BUILD, this tree, and awk.
set -u
cd "$(dirname "$0")/.." || exit 1
build=$(realpath "${BUILD:-build}")
out=${1:-gpu_check}
mkdir -p "$out"
out=$(realpath "$out")
number=0
failed=0
: >"$out/results.jsonl"

# step SECONDS NAME COMMAND...
step() {
    local limit=$1 name=$2 log status=0 begun=$SECONDS
    shift 2
    number=$((number + 1))
    log=$out/$(printf '%02d' $number)-$name.log
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    printf '{"step": %d, "name": "%s", "status": %d, "seconds": %d, "limit": %d}\n' \
        $number "$name" $status $((SECONDS - begun)) "$limit" | tee -a "$out/results.jsonl"
}

awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { for (i = 0; i < 40; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >"$out/text.txt"
cat >"$out/run.yaml" <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [{path: $out/text.txt, split: paragraphs}], cache_dir: $out/cache, document_mask: true}
train: {steps: ${STEPS:-20}, context: 32, microbatch: 2, tokens_per_step: 128}
optimizer: {lr: 3e-3}
checkpoint: {every: 10}
metrics: {log_freq: 1, tensorboard: false}
END

# For steps, which run in shells of their own.
train() { local dir=$1; shift; "$build/weft" train "$out/run.yaml" run.dir="$out/$dir" run.overwrite=true "$@"; }
curve() { sed -n 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' "$out/$1/metrics.jsonl"; }
same() { [ -n "$(curve "$1")" ] && diff <(curve "$1") <(curve "$2"); }
# near A B LIMIT: losses that differ by less than the limit, as a share.
near() {
    [ -n "$(curve "$1")" ] && paste -d' ' <(curve "$1") <(curve "$2") |
        awk -v limit="$3" '{ d = $2 / $5 - 1; print; if (d > limit || d < -limit) bad = 1 } END { exit bad }'
}
export build out
export -f train curve same near

step 60 doctor "$build/weft" doctor --json
# Orders of a GPU are its own: nobody draws those that show mistakes.
grep -q 'simulated GPU' "$out"/*-doctor.log || export TEST_REAL=1
mapfile -t golden < <(ls -d tests/golden/* | grep -v /gpt_oss$) # there are no kernels for its experts
[ -z "${TEST_BRIEF:-}" ] || golden=(tests/golden/{tied-odd,olmoe})
step 300 golden env TEST_KIND=cuda "$build/golden" "${golden[@]}"
step 300 queue env TEST_KIND=cuda "$build/test_queue"
step 600 engine env TEST_KIND=cuda "$build/test_engine"
for type in fp32 bf16; do
    limit=1e-4
    [ $type = fp32 ] || limit=2e-2
    step 120 "cpu-$type" bash -c "train cpu-$type run.device=cpu train.compute=$type"
    step 120 "gpu-$type" bash -c "train gpu-$type run.device=cuda train.compute=$type"
    step 60 "near-$type" bash -c "near gpu-$type cpu-$type $limit"
    step 120 "again-$type" bash -c "train again-$type run.device=cuda train.compute=$type && same again-$type gpu-$type"
    step 120 "recompute-$type" bash -c "train recompute-$type run.device=cuda train.compute=$type train.recompute=full && same recompute-$type gpu-$type"
    step 120 "split-$type" bash -c "train split-$type run.device=cuda train.compute=$type train.split_backward=true && same split-$type gpu-$type"
done
step 120 checked env WEFT_CUDA_CHECK=1 bash -c "train checked run.device=cuda train.compute=bf16 && same checked gpu-bf16"
step 120 profile bash -c "train profile run.device=cuda train.compute=bf16 metrics.profile=true && same profile gpu-bf16"
step 120 exact bash -c "train exact run.device=cuda train.numerics=exact train.compute=fp32 && train exact1 run.device=cuda train.numerics=exact train.compute=fp32 train.split_backward=true && same exact1 exact"
if command -v mpirun >/dev/null; then
    # Over wires where there are two GPUs and NCCL, else through the host, as the log says.
    step 300 relay bash -c "WEFT_NCCL=none train relay -n 2 mesh.dp_shard=2 run.device=cuda train.compute=bf16"
    step 300 wires bash -c "train wires -n 2 mesh.dp_shard=2 run.device=cuda train.compute=bf16 && same wires relay"
    step 300 stages bash -c "train stages -n 2 mesh.pp=2 run.device=cuda train.compute=bf16 && same stages gpu-bf16"
fi
attention=(cuda)
[ -z "${TEST_BRIEF:-}" ] || attention=(cuda 96 8)
step 300 attention "$build/bench_attention" "${attention[@]}" # TFLOP/s, and the share of cuDNN's
step 120 generate "$build/weft" generate "$out/gpu-bf16" --device cuda --prompt light --tokens 20 --temperature 0
if command -v compute-sanitizer >/dev/null; then
    for tool in memcheck racecheck initcheck; do
        step 600 "$tool" compute-sanitizer --tool $tool --error-exitcode 9 "$build/weft" train "$out/run.yaml" \
            run.dir="$out/$tool" run.overwrite=true run.device=cuda train.steps=2 train.compute=bf16
    done
fi
echo "$failed of $number steps failed; results in $out"
exit $((failed > 100 ? 100 : failed))
