/* From files to batches: what a sample is, document masks, validation split, restarts, prefetching. */
#include "support/bytes_tokenizer.h"

#include <dirent.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/log.h"
#include "data/loader.h"
#include "data/token_units.h"

/* A configuration over up to four sources, with its own memory. */
typedef struct Setup {
    DataConfig c;
    DataSource train[4], validation[2];
    char cache[512], paths[6][512], key[8];
} Setup;

static void add_source(Setup *s, ObjectList *list, DataSource *items, const char *path, double weight,
                       SourceSplit split) {
    size_t slot = s->c.sources.count + s->c.validation_sources.count;
    snprintf(s->paths[slot], sizeof s->paths[slot], "%s", path);
    items[list->count++] =
        (DataSource){.path = s->paths[slot], .weight = weight, .key = s->key, .split = split};
    list->items = (char *)items;
}

static void train_on(Setup *s, const char *path, double weight, SourceSplit split) {
    add_source(s, &s->c.sources, s->train, path, weight, split);
}

static Setup *new_setup(void) {
    Setup *s = calloc(1, sizeof *s);
    snprintf(s->cache, sizeof s->cache, "%s", files_path("cache"));
    strcpy(s->key, "text");
    s->c = (DataConfig){.cache_dir = s->cache, .add_bos = true, .add_eos = true, .seed = 1};
    return s;
}

static Dataset *open_data(const Setup *s, int64_t context) {
    Dataset *d;
    Error err = {0};
    if (dataset_open(&d, &s->c, tokenizer, context, 2, &err) != OK) fail_msg("%s", err.message);
    return d;
}

/* Paragraphs of many lengths, some much longer than a context. Every line has its own number, so any part of
 * the text identifies its position. */
static const char *book(const char *name, unsigned lines, unsigned salt) {
    Text t = {0};
    for (unsigned i = 0; i < lines; i++) {
        text_printf(&t, "%u-%u\n", i, salt);
        unsigned h = (i + salt) * 2654435761u >> 20;
        if (h % 7 == 0 && h % 5 != 0) text_puts(&t, "\n");
    }
    const char *path = files_write(name, t.data, t.length);
    text_free(&t);
    return path;
}

typedef struct Rows {
    int64_t context;
    int32_t *inputs, *targets, *positions, *first_key;
    int64_t valid;
} Rows;

static Rows new_rows(int64_t context) {
    Rows r = {.context = context};
    r.inputs = malloc((size_t)context * 16);
    r.targets = r.inputs + context;
    r.positions = r.targets + context;
    r.first_key = r.positions + context;
    return r;
}

static void get(const Dataset *d, bool validation, uint64_t k, Rows *r) {
    SampleRow row = {r->inputs, r->targets, r->positions, r->first_key, 1000};
    Error err = {0};
    r->valid = 0;
    if (dataset_sample(d, validation, k, &row, &r->valid, &err) != OK) fail_msg("%s", err.message);
}

/* The documents of a file with `split: paragraphs`, with BOS and EOS, as one sequence; starts marks first
 * tokens. */
static size_t expected_tokens(const char *path, int32_t *ids, bool *starts) {
    size_t length, n = 0;
    char *text = files_read(path, &length);
    for (size_t i = 0; i < length; i++) {
        bool first = i == 0 || (i >= 2 && text[i - 1] == '\n' && text[i - 2] == '\n');
        starts[n] = first;
        if (first) ids[n++] = BOS;
        ids[n] = (unsigned char)text[i];
        starts[n++] = false;
        bool last = i + 1 == length || (i >= 1 && text[i] == '\n' && text[i - 1] == '\n');
        if (last) {
            ids[n] = EOS;
            starts[n++] = false;
        }
    }
    free(text);
    return n;
}

/* Every token of the source but the first is a target once, at its position in the source, whatever the
 * context. */
static void test_every_token_is_a_target_once(void **state) {
    (void)state;
    Setup *s = new_setup();
    const char *path = book("b1.txt", 700, 1);
    train_on(s, path, 0, SPLIT_PARAGRAPHS);
    int32_t *ids = malloc(20000 * 4);
    bool *starts = malloc(20000);
    size_t n = expected_tokens(path, ids, starts);
    const int64_t contexts[] = {1, 2, 7, 64, 1000, (int64_t)n - 2, (int64_t)n - 1, (int64_t)n, 30000};
    for (size_t i = 0; i < sizeof contexts / sizeof *contexts; i++) {
        int64_t context = contexts[i];
        Dataset *d = open_data(s, context);
        assert_int_equal(dataset_tokens(d), n);
        uint64_t windows = dataset_samples_per_epoch(d);
        assert_int_equal(windows, (n - 2) / (size_t)context + 1);
        Rows r = new_rows(context);
        int64_t valid = 0;
        bool *seen = calloc(windows, 1);
        for (uint64_t k = 0; k < windows; k++) {
            get(d, false, k, &r);
            uint64_t window = dataset_locate(d, k).window;
            assert_false(seen[window]);
            seen[window] = true;
            valid += r.valid;
            for (int64_t t = 0; t < context; t++) {
                size_t at = (size_t)window * (size_t)context + (size_t)t;
                if (r.inputs[t] != (at < n ? ids[at] : 0))
                    fail_msg("input %lld of window %llu", (long long)t, (unsigned long long)window);
                if (r.targets[t] != (at + 1 < n ? ids[at + 1] : -1)) fail_msg("target %lld", (long long)t);
                assert_int_equal(r.positions[t], t);
                assert_int_equal(r.first_key[t], 1000);
            }
        }
        assert_int_equal(valid, n - 1);
        free(seen);
        free(r.inputs);
        dataset_close(d);
    }
    free(ids);
    free(starts);
    free(s);
}

static void test_document_mask(void **state) {
    (void)state;
    Setup *s = new_setup();
    const char *path = book("b2.txt", 900, 2);
    train_on(s, path, 0, SPLIT_PARAGRAPHS);
    s->c.document_mask = true;
    int32_t *ids = malloc(30000 * 4);
    bool *starts = malloc(30000);
    size_t n = expected_tokens(path, ids, starts), documents = 0;
    for (size_t i = 0; i < n; i++) documents += starts[i];
    assert_true(documents > 50);
    const int64_t contexts[] = {1, 16, 37, 500};
    for (size_t c = 0; c < 4; c++) {
        int64_t context = contexts[c], valid = 0;
        Dataset *d = open_data(s, context);
        Rows r = new_rows(context);
        for (uint64_t k = 0; k < dataset_samples_per_epoch(d); k++) {
            get(d, false, k, &r);
            valid += r.valid;
            size_t base = (size_t)dataset_locate(d, k).window * (size_t)context;
            int32_t start = 0;
            for (int64_t t = 0; t < context; t++) {
                size_t at = base + (size_t)t;
                if (at < n && starts[at]) start = (int32_t)t;
                assert_int_equal(r.positions[t], t - start);
                assert_int_equal(r.first_key[t], 1000 + start);
                bool none = at + 1 >= n || starts[at + 1];
                assert_int_equal(r.targets[t], none ? -1 : ids[at + 1]);
            }
        }
        assert_int_equal(valid, n - documents);
        free(r.inputs);
        dataset_close(d);
    }
    free(ids);
    free(starts);
    free(s);
}

/* Marks the lines ("123-5\n") that are complete in the row's targets. */
static void mark_lines(const Rows *r, unsigned char *seen) {
    for (int64_t t = 0; t < r->context;) {
        while (t < r->context && r->targets[t] != '\n' && r->targets[t] != BOS) t++;
        t++;
        unsigned number = 0;
        int64_t from = t;
        for (; t < r->context && r->targets[t] >= '0' && r->targets[t] <= '9'; t++)
            number = number * 10 + (unsigned)(r->targets[t] - '0');
        if (t > from && t < r->context && r->targets[t] == '-') seen[number] = 1;
    }
}

static void test_validation_is_never_trained_on(void **state) {
    (void)state;
    enum { LINES = 30000 };
    const char *path = book("b3.txt", LINES, 3);
    for (int split = SPLIT_FILE; split <= SPLIT_PARAGRAPHS; split++) {
        Setup *s = new_setup();
        train_on(s, path, 0, (SourceSplit)split);
        s->c.validation_fraction = 0.1;
        s->c.document_mask = true; /* no line may appear where two segments of the text meet */
        uint64_t tokens[2] = {0}, held[2] = {0};
        const int64_t contexts[] = {128, 999};
        for (int c = 0; c < 2; c++) {
            Dataset *d = open_data(s, contexts[c]);
            tokens[c] = dataset_tokens(d);
            held[c] = dataset_validation_tokens(d);
            unsigned char *train = calloc(LINES, 1), *validation = calloc(LINES, 1);
            Rows r = new_rows(contexts[c]);
            for (uint64_t k = 0; k < dataset_samples_per_epoch(d); k++) {
                get(d, false, k, &r);
                mark_lines(&r, train);
            }
            int64_t valid = 0;
            for (uint64_t k = 0; k < dataset_validation_samples(d); k++) {
                get(d, true, k, &r);
                valid += r.valid;
                mark_lines(&r, validation);
            }
            assert_true(valid < (int64_t)held[c] && valid > (int64_t)held[c] * 9 / 10);
            unsigned only_train = 0, only_validation = 0, runs = 0;
            for (unsigned i = 0; i < LINES; i++) {
                if (train[i] && validation[i]) fail_msg("line %u is in both", i);
                only_train += train[i];
                only_validation += validation[i];
                runs += i > 0 && validation[i] && !validation[i - 1];
            }
            assert_true(only_validation > LINES / 15 && only_train > LINES * 7 / 10);
            assert_true(runs >= 5); /* spread over the whole text */
            get(d, true, dataset_validation_samples(d), &r);
            assert_int_equal(r.valid, 0);
            for (int64_t t = 0; t < contexts[c]; t++) assert_true(r.targets[t] == -1 && r.inputs[t] == 0);
            free(r.inputs);
            free(train);
            free(validation);
            dataset_close(d);
        }
        /* The split does not depend on the context. */
        assert_int_equal(tokens[0], tokens[1]);
        assert_int_equal(held[0], held[1]);
        assert_true((double)held[0] > 0.09 * (double)(tokens[0] + held[0]) &&
                    (double)held[0] < 0.11 * (double)(tokens[0] + held[0]));
        free(s);
    }
}

static void test_validation_files_and_mixture(void **state) {
    (void)state;
    Setup *s = new_setup();
    train_on(s, book("m1.txt", 4000, 1), 3, SPLIT_PARAGRAPHS);
    train_on(s, book("m2.txt", 500, 2), 1, SPLIT_LINES);
    add_source(s, &s->c.validation_sources, s->validation, book("v.txt", 300, 9), 0, SPLIT_PARAGRAPHS);
    Dataset *d = open_data(s, 100);
    int count[2] = {0};
    for (uint64_t k = 0; k < 400; k++) count[dataset_locate(d, k).source]++;
    assert_int_equal(count[0], 300);
    assert_int_equal(count[1], 100);
    assert_true(dataset_validation_samples(d) > 10);
    Rows r = new_rows(100);
    get(d, true, 0, &r);
    assert_memory_equal(((int32_t[]){r.inputs[0], r.inputs[1], r.inputs[2], r.inputs[3]}),
                        ((int32_t[]){BOS, '0', '-', '9'}), 16);
    char with[65], without[65];
    dataset_fingerprint(d, with);
    Text table = {0};
    dataset_describe(d, 0, &table);
    assert_non_null(strstr(table.data, "75.00% of samples"));
    text_free(&table);
    dataset_close(d);
    s->c.validation_sources.count = 0;
    d = open_data(s, 64);
    dataset_fingerprint(d, without);
    assert_string_equal(with, without);
    dataset_close(d);

    /* With weights in documents, more of m1's tokens are used, since its documents are longer. */
    s->c.weights = WEIGHTS_DOCUMENTS;
    d = open_data(s, 100);
    count[0] = count[1] = 0;
    for (uint64_t k = 0; k < 10000; k++) count[dataset_locate(d, k).source]++;
    assert_true(count[0] > 8000 && count[1] > 100);
    dataset_close(d);
    s->train[1].weight = 0;
    Error err = {0};
    assert_int_equal(dataset_open(&d, &s->c, tokenizer, 100, 1, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "have a weight"));
    free(r.inputs);
    free(s);
}

/* Sources with one name form one set, whatever is between them. */
static void test_named_validation_sets(void **state) {
    (void)state;
    Setup *s = new_setup();
    char *names[2] = {mem_strdup("news"), mem_strdup("code")};
    train_on(s, book("m1.txt", 4000, 1), 0, SPLIT_PARAGRAPHS);
    train_on(s, book("m2.txt", 900, 2), 0, SPLIT_LINES);
    train_on(s, book("m3.txt", 2000, 3), 0, SPLIT_PARAGRAPHS);
    s->c.validation_fraction = 0.1;
    Dataset *d = open_data(s, 50);
    uint64_t samples = dataset_validation_samples(d);
    assert_int_equal(dataset_validation_sets(d), 1);
    assert_string_equal(dataset_validation_set(d, 0).name, "");
    assert_int_equal(dataset_validation_set(d, 0).samples, samples);
    dataset_close(d);
    for (int i = 0; i < 3; i++) s->train[i].name = names[i % 2];
    d = open_data(s, 50);
    assert_int_equal(dataset_validation_sets(d), 2);
    ValidationSet news = dataset_validation_set(d, 0), code = dataset_validation_set(d, 1);
    assert_string_equal(news.name, "news");
    assert_string_equal(code.name, "code");
    assert_int_equal(news.first, 0);
    assert_int_equal(code.first, news.samples);
    assert_int_equal(news.samples + code.samples, samples);
    /* After a dash comes the source: 1 and 3 are news, 2 is code. */
    Rows r = new_rows(50);
    for (uint64_t k = 0; k < samples; k++) {
        get(d, true, k, &r);
        for (int i = 0; i + 3 < 50; i++)
            if (r.inputs[i] == '-' && r.inputs[i + 2] == '\n')
                assert_int_equal(r.inputs[i + 1] == '2', k >= code.first);
    }
    dataset_close(d);
    Error err = {0};
    s->train[2].name = NULL;
    assert_int_equal(dataset_open(&d, &s->c, tokenizer, 50, 1, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "2 of 3 sources of data.sources have a name"));
    s->train[2].name = (char[]){"a b"};
    assert_int_equal(dataset_open(&d, &s->c, tokenizer, 50, 1, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "the name \"a b\""));
    free(r.inputs);
    free(names[0]);
    free(names[1]);
    free(s);
}

/* Compares all arrays of two batches. */
static void expect_same_batch(const Batch *b, const Batch *c) {
    assert_int_equal(b->tokens, c->tokens);
    assert_int_equal(b->valid, c->valid);
    size_t bytes = (size_t)b->tokens * 4;
    assert_memory_equal(b->inputs, c->inputs, bytes);
    assert_memory_equal(b->targets, c->targets, bytes);
    assert_memory_equal(b->positions, c->positions, bytes);
    assert_memory_equal(b->first_key, c->first_key, bytes);
}

static Batch next(Loader *l) {
    Batch b;
    double waited = -1;
    Error err = {0};
    if (loader_next(l, &b, &waited, &err) != OK) fail_msg("%s", err.message);
    assert_true(waited >= 0);
    return b;
}

static Loader *open_loader(const Dataset *d, LoaderLayout layout, int64_t depth) {
    Loader *l;
    Error err = {0};
    if (loader_open(&l, d, &layout, depth, &err) != OK) fail_msg("%s", err.message);
    return l;
}

static Dataset *mixed_data(Setup **s) {
    *s = new_setup();
    train_on(*s, book("l1.txt", 3000, 1), 2, SPLIT_PARAGRAPHS);
    train_on(*s, book("l2.txt", 1000, 2), 1, SPLIT_FILE);
    (*s)->c.document_mask = true;
    (*s)->c.validation_fraction = 0.05;
    return open_data(*s, 48);
}

static void test_depth_and_restart_do_not_matter(void **state) {
    (void)state;
    Setup *s;
    Dataset *d = mixed_data(&s);
    LoaderLayout layout = {.sequences = 3, .microbatches = 2, .microbatch_stride = 3, .step_stride = 6};
    Loader *shallow = open_loader(d, layout, 1), *deep = open_loader(d, layout, 13);
    for (int i = 0; i < 300; i++) {
        Batch a = next(shallow), b = next(deep);
        expect_same_batch(&a, &b);
        for (int64_t t = 0; t < a.tokens; t++) {
            int64_t row = t / 48 * 48;
            assert_true(a.first_key[t] >= row && a.first_key[t] <= t && a.positions[t] == t - a.first_key[t]);
            assert_true(t == 0 || a.first_key[t] >= a.first_key[t - 1]);
        }
        if (i % 60 == 59) {
            LoaderLayout later = layout;
            later.first = (uint64_t)(i + 1) * 3;
            loader_close(deep);
            deep = open_loader(d, later, 1 + i % 5);
        }
    }
    loader_close(shallow);
    loader_close(deep);
    dataset_close(d);
    free(s);
}

/* Two ranks with two microbatches a step use the same samples as one with four. */
static void test_ranks_share_a_step(void **state) {
    (void)state;
    Setup *s;
    Dataset *d = mixed_data(&s);
    Loader *one = open_loader(
        d, (LoaderLayout){.sequences = 2, .microbatches = 4, .microbatch_stride = 2, .step_stride = 8}, 3);
    Loader *ranks[2];
    for (int r = 0; r < 2; r++)
        ranks[r] = open_loader(d,
                               (LoaderLayout){.first = 4 * (uint64_t)r,
                                              .sequences = 2,
                                              .microbatches = 2,
                                              .microbatch_stride = 2,
                                              .step_stride = 8},
                               2);
    for (int step = 0; step < 20; step++)
        for (int m = 0; m < 4; m++) {
            Batch a = next(one), b = next(ranks[m / 2]);
            expect_same_batch(&a, &b);
        }
    loader_close(one);
    loader_close(ranks[0]);
    loader_close(ranks[1]);
    dataset_close(d);
    free(s);
}

static void test_validation_loader(void **state) {
    (void)state;
    Setup *s;
    Dataset *d = mixed_data(&s);
    uint64_t samples = dataset_validation_samples(d);
    Loader *l = open_loader(
        d,
        (LoaderLayout){
            .validation = true, .sequences = 4, .microbatches = 1, .microbatch_stride = 4, .step_stride = 4},
        2);
    int64_t valid = 0, direct = 0;
    for (uint64_t i = 0; i < samples; i += 4) valid += next(l).valid;
    assert_int_equal(next(l).valid, 0);
    Rows r = new_rows(48);
    for (uint64_t k = 0; k < samples; k++) {
        get(d, true, k, &r);
        direct += r.valid;
    }
    assert_true(valid == direct && valid > 0);
    loader_close(l);
    /* Rows from the limit on are empty, wherever they are in a microbatch. */
    l = open_loader(d,
                    (LoaderLayout){.validation = true,
                                   .sequences = 4,
                                   .microbatches = 1,
                                   .microbatch_stride = 4,
                                   .step_stride = 4,
                                   .limit = 5},
                    2);
    int64_t first = 0;
    for (uint64_t k = 0; k < 5; k++) {
        get(d, true, k, &r);
        first += r.valid;
    }
    valid = next(l).valid;
    valid += next(l).valid;
    assert_true(valid == first && first > 0);
    assert_int_equal(next(l).valid, 0);
    loader_close(l);
    dataset_close(d);
    free(r.inputs);
    free(s);
}

/* A block that is damaged on disk is reported in the batch that needs it, and in every later one. */
static void test_damage_reaches_the_caller(void **state) {
    (void)state;
    Setup *s = new_setup();
    train_on(s, book("x.txt", 20000, 1), 0, SPLIT_FILE);
    snprintf(s->cache, sizeof s->cache, "%s", files_path("spoiled"));
    Dataset *d = open_data(s, 512);
    dataset_close(d);
    char command[700];
    snprintf(command, sizeof command,
             "printf 'XXXX' | dd of=$(ls %s/*/part-00000.tok) bs=1 seek=150000 conv=notrunc 2>/dev/null",
             s->cache);
    assert_int_equal(system(command), 0);
    d = open_data(s, 512);
    Error err = {0};
    assert_int_equal(dataset_verify(d, &err), ERR_DATA);
    Loader *l = open_loader(
        d, (LoaderLayout){.sequences = 1, .microbatches = 1, .microbatch_stride = 1, .step_stride = 1}, 4);
    ErrorCode code = OK;
    double waited;
    Batch b;
    int good = 0;
    for (; code == OK && good < 1000; good += code == OK) code = loader_next(l, &b, &waited, &err);
    assert_int_equal(code, ERR_DATA);
    assert_non_null(strstr(err.message, "part-00000.tok: damaged"));
    assert_int_equal(loader_next(l, &b, &waited, &err), ERR_DATA);
    loader_close(l);
    dataset_close(d);
    free(s);
}

static void expect_refused(const Setup *s, int64_t context, ErrorCode code, const char *part) {
    Dataset *d;
    Error err = {0};
    assert_int_equal(dataset_open(&d, &s->c, tokenizer, context, 1, &err), code);
    assert_null(d);
    if (!strstr(err.message, part)) fail_msg("'%s' is not in: %s", part, err.message);
}

static void test_bad_configurations(void **state) {
    (void)state;
    Setup *s = new_setup();
    expect_refused(s, 8, ERR_CONFIG, "data.sources is empty");
    train_on(s, files_path("nothing-*.txt"), 0, SPLIT_FILE);
    expect_refused(s, 8, ERR_NOINPUT, "nothing-*.txt");
    free(s);
    s = new_setup();
    train_on(s, files_text("tiny.txt", ""), 0, SPLIT_FILE);
    expect_refused(s, 8, ERR_DATA, "tiny.txt: it is empty");
    free(s);
    s = new_setup();
    train_on(s, files_text("small.txt", "some words"), 0, SPLIT_FILE);
    expect_refused(s, 0, ERR_CONFIG, "context");
    s->c.validation_fraction = 0.001;
    expect_refused(s, 8, ERR_CONFIG, "make it larger");
    s->c.validation_fraction = 1;
    expect_refused(s, 8, ERR_CONFIG, "validation_fraction");
    s->c.validation_fraction = 0.5;
    add_source(s, &s->c.validation_sources, s->validation, s->paths[0], 0, SPLIT_FILE);
    expect_refused(s, 8, ERR_CONFIG, "both set");
    s->c.validation_fraction = 0;
    Dataset *d = open_data(s, 8);
    Loader *l;
    Error err = {0};
    LoaderLayout layout = {.sequences = 0, .microbatches = 1};
    assert_int_equal(loader_open(&l, d, &layout, 1, &err), ERR_CONFIG);
    layout.sequences = INT32_MAX;
    assert_int_equal(loader_open(&l, d, &layout, 1, &err), ERR_CONFIG);
    dataset_close(d);
    s->c.validation_sources.count = 0;
    d = open_data(s, 8);
    layout = (LoaderLayout){.validation = true, .sequences = 1, .microbatches = 1};
    assert_int_equal(loader_open(&l, d, &layout, 1, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "no validation data"));
    dataset_close(d);
    free(s);
}

/* Sources that differ in anything that decides ids never share a cache; equal sources always do. */
static void test_what_makes_a_cache(void **state) {
    (void)state;
    char base[65], other[65];
    Setup *s = new_setup();
    snprintf(s->cache, sizeof s->cache, "%s", files_path("keys"));
    train_on(s, files_text("k.txt", "a b c\n\nd e f\n"), 0, SPLIT_FILE);
    Dataset *d = open_data(s, 4);
    dataset_fingerprint(d, base);
    dataset_close(d);
    for (int change = 0; change < 6; change++) {
        Setup t = *s;
        t.train[0].path = t.paths[0];
        t.c.sources.items = (char *)t.train;
        t.c.cache_dir = t.cache;
        if (change == 1) t.train[0].split = SPLIT_LINES;
        if (change == 2) t.c.add_bos = false;
        if (change == 3) t.c.add_eos = false;
        if (change == 4) t.c.validation_fraction = 0.3;
        if (change == 5) files_text("k.txt", "a b c\n\nd e F\n");
        d = open_data(&t, 4);
        dataset_fingerprint(d, other);
        if (change == 0)
            assert_string_equal(base, other);
        else
            assert_string_not_equal(base, other);
        dataset_close(d);
    }
    free(s);
}

/* ---- caches of a source of several files ---- */

enum { SHARDS = 40 };

/* The directory with files, each sometimes followed by an empty one. */
static void write_shards(void) {
    mkdir(files_path("shards"), 0777);
    for (unsigned i = 0; i < SHARDS; i++) {
        char name[64];
        snprintf(name, sizeof name, "shards/%02u-a.txt", i);
        book(name, 20 + i * 37 % 300, i);
        snprintf(name, sizeof name, "shards/%02u-b.txt", i);
        if (i % 9 == 0) files_text(name, "");
    }
}

static Dataset *open_shards(const char *cache, uint64_t unit_bytes) {
    Setup *s = new_setup();
    snprintf(s->cache, sizeof s->cache, "%s", files_path(cache));
    train_on(s, files_path("shards/*.txt"), 0, SPLIT_PARAGRAPHS);
    s->c.document_mask = true;
    s->c.validation_fraction = 0.05;
    s->c.unit_bytes = unit_bytes;
    Dataset *d = open_data(s, 48);
    free(s);
    return d;
}

static size_t count_caches(const char *cache) {
    size_t count = 0;
    DIR *dir = opendir(files_path(cache));
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) count += strlen(e->d_name) == 32;
    closedir(dir);
    return count;
}

static void expect_same_data(const Dataset *a, const Dataset *b) {
    char x[65], y[65];
    dataset_fingerprint(a, x);
    dataset_fingerprint(b, y);
    assert_string_equal(x, y);
    Rows p = new_rows(48), q = new_rows(48);
    for (int validation = 0; validation < 2; validation++) {
        uint64_t samples = validation ? dataset_validation_samples(a) : dataset_samples_per_epoch(a);
        for (uint64_t k = 0; k < samples; k++) {
            get(a, validation, k, &p);
            get(b, validation, k, &q);
            assert_int_equal(p.valid, q.valid);
            assert_memory_equal(p.inputs, q.inputs, 48 * sizeof *p.inputs);
            assert_memory_equal(p.targets, q.targets, 48 * sizeof *p.targets);
            assert_memory_equal(p.positions, q.positions, 48 * sizeof *p.positions);
        }
    }
    free(p.inputs);
    free(q.inputs);
}

/* Samples do not depend on how files are distributed over caches. A single cache of all files, as earlier
 * versions made, is accepted. */
static void test_caches_do_not_change_samples(void **state) {
    (void)state;
    write_shards();
    Dataset *whole = open_shards("whole", 1u << 30);
    assert_int_equal(count_caches("whole"), 1);
    static const uint64_t least[] = {1, 1000, 4000};
    size_t caches[3];
    for (int i = 0; i < 3; i++) {
        char name[16];
        snprintf(name, sizeof name, "units%d", i);
        Dataset *d = open_shards(name, least[i]);
        expect_same_data(whole, d);
        caches[i] = count_caches(name);
        dataset_close(d);
    }
    assert_true(caches[0] > caches[1] && caches[1] > caches[2] && caches[2] > 1);
    Dataset *again = open_shards("whole", 1);
    assert_int_equal(count_caches("whole"), 1);
    expect_same_data(whole, again);
    dataset_close(again);
    dataset_close(whole);
}

/* A file that is changed, added or removed invalidates its cache and few near it. */
static void test_a_change_costs_one_cache(void **state) {
    (void)state;
    write_shards();
    dataset_close(open_shards("changes", 1000));
    size_t before = count_caches("changes"), after;
    assert_true(before > 8);
    book("shards/17-a.txt", 50, 99);
    dataset_close(open_shards("changes", 1000));
    after = count_caches("changes");
    assert_true(after > before && after <= before + 3);
    before = after;
    book("shards/03-c.txt", 200, 98);
    unlink(files_path("shards/31-a.txt"));
    dataset_close(open_shards("changes", 1000));
    after = count_caches("changes");
    assert_true(after > before && after <= before + 6);
    unlink(files_path("shards/03-c.txt"));
}

/* A corpus of terabytes in small files needs fewer maps than Linux allows per process. */
static void test_caches_grow_with_their_source(void **state) {
    (void)state;
    enum { FILES = 200000 };
    Fingerprint *prints = mem_alloc_array(FILES, sizeof *prints);
    static const struct {
        int64_t size;
        uint64_t least, most;
    } sources[] = {{10 << 10, 8 << 20, 100}, {60 << 10, 16 << 20, 300}, {16 << 20, 64 << 20, 3u << 14}};
    for (int i = 0; i < FILES; i++)
        snprintf(prints[i].sha256, sizeof prints[i].sha256, "%016llx",
                 (unsigned long long)(i + 1) * 0x9e3779b97f4a7c15u);
    for (size_t k = 0; k < sizeof sources / sizeof *sources; k++) {
        uint64_t caches = 0;
        for (int i = 0; i < FILES; i++) prints[i].stamp.size = sources[k].size;
        assert_int_equal(token_unit_least(prints, FILES), sources[k].least);
        for (size_t at = 0; at < FILES; caches++)
            at += token_unit_files(prints + at, 0, FILES - at, sources[k].least);
        assert_in_range(caches, 10, sources[k].most);
    }
    free(prints);
}

/* Two processes that need the same caches in opposite orders wait for each other, but do not deadlock. */
static void test_builders_in_opposite_orders(void **state) {
    (void)state;
    write_shards();
    pid_t child = fork();
    Setup *s = new_setup();
    snprintf(s->cache, sizeof s->cache, "%s", files_path("both"));
    s->c.unit_bytes = 1;
    char order[2][512];
    for (int i = 0; i < 2; i++)
        snprintf(order[i], sizeof order[i], "%s", files_path(i ? "shards/2*.txt" : "shards/1*.txt"));
    train_on(s, order[child == 0], 0, SPLIT_FILE);
    train_on(s, order[child != 0], 0, SPLIT_FILE);
    Dataset *d = open_data(s, 48);
    dataset_close(d);
    free(s);
    if (child == 0) _exit(0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
}

/* ---- data.order: stream ---- */

enum { BLOCK = 8 /* windows */, CONTEXT = 48 };

typedef ErrorCode Open(Dataset **, const DataConfig *, const Tokenizer *, int64_t, int, Error *);

/* The shards as one corpus, or as a mixture of two sources; `config` must outlive the dataset. */
static Dataset *open_stream(Setup *config, const char *cache, bool mixed, Open *how) {
    Dataset *d;
    Error err = {0};
    snprintf(config->cache, sizeof config->cache, "%s", files_path(cache));
    train_on(config, files_path(mixed ? "shards/[01]*.txt" : "shards/*.txt"), mixed ? 3 : 0,
             SPLIT_PARAGRAPHS);
    if (mixed) train_on(config, files_path("shards/[23]*.txt"), 1, SPLIT_PARAGRAPHS);
    config->c.order = ORDER_STREAM;
    config->c.stream_block = BLOCK * CONTEXT;
    config->c.unit_bytes = 1000;
    config->c.document_mask = true;
    if (how(&d, &config->c, tokenizer, CONTEXT, 2, &err) != OK) fail_msg("%s", err.message);
    return d;
}

static void await_sample(const Dataset *d, uint64_t k) {
    Error err = {0};
    for (bool ready = false; !ready;) {
        if (dataset_ready(d, k, &ready, &err) != OK) fail_msg("%s", err.message);
        if (!ready) usleep(1000);
    }
}

typedef struct StreamSample {
    Sample at;
    int64_t valid;
    int32_t rows[4 * CONTEXT];
} StreamSample;

/* The first `count` samples, in order, each as soon as it is there. */
static StreamSample *read_stream(const char *cache, bool mixed, Open *how, size_t count) {
    Setup *config = new_setup();
    Dataset *d = open_stream(config, cache, mixed, how);
    StreamSample *samples = calloc(count, sizeof *samples);
    Rows r = new_rows(CONTEXT);
    for (size_t k = 0; k < count; k++) {
        await_sample(d, k);
        get(d, false, k, &r);
        samples[k].at = dataset_locate(d, k);
        samples[k].valid = r.valid;
        memcpy(samples[k].rows, r.inputs, sizeof samples[k].rows);
    }
    free(r.inputs);
    dataset_close(d);
    free(config);
    return samples;
}

static void expect_same_samples(const StreamSample *a, StreamSample *b, size_t count) {
    for (size_t k = 0; k < count; k++) {
        assert_int_equal(a[k].at.source, b[k].at.source);
        assert_int_equal(a[k].at.epoch, b[k].at.epoch);
        assert_int_equal(a[k].at.window, b[k].at.window);
        assert_int_equal(a[k].valid, b[k].valid);
        assert_memory_equal(a[k].rows, b[k].rows, sizeof a[k].rows);
    }
    free(b);
}

/* Removes every third cache. */
static void remove_some_caches(const char *cache) {
    size_t seen = 0;
    DIR *dir = opendir(files_path(cache));
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        char command[1200];
        if (strlen(e->d_name) != 32 || seen++ % 3) continue;
        snprintf(command, sizeof command, "rm -r '%s/%s'", files_path(cache), e->d_name);
        assert_int_equal(system(command), 0);
    }
    closedir(dir);
}

/* What a sample is depends neither on how much of the cache is there, nor on who waits for all of it. */
static void test_stream_does_not_depend_on_the_cache(void **state) {
    (void)state;
    write_shards();
    for (int mixed = 0; mixed < 2; mixed++) {
        const char *cache = mixed ? "stream-mixed" : "stream";
        enum { COUNT = 4000 };
        StreamSample *first = read_stream(cache, mixed, dataset_open_growing, COUNT);
        assert_true(count_caches(cache) > 8);
        assert_true(first[COUNT - 1].at.epoch > 0);
        expect_same_samples(first, read_stream(cache, mixed, dataset_open_growing, COUNT), COUNT);
        remove_some_caches(cache);
        expect_same_samples(first, read_stream(cache, mixed, dataset_open_growing, COUNT), COUNT);
        remove_some_caches(cache);
        expect_same_samples(first, read_stream(cache, mixed, dataset_open, COUNT), COUNT);
        free(first);
    }
}

/* The tokenizer's progress counts as the run's only when a sample is asked for. */
static void test_tokenizing_does_not_hide_a_hang(void **state) {
    (void)state;
    write_shards();
    Setup *config = new_setup(), *whole = new_setup();
    bool ready;
    Error err = {0};
    dataset_close(open_stream(whole, "stream-beats", false, dataset_open));
    free(whole);
    size_t caches = count_caches("stream-beats");
    Dataset *d = open_stream(config, "stream-silent", false, dataset_open_growing);
    assert_int_equal(dataset_ready(d, 0, &ready, &err), OK);
    uint64_t before = progress_beats();
    while (count_caches("stream-silent") < caches) usleep(1000);
    assert_int_equal(progress_beats(), before);
    await_sample(d, 0);
    assert_true(progress_beats() > before);
    dataset_close(d);
    free(config);
}

/* Epoch 0 is a permutation within each block, later epochs are permutations of all; orders of epochs
 * differ. */
static void test_stream_reads_every_window_once_an_epoch(void **state) {
    (void)state;
    write_shards();
    Setup *config = new_setup();
    Dataset *d = open_stream(config, "stream-once", false, dataset_open);
    uint64_t windows = dataset_samples_per_epoch(d), moved = 0, differ = 0;
    assert_true(windows > 10 * BLOCK);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        bool *seen = calloc(windows, 1);
        for (uint64_t i = 0; i < windows; i++) {
            await_sample(d, epoch * windows + i);
            Sample at = dataset_locate(d, epoch * windows + i), before = dataset_locate(d, i);
            assert_int_equal(at.epoch, epoch);
            assert_true(at.window < windows && !seen[at.window]);
            seen[at.window] = true;
            if (epoch == 0) assert_int_equal(at.window / BLOCK, i / BLOCK);
            moved += at.window != i;
            differ += epoch > 0 && at.window != before.window;
        }
        free(seen);
    }
    assert_true(moved > 2 * windows && differ > windows);
    dataset_close(d);
    free(config);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_token_is_a_target_once),
        cmocka_unit_test(test_document_mask),
        cmocka_unit_test(test_validation_is_never_trained_on),
        cmocka_unit_test(test_validation_files_and_mixture),
        cmocka_unit_test(test_named_validation_sets),
        cmocka_unit_test(test_depth_and_restart_do_not_matter),
        cmocka_unit_test(test_ranks_share_a_step),
        cmocka_unit_test(test_validation_loader),
        cmocka_unit_test(test_damage_reaches_the_caller),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_what_makes_a_cache),
        cmocka_unit_test(test_caches_do_not_change_samples),
        cmocka_unit_test(test_a_change_costs_one_cache),
        cmocka_unit_test(test_caches_grow_with_their_source),
        cmocka_unit_test(test_builders_in_opposite_orders),
        cmocka_unit_test(test_stream_does_not_depend_on_the_cache),
        cmocka_unit_test(test_tokenizing_does_not_hide_a_hang),
        cmocka_unit_test(test_stream_reads_every_window_once_an_epoch),
    };
    return cmocka_run_group_tests(tests, bytes_setup, bytes_teardown);
}
