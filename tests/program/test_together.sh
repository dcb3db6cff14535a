#!/bin/bash
# What can be combined with tp, cp and ep: the table of docs/use/combinations.md, row by row. Each "yes" can be planned; each "no" is refused
# with a message that names the key or the family.
#   CURVE=full tests/program/test_together.sh      also runs each "yes", which must have the bits of one rank
# ranks: 2
. "$(dirname "$0")/../support/prelude.sh"
. "$(dirname "$script")/../support/tasks.sh"
needs_ranks
page=${WEFT_SOURCE_DIR:?}/docs/use/combinations.md

letters 60 3 >text.txt
make_tasks 2 1
cat >dense.yaml <<END
model: {hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4, num_key_value_heads: 4}
data: {sources: [{path: text.txt, split: paragraphs}], cache_dir: cache}
train: {steps: 2, context: 32, microbatch: 1, tokens_per_step: 128, compute: fp32}
numerics: {mode: exact}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1}
END
experts=(model.num_experts=4 model.num_experts_per_tok=2)
sed '/^model/ s/hidden_size/family: qwen3_moe, num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 20, hidden_size/' dense.yaml >experts.yaml
for kind in dense experts; do
    exits 0 train $kind.yaml run.dir=$kind train.steps=1 || cat err
done

# trained CONFIG AXIS WORDS...: with these words, two ranks along the axis write the files of one rank.
trained() {
    local config=$1 axis=$2 pieces=()
    shift 2
    [ "$axis" = ep ] || pieces=("numerics.${axis}_invariant_up_to=4") # by keys a rank of cp has two spans
    rm -rf one two
    exits 0 train "$config" run.dir=one "${pieces[@]}" "$@"
    on_ranks 2 "$weft" train "$config" run.dir=two "${mesh[@]}" "${pieces[@]}" "$@" >out 2>err </dev/null || fail "$axis with $*: $(tail -3 err)"
    for file in one/checkpoints/latest/*.safetensors; do
        cmp -s "$file" "two/${file#one/}" || fail "$axis with $*: other bytes in $(basename "$file")"
    done
}

# try AXIS CELL NAME WORDS...: NAME must be in the refusal.
try() {
    local axis=$1 cell=$2 name=$3 config=dense.yaml mesh=("mesh.$1=2")
    shift 3
    [ "$axis" != ep ] || mesh=(mesh.dp_shard=2 mesh.ep=2) config=experts.yaml
    case $1 in
    lora.rank=*) set -- "$@" "model.init=${config%.yaml}/checkpoints/step-00000001" ;;
    model.tie_word_embeddings=true) set -- "$@" train.mtp_depth=1 ;;
    model.family=recurrent) set -- "$@" 'model.mixer=[min_gru]' ;;
    model.family=deepseek_* | train.mtp_kind=module)
        [ "$1" != train.mtp_kind=module ] || set -- "$@" train.mtp_depth=1 model.family=deepseek_v3
        set -- "$@" "${experts[@]}" model.moe_intermediate_size=20 model.first_k_dense_replace=1 model.n_group=2 model.topk_group=1 \
            model.head_dim=0 model.q_lora_rank=24 model.kv_lora_rank=16 model.qk_nope_head_dim=6 model.qk_rope_head_dim=4 model.v_head_dim=8
        ;;
    model.family=mixtral | model.family=olmoe | model.family=gpt_oss) config=dense.yaml && set -- "$@" "${experts[@]}" ;;
    model.family=llama4_text) config=dense.yaml && set -- "$@" "${experts[@]}" model.moe_intermediate_size=20 model.head_dim=8 model.sliding_window=9 model.floor_scale=5 ;;
    model.family=qwen3_moe) config=experts.yaml ;;
    esac
    tried=$((tried + 1))
    if [ "$cell" = yes ]; then
        exits 0 plan $config -n 2 "${mesh[@]}" "$@"
        [ "${CURVE:-quick}" != full ] || trained $config "$axis" "$@"
    else
        exits 78 plan $config -n 2 "${mesh[@]}" "$@"
        has err "$name"
    fi
}

tried=0
while IFS='|' read -r _ beside tp cp ep _; do
    first=$(sed 's/^[^`]*`\([^`]*\)`.*/\1/' <<<"$beside")
    # A row may name further families, each in backquotes.
    for word in "$first" $(grep -o '`[a-z0-9_]*`' <<<"$beside" | sed 's/`\(.*\)`/model.family=\1/'); do
        name=${word%%=*}
        [ "$name" != model.family ] || name=${word#*=}
        [ "$name" != optimizer.kind ] || name=${word#*=}
        [ "${CURVE:-quick}" = full ] || [ "$word" = "$first" ] || continue
        for axis in tp cp ep; do
            case ${!axis// /} in
            yes | no) try $axis "${!axis// /}" "$name" "$word" ;;
            esac
        done
    done
done < <(grep '^| `' "$page")
[ "$tried" -ge 50 ] || fail "the table has $tried cells"
conclude
