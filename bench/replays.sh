#!/bin/sh
# What check.replay_every costs: two ranks on two cores make steps of which every second one has a replay. Prints, for each step with a
# replay but the first, its time as a multiple of the mean of the steps before and after it, and the median; then the same for runs in turn
# without the key and with one that is never due, whose steps must take the same time.
#
#     bench/replays.sh build/weft TEXT
#     MODE=exact STEPS=12 ROUNDS=4 bench/replays.sh build/weft TEXT
set -eu
[ $# -eq 2 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 64; }
weft=$1 text=$2 steps=${STEPS:-11} rounds=${ROUNDS:-3} mode=${MODE:-fast}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/config.yaml" <<END
model: {hidden_size: 384, intermediate_size: 1280, num_hidden_layers: 6, num_attention_heads: 6, tie_word_embeddings: true, initialiser: normal}
data: {sources: [{path: $text}], tokenizer: bytes, cache_dir: $work/cache}
train: {steps: $steps, context: 512, microbatch: 2, tokens_per_step: 8192, compute: bf16}
numerics: {mode: $mode}
mesh: {dp_shard: 2}
checkpoint: {every: 0}
metrics: {log_freq: 1, tensorboard: false}
run: {threads: 1, dir: $work/run, overwrite: true}
comm: {transport: sockets}
END

# seconds WORD...: the seconds of each step.
seconds() {
    "$weft" train "$work/config.yaml" -n 2 -q "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    sed -n 's/.*"tokens_per_second": *\([0-9.e+]*\).*/\1/p' "$work/run/metrics.jsonl" | awk '{ print 8192 / $1 }'
}
middle() { sort -n | awk '{ v[NR] = $1 } END { print NR % 2 ? v[(NR + 1) / 2] : (v[NR / 2] + v[NR / 2 + 1]) / 2 }'; }

seconds check.replay_every=2 >"$work/steps"
awk '{ s[NR] = $1 } END { for (i = 4; i < NR; i += 2) printf "%.3f\n", 2 * s[i] / (s[i - 1] + s[i + 1]) }' "$work/steps" >"$work/ratios"
echo "a step with a replay: $(middle <"$work/ratios") times one without ($(tr '\n' ' ' <"$work/ratios"))"
: >"$work/ratios"
round=0
while [ "$round" -lt "$rounds" ]; do
    # The order alternates, so that a machine that becomes slower or faster favours neither.
    if [ $((round % 2)) -eq 0 ]; then
        off=$(seconds | tail -n +3 | middle) never=$(seconds check.replay_every=1000000 | tail -n +3 | middle)
    else
        never=$(seconds check.replay_every=1000000 | tail -n +3 | middle) off=$(seconds | tail -n +3 | middle)
    fi
    awk -v a="$off" -v b="$never" 'BEGIN { printf "%.3f\n", b / a }' >>"$work/ratios"
    round=$((round + 1))
done
echo "a key that is never due: $(middle <"$work/ratios") times without ($(tr '\n' ' ' <"$work/ratios")), of $off s"
