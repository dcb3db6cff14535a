/* Runs of valid and of invalid UTF-8, by the decoder that everything here uses (base/text.h). */
#include "data/utf8.h"

#include <stdint.h>
#include <string.h>

#include "base/text.h"

size_t utf8_valid_run(const char *text, size_t length) {
    size_t i = 0;
    while (i < length) {
        /* Eight ASCII bytes at a time: most text is. */
        uint64_t eight;
        while (length - i >= 8 && (memcpy(&eight, text + i, 8), (eight & 0x8080808080808080U) == 0)) i += 8;
        size_t bytes = text_utf8(text + i, length - i, NULL);
        if (bytes == 0) break;
        i += bytes;
    }
    return i;
}

size_t utf8_invalid_run(const char *text, size_t length) {
    size_t i = 0;
    while (i < length && text_utf8(text + i, length - i, NULL) == 0) i++;
    return i;
}
