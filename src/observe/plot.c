/* A curve in the terminal: braille dots (two by four a character) where the locale can show them, else one
 * star a character. */
#include "observe/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define LABEL 8 /* characters of an axis label, the space after it not counted */

/* The canvas: dots in rows from the top; dot_x by dot_y of them make a character. */
typedef struct Canvas {
    int columns, rows, dot_x, dot_y; /* size in characters; dots per character */
    unsigned char *dots;             /* [rows * dot_y][columns * dot_x] */
} Canvas;

typedef struct Range {
    double low, high;
} Range;

bool plot_locale_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char *value = getenv(names[i]);
        if (value && *value) return strcasestr(value, "UTF-8") != NULL || strcasestr(value, "UTF8") != NULL;
    }
    return false;
}

static void set_dot(Canvas *c, int x, int y) {
    c->dots[(size_t)y * (size_t)(c->columns * c->dot_x) + (size_t)x] = 1;
}

/* A flat curve runs through the middle. */
static int scale(double value, Range r, int dots) {
    if (!(r.high > r.low)) return (dots - 1) / 2;
    int at = (int)lround((value - r.low) / (r.high - r.low) * (dots - 1));
    return at < 0 ? 0 : at >= dots ? dots - 1 : at;
}

/* A straight line between two dots, both ends included. */
static void draw_line(Canvas *c, int x0, int y0, int x1, int y1) {
    int steps = abs(x1 - x0) > abs(y1 - y0) ? abs(x1 - x0) : abs(y1 - y0);
    for (int i = 0; i <= steps; i++) {
        double t = steps ? (double)i / steps : 0;
        set_dot(c, (int)lround(x0 + t * (x1 - x0)), (int)lround(y0 + t * (y1 - y0)));
    }
}

/* Bits of the braille pattern U+2800, by column and row of the dot. */
static unsigned braille(const Canvas *c, int column, int row) {
    static const unsigned char bit[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    unsigned pattern = 0;
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 2; x++) {
            size_t at = (size_t)(row * 4 + y) * (size_t)(c->columns * 2) + (size_t)(column * 2 + x);
            if (c->dots[at]) pattern |= bit[y][x];
        }
    }
    return pattern;
}

static void add_cell(Text *out, const Canvas *c, int column, int row) {
    if (c->dot_x == 1) {
        text_puts(out, c->dots[(size_t)row * (size_t)c->columns + (size_t)column] ? "*" : " ");
        return;
    }
    unsigned p = braille(c, column, row);
    if (p == 0)
        text_puts(out, " ");
    else
        text_add(out, (char[]){(char)0xe2, (char)(0xa0 | p >> 6), (char)(0x80 | (p & 0x3f))}, 3);
}

static void label(char out[32], double value) {
    snprintf(out, 32, "%.*f", fabs(value) < 10 ? 3 : fabs(value) < 1000 ? 1 : 0, value);
    if (strlen(out) > LABEL || (value != 0 && fabs(value) < 1e-2)) snprintf(out, 32, "%.1e", value);
}

static void add_rows(Text *out, const Canvas *c, Range y, bool unicode) {
    for (int row = 0; row < c->rows; row++) {
        /* labels at the top, the bottom and, where there is room, the middle */
        bool labelled = row == 0 || row == c->rows - 1 || (c->rows >= 5 && row == c->rows / 2);
        char text[32] = "";
        if (labelled) label(text, y.high - (y.high - y.low) * row / (c->rows - 1));
        text_printf(out, "%*s %s", LABEL, text, unicode ? (labelled ? "┤" : "│") : (labelled ? "+" : "|"));
        int last = c->columns - 1; /* no spaces at the ends of lines */
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

static void draw_curve(Canvas *c, const double *x, const double *y, size_t count, Range rx, Range ry) {
    int width = c->columns * c->dot_x, height = c->rows * c->dot_y, before_x = -1, before_y = -1;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) {
            before_x = -1; /* a gap in the data is a gap in the line */
            continue;
        }
        int at_x = scale(x[i], rx, width), at_y = height - 1 - scale(y[i], ry, height);
        draw_line(c, before_x < 0 ? at_x : before_x, before_x < 0 ? at_y : before_y, at_x, at_y);
        before_x = at_x;
        before_y = at_y;
    }
}

/* Sizes are brought within what can be drawn and read; infinities and NaNs are gaps. */
void plot_curve(Text *out, const double *x, const double *y, size_t count, int columns, int rows,
                bool unicode) {
    Range rx = {(double)INFINITY, -(double)INFINITY}, ry = rx;
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(x[i]) || !isfinite(y[i])) continue;
        rx = (Range){fmin(rx.low, x[i]), fmax(rx.high, x[i])};
        ry = (Range){fmin(ry.low, y[i]), fmax(ry.high, y[i])};
    }
    if (!(rx.low <= rx.high)) return;
    columns = columns < 20 ? 20 : columns > 1000 ? 1000 : columns;
    rows = rows < 3 ? 3 : rows > 1000 ? 1000 : rows;
    Canvas c = {columns - LABEL - 2, rows, unicode ? 2 : 1, unicode ? 4 : 1, NULL};
    c.dots = mem_alloc((size_t)(c.columns * c.dot_x) * (size_t)(c.rows * c.dot_y));
    draw_curve(&c, x, y, count, rx, ry);
    add_rows(out, &c, ry, unicode);
    add_foot(out, &c, rx, unicode);
    free(c.dots);
}
