/* Without a limit of memory and speeds of links, the schedules and numbers of microbatches of the configured
 * mesh are forecast one after the other; impossible ones are left out and named once with the reason. With
 * both, forecast/search.h searches all layouts. Either way the result is sorted and printed. All candidates
 * train the same curve up to the order of sums; they differ in time, bubble, memory and bytes sent. */
#include "forecast/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forecast/search.h"
#include "plan/sync.h"

enum { SHOWN = 24, MOST_BOUNDS = 100000 };
/* Contexts from which on segments are tried, and how many. */
enum { LONG_CONTEXT = 8192, MOST_SEGMENTS = 4 };

typedef struct Compare {
    const Config *c;
    const Device *d;
    const CompareRequest *q;
    SearchRequest request;
    Bounds space;   /* for what a choice comes to; has no probes */
    Choice asked;   /* the configured one */
    int64_t total;  /* sequences of a step on each data-parallel rank */
    int configured; /* its microbatches */
    Candidate *found;
    int count, capacity;
    int64_t forecasts, bounded;
    bool short_of_kinds, unproven;
    Text reasons;
} Compare;

/* Without a limit of memory there is no reason for other degrees, and without speeds of links their cost is
 * unknown. */
static bool tries_degrees(const Compare *p) {
    return p->q->memory > 0 && (p->q->speed.hardware || p->q->speed.link > 0);
}

static bool has_experts(const Compare *p) { return p->c->model.shape.num_experts > 0; }

/* ---- candidates of the configured mesh ---- */

/* The number of stages of a rank that a schedule fixes, else the configured one. */
static int stages_of(const Compare *p, const char *schedule) {
    ScheduleName name;
    int asked = (int)p->c->pipeline.stages_per_rank;
    if (!schedule_find(schedule, &name) || strcmp(schedule, p->c->pipeline.schedule) == 0) return asked;
    int usual = schedule_default_stages_per_rank(name);
    return usual > 1 && !schedule_is_v(name) && asked > 0 ? asked : usual;
}

static void add(Compare *p, Candidate a) {
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->found = mem_grow(p->found, (size_t)p->capacity * sizeof *p->found);
    }
    p->found[p->count++] = a;
}

/* With train.gradient_sync: auto, another setting is tried only if the default one does not fit. */
static ErrorCode forecast_within(Compare *p, Forecast *f, Config *c, Error *err) {
    SyncChoice choice;
    bool open = c->train.gradient_sync == SYNC_AUTO && p->q->memory > 0;
    ErrorCode code = forecast_build(f, c, p->d, p->q->world, p->q->speed, err);
    if (!open || (code == OK && (double)forecast_memory(f, f->fullest) <= p->q->memory)) return code;
    if (code == OK) forecast_free(f);
    TRY(sync_choose(c, p->q->world, p->q->memory, &choice, err));
    c->train.gradient_sync = choice.sync;
    return forecast_build(f, c, p->d, p->q->world, p->q->speed, err);
}

/* ERR_CONFIG for candidates that would take minutes to simulate. */
static ErrorCode try_one(Compare *p, const char *schedule, int microbatches, int segments, Error *err) {
    Forecast f;
    Candidate a;
    Choice choice = p->asked;
    choice.schedule = schedule, choice.stages_per_rank = stages_of(p, schedule);
    choice.sequences = p->total / microbatches, choice.segments = segments;
    int64_t each = choice.stages_per_rank > 0 ? choice.stages_per_rank : 1,
            cells = (int64_t)choice.pp * microbatches * segments * each;
    if (cells > SEARCH_CELLS)
        return error_set(err, ERR_CONFIG, "%lld cells are more than the %d that this is made for",
                         (long long)cells, SEARCH_CELLS);
    Config c = bounds_config(&p->space, &choice);
    TRY(forecast_within(p, &f, &c, err));
    choice.sync = c.train.gradient_sync;
    search_describe(&a, &f, &choice, p->q->memory);
    a.configured =
        a.microbatches == p->configured &&
        (choice.pp == 1 || (strcmp(schedule, p->c->pipeline.schedule) == 0 && segments == p->asked.segments));
    add(p, a);
    forecast_free(&f);
    return OK;
}

/* The number to try after m: the next power of two, or the configured number if that comes first. */
static int64_t next_count(const Compare *p, int64_t m) {
    int64_t power = 1;
    while (power <= m) power *= 2;
    return m < p->configured && p->configured < power ? p->configured : power;
}

static void put_failed(Compare *p, const char *schedule, const char *failed, int segments, const Error *why) {
    text_printf(&p->reasons, "left out: %s with %s microbatch%s", schedule, failed,
                strcmp(failed, "1") == 0 ? "" : "es");
    if (segments > 1) text_printf(&p->reasons, " in %d segments", segments);
    text_printf(&p->reasons, ": %s\n", why->message);
}

/* Tries a schedule with every number of microbatches. Those that fail share one line, with the reason of the
 * first. */
static void try_schedule(Compare *p, const char *schedule, int segments) {
    Error why = {.code = OK}, first = {.code = OK};
    Text failed = {0};
    for (int64_t m = 1; m <= p->total; m = next_count(p, m)) {
        if (p->total % m != 0 || try_one(p, schedule, (int)m, segments, &why) == OK) continue;
        if (first.code == OK) first = why;
        text_printf(&failed, "%s%lld", failed.length ? ", " : "", (long long)m);
    }
    if (failed.length) put_failed(p, schedule, failed.data, segments, &first);
    text_free(&failed);
}

/* Segments are for sequences that are too long for many microbatches; of schedules that take them, 1f1b keeps
 * the fewest activations. */
static bool tries_segments(const Compare *p, ScheduleName name, int segments) {
    bool asked = segments == p->asked.segments && strcmp(schedule_name(name), p->c->pipeline.schedule) == 0;
    return asked || (name == PIPE_1F1B && segments <= MOST_SEGMENTS && p->c->train.context >= LONG_CONTEXT);
}

static void try_segments(Compare *p, ScheduleName name) {
    for (int k = 2; k <= MOST_SEGMENTS || k <= p->asked.segments; k *= 2)
        if (tries_segments(p, name, k)) try_schedule(p, schedule_name(name), k);
}

/* With one pipeline rank there are no schedules to compare, only microbatches. A schedule from a file is
 * tried as written. */
static void try_all(Compare *p) {
    ScheduleName ignored;
    if (p->asked.pp == 1) {
        try_schedule(p, p->c->pipeline.schedule, 1);
        return;
    }
    for (int i = 0; i < PIPE_NAMES; i++) {
        try_schedule(p, schedule_name((ScheduleName)i), 1);
        try_segments(p, (ScheduleName)i);
    }
    if (!schedule_find(p->c->pipeline.schedule, &ignored)) try_schedule(p, p->c->pipeline.schedule, 1);
}

/* ---- all layouts ---- */

static void search(Compare *p, bool least) {
    Search s;
    p->request.least = least, p->request.kinds = least ? 1 : SEARCH_KINDS;
    search_run(&s, &p->request);
    for (int i = 0; i < s.count; i++) add(p, s.found[i]);
    p->forecasts += s.count, p->bounded += s.bounded;
    p->short_of_kinds |= s.short_of_kinds, p->unproven |= s.unproven;
    search_free(&s);
}

/* The configured layout first. Where nothing fits, the layout with the least memory says by how much. */
static void try_layouts(Compare *p) {
    Error why = {.code = OK};
    if (try_one(p, p->c->pipeline.schedule, p->configured, p->asked.segments, &why) != OK) {
        char failed[32];
        snprintf(failed, sizeof failed, "%d", p->configured);
        put_failed(p, p->c->pipeline.schedule, failed, p->asked.segments, &why);
    }
    search(p, false);
    for (int i = 0; i < p->count; i++)
        if (p->found[i].fits) return;
    search(p, true);
}

/* ---- the table ---- */

static int three_way(double a, double b) { return (a > b) - (a < b); }

static int by_choice(const Choice *x, const Choice *y) {
    const int a[] = {x->pp,   x->tp,       x->cp,
                     x->ep,   x->replicas, x->recompute,
                     x->sync, x->reshard,  x->stages_per_rank,
                     x->etp,  x->segments},
              b[] = {y->pp,   y->tp,       y->cp,
                     y->ep,   y->replicas, y->recompute,
                     y->sync, y->reshard,  y->stages_per_rank,
                     y->etp,  y->segments};
    for (size_t i = 0; i < sizeof a / sizeof *a; i++)
        if (a[i] != b[i]) return a[i] - b[i];
    return strcmp(x->schedule, y->schedule);
}

/* Fitting candidates come first, then shorter times. Times that agree to five digits count as equal; then
 * less memory wins. */
static int better(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (fabs(x->time - y->time) > 1e-5 * y->time) return three_way(x->time, y->time);
    if (x->memory != y->memory) return x->memory < y->memory ? -1 : 1;
    int order = by_choice(&x->choice, &y->choice);
    return order ? order : x->microbatches - y->microbatches;
}

/* Keys that differ from the configured ones, each with its section, which a row leaves out. */
static void put_settings(const Compare *p, const Candidate *a, const char *section, Text *out) {
    static const char *const recompute[] = {RECOMPUTE_KINDS(CHOICE_NAME)};
    static const char *const reshard[] = {RESHARD_KINDS(CHOICE_NAME)};
    const Choice *s = &a->choice;
    const TrainOptions *c = &p->c->train;
    if (s->recompute != c->recompute) text_printf(out, " %srecompute=%s", section, recompute[s->recompute]);
    if (s->sync != c->gradient_sync)
        text_printf(out, " %sgradient_sync=%s", section, sync_name((GradientSync)s->sync));
    if (s->reshard != c->reshard)
        text_printf(out, " %sreshard_after_forward=%s", section, reshard[s->reshard]);
}

static void put_header(const Compare *p, Text *out) {
    if (tries_degrees(p))
        text_puts(out, has_experts(p) ? "   pp  tp  cp  ep   dp  rep" : "   pp  tp  cp   dp  rep");
    text_printf(
        out,
        "  schedule                stages microbatches sequences  %10s   bubble      memory        sent%s\n",
        p->q->speed.hardware || p->q->speed.tflops > 0 ? "seconds" : "TFLOP",
        p->q->memory > 0 ? "  fits" : "");
}

static void put_row(const Compare *p, const Candidate *a, Text *out) {
    char memory[32], sent[32];
    const Choice *c = &a->choice;
    text_printf(out, "%c ", a->configured ? '*' : ' ');
    if (tries_degrees(p)) text_printf(out, "%3d %3d %3d ", c->pp, c->tp, c->cp);
    if (tries_degrees(p) && has_experts(p)) text_printf(out, "%3d ", c->ep);
    if (tries_degrees(p)) text_printf(out, "%4d %4d  ", a->dp, c->replicas);
    text_printf(out, "%-23s %6d %12d %9lld %11.5g %7.1f%% %11s %11s%s",
                c->pp > 1 ? c->schedule : "(no pipeline)", a->stages_per_rank, a->microbatches,
                (long long)c->sequences, a->time, 100 * a->bubble, text_bytes((double)a->memory, memory),
                a->sent ? text_bytes((double)a->sent, sent) : "0",
                p->q->memory <= 0 ? ""
                : a->fits         ? "  yes"
                                  : "  no ");
    if (c->etp == 1) text_puts(out, " etp=1");
    if (c->segments > 1) text_printf(out, " segments=%d", c->segments);
    put_settings(p, a, "", out);
    text_puts(out, "\n");
}

/* Explains what the time includes. */
static void put_chain(ForecastSpeed speed, bool degrees, Text *out) {
    const char *unit = speed.tflops > 0 ? "seconds" : "TFLOP";
    char link[48];
    if (speed.hardware)
        text_printf(out, "seconds of a whole step, predicted for %s\n", speed.hardware->name);
    else if (speed.link > 0)
        text_printf(out,
                    "%s of the longest chain of work, with messages between stages%s at %s; collectives "
                    "take no time\n",
                    unit, degrees ? ", and what crosses over tp, cp and ep," : "",
                    forecast_link(&speed, link));
    else
        text_printf(out,
                    "%s of the longest chain of work: messages and collectives take no time here; --tflops X "
                    "--link RATE count messages\n",
                    unit);
}

/* ---- reasons ---- */

typedef struct Part {
    const char *name;
    double more; /* seconds */
} Part;

static int larger_part(const void *a, const void *b) {
    return three_way(fabs(((const Part *)b)->more), fabs(((const Part *)a)->more));
}

static double computed(const ForecastTime *t) { return t->products + t->attention + t->memory; }

/* "+1.2 s: bubble +1.5, tp -0.3": the parts of a step that make most of the difference. */
static void put_difference(const Candidate *a, const Candidate *best, Text *out) {
    const ForecastTime *x = &a->parts, *y = &best->parts;
    bool more = a->choice.recompute != best->choice.recompute;
    Part parts[] = {{more ? "recomputation" : "products, attention, activations", computed(x) - computed(y)},
                    {"tp", x->tensor - y->tensor},
                    {"cp", x->context - y->context},
                    {"ep", x->experts - y->experts},
                    {"bubble", x->waiting - y->waiting},
                    {"gathers and reductions", x->exposed - y->exposed},
                    {"update", x->update - y->update}};
    enum { PARTS = sizeof parts / sizeof *parts, NAMED = 3 };
    double least = 0.05 * fabs(a->time - best->time);
    qsort(parts, PARTS, sizeof *parts, larger_part);
    text_printf(out, "%+.3g s", a->time - best->time);
    for (int i = 0; i < NAMED && fabs(parts[i].more) > least; i++)
        text_printf(out, "%s%s %+.3g", i ? ", " : ": ", parts[i].name, parts[i].more);
}

static void put_name(const Compare *p, const Candidate *a, Text *out) {
    static const char *const recompute[] = {RECOMPUTE_KINDS(CHOICE_NAME)};
    const Choice *c = &a->choice;
    text_printf(out, "pp %d, tp %d, cp %d", c->pp, c->tp, c->cp);
    if (has_experts(p)) text_printf(out, ", ep %d%s", c->ep, c->etp == 1 ? ", etp 1" : "");
    if (c->pp > 1) text_printf(out, ", %s", c->schedule);
    if (c->segments > 1) text_printf(out, " in %d segments", c->segments);
    text_printf(out, ", recompute %s", recompute[c->recompute]);
}

/* Whether a row is the first of its kind among those that fit. */
static bool is_first_of_kind(const Compare *p, int i) {
    for (int k = 0; k < i; k++)
        if (search_same_kind(&p->found[k].choice, &p->found[i].choice)) return false;
    return p->found[i].fits;
}

/* Why the best layouts of other kinds are slower than the one that is taken. */
static void put_reasons(const Compare *p, Text *out) {
    int shown = 0;
    if (!p->q->speed.hardware || p->count == 0 || !p->found[0].fits) return;
    for (int i = 1; i < p->count && shown + 1 < SEARCH_KINDS; i++) {
        if (!is_first_of_kind(p, i)) continue;
        text_puts(out, shown++ ? "  " : "slower than the first, of other kinds:\n  ");
        put_name(p, &p->found[i], out);
        text_puts(out, ": ");
        put_difference(&p->found[i], &p->found[0], out);
        text_puts(out, "\n");
    }
}

/* The configured candidate; NULL: it is not possible. */
static const Candidate *configured_one(const Compare *p) {
    for (int i = 0; i < p->count; i++)
        if (p->found[i].configured) return &p->found[i];
    return NULL;
}

/* "; as configured 12% longer": the advantage of the chosen candidate over the configured one. */
static void put_advantage(const Compare *p, const Candidate *taken, Text *out) {
    char memory[32];
    const Candidate *other = configured_one(p);
    if (!other || other == taken) return;
    if (other->fits)
        text_printf(out, "; as configured %.1f%% longer", 100 * (other->time / taken->time - 1));
    else
        text_printf(out, "; as configured %s are needed", text_bytes((double)other->memory, memory));
}

/* The keys of the choice, as they are given on a command line. */
static void put_keys(const Compare *p, const Candidate *a, Text *out) {
    const Choice *c = &a->choice;
    const PipelineOptions *asked = &p->c->pipeline;
    text_printf(out, "keys: mesh.pp=%d mesh.dp_replicate=%d mesh.dp_shard=-1 mesh.cp=%d mesh.tp=%d", c->pp,
                c->replicas, c->cp, c->tp);
    if (has_experts(p)) text_printf(out, " mesh.ep=%d", c->ep);
    if (c->etp == 1 || p->c->mesh.etp > 0) text_printf(out, " mesh.etp=%d", c->etp);
    bool other = strcmp(c->schedule, asked->schedule) != 0 || c->stages_per_rank != asked->stages_per_rank;
    if (c->pp > 1 && other)
        text_printf(out, " pipeline.schedule=%s pipeline.stages_per_rank=%d%s", c->schedule,
                    c->stages_per_rank, asked->layers_per_stage > 0 ? " pipeline.layers_per_stage=0" : "");
    if (c->segments > 1 || asked->segments > 1)
        text_printf(out, " pipeline.segments=%d", c->segments > 1 ? c->segments : 1);
    if (asked->microbatches > 0) text_puts(out, " pipeline.microbatches=0");
    text_printf(out, " train.microbatch=%lld train.tokens_per_step=%lld", (long long)c->sequences,
                (long long)(p->request.step * p->c->train.context));
    put_settings(p, a, "train.", out);
    text_puts(out, "\n");
}

static void put_nothing(const Compare *p, Text *out) {
    char memory[32];
    const Candidate *a = p->found;
    for (int i = 0; i < p->count; i++)
        if (p->found[i].memory < a->memory) a = &p->found[i];
    text_puts(out, "takes nothing: none fits; smallest is ");
    put_name(p, a, out);
    text_printf(out, " with %d microbatches, %s\n", a->microbatches, text_bytes((double)a->memory, memory));
}

/* Prints the choice, and what it is better than. */
static void put_taken(const Compare *p, Text *out) {
    const Candidate *a = p->found;
    char forecasts[32], bounded[32];
    if (!tries_degrees(p) || p->count == 0) return;
    text_printf(out, "searched: %s layouts forecast, bounds of %s branches and layouts%s\n",
                text_count(p->forecasts, forecasts), text_count(p->bounded, bounded),
                p->unproven         ? "; ended before all were: a faster layout may be left"
                : p->short_of_kinds ? "; ended before the best of all kinds were known"
                                    : "");
    if (!a->fits) {
        put_nothing(p, out);
        return;
    }
    text_puts(out, "takes ");
    put_name(p, a, out);
    text_printf(out, ", %d microbatch%s: the fastest %s", a->microbatches, a->microbatches == 1 ? "" : "es",
                p->unproven ? "found that fits" : "that fits");
    put_advantage(p, a, out);
    text_puts(out, "\n");
    put_keys(p, a, out);
}

static bool are_alike(const Candidate *a, const Candidate *b) {
    const Choice *x = &a->choice, *y = &b->choice;
    return strcmp(x->schedule, y->schedule) == 0 && a->microbatches == b->microbatches &&
           a->stages_per_rank == b->stages_per_rank && x->pp == y->pp && x->tp == y->tp && x->cp == y->cp &&
           x->ep == y->ep && x->etp == y->etp && x->segments == y->segments && x->replicas == y->replicas &&
           fabs(a->time - b->time) <= 1e-9 * a->time && a->memory == b->memory && a->sent == b->sent;
}

/* Of sorted candidates: settings that are the same for this mesh, such as a key that is given and the value
 * that auto has, are one row. */
static void drop_repeats(Compare *p) {
    int kept = 0;
    for (int i = 0; i < p->count; i++) {
        if (kept == 0 || !are_alike(&p->found[kept - 1], &p->found[i]))
            p->found[kept++] = p->found[i];
        else if (p->found[i].configured)
            p->found[kept - 1] = p->found[i];
    }
    p->count = kept;
}

/* Without --whole: the first of each kind of layout, or the best schedules. */
static bool is_shown(const Compare *p, int i, int shown) {
    if (p->q->whole || p->found[i].configured) return true;
    if (!tries_degrees(p)) return i < SHOWN;
    return shown < SEARCH_KINDS && (is_first_of_kind(p, i) || !p->found[0].fits);
}

static void put_table(Compare *p, Text *out) {
    char limit[32];
    int left_out = 0, shown = 0;
    qsort(p->found, (size_t)p->count, sizeof *p->found, better);
    drop_repeats(p);
    put_header(p, out);
    for (int i = 0; i < p->count; i++) {
        if (is_shown(p, i, shown))
            put_row(p, &p->found[i], out), shown++;
        else
            left_out++;
    }
    if (left_out) text_printf(out, "  and %d more; --whole lists them\n", left_out);
    text_puts(out, "stages: of a rank. sequences: of a microbatch. memory, sent: of the rank that has most. "
                   "*: as configured\n");
    if (tries_degrees(p))
        text_puts(out, "dp: data-parallel ranks; rep: of these dp_replicate. Each row is the "
                       "best of its kind\n");
    put_chain(p->q->speed, tries_degrees(p), out);
    if (p->q->memory > 0) text_printf(out, "fits: %s a rank\n", text_bytes(p->q->memory, limit));
    if (p->reasons.length) text_puts(out, p->reasons.data);
    put_reasons(p, out);
    put_taken(p, out);
}

/* What all candidates have in common: the mesh, and the sequences of a step on each data-parallel rank. */
static ErrorCode read_step(Compare *p, Error *err) {
    Mesh mesh;
    int64_t sequences, microbatches;
    const TrainOptions *train = &p->c->train;
    TRY(mesh_build(&mesh, &p->c->mesh, p->q->world, err));
    int dp = mesh_dp_degree(&mesh);
    TRY(config_geometry(p->c, dp, &sequences, &microbatches, err));
    p->asked = (Choice){.pp = mesh_size(&mesh, MESH_PIPELINE),
                        .replicas = mesh_size(&mesh, MESH_REPLICAS),
                        .cp = mesh_size(&mesh, MESH_CONTEXT),
                        .tp = mesh_size(&mesh, MESH_TENSOR),
                        .ep = mesh_size(&mesh, MESH_EXPERTS),
                        .etp = mesh_folds(&p->c->mesh),
                        .sequences = sequences,
                        .schedule = p->c->pipeline.schedule,
                        .stages_per_rank = (int)p->c->pipeline.stages_per_rank,
                        .segments = (int)p->c->pipeline.segments,
                        .recompute = train->recompute,
                        .sync = train->gradient_sync,
                        .reshard = train->reshard};
    p->configured = (int)microbatches, p->total = sequences * microbatches;
    p->request = (SearchRequest){.config = p->c,
                                 .device = p->d,
                                 .world = p->q->world,
                                 .memory = p->q->memory,
                                 .speed = p->q->speed,
                                 .step = p->total * dp,
                                 .most_bounds = MOST_BOUNDS};
    p->space = (Bounds){.config = p->c, .world = p->q->world, .step = p->request.step};
    return OK;
}

/* Fails only where there is no step to compare; for a candidate that fails there is a line in the text. */
ErrorCode compare_print(const Config *c, const Device *d, const CompareRequest *q, Text *out, Error *err) {
    Compare p = {.c = c, .d = d, .q = q};
    char tokens[32];
    TRY(read_step(&p, err));
    text_printf(out, "%d rank%s: pp %d, %d data-parallel; a step of %s tokens\n", q->world,
                q->world == 1 ? "" : "s", p.asked.pp, (int)(p.request.step / p.total),
                text_count(p.request.step * c->train.context, tokens));
    if (tries_degrees(&p))
        try_layouts(&p);
    else
        try_all(&p);
    put_table(&p, out);
    free(p.found);
    text_free(&p.reasons);
    return OK;
}
