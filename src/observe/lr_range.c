/* Four marks on the curve of loss over learning rate. They are taken from the smoothed curve, since single
 * losses vary more than a step of the learning rate changes them. */
#include "observe/lr_range.h"

#include <math.h>
#include <stdlib.h>

#include "observe/chart.h"

/* Fractions of the total fall that count as having fallen, and as having risen again; fraction of the first
 * loss below which there is no fall. */
static const double FALLEN = 0.05, RISEN = 0.1, NOTHING = 0.01;

typedef struct Curve {
    const StepMetrics *steps;
    double *loss; /* [count] smoothed */
    size_t count, window, lowest;
} Curve;

/* Losses above the first one, or non-finite, are clamped to it: an exploding loss would distort a large part
 * of the smoothed curve. */
static void smooth(Curve *c, const MetricsTable *t) {
    double *raw = mem_alloc_array(t->step_count, sizeof *raw), first = t->steps[0].loss;
    for (size_t i = 0; i < t->step_count; i++) raw[i] = fmin(t->steps[i].loss, first);
    *c = (Curve){.steps = t->steps, .count = t->step_count, .window = t->step_count / 20 + 1};
    c->loss = mem_alloc_array(c->count, sizeof *c->loss);
    chart_smooth(raw, c->count, (double)c->window, c->loss);
    for (size_t i = 1; i < c->count; i++)
        if (c->loss[i] < c->loss[c->lowest]) c->lowest = i;
    free(raw);
}

/* The step after the last one that had not fallen yet. */
static size_t find_fall(const Curve *c, double fallen) {
    size_t i = c->lowest;
    while (i > 0 && c->loss[i - 1] <= fallen) i--;
    return i;
}

static size_t find_steepest(const Curve *c) {
    size_t best = c->lowest, w = c->window;
    double most = 0;
    for (size_t i = w; i + w < c->count && i <= c->lowest; i++) {
        double fall = c->loss[i - w] - c->loss[i + w];
        if (fall > most) most = fall, best = i;
    }
    return best;
}

static double find_rise(const Curve *c, double risen) {
    for (size_t i = c->lowest; i < c->count; i++)
        if (c->loss[i] >= risen) return c->steps[i].lr;
    return (double)NAN;
}

LrRange lr_range_find(const MetricsTable *t) {
    Curve c;
    LrRange r = {.rises = (double)NAN};
    if (t->step_count < LR_RANGE_MINIMUM || !isfinite(t->steps[0].loss)) return r;
    smooth(&c, t);
    double start = c.loss[0], low = c.loss[c.lowest], fall = start - low;
    if (fall > NOTHING * start) {
        r.known = true;
        r.falls = c.steps[find_fall(&c, start - FALLEN * fall)].lr;
        r.steepest = c.steps[find_steepest(&c)].lr;
        r.lowest = c.steps[c.lowest].lr;
        r.rises = find_rise(&c, low + RISEN * fall);
    }
    free(c.loss);
    return r;
}

void lr_range_describe(const LrRange *r, Text *out) {
    if (!r->known) {
        text_printf(out, "no suggestion: fewer than %d logged steps, or the loss did not fall",
                    LR_RANGE_MINIMUM);
        return;
    }
    text_printf(out, "the loss falls from %.2g on, fastest near %.2g, and is lowest at %.2g", r->falls,
                r->steepest, r->lowest);
    if (isfinite(r->rises))
        text_printf(out, "; it has risen again at %.2g", r->rises);
    else
        text_puts(out, "; the test ended before it rose: a larger optimizer.lr shows where it does");
}
