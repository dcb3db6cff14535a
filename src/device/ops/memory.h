/* Ops that move, convert and set numbers, between tensors and to and from the host, and add up parts. */
#ifndef WEFT_DEVICE_OPS_MEMORY_H
#define WEFT_DEVICE_OPS_MEMORY_H

#include "device/device.h"

/* Rounds to nearest even. */
typedef struct CastArgs {
    int64_t n;
    const void *in; /* [n] in_type */
    Dtype in_type;
    void *out; /* [n] out_type */
    Dtype out_type;
} CastArgs;

typedef struct ZeroArgs {
    void *p;
    size_t bytes;
} ZeroArgs;

/* out[i] = mean + std * normal(key, first + i) cut to [lo, hi] standard deviations; rng_normals
 * of base/rng.h. */
typedef struct InitNormalArgs {
    int64_t n;
    uint64_t key, first;
    double mean, std, lo, hi;
    float *out; /* [n] */
} InitNormalArgs;

typedef struct FillArgs {
    int64_t n;
    float value;
    float *out; /* [n] */
} FillArgs;

/* Within tensor memory; `to` and `from` do not overlap. */
typedef struct CopyArgs {
    void *to;
    const void *from;
    size_t bytes;
} CopyArgs;

/* A 2D copy: rows of `bytes` bytes each, to_stride and from_stride bytes apart. */
typedef struct CopyRowsArgs {
    int64_t rows;
    size_t bytes;
    void *to;
    size_t to_stride;
    const void *from;
    size_t from_stride;
} CopyRowsArgs;

/* Between host memory and tensor memory: see point 3 of the contract. */
typedef struct UploadArgs {
    void *tensor;
    const void *host;
    size_t bytes;
} UploadArgs;

typedef struct DownloadArgs {
    void *host;
    const void *tensor;
    size_t bytes;
} DownloadArgs;

/* out[i] = sum over partial sums p of in[p][i], in the canonical tree: blocks of partials are split at the
 * largest power of two below their number. out may be one of the partials. The integers wrap around. */
typedef struct SumPartialsArgs {
    int64_t n;
    int partials;
    const float *const *in; /* host [partials] of [n] */
    float *out;             /* [n] */
} SumPartialsArgs;

typedef struct SumPartialsI64Args {
    int64_t n;
    int partials;
    const int64_t *const *in; /* host [partials] of [n] */
    int64_t *out;             /* [n] */
} SumPartialsI64Args;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define MEMORY_OPS(X)                                                          \
    X(CAST, cast, CastArgs, n, in_type, out_type)                              \
    X(ZERO, zero, ZeroArgs, bytes)                                             \
    X(INIT_NORMAL, init_normal, InitNormalArgs, n, key, first)                 \
    X(FILL, fill, FillArgs, n)                                                 \
    X(COPY, copy, CopyArgs, bytes)                                             \
    X(COPY_ROWS, copy_rows, CopyRowsArgs, rows, bytes, to_stride, from_stride) \
    X(UPLOAD, upload, UploadArgs, bytes)                                       \
    X(DOWNLOAD, download, DownloadArgs, bytes)                                 \
    X(SUM_PARTIALS, sum_partials, SumPartialsArgs, n, partials)                \
    X(SUM_PARTIALS_I64, sum_partials_i64, SumPartialsI64Args, n, partials)
/* clang-format on */
MEMORY_OPS(OP_DECLARE)

#endif
