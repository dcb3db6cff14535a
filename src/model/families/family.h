/* Families of models, as data. An entry has everything that distinguishes a family: how its blocks are built;
 * its names in config.json; the keys that it reads there and writes, in this order, with their defaults;
 * weight names that differ from Llama's; and published sizes. No other code distinguishes families. A new
 * family is an entry here, in the table of family.c, and a directory of golden values.
 *
 * weft reads a file as transformers would, or refuses it: a key that changes the mathematics and that weft
 * does not implement is an error that names the key. weft also refuses to train a model that config.json of
 * its family cannot express, since its checkpoints would be read as another model. */
#ifndef WEFT_MODEL_FAMILIES_FAMILY_H
#define WEFT_MODEL_FAMILIES_FAMILY_H

#include "model/layers/layer.h"

/* Where the norms of a sublayer are: sublayers.c. */
typedef enum NormPlace { NORMS_BEFORE, NORMS_AFTER, NORMS_AROUND } NormPlace;
/* Norms of queries and keys. FLAT: all heads of a token are normed as one row. PLAIN: each head, without
 * weights, after RoPE, in layers with RoPE, if use_qk_norm is set. */
typedef enum QkNorm { QK_NORM_NONE, QK_NORM_HEAD, QK_NORM_FLAT, QK_NORM_PLAIN } QkNorm;

/* What all models of a family have in common. All zeros: Llama. */
typedef struct Arch {
    NormPlace norms;
    NormKind norm;
    QkNorm qk_norm;
    Activation activation;
    bool no_gate;           /* the MLP has no gate */
    bool qkv_bias;          /* q, k and v have biases, whatever attention_bias is */
    bool fused_qkv;         /* q, k, v are stored as one matrix: rows of q, of k, of v */
    bool fused_gate_up;     /* likewise */
    bool transposed;        /* matrices of blocks are stored [inputs, outputs] */
    bool learned_positions; /* added to the embedding; there is no RoPE */
    bool scale_embedding;   /* the embedding is multiplied by sqrt(hidden_size) */
    bool window_pattern;    /* sliding_window_pattern is one of its keys */
    bool local_rotation;    /* layers with windows use rope_local_theta, unscaled */
    bool partial_rotation;  /* partial_rotary_factor is one of its keys */
    /* longrope is the only scaling; original_max_position_embeddings is in the root */
    bool longrope;
    bool neighbours;     /* RoPE rotates elements 2i and 2i + 1 as a pair (interleaved) */
    bool chunks;         /* windows are chunks: a token sees its own chunk, within its document */
    bool heads_divide;   /* transformers requires that heads divide hidden_size */
    bool sinks;          /* attention has sinks */
    bool fused_experts;  /* all experts' matrices are stored as one, as [inputs, outputs] */
    bool packed_experts; /* published as MXFP4 (checkpoint/packed.h) */
    bool expert_bias;    /* experts and their router have additive biases (balancing: engine/update.c) */
    bool mtp_module;     /* files may have an MTP module (layers/mtp.c) */
    bool latent;         /* attention is MLA: layers/latent.c */
    bool sigmoid_router; /* expert scores are sigmoids; a bias is added where experts are chosen */
    bool weighs_input;   /* expert scores are sigmoids, without a bias, and multiply the expert's input */
} Arch;

typedef enum KeyKind {
    KEY_SIZE,       /* integer, at least 1: int64_t */
    KEY_NUMBER,     /* double */
    KEY_WHOLE,      /* double; an integer is written without a fraction */
    KEY_OPTIONAL,   /* double; null, or absent without a default, is 0 */
    KEY_SWITCH,     /* bool; null is false */
    KEY_TOKEN,      /* token id: int64_t; null is none (-1), a list gives its first */
    KEY_INNER,      /* width of the MLP: null or absent is 4 hidden_size */
    KEY_ROTATION,   /* rope_theta with rope_scaling, or rope_parameters: rope_keys.c */
    KEY_WINDOWS,    /* sliding_window, and which layers have one: window_keys.c */
    KEY_NO_ROPE,    /* layers without RoPE: window_keys.c */
    KEY_EXPERTS,    /* num_experts or num_local_experts: int64_t */
    KEY_MIXERS,     /* layer_types of recurrent.c */
    KEY_COUNT,      /* integer, at least 0: int64_t */
    KEY_OR_NULL,    /* the same; null is 0, and 0 is written as null */
    KEY_DENSE,      /* decoder_sparse_step and mlp_only_layers: layers without experts; window_keys.c */
    KEY_SPARSE,     /* interleave_moe_layer_step and moe_layers: layers with experts; window_keys.c */
    KEY_TUNING,     /* attn_temperature_tuning, after attn_scale: if it is off, attn_scale is 0 */
    KEY_ACTIVATION, /* the family's activation, or a synonym: written, not held */
    KEY_ZERO,       /* must be 0: written, not held */
    KEY_DROPOUT,    /* any probability, with a warning that it is not used: written as 0 */
    KEY_ONLY,       /* the number of the rule, or absent: written, not held */
    KEY_FALSE,      /* false, null or absent: not written */
    KEY_TRUE,       /* true or absent, not null: not written */
    KEY_WORD,       /* the rule's FamilyWord, or absent: written, not held */
    KEY_GREEDY,     /* topk_method of deepseek_v2: whether there are expert groups */
    /* Number of MTP layers. Not held; a warning reports that they are not read. Written as 1 with a trained
     * MTP module, else as 0. */
    KEY_MTP,
    KEY_NONE, /* null or absent: not written */
    KEY_ENDS, /* token ids: eos_token_id is the first of a list, more_eos has the rest */
    KEY_PAD,  /* has_pad and pad_token_id, if present */
    /* the same, but null is written if there is none: transformers' class has a default, and would not train
     * that row of the embedding */
    KEY_UNPADDED
} KeyKind;

typedef enum FamilyWord { WORD_SIGMOID = 1, WORD_SOFTMAX, WORD_NOAUX } FamilyWord;

typedef struct KeyRule {
    const char *name;
    KeyKind kind;
    size_t offset; /* in ModelConfig; KEY_ONLY: the number in thousandths; KEY_WORD: a FamilyWord */
    bool required; /* else absent means the family's default */
} KeyRule;

/* Another name that transformers accepts for a key of a family. */
typedef struct KeyAlias {
    const char *name, *key;
} KeyAlias;

/* How config.json expresses which layers have windows. */
typedef enum WindowKeys {
    WINDOWS_ALL,    /* sliding_window: all layers */
    WINDOWS_SWITCH, /* sliding_window: all layers, if use_sliding_window is set */
    /* use_sliding_window; max_window_layers: index of the first layer with a window; layer_types */
    WINDOWS_BEHIND,
    WINDOWS_SOME,  /* layer_types or sliding_window_pattern, else the defaults' pattern */
    WINDOWS_CHUNKS /* attention_chunk_size; layer_types, or else the layers with RoPE */
} WindowKeys;

/* A parameter whose name differs from that of its row (model/params.h). */
typedef struct NameRule {
    const char *row, *name;
} NameRule;

/* A published model: its shape and its number of parameters. */
typedef struct PublishedSize {
    const char *name;
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    bool tied;
    int64_t parameters;
} PublishedSize;

/* Experts of a published model: number of experts, experts of a token, width of an expert (0:
 * intermediate_size), and parameters that a token meets. */
typedef struct PublishedExperts {
    int64_t experts, chosen, width, active;
    int64_t shared, dense; /* shared experts; first layers without experts */
    int64_t step;          /* layers with experts: the last of every `step` layers; 0: all */
} PublishedExperts;

/* MLA of a published model: widths of the latents of queries (0: none) and of keys and values; per head, the
 * parts of keys without and with RoPE, and values. */
typedef struct PublishedLatents {
    int64_t queries, keys, nope, rope, values;
} PublishedLatents;

typedef struct Family {
    const char *model_type, *architecture; /* "llama", "LlamaForCausalLM" */
    const char *within; /* model_type of multimodal files that hold one as text_config; NULL: none */
    Arch arch;
    ModelConfig defaults;
    InitKind init;           /* the default initialiser of its models */
    const KeyRule *keys;     /* ends with a NULL name */
    const KeyAlias *aliases; /* ends with a NULL name; NULL: none */
    WindowKeys window_keys;
    const char *blocks;              /* prefix of names in blocks, before the number; NULL: "model.layers." */
    const NameRule *names;           /* ends with a NULL row; NULL: all names are those of their rows */
    const PublishedSize *sizes;      /* ends with a NULL name; NULL: none */
    const PublishedExperts *experts; /* of each of these sizes; NULL: no experts */
    const PublishedLatents *latents; /* of each of these sizes; NULL: no MLA */
} Family;

/* All families. A name is Hugging Face's model_type. */
/* clang-format off */
#define FAMILIES(X) \
    X(llama) X(qwen2) X(qwen3) X(mistral) X(olmo2) X(olmo3) X(gemma2) X(gemma3_text) X(smollm3) X(phi3) \
    X(gpt2) X(mixtral) X(qwen3_moe) X(olmoe) X(gpt_oss) X(deepseek_v3) X(deepseek_v2) X(llama4_text) \
    X(recurrent)
/* clang-format on */
#define FAMILY_OF(name) family_##name,
#define FAMILY_WORD(name) "|" #name
#define FAMILY_NAMES (&(FAMILIES(FAMILY_WORD))[1]) /* "llama|qwen2|...", as option tables take choices */

extern const Family FAMILIES(FAMILY_OF) *const families[]; /* ends with NULL */

const Family *model_family(const ModelConfig *c);
/* Name of a kind of parameter in this family. */
const char *family_parameter_name(const Family *f, const ParamRow *row);
/* Whether its models may have experts. */
bool family_has_experts(const Family *f);
/* The published model of this shape; NULL: none that weft knows. */
const PublishedSize *family_published(const ModelConfig *c);
/* What the family's config.json would mean if it had only sizes: *c with the family, and with the family's
 * defaults for everything that is not a size. */
ModelConfig family_defaults(const Family *f, const ModelConfig *c);
/* Refuses a complete shape that config.json of its family cannot express. */
ErrorCode family_check(const ModelConfig *c, const char *where, Error *err);

/* Reads a parsed config.json of this family; `where` names the file. */
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
/* For KEY_DENSE and KEY_SPARSE. */
ErrorCode dense_layers_read(KeyKind kind, ModelConfig *c, const cJSON *root, const char *where, Error *err);
void dense_layers_write(KeyKind kind, const ModelConfig *c, JsonWriter *w);
ErrorCode mixers_read(ModelConfig *c, const cJSON *root, const char *where, Error *err);
void mixers_write(const ModelConfig *c, JsonWriter *w);
const char *family_word(const KeyRule *k); /* of KEY_WORD */
/* transformers distinguishes 8.0 from 8, and warns about the latter, so a fraction is always written. */
void family_write_double(JsonWriter *w, const char *key, double value);
/* The name that config.json has for the family's activation. */
const char *family_activation(const Family *f);

#endif
