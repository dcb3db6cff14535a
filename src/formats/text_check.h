/* Checks that bytes are text: no NUL, at most one byte in a hundred that is not UTF-8, and as few control
 * characters. All tests are needed: UTF-16 is nearly valid UTF-8, eight-bit encodings have no NUL, and packed
 * numbers may have neither. */
#ifndef WEFT_FORMATS_TEXT_CHECK_H
#define WEFT_FORMATS_TEXT_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct TextCheck {
    bool nul_is_text;        /* NULs and control characters are not counted */
    bool recoded;            /* the bytes are not the file's own (formats/recoder.h) */
    uint64_t begin;          /* offset of the first byte in the file */
    uint64_t bytes, invalid; /* invalid: not part of a UTF-8 character */
    uint64_t controls;       /* NULs among them */
    uint64_t nuls, first_nul;
    uint64_t nuls_at[4]; /* by position modulo 4, to guess the encoding */
} TextCheck;

/* Adds the next bytes. No character may be split between two calls. */
void text_check_add(TextCheck *c, const char *bytes, size_t length);
/* ERR_DATA if the bytes are not text: for a NUL at once, for the fractions of invalid bytes and of control
 * characters only once there are enough bytes, or at the `end`. */
ErrorCode text_check_judge(const TextCheck *c, const char *path, bool end, Error *err);

#endif
