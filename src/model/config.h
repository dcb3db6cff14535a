/* Shape of a model. Fields have the names of Hugging Face's config.json. */
#ifndef WEFT_MODEL_CONFIG_H
#define WEFT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/choices.h"
#include "base/error.h"
#include "base/json.h"

/* Largest accepted sizes, both in config.json and in the option table. */
#define MODEL_MAX_VOCAB (1 << 30)
#define MODEL_MAX_WIDTH (1 << 24)
#define MODEL_MAX_COUNT (1 << 16) /* of layers, of heads, of a head's elements */
#define MODEL_MAX_POSITIONS INT32_MAX

/* How RoPE's frequencies are scaled for contexts longer than those of pre-training, by "rope_type" (the
 * formulas are in rotation.c):
 *   llama3   those of long wavelengths are divided by the factor, those of short ones kept
 *   linear   all are divided by the factor
 *   dynamic  a larger base, but only beyond max_position_embeddings, where weft does not go
 *   yarn     as llama3 with another ramp; sines and cosines are scaled too
 *   longrope each pair is divided by a factor of its own, from one list up to the original context and from
 *            another beyond it; sines and cosines are scaled too */
#define ROPE_KINDS(X)        \
    X(ROPE_LLAMA3, "llama3") \
    X(ROPE_LINEAR, "linear") X(ROPE_DYNAMIC, "dynamic") X(ROPE_YARN, "yarn") X(ROPE_LONGROPE, "longrope")
typedef enum RopeKind { ROPE_KINDS(CHOICE_CONSTANT) } RopeKind;
enum { ROPE_PAIRS = 128 }; /* most pairs of a head that longrope has factors for */

/* Factor 1 means no scaling, for every kind except longrope (rope_is_scaled). */
typedef struct RopeScaling {
    double factor, low_freq_factor, high_freq_factor; /* the latter two: llama3 */
    int64_t original_max_position_embeddings;         /* llama3, yarn, longrope */
    double attention_factor;       /* yarn, longrope: factor of sines and cosines; 0: the kind's formula */
    double beta_fast, beta_slow;   /* yarn: rotations within the original context */
    double mscale, mscale_all_dim; /* yarn; the latter also for MLA with any kind. 0: none */
    double short_factor[ROPE_PAIRS], long_factor[ROPE_PAIRS]; /* longrope: factor of each pair, then zeros */
    int pairs;                                                /* longrope: number of factors */
    int kind;                                                 /* RopeKind */
    bool truncate; /* yarn: the ramp begins and ends at integer pairs */
} RopeScaling;
/* No scaling, as an initialiser and as a value. */
#define ROPE_NONE \
    { 1.0, 1.0, 4.0, 8192, .beta_fast = 32, .beta_slow = 1, .truncate = true }
#define ROPE_UNSCALED ((RopeScaling)ROPE_NONE)
static inline bool rope_is_scaled(const RopeScaling *s) { return s->factor > 1 || s->kind == ROPE_LONGROPE; }

/* A set of layers, as a repeating pattern: layer i is in it if bit i % period of `layers` is set. Period 0:
 * the empty set. */
typedef struct LayerSet {
    int64_t period, layers;
} LayerSet;
enum { LAYER_SET_PERIOD = 52 }; /* at most: a double must hold the mask exactly */

/* What a block does along the sequence: attention, or a recurrence (layers/recurrence.c, layers/mamba.c). */
typedef enum Mixer { MIXER_ATTENTION, MIXER_MIN_GRU, MIXER_MIN_LSTM, MIXER_HAWK, MIXER_MAMBA2, MIXERS } Mixer;
#define MIXER_NAMES "attention, min_gru, min_lstm, hawk or mamba2"
const char *mixer_name(Mixer mixer);
bool mixer_find(const char *name, Mixer *out);

/* The mixers of blocks, as a repeating pattern: block i has kind[i % period]. Period 0: attention in all
 * blocks; kind is not used. */
enum { MIXER_PERIOD = 56 }; /* at most */
typedef struct MixerPattern {
    int64_t period;
    uint8_t kind[MIXER_PERIOD]; /* Mixer; zeros after the period */
} MixerPattern;
Mixer mixer_of(const MixerPattern *p, int64_t layer);
/* Whether the first `layers` blocks have the same mixers. */
bool mixers_equal(const MixerPattern *a, const MixerPattern *b, int64_t layers);
/* Finds the shortest pattern that gives `kinds` [layers]; false if it is longer than MIXER_PERIOD. */
bool mixers_find(MixerPattern *p, const uint8_t *kinds, int64_t layers);

/* Token ids of a list in config.json, at most TOKEN_IDS. */
enum { TOKEN_IDS = 15 };
typedef struct TokenIds {
    int64_t count, ids[TOKEN_IDS];
} TokenIds;
enum { MODEL_ENDS = TOKEN_IDS + 1 };

typedef struct ModelConfig {
    const struct Family *family; /* families/family.h; NULL: Llama */
    int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
        num_key_value_heads, head_dim;
    int64_t max_position_embeddings;
    double rms_norm_eps; /* LayerNorm's too */
    double rope_theta;
    RopeScaling rope_scaling;
    double rope_local_theta;      /* of layers with windows, in families that give them another base */
    double partial_rotary_factor; /* fraction of a head that is rotated; 0: all, as 1 */
    LayerSet no_rope;             /* layers without RoPE */
    int64_t sliding_window;       /* keys that a token sees in a layer with a window; 0: no windows */
    LayerSet windows;             /* the layers that have one, or, in some families, are cut into chunks */
    /* In layers without RoPE, queries at position p are multiplied by
     * 1 + attn_scale log(1 + floor((p + 1) / floor_scale)); attn_scale 0: no factor. */
    double attn_scale;
    int64_t floor_scale;
    double query_pre_attn_scalar;             /* scores are divided by its root; 0: by that of head_dim */
    double attn_logit_softcapping;            /* scores s become c tanh(s / c); 0: no cap */
    double final_logit_softcapping;           /* the same for the logits */
    int64_t num_experts, num_experts_per_tok; /* 0: none */
    int64_t moe_intermediate_size;            /* width of an expert; 0: intermediate_size */
    MixerPattern mixers;
    int64_t recurrent_size; /* channels of a recurrence; 0, where there is one: 2 hidden_size, of hawk 4/3 */
    int64_t conv_size;      /* taps of the convolution before its gates; 0: none */
    /* Mamba-2: state size of a channel, channels of a head, groups of heads that share one B and C. 0: 128,
     * 64 and 1, if any block has this mixer. */
    int64_t mamba_d_state, mamba_d_head, mamba_n_groups;
    LayerSet dense_layers;         /* with experts: layers that have an MLP instead */
    int64_t first_k_dense_replace; /* and this many first layers */
    int64_t n_shared_experts;      /* width of the shared MLP, which all tokens go through, in experts */
    int64_t n_group, topk_group; /* groups of experts; groups that a token may choose from. <= 1: no groups */
    double routed_scaling_factor; /* factor of a token's expert weights; 0: 1 */
    /* MLA: widths of the latents of queries (0: none) and of keys and values; then, per head, the part of
     * keys without RoPE, the part with it, and the values. All 0: no MLA. */
    int64_t q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim;
    double router_aux_loss_coef; /* coefficient of the balance loss, if output_router_logits */
    bool tie_word_embeddings, attention_bias, mlp_bias;
    bool mtp_module;     /* train.mtp_kind: an MTP module (layers/mtp.c) in place of MTP heads */
    bool mtp_replicated; /* TP may shard matrices: the MTP module's own is replicated. Not in config.json */
    /* With an MTP module and a TP-sharded vocabulary: rows that each rank reserves, of which it may use
     * fewer; 0: as many as it has. Not in config.json. */
    int64_t vocab_capacity;
    /* Experts are chosen by score plus a bias, which the family's config.json cannot express. */
    bool balance_bias;
    bool use_qk_norm;          /* with QK_NORM_PLAIN (families/family.h): heads with RoPE are normed */
    bool norm_topk_prob;       /* weights of a token's experts are divided by their sum */
    bool output_router_logits; /* transformers' switch for training with the balance loss */
    int64_t bos_token_id, eos_token_id; /* -1: none */
    TokenIds more_eos;                  /* more tokens that end a text, after eos_token_id */
    bool has_pad;                       /* config.json has pad_token_id: only passed through */
    int64_t pad_token_id;
    /* Adapters (model/adapters.h), not in config.json. adapter_rank 0: none. */
    int64_t adapter_rank;
    double adapter_scale;
    bool adapter_replicated; /* TP may shard the matrices: one side of each adapter is replicated */
    /* Expert parallelism: size of the EP group, and this rank's index in it, which selects its experts. Not
     * in config.json. 0 ranks: all experts are local. */
    int64_t expert_ranks, expert_rank;
    /* TP shards no expert (mesh.etp): sums over an expert's width are not split, each rank of tp dispatches
     * the rows of its own tokens, and the EP group has expert_folded ranks of each TP group (0: as 1). TP
     * shards shared experts, of which a rank has shared_width elements (0: all). Not in config.json. */
    bool whole_experts;
    int64_t expert_folded, shared_width;
    int64_t mtp_depth; /* train.mtp_depth: not in config.json; at most MTP_DEPTH_MAX */
} ModelConfig;
enum { MTP_DEPTH_MAX = 4 };
/* Tokens that end a text, eos_token_id first; returns their number. */
int model_ends(const ModelConfig *c, int64_t out[MODEL_ENDS]);
/* Adds an end token. Returns false if it is one already, is -1 (none), or if the list is full. */
bool model_add_end(ModelConfig *c, int64_t id);
/* Writes the end tokens as config.json has them: a number, a list of several, or null. */
void model_write_ends(const ModelConfig *c, const char *key, JsonWriter *w);
/* Size of the EP group, experts of a layer on each of its ranks, and the first of them on this rank. */
static inline int64_t model_expert_ranks(const ModelConfig *c) {
    return c->expert_ranks > 0 ? c->expert_ranks : 1;
}
/* Ranks of the EP group with tokens of other data: the rows of each make a gradient of their own. */
static inline int64_t model_expert_sources(const ModelConfig *c) {
    return model_expert_ranks(c) / (c->expert_folded > 0 ? c->expert_folded : 1);
}
static inline int64_t model_local_experts(const ModelConfig *c) {
    return c->num_experts / model_expert_ranks(c);
}
static inline int64_t model_first_expert(const ModelConfig *c) {
    return c->expert_rank * model_local_experts(c);
}

/* Number of blocks, including that of the MTP module, which is numbered after the last one. */
static inline int64_t model_blocks(const ModelConfig *c) { return c->num_hidden_layers + c->mtp_module; }
/* Whether the last unit reads the embedding too: as the tied head's matrix, or to look up the next token for
 * an MTP module. */
static inline bool model_embeds_last(const ModelConfig *c) { return c->tie_word_embeddings || c->mtp_module; }

bool layer_set_has(LayerSet s, int64_t layer);
/* Finds the shortest pattern that gives `has` [layers]; false if it is longer than LAYER_SET_PERIOD. */
bool layer_set_find(LayerSet *s, const bool *has, int64_t layers);

/* Everything that may differ between the blocks of a model. */
typedef struct BlockShape {
    int64_t window; /* 0: none */
    bool chunked;   /* the window is a chunk: a token sees only tokens of its own chunk */
    int rotation;   /* index of its RoPE table; -1: no RoPE */
    bool scaled;    /* queries are multiplied by a factor of their position */
    bool experts;   /* in place of the MLP */
    Mixer mixer;
} BlockShape;
BlockShape model_block(const ModelConfig *c, int64_t layer);
/* Number of RoPE tables of the model: 0, 1, or 2. */
int model_rotations(const ModelConfig *c);
int64_t model_rotary_dim(const ModelConfig *c);  /* elements of a head that are rotated */
bool model_scales_queries(const ModelConfig *c); /* whether any block does */
/* Whether any block has this mixer; whether any has a mixer other than attention. */
bool model_has_mixer(const ModelConfig *c, Mixer mixer);
bool model_is_recurrent(const ModelConfig *c);
/* "min_gru, min_gru, attention": the pattern. */
void model_mixers_text(const ModelConfig *c, Text *out);

/* Widths from which shapes of parameters and activations are made: X(name, its value in the model c).
 * model_dim is made from these rows, so a new dimension is a row; functions in them are in config.c. */
/* clang-format off */
#define DIMS(X) \
    X(DIM_NONE, 0) /* no such dimension */ \
    X(DIM_ONE, 1) \
    X(DIM_HIDDEN, c->hidden_size) /* h */ \
    X(DIM_QUERY, query_width(c)) /* Q = H D */ \
    X(DIM_KEY, key_width(c)) /* K = G D */ \
    X(DIM_KEY_VALUE, 2 * key_width(c)) \
    X(DIM_QKV, query_width(c) + 2 * key_width(c)) \
    X(DIM_HEADS, c->num_attention_heads) /* H */ \
    X(DIM_HEAD, c->head_dim) /* D */ \
    X(DIM_INTER, c->intermediate_size) /* I */ \
    X(DIM_GATE_UP, (arch_of(c)->no_gate ? 1 : 2) * c->intermediate_size) /* I where there is no gate */ \
    X(DIM_VOCAB, c->vocab_size) /* V */ \
    X(DIM_POSITIONS, c->max_position_embeddings) \
    X(DIM_EXPERTS, c->num_experts) /* E */ \
    X(DIM_CHOSEN, c->num_experts_per_tok) /* k, experts of a token */ \
    X(DIM_RUNS, c->num_experts + 1) \
    X(DIM_ALL_RUNS, model_expert_ranks(c) * (c->num_experts + 1)) /* for each rank of ep */ \
    /* runs of local experts, for each source of rows */ \
    X(DIM_LOCAL_RUNS, model_expert_sources(c) * (model_local_experts(c) + 1)) \
    X(DIM_EXPERT, expert_width(c)) /* width of an expert */ \
    X(DIM_EXPERT_GATE_UP, 2 * expert_width(c)) \
    X(DIM_STATE, c->recurrent_size) /* W, channels of a recurrence */ \
    X(DIM_STATES_2, 2 * c->recurrent_size) \
    X(DIM_STATES_3, 3 * c->recurrent_size) \
    X(DIM_STATES_4, 4 * c->recurrent_size) \
    X(DIM_CONV, c->conv_size > 0 ? c->recurrent_size : 0) /* where gates go through a convolution */ \
    X(DIM_CONV_2, c->conv_size > 0 ? 2 * c->recurrent_size : 0) \
    X(DIM_TAPS, c->conv_size * c->recurrent_size) \
    X(DIM_TAPS_2, 2 * c->conv_size * c->recurrent_size) \
    X(DIM_MAMBA_HEADS, mamba_heads(c)) \
    X(DIM_MAMBA_GROUPS, c->mamba_n_groups * c->mamba_d_state) /* B, or C, of all groups */ \
    X(DIM_MAMBA_READ, mamba_read(c)) /* x, B and C, which its recurrence reads */ \
    X(DIM_MAMBA_IN, c->recurrent_size + mamba_read(c) + mamba_heads(c)) /* output of its first product */ \
    X(DIM_MAMBA_CONV, c->conv_size > 0 ? mamba_read(c) : 0) /* where it goes through a convolution */ \
    X(DIM_MAMBA_TAPS, c->conv_size * mamba_read(c)) \
    X(DIM_MAMBA_STATES, c->recurrent_size * c->mamba_d_state) /* of all heads */ \
    /* scratch of its recurrence's backward pass, for a token of a chunk */ \
    X(DIM_MAMBA_TERMS, mamba_scratch_row(mamba_heads(c), c->mamba_n_groups, c->mamba_d_state)) \
    X(DIM_ADAPTER, c->adapter_rank) /* r, the rank of adapters */ \
    X(DIM_MTP_HEADS, c->mtp_depth * c->vocab_size) \
    X(DIM_JOINED, 2 * c->hidden_size) /* an MTP module's input for a token */ \
    X(DIM_SHARED, shared_width(c)) /* width of the shared experts */ \
    X(DIM_SHARED_GATE_UP, 2 * shared_width(c)) \
    X(DIM_LATENT_QUERY, c->q_lora_rank) /* of the latent of queries */ \
    X(DIM_LATENT_KEY, c->kv_lora_rank) /* of the latent of keys and values */ \
    X(DIM_LATENT_DOWN, c->kv_lora_rank + c->qk_rope_head_dim) \
    X(DIM_LATENT_WIDEST, widest_latent(c)) /* the widest of both latents and the common key */ \
    X(DIM_LATENT_ROPE, c->qk_rope_head_dim) /* R: width of the common key */ \
    /* all of a token that heads are made of */ \
    X(DIM_LATENT_MADE, c->q_lora_rank + c->kv_lora_rank + c->qk_rope_head_dim + latent_inner(c)) \
    /* all that is made from the stream */ \
    X(DIM_LATENT_ALL, (c->q_lora_rank > 0 ? c->q_lora_rank : query_width(c)) + c->kv_lora_rank + c->qk_rope_head_dim) \
    /* per-head keys (without RoPE) and values */ \
    X(DIM_LATENT_UP, c->num_attention_heads * (c->qk_nope_head_dim + c->v_head_dim)) \
    X(DIM_VALUES, c->num_attention_heads * c->v_head_dim) /* values of all heads */
/* clang-format on */
#define DIM_CONSTANT(dim, value) dim,
typedef enum Dim { DIMS(DIM_CONSTANT) } Dim;
int64_t model_dim(const ModelConfig *c, Dim dim);

int64_t model_usual_head_dim(const ModelConfig *c); /* the value of a head_dim of 0 */

/* Fills fields that may be omitted (num_key_value_heads 0 = heads, head_dim 0 = the usual one), brings
 * equivalent spellings to one form (patterns of layers, scaling by 1), and checks every rule: sizes are
 * positive, heads divide, head_dim is even, products fit in 63 bits, and the family's config.json can express
 * the shape. `where` names the source. */
ErrorCode model_config_complete(ModelConfig *c, const char *where, Error *err);

/* Reads config.json in both dialects (rope_theta + rope_scaling, or rope_parameters; torch_dtype or dtype),
 * by the rules of the family that it names. Other model types, RoPE types and activations are refused by
 * name. */
ErrorCode model_config_read(ModelConfig *c, const char *path, Error *err);
void model_config_write(const ModelConfig *c, const char *torch_dtype /* "bfloat16" */, Text *out);

int64_t model_parameter_count(const ModelConfig *c); /* tied weights once */
/* Of these, the parameters that one token meets: of the experts, num_experts_per_tok. */
int64_t model_active_count_without_embedding(const ModelConfig *c); /* N of 6N */
int64_t model_active_count(const ModelConfig *c);
/* Number of blocks with experts; and the factor of the balance loss of each, coefficient / blocks, or 0. */
int64_t model_expert_blocks(const ModelConfig *c);
double model_balance(const ModelConfig *c);
/* Training FLOPs of one token. The sum of 6 N, where N excludes the embedding and the experts that the token
 * is not routed to; 12 d p for each block with attention, with d = heads * head_dim and p the average number
 * of keys that a token sees (T / 2, or less with a window); and 16 W S for each block with Mamba-2, with S =
 * mamba_d_state. */
double model_flops_per_token(const ModelConfig *c, int64_t context);

#endif
