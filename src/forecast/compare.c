/* Candidates are forecast one after the other (each frees its forecast, so memory does not grow with their
 * number), then sorted and printed. Impossible ones are left out and named once with the reason.
 *
 * A candidate is the configuration with another schedule and another split of the same step into
 * microbatches: powers of two that divide it, and the configured number. Or it has other degrees of tp and
 * cp, taken from dp_shard, and of ep, which is a part of dp_shard. The fastest of these are then tried with
 * other settings, which trade memory for time. All candidates train the same curve up to the order of sums;
 * they differ in time, bubble, memory and bytes sent. */
#include "forecast/compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forecast/forecast.h"
#include "plan/sync.h"

/* MACHINE: ranks of one machine without --hardware; tp does not go beyond it. */
enum { MACHINE = 8, MOST_CONTEXTS = 64, SHOWN = 24, MOST_CELLS = 1 << 20 };

/* What trades memory for time. */
typedef struct Settings {
    int recompute, sync, reshard; /* Recompute, GradientSync, Reshard */
} Settings;

typedef struct Candidate {
    const char *schedule;
    Settings settings;
    int64_t sequences; /* of a microbatch */
    int microbatches, stages_per_rank, tp, cp, ep, dp;
    double time, bubble; /* time as printed */
    size_t memory;       /* of the fullest rank */
    uint64_t sent;       /* by the rank that sends most */
    bool fits, configured;
} Candidate;

typedef struct Compare {
    const Config *c;
    const Device *d;
    const CompareRequest *q;
    int64_t step; /* sequences of a step, over all ranks */
    /* For the degrees that are being tried: sequences of a step on each data-parallel rank. */
    int64_t total;
    MeshOptions mesh;
    int tp, cp, ep, dp;
    Settings settings, as_configured;
    int configured, configured_tp, configured_cp, configured_ep, pp;
    Candidate *found;
    int count, capacity;
    Text reasons;
} Compare;

/* ---- candidates ---- */

/* The number of stages of a rank that a schedule fixes, else the configured one. */
static int stages_of(const Compare *p, const char *schedule) {
    ScheduleName name;
    if (!schedule_find(schedule, &name)) return (int)p->c->pipeline.stages_per_rank;
    int usual = schedule_default_stages_per_rank(name), asked = (int)p->c->pipeline.stages_per_rank;
    return usual > 1 && !schedule_is_v(name) && asked > 0 ? asked : usual;
}

/* The configuration with another schedule and another split of the same step. Shares the strings of the
 * original. Sets tokens_per_step explicitly, so the step does not depend on the microbatch. */
static Config variant(const Compare *p, const char *schedule, int microbatches) {
    Config c = *p->c;
    c.mesh = p->mesh;
    c.train.microbatch = p->total / microbatches;
    c.train.tokens_per_step = p->total * p->dp * c.train.context;
    c.pipeline.microbatches = 0;
    c.train.recompute = p->settings.recompute;
    c.train.gradient_sync = p->settings.sync;
    c.train.reshard = p->settings.reshard;
    if (strcmp(schedule, c.pipeline.schedule) == 0) return c;
    c.pipeline.stages_per_rank = stages_of(p, schedule);
    c.pipeline.layers_per_stage = 0;
    return c;
}

static bool same_settings(Settings a, Settings b) {
    return a.recompute == b.recompute && a.sync == b.sync && a.reshard == b.reshard;
}

/* Memory is that of the fullest rank, and bytes are those of the rank that sends most: a layout is as good as
 * its worst rank. */
static void add(Compare *p, const Forecast *f, const Config *c, const char *schedule) {
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->found = mem_grow(p->found, (size_t)p->capacity * sizeof *p->found);
    }
    Candidate *a = &p->found[p->count++];
    *a = (Candidate){.schedule = schedule,
                     .settings = {c->train.recompute, c->train.gradient_sync, c->train.reshard},
                     .tp = p->tp,
                     .cp = p->cp,
                     .ep = p->ep,
                     .dp = p->dp,
                     .sequences = f->layout.sequences,
                     .microbatches = f->layout.microbatches,
                     .stages_per_rank = f->layout.stages.count / f->pipe_ranks,
                     .time = forecast_step(f),
                     .bubble = f->timing.bubble,
                     .memory = forecast_memory(f, f->fullest)};
    for (int i = 0; i < f->pipe_ranks; i++)
        if (forecast_sent(f, i) > a->sent) a->sent = forecast_sent(f, i);
    a->fits = p->q->memory <= 0 || (double)a->memory <= p->q->memory;
    a->configured = same_settings(p->settings, p->as_configured) && a->microbatches == p->configured &&
                    a->tp == p->configured_tp && a->cp == p->configured_cp && a->ep == p->configured_ep &&
                    (p->pp == 1 || strcmp(schedule, p->c->pipeline.schedule) == 0);
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
static ErrorCode try_one(Compare *p, const char *schedule, int microbatches, Error *err) {
    Forecast f;
    int64_t cells = (int64_t)p->pp * microbatches * (stages_of(p, schedule) > 0 ? stages_of(p, schedule) : 1);
    if (cells > MOST_CELLS)
        return error_set(err, ERR_CONFIG, "%lld cells are more than the %d that this is made for",
                         (long long)cells, MOST_CELLS);
    Config c = variant(p, schedule, microbatches);
    char *name = mem_strdup(schedule);
    c.pipeline.schedule = name;
    ErrorCode code = forecast_within(p, &f, &c, err);
    if (code == OK) {
        add(p, &f, &c, schedule);
        forecast_free(&f);
    }
    free(name);
    return code;
}

/* The number to try after m: the next power of two, or the configured number if that comes first. */
static int64_t next_count(const Compare *p, int64_t m) {
    int64_t power = 1;
    while (power <= m) power *= 2;
    return m < p->configured && p->configured < power ? p->configured : power;
}

/* Tries a schedule with every number of microbatches. Those that fail share one line, with the reason of the
 * first. */
static void try_schedule(Compare *p, const char *schedule) {
    Error why = {.code = OK}, first = {.code = OK};
    Text failed = {0};
    for (int64_t m = 1; m <= p->total; m = next_count(p, m)) {
        if (p->total % m != 0 || try_one(p, schedule, (int)m, &why) == OK) continue;
        if (first.code == OK) first = why;
        text_printf(&failed, "%s%lld", failed.length ? ", " : "", (long long)m);
    }
    if (failed.length)
        text_printf(&p->reasons, "left out: %s with %s microbatch%s: %s\n", schedule, failed.data,
                    strcmp(failed.data, "1") == 0 ? "" : "es", first.message);
    text_free(&failed);
}

/* With one pipeline rank there are no schedules to compare, only microbatches. A schedule from a file is
 * tried as written. */
static void try_all(Compare *p) {
    ScheduleName ignored;
    if (p->pp == 1) {
        try_schedule(p, p->c->pipeline.schedule);
        return;
    }
    for (int i = 0; i < PIPE_NAMES; i++) try_schedule(p, schedule_name((ScheduleName)i));
    if (!schedule_find(p->c->pipeline.schedule, &ignored)) try_schedule(p, p->c->pipeline.schedule);
}

/* ---- degrees of tp, cp and ep ---- */

/* Without a limit of memory there is no reason for other degrees, and without speeds of links their cost is
 * unknown. */
static bool tries_degrees(const Compare *p) {
    return p->q->memory > 0 && (p->q->speed.hardware || p->q->speed.link > 0);
}

/* Sets degrees for the following candidates. False, without a change, if the ranks, the model or the tokens
 * of a step cannot be split so. */
static bool take_degrees(Compare *p, int tp, int cp, int ep) {
    MeshOptions o = p->c->mesh;
    Mesh mesh;
    Error ignored = {.message = ""};
    const ModelConfig *m = &p->c->model.shape;
    o.tp = tp, o.cp = cp, o.ep = ep, o.dp_shard = -1;
    if (mesh_build(&mesh, &o, p->q->world, &ignored) != OK || axes_check(m, tp, &ignored) != OK ||
        axes_check_experts(m, ep, &ignored) != OK || p->c->train.context % (2 * cp * tp) != 0 ||
        p->step % mesh_dp_degree(&mesh) != 0)
        return false;
    p->mesh = o, p->tp = tp, p->cp = cp, p->ep = ep, p->dp = mesh_dp_degree(&mesh);
    p->total = p->step / p->dp;
    return true;
}

static bool has_experts(const Compare *p) { return p->c->model.shape.num_experts > 0; }

static void try_degrees(Compare *p) {
    int machine = p->q->speed.hardware ? (int)p->q->speed.hardware->links.ranks : MACHINE;
    int contexts = axes_splits_tokens(&p->c->model.shape) ? MOST_CONTEXTS : 1,
        experts = has_experts(p) ? SPLITS_MAX : 1;
    for (int tp = 1; tp <= machine; tp *= 2)
        for (int cp = 1; cp <= contexts; cp *= 2)
            for (int ep = 1; ep <= experts; ep *= 2)
                if ((tp != p->configured_tp || cp != p->configured_cp || ep != p->configured_ep) &&
                    take_degrees(p, tp, cp, ep))
                    try_schedule(p, p->c->pipeline.schedule);
}

static int three_way(double a, double b) { return (a > b) - (a < b); }

static int sooner(const void *a, const void *b) {
    return three_way(((const Candidate *)a)->time, ((const Candidate *)b)->time);
}

/* ---- settings ---- */

/* Whether a value may be tried. A key that is set stays, since it may change bits. */
static bool may_set(int configured, int automatic, int value) {
    return configured == automatic || configured == value;
}

/* Tries one candidate with other settings. NULL: it is impossible, or they are not to be changed. */
static const Candidate *try_settings(Compare *p, const Candidate *a, Settings settings) {
    Error ignored = {.message = ""};
    if (!may_set(p->as_configured.sync, SYNC_AUTO, settings.sync) ||
        !may_set(p->as_configured.reshard, RESHARD_AUTO, settings.reshard))
        return NULL;
    p->settings = settings;
    return try_one(p, a->schedule, a->microbatches, &ignored) == OK ? &p->found[p->count - 1] : NULL;
}

/* The settings that take the most memory come first and are the fastest: nothing is computed twice, and
 * nothing is sent twice. Where they fit, or where even they are slower than what fits already, there is
 * nothing else to try. Returns the time of the fastest that fits. */
static double refine(Compare *p, Candidate a, double best) {
    static const int recompute[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL},
                     syncs[] = {SYNC_STEP, SYNC_REPLICA, SYNC_MICROBATCH},
                     reshards[] = {RESHARD_NEVER, RESHARD_ALWAYS};
    int most = (int)(sizeof recompute / sizeof *recompute) * 6;
    for (int i = 0; i < most; i++) {
        Settings s = {recompute[i / 6], syncs[i % 6 / 2], reshards[i % 2]};
        const Candidate *b = same_settings(s, a.settings) ? &a : try_settings(p, &a, s);
        if (b && b->fits && b->time < best) best = b->time;
        if (i == 0 && b && (b->fits || b->time >= best)) break;
    }
    return best;
}

/* The time of configured settings says which candidates are worth it: the SHOWN fastest, whether or not they
 * fit. */
static void try_other_settings(Compare *p) {
    int count = p->count < SHOWN ? p->count : SHOWN;
    if (count == 0) return;
    Candidate *fastest = mem_alloc_array((size_t)p->count, sizeof *fastest);
    double best = INFINITY;
    memcpy(fastest, p->found, (size_t)p->count * sizeof *fastest);
    for (int i = 0; i < p->count; i++)
        if (p->found[i].fits && p->found[i].time < best) best = p->found[i].time;
    qsort(fastest, (size_t)p->count, sizeof *fastest, sooner);
    for (int i = 0; i < count; i++)
        if (take_degrees(p, fastest[i].tp, fastest[i].cp, fastest[i].ep)) best = refine(p, fastest[i], best);
    free(fastest);
}

/* ---- the table ---- */

/* Fitting candidates come first, then shorter times. Times that agree to five digits count as equal; then
 * less memory wins. */
static int better(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (fabs(x->time - y->time) > 1e-5 * y->time) return three_way(x->time, y->time);
    if (x->memory != y->memory) return x->memory < y->memory ? -1 : 1;
    if (x->tp != y->tp) return x->tp - y->tp;
    if (x->cp != y->cp) return x->cp - y->cp;
    if (x->ep != y->ep) return x->ep - y->ep;
    if (x->settings.recompute != y->settings.recompute) return x->settings.recompute - y->settings.recompute;
    if (x->settings.sync != y->settings.sync) return x->settings.sync - y->settings.sync;
    if (x->settings.reshard != y->settings.reshard) return x->settings.reshard - y->settings.reshard;
    return strcmp(x->schedule, y->schedule) != 0 ? strcmp(x->schedule, y->schedule)
                                                 : x->microbatches - y->microbatches;
}

/* Keys that differ from the configured ones, each with its section, which a row leaves out. */
static void put_settings(const Compare *p, const Candidate *a, const char *section, Text *out) {
    static const char *const recompute[] = {RECOMPUTE_KINDS(CHOICE_NAME)};
    static const char *const reshard[] = {RESHARD_KINDS(CHOICE_NAME)};
    Settings s = a->settings, c = p->as_configured;
    if (s.recompute != c.recompute) text_printf(out, " %srecompute=%s", section, recompute[s.recompute]);
    if (s.sync != c.sync) text_printf(out, " %sgradient_sync=%s", section, sync_name((GradientSync)s.sync));
    if (s.reshard != c.reshard) text_printf(out, " %sreshard_after_forward=%s", section, reshard[s.reshard]);
}

/* The configured candidate is marked, and shown even if it is not among the first. */
static void put_row(const Compare *p, const Candidate *a, Text *out) {
    char memory[32], sent[32];
    text_printf(out, "%c ", a->configured ? '*' : ' ');
    if (tries_degrees(p)) text_printf(out, "%3d %3d ", a->tp, a->cp);
    if (tries_degrees(p) && has_experts(p)) text_printf(out, "%3d ", a->ep);
    if (tries_degrees(p)) text_printf(out, "%5d  ", a->dp);
    text_printf(out, "%-23s %6d %12d %9lld %11.5g %7.1f%% %11s %11s%s",
                p->pp > 1 ? a->schedule : "(no pipeline)", a->stages_per_rank, a->microbatches,
                (long long)a->sequences, a->time, 100 * a->bubble, text_bytes((double)a->memory, memory),
                a->sent ? text_bytes((double)a->sent, sent) : "0",
                p->q->memory <= 0 ? ""
                : a->fits         ? "  yes"
                                  : "  no ");
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

/* The first match of the sorted candidates; NULL: none. */
static const Candidate *first_of(const Compare *p, bool (*keeps)(const Compare *p, const Candidate *a)) {
    for (int i = 0; i < p->count; i++)
        if (keeps(p, &p->found[i])) return &p->found[i];
    return NULL;
}

static bool is_plain(const Compare *p, const Candidate *a) {
    (void)p;
    return a->tp == 1 && a->cp == 1 && a->ep == 1;
}
static bool is_configured(const Compare *p, const Candidate *a) {
    (void)p;
    return a->configured;
}

/* "; without tp and cp 12% longer": the advantage of the chosen candidate over another. */
static void put_reason(const Candidate *taken, const Candidate *other, const char *name, Text *out) {
    char memory[32];
    if (!other || other == taken) return;
    if (other->fits)
        text_printf(out, "; %s %.1f%% longer", name, 100 * (other->time / taken->time - 1));
    else
        text_printf(out, "; %s %s are needed", name, text_bytes((double)other->memory, memory));
}

/* ", ep 4" for models with experts. */
static const char *name_experts(const Compare *p, const Candidate *a, char out[32]) {
    *out = 0;
    if (has_experts(p)) snprintf(out, 32, ", ep %d", a->ep);
    return out;
}

/* The keys of the choice, as they are given on a command line. */
static void put_keys(const Compare *p, const Candidate *a, Text *out) {
    text_printf(out, "keys: mesh.tp=%d mesh.cp=%d mesh.dp_shard=-1", a->tp, a->cp);
    if (has_experts(p)) text_printf(out, " mesh.ep=%d", a->ep);
    if (strcmp(a->schedule, p->c->pipeline.schedule) != 0)
        text_printf(out, " pipeline.schedule=%s pipeline.stages_per_rank=%d", a->schedule,
                    a->stages_per_rank);
    text_printf(out, " train.microbatch=%lld train.tokens_per_step=%lld", (long long)a->sequences,
                (long long)(p->step * p->c->train.context));
    put_settings(p, a, "train.", out);
    text_puts(out, "\n");
}

/* Prints the choice, and what it is better than. */
static void put_taken(const Compare *p, Text *out) {
    const Candidate *a = p->found;
    char memory[32], experts[32];
    int fitting = 0;
    if (!tries_degrees(p) || p->count == 0) return;
    for (int i = 0; i < p->count; i++) fitting += p->found[i].fits;
    if (fitting == 0) {
        for (int i = 0; i < p->count; i++)
            if (p->found[i].memory < a->memory) a = &p->found[i];
        text_printf(out,
                    "takes nothing: none of %d fits; tp %d, cp %d%s with %d microbatches is smallest, %s\n",
                    p->count, a->tp, a->cp, name_experts(p, a, experts), a->microbatches,
                    text_bytes((double)a->memory, memory));
        return;
    }
    text_printf(out, "takes tp %d, cp %d%s, %s%s%d microbatch%s: the fastest of %d that fit", a->tp, a->cp,
                name_experts(p, a, experts), p->pp > 1 ? a->schedule : "", p->pp > 1 ? " with " : "",
                a->microbatches, a->microbatches == 1 ? "" : "es", fitting);
    put_reason(a, a->tp * a->cp * a->ep > 1 ? first_of(p, is_plain) : NULL,
               has_experts(p) ? "without tp, cp and ep" : "without tp and cp", out);
    put_reason(a, first_of(p, is_configured), "as configured", out);
    text_puts(out, "\n");
    put_keys(p, a, out);
}

static bool are_alike(const Candidate *a, const Candidate *b) {
    return strcmp(a->schedule, b->schedule) == 0 && a->microbatches == b->microbatches &&
           a->stages_per_rank == b->stages_per_rank && a->tp == b->tp && a->cp == b->cp && a->ep == b->ep &&
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

static void put_table(Compare *p, Text *out) {
    char limit[32];
    qsort(p->found, (size_t)p->count, sizeof *p->found, better);
    drop_repeats(p);
    int shown = p->q->whole || p->count <= SHOWN ? p->count : SHOWN, left_out = 0;
    text_puts(out, !tries_degrees(p) ? "" : has_experts(p) ? "   tp  cp  ep    dp" : "   tp  cp    dp");
    text_printf(
        out,
        "  schedule                stages microbatches sequences  %10s   bubble      memory        sent%s\n",
        p->q->speed.hardware || p->q->speed.tflops > 0 ? "seconds" : "TFLOP",
        p->q->memory > 0 ? "  fits" : "");
    for (int i = 0; i < p->count; i++) {
        if (i < shown || p->found[i].configured)
            put_row(p, &p->found[i], out);
        else
            left_out++;
    }
    if (left_out) text_printf(out, "  and %d more; --whole lists them\n", left_out);
    text_puts(out, "stages: of a rank. sequences: of a microbatch. memory, sent: of the rank that has most. "
                   "*: as configured\n");
    put_chain(p->q->speed, tries_degrees(p), out);
    if (p->q->memory > 0) text_printf(out, "fits: %s a rank\n", text_bytes(p->q->memory, limit));
    if (p->reasons.length) text_puts(out, p->reasons.data);
    put_taken(p, out);
}

/* What all candidates have in common: the mesh, and the sequences of a step on each data-parallel rank. */
static ErrorCode read_step(Compare *p, Error *err) {
    Mesh mesh;
    int64_t sequences, microbatches;
    TRY(mesh_build(&mesh, &p->c->mesh, p->q->world, err));
    p->mesh = p->c->mesh;
    p->settings = p->as_configured =
        (Settings){p->c->train.recompute, p->c->train.gradient_sync, p->c->train.reshard};
    p->dp = mesh_dp_degree(&mesh), p->pp = mesh_size(&mesh, MESH_PIPELINE);
    p->tp = p->configured_tp = mesh_size(&mesh, MESH_TENSOR),
    p->cp = p->configured_cp = mesh_size(&mesh, MESH_CONTEXT);
    p->ep = p->configured_ep = mesh_size(&mesh, MESH_EXPERTS);
    TRY(config_geometry(p->c, p->dp, &sequences, &microbatches, err));
    p->configured = (int)microbatches, p->total = sequences * microbatches;
    p->step = p->total * p->dp;
    return OK;
}

/* Fails only where there is no step to compare; for a candidate that fails there is a line in the text. */
ErrorCode compare_print(const Config *c, const Device *d, const CompareRequest *q, Text *out, Error *err) {
    Compare p = {.c = c, .d = d, .q = q};
    char tokens[32];
    TRY(read_step(&p, err));
    text_printf(out, "%d rank%s: pp %d, %d data-parallel; a step of %s tokens\n", q->world,
                q->world == 1 ? "" : "s", p.pp, p.dp, text_count(p.step * c->train.context, tokens));
    try_all(&p);
    if (tries_degrees(&p)) try_degrees(&p), try_other_settings(&p);
    put_table(&p, out);
    free(p.found);
    text_free(&p.reasons);
    return OK;
}
