/* Progress of long work: a bar on a terminal, a plain line now and then elsewhere.
 *
 * Any thread may advance a bar: all fields but those set by progress_start change under the mutex. The thread
 * that advances it also draws, at most ten times a second, so no extra thread is needed. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

/* A faster redraw would not be visible; plain lines are rare, so that a log file stays small. */
#define REDRAW_SECONDS 0.1
#define PLAIN_SECONDS 10.0

/* A total of 0 is unknown: then there is no percentage, no bar and no remaining time. */
struct Progress {
    pthread_mutex_t mutex;
    char *label, *unit;
    double total, done;
    double started, shown; /* seconds on the monotonic clock; the last time anything was shown */
};

/* A terminal shows the bar at once; a log gets its first line only if the work takes long. */
Progress *progress_start(const char *label, double total, const char *unit) {
    Progress *p = mem_alloc(sizeof *p);
    pthread_mutex_init(&p->mutex, NULL);
    Text shown = {0};
    text_add_shown(&shown, label, strlen(label), 0); /* a path may be part of it */
    p->label = shown.data ? shown.data : mem_strdup("");
    p->unit = mem_strdup(unit);
    p->total = total;
    p->started = clock_seconds();
    p->shown = log_is_terminal() ? p->started - REDRAW_SECONDS : p->started;
    return p;
}

/* Integers with separators from a thousand on, one decimal below. */
static const char *amount(double value, char out[32]) {
    /* Beyond 2^53, and for NaN, there is no integer to separate. */
    if (!(fabs(value) < 9e15)) return text_double(value, out);
    if (fabs(value) >= 1000 || value == floor(value)) return text_count((int64_t)llround(value), out);
    Text t = {0};
    text_printf(&t, "%.1f", value);
    memcpy(out, t.data, t.length + 1);
    text_free(&t);
    return out;
}

/* What was counted may be taken back, and more: a transfer begins again, of which a part was there at the
 * start. Less than a byte, of megabytes, is a rounding error. */
static double amount_done(const Progress *p) { return p->done > 1e-7 ? p->done : 0; }

/* "label [=====>    ]  43%  12.3 / 28.6 MB  4.1 MB/s  3.9s left"; without the bar if not on a terminal. */
static void describe(const Progress *p, double now, bool bar, Text *out) {
    char done[32], total[32], rate[32], left[16];
    double count = amount_done(p), seconds = now - p->started, speed = seconds > 0 ? count / seconds : 0;
    double share = p->total > 0 ? fmin(count / p->total, 1) : 0;
    text_puts(out, p->label);
    if (bar && p->total > 0) {
        enum { CELLS = 24 };
        int full = (int)(share * CELLS);
        text_puts(out, " [");
        for (int i = 0; i < CELLS; i++) text_puts(out, i < full ? "=" : i == full ? ">" : " ");
        text_puts(out, "]");
    } else {
        text_puts(out, ":");
    }
    if (p->total > 0)
        text_printf(out, " %3.0f%%  %s / %s %s", share * 100, amount(count, done), amount(p->total, total),
                    p->unit);
    else
        text_printf(out, " %s %s", amount(count, done), p->unit);
    text_printf(out, "  %s %s/s", amount(speed, rate), p->unit);
    if (p->total > count && speed > 0)
        text_printf(out, "  %s left", clock_duration((p->total - count) / speed, left));
}

/* The caller holds the mutex. */
static void show(Progress *p) {
    double now = clock_seconds();
    bool terminal = log_is_terminal();
    if (now - p->shown < (terminal ? REDRAW_SECONDS : PLAIN_SECONDS)) return;
    p->shown = now;
    Text line = {0};
    describe(p, now, terminal, &line);
    if (terminal)
        log_status("%s", line.data);
    else
        log_info("%s", line.data);
    text_free(&line);
}

/* The watchdog of multi-rank runs reads it (comm/failure.c): a rank that progresses, however slowly, does not
 * hang. Relaxed, since it orders no other data. */
static atomic_ullong beats, unheard;
static _Thread_local atomic_ullong *counter = &beats;

void progress_beat(void) { atomic_fetch_add_explicit(counter, 1, memory_order_relaxed); }
uint64_t progress_beats(void) { return atomic_load_explicit(&beats, memory_order_relaxed); }
void progress_apart(atomic_ullong *count) { counter = count ? count : &unheard; }

/* Counts progress also without a bar (NULL), for the watchdog. */
void progress_set(Progress *p, double done) {
    progress_beat();
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->done = done;
    show(p);
    pthread_mutex_unlock(&p->mutex);
}

void progress_add(Progress *p, double more) {
    progress_beat();
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->done += more;
    show(p);
    pthread_mutex_unlock(&p->mutex);
}

/* The closing line is always printed, so that logs have it. */
void progress_finish(Progress *p) {
    if (!p) return;
    char done[32], rate[32], took[16];
    double count = amount_done(p), seconds = clock_seconds() - p->started;
    log_status("%s", "");
    log_info("%s: %s %s in %s (%s %s/s)", p->label, amount(count, done), p->unit,
             clock_duration(seconds, took), amount(seconds > 0 ? count / seconds : 0, rate), p->unit);
    pthread_mutex_destroy(&p->mutex);
    free(p->label);
    free(p->unit);
    free(p);
}
