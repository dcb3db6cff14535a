/* Which documents have been there: a set of digests of their ids. */
#ifndef WEFT_DATA_SEEN_SET_H
#define WEFT_DATA_SEEN_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* XXH3 of 128 bits: no two documents of a corpus have the same by chance. */
typedef struct DocumentDigest {
    uint8_t bytes[16];
} DocumentDigest;
DocumentDigest document_digest(const int32_t *ids, size_t count);

/* Zero-initialise. Takes 16 bytes for each slot, of which at most half are used. */
typedef struct SeenSet {
    DocumentDigest *slots;
    size_t count, capacity;
} SeenSet;

bool seen_add(SeenSet *s, const DocumentDigest *d); /* false: it was there */
void seen_free(SeenSet *s);

#endif
