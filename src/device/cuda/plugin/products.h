/* Matrix products by cuBLASLt: a plan for each shape, made once and cached. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_PRODUCTS_H
#define WEFT_DEVICE_CUDA_PLUGIN_PRODUCTS_H

#include <cuda_runtime_api.h>

#include "device/device.h"

typedef struct Products Products;

typedef struct ProductShape {
    bool trans_a, trans_b;
    int64_t m, n, k, ldc;
    Dtype ab_type, c_type;
} ProductShape;

/* NULL with err set if the library does not start. */
Products *products_open(Error *err);
void products_close(Products *p); /* NULL is fine */
/* The same as the op gemm without splits. The workspace has cuda_products_workspace bytes, at any
 * alignment. Returns false with the reason in problem[size]. */
bool products_run(Products *p, const ProductShape *s, const void *a, const void *b, void *c, bool accumulate,
                  void *workspace, cudaStream_t stream, char *problem, size_t size);
uint64_t products_version(void);

#endif
