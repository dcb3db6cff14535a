#include "forecast/bounds.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- choices ---- */

Config bounds_config(const Bounds *b, const Choice *c) {
    Config out = *b->config;
    bool same = strcmp(c->schedule, out.pipeline.schedule) == 0 &&
                c->stages_per_rank == (int)out.pipeline.stages_per_rank;
    out.mesh = (MeshOptions){c->pp, c->replicas, -1, c->cp, c->tp, c->ep, c->etp, out.mesh.machine};
    out.train.microbatch = c->sequences;
    out.train.tokens_per_step = b->step * out.train.context;
    out.train.recompute = c->recompute;
    out.train.gradient_sync = c->sync;
    out.train.reshard = c->reshard;
    out.pipeline.microbatches = 0;
    out.pipeline.segments = c->segments > 1 ? c->segments : 1;
    if (strcmp(c->schedule, out.pipeline.schedule) != 0) out.pipeline.activations = 0;
    if (same) return out;
    out.pipeline.schedule = (char *)(uintptr_t)c->schedule; /* read only */
    out.pipeline.stages_per_rank = c->stages_per_rank;
    out.pipeline.layers_per_stage = 0;
    return out;
}

/* Ranks of ep along dp_shard and cp. */
static int sources_of(int ep, int etp, int tp) { return etp == 1 ? ep / tp : ep; }

int bounds_data_ranks(const Bounds *b, const Choice *c) {
    int each = c->pp * c->cp * c->tp;
    return b->world % each == 0 ? b->world / each : 0;
}

int bounds_microbatches(const Bounds *b, const Choice *c) {
    int64_t together = bounds_data_ranks(b, c) * c->sequences;
    if (together == 0 || b->step % together != 0 || b->step / together > INT32_MAX) return 0;
    return (int)(b->step / together);
}

/* Ranks over which the parameters of a unit are sharded. */
static int shards_of(const Bounds *b, const Choice *c) {
    return bounds_data_ranks(b, c) / c->replicas * c->cp;
}

void bounds_normalize(const Bounds *b, Choice *c) {
    int shards = shards_of(b, c);
    c->sync = program_sync((GradientSync)c->sync, shards, c->replicas, bounds_microbatches(b, c));
    if (shards == 1) c->reshard = RESHARD_NEVER;
}

/* ---- probes ---- */

/* What a pass does apart from the degrees: whether dgrad and wgrad run separately, in a pipeline or on one
 * pipeline rank, and whether microbatches have gradients of their own. */
typedef enum ProbeKind { TOGETHER, APART_ALONE, APART_IN_PIPELINE } ProbeKind;
typedef struct ProbeKey {
    int cp, tp, ep, etp, recompute, kind, slots;
    int64_t sequences;
} ProbeKey;

typedef struct FlatSize {
    double elements;
    double width; /* bytes of an element when it is gathered */
    double states;
} FlatSize;

struct Probe {
    ProbeKey key;
    bool possible;
    int units;
    Cost *cost; /* [units] in the unit of simulations */
    double work;
    double *saved, *stash;    /* [units] */
    FlatSize (*flats)[FLATS]; /* [units + 1]; the last is the tied head's gradient */
    double boundary, fixed;
    bool whole; /* some matrices must stay whole, so shards may be uneven */
    bool frozen, exact;
    Probe *next;
};

enum { BUCKETS = 4096 };

static size_t hash_of(const int64_t *fields, size_t count) {
    uint64_t h = 0;
    for (size_t i = 0; i < count; i++)
        h = (h ^ (uint64_t)fields[i]) * UINT64_C(0x9e3779b97f4a7c15), h ^= h >> 29;
    return h % BUCKETS;
}

static size_t bucket_of(const ProbeKey *k) {
    const int64_t fields[] = {k->cp, k->tp, k->ep, k->etp, k->recompute, k->kind, k->slots, k->sequences};
    return hash_of(fields, sizeof fields / sizeof *fields);
}

static bool same_key(const ProbeKey *a, const ProbeKey *b) {
    return a->cp == b->cp && a->tp == b->tp && a->ep == b->ep && a->etp == b->etp &&
           a->recompute == b->recompute && a->kind == b->kind && a->slots == b->slots &&
           a->sequences == b->sequences;
}

/* The fewest data-parallel ranks: those that ep needs beside cp, and two where slots need a reduction. */
static int data_ranks_of(const ProbeKey *k) {
    int sources = sources_of(k->ep, k->etp, k->tp), ep = sources % k->cp == 0   ? sources / k->cp
                                                         : k->cp % sources == 0 ? 1
                                                                                : sources;
    return k->slots && ep * k->cp == 1 ? 2 : ep;
}

static bool same_block(BlockShape a, BlockShape b) {
    return a.window == b.window && a.chunked == b.chunked && a.rotation == b.rotation &&
           a.scaled == b.scaled && a.experts == b.experts && a.mixer == b.mixer;
}

/* The first block of a shape that is like a block of the model, among the first `count`; -1: none is. */
static int block_like(const ModelConfig *shape, int count, BlockShape block) {
    for (int i = 0; i < count; i++)
        if (same_block(model_block(shape, i), block)) return i;
    return -1;
}

/* Whether the model cut to so many layers has all kinds of its blocks, each where the model has it. */
static bool has_all_blocks(const ModelConfig *m, int layers) {
    ModelConfig cut = *m;
    cut.num_hidden_layers = layers;
    for (int i = 0; i < m->num_hidden_layers; i++)
        if (block_like(&cut, layers, model_block(m, i)) < 0) return false;
    for (int i = 0; i < layers; i++)
        if (!same_block(model_block(&cut, i), model_block(m, i))) return false;
    return same_block(model_block(&cut, layers), model_block(m, m->num_hidden_layers));
}

/* Layers of a probe: a block of each kind is enough, unless parameters are told apart by their names. */
static int layers_of_probes(const Config *c) {
    const ModelConfig *m = &c->model.shape;
    int layers = 1, all = (int)m->num_hidden_layers;
    if (c->optimizer.groups.count > 0 || c->lora.rank > 0) return all;
    while (layers < all && !has_all_blocks(m, layers)) layers++;
    return layers;
}

/* The unit of a probe that is like a unit of the model. */
static int unit_like(const Bounds *b, const Config *probe, int unit) {
    const ModelConfig *m = &b->config->model.shape;
    if (unit == 0 || b->layers == m->num_hidden_layers) return unit;
    if (unit > m->num_hidden_layers) return b->layers + 1;
    return 1 + block_like(&probe->model.shape, b->layers, model_block(m, unit - 1));
}

static Config probe_config(const Bounds *b, const ProbeKey *k) {
    int pp = k->kind == APART_IN_PIPELINE ? 2 : 1;
    Choice c = {.pp = pp,
                .replicas = 1,
                .cp = k->cp,
                .tp = k->tp,
                .ep = k->ep,
                .etp = k->etp,
                .sequences = k->sequences,
                .schedule = schedule_name(pp > 1 ? PIPE_ZB_H1 : PIPE_1F1B),
                .stages_per_rank = 1,
                .recompute = k->recompute,
                .sync = k->slots ? SYNC_MICROBATCH : SYNC_STEP,
                .reshard = RESHARD_NEVER};
    Config out = bounds_config(b, &c);
    out.train.tokens_per_step = pp * data_ranks_of(k) * k->sequences * out.train.context;
    out.train.split_backward = k->kind == APART_ALONE;
    out.model.shape.num_hidden_layers = b->layers;
    out.train.rampup_start = 0, out.check.replay_every = 0;
    out.pipeline.split = (StringList){0};
    out.pipeline.memory_gib = 0;
    out.checkpoint.async = false; /* a copy of narrow shards takes long to measure, and is no bound */
    out.metrics.log_ranks = (StringList){0};
    return out;
}

/* The plan of the rank that runs a unit in the probe. */
static const RankPlan *plan_of(const Forecast *f, int unit) {
    int rank = 0;
    while (rank + 1 < f->pipe_ranks && !partition_runs(&f->ranks[rank].plan.partition, unit)) rank++;
    return &f->ranks[rank].plan;
}

/* Bytes of optimizer states of an element, on average over the parameters of a flat. */
static double states_of(const RankPlan *p, int unit, Flat flat) {
    const ParamTable *t = &p->model.table;
    double bytes = 0, count = 0;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        if (t->params[i].flat != flat) continue;
        count += (double)t->params[i].count;
        bytes += (double)t->params[i].count * (double)param_state_bytes(&p->groups, i);
    }
    return count > 0 ? bytes / count : 0;
}

/* `like`: the unit of the probe that stands for a unit of the model. */
static void measure_unit(Probe *p, const Forecast *f, int unit, int like) {
    const RankPlan *plan = plan_of(f, like);
    p->cost[unit] = f->units[like];
    p->work += f->units[like].forward + f->units[like].input + f->units[like].weight;
    p->saved[unit] = (double)pool_round(unit_saved_bytes(&plan->model, like));
    p->stash[unit] = (double)pool_round(unit_stash_bytes(&plan->model, like));
    for (int flat = 0; flat < FLATS; flat++) {
        p->flats[unit][flat] =
            (FlatSize){.elements = (double)partition_flat_elements(&plan->partition, like, (Flat)flat),
                       .width = (double)dtype_bytes(flat_dtype((Flat)flat, plan->model.compute)),
                       .states = states_of(plan, like, (Flat)flat)};
        p->frozen |= flat >= GRADIENT_FLATS && p->flats[unit][flat].elements > 0;
    }
}

static void measure(const Bounds *b, Probe *p, const Forecast *f) {
    const RankPlan *first = &f->ranks[0].plan;
    p->units = (int)b->config->model.shape.num_hidden_layers + 2;
    size_t n = (size_t)p->units;
    p->cost = mem_alloc_array(n, sizeof *p->cost);
    p->saved = mem_alloc_array(n, sizeof *p->saved), p->stash = mem_alloc_array(n, sizeof *p->stash);
    p->flats = mem_alloc_array(n + 1, sizeof *p->flats);
    for (int u = 0; u < p->units; u++) measure_unit(p, f, u, unit_like(b, f->config, u));
    p->boundary = (double)boundary_bytes(&first->model);
    p->fixed = (double)(pool_round(model_scratch_bytes(&first->model)) + first->memory.stash +
                        first->memory.device_scratch + first->memory.constants);
    p->whole = param_groups_keep_whole(&first->groups);
    p->exact = first->program.exact;
}

static const Probe *probe(Bounds *b, const ProbeKey *key) {
    Probe **at = &b->probes[bucket_of(key)];
    while (*at && !same_key(&(*at)->key, key)) at = &(*at)->next;
    if (!*at) {
        Forecast f;
        Error ignored = {.message = ""};
        Config c = probe_config(b, key);
        *at = mem_alloc_array(1, sizeof **at);
        (*at)->key = *key;
        int pp = (int)c.mesh.pp, world = pp * data_ranks_of(key) * key->cp * key->tp;
        (*at)->possible = forecast_build(&f, &c, b->device, world, b->speed, &ignored) == OK;
        if ((*at)->possible) measure(b, *at, &f), forecast_free(&f);
    }
    return (*at)->possible ? *at : NULL;
}

static const Probe *probe_of(Bounds *b, const Choice *c, ProbeKind kind, bool slots) {
    ProbeKey key = {c->cp, c->tp, c->ep, c->etp, c->recompute, (int)kind, slots, c->sequences};
    return probe(b, &key);
}

/* ---- of passes ---- */

/* Each rank of tp x cp does its part of a microbatch, and pipeline ranks divide the units at best evenly. A
 * rank keeps the input of each of its blocks at least once. */
bool bounds_passes(Bounds *b, const Choice *c, Bound *out) {
    const Probe *p = probe_of(b, c, TOGETHER, false);
    int ranks = b->world / (c->tp * c->cp), pipe = p && ranks > p->units ? p->units : ranks;
    if (!p || ranks == 0) return false;
    double passes = (double)b->step / (double)c->sequences / ranks;
    int most = (p->units - 2 + pipe - 1) / pipe;
    *out = (Bound){forecast_seconds(&b->speed, p->work * passes), p->fixed + most * p->boundary};
    return true;
}

/* ---- of a pipeline ---- */

typedef struct RankBound {
    double activations, busy[2];
    int first_unit, last_unit; /* of its first pass; the lowest of its last */
} RankBound;

struct PipeBound {
    Bounds *b;
    Choice choice;
    const Layout *layout; /* of the cache; NULL where the split depends on more than the pipeline */
    int microbatches;
    const Probe *probe[2]; /* without and with gradients of single microbatches */
    double passes[2];      /* makespan */
    RankBound *ranks;      /* [pp] */
    Bound loose;           /* without a layout: of the passes */
};

/* Stages, their ranks and orders depend on these alone. */
typedef struct LayoutKey {
    const char *schedule;
    int pp, stages_per_rank, microbatches, recompute, ep, etp, copies;
} LayoutKey;

struct KnownLayout {
    LayoutKey key;
    bool possible;
    Layout layout; /* its mesh is that of the first choice with this key */
    KnownLayout *next;
};

enum { MOST_CELLS = 8 << 20 }; /* in the cache */

static void forget_layouts(Bounds *b) {
    for (int i = 0; b->layouts && i < BUCKETS; i++)
        for (KnownLayout *l = b->layouts[i], *next; l; l = next) {
            next = l->next;
            layout_free(&l->layout);
            free(l);
            b->layouts[i] = next;
        }
    b->cells = 0;
}

static bool same_layout(const LayoutKey *a, const LayoutKey *b) {
    return a->schedule == b->schedule && a->pp == b->pp && a->stages_per_rank == b->stages_per_rank &&
           a->microbatches == b->microbatches && a->recompute == b->recompute && a->ep == b->ep &&
           a->etp == b->etp && a->copies == b->copies;
}

/* The layout of a choice, valid until the next one is asked for; NULL: it is not possible. */
static const Layout *layout_of(Bounds *b, const Choice *c, int microbatches) {
    Error ignored = {.message = ""};
    LayoutKey key = {c->schedule,
                     c->pp,
                     c->stages_per_rank,
                     microbatches,
                     c->recompute,
                     c->ep,
                     c->etp,
                     axes_copies(&b->config->model.shape, c->tp)};
    const int64_t fields[] = {(int64_t)(uintptr_t)key.schedule,
                              key.pp,
                              key.stages_per_rank,
                              microbatches,
                              key.recompute,
                              key.ep,
                              key.etp,
                              key.copies};
    if (b->cells > MOST_CELLS) forget_layouts(b);
    KnownLayout **at = &b->layouts[hash_of(fields, sizeof fields / sizeof *fields)];
    while (*at && !same_layout(&(*at)->key, &key)) at = &(*at)->next;
    if (!*at) {
        Config config = bounds_config(b, c);
        KnownLayout *l = *at = mem_alloc_array(1, sizeof **at);
        l->key = key;
        l->possible = layout_build(&l->layout, &config, b->world, &ignored) == OK;
        if (!l->possible) layout_free(&l->layout);
        for (int r = 0; l->possible && r < c->pp; r++) b->cells += l->layout.schedule.orders[r].count;
    }
    return (*at)->possible ? &(*at)->layout : NULL;
}

/* Of a rank's order: the most bytes that are alive after a pass. Saved activations stay until wgrad. */
static double most_alive(const Order *o, const double *saved, const double *stash) {
    double now = 0, most = 0;
    for (int i = 0; i < o->count; i++) {
        const Cell *cell = &o->cells[i];
        if (cell->kind == CELL_F) now += saved[cell->stage];
        if (cell->kind == CELL_I) now += stash[cell->stage];
        most = fmax(most, now);
        if (cell->kind == CELL_B) now -= saved[cell->stage];
        if (cell->kind == CELL_W) now -= saved[cell->stage] + stash[cell->stage];
    }
    return most;
}

static void walk_orders(PipeBound *p) {
    const Layout *l = p->layout;
    const Probe *probe = p->probe[0];
    size_t n = (size_t)l->stages.count;
    double *saved = mem_alloc_array(n, sizeof *saved), *stash = mem_alloc_array(n, sizeof *stash);
    for (int s = 0; s < l->stages.count; s++)
        for (int u = l->stages.first[s]; u < l->stages.first[s + 1]; u++)
            saved[s] += probe->saved[u], stash[s] += probe->stash[u];
    for (int r = 0; r < p->choice.pp; r++) {
        const Order *o = &l->schedule.orders[r];
        RankBound *rank = &p->ranks[r];
        rank->activations = most_alive(o, saved, stash);
        rank->first_unit = -1;
        for (int i = 0; i < o->count; i++) {
            const Cell *cell = &o->cells[i];
            if (cell->kind == CELL_F && rank->first_unit < 0) rank->first_unit = l->stages.first[cell->stage];
            if (cell->kind == CELL_B || cell->kind == CELL_W) rank->last_unit = l->stages.first[cell->stage];
        }
    }
    free(saved);
    free(stash);
}

/* Whether dgrad and wgrad of the first microbatch, whose costs are those of all, run separately on a stage.
 * Some schedules do both. */
static bool is_apart(const Layout *l, int stage) {
    const Order *o = &l->schedule.orders[l->schedule.rank_of_stage[stage]];
    for (int i = 0; i < o->count; i++)
        if (o->cells[i].kind == CELL_I && o->cells[i].stage == stage && o->cells[i].microbatch == 0)
            return true;
    return false;
}

/* The costs of the units of all stages, each from the probe that runs its passes in the same way. */
static bool collect_costs(Bounds *b, PipeBound *p, bool slots, Cost *costs) {
    const Layout *l = p->layout;
    ProbeKind apart = p->choice.pp == 1 ? APART_ALONE : APART_IN_PIPELINE;
    for (int s = 0; s < l->stages.count; s++) {
        const Probe *from = is_apart(l, s) ? probe_of(b, &p->choice, apart, slots) : p->probe[slots];
        if (!from) return false;
        for (int u = l->stages.first[s]; u < l->stages.first[s + 1]; u++) costs[u] = from->cost[u];
    }
    return true;
}

static bool simulate_passes(Bounds *b, PipeBound *p, bool slots) {
    Error ignored = {.message = ""};
    Simulation s;
    const Probe *probe = p->probe[slots];
    double message = forecast_message(&b->speed, b->world / p->choice.pp, probe->boundary);
    Cost *costs = mem_alloc_array((size_t)probe->units, sizeof *costs);
    bool possible =
        collect_costs(b, p, slots, costs) && forecast_simulate(&s, costs, p->layout, message, &ignored) == OK;
    free(costs);
    if (!possible) return false;
    p->passes[slots] = s.makespan;
    for (int r = 0; r < p->choice.pp; r++) p->ranks[r].busy[slots] = s.rank[r].busy;
    simulation_free(&s);
    return true;
}

/* With pipeline.memory_gib the split depends on all of a plan. */
static bool open_loose(Bounds *b, PipeBound *p) { return bounds_passes(b, &p->choice, &p->loose); }

static bool open_pipe(Bounds *b, PipeBound *p) {
    if (p->microbatches == 0) return false;
    if (b->config->pipeline.memory_gib > 0 && p->choice.pp > 1) return open_loose(b, p);
    p->probe[0] = probe_of(b, &p->choice, TOGETHER, false);
    if (!p->probe[0]) return false;
    p->layout = layout_of(b, &p->choice, p->microbatches);
    if (!p->layout) return false;
    p->ranks = mem_alloc_array((size_t)p->choice.pp, sizeof *p->ranks);
    walk_orders(p);
    return true;
}

/* Simulates the passes, if that is still to be done. */
static bool time_pipe(PipeBound *p, bool slots) {
    if (p->passes[slots] > 0) return true;
    p->probe[slots] = probe_of(p->b, &p->choice, TOGETHER, slots);
    return p->probe[slots] && simulate_passes(p->b, p, slots);
}

PipeBound *bounds_pipe(Bounds *b, const Choice *c) {
    PipeBound *p = mem_alloc_array(1, sizeof *p);
    *p = (PipeBound){.b = b, .choice = *c, .microbatches = bounds_microbatches(b, c)};
    if (open_pipe(b, p)) return p;
    bounds_pipe_free(p);
    return NULL;
}

void bounds_pipe_free(PipeBound *p) {
    if (!p) return;
    free(p->ranks);
    free(p);
}

/* ---- of a plan ---- */

/* The view of a plan: pipeline, choice, and what follows from them. */
typedef struct View {
    const PipeBound *p;
    const Probe *probe;
    const Choice *c;
    int shards;
    double gradient; /* bytes of an element of a gradient */
} View;

enum { LINE = 16 }; /* shards are cut at multiples of so many elements (program/cuts.h) */

static int shards_of_flat(const View *v, int flat) {
    return flat_of_experts((Flat)flat) ? v->shards / sources_of(v->c->ep, v->c->etp, v->c->tp) : v->shards;
}

/* Elements of the largest and of the smallest shard of a flat. */
static double largest(const View *v, double elements, int shards) {
    if (v->probe->whole) return elements;
    return fmin(elements, ceil(ceil(elements / shards) / LINE) * LINE);
}
static double smallest(const View *v, double elements, int shards) {
    return fmax(0, elements - (shards - 1) * largest(v, elements, shards));
}

/* mesh_inside of ranks that are `stride` apart, whose groups follow each other. */
static int inside_of(const View *v, int ranks, int stride) {
    int machine = (int)v->p->b->config->mesh.machine;
    bool levels = machine > 0 && machine % stride == 0 && ranks * stride % machine == 0;
    return levels && machine < ranks * stride ? machine / stride : 1;
}

/* Seconds of a unit's gather, reduce-scatter, and all-reduce over replicas. */
typedef enum Crossing { GATHERS, SCATTERS, ALL_REDUCES } Crossing;
static double crossing_of(const View *v, int unit, Crossing what, bool experts) {
    double bytes = 0;
    int operations = 0, end = what == GATHERS ? FLATS : GRADIENT_FLATS, ranks = v->c->replicas,
        stride = v->c->tp * v->shards;
    for (int f = 0; f < end; f++) {
        const FlatSize *flat = &v->probe->flats[unit][f];
        int n = shards_of_flat(v, f);
        double least = smallest(v, flat->elements, n), own = 0;
        if (flat_of_experts((Flat)f) != experts && what != ALL_REDUCES) continue;
        if (what == GATHERS)
            own = (n - 1) * least * flat->width;
        else if (what == SCATTERS)
            own = (flat->elements - largest(v, flat->elements, n)) * v->gradient;
        else
            own = 2 * (1 - 1.0 / v->c->replicas) * least * v->gradient;
        bytes += own, operations += own > 0;
        if (what != ALL_REDUCES) ranks = n, stride = v->c->tp * (v->shards / n);
    }
    if (operations == 0) return 0;
    const Hardware *h = v->p->b->speed.hardware;
    int inside = inside_of(v, ranks, stride);
    return inside > 1 ? hardware_levels(h, ranks, inside, bytes, operations)
                      : hardware_collective(h, ranks, stride, bytes, operations);
}

static double crossing(const View *v, int unit, Crossing what) {
    double seconds = crossing_of(v, unit, what, false);
    return what == ALL_REDUCES ? seconds : seconds + crossing_of(v, unit, what, true);
}

/* Calls for each unit that a pipeline rank runs. */
typedef void Visit(const View *v, int unit, bool outermost, void *out);
static void visit(const View *v, int rank, Visit *each, void *out) {
    const Stages *s = &v->p->layout->stages;
    for (int i = 0; i < s->count; i++)
        for (int u = s->first[i]; s->rank[i] == rank && u < s->first[i + 1]; u++)
            each(v, u, u == s->first[i] || u + 1 == s->first[i + 1], out);
}

/* What crosses the axes of data parallelism in a step. Where parameters are dropped after each pass, two
 * passes in a row share a gather only at the ends of a stage. */
static void add_crossings(const View *v, int unit, bool outermost, void *out) {
    double *seconds = out;
    bool often = v->c->sync != SYNC_STEP, drops = v->c->reshard == RESHARD_ALWAYS && !outermost;
    double m = v->p->microbatches;
    seconds[0] += (drops ? 2 * m : 1) * crossing(v, unit, GATHERS);
    seconds[0] += (often ? m : 1) * crossing(v, unit, SCATTERS);
    seconds[1] += (v->c->sync == SYNC_MICROBATCH ? m : 1) * crossing(v, unit, ALL_REDUCES);
}

static double exposed(const View *v, int rank) {
    const RankBound *r = &v->p->ranks[rank];
    double all[2] = {0, 0}, busy = r->busy[v->c->sync != SYNC_STEP];
    visit(v, rank, add_crossings, all);
    double ends = crossing(v, r->first_unit, GATHERS) + crossing(v, r->last_unit, SCATTERS) +
                  crossing(v, r->last_unit, ALL_REDUCES);
    return fmax(ends, fmax(all[0], all[1]) - busy);
}

static void add_owned(const View *v, int unit, bool outermost, void *out) {
    double *elements = out;
    (void)outermost;
    for (int f = 0; f < GRADIENT_FLATS; f++)
        *elements += v->probe->flats[unit][f].elements / shards_of_flat(v, f);
}

/* The statistics of a gradient read it, an update reads it again, and reads and writes the parameter. */
static double update(const View *v, int rank) {
    double owned = 0;
    if (v->probe->frozen || v->probe->whole) return 0;
    visit(v, rank, add_owned, &owned);
    return 4 * sizeof(float) * owned / hardware_bandwidth(v->p->b->speed.hardware);
}

typedef struct Held {
    double states, gradients, gathered, largest_gathered, in_flight;
} Held;

static void add_held(const View *v, int unit, bool outermost, void *out) {
    Held *h = out;
    (void)outermost;
    const bool whole = v->c->sync == SYNC_STEP;
    double gathered = 0;
    for (int f = 0; f < FLATS; f++) {
        const FlatSize *flat = &v->probe->flats[unit][f];
        double own = flat->elements / shards_of_flat(v, f);
        bool copied = v->shards == 1 && flat->width < sizeof(float);
        h->states += own * (sizeof(float) + flat->states + (copied ? flat->width : 0));
        gathered += flat->elements * flat->width;
        if (f >= GRADIENT_FLATS) continue;
        if (whole || !v->probe->frozen) h->gradients += (whole ? flat->elements : own) * v->gradient;
        if (!whole) h->in_flight = fmax(h->in_flight, flat->elements * sizeof(float));
    }
    h->largest_gathered = fmax(h->largest_gathered, gathered);
    h->gathered += unit > 0 ? gathered : 0; /* the embedding is not read by backward passes */
}

static double memory_of_rank(const View *v, int rank) {
    Held h = {0};
    visit(v, rank, add_held, &h);
    double gathered = v->shards == 1 ? 0 : v->c->reshard == RESHARD_NEVER ? h.gathered : h.largest_gathered;
    return v->probe->fixed + v->p->ranks[rank].activations + h.states + h.gradients + gathered + h.in_flight;
}

static View view_of(const PipeBound *p, const Choice *c) {
    bool slots = c->sync != SYNC_STEP;
    View v = {.p = p, .probe = p->probe[slots], .c = c, .shards = shards_of(p->b, c)};
    v.gradient = v.probe->exact ? sizeof(int64_t) : sizeof(float);
    return v;
}

/* Everything is sharded over all ranks, and gathered parameters are dropped. A larger unit than the average
 * may be in flight, which other settings hold in another way. */
static double memory_of_pipe(const PipeBound *p) {
    Choice least = p->choice;
    double memory = 0;
    least.replicas = 1, least.sync = SYNC_STEP, least.reshard = RESHARD_ALWAYS;
    View v = view_of(p, &least);
    for (int r = 0; r < least.pp; r++) {
        Held h = {0};
        visit(&v, r, add_held, &h);
        memory = fmax(memory, p->probe[0]->fixed + p->ranks[r].activations + h.states);
    }
    return memory;
}

bool bounds_of_pipe(PipeBound *p, double limit, Bound *out) {
    *out = p->loose;
    if (!p->layout) return true;
    *out = (Bound){0, memory_of_pipe(p)};
    if (out->memory > limit) return true;
    if (!time_pipe(p, false)) return false;
    out->time = forecast_seconds(&p->b->speed, p->passes[0]);
    return true;
}

bool bounds_of_plan(PipeBound *p, const Choice *c, Bound *out) {
    bool slots = c->sync != SYNC_STEP;
    *out = p->loose;
    if (!p->layout) return true;
    if (!time_pipe(p, slots)) return false;
    View v = view_of(p, c);
    double outside = 0, updates = 0, memory = 0;
    for (int r = 0; r < c->pp; r++) {
        memory = fmax(memory, memory_of_rank(&v, r));
        if (!p->b->speed.hardware) continue;
        outside = fmax(outside, exposed(&v, r));
        updates = fmax(updates, update(&v, r));
    }
    *out = (Bound){forecast_seconds(&p->b->speed, p->passes[slots]) + outside + updates, memory};
    return true;
}

/* ---- all ---- */

void bounds_open(Bounds *b, const Config *c, const Device *d, int world, int64_t step, ForecastSpeed speed) {
    *b = (Bounds){.config = c, .device = d, .world = world, .step = step, .speed = speed};
    b->layers = layers_of_probes(c);
    b->probes = mem_alloc_array(BUCKETS, sizeof *b->probes);
    b->layouts = mem_alloc_array(BUCKETS, sizeof *b->layouts);
}

void bounds_free(Bounds *b) {
    for (int i = 0; b->probes && i < BUCKETS; i++)
        for (Probe *p = b->probes[i], *next; p; p = next) {
            next = p->next;
            free(p->cost), free(p->saved), free(p->stash), free(p->flats);
            free(p);
        }
    free(b->probes);
    forget_layouts(b);
    free(b->layouts);
    *b = (Bounds){0};
}
