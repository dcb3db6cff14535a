/* Curves in the terminal: braille dots (two by four per character) if the locale supports them, otherwise a
 * star or the curve's letter. Dots distinguish curves only by colour, so without colour several curves are
 * drawn with letters. */
#include "observe/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LABEL 8 /* characters of an axis label, without the following space */

/* The canvas: rows of dots from the top; dot_x by dot_y of them make a character. */
typedef struct Canvas {
    int columns, rows, dot_x, dot_y; /* size in characters; dots per character */
    bool several, colour;
    unsigned char *dots; /* [rows * dot_y][columns * dot_x]: a bit per curve */
} Canvas;

typedef struct Range {
    double low, high;
} Range;

/* The environment, in setlocale's order of precedence, without the C library's locale: weft never calls
 * setlocale, since numbers must be written with a decimal point. */
bool plot_locale_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strcasestr(value, "UTF-8") != NULL || strcasestr(value, "UTF8") != NULL;
    }
    return false;
}

static unsigned char *dot_at(const Canvas *c, int x, int y) {
    return &c->dots[(size_t)y * (size_t)(c->columns * c->dot_x) + (size_t)x];
}

/* A flat curve runs through the middle. */
static int scale(double value, Range r, int dots) {
    if (!(r.high > r.low)) return (dots - 1) / 2;
    int at = (int)lround((value - r.low) / (r.high - r.low) * (dots - 1));
    return at < 0 ? 0 : at >= dots ? dots - 1 : at;
}

/* A straight line between two dots, including both ends. */
static void draw_line(Canvas *c, unsigned char curve, int x0, int y0, int x1, int y1) {
    int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int i = 0; i <= steps; i++) {
        double t = steps ? (double)i / steps : 0;
        *dot_at(c, (int)lround(x0 + t * (x1 - x0)), (int)lround(y0 + t * (y1 - y0))) |= curve;
    }
}

/* Bits of the braille pattern U+2800, by column and row of the dot, and the curves that are in the character.
 * Dots are numbered like their bits:
 *
 *     1 4
 *     2 5
 *     3 6
 *     7 8 */
static unsigned braille(const Canvas *c, int column, int row, unsigned *curves) {
    static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    unsigned pattern = 0;
    *curves = 0;
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 2; x++) {
            unsigned char dot = *dot_at(c, column * 2 + x, row * 4 + y);
            if (dot) pattern |= bit[y][x];
            *curves |= dot;
        }
    }
    return pattern;
}

/* SGR parameters, readable on dark and on light backgrounds. */
static const char *const colours[PLOT_CURVES] = {"34", "33", "32", "35", "36", "31", "94", "90"};

/* The only curve of a set; -1: none or several. */
static int only_curve(unsigned curves) {
    if (curves == 0 || (curves & (curves - 1)) != 0) return -1;
    int curve = 0;
    while (curves >>= 1) curve++;
    return curve;
}

static void add_coloured(Text *out, const Canvas *c, unsigned curves, const char *text, size_t length) {
    int curve = c->several && c->colour ? only_curve(curves) : -1;
    if (curve >= 0) text_printf(out, "\x1b[%sm", colours[curve]);
    text_add(out, text, length);
    if (curve >= 0) text_puts(out, "\x1b[0m");
}

static void add_cell(Text *out, const Canvas *c, int column, int row) {
    unsigned curves;
    if (c->dot_x == 1) {
        curves = *dot_at(c, column, row);
        int curve = c->several ? only_curve(curves) : -1;
        char letter = curve >= 0 ? (char)('a' + curve) : curves ? '*' : ' ';
        add_coloured(out, c, curves, &letter, 1);
        return;
    }
    unsigned p = braille(c, column, row, &curves);
    if (p == 0)
        text_puts(out, " ");
    else
        add_coloured(out, c, curves, (char[]){(char)0xe2, (char)(0xa0 | p >> 6), (char)(0x80 | (p & 0x3f))},
                     3);
}

void plot_key(Text *out, size_t curve, bool colour) {
    CHECK(curve < PLOT_CURVES);
    if (colour)
        text_printf(out, "\x1b[%sm%c\x1b[0m", colours[curve], (int)('a' + curve));
    else
        text_printf(out, "%c", (int)('a' + curve));
}

/* Eight characters fit every value in one of the two forms. */
static void label(char out[32], double value) {
    snprintf(out, 32, "%.*f", fabs(value) < 10 ? 3 : fabs(value) < 1000 ? 1 : 0, value);
    if (strlen(out) > LABEL || (value != 0 && fabs(value) < 1e-2)) snprintf(out, 32, "%.1e", value);
}

static void add_rows(Text *out, const Canvas *c, Range y, bool unicode) {
    for (int row = 0; row < c->rows; row++) {
        /* labels at the top, the bottom and, if there is space, the middle */
        bool labelled = row == 0 || row == c->rows - 1 || (c->rows >= 5 && row == c->rows / 2);
        char text[32] = "";
        if (labelled) label(text, y.high - (y.high - y.low) * row / (c->rows - 1));
        text_printf(out, "%*s %s", LABEL, text, unicode ? (labelled ? "┤" : "│") : (labelled ? "+" : "|"));
        int last = c->columns - 1; /* no trailing spaces */
        for (int column = 0; column <= last; column++) add_cell(out, c, column, row);
        while (out->data[out->length - 1] == ' ') out->data[--out->length] = '\0';
        text_puts(out, "\n");
    }
}

static void add_foot(Text *out, const Canvas *c, Range x, bool unicode) {
    char first[32], last[32];
    text_printf(out, "%*s %s", LABEL, "", unicode ? "└" : "+");
    for (int i = 0; i < c->columns; i++) text_puts(out, unicode ? "─" : "-");
    snprintf(first, sizeof first, "%.15g", x.low);
    snprintf(last, sizeof last, "%.15g", x.high);
    int gap = c->columns - (int)strlen(first) - (int)strlen(last);
    text_printf(out, "\n%*s%s%*s%s\n", LABEL + 2, "", first, gap > 1 ? gap : 1, "", last);
}

static void draw_curve(Canvas *c, const PlotCurve *p, unsigned char curve, Range rx, Range ry) {
    int width = c->columns * c->dot_x, height = c->rows * c->dot_y, before_x = -1, before_y = -1;
    for (size_t i = 0; i < p->count; i++) {
        if (!isfinite(p->x[i]) || !isfinite(p->y[i])) {
            before_x = -1; /* a gap in the data is a gap in the line */
            continue;
        }
        int at_x = scale(p->x[i], rx, width), at_y = height - 1 - scale(p->y[i], ry, height);
        draw_line(c, curve, before_x < 0 ? at_x : before_x, before_x < 0 ? at_y : before_y, at_x, at_y);
        before_x = at_x;
        before_y = at_y;
    }
}

static void widen(const PlotCurve *p, Range *rx, Range *ry) {
    for (size_t i = 0; i < p->count; i++) {
        if (!isfinite(p->x[i]) || !isfinite(p->y[i])) continue;
        *rx = (Range){fmin(rx->low, p->x[i]), fmax(rx->high, p->x[i])};
        *ry = (Range){fmin(ry->low, p->y[i]), fmax(ry->high, p->y[i])};
    }
}

/* Sizes are clamped to a usable range; infinities and NaNs are gaps. */
void plot_curves(Text *out, const PlotCurve *curves, size_t count, int columns, int rows, bool unicode,
                 bool colour) {
    Range rx = {(double)INFINITY, -(double)INFINITY}, ry = rx;
    CHECK(count <= PLOT_CURVES);
    for (size_t i = 0; i < count; i++) widen(&curves[i], &rx, &ry);
    /* Without finite points nothing is drawn. */
    if (!(rx.low <= rx.high)) return;
    /* Below 20 columns the labels leave no space; 1000 bounds the memory, since the number comes from the
     * command line. */
    columns = columns < 20 ? 20 : columns > 1000 ? 1000 : columns;
    rows = rows < 3 ? 3 : rows > 1000 ? 1000 : rows;
    bool dots = unicode && (count == 1 || colour);
    Canvas c = {columns - LABEL - 2, rows, dots ? 2 : 1, dots ? 4 : 1, count > 1, colour, NULL};
    c.dots = mem_alloc((size_t)(c.columns * c.dot_x) * (size_t)(c.rows * c.dot_y));
    for (size_t i = 0; i < count; i++) draw_curve(&c, &curves[i], (unsigned char)(1u << i), rx, ry);
    add_rows(out, &c, ry, unicode);
    add_foot(out, &c, rx, unicode);
    free(c.dots);
}

void plot_curve(Text *out, const double *x, const double *y, size_t count, int columns, int rows,
                bool unicode) {
    plot_curves(out, &(PlotCurve){x, y, count}, 1, columns, rows, unicode, false);
}
