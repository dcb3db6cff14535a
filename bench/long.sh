#!/bin/sh
# Long contexts: trains on one sequence per microbatch, on four ranks that split its tokens (cp 4) and on one rank that has all of them,
# with full recompute and few rows of logits at a time. Prints a table: memory as planned and as used (peak resident, which includes 20 to
# 50 MiB of libraries per rank), seconds per step, and loss and gradient norm of the last step. With exact numerics these are equal to the
# last digit; the norm makes even a single step check the backward pass.
#
#     bench/long.sh                                        # 125M: an hour for 32,768 tokens, many for 131,072
#     CONTEXTS=131072 LAYERS=1 RANKS=4 bench/long.sh       # one block of it
#     SIZE=50M CONTEXTS=512 bench/long.sh                  # in seconds
#     bench/long.sh train.compute=bf16                     # in bf16: four ranks with 131,072 tokens fit in 24 GiB
#
# Arguments are keys of `weft train`, section.key=value. Variables:
# SIZE, LAYERS (to use fewer), CONTEXTS, STEPS, RECOMPUTE, RANKS (degrees of cp to run), THREADS (per rank; a single rank uses as many as
# the machine has) and BUILD.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build} size=${SIZE:-125M} steps=${STEPS:-1} meshes=${RANKS:-4 1} threads=${THREADS:-1}
launcher=mpirun
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    launcher="$launcher --oversubscribe --bind-to none"
    [ "$(id -u)" -ne 0 ] || launcher="$launcher --allow-run-as-root"
fi
part=$(mktemp)
trap 'rm -f "$part" "$part".err' EXIT
most=1
for ranks in $meshes; do [ "$ranks" -le "$most" ] || most=$ranks; done

# measure CONTEXT RANKS WORD...: runs it and prints a row.
measure() {
    context=$1 ranks=$2
    shift 2
    if [ "$ranks" -eq 1 ]; then start= own=$(nproc); else start="$launcher -n $ranks" own=$threads; fi
    # shellcheck disable=SC2086
    $start "$build/bench_ranks" --size "$size" ${LAYERS:+--layers "$LAYERS"} --steps "$steps" --cold --name "cp $ranks" run.threads="$own" \
        mesh.cp="$ranks" train.context="$context" train.tokens_per_step="$context" train.microbatch=1 train.recompute="${RECOMPUTE:-full}" \
        train.loss_rows=512 numerics.mode=exact numerics.cp_invariant_up_to="$most" "$@" >"$part" 2>"$part.err" || { cat "$part.err" >&2; exit 1; }
    awk -v context="$context" -v ranks="$ranks" '
    function text(key) { match($0, "\"" key "\": [^,}]*"); s = substr($0, RSTART, RLENGTH); sub(/.*: /, "", s); return s }
    function gib(key) { return text(key) / 1073741824 }
    { printf "%8d %4d %14.2f GiB %14.2f GiB %14.2f GiB %12.1f  %s  %s\n", context, ranks, gib("planned_bytes_of_a_rank"),
          gib("planned_bytes"), gib("peak_rss_bytes"), text("step_seconds"), text("loss"), text("grad_norm") }' "$part"
}

printf '%8s %4s %18s %18s %18s %12s  %s\n' context cp "a rank, planned" "all, planned" "all, used" "seconds" "loss and norm of step $steps"
for context in ${CONTEXTS:-32768 131072}; do
    for ranks in $meshes; do measure "$context" "$ranks" "$@"; done
done
