/* Options of updates: the optimizer, parameter groups, and the learning-rate schedule. */
#ifndef WEFT_OPTIMIZER_OPTIONS_H
#define WEFT_OPTIMIZER_OPTIONS_H

#include "base/choices.h"
#include "base/options.h"

#define DECAY_RULES(X) X(DECAY_MATRICES, "matrices") X(DECAY_ALL, "all")
typedef enum DecayRule { DECAY_RULES(CHOICE_CONSTANT) } DecayRule;
/* clang-format off */
#define LR_SCHEDULE_KINDS(X) \
    X(LR_CONSTANT, "constant") X(LR_LINEAR, "linear") X(LR_COSINE, "cosine") \
    X(LR_SQRT, "sqrt") X(LR_WSD, "wsd") X(LR_EXPONENTIAL, "exponential") \
    X(LR_DROPS, "drops") X(LR_COSINE_LINEAR, "cosine_linear") \
    X(LR_INVERSE_SQRT, "inverse_sqrt") X(LR_RANGE, "range") X(LR_POWER, "power") \
    X(LR_LINGUA_LINEAR, "lingua_linear") X(LR_LINGUA_COSINE, "lingua_cosine") \
    X(LR_LINGUA_WSD, "lingua_wsd") X(LR_LINGUA_INVERSE_SQRT, "lingua_inverse_sqrt")
/* clang-format on */
typedef enum LrScheduleKind { LR_SCHEDULE_KINDS(CHOICE_CONSTANT) } LrScheduleKind;

/* Settings of an optimizer for a group of parameters. In an item of optimizer.groups a number that was not
 * given is NaN and a choice is -1: the value of the section applies. */
#define OPTIMIZER_NAMES(X) X(OPTIMIZER_ADAMW, "adamw") X(OPTIMIZER_SGD, "sgd") X(OPTIMIZER_MUON, "muon")
typedef enum OptimizerKind { OPTIMIZER_NAMES(CHOICE_CONSTANT) OPTIMIZER_KINDS } OptimizerKind;
#define MUON_SCALES(X) \
    X(MUON_MOONLIGHT, "moonlight") X(MUON_SCALE_JORDAN, "jordan") X(MUON_SPECTRAL, "spectral")
typedef enum MuonScale { MUON_SCALES(CHOICE_CONSTANT) } MuonScale;
#define MUON_COEFFICIENTS(X) X(MUON_JORDAN, "jordan") X(MUON_POLAR_EXPRESS, "polar_express")
typedef enum MuonCoefficients { MUON_COEFFICIENTS(CHOICE_CONSTANT) } MuonCoefficients;
typedef struct OptimizerSettings {
    int kind;   /* OptimizerKind */
    int states; /* Dtype of its states */
    double lr, weight_decay, beta1, beta2, eps, momentum;
    int nesterov;          /* 0, 1 */
    int muon_scale;        /* MuonScale */
    int muon_coefficients; /* MuonCoefficients */
} OptimizerSettings;

typedef struct OptimizerGroup {
    char *match; /* pattern that is searched in parameter names */
    OptimizerSettings settings;
    int whole;  /* 1: each matrix stays on one rank; 0, -1: it may be sharded */
    int frozen; /* 1: not trained; 0, -1: trained */
} OptimizerGroup;

typedef struct OptimizerOptions {
    OptimizerSettings settings; /* for parameters in no group */
    double clip, clip_norm;
    int decay;         /* DecayRule */
    int64_t seed;      /* for the stochastic rounding of states */
    double ema;        /* decay of the average of weights; 0: none */
    ObjectList groups; /* OptimizerGroup */
} OptimizerOptions;

typedef struct LrScheduleOptions {
    int kind;                          /* LrScheduleKind */
    int64_t warmup_steps, total_steps; /* total 0: train.steps */
    double warmup_from;                /* fraction of the peak */
    double decay_ratio;                /* fraction of the steps that decay; negative: all after the warmup */
    double min_factor; /* fraction of the peak at the end of the decay; min_lr / lr in Megatron */
    double exponent, cycle_length, theta; /* Lingua's */
} LrScheduleOptions;

extern const Option optimizer_options[], lr_schedule_options[];
extern const Option group_options[]; /* of an OptimizerGroup */

#endif
