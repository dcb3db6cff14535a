/* A curve in a terminal: braille dots (two by four a character), or asterisks where the locale is not UTF-8.
 */
#ifndef WEFT_OBSERVE_PLOT_H
#define WEFT_OBSERVE_PLOT_H

#include <stdbool.h>
#include <stddef.h>

#include "base/text.h"

/* Adds `rows` lines of at most `columns` characters with the curve, its axis on the left, and one line with
 * the ends of x below. x ascends; points whose y is not finite are left out. At least 20 columns and 3 rows
 * are used. Nothing when there is no point. */
void plot_curve(Text *out, const double *x, const double *y, size_t count, int columns, int rows,
                bool unicode);

/* By LC_ALL, LC_CTYPE, LANG: the program itself stays in the C locale, so that numbers keep their dots. */
bool plot_locale_is_utf8(void);

#endif
