#include "forecast/search.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"

/* MACHINE: ranks of one machine without --hardware; tp does not go beyond it. Other kinds than the best
 * are worth FEW_BOUNDS bounds, or half as many as the best took. */
enum { MACHINE = 8, MOST_CONTEXTS = 64, FEW_BOUNDS = 4000 };

typedef enum Level { DEGREES, RECOMPUTED, PIPELINE, PLAN } Level;

/* Children of a branch come one by one. `take` returns false if neither these degrees nor any with larger
 * microbatches fit. */
typedef struct Space {
    const SearchRequest *q;
    Bounds bounds;
    bool (*take)(void *context, Level level, const Choice *c);
    void *context;
} Space;

/* ---- the space ---- */

static const ModelConfig *model_of(const Space *s) { return &s->q->config->model.shape; }

static bool is_power(int64_t n) { return (n & (n - 1)) == 0; }

static int most_tensors(const Space *s) {
    const Hardware *h = s->q->speed.hardware;
    return h ? (int)h->links.ranks : MACHINE;
}

/* Powers of two, powers of two of microbatches, and the configured number, for each number of data-parallel
 * ranks that some pipeline leaves. */
static bool takes_sequences(const Space *s, const Choice *c) {
    int m = bounds_microbatches(&s->bounds, c);
    return m > 0 && (is_power(c->sequences) || is_power(m) || c->sequences == s->q->config->train.microbatch);
}

static int most_pipes(const Space *s) {
    int units = (int)model_of(s)->num_hidden_layers + 2;
    return units < s->q->world ? units : s->q->world;
}

static bool takes_pipe(const Space *s, const Choice *c) {
    return bounds_data_ranks(&s->bounds, c) > 0 && takes_sequences(s, c);
}

static bool some_pipe_takes(const Space *s, Choice c) {
    for (c.pp = 1; c.pp <= most_pipes(s); c.pp++)
        if (takes_pipe(s, &c)) return true;
    return false;
}

static bool take_microbatch(const Space *s, const Choice *c) {
    if (s->q->step % c->sequences != 0 || !some_pipe_takes(s, *c)) return true;
    return s->take(s->context, DEGREES, c);
}

/* In ascending order: a probe of a large microbatch takes long, and the first that does not fit ends them. */
static void take_sequences(const Space *s, Choice c) {
    const int64_t step = s->q->step;
    for (c.sequences = 1; c.sequences * c.sequences <= step; c.sequences++)
        if (!take_microbatch(s, &c)) return;
    for (int64_t parts = c.sequences - 1; parts >= 1; parts--) {
        c.sequences = step / parts;
        if (step % parts == 0 && parts != c.sequences && !take_microbatch(s, &c)) return;
    }
}

/* With ep ranks for the experts, which tp cuts, or which are whole. */
static void take_experts(const Space *s, Choice c) {
    Error ignored = {.message = ""};
    ModelConfig whole = *model_of(s);
    if (s->q->world % c.ep != 0 || (c.ep > 1 && axes_check_experts(&whole, c.ep, &ignored) != OK)) return;
    take_sequences(s, c);
    whole.whole_experts = true, c.etp = 1;
    if (c.tp > 1 && c.ep % c.tp == 0 &&
        axes_check_whole_experts(&whole, (TpGroup){.size = c.tp}, ALL_TOKENS, &ignored) == OK)
        take_sequences(s, c);
}

static void take_degrees(const Space *s) {
    Error ignored = {.message = ""};
    const ModelConfig *m = model_of(s);
    int contexts = axes_splits_tokens(m) ? MOST_CONTEXTS : 1, experts = m->num_experts > 0 ? SPLITS_MAX : 1;
    Choice c = {.pp = 1, .replicas = 1, .segments = 1, .schedule = s->q->config->pipeline.schedule};
    for (c.tp = 1; c.tp <= most_tensors(s); c.tp++) {
        if (s->q->world % c.tp != 0 || axes_check(m, c.tp, &ignored) != OK) continue;
        for (c.cp = 1; c.cp <= contexts; c.cp++) {
            if (s->q->world % (c.tp * c.cp) != 0 || s->q->config->train.context % (2 * c.cp * c.tp) != 0)
                continue;
            for (c.ep = 1; c.ep <= experts; c.ep++) take_experts(s, c);
        }
    }
}

static void take_recompute(const Space *s, Choice c) {
    static const int kinds[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        c.recompute = kinds[i];
        s->take(s->context, RECOMPUTED, &c);
    }
}

static bool is_small(const Space *s, const Choice *c) {
    int64_t each = c->stages_per_rank > 0 ? c->stages_per_rank : 1;
    return each * c->pp * bounds_microbatches(&s->bounds, c) <= SEARCH_CELLS;
}

/* A looped schedule with twice as many stages again and again, and as many as are configured. */
static void take_stages(const Space *s, Choice c, ScheduleName name) {
    int usual = schedule_default_stages_per_rank(name), units = (int)model_of(s)->num_hidden_layers + 2,
        asked = (int)s->q->config->pipeline.stages_per_rank;
    bool looped = usual > 1 && !schedule_is_v(name);
    for (c.stages_per_rank = usual; c.stages_per_rank * c.pp <= units; c.stages_per_rank++) {
        bool power = is_power(c.stages_per_rank) || c.stages_per_rank == asked;
        if (power && is_small(s, &c)) s->take(s->context, PIPELINE, &c);
        if (!looped) return;
    }
}

/* A schedule from a file is tried as written, where its number of pipeline ranks is that of the mesh. */
static void take_schedules(const Space *s, Choice c) {
    const PipelineOptions *asked = &s->q->config->pipeline;
    ScheduleName ignored;
    c.stages_per_rank = (int)asked->stages_per_rank;
    if ((c.pp == 1 || !schedule_find(asked->schedule, &ignored)) && is_small(s, &c))
        s->take(s->context, PIPELINE, &c);
    for (int i = 0; c.pp > 1 && i < PIPE_NAMES; i++) {
        c.schedule = schedule_name((ScheduleName)i);
        take_stages(s, c, (ScheduleName)i);
    }
}

static void take_pipes(const Space *s, Choice c) {
    for (c.pp = 1; c.pp <= most_pipes(s); c.pp++)
        if (takes_pipe(s, &c)) take_schedules(s, c);
}

/* Whether a value may be tried. A key that is set stays, since it may change bits. */
static bool may_set(int configured, int automatic, int value) {
    return configured == automatic || configured == value;
}

/* The settings of a mesh, without those that come to the same. */
static void take_settings(const Space *s, Choice c) {
    static const int syncs[] = {SYNC_STEP, SYNC_REPLICA, SYNC_MICROBATCH},
                     reshards[] = {RESHARD_NEVER, RESHARD_ALWAYS};
    const TrainOptions *asked = &s->q->config->train;
    bool taken[SYNC_AUTO + 1][RESHARD_NEVER + RESHARD_ALWAYS + 1] = {{false}};
    for (int i = 0; i < 6; i++) {
        Choice child = c;
        child.sync = syncs[i / 2], child.reshard = reshards[i % 2];
        if (!may_set(asked->gradient_sync, SYNC_AUTO, child.sync) ||
            !may_set(asked->reshard, RESHARD_AUTO, child.reshard))
            continue;
        bounds_normalize(&s->bounds, &child);
        if (taken[child.sync][child.reshard]) continue;
        taken[child.sync][child.reshard] = true;
        s->take(s->context, PLAN, &child);
    }
}

static void take_plans(const Space *s, Choice c) {
    Error ignored = {.message = ""};
    int data = bounds_data_ranks(&s->bounds, &c);
    for (c.replicas = 1; c.replicas <= data; c.replicas++) {
        Mesh mesh;
        if (data % c.replicas != 0) continue;
        MeshOptions o = {c.pp, c.replicas, -1, c.cp, c.tp, c.ep, c.etp, 0};
        if (mesh_build(&mesh, &o, s->q->world, &ignored) == OK) take_settings(s, c);
    }
}

static void take_children(const Space *s, Level level, const Choice *c) {
    if (level == DEGREES) take_recompute(s, *c);
    if (level == RECOMPUTED) take_pipes(s, *c);
    if (level == PIPELINE) take_plans(s, *c);
}

/* ---- all plans ---- */

typedef struct Enumeration {
    Space *space;
    SearchVisit *visit;
    void *context;
} Enumeration;

static bool descend(void *context, Level level, const Choice *c) {
    const Enumeration *e = context;
    if (level == PLAN)
        e->visit(e->context, c);
    else
        take_children(e->space, level, c);
    return true;
}

static void open_space(Space *s, const SearchRequest *q) {
    *s = (Space){.q = q};
    bounds_open(&s->bounds, q->config, q->device, q->world, q->step, q->speed);
}

void search_enumerate(const SearchRequest *q, SearchVisit *visit, void *context) {
    Space s;
    Enumeration e = {&s, visit, context};
    open_space(&s, q);
    s.take = descend, s.context = &e;
    take_degrees(&s);
    bounds_free(&s.bounds);
}

/* ---- forecasts ---- */

void search_describe(Candidate *out, const Forecast *f, const Choice *c, double memory) {
    *out = (Candidate){.choice = *c,
                       .microbatches = f->layout.microbatches,
                       .dp = mesh_dp_degree(&f->layout.mesh),
                       .stages_per_rank = f->layout.stages.count / f->pipe_ranks,
                       .time = forecast_step(f),
                       .bubble = f->timing.bubble,
                       .memory = forecast_memory(f, f->fullest),
                       .parts = f->time};
    for (int i = 0; i < f->pipe_ranks; i++)
        if (forecast_sent(f, i) > out->sent) out->sent = forecast_sent(f, i);
    out->fits = memory <= 0 || (double)out->memory <= memory;
}

ErrorCode search_forecast(Candidate *out, const SearchRequest *q, const Choice *c, Error *err) {
    Forecast f;
    Bounds b = {.config = q->config, .world = q->world, .step = q->step};
    Config config = bounds_config(&b, c);
    TRY(forecast_build(&f, &config, q->device, q->world, q->speed, err));
    search_describe(out, &f, c, q->memory);
    forecast_free(&f);
    return OK;
}

/* ---- branch and bound ---- */

typedef struct Branch {
    double bound; /* of what is searched for: time, or memory */
    Level level;
    Choice choice;
} Branch;

typedef struct Kind {
    Choice choice; /* one of the kind */
    double best;
} Kind;

typedef struct Walk {
    Space space;
    Search *found;
    Branch *heap;
    size_t count, capacity;
    PipeBound *pipe; /* of the branch whose plans are taken */
    Kind *kinds;
    int kind_count;
    double best, reported;
    int64_t proven_at; /* bounds until the best plan was known to be best; 0: not yet */
} Walk;

static bool before(const Branch *a, const Branch *b) {
    return a->bound < b->bound || (a->bound <= b->bound && a->level > b->level);
}

static void push(Walk *w, Branch b) {
    if (w->count == w->capacity) {
        w->capacity = w->capacity ? 2 * w->capacity : 1024;
        w->heap = mem_grow(w->heap, w->capacity * sizeof *w->heap);
    }
    size_t at = w->count++;
    for (; at > 0 && before(&b, &w->heap[(at - 1) / 2]); at = (at - 1) / 2)
        w->heap[at] = w->heap[(at - 1) / 2];
    w->heap[at] = b;
}

static Branch pop(Walk *w) {
    Branch top = w->heap[0], last = w->heap[--w->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < w->count; at = child) {
        if (child + 1 < w->count && before(&w->heap[child + 1], &w->heap[child])) child++;
        if (!before(&w->heap[child], &last)) break;
        w->heap[at] = w->heap[child];
    }
    w->heap[at] = last;
    return top;
}

bool search_same_kind(const Choice *a, const Choice *b) {
    return (a->pp > 1) == (b->pp > 1) && a->tp == b->tp && (a->cp > 1) == (b->cp > 1) && a->ep == b->ep &&
           a->etp == b->etp && a->recompute == b->recompute &&
           (a->pp == 1 || strcmp(a->schedule, b->schedule) == 0);
}

/* What is searched for. */
static double worth(const Walk *w, const Candidate *a) {
    return w->space.q->least ? (double)a->memory : a->time;
}

/* The best plan so far of the kind of a choice; INFINITY: there is none. */
static double best_of(const Walk *w, const Choice *kind) {
    for (int i = 0; i < w->kind_count; i++)
        if (search_same_kind(&w->kinds[i].choice, kind)) return w->kinds[i].best;
    return INFINITY;
}

static void note_kind(Walk *w, const Candidate *a) {
    if (!a->fits && !w->space.q->least) return;
    w->best = fmin(w->best, worth(w, a));
    for (int i = 0; i < w->kind_count; i++) {
        if (!search_same_kind(&w->kinds[i].choice, &a->choice)) continue;
        w->kinds[i].best = fmin(w->kinds[i].best, worth(w, a));
        return;
    }
    w->kinds = mem_grow(w->kinds, ((size_t)w->kind_count + 1) * sizeof *w->kinds);
    w->kinds[w->kind_count++] = (Kind){a->choice, worth(w, a)};
}

/* Number of kinds whose best plan is known, if no branch that is left has a lower bound than this. */
static int settled_kinds(const Walk *w, double bound) {
    int n = 0;
    for (int i = 0; i < w->kind_count; i++) n += w->kinds[i].best <= bound;
    return n;
}

/* A kind is known once there is a schedule. */
static bool is_cut(const Walk *w, Level level, const Choice *c, double bound) {
    return level >= PIPELINE && bound >= best_of(w, c);
}

static bool bound_of(Walk *w, Level level, const Choice *c, Bound *out) {
    Bounds *b = &w->space.bounds;
    if (level <= RECOMPUTED) return bounds_passes(b, c, out);
    if (level == PLAN) return bounds_of_plan(w->pipe, c, out);
    PipeBound *p = bounds_pipe(b, c);
    bool possible = p && bounds_of_pipe(p, w->space.q->least ? HUGE_VAL : w->space.q->memory, out);
    bounds_pipe_free(p);
    return possible;
}

static void report(Walk *w) {
    const Search *s = w->found;
    double now = clock_seconds();
    if (now - w->reported < (log_is_terminal() ? 0.2 : 10)) return;
    w->reported = now;
    char so_far[64] = "none fits yet";
    if (!isinf(w->best) && !w->space.q->least) snprintf(so_far, sizeof so_far, "best so far %.5g s", w->best);
    if (log_is_terminal())
        log_status("comparing: %d plans, %lld bounds, %s", s->count, (long long)s->bounded, so_far);
    else
        log_info("comparing: %d plans, %lld bounds, %s", s->count, (long long)s->bounded, so_far);
}

static bool consider(void *context, Level level, const Choice *c) {
    Walk *w = context;
    const SearchRequest *q = w->space.q;
    Bound b;
    Choice choice = *c;
    if (level == DEGREES) choice.recompute = RECOMPUTE_NONE;
    report(w);
    if (!bound_of(w, level, &choice, &b)) return true;
    double bound = q->least ? b.memory : b.time;
    bool fits = q->least || b.memory <= q->memory;
    w->found->bounded++;
    if (fits && !is_cut(w, level, &choice, bound)) push(w, (Branch){bound, level, choice});
    return fits;
}

static void forecast_choice(Walk *w, const Choice *c) {
    Search *s = w->found;
    Candidate a;
    Error ignored = {.message = ""};
    if (search_forecast(&a, w->space.q, c, &ignored) != OK) return;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->found = mem_grow(s->found, (size_t)s->capacity * sizeof *s->found);
    }
    s->found[s->count++] = a;
    note_kind(w, &a);
}

static void open_branch(Walk *w, const Branch *b) {
    if (is_cut(w, b->level, &b->choice, b->bound)) return;
    if (b->level == PLAN) {
        forecast_choice(w, &b->choice);
    } else {
        w->pipe = b->level == PIPELINE ? bounds_pipe(&w->space.bounds, &b->choice) : NULL;
        if (w->pipe || b->level != PIPELINE) take_children(&w->space, b->level, &b->choice);
        bounds_pipe_free(w->pipe);
    }
}

/* Bounds after which the search ends although the best of some kinds are not known; 0: none yet. */
static int64_t last_bound(const Walk *w) {
    int64_t most = w->space.q->most_bounds,
            more = w->proven_at / 2 > FEW_BOUNDS ? w->proven_at / 2 : FEW_BOUNDS;
    if (w->proven_at == 0) return isinf(w->best) ? 0 : most;
    return most > 0 && most < w->proven_at + more ? most : w->proven_at + more;
}

/* Whether the best of as many kinds as are asked for are known, or the search for them takes too long. */
static bool is_done(Walk *w, double bound) {
    Search *s = w->found;
    int settled = settled_kinds(w, bound);
    if (settled >= 1 && w->proven_at == 0) w->proven_at = s->bounded;
    int64_t last = last_bound(w);
    bool late = last > 0 && s->bounded > last;
    s->unproven = late && settled == 0;
    s->short_of_kinds = late && settled > 0 && settled < w->space.q->kinds;
    return settled >= w->space.q->kinds || late;
}

void search_run(Search *s, const SearchRequest *q) {
    *s = (Search){.count = 0};
    Walk w = {.found = s, .best = INFINITY, .reported = clock_seconds()};
    open_space(&w.space, q);
    w.space.take = consider, w.space.context = &w;
    take_degrees(&w.space);
    while (w.count > 0 && !is_done(&w, w.heap[0].bound)) {
        Branch b = pop(&w);
        report(&w);
        open_branch(&w, &b);
    }
    log_status("%s", "");
    free(w.heap);
    free(w.kinds);
    bounds_free(&w.space.bounds);
}

void search_free(Search *s) {
    free(s->found);
    *s = (Search){0};
}
