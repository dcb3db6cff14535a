/* Maps sample k to a window of a source without a table of samples.
 *
 *  S1. A group (one source of a mixture, or all sources together) is read in the order of a keyed permutation
 *      of its windows, a new one each epoch (rng_permute: a Feistel network over the exact range). So each
 *      window occurs once per epoch, and any k can be computed on its own.
 *  S2. A mixture assigns samples in a cycle of slots, each source's slots spread as evenly as possible: after
 *      any number of samples each source is within one sample of its share.
 *  S3. The cycle is the shortest in which all shares are whole numbers, or CYCLE_LIMIT slots with rounded
 *      shares.
 *
 * Weights 2 and 1 make a cycle of three slots:
 *
 *   slot     0  1  2
 *   group    0  0  1
 *   rank     0  1  0     sample 7 is slot 1 of cycle 2: group 0, index 2 * 2 + 1 = 5 */
#include "data/sampler.h"

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"

enum { CYCLE_LIMIT = 65536 };

/* A set of windows under one permutation: a source, or all sources together. */
typedef struct Group {
    uint64_t windows, key;
    uint32_t slots;
} Group;

struct Sampler {
    size_t source_count, group_count;
    uint64_t *first; /* [sources + 1] windows before each source, if all are one group */
    Group *groups;
    uint32_t cycle;
    uint16_t *slot_group; /* [cycle] */
    uint32_t *slot_rank;  /* [cycle] slots of the same group before this one */
};

/* Slots of each share in a cycle of `cycle`, if all are whole numbers; else false. */
static bool whole_slots(const double *shares, double total, size_t count, uint32_t cycle, uint32_t *slots) {
    for (size_t i = 0; i < count; i++) {
        double exact = shares[i] / total * cycle, whole = nearbyint(exact);
        if (whole < 1 || fabs(exact - whole) > 1e-12 * cycle) return false;
        slots[i] = (uint32_t)whole;
    }
    return true;
}

/* Distributes CYCLE_LIMIT slots by largest remainders, at least one slot each. */
static void rounded_slots(const double *shares, double total, size_t count, uint32_t *slots) {
    int64_t left = CYCLE_LIMIT;
    double *remainders = mem_alloc_array(count, sizeof *remainders);
    for (size_t i = 0; i < count; i++) {
        double exact = shares[i] / total * CYCLE_LIMIT;
        slots[i] = exact < 1 ? 1 : (uint32_t)exact;
        remainders[i] = exact - slots[i];
        left -= slots[i];
    }
    /* left < 0 if tiny shares were raised to one slot: those with the most slots give some up. */
    for (; left != 0; left += left > 0 ? -1 : 1) {
        size_t best = 0;
        for (size_t i = 1; i < count; i++) {
            bool more = left > 0 ? remainders[i] > remainders[best] : slots[i] > slots[best];
            if (more) best = i;
        }
        slots[best] += left > 0 ? 1 : (uint32_t)-1;
        remainders[best] -= left > 0 ? 1 : -1;
    }
    free(remainders);
}

/* Weights are usually round numbers (0.7, 0.2, 0.1; or 3, 1), for which a short cycle is exact. Others reach
 * the limit, where a share is off by about 1/65,536. */
static uint32_t choose_cycle(const double *shares, size_t count, uint32_t *slots) {
    double total = 0;
    for (size_t i = 0; i < count; i++) total += shares[i];
    for (uint32_t cycle = (uint32_t)count; cycle <= CYCLE_LIMIT; cycle++)
        if (whole_slots(shares, total, count, cycle, slots)) return cycle;
    rounded_slots(shares, total, count, slots);
    return CYCLE_LIMIT;
}

/* Earliest deadline first among the groups whose next use is not too early. The deadlines are those of
 * proportionate fairness (Baruah, Cohen, Plaxton and Varvel, 1996): use u of a group with w of c slots falls
 * between floor(u c / w) and ceil((u + 1) c / w). On one row of slots, earliest deadline first always meets
 * them, so every slot gets a group. */
static void assign_slots(Sampler *s) {
    size_t n = s->group_count;
    uint64_t cycle = s->cycle, *used = mem_alloc_array(n, sizeof *used);
    for (uint64_t k = 0; k < cycle; k++) {
        size_t best = n;
        uint64_t earliest = UINT64_MAX;
        for (size_t g = 0; g < n; g++) {
            uint64_t slots = s->groups[g].slots;
            if (used[g] * cycle >= (k + 1) * slots) continue;
            uint64_t deadline = ((used[g] + 1) * cycle + slots - 1) / slots;
            if (deadline < earliest) {
                earliest = deadline;
                best = g;
            }
        }
        CHECK(best < n);
        s->slot_group[k] = (uint16_t)best;
        s->slot_rank[k] = (uint32_t)used[best]++;
    }
    free(used);
}

/* Without shares there is one group, whose cycle is one slot. */
static void mix(Sampler *s, const double *shares) {
    uint32_t *slots = mem_alloc_array(s->group_count, sizeof *slots);
    s->cycle = shares ? choose_cycle(shares, s->group_count, slots) : 1;
    for (size_t g = 0; g < s->group_count; g++) s->groups[g].slots = shares ? slots[g] : 1;
    free(slots);
    s->slot_group = mem_alloc_array(s->cycle, sizeof *s->slot_group);
    s->slot_rank = mem_alloc_array(s->cycle, sizeof *s->slot_rank);
    assign_slots(s);
}

/* The sum of windows must stay below 2^63, so that positions also fit signed integers. */
static ErrorCode check(const uint64_t *windows, const double *shares, size_t count, Error *err) {
    if (count < 1 || count > SAMPLER_SOURCES)
        return error_set(err, ERR_CONFIG, "%zu sources: from 1 to %d are possible", count, SAMPLER_SOURCES);
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++) {
        if (windows[i] < 1 || windows[i] > INT64_MAX - total)
            return error_set(err, ERR_DATA, "source %zu has %" PRIu64 " windows", i + 1, windows[i]);
        if (shares && !(shares[i] > 0 && isfinite(shares[i])))
            return error_set(err, ERR_CONFIG, "source %zu has weight %g: expected a positive number", i + 1,
                             shares[i]);
        total += windows[i];
    }
    return OK;
}

/* A group's key derives from the seed and the group's index, not its name: moving a file must not change the
 * order of its windows. */
ErrorCode sampler_open(Sampler **sampler, uint64_t seed, const uint64_t *windows, const double *shares,
                       size_t count, Error *err) {
    TRY(check(windows, shares, count, err));
    Sampler *s = mem_alloc(sizeof *s);
    s->source_count = count;
    s->group_count = shares ? count : 1;
    s->first = mem_alloc_array(count + 1, sizeof *s->first);
    for (size_t i = 0; i < count; i++) s->first[i + 1] = s->first[i] + windows[i];
    s->groups = mem_alloc_array(s->group_count, sizeof *s->groups);
    for (size_t g = 0; g < s->group_count; g++) {
        char name[40];
        snprintf(name, sizeof name, "data.source.%zu", g);
        s->groups[g].windows = shares ? windows[g] : s->first[count];
        s->groups[g].key = rng_key(seed, name);
    }
    mix(s, shares);
    *sampler = s;
    return OK;
}

void sampler_close(Sampler *s) {
    if (!s) return;
    free(s->first);
    free(s->groups);
    free(s->slot_group);
    free(s->slot_rank);
    free(s);
}

/* Binary search in running sums: a configuration may list thousands of sources. */
static size_t source_of(const Sampler *s, uint64_t window) {
    size_t low = 0, high = s->source_count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (s->first[middle] <= window)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Index of sample k within its group: slots of the group in all earlier cycles, then those earlier in this
 * cycle. */
void sampler_place(const Sampler *s, uint64_t k, size_t *group, uint64_t *index) {
    uint64_t slot = k % s->cycle;
    *group = s->slot_group[slot];
    *index = k / s->cycle * s->groups[*group].slots + s->slot_rank[slot];
}

Sample sampler_at(const Sampler *s, uint64_t k) {
    size_t g;
    uint64_t index;
    sampler_place(s, k, &g, &index);
    const Group *group = &s->groups[g];
    Sample out = {.source = g, .epoch = index / group->windows};
    out.window = rng_permute(rng_u64(group->key, out.epoch), group->windows, index % group->windows);
    if (s->group_count < s->source_count) {
        out.source = source_of(s, out.window);
        out.window -= s->first[out.source];
    }
    return out;
}

void sampler_count(const Sampler *s, uint64_t k, uint64_t *out) {
    CHECK(s->group_count == s->source_count);
    for (size_t g = 0; g < s->group_count; g++) out[g] = k / s->cycle * s->groups[g].slots;
    for (uint64_t slot = 0; slot < k % s->cycle; slot++) out[s->slot_group[slot]]++;
}

uint32_t sampler_cycle(const Sampler *s) { return s->cycle; }
uint32_t sampler_slots(const Sampler *s, size_t source) {
    return s->group_count == s->source_count ? s->groups[source].slots : 1;
}
