#!/bin/bash
# Ranks are killed at random moments of random operations; those that are left repair communication and go on (comm/repair.h). Over sockets,
# and over MPI where there is Open MPI 5 with ULFM: that of the build (make mpi5), or the one that tools/setup.sh ulfm has installed.
# REPAIRS: runs, each with several repairs.
# ranks: 8
. "$(dirname "$0")/../support/prelude.sh"
needs_ranks
program=$WEFT_BINARY_DIR/ranks_repair

# refused TEXT WORD...: ranks_repair under this launcher says once that there is no repair, and why.
refused() {
    local text=$1 status=0
    shift
    timeout -k 5 1500 "$@" -n 2 "$program" >out 2>err </dev/null || status=$?
    [ "$status" -eq 69 ] || fail "$*: exit status $status: $(tail -3 err)"
    [ "$(grep -c 'ranks cannot go on without one that dies' err)" -eq 1 ] || fail "$*: not refused once: $(tail -5 err)"
    has err "$text"
}
# shellcheck disable=SC2086
is_open_mpi_5 || refused "has no ULFM" $mpirun

# survives RANKS SEED: one rank, or two at once, or one and another during the repair, die again and again, until three or fewer are left. A
# death in the milliseconds in which Open MPI 5.0.11 makes a communicator may crash the other ranks inside the library. That is no verdict
# on weft: the run must be repeated, with the next seed.
survives() { # RANKS SEED LAUNCHER...
    local number=$1 first=$2 seed status
    shift 2
    for seed in "$first" "10$first" "20$first" "30$first" "40$first"; do
        status=0
        timeout -k 5 600 "$@" -n "$number" "$program" "$seed" >"out.$seed" 2>"err.$seed" </dev/null || status=$?
        ! grep -q 'ompi_comm_revoke_local' "err.$seed" || { echo "seed $seed: Open MPI crashed"; continue; }
        [ "$status" -eq 0 ] || fail "$number ranks, seed $seed: ended with $status: $(tail -5 "err.$seed")"
        grep -q "^seed $seed: [123] of $number ranks are left after [1-9][0-9]* repairs, 0 lost without a plan" "out.$seed" ||
            fail "$number ranks, seed $seed: $(cat "out.$seed") $(tail -5 "err.$seed")"
        return
    done
    fail "$number ranks: Open MPI crashed with each seed"
}
for seed in $(seq "${REPAIRS:-6}"); do survives $((4 + seed * 3 % 5)) "$seed" "$weft" launch --tolerant; done
if take_ulfm; then
    five="$launcher --allow-run-as-root --oversubscribe --bind-to none"
    # shellcheck disable=SC2086
    refused 'start it with "--with-ft ulfm"' $five
    # shellcheck disable=SC2086
    for seed in $(seq "${REPAIRS:-6}"); do survives $((4 + seed * 3 % 5)) "$seed" $five --with-ft ulfm; done
else
    echo "not over MPI: $no_ulfm"
fi
cat out.*
conclude
