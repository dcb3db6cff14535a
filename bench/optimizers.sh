#!/bin/sh
# Compares two optimizers on the same tokens of one text. Each runs with several learning rates; the one that ends with the lowest
# validation loss counts. Then it reports after which share of the steps the second optimizer stays below the first one's final
# validation loss (within the same run, so before its learning rate has decayed), and its final loss when its whole schedule is
# 3/4 of the steps long. Prints a table; runs stay in OUT, for "weft report" and "weft compare".
#
#     bench/optimizers.sh TEXT TOKENIZER                         15M parameters, five rates each: hours on two cores
#     SIZE=1M STEPS=200 TOKENS=2048 bench/optimizers.sh ...      smaller
#
# Variables: BUILD, OUT, SIZE (15M, 5M, 1M), STEPS, TOKENS (per step), CONTEXT, FIRST, SECOND (optimizer.kind), FIRST_RATES,
# SECOND_RATES, MORE (section.key=value words for all runs). A complete run is not repeated.
set -eu
[ $# -eq 2 ] || { sed -n '2,12s/^# \{0,1\}//p' "$0" >&2; exit 64; }
text=$1 tokenizer=$2
weft=${BUILD:-build}/weft out=${OUT:-runs/optimizers} size=${SIZE:-15M}
steps=${STEPS:-1000} tokens=${TOKENS:-8192} context=${CONTEXT:-256}
first=${FIRST:-adamw} second=${SECOND:-muon}
first_rates=${FIRST_RATES:-5e-4 1e-3 2e-3 4e-3 8e-3} second_rates=${SECOND_RATES:-5e-4 1e-3 2e-3 4e-3 8e-3}
marks=40 # validations of a run

case $size in
15M) shape="384 1024 8 6" ;;
5M) shape="256 704 5 4" ;;
1M) shape="128 352 4 4" ;;
*) echo "bench: unknown size \"$size\"; there are 15M, 5M and 1M" >&2; exit 64 ;;
esac
mkdir -p "$out"
# shellcheck disable=SC2086
set -- $shape
cat >"$out/config.yaml" <<END
model: {hidden_size: $1, intermediate_size: $2, num_hidden_layers: $3, num_attention_heads: $4, num_key_value_heads: $4,
        tie_word_embeddings: true, initialiser: normal}
data: {sources: [{path: "$text", split: paragraphs}], tokenizer: "$tokenizer", cache_dir: "$out/cache", validation_fraction: 0.02}
train: {context: $context, microbatch: 8, tokens_per_step: $tokens}
lr_schedule: {kind: cosine, min_factor: 0.05}
validation: {samples: 128}
checkpoint: {every: 0, last_weights_only: true}
END

# train NAME STEPS WORD...: trains a run, unless it is already complete.
train() {
    name=$1 count=$2
    shift 2
    [ ! -e "$out/$name/done" ] || return 0
    every=$((count / marks))
    # shellcheck disable=SC2086
    "$weft" train "$out/config.yaml" run.dir="$out/$name" run.overwrite=true train.steps="$count" \
        lr_schedule.warmup_steps=$((count / 20)) validation.every=$((every > 0 ? every : 1)) "$@" ${MORE:-} >"$out/$name.log" 2>&1 ||
        { echo "bench: $name failed: $(tail -2 "$out/$name.log")" >&2; exit 1; }
    touch "$out/$name/done"
}
# validations NAME: prints "step loss" lines, in order.
validations() { sed -n 's/.*"kind": "validation", "step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/p' "$out/$1/metrics.jsonl"; }
last_loss() { validations "$1" | tail -1 | cut -d' ' -f2; }

# sweep KIND RATES: trains with each rate, prints a row for each, and sets best and loss.
sweep() {
    best= loss=
    for rate in $2; do
        train "$1-$rate" "$steps" optimizer.kind="$1" optimizer.lr="$rate"
        now=$(last_loss "$1-$rate")
        printf '  %-8s %-8s %s\n' "$1" "$rate" "$now"
        if [ -z "$best" ] || awk "BEGIN { exit !($now < $loss) }"; then best=$rate loss=$now; fi
    done
}

echo "$size, $steps steps of $tokens tokens, context $context: last validation loss"
sweep "$first" "$first_rates"
target=$loss first_best=$best
sweep "$second" "$second_rates"
train "$second-$best-shorter" $((steps * 3 / 4)) optimizer.kind="$second" optimizer.lr="$best"

echo
echo "best        $first $first_best: $target; $second $best: $loss"
validations "$second-$best" | awk -v target="$target" -v steps="$steps" -v name="$second" '
    $2 <= target { if (!at) at = $1 } $2 > target { at = 0 }
    END {
        if (at) printf "reached     %s is at that loss from step %d of %d on: %.0f%%\n", name, at, steps, 100 * at / steps
        else printf "reached     never\n"
    }'
echo "shorter     $second $best in 3/4 of the steps, its schedule made for them: $(last_loss "$second-$best-shorter")"
echo
echo "$first $first_best and $second $best, step by step:"
validations "$first-$first_best" >"$out/first.txt"
validations "$second-$best" | awk 'NR == FNR { first[$1] = $2; next } { printf "  %6d  %8.4f  %8.4f\n", $1, first[$1], $2 }' "$out/first.txt" -
