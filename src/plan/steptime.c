/* Exposed collectives are found by walking the program with two clocks of network beside the rank's own: what
 * an action starts begins when its axis is free, and a pass that reads it waits for its end. */
#include "plan/steptime.h"

#include <math.h>
#include <stdlib.h>

#include "comm/comm.h"

/* How often the bytes of a block's activations go through memory beside the products that read them: written
 * and read on the way forward; read, and their gradient written and read, on the way back. */
enum { FORWARD_TOUCHES = 2, INPUT_TOUCHES = 2, WEIGHT_TOUCHES = 1 };
/* A row of logits: written, read by the loss, its gradient written and read twice. */
enum { LOGIT_TOUCHES = 2, DLOGIT_TOUCHES = 3 };
/* A parameter in the update: its gradient read for the norm and for the step, its weight read and written. */
enum { UPDATE_TOUCHES = 4 };

/* ---- passes ---- */

/* FLOPs that grow with the context are attention's; what is left without one are products. */
static void count_flops(const CrossingSpec *s, int64_t context, UnitTime *units) {
    size_t n = (size_t)s->model->num_hidden_layers + 2;
    Cost *all = mem_alloc_array(n, sizeof *all), *products = mem_alloc_array(n, sizeof *products);
    ModelConfig model = *s->model;
    model.expert_ranks = s->experts;                              /* what visits is made again */
    model.num_key_value_heads *= axes_copies(&model, s->tensors); /* copies are made by each */
    model_unit_costs(&model, s->recompute, context, all);
    model_unit_costs(&model, s->recompute, 0, products);
    for (size_t u = 0; u < n; u++) {
        units[u].products = products[u];
        units[u].attention = cost_plus(all[u], cost_scaled(products[u], -1));
    }
    free(all);
    free(products);
}

/* Bytes of a token. Elementwise work is not counted op by op: it moves what a forward pass keeps when nothing
 * is recomputed, and that once more where it is. */
static void count_bytes(const CrossingSpec *s, const Model *kept, UnitTime *units) {
    int last = kept->table.units - 1;
    double again = s->recompute == RECOMPUTE_FULL ? FORWARD_TOUCHES : s->recompute == RECOMPUTE_SELECTIVE;
    for (int u = 0; u < last; u++) {
        double bytes = (double)unit_slab_bytes(kept, u) / (double)kept->tokens;
        units[u].memory = cost_scaled((Cost){FORWARD_TOUCHES, INPUT_TOUCHES + again, WEIGHT_TOUCHES}, bytes);
    }
    double logit = LOGIT_TOUCHES * 4 + DLOGIT_TOUCHES * (double)dtype_bytes(s->compute);
    units[last].memory.forward = (double)s->model->vocab_size * logit;
}

static Cost crossing_time(const Hardware *h, const CrossingSpec *s, int unit, AxisSet over) {
    bool tensor = over == MESH_TENSOR, experts = over == MESH_EXPERTS;
    int ranks = tensor ? s->tensors : experts ? s->experts : s->contexts, stride = tensor ? 1 : s->tensors;
    Cost bytes = tensor    ? crossings_tensor(s, unit)
                 : experts ? crossings_experts(s, unit)
                           : crossings_context(s, unit);
    double sum = bytes.forward + bytes.input + bytes.weight;
    if (sum <= 0) return (Cost){0, 0, 0};
    double seconds = hardware_collective(h, ranks, stride, sum, crossings_operations(s, unit, over));
    return cost_scaled(bytes, (1 - h->links.hidden_share) * seconds / sum);
}

ErrorCode steptime_units(const Hardware *h, const CrossingSpec *s, int64_t context, UnitTime *units,
                         Error *err) {
    enum { SAMPLE = 1024 }; /* tokens: so many that rounding to cache lines does not count */
    int last = (int)s->model->num_hidden_layers + 1;
    double own = (double)s->tokens / s->tensors / s->contexts;
    Model kept;
    TRY(model_build(&kept, s->model, s->compute, RECOMPUTE_NONE, SAMPLE, 0, err));
    count_flops(s, context, units);
    count_bytes(s, &kept, units);
    model_free(&kept);
    for (int u = 0; u <= last; u++) {
        double speed = u == last ? hardware_head(h, s->compute) : hardware_products(h, s->compute);
        units[u].products = cost_scaled(units[u].products, own / speed);
        units[u].attention = cost_scaled(units[u].attention, own / hardware_attention(h, s->compute));
        units[u].memory = cost_scaled(units[u].memory, own / hardware_bandwidth(h));
        units[u].tensor = crossing_time(h, s, u, MESH_TENSOR);
        units[u].context = crossing_time(h, s, u, MESH_CONTEXT);
        units[u].experts = crossing_time(h, s, u, MESH_EXPERTS);
    }
    return OK;
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
    double now, busy;          /* the rank's own clock; of that, in passes */
    double free[NETWORKS];     /* when an axis has sent what it was given */
    double *gathered, *summed; /* [units + 1] when it is there */
} Walk;

/* Distance of neighbours in a group: what varies faster lies between them. */
static int stride_of(const Mesh *mesh, Network network) {
    int tp = mesh_size(mesh, MESH_TENSOR);
    return network == OVER_SHARDS ? tp : tp * mesh_size(mesh, MESH_SHARDS);
}

/* Over replicas the stated hardware sums in a ring, in which every rank sends as much; the tree of weft's own
 * sums is uneven. */
static double bytes_of(const Walk *w, Action a, Flat flat) {
    const Partition *part = w->p->partition;
    if (a.kind != ACT_ALL_REDUCE) return (double)program_flat_bytes(w->p, w->model, a, flat);
    if (flat >= GRADIENT_FLATS) return 0;
    double element = w->p->exact ? sizeof(int64_t) : sizeof(float);
    return 2 * (1 - 1.0 / part->replicas) * (double)part->share[a.unit][flat].count * element;
}

/* When what is started now will be there. */
static double start(Walk *w, Action a) {
    Network network = a.kind == ACT_ALL_REDUCE ? OVER_REPLICAS : OVER_SHARDS;
    const Partition *part = w->p->partition;
    int ranks = network == OVER_SHARDS ? part->shards : part->replicas;
    double bytes = 0;
    int flats = 0;
    for (int f = 0; f < FLATS; f++) {
        double own = bytes_of(w, a, (Flat)f);
        bytes += own;
        flats += own > 0;
    }
    double begin = fmax(w->now, w->free[network]);
    if (a.kind == ACT_ALL_REDUCE) begin = fmax(begin, w->summed[a.unit]);
    w->free[network] = begin + hardware_collective(w->h, ranks, stride_of(w->mesh, network), bytes, flats);
    return w->free[network];
}

static double pass_seconds(const Walk *w, Action a) {
    const Cost *c = &w->units[a.unit];
    if (a.kind == ACT_FWD) return c->forward;
    if (a.kind == ACT_BWD) return c->input + c->weight;
    return a.kind == ACT_BWD_IN ? c->input : c->weight;
}

static void step(Walk *w, Action a) {
    if (action_is_pass(a.kind)) {
        if (!program_begins_unit(w->p, a)) return; /* its first action has the time of the whole pass */
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

double steptime_update(const Hardware *h, const RankPlan *p) {
    double owned = (double)p->partition.owned * sizeof(float);
    return (UPDATE_TOUCHES * owned + 2 * (double)p->memory.optimizer + (double)p->memory.copy) /
           hardware_bandwidth(h);
}
