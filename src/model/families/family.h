/* Families of models, as data. An entry says what tells a family from the others: its names in config.json,
 * the keys that it reads there (and writes, in this order) with what they mean when absent, names of weights
 * where they are not Llama's, the layers of a block, and sizes that were published. Nothing else knows
 * families apart: a new one is an entry here, in the table of family.c, and a directory of golden values.
 *
 * What transformers would read from a file is what weft reads, or weft refuses it: a key that changes the
 * mathematics and that weft does not implement is an error naming the key, never silently dropped. */
#ifndef WEFT_MODEL_FAMILIES_FAMILY_H
#define WEFT_MODEL_FAMILIES_FAMILY_H

#include "model/layers/layer.h"

typedef enum KeyKind {
    KEY_SIZE,       /* whole number of 1 or more: int64_t */
    KEY_NUMBER,     /* double */
    KEY_SWITCH,     /* bool */
    KEY_TOKEN,      /* token id: int64_t; null is none (-1), a list gives its first */
    KEY_ROTATION,   /* rope_theta with rope_scaling, or rope_parameters: see rotation.c */
    KEY_ACTIVATION, /* "silu", or what means the same: written, not held */
    KEY_ZERO        /* 0: written, not held */
} KeyKind;

typedef struct KeyRule {
    const char *name;
    KeyKind kind;
    size_t offset; /* in ModelConfig */
    bool required; /* else the family's defaults have its value */
} KeyRule;

/* A parameter's name where it is not that of its row (model/params.h). */
typedef struct NameRule {
    const char *row, *name;
} NameRule;

/* A model that was published: its shape, and how many parameters that makes. */
typedef struct PublishedSize {
    const char *name;
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    bool tied;
    int64_t parameters;
} PublishedSize;

typedef struct Family {
    const char *model_type, *architecture; /* "llama", "LlamaForCausalLM" */
    ModelConfig defaults;
    const KeyRule *keys;        /* ends with a NULL name */
    const NameRule *names;      /* ends with a NULL row; NULL: all as their rows say */
    const Layer *mixer, *mlp;   /* the two sublayers of a block */
    const PublishedSize *sizes; /* ends with a NULL name; NULL: none */
} Family;

extern const Family family_llama;

/* All of them; ends with NULL. */
extern const Family *const families[];

const Family *model_family(const ModelConfig *c);
/* The name that a kind of parameter has in this family. */
const char *family_parameter_name(const Family *f, const ParamRow *row);
/* The published model of this shape; NULL: none that weft knows. */
const PublishedSize *family_published(const ModelConfig *c);

/* A config.json of this family, parsed; `where` names the file. */
ErrorCode family_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err);

/* ---- between the files of families/ ---- */

const cJSON *family_member(const cJSON *object, const char *key); /* NULL if absent or null */
ErrorCode family_refuse(const char *where, const char *key, const char *found, const char *supported,
                        Error *err);
ErrorCode rotation_read(ModelConfig *c, const cJSON *root, const char *where, Error *err);
void rotation_write(const ModelConfig *c, JsonWriter *w);
/* transformers tells 8.0 from 8, and warns about the latter. */
void family_write_double(JsonWriter *w, const char *key, double value);

#endif
