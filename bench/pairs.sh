#!/bin/sh
# Measures what a change does to tokens/s: two builds of weft train the same models on the same meshes in turn (before, after,
# after, before, ...), since machines drift. The fastest step after the first counts. Prints a table: the rates of each pair's
# fastest steps, the median of the pairs' ratios after/before, and whether the last losses had the same bits.
#
#     bench/pairs.sh BEFORE/weft AFTER/weft TEXT TOKENIZER
#     SIZES=15M COMPUTES=fp32 MESHES=pp ROUNDS=5 bench/pairs.sh ...
set -eu
[ $# -eq 4 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 64; }
before=$1 after=$2 text=$3 tokenizer=$4
sizes=${SIZES:-15M 125M} computes=${COMPUTES:-fp32 bf16} meshes=${MESHES:-ddp pp} rounds=${ROUNDS:-3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launcher="mpirun -n 2"
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    launcher="$launcher --oversubscribe --bind-to none"
    [ "$(id -u)" -ne 0 ] || launcher="$launcher --allow-run-as-root"
fi

# model SIZE: sets the model, and the tokens per step so that a step takes a few seconds.
model() {
    case $1 in
    15M) shape="384 1280 6 6" tokens=4096 steps=6 ;;
    125M) shape="768 2048 12 12" tokens=2048 steps=4 ;;
    *) echo "bench: unknown size \"$1\"; there are 15M and 125M" >&2; exit 2 ;;
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
  tie_word_embeddings: true
  initialiser: normal
data:
  sources:
    - path: $text
  tokenizer: $tokenizer
  cache_dir: $work/cache
train:
  steps: $steps
  context: 512
  microbatch: 2
  tokens_per_step: $tokens
checkpoint:
  every: 0
metrics:
  log_freq: 1
END
}

# measure WEFT COMPUTE MESH: prints "tokens/s loss".
measure() {
    case $3 in
    ddp) mesh="mesh.dp_replicate=2" ;;
    pp) mesh="mesh.pp=2" ;;
    tp) mesh="mesh.tp=2" ;;
    *) echo "bench: unknown mesh \"$3\"; there are ddp, pp and tp" >&2; exit 2 ;;
    esac
    # shellcheck disable=SC2086
    $launcher "$1" train "$work/config.yaml" -q run.dir="$work/run" run.overwrite=true run.threads=1 train.compute="$2" $mesh \
        >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
    awk '
        function number(key) { match($0, "\"" key "\": *[-+.eE0-9]+"); s = substr($0, RSTART, RLENGTH); sub(/.*: */, "", s); return s }
        /"tokens_per_second"/ { if (n++ && number("tokens_per_second") + 0 > best) best = number("tokens_per_second") + 0; loss = number("loss") }
        END { print best, loss }' "$work"/run/metrics.jsonl
}

printf '%-5s %-5s %-4s  %10s %10s  %7s  %s\n' size dtype mesh before after ratio pairs
for size in $sizes; do
    model "$size"
    for compute in $computes; do
        for mesh in $meshes; do
            round=0
            : >"$work/pairs"
            while [ "$round" -lt "$rounds" ]; do
                # The order alternates, so that a machine that becomes slower or faster favours neither build.
                if [ $((round % 2)) -eq 0 ]; then
                    a=$(measure "$before" "$compute" "$mesh") b=$(measure "$after" "$compute" "$mesh")
                else
                    b=$(measure "$after" "$compute" "$mesh") a=$(measure "$before" "$compute" "$mesh")
                fi
                echo "$a $b" >>"$work/pairs"
                round=$((round + 1))
            done
            awk -v name="$(printf '%-5s %-5s %-4s' "$size" "$compute" "$mesh")" '
                { ratio[NR] = $3 / $1; list = list sprintf(" %.3f", $3 / $1); if ($1 > a) a = $1; if ($3 > b) b = $3
                  same += $2 == $4 }
                END {
                    for (i = 2; i <= NR; i++)
                        for (j = i; j > 1 && ratio[j] < ratio[j - 1]; j--) { t = ratio[j]; ratio[j] = ratio[j - 1]; ratio[j - 1] = t }
                    m = NR % 2 ? ratio[(NR + 1) / 2] : (ratio[NR / 2] + ratio[NR / 2 + 1]) / 2
                    printf "%s  %10.1f %10.1f  %7.3f %s  losses %s\n", name, a, b, m, list, same == NR ? "alike" : "differ"
                }' "$work/pairs"
        done
    done
done
