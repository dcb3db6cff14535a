/* state.json of a checkpoint: which run it belongs to, and how far the run came.
 *
 * The configuration in it is the resolved one, with nothing left open (compute: auto, microbatch: 0), so that
 * a resumed run can take from it what it leaves open itself. Facts are what no key states. Version 1 counted
 * steps instead of samples and had fewer facts; it can be read, and the facts that it lacks are empty. */
#ifndef WEFT_TRAIN_SAVED_H
#define WEFT_TRAIN_SAVED_H

#include "config/config.h"
#include "data/dataset.h"
#include "observe/noise.h"
#include "observe/spike.h"

/* The best checkpoint of a run by a metric. */
enum { BEST_FIGURE = 160 };
typedef struct BestCheckpoint {
    char figure[BEST_FIGURE]; /* name of the metric, "validation/loss"; "": none */
    int64_t step;             /* 0: there is none yet */
    double value;
} BestCheckpoint;

typedef struct RunState {
    int64_t step;    /* steps done */
    int64_t samples; /* taken (Megatron: consumed_samples); the next step begins here, whatever came before */
    int64_t tokens, skipped;
    SpikeWindow losses, norms;
    BestCheckpoint best;
    NoiseMean noise;
} RunState;

#define STATE_VERSION 2

/* One line each; empty: not known. */
typedef struct RunFacts {
    char data[65], tokenizer[65]; /* fingerprints */
    char contents[65];            /* dataset_contents; empty: `data` is of contents */
    char base[65];                /* of the base model of adapters; otherwise empty */
    char mixture[DATASET_MIXTURE];
    char sums[160];    /* the order in which the gradients of a step are summed */
    char kernels[160]; /* names of the kernels of all ranks */
    char build[200];
    char receipt[65]; /* of the step, with run.receipts: h of its line (observe/receipts.h) */
} RunFacts;

/* The fingerprint of the data by contents; DATA_UNKNOWN until all files have come. */
const char *saved_contents(const RunFacts *facts);

/* `set` points into the struct, so a SavedRun must not be moved. */
typedef struct SavedRun {
    RunState state;
    int64_t updates; /* of the optimizer */
    Config config;
    OptionSet set;
    RunFacts facts;
} SavedRun;

/* Parses the text of a state file into *saved, whatever it held. Free with saved_free, also after an
 * error. */
ErrorCode saved_parse(SavedRun *saved, const char *text, Error *err);
/* Parses only its best checkpoint; step 0 if the text has none. */
ErrorCode saved_parse_best(BestCheckpoint *best, const char *text, Error *err);
/* Parses only its facts, without looking at its configuration. Facts that the text lacks are empty. */
ErrorCode saved_parse_facts(RunFacts *facts, const char *text, Error *err);
void saved_free(SavedRun *saved);
void saved_write(const RunState *s, int64_t updates, const OptionSet *set, const RunFacts *facts, Text *out);

#endif
