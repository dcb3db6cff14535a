#!/bin/bash
# Random configurations, each on one rank and on random meshes, where the run stops and resumes on another mesh. Each is refused with an
# error, or has the losses, norms, weights and optimizer states of one rank.
#   RUNS=300 SEED=2 tests/ranks/test_random.sh      more, and different ones (make soak)
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
RANDOM=${SEED:-1} runs=${RUNS:-6}

letters 400 3 >text.txt
cat >run.yaml <<END
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache, validation_fraction: 0.1}
train: {context: 32, tokens_per_step: 512}
numerics: {mode: exact}
optimizer: {lr: 0.01}
lr_schedule: {warmup_steps: 1, total_steps: 4}
validation: {every: 2, samples: 8}
checkpoint: {every: 2}
metrics: {log_freq: 1, tensorboard: false}
check: {replicas_every: 1}
run: {threads: 1}
END
tokenized

# draw NAME CHOICE...: sets the variable NAME to one of the choices. at_times PERCENT [WORD...]: true in PERCENT of the calls; it then adds
# the words to those of the run.
draw() {
    local -n drawn=$1
    shift $((1 + RANDOM % ($# - 1)))
    # shellcheck disable=SC2034
    drawn=$1
}
at_times() {
    [ $((RANDOM % 100)) -lt "$1" ] || return 1
    words+=("${@:2}")
}
key() { # KEY CHOICE...: adds KEY with one of the choices to the words of the run
    local value
    draw value "${@:2}"
    words+=("$1=$value")
}

draw_latents() {
    words+=(model.num_attention_heads=4 model.num_key_value_heads=4 model.kv_lora_rank=16 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4
        model.v_head_dim=8)
    key model.q_lora_rank 0 24
    key model.first_k_dense_replace 0 1
    key model.n_shared_experts 0 1
    [ "$family" = deepseek_v3 ] || return 0
    words+=(model.n_group=2 model.topk_group=1)
    at_times 50 train.router_bias_speed=0.01
    at_times 60 train.mtp_depth=1 train.mtp_kind=module
}

draw_experts() {
    experts=1
    key model.num_experts 4 8
    key model.num_experts_per_tok 1 2
    case $family in
    qwen3_moe | deepseek_* | llama4_text) key model.moe_intermediate_size 20 32 ;;
    esac
    case $family in
    deepseek_*) draw_latents ;;
    llama4_text) words+=(model.sliding_window=9 model.floor_scale=5) ;;
    *) at_times 40 model.output_router_logits=true model.router_aux_loss_coef=0.01 ;;
    esac
}

draw_model() {
    local heads kv
    experts=
    draw family llama llama qwen2 qwen3 mistral olmo2 olmo3 gemma2 gemma3_text smollm3 phi3 gpt2 mixtral qwen3_moe olmoe gpt_oss deepseek_v2 \
        deepseek_v3 deepseek_v3 llama4_text recurrent
    words+=("model.family=$family")
    key model.num_hidden_layers 2 3 4 5
    key model.intermediate_size 48 64 100
    draw heads 4 8
    draw kv 1 2 4 "$heads"
    case $family in
    recurrent) key model.mixer '[min_gru]' '[min_lstm, attention]' '[hawk]' '[hawk, attention]' '[mamba2]' && words+=(model.hidden_size=64) ;;
    deepseek_*) words+=(model.hidden_size=48) ;;
    gpt2) words+=("model.num_attention_heads=$heads" "model.hidden_size=$((8 * heads))") ;;
    *) words+=("model.num_attention_heads=$heads" "model.num_key_value_heads=$kv" "model.hidden_size=$((8 * heads))" model.head_dim=8) ;;
    esac
    case $family in
    mistral | gemma2 | gemma3_text | olmo3 | gpt_oss) key model.sliding_window 5 16 ;;
    llama | qwen2 | qwen3) at_times 30 model.tie_word_embeddings=true ;;
    esac
    case $family in
    mixtral | qwen3_moe | olmoe | gpt_oss | deepseek_* | llama4_text) draw_experts ;;
    esac
}

# LoRA adapters on a model that was trained for a step.
adapt() {
    config=("${words[@]}")
    rm -rf base
    went base train.microbatch=1 train.steps=1 || return 1
    words=(model.init=base/checkpoints/latest)
    key lora.rank 2 4
    at_times 30 'lora.match=q_proj|v_proj|gate_proj'
}

# Draws the keys that depend neither on the model nor on the mesh.
draw_run() {
    draw leaves 1 2 4 4
    draw spans 1 4 4
    words+=("numerics.tp_invariant_up_to=$leaves" "numerics.cp_invariant_up_to=$spans")
    whole=
    [ -z "$experts" ] || [ "$family" = gpt_oss ] || [ "$leaves" -eq 1 ] || ! at_times 40 numerics.etp_invariant_up_to=1 || whole=1
    key train.compute fp32 fp32 bf16
    key train.microbatch 1 2
    key optimizer.kind adamw adamw muon sgd
    key optimizer.states fp32 fp32 bf16
    at_times 20 train.loss_rows=16
    at_times 40 data.document_mask=true
    at_times 20 train.z_loss=0.001
    at_times 20 optimizer.ema=0.9
    at_times 15 optimizer.clip_norm=inf
    at_times 15 metrics.probe=1
    at_times 15 train.rampup_start=256 train.rampup_tokens=512
    at_times 20 'optimizer.groups=[{match: layers.1., kind: muon, lr: 0.003}, {match: embed, frozen: true}]'
}

# Segments need a schedule that takes them, exact chunks that they have whole, and no cp.
draw_segments() {
    [ "$pp" -gt 1 ] && [ "$cp" -eq 1 ] && [ "$spans" -eq 4 ] || return 0
    case ${words[-1]} in
    *=gpipe | *=1f1b) at_times 60 && key pipeline.segments 2 4 ;;
    esac
    return 0
}

draw_mesh() {
    local pp replicas shards cp tp ep
    while draw pp 1 1 2 4 && draw replicas 1 1 2 && draw shards 1 2 4 && draw cp 1 1 2 4 && draw tp 1 2 4; do
        n=$((pp * replicas * shards * cp * tp))
        [ $n -lt 2 ] || [ $n -gt 8 ] || [ "$cp" -gt "$spans" ] || [ "$tp" -gt "$leaves" ] || break
    done
    words=("mesh.pp=$pp" "mesh.dp_replicate=$replicas" "mesh.dp_shard=$shards" "mesh.cp=$cp" "mesh.tp=$tp")
    draw ep 1 2 $((shards * cp))
    [ $((shards * cp % ep)) -eq 0 ] || ep=1
    [ -z "$whole" ] || [ "$tp" -eq 1 ] || words+=(mesh.etp=1)
    [ -z "$whole" ] || ep=$((ep * tp))
    [ -z "$experts" ] || words+=("mesh.ep=$ep")
    key train.gradient_sync auto step microbatch replica
    key train.recompute none selective full
    key train.reshard_after_forward auto always never
    [ "$cp" -eq 1 ] || key mesh.cp_comm auto all_to_all all_gather
    [ "$pp" -eq 1 ] || key pipeline.schedule gpipe 1f1b interleaved_1f1b looped_bfs zb_h1 zb_h2 interleaved_zero_bubble v_min v_half zbv dualpipev
    draw_segments
    at_times 30 train.split_backward=true
    at_times 30 comm.progress_thread=true
    at_times 20 train.ep_buffer_factor=1
    at_times 20 run.threads=2
}

# went DIR WORD...: runs weft train. Returns false if it was refused and there is nothing to compare; other errors are failures.
went() {
    local status=0
    timeout -k 5 1500 "$weft" train run.yaml run.dir="$1" "${config[@]}" "${@:2}" >out 2>err </dev/null || status=$?
    [ $status -ne 0 ] || return 0
    [ $status -eq 78 ] && grep -q '^weft: ' err || fail "exit status $status of: ${config[*]} ${*:2}: $(tail -3 err)"
    return 1
}

same() { # WORD...
    local file
    [ "$(curve two)" = "$(curve one)" ] || fail "another curve than one rank: ${config[*]} $*: $(diff <(curve one) <(curve two) | head -2)"
    for file in one/checkpoints/latest/*.safetensors; do
        cmp -s "$file" "two/${file#one/}" || fail "other bytes in $(basename "$file") than one rank: ${config[*]} $*"
    done
}

compared=0 refused=0
while [ $compared -lt "$runs" ] && [ $refused -lt $((20 * runs)) ] && [ $failures -eq 0 ]; do
    words=()
    draw_model
    ! at_times 25 || adapt || { refused=$((refused + 1)) && continue; }
    draw_run
    config=("${words[@]}")
    rm -rf one
    went one train.steps=4 || { refused=$((refused + 1)) && continue; }
    for try in 1 2; do
        draw_mesh
        first=("${words[@]}" -n $n)
        draw_mesh
        second=("${words[@]}" -n $n)
        [ $try -eq 1 ] || second=()
        [ "$(ranks_in "${first[@]}" train.steps)" -gt 1 ] || fail "no ranks to compare: ${first[*]}"
        rm -rf two
        { went two "${first[@]}" train.steps=2 && went two "${second[@]}" train.steps=4; } || { refused=$((refused + 1)) && continue; }
        same "${first[@]}", then "${second[@]}"
        compared=$((compared + 1))
    done
done
[ $compared -ge "$runs" ] || fail "only $compared meshes of $runs could be compared, $refused were refused"
conclude "$compared runs stopped and resumed with the bits of one rank; $refused configurations and meshes refused"
