#!/bin/bash
# Compares published runs of other trainers with weft's plans for them: `make plan-cases`, docs/lab/published-runs.md.
#
# Each run is planned as weft would run it (bf16, weft's memory and schedules) on the stated hardware. Where the trainer used
# something that weft lacks (float8, asynchronous TP, partial sums in bf16), the hardware description models it. Tables are in Markdown,
# as the page has them. `memory` has the memory that weft plans, and that memory plus the framework's unsharded logits.
set -euo pipefail
weft=${WEFT:-build/weft}
configs=$(dirname "$0")/../configs
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

# machine NAME LINES...: writes a hardware file; figures that it does not set are those of h100.
machine() { printf '%s\n' "${@:2}" >"$directory/$1.yaml"; }
# TorchTitan's hosts: H100 with 96 GB of HBM2e at 2.4 TB/s and a limit of 500 W. The shares of peak are fitted to three of their runs,
# which are marked: products in bf16 and float8 to 8B on 8 ranks, attention to the first run with a long context. The share that
# asynchronous TP hides comes from their two pairs of runs with and without it.
slow='compute: {share: 0.5, float8_share: 0.38, attention_share: 0.24, float8: %s}'
memory='memory: {gib: 95, gb_per_s: 2400}'
links='links: {narrow_sums: true, hidden_share: %s}'
machine bf16 "${slow/\%s/false}" "$memory" "${links/\%s/0}"
machine bf16-async "${slow/\%s/false}" "$memory" "${links/\%s/0.45}"
machine float8 "${slow/\%s/true}" "$memory" "${links/\%s/0}"
machine float8-async "${slow/\%s/true}" "$memory" "${links/\%s/0.45}"
# H100 at 700 W, with the kernels of NVIDIA's and Meta's trainers (cuDNN). The share of h100 was chosen knowing Llama 3's first run.
machine h100-cudnn 'compute: {attention: cudnn}' "${links/\%s/0}"
machine h100-float8 'compute: {attention: cudnn, float8: true}' "${links/\%s/0.45}"
machine h800-float8 'compute: {attention: cudnn, float8: true}' 'links: {narrow_sums: true, hidden_share: 0.45, inside_gb_per_s: 160}'
machine h200-float8 'compute: {attention: cudnn, float8: true}' 'memory: {gib: 140.4, gb_per_s: 4800}' "${links/\%s/0}"
b200='bf16_tflops: 2250, fp32_tflops: 75, float8_tflops: 4500, ramp_terms: 590, attention: cudnn_b200'
machine b200 "compute: {$b200}" 'memory: {gib: 179, gb_per_s: 7700}' 'links: {narrow_sums: true, hidden_share: 0.45, inside_gb_per_s: 690}'
machine b200-float8 "compute: {$b200, float8: true}" 'memory: {gib: 179, gb_per_s: 7700}' \
    'links: {narrow_sums: true, hidden_share: 0.45, inside_gb_per_s: 690}'
# MosaicML's trainer: FlashAttention-2 on H100; Triton's kernels on A100, which are of version 1.
machine h100-flash 'compute: {attention: flash2_h100}'
a100='bf16_tflops: 312, fp32_tflops: 19.5, float8_tflops: 312, share: 0.79, ramp_terms: 82'
a100_rest='memory: {gib: 79.3, gb_per_s: 2039}'
a100_links='links: {inside_gb_per_s: 220, between_gb_per_s: 22, narrow_sums: true}'
machine a100-flash "compute: {$a100, attention: flash1_a100}" "$a100_rest" "$a100_links"
# Megatron of 2021 and 2022 wrote the scores of attention: 10 bytes for each in memory against 256 FLOP that count are 0.13 of the peak.
machine a100-scores "compute: {$a100, attention_share: 0.13}" "$a100_rest" "$a100_links"

count=0
# plan_row SOURCE NAME MODEL RANKS MACHINE TOKENS GIB ROWS TP WORDS...: plans a run and prints its fields, separated by tabs. TOKENS and
# GIB: the published tokens/s and GiB of a rank (- where there is none). ROWS: rows of full logits that the framework held, sharded over
# TP ranks, at 12 bytes per logit: bf16, fp32, and the gradients of both.
plan_row() {
    local out name=$2 model=$3 ranks=$4 machine=$5 planned used group
    out=$("$weft" plan "$configs/$model.yaml" -n "$ranks" train.compute=bf16 --hardware "$directory/$machine.yaml" "${@:10}" 2>&1) ||
        { echo "plan_cases: $1, $name: $out" >&2; return 1; }
    planned=$(sed -n 's/^  step .* tokens\/s, \([0-9,]*\) of each rank.*/\1/p' <<<"$out" | tr -d ,)
    used=$(sed -n 's/^  memory of rank [0-9]*: \([0-9.]*\) \([A-Za-z]*\) of .*/\1 \2/p' <<<"$out")
    group=$(sed -n 's/^  like published runs of \([^:]*\):.*/\1/p' <<<"$out")
    sed -n 's/^  like published runs of \([^:]*\):.*(\([0-9]*\) runs took \(.*\) times as long.*/\1 | \2 | \3/p' <<<"$out" >"$directory/says.$group"
    awk -v source="$1" -v group="$group" -v name="$name" -v tokens="$6" -v planned="$planned" -v memory="$7" -v used="$used" \
        -v rows="$8" -v tp="$9" '
        BEGIN {
            split(used, u, " "); gib = u[1] * (u[2] == "TiB" ? 1024 : u[2] == "GiB" ? 1 : 1 / 1024)
            printf "%s\t%s\t%s\t%s\t%d\t%s\t%.1f\t%.1f\n", group, source, name, tokens, planned, memory, gib,
                gib + rows * 128256 / tp * 12 / 1024 ^ 3
        }'
}
# run: plan_row, several at a time, in order.
run() {
    local file
    count=$((count + 1))
    file=$directory/row.$(printf '%04d' $count)
    [ $((count % 4)) -ne 0 ] || wait
    { plan_row "$@" >"$file" || touch "$directory/failed"; } &
}
# step SEQUENCES CONTEXT RANKS: prints the keys for steps of SEQUENCES sequences of CONTEXT tokens on each of RANKS data-parallel ranks.
step() { echo "train.context=$2 train.tokens_per_step=$(($1 * $2 * $3)) model.max_position_embeddings=$(($2 > 131072 ? $2 : 131072))"; }
# gpt VOCABULARY LAYERS WIDTH HEADS: prints the keys of a GPT.
gpt() {
    echo "model.vocab_size=$1 model.num_hidden_layers=$2 model.hidden_size=$3 model.intermediate_size=$(($3 * 4)) model.num_attention_heads=$4" \
        "model.num_key_value_heads=$4 model.head_dim=$(($3 / $4))"
}
# mpt MACHINE SIZE RANKS CONTEXT MICROBATCH ACCUMULATION none|full TOKENS: a row of llm-foundry's table. FSDP, full shards.
mpt() {
    local -A shapes=([1b]="24 2048 16" [3b]="32 2560 20" [7b]="32 4096 32" [13b]="40 5120 40" [30b]="48 7168 56" [70b]="80 8192 64")
    local gpu=${1%%-*}
    run "llm-foundry" "MPT $2, ${gpu^^}, $3 ranks, context $4, $5 x $6, recompute $7" gpt2 "$3" "$1" "$8" - 0 1 \
        $(gpt 50368 ${shapes[$2]}) $(step $(($5 * $6)) "$4" "$3") train.microbatch="$5" train.recompute="$7" mesh.dp_shard=-1 \
        train.gradient_sync=microbatch train.reshard_after_forward=always
}
# megatron MODEL RANKS MACHINE NAME BATCH MICROBATCH CONTEXT PP TP CP TOKENS WORDS...: a row of Megatron-Bridge's tables.
megatron() {
    run Megatron-Bridge "$4" "$1" "$2" "$3" "${11}" - 0 8 train.context="$7" train.tokens_per_step=$(($5 * $7)) train.microbatch="$6" \
        mesh.pp="$8" mesh.tp="$9" mesh.cp="${10}" train.recompute=none train.gradient_sync=step train.reshard_after_forward=never "${@:12}"
}
# stages V: prints the keys of an interleaved pipeline.
stages() { echo "pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=$1"; }
# per_rank BATCH CONTEXT SECONDS RANKS: prints tokens/s of a rank.
per_rank() { awk -v b="$1" -v c="$2" -v s="$3" -v n="$4" 'BEGIN { printf "%.0f", b * c / s / n }'; }
# narayanan NAME LAYERS WIDTH HEADS TP PP RANKS BATCH TFLOPS: tokens/s by the FLOPs of the paper, which count full recompute.
narayanan() {
    local tokens
    tokens=$(awk -v l="$2" -v h="$3" -v t="$9" 'BEGIN { printf "%.0f", t * 1e12 / (96 * l * h * h * (1 + 2048 / (6 * h) + 51200 / (16 * l * h))) }')
    run "Narayanan 2021" "GPT $1, A100, $7 ranks, tp $5 pp $6" gpt2 "$7" a100-scores "$tokens" - 0 8 $(gpt 51200 "$2" "$3" "$4") \
        train.context=2048 model.max_position_embeddings=2048 train.tokens_per_step=$(($8 * 2048)) train.microbatch=1 train.recompute=full \
        mesh.tp="$5" mesh.pp="$6" mesh.dp_replicate=$(($7 / $5 / $6)) mesh.dp_shard=1 pipeline.schedule=1f1b train.gradient_sync=step
}
# korthikanti NAME LAYERS WIDTH HEADS PP V RANKS BATCH MICROBATCH RECOMPUTE SECONDS
korthikanti() {
    local schedule="pipeline.schedule=1f1b"
    [ "$6" = 1 ] || schedule=$(stages "$6")
    run "Korthikanti 2022" "GPT $1, A100, $7 ranks, tp 8 pp $5, recompute ${10}" gpt2 "$7" a100-scores "$(per_rank "$8" 2048 "${11}" "$7")" \
        - 0 8 $(gpt 51200 "$2" "$3" "$4") train.context=2048 model.max_position_embeddings=2048 train.tokens_per_step=$(($8 * 2048)) \
        train.microbatch="$9" train.recompute="${10}" mesh.tp=8 mesh.pp="$5" $schedule
}
# llmq SIZE MICROBATCH LAYERS WIDTH MLP HEADS KV TIED VOCABULARY BF16 FLOAT8: one H100, 524,288 tokens a step; FLOAT8 - for none.
llmq() {
    local keys="train.context=1024 train.tokens_per_step=524288 train.microbatch=$2 train.recompute=none model.num_hidden_layers=$3
        model.hidden_size=$4 model.intermediate_size=$5 model.num_attention_heads=$6 model.num_key_value_heads=$7 model.head_dim=$(($4 / $6))
        model.tie_word_embeddings=$8 model.vocab_size=$9"
    run llmq "Qwen2.5 $1, one H100, bf16" qwen2.5-0.5b 1 h100-cudnn "${10}" - 0 1 $keys
    [ "${11}" = - ] || run llmq "Qwen2.5 $1, one H100, float8" qwen2.5-0.5b 1 h100-float8 "${11}" - 0 1 $keys
}

# Words of `step` and others are several arguments.
# shellcheck disable=SC2046,SC2086
{
    run TorchTitan "8B, 8 ranks, bf16 (fitted)" llama3-8b 8 bf16 6667 77.0 16384 1 $(step 2 8192 8) train.microbatch=2 train.recompute=selective
    run TorchTitan "8B, 8 ranks, float8 (fitted)" llama3-8b 8 float8 8532 76.8 16384 1 $(step 2 8192 8) train.microbatch=2 train.recompute=selective
    run TorchTitan "8B, 128 ranks, bf16" llama3-8b 128 bf16 6514 62.0 16384 1 $(step 2 8192 128) train.microbatch=2 train.recompute=selective
    run TorchTitan "8B, 128 ranks, float8" llama3-8b 128 float8 8380 61.8 16384 1 $(step 2 8192 128) train.microbatch=2 train.recompute=selective
    run TorchTitan "8B, 8 ranks, 32k (attention fitted)" llama3-8b 8 float8 3890 83.9 32768 1 $(step 1 32768 8) train.recompute=full
    run TorchTitan "8B, 8 ranks, 64k, cp 2" llama3-8b 8 float8 2540 84.2 32768 1 $(step 1 65536 4) train.recompute=full mesh.cp=2
    run TorchTitan "8B, 8 ranks, 128k, cp 4" llama3-8b 8 float8 1071 84.0 32768 1 $(step 1 131072 2) train.recompute=full mesh.cp=4
    run TorchTitan "8B, 8 ranks, 256k, cp 8" llama3-8b 8 float8 548 84.5 32768 1 $(step 1 262144 1) train.recompute=full mesh.cp=8
    big="mesh.tp=8 train.microbatch=16 train.recompute=full"
    run TorchTitan "70B, 256 ranks, tp 8, float8" llama3-70b 256 float8 829 71.9 131072 8 $(step 16 8192 32) $big
    run TorchTitan "70B, 256 ranks, tp 8, float8, async tp" llama3-70b 256 float8-async 876 67.6 131072 8 $(step 16 8192 32) $big
    huge="mesh.tp=8 mesh.pp=8 train.recompute=full"
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, 1F1B" llama3-405b 512 float8-async 100 82.5 32768 8 $(step 32 8192 8) $huge train.microbatch=4 pipeline.schedule=1f1b
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, interleaved" llama3-405b 512 float8-async 128 72.7 32768 8 $(step 32 8192 8) $huge train.microbatch=4 pipeline.schedule=interleaved_1f1b
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, 32k" llama3-405b 512 float8-async 76 75.3 32768 8 $(step 8 32768 8) $huge train.microbatch=1 pipeline.schedule=1f1b
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, 64k, cp 2" llama3-405b 512 float8-async 47 75.9 32768 8 $(step 8 65536 4) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=2
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, 128k, cp 4" llama3-405b 512 float8-async 31 77.1 32768 8 $(step 8 131072 2) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=4
    run TorchTitan "405B, 512 ranks, tp 8 pp 8, 256k, cp 8" llama3-405b 512 float8-async 16 84.9 32768 8 $(step 8 262144 1) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=8
    run TorchTitan "70B, 256 ranks, tp 8, bf16" llama3-70b 256 bf16 597 - 0 8 $(step 16 8192 32) $big
    run TorchTitan "70B, 256 ranks, tp 8, bf16, async tp" llama3-70b 256 bf16-async 652 - 0 8 $(step 16 8192 32) $big
    small="mesh.tp=8 train.microbatch=12 train.recompute=selective"
    run TorchTitan "8B, 64 ranks, tp 8, bf16" llama3-8b 64 bf16 4378 - 0 8 $(step 12 8192 8) $small
    run TorchTitan "8B, 64 ranks, tp 8, bf16, async tp" llama3-8b 64 bf16-async 4809 - 0 8 $(step 12 8192 8) $small
    run TorchTitan "8B, 64 ranks, tp 8, float8" llama3-8b 64 float8 5078 - 0 8 $(step 12 8192 8) $small
    run TorchTitan "8B, 64 ranks, tp 8, float8, async tp" llama3-8b 64 float8-async 5570 - 0 8 $(step 12 8192 8) $small
    run Trainy "TorchTitan 8B, 32 H200, float8" llama3-8b 32 h200-float8 10938 - 0 8 $(step 2 8192 32) train.microbatch=2 train.recompute=selective
    run Trainy "TorchTitan 8B, 64 H200, float8" llama3-8b 64 h200-float8 10753 - 0 8 $(step 2 8192 64) train.microbatch=2 train.recompute=selective
    # 430, 400 and 380 TFLOP/s per rank, at 2.52 TFLOP per token for context 8,192 and 4.05 for 131,072: 6 N plus causal attention.
    meta="mesh.tp=8 mesh.pp=16 train.microbatch=1 train.recompute=none $(stages 8)"
    run "Llama 3" "405B, 8,192 H100, tp 8 pp 16 (fitted)" llama3-405b 8192 h100-cudnn 171 - 0 8 $(step 32 8192 64) $meta
    run "Llama 3" "405B, 16,384 H100, tp 8 pp 16" llama3-405b 16384 h100-cudnn 159 - 0 8 $(step 16 8192 128) $meta
    run "Llama 3" "405B, 16,384 H100, tp 8 cp 16 pp 16, 128k" llama3-405b 16384 h100-cudnn 94 - 0 8 $(step 16 131072 8) $meta mesh.cp=16
    megatron llama3-8b 8 h100-float8 "Llama 3 8B, 8 H100, float8" 128 1 8192 1 1 1 14451 train.reshard_after_forward=always
    megatron llama3-8b 8 b200-float8 "Llama 3 8B, 8 B200, float8" 128 2 8192 1 1 1 30624
    megatron llama3-70b 64 h100-float8 "Llama 3 70B, 64 H100, tp 4 pp 8, batch 128, float8" 128 1 8192 8 4 1 1602 $(stages 5)
    megatron llama3-70b 64 h100-float8 "Llama 3 70B, 64 H100, tp 4 pp 8, batch 256, float8" 256 1 8192 8 4 1 1664 $(stages 5)
    megatron llama3-405b 1024 h100-float8 "Llama 3 405B, 1,024 H100, tp 8 pp 8 cp 2, batch 512, float8" 512 1 8192 8 8 2 292 $(stages 8)
    megatron llama3-405b 1024 h100-float8 "Llama 3 405B, 1,024 H100, tp 8 pp 8 cp 2, batch 1536, float8" 1536 1 8192 8 8 2 328 $(stages 8)
    megatron llama3-405b 128 b200-float8 "Llama 3 405B, 128 B200, tp 4 pp 8 cp 2, float8" 64 1 8192 8 4 2 661 $(stages 8)
    oss="model.num_hidden_layers=36 model.num_experts=128"
    megatron gpt-oss-20b 64 h100-cudnn "GPT-OSS 120B, 64 H100, pp 4 ep 8" 512 4 4096 4 1 1 5630 $oss mesh.ep=8 pipeline.schedule=1f1b
    megatron gpt-oss-20b 64 h100-cudnn "GPT-OSS 120B, 64 H100, pp 4 ep 8, batch 1280" 1280 1 4096 4 1 1 5824 $oss mesh.ep=8 pipeline.schedule=1f1b
    megatron gpt-oss-20b 64 b200 "GPT-OSS 120B, 64 B200, ep 8, batch 512" 512 4 4096 1 1 1 8213 $oss mesh.ep=8
    megatron gpt-oss-20b 64 b200 "GPT-OSS 120B, 64 B200, ep 8, batch 1280" 1280 4 4096 1 1 1 13568 $oss mesh.ep=8
    qwen="model.family=qwen3_moe model.tie_word_embeddings=false model.num_experts=128 model.num_experts_per_tok=8 model.num_key_value_heads=4"
    small="$qwen model.hidden_size=2048 model.intermediate_size=6144 model.moe_intermediate_size=768 model.num_hidden_layers=48 model.num_attention_heads=32"
    megatron qwen3-0.6b 16 h100-float8 "Qwen3-30B-A3B, 16 H100, ep 16, float8" 1024 1 4096 1 1 1 8901 $small mesh.ep=16
    megatron qwen3-0.6b 16 h100-float8 "Qwen3-30B-A3B, 16 H100, pp 2 ep 8, float8" 1024 1 4096 2 1 1 9058 $small mesh.ep=8 $(stages 12)
    megatron qwen3-0.6b 8 b200-float8 "Qwen3-30B-A3B, 8 B200, ep 8, float8" 512 4 4096 1 1 1 27136 $small mesh.ep=8
    large="$qwen model.hidden_size=4096 model.intermediate_size=12288 model.moe_intermediate_size=1536 model.num_hidden_layers=94 model.num_attention_heads=64"
    megatron qwen3-0.6b 256 b200-float8 "Qwen3-235B-A22B, 256 B200, pp 8 ep 8, float8" 8192 1 4096 8 1 1 3776 $large mesh.ep=8 pipeline.schedule=1f1b
    megatron deepseek-v3 1024 h100-float8 "DeepSeek-V3, 1,024 H100, tp 2 pp 8 ep 64, float8" 8192 1 4096 8 2 1 1297 mesh.ep=64 mesh.etp=1 $(stages 4)
    megatron deepseek-v3 256 b200-float8 "DeepSeek-V3, 256 B200, pp 16 ep 8, float8" 4096 1 4096 16 1 1 2815 mesh.ep=8 pipeline.schedule=1f1b
    run "DeepSeek-V3" "2,048 H800, pp 16 ep 64, float8" deepseek-v3 2048 h800-float8 1543 - 0 8 train.context=4096 train.tokens_per_step=$((15360 * 4096)) \
        train.microbatch=1 train.recompute=none mesh.pp=16 mesh.ep=64 pipeline.schedule=dualpipev train.gradient_sync=step train.reshard_after_forward=never
    llmq 0.5B 32 24 896 4864 14 2 true 151936 149000 164000
    llmq 1.5B 32 28 1536 8960 12 2 true 151936 59000 73000
    llmq 3B 16 36 2048 11008 16 2 true 151936 31000 40000
    llmq 7B 4 28 3584 18944 28 4 false 152064 13800 -
    while read -r line; do mpt $line; done <<'ROWS'
h100-flash 1b 8 2048 14 1 none 45455
h100-flash 1b 8 4096 7 4 none 38535
h100-flash 1b 8 8192 3 4 none 29157
h100-flash 1b 8 16384 2 4 none 19649
h100-flash 1b 8 32768 1 4 none 12025
h100-flash 1b 8 65536 1 2 full 5506
h100-flash 1b 64 2048 20 1 none 44402
h100-flash 3b 8 4096 5 6 none 20964
h100-flash 3b 8 8192 3 6 none 16578
h100-flash 3b 8 16384 1 6 none 11152
h100-flash 3b 8 32768 3 6 full 5873
h100-flash 3b 8 65536 1 2 full 3262
h100-flash 3b 64 2048 6 3 none 22525
h100-flash 7b 8 1024 64 2 full 10203
h100-flash 7b 8 2048 6 1 none 10643
h100-flash 7b 8 4096 16 2 full 8611
h100-flash 7b 8 8192 8 2 full 6935
h100-flash 7b 8 32768 2 2 full 3318
h100-flash 7b 8 65536 1 2 full 1956
h100-flash 7b 128 2048 6 1 none 10475
h100-flash 7b 512 2048 6 1 none 9670
h100-flash 13b 8 1024 40 3 full 5502
h100-flash 13b 8 2048 2 1 none 4792
h100-flash 13b 8 4096 10 3 full 4717
h100-flash 13b 8 16384 3 3 full 2985
h100-flash 13b 8 32768 1 3 full 1976
h100-flash 13b 64 2048 2 1 none 4800
h100-flash 13b 512 2048 16 1 full 4952
h100-flash 30b 8 2048 3 21 full 2002
h100-flash 30b 8 8192 1 21 full 1384
h100-flash 30b 32 2048 14 3 full 2308
h100-flash 30b 512 2048 8 1 full 2115
h100-flash 70b 32 2048 2 16 full 882
h100-flash 70b 64 2048 8 4 full 1039
h100-flash 70b 512 2048 8 1 full 1007
a100-flash 1b 8 2048 14 4 none 20513
a100-flash 1b 8 8192 3 4 none 13814
a100-flash 1b 8 32768 1 4 none 6275
a100-flash 3b 8 2048 10 2 none 10811
a100-flash 3b 8 16384 1 6 none 5529
a100-flash 7b 8 2048 6 2 none 4641
a100-flash 7b 8 8192 8 2 full 3206
a100-flash 7b 8 32768 2 2 full 1672
a100-flash 7b 8 65536 1 2 full 1013
a100-flash 13b 8 2048 2 3 none 2262
a100-flash 13b 8 16384 3 3 full 1431
a100-flash 30b 8 2048 3 21 full 916
a100-flash 70b 32 2048 2 16 full 373
a100-flash 70b 64 2048 8 4 full 410
ROWS
    for how in selective:1.10:13.75:37.83:71.49 full:1.42:18.13:49.05:94.42; do
        IFS=: read -r recompute a b c d <<<"$how"
        korthikanti 22B 48 6144 64 1 1 8 4 4 $recompute $a
        korthikanti 175B 96 12288 96 8 3 64 64 1 $recompute $b
        korthikanti 530B 105 20480 128 35 3 280 280 1 $recompute $c
        korthikanti 1T 128 25600 160 64 1 512 512 1 $recompute $d
    done
    narayanan 1.7B 24 2304 24 1 1 32 512 137
    narayanan 18B 40 6144 48 8 1 256 1024 135
    narayanan 39B 48 8192 64 8 2 512 1536 138
    narayanan 146B 80 12288 96 8 8 1536 2304 148
    narayanan 310B 96 16384 128 8 16 1920 2160 155
    narayanan 530B 105 20480 128 8 35 2520 2520 163
    narayanan 1T 128 25600 160 8 64 3072 3072 163
}
wait
[ ! -e "$directory/failed" ] || exit 1

# Speed: sorted by group, else in the order above. Fitted rows have no part in a group's figures.
echo '| group | source | run | tokens/s of a rank | planned | |'
echo '|---|---|---|---:|---:|---:|'
cat "$directory"/row.* | sort -s -t $'\t' -k1,1 | awk -F '\t' '{ printf "| %s | %s | %s | %s | %s | %+.0f%% |\n", $1, $2, $3, $4, $5, 100 * ($5 / $4 - 1) }'
echo
# Figures of a group: the median of the errors' sizes, and the range of measured over planned seconds without the n / 20 rows at each end.
{
echo '| group | runs | median error | within 35% | times as long as planned |'
echo '|---|---:|---:|---:|---:|'
cat "$directory"/row.* | grep -v 'fitted)' | awk -F '\t' '{ print $1 "\t" $5 / $4; print "all\t" $5 / $4 }' | sort -s -t $'\t' -k1,1 -k2,2g | awk -F '\t' '
    function flush(  i, off, cut) {
        if (n == 0) return
        within = 0
        for (i = 1; i <= n; i++) { off = ratio[i] - 1; size[i] = off < 0 ? -off : off; within += size[i] <= 0.35 }
        for (i = 2; i <= n; i++) for (j = i; j > 1 && size[j] < size[j - 1]; j--) { t = size[j]; size[j] = size[j - 1]; size[j - 1] = t }
        cut = int(n / 20)
        printf "| %s | %d | %.0f%% | %.0f%% | %.2f to %.2f |\n", group, n, 50 * (size[int((n + 1) / 2)] + size[int((n + 2) / 2)]), 100 * within / n,
            ratio[1 + cut], ratio[n - cut]
        n = 0
    }
    $1 != group { flush(); group = $1 }
    { ratio[++n] = $2 }
    END { flush() }'
} | tee "$directory/groups"
echo
echo '| run | GiB of a rank | weft plans | + logits | |'
echo '|---|---:|---:|---:|---:|'
cat "$directory"/row.* | awk -F '\t' '$6 != "-" { printf "| %s | %s | %s | %s | %+.0f%% |\n", $3, $6, $7, $8, 100 * ($8 / $6 - 1) }'

# The ranges that `weft plan` prints are these.
status=0
for file in "$directory"/says.*; do
    grep -qF "$(awk -F ' [|] ' '{ print "| " $1 " | " $2 " |" }' "$file")" "$directory/groups" &&
        grep -F "| $(cut -d '|' -f 1 "$file")" "$directory/groups" | grep -qF "| $(sed 's/.*| //' "$file") |" && continue
    echo "plan_cases: weft plan says \"$(cat "$file")\": put the figures of the table of groups into src/forecast/published.c" >&2
    status=1
done
exit $status
