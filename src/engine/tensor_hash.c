#include "engine/tensor_hash.h"

#include <stdlib.h>
#include <xxhash.h>

#include "base/error.h"

enum { CHUNK_BYTES = 1 << 20 }; /* bytes that are fetched to the host at a time */

void tensor_hash_open(TensorHash *h, Device *d) {
    *h = (TensorHash){d, mem_alloc(CHUNK_BYTES), XXH3_createState()};
    CHECK(h->state != NULL);
}

void tensor_hash_close(TensorHash *h) {
    free(h->buffer);
    XXH3_freeState(h->state);
    *h = (TensorHash){0};
}

uint64_t tensor_hash(TensorHash *h, const void *tensor, size_t left, uint64_t seed) {
    const char *from = tensor;
    XXH3_64bits_reset_withSeed(h->state, seed);
    while (left > 0) {
        size_t bytes = left < CHUNK_BYTES ? left : CHUNK_BYTES;
        device_fetch(h->device, h->buffer, from, bytes);
        XXH3_64bits_update(h->state, h->buffer, bytes);
        from += bytes, left -= bytes;
    }
    return XXH3_64bits_digest(h->state);
}
