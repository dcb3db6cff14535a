/* Matrix products by cuBLASLt: a plan for each shape, made once and cached. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_PRODUCTS_H
#define WEFT_DEVICE_CUDA_PLUGIN_PRODUCTS_H

#include <cuda_runtime_api.h>

#include "device/device.h"
#include "device/ops/linear.h"

typedef struct Products Products;

/* NULL with err set if the library does not start. */
Products *products_open(Error *err);
void products_close(Products *p); /* NULL is fine */
/* The op gemm without splits. The workspace has cuda_products_workspace bytes, at any alignment. Returns
 * NULL, or why the product was not begun. */
const char *products_run(Products *p, const GemmArgs *o, void *workspace, cudaStream_t stream);
uint64_t products_version(void);

#endif
