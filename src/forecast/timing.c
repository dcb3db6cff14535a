/* Measured steps become timelines, and their mean costs a simulation: what is compared are two drawings of
 * the same cells.
 *
 *     traced actions of all ranks --> passes of one (kind, stage, microbatch) = a span   (timing_measured)
 *         |                               |
 *         |                               +--> mean seconds of each stage's F, I, W, B   (add_costs)
 *         +--> median of messages' latencies   (latencies_of)       |
 *                                                                   v
 *     planned timeline, seconds, bubble <-- simulate, and the ends before and after the norm (timing_predict)
 *
 * Time that a rank waited for others is no cost of its own: it is cut off the front of each span, and comes
 * back in the simulation, where waiting is what is to be explained. If the prediction is off, then what the
 * simulator does not know of is what the step spends its time on. */
#include "forecast/timing.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/schedule_internal.h"

#define MS 1000.0 /* timelines are in milliseconds */

enum { FORWARD, BACKWARD, DIRECTIONS };
enum { BEFORE_NORM, AFTER_NORM, ENDS }; /* what follows the last cell, up to the norm and from there */

/* ---- the record ---- */

void timing_start(Timing *t, int ranks, int pipeline, int stages) {
    CHECK(ranks > 0 && pipeline > 0 && ranks % pipeline == 0);
    *t = (Timing){.ranks = ranks, .pipeline = pipeline, .stages = stages};
}

/* The pointer holds until the next step is added, which may move them. */
TimedStep *timing_add(Timing *t, int64_t step, double began) {
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 4;
        t->steps = mem_grow(t->steps, (size_t)t->capacity * sizeof *t->steps);
    }
    TimedStep *s = &t->steps[t->count++];
    *s = (TimedStep){
        .step = step, .began = began, .ranks = mem_alloc_array((size_t)t->ranks, sizeof *s->ranks)};
    return s;
}

/* A step is as long as its last action on any rank: actions are in order of time, so the last one ends
 * last. */
void timing_set(TimedStep *s, int rank, TimedAction *actions, int count) {
    s->ranks[rank] = (TimedRank){count, actions};
    if (count > 0) s->seconds = fmax(s->seconds, actions[count - 1].end);
}

void timing_free(Timing *t) {
    for (int i = 0; i < t->count; i++) {
        for (int r = 0; r < t->ranks; r++) free(t->steps[i].ranks[r].actions);
        free(t->steps[i].ranks);
    }
    free(t->steps);
    *t = (Timing){0};
}

static int rank_at(const Timing *t, int pipeline, int row) { return row * timing_pipelines(t) + pipeline; }

/* Ranks of a pipeline are a mesh's apart: rows are places of the pipeline, and pipelines are what stands
 * between them in the numbers of ranks. */
static const TimedRank *rank_of(const Timing *t, int step, int pipeline, int row) {
    return &t->steps[step].ranks[rank_at(t, pipeline, row)];
}

/* ---- measured ---- */

/* The next pass from `i` on, or count. */
static int next_pass(const TimedRank *r, int i) {
    while (i < r->count && !action_is_pass(r->actions[i].action.kind)) i++;
    return i;
}

/* Without the unit: a cell is a stage's, and its units are passed one after the other. */
static bool same_cell(const TimedAction *a, const TimedAction *b) {
    return a->action.kind == b->action.kind && a->stage == b->stage &&
           a->action.microbatch == b->action.microbatch;
}

/* Of a pass. B where a backward pass ran whole, I and W where it was split. */
static SpanKind span_of(ActionKind kind) {
    if (kind == ACT_FWD) return SPAN_F;
    if (kind == ACT_BWD) return SPAN_B;
    return kind == ACT_DGRAD ? SPAN_I : SPAN_W;
}

/* For other stages. Who waits for what crosses between the parts of a unit is not held up by the schedule:
 * that is of the pass, as planned times have it too. */
static double waited_for_others(const TimedAction *a) { return a->action.kind == ACT_WAIT ? 0 : a->waited; }

/* What a rank has done since `mark`, without what it waited, ends where it ended: waiting comes first, as the
 * data that a pass needs is waited for before it. */
static void close_span(Timeline *out, Span span, double mark, double waited) {
    span.start = MS * fmin(span.end, mark + waited);
    span.end *= MS;
    timeline_add(out, span);
}

/* Behind the last cell: up to the norm, and from there. Two spans, of which either may be empty. They are
 * apart because all ranks meet in between. */
static void add_end(const TimedRank *r, int from, int row, double mark, Timeline *out) {
    double waited = 0, end = mark;
    for (int op = BEFORE_NORM; op < ENDS; op++) {
        for (; from < r->count; from++) {
            const TimedAction *a = &r->actions[from];
            bool norm = a->action.kind == ACT_NORM;
            /* The norm ends with waiting for all: what came before stands before that. */
            waited += norm ? 0 : a->waited;
            end = norm ? a->end - a->waited : a->end;
            if (norm) break;
        }
        close_span(out, (Span){row, SPAN_UPDATE, -1, -1, 0, end}, mark, waited);
        mark = end, waited = 0;
        if (from < r->count) mark = r->actions[from++].end;
        end = mark;
    }
}

/* Passes over the units of a stage are actions of their own, and a cell here; what lies between two passes
 * counts with the later one. */
static void add_rank(const TimedRank *r, int row, Timeline *out) {
    double mark = r->count ? r->actions[0].start : 0, waited = 0;
    int from = 0;
    for (int i = next_pass(r, 0); i < r->count;) {
        const TimedAction *a = &r->actions[i];
        int next = next_pass(r, i + 1);
        for (; from <= i; from++) waited += waited_for_others(&r->actions[from]);
        if (next == r->count || !same_cell(a, &r->actions[next])) {
            close_span(out, (Span){row, span_of(a->action.kind), a->stage, a->action.microbatch, 0, a->end},
                       mark, waited);
            mark = a->end, waited = 0;
        }
        i = next;
    }
    add_end(r, from, row, mark, out);
}

/* -1 for a stage that nobody works on. From the first step alone: where a stage lives does not change within
 * a run. */
static void find_ranks_of_stages(const Timing *t, int pipeline, int *rank_of_stage) {
    for (int s = 0; s < t->stages; s++) rank_of_stage[s] = -1;
    for (int row = 0; t->count > 0 && row < t->pipeline; row++) {
        const TimedRank *r = rank_of(t, 0, pipeline, row);
        for (int i = next_pass(r, 0); i < r->count; i = next_pass(r, i + 1))
            rank_of_stage[r->actions[i].stage] = row;
    }
}

/* The caller frees the timeline. */
void timing_measured(const Timing *t, int step, int pipeline, Timeline *out) {
    int *rank_of_stage = mem_alloc_array((size_t)t->stages, sizeof *rank_of_stage);
    find_ranks_of_stages(t, pipeline, rank_of_stage);
    timeline_start(out, "measured", "ms", t->pipeline, t->stages, rank_of_stage);
    for (int row = 0; row < t->pipeline; row++) add_rank(rank_of(t, step, pipeline, row), row, out);
    free(rank_of_stage);
}

/* Of the worst rank, as the simulator's bubble is. */
StepFigures timing_figures(const Timing *t, int step) {
    StepFigures out = {.seconds = t->steps[step].seconds};
    for (int p = 0; p < timing_pipelines(t); p++) {
        Timeline line;
        Simulation f;
        timing_measured(t, step, p, &line);
        timeline_figures(&line, &f);
        for (int r = 0; r < f.ranks && out.seconds > 0; r++)
            out.bubble = fmax(out.bubble, 1 - f.rank[r].busy / MS / out.seconds);
        simulation_free(&f);
        timeline_free(&line);
    }
    return out;
}

/* ---- mean costs ---- */

/* A sum and its terms, so that steps can be added one by one. */
typedef struct Mean {
    double sum;
    int count;
} Mean;

static void mean_add(Mean *m, double value) {
    m->sum += value;
    m->count++;
}
static double mean_of(Mean m) { return m.count ? m.sum / m.count : 0; }

/* Of one pipeline. Kinds of cells come first in SpanKind, so SPAN_UPDATE is how many there are. */
typedef struct Costs {
    Mean (*cells)[SPAN_UPDATE]; /* [stages] of each kind of cell */
    Mean (*ends)[ENDS];         /* [rows] */
} Costs;

/* Seconds of one pipeline, over all steps. Each row has its two ends behind its cells (add_end), in order;
 * `end` tells which of them is met. */
static void add_costs(const Timing *t, int pipeline, Costs *c) {
    for (int step = 0; step < t->count; step++) {
        Timeline line;
        timing_measured(t, step, pipeline, &line);
        int end = 0;
        for (int i = 0; i < line.count; i++) {
            const Span *s = &line.spans[i];
            double seconds = (s->end - s->start) / MS;
            if (s->kind < SPAN_UPDATE)
                mean_add(&c->cells[s->stage][s->kind], seconds), end = 0;
            else
                mean_add(&c->ends[s->rank][end++ % ENDS], seconds);
        }
        timeline_free(&line);
    }
}

/* Where backward passes run whole there is no I to measure: B stands for it, and the simulator takes B's own
 * figure. */
static void set_costs(const Costs *c, int stages, StageCost *costs, double *backward) {
    for (int s = 0; s < stages; s++) {
        const Mean *m = c->cells[s];
        costs[s] = (StageCost){mean_of(m[SPAN_F]), mean_of(m[SPAN_I]), mean_of(m[SPAN_W])};
        backward[s] = mean_of(m[SPAN_B]);
        if (m[SPAN_I].count == 0) costs[s].input = backward[s];
    }
}

/* ---- the order of cells ---- */

/* Of a pass. */
static CellKind cell_of(SpanKind kind) {
    if (kind == SPAN_F) return CELL_F;
    if (kind == SPAN_B) return CELL_B;
    return kind == SPAN_I ? CELL_I : CELL_W;
}

/* Composites run one part after the other, and messages are what stages on different ranks need. The order in
 * which ranks really worked in the first traced step, so that a prediction is of the run as it was, even if
 * its schedule came from a file. */
static void make_schedule(const Timing *t, int pipeline, Schedule *s) {
    Timeline line;
    timing_measured(t, 0, pipeline, &line);
    schedule_start(s, "measured", t->pipeline);
    schedule_place(s, t->stages);
    for (int i = 0; i < t->stages; i++) s->rank_of_stage[i] = line.rank_of_stage[i];
    for (int i = 0; i < line.count; i++) {
        const Span *span = &line.spans[i];
        if (span->kind >= SPAN_UPDATE) continue;
        order_add(&s->orders[span->rank], (Cell){cell_of(span->kind), span->stage, span->microbatch, false});
        s->split_backward |= span->kind == SPAN_I || span->kind == SPAN_W;
        if (span->microbatch >= s->microbatches) s->microbatches = span->microbatch + 1;
    }
    timeline_free(&line);
}

/* ---- latency ---- */

/* Latencies in seconds, from all steps and pipelines. */
typedef struct Samples {
    int count, capacity;
    double *values;
} Samples;

static void sample(Samples *s, double value) {
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->values = mem_grow(s->values, (size_t)s->capacity * sizeof *s->values);
    }
    s->values[s->count++] = value;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Not the mean: a rank that was not scheduled for a while makes single messages look slow. */
static double median(Samples *s) {
    if (s->count == 0) return 0;
    qsort(s->values, (size_t)s->count, sizeof *s->values, ascending);
    return s->values[s->count / 2];
}

/* Where in `made` the end of a pass is; -1 for passes that make nothing for others, and what is not of this
 * schedule. */
static int64_t made_at(const Schedule *s, int direction, int stage, int microbatch) {
    if (stage < 0 || stage >= s->stages || microbatch < 0 || microbatch >= s->microbatches) return -1;
    return (int64_t)direction * s->stages * s->microbatches + (int64_t)schedule_pair(s, stage, microbatch);
}

/* A cell is several passes, one a unit, and its result is there when the last of them ends: later passes of
 * the same cell overwrite the time of earlier ones. */
static void mark_made(const Schedule *s, const TimedRank *r, double *made) {
    for (int i = next_pass(r, 0); i < r->count; i = next_pass(r, i + 1)) {
        const TimedAction *a = &r->actions[i];
        int64_t at =
            made_at(s, a->action.kind == ACT_FWD ? FORWARD : BACKWARD, a->stage, a->action.microbatch);
        if (at >= 0 && a->action.kind != ACT_WGRAD) made[at] = a->end; /* the last unit's stays */
    }
}

/* From those messages that somebody waited for already when they were made: only these show how long a
 * message takes, all others were hidden behind work. Only the first pass of a cell waits for a message, and
 * only from another rank: within a rank nothing is sent. */
static void sample_latencies(const Schedule *s, const TimedRank *r, int row, const double *made,
                             Samples *out) {
    const TimedAction *before = NULL;
    for (int i = next_pass(r, 0); i < r->count; i = next_pass(r, i + 1)) {
        const TimedAction *a = &r->actions[i];
        bool first = !before || !same_cell(before, a), forward = a->action.kind == ACT_FWD;
        int other = a->stage + (forward ? -1 : 1);
        int64_t at = made_at(s, forward ? FORWARD : BACKWARD, other, a->action.microbatch);
        before = a;
        if (!first || a->action.kind == ACT_WGRAD || at < 0 || s->rank_of_stage[other] == row) continue;
        if (a->start < made[at] && a->waited > 0) sample(out, fmax(0, a->start + a->waited - made[at]));
    }
}

/* All rows mark before any row samples: messages go both ways. `made` is not cleared between steps: every
 * pass that is waited for is made anew in each of them. */
static void latencies_of(const Timing *t, int pipeline, const Schedule *s, Samples *out) {
    double *made = mem_alloc_array(DIRECTIONS * (size_t)s->stages * (size_t)s->microbatches, sizeof *made);
    for (int step = 0; step < t->count; step++) {
        for (int row = 0; row < t->pipeline; row++) mark_made(s, rank_of(t, step, pipeline, row), made);
        for (int row = 0; row < t->pipeline; row++)
            sample_latencies(s, rank_of(t, step, pipeline, row), row, made, out);
    }
    free(made);
}

/* ---- prediction ---- */

/* All that one prediction is made of, until it stands. */
typedef struct Predicting {
    const Timing *t;
    Prediction *p;
    Schedule *schedules;  /* [pipelines] */
    double *backward;     /* [pipelines, stages] */
    double (*ends)[ENDS]; /* [ranks] by rank_at */
} Predicting;

/* Ends are kept by rank and not by stage: they hang on how many parameters a rank updates. */
static void measure_costs(Predicting *w, int pipeline) {
    const Timing *t = w->t;
    size_t stages = (size_t)t->stages, first = (size_t)pipeline * stages;
    Costs c = {mem_alloc_array(stages, sizeof *c.cells),
               mem_alloc_array((size_t)t->pipeline, sizeof *c.ends)};
    add_costs(t, pipeline, &c);
    set_costs(&c, t->stages, w->p->costs + first, w->backward + first);
    for (int row = 0; row < t->pipeline; row++)
        for (int e = 0; e < ENDS; e++) w->ends[rank_at(t, pipeline, row)][e] = mean_of(c.ends[row][e]);
    free(c.cells);
    free(c.ends);
}

/* In seconds in, in milliseconds out, as timelines are. */
static ErrorCode simulate_pipeline(Predicting *w, int pipeline, Error *err) {
    Simulation sim;
    Timeline *line = &w->p->planned[pipeline];
    size_t first = (size_t)pipeline * (size_t)w->t->stages;
    SimulateCosts costs = {
        .stages = w->p->costs + first, .backward = w->backward + first, .latency = w->p->latency};
    TRY(simulate(&sim, &w->schedules[pipeline], &costs, err));
    timeline_from_simulation(line, "planned, with measured costs", &w->schedules[pipeline], &sim);
    line->unit = "ms";
    for (int i = 0; i < line->count; i++) line->spans[i].start *= MS, line->spans[i].end *= MS;
    simulation_free(&sim);
    return OK;
}

/* When a row's last cell ends; 0 for a row without any. */
static double end_of_row(const Timeline *line, int row) {
    double end = 0;
    for (int i = 0; i < line->count; i++)
        if (line->spans[i].rank == row) end = fmax(end, line->spans[i].end);
    return end;
}

/* All ranks of all pipelines agree on the norm before any of them goes on. BEFORE_NORM begins where a row's
 * own cells end, AFTER_NORM when the last row of all has come to the norm: that wait is what the two parts
 * are told apart for. */
static void add_ends(Predicting *w) {
    double agreed = 0;
    for (int op = BEFORE_NORM; op < ENDS; op++) {
        double latest = agreed;
        for (int p = 0; p < w->p->pipelines; p++)
            for (int row = 0; row < w->t->pipeline; row++) {
                Timeline *line = &w->p->planned[p];
                double start = op == BEFORE_NORM ? end_of_row(line, row) : agreed;
                double end = start + MS * w->ends[rank_at(w->t, p, row)][op];
                timeline_add(line, (Span){row, SPAN_UPDATE, -1, -1, start, end});
                latest = fmax(latest, end);
            }
        agreed = latest;
    }
    w->p->seconds = agreed / MS;
}

/* By the step's whole length, ends included, as timing_figures has it of the measured step: the two can be
 * compared. */
static void set_bubble(Prediction *p) {
    for (int i = 0; i < p->pipelines; i++) {
        Simulation f;
        timeline_figures(&p->planned[i], &f);
        for (int r = 0; r < f.ranks && p->seconds > 0; r++)
            p->bubble = fmax(p->bubble, 1 - f.rank[r].busy / MS / p->seconds);
        simulation_free(&f);
    }
}

/* One latency for all pipelines, since they share the links. */
static ErrorCode predict(Predicting *w, Error *err) {
    Samples latencies = {0};
    ErrorCode code = OK;
    for (int i = 0; i < w->p->pipelines && code == OK; i++) {
        make_schedule(w->t, i, &w->schedules[i]);
        measure_costs(w, i);
        code = schedule_check(&w->schedules[i], err);
        if (code == OK) latencies_of(w->t, i, &w->schedules[i], &latencies);
    }
    w->p->latency = median(&latencies);
    free(latencies.values);
    for (int i = 0; i < w->p->pipelines && code == OK; i++) code = simulate_pipeline(w, i, err);
    if (code != OK) return code;
    add_ends(w);
    set_bubble(w->p);
    return OK;
}

/* A trace that is no pipeline (a cell twice, a stage on two ranks) is found by schedule_check, before
 * anything is simulated. */
ErrorCode timing_predict(Prediction *p, const Timing *t, Error *err) {
    size_t pipelines = (size_t)timing_pipelines(t), stages = pipelines * (size_t)t->stages;
    *p = (Prediction){.pipelines = (int)pipelines};
    if (t->count == 0) return error_set(err, ERR_DATA, "no step has been traced");
    p->planned = mem_alloc_array(pipelines, sizeof *p->planned);
    p->costs = mem_alloc_array(stages, sizeof *p->costs);
    Predicting w = {t, p, mem_alloc_array(pipelines, sizeof *w.schedules),
                    mem_alloc_array(stages, sizeof *w.backward),
                    mem_alloc_array((size_t)t->ranks, sizeof *w.ends)};
    ErrorCode code = predict(&w, err);
    for (size_t i = 0; i < pipelines; i++) schedule_free(&w.schedules[i]);
    free(w.schedules);
    free(w.backward);
    free(w.ends);
    return code;
}

void prediction_free(Prediction *p) {
    for (int i = 0; p->planned && i < p->pipelines; i++) timeline_free(&p->planned[i]);
    free(p->planned);
    free(p->costs);
    *p = (Prediction){0};
}

/* Both figures and their difference in one line, for the log and the report. */
void timing_sentence(const Prediction *p, const StepFigures *measured, Text *out) {
    text_printf(
        out, "predicted %.4g s, measured %.4g s (%+.1f %%), bubble predicted %.1f %%, measured %.1f %%",
        p->seconds, measured->seconds, p->seconds > 0 ? 100 * (measured->seconds / p->seconds - 1) : 0,
        100 * p->bubble, 100 * measured->bubble);
}
