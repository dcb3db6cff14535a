/* Watching a run: new data is sent once; memory is bounded, and spikes survive. */
#include "support/files.h"

#include <math.h>

#include "base/json.h"
#include "observe/journal.h"
#include "observe/watch.h"

static Error err;

static void log_steps(const char *dir, int64_t resumed, int64_t from, int64_t to, int64_t spike) {
    MetricsLog log;
    assert_int_equal(metrics_log_open(&log, dir, METRICS_FILE, resumed, &err), OK);
    for (int64_t s = from; s <= to; s++) {
        StepMetrics m = {
            .step = s, .total_steps = 1 << 20, .loss = s == spike ? 99 : 3, .wall = 1e9 + (double)s};
        assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
    }
    metrics_log_close(&log);
}

static cJSON *tell(const Watched *w, int64_t version, int64_t after) {
    Text out = {0};
    cJSON *root;
    watch_write(w, version, after, 7, &out);
    assert_int_equal(json_parse("watch", out.data, out.length, &root, &err), OK);
    text_free(&out);
    return root;
}

static const cJSON *points(const cJSON *root, const char *key) {
    return cJSON_GetObjectItem(cJSON_GetObjectItem(root, "points"), key);
}

static void what_was_added_is_told_once(void **state) {
    (void)state;
    const char *dir = files_mkdir("grows");
    Watched w;
    assert_int_equal(watch_open(&w, dir, &err), OK);
    watch_look(&w);
    assert_int_equal(w.count, 0);
    log_steps(dir, 0, 1, 5, 0);
    watch_look(&w);
    int64_t version = w.version;
    log_steps(dir, 5, 6, 8, 0);
    watch_look(&w);
    assert_int_equal(w.version, version);
    cJSON *root = tell(&w, version, 5);
    assert_int_equal(cJSON_GetArraySize(points(root, "step")), 3);
    assert_true(cJSON_GetArrayItem(points(root, "step"), 0)->valuedouble == 6);
    assert_true(cJSON_IsFalse(cJSON_GetObjectItem(root, "all")));
    cJSON_Delete(root);
    root = tell(&w, version + 1, 5); /* a page with other points gets all */
    assert_int_equal(cJSON_GetArraySize(points(root, "loss")), 8);
    cJSON_Delete(root);
    log_steps(dir, 3, 4, 4, 0); /* resumed at 3: the file was replaced */
    watch_look(&w);
    assert_int_not_equal(w.version, version);
    assert_int_equal(w.count, 4);
    watch_close(&w);
}

/* The end of a file that is being written may be an incomplete line; invalid lines are counted. */
static void half_a_line_waits_for_its_end(void **state) {
    (void)state;
    const char *dir = files_mkdir("torn");
    char *path = path_join(dir, METRICS_FILE);
    Watched w;
    files_text(path, "{\"kind\": \"train\", \"step\": 1, \"loss\": 2}\n{\"kind\": \"train\", \"st");
    assert_int_equal(watch_open(&w, dir, &err), OK);
    watch_look(&w);
    watch_look(&w);
    assert_int_equal(w.count, 1);
    assert_int_equal(w.bad_lines, 0);
    FILE *f = fopen(path, "ab");
    fputs("ep\": 2, \"loss\": null}\nnot JSON\n{\"kind\": \"train\", \"step\": 1}\n"
          "{\"kind\": \"validation\", \"step\": 2, \"loss\": 1.5, \"tokens\": 3}\n",
          f);
    fclose(f);
    watch_look(&w);
    assert_int_equal(w.count, 2);
    assert_true(isnan(w.last.loss));
    assert_int_equal(w.bad_lines, 2); /* one is invalid, one does not continue the curve */
    assert_int_equal(w.validation_count, 1);
    cJSON_Delete(tell(&w, 0, 0));
    watch_close(&w);
    free(path);
}

static void a_long_run_takes_no_more_memory_and_keeps_its_spike(void **state) {
    (void)state;
    const char *dir = files_mkdir("long");
    const int64_t steps = 5 * WATCH_POINTS + 3, spike = 1234;
    bool found = false;
    Watched w;
    log_steps(dir, 0, 1, steps, spike);
    assert_int_equal(watch_open(&w, dir, &err), OK);
    for (int i = 0; i < 100 && w.last.step < steps; i++) watch_look(&w);
    assert_int_equal(w.last.step, steps);
    assert_in_range(w.count, WATCH_POINTS / 2, WATCH_POINTS);
    for (size_t i = 0; i < w.count; i++) {
        if (i > 0) assert_true(w.points[i].values[0] > w.points[i - 1].values[0]);
        found |= w.points[i].values[0] == (double)spike && w.points[i].values[1] == 99;
    }
    assert_true(found);
    watch_close(&w);
}

/* Named curves and their points are bounded, whatever the file contains; a step that goes back is a bad
 * line. */
static void sets_and_tasks_are_told_by_name(void **state) {
    (void)state;
    const char *dir = files_mkdir("named");
    const double none = (double)NAN;
    MetricsLog log;
    Watched w;
    TaskMetrics task = {.name = "piqa", .figures = {.acc = none, .acc_norm = none, .bits_per_byte = none}};
    assert_int_equal(metrics_log_open(&log, dir, METRICS_FILE, 0, &err), OK);
    for (int64_t step = 0; step < WATCH_DOTS + 3; step++) {
        ValidationMetrics v = {.step = step, .name = "piqa", .loss = (double)step};
        task.step = step;
        task.figures.acc = step == 1 ? 0.25 : none;
        task.figures.acc_norm = step == 2 ? 0.5 : none;
        assert_int_equal(metrics_log_add(&log, METRICS_SET, &v, &err), OK);
        assert_int_equal(metrics_log_add(&log, METRICS_TASK, &task, &err), OK);
    }
    task.step = 1;
    assert_int_equal(metrics_log_add(&log, METRICS_TASK, &task, &err), OK);
    for (int i = 0; i < WATCH_NAMED; i++) {
        ValidationMetrics v = {.step = 1, .loss = 1};
        snprintf(v.name, sizeof v.name, "set%d", i);
        assert_int_equal(metrics_log_add(&log, METRICS_SET, &v, &err), OK);
    }
    metrics_log_close(&log);
    assert_int_equal(watch_open(&w, dir, &err), OK);
    watch_look(&w);
    assert_int_equal(w.bad_lines, 1);
    cJSON *root = tell(&w, 0, 0);
    const cJSON *named = cJSON_GetObjectItem(root, "named"), *set = cJSON_GetArrayItem(named, 0),
                *piqa = cJSON_GetArrayItem(named, 1);
    assert_int_equal(cJSON_GetArraySize(named), WATCH_NAMED);
    assert_string_equal(cJSON_GetObjectItem(set, "kind")->valuestring, "set");
    assert_string_equal(cJSON_GetObjectItem(set, "figure")->valuestring, "loss");
    assert_string_equal(cJSON_GetObjectItem(piqa, "kind")->valuestring, "task");
    assert_string_equal(cJSON_GetObjectItem(piqa, "figure")->valuestring, "acc");
    assert_true(cJSON_IsTrue(cJSON_GetObjectItem(piqa, "share")));
    const cJSON *dots = cJSON_GetObjectItem(set, "dots");
    int count = cJSON_GetArraySize(dots);
    assert_in_range(count, WATCH_DOTS / 2, WATCH_DOTS);
    for (int i = 0; i < count; i++) {
        const cJSON *dot = cJSON_GetArrayItem(dots, i);
        double step = cJSON_GetArrayItem(dot, 0)->valuedouble;
        assert_true(cJSON_GetArrayItem(dot, 1)->valuedouble == step);
        if (i + 1 == count) assert_true(step == WATCH_DOTS + 2);
    }
    cJSON_Delete(root);
    watch_close(&w);
}

static void texts_of_a_run_are_data(void **state) {
    (void)state;
    const char *dir = files_mkdir("\"<b>\\");
    char *path = path_join(dir, JOURNAL_FILE);
    Watched w;
    files_text(path, "{\"time\":\"t\",\"event\":\"started\",\"step\":0,\"detail\":\"\\u001b[31m\\\"\\\\<i>\","
                     "\"ranks\":4}\n"
                     "{\"time\":\"u\",\"event\":\"validation\",\"step\":3,\"loss\":1.25}\n{\"torn");
    assert_int_equal(watch_open(&w, dir, &err), OK);
    watch_look(&w);
    cJSON *root = tell(&w, 0, 0);
    assert_string_equal(cJSON_GetObjectItem(root, "name")->valuestring, "\"<b>\\");
    assert_string_equal(cJSON_GetObjectItem(root, "state")->valuestring, "validation");
    assert_true(cJSON_GetObjectItem(root, "rank_count")->valuedouble == 4);
    const cJSON *journal = cJSON_GetObjectItem(root, "journal");
    assert_int_equal(cJSON_GetArraySize(journal), 2);
    assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(journal, 0), "detail")->valuestring,
                        "loss 1.25");
    assert_string_equal(cJSON_GetObjectItem(cJSON_GetArrayItem(journal, 1), "detail")->valuestring,
                        "\\x1B[31m\"\\<i>");
    cJSON_Delete(root);
    watch_close(&w);
    free(path);
}

static void each_rank_with_a_file_is_told(void **state) {
    (void)state;
    const char *dir = files_mkdir("ranks");
    Watched w;
    log_steps(dir, 0, 1, 3, 0);
    for (int rank = 1; rank < 3; rank++) {
        char name[32];
        MetricsLog log;
        StepMetrics m = {.step = 3,
                         .wait_seconds = rank,
                         .sent_pp = 1,
                         .sent_dp_shard = 2,
                         .sent_cp = 3,
                         .sent_tp = 4,
                         .sent_ep = 5};
        assert_int_equal(metrics_log_open(&log, dir, metrics_file_name(rank, name), 0, &err), OK);
        assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
        metrics_log_close(&log);
    }
    assert_int_equal(watch_open(&w, dir, &err), OK);
    watch_look(&w);
    cJSON *root = tell(&w, 0, 0);
    const cJSON *ranks = cJSON_GetObjectItem(root, "ranks"), *last = cJSON_GetArrayItem(ranks, 2);
    assert_int_equal(cJSON_GetArraySize(ranks), 3);
    assert_true(cJSON_GetObjectItem(last, "wait")->valuedouble == 2);
    assert_true(cJSON_GetObjectItem(last, "sent")->valuedouble == 15);
    cJSON_Delete(root);
    watch_close(&w);
}

static void a_run_that_is_yet_to_begin_is_waited_for(void **state) {
    (void)state;
    Watched w;
    char *dir = path_join(files_mkdir("before"), "runs/later//");
    assert_int_equal(watch_open(&w, dir, &err), OK);
    assert_string_equal(w.name, "later");
    watch_look(&w);
    cJSON_Delete(tell(&w, -1, -1));
    assert_int_equal(w.count, 0);
    assert_int_equal(file_make_dirs(dir, &err), OK);
    log_steps(dir, 0, 1, 5, 0);
    watch_look(&w);
    assert_int_equal(w.count, 5);
    watch_close(&w);
    free(dir);
}

static void what_is_no_directory_is_refused(void **state) {
    (void)state;
    Watched w;
    assert_int_equal(watch_open(&w, "/dev/null", &err), ERR_NOINPUT);
    assert_int_equal(watch_open(&w, "/dev/null/run", &err), ERR_NOINPUT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_added_is_told_once),
        cmocka_unit_test(half_a_line_waits_for_its_end),
        cmocka_unit_test(a_long_run_takes_no_more_memory_and_keeps_its_spike),
        cmocka_unit_test(sets_and_tasks_are_told_by_name),
        cmocka_unit_test(texts_of_a_run_are_data),
        cmocka_unit_test(each_rank_with_a_file_is_told),
        cmocka_unit_test(a_run_that_is_yet_to_begin_is_waited_for),
        cmocka_unit_test(what_is_no_directory_is_refused),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
