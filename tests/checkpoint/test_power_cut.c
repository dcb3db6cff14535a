/* Power cuts: a run saves, replaces and prunes checkpoints. The power may fail at every call, and the next
 * start finds a disk that kept only what it had to (support/power_model.h). It resumes from the newest
 * checkpoint whose save had returned, or a newer one, complete; leftovers are removed; and the next save
 * succeeds.
 *
 * To show that the model detects errors, one kind of sync is omitted at a time: each omission loses
 * something. WEFT_POWER_SEEDS: draws per cut; default 1. */
#include "support/faulty_files.h"
#include "support/files.h"
#include "support/power_model.h"
#include "support/saved_numbers.h"

#include "base/log.h"

typedef struct Promise {
    int at; /* calls made until the save returned */
    int number;
} Promise;

enum { SAVES = 5 };
static const int64_t steps[SAVES] = {1, 2, 3, 3, 4}; /* save k + 1 is of step steps[k] */

typedef struct Story {
    Recorder recorder;
    Promise promises[SAVES];
} Story;

static ErrorCode save_and_prune(const FileOps *ops, const char *dir, int64_t step, int number, Error *err) {
    TRY(save_number(ops, dir, step, number, err));
    return checkpoint_prune(ops, dir, (CheckpointKeep){.last = 2}, -1, CHECK_MANIFEST, NULL, err);
}

static void tell(Story *s, const char *name, bool no_exchange) {
    char *dir = path_join(files_mkdir(name), "checkpoints");
    Error err = {.message = ""};
    snprintf(s->recorder.root, sizeof s->recorder.root, "%s", files_path(name));
    s->recorder.no_exchange = no_exchange;
    FileOps ops = recording_ops(&s->recorder);
    for (int i = 0; i < SAVES; i++) {
        if (save_and_prune(&ops, dir, steps[i], i + 1, &err) != OK) fail_msg("%s", err.message);
        s->promises[i] = (Promise){s->recorder.count, i + 1};
    }
    free(dir);
}

static int promised(const Story *s, int cut) {
    int number = 0;
    for (int i = 0; i < SAVES; i++)
        if (s->promises[i].at <= cut) number = s->promises[i].number;
    return number;
}

/* Number of the checkpoint that the next start finds after a cut; 0: none. */
static int found_after(const Story *s, int cut, uint64_t seed, bool (*lost)(const Call *), char **dir) {
    const char *root = files_path("after");
    file_remove_tree(root, NULL);
    power_cut(&s->recorder, cut, seed, lost, root);
    *dir = path_join(root, "checkpoints");
    int number = number_in(*dir, NULL);
    return number > 0 ? number : 0;
}

static void goes_on(const char *dir) {
    Error err = {.message = ""};
    checkpoint_clean(NULL, dir);
    assert_int_equal(entries_with_dot(dir), 0);
    if (save_and_prune(NULL, dir, 5, 99, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(number_in(dir, NULL), 99);
}

static uint64_t seeds(void) {
    const char *asked = getenv("WEFT_POWER_SEEDS");
    return asked ? strtoull(asked, NULL, 10) : 1;
}

/* behind: by how many the checkpoint that is found may be older than the newest durable one. */
static void cut_everywhere(const char *name, bool no_exchange, int behind) {
    Story s = {.promises = {{0, 0}}};
    int cuts = 0, stride = no_exchange ? 2 : 1;
    tell(&s, name, no_exchange);
    for (int cut = 0; cut <= s.recorder.count; cut += stride)
        for (uint64_t i = 0; i < seeds(); i++, cuts++) {
            char *dir;
            uint64_t seed = (uint64_t)cut * seeds() + i;
            int number = found_after(&s, cut, seed, NULL, &dir), least = promised(&s, cut) - behind;
            if (number < least)
                fail_msg("cut before call %d, seed %d: found number %d, expected at least %d", cut, (int)seed,
                         number, least);
            goes_on(dir);
            free(dir);
        }
    assert_true(cuts >= 100);
    print_message("%d of %d power cuts go on from the newest durable checkpoint\n", cuts, cuts);
    recorder_free(&s.recorder);
}

static void every_cut_leaves_what_was_promised(void **state) {
    (void)state;
    cut_everywhere("exchanged", false, 0);
}

/* Where directories cannot be exchanged, replacing a step removes its name for a moment (invariant 4). */
static void without_exchange_the_step_before_stands_in(void **state) {
    (void)state;
    cut_everywhere("renamed", true, 1);
}

static bool ends_in(const char *text, const char *end) {
    size_t length = strlen(text), n = strlen(end);
    return length >= n && strcmp(text + length - n, end) == 0;
}

static bool sync_of_file(const Call *c) { return c->kind == SYNC; }
static bool sync_of_temporary(const Call *c) { return c->kind == SYNC_DIR && strstr(c->a, ".tmp-") != NULL; }
static bool sync_of_checkpoints(const Call *c) { return c->kind == SYNC_DIR && ends_in(c->a, "checkpoints"); }
static bool sync_of_run(const Call *c) { return c->kind == SYNC_DIR && ends_in(c->a, ".."); }

static void each_sync_is_needed(void **state) {
    (void)state;
    static bool (*const lost[])(const Call *) = {sync_of_file, sync_of_temporary, sync_of_checkpoints,
                                                 sync_of_run};
    Story s = {.promises = {{0, 0}}};
    tell(&s, "needed", false);
    for (size_t i = 0; i < sizeof lost / sizeof *lost; i++) {
        int losses = 0;
        for (int cut = s.promises[0].at; cut <= s.recorder.count && losses == 0; cut++)
            for (uint64_t seed = 0; seed < 3; seed++) {
                char *dir;
                losses += found_after(&s, cut, seed, lost[i], &dir) < promised(&s, cut);
                free(dir);
            }
        if (losses == 0) fail_msg("nothing is lost without sync %zu", i);
    }
    recorder_free(&s.recorder);
}

int main(void) {
    log_set_level(LOG_ERROR); /* damaged ones are skipped with warnings */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_leaves_what_was_promised),
        cmocka_unit_test(without_exchange_the_step_before_stands_in),
        cmocka_unit_test(each_sync_is_needed),
    };
    return cmocka_run_group_tests(tests, files_setup_in_memory, files_teardown);
}
