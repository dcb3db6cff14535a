#!/bin/bash
# Races of GPU kernels between lanes, threads and blocks (races.cpp): runs the tests of ops with kernels in which every memory access is
# checked, and proves that each planted race is found.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/plugin.sh"
[ -z "${SIM_SANITIZE:-}" ] || { echo "a sanitizer is in this build already"; exit 77; }
export TEST_TOKENS=17

for file in "$source"/*.cu; do
    compile "$file" "$(basename "$file").o" -fsanitize=thread -g1 || fail "$file does not compile"
done
link races.so || fail "the plugin does not link"

# runs PLUGIN TEST [PROGRAM]: runs a test; on a race, the simulation prints a line and the place in the source.
runs() { WEFT_CUDA=$PWD/$1 "$tests/${3:-test_ops}" cuda "$2" >log 2>&1; }
said() { grep -m1 'a race' log && bash -c "$(sed -n 's/^ *\(addr2line .*\)/\1/p' log) -i -p" || tail -5 log; }
# race NAME FILE SED TEST...: with FILE changed by SED, each of these tests must find a race.
race() {
    local test
    mine || return 0
    build "${@:1:3}" -fsanitize=thread -g1 || return
    for test in "${@:4}"; do
        ! runs mutant.so "$test" && grep -q 'cuda_sim: a race' log || fail "$1: $test sees no race: $(tail -5 log)"
    done
}

# All ops that run kernels. Ops whose threads are independent run several blocks here; the races planted between blocks prove it.
for check in embed bias elements norm conv scan mamba gated_norm qk_norm rope queries_scale latent attention decode activation softcap scale route grouped_route gemm_op grouped_gemm \
    experts_rows cross_entropy loss_sum updates muon stats sum_partials fixed count_nonfinite; do
    runs races.so test_$check || fail "test_$check: $(said)"
done
runs races.so test_loss test_slices || fail "records of losses: $(said)"
# The tensors of these tests are in memory that a GPU can access, so that the tests can run on one. A tensor elsewhere must be found.
build "a tensor of the host's" elements.cu 's/\(T \*\)o->y, o->bias\)/(T *)o->y, (const float *)__builtin_calloc((size_t)o->n, 4))/' -fsanitize=thread -g1 &&
    { ! runs mutant.so test_bias && grep -q 'which a GPU does not reach' log || fail "a tensor of the host's is not seen: $(tail -5 log)"; }
race "a barrier less in sums over tokens" columns.cuh@norms.cu '/void fold_rows/{n;d}' test_bias
race "a barrier less behind a tile" attention.cu '/weight, v \+ j \* pitch/{n;n;d}' test_attention
race "a barrier less in gradients of keys" attention.cu '/dk\.add\(a, at, slope/{n;n;d}' test_attention
race "a barrier less before a step of keys" attention_mma.cu '0,/copies_wait\(\);/{/copies_wait\(\);/{n;d}}' test_attention
race "a barrier less before a step of four warps" attention_wgmma.cu '/copies_shown\(\);/{n;d}' test_attention
race "a step fetched over the one that is read" attention_mma.cu 's/slots \+ \(step \+ 1\) % 2/slots + step % 2/' test_attention
race "a barrier less behind tiles of experts" experts.cu '0,/sums\.add\(left, right/{/sums\.add\(left, right/{n;d}}' test_grouped_gemm
race "a barrier less before tiles of experts' weights" experts.cu '/void .*grouped_gemm_wgrad_kernel/,/^}/{/load_tile\(b/{n;d}}' test_grouped_gemm
race "a barrier less in sums over rows of experts" columns.cuh@experts.cu '/void fold_rows/{n;d}' test_experts_rows
race "assignments that write each other's sums" experts.cu 's/dweights\[j\] \+= \(float\)sum/dweights[0] += (float)sum/' test_experts_rows
race "assignments that write each other's weights" experts.cu '/void .*permute_dweights_kernel/,/^}/s/dweights\[j\] = /dweights[0] = /' test_experts_rows
race "chunks that are found by several blocks" attention.cu '/void chunk_firsts_kernel/,/^}/s/element\(\)/threadIdx.x/' test_attention
race "a barrier less in sums over chunks" columns.cuh@scans.cu '/void fold_rows/{n;d}' test_conv
race "chunks that write each other's gradients" scans.cu 's/done >= begin\)/done + 1 >= begin \&\& done >= 0)/' test_conv
race "runs of the same documents" scans.cuh@scans.cu 's/return \{beginning\(first_key, tokens, first\), /return {0, /' test_scan
race "a barrier less in sums over tokens' gates" columns.cuh@mamba.cu '/void fold_rows/{n;d}' test_gated_norm
race "rows of a head that write each other's partial sums" mamba.cu 's/row - r\.head \* s\.head_dim\) \* NUMBERS/0)/' test_mamba
race "columns that write each other's sums" mamba.cu 's/\* step \+ n;/* step;/' test_mamba
race "runs that write each other's starts" mamba.cu 's/if \(docs\.first == 0\) give_lanes/give_lanes/' test_mamba
race "blocks that have the same channels" scans.cu 's/\(int64_t\)blockIdx.y \* WARP \+ threadIdx.x/threadIdx.x/' test_scan
race "a barrier less between rows and their columns" norms.cu '/write_gradient<R, T>\(m, here, grad/{n;n;d}' test_norm
race "a barrier less before a row's loss" loss.cu '/made\[i\] = r;/{n;n;d}' test_cross_entropy
race "counting without atomics" gradients.cu 's/atomicAdd\(\(unsigned long long \*\)&refused->count, 1ull\)/refused->count++/' test_fixed
race "counting non-finite values without atomics" gradients.cu 's/atomicAdd\(\(unsigned long long \*\)count, 1ull\)/*count += 1/' test_count_nonfinite
race "blocks that have the same elements" packs.cuh@elements.cu 's/number = element\(\)/number = threadIdx.x/' test_rope test_queries_scale test_latent test_activation test_scale
race "blocks that have the same elements" elements.cu 's/element\(\) \* N/(int64_t)threadIdx.x * N/' test_elements test_activation
race "blocks that have the same parameters" optimizers.cu 's/element\(\) \* N/(int64_t)threadIdx.x * N/' test_updates test_muon
race "blocks that have the same parts" gradients.cu 's/element\(\) \* (FOUR|TWO)/(int64_t)threadIdx.x * \1/' test_sum_partials test_fixed
race "blocks that all have a row of the table" embedding.cu 's/ \|\| occurs\(o\.ids, first, id\)//' test_embed
race "a barrier less behind votes for ids" embedding.cu '/votes\[.*\] = vote;/,/__syncthreads/{/__syncthreads/d}' test_embed
race "votes over those that are read" embedding.cu 's/buffer \^= WARP/buffer ^= 0/' test_embed
race "a largest number without atomics" gradients.cu 's/atomicMax\(\(unsigned long long \*\)&out->max, .*/out->max = (double)most;/' test_stats
race "warps that add to limbs without atomics" gradients.cu 's/atomicAdd\(.*&limbs\[\(bit >> 5\) \+ i\],/limbs[(bit >> 5) + i] += (/' test_stats
race "a barrier less in sums of a block" kernels.cuh@gradients.cu '0,/WARP\] = x;/{/WARP\] = x;/{n;d}}' test_loss_sum
race "blocks that write for each other" norms.cu 's/if \(lane\(\) == 0\) o\.rstd\[row\] =/o.rstd[0] =/' test_norm
race "tokens that write each other's sums" norms.cu 's/sums\[2 \* number\] = sum;/sums[0] = sum;/' test_qk_norm
conclude "every race${PART:+ of part $PART} is found"
