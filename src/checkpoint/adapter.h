/* Adapters of low rank as PEFT keeps them, beside no weights of a base model:
 *
 *     DIR/adapter_config.json          rank, scale, where the base is
 *     DIR/adapter_model.safetensors    base_model.model.MATRIX.lora_A.weight [r, in], .lora_B.weight [out, r]
 *
 * Checkpoints of runs with lora.rank are such directories (`PeftModel.from_pretrained` opens them), and weft
 * opens those of others: what changes the mathematics and is not done here is refused by name. */
#ifndef WEFT_CHECKPOINT_ADAPTER_H
#define WEFT_CHECKPOINT_ADAPTER_H

#include "checkpoint/modelfiles.h"
#include "model/adapters.h"

#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_PREFIX "base_model.model" /* and a point, before the name of a parameter */

typedef struct AdapterConfig {
    int64_t rank;
    double alpha;
    bool rslora; /* the scale is alpha / sqrt(rank), not alpha / rank */
    char *base;  /* base_model_name_or_path; owned; NULL: it does not say */
} AdapterConfig;

double adapter_scale(const AdapterConfig *c);
/* ERR_DATA for what weft does not do. Free c->base. */
ErrorCode adapter_config_read(AdapterConfig *c, const char *path, Error *err);
/* Of a table with adapters; `base` is what c->base will be. Matrices are told by their last names where these
 * say which have an adapter, else by whole ones. */
void adapter_config_write(const AdapterConfig *c, const ParamTable *table, Text *out);

/* One that is open. */
typedef struct AdapterDir {
    char *dir, *base; /* base: the model directory of it */
    AdapterConfig config;
    ModelFiles files;
    int count;
    bool transposed; /* the base stores these matrices [inputs, outputs] */
    char **names;    /* [count] of matrices of the base, "model.layers.0.self_attn.q_proj.weight" */
} AdapterDir;

/* Whether the directory is an adapter. */
bool adapter_is(const char *dir);
/* base: where its base model is, a model directory, checkpoint or run; NULL: where it says itself. Headers
 * only are read, and compared with the shape of the base. Closed by adapter_close, also after a failure. */
ErrorCode adapter_open(AdapterDir *a, const char *dir, const char *base, Error *err);
void adapter_close(AdapterDir *a);
/* What a model gets by it; it points into `a`. */
AdapterSpec adapter_spec(const AdapterDir *a);

#endif
