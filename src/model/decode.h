/* Generation: a sequence is fed token by token, or prompt by prompt, against a KV cache. */
#ifndef WEFT_MODEL_DECODE_H
#define WEFT_MODEL_DECODE_H

#include "model/unit.h"

typedef struct Decoder {
    Model model; /* shares the table of the model it was opened with */
    Device *device;
    const Weights *weights;
    int64_t chunk; /* most tokens of one pass */
    KeyValueCache cache;
    Pool pool;
    Microbatch batch;
    char *states[2], *stash, *scratch;
    float *logits, *rstd; /* [V], [1] */
    int32_t *fed; /* [positions] host memory: the sequence, if RoPE depends on its length; else NULL */
} Decoder;

/* Tensor memory, in bytes, that decoder_open takes. */
size_t decoder_bytes(const Model *m, int64_t positions, int64_t chunk);
/* Borrows weights and device. The device's scratch must be large enough for passes of `chunk` tokens. */
ErrorCode decoder_open(Decoder *g, const Model *m, const Weights *weights, Device *d, int64_t positions,
                       int64_t chunk, Error *err);
void decoder_close(Decoder *g);
void decoder_restart(Decoder *g);              /* forgets the sequence */
int64_t decoder_tokens_left(const Decoder *g); /* tokens that still fit */
/* Appends `count` tokens (at most decoder_tokens_left) to the sequence. Writes the logits [V] of the last one
 * to host memory, unless `logits` is NULL. */
void decoder_feed(Decoder *g, const int32_t *ids, int64_t count, float *logits);

#endif
