/* Matrix products by oneDNN, cut into fixed tiles of the result: each tile is one single-threaded product, so
 * that neither the split of the work nor the order of any sum depends on the number of threads. */
#ifndef WEFT_DEVICE_CPU_GEMM_H
#define WEFT_DEVICE_CPU_GEMM_H

#include "device/device.h"

typedef struct Gemm Gemm;

/* oneDNN's bf16 matmul runs here: from AVX-512 on, emulated where that has no bf16 instructions. */
bool gemm_native_possible(void);

/* native: bf16 products by oneDNN's bf16 matmul. Otherwise bf16 operands are widened, panel by panel, into
 * fp32 scratch. Fails with ERR_UNAVAILABLE where native is not possible. */
ErrorCode gemm_open(Gemm **g, bool native, int threads, Error *err);
void gemm_close(Gemm *g); /* NULL is fine */

void gemm_run(Gemm *g, Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
              const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate);
size_t gemm_scratch_bytes(bool native, Dtype compute);

#endif
