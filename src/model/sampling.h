/* Choosing the next token from logits. Host memory. */
#ifndef WEFT_MODEL_SAMPLING_H
#define WEFT_MODEL_SAMPLING_H

#include <stdint.h>

typedef struct Sampling {
    double temperature; /* 0: the most likely token */
    int64_t top_k;      /* keep the k most likely; 0: all */
    double top_p;       /* keep the smallest set of most likely tokens with at least this probability; 1: all.
                           Holtzman et al., "The curious case of neural text degeneration", 2020 */
    uint64_t seed;
} Sampling;

/* Token number `index` of the text: a function of (logits, sampling, index). Equal logits rank by id. top_k
 * applies before top_p. logits [vocab] are reordered in `order` [vocab] scratch, not changed themselves. */
int32_t sample_token(const Sampling *s, const float *logits, int64_t vocab, int64_t index, int32_t *order);

#endif
