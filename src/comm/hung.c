/* Kills ranks that hang, so that the others go on as if these had died (repair.h).
 *
 * The watchdog takes no living rank for dead: a rank that hangs gets SIGKILL, the transport reports its
 * death, and the repair is the same as for any death. So nothing has to be fenced: a rank that was stopped
 * never runs again, even if it is continued, and writes nothing.
 *
 *  H1. A question of the watchdog (failure.c) has shown who hangs: ranks that do not answer, or that answer
 *      that they are busy without progress. The lowest rank that asked decides; the others ask again if it
 *      does not. Of ranks that do not answer only those are killed whose process is stopped. Others may be
 *      blocked in MPI.
 *  H2. A rank can be looked at and killed by those of its machine only. If only ranks of other machines are
 *      mute, all are told (CONTROL_HUNG), and those of that machine look. A busy rank is told too, and kills
 *      itself.
 *  H3. A rank that is blocked in MPI cannot ask. After the limit it kills ranks of its machine that are
 *      stopped.
 *  H4. A rank whose communication is broken, and whose program does not come to repair it, kills itself.
 *  H5. A rank of this machine that does not answer and is not stopped was continued, or killed by another
 *      rank, a moment ago, or is blocked: it is asked again, up to SPARED times in a row.
 *  H6. If that does not help until the next question (all ranks of a machine are stopped; a process that is
 *      stuck in the kernel does not end), the watchdog ends the run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/internal.h"

enum { SPARED = 3 };

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
    c->spared = mem_alloc_array((size_t)c->size, sizeof *c->spared);
    c->numbers = mem_alloc_array((size_t)c->size, sizeof *c->numbers);
    for (int p = 0; p < c->size; p++) c->numbers[p] = p;
    free(all);
    return code;
}

void hung_free(Comm *c) {
    free(c->processes);
    free(c->condemned);
    free(c->spared);
    free(c->numbers);
}

void hung_renumber(Comm *c, const int *before) {
    int *was = mem_alloc_array((size_t)c->first_size, sizeof *was);
    memcpy(was, c->numbers, (size_t)c->first_size * sizeof *was);
    for (int p = 0; p < c->all; p++) c->numbers[p] = was[before[p]];
    free(was);
}

static bool are_together(const RankProcess *a, const RankProcess *b) {
    return a->machine && a->machine == b->machine;
}

static const RankProcess *process_of(const Comm *c, int rank) { return &c->processes[c->numbers[rank]]; }

static bool is_here(const Comm *c, const RankProcess *p) {
    return are_together(p, process_of(c, c->rank)) && p != process_of(c, c->rank);
}

int comm_local_from(const Comm *c, int first) {
    int count = 0;
    for (int p = first; c->processes && p < c->all; p++)
        count += are_together(process_of(c, p), process_of(c, c->rank));
    return count;
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

/* "rank 0 had waited 5.2 s for all-reduce of 64 bytes over dp_shard, in step 3, GATHER of unit 1" */
static void describe_wait(const Comm *c, char *out, size_t size) {
    char what[512];
    watchdog_describe(c, what, sizeof what);
    snprintf(out, size, "rank %d had waited %.1f s for %s", c->numbers[c->rank], watchdog_waited(c), what);
}

/* ranks: "rank 1 hung (it was stopped)"; wait: as above, of the rank that has found it. */
static void keep_found(Comm *c, const char *ranks, const char *wait) {
    Text text = {0};
    text_printf(&text, "%s: %s", ranks, wait);
    log_warn("%s; it is killed, and the others go on", text.data);
    pthread_mutex_lock(&c->hung_mutex);
    if (sscanf(wait, "rank %*d had waited %lf", &c->hung.seconds) != 1) c->hung.seconds = 0;
    snprintf(c->hung.text, sizeof c->hung.text, "%.*s", (int)sizeof c->hung.text - 1, text.data);
    pthread_mutex_unlock(&c->hung_mutex);
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

/* In the order in which they are to blame: others may wait for a stopped rank, or do not answer because they
 * are blocked in MPI. */
typedef enum Hang { HANG_STOPPED, HANG_BUSY, HANG_UNSEEN /* mute, on another machine */, HANG_NOT } Hang;

/* Whether one that answers is on its machine. */
static bool has_neighbour(const Comm *c, int rank) {
    for (int p = 0; p < c->size; p++)
        if (c->heard[p] != CONTROL_NONE && are_together(process_of(c, p), process_of(c, rank))) return true;
    return false;
}

static Hang hang_of(const Comm *c, int rank) {
    const RankProcess *p = process_of(c, rank);
    if (c->heard[rank] == CONTROL_BUSY) return HANG_BUSY;
    if (c->heard[rank] != CONTROL_NONE) return HANG_NOT;
    if (is_here(c, p)) return is_stopped(p) ? HANG_STOPPED : HANG_NOT;
    return has_neighbour(c, rank) ? HANG_UNSEEN : HANG_NOT;
}

/* The busy rank has answered "...: is busy, and waits for no rank, in step 3" (describe_busy). */
static void list_hung(Comm *c, int rank, Hang hang, Text *list) {
    char how[300] = "it was stopped";
    const char *where = c->lines[rank] ? strstr(c->lines[rank], ", in ") : NULL;
    if (hang == HANG_BUSY) snprintf(how, sizeof how, "it was busy without progress%s", where ? where : "");
    list_rank(list, c->numbers[rank], how);
}

/* Those who can see it do the rest: it itself, if it is busy, or its machine's others. */
static void end_rank(Comm *c, int rank, Hang hang, const char *wait) {
    if (hang != HANG_STOPPED) control_send(c, CONTROL_HUNG, -1, (ErrorCode)rank, wait);
    if (is_here(c, process_of(c, rank))) rank_process_kill(process_of(c, rank));
}

/* Returns how many there are; 0 also if one of them was to be killed before. */
static int condemn_all(Comm *c, Hang hang, Text *list) {
    int count = 0;
    for (int p = 0; p < c->size; p++) {
        if (hang_of(c, p) != hang) continue;
        if (!condemn(c, c->numbers[p])) return 0;
        list_hung(c, p, hang, list);
        count++;
    }
    return count;
}

static bool end_all_of(Comm *c, Hang hang) {
    char wait[600];
    Text list = {0};
    int count = condemn_all(c, hang, &list);
    describe_wait(c, wait, sizeof wait);
    for (int p = 0; p < c->size && count > 0; p++)
        if (c->lines[p]) watchdog_print(c->lines[p]);
    if (count > 0 && hang != HANG_UNSEEN) keep_found(c, list.data, wait);
    for (int p = 0; p < c->size && count > 0; p++)
        if (hang_of(c, p) == hang) end_rank(c, p, hang, wait);
    text_free(&list);
    return count > 0;
}

/* Ranks that answer, and are not busy, hang no longer. */
static void forgive(Comm *c) {
    for (int p = 0; p < c->size; p++) {
        if (c->heard[p] == CONTROL_NONE || c->heard[p] == CONTROL_BUSY) continue;
        pthread_mutex_lock(&c->hung_mutex);
        c->condemned[c->numbers[p]] = false;
        pthread_mutex_unlock(&c->hung_mutex);
        c->spared[c->numbers[p]] = 0;
    }
}

/* A rank that was continued answers nobody for a while (answer_stall). */
static bool spare_awake(Comm *c) {
    bool any = false;
    for (int p = 0; p < c->size; p++) {
        bool mute = c->heard[p] == CONTROL_NONE && is_here(c, process_of(c, p));
        if (mute && !is_stopped(process_of(c, p))) any |= c->spared[c->numbers[p]]++ < SPARED;
    }
    return any;
}

bool hung_condemn(Comm *c) {
    bool found = false;
    if (!atomic_load(&c->ends_hung)) return false;
    forgive(c);
    for (Hang hang = HANG_STOPPED; hang < HANG_NOT && !found; hang++) found = end_all_of(c, hang);
    return found || spare_awake(c);
}

/* A rank that is not stopped here may have been continued, or be blocked in MPI. */
void hung_told(Comm *c, int rank, const char *wait) {
    Text list = {0};
    if (rank < 0 || rank >= c->size || !c->processes) return;
    if (rank == c->rank) raise(SIGKILL);
    const RankProcess *p = process_of(c, rank);
    if (!is_here(c, p) || !is_stopped(p) || !condemn(c, c->numbers[rank])) return;
    list_rank(&list, c->numbers[rank], "it was stopped");
    keep_found(c, list.data, wait);
    rank_process_kill(p);
    text_free(&list);
}

/* ---- where nothing can be asked ---- */

/* Without the mutex, so by numbers that do not change. Another rank of the machine may have found them first;
 * so the first time in a wait the watchdog waits another limit. */
bool hung_find_stopped(Comm *c) {
    char wait[600];
    Text list = {0};
    pid_t own = getpid();
    const RankProcess *self = NULL;
    if (!atomic_load(&c->ends_hung)) return false;
    describe_wait(c, wait, sizeof wait);
    for (int i = 0; i < c->first_size; i++)
        if (c->processes[i].process == own && c->processes[i].machine) self = &c->processes[i];
    for (int i = 0; self && i < c->first_size; i++) {
        const RankProcess *p = &c->processes[i];
        if (p == self || !are_together(p, self) || !is_stopped(p) || !condemn(c, i)) continue;
        list_rank(&list, i, "it was stopped");
        rank_process_kill(p);
    }
    bool found = list.length > 0, again = c->stopped_sought == atomic_load(&c->waits_since);
    if (found) keep_found(c, list.data, wait);
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
