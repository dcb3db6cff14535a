/* The launchers of MPI libraries, each with all that weft knows of its ways: the words it takes, the signals
 * it passes on, how it tells how ranks ended. */
#ifndef WEFT_COMM_LAUNCHER_H
#define WEFT_COMM_LAUNCHER_H

#include <stdbool.h>

/* How ranks ended, as their launcher says. */
typedef struct RanksEnd {
    int code;       /* exit status of the first that has one other than 0, or 0 */
    int signal;     /* that killed one, or 0 */
    char ranks[80]; /* which: "rank 2"; "one of ranks 0, 2" where the launcher cannot tell it from those that
                       it killed itself */
} RanksEnd;

typedef struct LauncherKind {
    const char *package;  /* that brings it, by Debian's name */
    const char *srun;     /* Slurm's way to join ranks of that library (srun --mpi) */
    const char *words[8]; /* before -n, ended by NULL */
    const char *as_root;  /* one more for root, or NULL */
    const char *sessions; /* variable with the directory of its own files, or NULL: it has none */
    int again;            /* the signal for "end at once" that it passes on to ranks */
    int end;              /* to the launcher after that one: it ends the ranks itself */
    /* Reads how the ranks ended from a report apart from their output. NULL: the report stands between their
     * output (launcher_output.h), and in the launcher's own status. False: there was no report. */
    bool (*read_end)(const char *said, RanksEnd *end);
    int failed; /* its status when it failed itself: only then what it said is shown; with read_end */
} LauncherKind;

/* Of the library that weft was built with. */
const LauncherKind *launcher_kind(void);

/* What Hydra, MPICH's mpiexec, says. */
bool hydra_read_end(const char *said, RanksEnd *end);

#endif
