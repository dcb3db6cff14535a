/* Prefetches batches on a background thread. Their content depends on the layout only, not on depth or
 * timing.
 *
 * The loader gets its rank's samples as a layout and knows nothing of ranks. Microbatch i (from 0) is
 * microbatch a = i mod microbatches of step s = i / microbatches, and holds samples
 *     first + s * step_stride + a * microbatch_stride + [0, sequences).
 * A single process with all microbatches of a step has microbatch_stride = sequences, step_stride =
 * microbatches * sequences. */
#ifndef WEFT_DATA_LOADER_H
#define WEFT_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "data/batch.h"
#include "data/dataset.h"

typedef struct LoaderLayout {
    bool validation;           /* validation samples; past the last, rows without targets */
    uint64_t first;            /* first sample of the first microbatch */
    int64_t sequences;         /* rows of a microbatch */
    int64_t microbatches;      /* per step, of this loader */
    int64_t microbatch_stride; /* samples */
    int64_t step_stride;       /* samples */
    uint64_t limit;            /* samples from this one on have no targets; 0: no limit */
} LoaderLayout;

/* First sample of microbatch i. */
uint64_t loader_sample(const LoaderLayout *layout, uint64_t microbatch);

typedef struct Loader Loader;

/* Bytes of the batches of a loader: `tokens` of a microbatch, `depth` as in loader_open. */
size_t loader_bytes(int64_t tokens, int64_t depth);
/* depth >= 1: microbatches to prefetch. The dataset must outlive the loader. */
ErrorCode loader_open(Loader **loader, const Dataset *dataset, const LoaderLayout *layout, int64_t depth,
                      Error *err);
void loader_close(Loader *l); /* NULL is fine; waits at most for the batch in progress */

/* The next microbatch; its memory is valid until the next call. *waited: seconds that the caller was blocked.
 * A failure is reported in place of the batch it occurred in, and again by every later call. */
ErrorCode loader_next(Loader *l, Batch *out, double *waited, Error *err);

#endif
