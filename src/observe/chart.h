/* Line charts as inline SVG for self-contained pages: no external scripts or fonts, colours by CSS classes of
 * the page (series s1, s2, ...). A chart's size depends on its pixels, not its points: each column of pixels
 * keeps its minimum and maximum, so that a spike of one step in a million stays visible. */
#ifndef WEFT_OBSERVE_CHART_H
#define WEFT_OBSERVE_CHART_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

typedef struct ChartSeries {
    const char *name;    /* NULL: not in the legend */
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
    const char *dots;              /* legend of lines with dots among others without; NULL: none */
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

/* Appends a <figure>. A chart without a finite point says so in its place. */
void chart_write(Text *out, const Chart *c);

/* Appends text escaped for HTML, also within attributes. */
void html_puts(Text *out, const char *text);

/* Writes up to `max` round positions inside [low, high]; returns their number, and their spacing in *step. */
size_t chart_ticks(double low, double high, int wanted, double *out, size_t max, double *step);
/* The mean of bias-corrected exponential moving averages from both ends, so that it does not lag behind a
 * falling curve. Non-finite values are kept and skipped. */
void chart_smooth(const double *y, size_t count, double span, double *out);

#endif
