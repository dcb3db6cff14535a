/* state.json of a checkpoint: what run it is of, and how far it came.
 *
 * The configuration in it is the resolved one: nothing is left open in it (compute: auto, microbatch: 0),
 * so that a run that goes on can take from it what it leaves open itself. Facts are what no key says.
 * Version 1 counted steps instead of samples and knew fewer facts; it is read, and what it does not say is
 * empty. */
#ifndef WEFT_TRAIN_SAVED_H
#define WEFT_TRAIN_SAVED_H

#include "config/config.h"
#include "data/dataset.h"
#include "observe/noise.h"
#include "observe/spike.h"

/* Of the checkpoints of a run the best by a figure. */
enum { BEST_FIGURE = 160 };
typedef struct BestCheckpoint {
    char figure[BEST_FIGURE]; /* "validation/loss"; "": none is looked for */
    int64_t step;             /* 0: there is none yet */
    double value;
} BestCheckpoint;

typedef struct RunState {
    int64_t step;    /* steps done */
    int64_t samples; /* taken: the next step begins with this one, whatever steps took before */
    int64_t tokens, skipped;
    SpikeWindow losses, norms;
    BestCheckpoint best;
    NoiseMean noise;
} RunState;

#define STATE_VERSION 2

/* Texts of one line; empty: not known. */
typedef struct RunFacts {
    char data[65], tokenizer[65]; /* fingerprints */
    char base[65];                /* of the model that adapters are put to; of other runs empty */
    char mixture[DATASET_MIXTURE];
    char sums[160];    /* in which order the gradients of a step are added up */
    char kernels[160]; /* what computes */
    char build[200];
} RunFacts;

/* The set points into the struct: it stays where it is. */
typedef struct SavedRun {
    RunState state;
    int64_t updates; /* of the optimizer */
    Config config;
    OptionSet set;
    RunFacts facts;
} SavedRun;

/* *saved, whatever it held, from the text of a state file. Freed by saved_free, also after an error. */
ErrorCode saved_parse(SavedRun *saved, const char *text, Error *err);
/* The same of its best checkpoint; none where it does not say. */
ErrorCode saved_parse_best(BestCheckpoint *best, const char *text, Error *err);
/* Its facts alone: whatever configuration it is of. What a text does not say is empty. */
ErrorCode saved_parse_facts(RunFacts *facts, const char *text, Error *err);
void saved_free(SavedRun *saved);
void saved_write(const RunState *s, int64_t updates, const OptionSet *set, const RunFacts *facts, Text *out);

#endif
