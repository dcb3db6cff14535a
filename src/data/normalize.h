/* Unicode normalization form C, which some tokenizers ask for, by libutf8proc. */
#ifndef WEFT_DATA_NORMALIZE_H
#define WEFT_DATA_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

bool nfc_available(void); /* this build has libutf8proc */
const char *nfc_unicode_version(void);

/* *out = the text (valid UTF-8) in form C, to be freed by the caller, or NULL when it is in that form already
 * for sure. */
ErrorCode nfc_normalize(const char *text, size_t length, char **out, size_t *out_length, Error *err);

#endif
