/* Options of the sections `model` and `lora`. */
#include "model/options.h"

#include "base/option_rows.h"
#include "device/ops/experts.h"
#include "device/ops/recurrence.h"
#include "model/families/family.h"

#define TARGET ModelOptions
const Option model_options[] = {
    /* The shape, by the names of Hugging Face's config.json, so that what is written there can be read back.
     * It cannot change once weights have it, hence EFFECT_RUN; constants of the mathematics could, hence
     * EFFECT_CURVE for them. */
    TEXT("model.config", config, "", START,
         "A Hugging Face config.json to take the shape from; keys given here win.",
         ELSEWHERE("flavor config_name")),
    CHOICE("model.family", family, "llama", FAMILY_NAMES, RUN,
           "Kind of model, by Hugging Face's model_type (weft models); its defaults hold for keys that "
           "nobody gives.",
           ELSEWHERE("model.name model.type model_type architecture")),
    /* 0 remains until the tokenizer is open, which is after this table has been read (setup_shape). A size
     * above the tokenizer's is allowed: rows may be padding. */
    INT("model.vocab_size", shape.vocab_size, "0", 0, MODEL_MAX_VOCAB, RUN,
        "Rows of the embedding; 0 means the tokenizer's size.", ELSEWHERE("n_vocab padded_vocab_size")),
    INT("model.hidden_size", shape.hidden_size, "256", 1, MODEL_MAX_WIDTH, RUN,
        "Width of the model: elements of a token's hidden state.",
        ELSEWHERE("dim d_model n_embd embed_dim model_dim")),
    /* No fixed multiple of the width: gated MLPs have three matrices, and published models choose it
     * freely. */
    INT("model.intermediate_size", shape.intermediate_size, "768", 1, MODEL_MAX_WIDTH, RUN,
        "Width of the MLP's hidden layer.",
        ELSEWHERE("hidden_dim inter_dim ffn_dim d_ff ffn_hidden_size ffn_dim_multiplier multiple_of")),
    INT("model.num_hidden_layers", shape.num_hidden_layers, "6", 1, MODEL_MAX_COUNT, RUN,
        "Number of transformer blocks.", ELSEWHERE("n_layers n_layer num_layers")),
    INT("model.num_attention_heads", shape.num_attention_heads, "8", 1, MODEL_MAX_COUNT, RUN,
        "Number of query heads.", ELSEWHERE("n_heads n_head num_heads")),
    /* Fewer KV heads than query heads (Ainslie et al., "GQA", 2023) need less memory for the KV cache. */
    INT("model.num_key_value_heads", shape.num_key_value_heads, "0", 0, MODEL_MAX_COUNT, RUN,
        "Number of key and value heads (GQA); 0 means as many as query heads.",
        ELSEWHERE("n_kv_heads num_kv_heads n_query_groups num_query_groups")),
    /* A key of its own, since in some published models heads * head_dim is not hidden_size. */
    INT("model.head_dim", shape.head_dim, "0", 0, MODEL_MAX_COUNT, RUN,
        "Size of an attention head; 0 means hidden_size / num_attention_heads.",
        ELSEWHERE("head_size kv_channels")),
    /* Only written into config.json, for users of the model. Training computes positions as needed. */
    INT("model.max_position_embeddings", shape.max_position_embeddings, "0", 0, MODEL_MAX_POSITIONS, NOTHING,
        "Longest sequence the model is for; 0 means train.context.", FOLLOWS("train.context"),
        ELSEWHERE("max_seq_len max_seqlen n_positions")),
    /* Zhang and Sennrich, "Root mean square layer normalization", 2019. 1e-5 is that of Llama 2 and 3; with
     * another epsilon the same weights are another function. */
    REAL("model.rms_norm_eps", shape.rms_norm_eps, "1e-5", 0, 1, CURVE,
         "Epsilon of the norms: added to the mean square, or to the variance, before the root.",
         ELSEWHERE("norm_eps layer_norm_eps layernorm_epsilon layer_norm_epsilon")),
    /* Su et al., "RoFormer", 2021, whose base is 10,000. The keys from here to rope_truncate only change
     * rotations, so weights keep their shape. */
    REAL("model.rope_theta", shape.rope_theta, "10000", 1, 1e12, CURVE,
         "Base of the rotary frequencies (RoPE).", ELSEWHERE("rope_base rotary_base")),
    /* The type has no effect while the factor is 1, the default. So the most common type can be the default,
     * and rope_factor can be given without a type. */
    CHOICE("model.rope_type", shape.rope_scaling.kind, "llama3", CHOICE_WORDS(ROPE_KINDS), CURVE,
           "RoPE scaling: how rotary frequencies are stretched for contexts longer than the original one; "
           "counts only with rope_factor above 1, or as longrope."),
    REAL("model.rope_factor", shape.rope_scaling.factor, "1", 1, 1e6, CURVE,
         "RoPE scaling: by how much the context is stretched; 1 means no scaling, of whatever rope_type but "
         "longrope.",
         ELSEWHERE("scaling_factor")),
    /* 1 and 4, with 8,192 positions, are those of Llama 3.1's config.json. Frequencies between the two
     * wavelengths are interpolated (model/rotation.c). */
    REAL("model.rope_low_freq_factor", shape.rope_scaling.low_freq_factor, "1", 0, 1e6, CURVE,
         "rope_type llama3: wavelengths longer than the original context divided by this are stretched.",
         ELSEWHERE("low_freq_factor")),
    REAL("model.rope_high_freq_factor", shape.rope_scaling.high_freq_factor, "4", 0, 1e6, CURVE,
         "rope_type llama3: wavelengths shorter than the original context divided by this are kept.",
         ELSEWHERE("high_freq_factor")),
    INT("model.rope_original_positions", shape.rope_scaling.original_max_position_embeddings, "8192", 0,
        MODEL_MAX_POSITIONS, CURVE,
        "rope_type llama3, yarn, longrope: the context in tokens that the model was trained with before "
        "scaling.",
        ELSEWHERE("original_max_position_embeddings original_seq_len")),
    /* Peng et al., "YaRN", 2023; its ramp from 32 rotations to 1 is what they found for Llama. 0 means the
     * formula, which never gives 0. */
    REAL("model.rope_attention_factor", shape.rope_scaling.attention_factor, "0", 0, 1e6, CURVE,
         "rope_type yarn, longrope: factor of sines and cosines; 0 means by the type's formula."),
    REAL("model.rope_beta_fast", shape.rope_scaling.beta_fast, "32", 0, 1e6, CURVE,
         "rope_type yarn: dimensions that rotate more often than this within the original context are kept.",
         ELSEWHERE("beta_fast")),
    REAL("model.rope_beta_slow", shape.rope_scaling.beta_slow, "1", 0, 1e6, CURVE,
         "rope_type yarn: dimensions that rotate less often than this within the original context are "
         "stretched by the whole factor.",
         ELSEWHERE("beta_slow")),
    REAL("model.rope_mscale", shape.rope_scaling.mscale, "0", 0, 1e6, CURVE,
         "rope_type yarn: with rope_mscale_all_dim, coefficient of another formula for the factor of sines "
         "and cosines; 0 means the usual formula.",
         ELSEWHERE("mscale")),
    /* Lists of model files, one number for each rotated pair. With model.config or model.init they are set
     * from the file. */
    TEXTS("model.rope_short_factor", rope_short_factor, "[]", CURVE,
          "rope_type longrope: divisors of the rotary frequencies in contexts up to the original one, one "
          "for each pair of dimensions."),
    TEXTS("model.rope_long_factor", rope_long_factor, "[]", CURVE,
          "rope_type longrope: divisors of the rotary frequencies in contexts longer than the original one, "
          "one for each pair of dimensions."),
    REAL("model.rope_mscale_all_dim", shape.rope_scaling.mscale_all_dim, "0", 0, 1e6, CURVE,
         "rope_type yarn: the coefficient in the denominator of the formula that rope_mscale asks for; of "
         "latent attention, of the scale of scores too; 0 means the usual formula."),
    BOOL("model.rope_truncate", shape.rope_scaling.truncate, "true", CURVE,
         "rope_type yarn: the ramp between kept and stretched dimensions begins and ends at whole pairs."),
    /* Windows are short, and suit another base than attention over the whole context. 0: rope_theta, in
     * families that distinguish the two. */
    REAL("model.rope_local_theta", shape.rope_local_theta, "0", 0, 1e12, CURVE,
         "Base of the rotary frequencies in layers with a sliding window, in families where it differs; 0 "
         "means rope_theta."),
    REAL("model.partial_rotary_factor", shape.partial_rotary_factor, "1", 0, 1, CURVE,
         "Share of each head that rotary embedding rotates."),
    /* A pattern is two numbers, so that it does not depend on the depth of the model and fits a key. A period
     * is at most 52, so that a double, and so JSON, holds every mask exactly. */
    INT("model.no_rope_period", shape.no_rope.period, "0", 0, LAYER_SET_PERIOD, CURVE,
        "Layers after which the pattern no_rope_layers repeats; 0 means that all layers have rotary "
        "embedding."),
    INT("model.no_rope_layers", shape.no_rope.layers, "0", 0, MOST_EXACT, CURVE,
        "Layers without rotary embedding, as a bit mask: bit i is layer i of each no_rope_period layers."),
    /* Beltagy et al., "Longformer", 2020. The number alone has no effect: the pattern below selects the
     * layers with windows. */
    INT("model.sliding_window", shape.sliding_window, "0", 0, MODEL_MAX_POSITIONS, CURVE,
        "Keys that a token sees, itself the last, in layers with a window; 0 means no windows.",
        ELSEWHERE("sliding_window_size window_size")),
    INT("model.window_period", shape.windows.period, "0", 0, LAYER_SET_PERIOD, CURVE,
        "Layers after which the pattern window_layers repeats; 0 means that no layer has a sliding window."),
    INT("model.window_layers", shape.windows.layers, "0", 0, MOST_EXACT, CURVE,
        "Layers with a sliding window, as a bit mask: bit i is layer i of each window_period layers."),
    /* Keys of Llama 4's config.json. */
    REAL("model.attn_scale", shape.attn_scale, "0", 0, 1e9, CURVE,
         "Queries of layers without rotary embedding are multiplied by 1 + attn_scale log(1 + floor((p + 1) "
         "/ floor_scale)) at position p; 0 means no such factor."),
    INT("model.floor_scale", shape.floor_scale, "0", 0, MODEL_MAX_POSITIONS, CURVE,
        "Positions after which the factor of attn_scale grows."),
    BOOL("model.use_qk_norm", shape.use_qk_norm, "false", CURVE,
         "Norm queries and keys of each head, without weights, after rotary embedding."),
    /* Experts in place of MLPs, by the keys of transformers' Qwen 3 MoE. Number and width of experts are the
     * shape of the weights. The number of experts of a token is not, but changing it changes the model. */
    INT("model.num_experts", shape.num_experts, "0", 0, EXPERTS_MAX, RUN,
        "Number of experts of a layer, in place of the MLP, in families that have them; 0 means none.",
        ELSEWHERE("n_routed_experts num_local_experts n_experts")),
    INT("model.num_experts_per_tok", shape.num_experts_per_tok, "0", 0, EXPERTS_MAX, CURVE,
        "Number of experts that each token goes to (top k).",
        ELSEWHERE("top_k n_expert_per_token moe_router_topk")),
    INT("model.moe_intermediate_size", shape.moe_intermediate_size, "0", 0, MODEL_MAX_WIDTH, RUN,
        "Width of an expert; 0 means intermediate_size.", ELSEWHERE("moe_inter_dim moe_ffn_hidden_size")),
    INT("model.dense_period", shape.dense_layers.period, "0", 0, LAYER_SET_PERIOD, RUN,
        "Layers after which the pattern dense_layers repeats; 0 means that all layers have experts."),
    INT("model.dense_layers", shape.dense_layers.layers, "0", 0, MOST_EXACT, RUN,
        "Layers with an MLP in place of experts, as a bit mask: bit i is layer i of each dense_period "
        "layers."),
    INT("model.first_k_dense_replace", shape.first_k_dense_replace, "0", 0, MODEL_MAX_COUNT, RUN,
        "Number of first layers that have an MLP in place of experts.", ELSEWHERE("n_dense_layers")),
    /* The keys from here to v_head_dim are those of DeepSeek's config.json. */
    INT("model.n_shared_experts", shape.n_shared_experts, "0", 0, EXPERTS_MAX, RUN,
        "Shared experts: an MLP as wide as so many experts, which every token goes through besides its own; "
        "0 means none.",
        ELSEWHERE("num_shared_experts")),
    INT("model.n_group", shape.n_group, "0", 0, EXPERTS_MAX, CURVE,
        "Groups of experts; a token's experts are from topk_group of them. Up to 1: no groups.",
        ELSEWHERE("num_expert_groups")),
    INT("model.topk_group", shape.topk_group, "0", 0, EXPERTS_MAX, CURVE,
        "Groups that a token's experts are from, of n_group.", ELSEWHERE("num_limited_groups")),
    REAL("model.routed_scaling_factor", shape.routed_scaling_factor, "0", 0, 1e9, CURVE,
         "Factor of the weights of a token's experts; 0 means 1.", ELSEWHERE("route_scale")),
    INT("model.q_lora_rank", shape.q_lora_rank, "0", 0, MODEL_MAX_WIDTH, RUN,
        "Latent attention (MLA): width of the latent of queries; 0 means that queries have none."),
    INT("model.kv_lora_rank", shape.kv_lora_rank, "0", 0, MODEL_MAX_WIDTH, RUN,
        "Latent attention (MLA): width of the latent of keys and values; 0 means that attention is not "
        "latent."),
    INT("model.qk_nope_head_dim", shape.qk_nope_head_dim, "0", 0, MODEL_MAX_COUNT, RUN,
        "Latent attention (MLA): elements of a head's queries and keys without rotary embedding."),
    INT("model.qk_rope_head_dim", shape.qk_rope_head_dim, "0", 0, MODEL_MAX_COUNT, RUN,
        "Latent attention (MLA): elements of a head's queries and keys with rotary embedding; all heads "
        "share those of keys."),
    INT("model.v_head_dim", shape.v_head_dim, "0", 0, MODEL_MAX_COUNT, RUN,
        "Latent attention (MLA): elements of a head's values."),
    /* A pattern of names does not depend on the depth of the model. With model.config or model.init it is set
     * from the file. */
    TEXTS("model.mixer", mixer, "[]", RUN,
          "What blocks do along the sequence, in the family recurrent: " MIXER_NAMES
          ", or a list of these, which repeats over the blocks."),
    INT("model.recurrent_size", shape.recurrent_size, "0", 0, MODEL_MAX_WIDTH, RUN,
        "Channels of a recurrent mixer; 0 means twice hidden_size, with hawk alone 4/3 of it in whole 256.",
        ELSEWHERE("lru_dim_multiplier")),
    INT("model.mamba_d_state", shape.mamba_d_state, "0", 0, MAMBA_STATE, RUN,
        "Numbers of the state of mamba2 for each channel; 0 means 128.", ELSEWHERE("state_dim")),
    INT("model.mamba_d_head", shape.mamba_d_head, "0", 0, MODEL_MAX_COUNT, RUN,
        "Channels of a head of mamba2; 0 means 64. They divide model.recurrent_size."),
    INT("model.mamba_n_groups", shape.mamba_n_groups, "0", 0, MODEL_MAX_WIDTH, RUN,
        "Groups of heads of mamba2 that have B and C in common; 0 means 1.", ELSEWHERE("n_groups")),
    INT("model.conv_size", shape.conv_size, "0", 0, CONV_TAPS, RUN,
        "Tokens that the convolution before a recurrence's gates sees; 0 means there is none."),
    BOOL("model.norm_topk_prob", shape.norm_topk_prob, "false", CURVE,
         "Divide the weights of a token's experts by their sum.", ELSEWHERE("route_norm")),
    /* Two keys, since transformers has two: it applies the coefficient only where router logits are
     * output. */
    BOOL("model.output_router_logits", shape.output_router_logits, "false", CURVE,
         "Train with the balance loss of experts, times router_aux_loss_coef."),
    REAL("model.router_aux_loss_coef", shape.router_aux_loss_coef, "0", 0, 1e9, CURVE,
         "Coefficient of the loss that is least where experts have equally many tokens; counts only with "
         "output_router_logits.",
         ELSEWHERE("aux_loss_coef moe_aux_loss_coeff")),
    REAL("model.query_pre_attn_scalar", shape.query_pre_attn_scalar, "0", 0, 1e9, CURVE,
         "Attention scores are divided by the root of this; 0 means head_dim."),
    /* Gemma 2 ("Gemma 2: Improving open language models at a practical size", 2024). Bounds scores before the
     * softmax, with a smooth derivative, which a clamp does not have. */
    REAL("model.attn_logit_softcapping", shape.attn_logit_softcapping, "0", 0, 1e9, CURVE,
         "Soft cap c of attention scores: s becomes c tanh(s / c); 0 means no cap."),
    REAL("model.final_logit_softcapping", shape.final_logit_softcapping, "0", 0, 1e9, CURVE,
         "Soft cap c of the logits: x becomes c tanh(x / c); 0 means no cap."),
    /* Press and Wolf, "Using the output embedding to improve language models", 2017. There is one tensor
     * less, hence EFFECT_RUN: a run could neither drop the head nor make one up. */
    BOOL("model.tie_word_embeddings", shape.tie_word_embeddings, "false", RUN,
         "The output head uses the embedding's matrix.",
         ELSEWHERE("enable_weight_tying weight_tying tie_embeddings")),
    /* Biases are tensors of their own: with another value a checkpoint would lack some or have too many. */
    BOOL("model.attention_bias", shape.attention_bias, "false", RUN,
         "Biases on the projections of attention (q, k, v, o)."),
    BOOL("model.mlp_bias", shape.mlp_bias, "false", RUN,
         "Biases on the projections of the MLP (gate, up, down)."),
    /* The source of initial weights; no effect once a run has begun. */
    TEXT("model.init", init, "", START,
         "A Hugging Face directory of a family of model.family, checkpoint, run, or URL of a mirrored one to "
         "take shape and weights from; empty means random weights.",
         ELSEWHERE("model_name_or_path pretrained_model_name_or_path init_from initial_load_path "
                   "initial_load_in_hf init_ckpt_path initial_checkpoint_dir load_checkpoint")),
    CHOICE("model.initialiser", initialiser, "torchtitan", CHOICE_WORDS(INIT_NAMES), START,
           "How random weights are drawn: a function of (seed, name, element) alone. Families have defaults "
           "of their own.",
           ELSEWHERE("init_base_std init_std_factor")),
    /* For one initialiser only. The others have standard deviations by role and depth
     * (model/initialiser.c). */
    REAL("model.init_std", init_std, "0.02", 0, 100, START,
         "Standard deviation of random weights with model.initialiser normal.",
         ELSEWHERE("initializer_range init_method_std")),
    TABLE_END};

#undef TARGET
#define TARGET LoraOptions
const Option lora_options[] = {
    /* Adapters. The set of weights depends on rank and match, so another value is another run. */
    INT("lora.rank", rank, "0", 0, 65536, RUN,
        "Rank of adapters (LoRA) on matrices of model.init, of which nothing else is trained; checkpoints "
        "are PEFT adapters; 0: none.",
        ELSEWHERE("lora_r lora_rank lora.r")),
    REAL("lora.alpha", alpha, "16", 1e-6, 1e6, CURVE, "What adapters add is scaled by alpha / rank.",
         ELSEWHERE("lora_alpha")),
    /* Kalajdzievski, "A rank stabilization scaling factor for fine-tuning with LoRA", 2023. */
    BOOL("lora.rslora", rslora, "false", CURVE,
         "Scale what adapters add by alpha / sqrt(rank) in place of alpha / rank.", ELSEWHERE("use_rslora")),
    TEXT("lora.match", match, "", RUN,
         "Regular expression (PCRE2) that is found in the names of matrices that get an adapter; empty: all "
         "of the blocks, attention and MLP.",
         ELSEWHERE("target_modules")),
    TABLE_END};

const char *model_options_init(const ModelOptions *m) { return m->init_found ? m->init_found : m->init; }
