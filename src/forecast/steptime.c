/* Exposed collectives are found by walking the program with the rank's clock and one clock for each of two
 * networks. A collective begins when it is started and its axis is free; a pass that reads its result waits
 * for its end. */
#include "forecast/steptime.h"

#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"

/* ---- passes ---- */

static Cost collective_time(const Hardware *h, int ranks, int stride, const PassTraffic *t) {
    double sum = t->bytes.forward + t->bytes.input + t->bytes.weight;
    if (sum <= 0) return (Cost){0, 0, 0};
    double seconds = hardware_collective(h, ranks, stride, sum, t->operations);
    return cost_scaled(t->bytes, (1 - h->links.hidden_share) * seconds / sum);
}

void steptime_exposed_comm(const Hardware *h, const Mesh *mesh, const PassTraffic (*traffic)[PASS_AXES],
                           size_t n, UnitTime *units) {
    int tp = mesh_size(mesh, MESH_TENSOR), cp = mesh_size(mesh, MESH_CONTEXT),
        ep = mesh_size(mesh, MESH_EXPERTS);
    for (size_t u = 0; u < n; u++) {
        units[u].tensor = collective_time(h, tp, 1, &traffic[u][PASS_TENSOR]);
        units[u].context = collective_time(h, cp, tp, &traffic[u][PASS_CONTEXT]);
        units[u].experts = collective_time(h, ep, mesh->folded ? 1 : tp, &traffic[u][PASS_EXPERTS]);
    }
}

Cost steptime_sum(const UnitTime *t) {
    return cost_plus(cost_plus(cost_plus(t->products, t->attention), t->memory),
                     cost_plus(cost_plus(t->tensor, t->context), t->experts));
}

/* ---- collectives ---- */

typedef enum Network { OVER_SHARDS, OVER_REPLICAS, NETWORKS } Network;

typedef struct Walk {
    const Hardware *h;
    const Program *p;
    const Mesh *mesh;
    const Cost *units;
    const Model *model;
    double now, busy;          /* the rank's clock; the part of it spent in passes */
    double free[NETWORKS];     /* time at which an axis has sent everything so far */
    double *gathered, *summed; /* [units + 1] time at which the result is there */
} Walk;

/* Seconds of collectives over parameters and gradients. */
static double collective(const Hardware *h, const Mesh *mesh, AxisSet set, int rank, double bytes,
                         int operations) {
    int ranks = mesh_size(mesh, set), local = mesh_inside(mesh, set, rank),
        stride = ranks > 1 ? mesh_member(mesh, set, rank, 1) - mesh_member(mesh, set, rank, 0) : 1;
    return local > 1 ? hardware_levels(h, ranks, local, bytes, operations)
                     : hardware_collective(h, ranks, stride, bytes, operations);
}

/* Over replicas the assumed hardware sums in a ring, in which every rank sends the same amount. In weft's own
 * tree ranks send different amounts. */
static double bytes_of(const Walk *w, Action a, Flat flat) {
    const Partition *op = w->p->partition;
    if (a.kind != ACT_ALL_REDUCE) return (double)program_flat_bytes(w->p, w->model, a, flat);
    if (flat >= GRADIENT_FLATS) return 0;
    double element = w->p->exact ? sizeof(int64_t) : sizeof(float);
    return 2 * (1 - 1.0 / op->replicas) * (double)op->flat_shard[a.unit][flat].count * element;
}

/* Experts' flats are sharded by fewer ranks, which are further apart. */
static AxisSet axes_of(const Walk *w, Action a, Flat flat) {
    return a.kind == ACT_ALL_REDUCE ? MESH_REPLICAS : w->p->partition->flat_shard[a.unit][flat].axes;
}

/* Starts a collective now; returns the time of its end. */
static double start(Walk *w, Action a) {
    static const AxisSet sets[] = {MESH_SHARDS, MESH_EXPERT_SHARDS, MESH_REPLICAS};
    Network network = a.kind == ACT_ALL_REDUCE ? OVER_REPLICAS : OVER_SHARDS;
    double begin = fmax(w->now, w->free[network]), seconds = 0;
    if (a.kind == ACT_ALL_REDUCE) begin = fmax(begin, w->summed[a.unit]);
    for (int i = 0; i < 3; i++) {
        double bytes = 0;
        int flats = 0;
        for (int f = 0; f < FLATS; f++) {
            double own = axes_of(w, a, (Flat)f) == sets[i] ? bytes_of(w, a, (Flat)f) : 0;
            bytes += own;
            flats += own > 0;
        }
        if (flats > 0) seconds += collective(w->h, w->mesh, sets[i], w->p->partition->rank, bytes, flats);
    }
    w->free[network] = begin + seconds;
    return w->free[network];
}

static double pass_seconds(const Walk *w, Action a) {
    const Cost *c = &w->units[program_segment(w->p, a.microbatch) * w->p->units + a.unit];
    if (a.kind == ACT_FWD) return c->forward;
    if (a.kind == ACT_BWD) return c->input + c->weight;
    return a.kind == ACT_DGRAD ? c->input : c->weight;
}

static void step(Walk *w, Action a) {
    if (action_is_pass(a.kind)) {
        if (!program_begins_unit(w->p, a)) return; /* its first action has the time of the full pass */
        double seconds = pass_seconds(w, a);
        bool tied_head = w->p->partition->tied && a.unit == w->p->units - 1;
        if (tied_head) w->now = fmax(w->now, w->gathered[0]);
        w->now = fmax(w->now, w->gathered[a.unit]) + seconds;
        w->busy += seconds;
    } else if (a.kind == ACT_GATHER) {
        w->gathered[a.unit] = start(w, a);
    } else if (a.kind == ACT_REDUCE_SCATTER || a.kind == ACT_ALL_REDUCE) {
        w->summed[a.unit] = start(w, a);
    } else if (a.kind == ACT_REDUCED) {
        w->now = fmax(w->now, w->summed[a.unit]);
    }
}

double steptime_exposed(const Hardware *h, const RankPlan *p, const Mesh *mesh, const Cost *units) {
    size_t n = (size_t)p->program.units + 1;
    Walk w = {.h = h,
              .p = &p->program,
              .mesh = mesh,
              .units = units,
              .model = &p->model,
              .gathered = mem_alloc_array(n, sizeof *w.gathered),
              .summed = mem_alloc_array(n, sizeof *w.summed)};
    for (int i = 0; i < p->program.count; i++) step(&w, p->program.actions[i]);
    free(w.gathered);
    free(w.summed);
    return w.now - w.busy;
}
