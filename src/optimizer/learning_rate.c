/* Schedules: TorchTitan's (warmup, stable, decay to a floor), others with the same phases, and Lingua's. Each
 * follows the formulas of its source exactly, oddities included, because a curve that is compared with theirs
 * needs the same learning rates. Tests compare with values of the originals.
 *
 *     1  .    ________________               warmup | stable | decay, down to min_factor
 *        .  /                 \__            TorchTitan: (step + 1) / warmup, so step 0 trains;
 *     m  . /                     \_          Lingua: step / warmup, so it does not */
#include "optimizer/learning_rate.h"

#include <math.h>

/* What is left at fraction x of the decay, from 1 to 0. */
typedef double Decay(double x);
static double no_decay(double x) { return (void)x, 1; }
static double linear(double x) { return 1 - x; }
static double cosine(double x) { return (1 + cos(acos(-1.0) * x)) / 2; }
static double square_root(double x) { return 1 - sqrt(x); }
static double exponential(double x) { return 2 * pow(0.5, x) - 1; }

/* Default fraction of the steps that decay, of kinds with phases. Negative: all after the warmup. */
static double decay_ratio(const LrScheduleOptions *s) {
    if (s->decay_ratio >= 0) return s->decay_ratio;
    if (s->kind == LR_WSD || s->kind == LR_COSINE_LINEAR || s->kind == LR_POWER) return 0.1;
    return s->kind == LR_EXPONENTIAL || s->kind == LR_DROPS ? 0.2 : -1;
}

/* Factor at a fraction of the warmup. With warmup_from 0 it is that fraction, to the bit. */
static double warming(const LrScheduleOptions *s, double share) {
    return s->warmup_from + (1 - s->warmup_from) * share;
}

typedef struct Phases {
    int64_t warmup, stable, decay; /* steps; all together one more than there are */
} Phases;

/* The phases have one step more than the run, so that the last real step is not at the end of the decay: with
 * a floor of 0 it would do nothing. */
static Phases phases_of(const LrScheduleOptions *s, int64_t total) {
    int64_t warmup = s->warmup_steps < total ? s->warmup_steps : total;
    double ratio = decay_ratio(s);
    int64_t decay = ratio < 0 ? total - warmup : (int64_t)nearbyint((double)total * ratio);
    if (decay > total - warmup) decay = total - warmup;
    return (Phases){warmup, total + 1 - warmup - decay, decay};
}

/* Fraction of the decay at a step; 0 before it. */
static double decay_at(const Phases *p, int64_t step) {
    int64_t into = step + 1 - p->warmup - p->stable;
    return into <= 0 ? 0 : fmin(1, (double)into / (double)p->decay);
}

static double titan_factor(const LrScheduleOptions *s, int64_t total, int64_t step, Decay *decay) {
    Phases p = phases_of(s, total);
    if (step < p.warmup) return warming(s, (double)(step + 1) / (double)p.warmup);
    double x = decay_at(&p, step);
    return x > 0 ? s->min_factor + (1 - s->min_factor) * decay(x) : 1;
}

/* DeepSeek-AI, "DeepSeek LLM", 2024: drops by the same factor where the decay begins and half way through
 * it. */
static double drops_factor(const LrScheduleOptions *s, int64_t total, int64_t step) {
    Phases p = phases_of(s, total);
    if (step < p.warmup) return warming(s, (double)(step + 1) / (double)p.warmup);
    double x = decay_at(&p, step);
    return x <= 0 ? 1 : x <= 0.5 ? sqrt(s->min_factor) : s->min_factor;
}

/* Linear from the value before the tail to `end`. */
static double with_tail(const Phases *p, int64_t step, double before, double end) {
    double x = decay_at(p, step);
    return before + (end - before) * x;
}

/* A cosine from the warmup to the last step (OLMo-core's CosWithWarmupAndLinearDecay) that is cut off where
 * the decay begins, and goes linearly to 0 from there. */
static double cosine_linear_factor(const LrScheduleOptions *s, int64_t total, int64_t step) {
    Phases p = phases_of(s, total);
    if (step < p.warmup) return warming(s, (double)(step + 1) / (double)p.warmup);
    int64_t cut = p.warmup + p.stable - 1, at = step < cut ? step : cut;
    double x = total > p.warmup ? (double)(at - p.warmup) / (double)(total - p.warmup) : 0;
    return with_tail(&p, step, s->min_factor + (1 - s->min_factor) * cosine(x), 0);
}

static double power_of(const LrScheduleOptions *s, int64_t step) {
    double warmup = (double)(s->warmup_steps > 0 ? s->warmup_steps : 1), at = (double)(step + 1);
    return at <= warmup ? warming(s, at / warmup) : pow(warmup / at, s->exponent);
}

/* Shen et al., "Power scheduler", 2024: independent of the length of the run, until its tail. */
static double power_factor(const LrScheduleOptions *s, int64_t total, int64_t step) {
    Phases p = phases_of(s, total);
    int64_t cut = p.warmup + p.stable - 1;
    return with_tail(&p, step, fmax(power_of(s, step < cut ? step : cut), s->min_factor), s->min_factor);
}

/* Vaswani et al. 2017 with exponent 1/2; it has no end, and needs no total. */
static double inverse_sqrt_factor(const LrScheduleOptions *s, int64_t step) {
    double factor = power_of(s, step);
    return step < s->warmup_steps ? factor : fmax(factor, s->min_factor);
}

static double range_factor(const LrScheduleOptions *s, int64_t total, int64_t step) {
    if (step + 1 >= total) return 1;
    return pow(s->min_factor, 1 - (double)step / (double)(total - 1));
}

static double lingua_cosine(const LrScheduleOptions *s, double total, double t) {
    double warmup = (double)s->warmup_steps, m = s->min_factor, cycle = s->cycle_length;
    if (t > total) return m;
    /* Odd cycles are mirrored. The last step belongs to the cycle that ends there, not to the next. */
    double in = t < total ? t : total - 1;
    double sign = fmod(floor(in / (total * cycle)), 2) == 0 ? 1 : -1;
    double progress = (t - warmup) / (total - warmup);
    return m + 0.5 * (1 - m) * (sign * cos(acos(-1.0) * pow(progress, s->theta) / cycle) + 1);
}

/* Decays harmonically at the end of each cycle, and starts the next at 1. */
static double lingua_wsd(const LrScheduleOptions *s, double total, double t) {
    double cycle = floor(total * s->cycle_length), ratio = s->decay_ratio < 0 ? 0.1 : s->decay_ratio,
           m = s->min_factor;
    double end = t == total ? total : cycle * (floor(t / cycle) + 1), decay = floor(end * ratio);
    if (t <= end - decay) return 1;
    if (t > end || m == 0) return m;
    double p = (t - (end - decay)) / decay;
    return 1 / (p / m + (1 - p));
}

static double lingua_linear(const LrScheduleOptions *s, double total, double t) {
    double warmup = (double)s->warmup_steps, progress = fmin(1, (t - warmup) / (total - warmup));
    return progress * s->min_factor + (1 - progress);
}

static double lingua_inverse_sqrt(const LrScheduleOptions *s, double total, double t) {
    (void)total;
    return fmax(pow((double)s->warmup_steps, s->exponent) / pow(t, s->exponent), s->min_factor);
}

/* Factor at step t, a step after the warmup, of `total` steps. */
typedef double LinguaRule(const LrScheduleOptions *s, double total, double t);
static double lingua_factor(const LrScheduleOptions *s, int64_t total, int64_t step, LinguaRule *rule) {
    double t = (double)step, warmup = (double)s->warmup_steps;
    return t < warmup ? warming(s, t / warmup) : rule(s, (double)total, t);
}

double learning_rate_factor(const LrScheduleOptions *s, int64_t total, int64_t step) {
    switch ((LrScheduleKind)s->kind) {
    case LR_CONSTANT: return titan_factor(s, total, step, no_decay);
    case LR_LINEAR:
    case LR_WSD: return titan_factor(s, total, step, linear);
    case LR_COSINE: return titan_factor(s, total, step, cosine);
    case LR_SQRT: return titan_factor(s, total, step, square_root);
    case LR_EXPONENTIAL: return titan_factor(s, total, step, exponential);
    case LR_DROPS: return drops_factor(s, total, step);
    case LR_COSINE_LINEAR: return cosine_linear_factor(s, total, step);
    case LR_INVERSE_SQRT: return inverse_sqrt_factor(s, step);
    case LR_RANGE: return range_factor(s, total, step);
    case LR_POWER: return power_factor(s, total, step);
    case LR_LINGUA_LINEAR: return lingua_factor(s, total, step, lingua_linear);
    case LR_LINGUA_COSINE: return lingua_factor(s, total, step, lingua_cosine);
    case LR_LINGUA_WSD: return lingua_factor(s, total, step, lingua_wsd);
    case LR_LINGUA_INVERSE_SQRT: return lingua_factor(s, total, step, lingua_inverse_sqrt);
    }
    CHECK(false);
}
