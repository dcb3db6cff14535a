#include "cli/burn.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "cli/terminal.h"

/* Shares of the time. */
static const double TOGETHER_PART = 0.5, THREADS_PART = 0.15, MEMORY_PART = 0.25, FILE_PART = 0.1;
static const useconds_t LOOK_US = 20000;

/* What children do in a part, and for how long. */
typedef struct Part {
    const char *name; /* for the status line */
    int first, count; /* workers */
    double until;
    uint64_t bytes; /* of memory for each; 0: kernels */
    bool fault;     /* cores may be broken on purpose */
} Part;

/* ---- children ---- */

/* Before OpenMP starts its threads, which inherit it. */
static void pin(int core) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (core < 0) return;
    CPU_SET(core, &set);
    sched_setaffinity(0, sizeof set, &set);
}

/* exit() would flush what the parent has buffered. */
static _Noreturn void work(const Burn *b, const Part *p, BurnWorker *w, pid_t parent) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    log_set_level(LOG_ERROR);
    pin(w->core);
    if (p->bytes)
        burn_memory(w, p->bytes, p->until, w == b->workers ? b->fault.memory : -1);
    else
        burn_cores(w, p->until, p->fault && w->core >= 0 && w->core == b->fault.core);
    _exit(0);
}

static void note_end(BurnWorker *w, int status) {
    if (WIFSIGNALED(status))
        snprintf(w->problem, sizeof w->problem, "the test was killed by signal %d (%s)", WTERMSIG(status),
                 strsignal(WTERMSIG(status)));
    else if (WEXITSTATUS(status) != 0 && !*w->problem)
        snprintf(w->problem, sizeof w->problem, "the test ended with status %d", WEXITSTATUS(status));
}

static void wait_for(const Burn *b, const Part *p, pid_t *children) {
    double start = clock_seconds();
    for (int left = p->count; left > 0; usleep(LOOK_US)) {
        for (int i = 0, status; i < p->count; i++) {
            if (children[i] <= 0 || waitpid(children[i], &status, WNOHANG) != children[i]) continue;
            note_end(&b->workers[p->first + i], status);
            children[i] = 0;
            left--;
        }
        log_status("%s: %.0f s", p->name, clock_seconds() - start);
    }
    log_status("%s", "");
}

/* Children that were started are waited for in any case. */
static ErrorCode run_part(const Burn *b, const Part *p, Error *err) {
    ErrorCode code = OK;
    Part started = *p;
    pid_t parent = getpid(), *children = mem_alloc_array((size_t)p->count, sizeof *children);
    fflush(NULL);
    for (started.count = 0; code == OK && started.count < p->count;) {
        pid_t child = fork();
        if (child == 0) work(b, p, &b->workers[p->first + started.count], parent);
        if (child < 0) code = error_errno(err, ERR_UNAVAILABLE, "cannot start a process for a core");
        if (child > 0) children[started.count++] = child;
    }
    wait_for(b, &started, children);
    free(children);
    return code;
}

/* ---- parts ---- */

static int64_t rounds_of(const Burn *b, int first, int count) {
    int64_t rounds = 0;
    for (int i = 0; i < count; i++) rounds += b->workers[first + i].rounds;
    return rounds;
}

/* Prints the rounds of this part, and their rate. */
static ErrorCode run_cores(const Burn *b, const char *label, int first, int count, double seconds,
                           Error *err) {
    int64_t before = rounds_of(b, first, count);
    double start = clock_seconds();
    Part p = {.name = label, .first = first, .count = count, .until = start + seconds, .fault = true};
    TRY(run_part(b, &p, err));
    int64_t rounds = rounds_of(b, first, count) - before;
    double took = clock_seconds() - start;
    terminal_printf("%-17s %lld rounds of %d kernels in %.1f s, %.1f a second\n", label, (long long)rounds,
                    BURN_KERNELS, took, (double)rounds / took);
    return OK;
}

/* Each by itself: a core that is wrong only when it is the only one, at its highest clock. */
static ErrorCode run_alone(const Burn *b, Error *err) {
    double start = clock_seconds();
    for (int i = 0; i < b->cores; i++) {
        Part p = {.name = "one core alone", .first = i, .count = 1};
        TRY(run_part(b, &p, err));
    }
    terminal_printf("one core alone    each of %d, a round of %d kernels (%s) in %.1f s\n", b->cores,
                    BURN_KERNELS, b->workers[0].kernels, clock_seconds() - start);
    return OK;
}

static ErrorCode run_memory(const Burn *b, Error *err) {
    char tested[32], available[32], rate[32];
    uint64_t room = memory_use().available, page = (uint64_t)sysconf(_SC_PAGESIZE), bytes = 0, moved = 0;
    uint64_t each = (uint64_t)((double)room * b->share) / (uint64_t)b->cores / page * page;
    int64_t passes = INT64_MAX;
    double start = clock_seconds();
    Part p = {.name = "memory",
              .count = b->cores,
              .until = start + MEMORY_PART * b->seconds,
              .bytes = each > page ? each : page};
    TRY(run_part(b, &p, err));
    for (int i = 0; i < b->cores; i++) {
        const BurnMemory *m = &b->workers[i].memory;
        bytes += m->bytes, moved += m->moved;
        if (m->passes < passes) passes = m->passes;
    }
    double took = clock_seconds() - start;
    terminal_printf("memory            %s (%.1f%% of %s free), %lld passes in %.1f s, %s/s\n",
                    text_bytes((double)bytes, tested), 100 * (double)bytes / (double)room,
                    text_bytes((double)room, available), (long long)passes, took,
                    text_bytes((double)moved / took, rate));
    return OK;
}

static ErrorCode run_parts(const Burn *b, Text *found, int *differ, Error *err) {
    TRY(run_alone(b, err));
    TRY(run_cores(b, "all cores at once", 0, b->cores, TOGETHER_PART * b->seconds, err));
    TRY(run_cores(b, "threads", b->cores, 1, THREADS_PART * b->seconds, err));
    TRY(run_memory(b, err));
    *differ += burn_judge(b, found) + burn_judge_memory(b, found);
    return burn_file(b, FILE_PART * b->seconds, found, differ, err);
}

/* ---- the whole ---- */

/* Those that this process may run on. */
static void find_cores(Burn *b, const cpu_set_t *set) {
    int count = 0;
    for (int core = 0; core < CPU_SETSIZE && count < b->cores; core++)
        if (CPU_ISSET(core, set)) b->workers[count++] = (BurnWorker){.core = core, .threads = 1};
    b->workers[count] = (BurnWorker){.core = -1, .threads = count};
}

static ErrorCode report(const Text *found, int differ, Error *err) {
    if (differ == 0) terminal_printf("\nEverything has the same bits.\n");
    if (differ == 0) return OK;
    terminal_printf("\n%s", found->data);
    return error_set(
        err, ERR_DIFFERENT,
        "%d difference%s above: this machine does not compute or keep what it should; leave it out "
        "of runs",
        differ, differ == 1 ? "" : "s");
}

static ErrorCode check_fault(const Burn *b, Error *err) {
    for (int i = 0; i < b->cores; i++)
        if (b->fault.core < 0 || b->workers[i].core == b->fault.core) return OK;
    return error_set(err, ERR_USAGE,
                     "doctor: --inject bitflip:core=%lld: this process may not run on that core",
                     (long long)b->fault.core);
}

ErrorCode burn_run(Burn *b, Error *err) {
    cpu_set_t set;
    Text found = {0};
    int differ = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return error_errno(err, ERR_UNAVAILABLE, "cannot find the cores of this process");
    b->cores = CPU_COUNT(&set);
    size_t bytes = (size_t)(b->cores + 1) * sizeof *b->workers;
    b->workers = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b->workers == MAP_FAILED) return error_errno(err, ERR_MEMORY, "no memory for the results of cores");
    find_cores(b, &set);
    ErrorCode code = check_fault(b, err);
    if (code == OK) code = run_parts(b, &found, &differ, err);
    if (code == OK) code = report(&found, differ, err);
    text_free(&found);
    munmap(b->workers, bytes);
    return code;
}
