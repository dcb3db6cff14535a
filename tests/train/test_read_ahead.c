/* The batches that a run reads ahead take the host memory that the plan has a row for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "data/dataset.h"
#include "plan/rank.h"
#include "train/read_ahead.h"

static Error err;

/* Bytes that the C library has handed out. A sanitizer's allocator does not count them: 0. */
static size_t allocated(void) {
    struct mallinfo2 m = mallinfo2();
    return m.uordblks + m.hblkhd;
}

static void write_text(const char *path) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 20000; i++) fprintf(f, "%d sheep, ", i * 7919 % 10007);
    fclose(f);
}

static void open_and_count(const char *const *words, int count, size_t *planned, size_t *taken) {
    static const char *const base[] = {"data.sources=[text.txt]", "data.cache_dir=cache",
                                       "model.vocab_size=320", "train.context=256", "train.compute=fp32"};
    enum { BASE = sizeof base / sizeof *base };
    const char *all[BASE + 8];
    Config c;
    OptionSet set;
    Tokenizer *tokenizer = NULL;
    Dataset *d = NULL;
    Layout l;
    ReadAhead feed;
    Device device;
    double waited;
    for (int i = 0; i < BASE + count; i++) all[i] = i < BASE ? base[i] : words[i - BASE];
    if (config_load(&c, &set, NULL, BASE + count, all, NULL, &err) != OK ||
        tokenizer_open(&tokenizer, "bytes", &err) != OK ||
        dataset_open(&d, &c.data, tokenizer, c.train.context, 1, &err) != OK ||
        layout_build(&l, &c, 2, &err) != OK)
        fail_msg("%s", err.message);
    device_describe(&device, "cpu", "", 1);
    *planned = rank_spec(&c, &l, &device).batches;
    size_t before = allocated();
    assert_int_equal(read_ahead_open(&feed, &c, &l, 0, d, &(ReadAheadStart){0, 0}, &err), OK);
    *taken = allocated() - before;
    assert_int_equal(read_ahead_next(&feed, &waited, &err), OK);
    read_ahead_close(&feed);
    layout_free(&l);
    dataset_close(d);
    tokenizer_free(tokenizer);
    options_free(&set);
}

/* Besides the batches there are lists of them and the loader's thread, a few KiB in all. */
static void batches_take_what_is_planned(void **unused) {
    (void)unused;
    static const char *const many[] = {"train.microbatch=8", "train.tokens_per_step=524288"},
                             *const prefetched[] = {"train.microbatch=64", "train.tokens_per_step=65536",
                                                    "data.prefetch=16"};
    size_t planned, taken;
    open_and_count(many, 2, &planned, &taken);
    assert_true(planned > 32 * (524288 / 2)); /* 32 bytes for each token of a step on each of two ranks */
    if (taken > 0) assert_in_range(taken, planned, planned + 65536);
    open_and_count(prefetched, 3, &planned, &taken);
    if (taken > 0) assert_in_range(taken, planned, planned + 65536);
}

int main(void) {
    char dir[] = "/tmp/test_read_ahead.XXXXXX", command[64];
    if (!mkdtemp(dir) || chdir(dir) != 0) return 1;
    write_text("text.txt");
    const struct CMUnitTest tests[] = {cmocka_unit_test(batches_take_what_is_planned)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || failed;
}
