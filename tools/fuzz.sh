#!/bin/bash
# Runs the fuzz targets under libFuzzer, two at a time, and prints a line for each: executions, coverage, verdict.
#   tools/fuzz.sh [SECONDS [TARGET...]]     60 seconds for each target
# SEED=N draws the same inputs again, as many as fit in that time; without it each run draws different ones.
# RUNS=N ends each target after N inputs instead of SECONDS; JOBS=1 runs one target at a time.
# Inputs that reach new code are collected in BUILD/corpus/TARGET, where the next run starts. Inputs that break a target are in
# BUILD/crashes. Exit status 1 if anything broke.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${BUILD:-build-fuzz}
seconds=${1:-60}
shift || true
limit=-max_total_time=$seconds
[ -z "${RUNS:-}" ] || limit=-runs=$RUNS

find_clang() {
    local name
    for name in "${CLANG:-clang}" clang-18 clang-17 clang-16 clang-15 clang-14; do
        command -v "$name" && return
    done
    echo "fuzz: clang is not here (apt-get install clang libomp-dev)" >&2
    return 1
}

compile() {
    cmake -S . -B "$build" -DCMAKE_C_COMPILER="$(find_clang)" -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_C_FLAGS_RELWITHDEBINFO="-O2 -g1 -DNDEBUG" \
        -DWEFT_FUZZ=ON -DWEFT_WERROR=ON
    cmake --build "$build" -j "$(nproc)" --target fuzzers
}

# Runs one target: prints a line on stdout, and the log on stderr if the target broke.
fuzz() {
    local name=$1 log="$build/$1.log" verdict=ok runs coverage
    mkdir -p "$build/corpus/$name" "$build/crashes"
    "$build/fuzz_$name" "$limit" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=512 -max_len=16384 -seed="${SEED:-0}" \
        -print_final_stats=1 -artifact_prefix="$build/crashes/$name-" \
        "$build/corpus/$name" "tests/fuzz/corpus/$name" >"$log" 2>&1 || verdict=BROKEN
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    coverage=$(sed -n 's/.* cov: \([0-9]*\) .*/\1/p' "$log" | tail -n 1)
    printf '%-14s %12s executions  %6s edges  %s\n' "$name" "${runs:-?}" "${coverage:-?}" "$verdict"
    [ "$verdict" = ok ] || { tail -n 40 "$log" >&2; return 1; }
}

mkdir -p "$build"
compile >"$build/configure.log" 2>&1 || { tail -n 40 "$build/configure.log"; exit 1; }
if [ $# -eq 0 ]; then
    for source in tests/fuzz/fuzz_*.c; do
        name=${source##*/fuzz_}
        set -- "$@" "${name%.c}"
    done
fi
export -f fuzz
export build limit
printf '%s\n' "$@" | xargs -P "${JOBS:-2}" -I {} bash -c 'fuzz {}' || { echo "fuzz: inputs that break it are in $build/crashes"; exit 1; }
