/* The frequencies of RoPE, and how they are scaled for long contexts. Pair i of the R rotated elements of a
 * head rotates by position * f_i. Without scaling f_i = theta^(-2i/R); with it:
 *
 *     llama3   long wavelengths divided by the factor, short ones kept, those between blended ("The Llama 3
 *              herd of models", 2024; the rule is that of the published checkpoints)
 *     linear   f_i / factor (Chen et al., "Extending context window ... via positional interpolation", 2023)
 *     dynamic  theta grows once the sequence is longer than max_position_embeddings, which it never is here
 *     yarn     f_i (1 - t + t / factor), with t a ramp over pairs, from those that rotate beta_fast times
 *              within the original context to those that rotate beta_slow times; and all sines and cosines
 *              times 0.1 ln(factor) + 1 (Peng et al., "YaRN", 2023)
 *     longrope f_i / short_i, or f_i / long_i for sequences longer than the original context, and all sines
 *              and cosines times sqrt(1 + ln(factor) / ln(original)) (Ding et al., "LongRoPE", 2024)
 *
 * All in double: a rounding error of f_i would grow with the position.
 *
 * Elsewhere called: RoPE, YaRN, long-context scaling. */
#include "model/rotation.h"

#include <math.h>

static const double PI = 3.14159265358979323846;

/* theta^(-2i/R) */
static double plain_frequency(double theta, int64_t dim, int64_t i) {
    return pow(theta, -2.0 * (double)i / (double)dim);
}

/* A wavelength is the number of positions of one full rotation, 2 pi / f. The blend is linear in rotations
 * within the original context, original / wavelength, from low_freq_factor (divided) to high_freq_factor
 * (kept). */
static double llama3(const RopeScaling *s, double frequency) {
    double wavelength = 2 * PI / frequency, original = (double)s->original_max_position_embeddings;
    if (wavelength < original / s->high_freq_factor) return frequency;
    if (wavelength > original / s->low_freq_factor) return frequency / s->factor;
    if (s->high_freq_factor <= s->low_freq_factor) return frequency; /* Llama 4's: nothing lies between */
    double blend = (original / wavelength - s->low_freq_factor) / (s->high_freq_factor - s->low_freq_factor);
    return (1 - blend) * frequency / s->factor + blend * frequency;
}

/* Fractional index of the pair that rotates this often within the original context. */
static double yarn_pair(const RopeScaling *s, double theta, int64_t dim, double turns) {
    double original = (double)s->original_max_position_embeddings;
    return (double)dim * log(original / (turns * 2 * PI)) / (2 * log(theta));
}

/* Pairs below `low` rotate fast and are kept; those above `high` are divided. Where both ends fall on one
 * pair the ramp would divide by zero: transformers makes it 0.001 long, and so does weft. */
static double yarn(const RopeScaling *s, double theta, int64_t dim, int64_t i) {
    double low = yarn_pair(s, theta, dim, s->beta_fast), high = yarn_pair(s, theta, dim, s->beta_slow);
    if (s->truncate) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, (double)(dim - 1));
    double ramp = ((double)i - low) / (high > low || high < low ? high - low : 0.001);
    double t = fmin(fmax(ramp, 0), 1);
    return plain_frequency(theta, dim, i) * (1 - t + t / s->factor);
}

/* Only the first table is scaled: layers with windows see no further than their windows, however long the
 * context. */
static bool is_scaled(const RopeScaling *s, int rotation) { return rotation == 0 && rope_is_scaled(s); }

bool rotation_is_long(const ModelConfig *c, int64_t context) {
    const RopeScaling *s = &c->rope_scaling;
    return s->kind == ROPE_LONGROPE && context > s->original_max_position_embeddings;
}

static double frequency_of(const ModelConfig *c, int rotation, int64_t context, int64_t i) {
    const RopeScaling *s = &c->rope_scaling;
    int64_t dim = model_rotary_dim(c);
    double theta = rotation == 0 ? c->rope_theta : c->rope_local_theta;
    double plain = plain_frequency(theta, dim, i);
    if (!is_scaled(s, rotation)) return plain;
    switch ((RopeKind)s->kind) {
    case ROPE_LLAMA3: return llama3(s, plain);
    case ROPE_LINEAR: return plain / s->factor;
    case ROPE_DYNAMIC: return plain;
    case ROPE_YARN: return yarn(s, theta, dim, i);
    case ROPE_LONGROPE: return plain / (rotation_is_long(c, context) ? s->long_factor : s->short_factor)[i];
    }
    return plain;
}

/* YaRN's 0.1 ln(factor) + 1, with the weight that DeepSeek's files give it. */
static double magnitude(double factor, double scale) { return 0.1 * scale * log(factor) + 1; }

/* Factor of sines and cosines; scores are scaled by its square. */
static double length_of(const RopeScaling *s, int rotation) {
    if (!is_scaled(s, rotation) || (s->kind != ROPE_YARN && s->kind != ROPE_LONGROPE)) return 1;
    if (s->attention_factor > 0) return s->attention_factor;
    if (s->kind == ROPE_LONGROPE)
        return s->factor > 1 ? sqrt(1 + log(s->factor) / log((double)s->original_max_position_embeddings))
                             : 1;
    if (s->mscale > 0 && s->mscale_all_dim > 0)
        return magnitude(s->factor, s->mscale) / magnitude(s->factor, s->mscale_all_dim);
    return magnitude(s->factor, 1);
}

float rotation_score_scale(const ModelConfig *c) {
    const RopeScaling *s = &c->rope_scaling;
    bool longer = s->factor > 1 && s->mscale_all_dim > 0;
    double by = longer ? magnitude(s->factor, s->mscale_all_dim) : 1;
    return (float)(by * by / sqrt((double)c->head_dim));
}

float rotation_query_factor(const ModelConfig *c, int64_t position) {
    int64_t steps = (position + 1) / c->floor_scale;
    return (float)(c->attn_scale * log1p((double)steps) + 1);
}

void rotation_angles(const ModelConfig *c, int rotation, int64_t context, int64_t position, float *row) {
    int64_t half = model_rotary_dim(c) / 2;
    double length = length_of(&c->rope_scaling, rotation);
    for (int64_t i = 0; i < half; i++) {
        double angle = (double)position * frequency_of(c, rotation, context, i);
        row[i] = (float)(length * cos(angle));
        row[half + i] = (float)(length * sin(angle));
    }
}
