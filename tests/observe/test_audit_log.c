/* Audit logs as all kinds of runs would leave them: proofs, violations, and the messages about them. The test
 * writes the lines itself, not by the writer; tests/program/test_audit.sh has real ones. */
#include "support/files.h"

#include <inttypes.h>

#include "base/hash.h"
#include "observe/audit.h"

static Error err;

/* ---- logs ---- */

typedef struct Fixture {
    const char *dir;
    int ranks; /* each one a dp rank */
    int64_t attempt;
    const char *draw; /* NULL: as in the first version */
} Fixture;

/* 10 windows in source 0 and 4 in source 1: one corpus, 14 samples per epoch. */
enum { FIRST = 10, SECOND = 4, EPOCH = FIRST + SECOND, PER_RANK = 2 };

static Fixture fresh(const char *name) {
    assert_int_equal(file_remove_tree(files_path(name), &err), OK);
    return (Fixture){.dir = files_mkdir(name), .ranks = 1};
}

static void append(const Fixture *f, int rank, const char *text, size_t length) {
    char name[32];
    snprintf(name, sizeof name, "audit-%05d.log", rank);
    char *path = path_join(f->dir, name);
    FILE *file = fopen(path, "a");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, length, file), length);
    fclose(file);
    free(path);
}

/* Writes a body as a complete line, or its first `keep` bytes. */
static void add(const Fixture *f, int rank, const Text *body, size_t keep) {
    Text line = {0};
    text_printf(&line, "%s *%08" PRIx32 "\n", body->data, (uint32_t)hash64(body->data, body->length));
    append(f, rank, line.data, line.length < keep ? line.length : keep);
    text_free(&line);
}

static void begin_rank(const Fixture *f, int rank, int64_t after) {
    Text t = {0};
    text_printf(&t,
                "begin attempt=%" PRId64 " after=%" PRId64
                " rank=%d dp=%d/%d writers=%d windows=%d,%d mixture=0%s",
                f->attempt, after, rank, rank, f->ranks, f->ranks, FIRST, SECOND, f->draw ? f->draw : "");
    add(f, rank, &t, SIZE_MAX);
    text_free(&t);
}

static void begin(Fixture *f, int64_t attempt, int ranks, int64_t after) {
    f->attempt = attempt;
    f->ranks = ranks;
    for (int r = 0; r < ranks; r++) begin_rank(f, r, after);
}

/* Sample k in any order that is a permutation within each epoch: here the windows backwards. */
static void put_sample(Text *t, uint64_t k) {
    uint64_t epoch = k / EPOCH, window = EPOCH - 1 - k % EPOCH;
    int source = window >= FIRST;
    text_printf(t, " %" PRIu64 ":%d.%" PRIu64 ".%" PRIu64 ":%08x", k, source, epoch,
                source ? window - FIRST : window, 0xabc00000u + (unsigned)window);
}

/* 8 samples per step for any number of ranks: a rank has 8 / ranks of them, in microbatches of 2. */
static void step_of(const Fixture *f, int rank, int64_t step, size_t keep) {
    Text t = {0};
    int64_t each = 8 / f->ranks;
    uint64_t first = (uint64_t)(8 * (step - 1) + rank * each);
    text_printf(&t, "step attempt=%" PRId64 " step=%" PRId64 " rank=%d dp=%d/%d writers=%d", f->attempt, step,
                rank, rank, f->ranks, f->ranks);
    for (int64_t i = 0; i < each; i++) {
        if (i % PER_RANK == 0) text_puts(&t, " |");
        put_sample(&t, first + (uint64_t)i);
    }
    add(f, rank, &t, keep);
    text_free(&t);
}

static void steps(const Fixture *f, int64_t from, int64_t to) {
    for (int64_t s = from; s <= to; s++)
        for (int r = 0; r < f->ranks; r++) step_of(f, r, s, SIZE_MAX);
}

/* A step of rank 0 alone with this text as its samples. */
static void step_text(const Fixture *f, int64_t step, const char *samples) {
    Text t = {0};
    text_printf(&t, "step attempt=%" PRId64 " step=%" PRId64 " rank=0 dp=0/1 writers=1 |%s", f->attempt, step,
                samples);
    add(f, 0, &t, SIZE_MAX);
    text_free(&t);
}

/* ---- verdicts ---- */

static AuditFigures figures;
static Text said;

static ErrorCode check_saved(const Fixture *f, int64_t saved) {
    AuditRun run;
    text_clear(&said);
    audit_figures_free(&figures);
    ErrorCode code = audit_read(&run, f->dir, &err);
    if (code == OK) code = audit_check(&run, saved, &figures, &said, &err);
    audit_free(&run);
    return code;
}

static void proves(Fixture *f, int64_t saved, int64_t made, int64_t redone) {
    if (check_saved(f, saved) != OK) fail_msg("%s\n%s", err.message, said.data);
    assert_int_equal(figures.steps, made);
    assert_int_equal(figures.use_count, 8 * made);
    assert_int_equal(figures.redone, redone);
}

static void refutes(Fixture *f, int64_t saved, size_t violations, const char *word) {
    assert_int_equal(check_saved(f, saved), ERR_DATA);
    if (!strstr(said.data, word)) fail_msg("no \"%s\" in: %s", word, said.data);
    if (violations && figures.violations != violations)
        fail_msg("%zu violations: %s", figures.violations, said.data);
}

/* ---- tests ---- */

static void one_rank_one_attempt(void **state) {
    (void)state;
    Fixture f = fresh("one");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 9); /* 72 samples: five epochs and a bit */
    proves(&f, 9, 9, 0);
    assert_int_equal(figures.attempts, 1);
    assert_true(figures.epochs > 5.14 && figures.epochs < 5.15);
    assert_non_null(strstr(said.data, "each sample from 0 to 71 was used exactly once"));
}

static void restarts_with_other_ranks(void **state) {
    (void)state;
    Fixture f = fresh("ranks");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 5);
    begin(&f, 1, 4, 3); /* steps 4 and 5 are redone */
    steps(&f, 4, 7);
    begin(&f, 2, 2, 6); /* and so was 7 */
    steps(&f, 7, 10);
    proves(&f, 10, 10, 3);
    assert_int_equal(figures.attempts, 3);
}

/* Attempt 1 found only the checkpoint of step 3, made other steps 4 and 5 than the run, and died; attempt 2
 * continues from step 6 of attempt 0. */
static void an_attempt_beside_the_line_does_not_count(void **state) {
    (void)state;
    Fixture f = fresh("line");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 7);
    begin(&f, 1, 1, 3);
    step_text(&f, 4, " 0:0.0.0:00000000");
    step_text(&f, 5, " 0:0.0.0:00000000");
    begin(&f, 2, 1, 6);
    steps(&f, 7, 8);
    proves(&f, 8, 8, 3);
}

/* A kill at any byte of any rank's last line: the step was not finished, even if others have recorded it. */
static void torn_lines_mean_nothing(void **state) {
    (void)state;
    for (size_t keep = 0; keep < 126; keep += 7) {
        Fixture f = fresh("torn");
        begin(&f, 0, 2, 0);
        steps(&f, 1, 4);
        step_of(&f, 0, 5, SIZE_MAX);
        step_of(&f, 1, 5, keep);
        proves(&f, 4, 4, 0);
        assert_non_null(strstr(said.data, "step 5 was not finished"));
        if (keep > 0) append(&f, 1, "\n", 1); /* as when the writer opens a torn file */
        begin(&f, 1, 2, 4);
        steps(&f, 5, 6);
        proves(&f, 6, 6, 1);
    }
}

/* A torn begin or step line must not be taken for a shorter one. */
static void a_changed_byte_is_no_record(void **state) {
    (void)state;
    Fixture f = fresh("changed");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 3);
    size_t length;
    char *path = path_join(f.dir, "audit-00000.log"), *data = files_read(path, &length);
    for (size_t i = 0; i < length; i += 5) {
        char before = data[i];
        data[i] ^= 1;
        files_write(path, data, length);
        data[i] = before;
        AuditRun run;
        assert_int_equal(audit_read(&run, f.dir, &err), OK);
        assert_true(run.torn >= 1 && run.count <= 3);
        audit_free(&run);
    }
    free(data);
    free(path);
}

static void what_is_missing_is_named(void **state) {
    (void)state;
    Fixture f = fresh("gap");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 3);
    steps(&f, 5, 6);
    refutes(&f, 6, 0, "step 4 is recorded by nobody");
    assert_non_null(strstr(said.data, "samples 24 to 31 are missing: after 23 of step 3 comes 32 of step 5"));

    f = fresh("rank-gap");
    begin(&f, 0, 2, 0);
    steps(&f, 1, 3);
    step_of(&f, 1, 4, SIZE_MAX);
    steps(&f, 5, 6);
    refutes(&f, 0, 0, "step 4 of attempt 0: 1 of 2 records are there");
    assert_non_null(strstr(said.data, "samples 24 to 27 are missing"));

    f = fresh("tail"); /* an incomplete step is fine, unless a checkpoint contains it */
    begin(&f, 0, 2, 0);
    steps(&f, 1, 3);
    step_of(&f, 0, 4, SIZE_MAX);
    refutes(&f, 4, 0, "step 4 of attempt 0: 1 of 2 records are there");

    f = fresh("head");
    begin(&f, 3, 1, 5);
    steps(&f, 6, 8);
    refutes(&f, 8, 0, "steps 1 to 5 are in no record of an earlier attempt");

    f = fresh("saved");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 3);
    refutes(&f, 9, 1, "a checkpoint holds step 9");

    f = fresh("lost-rank"); /* the file of one rank */
    begin(&f, 0, 2, 0);
    steps(&f, 1, 3);
    char *path = path_join(f.dir, "audit-00001.log");
    assert_int_equal(remove(path), 0);
    free(path);
    refutes(&f, 3, 0, "1 of 2 records are there");

    f = fresh("nothing");
    assert_int_equal(check_saved(&f, 0), ERR_NOINPUT);
}

static void what_comes_twice_is_named(void **state) {
    (void)state;
    Fixture f = fresh("twice");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 2);
    step_text(&f, 3, " 12:0.0.1:abc00001 13:0.0.0:abc00000"); /* as in step 2 */
    refutes(&f, 3, 2, "sample 12 is used twice: in step 2 and in step 3");

    f = fresh("window"); /* sample 2 is window 3 of source 1, like sample 0 */
    begin(&f, 0, 1, 0);
    step_text(&f, 1, " 0:1.0.3:abc0000d 1:1.0.2:abc0000c 2:1.0.3:abc0000d");
    refutes(&f, 1, 1, "window 3 of source 1 comes twice in epoch 0: as sample 0 (step 1) and 2 (step 1)");

    f = fresh("recorded"); /* twice by one rank */
    begin(&f, 0, 1, 0);
    steps(&f, 1, 2);
    step_of(&f, 0, 2, SIZE_MAX);
    refutes(&f, 2, 0, "rank 0 has recorded it twice");
}

static void an_epoch_must_be_whole(void **state) {
    (void)state;
    Fixture f = fresh("epoch");
    begin(&f, 0, 1, 0);
    step_text(&f, 1, " 0:0.0.0:00000000 1:0.0.1:00000001 2:0.1.5:00000005");
    refutes(&f, 1, 1, "epoch 0 of source 0 has 2 of 10 windows, though epoch 1 has begun");

    f = fresh("no-such-window");
    begin(&f, 0, 1, 0);
    step_text(&f, 1, " 0:1.0.4:00000000 1:7.0.0:00000000");
    refutes(&f, 1, 2, "sample 0 is window 4 of source 1, which has 4");
    assert_non_null(strstr(said.data, "is of source 7: the data has 2"));
}

static void a_window_keeps_its_tokens(void **state) {
    (void)state;
    Fixture f = fresh("tokens");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 1);
    Text t = {0};
    for (uint64_t k = 8; k < 15; k++) put_sample(&t, k);
    t.data[t.length - 1] ^= 1; /* sample 14 is window 3 of source 1 again */
    step_text(&f, 2, t.data);
    text_free(&t);
    refutes(&f, 2, 1, "samples 0 (step 1) and 14 (step 2) are window 3 of source 1 both, with other tokens");
}

/* Ranks 0 and 1 are the first and the last stage of one dp rank. */
static void stages(Fixture *f, const char *second) {
    static const char *const samples[] = {" 0:0.0.0:00000000 1:0.0.1:00000001", NULL};
    begin(f, 0, 1, 0);
    Text t = {0};
    for (int r = 0; r < 2; r++) {
        text_clear(&t);
        text_printf(&t, "step attempt=0 step=1 rank=%d dp=0/1 writers=2 |%s", r, r ? second : samples[0]);
        add(f, r, &t, SIZE_MAX);
    }
    text_free(&t);
}

static void stages_must_agree(void **state) {
    (void)state;
    Fixture f = fresh("stages");
    stages(&f, " 0:0.0.0:00000000 1:0.0.1:00000001");
    assert_int_equal(check_saved(&f, 1), OK);
    assert_int_equal(figures.use_count, 2);
    f = fresh("stages");
    stages(&f, " 0:0.0.0:00000000 1:0.0.1:00000002");
    refutes(&f, 1, 1, "ranks 0 and 1 are both dp rank 0 and used other samples");
}

static void all_attempts_draw_alike(void **state) {
    (void)state;
    Fixture f = fresh("draw");
    begin(&f, 0, 1, 0); /* the data is unknown */
    steps(&f, 1, 2);
    f.draw = " seed=42 data=aa tokenizer=bb";
    begin(&f, 1, 2, 2);
    steps(&f, 3, 4);
    proves(&f, 4, 4, 0);
    assert_non_null(strstr(said.data, "drawn with mixture=0 seed=42 data=aa tokenizer=bb"));
    begin(&f, 2, 2, 4);
    steps(&f, 5, 6);
    proves(&f, 6, 6, 0);
    f.draw = " seed=43 data=aa tokenizer=bb";
    begin(&f, 3, 1, 6);
    steps(&f, 7, 8);
    refutes(&f, 8, 1, "attempt 2 drew its samples with seed=42, attempt 3 with seed=43");

    f = fresh("draw-ranks");
    f.ranks = 2;
    f.draw = " seed=42 data=aa tokenizer=bb";
    begin_rank(&f, 0, 0);
    f.draw = " seed=42 data=ab tokenizer=bb";
    begin_rank(&f, 1, 0);
    steps(&f, 1, 2);
    refutes(&f, 2, 1, "ranks 0 and 1 drew their samples with data=aa and with data=ab in attempt 0");
}

static void runs_are_compared_by_step(void **state) {
    (void)state;
    AuditFigures one, two, three;
    Fixture f = fresh("a");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 5);
    proves(&f, 5, 5, 0);
    one = figures, figures = (AuditFigures){0};
    f = fresh("b");
    begin(&f, 0, 4, 0);
    steps(&f, 1, 3);
    begin(&f, 1, 2, 2);
    steps(&f, 3, 5);
    proves(&f, 5, 5, 1);
    two = figures, figures = (AuditFigures){0};
    assert_int_equal(audit_compare("a", &one, "b", &two, &err), OK);
    f = fresh("c");
    begin(&f, 0, 1, 0);
    steps(&f, 1, 6);
    proves(&f, 6, 6, 0);
    three = figures, figures = (AuditFigures){0};
    assert_int_equal(audit_compare("a", &one, "c", &three, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "step 6: sample 40 is used in c and not in a"));
    two.uses[17].sample.print ^= 1;
    assert_int_equal(audit_compare("a", &one, "b", &two, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "step 3: sample 17 has other tokens in a than in b"));
    two.uses[17].sample.print ^= 1;
    two.uses[9].step = 1; /* the same samples, in another step */
    assert_int_equal(audit_compare("a", &one, "b", &two, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "step 1: sample 9 is used in b and not in a"));
    audit_figures_free(&one);
    audit_figures_free(&two);
    audit_figures_free(&three);
}

static void attempts_are_counted(void **state) {
    (void)state;
    int64_t next;
    Fixture f = fresh("count");
    assert_int_equal(audit_next_attempt(f.dir, &next, &err), OK);
    assert_int_equal(next, 0);
    begin(&f, 0, 1, 0);
    steps(&f, 1, 2);
    begin(&f, 6, 2, 2);
    steps(&f, 3, 3);
    f.attempt = 9;
    step_of(&f, 1, 4, 40); /* torn: attempt 9 stays unknown */
    assert_int_equal(audit_next_attempt(f.dir, &next, &err), OK);
    assert_int_equal(next, 7);
    assert_int_equal(audit_discard(f.dir, &err), OK);
    assert_int_equal(audit_next_attempt(f.dir, &next, &err), OK);
    assert_int_equal(next, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_one_attempt),
        cmocka_unit_test(restarts_with_other_ranks),
        cmocka_unit_test(an_attempt_beside_the_line_does_not_count),
        cmocka_unit_test(torn_lines_mean_nothing),
        cmocka_unit_test(a_changed_byte_is_no_record),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(what_comes_twice_is_named),
        cmocka_unit_test(an_epoch_must_be_whole),
        cmocka_unit_test(a_window_keeps_its_tokens),
        cmocka_unit_test(stages_must_agree),
        cmocka_unit_test(all_attempts_draw_alike),
        cmocka_unit_test(runs_are_compared_by_step),
        cmocka_unit_test(attempts_are_counted),
    };
    int failed = cmocka_run_group_tests(tests, files_setup, files_teardown);
    audit_figures_free(&figures);
    text_free(&said);
    return failed;
}
