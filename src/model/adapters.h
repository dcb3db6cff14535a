/* Adapters of low rank on matrices of blocks, beside a base that stays as it is:
 *
 *     y = x W^T + s (x A^T) B^T        A [r, inputs], B [outputs, r]
 *
 * Hu et al., "LoRA: low-rank adaptation of large language models", 2021. A and B are parameters of the
 * model's table like any others (rows of its layers: ADAPTER_ROWS), named as PEFT names them behind its
 * prefix, such as model.layers.0.self_attn.q_proj.lora_A.weight. */
#ifndef WEFT_MODEL_ADAPTERS_H
#define WEFT_MODEL_ADAPTERS_H

#include "model/params.h"

/* Which adapters a model gets. */
typedef struct AdapterSpec {
    int64_t rank;             /* r; 0: none */
    double scale;             /* s */
    bool joint;               /* ranks may share the matrices (param_is_joint) */
    const char *match;        /* pattern of names of matrices; "": all that can be. NULL: those in `names` */
    const char *const *names; /* [count] of matrices, such as model.layers.0.self_attn.q_proj.weight */
    int count;
} AdapterSpec;

/* s of alpha and r as PEFT means them; stabilised: Kalajdzievski's (rsLoRA), over sqrt(r). */
double adapters_scale(int64_t rank, double alpha, bool stabilised);
/* Puts them to the model of this shape and table, of which `whole` is that of all ranks: both change. Nothing
 * happens where the rank is 0.
 * ERR_CONFIG for a pattern that is none or finds nothing, and for a rank that is not below those of the
 * matrices it finds; ERR_DATA for a name of the list that is no such matrix. */
ErrorCode adapters_put(ParamTable *t, ModelConfig *c, const ModelConfig *whole, const AdapterSpec *spec,
                       Error *err);
/* Elements of them all, of all ranks together; 0: there are none. */
int64_t adapters_count(const ParamTable *t, const ModelConfig *whole);
/* model_flops_per_token of a model that is trained as this table says: what is the base of adapters has no
 * gradient of its weights, so it counts 4 where the adapters count 6. */
double adapters_flops_per_token(const ModelConfig *c, const ParamTable *t, int64_t context);

#endif
