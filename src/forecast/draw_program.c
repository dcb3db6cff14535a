/* Places the collectives of a program on the times of the schedule from which it was lowered.
 *
 * A gather or a reduction has no duration here. Its span is the window that the program gives it, from its
 * start to where it is waited for. A collective that takes no longer than its window costs nothing. An empty
 * window leaves no span, and its collective is waited for in full. */
#include <math.h>
#include <stdlib.h>

#include "forecast/draw.h"
#include "program/program.h"
#include "schedule/schedule_internal.h"

#define CLOSED (-1.0)

typedef struct Walk {
    Timeline *t;
    const Program *p;
    const Order *order;
    const CellTime *times; /* [cells of the order] */
    const StageCost *units;
    int pipe_rank, cell, done; /* done: passes of that cell so far */
    double spent, now;         /* cost of those passes; end of the last pass */
    double *gather, *sum;      /* [units + 1] when it was started, or CLOSED */
} Walk;

static double unit_cost(const Walk *w, const Cell *cell, int unit) {
    int segment = program_segment(w->p, cell->microbatch);
    return stage_cost_of(&w->units[segment * w->p->units + unit], cell->kind);
}

static double cell_cost(const Walk *w, const Cell *cell) {
    const int *first = w->p->partition->stages.first;
    double sum = 0;
    for (int u = first[cell->stage]; u < first[cell->stage + 1]; u++) sum += unit_cost(w, cell, u);
    return sum;
}

/* The times of the next pass, which has a part of its cell. */
static CellTime pass_time(Walk *w, int unit) {
    const int *first = w->p->partition->stages.first;
    while (!cell_is_compute(w->order->cells[w->cell].kind)) w->cell++;
    const Cell *cell = &w->order->cells[w->cell];
    CellTime whole = w->times[w->cell];
    double all = cell_cost(w, cell), own = unit_cost(w, cell, unit);
    double scale = all > 0 ? (whole.end - whole.start) / all : 0;
    CellTime time = {whole.start + w->spent * scale, whole.start + (w->spent + own) * scale};
    w->spent += own;
    if (++w->done == first[cell->stage + 1] - first[cell->stage]) w->cell++, w->done = 0, w->spent = 0;
    return time;
}

/* The tied head's gradient has no stage and is drawn with the head. */
static void close_window(Walk *w, SpanKind kind, int unit, int microbatch, double *open, double end) {
    int last = w->p->units - 1, stage = stages_of_unit(&w->p->partition->stages, unit > last ? last : unit);
    if (*open >= 0 && end > *open)
        timeline_add(w->t, (Span){w->pipe_rank, kind, stage, microbatch, *open, end});
    *open = CLOSED;
}

/* A window opens where an action starts a collective, and closes where a pass reads the result or REDUCED
 * waits. */
static void step(Walk *w, Action a) {
    if (action_is_pass(a.kind)) {
        if (!program_begins_unit(w->p, a)) return; /* its first action has the time of the full pass */
        CellTime time = pass_time(w, a.unit);
        close_window(w, SPAN_GATHER, a.unit, -1, &w->gather[a.unit], time.start);
        if (w->p->partition->tied && a.unit == w->p->units - 1)
            close_window(w, SPAN_GATHER, 0, -1, &w->gather[0], time.start);
        w->now = time.end;
    } else if (a.kind == ACT_GATHER) {
        w->gather[a.unit] = w->now;
    } else if (a.kind == ACT_REDUCE_SCATTER || a.kind == ACT_ALL_REDUCE) {
        if (w->sum[a.unit] < 0) w->sum[a.unit] = w->now;
    } else if (a.kind == ACT_REDUCED) {
        close_window(w, SPAN_REDUCE, a.unit, a.microbatch, &w->sum[a.unit], w->now);
    }
}

void timeline_add_collectives(Timeline *t, const Program *p, const Order *order, const CellTime *times,
                              const StageCost *units) {
    size_t n = (size_t)p->units + 1;
    Walk w = {
        .t = t, .p = p, .order = order, .times = times, .units = units, .pipe_rank = p->partition->pipe};
    w.gather = mem_alloc_array(n, sizeof *w.gather), w.sum = mem_alloc_array(n, sizeof *w.sum);
    for (size_t u = 0; u < n; u++) w.gather[u] = w.sum[u] = CLOSED;
    for (int i = 0; i < p->count; i++) step(&w, p->actions[i]);
    free(w.gather);
    free(w.sum);
}
