#!/bin/sh
# How threads wait (docs/lab/performance.md, "Other programs on the same cores"): trains and generates with each setting in turn, alongside
# LOAD busy loops. The order alternates, since machines drift. Prints a table: medians of tokens/s, and of the ratios to the first setting.
#
#     bench/waiting.sh BUILD/weft [OTHER/weft]
#     LOAD=2 SIZES=15M ROUNDS=9 THREADS=2 bench/waiting.sh build/weft
#
# Settings: "passive" (OMP_WAIT_POLICY=passive), "usual" (no environment variable), "other" (none, the other program), and
# "spin=N" (GOMP_SPINCOUNT=N). SETTINGS selects some of them.
set -eu
[ $# -ge 1 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 64; }
weft=$1 other=${2:-}
settings=${SETTINGS:-passive usual${other:+ other}} sizes=${SIZES:-tiny 15M} rounds=${ROUNDS:-5} load=${LOAD:-0}
threads=${THREADS:-$(nproc)}
unset OMP_WAIT_POLICY GOMP_SPINCOUNT KMP_BLOCKTIME
work=$(mktemp -d)
loops=
finish() {
    # shellcheck disable=SC2086
    [ -z "$loops" ] || kill $loops
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM

# Text from a small vocabulary, with a fixed pseudorandom generator.
awk 'BEGIN { for (i = 0; i < 60000; i++) { x = (x * 1103515245 + 12345) % 2147483648; printf "w%d%s", int(x / 65536) % 997, i % 12 == 11 ? "\n" : " " } }' >"$work/text.txt"
"$weft" tokenizer train "$work/text.txt" --vocab 1024 --out "$work/tokenizer.json" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

configure() {
    case $1 in
    tiny) shape="64 192 2 4" steps=${STEPS:-40} tokens=512 context=64 made=100 ;;
    15M) shape="384 1280 6 6" steps=${STEPS:-4} tokens=1024 context=256 made=50 ;;
    *) echo "bench: unknown size \"$1\"; there are tiny and 15M" >&2; exit 2 ;;
    esac
    # shellcheck disable=SC2086
    set -- $shape
    cat >"$work/config.yaml" <<END
model:
  hidden_size: $1
  intermediate_size: $2
  num_hidden_layers: $3
  num_attention_heads: $4
  num_key_value_heads: $4
data:
  sources:
    - path: $work/text.txt
  tokenizer: $work/tokenizer.json
  cache_dir: $work/cache
run:
  dir: $work/run
  overwrite: true
  threads: $threads
train:
  steps: $steps
  context: $context
  microbatch: 4
  tokens_per_step: $tokens
  compute: fp32
lr_schedule:
  warmup_steps: 2
END
}

# under SETTING WORD...: runs the setting's program in the setting's environment.
under() {
    setting=$1
    shift
    case $setting in
    passive) OMP_WAIT_POLICY=passive "$weft" "$@" ;;
    usual) "$weft" "$@" ;;
    other) "$other" "$@" ;;
    spin=*) GOMP_SPINCOUNT=${setting#spin=} "$weft" "$@" ;;
    *) echo "bench: unknown setting \"$setting\"" >&2; exit 2 ;;
    esac
}

quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }

# Prints tokens/s over all steps but the first.
train() {
    quietly under "$1" train "$work/config.yaml" -q metrics.log_freq=1 checkpoint.every=0
    awk '{ match($0, /"tokens_per_second": *[-+.eE0-9]+/); s = substr($0, RSTART, RLENGTH); sub(/.*: */, "", s)
           if (RSTART && n++) { seconds += 1 / s; k++ } } END { print k / seconds }' "$work/run/metrics.jsonl"
}
generate() {
    quietly under "$1" generate "$work/model" --prompt w1 --tokens "$made" --ignore-end --seed 1 --threads "$threads"
    sed -n 's/.* s, \([0-9.]*\) tokens\/s.*/\1/p' "$work/log"
}

# median N FILE: prints the median of column N.
median() { awk -v n="$1" '{ print $n }' "$2" | sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }

i=0
while [ "$i" -lt "$load" ]; do
    sh -c 'while :; do :; done' &
    loops="$loops $!"
    i=$((i + 1))
done
printf '%-5s %-9s %-12s %12s %8s  %s\n' size verb setting tokens/s ratio "all ratios"
for size in $sizes; do
    configure "$size"
    quietly "$weft" train "$work/config.yaml" -q train.steps=1 lr_schedule.warmup_steps=1 checkpoint.every=1
    rm -rf "$work/model"
    cp -r "$(find "$work/run/checkpoints" -maxdepth 1 -name 'step-*' | sort | tail -1)" "$work/model"
    for verb in train generate; do
        rm -f "$work"/of-*
        round=0
        while [ "$round" -lt "$rounds" ]; do
            order=$settings
            [ $((round % 2)) -eq 0 ] || order=$(echo "$settings" | tr ' ' '\n' | sed '1!G;h;$!d')
            for setting in $order; do "$verb" "$setting" >>"$work/of-$setting"; done
            round=$((round + 1))
        done
        for setting in $settings; do
            paste -d ' ' "$work/of-${settings%% *}" "$work/of-$setting" | awk '{ print $2, $2 / $1 }' >"$work/pairs"
            printf '%-5s %-9s %-12s %12.1f %8.3f  %s\n' "$size" "$verb" "$setting" "$(median 1 "$work/pairs")" "$(median 2 "$work/pairs")" \
                "$(awk '{ printf "%.2f ", $2 }' "$work/pairs")"
        done
    done
done
