#!/bin/bash
# Inspects, without a GPU, what nvcc generates for the kernels, for each chip as the plugin's build does it:
#   - registers, stack, shared memory and 16-byte accesses of each kernel, compared with resources.txt (RENEW=1 rewrites it);
#   - no atomic operation on floats;
#   - matrix instructions in the kernels named for them, and wide accesses in those that use packs;
#   - no host code that calls a device-only function.
# Compiles every kernel for each chip, which takes a minute.
. "$(dirname "$0")/../support/prelude.sh"
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "nvcc is not here: registers and atomics of kernels are not checked"; exit 77; }
ptxas=$(dirname "$(realpath "$nvcc")")/ptxas
table=$WEFT_SOURCE_DIR/tests/cuda_sim/resources.txt
source=$WEFT_SOURCE_DIR/src/device/cuda/plugin
chips="80 90 100"
slack=8 # additional registers that another compiler version may use

# wide FILE.ptx: prints KERNEL LOADS STORES for each kernel: its 16-byte loads and stores of global memory.
wide() {
    awk '/^\.visible \.entry|^\.entry/ { name = $0; sub(/.*entry /, "", name); sub(/\(.*/, "", name); loads[name] = stores[name] = 0 }
        /[^a-z]ld\.global(\.[a-z]+)*\.v4/ { loads[name]++ }
        /[^a-z]st\.global(\.[a-z]+)*\.v4/ { stores[name]++ }
        END { for (name in loads) print name, loads[name], stores[name] }' "$1"
}
# readable: demangles the first word of each line, a kernel's name.
readable() {
    sed 's/ /\t/' | c++filt | awk -F'\t' '{ gsub(/\(anonymous namespace\)::/, "", $1); sub(/^void /, "", $1); gsub(/\([A-Za-z]+\)/, "", $1); sub(/\(.*/, "", $1)
        gsub(/ /, "", $1); print $1, $2 }'
}
# resources FILE.ptx CHIP: prints a line for each kernel: KERNEL CHIP REGISTERS STACK SPILLED SHARED LOADS STORES
resources() {
    wide "$1" >wide.txt
    "$ptxas" -v -arch=sm_"$2" "$1" -o kernel.cubin 2>&1 | tee -a said | awk -v chip="sm_$2" '
        FILENAME == "wide.txt" { accesses[$1] = $2 " " $3; next }
        /Compiling entry function/ { name = $0; sub(/^[^\047]*\047/, "", name); sub(/\047 for .*/, "", name) }
        /bytes stack frame/ { stack = $1; spilled = $5 + $9 }
        /Used [0-9]+ registers/ { shared = 0
            for (i = 1; i < NF; i++) { if ($i == "Used") registers = $(i + 1); if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared = $i }
            print name, chip, registers, stack, spilled, shared, accesses[name] }' wide.txt - | readable
}
# chips_of FILE.cu: prints the chips to compile for; only sm_90a has warpgroup instructions.
chips_of() { if [[ $1 = *_wgmma.cu ]]; then echo 90a; else echo "$chips"; fi; }
# compiled FILE.cu [FLAG...]: writes its PTX for each chip, NAME.compute_CHIP.ptx, and the preprocessed host code. nvcc -ptx would not
# process host code, so that only a build of the plugin would find calls of device-only functions there.
compiled() {
    local codes=() chip
    for chip in $(chips_of "$1"); do codes+=(-gencode "arch=compute_$chip,code=compute_$chip"); done
    "$nvcc" -cuda --keep -std=c++17 -fmad=false "${codes[@]}" "${@:2}" -I"$WEFT_SOURCE_DIR/src" "$1" -o host.ii || return
    [ ${#codes[@]} -gt 2 ] || mv "$(basename "$1" .cu).ptx" "$(basename "$1" .cu).compute_$chip.ptx" # for a single chip, nvcc leaves the chip out of the name
}

for file in "$source"/*.cu; do
    name=$(basename "$file" .cu)
    compiled "$file" || fail "$name.cu does not compile"
    for chip in $(chips_of "$file"); do resources "$name.compute_$chip.ptx" "$chip" >>found; done
done
[ "$(wc -l <found)" -ge 180 ] || fail "only $(wc -l <found) kernels: is this ptxas's output? $(head -3 found)"

same=$(cut -d' ' -f1,2 found | sort | uniq -d)
[ -z "$same" ] || fail "kernels that have one name for one chip: $same"

# floats FILE...: prints atomic operations on floats.
floats() { grep -nE '(^|[^a-z])(atom|red)\.[a-z.]*(f16|bf16|f32|f64)' "$@"; }
! floats ./*.ptx >atomics || fail "atomic operations on floats: $(head -5 atomics)"
printf 'red.global.add.f32 [%%rd1], %%f1;\n' >bad.txt
floats bad.txt >/dev/null || fail "an atomic addition of floats is not seen"

# without INSTRUCTION FILE: prints the kernels that are named for matrix instructions (mma_...) and lack this one.
without() {
    awk -v what="$1" '/^\.visible \.entry|^\.entry/ { name = $0; sub(/.*entry /, "", name); sub(/\(.*/, "", name); if (name ~ /mma_/) lacks[name] = 1 }
        index($0, what) { delete lacks[name] }
        END { for (name in lacks) print name }' "$2"
}
# by_matrices FILE.ptx KERNELS INSTRUCTION...: FILE has KERNELS kernels named for matrix instructions, each with every INSTRUCTION.
by_matrices() {
    local instruction lacking number
    number=$(grep -c 'entry .*mma_' "$1")
    [ "$number" -eq "$2" ] || fail "not $2 kernels of attention by matrix instructions in $1: $number"
    for instruction in "${@:3}"; do
        lacking=$(without "$instruction" "$1")
        [ -z "$lacking" ] || fail "kernels without $instruction: $lacking"
    done
}
for chip in $chips; do
    by_matrices "attention_mma.compute_$chip.ptx" 24 mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ldmatrix.sync.aligned.m8n8.x4.shared.b16 \
        ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 cp.async.cg.shared.global cp.async.wait_all
done
by_matrices attention_wgmma.compute_90a.ptx 6 wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 wgmma.fence.sync wgmma.commit_group.sync \
    wgmma.wait_group.sync fence.proxy.async.shared::cta cp.async.cg.shared.global cp.async.wait_all
# wgmma products run asynchronously unless ptxas must serialize them for lack of registers, which it reports.
grep -q 'Compiling entry function' said || fail "ptxas's output is not understood: $(head -3 said)"
! grep 'wgmma.*serialized' said || fail "asynchronous products were serialized"
sed 's/mma\.sync/fma/' attention_mma.compute_90.ptx >scalar.txt
[ "$(without mma.sync scalar.txt | wc -l)" -eq 24 ] || fail "kernels without matrix instructions are not seen"
# The same in the chip's machine code, where cuobjdump is installed.
if command -v cuobjdump >/dev/null; then
    for chip in $chips; do
        "$ptxas" -arch=sm_"$chip" attention_mma.compute_"$chip".ptx -o kernel.cubin
        [ "$(cuobjdump -sass kernel.cubin | awk '/Function :/ { n += has; has = 0 } / HMMA\./ { has = 1 } END { print n + has }')" -eq 24 ] ||
            fail "kernels without HMMA in code for sm_$chip"
    done
else
    echo "cuobjdump is not here: HMMA is not looked for in the chips' own code"
fi

# narrow FILE.ptx...: prints the kernels that neither load nor store 16 bytes at a time. In files that use packs, only the kernels of `few`
# may: their threads handle one number each or, in products, a tile.
narrow() { for file in "$@"; do wide "$file" | awk '$2 + $3 == 0' | readable; done | sed 's/ .*//; s/<.*//' | sort -u | xargs; }
few='conv_backward_kernel count_assignments_kernel first_rows_kernel fixed_end_kernel fixed_start_kernel
    grouped_gemm_kernel grouped_gemm_wgrad_kernel mamba_columns_kernel mamba_forward_kernel
    mamba_groups_kernel mamba_heads_kernel mamba_rows_kernel mamba_steps_kernel muon_factor_kernel
    order_rows_kernel route_backward_kernel route_count_kernel route_kernel scan_backward_kernel
    scan_forward_kernel scan_lambda_kernel splits_rstd_kernel stats_end_kernel stats_start_kernel'
for chip in $chips; do
    of_packs=$(grep -lE '(load|store)_pack' "$source"/*.cu | sed "s|.*/||; s|cu$|compute_$chip.ptx|")
    # shellcheck disable=SC2086
    [ "$(narrow $of_packs)" = "$(echo $few)" ] || fail "kernels without wide accesses in code for sm_$chip: $(narrow $of_packs)"
done
# planted SOURCE.cu HEADER.cuh SED: compiles SOURCE.cu with a changed header, in the directory `planted`.
planted() {
    local to=planted/device/cuda/plugin
    rm -rf planted
    mkdir -p "$to"
    cp "$source/$1" "$to"
    sed "$3" "$source/$2" >"$to/$2"
    ! cmp -s "$to/$2" "$source/$2" || fail "nothing in $2 is changed by $3"
    (cd planted && compiled "device/cuda/plugin/$1" -I.)
}
planted embedding.cu packs.cuh 's/return first + N <= end/return false/' || fail "embedding.cu does not compile with packs taken apart"
narrowed=$(narrow planted/embedding.compute_90.ptx)
[ "$narrowed" = "embed_backward_kernel embed_forward_kernel" ] || fail "kernels without wide accesses are not seen: $narrowed"
# mamba.cu's host code calls smaller(), which must therefore stay a __host__ function too.
! planted mamba.cu kernels.cuh '/int64_t smaller(/s/__host__ //' 2>refused && grep -q 'calling a __device__ function.*smaller' refused ||
    fail "a host function that calls one of the device is not seen: $(cat refused)"

# Compares the declarations in src/device/cuda/plugin/nccl.h with NVIDIA's header, where that is installed.
cat >nccl.c <<'END'
#include <nccl.h>
#define NcclComm OurComm
#define ncclComm ourComm
#include "device/cuda/plugin/nccl.h"
_Static_assert(NCCL_OK == ncclSuccess && NCCL_IN_PROGRESS == ncclInProgress && NCCL_BYTES == ncclInt8, "numbers");
_Static_assert(NCCL_NO_COLOUR == NCCL_SPLIT_NOCOLOR && sizeof(NcclKey) == sizeof(ncclUniqueId), "sizes");
ncclResult_t (*split)(ncclComm_t, int, int, ncclComm_t *, ncclConfig_t *) = ncclCommSplit;
ncclResult_t (*init)(ncclComm_t *, int, ncclUniqueId, int) = ncclCommInitRank;
ncclResult_t (*send)(const void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) = ncclSend;
ncclResult_t (*receive)(void *, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) = ncclRecv;
ncclResult_t (*look)(ncclComm_t, ncclResult_t *) = ncclCommGetAsyncError;
END
include=$(dirname "$(realpath "$nvcc")")/../include
if [ -e "$include/nccl.h" ]; then
    "$SIM_CC" -std=gnu11 -Werror -c nccl.c -o nccl.o -isystem "$include" -I"$WEFT_SOURCE_DIR/src" || fail "nccl.h of the plugin is not NVIDIA's"
    sed "s/sizeof(NcclKey)/sizeof(NcclKey) + 1/" nccl.c >wrong.c
    ! "$SIM_CC" -std=gnu11 -c wrong.c -o nccl.o -isystem "$include" -I"$WEFT_SOURCE_DIR/src" 2>/dev/null || fail "another nccl.h is not seen"
else
    echo "nccl.h is not here: what is called of NCCL is not checked"
fi

sort found >table
if [ -n "${RENEW:-}" ]; then
    { echo "# kernel chip registers stack spilled shared, loads and stores of 16 bytes: RENEW=1 ctest -C gpu -R cuda_static"; cat table; } >"$table"
    conclude
    exit 0
fi
# compare TABLE FOUND: prints what is worse than in the table.
compare() {
    awk -v slack="$slack" 'FNR == NR { if (/^#/) next; key = $1 " " $2; r[key] = $3; s[key] = $4; p[key] = $5; m[key] = $6; l[key] = $7; w[key] = $8; next }
        { key = $1 " " $2; seen[key] = 1 }
        !(key in r) { print key ": not in the table"; next }
        $3 > r[key] + slack { print key ": " $3 " registers, " r[key] " in the table" }
        $4 > s[key] { print key ": stack of " $4 " bytes, " s[key] " in the table" }
        $5 > p[key] { print key ": " $5 " bytes spilled, " p[key] " in the table" }
        $6 != m[key] { print key ": " $6 " bytes of shared memory, " m[key] " in the table" }
        $7 < l[key] { print key ": " $7 " loads of 16 bytes, " l[key] " in the table" }
        $8 < w[key] { print key ": " $8 " stores of 16 bytes, " w[key] " in the table" }
        END { for (key in r) if (!(key in seen)) print key ": in the table, but there is no such kernel" }' "$1" "$2"
}
worse=$(compare "$table" table)
[ -z "$worse" ] || fail "kernels are not as in tests/cuda_sim/resources.txt (RENEW=1 writes it):
$worse"
awk 'NR == 1 { $3 += 9; $5 += 4; $7--; $8-- } NR == 2 { next } { print }' table >changed
[ "$(compare "$table" changed | wc -l)" -eq 5 ] || fail "changes of the table are not seen: $(compare "$table" changed)"
conclude
