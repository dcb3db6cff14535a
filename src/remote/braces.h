/* {00..99} and {a,b} in URLs, as a shell expands them. */
#ifndef WEFT_REMOTE_BRACES_H
#define WEFT_REMOTE_BRACES_H

#include <stddef.h>

#include "base/error.h"

/* At least one text, in the order of the braces; free with file_glob_free. ERR_CONFIG for nested or open
 * braces and more than 100,000 texts. */
ErrorCode braces_expand(const char *pattern, char ***out, size_t *count, Error *err);

#endif
