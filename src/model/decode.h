/* Generation: a sequence fed token by token, or a prompt at a time, against a cache of keys and values. */
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
    char *states[2], *keep, *scratch;
    float *logits, *rstd; /* [V], [1] */
    int32_t
        *fed; /* [positions] host memory: the sequence so far, where angles depend on its length; or NULL */
} Decoder;

/* What a decoder takes when it is opened so, of tensor memory. */
size_t decoder_bytes(const Model *m, int64_t positions, int64_t chunk);
/* weights stay the caller's, as does the device, whose scratch must be large enough for passes of `chunk`
 * tokens. */
ErrorCode decoder_open(Decoder *g, const Model *m, const Weights *weights, Device *d, int64_t positions,
                       int64_t chunk, Error *err);
void decoder_close(Decoder *g);
void decoder_restart(Decoder *g);       /* forgets the sequence */
int64_t decoder_room(const Decoder *g); /* tokens that still fit */
/* Adds `count` tokens (at most decoder_room) to the sequence; logits [V] host memory of the last one, or
 * NULL. */
void decoder_feed(Decoder *g, const int32_t *ids, int64_t count, float *logits);

#endif
