/* Curves in a terminal: braille dots (two by four per character), or asterisks where the locale is not
 * UTF-8. */
#ifndef WEFT_OBSERVE_PLOT_H
#define WEFT_OBSERVE_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

/* x ascends; points whose y is not finite are left out. */
typedef struct PlotCurve {
    const double *x, *y;
    size_t count;
} PlotCurve;

#define PLOT_CURVES 8 /* at most, in one drawing */

/* Appends `rows` lines of at most `columns` characters with the curves, the y axis on the left, and one line
 * with the ends of x below. Uses at least 20 columns and 3 rows. Draws nothing when there is no point.
 * Several curves differ by colour, or without colour are drawn as letters (plot_key); "*" marks where they
 * meet. */
void plot_curves(Text *out, const PlotCurve *curves, size_t count, int columns, int rows, bool unicode,
                 bool colour);
/* One curve, in no colour. */
void plot_curve(Text *out, const double *x, const double *y, size_t count, int columns, int rows,
                bool unicode);
/* Appends the letter of a curve, in its colour. */
void plot_key(Text *out, size_t curve, bool colour);

/* Reads LC_ALL, LC_CTYPE and LANG: the program itself stays in the C locale, so that numbers keep their
 * decimal point. */
bool plot_locale_is_utf8(void);

#endif
