/* The copy of another rank's state (recovery.partner_copy), which this rank, its partner, keeps up to date by
 * making the same updates.
 *
 *     rank A                                     its partner
 *     state k-1                                  copy of state k-1
 *     REDUCED: gradients of its shards --------> gradients of A
 *     NORM: waits for what it sends and receives, then all commit step k
 *     UPDATE: state k                            UPDATE, then partner_update: copy of state k
 *
 * P1. The commit of a step needs all ranks, and a rank takes part in it only when the gradients that it keeps
 * for another have arrived. So after a commit each partner can make the copy of state k by itself, whoever
 * dies; before it no copy has changed. One copy is therefore enough, and needs no second buffer: it and the
 * states of the living ranks are always of the same step. P2. An update reads a state, its gradient and
 * scalars that all ranks have alike, and ranks of one run round alike (agree_on_rounding), so the copy has
 * the bits of the original. P3. What is sent are gradients, a third of the bytes of weights and two moments.
 *
 * `copied` is an engine that only update.c uses: it has the plan and the memory of the other rank, and the
 * scalars of this one.
 *
 * Elsewhere called: in-memory checkpoint, peer replication (GEMINI, Wang et al. 2023), which send states. */
#include <stdlib.h>

#include "engine/execution.h"

void partner_open(Engine *e) {
    const RankPlan *of = e->plan->copied;
    size_t units = (size_t)of->model.table.units;
    e->copied = mem_alloc(sizeof *e->copied);
    e->copied->plan = of, e->copied->device = e->device, e->copied->model = of->model;
    e->copied->step.owned = mem_alloc_array(units + 1, sizeof *e->copied->step.owned);
    e->traffic.copies = mem_alloc_array(units, sizeof *e->traffic.copies);
}

void partner_close(Engine *e) {
    free(e->traffic.copies);
    if (e->copied) free(e->copied->step.owned);
    free(e->copied);
    e->copied = NULL;
}

/* Memory as memory_plan_add_partner has counted it. */
void partner_layout(Engine *e) {
    Engine *c = e->copied;
    Pool *pool = &e->pools[POOL_PARTNER];
    c->state.master = pool_take(pool, e->plan->memory.partner.parameters);
    c->state.states = pool_take(pool, e->plan->memory.partner.optimizer);
    for (int u = 0; u < c->model.table.units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++)
            c->step.owned[u].flats[f] =
                pool_take(pool, (size_t)gradient_updated(&c->plan->partition, u, (Flat)f) * sizeof(float));
}

/* Key of the message with the gradients of one flat of a unit. The number counts the units of all programs
 * executed so far, so no two steps share one. */
static uint64_t key_of(const Engine *e, int unit, int flat) {
    return comm_key(3, flat, e->progress.executed * e->model.table.units + unit);
}

/* `of`: whose gradients these are, this engine or the one that it keeps a copy of. */
static size_t bytes_of(const Engine *of, int unit, int flat) {
    return (size_t)gradient_updated(&of->plan->partition, unit, (Flat)flat) * sizeof(float);
}

/* What arrived for the step before is used up by then. */
void partner_receive(Execution *x) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    int from = mesh_partner_of(&p->mesh, p->rank);
    for (int u = 0; e->copied && u < e->model.table.units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++) {
            Error err = {.message = ""};
            size_t bytes = bytes_of(e->copied, u, f);
            if (bytes == 0) continue;
            ErrorCode code = comm_recv(e->comm, from, key_of(e, u, f), e->copied->step.owned[u].flats[f],
                                       bytes, &e->traffic.copies[u][1][f], &err);
            execution_must(e, code, &err);
        }
}

void partner_send(Execution *x, int unit) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    int to = mesh_partner(&p->mesh, p->rank);
    for (int f = 0; e->copied && f < GRADIENT_FLATS; f++) {
        Error err = {.message = ""};
        size_t bytes = bytes_of(e, unit, f);
        if (bytes == 0) continue;
        ErrorCode code = comm_send(e->comm, to, key_of(e, unit, f), e->step.owned[unit].flats[f], bytes,
                                   &e->traffic.copies[unit][0][f], &err);
        execution_must(e, code, &err);
    }
}

void partner_wait(Execution *x) {
    Engine *e = x->engine;
    for (int u = 0; e->copied && u < e->model.table.units; u++)
        for (int f = 0; f < GRADIENT_FLATS; f++)
            for (int way = 0; way < 2; way++) execution_wait(e, &e->traffic.copies[u][way][f]);
}

void partner_update(Execution *x) {
    Engine *c = x->engine->copied;
    if (!c || !x->committed || x->result->skipped) return;
    for (int u = 0; u < c->model.table.units; u++) update_parameters(c, u);
}
