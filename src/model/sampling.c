/* Tokens are ranked once, by logit and then id. top-k and top-p keep the front of the ranking, and one
 * uniform number, a function of (seed, index), picks from it. So a text does not depend on how its generation
 * is split into calls.
 *
 * With logits l and temperature t, a token has weight exp((l - max l) / t), in double, which never overflows.
 * top-k: Fan et al., "Hierarchical neural story generation", 2018. top-p, the fewest tokens that hold a
 * fraction p of the weight: Holtzman et al., "The curious case of neural text degeneration", 2020. */
#include "model/sampling.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"

/* a ranks before b: higher logit, then smaller id. */
static int before(const float *logits, int32_t a, int32_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
}

/* Restores the heap below `at`, where only that token may rank after its children. A heap instead of sorting:
 * ordering the whole vocabulary for the few tokens that are kept would cost more than the draw. */
static void sift_down(const float *logits, int32_t *heap, int64_t count, int64_t at) {
    for (int64_t child; (child = 2 * at + 1) < count; at = child) {
        if (child + 1 < count && before(logits, heap[child + 1], heap[child])) child++;
        if (!before(logits, heap[child], heap[at])) return;
        int32_t swap = heap[child];
        heap[child] = heap[at], heap[at] = swap;
    }
}

/* Takes tokens off a heap in order of rank until top_k or top_p is reached, so that only kept tokens are
 * ordered. They end up at the back of `order`, best last. Returns their number. */
static int64_t keep_likely(const Sampling *s, const float *logits, int64_t vocab, int32_t *order,
                           double total, double top) {
    int64_t most = s->top_k > 0 && s->top_k < vocab ? s->top_k : vocab, kept = 0;
    double mass = 0;
    for (int64_t i = vocab / 2; i-- > 0;) sift_down(logits, order, vocab, i);
    while (kept < most && (kept == 0 || mass < s->top_p * total)) {
        int32_t best = order[0];
        kept++;
        order[0] = order[vocab - kept];
        order[vocab - kept] = best;
        sift_down(logits, order, vocab - kept, 0);
        mass += exp(((double)logits[best] - top) / s->temperature);
    }
    return kept;
}

/* The first of equals, as `before` ranks them: the token that would come first off a heap. */
static int32_t most_likely(const float *logits, int64_t vocab) {
    int32_t best = 0;
    for (int32_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* Weight that top_p is a fraction of: that of the k most likely tokens when both rules are given. Takes
 * tokens off a heap for that, and leaves `order` another permutation of the ids, from which keep_likely
 * builds its heap. */
static double mass_of(const Sampling *s, const float *logits, int64_t vocab, int32_t *order, double top) {
    double total = 0;
    if (s->top_k > 0 && s->top_k < vocab && s->top_p < 1) {
        Sampling all = *s;
        all.top_p = 1;
        int64_t kept = keep_likely(&all, logits, vocab, order, (double)INFINITY, top);
        for (int64_t i = 0; i < kept; i++)
            total += exp(((double)logits[order[vocab - 1 - i]] - top) / s->temperature);
        return total;
    }
    for (int64_t i = 0; i < vocab; i++) total += exp(((double)logits[i] - top) / s->temperature);
    return total;
}

/* Weights are summed in the order of rank both times, so that `at` reaches exactly the sum that the target is
 * a fraction of. `order` is scratch for V ids; its contents afterwards are unspecified. */
int32_t sample_token(const Sampling *s, const float *logits, int64_t vocab, int64_t index, int32_t *order) {
    int32_t best = most_likely(logits, vocab);
    if (s->temperature <= 0) return best;
    double top = (double)logits[best];
    for (int64_t i = 0; i < vocab; i++) order[i] = (int32_t)i;
    double total = mass_of(s, logits, vocab, order, top);
    int64_t kept = keep_likely(s, logits, vocab, order, s->top_p < 1 ? total : (double)INFINITY, top);
    double sum = 0, at = 0;
    for (int64_t i = 0; i < kept; i++)
        sum += exp(((double)logits[order[vocab - 1 - i]] - top) / s->temperature);
    double target = rng_uniform(rng_key(s->seed, "sampling"), (uint64_t)index) * sum;
    for (int64_t i = 0; i < kept; i++) {
        at += exp(((double)logits[order[vocab - 1 - i]] - top) / s->temperature);
        if (target < at) return order[vocab - 1 - i];
    }
    return order[vocab - kept]; /* rounding: the last one kept */
}
