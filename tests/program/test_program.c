/* Programs and memory plans as data, for any mesh, in one process. No model is run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "forecast/draw.h"
#include "model/families/family.h"
#include "plan/memory.h"
#include "comm/comm.h"
#include "program/program.h"
#include "support/optimizers.h"

static int count_kind(const Program *p, ActionKind kind) {
    int n = 0;
    for (int i = 0; i < p->count; i++) n += p->actions[i].kind == kind;
    return n;
}

/* A model, its mesh, and the program of one rank. */
typedef struct Case {
    int pp, replicas, shards, microbatches, layers;
    int experts;                    /* ranks of ep, for a model with experts; 0: none */
    int segments;                   /* of a microbatch; 0: 1 */
    const char *schedule;           /* of pp > 1 */
    bool tied, split, exact, whole; /* whole: matrices of some groups are not cut */
    GradientSync sync;
    Reshard reshard;
    Dtype compute;
    Recompute recompute;
} Case;

typedef struct Lowered {
    Model model;
    Schedule schedule;
    Partition partition;
    Program program;
    ParamGroups groups;
} Lowered;

static Model small_model(const Case *c, int expert_rank) {
    ModelConfig config = {.vocab_size = 100,
                          .hidden_size = 24,
                          .intermediate_size = 40,
                          .num_hidden_layers = c->layers ? c->layers : 3,
                          .num_attention_heads = 3,
                          .num_key_value_heads = 1,
                          .head_dim = 8,
                          .max_position_embeddings = 16,
                          .rms_norm_eps = 1e-5,
                          .rope_theta = 1e4,
                          .tie_word_embeddings = c->tied};
    Model m;
    Error err = {0};
    if (c->experts)
        config.family = &family_qwen3_moe, config.num_experts = 8, config.num_experts_per_tok = 2,
        config.moe_intermediate_size = 12, config.expert_ranks = c->experts, config.expert_rank = expert_rank;
    int segments = c->segments ? c->segments : 1;
    assert_int_equal(model_build(&m, &config, c->compute, c->recompute, 16 / segments, 0, &err), OK);
    model_set_segments(&m, segments, ALL_TOKENS);
    return m;
}

static int ranks_of(const Case *c) { return c->pp * c->replicas * c->shards; }

/* Splits the units evenly over the stages of the schedule. */
static Stages even_stages(const Schedule *s, int units) {
    size_t n = (size_t)s->stages;
    Stages out = {s->stages, mem_alloc_array(n + 1, sizeof(int)), mem_alloc_array(n, sizeof(int))};
    for (int i = 0; i <= s->stages; i++) out.first[i] = units * i / s->stages;
    memcpy(out.rank, s->rank_of_stage, n * sizeof(int));
    return out;
}

static void lower(Lowered *l, const Case *c, int rank) {
    Error err = {0};
    MeshOptions options = {c->pp, c->replicas, c->shards, 1, 1, c->experts ? c->experts : 1, 0, 0};
    Mesh mesh;
    Stages stages;
    OptimizerGroup storage[3];
    OptimizerOptions optimizer = mixed_optimizer(storage);
    if (mesh_build(&mesh, &options, ranks_of(c), &err) != OK) fail_msg("%s", err.message);
    *l = (Lowered){.model = small_model(c, mesh_group_rank(&mesh, MESH_EXPERTS, rank))};
    if (param_groups_build(&l->groups, &optimizer, &l->model.table, &err) != OK) fail_msg("%s", err.message);
    ScheduleName name = c->split ? PIPE_ZB_H1 : PIPE_1F1B; /* of one rank */
    assert_true(c->pp == 1 || schedule_find(c->schedule, &name));
    int each = schedule_default_stages_per_rank(name);
    OrderTerms terms = {.segments = c->segments};
    if (schedule_make_on(&l->schedule, name, c->pp, c->microbatches, each, &terms, &err) != OK)
        fail_msg("%s", err.message);
    if (schedule_add_transfers(&l->schedule, &err) != OK) fail_msg("%s", err.message);
    stages = even_stages(&l->schedule, l->model.table.units);
    partition_build(&l->partition, &(PartitionSpec){.model = &l->model.config,
                                                    .table = &l->model.table,
                                                    .groups = c->whole ? &l->groups : NULL,
                                                    .mesh = &mesh,
                                                    .rank = rank,
                                                    .segments = c->segments,
                                                    .stages = &stages});
    stages_free(&stages);
    program_lower(&l->program, &(ProgramSpec){.model = &l->model.config,
                                              .partition = &l->partition,
                                              .schedule = &l->schedule,
                                              .defer_head = c->split && c->pp == 1,
                                              .exact = c->exact,
                                              .has_collective = program_has_collective,
                                              .sync = c->sync,
                                              .reshard = c->reshard});
}

static void release(Lowered *l) {
    program_free(&l->program);
    partition_free(&l->partition);
    schedule_free(&l->schedule);
    model_free(&l->model);
    param_groups_free(&l->groups);
}

/* Calls `visit` for every rank of every combination. */
static void each_case(void (*visit)(const Case *c, const Lowered *l, int rank)) {
    static const Case meshes[] = {
        {.pp = 1, .replicas = 1, .shards = 1},
        {.pp = 1, .replicas = 3, .shards = 1},
        {.pp = 1, .replicas = 1, .shards = 4},
        {.pp = 1, .replicas = 2, .shards = 2},
        {.pp = 2, .replicas = 1, .shards = 1, .schedule = "1f1b"},
        {.pp = 4, .replicas = 1, .shards = 1, .schedule = "gpipe"},
        {.pp = 2, .replicas = 1, .shards = 2, .schedule = "1f1b", .segments = 4},
        {.pp = 2, .replicas = 2, .shards = 1, .schedule = "gpipe", .segments = 2},
        {.pp = 2, .replicas = 1, .shards = 2, .schedule = "zbv"},
        {.pp = 2, .replicas = 2, .shards = 2, .schedule = "interleaved_zero_bubble"},
        {.pp = 2, .replicas = 2, .shards = 1, .schedule = "dualpipev"},
        {.pp = 3, .replicas = 1, .shards = 2, .schedule = "v_half"},
        {.pp = 4, .replicas = 1, .shards = 1, .schedule = "v_min"},
        {.pp = 2, .replicas = 1, .shards = 3, .schedule = "looped_bfs"},
        {.pp = 3, .replicas = 2, .shards = 1, .schedule = "zb_h2"},
        {.pp = 1, .replicas = 1, .shards = 4, .experts = 4},
        {.pp = 2, .replicas = 1, .shards = 2, .experts = 2, .schedule = "zbv"}};
    for (size_t i = 0; i < sizeof meshes / sizeof *meshes; i++)
        for (int variant = 0; variant < 72; variant++) {
            Case c = meshes[i];
            c.layers = 6, c.microbatches = 6;
            c.tied = variant % 2, c.exact = variant / 2 % 2, c.split = variant / 4 % 2;
            c.whole = variant % 3 == 1;
            c.sync = (GradientSync)(variant / 8 % 3), c.reshard = (Reshard)(variant / 24 % 3);
            c.compute = variant % 2 ? DTYPE_BF16 : DTYPE_F32, c.recompute = (Recompute)(variant % 3);
            for (int rank = 0; rank < ranks_of(&c); rank++) {
                Lowered l;
                lower(&l, &c, rank);
                visit(&c, &l, rank);
                release(&l);
            }
        }
}

static void check_valid(const Case *c, const Lowered *l, int rank) {
    Error err = {0};
    const Program *p = &l->program;
    if (program_check(p, &err) != OK)
        fail_msg("pp %d (%s) replicate %d shard %d sync %d reshard %d tied %d exact %d rank %d: %s", c->pp,
                 c->schedule, c->replicas, c->shards, c->sync, c->reshard, c->tied, c->exact, rank,
                 err.message);
    int units = 0, passes = c->microbatches * (c->segments ? c->segments : 1);
    if (c->experts) return; /* dispatches cut passes over a unit into several actions */
    for (int u = 0; u < p->units; u++) units += partition_runs(&l->partition, u);
    assert_int_equal(count_kind(p, ACT_FWD), units * passes);
    assert_int_equal(count_kind(p, ACT_BWD) + count_kind(p, ACT_DGRAD), units * passes);
    assert_int_equal(count_kind(p, ACT_UPDATE), units + l->partition.tied_copy);
    assert_int_equal(count_kind(p, ACT_GATHER), count_kind(p, ACT_RELEASE));
}

static void test_lowered_programs_are_valid(void **state) {
    (void)state;
    each_case(check_valid);
}

static Action action(ActionKind kind, int unit, int microbatch) {
    return (Action){.kind = kind, .unit = unit, .microbatch = microbatch};
}

static ErrorCode check_after(int index, Action replacement, int swap_with) {
    Lowered l;
    Error err = {0};
    lower(&l, &(Case){.pp = 1, .replicas = 1, .shards = 1, .microbatches = 2, .layers = 2, .split = true}, 0);
    Program *p = &l.program;
    if (swap_with >= 0) {
        Action a = p->actions[index];
        p->actions[index] = p->actions[swap_with];
        p->actions[swap_with] = a;
    } else {
        p->actions[index] = replacement;
        if (action_is_pass(replacement.kind) && replacement.unit < p->units)
            p->actions[index].ops = unit_ops(p->model, replacement.unit);
    }
    ErrorCode code = program_check(p, &err);
    release(&l);
    return code;
}

/* The program of 4 units and 2 microbatches, split: LOAD 4xFWD 4xDGRAD 4xWGRAD, twice, then NORM and 4
 * updates. */
static void test_broken_programs_are_refused(void **state) {
    (void)state;
    assert_int_equal(check_after(0, action(ACT_LOAD, -1, 0), -1), OK);
    assert_int_equal(check_after(1, (Action){0}, 2), ERR_INTERNAL);  /* forward out of order */
    assert_int_equal(check_after(0, (Action){0}, 1), ERR_INTERNAL);  /* forward before its load */
    assert_int_equal(check_after(5, (Action){0}, 6), ERR_INTERNAL);  /* backward out of order */
    assert_int_equal(check_after(8, (Action){0}, 12), ERR_INTERNAL); /* wgrad before dgrad */
    assert_int_equal(check_after(9, action(ACT_WGRAD, 3, 1), -1),
                     ERR_INTERNAL);                                            /* microbatches out of order */
    assert_int_equal(check_after(1, action(ACT_FWD, 9, 0), -1), ERR_INTERNAL); /* no such unit */
    assert_int_equal(check_after(1, action(ACT_FWD, 0, 7), -1), ERR_INTERNAL); /* no such microbatch */
    assert_int_equal(check_after(26, (Action){0}, 27), ERR_INTERNAL);          /* update before the norm */
    assert_int_equal(check_after(25, (Action){0}, 26), ERR_INTERNAL); /* norm before the last gradient */
    assert_int_equal(check_after(30, action(ACT_UPDATE, 2, -1), -1),
                     ERR_INTERNAL); /* one unit updated twice */
}

/* A pass over a unit may be several actions that run its ops in order. */
static ErrorCode check_ops(int index, OpRange first, OpRange second) {
    Lowered l;
    Error err = {0};
    lower(&l, &(Case){.pp = 1, .replicas = 1, .shards = 1, .microbatches = 2, .layers = 2}, 0);
    Program *p = &l.program;
    p->actions = mem_grow(p->actions, (size_t)(p->count + 1) * sizeof *p->actions);
    memmove(p->actions + index + 1, p->actions + index, (size_t)(p->count - index) * sizeof *p->actions);
    p->count++;
    p->actions[index].ops = first, p->actions[index + 1].ops = second;
    ErrorCode code = program_check(p, &err);
    release(&l);
    return code;
}

/* LOAD 4xFWD 4xBWD: action 2 is a block's forward pass, action 6 its backward pass. */
static void test_ops_of_units(void **state) {
    (void)state;
    Lowered l;
    lower(&l, &(Case){.pp = 1, .replicas = 1, .shards = 1, .microbatches = 2, .layers = 2}, 0);
    assert_int_equal(l.program.actions[2].kind, ACT_FWD);
    assert_int_equal(l.program.actions[6].kind, ACT_BWD);
    int end = unit_ops(l.program.model, 1).end;
    release(&l);
    assert_true(end > 2);
    OpRange low = {0, 2}, high = {2, end};
    assert_int_equal(check_ops(2, low, high), OK);
    assert_int_equal(check_ops(2, high, low), ERR_INTERNAL);                  /* descending */
    assert_int_equal(check_ops(2, low, (OpRange){3, end}), ERR_INTERNAL);     /* one is skipped */
    assert_int_equal(check_ops(2, low, (OpRange){1, end}), ERR_INTERNAL);     /* one runs twice */
    assert_int_equal(check_ops(2, low, (OpRange){2, end - 1}), ERR_INTERNAL); /* the last is missing */
    assert_int_equal(check_ops(2, low, (OpRange){2, end + 1}), ERR_INTERNAL); /* more than there are */
    assert_int_equal(check_ops(2, (OpRange){0, 0}, (OpRange){0, end}), ERR_INTERNAL); /* none */
    assert_int_equal(check_ops(6, high, low), OK);
    assert_int_equal(check_ops(6, low, high), ERR_INTERNAL); /* ascending */
}

/* The same for actions of meshes: leaves out, or repeats, the first action of a kind. */
static ErrorCode check_without(const Case *c, int rank, ActionKind kind, bool twice) {
    Lowered l;
    Error err = {0};
    lower(&l, c, rank);
    Program *p = &l.program;
    int i = 0;
    while (i < p->count && p->actions[i].kind != kind) i++;
    assert_true(i < p->count);
    if (twice) {
        p->actions = mem_grow(p->actions, (size_t)(p->count + 1) * sizeof *p->actions);
        memmove(p->actions + i + 1, p->actions + i, (size_t)(p->count - i) * sizeof *p->actions);
        p->count++;
    } else {
        memmove(p->actions + i, p->actions + i + 1, (size_t)(p->count - i - 1) * sizeof *p->actions);
        p->count--;
    }
    ErrorCode code = program_check(p, &err);
    release(&l);
    return code;
}

static void test_broken_communication_is_refused(void **state) {
    (void)state;
    const Case c = {.pp = 2,
                    .replicas = 2,
                    .shards = 2,
                    .microbatches = 4,
                    .layers = 4,
                    .schedule = "1f1b",
                    .tied = true,
                    .reshard = RESHARD_ALWAYS};
    const ActionKind kinds[] = {ACT_GATHER,     ACT_RELEASE, ACT_REDUCE_SCATTER,
                                ACT_ALL_REDUCE, ACT_SEND_F,  ACT_RECV_B};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        for (int twice = 0; twice <= 1; twice++)
            assert_int_equal(check_without(&c, 0, kinds[i], twice), ERR_INTERNAL);
    assert_int_equal(check_without(&c, 7, ACT_RECV_F, false), ERR_INTERNAL);
    assert_int_equal(check_without(&c, 7, ACT_SEND_B, false), ERR_INTERNAL);
}

/* No two live buffers of an arena overlap, and every action finds its buffers alive. */
static void check_plan(const Case *c, const Lowered *l, int rank) {
    const Program *p = &l->program;
    MemoryPlan plan;
    (void)c;
    (void)rank;
    memory_plan(&plan, &(MemorySpec){.program = p,
                                     .model = &l->model,
                                     .positions = 16,
                                     .device_scratch = 1000,
                                     .optimizer = &l->groups});
    for (int i = 0; i < plan.count; i++) {
        const Buffer *a = &plan.buffers[i];
        assert_true(a->offset % POOL_ALIGN == 0 && a->offset + a->bytes <= plan.arena[buffer_arena(a->kind)]);
        for (int j = 0; j < i; j++) {
            const Buffer *b = &plan.buffers[j];
            bool together =
                buffer_arena(a->kind) == buffer_arena(b->kind) && a->first <= b->last && b->first <= a->last;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            assert_false(together && overlap);
        }
    }
    for (int i = 0; i < p->count; i++) {
        Buffer touched[ACTION_BUFFERS];
        int n = action_buffers(p, &l->model, p->actions[i], touched);
        for (int k = 0; k < n; k++) {
            const Buffer *b =
                memory_plan_buffer(&plan, touched[k].kind, touched[k].unit, touched[k].microbatch);
            assert_true(b->first <= i && i <= b->last && b->bytes == touched[k].bytes);
        }
    }
    memory_plan_free(&plan);
}

static void test_memory_plans_are_sound(void **state) {
    (void)state;
    each_case(check_plan);
}

/* ---- segments ---- */

static const Case in_segments = {
    .pp = 2, .replicas = 1, .shards = 1, .microbatches = 3, .layers = 4, .schedule = "1f1b", .segments = 4};

/* Index of the action; fails where there is none. */
static int find_action(const Program *p, ActionKind kind, int unit, int microbatch) {
    int i = 0;
    while (i < p->count && (p->actions[i].kind != kind || p->actions[i].unit != unit ||
                            p->actions[i].microbatch != microbatch))
        i++;
    assert_true(i < p->count);
    return i;
}

/* Passes over a unit of two segments of a microbatch, in each other's place. */
static ErrorCode check_swapped(ActionKind kind, int one, int other) {
    Lowered l;
    Error err = {0};
    lower(&l, &in_segments, 1);
    Program *p = &l.program;
    int unit = p->units - 1;
    Action *a = &p->actions[find_action(p, kind, unit, one)],
           *b = &p->actions[find_action(p, kind, unit, other)];
    a->microbatch = other, b->microbatch = one;
    ErrorCode code = program_check(p, &err);
    release(&l);
    return code;
}

/* Keys of a segment are read by later ones, which add to their gradients. */
static void test_order_of_segments_is_checked(void **state) {
    (void)state;
    assert_int_equal(check_swapped(ACT_FWD, 5, 5), OK);
    assert_int_equal(check_swapped(ACT_FWD, 5, 6), ERR_INTERNAL);
    assert_int_equal(check_swapped(ACT_BWD, 6, 5), ERR_INTERNAL);
    assert_int_equal(check_swapped(ACT_BWD, 7, 4), ERR_INTERNAL);
}

/* Keys and values of a microbatch stay from the forward pass of its first segment to the backward pass of it,
 * and the sums of their gradients from the backward pass of the last segment on. Activations of a segment go
 * after its own backward pass. */
static void test_keys_stay_for_all_segments(void **state) {
    (void)state;
    Lowered l;
    MemoryPlan plan;
    lower(&l, &in_segments, 0);
    const Program *p = &l.program;
    memory_plan(&plan,
                &(MemorySpec){.program = p, .model = &l.model, .positions = 16, .optimizer = &l.groups});
    const Buffer *keys = memory_plan_buffer(&plan, BUFFER_KEYS, 1, 4),
                 *sums = memory_plan_buffer(&plan, BUFFER_KEY_SUMS, 1, 4),
                 *saved = memory_plan_buffer(&plan, BUFFER_SAVED, 1, 7);
    size_t element = 16 * 2 * 8;
    assert_int_equal(keys->bytes, pool_round(element * sizeof(float)));
    assert_int_equal(sums->bytes, pool_round(element * sizeof(float)));
    assert_int_equal(keys->first, find_action(p, ACT_FWD, 1, 4));
    assert_int_equal(keys->last, find_action(p, ACT_BWD, 1, 4));
    assert_int_equal(sums->first, find_action(p, ACT_BWD, 1, 7));
    assert_int_equal(sums->last, keys->last);
    assert_int_equal(saved->last, sums->first);
    memory_plan_free(&plan);
    release(&l);
}

/* The peak of the activations of a rank is nearly that of whole microbatches by the number of segments. */
static size_t activations_in(int segments) {
    Lowered l;
    MemoryPlan plan;
    Case c = in_segments;
    c.segments = segments, c.microbatches = 8;
    lower(&l, &c, 0);
    memory_plan(&plan, &(MemorySpec){.program = &l.program, .model = &l.model, .positions = 16});
    size_t bytes = plan.arena[ARENA_ACTIVATIONS];
    memory_plan_free(&plan);
    release(&l);
    return bytes;
}

static void test_segments_save_memory(void **state) {
    (void)state;
    assert_true(activations_in(2) < activations_in(1));
    assert_true(activations_in(4) < activations_in(2));
}

/* Bytes of the largest buffer of a flat of experts, which lives in a single dispatch if it has partial
 * sums. */
static size_t experts_bytes(const Lowered *l, const MemoryPlan *plan, BufferKind kind) {
    size_t most = 0;
    for (int i = 0; i < plan->count; i++) {
        const Buffer *b = &plan->buffers[i];
        if (b->kind != buffer_of_flat(kind, FLAT_EXPERTS)) continue;
        if (kind == BUFFER_FLAT_PARTIALS)
            assert_true(b->first == b->last && l->program.actions[b->first].kind == ACT_DISPATCH);
        most = b->bytes > most ? b->bytes : most;
    }
    return most;
}

/* A rank has log2(ep) + 1 gradients of its own experts, while it adds them up; one in exact numerics; and all
 * of them only where they accumulate over a step. */
static void check_experts(int ep, int levels, bool exact, GradientSync sync) {
    Lowered l;
    MemoryPlan plan;
    bool apart = !exact && sync == SYNC_STEP;
    lower(&l,
          &(Case){.pp = 1,
                  .replicas = 1,
                  .shards = 8,
                  .microbatches = 2,
                  .experts = ep,
                  .exact = exact,
                  .sync = sync},
          5);
    memory_plan(
        &plan,
        &(MemorySpec){.program = &l.program, .model = &l.model, .positions = 16, .optimizer = &l.groups});
    size_t elements = partition_flat_elements(&l.partition, 1, FLAT_EXPERTS), each = elements * sizeof(float);
    assert_true(elements > 0);
    assert_int_equal(experts_bytes(&l, &plan, BUFFER_FLAT_GRADIENTS), apart ? 0 : pool_round(each));
    assert_int_equal(experts_bytes(&l, &plan, BUFFER_FLAT_PARTIALS),
                     apart || exact ? 0 : pool_round((size_t)levels * each));
    if (sync == SYNC_STEP)
        assert_int_equal(gradient_sum_bytes(&l.program, 1, FLAT_EXPERTS),
                         pool_round(exact ? 2 * each : (size_t)ep * each));
    memory_plan_free(&plan);
    release(&l);
}

static void test_experts_gradients_are_added_as_they_come(void **state) {
    (void)state;
    for (int levels = 1; levels <= 3; levels++)
        for (int exact = 0; exact < 2; exact++) {
            check_experts(1 << levels, levels, exact, SYNC_MICROBATCH);
            check_experts(1 << levels, levels, exact, SYNC_STEP);
        }
}

/* Every element of the model is owned once by each replica, and counted once in total. */
static void test_every_element_is_counted_once(void **state) {
    (void)state;
    static const Case cases[] = {
        {.pp = 1, .replicas = 1, .shards = 3, .microbatches = 1},
        {.pp = 1, .replicas = 2, .shards = 5, .microbatches = 1, .whole = true},
        {.pp = 2, .replicas = 2, .shards = 3, .microbatches = 4, .schedule = "zbv", .layers = 5},
        {.pp = 3,
         .replicas = 1,
         .shards = 2,
         .microbatches = 3,
         .schedule = "1f1b",
         .tied = true,
         .whole = true,
         .layers = 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t counted = 0, elements = 0;
        for (int rank = 0; rank < ranks_of(&cases[i]); rank++) {
            Lowered l;
            lower(&l, &cases[i], rank);
            counted += partition_counted(&l.partition);
            elements = l.model.table.elements;
            for (int k = 0; k < l.model.table.count; k++) {
                ParamSegment segment = partition_segment(&l.partition, &l.model.table.params[k]);
                assert_true(segment.count == 0 || segment.at + (size_t)segment.count <= l.partition.owned);
                assert_true(segment.first >= 0 &&
                            segment.first + segment.count <= l.model.table.params[k].count);
            }
            release(&l);
        }
        assert_int_equal(counted, elements);
    }
}

static ProgramTraffic traffic_of(const Case *c, int rank) {
    Lowered l;
    lower(&l, c, rank);
    ProgramTraffic t = program_traffic(&l.program, &l.model);
    release(&l);
    return t;
}

static ProgramTraffic traffic(const Case *c) { return traffic_of(c, 0); }

/* The sum over all ranks, since a remainder of a split makes ranks differ. */
static uint64_t replicas_traffic(const Case *c) {
    uint64_t sum = 0;
    for (int rank = 0; rank < ranks_of(c); rank++) sum += traffic_of(c, rank).replicas;
    return sum;
}

/* Gradients are reduced once a step and not once a microbatch, for 1/k of the bytes; each figure is the least
 * possible. */
static void test_traffic_is_counted(void **state) {
    (void)state;
    Case c = {.pp = 1, .replicas = 4, .shards = 1, .microbatches = 5, .layers = 3};
    Model m = small_model(&c, 0);
    uint64_t padded = 0; /* flats in whole cache lines */
    for (int u = 0; u < m.table.units; u++) padded += param_unit_size(&m.table, u) * sizeof(float);
    uint64_t once = replicas_traffic(&c);
    assert_int_equal(once,
                     2 * padded * 3); /* all-reduce over 4: each rank twice three quarters of the gradient */
    c.sync = SYNC_MICROBATCH;
    assert_int_equal(replicas_traffic(&c), 5 * once);
    model_free(&m);

    Case s = {.pp = 1, .replicas = 2, .shards = 2, .microbatches = 5, .layers = 3, .reshard = RESHARD_NEVER};
    Lowered l;
    lower(&l, &s, 0);
    uint64_t own = l.partition.owned * sizeof(float), other = padded - own; /* of the other shard */
    release(&l);
    ProgramTraffic t = traffic(&s);
    assert_int_equal(t.parameters, own);                /* one gather: sends its shard to the other rank */
    assert_int_equal(t.gradients, other);               /* one reduce-scatter: sends the other's shard */
    assert_int_equal(replicas_traffic(&s), 2 * padded); /* both replicas all-reduce their halves over 2 */
    s.sync = SYNC_MICROBATCH;
    ProgramTraffic each = traffic(&s);
    assert_int_equal(each.gradients, 5 * t.gradients);
    assert_int_equal(each.replicas, 5 * t.replicas);
    s.sync = SYNC_REPLICA;
    ProgramTraffic replica = traffic(&s);
    assert_int_equal(replica.gradients, each.gradients);
    assert_int_equal(replica.parameters, each.parameters);
    assert_int_equal(replica.replicas, t.replicas);
    /* Runs of three are two blocks of the tree over six, so the reduce-scatter step of the all-reduce carries
     * two sums. */
    Case three = {.pp = 1, .replicas = 2, .shards = 3, .microbatches = 2, .layers = 3};
    assert_int_equal(replicas_traffic(&three), padded * (2 + 1));
    three.sync = SYNC_REPLICA; /* a separate sum */
    assert_int_equal(replicas_traffic(&three), padded * (1 + 1));
    s.sync = SYNC_STEP, s.exact = true;
    assert_int_equal(traffic(&s).replicas, 2 * t.replicas);

    Case pipe = {.pp = 2, .replicas = 1, .shards = 1, .microbatches = 5, .layers = 3, .schedule = "1f1b"};
    Model small = small_model(&pipe, 0);
    assert_int_equal(traffic(&pipe).pipeline,
                     5 * (boundary_bytes(&small) + COMM_HEADER)); /* rank 0 sends activations only */
    model_free(&small);
}

static size_t activations(const Case *c) {
    Lowered l;
    MemoryPlan plan;
    lower(&l, c, 0);
    memory_plan(
        &plan,
        &(MemorySpec){.program = &l.program, .model = &l.model, .positions = 16, .optimizer = &l.groups});
    size_t bytes = plan.arena[ARENA_ACTIVATIONS];
    memory_plan_free(&plan);
    release(&l);
    return bytes;
}

static void test_recompute_saves_memory_and_accumulation_costs_none(void **state) {
    (void)state;
    Case none = {.pp = 1, .replicas = 1, .shards = 1, .microbatches = 1}, selective = none, full = none,
         many = none;
    selective.recompute = RECOMPUTE_SELECTIVE, full.recompute = RECOMPUTE_FULL, many.microbatches = 8;
    assert_true(activations(&full) < activations(&selective));
    assert_true(activations(&selective) < activations(&none));
    assert_true(activations(&none) == activations(&many));
}

/* With shards, each rank holds its part of everything persistent, and two gathered units at a time. */
static void test_sharding_saves_memory(void **state) {
    (void)state;
    Case whole = {.pp = 1, .replicas = 1, .shards = 1, .microbatches = 2, .layers = 12}, sharded = whole;
    MemoryPlan a, b;
    Lowered l, s;
    sharded.shards = 4, sharded.sync = SYNC_MICROBATCH;
    lower(&l, &whole, 0);
    lower(&s, &sharded, 3);
    memory_plan(
        &a, &(MemorySpec){.program = &l.program, .model = &l.model, .positions = 16, .optimizer = &l.groups});
    memory_plan(
        &b, &(MemorySpec){.program = &s.program, .model = &s.model, .positions = 16, .optimizer = &s.groups});
    assert_true(b.parameters < a.parameters * 3 / 10 && b.optimizer < a.optimizer * 3 / 10 &&
                b.gradients < a.gradients * 3 / 10);
    assert_true(b.arena[ARENA_GATHERED] < a.parameters / 3);
    memory_plan_free(&a);
    memory_plan_free(&b);
    release(&l);
    release(&s);
}

static void test_printing_folds_runs(void **state) {
    (void)state;
    Lowered l;
    Text folded = {0}, whole = {0};
    lower(&l, &(Case){.pp = 1, .replicas = 1, .shards = 1, .microbatches = 2, .layers = 3}, 0);
    program_print(&l.program, false, &folded);
    program_print(&l.program, true, &whole);
    assert_non_null(strstr(folded.data, "FWD            u0..4 m1\n"));
    assert_non_null(strstr(folded.data, "BWD            u4..0 m0\n"));
    int lines = 0;
    for (const char *s = whole.data; *s; s++) lines += *s == '\n';
    assert_int_equal(lines, l.program.count);
    text_free(&folded);
    text_free(&whole);
    release(&l);
}

/* Windows of collectives lie within the step, do not end before they begin, and there is at most one for each
 * collective. The first gather of a rank is open while the rank waits for its first microbatch. */
static void check_windows(const Case *c, const Lowered *l, int rank) {
    if (c->pp == 1) return;
    Error err = {0};
    Simulation timing;
    Timeline t;
    int pipe = l->partition.pipe, gathers = 0, sums = 0;
    double first_open = -1, first_pass;
    StageCost units[256]; /* [segments, units] */
    for (int u = 0; u < 256; u++) units[u] = (StageCost){1, 1, 1};
    if (simulate(&timing, &l->schedule, &(SimulateCosts){.uniform = {3, 2, 1}}, &err) != OK)
        fail_msg("%s", err.message);
    timeline_from_simulation(&t, "", &l->schedule, &timing);
    timeline_add_collectives(&t, &l->program, &l->schedule.orders[pipe], timing.rank[pipe].cells, units);
    first_pass = timing.rank[pipe].start;
    for (int i = 0; i < t.count; i++) {
        Span s = t.spans[i];
        if (s.kind != SPAN_GATHER && s.kind != SPAN_REDUCE) continue;
        assert_true(s.rank == pipe && s.start >= 0 && s.end > s.start && s.end <= timing.makespan + 1e-9);
        gathers += s.kind == SPAN_GATHER, sums += s.kind == SPAN_REDUCE;
        if (s.kind == SPAN_GATHER && first_open < 0) first_open = s.start + s.end;
    }
    assert_true(gathers <= count_kind(&l->program, ACT_GATHER));
    assert_true(sums <=
                count_kind(&l->program, ACT_REDUCE_SCATTER) + count_kind(&l->program, ACT_ALL_REDUCE));
    if (c->shards > 1 && first_pass > 0)
        assert_true(fabs(first_open - first_pass) < 1e-9); /* from 0 to the first pass */
    if (c->shards * c->replicas > 1 && !c->sync) assert_true(sums > 0);
    (void)rank;
    timeline_free(&t);
    simulation_free(&timing);
}

static void test_windows_of_collectives(void **state) {
    (void)state;
    each_case(check_windows);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowered_programs_are_valid),
        cmocka_unit_test(test_ops_of_units),
        cmocka_unit_test(test_broken_programs_are_refused),
        cmocka_unit_test(test_broken_communication_is_refused),
        cmocka_unit_test(test_memory_plans_are_sound),
        cmocka_unit_test(test_order_of_segments_is_checked),
        cmocka_unit_test(test_keys_stay_for_all_segments),
        cmocka_unit_test(test_segments_save_memory),
        cmocka_unit_test(test_experts_gradients_are_added_as_they_come),
        cmocka_unit_test(test_every_element_is_counted_once),
        cmocka_unit_test(test_traffic_is_counted),
        cmocka_unit_test(test_windows_of_collectives),
        cmocka_unit_test(test_recompute_saves_memory_and_accumulation_costs_none),
        cmocka_unit_test(test_sharding_saves_memory),
        cmocka_unit_test(test_printing_folds_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
