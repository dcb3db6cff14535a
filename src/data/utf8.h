/* Runs of valid and of invalid UTF-8, as text_utf8 (base/text.h) tells them apart. */
#ifndef WEFT_DATA_UTF8_H
#define WEFT_DATA_UTF8_H

#include <stddef.h>

/* Length of the longest valid prefix. */
size_t utf8_valid_run(const char *text, size_t length);
/* Length of the longest prefix that holds no valid character. */
size_t utf8_invalid_run(const char *text, size_t length);

#endif
