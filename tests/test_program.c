/* Programs and memory plans as data: no model is run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "plan/memory.h"
#include "plan/program.h"

static int count_kind(const Program *p, ActionKind kind) {
    int n = 0;
    for (int i = 0; i < p->count; i++) n += p->actions[i].kind == kind;
    return n;
}

static void test_lowered_programs_are_valid(void **state) {
    (void)state;
    for (int units = 3; units <= 9; units += 3)
        for (int m = 1; m <= 4; m++)
            for (int variant = 0; variant < 4; variant++) {
                Program p;
                Error err = {0};
                program_lower(&p, (ProgramSpec){units, m, variant & 1, variant & 2});
                if (program_check(&p, &err) != OK) fail_msg("units %d microbatches %d: %s", units, m, err.message);
                assert_int_equal(count_kind(&p, ACT_FWD), units * m);
                assert_int_equal(count_kind(&p, ACT_BWD) + count_kind(&p, ACT_BWD_IN), units * m);
                assert_int_equal(count_kind(&p, ACT_UPDATE), units);
                assert_int_equal(count_kind(&p, ACT_TIE), variant & 1);
                program_free(&p);
            }
}

static ErrorCode check_after(int index, Action replacement, int swap_with) {
    Program p;
    Error err = {0};
    program_lower(&p, (ProgramSpec){4, 2, false, true});
    if (swap_with >= 0) {
        Action a = p.actions[index];
        p.actions[index] = p.actions[swap_with];
        p.actions[swap_with] = a;
    } else {
        p.actions[index] = replacement;
    }
    ErrorCode code = program_check(&p, &err);
    program_free(&p);
    return code;
}

/* Program of 4 units, 2 microbatches, split: LOAD 4xFWD 4xBWD_IN 4xBWD_W, twice, then NORM and 4 updates. */
static void test_broken_programs_are_refused(void **state) {
    (void)state;
    assert_int_equal(check_after(0, (Action){ACT_LOAD, -1, 0}, -1), OK);
    assert_int_equal(check_after(1, (Action){0}, 2), ERR_INTERNAL);                   /* forward out of order */
    assert_int_equal(check_after(0, (Action){0}, 1), ERR_INTERNAL);                   /* forward before its load */
    assert_int_equal(check_after(5, (Action){0}, 6), ERR_INTERNAL);                   /* backward out of order */
    assert_int_equal(check_after(8, (Action){0}, 12), ERR_INTERNAL);                  /* weight half before input half */
    assert_int_equal(check_after(9, (Action){ACT_BWD_W, 3, 1}, -1), ERR_INTERNAL);    /* microbatches out of order */
    assert_int_equal(check_after(1, (Action){ACT_FWD, 9, 0}, -1), ERR_INTERNAL);      /* no such unit */
    assert_int_equal(check_after(1, (Action){ACT_FWD, 0, 7}, -1), ERR_INTERNAL);      /* no such microbatch */
    assert_int_equal(check_after(26, (Action){0}, 27), ERR_INTERNAL);                 /* update before the norm */
    assert_int_equal(check_after(25, (Action){0}, 26), ERR_INTERNAL);                 /* norm before the last gradient */
    assert_int_equal(check_after(30, (Action){ACT_UPDATE, 2, -1}, -1), ERR_INTERNAL); /* one unit updated twice */
}

static Model small_model(Dtype compute, Recompute recompute) {
    ModelConfig c = {.vocab_size = 100,
                     .hidden_size = 24,
                     .intermediate_size = 40,
                     .num_hidden_layers = 3,
                     .num_attention_heads = 3,
                     .num_key_value_heads = 1,
                     .head_dim = 8,
                     .max_position_embeddings = 16,
                     .rms_norm_eps = 1e-5,
                     .rope_theta = 1e4};
    Model m;
    Error err = {0};
    assert_int_equal(model_build(&m, &c, compute, recompute, 16, 0, &err), OK);
    return m;
}

/* No two buffers that live at the same time overlap, and every action finds its buffers alive. */
static void check_plan(const Program *p, const Model *m) {
    MemoryPlan plan;
    memory_plan(&plan, p, m, 16, 1000, true);
    for (int i = 0; i < plan.count; i++) {
        const Buffer *a = &plan.buffers[i];
        assert_true(a->offset % POOL_ALIGN == 0 && a->offset + a->bytes <= plan.activations);
        for (int j = 0; j < i; j++) {
            const Buffer *b = &plan.buffers[j];
            bool together = a->first <= b->last && b->first <= a->last;
            bool overlap = a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
            assert_false(together && overlap);
        }
    }
    for (int i = 0; i < p->count; i++) {
        Buffer touched[ACTION_BUFFERS];
        int n = action_buffers(p, m, p->actions[i], touched);
        for (int k = 0; k < n; k++) {
            const Buffer *b = memory_plan_buffer(&plan, touched[k].kind, touched[k].unit, touched[k].microbatch);
            assert_true(b->first <= i && i <= b->last && b->bytes == touched[k].bytes);
        }
    }
    memory_plan_free(&plan);
}

static void test_memory_plans_are_sound(void **state) {
    (void)state;
    for (int recompute = 0; recompute <= 2; recompute++)
        for (int split = 0; split <= 1; split++) {
            Model m = small_model(split ? DTYPE_BF16 : DTYPE_F32, (Recompute)recompute);
            Program p;
            program_lower(&p, (ProgramSpec){m.table.units, 3, false, split});
            check_plan(&p, &m);
            program_free(&p);
            model_free(&m);
        }
}

static size_t activations(Recompute recompute, int microbatches) {
    Model m = small_model(DTYPE_F32, recompute);
    Program p;
    MemoryPlan plan;
    program_lower(&p, (ProgramSpec){m.table.units, microbatches, false, false});
    memory_plan(&plan, &p, &m, 16, 0, true);
    size_t bytes = plan.activations;
    memory_plan_free(&plan);
    program_free(&p);
    model_free(&m);
    return bytes;
}

static void test_recompute_saves_memory_and_accumulation_costs_none(void **state) {
    (void)state;
    assert_true(activations(RECOMPUTE_FULL, 1) < activations(RECOMPUTE_SELECTIVE, 1));
    assert_true(activations(RECOMPUTE_SELECTIVE, 1) < activations(RECOMPUTE_NONE, 1));
    assert_true(activations(RECOMPUTE_NONE, 8) == activations(RECOMPUTE_NONE, 1));
}

static void test_printing_folds_runs(void **state) {
    (void)state;
    Program p;
    Text folded = {0}, whole = {0};
    program_lower(&p, (ProgramSpec){5, 2, false, false});
    program_print(&p, false, &folded);
    program_print(&p, true, &whole);
    assert_non_null(strstr(folded.data, "FWD     u0..4 m1\n"));
    assert_non_null(strstr(folded.data, "BWD     u4..0 m0\n"));
    int lines = 0;
    for (const char *s = whole.data; *s; s++) lines += *s == '\n';
    assert_int_equal(lines, p.count);
    text_free(&folded);
    text_free(&whole);
    program_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lowered_programs_are_valid), cmocka_unit_test(test_broken_programs_are_refused),
        cmocka_unit_test(test_memory_plans_are_sound),
        cmocka_unit_test(test_recompute_saves_memory_and_accumulation_costs_none), cmocka_unit_test(test_printing_folds_runs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
