/* Two families of schedules: TorchTitan's (warm up, stay, decay to a floor) and Lingua's, each by the
 * formulas of its source, to the step, their oddities too: a curve that is to be compared with theirs needs
 * the same learning rates. Tests compare them with values of the originals.
 *
 *     1  .    ________________               warmup | stable | decay, down to min_factor
 *        .  /                 \__            TorchTitan: (step + 1) / warmup, so step 0 trains;
 *     m  . /                     \_          Lingua: step / warmup, so it does not */
#include "optimizer/learning_rate.h"

#include <math.h>

/* What is left at share x of the decay, from 1 to 0; linear and wsd fall alike. */
static double decayed(int kind, double x) {
    if (kind == SCHEDULE_COSINE) return (1 + cos(acos(-1.0) * x)) / 2;
    if (kind == SCHEDULE_SQRT) return 1 - sqrt(x);
    return kind == SCHEDULE_CONSTANT ? 1 : 1 - x;
}

/* One step more than there are is laid out, so that the last one that is made is not at the floor's very end:
 * with a floor of 0 it would do nothing. */
static double titan_factor(const ScheduleOptions *s, int64_t total, int64_t step) {
    int64_t warmup = s->warmup_steps < total ? s->warmup_steps : total;
    double ratio = s->decay_ratio < 0 && s->kind == SCHEDULE_WSD ? 0.1 : s->decay_ratio;
    int64_t decay = ratio < 0 ? total - warmup : (int64_t)nearbyint((double)total * ratio);
    if (decay > total - warmup) decay = total - warmup;
    int64_t stable = total + 1 - warmup - decay;
    if (step < warmup) return (double)(step + 1) / (double)warmup;
    if (step < warmup + stable) return 1;
    double x = fmin(1, (double)(step + 1 - warmup - stable) / (double)decay);
    return s->min_factor + (1 - s->min_factor) * decayed(s->kind, x);
}

/* Vaswani et al. 2017 with exponent 1/2; it has no end, and needs no total. */
static double inverse_sqrt_factor(const ScheduleOptions *s, int64_t step) {
    double warmup = (double)(s->warmup_steps > 0 ? s->warmup_steps : 1), at = (double)(step + 1);
    return at <= warmup ? at / warmup : fmax(pow(warmup / at, s->exponent), s->min_factor);
}

static double range_factor(const ScheduleOptions *s, int64_t total, int64_t step) {
    if (step + 1 >= total) return 1;
    return pow(s->min_factor, 1 - (double)step / (double)(total - 1));
}

static double lingua_cosine(const ScheduleOptions *s, double total, double t) {
    double warmup = (double)s->warmup_steps, m = s->min_factor, cycle = s->cycle_length;
    if (t > total) return m;
    /* Odd cycles run mirrored. The last step belongs to the cycle that ends there, not to the next. */
    double in = t < total ? t : total - 1;
    double sign = fmod(floor(in / (total * cycle)), 2) == 0 ? 1 : -1;
    double progress = (t - warmup) / (total - warmup);
    return m + 0.5 * (1 - m) * (sign * cos(acos(-1.0) * pow(progress, s->theta) / cycle) + 1);
}

/* Decays harmonically at the end of each cycle, and starts the next at 1. */
static double lingua_wsd(const ScheduleOptions *s, double total, double t) {
    double cycle = floor(total * s->cycle_length), ratio = s->decay_ratio < 0 ? 0.1 : s->decay_ratio,
           m = s->min_factor;
    double end = t == total ? total : cycle * (floor(t / cycle) + 1), decay = floor(end * ratio);
    if (t <= end - decay) return 1;
    if (t > end || m == 0) return m;
    double p = (t - (end - decay)) / decay;
    return 1 / (p / m + (1 - p)); /* harmonic */
}

static double lingua_factor(const ScheduleOptions *s, int64_t total, int64_t step) {
    double t = (double)step, n = (double)total, warmup = (double)s->warmup_steps, m = s->min_factor;
    if (t < warmup) return t / warmup;
    if (s->kind == SCHEDULE_LINGUA_COSINE) return lingua_cosine(s, n, t);
    if (s->kind == SCHEDULE_LINGUA_WSD) return lingua_wsd(s, n, t);
    if (s->kind == SCHEDULE_LINGUA_INVERSE_SQRT)
        return fmax(pow(warmup, s->exponent) / pow(t, s->exponent), m);
    double progress = fmin(1, (t - warmup) / (n - warmup));
    return progress * m + (1 - progress);
}

double learning_rate_factor(const ScheduleOptions *s, int64_t total, int64_t step) {
    if (s->kind == SCHEDULE_INVERSE_SQRT) return inverse_sqrt_factor(s, step);
    if (s->kind == SCHEDULE_RANGE) return range_factor(s, total, step);
    return s->kind >= SCHEDULE_LINGUA_LINEAR ? lingua_factor(s, total, step) : titan_factor(s, total, step);
}
