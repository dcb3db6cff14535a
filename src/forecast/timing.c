/* Turns measured steps into timelines, and their mean costs into a simulation, so that two drawings of the
 * same cells can be compared.
 *
 *     traced actions of all ranks --> passes of one (kind, stage, microbatch) = a span   (timing_measured)
 *         |                               |
 *         |                               +--> mean seconds of each stage's F, I, W, B   (add_costs)
 *         +--> median of messages' latencies   (latencies_of)       |
 *                                                                   v
 *     planned timeline, seconds, bubble <-- simulate, and the ends before and after the norm (timing_predict)
 *
 * Time that a rank waited for others is not a cost: it is cut off the front of each span. The simulation
 * brings it back, since waiting is what is to be explained. If the prediction is off, the step spends time on
 * something that the simulator does not model. */
#include "forecast/timing.h"

#include <math.h>
#include <stdlib.h>

#include "schedule/schedule_internal.h"

#define MS 1000.0 /* timelines are in milliseconds */

enum { FORWARD, BACKWARD, DIRECTIONS };
enum { BEFORE_NORM, AFTER_NORM, ENDS }; /* time after the last cell: up to the norm, and after it */

/* ---- the record ---- */

void timing_start(Timing *t, int ranks, int pipeline, int stages) {
    CHECK(ranks > 0 && pipeline > 0 && ranks % pipeline == 0);
    *t = (Timing){.ranks = ranks, .pipeline = pipeline, .stages = stages};
}

/* Adding the next step may move all steps, which invalidates the pointer. */
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

/* A step lasts until the last action on any rank ends. Actions are in order of time, so only the last one
 * matters. */
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

/* Rows are pipeline ranks. The ranks of one pipeline are `pipelines` apart in the mesh. */
static const TimedRank *rank_of(const Timing *t, int step, int pipeline, int row) {
    return &t->steps[step].ranks[rank_at(t, pipeline, row)];
}

/* ---- measured ---- */

/* Index of the next pass from `i` on, or count. */
static int next_pass(const TimedRank *r, int i) {
    while (i < r->count && !action_is_pass(r->actions[i].action.kind)) i++;
    return i;
}

/* Ignores the unit: a cell belongs to a stage, whose units are run one after the other. */
static bool same_cell(const TimedAction *a, const TimedAction *b) {
    return a->action.kind == b->action.kind && a->stage == b->stage &&
           a->action.microbatch == b->action.microbatch;
}

/* B where dgrad and wgrad ran together, I and W where they were split. */
static SpanKind span_of(ActionKind kind) {
    if (kind == ACT_FWD) return SPAN_F;
    if (kind == ACT_BWD) return SPAN_B;
    return kind == ACT_DGRAD ? SPAN_I : SPAN_W;
}

/* Time spent waiting for other stages. Waiting for a collective inside a unit is not caused by the schedule;
 * it belongs to the pass, as in planned times. */
static double waited_for_others(const TimedAction *a) { return a->action.kind == ACT_WAIT ? 0 : a->waited; }

/* Adds a span from `mark` to the span's end. Waiting is cut off at the front, since a pass waits for its data
 * before it computes. */
static void close_span(Timeline *out, Span span, double mark, double waited) {
    span.start = MS * fmin(span.end, mark + waited);
    span.end *= MS;
    timeline_add(out, span);
}

/* Adds the two spans after the last cell, up to the norm and after it; either may be empty. They are separate
 * because all ranks meet in between. */
static void add_end(const TimedRank *r, int from, int row, double mark, Timeline *out) {
    double waited = 0, end = mark;
    for (int op = BEFORE_NORM; op < ENDS; op++) {
        for (; from < r->count; from++) {
            const TimedAction *a = &r->actions[from];
            bool norm = a->action.kind == ACT_NORM;
            /* The norm ends with waiting for all ranks; its own work comes before that. */
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

/* Adds the cells of a rank. The passes of the units of a stage are separate actions but one cell; time
 * between two passes belongs to the later one. */
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

/* -1 for a stage without work. Reads only the first step, since a stage stays on its rank during a run. */
static void find_ranks_of_stages(const Timing *t, int pipeline, int *rank_of_stage) {
    for (int s = 0; s < t->stages; s++) rank_of_stage[s] = -1;
    for (int row = 0; t->count > 0 && row < t->pipeline; row++) {
        const TimedRank *r = rank_of(t, 0, pipeline, row);
        for (int i = next_pass(r, 0); i < r->count; i = next_pass(r, i + 1))
            rank_of_stage[r->actions[i].stage] = row;
    }
}

/* The caller frees the timeline with timeline_free. */
void timing_measured(const Timing *t, int step, int pipeline, Timeline *out) {
    int *rank_of_stage = mem_alloc_array((size_t)t->stages, sizeof *rank_of_stage);
    find_ranks_of_stages(t, pipeline, rank_of_stage);
    timeline_start(out, "measured", "ms", t->pipeline, t->stages, rank_of_stage);
    for (int row = 0; row < t->pipeline; row++) add_rank(rank_of(t, step, pipeline, row), row, out);
    free(rank_of_stage);
}

/* For the worst rank, as the simulator's bubble. */
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

/* A running mean. */
typedef struct Mean {
    double sum;
    int count;
} Mean;

static void mean_add(Mean *m, double value) {
    m->sum += value;
    m->count++;
}
static double mean_of(Mean m) { return m.count ? m.sum / m.count : 0; }

/* Costs of one pipeline. Kinds of cells come first in SpanKind, so SPAN_UPDATE is their number. */
typedef struct Costs {
    Mean (*cells)[SPAN_UPDATE]; /* [stages] of each kind of cell */
    Mean (*ends)[ENDS];         /* [rows] */
} Costs;

/* Adds the seconds of one pipeline over all steps. In each row the two ends follow its cells (add_end); `end`
 * is the index of the next one. */
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

/* Where dgrad and wgrad ran together, I was not measured: `input` gets the cost of B, and the simulator uses
 * B's own cost. */
static void set_costs(const Costs *c, int stages, StageCost *costs, double *backward) {
    for (int s = 0; s < stages; s++) {
        const Mean *m = c->cells[s];
        costs[s] = (StageCost){mean_of(m[SPAN_F]), mean_of(m[SPAN_I]), mean_of(m[SPAN_W])};
        backward[s] = mean_of(m[SPAN_B]);
        if (m[SPAN_I].count == 0) costs[s].input = backward[s];
    }
}

/* ---- the order of cells ---- */

/* The kind of a computing span's cell. */
static CellKind cell_of(SpanKind kind) {
    if (kind == SPAN_F) return CELL_F;
    if (kind == SPAN_B) return CELL_B;
    return kind == SPAN_I ? CELL_I : CELL_W;
}

/* Makes a schedule from the order in which ranks really worked in the first traced step. The prediction is
 * then about the run as it was, even if its schedule came from a file. Composites become one cell after the
 * other; messages follow from stages on different ranks. */
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

/* Samples in seconds, from all steps and pipelines. */
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

/* The median and not the mean: a rank that the system did not schedule for a while makes single messages look
 * slow. */
static double median(Samples *s) {
    if (s->count == 0) return 0;
    qsort(s->values, (size_t)s->count, sizeof *s->values, ascending);
    return s->values[s->count / 2];
}

/* Index in `made` of the end of a pass; -1 for (stage, microbatch) pairs outside the schedule. */
static int64_t made_at(const Schedule *s, int direction, int stage, int microbatch) {
    if (stage < 0 || stage >= s->stages || microbatch < 0 || microbatch >= s->microbatches) return -1;
    return (int64_t)direction * s->stages * s->microbatches + (int64_t)schedule_pair(s, stage, microbatch);
}

/* A cell is several passes, one for each unit, and its result exists when the last of them ends. Later passes
 * of a cell overwrite the time of earlier ones. */
static void mark_made(const Schedule *s, const TimedRank *r, double *made) {
    for (int i = next_pass(r, 0); i < r->count; i = next_pass(r, i + 1)) {
        const TimedAction *a = &r->actions[i];
        int64_t at =
            made_at(s, a->action.kind == ACT_FWD ? FORWARD : BACKWARD, a->stage, a->action.microbatch);
        if (at >= 0 && a->action.kind != ACT_WGRAD) made[at] = a->end; /* the last unit's time stays */
    }
}

/* Samples the messages for which a rank was already waiting when they were made: only these show how long a
 * message takes, others were hidden by work. Only the first pass of a cell waits for a message, and only from
 * another rank. */
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

/* All rows mark before any row samples, since messages go both ways. `made` is not cleared between steps:
 * every step overwrites all entries that are read. */
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

/* State of a prediction in progress. */
typedef struct Predicting {
    const Timing *t;
    Prediction *p;
    Schedule *schedules;  /* [pipelines] */
    double *backward;     /* [pipelines, stages] */
    double (*ends)[ENDS]; /* [ranks] by rank_at */
} Predicting;

/* Ends belong to ranks, not to stages: they depend on the number of parameters that a rank updates. */
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

/* Costs are in seconds, timelines in milliseconds. */
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

/* End of the last cell of a row; 0 without cells. */
static double end_of_row(const Timeline *line, int row) {
    double end = 0;
    for (int i = 0; i < line->count; i++)
        if (line->spans[i].rank == row) end = fmax(end, line->spans[i].end);
    return end;
}

/* All ranks of all pipelines agree on the norm before any of them continues. BEFORE_NORM starts at the end of
 * a row's own cells, AFTER_NORM when the last row of all reaches the norm. The two parts are separate because
 * of this wait. */
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

/* Relative to the length of the full step with its ends, as in timing_figures, so the two can be compared. */
static void set_bubble(Prediction *p) {
    for (int i = 0; i < p->pipelines; i++) {
        Simulation f;
        timeline_figures(&p->planned[i], &f);
        for (int r = 0; r < f.ranks && p->seconds > 0; r++)
            p->bubble = fmax(p->bubble, 1 - f.rank[r].busy / MS / p->seconds);
        simulation_free(&f);
    }
}

/* All pipelines share one latency, since they share the links. */
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

/* schedule_check finds traces that are not a pipeline (a cell twice, a stage on two ranks) before anything is
 * simulated. */
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

/* Appends both figures and their difference as one line, for the log and the report. */
void timing_sentence(const Prediction *p, const StepFigures *measured, Text *out) {
    text_printf(
        out, "predicted %.4g s, measured %.4g s (%+.1f %%), bubble predicted %.1f %%, measured %.1f %%",
        p->seconds, measured->seconds, p->seconds > 0 ? 100 * (measured->seconds / p->seconds - 1) : 0,
        100 * p->bubble, 100 * measured->bubble);
}
