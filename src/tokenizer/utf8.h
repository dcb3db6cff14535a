/* Runs of valid and of invalid UTF-8, as text_utf8 (base/text.h) defines them, and white space. */
#ifndef WEFT_TOKENIZER_UTF8_H
#define WEFT_TOKENIZER_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/text.h"

/* Length of the longest valid prefix. */
size_t utf8_valid_run(const char *text, size_t length);
/* Length of the longest prefix that holds no valid character. */
size_t utf8_invalid_run(const char *text, size_t length);

void text_put_character(Text *t, uint32_t code); /* of Unicode */

/* Unicode's White_Space, which has been the same 25 characters since Unicode 6.3. */
bool utf8_is_space(uint32_t code);
/* Bytes of white space at the start and at the end of valid UTF-8. */
size_t utf8_leading_space(const char *text, size_t length);
size_t utf8_trailing_space(const char *text, size_t length);

#endif
