/* Weights between the float types of files and fp32, in host memory. */
#ifndef WEFT_CHECKPOINT_CONVERT_H
#define WEFT_CHECKPOINT_CONVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint/safetensors.h"

/* F32, BF16, F16: fp32 represents each of their values exactly. */
bool convert_is_float(SafeType type);
/* `in` and `out` must not overlap. Widening is exact, narrowing rounds to nearest even; both keep infinities
 * and NaN. Only for types of convert_is_float; also from F64, rounded to fp32. */
void convert_to_f32(SafeType type, const void *in, float *out, size_t n);
void convert_from_f32(SafeType type, const float *in, void *out, size_t n);

#endif
