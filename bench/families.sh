#!/bin/sh
# Compares blocks of other kinds with a plain block of the same cost. Prints a row per model: parameters, tokens/s (the median of the last
# half of the steps), GFLOP/s, the share of the matrix-product peak, and the ratio of GFLOP/s to the first row in the same round (the median
# of ROUNDS). Run it on an otherwise idle machine.
#
#     bench/families.sh mixers TEXT       recurrent mixers and attention, about 10M parameters in blocks
#     bench/families.sh blocks TEXT       Qwen3's blocks (0.6B), others of the same sizes, and Llama's
#     bench/families.sh experts TEXT      OLMoE's layer, scaled down, and a dense one with as many FLOPs per token
#
# Variables: BUILD, OUT, STEPS, CONTEXT, MICROBATCH, TOKENS (per step), COMPUTE (fp32, bf16), THREADS, ROUNDS.
set -eu
[ $# -eq 2 ] || { sed -n '2,11s/^# \{0,1\}//p' "$0" >&2; exit 64; }
weft=${BUILD:-build}/weft out=${OUT:-runs/families} steps=${STEPS:-8} text=$2
context=${CONTEXT:-1024} microbatch=${MICROBATCH:-2} tokens=${TOKENS:-8192}

# Each row: its name, then the keys of `model` in which it differs from its set.
case $1 in
mixers) # parameters of a block: 12, 8, 10, about 15.6 and about 6.8 times the width squared
    keys="hidden_size=320 intermediate_size=853 num_attention_heads=5"
    rows="attention family=llama num_hidden_layers=8
min_gru family=recurrent mixer=min_gru num_hidden_layers=12
min_lstm family=recurrent mixer=min_lstm num_hidden_layers=10
hawk family=recurrent mixer=hawk num_hidden_layers=6
mamba2 family=recurrent mixer=mamba2 num_hidden_layers=14" ;;
blocks)
    keys="hidden_size=1024 intermediate_size=3072 num_attention_heads=16 num_key_value_heads=8 head_dim=128 num_hidden_layers=4"
    rows="llama family=llama
qwen3 family=qwen3
gemma2 family=gemma2
olmo2 family=olmo2" ;;
experts) # a token uses 8 of 64 experts of width 512: 4,096 in all
    keys="hidden_size=1024 num_attention_heads=8 num_hidden_layers=2"
    rows="dense family=llama intermediate_size=4096
olmoe family=olmoe intermediate_size=512 num_experts=64 num_experts_per_tok=8
mixtral family=mixtral intermediate_size=2048 num_experts=8 num_experts_per_tok=2" ;;
*) echo "bench: $1 is none of mixers, blocks, experts" >&2; exit 64 ;;
esac
mkdir -p "$out"
cat >"$out/bench.yaml" <<EOF
data: {sources: [{path: '$text', split: paragraphs}], tokenizer: bytes, cache_dir: $out/cache}
train: {context: $context, microbatch: $microbatch, tokens_per_step: $tokens, steps: $steps, compute: ${COMPUTE:-auto}}
run: {threads: ${THREADS:-0}, overwrite: true}
checkpoint: {every: 0}
metrics: {log_freq: 1, tensorboard: false}
EOF

# measure ROW ROUND: runs it and prints a line: name, round, parameters, tokens/s, GFLOP/s, share of the peak.
measure() {
    name=${1%% *} log=$out/${1%% *}.log words=
    for key in $keys ${1#* }; do words="$words model.$key"; done
    # shellcheck disable=SC2086
    "$weft" train "$out/bench.yaml" $words run.dir="$out/$name" >"$log" 2>&1 || { echo "bench: $name failed: $(tail -2 "$log")" >&2; exit 1; }
    parameters=$(sed -n 's/^model   \([^ ]*\) parameters.*/\1/p' "$log" | head -1)
    flops=$(sed -n 's/.*(\([0-9.e+-]*\) GFLOP a token.*/\1/p' "$log" | head -1)
    speed=$(last_half tokens_per_second) share=$(last_half mfu)
    echo "$name $2 $parameters $speed $(awk -v s="$speed" -v f="$flops" 'BEGIN { print s * f }') $share"
}

last_half() {
    sed -n "s/.*\"$1\": \([0-9.]*\),.*/\1/p" "$out/$name/metrics.jsonl" | tail -n $(((steps + 1) / 2)) | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}

round=1
while [ "$round" -le "${ROUNDS:-1}" ]; do
    echo "$rows" | while read -r row; do measure "$row" "$round"; done
    round=$((round + 1))
done >"$out/$1.txt"

awk 'function median(list,   v, n, i, j, x) {
         n = split(list, v, " ")
         for (i = 2; i <= n; i++) { x = v[i]; for (j = i - 1; j > 0 && v[j] + 0 > x + 0; j--) v[j + 1] = v[j]; v[j + 1] = x }
         return v[int((n + 1) / 2)]
     }
     !($1 in size) { order[++rows] = $1; size[$1] = $3 }
     $1 == order[1] { base[$2] = $5 }
     { speed[$1] = speed[$1] " " $4; rate[$1] = rate[$1] " " $5; share[$1] = share[$1] " " $6; ratio[$1] = ratio[$1] " " $5 / base[$2] }
     END {
         printf "%-10s %-12s %-10s %-9s %-14s %s\n", "model", "parameters", "tokens/s", "GFLOP/s", "share of peak", "ratio"
         for (i = 1; i <= rows; i++) {
             m = order[i]
             printf "%-10s %-12s %-10.0f %-9.0f %-14.2f %.3f\n", m, size[m], median(speed[m]), median(rate[m]), median(share[m]), median(ratio[m])
         }
     }' "$out/$1.txt"
