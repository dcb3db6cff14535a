#!/bin/bash
# The GPU plugin built by nvcc, where that is installed: kernels and host code compile with NVIDIA's own headers, all symbols resolve, the
# interface version matches, and a machine without a GPU gets a clear message. tests/cuda_sim checks what the plugin computes.
. "$(dirname "$0")/../support/prelude.sh"
[ -n "${CUDA_PLUGIN:-}" ] || { echo "weft-cuda.so is not built here (cmake -DWEFT_CUDA=auto builds it where nvcc and cuBLASLt are)"; exit 77; }
export WEFT_CUDA=$CUDA_PLUGIN

# With or without a GPU, it loads and reports which CUDA it was built with.
expect 0 doctor --json --seconds 0.01
sed -n 's/.*"\(gpu_problem\|cuda_runtime\|cublaslt\)": \(.*[^,]\),*$/\1 \2/p' out >facts
awk '$1 == "cuda_runtime" { exit !($2 >= 12080) }' facts || fail "no runtime of CUDA 12.8 or newer in it: $(cat facts)"
awk '$1 == "cublaslt" { exit !($2 > 0) }' facts || fail "no cuBLASLt is linked to it: $(cat facts)"
! grep -q 'does not load\|is no plugin\|another build' facts || fail "it is not a plugin of this weft: $(cat facts)"

# It links only to libraries that come with CUDA; NCCL and the driver are opened when they are needed.
objdump -p "$CUDA_PLUGIN" | awk '$1 == "NEEDED" { print $2 }' | sort >needed
grep -q '^libcublasLt\.so' needed || fail "cuBLASLt is not among what it needs: $(cat needed)"
odd=$(grep -vE '^(libcublasLt|libc|libm|libdl|librt|libpthread|libgcc_s|libstdc\+\+|ld-linux-x86-64)\.so' needed)
[ -z "$odd" ] || fail "it needs unexpected libraries: $odd"

if grep -q '^gpu_problem ""' facts; then
    echo "there is a GPU here"
else
    seq 2000 >text.txt
    cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 40, num_hidden_layers: 2, num_attention_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 1, context: 32, microbatch: 2, tokens_per_step: 64}
END
    expect_alone 69 train run.yaml run.device=cuda run.dir=none
    has err "run.device: cuda: no GPU can be used: "
fi
conclude
