/* Finds the launcher in the environment. Each row has the variable that proves it, and those with size and
 * rank.
 *
 * This happens before MPI is initialised: a process that no launcher started must not call MPI_Init, which
 * may take seconds, start a daemon, or fail where MPI is not set up.
 *
 * Elsewhere called: RANK, WORLD_SIZE and MASTER_ADDR of torchrun. The rendezvous is that of MPI, or of
 * sockets where WEFT_MEET is set. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "comm/launch.h"
#include "comm/launcher.h"
#include "comm/sockets/sockets.h"

typedef struct Launcher {
    const char *mark, *size, *rank;
} Launcher;

/* SLURM_PROCID alone is not enough: batch scripts, which srun did not start, have it too.
 * SLURM_STEP_NUM_TASKS is set by srun only. */
static const Launcher launchers[] = {
    {LAUNCHED_RANKS, LAUNCHED_RANKS, LAUNCHED_RANK},
    {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"},
    {"PMI_SIZE", "PMI_SIZE", "PMI_RANK"},
    {"SLURM_STEP_NUM_TASKS", "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"},
    {"PMIX_RANK", NULL, "PMIX_RANK"},
};

static int number(const char *name, int otherwise) {
    const char *text = name ? getenv(name) : NULL;
    return text && *text ? atoi(text) : otherwise;
}

/* A launcher that started one process does not count, unless it does not say how many there are. */
LaunchedEnv launched_env_find(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        const Launcher *l = &launchers[i];
        if (!getenv(l->mark)) continue;
        int size = number(l->size, 0);
        if (l->size && size <= 1) continue;
        return (LaunchedEnv){true, getenv(SOCKETS_MEET) != NULL, size, number(l->rank, -1), l->mark, l->rank};
    }
    return (LaunchedEnv){.rank = -1};
}

/* Without it each rank would train by itself, in the same directory. */
ErrorCode launched_env_incomplete(Error *err) {
    if (!getenv(SOCKETS_MEET) || !getenv(LAUNCHED_RANK) || getenv(LAUNCHED_RANKS)) return OK;
    return error_set(err, ERR_USAGE,
                     SOCKETS_MEET " and " LAUNCHED_RANK "=%s are set, but not " LAUNCHED_RANKS
                                  ": set it to the number of all ranks, or start them with weft launch",
                     getenv(LAUNCHED_RANK));
}

const char *launched_env_mark(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++)
        if (getenv(launchers[i].mark)) return launchers[i].mark;
    return NULL;
}

/* The mpirun of another library starts N processes that each believe to be alone: they would train the same
 * model N times into one directory. */
ErrorCode launched_env_check(const LaunchedEnv *launched, int mpi_size, Error *err) {
    if (launched->size == 0 || launched->size == mpi_size) return OK;
    error_set(err, ERR_UNAVAILABLE,
              "the launcher started %d processes (%s), but for the MPI library that weft was built with "
              "there %s %d: each would do the whole work. Start weft with the mpirun of that library (\"weft "
              "doctor\" names it), or with srun --mpi=%s; \"weft train -n %d\" does it by itself",
              launched->size, launched->variable, mpi_size == 1 ? "is" : "are", mpi_size,
              launcher_kind()->srun, launched->size);
    if (err) err->reported = launched->rank > 0;
    return ERR_UNAVAILABLE;
}

static int ends = -1; /* descriptor of the file of RankReports */
static int this_rank;

/* Reports once: ending all ranks may end this one by exit(). */
void launched_report_end(int status) {
    RankReport reported = {this_rank, status & 0xff};
    int file = ends;
    ends = -1;
    if (file >= 0 && write(file, &reported, sizeof reported) == sizeof reported) close(file);
}

void launched_end(int status) {
    launched_report_end(status);
    _exit(status);
}

static void report_at_exit(int status, void *nothing) {
    (void)nothing;
    launched_report_end(status);
}

/* Opened by path, since launchers close the descriptors that ranks would inherit. */
static void open_ends(void) {
    const char *path = getenv(LAUNCHED_ENDS);
    if (!path) return;
    this_rank = launched_env_find().rank;
    ends = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
    if (ends >= 0 && on_exit(report_at_exit, NULL) != 0) ends = -1;
    unsetenv(LAUNCHED_ENDS);
}

/* The launcher itself keeps its own streams: what it prints there is not for the user. */
bool launched_reports(void) { return getenv(LAUNCHED_REPORT) && !getenv(LAUNCHED_RANK); }

int launched_messages(void) {
    const char *numbers = getenv(LAUNCHED_STREAMS);
    int out, messages;
    return numbers && sscanf(numbers, "%d %d", &out, &messages) == 2 && messages > 2 ? messages
                                                                                     : STDERR_FILENO;
}

/* Does nothing if the numbers are not open descriptors. */
void launched_streams(void) {
    const char *numbers = getenv(LAUNCHED_STREAMS);
    int out, messages;
    if (launched_reports()) return;
    open_ends();
    if (!numbers || sscanf(numbers, "%d %d", &out, &messages) != 2 || out < 3 || messages < 3) return;
    if (dup2(out, STDOUT_FILENO) >= 0) close(out);
    if (dup2(messages, STDERR_FILENO) >= 0) close(messages);
    unsetenv(LAUNCHED_STREAMS);
}
