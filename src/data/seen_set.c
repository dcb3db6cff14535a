/* A table with open addressing. A slot of zeros is free. */
#include "data/seen_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/text.h"

DocumentDigest document_digest(const int32_t *ids, size_t count) {
    DocumentDigest d;
    hash128(ids, count * sizeof *ids, d.bytes);
    return d;
}

/* The slot of the digest, or the free one where it belongs. A digest is random, so its bytes are the hash. */
static DocumentDigest *slot_of(const SeenSet *s, const DocumentDigest *d) {
    static const DocumentDigest none;
    uint64_t at;
    memcpy(&at, d->bytes, sizeof at);
    for (;; at++) {
        DocumentDigest *slot = &s->slots[at & (s->capacity - 1)];
        if (memcmp(slot, d, sizeof *d) == 0 || memcmp(slot, &none, sizeof none) == 0) return slot;
    }
}

static void grow(SeenSet *s) {
    SeenSet larger = {.capacity = s->capacity ? 2 * s->capacity : 1024};
    larger.slots = mem_alloc_array(larger.capacity, sizeof *larger.slots);
    for (size_t i = 0; i < s->capacity; i++) *slot_of(&larger, &s->slots[i]) = s->slots[i];
    larger.count = s->count;
    free(s->slots);
    *s = larger;
}

bool seen_add(SeenSet *s, const DocumentDigest *d) {
    if (2 * s->count >= s->capacity) grow(s);
    DocumentDigest *slot = slot_of(s, d);
    if (memcmp(slot, d, sizeof *d) == 0) return false;
    *slot = *d;
    s->count++;
    return true;
}

void seen_free(SeenSet *s) {
    free(s->slots);
    *s = (SeenSet){0};
}
