/* What a configuration says of updates: the optimizer, groups of parameters, and the learning rate over the
 * steps. */
#ifndef WEFT_OPTIMIZER_OPTIONS_H
#define WEFT_OPTIMIZER_OPTIONS_H

#include "base/options.h"

typedef enum DecayRule { DECAY_MATRICES, DECAY_ALL } DecayRule;
typedef enum ScheduleKind {
    SCHEDULE_CONSTANT,
    SCHEDULE_LINEAR,
    SCHEDULE_COSINE,
    SCHEDULE_SQRT,
    SCHEDULE_WSD,
    SCHEDULE_EXPONENTIAL,
    SCHEDULE_DROPS,
    SCHEDULE_COSINE_LINEAR,
    SCHEDULE_INVERSE_SQRT,
    SCHEDULE_RANGE,
    SCHEDULE_POWER,
    SCHEDULE_LINGUA_LINEAR,
    SCHEDULE_LINGUA_COSINE,
    SCHEDULE_LINGUA_WSD,
    SCHEDULE_LINGUA_INVERSE_SQRT
} ScheduleKind;

/* What an optimizer does with a group of parameters. In an item of optimizer.groups a number that was not
 * given is NaN, a choice -1: what the section says holds. */
typedef enum OptimizerKind { OPTIMIZER_ADAMW, OPTIMIZER_SGD, OPTIMIZER_MUON, OPTIMIZER_KINDS } OptimizerKind;
typedef enum MuonScale { MUON_MOONLIGHT, MUON_SCALE_JORDAN, MUON_SPECTRAL } MuonScale;
typedef enum MuonCoefficients { MUON_JORDAN, MUON_POLAR_EXPRESS } MuonCoefficients;
#define MUON_SCALES "moonlight|jordan|spectral"
#define MUON_COEFFICIENTS "jordan|polar_express"
typedef struct OptimizerSettings {
    int kind;   /* OptimizerKind */
    int states; /* Dtype of what it keeps of each element */
    double lr, weight_decay, beta1, beta2, eps, momentum;
    int nesterov;          /* 0, 1 */
    int muon_scale;        /* MuonScale */
    int muon_coefficients; /* MuonCoefficients */
} OptimizerSettings;

typedef struct OptimizerGroup {
    char *match; /* pattern of names of parameters */
    OptimizerSettings settings;
    int whole;  /* 1: each matrix stays on one rank; 0, -1: it may be cut */
    int frozen; /* 1: not trained; 0, -1: trained */
} OptimizerGroup;

typedef struct OptimizerOptions {
    OptimizerSettings settings; /* of what is in no group */
    double clip, clip_norm;
    int decay;         /* DecayRule */
    int64_t seed;      /* of the rounding of states */
    double ema;        /* decay of the average of weights; 0: none */
    ObjectList groups; /* OptimizerGroup */
} OptimizerOptions;

typedef struct ScheduleOptions {
    int kind;                          /* ScheduleKind */
    int64_t warmup_steps, total_steps; /* total 0: train.steps */
    double warmup_from;                /* share of the peak */
    double decay_ratio;                /* share of the steps that decay; negative: all after the warmup */
    double min_factor;
    double exponent, cycle_length, theta; /* Lingua's */
} ScheduleOptions;

extern const Option optimizer_options[], schedule_options[];
extern const Option group_options[]; /* of an OptimizerGroup */

#endif
