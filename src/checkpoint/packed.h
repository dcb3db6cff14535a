/* Matrices of experts that a file holds in MXFP4 (Open Compute Project, "OCP microscaling formats (MX)
 * specification", 2023), as published gpt-oss does: in place of a stack NAME [experts, inputs, outputs]
 *
 *     NAME_blocks  U8 [experts, outputs, inputs / 32, 16]   values of 4 bits, the lower half of a byte first
 *     NAME_scales  U8 [experts, outputs, inputs / 32]       each times 2^(scale - 127)
 *
 * They are read as floats, which hold every such value, and never written. */
#ifndef WEFT_CHECKPOINT_PACKED_H
#define WEFT_CHECKPOINT_PACKED_H

#include "checkpoint/modelfiles.h"

typedef struct Packed {
    const ModelTensor *blocks, *scales; /* both NULL: the files hold no such matrices by this name */
} Packed;

Packed packed_find(const ModelFiles *m, const char *name);
/* The stack that a tensor is a part of, by its name: the caller's; NULL: it is none by its name. */
char *packed_stem(const char *name);
/* Both are there, and what they hold has the shape that is wanted. */
ErrorCode packed_check(const ModelFiles *m, const TensorDesc *want, Packed p, Error *err);

/* Reads elements of the stack, in its order, which is across that of the file: an expert's blocks are kept
 * from one call to the next. All zero: nothing has been read. */
typedef struct PackedReader {
    uint8_t *blocks, *scales;
    uint64_t expert; /* that they are of, counted from 1 */
} PackedReader;
ErrorCode packed_read(PackedReader *r, const ModelFiles *m, const TensorDesc *want, Packed p, uint64_t first,
                      uint64_t count, float *out, Error *err);
void packed_close(PackedReader *r);

#endif
