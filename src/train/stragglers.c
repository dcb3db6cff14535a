/* Stragglers: the rank that the others wait for.
 *
 * Whoever is slow waits for nobody, while everybody waits for it. Over a window of check.stragglers_every
 * steps each rank sums the time that it waited for others. The rank with the least is named if it hardly
 * waited and the others did: at least a fifth of the time, and four times as much. Ranks of a pipeline wait
 * by themselves (bubbles), but then all of them do. */
#include <string.h>
#include <stdlib.h>

#include "base/host.h"
#include "base/log.h"
#include "train/run.h"

typedef struct Row {
    double waited, data; /* shares of the window's time */
    char host[HOST_NAME_BYTES];
} Row;

/* Returns the index of the straggler, -1: there is none. *others: mean share that the others waited. */
static int straggler_of(const Row *rows, int count, double *others) {
    const double share = 0.2, times = 4;
    int least = 0;
    double sum = 0;
    for (int r = 0; r < count; r++) {
        sum += rows[r].waited;
        if (rows[r].waited < rows[least].waited) least = r;
    }
    *others = (sum - rows[least].waited) / (count - 1);
    return *others >= share && *others >= times * rows[least].waited ? least : -1;
}

static ErrorCode report(Trainer *t, const Row *rows, Error *err) {
    double others;
    char detail[300];
    int rank = straggler_of(rows, comm_size(t->comm), &others);
    if (rank < 0) return OK;
    snprintf(
        detail, sizeof detail,
        "in %lld steps the others waited for rank %d on host %s %.0f%% of the time; it waited %.0f%% itself, "
        "and %.0f%% for data",
        (long long)t->stragglers.steps, rank, rows[rank].host, 100 * others, 100 * rows[rank].waited,
        100 * rows[rank].data);
    log_warn("step %lld: %s", (long long)t->state.step, detail);
    return record_event(t, JOURNAL_STRAGGLER, t->state.step, detail, NULL, err);
}

static ErrorCode look(Trainer *t, Error *err) {
    const StragglerWindow *w = &t->stragglers;
    Row mine = {.waited = w->waited / w->seconds, .data = w->data / w->seconds};
    char *all = NULL;
    host_name(mine.host, sizeof mine.host);
    ErrorCode code = comm_concatenate(t->comm, &mine, sizeof mine, &all, NULL, err);
    if (code == OK && all) code = report(t, (const Row *)(const void *)all, err);
    free(all);
    return code;
}

ErrorCode stragglers_step(Trainer *t, double seconds, double data, double waited, Error *err) {
    StragglerWindow *w = &t->stragglers;
    ErrorCode code = OK;
    w->steps++;
    w->seconds += seconds, w->data += data, w->waited += waited;
    if (comm_size(t->comm) == 1 || !due(t->c->check.stragglers_every, t->state.step)) return OK;
    if (w->seconds > 0) code = look(t, err);
    *w = (StragglerWindow){0};
    return comm_agree(t->comm, code, err);
}
