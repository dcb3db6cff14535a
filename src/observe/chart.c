/* Curves as SVG inside an HTML page: axes, ticks, smoothed lines, marks; visible without scripts.
 *
 *  C1. Everything drawn lies inside LEFT, TOP, RIGHT, BOTTOM; the page's script finds the same box, and the
 *      values at its edges, in data-box, data-x and data-y.
 *  C2. The size of a drawing does not grow with the run: a column of pixels takes at most two points.
 *  C3. Text from a run goes through html_puts; numbers are formatted here. */
#include "observe/chart.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Pixels of the margins: space for tick labels on the left and below, and for half a label on the right. */
#define LEFT 58
#define RIGHT 14
#define TOP 14
#define BOTTOM 30
#define MAX_TICKS 64

/* A mapping of values to pixels. */
typedef struct Axis {
    double low, high; /* values at the ends */
    double from, to;  /* pixels at the ends */
    bool log;
} Axis;

void html_puts(Text *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        switch (c) {
        case '&': text_puts(out, "&amp;"); break;
        case '<': text_puts(out, "&lt;"); break;
        case '>': text_puts(out, "&gt;"); break;
        case '"': text_puts(out, "&quot;"); break;
        case '\'': text_puts(out, "&#39;"); break;
        /* Control bytes are not allowed in HTML, escaped or not. */
        default: text_add(out, c < 0x20 && c != '\n' && c != '\t' ? " " : text, 1);
        }
    }
}

/* ---- numbers ---- */

/* Steps of 1, 2, 5 times a power of ten, nearest to `wanted` ticks (Heckbert, "Nice numbers for graph
 * labels", 1990). The small tolerance keeps ticks that rounding has put just outside. */
size_t chart_ticks(double low, double high, int wanted, double *out, size_t max, double *step) {
    double raw = (high - low) / wanted;
    *step = 0;
    if (!(raw >= DBL_MIN) || !isfinite(raw)) return 0; /* below it powers of ten underflow to 0 */
    double power = pow(10, floor(log10(raw))), part = raw / power;
    *step = power * (part <= 1.4 ? 1 : part <= 3 ? 2 : part <= 7 ? 5 : 10);
    double first = ceil(low / *step - 1e-9), last = floor(high / *step + 1e-9);
    size_t n = 0;
    for (double i = first; i <= last && n < max; i++) out[n++] = i * *step + 0.0; /* + 0.0: never -0 */
    return n;
}

/* One pass of a bias-corrected exponential moving average; adds half of it to out. */
static void half_smooth(const double *y, size_t count, double keep, bool backward, double *out) {
    double sum = 0, weight = 0;
    for (size_t n = 0; n < count; n++) {
        size_t i = backward ? count - 1 - n : n;
        if (!isfinite(y[i])) continue;
        sum = keep * sum + (1 - keep) * y[i];
        weight = keep * weight + (1 - keep);
        out[i] += 0.5 * sum / weight;
    }
}

/* The mean of a forward and a backward average, so that the curve is not shifted to the right as by a plain
 * moving average. Non-finite values stay gaps. */
void chart_smooth(const double *y, size_t count, double span, double *out) {
    double keep = 1 - 2 / (fmax(span, 1) + 1);
    for (size_t i = 0; i < count; i++) out[i] = isfinite(y[i]) ? 0 : y[i];
    half_smooth(y, count, keep, false, out);
    half_smooth(y, count, keep, true, out);
}

/* The mapping is affine in the value or its logarithm. `from` may be greater than `to`, since pixels count
 * downwards. */
static double at(const Axis *a, double value) {
    double low = a->low, high = a->high;
    if (a->log) {
        low = log10(low);
        high = log10(high);
        value = log10(value);
    }
    return a->from + (value - low) / (high - low) * (a->to - a->from);
}

/* A logarithmic axis has no zero; such points are gaps. */
static bool drawable(const Axis *y, double value) { return isfinite(value) && (!y->log || value > 0); }

/* As many decimals as the distance of ticks needs; thousands as k, M, G, the same for all labels up to
 * `largest`. */
static void tick_label(Text *out, double value, double step, double largest) {
    static const char *const suffix[] = {"", "k", "M", "G", "T"};
    int thousands = 0;
    if (largest >= 10000) thousands = (int)fmin(floor(log10(largest) / 3 + 1e-9), 4);
    value /= pow(1000, thousands);
    step /= pow(1000, thousands);
    if (value != 0 && step < 1e-4) {
        text_printf(out, "%.*e", step < 0.99 * pow(10, floor(log10(fabs(value)) + 1e-9)) ? 1 : 0, value);
        return;
    }
    int decimals = (int)ceil(-log10(step) - 1e-9);
    text_printf(out, "%.*f%s", decimals < 0 ? 0 : decimals, value, value != 0 ? suffix[thousands] : "");
}

/* ---- ranges ---- */

static void include(Axis *a, double value, bool *any) {
    if (!drawable(a, value)) return;
    a->low = *any ? fmin(a->low, value) : value;
    a->high = *any ? fmax(a->high, value) : value;
    *any = true;
}

/* The range of all series plus a margin; false if there is nothing to draw. 6% of margin, so that no curve
 * runs along the frame; a flat curve gets an artificial range, which avoids a division by zero. */
static bool fit_axis(const Chart *c, Axis *a) {
    bool any = false;
    for (size_t s = 0; s < c->series_count; s++) {
        for (size_t i = 0; i < c->series[s].count; i++) include(a, c->series[s].y[i], &any);
    }
    if (!any) return false;
    if (a->log) {
        double air = pow(a->high / a->low, 0.05);
        if (!(air > 1.001)) air = 1.05;
        a->low /= air;
        a->high *= air;
        return isfinite(a->high) && a->low > 0;
    }
    if (c->from_zero) a->low = fmin(a->low, 0);
    double air = 0.06 * (a->high - a->low);
    if (!(air > 0)) air = fmax(fabs(a->high) * 0.05, 1e-12);
    if (!c->from_zero || a->low < 0) a->low -= air;
    a->high += air;
    return isfinite(a->high - a->low);
}

/* Ticks of a logarithmic axis: round numbers for less than a decade, 1-2-5 for a few, powers of ten
 * beyond. */
static size_t log_ticks(const Axis *a, double *out, double *step) {
    double decades = log10(a->high / a->low);
    *step = 0;
    if (decades < 1) return chart_ticks(a->low, a->high, 8, out, MAX_TICKS, step);
    static const double parts[] = {1, 2, 5};
    size_t n = 0;
    /* At most seven powers of ten are labelled. */
    double stride = fmax(1, ceil(decades / 7));
    for (double e = floor(log10(a->low)); e <= log10(a->high); e += stride) {
        for (int i = 0; i < (decades < 3 ? 3 : 1) && n < MAX_TICKS; i++) {
            double value = parts[i] * pow(10, e);
            if (value >= a->low && value <= a->high) out[n++] = value;
        }
    }
    return n;
}

/* ---- drawing ---- */

static void write_y_axis(Text *out, const Chart *c, const Axis *y) {
    double ticks[MAX_TICKS], step;
    size_t n = y->log ? log_ticks(y, ticks, &step)
                      : chart_ticks(y->low, y->high, c->height / 50, ticks, MAX_TICKS, &step);
    for (size_t i = 0; i < n; i++) {
        double py = at(y, ticks[i]);
        text_printf(out,
                    "<path class=\"grid\" d=\"M%d %.1fH%d\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">",
                    LEFT, py, c->width - RIGHT, LEFT - 8, py + 4);
        tick_label(out, ticks[i], step > 0 ? step : pow(10, floor(log10(ticks[i]) + 1e-9)),
                   step > 0 ? ticks[n - 1] : ticks[i]);
        text_puts(out, "</text>\n");
    }
}

static void write_x_axis(Text *out, const Chart *c, const Axis *x) {
    double ticks[MAX_TICKS], step;
    size_t n = chart_ticks(x->low, x->high, c->width / 110, ticks, MAX_TICKS, &step);
    int bottom = c->height - BOTTOM;
    text_printf(out, "<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, bottom, c->width - RIGHT);
    for (size_t i = 0; i < n; i++) {
        if (ticks[i] != floor(ticks[i])) continue; /* half steps do not exist */
        double px = at(x, ticks[i]);
        text_printf(out,
                    "<path class=\"axis\" d=\"M%.1f %dv4\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"%s\">",
                    px, bottom, px, bottom + 18, px > c->width - RIGHT - 16 ? "end" : "middle");
        tick_label(out, ticks[i], step, ticks[n - 1]);
        text_puts(out, "</text>\n");
    }
}

/* `down`: the path continues with a line from the last point; otherwise with a move. */
typedef struct Pen {
    Text *out;
    const Axis *x, *y;
    bool down;
} Pen;

static void pen_point(Pen *p, double x, double y) {
    text_printf(p->out, "%s%.1f %.1f", p->down ? "L" : "M", at(p->x, x), at(p->y, y));
    p->down = true;
}

/* One column of pixels, points [from, to): draws its minimum and maximum in their order; a gap lifts the
 * pen. */
static void pen_column(Pen *p, const double *x, const double *y, size_t from, size_t to) {
    size_t least = to, most = to;
    bool gap = false;
    for (size_t i = from; i < to; i++) {
        if (!drawable(p->y, y[i])) {
            gap = true;
            continue;
        }
        if (least == to || y[i] < y[least]) least = i;
        if (most == to || y[i] > y[most]) most = i;
    }
    if (least != to) {
        size_t first = least < most ? least : most, second = least < most ? most : least;
        pen_point(p, x[first], y[first]);
        if (second != first) pen_point(p, x[second], y[second]);
    }
    if (gap) p->down = false;
}

/* Points of one column of pixels are merged: of ten thousand steps no more is visible. */
static void write_line(Text *out, const char *kind, const ChartSeries *s, const double *values, const Axis *x,
                       const Axis *y) {
    Pen pen = {out, x, y, false};
    text_printf(out, "<path class=\"%s %s\" d=\"", kind, s->style);
    for (size_t i = 0; i < s->count;) {
        size_t next = i + 1;
        double column = floor(at(x, s->x[i]));
        /* Steps ascend, so the points of a column are contiguous. */
        while (next < s->count && floor(at(x, s->x[next])) <= column) next++;
        pen_column(&pen, s->x, values, i, next);
        i = next;
    }
    text_puts(out, "\"/>\n");
}

/* For series of few points, whose steps a line alone does not show. */
static void write_dots(Text *out, const ChartSeries *s, const Axis *x, const Axis *y) {
    for (size_t i = 0; i < s->count; i++) {
        if (!drawable(y, s->y[i])) continue;
        text_printf(out, "<circle class=\"dot %s\" cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>\n", s->style,
                    at(x, s->x[i]), at(y, s->y[i]));
    }
}

/* The average spans a fiftieth of the points: enough to suppress noise, while bends stay visible. */
static void write_series(Text *out, const ChartSeries *s, const Axis *x, const Axis *y) {
    double span = (double)s->count / 50;
    bool smooth = s->smooth && span > 1.5;
    write_line(out, smooth ? "raw" : "line", s, s->y, x, y);
    if (smooth) {
        double *average = mem_alloc_array(s->count, sizeof *average);
        chart_smooth(s->y, s->count, span, average);
        write_line(out, "line", s, average, x, y);
        free(average);
    }
    /* More dots would merge into a line. */
    if (s->dots && s->count <= 200) write_dots(out, s, x, y);
}

/* Marks closer than a pixel to the previous one are merged with it. */
static void write_marks(Text *out, const Chart *c, const Axis *x) {
    double before = -1;
    for (size_t i = 0; i < c->mark_count; i++) {
        const ChartMark *m = &c->marks[i];
        double px = at(x, m->x);
        if (px < LEFT - 1 || px > c->width - RIGHT + 1 || px - before < 1) continue;
        text_printf(out,
                    "<g class=\"mark %s\"><path d=\"M%.1f %dV%d\"/><path class=\"flag\" d=\"M%.1f %dl-5 "
                    "-8h10z\"/><title>",
                    m->style, px, TOP, c->height - BOTTOM, px, TOP);
        html_puts(out, m->label);
        text_puts(out, "</title></g>\n");
        before = px;
    }
}

/* A run with one step has an empty range: it gets one of length 1. */
static void write_svg(Text *out, const Chart *c, bool log) {
    Axis x = {c->x_low, c->x_high, LEFT, c->width - RIGHT, false}, y = {0, 0, c->height - BOTTOM, TOP, log};
    if (!(x.high > x.low)) x.high = x.low + 1;
    if (!fit_axis(c, &y)) {
        text_printf(out, "<p class=\"empty plot %s\">Nothing to draw yet.</p>\n", log ? "log" : "lin");
        return;
    }
    text_printf(out, "<svg class=\"plot %s\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
                log ? "log" : "lin", c->width, c->height);
    html_puts(out, c->title);
    text_printf(out,
                " by step, %s axis\" data-chart=\"%s\" data-box=\"%d %d %d %d\" data-x=\"%.17g %.17g\" "
                "data-y=\"%.17g %.17g\" data-log=\"%d\">\n",
                log ? "logarithmic" : "linear", c->id, LEFT, TOP, c->width - RIGHT, c->height - BOTTOM, x.low,
                x.high, y.low, y.high, log);
    write_y_axis(out, c, &y);
    write_x_axis(out, c, &x);
    write_marks(out, c, &x);
    for (size_t s = 0; s < c->series_count; s++) write_series(out, &c->series[s], &x, &y);
    text_puts(out, "<path class=\"hair\"/></svg>\n");
}

/* The page contains a linear and a logarithmic drawing; radio buttons and CSS select one, so that no script
 * is needed. */
static void write_switch(Text *out, const Chart *c, const char *scale, const char *name, bool checked) {
    text_printf(out,
                "<input type=\"radio\" name=\"y-%s\" id=\"%s-%s\" class=\"to-%s\"%s><label "
                "for=\"%s-%s\">%s</label>\n",
                c->id, c->id, scale, scale, checked ? " checked" : "", c->id, scale, name);
}

static void write_caption(Text *out, const Chart *c) {
    text_puts(out, "<figcaption><b>");
    html_puts(out, c->title);
    text_puts(out, "</b>");
    if (c->unit) {
        text_puts(out, " <span class=\"unit\">");
        html_puts(out, c->unit);
        text_puts(out, "</span>");
    }
    for (size_t s = 0; c->series_count > 1 && s < c->series_count; s++) {
        if (!c->series[s].name) continue;
        text_printf(out, " <span class=\"key\"><i class=\"%s\"></i>", c->series[s].style);
        html_puts(out, c->series[s].name);
        text_puts(out, "</span>");
    }
    if (c->dots) {
        text_puts(out, " <span class=\"note\"><i class=\"dot\"></i>");
        html_puts(out, c->dots);
        text_puts(out, "</span>");
    }
    text_puts(out, "</figcaption>\n");
}

/* The style sheet's sibling selectors require this order: the switches come before both drawings, so that a
 * checked one can hide the other (.to-lin:checked~.log). */
void chart_write(Text *out, const Chart *c) {
    text_printf(out, "<figure id=\"%s\">\n", c->id);
    write_caption(out, c);
    text_puts(out, "<output></output>\n");
    if (c->offer_log) {
        write_switch(out, c, "lin", "linear", !c->start_log);
        write_switch(out, c, "log", "log", c->start_log);
    }
    write_svg(out, c, false);
    if (c->offer_log) write_svg(out, c, true);
    text_puts(out, "</figure>\n");
}
