#include "data/holdout.h"

#include <math.h>
#include <string.h>

#include "base/hash.h"

Holdout holdout_of(DocumentPart part, double fraction) {
    return (Holdout){part, (uint64_t)ldexp(fraction, 64)};
}

static bool has(Holdout h, const void *bytes, size_t length) {
    uint8_t digest[16];
    uint64_t low;
    if (h.part == PART_ALL) return true;
    hash128(bytes, length, digest);
    memcpy(&low, digest, sizeof low);
    return (low < h.below) == (h.part == PART_HELD);
}

static bool is_white(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Where a file is split, blank lines belong to the document in front of them, and the last one has none. */
bool holdout_has_text(Holdout h, const char *text, size_t length) {
    while (length > 0 && is_white(text[length - 1])) length--;
    while (length > 0 && is_white(*text)) text++, length--;
    return has(h, text, length);
}

bool holdout_has_ids(Holdout h, const int32_t *ids, size_t count) { return has(h, ids, count * sizeof *ids); }
