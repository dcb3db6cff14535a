/* Computes the widths that follow from a shape, describes its blocks, and checks the rules of every shape,
 * whatever its source: config.json, the keys of a run, a test. After model_config_complete nothing checks a
 * shape again.
 *
 * The order in model_config_complete matters. Patterns of layers are checked first, since making a shape
 * canonical reads their bits. Then omitted fields are filled in. Then sizes are checked, since all later
 * rules divide and multiply by them. The family comes last and sees a complete shape. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "device/ops/experts.h"
#include "device/ops/recurrence.h"
#include "model/families/family.h"

/* With this bound, weights, gradients and two moments in fp32 stay below 2^63 bytes. */
#define MAX_PARAMETERS ((int64_t)1 << 58)

static const Arch *arch_of(const ModelConfig *c) { return &model_family(c)->arch; }

static int64_t expert_width(const ModelConfig *c) {
    return c->moe_intermediate_size > 0 ? c->moe_intermediate_size : c->intermediate_size;
}

static int64_t shared_width(const ModelConfig *c) {
    return c->shared_width > 0 ? c->shared_width : c->n_shared_experts * expert_width(c);
}

static int64_t mamba_heads(const ModelConfig *c) {
    return c->mamba_d_head > 0 ? c->recurrent_size / c->mamba_d_head : 0;
}

static int64_t mamba_read(const ModelConfig *c) {
    return c->recurrent_size + 2 * c->mamba_n_groups * c->mamba_d_state;
}

/* Intermediate widths (r) of the adapters of heads that are made from latents: of keys and values, and of
 * queries where these have a latent. */
static int64_t latent_inner(const ModelConfig *c) {
    return c->adapter_replicated ? (c->q_lora_rank > 0 ? 2 : 1) * c->adapter_rank : 0;
}

static int64_t widest_latent(const ModelConfig *c) {
    int64_t latent = c->q_lora_rank > c->kv_lora_rank ? c->q_lora_rank : c->kv_lora_rank;
    return latent > c->qk_rope_head_dim ? latent : c->qk_rope_head_dim;
}

static int64_t query_width(const ModelConfig *c) { return c->num_attention_heads * c->head_dim; }
static int64_t key_width(const ModelConfig *c) { return c->num_key_value_heads * c->head_dim; }

/* Cannot overflow once check_sizes has passed. Heads and a head's elements are at most 2^16 each, so Q + 2K
 * is below 2^34, and a matrix of that by 2^24 rows or columns is below 2^58. Fused expert weights, at most
 * 2^25 by 2^24 per matrix, are below 2^61. A dimension that does not exist is 0, which distinguishes a vector
 * from a matrix of one column. */
int64_t model_dim(const ModelConfig *c, Dim dim) {
#define DIM_VALUE(name, value) \
    case name: return value;
    switch (dim) { DIMS(DIM_VALUE) }
#undef DIM_VALUE
    return 0;
}

/* ---- blocks ---- */

bool layer_set_has(LayerSet s, int64_t layer) { return s.period > 0 && (s.layers >> layer % s.period & 1); }

/* Whether the set repeats with this period. */
static bool repeats(const bool *has, int64_t layers, int64_t period) {
    for (int64_t i = period; i < layers; i++)
        if (has[i] != has[i - period]) return false;
    return true;
}

/* The result is unique for a set: the empty set has period 0, not a period of zeros, and otherwise the
 * shortest pattern is taken. At most 52 walks over the layers, once per file. */
bool layer_set_find(LayerSet *s, const bool *has, int64_t layers) {
    bool any = false;
    for (int64_t i = 0; i < layers; i++) any = any || has[i];
    *s = (LayerSet){0, 0};
    if (!any) return true;
    for (int64_t period = 1; period <= LAYER_SET_PERIOD && period <= layers; period++) {
        if (!repeats(has, layers, period)) continue;
        *s = (LayerSet){period, 0};
        for (int64_t i = 0; i < period; i++) s->layers |= (int64_t)has[i] << i;
        return true;
    }
    return false;
}

/* Where a model is no deeper than its pattern is long, several patterns mean the same set, and the shortest
 * replaces it. A deeper model keeps its pattern, unless the set is empty: a shorter pattern that agrees on
 * the first 52 layers might differ in later ones. */
static void shorten(LayerSet *s, int64_t layers) {
    bool has[LAYER_SET_PERIOD] = {false};
    int64_t seen = layers < LAYER_SET_PERIOD ? layers : LAYER_SET_PERIOD;
    for (int64_t i = 0; i < seen; i++) has[i] = layer_set_has(*s, i);
    if (layers <= LAYER_SET_PERIOD || s->period == 0 || s->layers == 0) layer_set_find(s, has, seen);
}

/* With learned positions no layer has RoPE; otherwise only layers of no_rope lack it. The second table, with
 * rope_local_theta, is for layers with windows, in families that distinguish the two kinds of layers: Gemma 3
 * has another base there, and OLMo 3 scales only the layers without windows. */
BlockShape model_block(const ModelConfig *c, int64_t layer) {
    bool window = c->sliding_window > 0 && layer_set_has(c->windows, layer);
    bool rotated = !arch_of(c)->learned_positions && !layer_set_has(c->no_rope, layer);
    return (BlockShape){.mixer = mixer_of(&c->mixers, layer),
                        .experts = c->num_experts > 0 && layer >= c->first_k_dense_replace &&
                                   !layer_set_has(c->dense_layers, layer),
                        .window = window ? c->sliding_window : 0,
                        .chunked = window && arch_of(c)->chunks,
                        .scaled = !rotated && c->attn_scale > 0,
                        .rotation = !rotated                               ? -1
                                    : window && arch_of(c)->local_rotation ? 1
                                                                           : 0};
}

/* The number of tables that model_block can refer to. Without windows no layer uses the second one, and it
 * would waste positions * R floats. */
int model_rotations(const ModelConfig *c) {
    if (arch_of(c)->learned_positions || !model_has_mixer(c, MIXER_ATTENTION)) return 0;
    return arch_of(c)->local_rotation && c->sliding_window > 0 ? 2 : 1;
}

bool model_scales_queries(const ModelConfig *c) {
    for (int64_t i = 0; c->attn_scale > 0 && i < c->num_hidden_layers; i++)
        if (model_block(c, i).scaled) return true;
    return false;
}

/* Truncated to an integer, as transformers does. check_divisions requires an even number. */
int64_t model_rotary_dim(const ModelConfig *c) {
    double share = c->partial_rotary_factor;
    if (arch_of(c)->latent) return c->qk_rope_head_dim;
    return share > 0 && share < 1 ? (int64_t)((double)c->head_dim * share) : c->head_dim;
}

/* ---- rules ---- */

/* At least 1, since each size is a factor of some tensor's shape, and no op accepts empty tensors. */
static ErrorCode check_size(const char *where, const char *key, int64_t value, int64_t max, Error *err) {
    if (value >= 1 && value <= max) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %" PRId64 ", expected a number from 1 to %" PRId64, where,
                     key, value, max);
}

/* Errors have the names of config.json, whatever the family's own are. The limits keep the elements of any
 * one parameter within 63 bits (at most 2^61, for fused expert weights), so only sums over parameters need
 * overflow checks (counts.c). */
static ErrorCode check_sizes(const ModelConfig *c, const char *where, Error *err) {
    TRY(check_size(where, "vocab_size", c->vocab_size, MODEL_MAX_VOCAB, err));
    TRY(check_size(where, "hidden_size", c->hidden_size, MODEL_MAX_WIDTH, err));
    TRY(check_size(where, "intermediate_size", c->intermediate_size, MODEL_MAX_WIDTH, err));
    TRY(check_size(where, "num_hidden_layers", c->num_hidden_layers, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "num_attention_heads", c->num_attention_heads, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "num_key_value_heads", c->num_key_value_heads, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "head_dim", c->head_dim, MODEL_MAX_COUNT, err));
    return check_size(where, "max_position_embeddings", c->max_position_embeddings, MODEL_MAX_POSITIONS, err);
}

/* With a sigmoid router, the score of a group is the sum of its two largest, so a group has at least two
 * experts. */
static ErrorCode check_groups(const ModelConfig *c, const char *where, Error *err) {
    int64_t groups = c->n_group, least = arch_of(c)->sigmoid_router ? 2 : 1;
    if (groups <= 1) return OK;
    if (c->num_experts % groups != 0 || c->num_experts / groups < least)
        return error_set(err, ERR_CONFIG,
                         "%s: n_group %" PRId64 " does not divide num_experts %" PRId64
                         " into equal groups of at least %" PRId64,
                         where, groups, c->num_experts, least);
    TRY(check_size(where, "topk_group", c->topk_group, groups, err));
    if (c->topk_group * (c->num_experts / groups) >= c->num_experts_per_tok) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: %" PRId64 " groups (topk_group) of %" PRId64
                     " experts are fewer than num_experts_per_tok %" PRId64,
                     where, c->topk_group, c->num_experts / groups, c->num_experts_per_tok);
}

/* Every expert of a model has an entry in tables. */
#define MAX_EXPERTS ((int64_t)1 << 17)

/* A shape without experts has no sizes of experts to check. */
static ErrorCode check_experts(const ModelConfig *c, const char *where, Error *err) {
    if (c->num_experts == 0) return OK;
    TRY(check_size(where, "num_experts", c->num_experts, EXPERTS_MAX, err));
    if (c->num_experts_per_tok == 0)
        return error_set(err, ERR_CONFIG,
                         "%s: num_experts_per_tok is 0: it is how many of num_experts %" PRId64
                         " a token goes to",
                         where, c->num_experts);
    TRY(check_size(where, "num_experts_per_tok", c->num_experts_per_tok, c->num_experts, err));
    if (c->moe_intermediate_size != 0)
        TRY(check_size(where, "moe_intermediate_size", c->moe_intermediate_size, MODEL_MAX_WIDTH, err));
    TRY(check_groups(c, where, err));
    if (c->n_shared_experts != 0) {
        TRY(check_size(where, "n_shared_experts", c->n_shared_experts, EXPERTS_MAX, err));
        if (model_dim(c, DIM_SHARED) > MODEL_MAX_WIDTH)
            return error_set(err, ERR_CONFIG, "%s: n_shared_experts %" PRId64 " are together wider than %d",
                             where, c->n_shared_experts, MODEL_MAX_WIDTH);
    }
    if (c->first_k_dense_replace != 0)
        TRY(check_size(where, "first_k_dense_replace", c->first_k_dense_replace, c->num_hidden_layers, err));
    if (c->num_experts * c->num_hidden_layers <= MAX_EXPERTS) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: %" PRId64 " experts in each of %" PRId64 " layers are more than %" PRId64
                     " in all, which is the most that weft holds",
                     where, c->num_experts, c->num_hidden_layers, MAX_EXPERTS);
}

/* Values are stored in as many elements as keys have. No published model has wider values. */
static ErrorCode check_latents(const ModelConfig *c, const char *where, Error *err) {
    if (!arch_of(c)->latent) return OK;
    TRY(check_size(where, "kv_lora_rank", c->kv_lora_rank, MODEL_MAX_WIDTH, err));
    TRY(check_size(where, "qk_nope_head_dim", c->qk_nope_head_dim, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "qk_rope_head_dim", c->qk_rope_head_dim, MODEL_MAX_COUNT, err));
    TRY(check_size(where, "v_head_dim", c->v_head_dim, MODEL_MAX_COUNT, err));
    if (c->q_lora_rank != 0) TRY(check_size(where, "q_lora_rank", c->q_lora_rank, MODEL_MAX_WIDTH, err));
    if (c->qk_rope_head_dim % 2 != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: qk_rope_head_dim is %" PRId64 ", expected an even number (RoPE rotates pairs)",
                         where, c->qk_rope_head_dim);
    if (c->head_dim != c->qk_nope_head_dim + c->qk_rope_head_dim)
        return error_set(err, ERR_CONFIG,
                         "%s: head_dim is %" PRId64 ", but qk_nope_head_dim and qk_rope_head_dim add up to "
                         "%" PRId64 ": leave it out",
                         where, c->head_dim, c->qk_nope_head_dim + c->qk_rope_head_dim);
    if (c->v_head_dim > c->head_dim)
        return error_set(err, ERR_CONFIG,
                         "%s: v_head_dim %" PRId64 " is more than the %" PRId64
                         " of queries and keys, which weft does not do",
                         where, c->v_head_dim, c->head_dim);
    if (c->num_key_value_heads == c->num_attention_heads) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: num_key_value_heads is %" PRId64 ", expected num_attention_heads, %" PRId64
                     ": latents are expanded to keys of every head",
                     where, c->num_key_value_heads, c->num_attention_heads);
}

/* The sizes of recurrences also bound vectors of taps, which stay within 63 bits. */
static ErrorCode check_recurrence(const ModelConfig *c, const char *where, Error *err) {
    if (!model_is_recurrent(c)) return OK;
    TRY(check_size(where, "recurrent_size", c->recurrent_size, MODEL_MAX_WIDTH, err));
    if (c->conv_size >= 0 && c->conv_size <= CONV_TAPS) return OK;
    return error_set(err, ERR_CONFIG, "%s: conv_size is %" PRId64 ", expected a number from 0 to %d", where,
                     c->conv_size, CONV_TAPS);
}

/* Heads must divide the channels, and groups the heads. */
static ErrorCode check_mamba(const ModelConfig *c, const char *where, Error *err) {
    if (!model_has_mixer(c, MIXER_MAMBA2)) return OK;
    TRY(check_size(where, "mamba_d_state", c->mamba_d_state, MAMBA_STATE, err));
    TRY(check_size(where, "mamba_d_head", c->mamba_d_head, MODEL_MAX_COUNT, err));
    if (c->recurrent_size % c->mamba_d_head != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: recurrent_size %" PRId64 " is not a multiple of mamba_d_head %" PRId64, where,
                         c->recurrent_size, c->mamba_d_head);
    TRY(check_size(where, "mamba_n_groups", c->mamba_n_groups, mamba_heads(c), err));
    if (mamba_heads(c) % c->mamba_n_groups == 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: mamba_n_groups %" PRId64 " does not divide the %" PRId64
                     " heads that recurrent_size and mamba_d_head make",
                     where, c->mamba_n_groups, mamba_heads(c));
}

/* heads * head_dim need not be hidden_size: it is not in Qwen3 4B, Mistral Nemo, or Gemma 2 9B. The number of
 * heads must divide hidden_size only where transformers' class of the family requires it. Each key/value head
 * serves equally many query heads (Ainslie et al., "GQA", 2023). */
static ErrorCode check_divisions(const ModelConfig *c, const char *where, Error *err) {
    if (arch_of(c)->heads_divide && c->hidden_size % c->num_attention_heads != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: hidden_size %" PRId64 " is not a multiple of num_attention_heads %" PRId64
                         ", which the family %s demands",
                         where, c->hidden_size, c->num_attention_heads, model_family(c)->model_type);
    if (c->num_attention_heads % c->num_key_value_heads != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: num_attention_heads %" PRId64
                         " is not a multiple of num_key_value_heads %" PRId64,
                         where, c->num_attention_heads, c->num_key_value_heads);
    if (c->head_dim % 2 != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: head_dim is %" PRId64 ", expected an even number (RoPE rotates pairs)", where,
                         c->head_dim);
    if (model_rotary_dim(c) % 2 != 0)
        return error_set(err, ERR_CONFIG,
                         "%s: partial_rotary_factor %g of head_dim %" PRId64 " is %" PRId64
                         " elements, expected an even number (RoPE rotates pairs)",
                         where, c->partial_rotary_factor, c->head_dim, model_rotary_dim(c));
    return OK;
}

/* Written so that a NaN, for which every comparison is false, is refused too. */
static ErrorCode check_not_negative(const char *where, const char *key, double value, double most,
                                    Error *err) {
    if (value >= 0 && value <= most) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %g, expected a number from 0 to %g", where, key, value,
                     most);
}

/* Sets found in a file are in range. A run gives period and mask as two numbers, which may be anything; a
 * mask with bits beyond its period would be layers that nobody meant. */
static ErrorCode check_layer_set(const char *where, const char *key, LayerSet s, Error *err) {
    bool fits = s.period >= 0 && s.period <= LAYER_SET_PERIOD && s.layers >= 0 && s.layers >> s.period == 0;
    if (fits) return OK;
    return error_set(err, ERR_CONFIG,
                     "%s: %s: the pattern %" PRId64 " of %" PRId64
                     " layers is none: expected a bit for each of at most %d",
                     where, key, s.layers, s.period, LAYER_SET_PERIOD);
}

/* For windows, patterns and caps, 0 always means none. The upper limits exclude nonsense and keep the numbers
 * finite in fp32, which the kernels use. */
static ErrorCode check_attention(const ModelConfig *c, const char *where, Error *err) {
    TRY(check_not_negative(where, "sliding_window", (double)c->sliding_window, MODEL_MAX_POSITIONS, err));
    TRY(check_not_negative(where, "query_pre_attn_scalar", c->query_pre_attn_scalar, 1e9, err));
    TRY(check_not_negative(where, "attn_logit_softcapping", c->attn_logit_softcapping, 1e9, err));
    TRY(check_not_negative(where, "final_logit_softcapping", c->final_logit_softcapping, 1e9, err));
    TRY(check_not_negative(where, "router_aux_loss_coef", c->router_aux_loss_coef, 1e9, err));
    TRY(check_not_negative(where, "routed_scaling_factor", c->routed_scaling_factor, 1e9, err));
    TRY(check_not_negative(where, "attn_scale", c->attn_scale, 1e9, err));
    return check_not_negative(where, "partial_rotary_factor", c->partial_rotary_factor, 1, err);
}

/* For families that scale queries. The family has been checked by now. */
static ErrorCode check_query_scale(const ModelConfig *c, const char *where, Error *err) {
    if (c->attn_scale <= 0) return OK;
    return check_size(where, "floor_scale", c->floor_scale, MODEL_MAX_POSITIONS, err);
}

/* A base has no effect where positions are learned. */
static ErrorCode check_base(const ModelConfig *c, const char *where, const char *key, double base,
                            Error *err) {
    if ((base >= 1.0 && isfinite(base)) || arch_of(c)->learned_positions) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %g, expected a number of at least 1", where, key, base);
}

/* A token id of -1 means none. Others are compared with the vocabulary, which check_sizes has checked. */
static ErrorCode check_numbers(const ModelConfig *c, const char *where, Error *err) {
    if (!(c->rms_norm_eps >= 0.0 && c->rms_norm_eps <= 1.0))
        return error_set(err, ERR_CONFIG, "%s: rms_norm_eps is %g, expected a number from 0 to 1", where,
                         c->rms_norm_eps);
    TRY(check_base(c, where, "rope_theta", c->rope_theta, err));
    if (c->rope_local_theta != 0.0) TRY(check_base(c, where, "rope_local_theta", c->rope_local_theta, err));
    if (c->bos_token_id < -1 || c->bos_token_id >= c->vocab_size)
        return error_set(err, ERR_CONFIG,
                         "%s: bos_token_id %" PRId64 " is outside the vocabulary of %" PRId64, where,
                         c->bos_token_id, c->vocab_size);
    if (c->eos_token_id < -1 || c->eos_token_id >= c->vocab_size)
        return error_set(err, ERR_CONFIG,
                         "%s: eos_token_id %" PRId64 " is outside the vocabulary of %" PRId64, where,
                         c->eos_token_id, c->vocab_size);
    for (int64_t i = 0; i < c->more_eos.count; i++)
        if (c->more_eos.ids[i] >= c->vocab_size)
            return error_set(err, ERR_CONFIG,
                             "%s: eos_token_id %" PRId64 " is outside the vocabulary of %" PRId64, where,
                             c->more_eos.ids[i], c->vocab_size);
    return OK;
}

/* There is one factor for each rotated pair, and none is 0, since it is a divisor. */
static ErrorCode check_longrope(const ModelConfig *c, const char *where, Error *err) {
    const RopeScaling *s = &c->rope_scaling;
    if (s->pairs != model_rotary_dim(c) / 2 || s->pairs > ROPE_PAIRS)
        return error_set(
            err, ERR_CONFIG,
            "%s: short_factor and long_factor of longrope have %d numbers, expected one for each "
            "pair that is rotated, %" PRId64 " (at most %d)",
            where, s->pairs, model_rotary_dim(c) / 2, ROPE_PAIRS);
    for (int i = 0; i < s->pairs; i++)
        if (!(s->short_factor[i] > 0 && s->long_factor[i] > 0 && isfinite(s->short_factor[i]) &&
              isfinite(s->long_factor[i])))
            return error_set(err, ERR_CONFIG,
                             "%s: factors of longrope for pair %d are %g and %g, expected more than 0", where,
                             i, s->short_factor[i], s->long_factor[i]);
    if (s->original_max_position_embeddings > 1) return OK; /* a divisor has its logarithm */
    return error_set(err, ERR_CONFIG,
                     "%s: original_max_position_embeddings of longrope is %" PRId64 ", expected 2 or more",
                     where, s->original_max_position_embeddings);
}

/* Checks only what the kind reads: members of other kinds hold their defaults, or whatever a file has. A
 * factor below 1 would shorten the context, which no rope_type means. */
static ErrorCode check_scaling(const ModelConfig *c, const char *where, Error *err) {
    const RopeScaling *s = &c->rope_scaling;
    if (!(s->factor >= 1.0 && isfinite(s->factor)))
        return error_set(err, ERR_CONFIG, "%s: RoPE scaling factor is %g, expected 1 or more", where,
                         s->factor);
    if (s->kind == ROPE_LONGROPE) TRY(check_longrope(c, where, err));
    if (!rope_is_scaled(s) || s->kind == ROPE_LINEAR || s->kind == ROPE_DYNAMIC) return OK;
    if (s->kind == ROPE_YARN &&
        !(s->beta_slow > 0.0 && s->beta_fast >= s->beta_slow && isfinite(s->beta_fast)))
        return error_set(err, ERR_CONFIG, "%s: yarn needs 0 < beta_slow <= beta_fast, found %g and %g", where,
                         s->beta_slow, s->beta_fast);
    if (s->kind != ROPE_LLAMA3 && !(s->attention_factor >= 0.0 && isfinite(s->attention_factor)))
        return error_set(err, ERR_CONFIG, "%s: RoPE's attention_factor is %g, expected 0 or more", where,
                         s->attention_factor);
    if (s->kind == ROPE_LLAMA3 && !(s->low_freq_factor > 0.0 && s->high_freq_factor >= s->low_freq_factor &&
                                    isfinite(s->high_freq_factor)))
        return error_set(err, ERR_CONFIG,
                         "%s: RoPE scaling needs 0 < low_freq_factor <= high_freq_factor, found %g and %g",
                         where, s->low_freq_factor, s->high_freq_factor);
    return check_size(where, "original_max_position_embeddings", s->original_max_position_embeddings,
                      MODEL_MAX_POSITIONS, err);
}

/* As `shorten`, for mixers. */
static void shorten_mixers(MixerPattern *p, int64_t layers) {
    uint8_t kinds[MIXER_PERIOD];
    if (layers > MIXER_PERIOD || p->period == 0) return;
    for (int64_t i = 0; i < layers; i++) kinds[i] = (uint8_t)mixer_of(p, i);
    mixers_find(p, kinds, layers);
}

/* Lingua's widths. With both kinds of recurrences in one model, the wider one. */
static int64_t usual_recurrence(const ModelConfig *c) {
    enum { MULTIPLE = 256 };
    bool twice = model_has_mixer(c, MIXER_MIN_GRU) || model_has_mixer(c, MIXER_MIN_LSTM) ||
                 model_has_mixer(c, MIXER_MAMBA2);
    if (twice) return 2 * c->hidden_size;
    return (4 * c->hidden_size / 3 + MULTIPLE - 1) / MULTIPLE * MULTIPLE;
}

int64_t model_usual_head_dim(const ModelConfig *c) {
    if (arch_of(c)->latent) return c->qk_nope_head_dim + c->qk_rope_head_dim;
    return c->num_attention_heads > 0 ? c->hidden_size / c->num_attention_heads : 0;
}

/* Defaults are those of the published models (state-spaces/mamba2-2.7b). */
static void make_mamba_canonical(ModelConfig *c) {
    if (!model_has_mixer(c, MIXER_MAMBA2)) {
        c->mamba_d_state = c->mamba_d_head = c->mamba_n_groups = 0;
        return;
    }
    if (c->mamba_d_state == 0) c->mamba_d_state = 128;
    if (c->mamba_d_head == 0) c->mamba_d_head = 64;
    if (c->mamba_n_groups == 0) c->mamba_n_groups = 1;
}

/* Brings equivalent spellings to one form, so that equal shapes are equal bytes. Without a window no layers
 * have one, and without such layers there is no window; hence the set is cleared before and the window after
 * `shorten`. */
static void make_canonical(ModelConfig *c) {
    if (c->num_key_value_heads == 0) c->num_key_value_heads = c->num_attention_heads;
    if (c->head_dim == 0) c->head_dim = model_usual_head_dim(c);
    bool unscaled = c->rope_scaling.factor >= 1.0 && !rope_is_scaled(&c->rope_scaling);
    if (unscaled) c->rope_scaling = ROPE_UNSCALED;
    if (c->partial_rotary_factor == 0.0) c->partial_rotary_factor = 1.0;
    if (arch_of(c)->local_rotation && c->rope_local_theta == 0.0) c->rope_local_theta = c->rope_theta;
    if (c->sliding_window == 0) c->windows = (LayerSet){0, 0};
    shorten(&c->windows, c->num_hidden_layers);
    if (c->num_experts == 0) c->dense_layers = (LayerSet){0, 0};
    if (c->n_group == 0 && arch_of(c)->latent) c->n_group = 1;
    if (c->n_group == 1) c->topk_group = 1;
    shorten_mixers(&c->mixers, c->num_hidden_layers);
    if (!model_is_recurrent(c)) c->mixers = (MixerPattern){.period = 0}, c->recurrent_size = c->conv_size = 0;
    if (model_is_recurrent(c) && c->recurrent_size == 0) c->recurrent_size = usual_recurrence(c);
    make_mamba_canonical(c);
    shorten(&c->no_rope, c->num_hidden_layers);
    shorten(&c->dense_layers, c->num_hidden_layers);
    if (c->windows.period == 0) c->sliding_window = 0;
}

ErrorCode model_config_complete(ModelConfig *c, const char *where, Error *err) {
    TRY(check_layer_set(where, "window_layers", c->windows, err));
    TRY(check_layer_set(where, "no_rope_layers", c->no_rope, err));
    TRY(check_layer_set(where, "dense_layers", c->dense_layers, err));
    make_canonical(c);
    TRY(check_sizes(c, where, err));
    TRY(check_experts(c, where, err));
    TRY(check_recurrence(c, where, err));
    TRY(check_mamba(c, where, err));
    TRY(check_latents(c, where, err));
    TRY(check_divisions(c, where, err));
    TRY(check_attention(c, where, err));
    TRY(check_numbers(c, where, err));
    TRY(check_scaling(c, where, err));
    TRY(family_check(c, where, err));
    TRY(check_query_scale(c, where, err));
    if (model_parameter_count(c) > MAX_PARAMETERS)
        return error_set(err, ERR_CONFIG,
                         "%s: the sizes make more parameters than 64-bit byte counts can hold", where);
    return OK;
}

/* ---- tokens that end a text ---- */

int model_ends(const ModelConfig *c, int64_t out[MODEL_ENDS]) {
    int count = 0;
    if (c->eos_token_id >= 0) out[count++] = c->eos_token_id;
    for (int64_t i = 0; i < c->more_eos.count; i++) out[count++] = c->more_eos.ids[i];
    return count;
}

bool model_add_end(ModelConfig *c, int64_t id) {
    int64_t ends[MODEL_ENDS];
    int count = model_ends(c, ends);
    bool known = id < 0 || c->more_eos.count == TOKEN_IDS;
    for (int i = 0; i < count; i++) known |= ends[i] == id;
    if (known) return false;
    if (c->eos_token_id < 0)
        c->eos_token_id = id;
    else
        c->more_eos.ids[c->more_eos.count++] = id;
    return true;
}
