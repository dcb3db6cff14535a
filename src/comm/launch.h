/* Launching ranks, and what the environment says about the launcher that started this process. */
#ifndef WEFT_COMM_LAUNCH_H
#define WEFT_COMM_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

typedef struct LaunchedEnv {
    bool by_launcher;
    bool sockets;   /* ranks are joined by sockets (sockets/sockets.h), not by MPI */
    int size, rank; /* as the launcher says; 0 and -1 if it does not */
    /* names of environment variables: the one that shows a launcher; the one with the rank */
    const char *variable, *rank_variable;
} LaunchedEnv;

/* Looks for the environment variables that weft launch, mpirun (Open MPI), mpiexec (MPICH, Intel MPI: PMI),
 * srun and PMIx set, in this order. */
LaunchedEnv launched_env_find(void);
/* Fails with ERR_USAGE if this is a rank over sockets without the number of all ranks. */
ErrorCode launched_env_incomplete(Error *err);
/* The variable that shows a launcher, also of one that started a single process; NULL: there is none. */
const char *launched_env_mark(void);
/* Fails with ERR_UNAVAILABLE when the launcher started several processes and MPI sees another number. Only
 * one of them prints it (err->reported on the others). */
ErrorCode launched_env_check(const LaunchedEnv *launched, int mpi_size, Error *err);

/* For a rank that launch_ranks started, before anything is printed. Redirects stdout and stderr past the
 * launcher where the environment asks for it (LAUNCHED_STREAMS), and sets up the report of the exit status
 * (LAUNCHED_ENDS: path of a file to which each rank appends how it ends). */
void launched_streams(void);
#define LAUNCHED_STREAMS "WEFT_RANK_STREAMS"
#define LAUNCHED_ENDS "WEFT_RANK_ENDS"
typedef struct RankReport {
    int rank, status; /* rank: as the launcher gave it, or -1 */
} RankReport;
/* Reports the status that this rank is about to end with, for an end that does not go through exit(), which
 * reports by itself. Safe in signal handlers. No-op where the launcher's own report is enough. */
void launched_report_end(int status);
/* The same, and _exit. */
_Noreturn void launched_end(int status);

/* In a launcher of weft's own: whether launch_ranks has started it, and reads how the ranks ended. */
bool launched_reports(void);
#define LAUNCHED_REPORT "WEFT_RANK_REPORT"
int launched_messages(void); /* descriptor of the ranks' messages, past launch_ranks */
/* Set by that launcher for each rank: its number, and how many there are. */
#define LAUNCHED_RANK "WEFT_RANK"
#define LAUNCHED_RANKS "WEFT_RANKS"

/* Set for ranks that are started again: how often that has happened, and why (train/supervise.h). */
#define LAUNCHED_ATTEMPT "WEFT_ATTEMPT"
#define LAUNCHED_CAUSE "WEFT_RESTART_CAUSE"

/* "signal 9 (SIGKILL)" into out; returns out. */
char *launch_signal_name(int number, char out[32]);

/* Writes the path of this program, from /proc, to out. */
ErrorCode launch_own_path(char *out, size_t size, Error *err);

typedef struct LaunchTerms {
    int ranks;
    double watchdog_s;
    bool sockets;  /* by weft launch, not by mpirun */
    bool tolerant; /* ask for a launcher that lets the others go on when a rank dies, if this one can */
} LaunchTerms;

/* Runs this program by mpirun, or by weft launch, as `ranks` ranks on this machine and waits for their end.
 * `words` is the command line, with the program's name first and NULL last.
 *
 * The stop signals (base/signals.h) reach every rank as SIGUSR1, a request to save and stop. A second SIGINT
 * reaches the ranks as SIGUSR2, or as SIGINT where the launcher does not forward that (launcher.h); it asks
 * them to end at once unless they are done. Ranks that have not ended ten seconds later are killed, with a
 * message; a third SIGINT kills them immediately. mpirun has a process group of its own, so a Ctrl-C reaches
 * the ranks only through this process. If this process dies the ranks get the stop request too. mpirun's own
 * output is dropped where it only repeats what the ranks or this function print.
 *
 * Once a rank has ended, the others have watchdog_s seconds (at least 30; 0: no limit) to end too. Ranks
 * that have not are named, mpirun is told to end them, and the result is ERR_PEER.
 *
 * Returns the exit status of the ranks as a code, with err->reported set because the ranks have printed why.
 * If a signal killed a rank, the code is 128 + N and the message names rank and signal. MPICH's launcher
 * kills the other ranks with SIGKILL; if the first rank also died of SIGKILL, all candidates are named.
 * With a tolerant launcher the ranks that were not killed have reported their status; if none has, that is
 * a failure. */
ErrorCode launch_ranks(const LaunchTerms *terms, char *const *words, Error *err);

#endif
