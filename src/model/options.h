/* The options of the model and of its adapters, and how a config.json fills them. */
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
    char *init_found;  /* not a key: what init stands for (model_options_init); NULL: init */
    bool keeps_tokens; /* not a key: token ids in init's files are also those of the run's tokenizer */
    int initialiser;   /* InitKind */
    double init_std;
} ModelOptions;

/* model.init, or where it was found: the URL of one step, later the directory of its copy. */
const char *model_options_init(const ModelOptions *m);

/* LoRA adapters over a frozen base (model/adapters.h). */
typedef struct LoraOptions {
    int64_t rank; /* 0: none */
    double alpha;
    bool rslora; /* the scale is alpha / sqrt(rank), not alpha / rank */
    char *match; /* pattern of matrix names; empty: all matrices of the blocks */
} LoraOptions;

extern const Option model_options[], lora_options[];

/* The functions below set fields of *m, which is part of the struct that `set` fills. */

/* Sets what the shape has from lists of words: mixers, longrope's factors. */
ErrorCode model_options_read(ModelOptions *m, const OptionSet *set, Error *err);
/* Takes the shape of a config.json, except for keys that were given. *own is the shape as in the file. */
ErrorCode model_options_take(ModelOptions *m, OptionSet *set, const char *path, ModelConfig *own, Error *err);
/* Takes the family's defaults, where there is no config.json. */
ErrorCode model_options_default(ModelOptions *m, OptionSet *set, Error *err);
/* Takes the family's initialiser, unless the key was given. */
ErrorCode model_options_initialiser(const ModelOptions *m, OptionSet *set, Error *err);
/* Refuses given keys that do not fit weights of the shape *own in directory `dir`. */
ErrorCode model_options_fit(const ModelOptions *m, const OptionSet *set, const ModelConfig *own,
                            const char *dir, Error *err);
/* Brings equivalent spellings to one form. */
ErrorCode model_options_derive(ModelOptions *m, OptionSet *set, Error *err);

#endif
