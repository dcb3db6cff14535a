/* Matrix products, cut into tiles of the result: each tile is one single-threaded product, so that neither
 * the split of the work nor the order of any sum depends on the number of threads. */
#ifndef WEFT_DEVICE_CPU_GEMM_H
#define WEFT_DEVICE_CPU_GEMM_H

#include "device/cpu/kernels.h"
#include "device/ops/ops.h"

typedef struct Gemm Gemm;

/* Whether oneDNN's bf16 matmul runs on this processor: it needs AVX-512, and emulates bf16 instructions if
 * they are missing. */
bool gemm_native_possible(void);

/* native: bf16 products without splits use oneDNN's bf16 matmul; fails with ERR_UNAVAILABLE if that is not
 * possible. All other products use the kernels, except that dnnl_sgemm makes fp32 products of a few rows; and
 * products of experts always do. */
ErrorCode gemm_open(Gemm **g, const Kernels *kernels, bool native, int threads, Error *err);
void gemm_close(Gemm *g); /* NULL is fine */

/* As the op. */
void gemm_run(Gemm *g, Device *d, const GemmArgs *o);
/* As the ops grouped_gemm and grouped_gemm_wgrad. */
void gemm_run_grouped(Gemm *g, Device *d, const GroupedGemmArgs *o);
void gemm_run_grouped_wgrad(Gemm *g, Device *d, const GroupedGemmWgradArgs *o);
/* Upper bound of any product, in FLOP/s: multiply-adds of this many cores in registers, without memory
 * operands. bf16: by dot products of bf16, or AMX; 0 if there are none. */
double gemm_register_limit(const Kernels *kernels, int threads, Dtype type, double seconds);
/* splits, sources: the most of a product; 0: no product has any. */
size_t gemm_scratch_bytes(int threads, Dtype compute, int splits, int sources);

#endif
