/* Runs of valid and of invalid UTF-8, by the common decoder (base/text.h).
 *
 * Tokenizers work on characters, but corpora contain invalid bytes. Text is cut at those bytes first, so that
 * all later stages (PCRE2, utf8proc, the tables) may rely on valid UTF-8, and no byte is lost or replaced on
 * the way to an id. */
#include "tokenizer/utf8.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"

/* Up to the first byte that begins no complete, valid character, or all of the text. */
size_t utf8_valid_run(const char *text, size_t length) {
    size_t i = 0;
    while (i < length) {
        /* Eight ASCII bytes at a time, since most text is ASCII. */
        uint64_t eight;
        while (length - i >= 8 && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080U) == 0)) i += 8;
        size_t bytes = text_utf8(text + i, length - i, NULL);
        if (bytes == 0) break;
        i += bytes;
    }
    return i;
}

/* Byte by byte to the next character, so that a broken character costs only its own bytes. */
size_t utf8_invalid_run(const char *text, size_t length) {
    size_t i = 0;
    while (i < length && text_utf8(text + i, length - i, NULL) == 0) i++;
    return i;
}

/* The 25 characters of Unicode's White_Space. */
bool utf8_is_space(uint32_t code) {
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
           code == 0x205F || code == 0x3000;
}

/* Returns bytes, not characters, so that the caller can cut there. */
size_t utf8_leading_space(const char *text, size_t length) {
    size_t i = 0;
    for (uint32_t code; i < length;) {
        size_t bytes = text_utf8(text + i, length - i, &code);
        if (bytes == 0 || !utf8_is_space(code)) break;
        i += bytes;
    }
    return i;
}

/* Backwards: the lead byte of a character is the first that is not a continuation byte (10xxxxxx). */
size_t utf8_trailing_space(const char *text, size_t length) {
    size_t end = length;
    while (end > 0) {
        size_t lead = end - 1;
        while (lead > 0 && ((unsigned char)text[lead] & 0xC0) == 0x80) lead--;
        uint32_t code;
        if (text_utf8(text + lead, end - lead, &code) != end - lead || !utf8_is_space(code)) break;
        end = lead;
    }
    return length - end;
}

void text_put_character(Text *t, uint32_t code) {
    char out[4];
    size_t n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    static const unsigned char marks[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, code >>= 6) out[i] = (char)(0x80 | (code & 0x3f));
    out[0] = (char)(marks[n] | code);
    text_add(t, out, n);
}
