/* Numbers in files, byte by byte, independent of this machine's byte order. */
#ifndef WEFT_BASE_BYTES_H
#define WEFT_BASE_BYTES_H

#include <stddef.h>
#include <stdint.h>

/* The little-endian number in `count` bytes, at most 8; 0 bytes are 0. */
static inline uint64_t little_endian(const void *bytes, size_t count) {
    const uint8_t *b = bytes;
    uint64_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | b[i];
    return value;
}

#endif
