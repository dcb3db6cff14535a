/* Models and data of the benchmarks: Llamas of a few sizes, on random tokens. */
#ifndef WEFT_BENCH_WORKLOAD_H
#define WEFT_BENCH_WORKLOAD_H

#include "data/batch.h"
#include "config/config.h"
#include "model/config.h"

typedef struct Size {
    const char *name; /* "125M" */
    int64_t hidden, layers, heads, kv_heads, intermediate, vocab;
    bool tied; /* the head shares the embedding's weights */
} Size;

#define WORKLOAD_SIZES "tiny|5M|15M|50M|125M|125M-gqa|125M-16h|1B"
const Size *workload_size(const char *name); /* NULL: no such size */
ModelConfig workload_model(const Size *s, int64_t context);
extern const OptimizerOptions workload_optimizer; /* AdamW */

/* Batch `key`: always the same tokens for a key. */
Batch workload_batch(int64_t sequences, int64_t context, int64_t vocab, uint64_t key);
void workload_free(Batch *batches, int count); /* frees the array too */

#endif
