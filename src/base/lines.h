/* The lines of a text in memory. */
#ifndef WEFT_BASE_LINES_H
#define WEFT_BASE_LINES_H

#include <stdbool.h>
#include <stddef.h>

typedef struct Line {
    const char *text;
    size_t length; /* without the newline */
    size_t number; /* from 1 */
    bool whole;    /* it ends with a newline; only the last line may not: for a log, a torn write */
} Line;

/* What is left of a text. */
typedef struct Lines {
    const char *at, *end;
    size_t count; /* lines that were read */
} Lines;

/* `text` may be NULL if `length` is 0. */
Lines lines_of(const char *text, size_t length);
/* Reads the next line; false at the end of the text. */
bool lines_next(Lines *lines, Line *line);
/* How many lines lines_next will return. */
size_t lines_count(Lines lines);

#endif
