/* The search of weft plan --compare against all plans of small spaces: no bound is above what a full forecast
 * gives, and the search finds the best plan and the best of other kinds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/find.h"
#include "forecast/search.h"

static Error err;

typedef struct Space {
    Config c;
    OptionSet set;
    Device d;
    SearchRequest q;
    Bounds bounds;
    int plans, impossible;
    Candidate *all;
    double time_gap, memory_gap; /* sums of bound / forecast */
} Space;

#define WORDS(...) \
    sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *), (const char *const[]) { __VA_ARGS__ }

static const Hardware hardware = {
    .name = "simple",
    .compute = {.bf16_tflops = 1, .fp32_tflops = 0.5, .share = 0.5, .attention_share = 0.25},
    .memory = {.gib = 1, .gb_per_s = 50, .share = 1},
    .links = {.ranks = 4, .inside_gb_per_s = 5, .between_gb_per_s = 1, .inside_us = 5, .between_us = 20}};

static void open_space(Space *s, int world, ForecastSpeed speed, int count, const char *const *words) {
    static const char *const base[] = {
        "model.vocab_size=512",        "model.hidden_size=64",        "model.intermediate_size=192",
        "model.num_attention_heads=8", "model.num_key_value_heads=4", "train.context=64",
        "train.microbatch=1",          "train.compute=bf16",          "run.threads=1"};
    enum { BASE = sizeof base / sizeof *base };
    const char *all[BASE + 16];
    *s = (Space){.plans = 0};
    memcpy(all, base, sizeof base);
    memcpy(all + BASE, words, (size_t)count * sizeof *words);
    if (config_load(&s->c, &s->set, NULL, BASE + count, all, checkpoint_find_shape, &err) != OK)
        fail_msg("%s", err.message);
    if (model_config_complete(&s->c.model.shape, "model", &err) != OK) fail_msg("%s", err.message);
    device_describe(&s->d, device_kind(s->c.run.device), "", 1);
    int64_t step = s->c.train.tokens_per_step / s->c.train.context;
    s->q = (SearchRequest){&s->c, &s->d, world, 1e15, speed, step, SEARCH_KINDS, false, 0};
    bounds_open(&s->bounds, &s->c, &s->d, world, step, speed);
}

static void close_space(Space *s) {
    bounds_free(&s->bounds);
    options_free(&s->set);
    free(s->all);
}

static void name(const Choice *c, char out[256]) {
    snprintf(out, 256,
             "pp %d replicas %d cp %d tp %d ep %d sequences %lld %s x %d recompute %d sync %d reshard %d",
             c->pp, c->replicas, c->cp, c->tp, c->ep, (long long)c->sequences, c->schedule,
             c->stages_per_rank, c->recompute, c->sync, c->reshard);
}

static void expect_below(Bound b, const Candidate *a, const char *what) {
    char text[256];
    name(&a->choice, text);
    if (b.time > a->time * (1 + 1e-9))
        fail_msg("%s: time %.9g of %s, but it takes %.9g", what, b.time, text, a->time);
    if (b.memory > (double)a->memory)
        fail_msg("%s: memory %.9g of %s, but it takes %zu", what, b.memory, text, a->memory);
}

/* Forecasts a plan, and compares the bounds of all branches that lead to it. */
static void check_plan(void *context, const Choice *c) {
    Space *s = context;
    Candidate a;
    Bound b;
    if (search_forecast(&a, &s->q, c, &err) != OK) {
        s->impossible++;
        return;
    }
    s->all = mem_grow(s->all, (size_t)(s->plans + 1) * sizeof *s->all);
    s->all[s->plans++] = a;
    Choice least = *c;
    least.recompute = RECOMPUTE_NONE;
    assert_true(bounds_passes(&s->bounds, &least, &b));
    expect_below(b, &a, "degrees");
    assert_true(bounds_passes(&s->bounds, c, &b));
    expect_below(b, &a, "recompute");
    PipeBound *p = bounds_pipe(&s->bounds, c);
    assert_non_null(p);
    assert_true(bounds_of_pipe(p, INFINITY, &b));
    expect_below(b, &a, "pipeline");
    assert_true(bounds_of_plan(p, c, &b));
    expect_below(b, &a, "plan");
    s->time_gap += b.time / a.time, s->memory_gap += b.memory / (double)a.memory;
    bounds_pipe_free(p);
}

static double best_of_kind(const Space *s, double limit, const Choice *kind) {
    double best = INFINITY;
    for (int i = 0; i < s->plans; i++)
        if ((double)s->all[i].memory <= limit && (!kind || search_same_kind(&s->all[i].choice, kind)))
            best = fmin(best, s->all[i].time);
    return best;
}

static int ended_early; /* spaces whose search ended before its plan was known to be the best */

static const Candidate *best_found(const Search *f, const Choice *kind) {
    const Candidate *best = NULL;
    for (int i = 0; i < f->count; i++)
        if (f->found[i].fits && (!kind || search_same_kind(&f->found[i].choice, kind)) &&
            (!best || f->found[i].time < best->time))
            best = &f->found[i];
    return best;
}

static void expect_best(Space *s, double limit) {
    Search f;
    s->q.memory = limit;
    search_run(&f, &s->q);
    const Candidate *best = best_found(&f, NULL);
    double want = best_of_kind(s, limit, NULL);
    if (!best) {
        if (!isinf(want)) fail_msg("nothing is found under %.9g, but there is a plan of %.9g", limit, want);
    } else if (fabs(best->time - want) > 1e-12 * want) {
        fail_msg("under %.9g the search finds %.9g of %.9g", limit, best->time, want);
    }
    printf("    limit %.4g: %d of %d plans forecast, best %.6g\n", limit, f.count, s->plans, want);
    search_free(&f);
}

/* A search that may compute one bound ends with a plan that fits. It says so unless that plan is the best. */
static void expect_early_end(Space *s) {
    Search f;
    s->q.memory = (double)s->all[s->plans - 1].memory, s->q.most_bounds = 1;
    search_run(&f, &s->q);
    const Candidate *best = best_found(&f, NULL);
    assert_non_null(best);
    if (!f.unproven) assert_true(best->time <= best_of_kind(s, s->q.memory, NULL) * (1 + 1e-12));
    ended_early += f.unproven;
    search_free(&f);
    s->q.most_bounds = 0;
}

static int three_way(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return (x->memory > y->memory) - (x->memory < y->memory);
}

/* Limits that all plans, half of them, a tenth, few and none fit. */
static int check_space(int world, ForecastSpeed speed, int count, const char *const *words) {
    Space s;
    open_space(&s, world, speed, count, words);
    search_enumerate(&s.q, check_plan, &s);
    assert_true(s.plans > 20);
    printf("  %d plans, %d impossible: time bounds %.1f%%, memory bounds %.1f%% of the forecast on average\n",
           s.plans, s.impossible, 100 * s.time_gap / s.plans, 100 * s.memory_gap / s.plans);
    qsort(s.all, (size_t)s.plans, sizeof *s.all, three_way);
    const int at[] = {s.plans - 1, s.plans / 2, s.plans / 10, s.plans / 100};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) expect_best(&s, (double)s.all[at[i]].memory);
    expect_best(&s, (double)s.all[0].memory - 1);
    expect_early_end(&s);
    int plans = s.plans;
    close_space(&s);
    return plans;
}

static void no_bound_exceeds_a_forecast(void **state) {
    (void)state;
    const ForecastSpeed fast = {.hardware = &hardware}, link = {.tflops = 1, .link = 1};
    int plans = 0;
    plans += check_space(4, fast, WORDS("model.num_hidden_layers=3", "train.tokens_per_step=256"));
    plans += check_space(8, fast, WORDS("model.num_hidden_layers=1", "train.tokens_per_step=256"));
    plans += check_space(4, link, WORDS("model.num_hidden_layers=2", "train.tokens_per_step=256"));
    plans += check_space(
        4, fast, WORDS("model.num_hidden_layers=1", "train.tokens_per_step=256", "numerics.mode=exact"));
    plans += check_space(4, fast,
                         WORDS("model.num_hidden_layers=2", "train.tokens_per_step=256",
                               "model.family=mixtral", "model.num_experts=4", "model.num_experts_per_tok=2"));
    plans += check_space(4, fast,
                         WORDS("model.num_hidden_layers=1", "train.tokens_per_step=256",
                               "model.tie_word_embeddings=true", "train.split_backward=true"));
    printf("%d plans\n", plans);
    assert_true(plans > 1600);
    assert_true(ended_early > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(no_bound_exceeds_a_forecast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
