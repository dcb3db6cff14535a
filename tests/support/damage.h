/* Damaged texts for parsers: none may crash them, and each must give an error that describes the problem. */
#ifndef WEFT_TESTS_DAMAGE_H
#define WEFT_TESTS_DAMAGE_H

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"

/* The i-th damaged version of a text: truncated anywhere, up to three bytes replaced, half of them by one of
 * `marks`, which are special to the parser. The caller frees it; there is no NUL after it. */
static char *damaged(const char *text, size_t size, const char *marks, uint64_t i, size_t *length) {
    *length = 1 + rng_u64(2, i) % size;
    char *data = mem_alloc(*length);
    memcpy(data, text, *length);
    for (uint64_t k = 0; k < rng_u64(3, i) % 4; k++) {
        uint64_t draw = rng_u64(4, 4 * i + k);
        data[draw % *length] = draw >> 63 ? marks[draw / *length % strlen(marks)] : (char)(draw >> 20);
    }
    return data;
}

#endif
