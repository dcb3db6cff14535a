/* Which rank holds what, also with tensor parallelism. Local shards tile the model, each element is counted
 * once, and the first replica counts. No rank is run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/families/family.h"
#include "program/program.h"
#include "support/optimizers.h"

/* Heads, key and value heads, and a vocabulary that most degrees do not divide. */
static ModelConfig shape(bool tied) {
    return (ModelConfig){.vocab_size = 101,
                         .hidden_size = 20,
                         .intermediate_size = 24,
                         .num_hidden_layers = 4,
                         .num_attention_heads = 8,
                         .num_key_value_heads = 4,
                         .head_dim = 6,
                         .max_position_embeddings = 16,
                         .rms_norm_eps = 1e-5,
                         .rope_theta = 1e4,
                         .tie_word_embeddings = tied,
                         .attention_bias = true,
                         .mlp_bias = true};
}

static Mesh mesh_of(int pp, int replicas, int shards, int cp, int tp) {
    return (Mesh){.degree = {pp, replicas, shards, 1, cp, 1, tp, 1},
                  .world = pp * replicas * shards * cp * tp};
}

/* `shards` ranks with tp; each group of `experts` neighbours splits experts. */
static Mesh mesh_of_experts(int pp, int replicas, int shards, int experts, int tp) {
    return (Mesh){.degree = {pp, replicas, shards / experts, experts, 1, 1, tp, 1},
                  .world = pp * replicas * shards * tp};
}

static ModelConfig shape_of_experts(void) {
    ModelConfig c = shape(false);
    c.family = &family_qwen3_moe, c.num_experts = 8, c.num_experts_per_tok = 2, c.moe_intermediate_size = 5;
    c.attention_bias = c.mlp_bias = false;
    return c;
}

/* With or without a latent for queries; one layer has an MLP, the others have shared experts too. */
static ModelConfig shape_of_latents(bool queries) {
    ModelConfig c = shape_of_experts();
    c.family = &family_deepseek_v3, c.moe_intermediate_size = 8, c.n_shared_experts = 2;
    c.num_key_value_heads = c.num_attention_heads, c.first_k_dense_replace = 1;
    c.kv_lora_rank = 5, c.q_lora_rank = queries ? 6 : 0;
    c.qk_nope_head_dim = 2, c.qk_rope_head_dim = 2, c.v_head_dim = 3, c.head_dim = 4;
    return c;
}

/* With a block in the last unit, whose own matrix is replicated. */
static ModelConfig shape_of_mtp_module(bool queries) {
    ModelConfig c = shape_of_latents(queries);
    c.mtp_depth = 1, c.mtp_module = c.mtp_replicated = true;
    return c;
}

/* Besides llama: phi3 stores several matrices as one; gpt2 does so transposed, and has learned positions, of
 * which the last of eight ranks has one and others two; olmo2 has norms that are split like their heads. Then
 * come families with split experts and a replicated router: gpt_oss and llama4_text have fused experts, and
 * llama4_text has gates next to ups. deepseek_v3 makes heads from latents with replicated projections. */
static const Family *const families_of_boxes[] = {&family_llama,       &family_phi3,       &family_gpt2,
                                                  &family_olmo2,       &family_qwen3_moe,  &family_gpt_oss,
                                                  &family_llama4_text, &family_deepseek_v3};
enum { FAMILIES_OF_BOXES = sizeof families_of_boxes / sizeof *families_of_boxes };

static ModelConfig shape_of_family(const Family *f, bool tied) {
    bool experts = family_has_experts(f) && !f->arch.latent;
    ModelConfig c = f->arch.latent ? shape_of_latents(tied) : experts ? shape_of_experts() : shape(tied);
    if (experts) c.moe_intermediate_size = 8, c.tie_word_embeddings = tied;
    if (f->arch.weighs_input) c.n_shared_experts = 1;
    c.family = f, c.max_position_embeddings = 15;
    if (f->arch.fused_qkv) c.num_key_value_heads = 8;
    return c;
}

/* For each element of each parameter of the full model: how often it is held and counted, and the shard that
 * has it. Replicas, which ranks compare, and tp shards, which an owner gathers, must be on one shard. */
typedef struct Tally {
    ParamTable table;
    int **held, **counted, **shard;
} Tally;

static void tally_open(Tally *t, const ModelConfig *c) {
    Error err = {0};
    assert_int_equal(param_table_build(&t->table, c, &err), OK);
    t->held = mem_alloc_array((size_t)t->table.count, sizeof *t->held);
    t->counted = mem_alloc_array((size_t)t->table.count, sizeof *t->counted);
    t->shard = mem_alloc_array((size_t)t->table.count, sizeof *t->shard);
    for (int i = 0; i < t->table.count; i++) {
        t->held[i] = mem_alloc_array((size_t)t->table.params[i].count, sizeof(int));
        t->counted[i] = mem_alloc_array((size_t)t->table.params[i].count, sizeof(int));
        t->shard[i] = mem_alloc_array((size_t)t->table.params[i].count, sizeof(int));
    }
}

static void tally_close(Tally *t) {
    for (int i = 0; i < t->table.count; i++) free(t->held[i]), free(t->counted[i]), free(t->shard[i]);
    free(t->held);
    free(t->counted);
    free(t->shard);
    param_table_free(&t->table);
}

/* Every owned offset has at most one element. */
static void add_piece(Tally *t, const Partition *p, int param, char *used) {
    const Param *local = &p->table->params[param], *whole = &t->table.params[param];
    ParamSegment segment = partition_segment(p, local);
    SegmentRun run;
    int64_t runs = 0;
    assert_string_equal(local->name, whole->name);
    for (int64_t at = 0; at < segment.count; at += run.count, runs++) {
        run = segment_run(&segment, at);
        assert_true(run.count > 0 && run.element >= 0 && run.element + run.count <= whole->count);
        for (int64_t e = run.element; e < run.element + run.count; e++) {
            if (t->held[param][e]++ == 0) t->shard[param][e] = p->shard;
            if (t->shard[param][e] != p->shard)
                fail_msg("element %lld of %s is on shards %d and %d", (long long)e, whole->name,
                         t->shard[param][e], p->shard);
            t->counted[param][e] += partition_counts(p, local);
        }
    }
    assert_int_equal(runs, segment_runs(&segment));
    for (int64_t i = 0; i < segment.count; i++) {
        assert_true(segment.at + (size_t)i < p->owned);
        assert_int_equal(used[segment.at + (size_t)i]++, 0);
    }
}

static void add_rank(Tally *t, const ModelConfig *c, const Mesh *mesh, const Stages *stages, int rank) {
    Error err = {0};
    ModelConfig own;
    ParamTable table;
    Partition p;
    if (partition_model(c, mesh, rank, 0, &own, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(param_table_build(&table, &own, &err), OK);
    partition_build(
        &p, &(PartitionSpec){.model = c, .table = &table, .mesh = mesh, .rank = rank, .stages = stages});
    char *used = mem_alloc_array(p.owned + 1, 1);
    for (int i = 0; i < table.count; i++) add_piece(t, &p, i, used);
    free(used);
    partition_free(&p);
    param_table_free(&table);
}

/* Number of replicas of a parameter: the product of the degrees of the axes on which it is replicated. */
static int copies_of(const ModelConfig *c, const Param *p, const Mesh *mesh) {
    return mesh_size(mesh, axes_any(axes_kind(c, p), DOES_COPY) & ~(AxisSet)MESH_PIPELINE);
}

static void check_mesh(const ModelConfig *c, Mesh mesh) {
    Tally t;
    Stages stages;
    int units = (int)c->num_hidden_layers + 2, pp = mesh_size(&mesh, MESH_PIPELINE);
    axes_lay_copies(c, &mesh);
    tally_open(&t, c);
    stages =
        (Stages){pp, mem_alloc_array((size_t)pp + 1, sizeof(int)), mem_alloc_array((size_t)pp, sizeof(int))};
    for (int i = 0; i <= pp; i++) stages.first[i] = units * i / pp;
    for (int i = 0; i < pp; i++) stages.rank[i] = i;
    for (int rank = 0; rank < mesh.world; rank++) add_rank(&t, c, &mesh, &stages, rank);
    for (int i = 0; i < t.table.count; i++) {
        const Param *p = &t.table.params[i];
        bool twice = p->unit == 0 && model_embeds_last(c) && pp > 1; /* with the head too */
        int held = copies_of(c, p, &mesh) * (twice ? 2 : 1);
        for (int64_t e = 0; e < p->count; e++)
            if (t.held[i][e] != held || t.counted[i][e] != 1)
                fail_msg(
                    "pp %d replicas %d shards %d tp %d: element %lld of %s is held %d times, not %d, and "
                    "counted %d times",
                    pp, mesh_size(&mesh, MESH_REPLICAS), mesh_size(&mesh, MESH_SHARDS),
                    mesh_size(&mesh, MESH_TENSOR), (long long)e, p->name, t.held[i][e], held,
                    t.counted[i][e]);
    }
    stages_free(&stages);
    tally_close(&t);
}

static void boxes_tile_the_model(void **state) {
    (void)state;
    static const int degrees[][5] = {{1, 1, 1, 1, 1}, {1, 1, 3, 1, 1}, {1, 1, 1, 1, 2}, {1, 1, 1, 1, 4},
                                     {1, 1, 1, 1, 8}, {1, 2, 3, 1, 2}, {2, 1, 2, 1, 4}, {3, 2, 1, 1, 8},
                                     {2, 2, 3, 1, 2}, {1, 1, 2, 2, 2}, {1, 2, 5, 1, 8}};
    for (int way = 0; way < 2 * (FAMILIES_OF_BOXES + 2); way++)
        for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
            bool copies = way < 4; /* of KV heads: there are one and two; elsewhere enough */
            ModelConfig c = shape_of_family(copies ? &family_llama : families_of_boxes[way / 2 - 2], way % 2);
            if (copies) c.num_key_value_heads = 1 + way / 2, c.head_dim = 8;
            const int *d = degrees[i];
            check_mesh(&c, mesh_of(d[0], d[1], d[2], d[3], d[4]));
        }
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        ModelConfig c = shape_of_mtp_module(i % 2);
        const int *d = degrees[i];
        check_mesh(&c, mesh_of(d[0], d[1], d[2], d[3], d[4]));
    }
    /* Next to unequal parts of the vocabulary, some cut falls into the replicated matrix. */
    for (int shards = 2; shards <= 8; shards++)
        for (int tp = 2; tp <= 8; tp *= 2) {
            ModelConfig c = shape_of_mtp_module(shards % 2);
            check_mesh(&c, mesh_of(1, 1, shards, 1, tp));
        }
}

/* Full experts, and a shard of each over the rest of dp_shard; also for fused experts. */
static void experts_are_split(void **state) {
    (void)state;
    static const int degrees[][5] = {{1, 1, 2, 2, 1}, {1, 1, 4, 2, 1}, {1, 2, 4, 4, 1}, {2, 1, 6, 2, 1},
                                     {1, 2, 8, 8, 1}, {1, 1, 2, 2, 2}, {2, 1, 4, 2, 4}, {1, 2, 6, 2, 8}};
    ModelConfig c = shape_of_experts(), fused, own;
    Error err = {0};
    c.moe_intermediate_size = 8;
    fused = c, fused.family = &family_gpt_oss;
    for (size_t i = 0; i < sizeof degrees / sizeof *degrees; i++) {
        const int *d = degrees[i];
        check_mesh(&c, mesh_of_experts(d[0], d[1], d[2], d[3], d[4]));
        check_mesh(&fused, mesh_of_experts(d[0], d[1], d[2], d[3], d[4]));
    }
    /* Whole experts on each rank of tp: ranks along dp_shard and tp in a group of ep. */
    static const int folded[][4] = {{1, 2, 1, 2}, {1, 2, 2, 2}, {2, 4, 2, 4}, {1, 4, 1, 8}};
    c.whole_experts = fused.whole_experts = true;
    c.moe_intermediate_size = fused.moe_intermediate_size = 5, fused.family = &family_llama4_text;
    for (size_t i = 0; i < sizeof folded / sizeof *folded; i++) {
        const int *d = folded[i];
        Mesh folds = mesh_of_experts(d[0], 1, d[1], d[2], d[3]);
        folds.folded = true;
        check_mesh(&c, folds);
        check_mesh(&fused, folds);
    }
    c.whole_experts = false, c.moe_intermediate_size = 8;
    Mesh mesh = mesh_of_experts(1, 1, 16, 16, 1);
    assert_int_equal(partition_model(&c, &mesh, 0, 0, &own, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "mesh.ep 16 does not divide num_experts 8: 1, 2, 4 or 8 would"));
    c = shape(false);
    assert_int_equal(partition_model(&c, &mesh, 0, 0, &own, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "the family llama has no experts"));
}

/* Batches that several ranks see are counted by one of them: as many ranks count as read different data. */
static void batches_are_counted_once(void **state) {
    (void)state;
    ModelConfig c = shape(false), own;
    Mesh mesh = mesh_of(2, 3, 2, 2, 4);
    int counted[6] = {0};
    for (int rank = 0; rank < mesh.world; rank++) {
        Error err = {0};
        ParamTable table;
        Partition p;
        int first[] = {0, 3, 6}, pipe_rank[] = {0, 1};
        assert_int_equal(partition_model(&c, &mesh, rank, 0, &own, &err), OK);
        assert_int_equal(param_table_build(&table, &own, &err), OK);
        partition_build(&p, &(PartitionSpec){.model = &c,
                                             .table = &table,
                                             .mesh = &mesh,
                                             .rank = rank,
                                             .stages = &(Stages){2, first, pipe_rank}});
        counted[mesh_dp_rank(&mesh, rank)] += partition_counts_batches(&p);
        partition_free(&p);
        param_table_free(&table);
    }
    for (int i = 0; i < 6; i++) assert_int_equal(counted[i], 1);
}

/* A column range of a matrix is one run for each row in the model file. */
static void columns_are_strips(void **state) {
    (void)state;
    ParamSegment whole = {.shard = {.rows = {{0, 4}}, .columns = {{0, 6}}, .stride = 6, .fused = {0, 1}},
                          .first = 7,
                          .count = 10};
    assert_int_equal(segment_runs(&whole), 1);
    assert_int_equal(segment_run(&whole, 0).element, 7);
    assert_int_equal(segment_run(&whole, 0).count, 10);
    ParamSegment strip = {.shard = {.rows = {{0, 4}},
                                    .columns = {{2, 3}},
                                    .stride = 6,
                                    .fused = {0, 1}}, /* columns 2 to 4 of 6 */
                          .first = 1,
                          .count = 7};
    assert_int_equal(segment_runs(&strip), 3);
    assert_int_equal(segment_run(&strip, 0).element, 3);
    assert_int_equal(segment_run(&strip, 0).count, 2);
    assert_int_equal(segment_run(&strip, 2).element, 6 + 2);
    assert_int_equal(segment_run(&strip, 2).count, 3);
    assert_int_equal(segment_run(&strip, 5).element, 12 + 2);
    assert_int_equal(segment_run(&strip, 5).count, 2);
}

static void assert_runs(const ParamSegment *segment, const SegmentRun *runs, int count) {
    int64_t at = 0;
    assert_int_equal(segment_runs(segment), count);
    for (int i = 0; i < count; i++, at += runs[i - 1].count) {
        SegmentRun run = segment_run(segment, at);
        assert_int_equal(run.element, runs[i].element);
        assert_int_equal(run.count, runs[i].count);
    }
    assert_int_equal(at, segment->count);
}

/* Several matrices that are stored as one have a run each: in each row where they are side by side. */
static void matrices_in_one_are_bands(void **state) {
    (void)state;
    ParamSegment below = {
        .shard = {.rows = {{1, 2}, {5, 1}, {8, 1}}, .columns = {{0, 3}}, .stride = 3, .fused = {0, 1}},
        .first = 4,
        .count = 7};
    assert_runs(&below, (SegmentRun[]){{7, 2}, {15, 3}, {24, 2}}, 3);
    ParamSegment other = {
        .shard = {.rows = {{0, 2}}, .columns = {{1, 2}, {5, 1}, {8, 1}}, .stride = 10, .fused = {0, 1}},
        .first = 1,
        .count = 6};
    assert_runs(&other, (SegmentRun[]){{2, 1}, {5, 1}, {8, 1}, {11, 2}, {15, 1}}, 5);
    /* Rows 1 and 2 of 4 of the fused matrices 2 and 3. */
    ParamSegment fused = {
        .shard = {.rows = {{1, 2}}, .columns = {{0, 3}}, .stride = 3, .fused = {2, 2}, .every = 4},
        .first = 1,
        .count = 10};
    assert_runs(&fused, (SegmentRun[]){{28, 5}, {39, 5}}, 2);
}

/* The local model has the sizes of its local shards: axes_local and axes_local_shard agree. */
static void a_ranks_model_is_a_model(void **state) {
    (void)state;
    for (int way = 0; way < 4 * FAMILIES_OF_BOXES; way++)
        for (int tp = 1 << way % 4, rank = 0; rank < tp; rank++) {
            Error err = {0};
            ModelConfig c = shape_of_family(families_of_boxes[way / 4], false),
                        own = axes_local(&c, (TpGroup){tp, rank, tp, 1});
            ParamTable table;
            assert_int_equal(param_table_build(&table, &own, &err), OK);
            for (int i = 0; i < table.count; i++) {
                const Param *p = &table.params[i];
                LocalShard b =
                    axes_local_shard(&c, p, (TpGroup){tp, rank, tp, 1}, (ShardRange){0, c.num_experts});
                assert_int_equal(shard_rows(&b), p->rows);
                assert_int_equal(shard_columns(&b), p->cols ? p->cols : 1);
            }
            param_table_free(&table);
        }
}

static void refused(ModelConfig c, int tp, const char *words) {
    Error err = {0};
    assert_int_equal(axes_check(&c, tp, &err), ERR_CONFIG);
    if (!strstr(err.message, words)) fail_msg("\"%s\" does not say \"%s\"", err.message, words);
}

static void odd_sizes_are_refused_by_name(void **state) {
    (void)state;
    Error err = {0};
    ModelConfig c = shape(false);
    for (int tp = 1; tp <= 8; tp *= 2) assert_int_equal(axes_check(&c, tp, &err), OK);
    refused(c, 3, "mesh.tp 3 does not fit num_attention_heads 8: 1, 2, 4 or 8 would");
    refused(c, 16, "mesh.tp 16 does not fit num_attention_heads 8: 1, 2, 4 or 8 would");
    c.intermediate_size = 20;
    refused(c, 8, "mesh.tp 8 does not fit intermediate_size 20: 1, 2 or 4 would");
    c = shape(false), c.num_attention_heads = 12, c.num_key_value_heads = 6;
    refused(c, 4, "mesh.tp 4 does not fit num_key_value_heads 6: 1, 2, 3, 6 or 12 would");
    c = shape(false), c.vocab_size = 9;
    refused(c, 8, "mesh.tp 8 does not fit vocab_size 9, for a rank would have none of them: 1 or 2 would");
    c = shape(false), c.num_key_value_heads = 2;
    assert_int_equal(axes_check_splits(&c, 4, 4, 16, &err), OK);
    assert_int_equal(axes_check_splits(&c, 8, 8, 16, &err), ERR_CONFIG);
    refused(c, 8,
            "mesh.tp 8 does not fit num_key_value_heads 2, for 4 ranks would share a head, whose "
            "head_dim 6 they do not divide: 1, 2 or 4 would");
    CpGroup cp = {2, 0, 0, true};
    assert_int_equal(axes_check_cp(&c, (TpGroup){4, 0, 4, 2}, cp, 16, &err), OK);
    assert_int_equal(axes_check_cp(&c, (TpGroup){2, 0, 4, 1}, cp, 16, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "mesh.cp 2 by all_gather: numerics.tp_invariant_up_to 4, more than "
                                        "num_key_value_heads 2, needs as many ranks along tp"));
    c = shape_of_family(&family_gpt2, false), c.max_position_embeddings = 9;
    refused(c, 8, "mesh.tp 8 does not fit max_position_embeddings 9, for a rank would have none of them");
    c = shape(false), c.max_position_embeddings = 9; /* not learned */
    assert_int_equal(axes_check(&c, 8, &err), OK);
    c.family = &family_phi3; /* its keys and values cannot be replicated without the queries */
    refused(c, 8, "mesh.tp 8 does not fit num_key_value_heads 4: 1, 2 or 4 would");
}

static AxisSet axes_with_both(ParamKind kind, int one, int other) {
    return axes_any(kind, one) & axes_any(kind, other);
}

/* The named groups agree with the table. */
static void groups_are_those_of_the_table(void **state) {
    (void)state;
    for (int kind = 0; kind < KINDS; kind++) {
        assert_int_equal(axes_with_both((ParamKind)kind, DOES_CUT, DOES_SUM),
                         kind == KIND_EXPERTS ? MESH_EXPERT_SHARDS : MESH_SHARDS);
        AxisSet summed = axes_with_both((ParamKind)kind, DOES_COPY, DOES_SUM);
        assert_true(summed & MESH_REPLICAS);
        AxisSet copied = axes_any((ParamKind)kind, DOES_COPY);
        bool at_both_ends = kind == KIND_TIED;
        assert_int_equal(summed & MESH_TENSOR, kind == KIND_REPLICATED ? MESH_TENSOR : 0);
        assert_int_equal(summed & MESH_PIPELINE, at_both_ends ? MESH_PIPELINE : 0);
        assert_int_equal(copied & ~summed, kind == KIND_KEYS     ? MESH_KEY_COPIES
                                           : kind == KIND_ROUTER ? MESH_TENSOR
                                                                 : 0);
        assert_int_equal(axes_any((ParamKind)kind, DOES_CUT) | copied, MESH_SETS - 1); /* none is left out */
        assert_int_equal(axes_any((ParamKind)kind, DOES_CUT) & copied, 0);
    }
}

/* Whether a collective over some axes comes before an op, or the op is dispatched, or is the first after
 * dispatched ones. */
static bool exchanges(const ModelConfig *c, int unit, int part, AxisSet over) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(c, unit, rows);
    bool found = false;
    for (int i = 0; i < count; i++) {
        bool ends = rows[i].row->kind == COLL_DISPATCH && collective_ops(&rows[i]) >> part == 0 &&
                    collective_ops(&rows[i]) >> (part - 1) == 1;
        found |= (ends || collective_cut(&rows[i]) == part) && rows[i].row->over & over &&
                 collective_applies(c, (CpGroup){2, 0, 0, false}, rows[i].row);
    }
    return found;
}

/* Names of the ops of a unit before which there is a collective; "norm" twice where there are two. */
static void collectives_of(const ModelConfig *c, int unit, AxisSet over, Text *out) {
    OpRange all = unit_ops(c, unit);
    for (int part = all.first; part <= all.end; part++)
        if (exchanges(c, unit, part, over))
            text_printf(out, "%s%s", out->length ? ", " : "",
                        part < all.end ? unit_op_name(c, unit, part) : "end");
}

static const Collective *row_of(const Program *p, Action a) {
    UnitCollective rows[UNIT_COLLECTIVES];
    unit_collectives(p->model, a.unit, rows);
    return rows[a.row].row;
}

/* A start of a gather of all tokens, or of a sum of partial sums. */
static bool gathers_stream(const Program *p, Action a) {
    return a.kind == ACT_COLLECTIVE && (row_of(p, a)->to == FULL_X || row_of(p, a)->to == FULL_DY);
}
static bool sums_stream(const Program *p, Action a) {
    return a.kind == ACT_COLLECTIVE && row_of(p, a)->from == PARTIALS;
}

/* A program is invalid without any one of its collectives over tp or cp, their starts or waits, or its
 * recomputation, or with one of them twice. A missing sum would show in no loss. */
static void each_exchange_is_missed(Program *p) {
    for (int i = 0; i < p->count; i++) {
        Error err = {0};
        Action a = p->actions[i];
        bool boxes = a.kind == ACT_MATRIX_GATHER || a.kind == ACT_MATRIX_SCATTER;
        if (!action_exchanges(a.kind) && a.kind != ACT_SUM_PARTIALS && a.kind != ACT_RECOMPUTE && !boxes)
            continue;
        memmove(&p->actions[i], &p->actions[i + 1], (size_t)(p->count - i - 1) * sizeof a);
        p->count--;
        if (program_check(p, &err) == OK)
            fail_msg("%s of unit %d, microbatch %d, is not missed", action_name(a.kind), a.unit,
                     a.microbatch);
        memmove(&p->actions[i + 1], &p->actions[i], (size_t)(p->count - i) * sizeof a);
        p->actions[i] = a;
        p->count++;
        Action next = p->actions[i + 1];
        if (a.kind == ACT_RECOMPUTE) continue; /* twice does no harm */
        p->actions[i + 1] = a;                 /* in place of the next */
        assert_int_equal(program_check(p, &err), ERR_INTERNAL);
        p->actions[i + 1] = next;
    }
}

/* Moves action `from` before the earlier action `to`; move_down undoes it. */
static void move_up(Program *p, int from, int to) {
    Action a = p->actions[from];
    memmove(&p->actions[to + 1], &p->actions[to], (size_t)(from - to) * sizeof a);
    p->actions[to] = a;
}

static void move_down(Program *p, int from, int to) {
    Action a = p->actions[from];
    memmove(&p->actions[from], &p->actions[from + 1], (size_t)(to - from) * sizeof a);
    p->actions[to] = a;
}

static bool same_pass(Action a, Action b) {
    return a.pass == b.pass && a.unit == b.unit && a.microbatch == b.microbatch;
}

/* The gather before action i, in its pass, into the same tensor; -1: none. */
static int gather_before(const Program *p, int i) {
    Action a = p->actions[i];
    while (--i >= 0) {
        Action b = p->actions[i];
        if (gathers_stream(p, b) && same_pass(a, b) && row_of(p, b)->to == row_of(p, a)->to) return i;
    }
    return -1;
}

/* Data is made before it is sent, and read before its tensor is overwritten; a pass does not end before its
 * dgrad and wgrad. */
static void nothing_starts_too_early(Program *p) {
    Error err = {0};
    for (int i = 1; i < p->count; i++) {
        Action a = p->actions[i], above = p->actions[i - 1];
        int gather = gathers_stream(p, a) ? gather_before(p, i) : -1;
        if (sums_stream(p, a) && a.pass != ACT_RECOMPUTE && action_is_pass(above.kind)) {
            move_up(p, i, i - 1);
            assert_int_equal(program_check(p, &err), ERR_INTERNAL);
            move_down(p, i - 1, i);
        }
        if (gather >= 0 && gather < i - 1) {
            move_up(p, i, gather + 1);
            assert_int_equal(program_check(p, &err), ERR_INTERNAL);
            move_down(p, gather + 1, i);
        }
        if (a.kind == ACT_BWD && a.ops.first == 0 && above.kind == ACT_BWD && above.unit == a.unit) {
            move_up(p, i, i - 1);
            assert_int_equal(program_check(p, &err), ERR_INTERNAL);
            move_down(p, i - 1, i);
        }
    }
    assert_int_equal(program_check(p, &err), OK);
}

/* In a backward pass with dgrad and wgrad, something is computed during sums, and during at least three of a
 * block's four gathers. During that of its result's gradient this is so only with recomputation. */
static void something_runs_meanwhile(const Program *p, int blocks) {
    int hidden = 0, gathers = 0;
    for (int i = 0; i + 1 < p->count; i++) {
        Action a = p->actions[i], next = p->actions[i + 1];
        if (a.kind != ACT_COLLECTIVE || a.pass != ACT_BWD) continue;
        bool waits = next.kind == ACT_WAIT && next.row == a.row;
        if (a.unit == 0 || a.unit > blocks) continue;
        gathers += gathers_stream(p, a), hidden += gathers_stream(p, a) && !waits;
        if (sums_stream(p, a)) assert_false(waits);
    }
    int exposed = gathers / 4; /* one of the 4 gathers of a block */
    assert_true(hidden >= gathers - exposed);
}

static void expect_collectives(const ModelConfig *c, int unit, AxisSet over, const char *expected) {
    Text found = {0};
    collectives_of(c, unit, over, &found);
    assert_string_equal(found.length ? found.data : "", expected);
    text_free(&found);
}

/* Passes are cut where the table has collectives, and nowhere where each matrix and all tokens of a
 * microbatch are on one rank. */
static void passes_are_cut_at_collectives(void **state) {
    (void)state;
    ModelConfig c = shape(false), own;
    int last = (int)c.num_hidden_layers + 1;
    AxisSet tensor = MESH_TENSOR & ~(AxisSet)MESH_KEY_COPIES;
    expect_collectives(&c, 0, tensor, "end");
    expect_collectives(&c, 1, tensor, "q k v, norm, gate and up, sum");
    expect_collectives(&c, last, tensor, "head and loss, end");
    ModelConfig e = shape_of_experts(), dense = c;
    expect_collectives(&e, 1, tensor, "q k v, norm, router, gate and up of experts, sum");
    ModelConfig latents = shape_of_latents(true), plain = shape_of_latents(false);
    expect_collectives(&latents, 1, tensor, "down, queries, norm, gate and up, sum");
    expect_collectives(&latents, 2, tensor, "down, queries, norm, router, gate and up of the shared, sum");
    expect_collectives(&plain, 1, tensor, "down, keys and values, norm, gate and up, sum");
    ModelConfig module = shape_of_mtp_module(true), plain_mtp_module = shape_of_mtp_module(false);
    expect_collectives(
        &module, last, tensor,
        "norms of both, down, queries, norm, router, gate and up of the shared, stream, head and "
        "loss, norm of the module, head of the module, end");
    expect_collectives(&latents, 1, MESH_CONTEXT, "attention, output");
    expect_collectives(&module, last, MESH_CONTEXT, "attention, output, gate and up of experts, stream");
    expect_collectives(&c, 1, MESH_KEY_COPIES, "q k v, attention, norm, gate and up, sum");
    expect_collectives(&c, 0, MESH_CONTEXT, "");
    expect_collectives(&c, 1, MESH_CONTEXT, "attention, output");
    expect_collectives(&c, last, MESH_CONTEXT, "");
    c.family = &family_olmo2;
    expect_collectives(&c, 1, tensor,
                       "q k v, norm of q and k, norm of the result, gate and up, norm of the result");
    expect_collectives(
        &c, 1, MESH_KEY_COPIES,
        "q k v, norm of q and k, attention, norm of the result, gate and up, norm of the result");
    expect_collectives(&c, 1, MESH_CONTEXT, "attention, output");
    for (int way = 0; way < 192; way++) {
        Error err = {0};
        int tp = 1 + way % 12 / 6, splits = way % 6 < 3 ? tp : 4; /* with and without local partial sums */
        int cp = 1 + way / 12 % 2;
        bool mtp_modules = way >= 156, latent = way >= 120, experts = way >= 96;
        bool rows = way >= 84 && !experts,                       /* norms over all heads */
            copied = rows ? way % 4 < 2 : way >= 60 && !experts; /* one KV head */
        bool split = way % 2,
             keys = (way >= 36 && way < 72) || (way >= 90 && way < 96) || (way >= 144 && way < 180),
             normed = copied ? way % 12 < 6 : way >= 24 && way < 48;
        c = latent ? way % 24 < 12 ? latents : plain : experts ? e : dense;
        if (mtp_modules) c = way % 24 < 12 ? module : plain_mtp_module;
        if (!experts)
            c.family = rows ? &family_olmo2 : normed ? &family_qwen3 : NULL; /* norms alone are recomputed */
        if (!experts) c.attention_bias = !normed && !rows, c.num_key_value_heads = 4;
        if (way >= 24) cp = 2;
        if (rows || copied) tp = 2, cp = keys ? 2 : 1, splits = way % 6 < 3 ? 2 : 4;
        if (experts)
            c.moe_intermediate_size = 8, tp = 2, cp = way < 108 || (way >= 132 && way < 168) ? 2 : 1,
            splits = way % 6 < 3 ? 2 : 4;
        if (copied) c.num_key_value_heads = 1;
        Mesh mesh = mesh_of(1, 1, way % 3 ? 2 : 1, cp, tp);
        axes_lay_copies(&c, &mesh);
        Schedule schedule;
        Stages stages;
        Partition p;
        ParamTable table;
        Program program;
        assert_int_equal(partition_model(&c, &mesh, 0, 0, &own, &err), OK);
        assert_int_equal(param_table_build(&table, &own, &err), OK);
        assert_int_equal(schedule_make(&schedule, split ? PIPE_ZB_H1 : PIPE_1F1B, 1, 2, 1, &err), OK);
        assert_int_equal(schedule_add_transfers(&schedule, &err), OK);
        stages_single(&stages, table.units);
        ParamGroups groups;
        OptimizerOptions muon = usual_optimizer;
        muon.settings.kind = way % 5 ? OPTIMIZER_ADAMW : OPTIMIZER_MUON, muon.settings.nesterov = 1;
        assert_int_equal(param_groups_build(&groups, &muon, &table, &err), OK);
        partition_build(&p, &(PartitionSpec){.model = &c,
                                             .table = &table,
                                             .groups = &groups,
                                             .mesh = &mesh,
                                             .stages = &stages,
                                             .splits = splits,
                                             .keys = keys});
        program_lower(&program, &(ProgramSpec){.model = &own,
                                               .partition = &p,
                                               .schedule = &schedule,
                                               .has_collective = program_has_collective,
                                               .exact = way % 4 == 3,
                                               .sync = way % 3 == 2 ? SYNC_MICROBATCH : SYNC_STEP,
                                               .recompute = (Recompute)(way % 3),
                                               .chunks = 2});
        int forward = 0, boxes = 0;
        for (int i = 0; i < program.count; i++) {
            forward += program.actions[i].kind == ACT_FWD && program.actions[i].unit == 1;
            boxes += program.actions[i].kind == ACT_MATRIX_GATHER;
        }
        int stops = 5 + (rows || (experts && !latent)) + latent;
        assert_int_equal(boxes, way % 5 == 0 && tp > 1 ? c.num_hidden_layers + mtp_modules : 0);
        assert_int_equal(forward, 2 * (tp == 1 ? 1 : stops) + 2 * (cp == 1 ? copied : keys ? 1 : 2));
        if (program_check(&program, &err) != OK) fail_msg("way %d: %s", way, err.message);
        each_exchange_is_missed(&program);
        nothing_starts_too_early(&program);
        something_runs_meanwhile(&program, last - 1);
        program_free(&program);
        partition_free(&p);
        param_groups_free(&groups);
        stages_free(&stages);
        schedule_free(&schedule);
        param_table_free(&table);
    }
}

/* Rows are dispatched in every pass, and a program without one of its dispatches is invalid. */
static void dispatches_are_not_missed(void **state) {
    (void)state;
    ModelConfig c = shape_of_experts(), own;
    AxisSet both = MESH_EXPERTS & MESH_CONTEXT, experts = MESH_EXPERTS & ~both, cp = MESH_CONTEXT & ~both;
    expect_collectives(&c, 1, experts, "gate and up of experts, sum");
    expect_collectives(&c, 0, MESH_EXPERTS, "");
    expect_collectives(&c, 1, cp, "attention, output");
    c.output_router_logits = true, c.router_aux_loss_coef = 0.1;
    expect_collectives(&c, 1, cp, "attention, output, gate and up of experts");
    c.moe_intermediate_size = 8;
    const ModelConfig routed = c, latents = shape_of_latents(true);
    for (int way = 0; way < 36; way++) {
        Error err = {0};
        /* Two ranks of cp, both in ep; then tp with ep; then also shared experts; the last two with experts
         * that tp does not cut. */
        bool over = way >= 6 && way < 12, folded = way >= 24, shared = folded ? way >= 30 : way >= 18;
        c = shared ? latents : routed;
        c.whole_experts = folded;
        Mesh mesh = over ? (Mesh){.degree = {1, 1, 2, 1, 1, 2, 1, 1}, .world = 4}
                         : mesh_of_experts(1, 1, 4, way % 2 ? 4 : 2, way < 12 ? 1 : 2);
        mesh.folded = folded;
        Schedule schedule;
        Stages stages;
        Partition p;
        ParamTable table;
        Program program;
        assert_int_equal(partition_model(&c, &mesh, 1, 0, &own, &err), OK);
        assert_int_equal(param_table_build(&table, &own, &err), OK);
        assert_int_equal(schedule_make(&schedule, way % 2 ? PIPE_ZB_H1 : PIPE_1F1B, 1, 2, 1, &err), OK);
        assert_int_equal(schedule_add_transfers(&schedule, &err), OK);
        stages_single(&stages, table.units);
        partition_build(&p, &(PartitionSpec){.model = &c,
                                             .table = &table,
                                             .mesh = &mesh,
                                             .rank = 1,
                                             .stages = &stages,
                                             .keys = over && way % 4 < 2});
        program_lower(&program, &(ProgramSpec){.model = &own,
                                               .partition = &p,
                                               .schedule = &schedule,
                                               .has_collective = program_has_collective,
                                               .sync = way % 3 ? SYNC_MICROBATCH : SYNC_STEP,
                                               .recompute = (Recompute)(way % 3),
                                               .chunks = 1});
        int dispatches = 0, counts = 0;
        for (int i = 0; i < program.count; i++)
            dispatches += program.actions[i].kind == ACT_DISPATCH,
                counts += program.actions[i].kind == ACT_COLLECTIVE && program.actions[i].pass == ACT_FWD &&
                          program.actions[i].how == COLL_ALL_REDUCE;
        assert_int_equal(dispatches, 2 * 2 * (int)(c.num_hidden_layers - c.first_k_dense_replace));
        assert_int_equal(counts, over ? 2 * (int)c.num_hidden_layers : 0);
        if (program_check(&program, &err) != OK) fail_msg("way %d: %s", way, err.message);
        each_exchange_is_missed(&program);
        nothing_starts_too_early(&program);
        program_free(&program);
        partition_free(&p);
        stages_free(&stages);
        schedule_free(&schedule);
        param_table_free(&table);
    }
}

static int asked;

static bool counts_questions(const Partition *p, int unit, int part) {
    asked++;
    return program_has_collective(p, unit, part);
}

/* How often has_collective is called until a program is lowered and checked. */
static int questions(int microbatches, ScheduleName name, Recompute recompute) {
    Error err = {0};
    ModelConfig c = shape(false), own;
    Mesh mesh = mesh_of(1, 1, 2, 2, 2);
    Schedule schedule;
    Stages stages;
    Partition p;
    ParamTable table;
    Program program;
    asked = 0;
    assert_int_equal(partition_model(&c, &mesh, 0, 0, &own, &err), OK);
    assert_int_equal(param_table_build(&table, &own, &err), OK);
    assert_int_equal(schedule_make(&schedule, name, 1, microbatches, 1, &err), OK);
    stages_single(&stages, table.units);
    partition_build(&p, &(PartitionSpec){.model = &c, .table = &table, .mesh = &mesh, .stages = &stages});
    program_lower(&program, &(ProgramSpec){.model = &own,
                                           .partition = &p,
                                           .schedule = &schedule,
                                           .has_collective = counts_questions,
                                           .sync = SYNC_MICROBATCH,
                                           .recompute = recompute,
                                           .chunks = 1});
    if (program_check(&program, &err) != OK) fail_msg("%d microbatches: %s", microbatches, err.message);
    program_free(&program);
    partition_free(&p);
    stages_free(&stages);
    schedule_free(&schedule);
    param_table_free(&table);
    return asked;
}

/* Microbatches are alike: planning a step of a thousand takes as many calls as a step of two. */
static void microbatches_ask_nothing(void **state) {
    (void)state;
    for (int way = 0; way < 6; way++) {
        ScheduleName name = way < 3 ? PIPE_1F1B : PIPE_ZB_H1;
        int few = questions(2, name, (Recompute)(way % 3));
        assert_true(few > 0);
        assert_int_equal(questions(1000, name, (Recompute)(way % 3)), few);
    }
}

/* Replicas have equal group numbers, other shards different ones. */
static void copies_have_one_number(void **state) {
    (void)state;
    ModelConfig c = shape(false);
    Mesh mesh = mesh_of(1, 2, 1, 1, 8);
    ParamTable table;
    axes_lay_copies(&c, &mesh);
    assert_int_equal(mesh_size(&mesh, MESH_KEY_COPIES), 2);
    assert_int_equal(mesh_size(&mesh, MESH_TENSOR), 8);
    Error err = {0};
    assert_int_equal(param_table_build(&table, &c, &err), OK);
    const Param *norm = param_find(&table, "model.norm.weight"),
                *key = param_find(&table, "model.layers.0.self_attn.k_proj.weight"),
                *query = param_find(&table, "model.layers.0.self_attn.q_proj.weight");
    for (int rank = 0; rank < 16; rank++) {
        assert_int_equal(axes_replica_group(&c, norm, &mesh, rank), 0);
        assert_int_equal(axes_replica_group(&c, key, &mesh, rank), rank % 8 / 2);
        assert_int_equal(axes_replica_group(&c, query, &mesh, rank), rank % 8);
        assert_int_equal(axes_first(&c, norm, &mesh, rank), rank == 0);
        assert_int_equal(axes_first(&c, key, &mesh, rank), rank < 8 && rank % 2 == 0);
        assert_int_equal(axes_first(&c, query, &mesh, rank), rank < 8);
    }
    param_table_free(&table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(boxes_tile_the_model),
        cmocka_unit_test(columns_are_strips),
        cmocka_unit_test(a_ranks_model_is_a_model),
        cmocka_unit_test(odd_sizes_are_refused_by_name),
        cmocka_unit_test(groups_are_those_of_the_table),
        cmocka_unit_test(copies_have_one_number),
        cmocka_unit_test(passes_are_cut_at_collectives),
        cmocka_unit_test(batches_are_counted_once),
        cmocka_unit_test(experts_are_split),
        cmocka_unit_test(dispatches_are_not_missed),
        cmocka_unit_test(matrices_in_one_are_bands),
        cmocka_unit_test(microbatches_ask_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
