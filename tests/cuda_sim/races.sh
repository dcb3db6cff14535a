#!/bin/bash
# Races of GPU kernels, between lanes, threads and blocks (races.cpp): tests of ops over kernels whose accesses are all looked at; and each race
# that is planted is found.
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$0")/plugin.sh"
[ -z "${SIM_SANITIZE:-}" ] || { echo "a sanitizer is in this build already"; exit 77; }
export TEST_TOKENS=17

for file in "$source"/*.cu; do
    compile "$file" "$(basename "$file").o" -fsanitize=thread -g1 || fail "$file does not compile"
done
link races.so || fail "the plugin does not link"

# A race is a line of the simulation's, and where in the source.
runs() { WEFT_CUDA=$PWD/$1 "$tests/test_ops" cuda ${2:+"$2"} >log 2>&1; }
said() { grep -m1 'a race' log && bash -c "$(sed -n 's/^ *\(addr2line .*\)/\1/p' log) -i -p" || tail -5 log; }
race() {
    build "${@:1:3}" -fsanitize=thread -g1 || return
    ! runs mutant.so "$4" && grep -q 'cuda_sim: a race' log || fail "$1: no race is seen: $(tail -5 log)"
}

for check in bias norm qk_norm route gemm_op attention decode gemm_experts experts_rows loss_sum fixed; do
    runs races.so test_$check || fail "test_$check: $(said)"
done
race "a barrier less in sums over tokens" norms.cu '/room\[number \* N \+ i\] = sum/{n;d}' test_bias
race "a barrier less behind a tile" attention.cu '/weight, v \+ j \* pitch/{n;n;d}' test_attention
race "a barrier less in gradients of keys" attention.cu '/dk\.add\(a, at, slope/{n;n;d}' test_attention
race "a barrier less before a step of keys" attention_mma.cu '0,/copies_wait\(\);/{/copies_wait\(\);/{n;d}}' test_attention
race "a step fetched over the one that is read" attention_mma.cu 's/turns \+ \(step \+ 1\) % 2/turns + step % 2/' test_attention
race "a barrier less behind terms of experts" experts.cu '0,/sums\.add\(left, right/{/sums\.add\(left, right/{n;d}}' test_gemm_experts
race "a barrier less before terms of experts' weights" experts.cu '/load_terms\(b, column, n, 1, p, end/{n;d}' test_gemm_experts
race "a barrier less before a row's loss" loss.cu '/own\[i\] = r;/{n;n;d}' test_cross_entropy
race "counting without atomics" gradients.cu 's/atomicAdd\(\(unsigned long long \*\)&refused->count, 1ull\)/refused->count++/' test_fixed
race "blocks that write for each other" norms.cu 's/if \(lane\(\) == 0\) rstd\[row\] = r;/rstd[0] = r;/' test_norm
race "tokens that write each other's sums" norms.cu 's/sums\[2 \* number\] = sum;/sums[0] = sum;/' test_qk_norm
conclude "every race is found"
