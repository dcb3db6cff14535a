/* Slots of the op table that cut the work by shape and hand the pieces to threads. */
#include "device/cpu/optimised.h"

#include <stdlib.h>

#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cpu/gemm.h"

typedef struct Optimised {
    Gemm *gemm;
} Optimised;

static Optimised *of(const Device *d) { return d->impl; }

static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a, const void *b,
                 Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate) {
    gemm_run(of(d)->gemm, d, trans_a, trans_b, m, n, k, a, b, ab_type, c, c_type, ldc, accumulate);
}

static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) { return gemm_scratch_bytes(of(d)->gemm, needs->compute); }

ErrorCode optimised_open(Device *d, Error *err) {
    Optimised *o = mem_alloc(sizeof *o);
    d->impl = o;
    d->ops.gemm = gemm;
    d->ops.scratch_bytes = scratch_bytes;
    return gemm_open(&o->gemm, d->native_bf16, d->threads, err);
}

void optimised_close(Device *d) {
    if (!d->impl) return;
    gemm_close(of(d)->gemm);
    free(d->impl);
    d->impl = NULL;
}
