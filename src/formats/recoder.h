/* Converts text in other encodings to UTF-8, as it is read. */
#ifndef WEFT_FORMATS_RECODER_H
#define WEFT_FORMATS_RECODER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/choices.h"
#include "base/text.h"

/* Encoding of a text file. BYTES: any bytes, unchecked. LATIN1: each byte is the character of its number.
 * UTF16: a mark at the beginning tells the order of bytes; without one, the lower comes first, and what looks
 * like another order or like UTF-8 is refused. */
#define TEXT_ENCODINGS(X)         \
    X(ENCODING_UTF8, "utf-8")     \
    X(ENCODING_BYTES, "bytes")    \
    X(ENCODING_LATIN1, "latin-1") \
    X(ENCODING_WINDOWS_1252, "windows-1252") X(ENCODING_UTF16, "utf-16")
typedef enum TextEncoding { TEXT_ENCODINGS(CHOICE_CONSTANT) } TextEncoding;

typedef struct Recoder {
    TextEncoding encoding;
    bool started, big;        /* UTF-16 with the upper byte first */
    unsigned char pending[4]; /* UTF-16: the beginning of a character */
    size_t pending_count;
} Recoder;

bool recoder_needed(TextEncoding encoding);
/* What shows at the beginning of a file that it is in another encoding, or NULL. */
const char *recoder_doubt(TextEncoding encoding, const char *bytes, size_t count);
/* Appends bytes[0, count) as UTF-8. Returns NULL, or what is wrong; *at is the index of the byte behind. */
const char *recoder_add(Recoder *r, const char *bytes, size_t count, Text *out, size_t *at);
/* NULL, or what is wrong with the end of the file. */
const char *recoder_end(const Recoder *r);

#endif
