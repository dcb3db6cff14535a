/* How processes come to be several: what the environment says of the launcher that started this one, and
 * starting ranks. */
#ifndef WEFT_COMM_LAUNCH_H
#define WEFT_COMM_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct LaunchedEnv {
    bool by_launcher;
    int size, rank;                       /* as the launcher says; 0 and -1: it does not */
    const char *variable, *rank_variable; /* of the environment: which says so; which holds the rank */
} LaunchedEnv;

/* Looks for what mpirun (Open MPI), mpiexec (MPICH, Intel MPI: PMI), PMIx and srun leave in the environment.
 */
LaunchedEnv launched_env_find(void);
/* ERR_UNAVAILABLE when the launcher started several processes and MPI sees another number. One of them says
 * so (err->reported). */
ErrorCode launched_env_check(const LaunchedEnv *launched, int mpi_size, Error *err);

/* In a rank that launch_ranks started, before anything is printed: stdout and stderr past the launcher, where
 * the environment says so (LAUNCHED_STREAMS), and exit status (LAUNCHED_ENDS: the path of a file to which
 * each rank appends how it ends). */
void launched_streams(void);
#define LAUNCHED_STREAMS "WEFT_RANK_STREAMS"
#define LAUNCHED_ENDS "WEFT_RANK_ENDS"
typedef struct RankReport {
    int rank, status; /* rank: as the launcher gave it, or -1 */
} RankReport;
/* The status that this rank is about to end with, for an end that does not go through exit(), which tells by
 * itself; signal handlers may. Nothing where the launcher's word is enough. */
void launched_tell_end(int status);

/* The path of this program, by /proc, into out. */
ErrorCode launch_own_path(char *out, size_t size, Error *err);

/* Runs this program with `words` (the program's name first, ended by NULL) as so many ranks on this machine,
 * by mpirun, and waits for their end.
 *
 * The signals to stop (base/signals.h) reach every rank as SIGUSR1: a request to save and stop. A second
 * SIGINT reaches them as SIGUSR2, or as SIGINT where the launcher does not pass that on (launcher.h): on it
 * they are to end at once, unless they are through; those that do not are ended after ten seconds, which is
 * said, or by a third. mpirun has a process group of its own, so that a Ctrl-C reaches the ranks through this
 * process only; when this process dies the ranks get the request too. What mpirun itself says is left out
 * where it only repeats what the ranks or this function say.
 *
 * Once a rank has ended the others have watchdog_s seconds (30 at least; 0: no limit) to end too. Those that
 * have not are named, and mpirun is told to end them: ERR_PEER.
 *
 * Returns the exit status of the ranks as a code, with err->reported set: they have said why. A rank that a
 * signal killed makes it 128 + N, and the message names rank and signal. MPICH's launcher kills the others by
 * SIGKILL: where that was the first one's signal too, all that it may have been are named. */
ErrorCode launch_ranks(int ranks, char *const *words, double watchdog_s, Error *err);

#endif
