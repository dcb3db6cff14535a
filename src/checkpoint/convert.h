/* Weights between the types of files and fp32. Host memory. */
#ifndef WEFT_CHECKPOINT_CONVERT_H
#define WEFT_CHECKPOINT_CONVERT_H

#include <stdbool.h>
#include <stddef.h>

#include "checkpoint/safetensors.h"

/* F32, BF16, F16: every value of them is one of fp32. */
bool convert_is_float(SafeType type);
/* `in` and `out` may not overlap. Widening is exact, narrowing rounds to nearest even; both keep infinities
 * and NaN. Only for types of convert_is_float; from F64, fp32 by rounding. */
void convert_to_f32(SafeType type, const void *in, float *out, size_t n);
void convert_from_f32(SafeType type, const float *in, void *out, size_t n);

#endif
