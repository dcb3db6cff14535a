/* Sums are exact (base/exact.h); the rest are maxima, counts and bits. So combining in any order gives the
 * same bytes, and every rank can decide by itself from the combined record: skip or update, stop or go on,
 * and the clip coefficient. */
#include "engine/record.h"

#include <math.h>
#include <stdbool.h>

void record_start(StepRecord *r) { *r = (StepRecord){.culprit = -1, .culprit_rank = -1, .all = UINT64_MAX}; }

/* -1 is larger than any other. */
static bool before(int64_t a, int64_t b) { return a >= 0 && (b < 0 || a < b); }

/* Keeps the lowest parameter, and of its ranks the lowest: commutative, as combining a record must be. */
static void name_culprit(StepRecord *r, int64_t parameter, int64_t rank) {
    if (before(parameter, r->culprit) || (parameter == r->culprit && before(rank, r->culprit_rank)))
        r->culprit = parameter, r->culprit_rank = rank;
}

void record_add_nonfinite(StepRecord *r, int64_t elements, int64_t parameter, int64_t rank) {
    r->nonfinite += elements;
    if (elements) name_culprit(r, parameter, rank);
}

void record_add_stats(StepRecord *r, const GradStats *s, int64_t parameter, int64_t rank) {
    exact_merge(&r->norm, &s->sum);
    if (s->max > r->max) r->max = s->max;
    record_add_nonfinite(r, s->nonfinite, parameter, rank);
}

void record_add_losses(StepRecord *r, const LossSum *s) {
    exact_merge(&r->loss, &s->sum);
    r->bad_losses += s->nonfinite;
}

void record_add_z_losses(StepRecord *r, const LossSum *s) {
    exact_merge(&r->z_loss, &s->sum);
    r->bad_losses += s->nonfinite;
}

void record_add_balance(StepRecord *r, const LossSum *s) {
    exact_merge(&r->balance, &s->sum);
    r->bad_losses += s->nonfinite;
}

void record_add_mtp(StepRecord *r, int head, const LossSum *s) {
    exact_merge(&r->mtp[head], &s->sum);
    r->bad_losses += s->nonfinite;
}

/* Exact sums are normalised after each addition: otherwise carries would overflow digits, and unequal digits
 * of equal numbers would make unequal bytes. */
void record_combine(void *into, const void *from) {
    StepRecord *a = into;
    const StepRecord *b = from;
    exact_merge(&a->norm, &b->norm);
    exact_merge(&a->loss, &b->loss);
    exact_merge(&a->z_loss, &b->z_loss);
    exact_merge(&a->balance, &b->balance);
    exact_merge(&a->noise_all, &b->noise_all);
    exact_merge(&a->noise_first, &b->noise_first);
    exact_normalise(&a->noise_all);
    exact_normalise(&a->noise_first);
    exact_normalise(&a->norm);
    exact_normalise(&a->loss);
    exact_normalise(&a->z_loss);
    exact_normalise(&a->balance);
    for (int k = 0; k < MTP_DEPTH_MAX; k++) {
        exact_merge(&a->mtp[k], &b->mtp[k]);
        exact_normalise(&a->mtp[k]);
    }
    if (b->max > a->max) a->max = b->max;
    a->valid += b->valid;
    a->first_valid += b->first_valid;
    a->ahead += b->ahead;
    a->ahead_unknown += b->ahead_unknown;
    a->nonfinite += b->nonfinite;
    a->bad_losses += b->bad_losses;
    name_culprit(a, b->culprit, b->culprit_rank);
    a->any |= b->any;
    a->all &= b->all;
}

/* |g| and g^2 are exact; other powers would underflow or overflow, the sooner the larger p. */
bool record_needs_max(double p) { return p != 1 && p != 2 && !isinf(p); }

double record_unit(double max, double p) { return record_needs_max(p) && max > 0 ? max : 1; }

double record_norm(const StepRecord *r, double p) {
    if (r->nonfinite) return NAN;
    if (isinf(p)) return r->max;
    double sum = exact_value(&r->norm);
    /* Other powers were taken of g / max, so the largest addend is 1, and the root is safe. */
    return p == 1 ? sum : p == 2 ? sqrt(sum) : record_unit(r->max, p) * pow(sum, 1 / p);
}

/* Mean per valid target. */
static double mean_of(const StepRecord *r, const ExactSum *sum) {
    if (r->bad_losses) return NAN;
    return r->valid > 0 ? exact_value(sum) / (double)r->valid : 0;
}

double record_loss(const StepRecord *r) { return mean_of(r, &r->loss); }
double record_z_loss(const StepRecord *r) { return mean_of(r, &r->z_loss); }
double record_balance(const StepRecord *r) { return mean_of(r, &r->balance); }
double record_mtp(const StepRecord *r, int head) { return mean_of(r, &r->mtp[head]); }

/* Gradients are divided by the targets of the whole step. Those of the first microbatch are multiplied by B /
 * b to make them a mean over its own targets. */
NoiseEstimate record_noise(const StepRecord *r) {
    double all = (double)r->valid, first = (double)r->first_valid, ratio = all / first;
    double whole = exact_value(&r->noise_all), part = exact_value(&r->noise_first) * ratio * ratio;
    if (!(first > 0 && first < all)) return (NoiseEstimate){(double)NAN, (double)NAN};
    return (NoiseEstimate){.signal = (all * whole - first * part) / (all - first),
                           .variance = (part - whole) / (1 / first - 1 / all)};
}
