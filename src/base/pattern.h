/* Patterns by which users select names: regular expressions (PCRE2), found anywhere in a name. Their author
 * is the configuration's author, and names are short. Still, a pattern may take too long, which is an error,
 * and its text is shown escaped, since a terminal must not interpret it. */
#ifndef WEFT_BASE_PATTERN_H
#define WEFT_BASE_PATTERN_H

#include <stdbool.h>

#include "base/error.h"

typedef struct Pattern Pattern;

/* `key` names the pattern in errors; it and the text must outlive the pattern. ERR_CONFIG for an invalid
 * regular expression. Free with pattern_free. */
ErrorCode pattern_compile(Pattern **out, const char *key, const char *text, Error *err);
void pattern_free(Pattern *p);
/* ERR_CONFIG if matching takes too long. */
ErrorCode pattern_find(const Pattern *p, const char *name, bool *found, Error *err);

#endif
