/* What ranks must agree on, with ranks that are threads (tests/support/ranks.h): processors that multiply
 * bf16 natively together with others that do not, whatever this machine has; files.
 * tests/ranks/test_unlike.sh launches ranks that differ. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/ranks.h"
#include "train/agree.h"

enum { MOST = 4 };

/* Input of each rank, and the result. */
typedef struct Launch {
    int ranks;
    const char *asked; /* train.compute */
    bool native[MOST];
    const char *file[MOST];
    Config config[MOST];
    OptionSet set[MOST];
    Error error[MOST];
} Launch;

/* Captures what is logged while `run` runs. */
static void hear(void (*run)(Comm *comm, void *launch), Launch *l, char *said, size_t size) {
    int ends[2], before = dup(STDERR_FILENO);
    assert_int_equal(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    ranks_run(l->ranks, 0, run, l);
    dup2(before, STDERR_FILENO);
    close(before);
    ssize_t length = read(ends[0], said, size - 1);
    said[length > 0 ? length : 0] = 0;
    close(ends[0]);
}

static int count(const char *text, const char *word) {
    int found = 0;
    for (const char *at = text; (at = strstr(at, word)); at++) found++;
    return found;
}

/* ---- processors ---- */

static void settle_compute(Comm *comm, void *launch) {
    Launch *l = launch;
    int rank = comm_rank(comm);
    Config *c = &l->config[rank];
    Device processor = {.name = l->native[rank] ? "avx512_bf16" : "avx2", .native_bf16 = l->native[rank]};
    Error *err = &l->error[rank];
    if (config_load(c, &l->set[rank], NULL, 1, &l->asked, NULL, err) != OK) return;
    agree_on_compute(comm, c, &l->set[rank], &processor, err);
}

static void check_compute(const char *asked, const bool *native, int ranks, ComputeKind expected, int lines) {
    static Launch l;
    char said[4096];
    l = (Launch){.ranks = ranks, .asked = asked};
    memcpy(l.native, native, (size_t)ranks * sizeof *native);
    hear(settle_compute, &l, said, sizeof said);
    for (int r = 0; r < ranks; r++) {
        assert_string_equal(l.error[r].message, "");
        assert_int_equal(l.config[r].train.compute, expected);
        options_free(&l.set[r]);
    }
    assert_int_equal(count(said, "train.compute: auto is fp32 on all ranks"), lines);
}

static void one_dtype_whatever_the_processors(void **unused) {
    (void)unused;
    static const bool none[MOST] = {false}, all[MOST] = {true, true, true, true};
    for (unsigned bits = 1; bits < 15; bits++) {
        bool some[MOST] = {bits & 1, bits & 2, bits & 4, bits & 8};
        check_compute("train.compute=auto", some, MOST, COMPUTE_FP32, 1);
        check_compute("train.compute=bf16", some, MOST, COMPUTE_BF16, 0);
    }
    check_compute("train.compute=auto", none, MOST, COMPUTE_FP32, 0);
    check_compute("train.compute=auto", all, MOST, COMPUTE_BF16, 0);
    check_compute("train.compute=auto", all, 1, COMPUTE_BF16, 0);
    check_compute("train.compute=auto", none, 1, COMPUTE_FP32, 0);
}

/* ---- files ---- */

static void compare_files(Comm *comm, void *launch) {
    Launch *l = launch;
    int rank = comm_rank(comm);
    agree_on_file(comm, "the file", l->file[rank], "give all ranks one", &l->error[rank]);
}

/* All ranks return the same failure, which is unreported on one of them. */
static void whose_file_differs_is_named(void **unused) {
    (void)unused;
    static Launch alike = {.ranks = 3, .file = {"a", "a", "a"}},
                  unlike = {.ranks = 4, .file = {"a", "b", "a", "b"}};
    int to_say = 0;
    ranks_run(alike.ranks, 0, compare_files, &alike);
    for (int r = 0; r < alike.ranks; r++) assert_int_equal(alike.error[r].code, OK);
    ranks_run(unlike.ranks, 0, compare_files, &unlike);
    for (int r = 0; r < unlike.ranks; r++) {
        assert_int_equal(unlike.error[r].code, ERR_DATA);
        assert_non_null(
            strstr(unlike.error[r].message, "ranks 1, 3: the file is b (rank 0: a): give all ranks one"));
        to_say += !unlike.error[r].reported;
    }
    assert_int_equal(to_say, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_dtype_whatever_the_processors),
                                       cmocka_unit_test(whose_file_differs_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
