/* Whether bytes that are read as text are text: no NUL, and at most one byte in a hundred that is no UTF-8.
 * Both are needed: UTF-16 is nearly valid UTF-8, and eight-bit codes have no NUL. */
#ifndef WEFT_DATA_TEXT_CHECK_H
#define WEFT_DATA_TEXT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct TextCheck {
    uint64_t begin;          /* of the first byte, in the file */
    uint64_t bytes, invalid; /* invalid: in no character of UTF-8 */
    uint64_t nuls, first_nul;
    uint64_t nuls_at[4]; /* by position modulo 4: for the guess at what it is */
} TextCheck;

/* Bytes in their order; no character lies across two calls. */
void text_check_add(TextCheck *c, const char *bytes, size_t length);
/* ERR_DATA for what is not text; a NUL at once, a share of all only once there is enough to tell, or at the
 * `end`. */
ErrorCode text_check_judge(const TextCheck *c, const char *path, bool end, Error *err);

#endif
