/* Parquet's encodings of levels and strings. All numbers are little-endian; packed bits begin with the lowest
 * of a byte. */
#include "formats/parquet_values.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"

static const char too_short[] = "its values end too early";

/* Up to 64 bits from `bit` on. Bytes behind the last bit are not touched. */
static uint64_t bits_at(const uint8_t *bytes, uint64_t bit, unsigned width) {
    uint64_t value = 0;
    for (unsigned got = 0; got < width;) {
        unsigned shift = (unsigned)(bit % 8), have = 8 - shift < width - got ? 8 - shift : width - got;
        value |= (uint64_t)(bytes[bit / 8] >> shift & ((1u << have) - 1)) << got;
        got += have;
        bit += have;
    }
    return value;
}

static const char *varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (*at == end) return too_short;
        uint8_t byte = *(*at)++;
        if (shift == 63 && byte > 1) break;
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (!(byte & 0x80)) return NULL;
    }
    return "a number has more than 64 bits";
}

/* Wraps around in 64 bits, as differences do. */
static const char *zigzag(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    const char *wrong = varint(at, end, value);
    *value = *value >> 1 ^ (0 - (*value & 1));
    return wrong;
}

/* ---- runs ---- */

Hybrid hybrid_start(const uint8_t *at, const uint8_t *end, unsigned width) {
    return (Hybrid){.at = at, .end = end, .width = width};
}

static const char *packed_run(Hybrid *h, uint64_t groups) {
    if (groups > UINT64_MAX / 64 || groups * h->width > (uint64_t)(h->end - h->at)) return too_short;
    h->packed = h->at;
    h->at += groups * h->width;
    h->bit = 0;
    h->left = 8 * groups;
    return NULL;
}

static const char *equal_run(Hybrid *h, uint64_t count) {
    unsigned bytes = (h->width + 7) / 8;
    if (bytes > h->end - h->at) return too_short;
    h->packed = NULL;
    h->value = (uint32_t)little_endian(h->at, bytes);
    h->at += bytes;
    h->left = count;
    return NULL;
}

/* A run of nothing would be read for ever. */
static const char *next_run(Hybrid *h) {
    uint64_t head;
    const char *wrong = varint(&h->at, h->end, &head);
    if (wrong) return wrong;
    if (head >> 1 == 0) return "a run is empty";
    return head & 1 ? packed_run(h, head >> 1) : equal_run(h, head >> 1);
}

const char *hybrid_peek(Hybrid *h, uint32_t *value, uint64_t *times) {
    const char *wrong = h->left == 0 ? next_run(h) : NULL;
    if (wrong) return wrong;
    *times = h->packed ? 1 : h->left;
    *value = h->packed ? (uint32_t)bits_at(h->packed, h->bit, h->width) : h->value;
    return NULL;
}

void hybrid_take(Hybrid *h, uint64_t count) {
    h->left -= count;
    h->bit += count * h->width;
}

const char *hybrid_count(Hybrid h, uint64_t count, uint32_t most, uint64_t *equal) {
    *equal = 0;
    while (count > 0) {
        uint32_t value;
        uint64_t times;
        const char *wrong = hybrid_peek(&h, &value, &times);
        if (wrong) return wrong;
        if (value > most) return "a definition level is too large";
        if (times > count) times = count;
        if (value == most) *equal += times;
        hybrid_take(&h, times);
        count -= times;
    }
    return NULL;
}

/* ---- differences ---- */

static const char *delta_start(Delta *d, const uint8_t *at, const uint8_t *end) {
    uint64_t block;
    *d = (Delta){.at = at, .end = end};
    const char *wrong = varint(&d->at, end, &block);
    if (!wrong) wrong = varint(&d->at, end, &d->miniblocks);
    if (!wrong) wrong = varint(&d->at, end, &d->total);
    if (!wrong) wrong = zigzag(&d->at, end, &d->value);
    if (wrong) return wrong;
    if (block == 0 || block > 1 << 20 || d->miniblocks == 0 || block % d->miniblocks != 0 ||
        block / d->miniblocks % 32 != 0)
        return "its blocks of lengths have an impossible size";
    d->miniblock_values = block / d->miniblocks;
    d->miniblock = d->miniblocks;
    return NULL;
}

static const char *next_block(Delta *d) {
    const char *wrong = zigzag(&d->at, d->end, &d->least);
    if (wrong) return wrong;
    if (d->miniblocks > (uint64_t)(d->end - d->at)) return too_short;
    d->widths = d->at;
    d->at += d->miniblocks;
    d->miniblock = 0;
    return NULL;
}

/* The miniblocks behind the last value have a width, and no bits. */
static const char *next_miniblock(Delta *d) {
    const char *wrong = d->miniblock == d->miniblocks ? next_block(d) : NULL;
    if (wrong) return wrong;
    d->width = d->widths[d->miniblock++];
    if (d->width > 64) return "a length has more than 64 bits";
    uint64_t bytes = d->miniblock_values / 8 * d->width;
    if (bytes > (uint64_t)(d->end - d->at)) return too_short;
    d->packed = d->at;
    d->at += bytes;
    d->bit = 0;
    d->left = d->miniblock_values;
    return NULL;
}

static const char *delta_next(Delta *d, uint64_t *value) {
    if (d->given == d->total) return too_short;
    if (d->given++ > 0) {
        const char *wrong = d->left == 0 ? next_miniblock(d) : NULL;
        if (wrong) return wrong;
        d->value += d->least + bits_at(d->packed, d->bit, d->width);
        d->bit += d->width;
        d->left--;
    }
    *value = d->value;
    return d->value <= PARQUET_MOST_VALUE ? NULL : "a string is negative or longer than 256 MiB";
}

/* The bytes behind the last difference, and the sum of all numbers. */
static const char *delta_end(Delta d, uint64_t count, const uint8_t **end, uint64_t *sum) {
    *sum = 0;
    if (d.total != count) return "it has another number of lengths than of values";
    for (uint64_t i = 0, value; i < count; i++) {
        const char *wrong = delta_next(&d, &value);
        if (wrong) return wrong;
        *sum += value;
    }
    *end = d.at;
    return NULL;
}

/* ---- strings ---- */

static const char *plain_next(const uint8_t **at, const uint8_t *end, const char **value, size_t *length) {
    if (end - *at < 4) return too_short;
    uint64_t bytes = little_endian(*at, 4);
    if (bytes > (uint64_t)(end - *at) - 4) return too_short;
    if (bytes > PARQUET_MOST_VALUE) return "a string is longer than 256 MiB";
    *value = (const char *)*at + 4;
    *length = (size_t)bytes;
    *at += 4 + bytes;
    return NULL;
}

/* Each entry has at least the four bytes of its length, so `count` is bounded by the page. */
const char *dictionary_start(ParquetDictionary *d, const char *bytes, size_t size, uint64_t count) {
    const uint8_t *at = (const uint8_t *)bytes, *end = at + size;
    if (count > size / 4) return "its dictionary has more entries than bytes";
    if (count > d->capacity) d->at = mem_grow(d->at, (d->capacity = (size_t)count) * sizeof *d->at);
    d->bytes = at;
    for (d->count = 0; d->count < count; d->count++) {
        const char *value, *wrong;
        size_t length;
        d->at[d->count] = (uint32_t)(at - d->bytes);
        if ((wrong = plain_next(&at, end, &value, &length)) != NULL) return wrong;
    }
    return NULL;
}

void dictionary_free(ParquetDictionary *d) {
    free(d->at);
    *d = (ParquetDictionary){0};
}

static const char *start_indices(ParquetValues *v, uint64_t count) {
    if (!v->dictionary) return "its dictionary is missing";
    if (count == 0) return NULL;
    if (v->at == v->end) return too_short;
    unsigned width = *v->at++;
    if (width > 32) return "an index has more than 32 bits";
    v->indices = hybrid_start(v->at, v->end, width);
    return NULL;
}

static const char *start_lengths(ParquetValues *v, uint64_t count) {
    uint64_t sum;
    const char *wrong = delta_start(&v->lengths, v->at, v->end);
    if (!wrong) wrong = delta_end(v->lengths, count, &v->at, &sum);
    if (wrong) return wrong;
    return sum == (uint64_t)(v->end - v->at) ? NULL : "its lengths do not add up to its bytes";
}

static const char *start_prefixes(ParquetValues *v, uint64_t count) {
    uint64_t sum;
    const char *wrong = delta_start(&v->prefixes, v->at, v->end);
    if (!wrong) wrong = delta_end(v->prefixes, count, &v->at, &sum);
    text_clear(&v->previous);
    return wrong ? wrong : start_lengths(v, count);
}

const char *values_start(ParquetValues *v, int encoding, const char *bytes, size_t size, uint64_t count,
                         const ParquetDictionary *dictionary) {
    v->encoding = (ParquetEncoding)encoding;
    v->at = (const uint8_t *)bytes;
    v->end = v->at + size;
    v->dictionary = dictionary;
    switch (encoding) {
    case PARQUET_PLAIN: return NULL;
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY: return start_indices(v, count);
    case PARQUET_DELTA_LENGTH: return start_lengths(v, count);
    case PARQUET_DELTA_BYTES: return start_prefixes(v, count);
    default: return "its encoding is none of strings (plain, dictionary, delta)";
    }
}

static const char *indexed_next(ParquetValues *v, const char **value, size_t *length) {
    uint32_t index;
    uint64_t times;
    const ParquetDictionary *d = v->dictionary;
    const char *wrong = hybrid_peek(&v->indices, &index, &times);
    if (wrong) return wrong;
    hybrid_take(&v->indices, 1);
    if (index >= d->count) return "an index is beyond its dictionary";
    const uint8_t *at = d->bytes + d->at[index];
    *length = (size_t)little_endian(at, 4);
    *value = (const char *)at + 4;
    return NULL;
}

/* Their sum was compared with the bytes when the section began. */
static const char *measured_next(ParquetValues *v, const char **value, size_t *length) {
    uint64_t bytes;
    const char *wrong = delta_next(&v->lengths, &bytes);
    if (wrong) return wrong;
    *value = (const char *)v->at;
    *length = (size_t)bytes;
    v->at += bytes;
    return NULL;
}

/* The value before is all that is kept: n suffixes of one byte make n^2 / 2 bytes. */
static const char *prefixed_next(ParquetValues *v, const char **value, size_t *length) {
    uint64_t prefix;
    Text *text = &v->previous;
    const char *suffix, *wrong = delta_next(&v->prefixes, &prefix);
    size_t bytes;
    if (!wrong) wrong = measured_next(v, &suffix, &bytes);
    if (wrong) return wrong;
    if (prefix > text->length) return "a prefix is longer than the string before";
    if (prefix + bytes > PARQUET_MOST_VALUE) return "a string is longer than 256 MiB";
    text->length = (size_t)prefix;
    text_add(text, suffix, bytes);
    *value = text->data;
    *length = text->length;
    return NULL;
}

const char *values_next(ParquetValues *v, const char **value, size_t *length) {
    switch (v->encoding) {
    case PARQUET_PLAIN: return plain_next(&v->at, v->end, value, length);
    case PARQUET_PLAIN_DICTIONARY:
    case PARQUET_RLE_DICTIONARY: return indexed_next(v, value, length);
    case PARQUET_DELTA_LENGTH: return measured_next(v, value, length);
    case PARQUET_DELTA_BYTES: return prefixed_next(v, value, length);
    case PARQUET_RLE: break;
    }
    return "its encoding is none of strings";
}

/* What is left of a packed group of indices is padding. fastparquet adds eight zeros to the pages of any
 * encoding. */
const char *values_end(const ParquetValues *v) {
    static const uint8_t padding[8];
    bool indices = v->encoding == PARQUET_PLAIN_DICTIONARY || v->encoding == PARQUET_RLE_DICTIONARY;
    if (indices || v->at == v->end) return NULL;
    if (v->end - v->at == sizeof padding && memcmp(v->at, padding, sizeof padding) == 0) return NULL;
    return "bytes follow its last value";
}

void values_free(ParquetValues *v) { text_free(&v->previous); }
