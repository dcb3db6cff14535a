#!/bin/sh
# Tokens/s of each mixer beside attention, in models of about as many parameters: a row a mixer with parameters, tokens/s (the median of the
# last half of the steps) and GFLOP/s. A machine with nothing else to do is asked for.
#
#     bench/mixers.sh TEXT          about 10M parameters in blocks, a minute or two a mixer on two cores
#
# BUILD, OUT, STEPS, CONTEXT, COMPUTE (fp32, bf16), THREADS.
set -eu
[ $# -eq 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 64; }
weft=${BUILD:-build}/weft out=${OUT:-runs/mixers} steps=${STEPS:-12}
mkdir -p "$out"
printf '%-10s %-12s %-12s %s\n' mixer parameters tokens/s GFLOP/s
# Blocks of 12, 8, 10, about 15.6 and about 6.8 squares of the width.
for row in "attention 8" "min_gru 12" "min_lstm 10" "hawk 6" "mamba2 14"; do
    mixer=${row% *} blocks=${row#* } family=recurrent
    [ "$mixer" != attention ] || family=llama
    word=model.mixer="$mixer"
    [ "$mixer" != attention ] || word=model.family=llama
    "$weft" train data.sources="[{path: '$1', split: paragraphs}]" data.tokenizer=bytes data.cache_dir="$out/cache" \
        model.family=$family "$word" model.hidden_size=320 model.intermediate_size=853 model.num_attention_heads=5 \
        model.num_hidden_layers="$blocks" train.context="${CONTEXT:-512}" train.microbatch=4 train.steps="$steps" \
        train.compute="${COMPUTE:-auto}" run.threads="${THREADS:-0}" run.dir="$out/$mixer" run.overwrite=true checkpoint.every=0 \
        metrics.log_freq=1 metrics.tensorboard=false >"$out/$mixer.log" 2>&1 ||
        { echo "bench: $mixer failed: $(tail -2 "$out/$mixer.log")" >&2; exit 1; }
    parameters=$(sed -n 's/^model   \([^ ]*\) parameters.*/\1/p' "$out/$mixer.log" | head -1)
    flops=$(sed -n 's/.*(\([0-9.e+-]*\) GFLOP a token.*/\1/p' "$out/$mixer.log" | head -1)
    speed=$(sed -n 's/.*"tokens_per_second": \([0-9.]*\),.*/\1/p' "$out/$mixer/metrics.jsonl" | tail -n $((steps / 2)) | sort -n |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }')
    printf '%-10s %-12s %-12.0f %.1f\n' "$mixer" "$parameters" "$speed" "$(awk -v s="$speed" -v f="$flops" 'BEGIN { print s * f }')"
done
