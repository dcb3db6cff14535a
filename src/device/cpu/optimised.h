/* The optimised CPU implementation: products and vector kernels for the instruction set of this
 * processor. Work is cut into pieces by shape alone and handed to threads; sums over pieces are added in the
 * order of the pieces. */
#ifndef WEFT_DEVICE_CPU_OPTIMISED_H
#define WEFT_DEVICE_CPU_OPTIMISED_H

#include "device/cpu/gemm.h"
#include "device/cpu/kernels.h"
#include "device/device.h"

typedef struct Optimised {
    const Kernels *kernels;
    Gemm *gemm;
} Optimised;

static inline Optimised *optimised_of(const Device *d) { return d->impl; }
static inline const Kernels *kernels_of(const Device *d) { return optimised_of(d)->kernels; }

/* for (first = 0; first < n; first += step), pieces on threads; a single piece stays on this one. */
#define PRAGMA(text) _Pragma(#text)
#define EACH_PIECE(d, first, n, step)                                                     \
    PRAGMA(omp parallel for num_threads((d)->threads) schedule(static) if ((n) > (step))) \
    for (int64_t first = 0; first < (n); first += (step))

enum { GRAIN = 16384 }; /* elements in a piece of an elementwise op */

/* So many rows that a piece has about GRAIN elements: some microseconds of work, well above what it costs to
 * hand it to a thread, and small enough for the last pieces to come out even. Rows do not know of each other,
 * so the number of them in a piece cannot show. */
static inline int64_t rows_for(int64_t row) { return max_i64(1, GRAIN / max_i64(1, row)); }

/* Overrides slots of d->ops for d->name; d->threads and d->native_bf16 are set. */
ErrorCode optimised_open(Device *d, const Kernels *kernels, Error *err);
void optimised_close(Device *d);
/* From threads, native_bf16 and the shapes alone. */
size_t optimised_scratch_bytes(const Device *d, const DeviceNeeds *needs);

/* optimised_attention.c */
void optimised_attention_forward(Device *d, AttentionShape s, AttentionRun r, const void *q, const void *kv,
                                 const int32_t *first_key, void *out, float *lse, Dtype c);
void optimised_attention_backward(Device *d, AttentionShape s, AttentionRun r, const void *q, const void *kv,
                                  const int32_t *first_key, const void *out, const float *lse,
                                  const void *dout, void *dq, void *dkv, Dtype c);
void optimised_attention_decode(Device *d, AttentionShape s, int64_t start, const void *qkv,
                                const void *k_cache, const void *v_cache, void *out, Dtype c);
void optimised_sinks_backward(Device *d, AttentionShape s, const void *out, const float *lse,
                              const void *dout, float *dsinks, Dtype c);
size_t optimised_attention_scratch(const Device *d, AttentionShape s);

/* optimised_experts.c */
void optimised_route(Device *d, RouteShape s, Routes r, int64_t *counts);
void optimised_route_backward(Device *d, RouteShape s, Routes r, const float *dweights, const float *scale,
                              float *balance, void *dlogits, Dtype c);
void optimised_gemm_experts(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k, const void *a,
                            const void *b, Dtype ab_type, void *c, Dtype c_type);
void optimised_gemm_experts_weight(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a,
                                   const void *b, Dtype ab_type, float *c, bool accumulate);
void optimised_experts_combine(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows,
                               bool weighed, bool add, void *y, Dtype c);
void optimised_experts_weigh(Device *d, RouteShape s, Routes r, int64_t inter, void *act, void *dact,
                             float *dweights, Dtype c);
void optimised_experts_bias_forward(Device *d, ExpertRows e, int64_t n, void *y, const float *bias, Dtype c);
void optimised_experts_bias_backward(Device *d, RouteShape s, Routes r, int64_t n, const void *dy,
                                     bool weighed, const float *bias, float *dbias, float *dweights, Dtype c);

/* optimised_scans.c */
void optimised_conv_forward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                            float *tail, void *y, Dtype c);
void optimised_conv_backward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                             const void *dy, void *dx, float *dw, Dtype c);
void optimised_scan_forward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, float *state,
                            float *h, Dtype c);
void optimised_scan_gate(Device *d, ScanShape s, const void *gate, const float *h, void *out, Dtype c);
void optimised_scan_backward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, const float *h,
                             const void *dout, ScanGradients out, Dtype c);

#endif
