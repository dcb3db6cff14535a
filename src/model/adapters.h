/* Low-rank adapters (LoRA) on matrices of blocks, over a frozen base:
 *
 *     y = x W^T + s (x A^T) B^T        A [r, inputs], B [outputs, r]
 *
 * Hu et al., "LoRA: low-rank adaptation of large language models", 2021. A and B are ordinary parameters of
 * the model's table (rows of its layers: ADAPTER_ROWS). Their names are PEFT's without its prefix, such as
 * model.layers.0.self_attn.q_proj.lora_A.weight. */
#ifndef WEFT_MODEL_ADAPTERS_H
#define WEFT_MODEL_ADAPTERS_H

#include "model/params.h"

/* Which adapters a model gets. */
typedef struct AdapterSpec {
    int64_t rank;             /* r; 0: none */
    double scale;             /* s */
    bool replicated;          /* TP may shard the matrices (param_is_replicated) */
    const char *match;        /* pattern of matrix names; "": all that can have one. NULL: use `names` */
    const char *const *names; /* [count] of matrices, such as model.layers.0.self_attn.q_proj.weight */
    int count;
} AdapterSpec;

/* The scale s of PEFT: alpha / r; stabilised: alpha / sqrt(r) (rsLoRA, Kalajdzievski). */
double adapters_scale(int64_t rank, double alpha, bool stabilised);
/* Adds adapters to table and shape, which both change; `whole` is the unsharded shape. No-op where the rank
 * is 0. Fails with ERR_CONFIG if the pattern is malformed or matches nothing, or if the rank is not below
 * that of each matched matrix; with ERR_DATA if a name of the list is no such matrix. */
ErrorCode adapters_put(ParamTable *t, ModelConfig *c, const ModelConfig *whole, const AdapterSpec *spec,
                       Error *err);
/* Elements of all adapters of the unsharded model; 0: there are none. */
int64_t adapters_count(const ParamTable *t, const ModelConfig *whole);
/* model_flops_per_token with frozen parameters taken into account: the base of adapters has no wgrad, so it
 * counts 4 per parameter where the adapters count 6. */
double adapters_flops_per_token(const ModelConfig *c, const ParamTable *t, int64_t context);

#endif
