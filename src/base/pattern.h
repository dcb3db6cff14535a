/* Patterns that users give to pick out names: regular expressions (PCRE2), found anywhere in a name. They are
 * of the configuration's author, and names are short; still a pattern may take too long, which is an error,
 * and is text that a terminal must not obey, so it is shown escaped. */
#ifndef WEFT_BASE_PATTERN_H
#define WEFT_BASE_PATTERN_H

#include <stdbool.h>

#include "base/error.h"

typedef struct Pattern Pattern;

/* `key` is what errors call it; it and the text must outlive the pattern. ERR_CONFIG for what is no regular
 * expression. Freed by pattern_free. */
ErrorCode pattern_compile(Pattern **out, const char *key, const char *text, Error *err);
void pattern_free(Pattern *p);
/* ERR_CONFIG where it takes too long. */
ErrorCode pattern_find(const Pattern *p, const char *name, bool *found, Error *err);

#endif
