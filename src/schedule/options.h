/* The options of pipeline schedules and stages. */
#ifndef WEFT_SCHEDULE_OPTIONS_H
#define WEFT_SCHEDULE_OPTIONS_H

#include "base/options.h"

typedef struct PipelineOptions {
    char *schedule;       /* a name, or a CSV file */
    int64_t microbatches; /* per step and data-parallel rank; 0: as follows from train.microbatch */
    StringList split;     /* auto, uniform, or names of units */
    int64_t layers_per_stage;
    int64_t stages_per_rank;                   /* 0: the schedule's number */
    int64_t segments;                          /* of a microbatch's tokens */
    double activations;                        /* share of 1F1B's that zbv keeps; 0: all */
    int64_t first_stage_less, last_stage_less; /* weights of embedding and head in the uniform split */
    double memory_gib;                         /* per rank, for split: auto; 0: no limit */
} PipelineOptions;

extern const Option pipeline_options[];

#endif
