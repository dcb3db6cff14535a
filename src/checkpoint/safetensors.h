/* The safetensors format: a file of named tensors.
 *
 *     u64 little-endian N | N bytes of JSON | tensor bytes
 *                           {"name": {"dtype", "shape", "data_offsets": [begin, end]}, ...}
 *
 * Reading is strict. Besides what the reference reader refuses (any hole, overlap, trailing byte, size that
 * does not match its shape), a file is refused here if two parsers could disagree about it: duplicate names
 * or metadata keys, bytes before the brace, numbers that are not plain integers, a NUL in a name, a metadata
 * key or any other string, JSON nested deeper than 64. Names are keys, never paths. Allocations are bounded
 * by a small multiple of the header, which is itself bounded by the file. */
#ifndef WEFT_CHECKPOINT_SAFETENSORS_H
#define WEFT_CHECKPOINT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "checkpoint/fileops.h"

#define SAFE_MAX_RANK 16
#define SAFE_MAX_HEADER 100000000u /* limit of the reference implementation; decimal */

/* In descending order of alignment, as the reference writer sorts them. */
typedef enum SafeType {
    SAFE_I64,
    SAFE_U64,
    SAFE_F64,
    SAFE_C64,
    SAFE_I32,
    SAFE_U32,
    SAFE_F32,
    SAFE_I16,
    SAFE_U16,
    SAFE_F16,
    SAFE_BF16,
    SAFE_BOOL,
    SAFE_U8,
    SAFE_I8,
    SAFE_F8_E5M2,
    SAFE_F8_E4M3,
    SAFE_F8_E8M0,
    SAFE_F8_E4M3FNUZ,
    SAFE_F8_E5M2FNUZ,
    SAFE_F6_E2M3,
    SAFE_F6_E3M2,
    SAFE_F4,
    SAFE_TYPES
} SafeType;
const char *safe_type_name(SafeType type); /* "BF16" */
int safe_type_bits(SafeType type);

typedef struct SafeTensor {
    char *name; /* UTF-8; escape before printing */
    SafeType type;
    int rank;
    uint64_t shape[SAFE_MAX_RANK];
    uint64_t elements, begin, end; /* bytes from the start of the data */
} SafeTensor;

typedef struct SafeFile {
    char *where;         /* path, for errors */
    int fd;              /* -1 when only a header was parsed */
    uint64_t data_start; /* 8 + N */
    uint64_t data_bytes;
    size_t count;
    SafeTensor *tensors; /* [count], ascending by name (bytes) */
    size_t metadata_count;
    char **metadata;       /* key, value, key, value, ... */
    size_t unknown_fields; /* accepted and ignored */
} SafeFile;

ErrorCode safe_open(SafeFile *f, const char *path, Error *err);
/* Takes over fd, also on failure. */
ErrorCode safe_open_fd(SafeFile *f, const char *where, int fd, uint64_t file_bytes, Error *err);
void safe_close(SafeFile *f);
const SafeTensor *safe_find(const SafeFile *f, const char *name); /* NULL if none */
/* Reads bytes of a tensor, `offset` from its begin. */
ErrorCode safe_read(const SafeFile *f, const SafeTensor *t, uint64_t offset, void *host, size_t bytes,
                    Error *err);

/* Tensors to write or to fill: all elements of them, or segments. `memory` is the type of the bytes behind
 * the callbacks, `stored` that of the file; if they differ, both must convert through fp32 (convert.h).
 *
 * Every rank describes all tensors of the model, in the same order, and lists the segments of them that it
 * holds: any range of elements in row-major order. Callbacks work on segments: they move whole elements, and
 * offsets and bytes count in `memory` from the start of the segment. */
#define TENSOR_MAX_RANK 4
typedef struct TensorDesc {
    const char *name;
    SafeType memory, stored;
    int rank;
    int64_t shape[TENSOR_MAX_RANK];
} TensorDesc;

typedef struct TensorSegment {
    int tensor;           /* index in the list */
    int64_t first, count; /* elements */
} TensorSegment;

typedef struct TensorList {
    int count;
    const TensorDesc *tensors; /* [count] */
    void *ctx;
    /* Copies tensor memory to host memory. */
    ErrorCode (*fetch)(void *ctx, int segment, size_t offset, size_t bytes, void *host, Error *err);
    /* Copies host memory to tensor memory. */
    ErrorCode (*store)(void *ctx, int segment, size_t offset, size_t bytes, const void *host, Error *err);
    int segment_count;
    const TensorSegment *segments; /* [segment_count]; NULL: all is here, and segment i is tensor i */
} TensorList;
int64_t tensor_elements(const TensorDesc *t);
size_t tensor_stored_bytes(const TensorDesc *t);
int tensor_segments(const TensorList *list);
TensorSegment tensor_segment(const TensorList *list, int segment); /* checked to lie in its tensor */
size_t tensor_segment_bytes(const TensorList *list, int segment);  /* in memory */

/* The layout of a file that holds list->tensors[order[0 .. count-1]], the same as the reference writer's: by
 * descending alignment, then name; no gaps; header padded with spaces to 8 bytes. Sorts `order` that way,
 * appends the first 8 + N bytes to `header`, sets at[t] to the first byte of tensor t in the file for each t
 * of order. Returns the file's length. */
uint64_t safe_layout(const TensorList *list, int *order, int count, Text *header, uint64_t *at);

/* Makes a new file with this header, of this length, synced and closed; the bytes after the header read as
 * zeros. */
ErrorCode safe_create(const FileOps *ops, const char *path, const Text *header, uint64_t bytes, Error *err);
/* Writes segments[0 .. count-1] of the list to a file that safe_create made, each to its offset (at: of
 * safe_layout), syncs and closes it. sums[p] becomes the checksum (XXH3-64) of the bytes of segment p in the
 * file. */
ErrorCode safe_write_segments(const FileOps *ops, const char *path, const TensorList *list,
                              const int *segments, int count, const uint64_t *at, uint64_t *sums, Error *err);

#endif
