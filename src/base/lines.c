#include "base/lines.h"

#include <string.h>

Lines lines_of(const char *text, size_t length) {
    return (Lines){.at = text, .end = length ? text + length : text};
}

bool lines_next(Lines *lines, Line *line) {
    if (lines->at == lines->end) return false;
    size_t left = (size_t)(lines->end - lines->at);
    const char *newline = memchr(lines->at, '\n', left);
    *line = (Line){.text = lines->at,
                   .length = newline ? (size_t)(newline - lines->at) : left,
                   .number = ++lines->count,
                   .whole = newline != NULL};
    lines->at = newline ? newline + 1 : lines->end;
    return true;
}

size_t lines_count(Lines lines) {
    Line line;
    while (lines_next(&lines, &line)) continue;
    return lines.count;
}
