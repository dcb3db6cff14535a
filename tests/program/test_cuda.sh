#!/bin/bash
# The GPU plugin as users meet it: messages where there is none, and runs with cuda_sim, whose curve is the CPU's except for
# rounding, with the same bits in any order of its streams, after a stop, and with any layout of the step.
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
needs_simulated_gpu

letters 60 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 32, intermediate_size: 40, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 2}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, document_mask: true}
train: {steps: 4, context: 32, microbatch: 2, tokens_per_step: 128, compute: fp32}
optimizer: {lr: 3e-3}
lr_schedule: {warmup_steps: 2}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END

# ---- without a GPU ----

# CMake's own words are in upper case; a word that is none of the three is not taken as another.
if command -v cmake >/dev/null; then
    for word in off OFF Off; do
        cmake -DWEFT_CUDA=$word -P "$WEFT_SOURCE_DIR/src/device/cuda/CMakeLists.txt" >configured 2>&1 || fail "-DWEFT_CUDA=$word: $(cat configured)"
        grep -q "is not built: -DWEFT_CUDA=auto builds it" configured || fail "-DWEFT_CUDA=$word would build the plugin: $(cat configured)"
    done
    cmake -DWEFT_CUDA=maybe -P "$WEFT_SOURCE_DIR/src/device/cuda/CMakeLists.txt" >configured 2>&1 && fail "-DWEFT_CUDA=maybe is accepted"
    grep -q 'WEFT_CUDA is "maybe": expected auto, on or off' configured || fail "-DWEFT_CUDA=maybe: $(cat configured)"
fi
export WEFT_CUDA=$directory/no-such-plugin.so
expect_alone 69 train run.yaml run.device=cuda run.dir=none
has err "no-such-plugin.so"
: >empty.so
WEFT_CUDA=$directory/empty.so expect_alone 69 train run.yaml run.device=cuda run.dir=none
has err "does not load"
WEFT_CUDA=$(ldd "$weft" | awk '/libm\.so/ { print $3 }') expect_alone 69 train run.yaml run.device=cuda run.dir=none
has err "is no plugin of weft"
expect 78 train run.yaml run.device=cude run.dir=none
has err 'did you mean cuda?'
expect 0 doctor --seconds 0.01
has out "GPU               none: the plugin for GPUs does not load"

export WEFT_CUDA=$CUDA_SIM WEFT_SIM_STRICT=1
WEFT_SIM_DEVICES=0 expect_alone 69 train run.yaml run.device=cuda run.dir=none
has err "run.device: cuda: no GPU can be used: no CUDA-capable device is detected"
WEFT_SIM_DEVICES=0 expect 0 doctor --seconds 0.01
has out "GPU               none: no CUDA-capable device is detected"
WEFT_SIM_DEVICES=3 expect 0 doctor --seconds 0.01
has out "GPU 0             simulated GPU, 8.00 GiB, 8.00 GiB free, sm_90"
has out "                  reads and writes the memory of GPU 1 directly"
has out "                  reaches no other GPU's memory directly"
has out "NCCL              2.28.0"
[ "$(grep -c 'products [0-9.]* TFLOP/s fp32, [0-9.]* TFLOP/s bf16; a copy reads and writes [1-9][0-9.]* GB/s' out)" -eq 3 ] ||
    fail "not three GPUs were measured: $(cat out)"
WEFT_NCCL=none WEFT_SIM_DEVICES=2 expect 0 doctor --seconds 0.01 --json
has out '"nccl_problem": "WEFT_NCCL=none in the environment"'
has out "Ranks on several GPUs would send through the host's memory"
[ "$(grep -c '"memory_available_bytes": 8589934592\|"copy_bytes_per_second": [1-9]\|"peak_bf16_flops": [1-9]' out)" -eq 7 ] ||
    fail "figures of two GPUs are missing: $(cat out)"
# planned FILE: prints the memory table without the lines that compare it with a machine.
planned() { sed -n '/^memory$/,/ outside:/p' "$1"; }
expect 0 plan run.yaml run.device=cuda
has out "device  simulated GPU (cuda kernels)"
has out "of this GPU's 8.00 GiB"
has out "of this machine's"
planned out >opened
grep -Eq '^ +device +host$' opened || fail "memory of the device and of its host have no columns: $(cat opened)"
grep -Eq '^  pinned +12\.[0-9]+ MiB' opened || fail "pinned memory is not planned: $(cat opened)"
grep -Eq '^  staging  ' opened || fail "staging is not planned: $(cat opened)"
# Without a GPU, and for stated hardware, the plan is the same.
WEFT_CUDA=$directory/no-such-plugin.so expect 0 plan run.yaml run.device=cuda
has out "device  a GPU, as stated: not this machine"
planned out | cmp -s - opened || fail "a plan without a GPU is different: $(planned out | diff - opened)"
WEFT_CUDA=$directory/no-such-plugin.so expect 0 plan run.yaml --hardware h200
planned out | cmp -s - opened || fail "a plan for h200 is different: $(planned out | diff - opened)"
WEFT_CUDA=$directory/no-such-plugin.so expect 78 plan run.yaml run.device=cuda model.head_dim=258
has err "at most 256"

# ---- runs ----

# train DIR WORD...: runs weft train, which must succeed.
train() {
    local dir=$1
    shift
    "$weft" train run.yaml run.dir="$dir" "$@" >"$dir.out" 2>"$dir.err" </dev/null || fail "train $*: $(tail -3 "$dir.err")"
}
# near A B: the same losses and norms except for rounding in fp32.
near() {
    [ "$(curve "$1" | wc -l)" -eq 4 ] || fail "$1 has no four steps"
    paste -d' ' <(curve "$1") <(curve "$2") | awk '{ for (i = 2; i <= 3; i++) { d = $i / $(i + 3) - 1; if (d > 1e-5 || d < -1e-5) bad = 1 } } END { exit bad }' ||
        fail "$1 is not near $2: $(paste <(curve "$1") <(curve "$2"))"
}
# same A B: the same bits.
same() {
    [ "$(curve "$1")" = "$(curve "$2")" ] && [ "$(digest "$1")" = "$(digest "$2")" ] ||
        fail "$1 differs from $2: $(diff <(curve "$1") <(curve "$2") | head -4)"
}
# named FILE...: prints the ops in the table of times.
named() { cat "$@" | sed -n '/op  *calls  *seconds/,/^$/p' | sed 's/^.*| //' | awk '$2 ~ /^[0-9]+$/ { print $1 }' | sort; }
train cpu run.device=cpu metrics.profile=true
WEFT_SIM_MEMORY=$directory/taken train base run.device=cuda metrics.profile=true
# A run takes what was planned: on the device, the pools in whole allocation pieces (the peak of so short a run is not measured); on the host,
# what is planned except for batches and the step's record, which are not pinned and of which the table has two decimals.
planned base.out >said
[ -s said ] || planned base.err >said
sed 's/^.*| //' said | cmp -s - opened || fail "a run plans different memory than weft plan: $(diff said opened)"
fact() { sed -n "s/.*\"event\": \"started\".*\"$1\": \([0-9]*\).*/\1/p" base/journal.jsonl | head -1; }
held=$(awk '$1 == "device" { sum += $2; if (sum > most) most = sum } END { printf "%d\n", most }' taken)
pinned=$(awk '$1 == "host" { sum += $2 } END { printf "%d\n", sum }' taken)
pieces=$(sed -n 's/.*"pool_pieces_bytes": \([0-9]*\).*/\1/p' base/journal.jsonl)
[ -n "$held" ] && [ "$held" = "$pieces" ] && [ $((held % 2097152)) -eq 0 ] && [ "$held" -ge "$(fact planned_bytes)" ] ||
    fail "$held bytes of the device are taken, planned were $(fact planned_bytes), in pieces $pieces"
pageable=$(awk '$1 == "batches" || $1 == "record" { sum += $2 * ($3 == "MiB" ? 1048576 : $3 == "KiB" ? 1024 : 1) } END { print sum }' opened)
awk -v planned="$(fact planned_host_bytes)" -v pinned="$pinned" -v pageable="$pageable" \
    'BEGIN { d = planned - pinned - pageable; exit !(pinned > 0 && pageable > 0 && d * d <= pageable * pageable / 1e4) }' ||
    fail "$pinned bytes are pinned, planned were $(fact planned_host_bytes), of which $pageable are not pinned"
grep -q "\"device_memory\": $(fact planned_bytes), \"device_fraction\": 0\.0" base/metrics.jsonl || fail "metrics have no memory of the device: $(tail -1 base/metrics.jsonl)"
grep -Eq "step: .* memory: +0\.03GiB\(0\.4[0-9]%\)" base.out base.err || fail "the line of a step has no memory of the device: $(grep step: base.out base.err | head -1)"
near base cpu
[ "$(named base.out base.err | grep -c .)" -gt 15 ] || fail "few ops have times: $(named base.out base.err)"
[ "$(named base.out base.err)" = "$(named cpu.out cpu.err)" ] ||
    fail "other ops have times than on a CPU: $(diff <(named base.out base.err) <(named cpu.out cpu.err))"
# Ops are called as often as the prediction of a step counts.
expect 0 plan run.yaml --hardware h200
checked=0
while read -r op calls rest; do
    times=$(awk -v op="$op" '/^[^{]/ { sub(/^.*\| /, "") } $1 == op && $2 ~ /^[0-9]+$/ { print $2; exit }' base.out base.err)
    [ -n "$times" ] || continue
    [ "$times" = $((4 * calls)) ] || fail "$op is called $times times in 4 steps, $calls a step were planned"
    checked=$((checked + 1))
done < <(sed -n '/op, or product of a part/,/^  memory of/p' out | grep -E '^    (attention|activation|norm|rope|cross|adamw|embed)')
[ "$checked" -ge 7 ] || fail "only $checked ops are held against a run: $(cat out)"
WEFT_SIM_SEED=5 train order run.device=cuda train.recompute=full
same order base
# cuBLASLt's algorithms: of those that have failed, or leave out the end of K, none is used.
for fault in state drops; do
    WEFT_SIM_PRODUCTS=$fault train $fault run.device=cuda
    same $fault base
done
! WEFT_SIM_PRODUCTS=drops-all "$weft" train run.yaml run.device=cuda run.dir=dropped >out 2>err || fail "a product without the end of K is taken"
has err "cuBLASLt: it has no algorithm for this, or none that adds all of K"
train half run.device=cuda train.steps=2 lr_schedule.total_steps=4
WEFT_SIM_SEED=6 train half run.device=cuda
same half base
train moved run.device=cpu train.steps=2 lr_schedule.total_steps=4
train moved run.device=cuda
near moved cpu
train exact_cpu run.device=cpu numerics.mode=exact
train exact run.device=cuda numerics.mode=exact
near exact exact_cpu
experts="model.family=olmoe model.num_key_value_heads=4 model.num_experts=4 model.num_experts_per_tok=2"
train experts_cpu run.device=cpu $experts
train experts run.device=cuda $experts
near experts experts_cpu
recurrences="model.family=recurrent model.recurrent_size=40 model.mixer=[min_gru,hawk,attention,min_lstm,mamba2] model.num_hidden_layers=5
    model.mamba_d_head=8 model.mamba_d_state=12"
train recurrent_cpu run.device=cpu $recurrences
train recurrent run.device=cuda $recurrences
near recurrent recurrent_cpu
for run in base recurrent; do # recurrent layers carry a state and the tail of a convolution along
    expect 0 generate $run --prompt light --tokens 9 --temperature 0 --compute fp32 --device cuda
    cp out said
    expect 0 generate $run --prompt light --tokens 9 --temperature 0 --compute fp32
    cmp -s out said || fail "generation of $run differs: $(cat out said)"
done
expect 78 generate base --prompt light --device gpu
has err "run.device"

# ---- ranks: messages from GPU to GPU by NCCL, or staged through the host's memory ----

needs_ranks
export WEFT_SIM_DEVICES=2
train fsdp run.device=cuda -n 2 mesh.dp_shard=2
! grep -q "through the memory of the host" fsdp.out fsdp.err || fail "no wires: $(cat fsdp.err)"
WEFT_SIM_SEED=7 train ddp run.device=cuda -n 2 mesh.dp_replicate=2
same ddp fsdp
near fsdp cpu
WEFT_NCCL=none train relayed run.device=cuda -n 2 mesh.dp_shard=2
same relayed fsdp
grep -q "through the memory of the host: rank 0: WEFT_NCCL=none" relayed.out relayed.err || fail "the relay is not named"
WEFT_SIM_SEED=8 train stages run.device=cuda -n 2 mesh.pp=2
same stages base
WEFT_SIM_DEVICES=1 train crowded run.device=cuda -n 2 mesh.pp=2
same crowded base
grep -q "through the memory of the host: ranks 0 and 1 share a GPU" crowded.out crowded.err || fail "a shared GPU is not named"
train shared run.device=cuda numerics.tp_invariant_up_to=2
train tensor run.device=cuda numerics.tp_invariant_up_to=2 -n 2 mesh.tp=2
same tensor shared
# The limit allows for very busy machines; the test goes on meanwhile.
stop_one() {
    "$weft" train run.yaml run.dir=stopped run.device=cuda -n 2 mesh.dp_shard=2 --inject stop:rank=1,step=3 comm.watchdog_s=8 \
        >stopped.out 2>stopped.err </dev/null
    echo $? >stopped.status
}
meanwhile 2 stop_one
# joined FAULT WORD...: NCCL joins the ranks, and one of them fails as FAULT says.
joined() {
    WEFT_SIM_NCCL=$1 exits 76 train run.yaml run.dir="joined-${1/:/-}" run.device=cuda -n 2 mesh.dp_shard=2 "${@:2}"
    [ "$(grep -c '^weft: .*exit status' err)" -eq 1 ] || fail "$1: not one verdict: $(cat err)"
}
joined fail:1
has err "weft: rank 1: NCCL: joining the ranks: unhandled system error"
joined fail:0
has err "weft: rank 0: NCCL: joining the ranks: unhandled system error"
joined stop:1 comm.watchdog_s=2
has err "while waiting for all ranks (joining the GPUs of all ranks), in allocating"
has err "weft: rank 1 answers nobody: it hangs, or the machine does; this was found in allocating"
joined hang:1 comm.watchdog_s=2
has err "weft: all ranks answer, and each has been joining the GPUs of all ranks for more than comm.watchdog_s = 2 s"
# broken STATUS DIR WORD...: one rank fails in a step while the other waits for its tensors in NCCL.
broken() { exits "$1" train run.yaml run.dir="$2" run.device=cuda -n 2 mesh.dp_shard=2 "${@:3}"; }
WEFT_SIM_NCCL=break:1 broken 76 broken
has err "weft: rank 1: NCCL: a message: unhandled system error"
has err "cuda_sim: NCCL: rank 0 gives up" # ncclCommAbort
# Ranks with three communicators, of which more than one has a group under way: who gives up one gives up all.
WEFT_SIM_DEVICES=4 WEFT_SIM_NCCL=break:1 broken 76 broken4 -n 4 mesh.tp=2
has err "weft: rank 1: NCCL: a message: unhandled system error"
has err "gives up"
for rank in 0 1 2 3; do
    [[ $(grep -c "cuda_sim: NCCL: rank $rank gives up" err) =~ ^[03]$ ]] || fail "rank $rank does not give up all: $(cat err)"
done
broken 137 killed --inject kill:rank=1,step=3
names_killed err 1 || fail "killed: $(tail -3 err)"
hasnt err "nothing has come for"
together
[ "$(cat stopped.status)" -eq 76 ] || fail "stopped: exit status $(cat stopped.status)"
has stopped.err "weft: rank 0: nothing has come for"
has stopped.err "weft: rank 1 answers nobody: it hangs, or the machine does; this was found in step 3"
unset WEFT_SIM_DEVICES

# ---- what is refused, and what fails ----

expect 78 plan run.yaml run.device=cuda model.head_dim=258
has err "attention heads of 258 elements (head_dim); at most 256 are done on this GPU"

# A fault is found at a wait, which lists the ops that may have caused it; with WEFT_CUDA_CHECK=1 the message names the op.
WEFT_CUDA_CHECK=1 WEFT_SIM_FAULT=250 exits 69 train run.yaml run.device=cuda run.dir=fault
op=$(sed -n 's/.*GPU 0 failed in \([a-z_]*([^)]*)\): unspecified launch failure$/\1/p' err)
[ -n "$op" ] || fail "no op and shape in: $(cat err)"
WEFT_SIM_FAULT=250 exits 69 train run.yaml run.device=cuda run.dir=fault
has err "GPU 0 failed (found in a wait for a result): unspecified launch failure; "
has err " $op"
has err "ops had been called whose end no wait has shown: upload(bytes 32), adamw(n " # without the ops that the step before has waited for
has err ", attention_forward(tokens 64, heads 4, kv_heads 2, head_dim 8, first 0, keys 64, c fp32) x 4, "
conclude
