/* One row per launcher.
 *
 * Open MPI's mpirun binds ranks to cores and limits ranks to the number of cores, unless told not to: weft
 * manages threads itself, and more ranks than cores are the user's choice. It forwards SIGUSR1 and SIGUSR2,
 * and dies of other signals, which takes two seconds. That of Open MPI 5 (PRRTE) is the same in all this, but
 * each job has files of its own.
 *
 * Hydra (MPICH's mpiexec) does neither. It forwards SIGUSR1, SIGTERM and the first SIGINT, ends the ranks on
 * a second SIGINT, and is killed by SIGUSR2, which it does not forward. It prints on standard output, and may
 * lose what a rank has printed just before the job was ended, so ranks bypass it (launch.c). Its status is
 * the bitwise "or" of all ranks' statuses, including those of ranks that it killed. So it is asked to print
 * the status of each rank, which counts for ranks that did not report their own (launch.c). Its defaults
 * would place ranks on the hosts of an allocation.
 *
 * weft launch reports in the same form, of ranks that it has killed itself 0. */
#include "comm/launcher.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "comm/facts.h"

static const LauncherKind kinds[] = {
    {.name = "mpirun",
     .package = "openmpi-bin",
     .srun = "pmix",
     .words = {"--oversubscribe", "--bind-to", "none"},
     .as_root = "--allow-run-as-root",
     .sessions = "OMPI_MCA_orte_tmpdir_base",
     .again = SIGUSR2,
     .end = SIGTERM},
    {.name = "mpirun",
     .package = "openmpi-bin",
     .srun = "pmix",
     .words = {"--oversubscribe", "--bind-to", "none"},
     .tolerant = {"--with-ft", "ulfm"},
     .as_root = "--allow-run-as-root",
     .again = SIGUSR2,
     .end = SIGTERM},
    {.name = "mpirun",
     .package = "mpich",
     .srun = "pmi2",
     .words = {"-launcher", "fork", "-rmk", "user", "-print-all-exitcodes"},
     .again = SIGINT,
     .end = SIGINT,
     .read_end = hydra_read_end,
     .failed = 255},
    {.name = "weft launch",
     .own = true,
     .package = "weft",
     .words = {"launch"},
     .tolerant = {"--tolerant"},
     .again = SIGUSR2,
     .end = SIGQUIT,
     .read_end = hydra_read_end},
};

const LauncherKind *launcher_kind(void) {
    if (!comm_is_open_mpi()) return &kinds[2];
    return &kinds[comm_library_version() < 5 ? 0 : 1];
}

const LauncherKind *launcher_own(void) { return &kinds[3]; }

/* ---- Hydra ---- */

/* The wait() statuses after "[mpiexec@host] Exit codes: [host] ", one per rank. */
static const char *statuses_in(const char *output) {
    const char *at = strstr(output, "Exit codes: [");
    at = at ? strchr(at, ']') : NULL;
    return at ? at + 1 : NULL;
}

static void add_rank(char *list, size_t size, int rank) {
    size_t length = strlen(list);
    snprintf(list + length, size - length, "%s%d", length ? ", " : "", rank);
}

/* Ranks that it killed itself have SIGKILL or, if it did not wait for them, 0. Any other signal is the
 * cause. */
bool hydra_read_end(const char *output, RanksEnd *end) {
    const char *at = statuses_in(output);
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
    return statuses_in(output) != NULL;
}
