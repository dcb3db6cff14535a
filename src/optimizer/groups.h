/* Parameter groups: the optimizer and its settings for each parameter of a model.
 *
 * Invariants
 *  1. Every parameter is in exactly one group: the first whose pattern is found in its name, or else the
 *     group of the section `optimizer` ("the rest"), which follows those with patterns. An optimizer of
 *     matrices (Muon) does not handle vectors, embedding and head; they move from its group to an AdamW
 *     fallback group with the same settings. Fallback groups come after the rest. With adapters
 *     (model/adapters.h) the base comes last: all parameters that are not adapters, which no pattern finds
 *     and which are not trained.
 *  2. Settings are complete: keys missing from an item of optimizer.groups were filled in from the section.
 *  3. Groups depend on the configuration and the model only, never on the mesh. */
#ifndef WEFT_OPTIMIZER_GROUPS_H
#define WEFT_OPTIMIZER_GROUPS_H

#include "base/text.h"
#include "model/params.h"
#include "optimizer/optimizer.h"

typedef struct ParamGroup {
    char *match;   /* NULL: the rest */
    bool fallback; /* AdamW fallback: what the optimizer of the group with this pattern does not handle */
    OptimizerSettings settings;
    const Optimizer *optimizer;
    bool decays_all; /* weight decay applies to vectors too */
    bool whole;      /* its matrices must not be split into shards */
    bool frozen;     /* not trained */
    bool base;       /* with adapters: all other parameters */
    bool fixed;      /* without adapters: parameters that no gradient ever changes (ParamRow.fixed) */
    int params;
    int64_t elements;
    double flops; /* of one update */
} ParamGroup;

typedef struct ParamGroups {
    int count;
    /* [count] items of optimizer.groups, the rest, the fallback groups, the base, the fixed */
    ParamGroup *items;
    int *of;       /* [parameters] the group of each */
    uint64_t seed; /* for the stochastic rounding of states */
    double ema;    /* decay of the average of all weights; 0: no average is kept */
} ParamGroups;

/* Fails with ERR_CONFIG, naming the item by its index, for an invalid pattern, for one that finds nothing,
 * and for a setting that the group's optimizer does not read. Nothing to free on failure. */
ErrorCode param_groups_build(ParamGroups *g, const OptimizerOptions *o, const ParamTable *t, Error *err);
void param_groups_free(ParamGroups *g);
/* Counts parameters, elements and FLOPs of each group. `t` is the table of this rank's shard over tp and
 * `whole` the unsharded model; NULL: `t` is all of the model. */
void param_groups_count(ParamGroups *g, const ParamTable *t, const ModelConfig *whole);

const ParamGroup *param_group(const ParamGroups *g, int param);
/* The states of a parameter: those of its optimizer, in the dtype of its group, followed by the average of
 * its weights in fp32, if one is kept. */
int param_states(const ParamGroups *g, int param);
const OptimizerState *param_state(const ParamGroups *g, int param, int which);
size_t param_state_width(const ParamGroups *g, int param, int which); /* bytes per element */
bool param_state_is_average(const ParamGroups *g, int param, int which);
size_t param_state_bytes(const ParamGroups *g, int param); /* bytes per element, over all its states */
/* Whether a parameter must lie on one rank of its FSDP group, for an optimizer that treats a matrix as a
 * matrix (Jordan et al. 2024, "Muon"). Vectors may always be sharded. */
bool param_stays_whole(const ParamGroups *g, int param, const Param *p);
bool param_groups_keep_whole(const ParamGroups *g);    /* for some group */
bool param_groups_need_matrices(const ParamGroups *g); /* some optimizer must see a full matrix */
bool param_needs_matrix(const ParamGroups *g, int param, const Param *p); /* the same for one parameter */
/* Bytes of scratch that the update of a parameter needs. */
size_t param_scratch_bytes(const ParamGroups *g, int param, const Param *p);
/* The weight decay of a parameter: 0 if that of its group does not apply to it. */
double param_weight_decay(const ParamGroups *g, int param, const Param *p);

/* Appends what the states are: "adamw moments fp32, sgd momentum bf16"; "none". */
void param_groups_name_states(const ParamGroups *g, Text *out);
/* Appends a table with one row per group, or one line if there is only one group; with `each`, also the names
 * of the parameters. */
void param_groups_print(const ParamGroups *g, const ParamTable *t, bool each, Text *out);

#endif
