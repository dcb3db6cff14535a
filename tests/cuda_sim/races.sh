#!/bin/bash
# Races of GPU kernels, between threads of a block and between blocks: their own source under the thread sanitizer, which takes each thread of a
# grid for a thread of its own (fibers.cpp). Only kernels are seen by it, so the program that runs them is the usual one. Each race that is
# planted must be found. Compiling takes most of the time.
. "$(dirname "$0")/../support/prelude.sh"
source=$WEFT_SOURCE_DIR/src/device/cuda/plugin
sim=$WEFT_SOURCE_DIR/tests/cuda_sim
[ -z "${SIM_SANITIZE:-}" ] || { echo "another sanitizer is in this build"; exit 77; }
tsan=$("$SIM_CXX" -print-file-name=libtsan.so)
[ -e "$tsan" ] || { echo "$SIM_CXX has no libtsan.so that can be loaded first: races of kernels are not looked for"; exit 77; }
export TEST_TOKENS=3 TSAN_OPTIONS="exitcode=66 halt_on_error=1 report_signal_unsafe=0"

# compile FILE OBJECT FLAG...
compile() {
    # shellcheck disable=SC2086
    "$SIM_CXX" -x c++ ${SIM_FLAGS/-O3/-O1} -w -g1 -D_GNU_SOURCE -I"$sim" -I"$WEFT_SOURCE_DIR/src" -c "$1" -o "$2" "${@:3}"
}
# What switches threads is not to be seen; its loops must not become calls that are.
objects=()
for file in "$sim"/*.cpp; do
    compile "$file" "$(basename "$file").o" -DSIM_THREAD_SANITIZER -fno-tree-loop-distribute-patterns || fail "$file does not compile"
    objects+=("$(basename "$file").o")
done
for object in $SIM_OBJECTS; do case $object in *.c.o) objects+=("$object") ;; esac; done
for file in "$source"/*.cu; do
    compile "$file" "$(basename "$file").o" -fsanitize=thread &
    [ "$(jobs -rp | wc -l)" -lt 2 ] || wait -n || fail "a kernel does not compile"
done
wait
# link OUT [FILE.cu OBJECT]: the plugin, with OBJECT for FILE.
link() {
    local file name kernels=()
    for file in "$source"/*.cu; do
        name=$(basename "$file")
        [ "$name" = "${2:-}" ] && kernels+=("$3") || kernels+=("$name.o")
    done
    "$SIM_CXX" -fsanitize=thread -shared "${objects[@]}" "${kernels[@]}" -o "$1" || fail "$1 does not link"
}
# runs PLUGIN TEST: under the sanitizer.
runs() { LD_PRELOAD=$tsan WEFT_CUDA=$PWD/$1 "$WEFT_BINARY_DIR/test_ops" cuda "$2" >log 2>&1; }
# race NAME FILE SED TEST
race() {
    sed -E "$3" "$source/$2" >mutant.cu
    ! cmp -s mutant.cu "$source/$2" || { fail "$1: nothing in $2 is changed by it"; return; }
    compile mutant.cu mutant.o -fsanitize=thread && link mutant.so "$2" mutant.o || { fail "$1: it does not compile"; return; }
    ! runs mutant.so "$4" && grep -q 'WARNING: ThreadSanitizer: data race' log || fail "$1: no race is seen: $(tail -5 log)"
}

link races.so
for check in bias norm attention cross_entropy fixed gemm_op loss_sum; do
    runs races.so test_$check || fail "test_$check: $(grep -m1 -A12 -E 'WARNING: ThreadSanitizer|FATAL|FAILED' log || tail -5 log)"
done
TEST_TOKENS=17 runs races.so test_route || fail "test_route: $(tail -5 log)"
race "a barrier less in sums over tokens" norms.cu '/room\[here\] = sum;/{n;d}' test_bias
race "a barrier less behind a tile" attention.cu '/weight, v \+ j \* pitch/{n;n;d}' test_attention
race "a barrier less before a row's loss" loss.cu '/own\[i\] = r;/{n;n;d}' test_cross_entropy
race "counting without atomics" gradients.cu 's/atomicAdd\(\(unsigned long long \*\)&refused->count, 1ull\)/refused->count++/' test_fixed
race "blocks that write for each other" norms.cu 's/if \(lane\(\) == 0\) rstd\[row\] = r;/rstd[0] = r;/' test_norm
conclude "every race is found"
