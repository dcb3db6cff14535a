/* One microbatch as the trainer sees it: `sequences` rows of `context` tokens, concatenated. Host memory. */
#ifndef WEFT_DATA_BATCH_H
#define WEFT_DATA_BATCH_H

#include <stddef.h>
#include <stdint.h>

typedef struct Batch {
    int64_t tokens;   /* T = sequences * context */
    int32_t *inputs;  /* [T] ids, each in [0, vocab) */
    int32_t *targets; /* [T] next ids; -1 where there is nothing to predict (ignore_index, label -100) */
    /* [T] for RoPE: restart with each sequence, and with each document under document_mask
     * (reset_position_ids) */
    int32_t *positions;
    int32_t *first_key; /* [T] index in [0, T) of the first token that token t may attend to (cu_seqlens) */
    int64_t valid;      /* targets >= 0 */
} Batch;

/* Bytes of the four arrays for that many tokens. */
static inline size_t batch_bytes(int64_t tokens) { return 4 * sizeof(int32_t) * (size_t)tokens; }

#endif
