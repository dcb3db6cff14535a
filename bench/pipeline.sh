#!/bin/sh
# Pipeline schedules on two ranks with one thread each: compares the step time and the bubble that the simulator predicts from
# measured costs with the measured ones (metrics.trace). Each round runs all schedules, since machines drift. Prints a table with
# medians over all traced steps on stderr; on stdout, for bench/results.json:
#
#     "pipeline": [one schedule per line]
#
# SCHEDULES, LAYERS, WIDTH, CONTEXT, MICROBATCHES, STEPS (traced steps per run) and ROUNDS make it smaller:
#
#     SCHEDULES="1f1b zbv" WIDTH=256 ROUNDS=1 bench/pipeline.sh
set -eu
cd "$(dirname "$0")/.."
weft=$(cd "${BUILD:-build}" && pwd)/weft
schedules=${SCHEDULES:-1f1b interleaved_1f1b zb_h1 interleaved_zero_bubble zbv}
layers=${LAYERS:-8} width=${WIDTH:-384} context=${CONTEXT:-256} microbatches=${MICROBATCHES:-8} steps=${STEPS:-5} rounds=${ROUNDS:-3}
part=$(mktemp -d)
trap 'rm -rf "$part"' EXIT

awk 'BEGIN { for (i = 0; i < 40000; i++) printf "%d sheep, ", i * 7919 % 10007 }' >"$part/text.txt"
cat >"$part/run.yaml" <<EOF2
model: {hidden_size: $width, intermediate_size: $((8 * width / 3 / 32 * 32)), num_hidden_layers: $layers, num_attention_heads: $((width / 64))}
data: {sources: [{path: $part/text.txt}], cache_dir: $part/cache}
train: {steps: $((steps + 2)), context: $context, microbatch: 1}
mesh: {pp: 2}
pipeline: {microbatches: $microbatches}
checkpoint: {every: 0, last_weights_only: true}
metrics: {trace: 3-$((steps + 2)), log_freq: 1000, tensorboard: false}
run: {threads: 1, overwrite: true}
EOF2

round=0
while [ "$round" -lt "$rounds" ]; do
    for schedule in $schedules; do
        run=$part/run
        "$weft" train -n 2 "$part/run.yaml" run.dir="$run" pipeline.schedule="$schedule" >"$part/out" 2>&1 || {
            cat "$part/out" >&2
            exit 1
        }
        sed -n "s/.*\"event\": \"traced\".*/&/p" "$run/journal.jsonl" | sed "s/^/$schedule /" >>"$part/traced"
        rm -rf "$run"
    done
    round=$((round + 1))
done

awk -v layers="$layers" -v width="$width" -v context="$context" -v microbatches="$microbatches" '
function number(key) {
    if (!match($0, "\"" key "\": [^,}]*")) return 0
    return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0
}
function median(from, n,    i, j, swap, list) {
    for (i = 1; i <= n; i++) list[i] = from[i]
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && list[j] < list[j - 1]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}
# Returns the median of one figure of a schedule.
function figure(name, what,    i, list) {
    for (i = 1; i <= count[name]; i++) list[i] = seen[name, what, i]
    return median(list, count[name])
}
{
    if (!($1 in count)) order[++names] = $1
    n = ++count[$1]
    seen[$1, "seconds", n] = number("seconds"); seen[$1, "predicted_seconds", n] = number("predicted_seconds")
    seen[$1, "bubble", n] = number("bubble"); seen[$1, "predicted_bubble", n] = number("predicted_bubble")
    seen[$1, "error", n] = number("seconds") / number("predicted_seconds") - 1
}
END {
    printf "%d layers of width %d, %d microbatches of %d tokens, 2 ranks of 1 thread\n", layers, width, microbatches, context \
        >"/dev/stderr"
    printf "%-26s %10s %10s %9s %10s %10s\n", "", "predicted", "measured", "", "bubble", "measured" >"/dev/stderr"
    for (i = 1; i <= names; i++) {
        name = order[i]
        printf "%-26s %8.3f s %8.3f s %+7.1f %% %8.1f %% %8.1f %%\n", name, figure(name, "predicted_seconds"),
            figure(name, "seconds"), 100 * figure(name, "error"), 100 * figure(name, "predicted_bubble"),
            100 * figure(name, "bubble") >"/dev/stderr"
        printf "%s    {\"schedule\": \"%s\", \"steps\": %d, \"predicted_seconds\": %.4f, \"seconds\": %.4f, " \
            "\"predicted_bubble\": %.4f, \"bubble\": %.4f}", (i == 1 ? "  \"pipeline\": [\n" : ",\n"), name, count[name],
            figure(name, "predicted_seconds"), figure(name, "seconds"), figure(name, "predicted_bubble"), figure(name, "bubble")
    }
    printf "\n  ]"
}' "$part/traced"
