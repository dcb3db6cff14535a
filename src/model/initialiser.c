/* Initial values of parameters: a table of initialisers by the role of a parameter.
 *
 * An entry is a standard deviation, what it scales with, and where the normal distribution is cut. Dividing
 * what is added to the residual stream by the square root of the number of additions keeps the stream's
 * variance from growing with depth (Radford et al., "Language models are unsupervised multitask learners",
 * 2019).
 *
 * Elsewhere called: init_method (Megatron), Kaiming or Xavier initialisation. There is no muP. */
#include <math.h>

#include "model/families/family.h"

typedef enum Scale {
    SCALE_GIVEN,  /* std */
    SCALE_FIXED,  /* Start.fixed */
    SCALE_HIDDEN, /* h^-0.5 */
    SCALE_INPUTS  /* (inputs of the matrix)^-0.5 */
} Scale;
typedef enum Depth {
    DEPTH_NONE,
    DEPTH_LAYER,    /* divided by sqrt(2 (layer + 1)) */
    DEPTH_MODEL,    /* divided by sqrt(2 (L + 1)) */
    DEPTH_SUBLAYERS /* divided by sqrt(2 L) */
} Depth;
typedef enum Limit { LIMIT_NONE, LIMIT_STD, LIMIT_ABSOLUTE } Limit;

typedef struct Start {
    Scale scale;
    double fixed; /* of SCALE_FIXED */
    Depth depth;
    Limit limit;
    double within; /* cut at plus and minus this: standard deviations, or absolute */
} Start;

/* Each row is an initialiser as its source has it: Hugging Face's initializer_range; TorchTitan's and
 * Lingua's models, whose depth is the block's index or that of the whole model; GPT-2's report. Norms and
 * biases are not in the table: they start as the identity and as zeros everywhere. */
static const Start starts[INIT_KINDS][INIT_ROLES] = {
    [INIT_NORMAL] = {[ROLE_EMBEDDING] = {.scale = SCALE_GIVEN}}, /* zeros; all other roles too */
    [INIT_TORCHTITAN] = {[ROLE_EMBEDDING] = {SCALE_FIXED, .fixed = 1},
                         [ROLE_POSITIONS] = {SCALE_FIXED, .fixed = 0.02},
                         [ROLE_HEAD] = {SCALE_HIDDEN, .limit = LIMIT_STD, .within = 3},
                         [ROLE_INNER] = {SCALE_FIXED, 0.02, DEPTH_NONE, LIMIT_ABSOLUTE, 2},
                         [ROLE_UP] = {SCALE_FIXED, 0.02, DEPTH_LAYER, LIMIT_ABSOLUTE, 2},
                         [ROLE_OUT] = {SCALE_FIXED, 0.02, DEPTH_LAYER, LIMIT_ABSOLUTE, 2},
                         [ROLE_DOWN] = {SCALE_FIXED, 0.02, DEPTH_LAYER, LIMIT_ABSOLUTE, 2}},
    [INIT_LINGUA] = {[ROLE_EMBEDDING] = {SCALE_HIDDEN, .limit = LIMIT_STD, .within = 3},
                     [ROLE_POSITIONS] = {SCALE_FIXED, .fixed = 0.02},
                     [ROLE_HEAD] = {SCALE_HIDDEN, .limit = LIMIT_STD, .within = 3},
                     [ROLE_INNER] = {SCALE_HIDDEN, .limit = LIMIT_STD, .within = 3},
                     [ROLE_UP] = {SCALE_HIDDEN, .limit = LIMIT_STD, .within = 3},
                     [ROLE_OUT] = {SCALE_HIDDEN, .depth = DEPTH_MODEL, .limit = LIMIT_STD, .within = 3},
                     [ROLE_DOWN] = {SCALE_INPUTS, .depth = DEPTH_MODEL, .limit = LIMIT_STD, .within = 3}},
    [INIT_GPT2] = {[ROLE_EMBEDDING] = {SCALE_FIXED, .fixed = 0.02},
                   [ROLE_POSITIONS] = {SCALE_FIXED, .fixed = 0.02},
                   [ROLE_HEAD] = {SCALE_FIXED, .fixed = 0.02},
                   [ROLE_INNER] = {SCALE_FIXED, .fixed = 0.02},
                   [ROLE_UP] = {SCALE_FIXED, .fixed = 0.02},
                   [ROLE_OUT] = {SCALE_FIXED, 0.02, .depth = DEPTH_SUBLAYERS},
                   [ROLE_DOWN] = {SCALE_FIXED, 0.02, .depth = DEPTH_SUBLAYERS}},
};

static double base_of(const Start *s, const Param *p, const ModelConfig *c, double given) {
    switch (s->scale) {
    case SCALE_GIVEN: return given;
    case SCALE_FIXED: return s->fixed;
    case SCALE_HIDDEN: return 1 / sqrt((double)c->hidden_size);
    case SCALE_INPUTS: return 1 / sqrt((double)model_dim(c, p->row->fused ? DIM_EXPERT : p->row->cols));
    }
    return 0;
}

/* Layers count from 0, so the first block is divided by sqrt(2): two sublayers have been added after it. */
static double depth_of(const Start *s, const Param *p, const ModelConfig *c) {
    switch (s->depth) {
    case DEPTH_NONE: return 1;
    case DEPTH_LAYER: return sqrt(2.0 * (p->layer + 1));
    case DEPTH_MODEL: return sqrt(2.0 * (double)(c->num_hidden_layers + 1));
    case DEPTH_SUBLAYERS: return sqrt(2.0 * (double)c->num_hidden_layers);
    }
    return 1;
}

/* The identity, in the form in which the family's norm takes its weights. */
static double norm_start(const ModelConfig *c) {
    return model_family(c)->arch.norm == NORM_RMS_PLUS_ONE ? 0 : 1;
}

/* Then exp(-8 log(1 + exp(lambda))) is u^4. */
static double lambda_of(double uniform) {
    double u = 0.81 + uniform * (0.998 - 0.81);
    return log(expm1(-log(u) / 2));
}

/* Then log(1 + exp(dt_bias)) is 0.001^(1 - u) 0.1^u. */
static double step_of(double uniform) {
    double step = 0.001 * pow(100, uniform);
    return log(expm1(step));
}
static double decay_of(double uniform) { return log(1 + 15 * uniform); }

/* init_normal cuts in standard deviations. An absolute limit is divided by the parameter's own deviation,
 * after that was reduced by depth: so torchtitan's deeper layers are cut at more deviations. */
InitRule param_init_rule(const Param *p, const ModelConfig *c, InitKind kind, double std) {
    InitRole role = p->row->init;
    if (role == ROLE_NORM) return (InitRule){.value = norm_start(c)};
    if (role == ROLE_ZEROS) return (InitRule){.value = 0};
    /* The variance of PEFT's uniform distribution on +-1 / sqrt(inputs). */
    if (role == ROLE_ADAPTER)
        return (InitRule){.std = 1 / sqrt(3.0 * (double)model_dim(c, p->row->cols)),
                          .lo = -(double)INFINITY,
                          .hi = (double)INFINITY};
    /* As in Lingua; a channel has K taps. */
    if (role == ROLE_CONV) return (InitRule){.std = 1 / sqrt((double)c->conv_size), .lo = -3, .hi = 3};
    if (role == ROLE_LAMBDA) return (InitRule){.of = lambda_of};
    if (role == ROLE_STEP) return (InitRule){.of = step_of};
    if (role == ROLE_DECAY) return (InitRule){.of = decay_of};
    if (role == ROLE_SKIP) return (InitRule){.value = 1};
    /* A tied embedding is also the head, and a head of N(0, 1) would start with a loss many times log V. */
    if (role == ROLE_EMBEDDING && c->tie_word_embeddings) role = ROLE_HEAD;
    const Start *s = &starts[kind][role];
    InitRule r = {.std = base_of(s, p, c, std) / depth_of(s, p, c)};
    switch (s->limit) {
    case LIMIT_NONE: r.hi = (double)INFINITY; break;
    case LIMIT_STD: r.hi = s->within; break;
    case LIMIT_ABSOLUTE: r.hi = s->within / r.std; break;
    }
    r.lo = -r.hi;
    return r;
}
