#!/bin/bash
# Compares published runs of other trainers with weft's plans for them: `make plan-cases`, docs/lab/published-runs.md.
#
# Each run is planned as weft would run it (bf16, weft's memory and schedules) on the stated hardware. Where the trainer used
# something that weft lacks (float8, asynchronous TP, partial sums in bf16), the hardware description models it. The table has the
# memory that weft plans, and that memory plus the framework's unsharded logits where those are known.
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
slow='compute: {share: 0.47, float8_share: 0.34, attention_share: 0.24, float8: %s}'
memory='memory: {gib: 95, gb_per_s: 2400}'
links='links: {narrow_sums: true, hidden_share: %s}'
machine bf16 "${slow/\%s/false}" "$memory" "${links/\%s/0}"
machine bf16-async "${slow/\%s/false}" "$memory" "${links/\%s/0.45}"
machine float8 "${slow/\%s/true}" "$memory" "${links/\%s/0}"
machine float8-async "${slow/\%s/true}" "$memory" "${links/\%s/0.45}"
# H100 at 700 W: as h100, except for what the other trainers do differently. The share of h100 was chosen knowing the first run of row 6.
machine h100 "${links/\%s/0}"
machine h100-float8 'compute: {float8: true}' "${links/\%s/0.45}"


shown=0
# run ROW NAME MODEL RANKS MACHINE TOKENS GIB ROWS TP WORDS...: plans a run and prints a row. TOKENS and GIB: the published tokens/s and
# GiB of a rank (- where there is none). ROWS: rows of full logits that the framework held, sharded over TP ranks, at 12 bytes per logit:
# bf16, fp32, and the gradients of both.
run() {
    local row=$1 name=$2 model=$3 ranks=$4 machine=$5 tokens=$6 memory=$7 rows=$8 tp=$9 planned used
    "$weft" plan "$configs/$model.yaml" -n "$ranks" train.compute=bf16 --hardware "$directory/$machine.yaml" "${@:10}" >"$directory/out" 2>"$directory/err" ||
        { echo "$row $name: $(cat "$directory/err")"; return 1; }
    planned=$(sed -n 's/^  step .* tokens\/s, \([0-9,]*\) of each rank.*/\1/p' "$directory/out" | tr -d ,)
    used=$(sed -n 's/^  memory of rank [0-9]*: \([0-9.]*\) \([A-Za-z]*\) of .*/\1 \2/p' "$directory/out")
    [ $((shown++)) -gt 0 ] || printf '%-4s%-52s%9s %9s %7s %9s %9s %9s %7s\n' row run tokens/s planned '' GiB planned +logits ''
    awk -v row="$row" -v name="$name" -v tokens="$tokens" -v planned="$planned" -v memory="$memory" -v used="$used" -v rows="$rows" -v tp="$tp" '
        function off(a, b) { return b == "-" ? "" : sprintf("%+.0f%%", 100 * (a / b - 1)) }
        BEGIN {
            split(used, u, " "); gib = u[1] * (u[2] == "TiB" ? 1024 : u[2] == "GiB" ? 1 : 1 / 1024)
            logits = rows * 128256 / tp * 12 / 1024 ^ 3
            printf "%-4s%-52s%9s %9d %7s %9s %9.1f %9s %7s\n", row, name, tokens, planned, off(planned, tokens), memory, gib,
                (logits > 0) ? sprintf("%.1f", gib + logits) : "-", off(gib + logits, memory)
        }'
}
# step SEQUENCES CONTEXT RANKS: prints the keys for steps of SEQUENCES sequences of CONTEXT tokens on each of RANKS data-parallel ranks.
step() { echo "train.context=$2 train.tokens_per_step=$(($1 * $2 * $3)) model.max_position_embeddings=$(($2 > 131072 ? $2 : 131072))"; }

# Words of `step` are several arguments.
# shellcheck disable=SC2046
{
    run 0 "TorchTitan 8B, 8 ranks, bf16 (fitted)" llama3-8b 8 bf16 6667 77.0 16384 1 $(step 2 8192 8) train.microbatch=2 train.recompute=selective
    run 0 "TorchTitan 8B, 8 ranks, float8 (fitted)" llama3-8b 8 float8 8532 76.8 16384 1 $(step 2 8192 8) train.microbatch=2 train.recompute=selective
    run 1 "TorchTitan 8B, 8 ranks, 32k (attention fitted)" llama3-8b 8 float8 3890 83.9 32768 1 $(step 1 32768 8) train.recompute=full
    run 1 "TorchTitan 8B, 8 ranks, 64k, cp 2" llama3-8b 8 float8 2540 84.2 32768 1 $(step 1 65536 4) train.recompute=full mesh.cp=2
    run 1 "TorchTitan 8B, 8 ranks, 128k, cp 4" llama3-8b 8 float8 1071 84.0 32768 1 $(step 1 131072 2) train.recompute=full mesh.cp=4
    run 1 "TorchTitan 8B, 8 ranks, 256k, cp 8" llama3-8b 8 float8 548 84.5 32768 1 $(step 1 262144 1) train.recompute=full mesh.cp=8
    big="mesh.tp=8 train.microbatch=16 train.recompute=full"
    run 2 "TorchTitan 70B, 256 ranks, tp 8, float8" llama3-70b 256 float8 829 71.9 131072 8 $(step 16 8192 32) $big
    run 2 "TorchTitan 70B, 256 ranks, tp 8, float8, async tp" llama3-70b 256 float8-async 876 67.6 131072 8 $(step 16 8192 32) $big
    huge="mesh.tp=8 mesh.pp=8 train.recompute=full"
    run 3 "TorchTitan 405B, 512 ranks, tp 8 pp 8, 1F1B" llama3-405b 512 float8-async 100 82.5 32768 8 $(step 32 8192 8) $huge train.microbatch=4 pipeline.schedule=1f1b
    run 3 "TorchTitan 405B, 512 ranks, tp 8 pp 8, interleaved" llama3-405b 512 float8-async 128 72.7 32768 8 $(step 32 8192 8) $huge train.microbatch=4 pipeline.schedule=interleaved_1f1b
    run 4 "TorchTitan 405B, 512 ranks, tp 8 pp 8, 32k" llama3-405b 512 float8-async 76 75.3 32768 8 $(step 8 32768 8) $huge train.microbatch=1 pipeline.schedule=1f1b
    run 4 "TorchTitan 405B, 512 ranks, tp 8 pp 8, 64k, cp 2" llama3-405b 512 float8-async 47 75.9 32768 8 $(step 8 65536 4) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=2
    run 4 "TorchTitan 405B, 512 ranks, tp 8 pp 8, 128k, cp 4" llama3-405b 512 float8-async 31 77.1 32768 8 $(step 8 131072 2) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=4
    run 4 "TorchTitan 405B, 512 ranks, tp 8 pp 8, 256k, cp 8" llama3-405b 512 float8-async 16 84.9 32768 8 $(step 8 262144 1) $huge train.microbatch=1 pipeline.schedule=1f1b mesh.cp=8
    run 5 "TorchTitan 70B, 256 ranks, tp 8, bf16" llama3-70b 256 bf16 597 - 0 8 $(step 16 8192 32) $big
    run 5 "TorchTitan 70B, 256 ranks, tp 8, bf16, async tp" llama3-70b 256 bf16-async 652 - 0 8 $(step 16 8192 32) $big
    run 5 "TorchTitan 8B, 64 ranks, tp 8, bf16" llama3-8b 64 bf16 4378 - 0 8 $(step 12 8192 8) mesh.tp=8 train.microbatch=12 train.recompute=selective
    run 5 "TorchTitan 8B, 64 ranks, tp 8, bf16, async tp" llama3-8b 64 bf16-async 4809 - 0 8 $(step 12 8192 8) mesh.tp=8 train.microbatch=12 train.recompute=selective
    # 430, 400 and 380 TFLOP/s per rank, at 2.52 TFLOP per token for context 8,192 and 4.05 for 131,072: 6 N plus causal attention.
    meta="mesh.tp=8 mesh.pp=16 train.microbatch=1 train.recompute=none pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=8"
    run 6 "Llama 3 405B, 8,192 ranks, tp 8 pp 16" llama3-405b 8192 h100 171 - 0 8 $(step 32 8192 64) $meta
    run 6 "Llama 3 405B, 16,384 ranks, tp 8 pp 16" llama3-405b 16384 h100 159 - 0 8 $(step 16 8192 128) $meta
    run 6 "Llama 3 405B, 16,384 ranks, tp 8 cp 16 pp 16, 128k" llama3-405b 16384 h100 94 - 0 8 $(step 16 131072 8) $meta mesh.cp=16
    run 8 "NVIDIA 405B, 1,024 ranks, tp 8 pp 8 cp 2, float8" llama3-405b 1024 h100-float8 292 - 0 8 $(step 64 8192 8) mesh.tp=8 mesh.pp=8 mesh.cp=2 train.microbatch=1 train.recompute=none pipeline.schedule=interleaved_1f1b pipeline.stages_per_rank=8
}
