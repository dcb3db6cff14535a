/* Loss spikes, found by robust statistics. A value is a spike if it is far above two things: the median of a
 * window, in units of the median absolute deviation (scaled to a standard deviation for normal values); and
 * the last few values, in units of their step-to-step differences, so that a trend is not a spike.
 *
 *  1. A non-finite value never enters the window, so it can neither blind the statistic nor trip it later.
 *  2. The statistic is recomputed over the stored window each time: no running sums that an outlier could
 *     poison.
 *  3. The window is state of the run: it is saved in checkpoints, and a resumed run judges as an
 *     uninterrupted one. */
#ifndef WEFT_OBSERVE_SPIKE_H
#define WEFT_OBSERVE_SPIKE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

#define SPIKE_WINDOW 128
#define SPIKE_MINIMUM 32 /* nothing is a spike below this many values */

typedef struct SpikeWindow {
    double values[SPIKE_WINDOW]; /* a ring */
    size_t count, next;
} SpikeWindow;

/* Signed deviation of a value from the window; 0 while the window has fewer than SPIKE_MINIMUM values, NaN
 * for a NaN, infinite for an infinity. */
double spike_deviation(const SpikeWindow *w, double value);
/* Whether the value is far above the window and its last values. A non-finite value always is; a limit of 0
 * disables the test for finite ones. Low values are never spikes: the loss is supposed to fall. */
bool spike_detect(const SpikeWindow *w, double value, double limit);
void spike_add(SpikeWindow *w, double value); /* ignores non-finite values */

/* The window as an array, oldest first, for checkpoints; returns the count. Loading refuses too many or
 * non-finite values with an error. */
size_t spike_save(const SpikeWindow *w, double out[SPIKE_WINDOW]);
ErrorCode spike_load(SpikeWindow *w, const double *values, size_t count, Error *err);

#endif
