/* The optimised CPU implementation: products and vector kernels for the instruction set of this processor.
 * Work is cut into pieces by shape alone and distributed to threads; sums over pieces are added in the order
 * of the pieces. */
#ifndef WEFT_DEVICE_CPU_OPTIMISED_H
#define WEFT_DEVICE_CPU_OPTIMISED_H

#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/ops/ops.h"

typedef struct Optimised {
    const Kernels *kernels;
    Gemm *gemm;
} Optimised;

static inline Optimised *optimised_of(const Device *d) { return d->impl; }
static inline const Kernels *kernels_of(const Device *d) { return optimised_of(d)->kernels; }

/* for (first = 0; first < n; first += step), with the pieces on threads; a single piece stays on the calling
 * thread. */
#define PRAGMA(text) _Pragma(#text)
#define EACH_PIECE(d, first, n, step)                                                     \
    PRAGMA(omp parallel for num_threads((d)->threads) schedule(static) if ((n) > (step))) \
    for (int64_t first = 0; first < (n); first += (step))

enum { GRAIN = 16384 }; /* elements in a piece of an elementwise op */

/* Rows per piece, so that a piece has about GRAIN elements: some microseconds of work, well above the cost of
 * handing it to a thread, and small enough to balance the last pieces. Rows are independent, so their number
 * in a piece cannot change results. */
static inline int64_t rows_for(int64_t row) { return max_i64(1, GRAIN / max_i64(1, row)); }

/* Overrides slots of d->ops for d->name; d->threads is set. primitives: as
 * gemm_open's native. */
ErrorCode optimised_open(Device *d, const Kernels *kernels, bool primitives, Error *err);
void optimised_close(Device *d);
/* Depends on threads and shapes alone. */
size_t optimised_scratch_bytes(const Device *d, const DeviceNeeds *needs);

/* The slots of optimised_attention.c, optimised_experts.c, optimised_latent.c and optimised_scans.c. */
void optimised_fill_attention(Ops *ops);
void optimised_fill_experts(Ops *ops);
void optimised_fill_latent(Ops *ops);
void optimised_fill_scans(Ops *ops);
size_t optimised_attention_scratch(const Device *d, AttentionShape s);
/* Rotation of n elements (even) by n/2 cosines followed by n/2 sines; sign -1 rotates back. */
typedef struct Rotation {
    int64_t n;
    const float *angles;
    float sign;
} Rotation;
/* Rotates pairs 2i and 2i + 1. `to` may be `from`. */
void rotate_neighbours(const Device *d, const Rotation *by, const void *from, void *to, Dtype c);

#endif
