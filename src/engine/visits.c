/* Rows of choices visit the ranks of their experts: VISIT_X (model/layers/layer.h: Visits).
 *
 *     leave ==> [round: exchange out, work on the rows of one rank after the other, exchange back] ==> arrive
 *
 * How many rows go from each rank to each is told first: integers, once, with the forward pass; they stay
 * with the slab. All ranks of ep know all of them, and cut the visits into rounds alike: a rank takes the
 * rows of other ranks in their order, as many ranks at a time as it has room for. What one rank sends another
 * always fits, so no row is ever dropped, nothing is allocated, and what is in memory does not hang on the
 * data. How rounds are cut changes no bits: the rows of each rank are worked on by themselves. */
#include <stdlib.h>

#include "engine/execution.h"

void visits_open(Engine *e) {
    size_t ranks = (size_t)e->plan->partition.experts,
           runs = (size_t)(e->model.config.num_experts + 1) * ranks;
    Visiting *v = &e->visiting;
    if (ranks == 1) return;
    v->runs = mem_alloc_array(runs, sizeof *v->runs);
    v->own_runs = mem_alloc_array(runs, sizeof *v->own_runs);
    v->round = mem_alloc_array(ranks * ranks, sizeof *v->round);
    v->first = mem_alloc_array(ranks * ranks, sizeof *v->first);
    v->home = mem_alloc_array(ranks, sizeof *v->home);
    v->away = mem_alloc_array(ranks, sizeof *v->away);
    v->parts = mem_alloc_array(ranks, sizeof *v->parts);
    for (size_t r = 0; r < ranks; r++)
        v->parts[r] =
            (CommPart){(int64_t)r * (e->model.config.num_experts + 1), e->model.config.num_experts + 1};
}

void visits_close(Engine *e) {
    Visiting *v = &e->visiting;
    free(v->runs);
    free(v->own_runs);
    free(v->round);
    free(v->first);
    free(v->home);
    free(v->away);
    free(v->parts);
}

/* ---- who sends whom how much ---- */

static int ranks_of(const Engine *e) { return e->plan->partition.experts; }

/* Rows at home of `rank` that go to rank `to`: sorted by expert, they are one run. */
static CommPart leaving(const Engine *e, int rank, int to) {
    const ModelConfig *c = &e->model.config;
    const int32_t *runs = e->visiting.runs + rank * (c->num_experts + 1);
    int64_t own = model_own_experts(c);
    return (CommPart){runs[to * own], runs[(to + 1) * own] - runs[to * own]};
}

/* Of each rank's rows here, by expert, from the first of them on. */
static void find_own_runs(Engine *e) {
    const ModelConfig *c = &e->model.config;
    int64_t own = model_own_experts(c), first = model_first_expert(c);
    for (int r = 0; r < ranks_of(e); r++) {
        const int32_t *runs = e->visiting.runs + r * (c->num_experts + 1) + first;
        for (int64_t i = 0; i <= own; i++) e->visiting.own_runs[r * (own + 1) + i] = runs[i] - runs[0];
    }
}

/* The rounds of all ranks, which each finds for itself; returns how many. */
static int cut_rounds(Engine *e) {
    Visiting *v = &e->visiting;
    int ranks = ranks_of(e), most = 0;
    for (int to = 0; to < ranks; to++) {
        int64_t taken = 0;
        int round = 0;
        for (int from = 0; from < ranks; from++) {
            int64_t count = leaving(e, from, to).count;
            CHECK(count >= 0 && count <= e->model.visitors);
            if (taken + count > e->model.visitors) round++, taken = 0;
            v->round[to * ranks + from] = round, v->first[to * ranks + from] = taken;
            taken += count;
        }
        if (round > most) most = round;
    }
    return most + 1;
}

/* The host needs to know, since messages have lengths: it waits. */
static int learn(Execution *x, const VisitTensors *t, bool tell) {
    Engine *e = x->engine;
    Visiting *v = &e->visiting;
    size_t runs = (size_t)(e->model.config.num_experts + 1) * sizeof(int32_t), ranks = (size_t)ranks_of(e);
    if (tell) {
        Error err = {.message = ""};
        CommHandle handle;
        OP(e->device, OP_COPY, copy, (char *)t->all_runs + (size_t)e->plan->partition.expert * runs, t->runs,
           runs);
        execution_must(
            e, comm_all_gather(e->comm, MESH_EXPERTS, v->parts, sizeof(int32_t), t->all_runs, &handle, &err),
            &err);
        execution_wait(e, &handle);
    }
    device_fetch(e->device, v->runs, t->all_runs, ranks * runs);
    find_own_runs(e);
    OP(e->device, OP_UPLOAD, upload, t->own_runs, v->own_runs,
       (size_t)model_dim(&e->model.config, DIM_OWN_RUNS) * sizeof(int32_t));
    return cut_rounds(e);
}

/* ---- a round ---- */

/* What of the rows at home is away in a round, and where rows of others are here. */
static void find_parts(Engine *e, int round) {
    Visiting *v = &e->visiting;
    int ranks = ranks_of(e), own = e->plan->partition.expert;
    for (int r = 0; r < ranks; r++) {
        v->home[r] = leaving(e, own, r);
        v->away[r] = (CommPart){v->first[own * ranks + r], leaving(e, r, own).count};
        if (v->round[r * ranks + own] != round) v->home[r].count = 0;
        if (v->round[own * ranks + r] != round) v->away[r].count = 0;
    }
}

static void exchange(Engine *e, const CommPart *out, const char *from, const CommPart *in, char *to,
                     size_t bytes) {
    Error err = {.message = ""};
    CommHandle handle;
    execution_must(e, comm_exchange(e->comm, MESH_EXPERTS, bytes, out, from, in, to, &handle, &err), &err);
    execution_wait(e, &handle);
}

static void run_round(Execution *x, const UnitPass *unit, int part, VisitWay way, const VisitTensors *t,
                      int round) {
    Engine *e = x->engine;
    const Visiting *v = &e->visiting;
    int ranks = ranks_of(e), own = e->plan->partition.expert;
    find_parts(e, round);
    for (int i = 0; i < t->out_count; i++)
        exchange(e, v->home, t->out[i].home, v->away, t->out[i].away, t->out[i].bytes);
    for (int r = 0; r < ranks; r++)
        if (v->round[own * ranks + r] == round)
            unit_work(unit, part, way, &(Visitors){r, v->away[r].first, v->away[r].count});
    for (int i = 0; i < t->back_count; i++)
        exchange(e, v->away, t->back[i].away, v->home, t->back[i].home, t->back[i].bytes);
}

void visit_run(Execution *x, Action a) {
    VisitWay way = a.pass == ACT_BWD || a.pass == ACT_BWD_IN ? VISIT_BACKWARD : VISIT_FORWARD;
    int part = a.parts.first;
    execution_enter(x, a.microbatch);
    parameters_ready(x, a.unit);
    UnitPass unit = execution_unit(x, a);
    VisitTensors t = unit_visit(&unit, part, way);
    unit_leave(&unit, part, way);
    int rounds = learn(x, &t, a.pass == ACT_FWD);
    for (int round = 0; round < rounds; round++) run_round(x, &unit, part, way, &t, round);
    unit_arrive(&unit, part, way);
}
