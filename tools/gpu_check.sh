#!/bin/bash
# Checks weft on a new GPU machine, in numbered steps, each with its own time limit. A failed step does not stop the rest. Each step
# writes a line of JSON with its measurements to OUT/results.jsonl, and its output to OUT/NN-NAME.log. The exit status is the number of
# failed steps.
#   tools/gpu_check.sh [OUT [PART]]     PART: right (correctness), fast (rates), all (the default); BUILD: the build directory (build), with
#                                       weft-cuda.so in it; WITHIN: seconds for all steps, after which no step begins
#   tools/gpu_check.sh pack DIR         writes script, programs, plugins and libraries to DIR, for a machine that has only a driver and
#   tools/gpu_check.sh pack FILE.tar.gz CUDA's libraries (those of Python packages will do). Run DIR/tools/gpu_check.sh there.
# A dry run on a CPU: all steps but those of compute-sanitizer. Its figures mean nothing:
#   TEST_BRIEF=1 WEFT_SIM_DEVICES=2 WEFT_CUDA=$PWD/build/weft-cuda-sim.so tools/gpu_check.sh
# Needs the programs in BUILD, this tree, and awk.
set -u
here=$(dirname "$(realpath "$0")")/..
root=$(realpath "$here")
programs="weft golden test_ops test_slices test_queue test_engine bench_attention bench_ops bench_train"
plugins="weft-cuda.so weft-cuda-sim.so" # and the simulation, for a dry run on that machine

# ---- packing ----

# Libraries that are not packed: every Linux machine has them, or they come with CUDA.
elsewhere='^(linux-vdso|ld-linux-x86-64|libc|libm|libdl|librt|libpthread|libresolv|libutil|libcuda|libcudart|libcublas|libcublasLt|libnccl)\.so'
# Open MPI plugins for networks, batch systems and OpenSHMEM. They are not used here, and depend on a dozen more libraries.
unused='_(ucx|ofi|openib|psm|psm2|monitoring|flux|slurm|gridengine|jsm)\.so$|/mca_(scoll|spml|sshmem|memheap|atomic)_'

fail() { echo "gpu_check: $*" >&2; exit 69; }
# libraries_of FILE...: prints the paths of the libraries that the files need, each once.
libraries_of() { ldd "$@" 2>/dev/null | awk '$2 == "=>" && $3 ~ /^\// { print $3 }' | sort -u; }

# Packs Open MPI in its installed layout, below another prefix, which OPAL_PREFIX names at run time.
pack_mpi() {
    local to=$1 prefix parts part
    prefix=$(ompi_info --path prefix 2>/dev/null | awk '{ print $NF; exit }')
    parts=$(ompi_info --path pkglibdir 2>/dev/null | awk '{ print $NF; exit }')
    [ -n "$prefix" ] && [ -d "$parts" ] || { echo "Open MPI is not here: steps of several ranks are left out of the pack"; return; }
    mkdir -p "$to/bin" "$to/${parts#"$prefix"/}" "$to/share/openmpi"
    for part in mpirun orted; do cp -L "$(command -v $part)" "$to/bin/$part"; done
    for part in "$parts"/mca_*.so; do
        [[ $part =~ $unused ]] || cp -L "$part" "$to/${parts#"$prefix"/}/"
    done
    cp "$prefix"/share/openmpi/*.txt "$to/share/openmpi/"
}

pack() {
    local to=$1 file name build=${BUILD:-$root/build}
    [ ! -e "$to" ] || [ -z "$(ls -A "$to")" ] || fail "$to is not empty"
    mkdir -p "$to/build" "$to/lib" "$to/tools" "$to/bench" "$to/tests" || fail "cannot make $to"
    to=$(realpath "$to")
    for name in $programs $plugins; do
        if [ ! -e "$build/$name" ]; then
            [[ $name = *.so ]] || fail "there is no $build/$name"
            echo "there is no $build/$name (make CMAKE_FLAGS=-DWEFT_CUDA=on): the pack does without"
            continue
        fi
        cp "$build/$name" "$to/build/"
        strip --strip-unneeded "$to/build/$name"
    done
    cp "$root/tools/gpu_check.sh" "$to/tools/"
    cp "$root/bench/peer_torch.py" "$to/bench/"
    cp -r "$root/tests/golden" "$to/tests/"
    pack_mpi "$to/mpi"
    # shellcheck disable=SC2046
    for file in $(libraries_of "$to"/build/* $(find "$to/mpi" -type f \( -name '*.so' -o -path '*/bin/*' \) 2>/dev/null)); do
        [[ $(basename "$file") =~ $elsewhere ]] || cp -L "$file" "$to/lib/"
    done
    objdump -p "$to"/build/weft-cuda*.so | awk '$1 == "NEEDED" && $2 ~ /^libcu/ { print $2 }' >"$to/lib/of-cuda"
    find "$to" -type f -exec objdump -T {} + 2>/dev/null | grep -o 'GLIBC_2\.[0-9]*' | sort -Vu | tail -1 | tr _ ' ' >"$to/lib/of-libc"
    echo "$to: $(du -sm "$to" | cut -f1) MiB, for $(cat "$to/lib/of-libc") or newer, and $(tr '\n' ' ' <"$to/lib/of-cuda")"
}

if [ "${1:-}" = pack ]; then
    case ${2:-} in
    "") fail "pack what? tools/gpu_check.sh pack DIR|FILE.tar.gz" ;;
    *.tar.gz)
        room=$(mktemp -d)
        trap 'rm -rf "$room"' EXIT
        pack "$room/gpu_check" && tar -czf "$2" -C "$room" gpu_check && echo "$2: $(du -sm "$2" | cut -f1) MiB"
        ;;
    *) pack "$2" ;;
    esac
    exit
fi

# ---- unpacked ----

# found NAME: prints the directory of a CUDA library, in an installation or in Python packages; prints nothing if the loader finds it anyway.
found() {
    local directory
    ! ldconfig -p 2>/dev/null | grep -q "[[:blank:]]$1 " || return 0
    for directory in "${VIRTUAL_ENV:-/nowhere}"/lib/python3*/site-packages/nvidia/*/lib \
        /usr/local/cuda*/lib64 /usr/local/cuda*/targets/*/lib /usr/local/cuda*/lib \
        $( (python3 -c 'import sys; print("\n".join(sys.path))' || true) 2>/dev/null | sed -n 's|^\(/.*-packages\)$|\1/nvidia/*/lib|p') \
        /usr/lib/python3*/*-packages/nvidia/*/lib /usr/local/lib/python3*/*-packages/nvidia/*/lib \
        /opt/*/lib/python3*/site-packages/nvidia/*/lib; do
        [ ! -e "$directory/$1" ] || { echo "$directory"; return; }
    done
    timeout 60 find / -xdev -name "$1" -printf '%h\n' -quit 2>/dev/null
}

own_libraries=${LD_LIBRARY_PATH:-}
mpi="mpirun"
if [ -e "$root/lib/of-cuda" ]; then
    libraries=$root/lib
    wanted=$(cut -d' ' -f2 "$root/lib/of-libc")
    libc=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
    [ "$(printf '%s\n' "$wanted" "${libc:-0}" | sort -V | head -1)" = "$wanted" ] || fail "this machine's libc is ${libc:-not glibc}; the pack is for $wanted or newer"
    for name in $(cat "$root/lib/of-cuda") libnccl.so.2; do
        directory=$(found "$name")
        [ -z "$directory" ] || libraries=$libraries:$directory
    done
    export LD_LIBRARY_PATH=$libraries${own_libraries:+:$own_libraries}
    if [ -d "$root/mpi" ]; then
        mpi=$root/mpi/bin/mpirun
        export OPAL_PREFIX=$root/mpi OMPI_MCA_plm=isolated PMIX_MCA_pcompress_base_silence_warning=1 # looks for neither ssh nor PMIx's compression plugin
    fi
fi

# ---- steps ----

cd "$root" || exit 1
build=$(realpath "${BUILD:-build}")
out=${1:-gpu_check}
part=${2:-all}
case $part in right | fast | all) ;; *) fail "PART is \"$part\"; there are right, fast, all" ;; esac
mkdir -p "$out" || fail "cannot make $out"
out=$(realpath "$out")
number=0
failed=0
: >"$out/results.jsonl"

tell() { printf '{"step": %d, "name": "%s", %s}\n' "$number" "$1" "$2" | tee -a "$out/results.jsonl"; }
# skip NAME WHY
skip() {
    number=$((number + 1))
    tell "$1" "\"skipped\": \"$2\""
}
# step SECONDS NAME COMMAND...: runs a step. If the last line of its output, or the whole output, is a JSON object, that is its result.
step() {
    local limit=$1 name=$2 log status=0 begun=$SECONDS result left=$((${WITHIN:-100000} - SECONDS))
    shift 2
    [ $left -gt 0 ] || { skip "$name" "no time is left of WITHIN=$WITHIN"; return; }
    [ "$limit" -lt $left ] || limit=$left
    number=$((number + 1))
    log=$out/$(printf '%02d' $number)-$name.log
    timeout -k 5 "$limit" "$@" >"$log" 2>&1 || status=$?
    [ "$status" -eq 0 ] || failed=$((failed + 1))
    if [ "$(head -n 1 "$log")" = "{" ]; then result=$(tr -s '\n ' ' ' <"$log"); else result=$(grep '^{.*}$' "$log" | tail -n 1); fi
    tell "$name" "\"status\": $status, \"seconds\": $((SECONDS - begun)), \"limit\": $limit${result:+, \"result\": $result}"
}

awk 'BEGIN { srand(7); split("the light and dark of day night sea land was made good very many seed tree fruit", w, " ")
    for (p = 0; p < 300; p++) { for (i = 0; i < 40; i++) printf "%s ", w[int(rand() * 16) + 1]; printf "\n\n" } }' >"$out/text.txt"
head -c 3000 "$out/text.txt" >"$out/short.txt"
brief=${TEST_BRIEF:-}
steps=20
[ -z "$brief" ] || steps=4
cat >"$out/run.yaml" <<END
model: {hidden_size: 32, head_dim: 64, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [{path: $out/text.txt, split: paragraphs}], cache_dir: $out/cache, document_mask: true}
train: {steps: $steps, context: 32, microbatch: 2, tokens_per_step: 128}
optimizer: {lr: 3e-3}
checkpoint: {every: $((steps / 2))}
metrics: {log_freq: 1, tensorboard: false}
END

# Functions for the steps, which run in separate shells.
go_on() { local dir=$1; shift; "$build/weft" train "$out/run.yaml" run.dir="$out/$dir" "$@"; }
train() { go_on "$@" run.overwrite=true; }
ranks() {
    local dir=$1 words= status=0
    shift
    ! "$mpi" --version 2>/dev/null | grep -q 'Open MPI' || words="--allow-run-as-root --oversubscribe --bind-to none"
    export OMPI_MCA_orte_tmpdir_base # a separate session directory: a job that ends removes a shared one under the others
    OMPI_MCA_orte_tmpdir_base=$(mktemp -d)
    # shellcheck disable=SC2086
    "$mpi" $words -n 2 "$build/weft" train "$out/run.yaml" run.dir="$out/$dir" run.overwrite=true run.device=cuda "$@" || status=$?
    rm -rf "$OMPI_MCA_orte_tmpdir_base"
    return $status
}
curve() { sed -n 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' "$out/$1/metrics.jsonl"; }
same() { [ "$(curve "$1" | wc -l)" -eq $steps ] && diff <(curve "$1") <(curve "$2"); }
# near A B LIMIT: true if two losses differ by less than LIMIT, relatively.
near() {
    [ -n "$(curve "$1")" ] && paste -d' ' <(curve "$1") <(curve "$2") |
        awk -v limit="$3" '{ d = $2 / $5 - 1; print; if (d > limit || d < -limit) bad = 1 } END { exit bad }'
}
value() { sed -n "s/.*\"$1\": \([^,}]*\).*/\1/p"; } # MEMBER
# evaluated: prints the loss of a checkpoint on a text, on the GPU and on the CPU.
evaluated() {
    local kind
    for kind in cuda cpu; do
        "$build/weft" eval "$out/gpu-fp32" "$out/short.txt" --context 32 --device $kind --compute fp32 --json | value loss
    done | awk '{ print; loss[NR] = $1 } END { exit !(NR == 2 && loss[1] > 0 && loss[1] / loss[2] < 1 + 1e-5 && loss[1] / loss[2] > 1 - 1e-5) }'
}
# unchanged: checks that pools are allocated once, as planned, and that nothing else grows: as much memory is free after the last step as
# after the first.
unchanged() {
    local made journal=$out/gpu-bf16/journal.jsonl
    grep '"memory"' "$journal"
    [ "$(value pools_took_bytes <"$journal" | head -1)" = "$(value pool_pieces_bytes <"$journal" | head -1)" ] && ! grep -q fell_bytes "$journal" || return
    made=$("$build/bench_train" --size tiny --context 32 --step-tokens 128 --microbatch 2 --steps $((steps * 2)) --compute bf16 --device cuda) || return
    echo "$made"
    [ -n "$(value device_free_first <<<"$made")" ] && [ "$(value device_free_first <<<"$made")" = "$(value device_free_last <<<"$made")" ]
}
export build out mpi steps
export -f train go_on ranks curve same near value evaluated unchanged

[ ! -e "$root/lib/of-cuda" ] || tell libraries "\"path\": \"$LD_LIBRARY_PATH\""
step 120 doctor "$build/weft" doctor --json ${brief:+--seconds 0.01} # driver, libraries, memory, peaks, copies
! command -v nvidia-smi >/dev/null || step 30 smi nvidia-smi -q
# On a real GPU the hardware decides the order of execution: no test can draw the orders that expose mistakes.
grep -q 'simulated GPU' "$out"/*-doctor.log || export TEST_REAL=1

right() {
    local golden type limit tool
    # Compares each op with the CPU's reference, on tensors in pinned memory, which both can access.
    step 600 ops "$build/test_ops" cuda ${brief:+test_rope}
    if [ -z "$brief" ]; then
        step 600 slices "$build/test_slices" cuda
        step 600 engine env TEST_KIND=cuda "$build/test_engine"
    else
        skip slices "a dry run: test_cuda_slices is a test of its own"
        skip engine "a dry run: test_cuda_engine is a test of its own"
    fi
    step 300 queue env TEST_KIND=cuda "$build/test_queue"
    mapfile -t golden < <(dirname tests/golden/*/config.json)
    [ -z "$brief" ] || golden=(tests/golden/tied-odd)
    step 300 golden env TEST_KIND=cuda "$build/golden" "${golden[@]}"
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
    step 120 resume bash -c "train half run.device=cuda train.compute=bf16 train.steps=$((steps / 2)) lr_schedule.total_steps=$steps &&
        go_on half run.device=cuda train.compute=bf16 && same half gpu-bf16"
    step 120 checked env WEFT_CUDA_CHECK=1 bash -c "train checked run.device=cuda train.compute=bf16 && same checked gpu-bf16"
    step 120 profile bash -c "train profile run.device=cuda train.compute=bf16 metrics.profile=true && same profile gpu-bf16"
    step 120 trace bash -c "train trace run.device=cuda train.compute=bf16 metrics.trace=2-3 && same trace gpu-bf16 && grep -c '\"event\": \"traced\"' $out/trace/journal.jsonl"
    step 120 exact bash -c "train exact run.device=cuda numerics.mode=exact train.compute=fp32 && train exact1 run.device=cuda numerics.mode=exact train.compute=fp32 train.split_backward=true && same exact1 exact"
    step 120 memory bash -c unchanged
    step 120 eval bash -c evaluated
    step 120 generate "$build/weft" generate "$out/gpu-bf16" --device cuda --prompt light --tokens 20 --temperature 0
    if command -v "$mpi" >/dev/null; then
        # Over NCCL where there are two GPUs and NCCL is installed, else staged through the host; the log reports which.
        step 300 relay env WEFT_NCCL=none bash -c "ranks relay mesh.dp_shard=2 train.compute=bf16"
        step 300 wires bash -c "ranks wires mesh.dp_shard=2 train.compute=bf16 && same wires relay"
        step 300 stages bash -c "ranks stages mesh.pp=2 train.compute=bf16 && same stages gpu-bf16"
    else
        skip relay "mpirun is not here"
    fi
    if command -v compute-sanitizer >/dev/null; then
        for tool in memcheck racecheck initcheck; do
            step 600 "$tool" compute-sanitizer --tool $tool --error-exitcode 9 "$build/weft" train "$out/run.yaml" \
                run.dir="$out/$tool" run.overwrite=true run.device=cuda train.steps=2 train.compute=bf16
        done
    fi
}

# Runs the Python interpreter that has PyTorch for GPUs, with its own libraries.
peer() { LD_LIBRARY_PATH=$own_libraries "${PYTHON:-python3}" "$@"; }
export own_libraries
export -f peer

fast() {
    local size tokens sizes=(125M 1B) words=(--context 4096 --step-tokens 131072 --steps 4)
    # TFLOP/s of attention, also relative to cuDNN's published figure; GB/s and TFLOP/s of ops.
    if [ -z "$brief" ]; then
        step 300 attention "$build/bench_attention" cuda
        step 300 rates "$build/bench_ops" cuda 0 bf16 16384
    else
        sizes=(tiny) words=(--context 32 --step-tokens 64 --steps 1)
        step 300 attention "$build/bench_attention" cuda 16 8
        step 300 rates "$build/bench_ops" cuda 0 bf16 64 4
    fi
    # A training step, as a fraction of the matrix-product peak measured here and of the data sheet's; then PyTorch's on the same GPU.
    for size in "${sizes[@]}"; do
        step 300 "train-$size" "$build/bench_train" --size "$size" "${words[@]}" --compute bf16 --device cuda --profile
        if peer -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
            tokens=4
            [ "$size" != 1B ] || tokens=1
            step 300 "torch-$size" bash -c "peer bench/peer_torch.py --device cuda --size $size ${words[*]} --dtype bf16 --compile --microbatch $tokens"
            step 300 "torch-autocast-$size" bash -c "peer bench/peer_torch.py --device cuda --size $size ${words[*]} --dtype autocast --compile --microbatch $tokens"
        else
            skip "torch-$size" "${PYTHON:-python3} has no PyTorch with a GPU here"
        fi
    done
}

[ "$part" = fast ] || right
[ "$part" = right ] || fast
echo "$failed of $number steps failed; results in $out"
exit $((failed > 100 ? 100 : failed))
