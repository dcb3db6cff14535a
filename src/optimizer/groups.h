/* Parameter groups: which optimizer, with which settings, each parameter of a model has.
 *
 * Invariants
 *  1. Every parameter is in one group: the first whose pattern is found in its name, or the one behind those
 *     with patterns, which is what the section `optimizer` says ("the rest"). What an optimizer of matrices
 *     is not for (vectors, embedding, head) is taken out of its group again, into one beside it, of AdamW
 *     with the same settings; those come last but for the base of adapters (model/adapters.h), all that is
 *     none of them, which no pattern finds and nothing trains.
 *  2. Settings are complete: what an item of optimizer.groups leaves out has been taken from the section.
 *  3. Groups depend on the configuration and the model alone, never on the mesh. */
#ifndef WEFT_OPTIMIZER_GROUPS_H
#define WEFT_OPTIMIZER_GROUPS_H

#include "base/text.h"
#include "model/params.h"
#include "optimizer/optimizer.h"

typedef struct ParamGroup {
    char *match; /* NULL: the rest */
    bool beside; /* what its optimizer is not for of the group with this pattern */
    OptimizerSettings settings;
    const Optimizer *optimizer;
    bool decays_all; /* weight decay is for vectors too */
    bool whole;      /* its matrices must not be cut into shares */
    bool frozen;     /* nothing of it is trained */
    bool base;       /* beside adapters: all that is none of them */
    bool fixed;      /* what no gradient ever changes (ParamRow.fixed), wherever there are no adapters */
    int params;
    int64_t elements;
    double flops; /* of an update */
} ParamGroup;

typedef struct ParamGroups {
    int count;
    /* [count] items of optimizer.groups, the rest, those beside others, the base, the fixed */
    ParamGroup *items;
    int *of;       /* [parameters] group of each */
    uint64_t seed; /* of the rounding of states */
    double ema;    /* decay of the average of all weights; 0: none is kept */
} ParamGroups;

/* ERR_CONFIG, by the item's place, for a pattern that is none, for one that finds nothing, and for a setting
 * that the group's optimizer does not read. Nothing to free on failure. */
ErrorCode param_groups_build(ParamGroups *g, const OptimizerOptions *o, const ParamTable *t, Error *err);
void param_groups_free(ParamGroups *g);
/* Counts what groups have, of a model of which the table is what tp leaves a rank; NULL: it is all. */
void param_groups_count(ParamGroups *g, const ParamTable *t, const ModelConfig *whole);

const ParamGroup *param_group(const ParamGroups *g, int param);
/* What is kept of a parameter: what its optimizer keeps, in the dtype of its group, and last, where there is
 * one, the average of its weights in fp32. */
int param_states(const ParamGroups *g, int param);
const OptimizerState *param_state(const ParamGroups *g, int param, int which);
size_t param_state_width(const ParamGroups *g, int param, int which); /* bytes of one element */
bool param_state_is_average(const ParamGroups *g, int param, int which);
size_t param_state_bytes(const ParamGroups *g, int param); /* of one element, all its states */
/* Whether a parameter must be on one rank of those that share the parameters out, as an optimizer needs that
 * looks at a matrix as a matrix (Jordan et al. 2024, "Muon"). Vectors may always be cut. */
bool param_stays_whole(const ParamGroups *g, int param, const Param *p);
bool param_groups_keep_whole(const ParamGroups *g);    /* some group asks for it */
bool param_groups_need_matrices(const ParamGroups *g); /* some optimizer must see all of a matrix */
bool param_needs_matrix(const ParamGroups *g, int param, const Param *p); /* of this parameter */
/* Bytes of scratch that the update of a parameter takes. */
size_t param_scratch_bytes(const ParamGroups *g, int param, const Param *p);
/* The weight decay of a parameter: 0 where its group's is not for it. */
double param_weight_decay(const ParamGroups *g, int param, const Param *p);

/* "adamw moments fp32, sgd momentum bf16": what the states are; "none". */
void param_groups_name_states(const ParamGroups *g, Text *out);
/* A table with a row a group, or a line where there is only one; with `each` the names of their
 * parameters. */
void param_groups_print(const ParamGroups *g, const ParamTable *t, bool each, Text *out);

#endif
