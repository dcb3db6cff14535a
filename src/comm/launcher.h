/* The launchers of MPI libraries: the arguments each takes, the signals it forwards, and how it reports the
 * end of ranks. */
#ifndef WEFT_COMM_LAUNCHER_H
#define WEFT_COMM_LAUNCHER_H

#include <stdbool.h>

/* How ranks ended, according to their launcher. */
typedef struct RanksEnd {
    int code;   /* exit status of the first rank with one other than 0, or 0 */
    int signal; /* the signal that killed a rank, or 0 */
    /* which, "rank 2"; "one of ranks 0, 2" if the launcher cannot tell it from those it killed */
    char ranks[80];
} RanksEnd;

typedef struct LauncherKind {
    const char *name;        /* for messages */
    bool own;                /* this program is the launcher (sockets/spawn.h) */
    const char *package;     /* name of the Debian package that has it */
    const char *srun;        /* value of srun --mpi that joins ranks of this library */
    const char *words[8];    /* arguments before -n, ended by NULL */
    const char *tolerant[3]; /* arguments with which ranks may die (comm/repair.h), ended by NULL; or none */
    const char *as_root;     /* an additional argument when run as root, or NULL */
    /* environment variable with the directory of its own files, or NULL if it has none */
    const char *sessions;
    int again; /* signal that it forwards to the ranks as "end at once" */
    int end;   /* signal to the launcher after that: it kills the ranks itself */
    /* Reads how the ranks ended from a report that is separate from their output. Returns false if there was
     * no report. NULL: the report is mixed with the ranks' output (launcher_output.h) and in the launcher's
     * exit status. */
    bool (*read_end)(const char *output, RanksEnd *end);
    int failed; /* with read_end: its exit status when it failed itself; only then its output is shown */
} LauncherKind;

/* The launcher of the MPI library in use, and weft's own. */
const LauncherKind *launcher_kind(void);
const LauncherKind *launcher_own(void);

/* Parses the messages of Hydra, MPICH's mpiexec. */
bool hydra_read_end(const char *output, RanksEnd *end);

#endif
