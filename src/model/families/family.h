/* Families of models, as data. An entry has all that distinguishes a family: how its blocks are built, its
 * names in config.json, the keys that it reads there (and writes, in this order) with their defaults, weight
 * names that are not Llama's, and published sizes. No other code distinguishes families. A new family is an
 * entry here, in the table of family.c, and a directory of golden values.
 *
 * weft reads a file as transformers would, or refuses it: a key that changes the mathematics and that weft
 * does not implement is an error that names the key. weft also refuses to train a model that config.json of
 * its family cannot express, since its checkpoints would be read as another model. */
#ifndef WEFT_MODEL_FAMILIES_FAMILY_H
#define WEFT_MODEL_FAMILIES_FAMILY_H

#include "model/layers/layer.h"

/* Where the norms of a sublayer are: sublayers.c. */
typedef enum NormPlace { NORMS_BEFORE, NORMS_AFTER, NORMS_AROUND } NormPlace;
/* Norms of queries and keys: none, of each head, of all heads of a token as one row; or of each head, without
 * weights, behind the rotation, in the layers that have one, if use_qk_norm says so. */
typedef enum QkNorm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_FLAT, QK_NORM_PLAIN } QkNorm;

/* What all models of a family have in common. Zeros are Llama. */
typedef struct Arch {
    NormPlace norms;
    NormKind norm;
    QkNorm qk_norm;
    Activation activation;
    bool no_gate;           /* of the MLP */
    bool qkv_bias;          /* q, k and v have biases, whatever attention_bias says */
    bool fused_qkv;         /* stored as one matrix: rows of q, of k, of v */
    bool fused_gate_up;     /* likewise */
    bool transposed;        /* matrices of blocks are stored [inputs, outputs] */
    bool learned_positions; /* added to the embedding; heads are not turned */
    bool scale_embedding;   /* by the root of hidden_size */
    bool window_pattern;    /* sliding_window_pattern is one of its keys */
    bool local_rotation;    /* layers with windows turn by rope_local_theta, unscaled */
    bool partial_rotation;  /* partial_rotary_factor is one of its keys */
    bool longrope;          /* the only scaling; original_max_position_embeddings is a key of its own */
    bool neighbours;        /* elements 2i and 2i + 1 of a head turn together */
    bool chunks;            /* windows are chunks: a token sees those of its own, of its document */
    bool heads_divide;      /* transformers demands that heads divide hidden_size */
    bool sinks;             /* of attention */
    bool fused_experts;     /* matrices of all experts are stored as one, as [inputs, outputs] */
    bool packed_experts;    /* published as MXFP4 (checkpoint/packed.h) */
    bool expert_bias;       /* experts have biases, and their router */
    bool mtp_module;        /* its files may have one for the token behind the next (layers/mtp.c) */
    bool latent;            /* attention is latent: layers/latent.c */
    bool sigmoid_router;    /* scores of experts are sigmoids, and a bias is added where they are chosen */
    bool weighs_input;      /* they are sigmoids without one, and multiply what an expert reads */
} Arch;

typedef enum KeyKind {
    KEY_SIZE,       /* whole number of 1 or more: int64_t */
    KEY_NUMBER,     /* double */
    KEY_WHOLE,      /* double; written without a fraction where it has none */
    KEY_OPTIONAL,   /* double; null, or absent without a default, is 0 */
    KEY_SWITCH,     /* bool; null is false */
    KEY_TOKEN,      /* token id: int64_t; null is none (-1), a list gives its first */
    KEY_INNER,      /* MLP's width: null or absent is 4 hidden_size */
    KEY_ROTATION,   /* rope_theta with rope_scaling, or rope_parameters: see rope_keys.c */
    KEY_WINDOWS,    /* sliding_window, and which layers have one: see window_keys.c */
    KEY_NO_ROPE,    /* layers that are not turned: see there too */
    KEY_EXPERTS,    /* num_experts or num_local_experts: int64_t */
    KEY_MIXERS,     /* layer_types, of recurrent.c */
    KEY_COUNT,      /* whole number of 0 or more: int64_t */
    KEY_OR_NULL,    /* the same; null is 0, and 0 is written so */
    KEY_DENSE,      /* decoder_sparse_step and mlp_only_layers: layers without experts; see there too */
    KEY_SPARSE,     /* interleave_moe_layer_step and moe_layers: layers with experts; see there too */
    KEY_TUNING,     /* attn_temperature_tuning, behind attn_scale: without it that is 0 */
    KEY_ACTIVATION, /* the family's, or what means the same: written, not held */
    KEY_ZERO,       /* 0: written, not held */
    KEY_DROPOUT,    /* any probability, which a warning says is not used: written as 0 */
    KEY_ONLY,       /* the number of the rule, or absent: written, not held */
    KEY_FALSE,      /* false, null or absent: not written */
    KEY_TRUE,       /* true or absent, not null: not written */
    KEY_WORD,       /* the rule's FamilyWord, or absent: written, not held */
    KEY_GREEDY,     /* topk_method of deepseek_v2: whether there are groups */
    /* layers for tokens behind the next: not held, which a warning says; written as 1 of an MTP module that
     * is trained, else as 0 */
    KEY_MTP,
    KEY_NONE,    /* null or absent: not written */
    KEY_ENDS,    /* token ids: of a list eos_token_id is the first, more_eos has the rest */
    KEY_PAD,     /* has_pad and pad_token_id, where there is one */
    KEY_UNPADDED /* the same, and null where there is none: the class has one by default, and would train no
                       row of the embedding there */
} KeyKind;

typedef enum FamilyWord { WORD_SIGMOID = 1, WORD_SOFTMAX, WORD_NOAUX } FamilyWord;

typedef struct KeyRule {
    const char *name;
    KeyKind kind;
    size_t offset; /* in ModelConfig; of KEY_ONLY thousandths of the number, of KEY_WORD a FamilyWord */
    bool required; /* else the family's defaults have its value */
} KeyRule;

/* Another name that transformers takes for a key of a family. */
typedef struct KeyAlias {
    const char *name, *key;
} KeyAlias;

/* How config.json says which layers have windows. */
typedef enum WindowKeys {
    WINDOWS_ALL,    /* sliding_window, for all of them */
    WINDOWS_SWITCH, /* the same, where use_sliding_window says so */
    WINDOWS_BEHIND, /* use_sliding_window; max_window_layers are the first that has one; layer_types */
    WINDOWS_SOME,   /* layer_types, or the pattern that the defaults have; sliding_window_pattern */
    WINDOWS_CHUNKS  /* attention_chunk_size; layer_types, or the layers that are turned */
} WindowKeys;

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

/* What tells the experts of such a model: their number, those of a token, their width (0: intermediate_size),
 * and the parameters that a token meets. */
typedef struct PublishedExperts {
    int64_t experts, chosen, width, active;
    int64_t shared, dense; /* experts that all tokens meet, and first layers that have none */
    int64_t step;          /* the last of so many layers has them; 0: each */
} PublishedExperts;

/* Its latents: widths of those of queries (0: none) and of keys and values; of a head, what of keys is not
 * turned and what is, and of values. */
typedef struct PublishedLatents {
    int64_t queries, keys, plain, turned, values;
} PublishedLatents;

typedef struct Family {
    const char *model_type, *architecture; /* "llama", "LlamaForCausalLM" */
    const char *within; /* model_type of files that have one as text_config, beside what is of images; NULL */
    Arch arch;
    ModelConfig defaults;
    InitKind init;           /* what its models start from, unless a run says otherwise */
    const KeyRule *keys;     /* ends with a NULL name */
    const KeyAlias *aliases; /* ends with a NULL name; NULL: none */
    WindowKeys window_keys;
    const char *blocks;              /* names in blocks begin with this and a number; NULL: "model.layers." */
    const NameRule *names;           /* ends with a NULL row; NULL: all as their rows say */
    const PublishedSize *sizes;      /* ends with a NULL name; NULL: none */
    const PublishedExperts *experts; /* of each of these sizes; NULL: none has any */
    const PublishedLatents *latents; /* likewise */
} Family;

/* All of them. A name is Hugging Face's model_type. */
/* clang-format off */
#define FAMILIES(X) \
    X(llama) X(qwen2) X(qwen3) X(mistral) X(olmo2) X(olmo3) X(gemma2) X(gemma3_text) X(smollm3) X(phi3) \
    X(gpt2) X(mixtral) X(qwen3_moe) X(olmoe) X(gpt_oss) X(deepseek_v3) X(deepseek_v2) X(llama4_text) \
    X(recurrent)
/* clang-format on */
#define FAMILY_OF(name) family_##name,
#define FAMILY_WORD(name) "|" #name
#define FAMILY_NAMES (&(FAMILIES(FAMILY_WORD))[1]) /* "llama|qwen2|...": what an option table takes */

extern const Family FAMILIES(FAMILY_OF) *const families[]; /* ends with NULL */

const Family *model_family(const ModelConfig *c);
/* The name that a kind of parameter has in this family. */
const char *family_parameter_name(const Family *f, const ParamRow *row);
/* Its models have experts. */
bool family_has_experts(const Family *f);
/* The published model of this shape; NULL: none that weft knows. */
const PublishedSize *family_published(const ModelConfig *c);
/* What the family's config.json would say of c without the keys that files may leave out: *c with the
 * family, and its defaults in place of all that is no size. */
ModelConfig family_defaults(const Family *f, const ModelConfig *c);
/* Refuses a complete shape that config.json of its family cannot say. */
ErrorCode family_check(const ModelConfig *c, const char *where, Error *err);

/* A config.json of this family, parsed; `where` names the file. */
ErrorCode family_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err);

/* ---- between the files of families/ ---- */

bool family_reads(const Family *f, KeyKind kind);
const cJSON *family_member(const cJSON *object, const char *key); /* NULL if absent or null */
ErrorCode family_refuse(const char *where, const char *key, const char *found, const char *supported,
                        Error *err);
ErrorCode rope_keys_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err);
void rope_keys_write(const ModelConfig *c, JsonWriter *w);
ErrorCode window_keys_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err);
void window_keys_write(const ModelConfig *c, JsonWriter *w);
ErrorCode no_rope_read(ModelConfig *c, const cJSON *root, const char *where, Error *err);
void no_rope_write(const ModelConfig *c, JsonWriter *w);
/* Of KEY_DENSE and KEY_SPARSE. */
ErrorCode dense_layers_read(KeyKind kind, ModelConfig *c, const cJSON *root, const char *where, Error *err);
void dense_layers_write(KeyKind kind, const ModelConfig *c, JsonWriter *w);
ErrorCode mixers_read(ModelConfig *c, const cJSON *root, const char *where, Error *err);
void mixers_write(const ModelConfig *c, JsonWriter *w);
const char *family_word(const KeyRule *k); /* of KEY_WORD */
/* transformers tells 8.0 from 8, and warns about the latter. */
void family_write_double(JsonWriter *w, const char *key, double value);
/* The name by which a family's activation is written. */
const char *family_activation(const Family *f);

#endif
