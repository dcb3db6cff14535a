/* Maps sample k of a run to a window of a source. A pure function of k, so that a checkpoint stores k and
 * nothing else.
 *
 * Each epoch of a source holds all of its windows once, in an order drawn by a permutation keyed with (seed,
 * source, epoch). Its i-th use is window permute(i mod windows) of epoch i / windows. Nothing is dropped,
 * nothing repeats within an epoch.
 *
 * Mixture. Without shares all sources are one corpus under one permutation, and an epoch is each window of
 * each source once. With shares, sample k goes to a source by a cycle of M slots, of which source s has m[s].
 * M is the least number up to 65,536 that makes every share a whole number of slots (0.7, 0.2, 0.1: M = 10).
 * If there is none, M is 65,536 and shares are rounded to 1/65,536 by largest remainders, at least one slot
 * each. Slots are assigned by earliest deadline: the j-th use of s falls in slots floor(j M / m) to ceil((j +
 * 1) M / m) - 1. This always succeeds (Tijdeman, "The chairman assignment problem", 1980), so after any
 * number of samples each source is within one sample of its share. Sample k is slot k mod M of cycle k / M,
 * and has index (k / M) m[s] + (slots of s before k mod M) in its source: O(1), from two small tables.
 *
 * Elsewhere called: DistributedSampler, blended data set (Megatron). Which samples a rank has:
 * train/read_ahead.c. */
#ifndef WEFT_DATA_SAMPLER_H
#define WEFT_DATA_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define SAMPLER_SOURCES 1024 /* at most */

typedef struct Sample {
    size_t source;
    uint64_t epoch, window;
} Sample;

typedef struct Sampler Sampler;

/* windows[s] >= 1; shares[s] > 0, relative to each other. shares is NULL for one corpus. */
ErrorCode sampler_open(Sampler **sampler, uint64_t seed, const uint64_t *windows, const double *shares,
                       size_t count, Error *err);
void sampler_close(Sampler *sampler); /* NULL is fine */

Sample sampler_at(const Sampler *sampler, uint64_t k);
/* Sample k by its group (a source of a mixture, else 0) and its index in it: a function of the shares
 * alone. */
void sampler_place(const Sampler *sampler, uint64_t k, size_t *group, uint64_t *index);
/* Counts the first k samples by source, [sources]. Only with shares. */
void sampler_count(const Sampler *sampler, uint64_t k, uint64_t *out);
/* Slots per cycle, and those of one source: its exact share. Both are 1 without shares. */
uint32_t sampler_cycle(const Sampler *sampler);
uint32_t sampler_slots(const Sampler *sampler, size_t source);

#endif
