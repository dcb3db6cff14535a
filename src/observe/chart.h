/* Line charts as inline SVG, for pages that must stand alone: no scripts or fonts from elsewhere, colours by
 * CSS classes of the page (series s1, s2, ...). A chart costs bytes by its pixels, not by its points: a
 * column of pixels keeps its least and its greatest value, so that a spike of one step in a million stays
 * visible. */
#ifndef WEFT_OBSERVE_CHART_H
#define WEFT_OBSERVE_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

typedef struct ChartSeries {
    const char *name;    /* NULL: not in the key */
    const char *style;   /* CSS class: "s1" */
    const double *x, *y; /* x ascends; points with y not finite are gaps */
    size_t count;
    bool smooth; /* a moving average over the raw line, which is then faint */
    bool dots;   /* few points: each gets a dot */
} ChartSeries;

/* Something that happened: a tick at the top of the chart with a name to hover. */
typedef struct ChartMark {
    double x;
    const char *style; /* CSS class: "skipped", "spike" */
    const char *label;
} ChartMark;

typedef struct Chart {
    const char *id, *title, *unit; /* id: letters only */
    const char *dots;              /* what lines with dots are, beside others without; NULL: not said */
    const ChartSeries *series;
    size_t series_count;
    const ChartMark *marks;
    size_t mark_count;
    double x_low, x_high;
    bool from_zero; /* the linear axis begins at 0 */
    bool offer_log; /* a switch between linear and logarithmic */
    bool start_log;
    int width, height; /* in CSS pixels at full size */
} Chart;

/* Adds a <figure>. A chart without a finite point says so. */
void chart_write(Text *out, const Chart *c);

/* Text for HTML, attributes included. */
void html_puts(Text *out, const char *text);

/* Up to `max` round positions covering [low, high] from inside; returns how many, and their distance. */
size_t chart_ticks(double low, double high, int wanted, double *out, size_t max, double *step);
/* Exponential moving averages from both ends, bias-corrected, and the mean of the two: it does not lag behind
 * a falling curve. Non-finite values stay as they are and are passed over. */
void chart_smooth(const double *y, size_t count, double span, double *out);

#endif
