#!/bin/bash
# What happens to a run when one of its ranks fails, is killed or freezes; signals; launches that would go wrong. The ranks run
# test_comm, whose arguments name the failure to play.
# over MPI
# ranks: 4, mostly waiting
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
set -e
program=$WEFT_BINARY_DIR/test_comm
[ -x "$program" ] || { echo "test_comm was not built: cmocka is missing"; exit 77; }

fail() { echo "$1"; echo "--- it said:"; cat "$directory/said"; exit 1; }

# ended_with STATUS LINES WORDS...: checks the exit status of the last run, how many lines it printed (- for any), and words in them.
ended_with() {
    local status=$1 lines=$2 word
    shift 2
    [ "$ended" -eq "$status" ] || fail "$what: exit status $ended, not $status"
    [ "$lines" = - ] || [ "$(grep -c . "$directory/said" || true)" -eq "$lines" ] || fail "$what: not $lines lines"
    for word in "$@"; do grep -qF -- "$word" "$directory/said" || fail "$what: does not say \"$word\""; done
}

# The limit only keeps a test from hanging forever.
run() {
    what="$*"
    for _ in 1 2 3 4 5; do
        ended=0
        timeout -k 5 1500 "$program" "$@" 2>"$directory/said" >/dev/null || ended=$?
        mpirun_crashed "$directory/said" || return 0
    done
}

# The MPI library's own messages about ranks that have ended (test_comm prints one like them) are filtered out.
run launch 4 play agree 2 3
ended_with 65 1 "weft: rank 2: bad play"
run launch 3 play agree 0 1 2
ended_with 65 1 "weft: bad play"
run launch 4 play fail 3
ended_with 65 1 "weft: rank 3: bad play (bad data, exit status 65)"
# Of several ranks that fail at the same time, exactly one reports, whichever it is.
for ranks in "0 1 2 3" "1 2 3" "0 3"; do
    # shellcheck disable=SC2086
    run launch 4 play fail $ranks
    ended_with 65 1 ": bad play (bad data, exit status 65)"
    grep -q "^weft: rank [${ranks// /}]: " "$directory/said" || fail "$what: another rank is named"
done
run launch 3 play sizes
ended_with 70 1 "rank 0: expected a message of 8192 bytes from rank 1, which sent 4096"
run launch 4 play kill 2
ended_with 137 1
names_killed "$directory/said" 2 || fail "$what: rank 2 is not named"

# A frozen rank: every other rank reports what it waits for, and the last line names the rank that does not answer. A rank that was
# frozen while it waited does not complain when it is woken to be ended.
# A rank that gets no processor time for half the limit counts as asleep, rightly. A check therefore fails only if it fails with every
# limit; the longest is enough for very busy machines.
patient() {
    local limit
    for limit in 4 16 64; do
        export TEST_WATCHDOG=$limit
        ("$@") >"$directory/found" && return 0
        echo "limit of $limit s: $(head -1 "$directory/found")"
    done
    cat "$directory/found"
    exit 1
}
verdict() { grep . "$directory/said" | tail -1 | grep -qF -- "$1" || fail "$what: the last line is not \"$1\""; }
# found VERDICT PLAY RANK...: all other ranks report that they wait, and the last line is "weft: VERDICT".
found() {
    run launch 3 play "${@:2}"
    ended_with 76 3
    verdict "weft: $1"
}
freezes() {
    found "rank 2 answers nobody: it hangs" freeze 2
    ended_with 76 3 "rank 0: nothing has come for" "rank 1: nothing has come for" "a message of 64 bytes from rank 0" "in the play"
}
dozes() {
    found "rank $1 answers nobody" doze "$1"
    ended_with 76 3 "rank $((($1 + 1) % 3)): nothing has come for" "rank $((($1 + 2) % 3)): nothing has come for"
}
two_doze() {
    run launch 4 play doze 1 3
    ended_with 76 3
    verdict "weft: ranks 1, 3 answer nobody: they hang"
}
patient freezes
for rank in 0 1 2; do patient dozes "$rank"; done
patient found "rank 1 answers nobody" nap 1
patient two_doze

# A rank that is alive but waits for no other reports what it is busy with. Of ranks that wait for each other, none is singled out.
is_busy() {
    run launch 3 play busy 1
    ended_with 76 4 "rank 1: is busy, and waits for no rank, in the play"
    verdict "weft: the others have waited for rank 1 for more than comm.watchdog_s = $TEST_WATCHDOG s"
}
wait_for_each_other() {
    run launch 2 play wait
    ended_with 76 3
    verdict "weft: all ranks answer, and each waits for another"
}
# Work that makes progress is waited for, however long it takes.
works() {
    run launch 3 play work 1
    ended_with 0 0
}
# Hangs are also found before the ranks have joined, and after their last message. (MPI complains in the late rank when it is woken to be
# ended.)
is_late() {
    run launch 3 play late 1
    ended_with 76 - "rank 0: nothing has come for" "rank 2: nothing has come for" "while waiting for all ranks (MPI start), in the play"
    grep -q "^weft: rank 1 (process [0-9]*): stopped" "$directory/said" || fail "$what: rank 1 is not named"
}
hangs_at_the_end() {
    found "rank 1 answers nobody: it hangs" end 1
    ended_with 76 3 "rank 0: nothing has come for" "rank 2: nothing has come for"
}
# After MPI_Finalize no rank is left to notice a hang. The launcher does, counting from the end of the first rank; it waits at least 30 s.
TEST_WATCHDOG=1 timeout -k 5 1500 "$program" launch 3 play linger 0 2 2>"$directory/lingering" >/dev/null &
lingering=$!
# Nor does mpirun always end after a failed rank: the launcher kills it then, and the status is the rank's.
TEST_WATCHDOG=1 timeout -k 5 1500 "$program" launch 2 play mute 0 1 2>"$directory/mute" >/dev/null &
mute=$!
patient is_busy
patient wait_for_each_other
patient works
patient is_late
patient hangs_at_the_end
unset TEST_WATCHDOG
ended=0
wait "$lingering" || ended=$?
cp "$directory/lingering" "$directory/said"
what="ranks that hang behind MPI_Finalize"
ended_with 76 1 "ranks hang behind their last step: rank 0, 2 had not ended 30 s after the first that did"

ended=0
wait "$mute" || ended=$?
cp "$directory/mute" "$directory/said"
what="mpirun that hangs after ranks have failed"
ended_with 65 - "warning: mpirun had not ended 30 s after the first of its ranks, and is killed"

# A signal becomes a request to stop, which the ranks agree on. A second SIGINT does not wait for them.
signal_to() {
    local play=$1 launcher number
    shift
    what="launch 2 play $play, signals $*"
    : >"$directory/out"
    "$program" launch 2 play "$play" 2>"$directory/said" >"$directory/out" &
    launcher=$!
    await grep -q ready "$directory/out"
    # Two pending signals of the same number count as one.
    for number in "$@"; do
        kill -"$number" "$launcher"
        await took_signals "$launcher"
        [ "$play" != through ] || await grep -q . "$directory/said"
    done
    ended=0
    wait "$launcher" || ended=$?
}
signal_to stop TERM
ended_with 75 1 "weft: stopped on request"
signal_to stop INT
ended_with 75 1 "weft: stopped on request"
signal_to stop USR1
ended_with 75 1
signal_to wait INT INT
ended_with 130 0
# Ranks that do not end on the second SIGINT are ended, with a message.
signal_to stubborn INT INT
ended_with 130 1 "warning: the ranks did not end on the second SIGINT: mpirun ends them"
# The signals come too late for a run that has printed its last line: the exit status is the one in that line.
signal_to through INT INT
ended_with 75 1 "weft: stopped on request (stopped on request, exit status 75)"

# Processes that a launcher started but that do not find each other over MPI.
export PMI_SIZE=4 PMI_RANK=0
run
ended_with 69 1 "the launcher started 4 processes (PMI_SIZE)" "there is 1"
export PMI_RANK=1
run
ended_with 69 0
unset PMI_SIZE PMI_RANK
echo "failures of ranks end runs as they should"
