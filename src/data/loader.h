/* Batches, made ready by a background thread. What comes out depends on the layout only, not on depth or
 * timing.
 *
 * The loader is told which samples are its own, and knows nothing of ranks: microbatch i (counted from 0) is
 * microbatch a = i mod microbatches of step s = i / microbatches, and holds samples
 *     first + s * step_stride + a * microbatch_stride + [0, sequences).
 * One process with all microbatches of a step has microbatch_stride = sequences, step_stride = microbatches *
 * sequences. */
#ifndef WEFT_DATA_LOADER_H
#define WEFT_DATA_LOADER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "data/batch.h"
#include "data/dataset.h"

typedef struct LoaderLayout {
    bool validation;           /* samples of validation; behind the last come rows without targets */
    uint64_t first;            /* first sample of the first microbatch */
    int64_t sequences;         /* rows of a microbatch */
    int64_t microbatches;      /* of this loader in a step */
    int64_t microbatch_stride; /* samples */
    int64_t step_stride;       /* samples */
    uint64_t limit;            /* rows of samples from this one on have no targets; 0: no limit */
} LoaderLayout;

/* First sample of microbatch i. */
uint64_t loader_sample(const LoaderLayout *layout, uint64_t microbatch);

typedef struct Loader Loader;

/* depth >= 1: microbatches kept ready. The dataset must outlive the loader. */
ErrorCode loader_open(Loader **loader, const Dataset *dataset, const LoaderLayout *layout, int64_t depth,
                      Error *err);
void loader_close(Loader *l); /* NULL is fine; does not wait for more than the batch in the making */

/* The next microbatch; its memory is valid until the next call. *waited: seconds that the caller was kept
 * waiting. A failure is reported in place of the batch it befell, and again by every later call. */
ErrorCode loader_next(Loader *l, Batch *out, double *waited, Error *err);

#endif
