/* The configuration of a run: one struct, one option table. Sections follow the house: model, data, train,
 * numerics, mesh, parallel, comm, pipeline, optimizer, schedule, checkpoint, metrics, run. */
#ifndef WEFT_CONFIG_CONFIG_H
#define WEFT_CONFIG_CONFIG_H

#include "base/options.h"
#include "comm/options.h"
#include "config/choices.h"
#include "data/config.h"
#include "model/options.h"
#include "optimizer/options.h"

typedef struct RunConfig {
    char *dir;                /* run directory: everything a run writes */
    int64_t seed;             /* of the initial weights */
    int64_t threads;          /* 0: one per core */
    int64_t most_threads;     /* no key: of the rank that has most, once ranks have agreed; 0: threads */
    int device;               /* of DEVICE_KINDS */
    bool overwrite;           /* start anew in a directory that holds a run */
    StringList allow_changes; /* keys that may differ from the checkpoint's */
} RunConfig;

typedef struct TrainOptions {
    int64_t steps, context;
    int64_t microbatch;       /* sequences; 0: chosen for speed */
    int64_t tokens_per_step;  /* 0: one microbatch */
    int64_t batch_start;      /* tokens of the first steps; 0: tokens_per_step */
    int64_t batch_warmup;     /* tokens over which steps grow to tokens_per_step */
    int compute;              /* ComputeKind */
    int recompute;            /* Recompute */
    int64_t loss_rows;        /* tokens whose logits exist at a time; 0: chosen */
    double z_loss;            /* coefficient; 0: none */
    double router_bias_speed; /* by how much the bias of an expert moves in a step; 0: not at all */
    double expert_capacity;   /* rows of a round of visits, over those of a rank's own choices */
    int64_t mtp_depth;        /* MTP heads */
    int mtp_kind;             /* MtpKind */
    double mtp_loss_weight;
    int64_t stop_after_bad; /* non-finite steps in a row */
    bool split_backward;
    int numerics;      /* Numerics */
    int gradient_sync; /* GradientSync */
    int reshard;       /* Reshard */
} TrainOptions;

/* How sums are cut that ranks may share, whatever the mesh. */
typedef struct NumericsOptions {
    int64_t canonical_tp; /* leaves of those that mesh.tp shares; 0: its degree when the run began */
    int64_t canonical_cp; /* spans of a microbatch's tokens, of exact sums; 0: what mesh.cp needs then */
} NumericsOptions;

/* How work is shared, where there are several ways. */
typedef struct ParallelOptions {
    int context; /* CpComm */
} ParallelOptions;

typedef struct PipelineOptions {
    char *schedule;       /* a name, or a CSV file */
    int64_t microbatches; /* of a step, of each data-parallel rank; 0: what train.microbatch gives */
    StringList split;     /* auto, uniform, or names of units */
    int64_t layers_per_stage;
    int64_t stages_per_rank;                   /* 0: what the schedule is made for */
    int64_t first_stage_less, last_stage_less; /* weights of embedding and head in the uniform split */
    double memory_gib;                         /* of a rank, for split: auto; 0: not looked at */
} PipelineOptions;

typedef struct CheckpointOptions {
    int64_t every, keep, keep_every;
    int dtype;              /* StoreType, of the model file */
    bool async;             /* ask config_saves_async */
    bool last_weights_only; /* the checkpoint of the last step cannot be trained on */
    char *keep_best;        /* a figure (train/best.h); "": none */
    double mttf_hours;      /* mean time between failures, for the suggested interval; 0: no suggestion */
} CheckpointOptions;

typedef struct ValidationOptions {
    int64_t every, samples;
} ValidationOptions;

typedef struct EvaluationOptions {
    ObjectList tasks; /* TaskSource */
    int64_t every;
    bool add_bos;
} EvaluationOptions;

typedef struct MetricsOptions {
    int64_t log_freq;
    bool tensorboard, profile;
    double spike; /* robust deviations that make a spike; 0: none */
    bool noise_scale;
    StringList log_ranks; /* whole numbers: config_logs_rank */
    bool all_ranks;       /* a metrics file for each rank */
    char *trace;          /* steps: config_traces */
    int64_t probe;        /* steps between probes; 0: none */
    StringList command;   /* words of a program that gets the records; none: no program */
    double command_wait_s;
} MetricsOptions;

typedef struct CheckOptions {
    int64_t replicas_every; /* 0: never */
} CheckOptions;

typedef struct RestartOptions {
    double backoff_s; /* before the first restart; doubles with each */
} RestartOptions;

typedef struct Config {
    RunConfig run;
    ModelOptions model;
    LoraOptions lora;
    DataConfig data;
    TrainOptions train;
    NumericsOptions numerics;
    MeshOptions mesh;
    ParallelOptions parallel;
    CommOptions comm;
    PipelineOptions pipeline;
    OptimizerOptions optimizer;
    ScheduleOptions schedule;
    ValidationOptions validation;
    EvaluationOptions evaluation;
    CheckpointOptions checkpoint;
    MetricsOptions metrics;
    CheckOptions check;
    RestartOptions restart;
} Config;

/* The rows of all sections. */
const Option *config_options(void);
/* What TorchTitan, Lingua, transformers, litgpt, nanoGPT and Megatron call keys; ended by name == NULL. */
extern const OptionSynonym config_synonyms[];

/* Which model directory model.init means (checkpoint_find_model: configuration is below checkpoints). The
 * caller frees *dir. */
typedef ErrorCode (*FindModel)(const char *where, char **dir, Error *err);

/* Reads a file (NULL for none) and then overrides "section.key=value", completes and checks across options.
 * vocab_size 0 stays 0 until the tokenizer is known. The caller frees the set with options_free. */
ErrorCode config_load(Config *c, OptionSet *set, const char *path, int override_count,
                      const char *const *overrides, FindModel find, Error *err);

/* What follows from the keys alone, in c and its set: config_load has done it. */
ErrorCode config_derive(Config *c, OptionSet *set, Error *err);
/* train.router_bias_speed as experts of the family have it by default. */
const char *config_bias_speed(const Config *c);

/* The steps that are traced, metrics.trace; false: none. */
bool config_traces(const Config *c, int64_t *first, int64_t *last);

/* Whether checkpoints are written from a copy while training goes on: checkpoint.async, unless the only one
 * is that of the end. */
bool config_saves_async(const Config *c);

/* Whether the lines of this rank are printed: metrics.log_ranks. */
bool config_logs_rank(const Config *c, int rank);
/* That the ranks it names are among `world`. */
ErrorCode config_check_ranks(const Config *c, int world, Error *err);

/* Batch warm-up: steps of train.batch_start tokens, then of twice as many, and so on to
 * train.tokens_per_step, each size for an equal share of train.batch_warmup tokens, rounded up to whole
 * steps. */
enum { STEP_SIZES = 40 };
/* The sizes in tokens, ascending, the last is train.tokens_per_step; returns how many. */
int config_step_sizes(const Config *c, int64_t tokens[STEP_SIZES]);
/* Tokens of the 0-based step, and the first of the steps that have all. */
int64_t config_step_tokens(const Config *c, int64_t step);
int64_t config_first_whole_step(const Config *c);
/* Sources of the data whose losses are told apart: all, from 2 to 64 of them; else 0. */
int config_reported_sources(const Config *c);
/* Of the steps from that one on, to the last: more than 64 bits count where train.steps means "until it is
 * stopped". */
double config_tokens_from(const Config *c, int64_t step);
double config_steps_from(const Config *c, int64_t step); /* these steps, smaller ones in parts */
uint64_t config_samples(const Config *c);                /* of all steps; 10^18 stand for all beyond */

/* Sequences of a microbatch, and microbatches of a step on each of `ranks` data-parallel ranks, after
 * defaults; refuses what does not divide, saying what would. */
ErrorCode config_geometry(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches, Error *err);

#endif
