#!/bin/bash
# tools/gpu_check.sh without a GPU: packed, copied to another directory, and run there with the simulation, with an environment and a PATH
# that have only what its opening comment lists. Each step must pass; without a plugin, steps fail and are counted.
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
needs_simulated_gpu
is_open_mpi || { echo "weft was built with MPICH: what is packed takes Open MPI along"; exit 77; }
for tool in ompi_info objdump strip mpirun; do
    command -v $tool >/dev/null || { echo "$tool is not here: nothing can be packed"; exit 77; }
done

check=$WEFT_SOURCE_DIR/tools/gpu_check.sh
BUILD=$WEFT_BINARY_DIR "$check" pack pack >said || fail "pack: $(cat said)"
grep -q 'MiB, for GLIBC 2' said || fail "no size is reported: $(cat said)"
[ "$(tar -c pack | gzip -1 | wc -c)" -lt $((64 << 20)) ] || fail "more than 64 MiB when packed: $(cat said)"

mkdir tools a-place && mv pack/* a-place
for tool in bash env dirname realpath awk sed grep head tail cut sort ls cat paste diff mkdir mktemp rm tee timeout wc getconf tr find uname; do
    ln -s "$(type -P $tool)" tools/$tool # not a function of the prelude
done
# bare WORD...: runs a command as on a bare machine.
bare() { env -i PATH="$directory/tools" TEST_BRIEF=1 WEFT_SIM_DEVICES=2 "$@"; }

# All libraries are in the pack except those of the C library.
bare LD_LIBRARY_PATH="$directory/a-place/lib" "$(command -v ldd)" a-place/build/{weft,golden,test_ops,bench_train,weft-cuda-sim.so} a-place/mpi/bin/* |
    awk '$2 == "=>" && $3 !~ /a-place\/lib/' | grep -vE '^[[:space:]]*(libc|libm|libdl|librt|libpthread|libresolv|libutil)\.so' >foreign
[ ! -s foreign ] || fail "libraries of this machine are used: $(cat foreign)"

cd / && bare WEFT_CUDA="$directory/a-place/build/weft-cuda-sim.so" "$directory/a-place/tools/gpu_check.sh" "$directory/out" >"$directory/lines" 2>&1 ||
    fail "steps of the dry run failed: $(grep -v '"status": 0' "$directory/lines"; tail -5 "$directory"/out/*.log)"
cd "$directory" || exit 1
[ "$(grep -c '"status": 0,' out/results.jsonl)" -ge 28 ] || fail "too few steps: $(cat out/results.jsonl)"
[ "$(sed -n 's/.*"name": "\([^"]*\)", "skipped".*/\1/p' out/results.jsonl | tr '\n' ' ')" = "slices engine torch-tiny " ] ||
    fail "other steps than those were skipped: $(grep skipped out/results.jsonl)"
grep -q '"name": "doctor".*"peak_bf16_flops": [1-9]' out/results.jsonl || fail "the doctor's figures are not in the results"
grep -q '"name": "train-tiny".*"share_of_peak": ' out/results.jsonl || fail "the share of the peak is not in the results"
grep -q "through the memory of the host" out/*-relay.log || fail "the relay did not go through the host"
! grep -q "through the memory of the host" out/*-wires.log || fail "the wires went through the host"

# CUDA's libraries in a Python environment are found. Without a plugin, the steps that need it fail; steps after the time limit are reported.
needed=$(cat a-place/lib/of-cuda)
if [ -n "$needed" ]; then
    mkdir -p venv/lib/python3.9/site-packages/nvidia/cublas/lib
    : >"venv/lib/python3.9/site-packages/nvidia/cublas/lib/$needed"
fi
status=0
bare VIRTUAL_ENV="$directory/venv" WEFT_CUDA="$directory/none.so" a-place/tools/gpu_check.sh none fast >lines 2>&1 || status=$?
[ "$status" -eq 3 ] && grep -q '^3 of 5 steps failed' lines || fail "without a plugin, not three steps fail but $status: $(cat lines)"
[ -z "$needed" ] || grep -q "\"path\": \".*venv/lib/python3.9/site-packages/nvidia/cublas/lib" lines || fail "cuBLASLt of Python is not found: $(head -1 lines)"
bare WITHIN=0 a-place/tools/gpu_check.sh late fast >lines 2>&1 || fail "steps without time count as failed: $(cat lines)"
[ "$(grep -c 'no time is left of WITHIN=0' lines)" -eq 4 ] || fail "not each step says that no time is left: $(cat lines)"
conclude
