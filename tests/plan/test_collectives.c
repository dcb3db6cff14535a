/* The rows of collectives that layers declare, over every family on every mesh: programs as data, no model is
 * run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/families/family.h"
#include "plan/rank.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"

enum { CONTEXT = 16, VOCAB = 37, LAYERS = 2 };

/* ---- models ---- */

static void add_experts(const Family *f, ModelConfig *c) {
    if (family_has_experts(f)) c->num_experts = 4, c->num_experts_per_tok = 2;
    if (c->router_aux_loss_coef > 0) c->output_router_logits = true, c->router_aux_loss_coef = 0.5;
    if (f == &family_qwen3_moe || f->arch.latent || f->arch.weighs_input) c->moe_intermediate_size = 12;
}

static void add_latents(ModelConfig *c) {
    c->num_key_value_heads = 4, c->head_dim = 0, c->first_k_dense_replace = 1, c->n_shared_experts = 1;
    c->q_lora_rank = 8, c->kv_lora_rank = 12, c->qk_nope_head_dim = 4, c->qk_rope_head_dim = 6;
    c->v_head_dim = 7, c->n_group = 2, c->topk_group = 1;
}

/* A family at its smallest. */
static ModelConfig family_shape(const Family *f) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    Error err = {.message = ""};
    c.hidden_size = 16;
    c = family_defaults(f, &c);
    c.bos_token_id = c.eos_token_id = -1;
    c.head_dim = f->arch.learned_positions ? 4 : 6;
    c.num_key_value_heads = f->arch.learned_positions ? 4 : 2;
    add_experts(f, &c);
    if (f->arch.weighs_input) c.floor_scale = 3, c.attn_scale = 0.5, c.dense_layers = (LayerSet){2, 2};
    if (f->arch.latent) add_latents(&c);
    if (f == &family_recurrent)
        c.recurrent_size = 10, c.conv_size = 3, c.mamba_d_state = 3, c.mamba_d_head = 5,
        c.mixers = (MixerPattern){2, {MIXER_MIN_GRU, MIXER_MAMBA2}};
    if (model_config_complete(&c, f->model_type, &err) != OK) fail_msg("%s", err.message);
    return c;
}

/* Queries without a latent. */
static ModelConfig moonlight_shape(void) {
    ModelConfig c = family_shape(&family_deepseek_v3);
    c.q_lora_rank = 0, c.n_shared_experts = 2;
    return c;
}

static ModelConfig with_module(ModelConfig c) {
    c.further_heads = 1, c.further_module = true;
    return c;
}

/* Fewer heads of keys than ranks of tp. */
static ModelConfig with_copies(const Family *f) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    c.num_key_value_heads = 1, c.head_dim = 8, c.family = f;
    return c;
}

static ModelConfig with_heads(void) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    c.further_heads = 2;
    return c;
}

/* ---- meshes ---- */

typedef struct Way {
    int pp, replicas, shards, cp, tp, ep, leaves;
    ContextMethod method;
} Way;
static const Way ways[] = {{1, 1, 1, 1, 1, 1, 0, CONTEXT_HEADS}, {1, 2, 2, 1, 1, 1, 0, CONTEXT_HEADS},
                           {2, 1, 1, 1, 1, 1, 0, CONTEXT_HEADS}, {1, 1, 1, 1, 2, 1, 0, CONTEXT_HEADS},
                           {1, 1, 1, 1, 2, 1, 4, CONTEXT_HEADS}, {1, 1, 1, 1, 4, 1, 0, CONTEXT_HEADS},
                           {2, 1, 1, 1, 2, 1, 0, CONTEXT_HEADS}, {1, 1, 1, 2, 1, 1, 0, CONTEXT_HEADS},
                           {1, 1, 1, 2, 1, 1, 0, CONTEXT_KEYS},  {1, 1, 2, 2, 2, 1, 0, CONTEXT_KEYS},
                           {2, 1, 1, 2, 2, 1, 0, CONTEXT_HEADS}, {1, 1, 2, 1, 1, 2, 0, CONTEXT_HEADS},
                           {1, 1, 1, 2, 1, 2, 0, CONTEXT_KEYS},  {1, 1, 2, 2, 1, 4, 0, CONTEXT_HEADS},
                           {1, 1, 2, 1, 2, 2, 0, CONTEXT_HEADS}, {1, 1, 1, 2, 2, 2, 0, CONTEXT_KEYS},
                           {2, 1, 2, 1, 2, 2, 0, CONTEXT_HEADS}};
enum { WAYS = sizeof ways / sizeof *ways };

static void make_layout(const ModelConfig *c, const Way *w, bool split, Layout *l) {
    Error err = {.message = ""};
    MeshOptions o = {w->pp, w->replicas, w->shards, w->cp, w->tp, w->ep};
    ErrorCode code = OK;
    *l = (Layout){.microbatches = 2};
    if (w->pp == 1) {
        code = layout_single(l, c, 2, split, &err);
    } else {
        size_t n = (size_t)w->pp;
        code = schedule_make(&l->schedule, split ? PIPE_ZB_H1 : PIPE_1F1B, w->pp, 2, 1, &err);
        if (code == OK) code = schedule_add_transfers(&l->schedule, &err);
        l->stages = (Stages){w->pp, mem_alloc_array(n + 1, sizeof(int)), mem_alloc_array(n, sizeof(int))};
        for (int i = 0; i <= w->pp; i++) l->stages.first[i] = (LAYERS + 2) * i / w->pp;
        for (int i = 0; i < w->pp; i++) l->stages.rank[i] = i;
    }
    if (code == OK) code = mesh_build(&l->mesh, &o, w->pp * w->replicas * w->shards * w->cp * w->tp, &err);
    if (code != OK) fail_msg("%s", err.message);
    axes_lay_copies(c, &l->mesh);
}

typedef void Look(const RankPlan *p, const char *name);
static int plans;

static void plan_rank(const ModelConfig *c, const Way *w, int variant, bool adapted, int rank, Look *look) {
    Layout l;
    RankPlan p;
    Error err = {.message = ""};
    Device d;
    char name[160];
    RankSpec spec = {.model = *c,
                     .tokens = CONTEXT,
                     .positions = CONTEXT / 2,
                     .loss_rows = 3,
                     .leaves = w->leaves,
                     .recompute = (Recompute)(variant / 2),
                     .context = w->method,
                     .further_weight = 0.5,
                     .defer_head = variant % 2,
                     .optimizer = &usual_optimizer,
                     .sync = variant % 2 ? SYNC_MICROBATCH : SYNC_STEP};
    make_layout(c, w, variant % 2, &l);
    device_describe(&d, "cpu", "", 1);
    if (adapted) spec.adapters = (AdapterSpec){.rank = 3, .scale = 2, .match = ""};
    snprintf(name, sizeof name, "%s pp %d shard %d cp %d tp %d ep %d variant %d rank %d",
             model_family(c)->model_type, w->pp, w->shards, w->cp, w->tp, w->ep, variant, rank);
    ErrorCode code = rank_plan(&p, &spec, &l, rank, &d, &err);
    if (code != OK && code != ERR_CONFIG) fail_msg("%s: %s", name, err.message);
    if (code == OK) look(&p, name), plans++;
    rank_plan_free(&p);
    layout_free(&l);
}

/* Of each pipeline rank the first; halves of backward passes together or apart, by each recompute policy. */
static void each_plan_of(ModelConfig c, bool adapted, Look *look) {
    for (int i = 0; i < WAYS; i++)
        for (int variant = 0; variant < 6; variant++)
            for (int stage = 0; stage < ways[i].pp; stage++)
                plan_rank(&c, &ways[i], variant, adapted,
                          stage * ways[i].replicas * ways[i].shards * ways[i].cp * ways[i].tp, look);
}

static void each_plan(Look *look) {
    plans = 0;
    for (int i = 0; families[i]; i++) each_plan_of(family_shape(families[i]), false, look);
    each_plan_of(moonlight_shape(), true, look);
    each_plan_of(with_module(moonlight_shape()), false, look);
    each_plan_of(with_module(family_shape(&family_deepseek_v3)), false, look);
    each_plan_of(family_shape(&family_deepseek_v3), true, look);
    each_plan_of(tiny_model(VOCAB, LAYERS, CONTEXT), true, look);
    each_plan_of(with_heads(), false, look);
    each_plan_of(with_copies(&family_llama), false, look);
    each_plan_of(with_copies(&family_olmo2), false, look);
    assert_true(plans > 1000);
}

/* ---- rows and flags ---- */

static bool is(const Collective *row, const char *what) { return row->what && strcmp(row->what, what) == 0; }

static CrossingKind kind_of(const Collective *row) {
    if (row->chunked) return CROSS_RECORDS;
    if (row->kind == COLL_ALL_TO_ALL) return CROSS_SWAP;
    if (row->kind == COLL_DISPATCH) return CROSS_VISIT;
    if (is(row, "KV")) return CROSS_KEYS;
    if (is(row, "DKV")) return row->kind == COLL_ALL_REDUCE ? CROSS_COPY_SUM : CROSS_KEY_SUM;
    if (is(row, "NORM_SUMS")) return CROSS_ROWS;
    if (is(row, "EXPERT_COUNTS")) return CROSS_COUNTS;
    if (is(row, "DROUTER")) return CROSS_WEIGHTS;
    if (is(row, "DLATENT")) return CROSS_LATENTS;
    return row->kind == COLL_ALL_GATHER ? CROSS_GATHER : CROSS_SUM;
}

/* What rows say of a pass at a place. Of the head's gradient flags say the head's own place. */
static unsigned by_rows(const Program *p, ActionKind pass, int unit, int place) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(p->model, unit, rows);
    unsigned kinds = 0;
    for (int i = 0; i < count; i++) {
        const Collective *row = rows[i].row;
        bool head = row->kind == COLL_REDUCE_SCATTER && row->passes == IN_FORWARD && row->trains;
        int at = collective_place(&rows[i]) - head;
        if (at != place || row->chunked || row->kind == COLL_DISPATCH) continue;
        if (program_collective(p, pass, unit, i)) kinds |= 1u << kind_of(row);
    }
    return kinds;
}

static void compare(const Program *p, const char *name) {
    static const ActionKind passes[] = {ACT_FWD, ACT_BWD, ACT_BWD_IN, ACT_BWD_W, ACT_AGAIN};
    for (int unit = 0; unit < p->units; unit++) {
        Parts all = unit_parts(p->model, unit);
        for (int k = 0; k < (p->training ? 5 : 1); k++)
            for (int place = all.first; place <= all.end; place++) {
                unsigned rows = by_rows(p, passes[k], unit, place),
                         flags = program_crossing(p, passes[k], unit, place);
                if (rows != flags)
                    fail_msg("%s: unit %d place %d (%s) %s: rows %x, flags %x", name, unit, place,
                             place < all.end ? unit_part_name(p->model, unit, place) : "end",
                             action_name(passes[k]), rows, flags);
            }
    }
}

static void compare_programs(const RankPlan *p, const char *name) {
    compare(&p->program, name);
    compare(&p->evaluation, name);
}

static void test_rows_are_what_flags_say(void **state) {
    (void)state;
    each_plan(compare_programs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_are_what_flags_say)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
