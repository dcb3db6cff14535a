#!/bin/sh
# Compares steps on meshes of ranks with one process that has as many threads, in pairs (base, layout, base, layout, ...), since
# machines drift; then the bandwidth of the collectives with that of MPI's own. Prints a table on stderr; on stdout, for
# bench/results.json:
#
#     "ranks": [summaries],  "ranks_runs": [every run],  "collectives": [...]
#
# SIZE, CONTEXT, TOKENS (per step), MICROBATCH (sequences), STEPS (the fastest counts), ROUNDS (pairs of each layout),
# LAYOUTS and BANDWIDTH=no make it smaller:
#
#     SIZE=5M CONTEXT=256 TOKENS=4096 ROUNDS=1 bench/ranks.sh
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
layouts=${LAYOUTS:-ddp fsdp-always fsdp-never ddp-exact one-exact}
size=${SIZE:-125M} context=${CONTEXT:-1024} tokens=${TOKENS:-16384} steps=${STEPS:-1} rounds=${ROUNDS:-2}
part=$(mktemp)
trap 'rm -f "$part" "$part".*' EXIT
: >"$part.runs"
: >"$part.collectives"
launcher="mpirun -n 2"
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    launcher="$launcher --oversubscribe --bind-to none"
    [ "$(id -u)" -ne 0 ] || launcher="$launcher --allow-run-as-root"
fi

# words LAYOUT: sets the configuration words of a layout.
words() {
    case $1 in
    base) ;;
    one-exact) echo numerics.mode=exact ;;
    ddp) echo mesh.dp_replicate=2 ;;
    ddp-exact) echo mesh.dp_replicate=2 numerics.mode=exact ;;
    fsdp-always) echo mesh.dp_shard=2 train.reshard_after_forward=always ;;
    fsdp-never) echo mesh.dp_shard=2 train.reshard_after_forward=never ;;
    pp) echo mesh.pp=2 ;;
    tp) echo mesh.tp=2 ;;
    cp) echo mesh.cp=2 ;;
    one-splits) echo numerics.tp_invariant_up_to=8 ;;
    *) echo "bench: unknown layout \"$1\"; there are ddp, ddp-exact, fsdp-always, fsdp-never, pp, tp, cp, one-exact and one-splits" >&2; return 2 ;;
    esac
}

measure() {
    chosen=$(words "$1")
    case $1 in
    base | one-*) start= threads=2 ;;
    *) start=$launcher threads=1 ;;
    esac
    # shellcheck disable=SC2086
    $start "$build/bench_ranks" --name "$1" --size "$size" --steps "$steps" run.threads=$threads train.context="$context" \
        train.tokens_per_step="$tokens" ${MICROBATCH:+train.microbatch=$MICROBATCH} $chosen >>"$part.runs"
}

for layout in $layouts; do words "$layout" >/dev/null; done
round=0
while [ "$round" -lt "$rounds" ]; do
    for layout in $layouts; do
        measure base
        measure "$layout"
    done
    round=$((round + 1))
done

# Prints tokens/s of every layout, best and median, and the ratio to the base run just before it.
awk '
function number(key) {
    if (!match($0, "\"" key "\": [^,}]*")) return 0
    return substr($0, RSTART + length(key) + 4, RLENGTH - length(key) - 4) + 0
}
function median(list, n,    i, j, swap) {
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && list[j] < list[j - 1]; j--) { swap = list[j]; list[j] = list[j - 1]; list[j - 1] = swap }
    return n % 2 ? list[(n + 1) / 2] : (list[n / 2] + list[n / 2 + 1]) / 2
}
function summarise(name,    n, i, rates, ratios) {
    n = count[name]
    for (i = 1; i <= n; i++) { rates[i] = rate[name, i]; ratios[i] = ratio[name, i] }
    middle = median(rates, n); best = rates[n]
    middle_ratio = median(ratios, n); best_ratio = ratios[n]
    printf "%-12s %5d x %d %12.1f %12.1f %8.3f %8.3f %7.1f%% %9.2f GiB %9.2f%% %7.2f%%\n", name, ranks[name], threads[name],
        best, middle, best_ratio, middle_ratio, 100 * share[name], memory[name] / 1073741824,
        100 * waited[name], 100 * norm[name] >"/dev/stderr"
    printf "{\"name\": \"%s\", \"ranks\": %d, \"threads\": %d, \"runs\": %d, \"best_tokens_per_second\": %.1f, " \
        "\"median_tokens_per_second\": %.1f, \"best_ratio\": %.4f, \"median_ratio\": %.4f}\n", name, ranks[name],
        threads[name], n, best, middle, best_ratio, middle_ratio
}
{
    match($0, /"name": "[^"]*"/)
    name = substr($0, RSTART + 9, RLENGTH - 10)
    if (!(name in count)) order[++names] = name
    n = ++count[name]
    now = number("tokens_per_second")
    if (name == "base") base = now
    rate[name, n] = now
    ratio[name, n] = now / base
    ranks[name] = number("ranks"); threads[name] = number("threads"); memory[name] = number("planned_bytes_of_a_rank")
    if (now > top[name]) {
        top[name] = now
        share[name] = number("share_of_peak")
        waited[name] = number("waited_seconds") / number("step_seconds")
        norm[name] = number("norm_seconds") / number("step_seconds")
    }
}
END {
    printf "%-12s %9s %12s %12s %8s %8s %8s %13s %10s %8s\n", "", "ranks", "tokens/s", "median", "ratio", "median", "of peak",
        "a rank", "waited", "norm" >"/dev/stderr"
    for (i = 1; i <= names; i++) summarise(order[i])
}' "$part.runs" >"$part.summary"

# shellcheck disable=SC2086
[ "${BANDWIDTH:-yes}" = no ] || $launcher "$build/bench_comm" >"$part.collectives"

list() { [ ! -s "$1" ] || sed '$!s/$/,/; s/^/    /' "$1"; }
printf '  "ranks": [\n'
list "$part.summary"
printf '  ],\n  "ranks_runs": [\n'
list "$part.runs"
printf '  ],\n  "collectives": [\n'
list "$part.collectives"
printf '  ]'
