# Helpers for all shell tests. Each test starts with: . "$(dirname "$0")/../support/prelude.sh"
# A test runs in a temporary directory, which is removed at the end (KEEP=1 keeps it), counts failures, and ends with `conclude`.
set -uo pipefail
weft=$(realpath "${WEFT:?the program under test}")
script=$(realpath "$0")
directory=$(mktemp -d)
end_jobs() { kill -KILL $(jobs -p) 2>/dev/null || true; }
trap 'end_jobs; [ -n "${KEEP:-}" ] || rm -rf "$directory"' EXIT
cd "$directory" || exit 1

failures=0
fail() { echo "FAILED: $*"; failures=$((failures + 1)); }
# conclude [WORDS]: ends a test: exits with status 1 if anything failed, else prints WORDS.
conclude() {
    [ "$failures" -eq 0 ] || { echo "$failures failures"; exit 1; }
    echo "${1:-all as expected}"
}

# For tests that start ranks. A line near the top of the test declares the largest number of ranks; CMakeLists.txt reads it too:
#     # ranks: 4                      or, if they hardly compute: # ranks: 4, mostly waiting
ranks=$(sed -n 's/^# ranks: \([0-9]*\).*/\1/p' "$script")
mpirun=${WEFT_MPIRUN:-mpirun --allow-run-as-root --oversubscribe --bind-to none} # as in CMakeLists.txt
launcher=${mpirun%% *}
# Some things only one launcher can do (src/comm/launcher.c): tests check which one weft was built with.
is_open_mpi() { "$weft" --version | grep -q '^ranks: Open MPI'; }
is_open_mpi_5() { "$weft" --version | grep -q '^ranks: Open MPI v5'; }
# mpirun of Open MPI 5 adds zero bytes to what ranks printed: the output is text all the same.
grep() { command grep -a "$@"; }
# names_killed FILE RANK: true if a run's output names the rank that SIGKILL ended. MPICH's launcher then kills the other ranks with the same
# signal, so there the rank may be one of a list. killed: a pattern for grep that matches both forms.
killed='\(rank [0-9]*\|one of ranks [0-9, ]*\) was killed by signal 9 (SIGKILL)'
names_killed() {
    grep -q "rank $2 was killed by signal 9 (SIGKILL)" "$1" && return
    ! is_open_mpi && grep -q "one of ranks \([0-9]*, \)*$2\(, [0-9]*\)* was killed by signal 9 (SIGKILL)" "$1"
}
# Open MPI's jobs must not share a session directory: a job that ends removes it while another creates files in it.
sessions=OMPI_MCA_orte_tmpdir_base
mpirun="env $sessions=$directory $mpirun"
needs_ranks() {
    [ -n "$ranks" ] || { echo "$0 starts ranks, but has no line \"# ranks: N\""; exit 1; }
    command -v "$launcher" >/dev/null || { echo "$launcher is missing: apt-get install openmpi-bin, or mpich"; exit 77; }
    export ASAN_OPTIONS=${ASAN_OPTIONS:-}:detect_leaks=0 # MPI libraries unload their plugins before the leak check
    export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1} # what Open MPI selects on one machine anyway, without loading all the others
}
# take_ulfm: true if there is an Open MPI 5 with ULFM: that of the build (make mpi5), or the one that tools/setup.sh ulfm has installed, which
# programs find from then on. no_ulfm: why not.
take_ulfm() {
    local venv
    venv=$(realpath "$WEFT_SOURCE_DIR")/.venv-ulfm
    is_open_mpi_5 && return
    no_ulfm="no Open MPI 5 with ULFM for $("$weft" --version | sed -n 's/^ranks: //p') here: tools/setup.sh ulfm installs it from PyPI"
    is_open_mpi && [ -x "$venv/bin/mpirun" ] || return
    launcher=$venv/bin/mpirun
    export PATH=$venv/bin:$PATH LD_LIBRARY_PATH=$venv/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
}
needs_simulated_gpu() { [ -n "${CUDA_SIM:-}" ] || { echo "cuda_sim is not built here"; exit 77; }; }
# simulate_gpus N: gives the ranks N simulated GPUs, in strict mode, in which mistakes are errors.
simulate_gpus() {
    needs_simulated_gpu
    needs_ranks
    export WEFT_CUDA=$CUDA_SIM WEFT_SIM_STRICT=1 WEFT_SIM_DEVICES=$1
}
# on_ranks N WORD...: runs a program as N ranks: over sockets, which start in a fraction of the time, or with mpirun where MPI is the subject: a
# line "# over MPI" near the top of the test, or OVER_MPI=1 for all tests. The time limit also ends ranks that wait for each other forever.
over_mpi=${OVER_MPI:-$(sed -n '1,20s/^# over MPI$/1/p' "$script")}
on_ranks() {
    [ "$1" -le "$ranks" ] || { echo "$0 starts $1 ranks, but declares $ranks"; return 1; }
    [ -n "$over_mpi" ] || { timeout -k 5 1500 "$weft" launch -n "$@"; return; }
    # shellcheck disable=SC2086
    timeout -k 5 1500 ${mpirun/$sessions=$directory/$sessions=$(mktemp -d "$directory/mpirun.XXXXXX")} -n "$@"
}
# meanwhile N WORD...: runs WORD... in the background with N ranks, as soon as the background ranks together do not exceed those that the
# test declares: while the ranks of one launch start or wait, others compute. WORD... may call `fail`; other results must go through files.
# together: waits until all have ended.
meanwhile() {
    local need=$1
    shift
    [ "$need" -le "$ranks" ] || { fail "$need ranks of $ranks: $*"; return; }
    [ -n "${slots:-}" ] || { mkfifo slots.fifo && exec {slots}<>slots.fifo; }
    while [ $((taken + need)) -gt "$ranks" ]; do give_back; done
    taken=$((taken + need))
    (
        failures=0
        trap 'echo "$need $failures" >&"$slots"' EXIT
        "$@"
    ) &
}
taken=0
give_back() {
    local freed failed
    read -r freed failed <&"$slots"
    taken=$((taken - freed)) failures=$((failures + failed))
}
together() { while [ "$taken" -gt 0 ]; do give_back; done; }
ranks_in() { sed -n 's/.* -n \([1-9][0-9]*\) .*/\1/p; t; s/.*/1/p' <<<" $* "; } # WORD... of weft train

tokenized() { "$weft" tokenize run.yaml >tokenized 2>&1 || fail "weft tokenize: $(cat tokenized)"; } # tokenizes run.yaml's text, before runs share the cache
# mesh N DIR WORD...: runs run.yaml on N ranks, which must succeed.
mesh() { on_ranks "$1" "$weft" train run.yaml run.dir="$2" "${@:3}" >out 2>err </dev/null || fail "$2: $(tail -3 err)"; }

# curves N WORD...: runs ranks_engine on N ranks, concurrently with others. curves_to FILE: waits for all of them and writes their lines to
# FILE in the order of the calls.
asked=()
curves() {
    asked+=("$*")
    meanwhile "$1" curve_of "${#asked[@]}" "$@"
}
curve_of() { # NUMBER N WORD...
    local program=("$WEFT_BINARY_DIR/ranks_engine" "${@:3}")
    [ "$2" -eq 1 ] || program=(on_ranks "$2" "${program[@]}")
    "${program[@]}" >"lines.$1" 2>"err.$1" || fail "ranks_engine on $2 ranks, ${*:3}: ended with $?: $(tail -5 "err.$1")"
    [ -s "lines.$1" ] || fail "ranks_engine on $2 ranks, ${*:3}: printed nothing"
}
curves_to() {
    local i
    together
    [ "$failures" -eq 0 ] || exit 1
    for i in "${!asked[@]}"; do cat "lines.$((i + 1))"; done >"$1"
    asked=()
}

# one_curve FILE FALL: checks lines of ranks_engine: lines with equal first words have equal second words, most keys occur more than once so
# that they are compared, and losses fall by more than FALL nats.
one_curve() {
    awk -v fall="$2" '
    !($1 in digest) { digest[$1] = $2; line[$1] = $0 }
    digest[$1] != $2 { print "FAILED: " $1 ":\n  " line[$1] "\n  " $0; bad = 1 }
    !($4 < -fall) { print "FAILED: the loss does not fall: " $0; bad = 1 }
    { count[$1]++ }
    END {
        for (key in count) { keys++; shared += count[key] > 1 }
        print NR " runs, " keys " different curves, " shared " of them run more than once"
        if (3 * shared < 2 * keys) { print "FAILED: too few runs can be compared"; bad = 1 }
        exit bad
    }' "$1"
}

# mpirun_crashed FILE: true if a run's output shows that mpirun itself crashed or hung while it ended a failed job, after ranks had
# reported. Open MPI 4.1 with PMIx 4.2 does so, rarely, on a busy machine. That is no verdict on weft: the run must be repeated.
mpirun_crashed() { grep -q -e 'PMIx_server_finalize' -e 'mpirun had not ended' "$1"; }

# await WORDS...: waits until that command succeeds. No verdict depends on how long it takes; the limit only keeps a test from hanging
# forever, and reaching it is a failure.
await() {
    local ticks=0
    until "$@"; do
        [ $((ticks += 1)) -le 15000 ] || { fail "timed out waiting for: $*"; return 1; }
        sleep 0.02
    done
}
has_lines() { [ "$(cat "$1" 2>/dev/null | wc -l)" -ge "$2" ]; } # FILE COUNT
is_gone() { ! kill -0 "$1" 2>/dev/null; }
is_stopped() { grep -q '^State:[[:blank:]]*T' "/proc/$1/status" 2>/dev/null; } # PID
stands() { is_stopped "$(cat "$1/lock" 2>/dev/null)"; } # DIR: a run that stopped itself (--inject stop:rank=0,step=N)
# pending PID MASK: true if the signals of these bits (hexadecimal) are pending for the process.
pending() {
    local now
    now=$(sed -n 's/^ShdPnd:[[:blank:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ -n "$now" ] && [ $((0x$now & 0x$2)) -eq $((0x$2)) ]
}
took_signals() { [ ! -e "/proc/$1/status" ] || grep -q '^ShdPnd:[[:blank:]]*0*$' "/proc/$1/status" 2>/dev/null; } # PID

# exits STATUS WORD...: runs weft WORD... and compares the exit status; the output is in the files out and err.
exits() {
    local wanted=$1 status=0
    shift
    "$weft" "$@" >out 2>err <"${input:-/dev/null}" || status=$?
    [ "$status" -eq "$wanted" ] || fail "weft $*: exit status $status, expected $wanted: $(head -c 600 err)"
}
is_plain() { ! LC_ALL=C grep -q $'\x1b' out err || fail "escape bytes in the output of $*"; }
# expect STATUS WORD...: the same, and checks what holds for every command: an error is one line, and nothing is coloured off a terminal.
expect() {
    exits "$@"
    [ "$1" -eq 0 ] || [ "$(grep -vc "^warning: other programs use this machine" err)" -eq 1 ] || fail "weft ${*:2}: an error is one line, not: $(cat err)"
    is_plain "${@:2}"
}
# expect_alone STATUS WORD...: the same, for a command that prints nothing on stdout when it fails.
expect_alone() {
    expect "$@"
    [ "$1" -eq 0 ] || [ ! -s out ] || fail "weft ${*:2}: output as well as an error: $(head -c 600 out)"
}
has() { grep -qF -- "$2" "$1" || fail "no \"$2\" in: $(tail -c 1200 "$1")"; }
hasnt() { ! grep -qF -- "$2" "$1" || fail "\"$2\" in: $(head -c 1200 "$1")"; }

# letters PARAGRAPHS SEED: prints text that is quick to make and from which a model can learn little.
letters() {
    awk -v n="$1" -v seed="$2" 'BEGIN { srand(seed)
        for (p = 0; p < n; p++) { for (i = 0; i < 60; i++) printf "%c", 97 + int(rand() * 26); printf "\n\n" } }'
}

# For a run directory: every loss and norm with all digits, one line per step; the digest of its weights.
curve() { sed -n 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\), "grad_norm": \([^,]*\),.*/\1 \2 \3/p' "$1/metrics.jsonl"; }
digest() { "$weft" inspect --digest "$1"; }
# The losses alone; of steps that were made twice one line.
losses() { sed -n 's/.*"kind": "train", "step": \([0-9]*\),.*"loss": \([^,]*\),.*/\1 \2/p' "$1/metrics.jsonl" | sort -un -k1,1; }
