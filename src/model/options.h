/* What a configuration says of the model and its adapters, and what of a config.json becomes keys. */
#ifndef WEFT_MODEL_OPTIONS_H
#define WEFT_MODEL_OPTIONS_H

#include "base/options.h"
#include "model/config.h"

typedef struct ModelOptions {
    ModelConfig shape;
    int family;                                     /* index in families[]; shape.family follows it */
    StringList mixer;                               /* names of mixers; shape.mixers follows it */
    StringList rope_short_factor, rope_long_factor; /* numbers; shape.rope_scaling follows them */
    char *config;                                   /* a config.json to take the shape from */
    char *init;        /* a Hugging Face directory to start from; empty: random weights */
    bool keeps_tokens; /* no key: the ids of init's files are of the run's tokenizer too */
    int initialiser;   /* InitKind */
    double init_std;
} ModelOptions;

/* Adapters beside a base that stays as it is (model/adapters.h). */
typedef struct LoraOptions {
    int64_t rank; /* 0: none */
    double alpha;
    bool rslora; /* the scale is alpha / sqrt(rank), not alpha / rank */
    char *match; /* pattern of names of matrices; empty: all of the blocks */
} LoraOptions;

extern const Option model_options[], lora_options[];

/* The functions below set fields of *m, a part of the struct that `set` fills. */

/* What the shape has of lists of words that were given: mixers, factors of longrope. */
ErrorCode model_options_read(ModelOptions *m, const OptionSet *set, Error *err);
/* The shape of a config.json; keys that were given win. *own is the shape as the file has it. */
ErrorCode model_options_take(ModelOptions *m, OptionSet *set, const char *path, ModelConfig *own, Error *err);
/* Where there is no such file: what the family has. */
ErrorCode model_options_default(ModelOptions *m, OptionSet *set, Error *err);
/* How the family draws its weights, unless a key says it. */
ErrorCode model_options_initialiser(const ModelOptions *m, OptionSet *set, Error *err);
/* Refuses keys that were given and do not fit weights of that shape, from the directory. */
ErrorCode model_options_fit(const ModelOptions *m, const OptionSet *set, const ModelConfig *own,
                            const char *dir, Error *err);
/* Brings to one what may be said in several ways. */
ErrorCode model_options_derive(ModelOptions *m, OptionSet *set, Error *err);

#endif
