/* Tests every unit of every family for the promises of its layers (model/layers/layer.h); a new entry is
 * covered automatically. Gradients equal finite differences. dgrad and wgrad run separately, op by op, and
 * with recomputation give the same bits. Memory that need not stay is overwritten in between, and memory
 * after a region stays untouched. FLOPs are those that were executed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/ops/ops.h"
#include "model/adapters.h"
#include "model/families/family.h"
#include "model/unit.h"

enum { TOKENS = 21, CHUNK = 8, POSITIONS = 32, FENCE = 256 };

/* A region of tensor memory, followed by a fence. */
typedef struct Region {
    char *base;
    size_t bytes;
} Region;

static const float inverse_token_count = 0.25f, mtp_inverse_token_count = 0.125f;

typedef struct Bench {
    Device device;
    Pool pool;
    Model model;
    int unit;
    Weights weights;
    Gradients gradients;
    Pass pass;
    Region saved, stash, scratch, out, dx, losses, *matrices, *vectors, *matrix_gradients, *vector_gradients;
    float *inverse_token_count; /* [1] tensor memory */
    int further;                /* MTP heads */
    Region mtp_losses[MTP_DEPTH_MAX];
    float *mtp_inverse_token_count;
    int32_t *next_ids; /* of an MTP module */
} Bench;

static float uniform(uint64_t stream, uint64_t index) {
    return (float)((double)(rng_u64(stream, index) >> 11) / (double)(UINT64_C(1) << 53) * 2 - 1);
}

/* A token goes to 2 of 5 experts; or to all, for finite differences, whose steps must not change the
 * routing. */
static bool all_experts;

/* The smallest shape of a family that uses all of its keys: a window shorter than the batch, a cap that has
 * an effect, half a head rotated. What has no key is as in the family. In every second case blocks lack the
 * first one's window and RoPE, or the convolution. */
static ModelConfig shape_of(const Family *f, Mixer mixer, bool tied, bool biases) {
    ModelConfig c = {.vocab_size = 29,
                     .hidden_size = 16,
                     .intermediate_size = 22,
                     .num_hidden_layers = 1,
                     .num_attention_heads = 4,
                     .num_key_value_heads = 2,
                     .head_dim = 6,
                     .max_position_embeddings = POSITIONS};
    Error err = {.message = ""};
    c = family_defaults(f, &c);
    c.rms_norm_eps = 1e-5, c.rope_theta = 100;
    if (f->arch.local_rotation) c.rope_local_theta = 30;
    c.bos_token_id = c.eos_token_id = -1;
    bool no_heads = f->arch.learned_positions; /* GPT-2 has neither key, and none for biases */
    c.head_dim = no_heads ? 4 : 6, c.num_key_value_heads = no_heads ? 4 : 2;
    c.tie_word_embeddings = tied;
    if (!no_heads && !f->arch.qkv_bias && !f->arch.latent && !f->arch.fused_qkv && f != &family_mistral &&
        f != &family_mixtral && f != &family_recurrent)
        c.attention_bias = biases;
    if (f == &family_recurrent) {
        c.mixers = (MixerPattern){1, {(uint8_t)mixer}};
        c.recurrent_size = 10, c.conv_size = tied ? 0 : 3;
        if (mixer == MIXER_MAMBA2) /* all sizes above the rank of adapters */
            c.recurrent_size = 20, c.mamba_d_head = 5, c.mamba_d_state = 5, c.mamba_n_groups = tied ? 1 : 2;
    }
    if (family_has_experts(f)) {
        c.num_experts = 5, c.num_experts_per_tok = all_experts ? 5 : 2;
        if (f == &family_qwen3_moe) c.moe_intermediate_size = 10;
        c.norm_topk_prob = c.norm_topk_prob || (f == &family_olmoe && tied);
    }
    if (f->arch.latent) {
        /* Queries with or without a latent, values as wide as keys or not, shared experts or none. */
        c.num_key_value_heads = 4, c.head_dim = 0, c.moe_intermediate_size = 10;
        c.q_lora_rank = tied ? 0 : 8, c.kv_lora_rank = 12, c.qk_nope_head_dim = 4, c.qk_rope_head_dim = 6;
        c.v_head_dim = biases ? 10 : 7, c.n_shared_experts = tied ? 0 : 2, c.first_k_dense_replace = 0;
        c.num_experts = 6, c.num_experts_per_tok = all_experts ? 6 : 2;
        c.n_group = 2, c.topk_group = all_experts ? 2 : 1;
        c.rope_scaling = (RopeScaling){4,
                                       1,
                                       4,
                                       8,
                                       .beta_fast = 32,
                                       .beta_slow = 1,
                                       .mscale = 1,
                                       .mscale_all_dim = 0.7,
                                       .kind = ROPE_YARN};
    }
    /* with RoPE in chunks, or without it and scaled queries; experts, or an MLP */
    if (f->arch.weighs_input) {
        c.moe_intermediate_size = 10, c.attn_scale = 0.5, c.floor_scale = 3, c.use_qk_norm = !biases;
        c.dense_layers = (LayerSet){1, tied && biases};
        if (c.dense_layers.layers == 0) c.dense_layers.period = 0;
    }
    if (f == &family_llama || f == &family_smollm3) c.mlp_bias = biases;
    if (family_reads(f, KEY_WINDOWS)) c.sliding_window = 5, c.windows = (LayerSet){1, 1};
    if (family_reads(f, KEY_NO_ROPE)) c.no_rope = (LayerSet){1, tied};
    if (f->window_keys == WINDOWS_SOME && tied) c.windows = (LayerSet){0, 0};
    if (f->arch.partial_rotation) c.partial_rotary_factor = 0.7;
    if (f->arch.longrope && tied) /* 6 elements times 0.7: two pairs */
        c.rope_scaling = (RopeScaling){2,
                                       1,
                                       4,
                                       POSITIONS / 2,
                                       .short_factor = {1, 1.5},
                                       .long_factor = {2, 3},
                                       .pairs = 2,
                                       .kind = ROPE_LONGROPE};
    if (c.query_pre_attn_scalar > 0) c.query_pre_attn_scalar = 3;
    if (c.attn_logit_softcapping > 0) c.attn_logit_softcapping = 2;
    if (c.final_logit_softcapping > 0) c.final_logit_softcapping = 3;
    if (model_config_complete(&c, f->model_type, &err) != OK) fail_msg("%s", err.message);
    return c;
}

/* ---- memory ---- */

static void set_bytes(Bench *b, void *to, int value, size_t bytes) {
    void *host = mem_alloc(bytes + 1);
    memset(host, value, bytes);
    if (bytes) OP(&b->device, upload, to, host, bytes);
    free(host);
}

static void *fetch(Bench *b, const Region *r) {
    void *host = mem_alloc(r->bytes + 1);
    if (r->bytes) device_fetch(&b->device, host, r->base, r->bytes);
    return host;
}

/* Bytes of 0xff are NaNs in every float type, so a result that reads them shows it. */
static void spoil(Bench *b, const Region *r) { set_bytes(b, r->base, 0xff, r->bytes); }

static Region take(Bench *b, size_t bytes) {
    Region r = {pool_take(&b->pool, bytes), pool_round(bytes)};
    char *fence = pool_take(&b->pool, FENCE);
    if (r.base) spoil(b, &r);
    if (fence) set_bytes(b, fence, 0x5a, FENCE);
    return r;
}

/* NULL while only counting bytes. */
static void *inside(const Region *r, size_t at) { return r->base ? r->base + at : NULL; }

static void check_fence(Bench *b, const Region *r, const char *what) {
    unsigned char fence[FENCE];
    device_fetch(&b->device, fence, r->base + r->bytes, FENCE);
    for (int i = 0; i < FENCE; i++)
        if (fence[i] != 0x5a) fail_msg("%s was written %d bytes behind its end", what, i);
}

/* Every cache line of a region was written: no planned byte is unused. */
static void check_used(Bench *b, const Region *r, const char *what) {
    unsigned char *host = fetch(b, r);
    for (size_t at = 0; at < r->bytes; at += POOL_ALIGN) {
        size_t i = 0;
        while (i < POOL_ALIGN && host[at + i] == 0xff) i++;
        if (i == POOL_ALIGN) fail_msg("%s: bytes from %zu of %zu are never used", what, at, r->bytes);
    }
    free(host);
}

static void lay_out(Bench *b) {
    const Model *m = &b->model;
    size_t e = dtype_bytes(m->compute), ids = TOKENS * sizeof(int32_t);
    b->saved = take(b, unit_saved_bytes(m, b->unit));
    b->stash = take(b, unit_stash_bytes(m, b->unit));
    b->scratch = take(b, model_scratch_bytes(m));
    b->out = take(b, boundary_bytes(m));
    b->dx = take(b, boundary_bytes(m));
    b->losses = take(b, ids);
    for (int u = 0; u <= m->table.units; u++) {
        int like = u < m->table.units ? u : 0; /* the last: the gradient of the tied head */
        /* Experts follow the other matrices, and their vectors the other vectors. */
        size_t vectors = m->table.flats[like][FLAT_VECTORS], before = m->table.flats[like][FLAT_MATRICES],
               matrices = before + m->table.flats[like][FLAT_EXPERTS],
               more = m->table.flats[like][FLAT_EXPERT_VECTORS], rows = vectors * (size_t)b->gradients.rows;
        if (u < m->table.units) {
            b->vectors[u] = take(b, (vectors + more) * sizeof(float));
            b->matrices[u] = take(b, matrices * e);
            b->weights.units[u] =
                (UnitWeights){{b->vectors[u].base, b->matrices[u].base, inside(&b->matrices[u], before * e),
                               inside(&b->vectors[u], vectors * sizeof(float))}};
        }
        b->vector_gradients[u] = take(b, (rows + more) * sizeof(float));
        b->matrix_gradients[u] = take(b, matrices * sizeof(float));
        b->gradients.units[u] =
            (UnitGradients){{inside(&b->vector_gradients[u], 0), inside(&b->matrix_gradients[u], 0),
                             inside(&b->matrix_gradients[u], before * sizeof(float)),
                             inside(&b->vector_gradients[u], rows * sizeof(float))}};
    }
    b->pass.batch = (Microbatch){pool_take(&b->pool, ids), pool_take(&b->pool, ids), pool_take(&b->pool, ids),
                                 pool_take(&b->pool, ids)};
    b->inverse_token_count = pool_take(&b->pool, sizeof *b->inverse_token_count);
    b->mtp_inverse_token_count = pool_take(&b->pool, sizeof *b->mtp_inverse_token_count);
    for (int k = 0; k < b->further; k++) {
        b->pass.mtp_targets[k] = pool_take(&b->pool, ids);
        b->mtp_losses[k] = take(b, ids);
        b->pass.mtp_losses[k] = (float *)(void *)b->mtp_losses[k].base;
    }
    b->pass.next_ids = b->next_ids = pool_take(&b->pool, ids);
    model_layout_constants(&b->model, POSITIONS, &b->pool);
}

/* Two documents; some targets are ignored. */
static void fill_batch(Bench *b) {
    int32_t rows[4][TOKENS];
    int32_t *to[] = {b->pass.batch.ids, b->pass.batch.targets, b->pass.batch.positions,
                     b->pass.batch.first_key};
    for (int t = 0; t < TOKENS; t++) {
        uint64_t r = rng_u64(3, (uint64_t)t);
        int start = t < 8 ? 0 : 8;
        rows[0][t] = (int32_t)(r % 29);
        rows[1][t] = (r >> 20) % 5 == 0 ? -1 : (int32_t)((r >> 32) % 29);
        rows[2][t] = t - start;
        rows[3][t] = start;
    }
    for (int i = 0; i < 4; i++) OP(&b->device, upload, to[i], rows[i], sizeof rows[i]);
    OP(&b->device, upload, b->next_ids, rows[0] + 1, sizeof rows[0] - sizeof *rows[0]);
    OP(&b->device, upload, b->next_ids + TOKENS - 1, rows[0] + TOKENS - 1, sizeof *rows[0]);
    for (int k = 0; k < b->further; k++) {
        for (int t = 0; t < TOKENS; t++) rows[0][t] = t + k + 1 < TOKENS ? rows[1][t + k + 1] : -1;
        OP(&b->device, upload, (void *)(uintptr_t)b->pass.mtp_targets[k], rows[0], sizeof rows[0]);
    }
}

/* Fills with `count` numbers of this dtype; each tensor has its own random stream. */
static void fill(Bench *b, void *to, size_t count, Dtype type, uint64_t stream, float scale, float shift) {
    float *host = mem_alloc_array(count + 1, sizeof *host);
    for (size_t i = 0; i < count; i++) host[i] = shift + scale * uniform(stream, i);
    if (type == DTYPE_BF16)
        for (size_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &host[i], sizeof bits);
            ((uint16_t *)(void *)host)[i] = (uint16_t)(bits >> 16);
        }
    if (count) OP(&b->device, upload, to, host, count * dtype_bytes(type));
    free(host);
}

static void fill_weights(Bench *b) {
    const Model *m = &b->model;
    for (int u = 0; u < m->table.units; u++) {
        fill(b, b->vectors[u].base, m->table.flats[u][FLAT_VECTORS] + m->table.flats[u][FLAT_EXPERT_VECTORS],
             DTYPE_F32, 10 + (uint64_t)u, 0.3f, 1);
        fill(b, b->matrices[u].base, m->table.flats[u][FLAT_MATRICES] + m->table.flats[u][FLAT_EXPERTS],
             m->compute, 20 + (uint64_t)u, 0.4f, 0);
    }
}

static void clear_gradients(Bench *b) {
    for (int u = 0; u <= b->model.table.units; u++) {
        set_bytes(b, b->vector_gradients[u].base, 0, b->vector_gradients[u].bytes);
        /* The first microbatch overwrites matrices; the embedding's are always added to. */
        set_bytes(b, b->matrix_gradients[u].base, u == 0 ? 0 : 0xff, b->matrix_gradients[u].bytes);
    }
}

typedef struct Case {
    const Family *family;
    Mixer mixer;
    int unit;
    bool tied, biases;
    Dtype compute;
    Recompute recompute;
    bool adapted; /* adapters on every matrix that can have one */
    int further;  /* MTP depth */
    bool module;  /* an MTP module instead of MTP heads */
    int splits;   /* of TP-sharded sums; 0: one */
} Case;

static void open_bench(Bench *b, Case c) {
    Error err = {0};
    ModelConfig config = shape_of(c.family, c.mixer, c.tied, c.biases);
    config.mtp_depth = c.further, config.mtp_module = c.module;
    int splits = c.splits > 0 ? c.splits : 1;
    config.mtp_replicated = c.module && splits > 1;
    if (splits > 1) /* must divide heads and inner dimensions */
        config.num_attention_heads = 2 * splits,
        config.num_key_value_heads = (c.family->arch.latent ? 2 : 1) * splits,
        config.intermediate_size = 8 * splits, config.moe_intermediate_size = 4 * splits;
    *b = (Bench){.unit = c.unit, .pool = {.name = "passes"}, .further = c.further};
    if (device_open_cpu(&b->device, "reference", 1, &err) != OK) fail_msg("%s", err.message);
    if (model_build(&b->model, &config, c.compute, c.recompute, TOKENS, CHUNK, &err) != OK)
        fail_msg("%s", err.message);
    model_set_tp(&b->model, (TpGroup){1, 0, splits, 1}, &config);
    AdapterSpec adapters = {.rank = 3, .scale = 0.75, .replicated = splits > 1, .match = ""};
    if (c.adapted && adapters_put(&b->model.table, &b->model.config, &config, &adapters, &err) != OK)
        fail_msg("%s", err.message);
    size_t units = (size_t)b->model.table.units + 1;
    b->weights = (Weights){&b->model.table, c.compute, mem_alloc_array(units, sizeof *b->weights.units)};
    b->gradients = (Gradients){&b->model.table, mem_alloc_array(units, sizeof *b->gradients.units),
                               model_embeds_last(&config), splits};
    Region **lists[] = {&b->matrices, &b->vectors, &b->matrix_gradients, &b->vector_gradients};
    for (int i = 0; i < 4; i++) *lists[i] = mem_alloc_array(units, sizeof **lists[i]);
    lay_out(b);
    if (pool_commit(&b->pool, &b->device, &err) != OK) fail_msg("%s", err.message);
    lay_out(b);
    model_compute_constants(&b->model, &b->device);
    b->pass.model = &b->model, b->pass.device = &b->device, b->pass.weights = &b->weights;
    b->pass.gradients = b->gradients, b->pass.losses = (float *)(void *)b->losses.base;
    b->pass.training = b->pass.first = true, b->pass.defer_head = c.module;
    OP(&b->device, upload, b->inverse_token_count, &inverse_token_count, sizeof inverse_token_count);
    b->pass.inverse_token_count = b->inverse_token_count;
    OP(&b->device, upload, b->mtp_inverse_token_count, &mtp_inverse_token_count,
       sizeof mtp_inverse_token_count);
    b->pass.mtp_inverse_token_count = b->mtp_inverse_token_count;
    fill_batch(b);
    fill_weights(b);
    clear_gradients(b);
}

static void close_bench(Bench *b) {
    free(b->weights.units);
    free(b->gradients.units);
    free(b->matrices);
    free(b->vectors);
    free(b->matrix_gradients);
    free(b->vector_gradients);
    pool_free(&b->pool);
    model_free(&b->model);
    device_close(&b->device);
}

/* ---- passes ---- */

static bool is_head(const Bench *b) { return b->unit == b->model.table.units - 1; }
static size_t state_count(const Bench *b) { return TOKENS * (size_t)b->model.config.hidden_size; }

static UnitPass unit_pass(Bench *b) {
    return (UnitPass){.pass = &b->pass,
                      .unit = b->unit,
                      .saved = b->unit > 0 ? b->saved.base : NULL,
                      .stash = b->stash.base,
                      .scratch = b->scratch.base,
                      .out = is_head(b) ? NULL : b->out.base,
                      .dx = b->dx.base};
}

static void set_input(Bench *b) {
    if (b->unit > 0) fill(b, b->saved.base, state_count(b), b->model.compute, 40, 1, 0);
}

static void set_gradient(Bench *b) {
    if (!is_head(b)) fill(b, b->dx.base, state_count(b), b->model.compute, 50, 1, 0);
}

/* All ops at once, or each alone. */
static void forward(Bench *b, bool apart) {
    UnitPass u = unit_pass(b);
    OpRange all = unit_ops(&b->model.config, b->unit);
    if (!apart) unit_forward(&u, all);
    for (int i = all.first; apart && i < all.end; i++) unit_forward(&u, (OpRange){i, i + 1});
}

static void backward(Bench *b, Grads grads, bool apart) {
    UnitPass u = unit_pass(b);
    OpRange all = unit_ops(&b->model.config, b->unit);
    if (grads & DGRAD)
        for (int i = all.first; i < all.end; i = apart ? i + 1 : all.end)
            unit_recompute(&u, (OpRange){i, apart ? i + 1 : all.end});
    if (!apart) unit_backward(&u, grads, all);
    for (int i = all.end - 1; apart && i >= all.first; i--) unit_backward(&u, grads, (OpRange){i, i + 1});
}

/* Everything that a unit computes, as one run of bytes. */
typedef struct Made {
    Text bytes;
} Made;

static void add_made(Bench *b, Made *m, const Region *r) {
    char *host = fetch(b, r);
    text_add(&m->bytes, host, r->bytes);
    free(host);
}

typedef struct Manner {
    bool split_backward, apart;
} Manner;

/* Runs one microbatch. Between the passes, memory that need not stay is overwritten. */
static Made run(Case c, Manner manner) {
    Bench b;
    Made made = {{0}};
    open_bench(&b, c);
    set_input(&b);
    forward(&b, manner.apart);
    add_made(&b, &made, is_head(&b) ? &b.losses : &b.out);
    for (int k = 0; k < b.further; k++) add_made(&b, &made, &b.mtp_losses[k]);
    spoil(&b, &b.scratch);
    spoil(&b, &b.stash);
    spoil(&b, &b.out);
    set_gradient(&b);
    backward(&b, manner.split_backward ? DGRAD : BOTH_GRADS, manner.apart);
    if (b.unit > 0) add_made(&b, &made, &b.dx);
    if (manner.split_backward) {
        check_used(&b, &b.stash, "stash");
        spoil(&b, &b.scratch);
        if (b.unit > 0) spoil(&b, &b.dx); /* only the embedding reads it */
        backward(&b, WGRAD, manner.apart);
    }
    check_used(&b, &b.saved, "saved");
    const Region *fenced[] = {&b.saved, &b.stash, &b.scratch, &b.out, &b.dx, &b.losses};
    for (size_t i = 0; i < sizeof fenced / sizeof *fenced; i++) check_fence(&b, fenced[i], "a region");
    for (int u = 0; u <= b.model.table.units; u++) {
        check_fence(&b, &b.vector_gradients[u], "a gradient");
        check_fence(&b, &b.matrix_gradients[u], "a gradient");
        add_made(&b, &made, &b.vector_gradients[u]);
        add_made(&b, &made, &b.matrix_gradients[u]);
    }
    close_bench(&b);
    return made;
}

/* Embedding and head of the family recurrent are Llama's, so only its blocks are tested, with each mixer. */
static void for_each_mixer(bool adapted, void (*check)(Case c)) {
    for (int mixer = MIXER_ATTENTION + 1; mixer < MIXERS; mixer++)
        for (int tied = 0; tied < 2; tied++)
            check((Case){.family = &family_recurrent,
                         .mixer = (Mixer)mixer,
                         .unit = 1,
                         .tied = tied,
                         .adapted = adapted});
}

/* Only blocks have adapters. */
static void for_each_adapted_case(void (*check)(Case c)) {
    for (int f = 0; families[f]; f++)
        for (int biases = 0; biases < 2 && families[f] != &family_recurrent; biases++)
            check((Case){.family = families[f], .unit = 1, .biases = biases, .adapted = true});
    for_each_mixer(true, check);
    for (int f = 0; families[f]; f++) /* one side of each is replicated */
        if (families[f] != &family_recurrent &&
            (families[f]->arch.latent || !family_has_experts(families[f])))
            check((Case){.family = families[f], .unit = 1, .adapted = true, .splits = 3});
}

/* The last unit, with an MTP module. */
static void for_each_mtp_module(void (*check)(Case c)) {
    for (int f = 0; families[f]; f++)
        for (int splits = 1; families[f]->arch.mtp_module && splits <= 3; splits += 2)
            check((Case){.family = families[f], .unit = 2, .further = 1, .module = true, .splits = splits});
}

static void for_each_case(void (*check)(Case c)) {
    for_each_mtp_module(check);
    for (int f = 0; families[f]; f++)
        for (int variant = 0; variant < 4 && families[f] != &family_recurrent; variant++)
            for (int unit = 0; unit < 3; unit++)
                check((Case){.family = families[f],
                             .unit = unit,
                             .tied = variant & 1,
                             .biases = variant & 2,
                             .further = unit == 2 && variant == 2 ? 2 : 0});
    for_each_mixer(false, check);
    for (int f = 0; families[f]; f++) /* a row's sums are computed separately from its norm */
        if (families[f]->arch.qk_norm == QK_NORM_FLAT && !family_has_experts(families[f]))
            check((Case){.family = families[f], .unit = 1, .splits = 3});
    check((Case){.family = &family_gemma2, .unit = 2, .further = 2, .splits = 3}); /* capped, too */
    /* MLA and shared experts with splits. */
    for (int f = 0; families[f]; f++)
        for (int tied = 0; tied < 2 && (families[f]->arch.latent || families[f]->arch.weighs_input); tied++)
            check((Case){.family = families[f], .unit = 1, .tied = tied, .splits = 3});
}

/* ---- same bits ---- */

static void check_bits(Case c) {
    Made base = run(c, (Manner){false, false});
    for (int i = 1; i < 12; i++) {
        Case other = c;
        other.recompute = (Recompute)(i / 4);
        Manner manner = {i & 1, i & 2};
        Made made = run(other, manner);
        if (made.bytes.length != base.bytes.length ||
            memcmp(made.bytes.data, base.bytes.data, made.bytes.length) != 0)
            fail_msg("%s, unit %d, %s: bits differ with recompute %d%s%s", c.family->model_type, c.unit,
                     dtype_name(c.compute), i / 4, manner.split_backward ? ", dgrad and wgrad separate" : "",
                     manner.apart ? ", part by part" : "");
        text_free(&made.bytes);
    }
    text_free(&base.bytes);
}

static void check_bits_bf16(Case c) {
    c.compute = DTYPE_BF16;
    check_bits(c);
}

static void same_bits_however_it_is_done(void **state) {
    (void)state;
    for_each_case(check_bits);
    for_each_case(check_bits_bf16);
}

/* ---- finite differences ---- */

/* The differentiated function: the head's losses, or the output weighted by its gradient. */
static double objective(Bench *b) {
    double sum = 0;
    forward(b, false);
    float *out = fetch(b, is_head(b) ? &b->losses : &b->out);
    for (size_t i = 0; i < (is_head(b) ? (size_t)TOKENS : state_count(b)); i++)
        sum += (double)out[i] * (is_head(b) ? (double)inverse_token_count : (double)uniform(50, i));
    free(out);
    for (int k = 0; k < b->further; k++) {
        out = fetch(b, &b->mtp_losses[k]);
        for (int i = 0; i < TOKENS; i++) sum += (double)out[i] * (double)mtp_inverse_token_count;
        free(out);
    }
    return sum;
}

/* How far the i-th of n numbers moves in a step: a single one by 1, several in both directions, with norm 1
 * together. */
static double move_of(size_t n, size_t i) {
    return n == 1 ? 1 : (rng_u64(8, i) & 1 ? 1 : -1) / sqrt((double)n);
}

static double slope_over(Bench *b, float *at, size_t n, double step) {
    float *values = mem_alloc_array(n, sizeof *values), *moved = mem_alloc_array(n, sizeof *moved);
    double side[2];
    device_fetch(&b->device, values, at, n * sizeof *values);
    for (int s = 0; s < 2; s++) {
        for (size_t i = 0; i < n; i++)
            moved[i] = (float)((double)values[i] + (s ? step : -step) * move_of(n, i));
        OP(&b->device, upload, at, moved, n * sizeof *moved);
        side[s] = objective(b);
    }
    OP(&b->device, upload, at, values, n * sizeof *values);
    free(values);
    free(moved);
    return (side[1] - side[0]) / (2 * step);
}

/* Compares the slope along n numbers with their gradient. Two step sizes make the error of fourth order,
 * since norms of short rows curve. */
static void check_slope(Bench *b, float *at, size_t n, const float *gradient, const char *what) {
    double expected = (4 * slope_over(b, at, n, 4e-3) - slope_over(b, at, n, 8e-3)) / 3, found = 0;
    for (size_t i = 0; i < n; i++) found += (double)gradient[i] * move_of(n, i);
    if (!(fabs(expected - found) <= 4e-3 + 1e-2 * fabs(expected)))
        fail_msg("%s, unit %d, %s (%zu numbers): gradient %g, by differences %g",
                 model_family(&b->model.config)->model_type, b->unit, what, n, found, expected);
}

/* Checks all of them at once, and some alone. */
static void check_slopes(Bench *b, float *at, size_t n, const float *gradient, int alone, const char *what) {
    check_slope(b, at, n, gradient, what);
    for (int k = 0; k < alone; k++) {
        size_t i = rng_u64(6, (uint64_t)k) % n;
        check_slope(b, at + i, 1, gradient + i, what);
    }
}

static void check_parameter(Bench *b, const Param *p, const float *gradient) {
    char *base = flat_of_vectors(p->flat) ? b->vectors[p->unit].base : b->matrices[p->unit].base;
    Flat behind = p->flat == FLAT_EXPERTS ? FLAT_MATRICES : FLAT_VECTORS;
    bool experts = flat_of_experts(p->flat);
    size_t before = experts ? b->model.table.flats[p->unit][behind] : 0,
           rows = p->flat == FLAT_EXPERT_VECTORS ? (size_t)b->gradients.rows : 1;
    check_slopes(b, (float *)(void *)base + before + p->offset, (size_t)p->count,
                 gradient + rows * before + p->offset, 1, p->name);
}

/* Adds up the splits of a vector's gradient, one per row, where it would be without splits. */
static void add_rows(const Bench *b, const Param *p, float *gradient) {
    size_t from = gradient_offset(&b->gradients, p), count = (size_t)p->count,
           rows = param_tp_style(p->row) == REPLICATED ? (size_t)b->gradients.rows
                                                       : 1; /* a sharded one is complete */
    for (size_t i = 0; i < count; i++) {
        float sum = 0;
        for (size_t row = 0; row < rows; row++) sum += gradient[from + row * count + i];
        gradient[p->offset + i] = sum;
    }
}

/* Checks every parameter that the unit reads: its own, and in a tied head the embedding. */
static void check_parameters(Bench *b) {
    const ParamTable *t = &b->model.table;
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        bool tied = is_head(b) && p->unit == 0 && b->gradients.tied;
        if (p->unit != b->unit && !tied) continue;
        int slot = tied ? t->units : p->unit;
        float *gradient =
            fetch(b, flat_of_vectors(p->flat) ? &b->vector_gradients[slot] : &b->matrix_gradients[slot]);
        if (p->flat == FLAT_VECTORS) add_rows(b, p, gradient);
        check_parameter(b, p, gradient);
        free(gradient);
    }
}

static void check_differences(Case c) {
    Bench b;
    open_bench(&b, c);
    set_input(&b);
    forward(&b, false);
    set_gradient(&b);
    backward(&b, BOTH_GRADS, false);
    float *dx = fetch(&b, &b.dx);
    /* MTP heads have losses only in training. With a deferred wgrad, gradients stay unchanged. */
    b.pass.training = c.further > 0, b.pass.defer_head = true;
    check_parameters(&b);
    if (b.unit > 0) check_slopes(&b, (float *)(void *)b.saved.base, state_count(&b), dx, 3, "input");
    free(dx);
    close_bench(&b);
}

static void gradients_are_finite_differences(void **state) {
    (void)state;
    all_experts = true;
    for_each_case(check_differences);
    all_experts = false;
}

/* ---- adapters ---- */

/* Each matrix has the two parameters that PEFT expects, however the family stores q, k and v. */
static void check_table(Case c) {
    Bench b;
    open_bench(&b, c);
    const ParamTable *t = &b.model.table;
    int matrices = 0, ops = 0;
    for (int i = t->unit_first[1]; i < t->unit_first[2]; i++) {
        const Param *p = &t->params[i];
        ops += p->row->adapts != NULL;
        if (p->cols == 0 || p->row->adapts) continue;
        if (!param_can_adapt(&b.model.config, 1, p->row)) {
            assert_true(b.model.config.num_experts > 0); /* experts and their router have no adapters */
            continue;
        }
        const Param *a = param_adapter(t, p, ADAPTER_A), *bb = param_adapter(t, p, ADAPTER_B);
        size_t stem = strlen(p->name) - strlen(".weight");
        assert_non_null(a);
        assert_non_null(bb);
        assert_memory_equal(a->name, p->name, stem);
        assert_string_equal(a->name + stem, ".lora_A.weight");
        assert_string_equal(bb->name + stem, ".lora_B.weight");
        assert_int_equal(a->rows, 3);
        assert_int_equal(bb->cols, 3);
        assert_int_equal(a->cols, p->transposed ? p->rows : p->cols);
        assert_int_equal(bb->rows, p->transposed ? p->cols : p->rows);
        matrices++;
    }
    assert_true(matrices >= 4);
    assert_int_equal(ops, 2 * matrices);
    assert_int_equal(adapters_count(t, &b.model.config),
                     t->elements - model_parameter_count(&b.model.config));
    close_bench(&b);
}

static void adapters_are_parameters_like_others(void **state) {
    (void)state;
    for_each_adapted_case(check_table);
    for_each_adapted_case(check_bits);
    for_each_adapted_case(check_bits_bf16);
    all_experts = true;
    for_each_adapted_case(check_differences);
    all_experts = false;
}

/* ---- FLOPs ---- */

static double products(Bench *b) {
    static const OpId ops[] = {OP_GEMM, OP_GROUPED_GEMM, OP_GROUPED_GEMM_WGRAD, OP_MAMBA_FORWARD,
                               OP_MAMBA_BACKWARD};
    double flops = 0;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        flops += b->device.profile[ops[i]].flops;
        b->device.profile[ops[i]].flops = 0;
    }
    return flops / TOKENS;
}

static void check_flops(Case c) {
    for (int recompute = RECOMPUTE_NONE; recompute <= RECOMPUTE_FULL; recompute++) {
        Bench b;
        Cost costs[3];
        c.recompute = (Recompute)recompute;
        open_bench(&b, c);
        /* With context 0, only products and Mamba-2's scan remain. */
        model_unit_costs(&b.model.config, c.recompute, 0, costs);
        b.device.profiling = true;
        set_input(&b);
        forward(&b, false);
        assert_true(products(&b) == costs[c.unit].forward);
        set_gradient(&b);
        backward(&b, DGRAD, false);
        assert_true(products(&b) == costs[c.unit].input);
        backward(&b, WGRAD, false);
        assert_true(products(&b) == costs[c.unit].weight);
        close_bench(&b);
    }
}

static void costs_are_what_is_done(void **state) {
    (void)state;
    for_each_case(check_flops);
}

/* ---- each tensor in its own region ---- */

typedef struct LayerBench {
    const Layer *layer;
    Region x, dx, tensors[LAYER_TENSORS];
} LayerBench;

/* Conditions on the model; nothing is sharded here. */
static bool is_there(const Model *m, Need need) {
    bool splits = m->tp.splits > 1;
    if (need == NEED_ROW_SUMS || need == NEED_EXPERT_SPLITS) return splits;
    if (need == NEED_HEADS_APART) return model_has_heads_apart(m);
    if (need == NEED_WHOLE_EXPERTS) return !splits;
    return need == NEED_ALWAYS || (need == NEED_EXPERT_BIAS && model_family(&m->config)->arch.expert_bias);
}

static void lay_out_layer(Bench *b, LayerBench *l) {
    const Model *m = &b->model;
    l->x = take(b, boundary_bytes(m));
    l->dx = take(b, boundary_bytes(m));
    for (int i = 0; i < l->layer->tensor_count; i++) {
        const TensorRow *row = &l->layer->tensors[i];
        bool wide = row->element == ELEMENT_FP32 || row->element == ELEMENT_INDEX;
        size_t element = wide ? sizeof(float) : dtype_bytes(m->compute);
        int64_t rows = row->rows == EXTENT_LOGITS         ? CHUNK
                       : row->rows == EXTENT_LOGIT_SPLITS ? CHUNK * m->tp.splits
                       : row->rows == EXTENT_ASSIGNMENTS || row->rows == EXTENT_WORKED ||
                               row->rows == EXTENT_SPLIT_ASSIGNMENTS
                           ? TOKENS * m->config.num_experts_per_tok
                       : row->rows == EXTENT_ROW_SUMS       ? 2 * TOKENS * m->tp.splits
                       : row->rows == EXTENT_SPLIT_PARTIALS ? TOKENS * model_split_depth(m)
                       : row->rows == EXTENT_STARTS         ? mamba_starts(TOKENS)
                       : row->rows == EXTENT_MAMBA_CHUNK    ? mamba_scratch_rows(TOKENS)
                       : row->rows == EXTENT_ONE || row->rows == EXTENT_EXACT_CHUNKS ||
                               row->rows == EXTENT_PIECES || row->rows == EXTENT_LOCAL_PIECES
                           ? 1
                           : TOKENS,
                width = model_dim(&m->config, row->width);
        bool none = !is_there(m, row->need) || (row->element == ELEMENT_NARROW && m->compute == DTYPE_F32);
        l->tensors[i] = take(b, none ? 0 : (size_t)(rows * width) * element);
    }
}

static void run_layer(Bench *b, const LayerBench *l) {
    void *tensors[LAYER_TENSORS];
    for (int i = 0; i < l->layer->tensor_count; i++) tensors[i] = l->tensors[i].base;
    static const Shared none;
    const AdapterScratch adapter_scratch = {.replicated = b->scratch.base}; /* for an MTP module's matrix */
    LayerPass w = {.pass = &b->pass,
                   .unit = b->unit,
                   .tensors = tensors,
                   .shared = &none,
                   .adapters = &adapter_scratch,
                   .x = l->x.base,
                   .local_x = l->x.base,
                   .y = b->out.base,
                   .dy = b->dx.base,
                   .local_dy = b->dx.base,
                   .dx = l->dx.base,
                   .input = l->x.base,
                   .dstream = b->dx.base};
    for (int i = 0; i < l->layer->op_count; i++) l->layer->ops[i].forward(&w);
    for (int i = l->layer->op_count - 1; i >= 0; i--) l->layer->ops[i].backward(&w, BOTH_GRADS);
}

/* Runs a layer with every tensor in a region of its own, which shows that each row has the size that is
 * used. */
static void check_layer(Case c, int sublayer) {
    Bench b;
    LayerBench l;
    Sublayer sublayers[UNIT_SUBLAYERS];
    Error err = {0};
    char what[80];
    open_bench(&b, c);
    unit_sublayers(&b.model.config, c.unit, sublayers);
    l.layer = sublayers[sublayer].layer;
    Pool first = b.pool;
    b.pool = (Pool){.name = "tensors"};
    lay_out_layer(&b, &l);
    if (pool_commit(&b.pool, &b.device, &err) != OK) fail_msg("%s", err.message);
    lay_out_layer(&b, &l);
    fill(&b, l.x.base, state_count(&b), c.compute, 40, 1, 0);
    fill(&b, b.dx.base, state_count(&b), c.compute, 50, 1, 0);
    run_layer(&b, &l);
    for (int i = 0; i < l.layer->tensor_count; i++) {
        snprintf(what, sizeof what, "tensor %d of %s", i, l.layer->name);
        check_fence(&b, &l.tensors[i], what);
        /* Kernels of a device use a part of Mamba-2's workspace. */
        if (l.layer->tensors[i].rows != EXTENT_MAMBA_CHUNK) check_used(&b, &l.tensors[i], what);
    }
    pool_free(&b.pool);
    b.pool = first;
    close_bench(&b);
}

static void check_layers(Case c) {
    Sublayer sublayers[UNIT_SUBLAYERS];
    ModelConfig config = shape_of(c.family, c.mixer, c.tied, c.biases);
    config.mtp_depth = c.further, config.mtp_module = c.module;
    for (int compute = DTYPE_F32; compute <= DTYPE_BF16; compute++) {
        c.compute = (Dtype)compute;
        for (int s = 0; s < unit_sublayers(&config, c.unit, sublayers); s++) check_layer(c, s);
    }
}

static void rows_tell_the_sizes_that_are_used(void **state) {
    (void)state;
    for_each_case(check_layers);
}

/* ---- generation ---- */

/* For recurrences, a sequence in segments has the bits of the whole: the carried state is all that they need,
 * is cleared at the start of a sequence, and does not grow. */
static void check_pieces(Case c) {
    Bench b;
    Error err = {0};
    Sublayer sublayers[UNIT_SUBLAYERS];
    Pool kept = {.name = "carried"};
    const int32_t first_key[TOKENS] = {0};
    open_bench(&b, c);
    unit_sublayers(&b.model.config, 1, sublayers);
    size_t bytes = (size_t)sublayers[0].layer->carried(&b.model.config) * sizeof(float),
           row = (size_t)b.model.config.hidden_size * sizeof(float);
    OP(&b.device, upload, b.pass.batch.first_key, first_key, sizeof first_key);
    set_input(&b);
    char *x = fetch(&b, &b.saved);
    forward(&b, false);
    char *whole = fetch(&b, &b.out);
    pool_take(&kept, bytes);
    if (pool_commit(&kept, &b.device, &err) != OK) fail_msg("%s", err.message);
    KeyValueCache cache = {.base = pool_take(&kept, bytes), .unit_bytes = bytes, .positions = TOKENS};
    set_bytes(&b, cache.base, 0xff, bytes);
    b.pass.cache = &cache;
    for (int64_t step = 1; cache.start < TOKENS; cache.start += b.model.tokens, step++) {
        b.model.tokens = step < TOKENS - cache.start ? step : TOKENS - cache.start;
        OP(&b.device, upload, b.saved.base, x + (size_t)cache.start * row, (size_t)b.model.tokens * row);
        forward(&b, false);
        char *piece = fetch(&b, &b.out);
        assert_memory_equal(piece, whole + (size_t)cache.start * row, (size_t)b.model.tokens * row);
        free(piece);
    }
    free(x);
    free(whole);
    pool_free(&kept);
    close_bench(&b);
}

static void generation_in_pieces_is_the_whole(void **state) {
    (void)state;
    for_each_mixer(false, check_pieces);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits_however_it_is_done),
                                       cmocka_unit_test(gradients_are_finite_differences),
                                       cmocka_unit_test(adapters_are_parameters_like_others),
                                       cmocka_unit_test(costs_are_what_is_done),
                                       cmocka_unit_test(rows_tell_the_sizes_that_are_used),
                                       cmocka_unit_test(generation_in_pieces_is_the_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
