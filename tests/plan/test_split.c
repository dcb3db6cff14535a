/* Stage splits: TorchTitan's rule, names, and exact splits by cost, compared with an enumeration of all
 * splits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "model/unit.h"
#include "plan/split.h"

typedef struct Example {
    int blocks, stages, in, out;
    const char *layers; /* blocks of each stage */
} Example;

/* Blocks of each stage of a split: "2 3 2 1". */
static void layers_of(const Split *s, Text *out) {
    text_clear(out);
    for (int i = 0; i < s->stages; i++) {
        int low = s->first[i] < 1 ? 1 : s->first[i],
            high = s->first[i + 1] > s->blocks + 1 ? s->blocks + 1 : s->first[i + 1];
        text_printf(out, "%s%d", i ? " " : "", high - low);
    }
}

static void test_uniform_is_torchtitans(void **state) {
    (void)state;
    static const Example examples[] = {
        {8, 4, 1, 1, "2 3 2 1"},
        {32, 8, 1, 1, "4 5 4 4 4 4 4 3"},
        {32, 4, 1, 1, "8 9 8 7"},
        {32, 2, 1, 1, "16 16"},
        {61, 16, 1, 1, "3 4 4 4 4 4 4 4 4 4 4 4 4 4 4 2"},
        {22, 8, 1, 1, "2 3 3 3 3 3 3 2"},
        {126, 16, 1, 1, "7 8 8 8 8 8 8 8 8 8 8 8 8 8 8 7"},
        {126, 8, 1, 1, "15 16 16 16 16 16 16 15"},
        {80, 8, 1, 1, "10 11 10 10 10 10 10 9"},
        {80, 16, 1, 1, "5 6 5 5 5 5 5 5 5 5 5 5 5 5 5 4"},
        {6, 2, 1, 1, "3 3"},
        {6, 4, 1, 1, "1 2 2 1"},
        {6, 8, 1, 1, "0 1 1 1 1 1 1 0"},
        {16, 8, 1, 2, "2 3 3 2 2 2 2 0"},
        {24, 6, 2, 3, "3 5 5 5 5 1"},
        {3, 2, 2, 2, "2 1"},
        {7, 1, 1, 1, "7"},
        {4, 4, 0, 0, "1 1 1 1"},
    };
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        const Example *e = &examples[i];
        Split s;
        Error err = {0};
        Text got = {0};
        if (split_uniform(&s, e->blocks, e->stages, (SplitWeights){e->in, e->out}, &err) != OK)
            fail_msg("%s", err.message);
        layers_of(&s, &got);
        assert_string_equal(got.data, e->layers);
        assert_int_equal(s.first[0], 0);
        assert_int_equal(s.first[s.stages], e->blocks + 2);
        for (int stage = 0; stage < s.stages; stage++) assert_true(s.first[stage] < s.first[stage + 1]);
        text_free(&got);
        split_free(&s);
    }
}

static void test_uniform_says_what_fits(void **state) {
    (void)state;
    Split s;
    Error err = {0};
    assert_int_equal(split_uniform(&s, 6, 9, (SplitWeights){1, 1}, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "at most 8 stages fit"));
    assert_int_equal(split_uniform(&s, 8, 4, (SplitWeights){1, 4}, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "the head, counted as 4"));
    assert_non_null(strstr(err.message, "at most 3 stages fit, or a weight of 3"));
    assert_int_equal(split_uniform(&s, 8, 3, (SplitWeights){1, 4}, &err), OK);
    split_free(&s);
    assert_int_equal(split_uniform(&s, 8, 0, (SplitWeights){1, 1}, &err), ERR_CONFIG);
}

static void test_number_of_stages(void **state) {
    (void)state;
    const StagesPerRank one = {1, 1}, v = {2, 2}, looped = {2, 0};
    const SplitWeights w = {1, 1};
    int stages = 0;
    Error err = {0};
    assert_int_equal(split_layers_per_stage(&stages, 32, w, 9, 4, one, &err), OK);
    assert_int_equal(stages, 4);
    assert_int_equal(split_layers_per_stage(&stages, 32, w, 3, 4, looped, &err), OK);
    assert_int_equal(stages, 12);
    assert_int_equal(split_layers_per_stage(&stages, 32, w, 5, 4, one, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "7 stages on 4 pipeline ranks"));
    assert_non_null(strstr(err.message, "9 (4 stages)"));
    assert_int_equal(split_layers_per_stage(&stages, 32, w, 9, 4, v, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "8 stages would fit"));
    assert_non_null(strstr(err.message, "layers per stage that fit: none")); /* 7 or 9 stages, never 8 */
    assert_int_equal(split_layers_per_stage(&stages, 30, w, 9, 4, v, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "layers per stage that fit: 4 (8 stages)"));
    assert_int_equal(split_layers_per_stage(&stages, 32, w, 0, 4, one, &err), ERR_CONFIG);
    assert_int_equal(split_check_stages(8, 4, looped, &err), OK);
    assert_int_equal(split_check_stages(4, 4, looped, &err), ERR_CONFIG);
}

static void test_points(void **state) {
    (void)state;
    const char *const good[] = {"layers.0", "model.layers.4", "norm"};
    const char *const bad[][2] = {{"layers.8", NULL},  {"layers.4", "layers.4"}, {"layers.4", "layers.2"},
                                  {"norm", "lm_head"}, {"embed_tokens", NULL},   {"layers.", NULL},
                                  {"layers.1x", NULL}, {"\x1b[31m", NULL}};
    Split s;
    Error err = {0};
    assert_int_equal(split_points(&s, 8, good, 3, &err), OK);
    const int expected[] = {0, 1, 5, 9, 10};
    assert_int_equal(s.stages, 4);
    assert_memory_equal(s.first, expected, sizeof expected);
    split_free(&s);
    assert_int_equal(split_points(&s, 8, NULL, 0, &err), OK);
    assert_int_equal(s.stages, 1);
    split_free(&s);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(split_points(&s, 8, bad[i], bad[i][1] ? 2 : 1, &err), ERR_CONFIG);
        assert_null(strchr(err.message, 0x1b));
    }
}

/* ---- by cost ---- */

typedef struct Best {
    double largest, squares;
    int count;
} Best;

typedef struct Trial {
    const SplitModel *m;
    int stages, ranks;
    const int *rank_of_stage;
    int first[16];
} Trial;

static double total(StageCost c) { return c.forward + c.input + c.weight; }

static void judge(const Trial *t, const int *first, double *largest, double *squares, bool *fits) {
    double used[8] = {0};
    *largest = *squares = 0;
    *fits = true;
    for (int s = 0; s < t->stages; s++) {
        double cost = 0;
        int rank = t->rank_of_stage ? t->rank_of_stage[s] : s;
        for (int u = first[s]; u < first[s + 1]; u++) {
            cost += total(t->m->costs[u]);
            if (t->m->fixed_bytes) used[rank] += t->m->fixed_bytes[u];
            if (t->m->activation_bytes)
                used[rank] += (t->m->live ? t->m->live[s] : 1) * t->m->activation_bytes[u];
        }
        *largest = cost > *largest ? cost : *largest;
        *squares += cost * cost;
    }
    for (int r = 0; r < 8; r++) *fits &= !(t->m->rank_bytes > 0) || used[r] <= t->m->rank_bytes;
}

/* Enumerates every split. */
static void enumerate(Trial *t, int stage, Best *best) {
    int units = t->m->blocks + 2;
    if (stage == t->stages) {
        double largest, squares;
        bool fits;
        t->first[stage] = units;
        judge(t, t->first, &largest, &squares, &fits);
        if (!fits) return;
        best->count++;
        if (largest < best->largest || (largest == best->largest && squares < best->squares)) {
            best->largest = largest;
            best->squares = squares;
        }
        return;
    }
    for (int first = t->first[stage - 1] + 1; first <= units - (t->stages - stage); first++) {
        t->first[stage] = first;
        enumerate(t, stage + 1, best);
    }
}

static unsigned next_random(unsigned *seed) { return (*seed = *seed * 1664525u + 1013904223u) >> 16; }

/* Uses integers, so that sums are exact and can be compared for equality. Returns whether any split fits. */
static bool compare_with_all(unsigned seed, bool alike, int stages, const int *rank_of_stage, double share) {
    enum { BLOCKS = 9, UNITS = BLOCKS + 2 };
    StageCost costs[UNITS];
    double fixed[UNITS], activation[UNITS], all = 0;
    int live[8];
    for (int u = 0; u < UNITS; u++) {
        costs[u] = (StageCost){next_random(&seed) % 8, next_random(&seed) % 8, 1 + next_random(&seed) % 8};
        fixed[u] = 1 + next_random(&seed) % 9;
        activation[u] = next_random(&seed) % 4;
        if (alike && u > 1 && u <= BLOCKS) {
            costs[u] = costs[1];
            fixed[u] = fixed[1];
            activation[u] = activation[1];
        }
        all += fixed[u] + 2 * activation[u];
    }
    for (int s = 0; s < 8; s++) live[s] = 1 + (int)(next_random(&seed) % 3);
    SplitModel m = {BLOCKS, costs, fixed, activation, live, share * all};
    Trial t = {.m = &m, .stages = stages, .rank_of_stage = rank_of_stage};
    Best best = {1e300, 1e300, 0};
    enumerate(&t, 1, &best);
    Split s;
    Error err = {0};
    ErrorCode code = split_auto(&s, &m, stages, rank_of_stage, &err);
    if (best.count == 0) {
        assert_int_equal(code, ERR_CONFIG);
        assert_non_null(strstr(err.message, "no split of 11 units"));
        return false;
    }
    if (code != OK) fail_msg("%s", err.message);
    double largest, squares;
    bool fits;
    judge(&t, s.first, &largest, &squares, &fits);
    assert_true(fits);
    assert_true(largest == best.largest);
    assert_true(squares == best.squares);
    split_free(&s);
    return true;
}

static void test_auto_is_the_best_of_all(void **state) {
    (void)state;
    static const int loop[] = {0, 1, 0, 1, 0, 1}, v[] = {0, 1, 2, 2, 1, 0};
    int fitting = 0, refused = 0;
    for (unsigned seed = 1; seed <= 120; seed++) {
        double share = (double[]){0, 0.3, 0.45, 0.6}[seed % 4], more = share + (share > 0 ? 0.15 : 0);
        bool alike = seed % 8 > 3;
        bool fits[3] = {compare_with_all(seed, alike, 4, NULL, share),
                        compare_with_all(seed, alike, 6, loop, more),
                        compare_with_all(seed, alike, 6, v, share)};
        for (int i = 0; i < 3; i++) *(fits[i] ? &fitting : &refused) += 1;
    }
    assert_true(fitting > 120 && refused > 20);
}

/* Sixteen stages on eight ranks with little memory. */
static void test_auto_within_memory(void **state) {
    (void)state;
    enum { BLOCKS = 32, STAGES = 16 };
    StageCost costs[BLOCKS + 2];
    double fixed[BLOCKS + 2], activation[BLOCKS + 2];
    int live[STAGES], ranks[STAGES];
    for (int u = 0; u < BLOCKS + 2; u++) {
        bool end = u == 0 || u == BLOCKS + 1;
        costs[u] = u == 0 ? (StageCost){0, 0, 0} : end ? (StageCost){2, 2, 2} : (StageCost){1, 1, 1};
        fixed[u] = (end ? 8 : 3) * 1024.0;
        activation[u] = (end ? 0 : 1) * 1024.0;
    }
    for (int s = 0; s < STAGES; s++) {
        ranks[s] = s % 8;
        live[s] = STAGES - s;
    }
    SplitModel m = {BLOCKS, costs, fixed, activation, live, 0};
    Split s;
    Error err = {0};
    m.rank_bytes = 30 * 1024;
    assert_int_equal(split_auto(&s, &m, STAGES, ranks, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "keeps to 30.00 KiB a rank"));
    m.rank_bytes = 40 * 1024;
    if (split_auto(&s, &m, STAGES, ranks, &err) != OK) fail_msg("%s", err.message);
    double fullest = split_fullest_rank(&s, &m, ranks);
    assert_true(fullest <= m.rank_bytes);
    split_free(&s);
    m.rank_bytes = fullest; /* exactly fits */
    assert_int_equal(split_auto(&s, &m, STAGES, ranks, &err), OK);
    split_free(&s);
}

static const ModelConfig llama_8b = {.vocab_size = 128256,
                                     .hidden_size = 4096,
                                     .intermediate_size = 14336,
                                     .num_hidden_layers = 32,
                                     .num_attention_heads = 32,
                                     .num_key_value_heads = 8,
                                     .head_dim = 128,
                                     .max_position_embeddings = 8192};

static void test_costs_of_8b(void **state) {
    (void)state;
    StageCost units[34];
    double sum = 0;
    /* As TorchTitan counts, with the masked half of attention: that is twice the context here. */
    model_unit_costs(&llama_8b, RECOMPUTE_NONE, 2 * 8192, units);
    assert_true(total(units[33]) / total(units[1]) > 1.835 && total(units[33]) / total(units[1]) < 1.845);
    /* As weft computes. */
    model_unit_costs(&llama_8b, RECOMPUTE_NONE, 8192, units);
    assert_true(total(units[33]) / total(units[1]) > 2.08 && total(units[33]) / total(units[1]) < 2.095);
    assert_true(total(units[0]) == 0);
    for (int u = 0; u < 34; u++) sum += total(units[u]);
    double model = model_flops_per_token(&llama_8b, 8192); /* counts norms too */
    assert_true(sum > 0.9999 * model && sum <= model);
}

static void test_auto_splits_8b(void **state) {
    (void)state;
    StageCost units[34], stages[8];
    Split s;
    Error err = {0};
    Text text = {0};
    model_unit_costs(&llama_8b, RECOMPUTE_NONE, 8192, units);
    SplitModel m = {.blocks = 32, .costs = units};
    assert_int_equal(split_auto(&s, &m, 4, NULL, &err), OK);
    layers_of(&s, &text);
    assert_string_equal(text.data, "8 9 9 6"); /* 34.1 layers' worth over four, the head worth two */
    split_stage_costs(&s, units, stages);
    assert_true(total(stages[3]) < total(stages[1]));
    text_clear(&text);
    split_print(&s, units, NULL, &text);
    assert_non_null(strstr(text.data, "layers 26-31, norm and head"));
    assert_non_null(strstr(text.data, "100.0 %"));
    split_free(&s);
    text_free(&text);
    assert_int_equal(split_auto(&s, &m, 35, NULL, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "1 to 34 stages fit"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_uniform_is_torchtitans),
        cmocka_unit_test(test_uniform_says_what_fits),
        cmocka_unit_test(test_number_of_stages),
        cmocka_unit_test(test_points),
        cmocka_unit_test(test_auto_is_the_best_of_all),
        cmocka_unit_test(test_auto_within_memory),
        cmocka_unit_test(test_costs_of_8b),
        cmocka_unit_test(test_auto_splits_8b),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
