/* Kills ranks that hang, so that the others go on as if these had died (repair.h).
 *
 * Nobody is taken for dead who is not: a rank that hangs gets SIGKILL, MPI reports its death, and the repair
 * is that of any death. So nothing has to be fenced: a rank that was stopped and is continued never runs
 * again, and writes nothing.
 *
 *  H1. A question of the watchdog (failure.c) has shown who hangs: ranks that do not answer, or that answer
 *      that they are busy without progress. The lowest rank that asked decides; the others ask again if it
 *      does not. Of ranks that do not answer only those are killed whose process is stopped. Others may be
 *      blocked in MPI.
 *  H2. A rank can be killed by those of its machine only. The deciding rank tells all ranks (CONTROL_HUNG). A
 *      busy rank hears it too, and kills itself.
 *  H3. A rank that is blocked in MPI cannot ask. After the limit it kills ranks of its machine that are
 *      stopped.
 *  H4. A rank whose communication is broken, and whose program does not come to repair it, kills itself.
 *  H5. If that does not help until the next question (all ranks of a machine are stopped; a process that is
 *      stuck in the kernel does not end), the watchdog ends the run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/internal.h"

/* ---- processes ---- */

typedef struct ProcessTable {
    int64_t count;
    RankProcess each[];
} ProcessTable;

static void take_known(void *into, const void *from) {
    ProcessTable *a = into;
    const ProcessTable *b = from;
    for (int64_t i = 0; i < a->count; i++)
        if (b->each[i].process) a->each[i] = b->each[i];
}

ErrorCode hung_setup(Comm *c, Error *err) {
    size_t bytes = sizeof(ProcessTable) + (size_t)c->size * sizeof(RankProcess);
    ProcessTable *all = mem_alloc(bytes);
    memset(all, 0, bytes);
    all->count = c->size;
    all->each[c->rank] = rank_process_own();
    ErrorCode code = comm_combine(c, all, bytes, take_known, err);
    c->first_size = c->size;
    c->processes = mem_alloc_array((size_t)c->size, sizeof *c->processes);
    memcpy(c->processes, all->each, (size_t)c->size * sizeof *c->processes);
    c->condemned = mem_alloc_array((size_t)c->size, sizeof *c->condemned);
    c->numbers = mem_alloc_array((size_t)c->size, sizeof *c->numbers);
    for (int p = 0; p < c->size; p++) c->numbers[p] = p;
    free(all);
    return code;
}

void hung_free(Comm *c) {
    free(c->processes);
    free(c->condemned);
    free(c->numbers);
}

void hung_renumber(Comm *c) {
    for (int p = 0; p < c->size; p++) c->numbers[p] = c->numbers[c->old_ranks[p]];
}

static bool are_together(const RankProcess *a, const RankProcess *b) {
    return a->machine && a->machine == b->machine;
}

static const RankProcess *process_of(const Comm *c, int rank) { return &c->processes[c->numbers[rank]]; }

static bool is_here(const Comm *c, const RankProcess *p) {
    return are_together(p, process_of(c, c->rank)) && p != process_of(c, c->rank);
}

/* 't': by a debugger. */
static bool is_stopped(const RankProcess *p) {
    char state = rank_process_state(p);
    return state == 'T' || state == 't';
}

/* ---- what was found ---- */

void comm_end_hung(Comm *c, bool on) { atomic_store(&c->ends_hung, on && c->repairable); }

CommHung comm_take_hung(Comm *c) {
    pthread_mutex_lock(&c->hung_mutex);
    CommHung found = c->hung;
    c->hung = (CommHung){.seconds = 0};
    pthread_mutex_unlock(&c->hung_mutex);
    return found;
}

/* ranks: "rank 1 hung (it was stopped)" */
static void keep_found(Comm *c, const char *ranks) {
    char waits[512];
    double seconds = watchdog_waited(c);
    Text text = {0};
    watchdog_describe(c, waits, sizeof waits);
    text_printf(&text, "%s: rank %d had waited %.1f s for %s", ranks, c->numbers[c->rank], seconds, waits);
    pthread_mutex_lock(&c->hung_mutex);
    c->hung.seconds = seconds;
    snprintf(c->hung.text, sizeof c->hung.text, "%.*s", (int)sizeof c->hung.text - 1, text.data);
    pthread_mutex_unlock(&c->hung_mutex);
    log_warn("%s; it is killed, and the others go on", text.data);
    text_free(&text);
}

/* False: it was to be killed before. */
static bool condemn(Comm *c, int number) {
    pthread_mutex_lock(&c->hung_mutex);
    bool first = !c->condemned[number];
    c->condemned[number] = true;
    pthread_mutex_unlock(&c->hung_mutex);
    return first;
}

static void list_rank(Text *list, int number, const char *how) {
    text_printf(list, "%srank %d hung (%s)", list->length ? ", " : "", number, how);
}

/* ---- after a question ---- */

/* Whether one that answers is on its machine. */
static bool has_neighbour(const Comm *c, int rank) {
    for (int p = 0; p < c->size; p++)
        if (c->heard[p] != CONTROL_NONE && are_together(process_of(c, p), process_of(c, rank))) return true;
    return false;
}

/* The busy rank has answered "...: is busy, and waits for no rank, in step 3" (describe_busy). */
static void list_busy(Comm *c, int rank, Text *list) {
    char how[300];
    const char *where = c->lines[rank] ? strstr(c->lines[rank], ", in ") : NULL;
    snprintf(how, sizeof how, "it was busy without progress%s", where ? where : "");
    list_rank(list, c->numbers[rank], how);
}

static void end_rank(Comm *c, int rank) {
    control_send(c, CONTROL_HUNG, -1, (ErrorCode)rank, "");
    if (is_here(c, process_of(c, rank))) rank_process_kill(process_of(c, rank));
}

/* One of these; of mute ranks, those that are stopped, or that another rank is to look at. */
static bool hangs(const Comm *c, int rank, ControlKind kind) {
    const RankProcess *p = process_of(c, rank);
    if (c->heard[rank] != kind) return false;
    return kind == CONTROL_BUSY || (is_here(c, p) ? is_stopped(p) : has_neighbour(c, rank));
}

/* Condemns those that answered so. Returns how many; -1: one of them was to be killed before. */
static int condemn_all(Comm *c, ControlKind kind, Text *list) {
    int count = 0;
    for (int p = 0; p < c->size; p++) {
        if (!hangs(c, p, kind)) continue;
        if (!condemn(c, c->numbers[p])) return -1;
        kind == CONTROL_BUSY ? list_busy(c, p, list) : list_rank(list, c->numbers[p], "it answered nobody");
        count++;
    }
    return count;
}

/* A stopped rank is to blame before a busy one, which may wait for it next. */
bool hung_condemn(Comm *c) {
    static const ControlKind kinds[] = {CONTROL_NONE, CONTROL_BUSY};
    int count = 0;
    Text list = {0};
    for (int i = 0; atomic_load(&c->ends_hung) && i < 2 && count == 0; i++) {
        count = condemn_all(c, kinds[i], &list);
        for (int p = 0; p < c->size; p++)
            if (c->lines[p] && count > 0) watchdog_print(c->lines[p]);
        if (count > 0) keep_found(c, list.data);
        for (int p = 0; p < c->size && count > 0; p++)
            if (hangs(c, p, kinds[i])) end_rank(c, p);
    }
    text_free(&list);
    return count > 0;
}

/* A rank that is not stopped here may have been continued, or be blocked in MPI. */
void hung_told(Comm *c, int rank) {
    if (rank < 0 || rank >= c->size || !c->processes) return;
    if (rank == c->rank) raise(SIGKILL);
    if (is_here(c, process_of(c, rank)) && is_stopped(process_of(c, rank)))
        rank_process_kill(process_of(c, rank));
}

/* ---- where nothing can be asked ---- */

/* Without the mutex, so by numbers that do not change. Another rank of the machine may have found them first;
 * so the first time in a wait the watchdog waits another limit. */
bool hung_find_stopped(Comm *c) {
    Text list = {0};
    pid_t own = getpid();
    const RankProcess *self = NULL;
    if (!atomic_load(&c->ends_hung)) return false;
    for (int i = 0; i < c->first_size; i++)
        if (c->processes[i].process == own && c->processes[i].machine) self = &c->processes[i];
    for (int i = 0; self && i < c->first_size; i++) {
        const RankProcess *p = &c->processes[i];
        if (p == self || !are_together(p, self) || !is_stopped(p) || !condemn(c, i)) continue;
        list_rank(&list, i, "it was stopped");
        rank_process_kill(p);
    }
    bool found = list.length > 0, again = c->stopped_sought == atomic_load(&c->waits_since);
    if (found) keep_found(c, list.data);
    c->stopped_sought = atomic_load(&c->waits_since);
    text_free(&list);
    return found || !again;
}

void hung_end_own(const Comm *c) {
    long long broken = atomic_load(&c->broken_at), now = comm_nanoseconds();
    const long long later[] = {atomic_load(&c->beat_at), atomic_load(&c->awake_since)};
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i] > broken && broken) broken = later[i];
    if (atomic_load(&c->ends_hung) && broken && !atomic_load(&c->blocked_in) && atomic_load(&c->limit) > 0 &&
        now - broken > atomic_load(&c->limit))
        raise(SIGKILL);
}
