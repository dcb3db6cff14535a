/* The border of a cache depends on the content of its last file, as in content-defined chunking: adding or
 * removing a file moves only the nearby borders, and all caches after the next unchanged border are found
 * again. Borders at fixed byte counts would all move. */
#include "data/token_units.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST = 8 << 20, MOST_LEAST = 64 << 20, SHARE = 1024, MOST_TIMES = 8, MEAN_TIMES = 3 };

uint64_t token_unit_least(const Fingerprint *prints, size_t count) {
    double bytes = 0;
    uint64_t least = LEAST;
    for (size_t i = 0; i < count; i++) bytes += (double)prints[i].stamp.size;
    while (least < MOST_LEAST && bytes > (double)least * SHARE) least *= 2;
    return least;
}

/* Large files end a cache more often than small ones: once in MEAN_TIMES * least bytes on average. */
static bool ends_unit(const Fingerprint *print, double least) {
    char digits[17];
    memcpy(digits, print->sha256, 16);
    digits[16] = 0;
    double drawn = (double)strtoull(digits, NULL, 16) / 18446744073709551616.0;
    return drawn < (double)print->stamp.size / (MEAN_TIMES * least);
}

size_t token_unit_files(const Fingerprint *prints, size_t first, size_t count, uint64_t least) {
    double least_bytes = (double)least, bytes = 0;
    for (size_t i = first; i < count; i++) {
        bytes += (double)prints[i].stamp.size;
        if (i > first && bytes > MOST_TIMES * least_bytes) return i - first;
        if (bytes >= least_bytes && ends_unit(&prints[i], least_bytes)) return i + 1 - first;
    }
    return count - first;
}

/* The last file ends a cache anyway. */
bool token_units_by_size(const Fingerprint *prints, size_t count, uint64_t least) {
    double least_bytes = (double)least, bytes = 0;
    for (size_t i = 0; i + 1 < count; i++) {
        double size = (double)prints[i].stamp.size;
        bool fits = bytes == 0 || bytes + size <= MOST_TIMES * least_bytes;
        bytes = fits ? bytes + size : size;
        if (bytes < least_bytes) continue;
        if (size <= MEAN_TIMES * least_bytes) return false;
        bytes = 0;
    }
    return true;
}
