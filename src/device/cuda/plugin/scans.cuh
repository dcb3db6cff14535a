/* Shared by the recurrences. A document restarts the recurrence, so tokens are divided into runs of full
 * documents, which are computed in parallel. */
#ifndef WEFT_DEVICE_CUDA_PLUGIN_SCANS_CUH
#define WEFT_DEVICE_CUDA_PLUGIN_SCANS_CUH

#include "device/cuda/plugin/columns.cuh"

INLINE float sigmoid(float x) { return 1 / (1 + expf(-x)); }
/* The derivative of silu at x; q is the sigmoid of x. */
INLINE float silu_slope(float x, float q) { return q + x * q * (1 - q); }

constexpr int RUN = 64, RUNS = 64; /* least tokens of a run; most runs */

/* Tokens of a run. Without first_key all tokens are one run. */
static inline int64_t run_of(int64_t tokens, const int32_t *first_key) {
    int64_t least = blocks_of(tokens, RUNS);
    return first_key ? (least > RUN ? least : RUN) : tokens;
}

/* The tokens of this block: those of the documents that begin in its run. */
struct Documents {
    int64_t first, end;
};
/* The first token, from t on, at which a document begins. First keys never decrease, which permits
 * bisection. */
INLINE int64_t beginning(const int32_t *first_key, int64_t tokens, int64_t t) {
    int64_t low = t, high = tokens;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (first_key[middle] >= t)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}
INLINE Documents documents_of(const int32_t *first_key, int64_t tokens, int64_t run) {
    int64_t first = blockIdx.x * run, next = smaller(tokens, first + run);
    if (!first_key) return {first, next};
    return {beginning(first_key, tokens, first), beginning(first_key, tokens, next)};
}
/* Whether a document begins at token t and the recurrence restarts. */
INLINE bool begins_at(const int32_t *first_key, int64_t t) { return first_key && first_key[t] == t; }

#endif
