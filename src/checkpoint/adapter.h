/* LoRA adapters in PEFT's format, without the weights of the base model:
 *
 *     DIR/adapter_config.json          rank, scale, where the base is
 *     DIR/adapter_model.safetensors    base_model.model.MATRIX.lora_A.weight [r, in], .lora_B.weight [out, r]
 *
 * Checkpoints of runs with lora.rank are such directories; `PeftModel.from_pretrained` opens them. weft also
 * opens adapters of others. A setting that changes the mathematics and is not implemented is refused by
 * name. */
#ifndef WEFT_CHECKPOINT_ADAPTER_H
#define WEFT_CHECKPOINT_ADAPTER_H

#include "checkpoint/modelfiles.h"
#include "model/adapters.h"

#define ADAPTER_CONFIG "adapter_config.json"
#define ADAPTER_PREFIX "base_model.model" /* and a dot, in front of a parameter's name */

typedef struct AdapterConfig {
    int64_t rank;
    double alpha;
    bool rslora; /* the scale is alpha / sqrt(rank), not alpha / rank */
    char *base;  /* base_model_name_or_path; owned; NULL if absent */
} AdapterConfig;

double adapter_scale(const AdapterConfig *c);
/* ERR_DATA for settings that weft does not implement. The caller frees c->base. */
ErrorCode adapter_config_read(AdapterConfig *c, const char *path, Error *err);
/* Writes the configuration for a table with adapters; `base` is the value of base_model_name_or_path. Target
 * modules are given by their last name components if these identify the matrices with an adapter, otherwise
 * by full names. */
void adapter_config_write(const AdapterConfig *c, const ParamTable *table, Text *out);

/* An open adapter. */
typedef struct AdapterDir {
    char *dir, *base; /* base: model directory of the base model */
    AdapterConfig config;
    ModelFiles files;
    int count;
    bool transposed; /* the base stores these matrices [inputs, outputs] */
    char **names;    /* [count] of matrices of the base, "model.layers.0.self_attn.q_proj.weight" */
} AdapterDir;

/* Whether the directory is an adapter. */
bool adapter_is(const char *dir);
/* Opens an adapter. base: a model directory, checkpoint or run with the base model; NULL: where the adapter's
 * configuration says. Reads headers only and compares them with the shape of the base. The caller calls
 * adapter_close, also after a failure. */
ErrorCode adapter_open(AdapterDir *a, const char *dir, const char *base, Error *err);
void adapter_close(AdapterDir *a);
/* What a model needs of the adapter; points into `a`. */
AdapterSpec adapter_spec(const AdapterDir *a);

#endif
