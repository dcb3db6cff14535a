/* XXH3-64 of tensor memory, one buffer at a time: the host must not read tensor memory directly. */
#ifndef WEFT_ENGINE_TENSOR_HASH_H
#define WEFT_ENGINE_TENSOR_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "device/device.h"

typedef struct TensorHash {
    Device *device;
    void *buffer;
    struct XXH3_state_s *state;
} TensorHash;

void tensor_hash_open(TensorHash *h, Device *d);
void tensor_hash_close(TensorHash *h); /* also of one that is zero */
/* Waits for the device. `seed`: 0, or the hash of what comes before. */
uint64_t tensor_hash(TensorHash *h, const void *tensor, size_t bytes, uint64_t seed);

#endif
