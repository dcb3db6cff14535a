/* Expert matrices that a file holds in MXFP4 (Open Compute Project, "OCP microscaling formats (MX)
 * specification", 2023), as published gpt-oss does: instead of a stack NAME [experts, inputs, outputs]
 *
 *     NAME_blocks  U8 [experts, outputs, inputs / 32, 16]   values of 4 bits, the lower half of a byte first
 *     NAME_scales  U8 [experts, outputs, inputs / 32]       each times 2^(scale - 127)
 *
 * They are read as floats, which represent every such value exactly, and never written. */
#ifndef WEFT_CHECKPOINT_PACKED_H
#define WEFT_CHECKPOINT_PACKED_H

#include "checkpoint/modelfiles.h"

typedef struct Packed {
    const ModelTensor *blocks, *scales; /* both NULL: the files hold no packed matrices by this name */
} Packed;

Packed packed_find(const ModelFiles *m, const char *name);
/* The stack that a tensor is a part of, judged by its name; NULL if none. The caller frees it. */
char *packed_stem(const char *name);
/* Checks that both tensors exist, and that their content has the shape `want`. */
ErrorCode packed_check(const ModelFiles *m, const TensorDesc *want, Packed p, Error *err);

/* Reads elements of the stack in its own order, which is transposed relative to the file: one expert's blocks
 * are cached between calls. All zero: nothing has been read. */
typedef struct PackedReader {
    uint8_t *blocks, *scales;
    uint64_t expert; /* the cached expert, counted from 1 */
} PackedReader;
ErrorCode packed_read(PackedReader *r, const ModelFiles *m, const TensorDesc *want, Packed p, uint64_t first,
                      uint64_t count, float *out, Error *err);
void packed_close(PackedReader *r);

#endif
