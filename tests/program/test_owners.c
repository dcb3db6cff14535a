/* Matrices that tp shards and an optimizer needs whole. Each has one owner rank, which gets the shards of all
 * ranks once; what one rank sends, another expects; and the work is balanced. No rank is run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "model/families/family.h"
#include "program/owners.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"

enum { SHARDS = 2, TENSORS = 4, RANKS = SHARDS * TENSORS };

/* A model on every rank of a mesh. */
typedef struct World {
    ModelConfig model, own[RANKS];
    ParamTable table[RANKS];
    ParamGroups groups;
    Partition p[RANKS];
} World;

static void build(World *w, const Family *f, int key_heads) {
    Error err = {0};
    Mesh mesh = {.degree = {1, 1, SHARDS, 1, 1, 1, TENSORS, 1}, .world = RANKS};
    OptimizerOptions muon = usual_optimizer;
    muon.settings.kind = OPTIMIZER_MUON, muon.settings.nesterov = 1;
    w->model = tiny_model(37, 3, 16); /* a vocabulary that is split unequally */
    w->model.family = f, w->model.num_key_value_heads = key_heads, w->model.head_dim = 8;
    if (family_has_experts(f))
        w->model.num_experts = 4, w->model.num_experts_per_tok = 2, w->model.moe_intermediate_size = 8;
    axes_lay_copies(&w->model, &mesh);
    for (int r = 0; r < RANKS; r++) {
        Stages stages;
        assert_int_equal(partition_model(&w->model, &mesh, r, 0, &w->own[r], &err), OK);
        assert_int_equal(param_table_build(&w->table[r], &w->own[r], &err), OK);
        if (r == 0) assert_int_equal(param_groups_build(&w->groups, &muon, &w->table[0], &err), OK);
        stages_single(&stages, w->table[r].units);
        partition_build(&w->p[r], &(PartitionSpec){.model = &w->model,
                                                   .table = &w->table[r],
                                                   .groups = &w->groups,
                                                   .mesh = &mesh,
                                                   .rank = r,
                                                   .stages = &stages});
        stages_free(&stages);
    }
}

static void release(World *w) {
    for (int r = 0; r < RANKS; r++) partition_free(&w->p[r]), param_table_free(&w->table[r]);
    param_groups_free(&w->groups);
}

/* The ranks of tp agree about a parameter, and those of one shard update it. */
static void check_owners(const World *w) {
    const ParamTable *t = &w->table[0];
    for (int i = 0; i < t->count; i++) {
        int owners = 0;
        for (int r = 0; r < RANKS; r++) {
            assert_int_equal(owner_of_matrices(&w->p[r], i),
                             owner_of_matrices(&w->p[r / TENSORS * TENSORS], i));
            owners += owner_of_matrices(&w->p[r], i) == w->p[r].tensor;
            if (owner_of_matrices(&w->p[r], i) < 0) continue;
            assert_int_equal(partition_segment(&w->p[r], &w->table[r].params[i]).count,
                             w->table[r].params[i].count);
        }
        assert_int_equal(owners, param_needs_matrix(&w->groups, i, &t->params[i]));
    }
}

/* The counted shards form each matrix of a parameter, element for element, and the matrices are all of it. */
static void check_blocks(const World *w, int i) {
    const Partition *p = &w->p[0];
    Param whole = param_unsharded(&w->model, &w->table[0].params[i]);
    AxisSet copied = axes_any(axes_kind(&w->model, &whole), DOES_COPY) & MESH_TENSOR;
    int64_t all = 0;
    for (int k = 0; k < param_matrices(&whole); k++) {
        ParamMatrix m = param_matrix(&whole, k);
        unsigned char *seen = mem_alloc_array((size_t)(m.rows * m.cols), 1);
        all += m.rows * m.cols;
        for (int q = 0; q < TENSORS; q++) {
            MatrixBlock part = owners_block(p, &whole, k, q);
            ParamMatrix own = param_matrix(&w->table[q].params[i], k);
            assert_true(part.rows == own.rows && part.cols == own.cols);
            for (int64_t e = 0; e < part.rows * part.cols; e++)
                if (mesh_group_rank(&p->mesh, copied, q) == 0)
                    seen[(part.row + e / part.cols) * m.cols + part.col + e % part.cols]++;
        }
        for (int64_t e = 0; e < m.rows * m.cols; e++) assert_int_equal(seen[e], 1);
        free(seen);
    }
    assert_int_equal(all, whole.count);
}

/* A shard has the same size and order in its rank's buffer and in its owner's. */
static void check_buffers(const World *w, int unit) {
    OwnerSegment own[RANKS][SPLITS_MAX], made[RANKS][SPLITS_MAX];
    for (int r = 0; r < RANKS; r++) {
        owners_segments(&w->p[r], unit, BUFFER_LOCAL, own[r]);
        owners_segments(&w->p[r], unit, BUFFER_OWNED, made[r]);
    }
    for (int r = 0; r < RANKS; r++)
        for (int q = 0; q < TENSORS; q++) {
            const OwnerSegment *to = &own[r][q], *there = &made[r / TENSORS * TENSORS + q][r % TENSORS];
            assert_int_equal(to->count, there->count);
            assert_int_equal(to->counted, there->counted);
        }
}

/* A walk visits each shard once, counted ones first, inside its segment. */
static void check_walk(const World *w, int rank, int unit, OwnerBuffer buffer) {
    const Partition *p = &w->p[rank];
    OwnerSegment s[SPLITS_MAX];
    int64_t sum = 0, all = 0;
    owners_segments(p, unit, buffer, s);
    for (int q = 0; q < TENSORS; q++) all += s[q].count;
    OwnerWalk walk = owners_walk(p, unit, buffer);
    while (owners_next(&walk))
        for (int q = 0; q < TENSORS; q++) {
            if (buffer == BUFFER_LOCAL && q != p->tensor) continue;
            int64_t count = w->table[rank / TENSORS * TENSORS + q].params[walk.param].count;
            const OwnerSegment *in = &s[buffer == BUFFER_OWNED ? q : owner_of_matrices(p, walk.param)];
            int64_t border = in->first + in->counted;
            assert_true(walk.copy[q] ? walk.at[q] >= border : walk.at[q] + count <= border);
            assert_true(walk.at[q] >= in->first && walk.at[q] + count <= in->first + in->count);
            sum += count;
        }
    assert_int_equal(sum, all);
    assert_true(owners_buffer_bytes(p, unit, buffer) >= (size_t)all * sizeof(float));
}

/* No rank has more than one matrix above the mean. */
static void check_balance(const World *w) {
    double work[RANKS] = {0}, all = 0, largest = 0;
    for (int i = 0; i < w->table[0].count; i++) {
        Param whole = param_unsharded(&w->model, &w->table[0].params[i]);
        double flops = optimizer_flops(param_group(&w->groups, i)->optimizer, &whole);
        if (!param_needs_matrix(&w->groups, i, &whole)) continue;
        all += flops, largest = flops > largest ? flops : largest;
        for (int r = 0; r < RANKS; r++)
            work[r] += owner_of_matrices(&w->p[r], i) == w->p[r].tensor ? flops : 0;
    }
    for (int shard = 0; shard < SHARDS; shard++) {
        double sum = 0;
        for (int q = 0; q < TENSORS; q++) sum += work[shard * TENSORS + q];
        for (int q = 0; q < TENSORS; q++) assert_true(work[shard * TENSORS + q] <= sum / TENSORS + largest);
    }
    assert_true(all > 0);
}

static void every_matrix_has_an_owner(void **state) {
    static const struct {
        const Family *family;
        int key_heads;
    } models[] = {{&family_llama, 4}, {&family_llama, 2}, {&family_llama, 1},     {&family_phi3, 4},
                  {&family_gpt2, 4},  {&family_olmo2, 2}, {&family_qwen3_moe, 4}, {&family_llama4_text, 4}};
    static World w;
    (void)state;
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        build(&w, models[i].family, models[i].key_heads);
        check_owners(&w);
        for (int k = 0; k < w.table[0].count; k++)
            if (param_needs_matrix(&w.groups, k, &w.table[0].params[k])) check_blocks(&w, k);
        for (int u = 0; u < w.table[0].units; u++) {
            assert_int_equal(owners_have(&w.p[0], u), u > 0 && u < w.table[0].units - 1);
            check_buffers(&w, u);
            for (int r = 0; r < RANKS; r++)
                for (int buffer = 0; buffer < OWNER_BUFFERS; buffer++)
                    check_walk(&w, r, u, (OwnerBuffer)buffer);
        }
        check_balance(&w);
        release(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_matrix_has_an_owner)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
