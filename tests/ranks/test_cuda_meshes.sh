#!/bin/bash
# Every axis and its options on simulated GPUs, over NCCL: the same bits as one such rank, whose curve is the CPU's except for rounding.
#   MESHES=full tests/ranks/test_cuda_meshes.sh     more meshes (make soak)
# ranks: 4
. "$(dirname "$0")/../support/prelude.sh"
simulate_gpus 4

letters 40 3 >text.txt
cat >run.yaml <<END
model: {hidden_size: 16, intermediate_size: 20, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2, tie_word_embeddings: true}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, document_mask: true, validation_fraction: 0.2}
train: {steps: 2, context: 16, microbatch: 1, tokens_per_step: 64, compute: fp32}
numerics: {mode: exact, cp_invariant_up_to: 4, tp_invariant_up_to: 2}
optimizer: {lr: 3e-3}
lr_schedule: {warmup_steps: 1}
validation: {every: 2, samples: 3}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, device: cuda}
END
tokenized

train() { # DIR WORD...
    "$weft" train run.yaml run.dir="$1" "${@:2}" >"$1.out" 2>"$1.err" </dev/null || fail "train $*: $(tail -3 "$1.err")"
    ! grep -q "through the memory of the host" "$1.out" "$1.err" || fail "$1: no wires: $(cat "$1.err")"
}
launch() { meanwhile "$(ranks_in "$@")" train "$@"; }
# curve DIR: prints loss and norm of every step and validation.
curve() { sed -n -e 's/.*"kind": "\(train\|validation\)", "step": \([0-9]*\),.*"loss": \([^,]*\), \("grad_norm": \([^,]*\),\)\?.*/\2 \3 \5/p' "$1/metrics.jsonl"; }
near() { # A B: equal except for rounding in fp32
    [ "$(curve "$1" | wc -l)" -ge 3 ] || fail "$1 has no two steps and a validation: $(curve "$1")"
    paste -d' ' <(curve "$1") <(curve "$2") | awk '{ h = NF / 2; for (i = 2; i <= h; i++) { d = $i / $(i + h) - 1; if (d > 1e-5 || d < -1e-5) bad = 1 } } END { exit bad }' ||
        fail "$1 is not near $2: $(paste <(curve "$1") <(curve "$2"))"
}
same() { # BASE DIR...
    local dir
    for dir in "${@:2}"; do
        [ "$(curve "$dir")" = "$(curve "$1")" ] && cmp -s "$dir/checkpoints/latest/model.safetensors" "$1/checkpoints/latest/model.safetensors" ||
            fail "$dir differs from $1: $(diff <(curve "$dir") <(curve "$1") | head -4)"
    done
}

experts=(model.family=deepseek_v3 model.num_hidden_layers=2 model.num_key_value_heads=4 model.tie_word_embeddings=false model.q_lora_rank=12
    model.kv_lora_rank=8 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=8 model.num_experts=4 model.num_experts_per_tok=2
    model.moe_intermediate_size=12 model.n_group=2 model.topk_group=1 model.first_k_dense_replace=1 model.n_shared_experts=1)
oss=(model.family=gpt_oss model.num_hidden_layers=2 model.tie_word_embeddings=false model.head_dim=4 model.sliding_window=8 model.num_experts=4
    model.num_experts_per_tok=2)
chunks=(model.family=llama4_text model.num_hidden_layers=4 model.tie_word_embeddings=false model.head_dim=4 model.sliding_window=8 model.num_experts=4
    model.num_experts_per_tok=2 model.moe_intermediate_size=12 model.floor_scale=8)
recurrent=(numerics.cp_invariant_up_to=1 numerics.tp_invariant_up_to=1 model.family=recurrent 'model.mixer=[min_gru,hawk,mamba2,min_lstm]' model.recurrent_size=20
    model.mamba_d_head=5 model.mamba_d_state=12 model.tie_word_embeddings=false)
# Rows of 40 and 44 bytes: addresses of matrices are less aligned than cuBLASLt's kernels like, and differ between meshes.
odd=(model.hidden_size=20 model.intermediate_size=22 model.head_dim=6 train.compute=bf16 train.loss_rows=7
    numerics.cp_invariant_up_to=1 numerics.tp_invariant_up_to=1)
launch one
launch cpu run.device=cpu
launch halves train.split_backward=true train.recompute=selective
launch routed "${experts[@]}"
launch routed_cpu run.device=cpu "${experts[@]}"
launch biased "${oss[@]}"
launch biased_cpu run.device=cpu "${oss[@]}"
launch chunked "${chunks[@]}"
launch chunked_cpu run.device=cpu "${chunks[@]}"
launch odd "${odd[@]}"
launch carried "${recurrent[@]}"
launch carried_cpu run.device=cpu "${recurrent[@]}"
launch heads -n 2 mesh.cp=2 mesh.cp_comm=all_to_all
WEFT_SIM_SEED=2 launch keys -n 2 mesh.cp=2 mesh.cp_comm=all_gather
launch grid -n 4 mesh.dp_shard=2 mesh.tp=2 train.recompute=full
WEFT_SIM_SEED=3 launch pipe -n 4 mesh.pp=4 pipeline.schedule=zb_h1
WEFT_SIM_SEED=4 launch crossed -n 4 mesh.pp=2 mesh.tp=2 pipeline.schedule=zbv
launch odd_shards -n 2 mesh.dp_shard=2 "${odd[@]}"
launch odd_pipe -n 2 mesh.pp=2 "${odd[@]}"
WEFT_SIM_SEED=5 launch visited -n 4 mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 "${experts[@]}"
WEFT_SIM_SEED=6 launch shared -n 4 mesh.tp=2 mesh.dp_shard=2 mesh.ep=2 "${oss[@]}"
WEFT_SIM_SEED=8 launch cut -n 4 mesh.cp=2 mesh.dp_shard=2 mesh.ep=2 mesh.cp_comm=all_gather "${chunks[@]}"
WEFT_SIM_SEED=7 launch passed -n 4 mesh.pp=2 mesh.dp_shard=2 train.recompute=selective "${recurrent[@]}"
all=(heads keys grid pipe crossed) routed=(visited)
if [ "${MESHES:-}" = full ]; then
    launch spread -n 4 mesh.dp_replicate=2 mesh.cp=2
    launch merged -n 4 mesh.pp=4 pipeline.schedule=1f1b train.gradient_sync=microbatch
    launch dealt -n 2 mesh.dp_shard=2 mesh.ep=2 "${experts[@]}"
    launch turned -n 4 mesh.cp=2 mesh.dp_shard=2 mesh.ep=2 mesh.cp_comm=all_gather "${experts[@]}"
    all+=(spread merged) routed+=(dealt turned)
fi
together
near one cpu
near routed routed_cpu
near biased biased_cpu
near chunked chunked_cpu
near carried carried_cpu
same one halves "${all[@]}"
same routed "${routed[@]}"
same odd odd_shards odd_pipe
same biased shared
same chunked cut
same carried passed

# Evaluating a checkpoint there gives the figures of a CPU, except for rounding in fp32.
for device in cuda cpu; do
    "$weft" eval one text.txt --device $device --compute fp32 --json 2>err | grep -o '[0-9][0-9.]*' >$device.eval || fail "weft eval on $device: $(tail -2 err)"
done
paste -d' ' cuda.eval cpu.eval | awk '{ d = $1 - $2; if (d > 1e-5 * $2 || d < -1e-5 * $2) bad = 1 } END { exit bad || NR != 6 }' ||
    fail "weft eval on GPUs: $(diff cuda.eval cpu.eval)"
conclude "each mesh has the bits of one simulated GPU"
