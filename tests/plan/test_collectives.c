/* The rows of collectives that layers declare, for every family on every mesh. Programs are data here; no
 * model is run. */
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

/* The smallest model of a family. */
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

static ModelConfig with_mtp_module(ModelConfig c) {
    c.mtp_depth = 1, c.mtp_module = true;
    return c;
}

/* Fewer KV heads than ranks of tp. */
static ModelConfig with_copies(const Family *f) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    c.num_key_value_heads = 1, c.head_dim = 8, c.family = f;
    return c;
}

static ModelConfig with_heads(void) {
    ModelConfig c = tiny_model(VOCAB, LAYERS, CONTEXT);
    c.mtp_depth = 2;
    return c;
}

/* ---- meshes ---- */

typedef struct Way {
    int pp, replicas, shards, cp, tp, ep, splits;
    CpComm method;
    int etp;
} Way;
static const Way ways[] = {
    {1, 1, 1, 1, 1, 1, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 2, 2, 1, 1, 1, 0, CP_COMM_ALL_TO_ALL, 0},
    {2, 1, 1, 1, 1, 1, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 1, 1, 2, 1, 0, CP_COMM_ALL_TO_ALL, 0},
    {1, 1, 1, 1, 2, 1, 4, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 1, 1, 4, 1, 0, CP_COMM_ALL_TO_ALL, 0},
    {2, 1, 1, 1, 2, 1, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 1, 2, 1, 1, 0, CP_COMM_ALL_TO_ALL, 0},
    {1, 1, 1, 2, 1, 1, 0, CP_COMM_ALL_GATHER, 0}, {1, 1, 2, 2, 2, 1, 0, CP_COMM_ALL_GATHER, 0},
    {2, 1, 1, 2, 2, 1, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 2, 1, 1, 2, 0, CP_COMM_ALL_TO_ALL, 0},
    {1, 1, 1, 2, 1, 2, 0, CP_COMM_ALL_GATHER, 0}, {1, 1, 2, 2, 1, 4, 0, CP_COMM_ALL_TO_ALL, 0},
    {1, 1, 2, 1, 2, 2, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 1, 2, 2, 2, 0, CP_COMM_ALL_GATHER, 0},
    {2, 1, 2, 1, 2, 2, 0, CP_COMM_ALL_TO_ALL, 0}, {1, 1, 1, 1, 2, 2, 0, CP_COMM_ALL_TO_ALL, 1},
    {1, 1, 2, 1, 2, 4, 4, CP_COMM_ALL_TO_ALL, 1}, {2, 1, 1, 2, 2, 4, 0, CP_COMM_ALL_GATHER, 1}};
enum { WAYS = sizeof ways / sizeof *ways };

static void make_layout(const ModelConfig *c, const Way *w, bool split, Layout *l) {
    Error err = {.message = ""};
    MeshOptions o = {w->pp, w->replicas, w->shards, w->cp, w->tp, w->ep, w->etp, 0};
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
                     .splits = w->splits,
                     .recompute = (Recompute)(variant / 2),
                     .context = w->method,
                     .mtp_loss_weight = 0.5,
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

/* Plans the first rank of each pipeline rank, with dgrad and wgrad together and separate, for each recompute
 * policy. */
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
    each_plan_of(with_mtp_module(moonlight_shape()), false, look);
    each_plan_of(with_mtp_module(family_shape(&family_deepseek_v3)), false, look);
    each_plan_of(family_shape(&family_deepseek_v3), true, look);
    each_plan_of(tiny_model(VOCAB, LAYERS, CONTEXT), true, look);
    each_plan_of(with_heads(), false, look);
    each_plan_of(with_copies(&family_llama), false, look);
    each_plan_of(with_copies(&family_olmo2), false, look);
    assert_true(plans > 1000);
}

/* ---- mutants ---- */

static void expect_refused(const Program *p, const char *name, int i, const char *how) {
    Error err = {.message = ""};
    Action a = p->actions[i];
    if (program_check(p, &err) == OK)
        fail_msg("%s: action %d (%s unit %d microbatch %d row %d) %s: not noticed", name, i,
                 action_name(a.kind), a.unit, a.microbatch, a.row, how);
}

static bool is_of_pass(ActionKind kind) {
    return action_is_pass(kind) || action_exchanges(kind) || kind == ACT_RECOMPUTE;
}

static void delete_action(Program *p, int i) {
    memmove(&p->actions[i], &p->actions[i + 1], (size_t)(p->count - i - 1) * sizeof *p->actions);
    p->count--;
}

static void insert_action(Program *p, int i, Action a) {
    memmove(&p->actions[i + 1], &p->actions[i], (size_t)(p->count - i) * sizeof a);
    p->actions[i] = a;
    p->count++;
}

static void swap_actions(Program *p, int i) {
    Action a = p->actions[i];
    p->actions[i] = p->actions[i + 1], p->actions[i + 1] = a;
}

/* Whether the second of two adjacent actions of a unit needs the first: a wait its start, a run what has
 * arrived, a send what was made, and ops of a pass their order. */
static bool depends(const Program *p, Action a, Action b) {
    Anatomy n;
    if (a.unit != b.unit || a.microbatch != b.microbatch) return false;
    program_anatomy(p, a.unit, &n);
    bool run_a = action_is_pass(a.kind) || a.kind == ACT_DISPATCH,
         run_b = action_is_pass(b.kind) || b.kind == ACT_DISPATCH;
    uint32_t uses_a = action_exchanges(a.kind) ? n.uses[a.pass][a.row] : 0,
             uses_b = action_exchanges(b.kind) ? n.uses[b.pass][b.row] : 0;
    uint32_t parts_a = (1u << a.ops.end) - (1u << a.ops.first),
             parts_b = (1u << b.ops.end) - (1u << b.ops.first);
    if (a.kind == ACT_COLLECTIVE && b.kind == ACT_WAIT) return a.row == b.row;
    if (a.kind == ACT_WAIT && run_b) return !n.rows[a.row].row->behind && uses_a & parts_b;
    if (run_a && b.kind == ACT_COLLECTIVE)
        return n.rows[b.row].row->behind && uses_b & parts_a && action_grads(a) & DGRAD;
    bool late = a.kind == ACT_BWD && action_grads(a) == WGRAD;
    return run_a && run_b && !late && action_pass(a) == action_pass(b) && action_grads(a) == action_grads(b);
}

/* Changes one microbatch only, since a program has many mutants. */
static void mutate(const Program *p, const char *name) {
    Program q = *p;
    q.actions = mem_alloc_array((size_t)p->count + 1, sizeof *q.actions);
    memcpy(q.actions, p->actions, (size_t)p->count * sizeof *q.actions);
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (!is_of_pass(a.kind) || a.microbatch != 1) continue;
        delete_action(&q, i);
        expect_refused(&q, name, i, "left out");
        insert_action(&q, i, a);
        if (action_pass(a) != ACT_RECOMPUTE || a.kind == ACT_COLLECTIVE) { /* recomputing twice is harmless */
            insert_action(&q, i + 1, a);
            expect_refused(&q, name, i, "twice");
            delete_action(&q, i + 1);
        }
        if (i + 1 == p->count || !depends(p, a, p->actions[i + 1])) continue;
        swap_actions(&q, i);
        expect_refused(&q, name, i, "after the next");
        swap_actions(&q, i);
    }
    free(q.actions);
}

/* Takes every fifth plan, since neighbours are much alike. */
static void mutate_some(const RankPlan *p, const char *name) {
    if (plans % 5 == 0) mutate(&p->program, name);
}

/* A program is invalid without any one of the actions of a microbatch's passes, with one of them twice, or
 * with two in the wrong order. */
static void test_mutants_are_refused(void **state) {
    (void)state;
    each_plan(mutate_some);
}

/* ---- rows ---- */

/* Rows name existing tensors and ops of their layer. */
static void check_row(const Layer *l, const Collective *c) {
    assert_true(c->passes != 0 && c->ops != 0 && c->ops >> l->op_count == 0 && c->over != 0);
    assert_true(c->from < UNIT_TENSORS && c->to < UNIT_TENSORS);
    if (c->from < LAYER_TENSORS) assert_true(c->from < l->tensor_count);
    if (c->to < LAYER_TENSORS) assert_true(c->to < l->tensor_count);
    if (c->packed) assert_true(c->packed < l->tensor_count && (c->pack || c->unpack));
}

static void check_rows(const RankPlan *p, const char *name) {
    (void)name;
    for (int unit = 0; unit < p->program.units; unit++) {
        Sublayer sublayers[UNIT_SUBLAYERS];
        int count = unit_sublayers(&p->model.config, unit, sublayers);
        for (int s = 0; s < count; s++)
            for (int i = 0; i < sublayers[s].layer->collective_count; i++)
                check_row(sublayers[s].layer, &sublayers[s].layer->collectives[i]);
    }
}

static void test_rows_name_what_is_there(void **state) {
    (void)state;
    each_plan(check_rows);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows_name_what_is_there),
                                       cmocka_unit_test(test_mutants_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
