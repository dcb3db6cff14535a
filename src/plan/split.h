/* Stage splits: which units of a model each pipeline stage holds.
 *
 * Units are those of the parameter table: 0 the embedding, 1..L the blocks, L+1 the final norm with the head.
 * A split cuts them into consecutive runs, one a stage; the embedding is on the first stage, the head on the
 * last, and no stage is without a unit (an embedding or a head alone is a stage).
 *
 * Splits come from TorchTitan's rule (split_uniform), from names (split_points), or from costs (split_auto).
 * All refusals are ERR_CONFIG with the numbers and what would fit. */
#ifndef WEFT_PLAN_SPLIT_H
#define WEFT_PLAN_SPLIT_H

#include "model/config.h"
#include "schedule/simulate.h"

typedef struct Split {
    int blocks, stages;
    int *first; /* [stages + 1] first unit of each stage; the last entry is the number of units, blocks + 2 */
} Split;
void split_free(Split *s);

/* The embedding counts as `input_weight` blocks and the head as `output_weight`; what does not divide goes,
 * one block each, to the first stages. TorchTitan's numbers, with its defaults of 1 and 1. */
typedef struct SplitWeights {
    int input_weight, output_weight;
} SplitWeights;
ErrorCode split_uniform(Split *s, int blocks, int stages, SplitWeights weights, Error *err);

/* Stages that a schedule takes on a rank: 1 to 1 for those of one stage, 2 to 2 for V, 2 to 0 (no bound) for
 * looped ones. */
typedef struct StagesPerRank {
    int least, most;
} StagesPerRank;
/* Whether that many stages can be laid over the ranks of a pipeline. */
ErrorCode split_check_stages(int stages, int ranks, StagesPerRank allowed, Error *err);
/* How many stages there are at (at most) `per_stage` blocks a stage, weights included: ceil((L + in + out) /
 * per_stage), checked as above; the error lists the values that would do. */
ErrorCode split_layers_per_stage(int *stages, int blocks, SplitWeights weights, int per_stage, int ranks,
                                 StagesPerRank allowed, Error *err);

/* A stage more starts at each name: "layers.4" (the fifth block), or "norm" or "lm_head" (the last unit,
 * which both name). They must ascend. No name at all is one stage. */
ErrorCode split_points(Split *s, int blocks, const char *const *names, int count, Error *err);

/* What split_auto needs to know. A unit on stage s takes fixed[u] + live[s] * activation[u] bytes of its
 * rank. */
typedef struct SplitModel {
    int blocks;
    const StageCost *costs;    /* [blocks + 2], in any unit of time or work */
    const double *fixed_bytes; /* [blocks + 2] parameters, gradients, moments; NULL: no limit on memory */
    const double *activation_bytes; /* [blocks + 2] of one microbatch, or NULL */
    const int *live;                /* [stages] microbatches alive at most on a stage, or NULL: 1 */
    double rank_bytes;              /* limit for each rank; 0: none */
} SplitModel;
/* The split with the smallest largest stage (forward and backward), and among those the one with the smallest
 * sum of squares, where every rank's stages fit into rank_bytes. Exact. Among equals, where memory does not
 * bind, the later stages are the larger ones: the early ones keep more microbatches alive. rank_of_stage:
 * NULL for a rank a stage. Where memory is tight, a rank has several stages and the blocks are not alike,
 * there can be too many candidates to weigh: then it says so, and decides nothing. */
ErrorCode split_auto(Split *s, const SplitModel *m, int stages, const int *rank_of_stage, Error *err);
/* Bytes of the fullest rank, as split_auto counts them. */
double split_fullest_rank(const Split *s, const SplitModel *m, const int *rank_of_stage);

/* Sums over the units of each stage: costs for simulate(). */
void split_stage_costs(const Split *s, const StageCost *units, StageCost *stages);

/* A table: stage, rank, units, share of the largest stage. rank_of_stage may be NULL. */
void split_print(const Split *s, const StageCost *units, const int *rank_of_stage, Text *out);
/* "embedding, layers 0-6"; "layers 25-31, norm and head". Units first <= u < end. */
void split_describe_units(int blocks, int first, int end, Text *out);

#endif
