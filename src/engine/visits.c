/* Rows of choices visit the ranks of their experts: DISPATCH (model/layers/layer.h: Visits).
 *
 *     leave ==> [round: exchange out, work on the rows of one rank after the other, exchange back] ==> arrive
 *
 * How many rows go from each rank to each is told first: integers, once, with the forward pass; they stay
 * with the slab. All ranks of ep know all of them, and cut the visits into rounds alike: a rank takes the
 * rows of other ranks in their order, as many ranks at a time as it has room for. What one rank sends another
 * always fits, so no row is ever dropped, nothing is allocated, and what is in memory does not hang on the
 * data. How rounds are cut changes no bits: the rows of each rank are worked on by themselves. Where tokens
 * have spans, the rows of each span have rounds of their own.
 *
 * Elsewhere called: token dispatcher (Megatron, DeepEP): all-to-all dispatch and combine of MoE, expert
 * parallelism, dropless; no capacity factor drops tokens. */
#include <stdlib.h>

#include "engine/execution.h"

/* Where the runs of a rank's rows begin, span after span, and the last ends. */
static int64_t runs_of_rank(const Engine *e) {
    return model_spans(&e->model) * model_dim(&e->model.config, DIM_RUNS);
}

void visits_open(Engine *e) {
    size_t ranks = (size_t)e->plan->partition.experts, each = (size_t)runs_of_rank(e), runs = each * ranks;
    Visiting *v = &e->traffic.visits;
    if (ranks == 1) return;
    v->runs = mem_alloc_array(runs, sizeof *v->runs);
    v->own_runs = mem_alloc_array(runs, sizeof *v->own_runs);
    v->round = mem_alloc_array(ranks * ranks, sizeof *v->round);
    v->first = mem_alloc_array(ranks * ranks, sizeof *v->first);
    v->home = mem_alloc_array(ranks, sizeof *v->home);
    v->away = mem_alloc_array(ranks, sizeof *v->away);
    v->parts = mem_alloc_array(ranks, sizeof *v->parts);
    for (size_t r = 0; r < ranks; r++) v->parts[r] = (CommPart){(int64_t)(r * each), (int64_t)each};
}

void visits_close(Engine *e) {
    Visiting *v = &e->traffic.visits;
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

/* Of the rows of a rank's span, by expert. */
static const int32_t *runs_of(const Engine *e, int rank, int span) {
    return e->traffic.visits.runs + rank * runs_of_rank(e) + span * model_dim(&e->model.config, DIM_RUNS);
}

/* Rows of a span at home of `rank` that go to rank `to`: sorted by expert, they are one run. */
static CommPart leaving(const Engine *e, int span, int rank, int to) {
    const int32_t *runs = runs_of(e, rank, span);
    int64_t own = model_own_experts(&e->model.config),
            before = span * model_span(&e->model, model_choices(&e->model));
    return (CommPart){before + runs[to * own], runs[(to + 1) * own] - runs[to * own]};
}

/* Of each rank's rows here, by expert, from the first of them on; returns how many numbers. */
static int64_t find_own_runs(Engine *e) {
    const ModelConfig *c = &e->model.config;
    int64_t own = model_own_experts(c), n = 0;
    for (int s = 0; s < model_spans(&e->model); s++)
        for (int r = 0; r < ranks_of(e); r++) {
            const int32_t *runs = runs_of(e, r, s) + model_first_expert(c);
            for (int64_t i = 0; i <= own; i++) e->traffic.visits.own_runs[n++] = runs[i] - runs[0];
        }
    return n;
}

/* The rounds of all ranks, which each finds for itself; returns how many. */
static int cut_rounds(Engine *e, int span) {
    Visiting *v = &e->traffic.visits;
    int ranks = ranks_of(e), most = 0;
    for (int to = 0; to < ranks; to++) {
        int64_t taken = 0;
        int round = 0;
        for (int from = 0; from < ranks; from++) {
            int64_t count = leaving(e, span, from, to).count;
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
static void learn(Execution *x, const VisitTensors *t, bool tell) {
    Engine *e = x->engine;
    Visiting *v = &e->traffic.visits;
    size_t runs = (size_t)runs_of_rank(e) * sizeof(int32_t), ranks = (size_t)ranks_of(e);
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
    size_t own = (size_t)find_own_runs(e) * sizeof(int32_t);
    OP(e->device, OP_UPLOAD, upload, t->own_runs, v->own_runs, own);
}

/* ---- a round ---- */

/* What of the rows at home is away in a round, and where rows of others are here. */
static void find_parts(Engine *e, int span, int round) {
    Visiting *v = &e->traffic.visits;
    int ranks = ranks_of(e), own = e->plan->partition.expert;
    for (int r = 0; r < ranks; r++) {
        v->home[r] = leaving(e, span, own, r);
        v->away[r] = (CommPart){v->first[own * ranks + r], leaving(e, span, r, own).count};
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

static void go_out(Engine *e, const VisitedRows *r) {
    const Visiting *v = &e->traffic.visits;
    for (int i = 0; i < r->times; i++)
        exchange(e, v->home, r->home + (size_t)i * r->home_step, v->away, r->away + (size_t)i * r->away_step,
                 r->bytes);
}

static void come_back(Engine *e, const VisitedRows *r) {
    const Visiting *v = &e->traffic.visits;
    for (int i = 0; i < r->times; i++)
        exchange(e, v->away, r->away + (size_t)i * r->away_step, v->home, r->home + (size_t)i * r->home_step,
                 r->bytes);
}

static void run_round(Execution *x, const UnitPass *unit, int part, VisitWay way, const VisitTensors *t,
                      int span, int round) {
    Engine *e = x->engine;
    const Visiting *v = &e->traffic.visits;
    int ranks = ranks_of(e), own = e->plan->partition.expert;
    find_parts(e, span, round);
    for (int i = 0; i < t->out_count; i++) go_out(e, &t->out[i]);
    for (int r = 0; r < ranks; r++)
        if (v->round[own * ranks + r] == round)
            unit_work(unit, part, way, &(Visitors){r, span, v->away[r].first, v->away[r].count});
    for (int i = 0; i < t->back_count; i++) come_back(e, &t->back[i]);
}

void visit_run(Execution *x, Action a) {
    VisitWay way = a.pass == ACT_BWD || a.pass == ACT_BWD_IN ? VISIT_BACKWARD : VISIT_FORWARD;
    int part = a.parts.first;
    execution_enter(x, a.microbatch);
    parameters_ready(x, a.unit);
    UnitPass unit = execution_unit(x, a);
    VisitTensors t = unit_visit(&unit, part, way);
    unit_leave(&unit, part, way);
    learn(x, &t, a.pass == ACT_FWD);
    for (int span = 0; span < model_spans(&x->engine->model); span++) {
        int rounds = cut_rounds(x->engine, span);
        for (int round = 0; round < rounds; round++) run_round(x, &unit, part, way, &t, span, round);
    }
    unit_arrive(&unit, part, way);
}
