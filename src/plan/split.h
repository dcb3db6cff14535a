/* Stage splits: which units of a model each pipeline stage holds.
 *
 * Units are those of the parameter table: 0 is the embedding, 1..L are the blocks, L+1 is the final norm with
 * the head. A split cuts them into consecutive runs, one for each stage. The embedding is on the first stage,
 * the head on the last, and no stage is empty (the embedding or the head alone is a valid stage).
 *
 * Splits come from TorchTitan's rule (split_uniform), from names (split_points), or from costs (split_auto).
 * All errors are ERR_CONFIG and name the numbers and what would fit. */
#ifndef WEFT_PLAN_SPLIT_H
#define WEFT_PLAN_SPLIT_H

#include "model/config.h"
#include "schedule/simulate.h"

typedef struct Split {
    int blocks, stages;
    int *first; /* [stages + 1] first unit of each stage; the last entry is the number of units, blocks + 2 */
} Split;
void split_free(Split *s);

/* Layers for which the embedding and the head count in split_uniform; a remainder goes, one block each, to
 * the first stages. TorchTitan's weights, which default to 1 and 1 there. */
typedef struct SplitWeights {
    int input_weight, output_weight;
} SplitWeights;
ErrorCode split_uniform(Split *s, int blocks, int stages, SplitWeights weights, Error *err);

/* Numbers of stages on one rank that a schedule allows: 1 to 1 for single-stage schedules, 2 to 2 for V, 1 to
 * 0 (no bound) for looped ones. */
typedef struct StagesPerRank {
    int least, most;
} StagesPerRank;
/* ERR_CONFIG unless so many stages can be placed on the ranks of a pipeline. */
ErrorCode split_check_stages(int stages, int ranks, StagesPerRank allowed, Error *err);
/* The number of stages with at most `per_stage` layers each, weights included: ceil((L + in + out) /
 * per_stage), checked as by split_check_stages. The error lists the values that would work. */
ErrorCode split_layers_per_stage(int *stages, int blocks, SplitWeights weights, int per_stage, int ranks,
                                 StagesPerRank allowed, Error *err);

/* Each name starts another stage: "layers.4" (the fifth block), or "norm" or "lm_head" (both name the last
 * unit). They must ascend. Without names there is one stage. */
ErrorCode split_points(Split *s, int blocks, const char *const *names, int count, Error *err);

/* Input of split_auto. A unit on stage s takes fixed[u] + live[s] * activation[u] bytes of its rank. */
typedef struct SplitModel {
    int blocks;
    const StageCost *costs;    /* [blocks + 2], in any unit of time or work */
    const double *fixed_bytes; /* [blocks + 2] parameters, gradients, moments; NULL: no limit on memory */
    const double *activation_bytes; /* [blocks + 2] of one microbatch, or NULL */
    const int *live;                /* [stages] most microbatches alive at a time on a stage, or NULL: 1 */
    double rank_bytes;              /* limit for each rank; 0: none */
} SplitModel;
/* Finds the split whose largest stage (forward and backward) is smallest, and among those the one with the
 * smallest sum of squares, subject to every rank's stages fitting into rank_bytes. The result is exact. Among
 * equals, where memory does not bind, the later stages are the larger ones, since early stages keep more
 * microbatches alive. rank_of_stage: NULL for one stage a rank. Where memory is tight, ranks have several
 * stages and blocks differ, there may be too many candidates: that is an error too. */
ErrorCode split_auto(Split *s, const SplitModel *m, int stages, const int *rank_of_stage, Error *err);
/* Bytes of the fullest rank, by the same count as in split_auto. */
double split_fullest_rank(const Split *s, const SplitModel *m, const int *rank_of_stage);

/* Sums the costs of each stage's units: costs for simulate(). */
void split_stage_costs(const Split *s, const StageCost *units, StageCost *stages);

/* Appends a table: stage, rank, cost relative to the largest stage, units. rank_of_stage may be NULL. */
void split_print(const Split *s, const StageCost *units, const int *rank_of_stage, Text *out);
/* Appends "embedding, layers 0-6" or "layers 25-31, norm and head" for units first <= u < end. */
void split_describe_units(int blocks, int first, int end, Text *out);

#endif
