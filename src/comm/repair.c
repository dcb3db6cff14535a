/* Repairs a Comm after ranks have died.
 *
 *     BROKEN --revoke, agree--> others learn of it; posts end; who is in comm_commit returns from it
 *       |  drain: takes the end of every post, so that nobody writes into the caller's memory any more
 *       |  shrink: the ranks that live, in their order (waits for all of them)
 *       |  channels: makes what comm_open makes
 *       |  agree: has everybody made its channels, and is everybody still alive?
 *       |       no: again, from revoke on
 *     WHOLE
 *
 * Only the result of `agree` counts: it is the same on all ranks, while each of the steps before may succeed
 * on one rank and fail on another. A rank whose step has failed revokes what it has made before it agrees:
 * others may be waiting in that step. Posts that ended without an error prove nothing either: a send may end
 * so although nobody received it.
 *
 * The mutex is held throughout. The watchdog needs none for a rank that is blocked in MPI (comm_blocked). */
#include "comm/repair.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/internal.h"

enum { ROUNDS_MAX = 64, SENDS_MS = 200 };

static ErrorCode can_repair(Comm *c, Error *err) {
    char problem[256] = "there is only one rank";
    const TransportKind *kind = c->joined ? c->transport->kind : NULL;
    comm_lock(c);
    if (kind)
        snprintf(problem, sizeof problem, "the transport %s cannot go on without ranks that died",
                 kind->name);
    bool can = kind && kind->can_repair && kind->can_repair(c->transport, problem, sizeof problem);
    comm_unlock(c);
    return can ? OK
               : error_set(err, ERR_UNAVAILABLE, "ranks cannot go on without one that dies: %s", problem);
}

ErrorCode comm_allow_repair(Comm *c, Error *err) {
    CHECK(!c->has_mesh);
    TRY(comm_agree(c, can_repair(c, err), err));
    comm_lock(c);
    comm_blocked(c, "preparing for repairs");
    int error = c->transport->kind->allow_repair(c->transport);
    comm_blocked(c, NULL);
    if (error != TRANSPORT_OK) comm_transport_failure(c, error, "preparing for repairs");
    c->repairable = error == TRANSPORT_OK;
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    return code == OK ? hung_setup(c, err) : code;
}

bool comm_is_broken(Comm *c) {
    comm_lock(c);
    bool broken = c->repairable && c->broken;
    comm_unlock(c);
    return broken;
}

/* Takes the ends of all posts, whatever they say. Sends that do not end are given up after a while in which
 * nothing has ended: their receivers have revoked the channel too, and read nothing. */
static void drain(Comm *c) {
    int error = TRANSPORT_OK;
    long long last = comm_nanoseconds();
    while (c->posts > c->sends || (c->posts > 0 && comm_nanoseconds() - last < SENDS_MS * 1000000LL)) {
        int count = c->transport->kind->finished(c->transport, c->ends, COMM_EVENTS, &error);
        for (int i = 0; i < count; i++) transfer_drop(c, c->ends[i].event);
        if (count > 0) last = comm_nanoseconds();
        if (count <= 0) nanosleep(&(struct timespec){0, 50000}, NULL);
    }
    transfer_drop_all(c);
}

/* What belongs to the ranks and channels from before. The failure is cleared: from here on operations may
 * start. */
static void forget(Comm *c) {
    transfer_end_all(c);
    for (int set = 0; set < MESH_SETS; set++) c->groups[set] = (Group){0};
    c->has_mesh = false;
    c->used = c->folded = 0;
    c->small_started = 0;
    c->failure = (Error){.code = OK};
    c->broken = c->hearsay = c->listening = false;
    c->speaker = -1;
    atomic_store(&c->broken_at, 0);
}

/* size: how many of all are not set aside. */
static void take_places(Comm *c, int size) {
    const CommTransport *t = c->transport;
    c->size = size;
    for (int p = 0; p < c->all; p++)
        if (c->order[p] == t->rank) c->rank = p;
    c->local_rank = t->local_rank, c->local_size = t->local_size, c->local_cores = t->local_cores;
    c->lowest_failed = c->size;
}

/* Whom the transport numbers anew keep their order here. old: the transport's numbers before; before: as in
 * repair_round. */
static void renumber(Comm *c, const int *old, int *before) {
    int *now = mem_alloc_array((size_t)c->all, sizeof *now), count = 0;
    for (int p = 0; p < c->all; p++) now[p] = -1;
    for (int p = 0; p < c->transport->size; p++) now[old[p]] = p;
    for (int p = 0; p < c->all; p++) {
        if (now[c->order[p]] < 0) continue;
        before[count] = before[p];
        c->order[count++] = now[c->order[p]];
    }
    c->all = count;
    free(now);
}

/* All living ranks take part in the same agreements, in the same order: in each comm_commit, and in one
 * before each repair. So who commits meets who has begun a repair, and nobody commits then. Collective
 * calls of MPI on one communicator need such an order. */
static bool agree(Comm *c, bool well) {
    comm_blocked(c, "agreeing with the ranks that live");
    bool all = c->transport->kind->agree(c->transport, well);
    comm_blocked(c, NULL);
    return all;
}

static void refuse(Comm *c) {
    c->refused = true;
    comm_break(c);
    comm_keep_failure(c, ERR_PEER, "rank %d: another rank died, or began a repair", c->rank);
}

ErrorCode comm_commit(Comm *c, Error *err) {
    comm_lock(c);
    if (c->repairable && c->failure.code == OK && !agree(c, true)) refuse(c);
    ErrorCode code = c->repairable ? comm_refused(c, err) : OK;
    comm_unlock(c);
    return code;
}

/* before: [all of now], their numbers before the repair; in its rounds more of them go. */
static bool repair_round(Comm *c, int *before) {
    const TransportKind *kind = c->transport->kind;
    int *old = mem_alloc_array((size_t)c->all, sizeof *old);
    for (int p = 0; p < c->all; p++) old[p] = p;
    kind->revoke(c->transport);
    drain(c);
    bool made = kind->shrink(c->transport, old) == TRANSPORT_OK;
    renumber(c, old, before);
    if (made) {
        forget(c);
        take_places(c, c->all);
        made = comm_make_channels(c, NULL) == OK;
    }
    free(old);
    return kind->agree(c->transport, made);
}

static ErrorCode repair(Comm *c, CommRepair *out, Error *err) {
    int size = c->all;
    free(c->old_ranks);
    c->old_ranks = mem_alloc_array((size_t)size, sizeof *c->old_ranks);
    for (int p = 0; p < size; p++) c->old_ranks[p] = p;
    if (!c->refused) c->transport->kind->agree(c->transport, false);
    c->refused = false;
    for (int round = 0; round < ROUNDS_MAX; round++) {
        if (!repair_round(c, c->old_ranks)) continue;
        hung_renumber(c, c->old_ranks);
        *out = (CommRepair){++c->epoch, c->size, size - c->size, c->old_ranks};
        return OK;
    }
    return error_set(err, ERR_PEER, "rank %d: ranks went on dying in %d attempts to repair communication",
                     c->rank, ROUNDS_MAX);
}

ErrorCode comm_repair(Comm *c, CommRepair *out, Error *err) {
    CHECK(c->repairable && !atomic_load(&c->communicator_device));
    *out = (CommRepair){0};
    comm_lock(c);
    ErrorCode code = c->broken ? OK : comm_refused(c, err);
    comm_blocked(c, "repairing communication");
    if (code == OK) code = repair(c, out, err);
    comm_blocked(c, NULL);
    comm_unlock(c);
    return code;
}

/* ---- ranks set aside ---- */

bool comm_can_set_aside(const Comm *c) { return c->repairable && c->transport->kind->set_aside; }

static void tell_transport(Comm *c, int size) {
    bool *aside = mem_alloc_array((size_t)c->all, sizeof *aside);
    for (int p = size; p < c->all; p++) aside[c->order[p]] = true;
    c->transport->kind->set_aside(c->transport, aside);
    free(aside);
}

/* Nothing is under way but the standing receive of control messages. */
ErrorCode comm_set_aside(Comm *c, const int *order, int size, Error *err) {
    CHECK(comm_can_set_aside(c) && !c->has_mesh && size > 0 && size <= c->all);
    int *was = mem_alloc_array((size_t)c->all, sizeof *was);
    comm_lock(c);
    memcpy(was, c->order, (size_t)c->all * sizeof *was);
    for (int p = 0; p < c->all; p++) c->order[p] = was[order[p]];
    hung_renumber(c, order);
    transfer_drop_all(c);
    c->listening = false;
    tell_transport(c, size);
    take_places(c, size);
    comm_blocked(c, "making groups");
    if (!comm_is_aside(c) && c->failure.code == OK) comm_make_channels(c, NULL);
    comm_blocked(c, NULL);
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    free(was);
    return code;
}

bool comm_is_aside(const Comm *c) { return c->rank >= c->size; }
int comm_count_aside(const Comm *c) { return c->all - c->size; }

/* The watchdog does not count this as a wait: it may last for as long as the run does. */
ErrorCode comm_stand_by(Comm *c, Error *err) {
    CHECK(comm_is_aside(c));
    comm_lock(c);
    while (c->failure.code == OK)
        if (!c->transport->kind->agree(c->transport, true)) refuse(c);
    ErrorCode code = comm_refused(c, err);
    comm_unlock(c);
    return code;
}

void comm_dismiss(Comm *c, ErrorCode code) {
    if (c->all == c->size || comm_is_aside(c)) return;
    comm_barrier(c, NULL); /* nobody needs them any more */
    comm_lock(c);
    for (int p = c->size; p < c->all; p++) c->transport->kind->dismiss(c->transport, c->order[p], (int)code);
    comm_unlock(c);
}
