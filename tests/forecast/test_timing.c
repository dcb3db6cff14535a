/* Traced steps: costs and predictions from measured times, and the trace written to a file and read back. The
 * steps are simulated, so the results are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "observe/trace.h"

static Error err;

/* Each stage has two units, which take 2/5 and 3/5 of its cells. */
enum { UNITS_OF_STAGE = 2 };
static const double norm_seconds = 0.004, update_seconds = 0.006;

typedef struct Made {
    TimedAction *actions;
    int count;
    double end;
} Made;

static void act(Made *m, ActionKind kind, int unit, int microbatch, double start, double end, double waited) {
    m->actions = mem_grow(m->actions, (size_t)(m->count + 1) * sizeof *m->actions);
    m->actions[m->count++] = (TimedAction){{.kind = kind, .unit = unit, .microbatch = microbatch},
                                           unit < 0 ? -1 : unit / UNITS_OF_STAGE,
                                           start,
                                           end,
                                           waited};
    m->end = end;
}

static ActionKind kind_of(CellKind kind) {
    return kind == CELL_F ? ACT_FWD : kind == CELL_B ? ACT_BWD : kind == CELL_I ? ACT_DGRAD : ACT_WGRAD;
}

/* The rank waits from its current time until the cell starts. */
static void act_cell(Made *m, const Schedule *s, const Cell *c, CellTime t) {
    bool forward = c->kind == CELL_F;
    int first = c->stage * UNITS_OF_STAGE, last = first + 1, other = c->stage + (forward ? 1 : -1);
    double middle = t.start + 0.4 * (t.end - t.start);
    act(m, kind_of(c->kind), forward ? first : last, c->microbatch, m->end, middle, t.start - m->end);
    act(m, kind_of(c->kind), forward ? last : first, c->microbatch, middle, t.end, 0);
    if (c->kind == CELL_W || other < 0 || other >= s->stages ||
        s->rank_of_stage[other] == s->rank_of_stage[c->stage])
        return;
    act(m, forward ? ACT_SEND_F : ACT_SEND_B, forward ? last : first, c->microbatch, t.end, t.end, 0);
}

/* Adds one step of a pipeline to each rank's actions. Returns when its slowest rank is ready for the norm. */
static double add_pipeline(const Schedule *s, const SimulateCosts *costs, Made *ranks) {
    Simulation sim;
    double ready = 0;
    assert_int_equal(simulate(&sim, s, costs, &err), OK);
    for (int r = 0; r < s->ranks; r++) {
        act(&ranks[r], ACT_LOAD, -1, 0, 0, 0, 0);
        for (int i = 0; i < s->orders[r].count; i++)
            act_cell(&ranks[r], s, &s->orders[r].cells[i], sim.rank[r].cells[i]);
        ready = fmax(ready, ranks[r].end + norm_seconds);
    }
    simulation_free(&sim);
    return ready;
}

/* Different costs for each pipeline and stage. */
static void set_costs(StageCost *costs, int stages, int pipeline) {
    for (int s = 0; s < stages; s++)
        costs[s] = (StageCost){0.010 + 0.001 * s + 0.002 * pipeline, 0.011 + 0.002 * s, 0.009 - 0.0005 * s};
}

/* Makes `steps` equal steps of `pipelines` pipelines. */
static void make(Timing *t, const Schedule *s, int pipelines, int steps, double latency) {
    StageCost costs[16];
    timing_start(t, s->ranks * pipelines, s->ranks, s->stages);
    for (int step = 0; step < steps; step++) {
        double agreed = 0;
        TimedStep *timed = timing_add(t, 3 + step, 0.5 * step);
        Made *ranks = mem_alloc_array((size_t)t->ranks, sizeof *ranks);
        for (int p = 0; p < pipelines; p++) {
            set_costs(costs, s->stages, p);
            SimulateCosts with = {.stages = costs, .latency = latency};
            agreed = fmax(agreed, add_pipeline(s, &with, ranks + p * s->ranks));
        }
        for (int i = 0; i < t->ranks; i++) {
            Made *m = &ranks[i];
            act(m, ACT_NORM, -1, -1, m->end, agreed, agreed - m->end - norm_seconds);
            act(m, ACT_UPDATE, 0, -1, agreed, agreed + update_seconds, 0);
            timing_set(timed, i % s->ranks * pipelines + i / s->ranks, m->actions, m->count);
        }
        free(ranks);
    }
}

static void assert_near(double a, double b) {
    if (!(fabs(a - b) < 1e-6 + 1e-6 * fabs(b))) fail_msg("%.9g is not %.9g", a, b);
}

static void predictions_are_what_ran(void **state) {
    (void)state;
    static const ScheduleName names[] = {PIPE_GPIPE, PIPE_1F1B, PIPE_INTERLEAVED_1F1B, PIPE_ZB_H1,
                                         PIPE_INTERLEAVED_ZERO_BUBBLE};
    for (size_t n = 0; n < 2 * sizeof names / sizeof *names; n++) {
        Schedule s;
        Timing t;
        Prediction p;
        ScheduleName name = names[n / 2];
        int pipelines = n % 2 ? 3 : 1;
        double latency = n % 2 ? 0.002 : 0;
        assert_int_equal(schedule_make(&s, name, 4, 8, schedule_default_stages_per_rank(name), &err), OK);
        make(&t, &s, pipelines, 2, latency);
        assert_int_equal(timing_predict(&p, &t, &err), OK);
        StepFigures f = timing_figures(&t, 1);
        assert_near(p.seconds, f.seconds);
        assert_near(p.bubble, f.bubble);
        assert_near(p.latency, latency);
        for (int i = 0; i < pipelines; i++) {
            StageCost want[16];
            set_costs(want, s.stages, i);
            for (int stage = 0; stage < s.stages; stage++) {
                StageCost c = p.costs[i * s.stages + stage];
                assert_near(c.forward, want[stage].forward);
                assert_near(c.input + c.weight, want[stage].input + want[stage].weight);
            }
        }
        prediction_free(&p);
        timing_free(&t);
        schedule_free(&s);
    }
}

/* A schedule may have joint and split backwards of one stage; the cost of the joint one is not the sum of the
 * others. */
static void whole_backwards_have_costs_of_their_own(void **state) {
    (void)state;
    Timing t;
    Prediction p;
    Made m = {0};
    act(&m, ACT_FWD, 0, 0, 0, 1, 0);
    act(&m, ACT_FWD, 0, 1, 1, 2, 0);
    act(&m, ACT_BWD, 0, 0, 2, 4, 0);
    act(&m, ACT_DGRAD, 0, 1, 4, 6, 0);
    act(&m, ACT_WGRAD, 0, 1, 6, 9, 0);
    timing_start(&t, 1, 1, 1);
    timing_set(timing_add(&t, 1, 0), 0, m.actions, m.count);
    assert_int_equal(timing_predict(&p, &t, &err), OK);
    assert_near(p.seconds, 9);
    assert_near(p.costs[0].input, 2);
    assert_near(p.costs[0].weight, 3);
    assert_near(p.bubble, 0);
    prediction_free(&p);
    timing_free(&t);
}

/* Time between passes belongs to the pass that it serves; waiting belongs to none. */
static void waiting_is_idle_and_nothing_else_is(void **state) {
    (void)state;
    Timing t;
    Timeline line;
    Made m = {0};
    act(&m, ACT_LOAD, -1, 0, 0, 1, 0);
    act(&m, ACT_FWD, 0, 0, 1, 4, 1);
    act(&m, ACT_GATHER, 1, 0, 4, 5, 0);
    act(&m, ACT_FWD, 1, 0, 6, 8, 1.5);
    act(&m, ACT_BWD, 1, 0, 8, 9, 0);
    act(&m, ACT_REDUCED, 1, -1, 9, 11, 2);
    act(&m, ACT_NORM, -1, -1, 11, 14, 2);
    act(&m, ACT_UPDATE, 0, -1, 14, 15, 0);
    timing_start(&t, 1, 1, 1);
    timing_set(timing_add(&t, 1, 0), 0, m.actions, m.count);
    timing_measured(&t, 0, 0, &line);
    static const Span want[] = {{0, SPAN_F, 0, 0, 2500, 8000},
                                {0, SPAN_B, 0, 0, 8000, 9000},
                                {0, SPAN_UPDATE, -1, -1, 11000, 12000},
                                {0, SPAN_UPDATE, -1, -1, 14000, 15000}};
    assert_int_equal(line.count, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(line.spans[i].kind, want[i].kind);
        assert_near(line.spans[i].start, want[i].start);
        assert_near(line.spans[i].end, want[i].end);
    }
    StepFigures f = timing_figures(&t, 0);
    assert_near(f.seconds, 15);
    assert_near(f.bubble, 6.5 / 15);
    timeline_free(&line);
    timing_free(&t);
}

/* Waiting for a collective inside a pass belongs to the pass: the simulator does not model it. */
static void waiting_for_a_collective_is_the_pass_s(void **state) {
    (void)state;
    Timing t;
    Prediction p;
    Made m = {0};
    act(&m, ACT_FWD, 0, 0, 0, 1, 0);
    act(&m, ACT_WAIT, 0, 0, 1, 3, 2);
    act(&m, ACT_FWD, 0, 0, 3, 4, 0);
    act(&m, ACT_BWD, 0, 0, 4, 6, 0);
    timing_start(&t, 1, 1, 1);
    timing_set(timing_add(&t, 1, 0), 0, m.actions, m.count);
    assert_int_equal(timing_predict(&p, &t, &err), OK);
    assert_near(p.seconds, 6);
    assert_near(p.costs[0].forward, 4);
    assert_near(timing_figures(&t, 0).bubble, 0);
    prediction_free(&p);
    timing_free(&t);
}

static void what_is_no_pipeline_is_refused(void **state) {
    (void)state;
    Timing t;
    Prediction p;
    Made m = {0};
    act(&m, ACT_BWD, 0, 0, 0, 1, 0); /* before its forward */
    act(&m, ACT_FWD, 0, 0, 1, 2, 0);
    timing_start(&t, 1, 1, 1);
    assert_int_equal(timing_predict(&p, &t, &err), ERR_DATA);
    prediction_free(&p);
    timing_set(timing_add(&t, 1, 0), 0, m.actions, m.count);
    assert_int_equal(timing_predict(&p, &t, &err), ERR_DATA);
    prediction_free(&p);
    timing_free(&t);
}

/* ---- the file ---- */

typedef struct Traced {
    Schedule schedule;
    Timing timing;
    Prediction prediction;
    Text text;
} Traced;

static void start(Traced *d, ScheduleName name, int pipelines) {
    *d = (Traced){.text = {0}};
    assert_int_equal(schedule_make(&d->schedule, name, 2, 4, schedule_default_stages_per_rank(name), &err),
                     OK);
    make(&d->timing, &d->schedule, pipelines, 2, 0.001);
    assert_int_equal(timing_predict(&d->prediction, &d->timing, &err), OK);
    trace_format(&d->timing, &d->prediction, &d->text);
}

static void stop(Traced *d) {
    text_free(&d->text);
    prediction_free(&d->prediction);
    timing_free(&d->timing);
    schedule_free(&d->schedule);
}

static double number(const cJSON *object, const char *key) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
    assert_true(cJSON_IsNumber(member));
    return member->valuedouble;
}

static const char *word(const cJSON *object, const char *key) {
    const cJSON *member = cJSON_GetObjectItemCaseSensitive(object, key);
    return cJSON_IsString(member) ? member->valuestring : "";
}

/* Slices of a track nest: each one ends before those that contain it. */
static void check_nesting(const cJSON *events, int rank, int track) {
    double open[8], last = -1;
    int depth = 0;
    const cJSON *e;
    cJSON_ArrayForEach(e, events) {
        if (strcmp(word(e, "ph"), "X") != 0 || (int)number(e, "pid") != rank ||
            (int)number(e, "tid") != track)
            continue;
        double ts = number(e, "ts"), end = ts + number(e, "dur");
        assert_true(number(e, "dur") >= 0 && ts >= last - 1e-6);
        while (depth > 0 && open[depth - 1] <= ts + 1e-6) depth--;
        if (depth > 0) assert_true(end <= open[depth - 1] + 1e-6);
        assert_true(depth < 8);
        open[depth++] = end;
        last = ts;
    }
}

/* Each message has a start and an end, on different ranks, forward in time. */
static int check_arrows(const cJSON *events) {
    const cJSON *e, *from = NULL;
    int arrows = 0;
    cJSON_ArrayForEach(e, events) {
        if (strcmp(word(e, "cat"), "message") != 0) continue;
        if (!from) {
            assert_string_equal(word(e, "ph"), "s");
            from = e;
            continue;
        }
        assert_string_equal(word(e, "ph"), "f");
        assert_true(number(e, "id") == number(from, "id") && number(e, "id") == ++arrows);
        assert_true(number(e, "pid") != number(from, "pid") && number(e, "ts") >= number(from, "ts"));
        assert_string_equal(word(e, "name"), word(from, "name"));
        from = NULL;
    }
    assert_null(from);
    return arrows;
}

static int count_category(const cJSON *events, const char *category, const char *name) {
    const cJSON *e;
    int n = 0;
    cJSON_ArrayForEach(e, events) n +=
        strcmp(word(e, "cat"), category) == 0 && strncmp(word(e, "name"), name, strlen(name)) == 0;
    return n;
}

static void the_file_is_whole_and_in_order(void **state) {
    (void)state;
    static const ScheduleName names[] = {PIPE_1F1B, PIPE_INTERLEAVED_1F1B, PIPE_ZBV};
    for (int n = 0; n < 3; n++) {
        Traced d;
        cJSON *root = NULL;
        int pipelines = n == 1 ? 2 : 1;
        start(&d, names[n], pipelines);
        assert_int_equal(json_parse("trace", d.text.data, d.text.length, &root, &err), OK);
        const cJSON *events = cJSON_GetObjectItemCaseSensitive(root, "traceEvents");
        int stages = d.schedule.stages, steps = 2, microbatches = 4;
        int passes = stages * UNITS_OF_STAGE * microbatches * steps * pipelines;
        assert_int_equal(count_category(events, "measured", "FWD "), passes);
        assert_int_equal(count_category(events, "measured", "BWD ") +
                             count_category(events, "measured", "WGRAD "),
                         passes);
        int crossings = 0;
        for (int s = 0; s + 1 < stages; s++)
            crossings += d.schedule.rank_of_stage[s] != d.schedule.rank_of_stage[s + 1];
        assert_int_equal(check_arrows(events), 2 * crossings * microbatches * steps * pipelines);
        for (int rank = 0; rank < 2 * pipelines; rank++)
            for (int track = 1; track <= 2; track++) check_nesting(events, rank, track);
        int cells = 0;
        for (int r = 0; r < 2; r++) cells += d.schedule.orders[r].count;
        assert_int_equal(count_category(events, "planned", "") -
                             count_category(events, "planned", "optimizer"),
                         cells * steps * pipelines);
        cJSON_Delete(root);
        stop(&d);
    }
}

static void what_was_written_reads_back(void **state) {
    (void)state;
    Traced d;
    Timing t;
    Prediction p;
    start(&d, PIPE_INTERLEAVED_ZERO_BUBBLE, 2);
    assert_int_equal(trace_parse(&t, "trace", d.text.data, d.text.length, &err), OK);
    assert_int_equal(t.count, 2);
    assert_int_equal(t.ranks, 4);
    for (int s = 0; s < t.count; s++)
        for (int r = 0; r < t.ranks; r++) {
            const TimedRank *a = &d.timing.steps[s].ranks[r], *b = &t.steps[s].ranks[r];
            assert_int_equal(a->count, b->count);
            for (int i = 0; i < a->count; i++) {
                assert_memory_equal(&a->actions[i].action, &b->actions[i].action, sizeof(Action));
                assert_true(fabs(a->actions[i].start - b->actions[i].start) < 2e-9);
                assert_true(fabs(a->actions[i].waited - b->actions[i].waited) < 2e-9);
            }
        }
    assert_int_equal(timing_predict(&p, &t, &err), OK);
    assert_near(p.seconds, d.prediction.seconds);
    prediction_free(&p);
    timing_free(&t);
    stop(&d);
}

/* Any text is either refused, or safe to predict from and to draw. */
static void try_text(const char *text, size_t length) {
    Timing t;
    Prediction p = {0};
    if (trace_parse(&t, "trace", text, length, &err) == OK && timing_predict(&p, &t, &err) == OK) {
        Timeline lines[2] = {p.planned[0]};
        Text out = {0};
        timing_measured(&t, t.count - 1, 0, &lines[1]);
        draw_svg(lines, 2, 800, &out);
        text_free(&out);
        timeline_free(&lines[1]);
    }
    prediction_free(&p);
    timing_free(&t);
}

static void spoilt_files_are_refused(void **state) {
    (void)state;
    static const char no_args[] =
        "{\"traceEvents\": [{\"cat\": \"measured\"}], \"otherData\": {\"ranks\": 1, \"pipeline\": 1, "
        "\"stages\": 1, \"steps\": [{\"step\": 1, \"began\": 0}]}}";
    static const char *const texts[] = {
        "",
        "[]",
        "{}",
        "{\"traceEvents\": []}",
        "{\"traceEvents\": [], \"otherData\": {\"ranks\": 1, \"pipeline\": 1, \"stages\": 1}}",
        "{\"traceEvents\": [1], \"otherData\": {\"ranks\": 1e9, \"pipeline\": 1, \"stages\": 1}}",
        no_args};
    Timing t;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_not_equal(trace_parse(&t, "trace", texts[i], strlen(texts[i]), &err), OK);
        timing_free(&t);
    }
    Traced d;
    start(&d, PIPE_1F1B, 1);
    for (size_t cut = 0; cut < d.text.length - 2; cut += 997) {
        assert_int_not_equal(trace_parse(&t, "trace", d.text.data, cut, &err), OK);
        timing_free(&t);
    }
    unsigned seed = 5;
    for (int i = 0; i < 300; i++) { /* changes one digit */
        seed = seed * 1664525u + 1013904223u;
        size_t at = seed % d.text.length;
        while (at < d.text.length && (d.text.data[at] < '0' || d.text.data[at] > '9')) at++;
        if (at == d.text.length) continue;
        char was = d.text.data[at];
        d.text.data[at] = (char)('0' + (was - '0' + 1 + (int)(seed >> 28) % 9) % 10);
        try_text(d.text.data, d.text.length);
        d.text.data[at] = was;
    }
    stop(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(predictions_are_what_ran),
        cmocka_unit_test(whole_backwards_have_costs_of_their_own),
        cmocka_unit_test(waiting_is_idle_and_nothing_else_is),
        cmocka_unit_test(waiting_for_a_collective_is_the_pass_s),
        cmocka_unit_test(what_is_no_pipeline_is_refused),
        cmocka_unit_test(the_file_is_whole_and_in_order),
        cmocka_unit_test(what_was_written_reads_back),
        cmocka_unit_test(spoilt_files_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
