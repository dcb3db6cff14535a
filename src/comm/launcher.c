/* A row a launcher.
 *
 * Open MPI's mpirun binds ranks to cores and counts them unless told not to: threads are weft's own matter,
 * and more ranks than cores the user's wish. It passes SIGUSR1 and SIGUSR2 on, and dies of the others, which
 * takes it two seconds.
 *
 * Hydra (MPICH's mpiexec) does neither. It passes SIGUSR1, SIGTERM and the first SIGINT on, ends the ranks on
 * a second SIGINT, and is itself killed by SIGUSR2, which is not passed on. It speaks on standard output,
 * and may lose what a rank has said just before the job was ended; so ranks write past it (launch.c). Its
 * status is that of all ranks, bit by bit "or"ed, and those that it killed itself count: so each rank's is
 * asked for, and counts of ranks that did not tell their own (launch.c). Its defaults would place ranks on
 * the hosts of an allocation. */
#include "comm/launcher.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "comm/facts.h"

static const LauncherKind kinds[] = {
    {.package = "openmpi-bin",
     .srun = "pmix",
     .words = {"--oversubscribe", "--bind-to", "none"},
     .as_root = "--allow-run-as-root",
     .sessions = "OMPI_MCA_orte_tmpdir_base",
     .again = SIGUSR2,
     .end = SIGTERM},
    {.package = "mpich",
     .srun = "pmi2",
     .words = {"-launcher", "fork", "-rmk", "user", "-print-all-exitcodes"},
     .again = SIGINT,
     .end = SIGINT,
     .read_end = hydra_read_end,
     .failed = 255},
};

const LauncherKind *launcher_kind(void) { return &kinds[comm_is_open_mpi() ? 0 : 1]; }

/* ---- Hydra ---- */

/* The statuses of wait() behind "[mpiexec@host] Exit codes: [host] ", one a rank. */
static const char *statuses_in(const char *said) {
    const char *at = strstr(said, "Exit codes: [");
    at = at ? strchr(at, ']') : NULL;
    return at ? at + 1 : NULL;
}

static void add_rank(char *list, size_t size, int rank) {
    size_t length = strlen(list);
    snprintf(list + length, size - length, "%s%d", length ? ", " : "", rank);
}

/* Ranks that it killed itself have SIGKILL or, where it did not wait to hear so, 0: any other signal is the
 * cause. */
bool hydra_read_end(const char *said, RanksEnd *end) {
    const char *at = statuses_in(said);
    int killed = 0;
    char list[64] = "", *next;
    *end = (RanksEnd){0};
    for (int rank = 0; at; rank++, at = *next == ',' ? next + 1 : NULL) {
        int status = (int)strtol(at, &next, 10);
        if (next == at) return false;
        if (WIFEXITED(status) && !end->code) end->code = WEXITSTATUS(status);
        if (!WIFSIGNALED(status) || (end->signal && end->signal != SIGKILL)) continue;
        if (WTERMSIG(status) != SIGKILL) *list = 0, killed = 0;
        end->signal = WTERMSIG(status);
        killed++;
        add_rank(list, sizeof list, rank);
    }
    snprintf(end->ranks, sizeof end->ranks, "%s %s", killed > 1 ? "one of ranks" : "rank", list);
    return statuses_in(said) != NULL;
}
