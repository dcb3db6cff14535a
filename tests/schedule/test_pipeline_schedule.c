/* Pipeline schedules as data: every named schedule in many sizes against closed forms, the passes, CSV, and
 * inputs that must be refused. No model, no MPI. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "schedule/schedule.h"
#include "schedule/simulate.h"

static const SimulateCosts unit_costs = {.uniform = {1, 1, 1}};

static void must(ErrorCode code, const Error *err, const char *what) {
    if (code != OK) fail_msg("%s: %s", what, err->message);
}

static Schedule made(ScheduleName name, int ranks, int microbatches, int chunks) {
    Schedule s;
    Error err = {0};
    must(schedule_make(&s, name, ranks, microbatches, chunks, &err), &err, schedule_name(name));
    return s;
}

static Schedule parsed(const char *csv) {
    Schedule s;
    Error err = {0};
    must(schedule_parse_csv(&s, "test.csv", csv, strlen(csv), &err), &err, csv);
    return s;
}

static void lower(Schedule *s, int active) {
    Error err = {0};
    schedule_add_parameters(s, active);
    must(schedule_add_transfers(s, &err), &err, s->name);
}

static void assert_csv(const Schedule *s, const char *expected) {
    Text text = {0};
    schedule_write_csv(s, &text);
    assert_string_equal(text.data, expected);
    text_free(&text);
}

/* The requirements of the papers, implemented a second time. */
static bool possible(ScheduleName name, int ranks, int m, int chunks) {
    int rounds = m / ranks > 1 ? m / ranks : 1;
    switch (name) {
    case PIPE_NAMES: return false;
    case PIPE_LOOPED_BFS: return true;
    case PIPE_INTERLEAVED_1F1B:
    case PIPE_INTERLEAVED_ZERO_BUBBLE: return m % rounds == 0;
    case PIPE_V_MIN:
    case PIPE_V_HALF:
    case PIPE_ZBV: return chunks == 2;
    case PIPE_DUALPIPEV: return chunks == 2 && m >= 2 * ranks;
    case PIPE_GPIPE:
    case PIPE_1F1B:
    case PIPE_ZB_H1:
    case PIPE_ZB_H2: return chunks == 1;
    }
    return false;
}

/* Calls `look` with every possible schedule of many sizes. */
static void for_all(void (*look)(ScheduleName name, Schedule *s, int chunks)) {
    static const int counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 16, 17, 24, 32, 40};
    for (int name = 0; name < PIPE_NAMES; name++)
        for (int ranks = 1; ranks <= 9; ranks++)
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
                for (int chunks = 1; chunks <= 4; chunks++) {
                    if (!possible((ScheduleName)name, ranks, counts[i], chunks)) continue;
                    Schedule s = made((ScheduleName)name, ranks, counts[i], chunks);
                    look((ScheduleName)name, &s, chunks);
                    schedule_free(&s);
                }
}

static void look_valid(ScheduleName name, Schedule *s, int chunks) {
    Error err = {0};
    (void)chunks;
    must(schedule_check(s, &err), &err, schedule_name(name));
    bool split = false;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) split |= s->orders[r].cells[i].kind == CELL_W;
    assert_int_equal(split, s->split_backward);
}

static void test_all_are_valid(void **state) {
    (void)state;
    for_all(look_valid);
}

/* Peaks and makespans for unit costs, in chunks, by closed forms. */
typedef struct Closed {
    double makespan, span; /* -1: no closed form */
    int peak_input, peak_weight;
} Closed;

static int least(int a, int b) { return a < b ? a : b; }

static Closed closed_interleaved(const Schedule *s, int v, int r, bool zero_bubble) {
    int P = s->ranks, m = s->microbatches, R = m / (m / P > 1 ? m / P : 1);
    bool enough = m >= P;
    if (!zero_bubble) {
        int peak = least(v * m, (v - 1) * R + 2 * (P - 1 - r) + 1);
        return (Closed){enough ? 3 * v * m + 3 * (P - 1) : -1, -1, peak, peak};
    }
    return (Closed){enough ? 3 * v * m + P - 1 : -1, -1, least(v * m, (v - 1) * R + P - r),
                    least(v * m, (v - 1) * R + P)};
}

static Closed closed_form(ScheduleName name, const Schedule *s, int v, int r) {
    int P = s->ranks, m = s->microbatches, all = v * m;
    bool enough = m >= P, plenty = m >= 2 * P - 1;
    switch (name) {
    case PIPE_GPIPE: return (Closed){3 * (m + P - 1), -1, m, m};
    case PIPE_1F1B: return (Closed){enough ? 3 * (m + P - 1) : -1, -1, least(m, P - r), least(m, P - r)};
    case PIPE_LOOPED_BFS: return (Closed){enough ? 3 * all + 3 * (P - 1) : -1, -1, all, all};
    case PIPE_ZB_H1: return (Closed){enough ? 3 * m + P - 1 : -1, -1, least(m, P - r), least(m, P)};
    case PIPE_ZB_H2:
        return (Closed){plenty ? 3 * m + P - 1 : -1, plenty ? 0 : -1, least(m, 2 * (P - 1 - r) + 1),
                        least(m, 2 * P - 1)};
    case PIPE_ZBV: return plenty ? (Closed){6 * m + P - 1, 0, 2 * P, 2 * P} : (Closed){-1, -1, -1, -1};
    case PIPE_V_MIN:
    case PIPE_V_HALF: return (Closed){-1, -1, -1, -1}; /* test_limits_are_kept */
    case PIPE_DUALPIPEV: return (Closed){6 * m + 2 * (P - 1), -1, 2 * P + 1, 2 * P + 1};
    case PIPE_INTERLEAVED_1F1B:
    case PIPE_INTERLEAVED_ZERO_BUBBLE:
    case PIPE_NAMES: break;
    }
    return closed_interleaved(s, v, r, name == PIPE_INTERLEAVED_ZERO_BUBBLE);
}

static void look_closed_form(ScheduleName name, Schedule *s, int v) {
    Simulation sim;
    Error err = {0};
    must(simulate(&sim, s, &unit_costs, &err), &err, schedule_name(name));
    for (int r = 0; r < s->ranks; r++) {
        Closed c = closed_form(name, s, v, r);
        bool good = (c.makespan < 0 || sim.makespan == c.makespan) && (c.span < 0 || sim.span == c.span) &&
                    (c.peak_input < 0 || sim.rank[r].peak_input == c.peak_input) &&
                    (c.peak_weight < 0 || sim.rank[r].peak_weight == c.peak_weight) &&
                    sim.rank[r].busy == 3 * v * s->microbatches;
        if (!good)
            fail_msg("%s P=%d m=%d v=%d rank %d: makespan %g (%g) span %g (%g) peaks %d %d (%d %d)",
                     schedule_name(name), s->ranks, s->microbatches, v, r, sim.makespan, c.makespan, sim.span,
                     c.span, sim.rank[r].peak_input, sim.rank[r].peak_weight, c.peak_input, c.peak_weight);
    }
    simulation_free(&sim);
}

static void test_closed_forms(void **state) {
    (void)state;
    for_all(look_closed_form);
}

/* Figures of schedules with full stages (v stages of cost 1 / v each), where overlapped pairs take the sum or
 * the maximum, and with a latency of one full forward. */
typedef struct Row {
    ScheduleName name;
    int chunks;
    double makespan, idle, span;
    double most_input, least_input, most_weight, least_weight; /* peaks over ranks */
    double with_max, with_latency;
} Row;

static Simulation run_full_stages(const Schedule *s, int chunks, double latency, bool overlap_is_max) {
    double part = 1.0 / chunks;
    SimulateCosts costs = {
        .uniform = {part, part, part}, .latency = latency, .overlap_is_max = overlap_is_max};
    Simulation sim;
    Error err = {0};
    must(simulate(&sim, s, &costs, &err), &err, s->name);
    return sim;
}

static double makespan_of(const Schedule *s, int chunks, double latency, bool overlap_is_max) {
    Simulation sim = run_full_stages(s, chunks, latency, overlap_is_max);
    double makespan = sim.makespan;
    simulation_free(&sim);
    return makespan;
}

static Row measured(const Schedule *s, ScheduleName name, int chunks) {
    Simulation sim = run_full_stages(s, chunks, 0, false);
    Row row = {name, chunks, sim.makespan, sim.bubble * sim.makespan, sim.span, 0, 1e9, 0, 1e9, 0, 0};
    for (int r = 0; r < s->ranks; r++) {
        double input = (double)sim.rank[r].peak_input / chunks,
               weight = (double)sim.rank[r].peak_weight / chunks;
        row.most_input = fmax(row.most_input, input);
        row.least_input = fmin(row.least_input, input);
        row.most_weight = fmax(row.most_weight, weight);
        row.least_weight = fmin(row.least_weight, weight);
    }
    row.with_max = makespan_of(s, chunks, 0, true);
    row.with_latency = makespan_of(s, chunks, 1, false);
    simulation_free(&sim);
    return row;
}

static void check_row(const Row *want, int ranks, int microbatches) {
    Schedule s = made(want->name, ranks, microbatches, want->chunks);
    Row got = measured(&s, want->name, want->chunks);
    const double *a = &want->makespan, *b = &got.makespan;
    for (int i = 0; i < 9; i++)
        if (fabs(a[i] - b[i]) > 1e-9)
            fail_msg("%s v=%d on %d ranks: column %d is %g, not %g", schedule_name(want->name), want->chunks,
                     ranks, i, b[i], a[i]);
    schedule_free(&s);
}

static void test_table_of_4_ranks(void **state) {
    (void)state;
    static const Row rows[] = {
        {PIPE_GPIPE, 1, 33, 9, 9, 8, 8, 8, 8, 33, 39},
        {PIPE_1F1B, 1, 33, 9, 9, 4, 1, 4, 1, 33, 49},
        {PIPE_LOOPED_BFS, 2, 28.5, 4.5, 4.5, 8, 8, 8, 8, 28.5, 36.5},
        {PIPE_LOOPED_BFS, 4, 26.25, 2.25, 2.25, 8, 8, 8, 8, 26.25, 47.25},
        {PIPE_INTERLEAVED_1F1B, 2, 28.5, 4.5, 4.5, 5.5, 2.5, 5.5, 2.5, 28.5, 46},
        {PIPE_INTERLEAVED_1F1B, 4, 26.25, 2.25, 2.25, 4.75, 3.25, 4.75, 3.25, 26.25, 69},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 1, 27, 3, 3, 4, 1, 4, 4, 27, 41},
        {PIPE_ZB_H1, 1, 27, 3, 3, 4, 1, 4, 4, 27, 41},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 2, 25.5, 1.5, 1.5, 4, 2.5, 4, 4, 25.5, 51},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 4, 24.75, .75, .75, 4, 3.25, 4, 4, 24.75, 77},
        {PIPE_ZB_H2, 1, 27, 3, 0, 7, 1, 7, 7, 27, 30},
        {PIPE_V_MIN, 2, 30, 6, 6, 2, 2, 2, 2, 30, 70},
        {PIPE_V_HALF, 2, 27.5, 3.5, 3.5, 3, 3, 3, 3, 27.5, 57.5},
        {PIPE_ZBV, 2, 25.5, 1.5, 0, 4, 4, 4, 4, 25.5, 41.5},
        {PIPE_DUALPIPEV, 2, 27, 3, 3, 4.5, 4.5, 4.5, 4.5, 22, 48.5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i], 4, 8);
}

static void test_table_of_8_ranks(void **state) {
    (void)state;
    static const Row rows[] = {
        {PIPE_GPIPE, 1, 117, 21, 21, 32, 32, 32, 32, 117, 131},
        {PIPE_1F1B, 1, 117, 21, 21, 8, 1, 8, 1, 117, 185},
        {PIPE_LOOPED_BFS, 2, 106.5, 10.5, 10.5, 32, 32, 32, 32, 106.5, 120.5},
        {PIPE_LOOPED_BFS, 4, 101.25, 5.25, 5.25, 32, 32, 32, 32, 101.25, 121.25},
        {PIPE_INTERLEAVED_1F1B, 2, 106.5, 10.5, 10.5, 11.5, 4.5, 11.5, 4.5, 106.5, 155.5},
        {PIPE_INTERLEAVED_1F1B, 4, 101.25, 5.25, 5.25, 9.75, 6.25, 9.75, 6.25, 101.25, 234.75},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 1, 103, 7, 7, 8, 1, 8, 8, 103, 151},
        {PIPE_ZB_H1, 1, 103, 7, 7, 8, 1, 8, 8, 103, 151},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 2, 99.5, 3.5, 3.5, 8, 4.5, 8, 8, 99.5, 201},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 4, 97.75, 1.75, 1.75, 8, 6.25, 8, 8, 97.75, 313},
        {PIPE_ZB_H2, 1, 103, 7, 0, 15, 1, 15, 15, 103, 110},
        {PIPE_V_MIN, 2, 109, 13, 13, 4, 4, 4, 4, 109, 290.5},
        {PIPE_V_HALF, 2, 105.5, 9.5, 9.5, 5, 5, 5, 5, 105.5, 221},
        {PIPE_ZBV, 2, 99.5, 3.5, 0, 8, 8, 8, 8, 99.5, 137.5},
        {PIPE_DUALPIPEV, 2, 103, 7, 7, 8.5, 8.5, 8.5, 8.5, 76, 184.5},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) check_row(&rows[i], 8, 32);
}

static void assert_few_wgrads_wait(const Schedule *s) {
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0, waiting = 0; i < s->orders[r].count; i++) {
            CellKind kind = s->orders[r].cells[i].kind;
            waiting += (kind == CELL_I) - (kind == CELL_W);
            assert_in_range(waiting, 0, 2);
        }
}

/* A V under a limit, checked and simulated with equal costs; the fullest rank's peak until W, in stages. */
static double makespan_within(int ranks, int m, double activations, int *peak) {
    Schedule s;
    Simulation sim;
    Error err = {0};
    must(schedule_make_on(&s, PIPE_ZBV, ranks, m, 2, &(OrderTerms){.activations = activations}, &err), &err,
         "limited");
    must(simulate(&sim, &s, &unit_costs, &err), &err, "limited");
    assert_true(schedule_adds_in_order(&s));
    assert_few_wgrads_wait(&s);
    *peak = 0;
    for (int r = 0; r < ranks; r++) *peak = sim.rank[r].peak_weight > *peak ? sim.rank[r].peak_weight : *peak;
    double makespan = sim.makespan;
    simulation_free(&sim);
    schedule_free(&s);
    return makespan;
}

/* From V-Half's peak on there is less idle time than with 1F1B. */
static void test_limits_are_kept(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 12; ranks++)
        for (int m = 1; m <= 48; m += m < 4 ? 1 : ranks)
            for (int limit = 2; limit <= 2 * ranks; limit++) {
                int peak;
                double makespan = makespan_within(ranks, m, limit / (2.0 * ranks), &peak),
                       one = 6.0 * m + 6 * (ranks - 1);
                if (peak > limit)
                    fail_msg("%d ranks, %d microbatches: %d of %d stages", ranks, m, peak, limit);
                if (m >= ranks && limit >= 2 * ((ranks + 2) / 2) && makespan > one)
                    fail_msg("%d ranks, %d microbatches, %d stages: %g units, 1F1B %g", ranks, m, limit,
                             makespan, one);
            }
}

/* V-Half and V-Min are limits with names. */
static void test_names_of_limits(void **state) {
    (void)state;
    static const struct {
        ScheduleName name;
        double activations;
    } rows[] = {{PIPE_V_HALF, 5 / 8.0}, {PIPE_V_MIN, 4 / 8.0}};
    for (int i = 0; i < 2; i++) {
        Schedule s = made(rows[i].name, 8, 20, 2), limited;
        Error err = {0};
        Text text = {0};
        must(schedule_make_on(&limited, PIPE_ZBV, 8, 20, 2, &(OrderTerms){.activations = rows[i].activations},
                              &err),
             &err, "limited");
        schedule_write_csv(&limited, &text);
        assert_csv(&s, text.data);
        text_free(&text);
        schedule_free(&limited);
        schedule_free(&s);
    }
}

/* Orders made for the costs of a run, in stage times: with recompute, I includes a forward. */
static void test_orders_follow_costs(void **state) {
    (void)state;
    static const double costs[][3] = {{1, 1.2, 0.8}, {1, 2, 1}, {2, 3, 2.5}};
    for (int i = 0; i < 3; i++) {
        double makespan[2], work = 2 * 32 * (costs[i][0] + costs[i][1] + costs[i][2]);
        for (int knows = 0; knows < 2; knows++) {
            Schedule s;
            Simulation sim;
            Error err = {0};
            OrderTerms terms = {0};
            if (knows) memcpy(terms.cost, costs[i], sizeof terms.cost);
            SimulateCosts c = {.uniform = {costs[i][0], costs[i][1], costs[i][2]}};
            must(schedule_make_on(&s, PIPE_V_HALF, 8, 32, 2, &terms, &err), &err, "v_half");
            must(simulate(&sim, &s, &c, &err), &err, "v_half");
            for (int r = 0; r < 8; r++) assert_true(sim.rank[r].peak_weight <= 10);
            makespan[knows] = sim.makespan;
            simulation_free(&sim);
            schedule_free(&s);
        }
        if (makespan[1] >= makespan[0] || 1 - work / makespan[1] > 0.15)
            fail_msg("costs %d: %g with them, %g without, work %g", i, makespan[1], makespan[0], work);
    }
}

static void test_impossible_limits_are_refused(void **state) {
    (void)state;
    Schedule s;
    Error err = {0};
    OrderTerms tenth = {.activations = 0.1}, half = {.activations = 0.5};
    assert_int_equal(schedule_make_on(&s, PIPE_ZBV, 8, 16, 2, &tenth, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "0.125 would do"));
    assert_int_equal(schedule_make_on(&s, PIPE_1F1B, 8, 16, 1, &half, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "schedule 1f1b has no limit of activations"));
    assert_int_equal(schedule_make_on(&s, PIPE_V_HALF, 8, 16, 2, &half, &err), ERR_CONFIG);
}

/* The zero-bubble paper's times of its models (forward, input, weight, transfer) must give the bubble rates
 * of its tables. */
typedef struct PaperRow {
    int ranks, microbatches;
    double forward, input, weight, latency;
    double rate[3]; /* 1F1B, ZB-H1, ZB-H2 */
} PaperRow;

static double bubble_rate(ScheduleName name, const PaperRow *p) {
    Schedule s = made(name, p->ranks, p->microbatches, 1);
    SimulateCosts costs = {.uniform = {p->forward, p->input, p->weight}, .latency = p->latency};
    Simulation sim;
    Error err = {0};
    must(simulate(&sim, &s, &costs, &err), &err, s.name);
    double longest = 0;
    for (int r = 0; r < s.ranks; r++) longest = fmax(longest, sim.rank[r].end - sim.rank[r].start);
    double rate = (longest - sim.rank[0].busy) / longest;
    simulation_free(&sim);
    schedule_free(&s);
    return rate;
}

static void test_bubble_rates_of_the_paper(void **state) {
    (void)state;
    static const PaperRow rows[] = {
        {8, 24, 18.522, 18.086, 9.337, 0.601, {.2431, .1585, .1083}},
        {8, 32, 18.513, 18.086, 9.331, 0.626, {.1985, .1242, .0837}},
        {8, 64, 18.546, 18.097, 9.321, 0.762, {.1240, .0674, .0444}},
        {8, 24, 29.718, 29.444, 19.927, 0.527, {.2347, .1323, .0698}},
        {8, 32, 29.802, 29.428, 19.530, 0.577, {.1898, .1045, .0559}},
        {8, 64, 29.935, 29.621, 19.388, 0.535, {.1091, .0554, .0294}},
        {16, 48, 11.347, 11.248, 8.132, 0.377, {.2552, .1397, .0672}},
        {16, 64, 11.307, 11.254, 8.101, 0.379, {.2082, .1088, .0516}},
        {16, 128, 11.325, 11.308, 8.109, 0.378, {.1251, .0576, .0266}},
        {32, 96, 10.419, 10.207, 7.715, 0.408, {.2646, .1421, .0641}},
        {32, 128, 10.408, 10.204, 7.703, 0.408, {.2168, .1106, .0490}},
        {32, 256, 10.402, 10.248, 7.698, 0.460, {.1352, .0594, .0257}},
    };
    static const ScheduleName names[3] = {PIPE_1F1B, PIPE_ZB_H1, PIPE_ZB_H2};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (int k = 0; k < 3; k++) {
            double rate = bubble_rate(names[k], &rows[i]);
            if (fabs(rate - rows[i].rate[k]) > 0.00005)
                fail_msg("row %zu %s: %.5f, not %.4f", i, schedule_name(names[k]), rate, rows[i].rate[k]);
        }
}

/* Waiting at a receive instead of where its data is used. */
static void test_blocking_receives_are_slow(void **state) {
    (void)state;
    static const struct {
        ScheduleName name;
        int ranks, microbatches, chunks;
        double posting, blocking;
    } rows[] = {{PIPE_1F1B, 4, 8, 1, 33, 45},
                {PIPE_INTERLEAVED_1F1B, 4, 8, 2, 57, 91},
                {PIPE_INTERLEAVED_1F1B, 8, 32, 4, 405, 1115},
                {PIPE_ZBV, 8, 32, 2, 199, 283},
                {PIPE_DUALPIPEV, 8, 32, 2, 206, 316}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Schedule s = made(rows[i].name, rows[i].ranks, rows[i].microbatches, rows[i].chunks);
        Error failure = {0};
        must(schedule_add_transfers(&s, &failure), &failure, s.name);
        SimulateCosts costs = unit_costs;
        for (int blocks = 0; blocks < 2; blocks++) {
            Simulation sim;
            Error err = {0};
            costs.receive_blocks = blocks;
            must(simulate(&sim, &s, &costs, &err), &err, s.name);
            double want = blocks ? rows[i].blocking : rows[i].posting;
            if (sim.makespan != want)
                fail_msg("%s on %d ranks: %g, not %g", s.name, s.ranks, sim.makespan, want);
            simulation_free(&sim);
        }
        schedule_free(&s);
    }
}

/* No order is faster than the last rank's work after the first forward has arrived there. */
static void look_bound(ScheduleName name, Schedule *s, int v) {
    SimulateCosts costs = {.uniform = {2, 3, 1.5}, .latency = 0.25};
    Simulation sim;
    Error err = {0};
    must(simulate(&sim, s, &costs, &err), &err, schedule_name(name));
    assert_true(sim.makespan >= (s->ranks - 1) * 2.25 + v * s->microbatches * 6.5 - 1e-9);
    for (int r = 0; r < s->ranks; r++) {
        assert_true(fabs(sim.rank[r].idle + sim.rank[r].busy - sim.makespan) < 1e-9);
        assert_true(sim.rank[r].end - sim.rank[r].start - sim.rank[r].busy <= sim.span + 1e-9);
    }
    simulation_free(&sim);
}

static void test_no_order_beats_the_bound(void **state) {
    (void)state;
    for_all(look_bound);
}

/* Lowered programs end under every transport, and take the time of the order that they were made from. */
static void look_lowered(ScheduleName name, Schedule *s, int chunks) {
    SimulateCosts costs = {.uniform = {2, 3, 1.5}, .latency = 0.25};
    Simulation before, after;
    Error err = {0};
    (void)chunks;
    must(simulate(&before, s, &costs, &err), &err, schedule_name(name));
    lower(s, 1 + s->microbatches % 4);
    assert_true(schedule_has_parameters(s));
    assert_int_equal(schedule_has_transfers(s), s->ranks > 1);
    for (int t = TRANSPORT_EAGER; t <= TRANSPORT_BLOCKING; t++)
        must(simulate_transport(s, (Transport)t, &err), &err, schedule_name(name));
    must(simulate(&after, s, &costs, &err), &err, schedule_name(name));
    assert_true(before.makespan == after.makespan && before.bubble == after.bubble &&
                before.span == after.span);
    for (int r = 0; r < s->ranks; r++)
        assert_int_equal(before.rank[r].peak_weight, after.rank[r].peak_weight);
    simulation_free(&before);
    simulation_free(&after);
}

static void test_lowered_programs_end(void **state) {
    (void)state;
    for_all(look_lowered);
}

static void assert_same(const Schedule *a, const Schedule *b) {
    assert_int_equal(a->ranks, b->ranks);
    assert_int_equal(a->stages, b->stages);
    assert_int_equal(a->microbatches, b->microbatches);
    assert_int_equal(a->split_backward, b->split_backward);
    assert_memory_equal(a->rank_of_stage, b->rank_of_stage, (size_t)a->stages * sizeof *a->rank_of_stage);
    for (int r = 0; r < a->ranks; r++) {
        assert_int_equal(a->orders[r].count, b->orders[r].count);
        for (int i = 0; i < a->orders[r].count; i++) {
            Cell x = a->orders[r].cells[i], y = b->orders[r].cells[i];
            assert_true(x.kind == y.kind && x.stage == y.stage && x.microbatch == y.microbatch &&
                        x.overlap == y.overlap);
        }
    }
}

static void round_trip(const Schedule *s) {
    Text first = {0}, second = {0};
    Schedule back;
    Error err = {0};
    schedule_write_csv(s, &first);
    must(schedule_parse_csv(&back, "dir/back.csv", first.data, first.length, &err), &err, s->name);
    assert_same(s, &back);
    assert_string_equal(back.name, "back.csv");
    schedule_write_csv(&back, &second);
    assert_string_equal(first.data, second.data);
    schedule_free(&back);
    text_free(&first);
    text_free(&second);
}

static void look_round_trip(ScheduleName name, Schedule *s, int chunks) {
    (void)name;
    if (s->ranks > 6 || s->microbatches > 24) return;
    round_trip(s);
    if (chunks % 2) schedule_add_parameters(s, 2);
    Error err = {0};
    must(schedule_add_transfers(s, &err), &err, s->name);
    round_trip(s);
}

static void test_csv_round_trip(void **state) {
    (void)state;
    for_all(look_round_trip);
}

/* The example of the reference: 1F1B on two ranks with two microbatches. */
static void test_worked_example(void **state) {
    (void)state;
    Schedule s = made(PIPE_1F1B, 2, 2, 1);
    assert_csv(&s, "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n");
    lower(&s, 3);
    const char *lowered =
        "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD,0RESHARD\n"
        "1UNSHARD,1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD,1RESHARD\n";
    assert_csv(&s, lowered);
    lower(&s, 3); /* a second time changes nothing */
    assert_csv(&s, lowered);
    schedule_free(&s);
}

/* Where consecutive stages are on one rank, as at the bottom of a V, values stay in memory. */
static void test_no_transfers_within_a_rank(void **state) {
    (void)state;
    Schedule s = parsed("0F0,1F0,1B0,0B0\n");
    lower(&s, 1);
    assert_csv(
        &s,
        "0UNSHARD,0F0,0RESHARD,1UNSHARD,1F0,1B0,1REDUCE_GRAD,1RESHARD,0UNSHARD,0B0,0REDUCE_GRAD,0RESHARD\n");
    schedule_free(&s);
}

/* (P, m, v) that are impossible, and what the error must contain. */
static void test_impossible_sizes_are_refused(void **state) {
    (void)state;
    static const struct {
        ScheduleName name;
        int ranks, microbatches, chunks;
        const char *says;
    } rows[] = {
        {PIPE_1F1B, 4, 8, 2, "has 1 stage a rank, not 2"},
        {PIPE_GPIPE, 4, 8, 3, "looped_bfs"},
        {PIPE_ZB_H2, 2, 8, 2, "zb_h2"},
        {PIPE_ZBV, 4, 8, 1, "has 2 stages a rank, not 1"},
        {PIPE_DUALPIPEV, 4, 7, 2, "needs 8 microbatches or more, not 7"},
        {PIPE_INTERLEAVED_1F1B, 4, 9, 2, "8 or 10 would"},
        {PIPE_INTERLEAVED_ZERO_BUBBLE, 4, 11, 2, "10 or 12 would"},
        {PIPE_GPIPE, 0, 8, 1, "0 ranks"},
        {PIPE_GPIPE, 4, 0, 1, "0 microbatches"},
        {PIPE_LOOPED_BFS, 4, 8, -1, "-1 stages"},
        {PIPE_LOOPED_BFS, 1 << 20, 1 << 20, 1 << 20, "4194304"},
        {PIPE_GPIPE, 2147483647, 2147483647, 1, "4194304"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Schedule s;
        Error err = {0};
        assert_int_equal(
            schedule_make(&s, rows[i].name, rows[i].ranks, rows[i].microbatches, rows[i].chunks, &err),
            ERR_CONFIG);
        if (!strstr(err.message, rows[i].says))
            fail_msg("\"%s\" does not say \"%s\"", err.message, rows[i].says);
    }
}

static void test_names(void **state) {
    (void)state;
    ScheduleName found;
    for (int i = 0; i < PIPE_NAMES; i++) {
        assert_true(schedule_find(schedule_name((ScheduleName)i), &found));
        assert_int_equal(found, i);
        Schedule s = made(found, 2, 4, schedule_default_stages_per_rank(found));
        assert_int_equal(s.rank_of_stage[s.stages - 1], schedule_is_v(found) ? 0 : 1);
        schedule_free(&s);
    }
    assert_false(schedule_find("1F1B", &found));
    assert_false(schedule_find("", &found));
}

static void refused(const char *csv, const char *says) {
    Schedule s;
    Error err = {0};
    ErrorCode code = schedule_parse_csv(&s, "x.csv", csv, strlen(csv), &err);
    if (code == OK) fail_msg("taken: %s", csv);
    assert_int_equal(code, ERR_DATA);
    assert_int_equal(strncmp(err.message, "x.csv: ", 7), 0);
    if (!strstr(err.message, says)) fail_msg("\"%s\" does not say \"%s\"", err.message, says);
    assert_null(s.orders);
}

/* Malformed cells. */
static void test_malformed_csv(void **state) {
    (void)state;
    refused("", "is empty");
    refused("0F0,0B0\n0X0\n", "rank 1 (line 2), cell 1 (0X0): no such action");
    refused("0F0,0B0x", "cell 2 (0B0x): more than an action");
    refused("0F0,0B0 0B1", "cell 2 (0B0 0B1): more than");
    refused("0F,0B0", "cell 1 (0F): a microbatch must follow");
    refused("0F0,0UNSHARD0", "cell 2 (0UNSHARD0): this action takes no microbatch");
    refused("F0", "starts with no stage");
    refused("-1F0", "starts with no stage");
    refused("+0F0", "starts with no stage");
    refused("00F0", "the stage is no number from 0 to 9999999 without leading zeros");
    refused("0F00", "the microbatch is no number from 0 to 9999999 without leading zeros");
    refused("0F00", "cell 1 (0F00): the microbatch");
    refused("0F-1", "a microbatch must follow");
    refused("0f0", "no such action");
    refused("0SEND0", "no such action");
    refused("0RECV_FF0", "no such action");
    refused("0F99999999", "the microbatch is no number");
    refused("4294967296F0", "the stage is no number from 0 to 9999999");
    refused("(0F0;0B0)", "a composite ends in");
    refused("(0F0;0B0)OVERLAP_F_Bx", "a composite ends in");
    refused("(0F0,0B0)OVERLAP_F_B", "cell 1 ((0F0): a composite is like");
    refused("(0F0;)OVERLAP_F_B", "starts with no stage");
    refused("(", "starts with no stage");
    refused("0F0,0B0\n,,\n", "rank 1 (line 2) does nothing");
    refused("0F0,0B0\n\n", "rank 1 (line 2) does nothing");
    refused("0F0,\x1b[2J,0B0", "\\x1B[2J");
    refused("0UNSHARD", "no forward");
    refused("9999999F0", "stage 9999999 in a file of 1 actions");
    refused("0F9999999,0B0", "rank 0: 0F0 is missing; there are microbatches 0 to 9999999");
}

/* Invalid orders. */
static void test_wrong_orders(void **state) {
    (void)state;
    refused("0F0,0B0,0B0", "rank 0, cell 3 (0B0): is the second backward");
    refused("0F0,0F0,0B0", "rank 0, cell 2 (0F0): comes twice");
    refused("0F0,0F0,0B0,0B1", "cell 2 (0F0): comes twice");
    refused("0B0,0F0", "rank 0, cell 1 (0B0): comes before 0F0");
    refused("0F0,0W0,0I0", "cell 2 (0W0): comes before 0I0");
    refused("0F0,0B0,0W0", "cell 3 (0W0): is the second weight gradient");
    refused("0F0,0I0,0B0", "cell 3 (0B0): is the second backward");
    refused("0F0,0I0", "rank 0: 0W0 is missing");
    refused("0F0,0F1,0B0", "rank 0: 0B1 is missing");
    refused("0F0,0F1,0B0,0I0,0W0", "second backward"); /* as many as there should be, but not of each */
    refused("0F0,0B0,1F0,1B0\n1F1", "rank 1, cell 1 (1F1): stage 1 lives on rank 0");
    refused("0F0,0B0\n2F0,2B0", "stage 1 of 3 is on no rank");
    refused("0F0,0F1,0B0,0B1\n1F0,1B0", "rank 1: 1F1 is missing");
    refused("0F0,(0F1;0B0)OVERLAP_F_B,(0B1;0F2)OVERLAP_F_B,0B2",
            "rank 0, cell 3 (0B1): OVERLAP_F_B takes a forward");
    refused("0F0,(0F1;0W0)OVERLAP_F_B", "OVERLAP_F_B takes a forward");
    refused("(0F0;0B0)OVERLAP_F_B", "cell 1 (0B0): needs the forward that it overlaps with");
}

/* Orders that are valid on each rank, but where ranks wait for each other. */
static void test_cycles_are_refused(void **state) {
    (void)state;
    refused("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1",
            "rank 0 at cell 2 (0B0) for 1B0; rank 1 at cell 2 (1F1) for 0F1");
    refused("1F0,0F0,1B0,0B0", "rank 0 at cell 1 (1F0) for 0F0");
    refused("0F0,,0F1,0B1,0B0\n1F0,1F1,1I0,1W0,1I1,1W1\n3F0,2F0,3B0,2B0,2F1,3F1,3B1,2B1",
            "rank 2 at cell 1 (3F0) for 2F0");
}

/* Rank 1 sends back before it receives the next; then rank 0 posts in time, but in another order. */
#define RANK_1_TAIL "1RECV_F1,1F1,1B1,1SEND_B1\n"
static const char deferred_csv[] = "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                   "1RECV_F0,1F0,1B0,1SEND_B0," RANK_1_TAIL;
static const char crossed_csv[] = "0F0,0SEND_F0,0F1,0RECV_B0,0SEND_F1,0B0,0RECV_B1,0B1\n"
                                  "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n";

static void test_transports(void **state) {
    (void)state;
    Error err = {0};
    Schedule deferred = parsed(deferred_csv), crossed = parsed(crossed_csv);
    assert_int_equal(simulate_transport(&deferred, TRANSPORT_EAGER, &err), OK);
    assert_int_equal(simulate_transport(&deferred, TRANSPORT_RENDEZVOUS, &err), ERR_DATA);
    assert_non_null(strstr(
        err.message, "rank 0 at cell 4 (0SEND_F1) for 1RECV_F1; rank 1 at cell 4 (1SEND_B0) for 0RECV_B0"));
    assert_int_equal(simulate_transport(&deferred, TRANSPORT_BLOCKING, &err), ERR_DATA);
    assert_int_equal(simulate_transport(&crossed, TRANSPORT_RENDEZVOUS, &err), OK);
    assert_int_equal(simulate_transport(&crossed, TRANSPORT_BLOCKING, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "(0RECV_B0) for 1SEND_B0"));
    schedule_free(&deferred);
    schedule_free(&crossed);
}

/* Errors in lowered programs. */
static void test_wrong_programs(void **state) {
    (void)state;
    const char *tail = "\n1RECV_F0,1F0,1B0,1SEND_B0";
    static const struct {
        const char *rank_0, *says;
    } rows[] = {
        {"0F0,0SEND_F0,0B0", "rank 0, cell 3 (0B0): comes before 0RECV_B0"},
        {"0F0,0RECV_B0,0B0", "rank 0: 0SEND_F0 is missing"},
        {"0SEND_F0,0F0,0RECV_B0,0B0", "cell 1 (0SEND_F0): comes before 0F0"},
        {"0F0,0SEND_F0,0SEND_F0,0RECV_B0,0B0", "cell 3 (0SEND_F0): comes twice"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0SEND_B0", "stage 0 has no neighbour below"},
        {"0F0,0SEND_F0,0SEND_F1,0RECV_B0,0B0", "rank 0: 0F1 is missing"},
        {"0UNSHARD,0F0,0SEND_F0,0RECV_B0,0B0", "the parameters of stage 1 are not there"},
        {"0RESHARD,0F0,0SEND_F0,0RECV_B0,0B0", "the parameters of stage 0 are not there"},
        {"0F0,0SEND_F0,0RECV_B0,0REDUCE_GRAD,0B0",
         "cell 4 (0REDUCE_GRAD): comes after 0 of 1 weight gradients"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD,0REDUCE_GRAD", "cell 6 (0REDUCE_GRAD): comes twice"},
        {"0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD", "rank 1: 1REDUCE_GRAD is missing"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        Text csv = {0};
        text_printf(&csv, "%s%s", rows[i].rank_0, tail);
        refused(csv.data, rows[i].says);
        text_free(&csv);
    }
}

/* Any placement, idle cells, blanks, Windows line ends, a composite: placement comes from the file. */
static void test_own_placement(void **state) {
    (void)state;
    Schedule s = parsed(" 0F0 ,2F0, ,\t2B0,0B0\r\n1F0,,1I0,1W0,\r\n");
    assert_int_equal(s.ranks, 2);
    assert_int_equal(s.stages, 3);
    assert_int_equal(s.microbatches, 1);
    assert_true(s.split_backward);
    assert_int_equal(s.rank_of_stage[2], 0);
    assert_csv(&s, "0F0,2F0,,2B0,0B0\n1F0,,1I0,1W0,\n");
    round_trip(&s);
    lower(&s, 1);
    assert_csv(&s, "0UNSHARD,0F0,0SEND_F0,2RECV_F0,0RESHARD,2UNSHARD,2F0,,2B0,2SEND_B0,0RECV_B0,2REDUCE_GRAD,"
                   "2RESHARD,0UNSHARD,"
                   "0B0,0REDUCE_GRAD,0RESHARD\n"
                   "1UNSHARD,1RECV_F0,1F0,1SEND_F0,,1RECV_B0,1I0,1SEND_B0,1W0,1REDUCE_GRAD,,1RESHARD\n");
    schedule_free(&s);
}

static int count_cells(const Schedule *s, CellKind kind, int stage) {
    int n = 0;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++)
            n += s->orders[r].cells[i].kind == kind && s->orders[r].cells[i].stage == stage;
    return n;
}

static void test_look_ahead(void **state) {
    (void)state;
    for (int active = 3; active <= 4; active++) {
        Schedule s = made(PIPE_INTERLEAVED_1F1B, 4, 16, 4);
        lower(&s, active);
        assert_int_equal(count_cells(&s, CELL_UNSHARD, 15), active == 3 ? 4 : 1);
        schedule_free(&s);
    }
}

/* There are never more stages gathered than asked for, or one more with composites. Weight gradients are
 * complete when they are reduced. */
static void look_resident(ScheduleName name, Schedule *s, int chunks) {
    for (int active = 1; active <= chunks; active++) {
        Schedule copy = made(name, s->ranks, s->microbatches, chunks);
        int most = 0;
        schedule_add_parameters(&copy, active);
        for (int r = 0; r < copy.ranks; r++)
            for (int i = 0, now = 0; i < copy.orders[r].count; i++) {
                CellKind kind = copy.orders[r].cells[i].kind;
                now += (kind == CELL_UNSHARD) - (kind == CELL_RESHARD);
                most = now > most ? now : most;
            }
        if (most > active + (name == PIPE_DUALPIPEV))
            fail_msg("%s: %d stages at once, asked for %d", s->name, most, active);
        schedule_free(&copy);
    }
}

static void test_stages_at_hand(void **state) {
    (void)state;
    for_all(look_resident);
}

/* Sums over microbatches ascend in all schedules except LoopedBFS, where they descend. */
static void look_weights(ScheduleName name, Schedule *s, int chunks) {
    (void)chunks;
    int *last = mem_alloc_array((size_t)s->stages, sizeof *last), step = name == PIPE_LOOPED_BFS ? -1 : 1;
    for (int k = 0; k < s->stages; k++) last[k] = step > 0 ? -1 : s->microbatches;
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->orders[r].count; i++) {
            Cell cell = s->orders[r].cells[i];
            if (cell.kind != CELL_B && cell.kind != CELL_W) continue;
            assert_int_equal(cell.microbatch, last[cell.stage] + step);
            last[cell.stage] = cell.microbatch;
        }
    free(last);
    assert_true(schedule_adds_in_order(s) == (name != PIPE_LOOPED_BFS || s->microbatches == 1));
}

static void test_order_of_weight_gradients(void **state) {
    (void)state;
    for_all(look_weights);
}

/* ---- segments ---- */

static Schedule made_of_segments(ScheduleName name, int ranks, int microbatches, int segments) {
    Schedule s;
    Error err = {0};
    OrderTerms terms = {.segments = segments};
    must(schedule_make_on(&s, name, ranks, microbatches, 1, &terms, &err), &err, schedule_name(name));
    return s;
}

/* Forwards ascend; backwards take microbatches in order, and the segments of each from the last to the
 * first. */
static void assert_order_of_segments(const Schedule *s) {
    int k = s->segments;
    for (int r = 0; r < s->ranks; r++) {
        int forward = 0, backward = 0;
        for (int i = 0; i < s->orders[r].count; i++) {
            Cell cell = s->orders[r].cells[i];
            if (cell.kind == CELL_F) assert_int_equal(cell.microbatch, forward++);
            if (cell.kind != CELL_B) continue;
            assert_int_equal(cell.microbatch, backward / k * k + k - 1 - backward % k);
            backward++;
        }
        assert_int_equal(forward, s->microbatches);
        assert_int_equal(backward, s->microbatches);
    }
}

/* In units of a segment's pass, Seq1F1B has the makespan of 1F1B with m k microbatches, and keeps k - 1
 * segments more. */
static void look_segments(ScheduleName name, int ranks, int microbatches, int segments) {
    Schedule s = made_of_segments(name, ranks, microbatches, segments);
    Simulation sim;
    Error err = {0};
    int all = microbatches * segments;
    assert_int_equal(s.microbatches, all);
    assert_order_of_segments(&s);
    must(schedule_check(&s, &err), &err, "segments");
    must(simulate(&sim, &s, &unit_costs, &err), &err, "segments");
    for (int r = 0; r < ranks; r++)
        assert_int_equal(sim.rank[r].peak_input,
                         name == PIPE_GPIPE ? all : least(all, ranks - r + segments - 1));
    if (microbatches >= ranks) assert_true(sim.makespan == 3 * (all + ranks - 1));
    simulation_free(&sim);
    lower(&s, 2);
    must(simulate_transport(&s, TRANSPORT_RENDEZVOUS, &err), &err, "segments");
    assert_true(schedule_adds_in_order(&s) == (segments == 1));
    schedule_free(&s);
}

static void test_segments(void **state) {
    (void)state;
    for (int ranks = 1; ranks <= 9; ranks++)
        for (int microbatches = 1; microbatches <= 12; microbatches++)
            for (int segments = 1; segments <= 8; segments++) {
                look_segments(PIPE_1F1B, ranks, microbatches, segments);
                look_segments(PIPE_GPIPE, ranks, microbatches, segments);
            }
}

static void test_schedules_without_segments_refuse_them(void **state) {
    (void)state;
    for (int name = 0; name < PIPE_NAMES; name++) {
        Schedule s;
        Error err = {0};
        OrderTerms terms = {.segments = 2};
        int v = schedule_default_stages_per_rank((ScheduleName)name);
        if (schedule_takes_segments((ScheduleName)name)) continue;
        assert_int_equal(schedule_make_on(&s, (ScheduleName)name, 4, 8, v, &terms, &err), ERR_CONFIG);
        assert_non_null(strstr(err.message, "1f1b and gpipe do"));
    }
}

/* Later segments attend to more keys, so each segment has costs of its own. */
static void test_costs_of_segments(void **state) {
    (void)state;
    Schedule s = made_of_segments(PIPE_1F1B, 1, 2, 2);
    StageCost stages[2] = {{1, 1, 1}, {4, 5, 6}};
    SimulateCosts costs = {.stages = stages, .segments = 2};
    Simulation sim;
    Error err = {0};
    assert_csv(&s, "0F0,0F1,0B1,0F2,0B0,0F3,0B3,0B2\n");
    must(simulate(&sim, &s, &costs, &err), &err, "costs");
    assert_true(sim.makespan == 2 * (3 + 15) && sim.rank[0].cells[1].end == 5 &&
                sim.rank[0].cells[2].end == 16);
    simulation_free(&sim);
    stages[1].weight = -1;
    assert_int_equal(simulate(&sim, &s, &costs, &err), ERR_CONFIG);
    schedule_free(&s);
}

static void test_costs(void **state) {
    (void)state;
    Schedule s = made(PIPE_GPIPE, 2, 2, 1);
    StageCost stages[2] = {{1, 2, 3}, {10, 20, 30}};
    SimulateCosts costs = {.stages = stages, .latency = 5};
    Simulation sim;
    Error err = {0};
    must(simulate(&sim, &s, &costs, &err), &err, "costs");
    /* Rank 1: forwards 6-16-26, backwards 26-76-126; rank 0: backwards 81-86 and 131-136. */
    assert_true(sim.rank[1].cells[0].start == 6 && sim.rank[1].end == 126 &&
                sim.rank[0].cells[2].start == 81);
    assert_true(sim.makespan == 136 && sim.rank[0].busy == 12 && sim.rank[0].idle == 124 && sim.span == 124);
    simulation_free(&sim);
    stages[1].input = -1;
    assert_int_equal(simulate(&sim, &s, &costs, &err), ERR_CONFIG);
    stages[1].input = NAN;
    assert_int_equal(simulate(&sim, &s, &costs, &err), ERR_CONFIG);
    stages[1].input = 1;
    costs.latency = INFINITY;
    assert_int_equal(simulate(&sim, &s, &costs, &err), ERR_CONFIG);
    schedule_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_all_are_valid),
        cmocka_unit_test(test_closed_forms),
        cmocka_unit_test(test_table_of_4_ranks),
        cmocka_unit_test(test_table_of_8_ranks),
        cmocka_unit_test(test_limits_are_kept),
        cmocka_unit_test(test_names_of_limits),
        cmocka_unit_test(test_segments),
        cmocka_unit_test(test_schedules_without_segments_refuse_them),
        cmocka_unit_test(test_costs_of_segments),
        cmocka_unit_test(test_orders_follow_costs),
        cmocka_unit_test(test_impossible_limits_are_refused),
        cmocka_unit_test(test_bubble_rates_of_the_paper),
        cmocka_unit_test(test_blocking_receives_are_slow),
        cmocka_unit_test(test_no_order_beats_the_bound),
        cmocka_unit_test(test_lowered_programs_end),
        cmocka_unit_test(test_csv_round_trip),
        cmocka_unit_test(test_worked_example),
        cmocka_unit_test(test_no_transfers_within_a_rank),
        cmocka_unit_test(test_impossible_sizes_are_refused),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_malformed_csv),
        cmocka_unit_test(test_wrong_orders),
        cmocka_unit_test(test_cycles_are_refused),
        cmocka_unit_test(test_transports),
        cmocka_unit_test(test_wrong_programs),
        cmocka_unit_test(test_own_placement),
        cmocka_unit_test(test_look_ahead),
        cmocka_unit_test(test_stages_at_hand),
        cmocka_unit_test(test_order_of_weight_gradients),
        cmocka_unit_test(test_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
