/* Spikes: values that exceed the median of the last SPIKE_WINDOW values by more than a given number of robust
 * deviations (median absolute deviation, scaled to the standard deviation of a normal variable; Hampel,
 * 1974), and that also exceed the last SPIKE_RECENT values by as much.
 *
 *  S1. A spike enters the window like any value: a level that lasts becomes the new normal. Non-finite values
 *      never enter.
 *  S2. With fewer than SPIKE_MINIMUM values nothing is a spike: the first steps of a run fall steeply.
 *  S3. A trend is no spike. During warm-up, losses first stay nearly constant and then fall, and gradient
 *      norms rise: far from the median of earlier values, but never far from the most recent ones. */
#include "observe/spike.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A standard normal variable's median absolute deviation is 1/1.4826. */
#define MAD_TO_SIGMA 1.4826
/* If values hardly differ, a small change must not count as a spike: the scale is at least this fraction of
 * the median. */
#define RELATIVE_FLOOR 5e-3
enum { SPIKE_RECENT = 8 }; /* values that a spike must stand out from */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Halves are taken before the sum, so that it cannot overflow. */
static double median(double *values, size_t count) {
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : values[count / 2 - 1] / 2 + values[count / 2] / 2;
}

/* Never 0, so that it can be a divisor. */
static double scale_of(double deviation, double centre) {
    return fmax(fmax(MAD_TO_SIGMA * deviation, RELATIVE_FLOOR * fabs(centre)), DBL_MIN);
}

/* (value - median) / (1.4826 * MAD); a non-finite value is returned itself. Median rather than mean: one
 * outlier among fifty values changes a mean and its deviation so much that the next outlier is missed. */
double spike_deviation(const SpikeWindow *w, double value) {
    if (!isfinite(value)) return value;
    if (w->count < SPIKE_MINIMUM) return 0;
    /* On the stack: this runs in every step, where nothing is allocated. */
    double sorted[SPIKE_WINDOW];
    memcpy(sorted, w->values, w->count * sizeof *sorted);
    double centre = median(sorted, w->count);
    for (size_t i = 0; i < w->count; i++) sorted[i] = fabs(w->values[i] - centre);
    return (value - centre) / scale_of(median(sorted, w->count), centre);
}

/* How far the value exceeds the last few values, relative to the differences between consecutive ones: along
 * a trend both are similar. Requires a window with at least SPIKE_RECENT values. */
static double leap(const SpikeWindow *w, double value) {
    double recent[SPIKE_RECENT], steps[SPIKE_RECENT - 1];
    for (size_t i = 0; i < SPIKE_RECENT; i++)
        recent[i] = w->values[(w->next + SPIKE_WINDOW - SPIKE_RECENT + i) % SPIKE_WINDOW];
    for (size_t i = 1; i < SPIKE_RECENT; i++) steps[i - 1] = fabs(recent[i] - recent[i - 1]);
    double centre = median(recent, SPIKE_RECENT);
    return (value - centre) / scale_of(median(steps, SPIKE_RECENT - 1), centre);
}

/* A limit of 0 disables it, except for non-finite values. */
bool spike_detect(const SpikeWindow *w, double value, double limit) {
    if (!isfinite(value)) return true;
    return limit > 0 && spike_deviation(w, value) > limit && leap(w, value) > limit;
}

void spike_add(SpikeWindow *w, double value) {
    if (!isfinite(value)) return;
    w->values[w->next] = value;
    w->next = (w->next + 1) % SPIKE_WINDOW;
    if (w->count < SPIKE_WINDOW) w->count++;
}

/* Oldest first, so that loading adds them in the same order and restores the ring. */
size_t spike_save(const SpikeWindow *w, double out[SPIKE_WINDOW]) {
    size_t oldest = w->count < SPIKE_WINDOW ? 0 : w->next;
    for (size_t i = 0; i < w->count; i++) out[i] = w->values[(oldest + i) % SPIKE_WINDOW];
    return w->count;
}

ErrorCode spike_load(SpikeWindow *w, const double *values, size_t count, Error *err) {
    *w = (SpikeWindow){0};
    if (count > SPIKE_WINDOW) {
        return error_set(err, ERR_DATA, "spike window: %zu values found, at most %d expected", count,
                         SPIKE_WINDOW);
    }
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) return error_set(err, ERR_DATA, "spike window: value %zu is not finite", i);
    }
    for (size_t i = 0; i < count; i++) spike_add(w, values[i]);
    return OK;
}
