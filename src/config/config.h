/* The configuration of a run: one struct, one option table. Sections: model, data, train, numerics, mesh,
 * parallel, comm, pipeline, optimizer, schedule, checkpoint, metrics, run. */
#ifndef WEFT_CONFIG_CONFIG_H
#define WEFT_CONFIG_CONFIG_H

#include "base/options.h"
#include "comm/options.h"
#include "config/choices.h"
#include "data/config.h"
#include "model/options.h"
#include "optimizer/options.h"
#include "schedule/options.h"

typedef struct RunConfig {
    char *dir;                /* run directory: everything a run writes is in it */
    int64_t seed;             /* of the initial weights */
    int64_t threads;          /* 0: one per core */
    int64_t most_threads;     /* not a key: maximum over ranks, once they have agreed; 0: threads */
    int device;               /* DeviceKind */
    char *notice_file;        /* the run saves and ends once a rank sees it; "": none */
    bool receipts;            /* write receipts (observe/receipts.h) */
    bool overwrite;           /* start from step 0 in a directory that already holds a run */
    StringList allow_changes; /* keys that may differ from the checkpoint's */
} RunConfig;

typedef struct TrainOptions {
    int64_t steps, context;
    int64_t microbatch;       /* sequences; 0: chosen for speed */
    int64_t tokens_per_step;  /* 0: one microbatch */
    int64_t rampup_start;     /* tokens of the first steps (batch-size ramp-up); 0: tokens_per_step */
    int64_t rampup_tokens;    /* tokens over which steps grow to tokens_per_step */
    int compute;              /* ComputeKind */
    int recompute;            /* Recompute */
    int64_t loss_rows;        /* tokens whose logits exist at a time; 0: chosen automatically */
    double z_loss;            /* coefficient; 0: none */
    double router_bias_speed; /* change of an expert's bias in a step; 0: none */
    double ep_buffer_factor;  /* rows of a dispatch chunk over a rank's own (token, expert) assignments */
    int64_t mtp_depth;        /* MTP heads */
    int mtp_kind;             /* MtpKind */
    double mtp_loss_weight;
    int64_t stop_after_bad; /* consecutive non-finite steps */
    bool split_backward;
    int gradient_sync; /* GradientSync */
    int reshard;       /* Reshard */
} TrainOptions;

/* How sums over ranks are split into partials, independent of the mesh. */
typedef struct NumericsOptions {
    int mode;                    /* Numerics */
    int64_t tp_invariant_up_to;  /* partials of sums over mesh.tp; 0: its degree when the run began */
    int64_t etp_invariant_up_to; /* partials of sums over the width of experts; 0: 1 or as over mesh.tp */
    int64_t cp_invariant_up_to;  /* exact chunks of a microbatch; 0: what mesh.cp needs then */
} NumericsOptions;

typedef struct CheckpointOptions {
    int64_t every, keep, keep_every;
    int dtype;              /* StoreType, of the model file */
    bool async;             /* see config_saves_async */
    bool last_weights_only; /* the last step's checkpoint cannot be resumed */
    char *mirror;           /* s3:// URL that checkpoints are copied to (checkpoint/mirror.h); "": none */
    char *restore;          /* URL of a mirror to resume from (checkpoint/fetch.h); "": none */
    char *keep_best;        /* name of a figure (train/best.h); "": none */
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
    double spike; /* robust deviations that count as a spike; 0: none */
    bool noise_scale;
    StringList log_ranks; /* integers: config_logs_rank */
    bool all_ranks;       /* a metrics file for each rank */
    char *trace;          /* steps: config_traces */
    int64_t probe;        /* steps between probes; 0: none */
    StringList command;   /* command line of a program that gets the records; empty: none */
    double command_wait_s;
} MetricsOptions;

typedef struct CheckOptions {
    int64_t replicas_every;                 /* 0: never */
    int64_t replay_every, stragglers_every; /* the same */
} CheckOptions;

typedef struct RestartOptions {
    double backoff_s; /* before the first restart; doubles with each restart */
} RestartOptions;

typedef struct RecoveryOptions {
    int mode; /* RecoveryMode */
    bool partner_copy;
    int64_t spares; /* ranks beyond those of the mesh */
} RecoveryOptions;

typedef struct Config {
    RunConfig run;
    ModelOptions model;
    LoraOptions lora;
    DataConfig data;
    TrainOptions train;
    NumericsOptions numerics;
    MeshOptions mesh;
    int cp_comm; /* CpComm: mesh.cp_comm, a key that comm/ need not know */
    CommOptions comm;
    PipelineOptions pipeline;
    OptimizerOptions optimizer;
    LrScheduleOptions lr_schedule;
    ValidationOptions validation;
    EvaluationOptions evaluation;
    CheckpointOptions checkpoint;
    MetricsOptions metrics;
    CheckOptions check;
    RestartOptions restart;
    RecoveryOptions recovery;
} Config;

/* Rows of train/, checkpoint/, observe/ and program/, which are above this directory: fields of Config. */
extern const Option run_options[], train_options[], evaluation_options[], check_options[];
extern const Option checkpoint_options[], metrics_options[], cp_options[];

/* The rows of all sections; names of sections in older versions and other programs. */
const Option *config_options(void);
extern const OptionSection config_sections[];
/* options_init with the table of all keys and sections. c must be zeroed. */
ErrorCode config_set_open(OptionSet *set, Config *c, Error *err);

/* Finds a directory with the config.json of model.init. A callback, since checkpoint_find_shape is above
 * configuration. The caller frees *dir. */
typedef ErrorCode (*FindModel)(const char *where, const char *cache_dir, char **dir, Error *err);

/* Reads a file (NULL for none), then overrides "section.key=value"; completes and checks across options.
 * vocab_size 0 stays 0 until the tokenizer is known. The caller frees the set with options_free. */
ErrorCode config_load(Config *c, OptionSet *set, const char *path, int override_count,
                      const char *const *overrides, FindModel find, Error *err);

/* The same for a file or a run directory. In a run directory it reads config.yaml, where old names of keys
 * are accepted because weft wrote them. */
ErrorCode config_load_either(Config *c, OptionSet *set, const char *path, int override_count,
                             const char *const *overrides, FindModel find, Error *err);

/* Derives in c and its set the values that follow from the keys alone; config_load has done it. */
ErrorCode config_derive(Config *c, OptionSet *set, Error *err);
/* Default of train.router_bias_speed for the model's family. */
const char *config_bias_speed(const Config *c);

/* The steps to trace (metrics.trace); false: none. */
bool config_traces(const Config *c, int64_t *first, int64_t *last);

/* Whether checkpoints are written from a copy while training continues: checkpoint.async, unless the only
 * checkpoint is the one at the end. */
bool config_saves_async(const Config *c);

/* Whether the lines of this rank are printed: metrics.log_ranks. */
bool config_logs_rank(const Config *c, int rank);
/* Checks that the ranks of metrics.log_ranks are below `world`. */
ErrorCode config_check_ranks(const Config *c, int world, Error *err);

/* Batch-size ramp-up: steps of train.rampup_start tokens, then of twice as many, and so on up to
 * train.tokens_per_step, each size for an equal part of train.rampup_tokens tokens, rounded up to whole
 * steps. */
enum { STEP_SIZES = 40 };
/* The sizes in tokens, ascending, ending with train.tokens_per_step; returns how many. */
int config_step_sizes(const Config *c, int64_t tokens[STEP_SIZES]);
/* Tokens of the 0-based step; the first step with the full size. */
int64_t config_step_tokens(const Config *c, int64_t step);
int64_t config_first_whole_step(const Config *c);
/* Number of data sources with separate losses: all, if there are 2 to 64 of them; else 0. */
int config_reported_sources(const Config *c);
/* Tokens of the steps from that one to the last: a double, since they may exceed 64 bits when train.steps
 * means "until it is stopped". */
double config_tokens_from(const Config *c, int64_t step);
double config_steps_from(const Config *c, int64_t step); /* in full steps: smaller ones count as fractions */
uint64_t config_samples(const Config *c);                /* of all steps; saturates at 10^18 */

/* Sequences of a microbatch, and microbatches of a step on each of `ranks` data-parallel ranks, after
 * defaults. An error for sizes that do not divide, with the sizes that would. */
ErrorCode config_geometry(const Config *c, int ranks, int64_t *sequences, int64_t *microbatches, Error *err);

#endif
