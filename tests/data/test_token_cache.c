/* The token cache: content, independence of threads and interruptions, and every kind of damage. */
#include "support/bytes_tokenizer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "base/hash.h"
#include "data/token_build.h"
#include "data/token_shard.h"
#include "tokenizer/tokenizer_train.h"
#include "support/tokenizer_families.h"

static const uint8_t key[32] = {1, 2, 3};

typedef struct Spec {
    const char *dir;
    const char *paths[4];
    size_t count;
    SourceSplit split;
    int32_t bos, eos;
    int threads;
    uint64_t part_bytes;
} Spec;

/* What builds leave out; nothing unless a test sets it. */
static struct {
    uint64_t min_bytes, max_bytes;
    bool dedup;
} left_out;

static ErrorCode build(const Spec *s, Error *err) {
    CorpusFile files[4];
    Fingerprint prints[4];
    for (size_t i = 0; i < s->count; i++)
        files[i] = (CorpusFile){.path = s->paths[i],
                                .format = FORMAT_AUTO,
                                .split = s->split,
                                .key = "text",
                                .encoding = ENCODING_BYTES,
                                .min_bytes = left_out.min_bytes,
                                .max_bytes = left_out.max_bytes};
    TRY(fingerprint_files(files_root, s->paths, s->count, prints, err));
    TokenUnit unit = {.dir = s->dir, .count = s->count};
    memcpy(unit.key, key, sizeof key);
    TokenBuild b = {.label = "test",
                    .files = files,
                    .prints = prints,
                    .units = &unit,
                    .unit_count = 1,
                    .tokenizer = tokenizer,
                    .bos = s->bos,
                    .eos = s->eos,
                    .threads = s->threads,
                    .part_bytes = s->part_bytes,
                    .dedup = left_out.dedup};
    return token_build(&b, err);
}

static TokenCache *open_cache(const char *dir) {
    TokenCache *c;
    Error err = {0};
    if (token_cache_open(&c, dir, key, VOCABULARY, &err) != OK) fail_msg("%s", err.message);
    return c;
}

static TokenCache *build_and_open(const Spec *s) {
    Error err = {0};
    if (build(s, &err) != OK) fail_msg("%s", err.message);
    TokenCache *c = open_cache(s->dir);
    assert_true(token_cache_complete(c));
    return c;
}

static void test_content(void **state) {
    (void)state;
    files_text("c1.txt", "ab\nc\n");
    files_text("c2.jsonl", "{\"text\": \"\xc3\xa9\"}\n{\"text\": \"\"}\n{\"text\": \"<|end_of_text|>\"}\n");
    files_text("c3.txt", "");
    Spec s = {files_path("content"),
              {files_path("c1.txt"), files_path("c2.jsonl"), files_path("c3.txt")},
              3,
              SPLIT_LINES,
              BOS,
              EOS,
              2,
              0};
    TokenCache *c = build_and_open(&s);
    const char *marker = "<|end_of_text|>";
    int32_t expected[64], starts[64], ids[64];
    size_t n = 0, begin[8], documents = 0;
    const char *texts[] = {"ab\n", "c\n", "\xc3\xa9", marker};
    for (size_t d = 0; d < 4; d++) {
        begin[documents++] = n;
        expected[n++] = BOS;
        for (const char *t = texts[d]; *t; t++) expected[n++] = (unsigned char)*t;
        expected[n++] = EOS;
    }
    assert_int_equal(token_cache_tokens(c), n);
    assert_int_equal(token_cache_documents(c), 4);
    assert_int_equal(token_cache_text_bytes(c), 5 + 2 + strlen(marker));
    Error err;
    assert_int_equal(token_cache_read(c, 0, n, ids, starts, &err), OK);
    assert_memory_equal(ids, expected, n * sizeof *ids);
    for (size_t t = 0, d = 0; t < n; t++) {
        bool start = d < documents && begin[d] == t;
        assert_int_equal(starts[t], start);
        d += start;
        assert_int_equal(token_cache_document_end(c, t), start && t == 0 ? begin[1]
                                                         : start         ? t
                                                         : d < 4         ? begin[d]
                                                                         : n);
    }
    assert_int_equal(token_cache_read(c, n, 0, ids, starts, &err), OK);
    assert_int_equal(token_cache_read(c, n, 1, ids, starts, &err), ERR_INTERNAL);
    assert_int_equal(token_cache_read(c, UINT64_MAX, 2, ids, starts, &err), ERR_INTERNAL);
    token_cache_close(c);
}

static void test_empty_source(void **state) {
    (void)state;
    files_text("e.txt", "");
    Spec s = {files_path("empty"), {files_path("e.txt")}, 1, SPLIT_FILE, BOS, EOS, 1, 0};
    TokenCache *c = build_and_open(&s);
    assert_int_equal(token_cache_tokens(c), 0);
    assert_int_equal(token_cache_documents(c), 0);
    token_cache_close(c);
    c = open_cache(files_path("nowhere"));
    assert_false(token_cache_complete(c));
    assert_null(token_cache_last_shard(c));
    token_cache_close(c);
}

/* About `bytes` of JSON lines or text that identifies its position. */
static const char *big_file(const char *name, size_t bytes, bool json) {
    Text t = {0};
    for (unsigned i = 0; t.length < bytes; i++) {
        if (json)
            text_printf(&t, "{\"text\": \"document %u %0*u\"}\n", i, (int)(i % 300) + 1, i);
        else
            text_printf(&t, "Line %u of a book%s\n", i * 2654435761u, i % 40 == 0 ? ".\n" : "");
    }
    const char *path = files_write(name, t.data, t.length);
    text_free(&t);
    return path;
}

static void expect_same_files(const char *a, const char *b, size_t *shards) {
    for (*shards = 0;; ++*shards) {
        char *pa = token_shard_path(a, *shards), *pb = token_shard_path(b, *shards);
        bool exists = access(pa, F_OK) == 0;
        assert_int_equal(exists, access(pb, F_OK) == 0);
        if (exists) {
            size_t la, lb;
            char *da = files_read(pa, &la), *db = files_read(pb, &lb);
            assert_int_equal(la, lb);
            assert_memory_equal(da, db, la);
            free(da);
            free(db);
        }
        free(pa);
        free(pb);
        if (!exists) return;
    }
}

static void test_threads_do_not_matter(void **state) {
    (void)state;
    const char *paths[] = {big_file("t1.txt", 3u << 20, false), big_file("t2.jsonl", 3u << 20, true)};
    Spec one = {files_path("one"), {paths[0], paths[1]}, 2, SPLIT_FILE, -1, EOS, 1, 1u << 20};
    Spec four = one;
    four.dir = files_path("four");
    four.threads = 4;
    TokenCache *a = build_and_open(&one), *b = build_and_open(&four);
    size_t shards;
    expect_same_files(one.dir, four.dir, &shards);
    assert_true(shards >= 4);
    Error err = {0};
    assert_int_equal(token_cache_verify(a, &err), OK);
    /* The text file is one document, whose tokens span several shards. */
    size_t length;
    char *text = files_read(paths[0], &length);
    int32_t *ids = malloc(length * sizeof *ids), *starts = malloc(length * sizeof *starts);
    assert_int_equal(token_cache_read(a, 0, length, ids, starts, &err), OK);
    for (size_t i = 0; i < length; i++) {
        if (ids[i] != (unsigned char)text[i]) fail_msg("token %zu", i);
        if (starts[i] != (i == 0)) fail_msg("start %zu", i);
    }
    assert_int_equal(token_cache_document_end(a, 5), length + 1);
    free(ids);
    free(starts);
    free(text);
    token_cache_close(a);
    token_cache_close(b);
}

/* Words, punctuation, runs of all kinds of white space, multi-byte letters, broken UTF-8. */
static void nasty_text(Text *t, size_t length) {
    static const char *const shards[] = {"word",
                                         "/",
                                         "!?",
                                         " ",
                                         "\n",
                                         "\n\n",
                                         "\r\n",
                                         "caf\xc3\xa9",
                                         "\xe3\x80\x80",
                                         "\xe4\xb8\xad",
                                         "'s",
                                         " \t ",
                                         "12345",
                                         "...",
                                         "\xe2\x80\xa8",
                                         "\xff\xfe",
                                         "e\xcc\x81",
                                         "\xc2\xa0",
                                         "\xe2\x80\x94",
                                         "the ",
                                         "\xf0\x9f\x98\x80",
                                         "He said:"};
    unsigned seed = 12;
    while (t->length < length) {
        seed = seed * 1664525u + 1013904223u;
        text_puts(t, shards[(seed >> 16) % (sizeof shards / sizeof *shards)]);
    }
}

/* A document cut into chunks has the same tokens as the whole. */
static void test_pieces_do_not_change_tokens(void **state) {
    (void)state;
    /* Trained with a pattern; or a form that puts a space before the text, and one that needs whole
     * documents. */
    const char *kinds[] = {"gpt2", "llama3", "qwen2", "o200k", "llama2", "mistral, merges across words"};
    Text t = {0};
    Error err = {0};
    nasty_text(&t, 3u << 19);
    const char *path = files_write("nasty.txt", t.data, t.length);
    Tokenizer *bytes = tokenizer;
    assert_int_equal(families_read(), 0);
    for (int i = 0; i < 6; i++) {
        TokenizerTrainOptions options = {
            .vocab_size = 700, .pattern = kinds[i], .threads = 1, .quiet = true, .any_bytes = true};
        if (i < 4)
            assert_int_equal(tokenizer_train_files(&tokenizer, &options, &path, 1, NULL, &err), OK);
        else
            tokenizer = family_open(cJSON_GetObjectItem(cJSON_GetObjectItem(families, "families"), kinds[i]));
        assert_int_equal(tokenizer_whole_documents(tokenizer), i == 5);
        TokenList whole = {0};
        assert_int_equal(tokenizer_encode(tokenizer, t.data, t.length, &whole, &err), OK);
        Spec s = {files_path(kinds[i]), {path}, 1, SPLIT_FILE, -1, -1, 2, 0};
        if (build(&s, &err) != OK) fail_msg("%s", err.message);
        TokenCache *c;
        assert_int_equal(token_cache_open(&c, s.dir, key, (uint64_t)tokenizer_vocab_size(tokenizer), &err),
                         OK);
        assert_int_equal(token_cache_tokens(c), whole.count);
        int32_t *ids = malloc(whole.count * sizeof *ids), *starts = malloc(whole.count * sizeof *starts);
        assert_int_equal(token_cache_read(c, 0, whole.count, ids, starts, &err), OK);
        assert_memory_equal(ids, whole.ids, whole.count * sizeof *ids);
        free(ids);
        free(starts);
        token_list_free(&whole);
        token_cache_close(c);
        tokenizer_free(tokenizer);
    }
    tokenizer = bytes;
    cJSON_Delete(families);
    text_free(&t);
}

/* Reading any range gives the same as reading everything. */
static void test_ranges(void **state) {
    (void)state;
    Spec s = {files_path("one"), {files_path("t1.txt"), files_path("t2.jsonl")}, 2, SPLIT_FILE, -1, EOS, 1,
              1u << 20};
    TokenCache *c = build_and_open(&s);
    size_t n = (size_t)token_cache_tokens(c);
    int32_t *ids = malloc(n * 4), *starts = malloc(n * 4), some[3000], some_starts[3000];
    Error err;
    assert_int_equal(token_cache_read(c, 0, n, ids, starts, &err), OK);
    unsigned seed = 1;
    for (int i = 0; i < 2000; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t begin = (size_t)seed % n, count = seed % 2999 + 1;
        if (count > n - begin) count = n - begin;
        assert_int_equal(token_cache_read(c, begin, count, some, some_starts, &err), OK);
        assert_memory_equal(some, ids + begin, count * 4);
        assert_memory_equal(some_starts, starts + begin, count * 4);
    }
    size_t end = n;
    for (size_t t = n; t-- > 1;) {
        if (starts[t]) end = t;
        if (token_cache_document_end(c, t) != end) fail_msg("document end of token %zu", t);
    }
    free(ids);
    free(starts);
    token_cache_close(c);
}

/* 6 MB of text in 6 kB, with 1,500 nulls. */
static const char *parquet_file(const char *name) {
    size_t length;
    char *bytes = files_read(WEFT_SOURCE_DIR "/tests/fuzz/corpus/parquet/hand-repeats", &length);
    const char *path = files_write(name, bytes, length);
    free(bytes);
    return path;
}

/* A build that is killed repeatedly ends with the same bytes. */
static void test_interrupted_build_goes_on(void **state) {
    (void)state;
    const char *paths[] = {big_file("k1.txt", 9u << 18, false), files_path("k2.jsonl.zst"),
                           parquet_file("k3.parquet")};
    size_t length;
    char *json = files_read(big_file("k2.jsonl", 9u << 18, true), &length);
    files_zstd("k2.jsonl.zst", json, length, SIZE_MAX);
    free(json);
    Spec calm = {files_path("calm"), {paths[0], paths[1], paths[2]}, 3, SPLIT_FILE, BOS, EOS, 2, 1u << 19};
    token_cache_close(build_and_open(&calm));
    Spec killed = calm;
    killed.dir = files_path("killed");
    int kills = 0;
    for (int round = 0; round < 200; round++) {
        pid_t child = fork();
        if (child == 0) {
            close(STDERR_FILENO);
            Error err;
            _exit(build(&killed, &err) == OK ? 0 : 1);
        }
        /* Let it commit one more shard, then kill it. */
        struct timespec nap = {0, 2000000};
        int status = 0;
        char *next = NULL;
        TokenCache *c = open_cache(killed.dir);
        uint64_t shards = token_cache_last_shard(c) ? token_cache_last_shard(c)->shard + 1 : 0;
        token_cache_close(c);
        next = token_shard_path(killed.dir, shards);
        while (waitpid(child, &status, WNOHANG) == 0 && access(next, F_OK) != 0) nanosleep(&nap, NULL);
        free(next);
        kill(child, SIGKILL);
        waitpid(child, &status, 0);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            break;
        }
        kills++;
    }
    TokenCache *c = build_and_open(&killed);
    assert_int_equal(token_cache_figures(c).null_rows, 1500);
    token_cache_close(c);
    assert_true(kills >= 2);
    size_t shards;
    expect_same_files(calm.dir, killed.dir, &shards);
    assert_true(shards >= 5);
}

/* Lines 0 to 2,999 three times, in another order each time; a few are empty. */
static const char *repeated_lines(const char *name) {
    Text t = {0};
    for (unsigned i = 0; i < 9000; i++) {
        unsigned k = i * (1 + i / 3000 * 2) % 3000;
        text_printf(&t, "{\"text\": \"%0*u\"}\n", (int)(k % 700), k);
    }
    text_puts(&t, "{\"text\": \"\"}\n");
    const char *path = files_write(name, t.data, t.length);
    text_free(&t);
    return path;
}

/* The first of equal documents stays, with any number of threads, and after an interruption. */
static void test_duplicates(void **state) {
    (void)state;
    const char *paths[] = {repeated_lines("d1.jsonl"), big_file("d2.txt", 3u << 20, false),
                           repeated_lines("d3.jsonl"), files_text("d4.txt", "x")};
    Spec one = {
        files_path("dedup"), {paths[0], paths[1], paths[2], paths[3]}, 4, SPLIT_FILE, BOS, EOS, 1, 1u << 18};
    left_out.dedup = true;
    Spec four = one;
    four.dir = files_path("dedup4");
    four.threads = 4;
    TokenCache *c = build_and_open(&one);
    assert_int_equal(token_cache_documents(c), 3002);
    assert_int_equal(token_cache_figures(c).duplicates, 5 * 3000);
    size_t shards;
    token_cache_close(c);
    token_cache_close(build_and_open(&four));
    expect_same_files(one.dir, four.dir, &shards);
    assert_true(shards >= 3);
    for (size_t left = shards - 1, same; left > 0; left--) {
        for (size_t k = left; k < shards; k++) {
            char *path = token_shard_path(four.dir, k);
            unlink(path);
            free(path);
        }
        token_cache_close(build_and_open(&four));
        expect_same_files(one.dir, four.dir, &same);
        assert_int_equal(same, shards);
    }
    left_out.dedup = false;
}

/* Long documents count as a whole, though they are read in chunks. */
static void test_lengths(void **state) {
    (void)state;
    const char *paths[] = {files_text("l1.jsonl",
                                      "{\"text\": \"abc\"}\n{\"text\": \"ab\"}\n{\"text\": \"\"}\n"
                                      "{\"text\": \"\xc3\xa9"
                                      "12\"}\n{\"text\": \"abcde\"}\n"),
                           big_file("l2.txt", 3u << 20, false)};
    Spec s = {files_path("lengths"), {paths[0], paths[1]}, 2, SPLIT_FILE, BOS, EOS, 2, 0};
    left_out.min_bytes = 3;
    left_out.max_bytes = 4;
    TokenCache *c = build_and_open(&s);
    assert_int_equal(token_cache_documents(c), 2);
    assert_int_equal(token_cache_text_bytes(c), 7);
    assert_int_equal(token_cache_figures(c).short_documents, 1);
    assert_int_equal(token_cache_figures(c).long_documents, 2);
    token_cache_close(c);
    left_out.min_bytes = left_out.max_bytes = 0;
}

/* Without its last shards a cache is incomplete, and is completed to the same bytes from whatever shard is
 * the last. */
static void test_any_part_can_be_the_last_done(void **state) {
    (void)state;
    Spec s = {files_path("calm"),
              {files_path("k1.txt"), files_path("k2.jsonl.zst"), files_path("k3.parquet")},
              3,
              SPLIT_FILE,
              BOS,
              EOS,
              2,
              1u << 19};
    Spec again = s;
    again.dir = files_path("again");
    TokenCache *c = build_and_open(&s);
    uint64_t shards = token_cache_last_shard(c)->shard + 1;
    token_cache_close(c);
    for (uint64_t keep = 0; keep <= shards; keep++) {
        mkdir(again.dir, 0700);
        for (uint64_t i = 0; i < keep; i++) {
            char *from = token_shard_path(s.dir, i), *to = token_shard_path(again.dir, i);
            assert_int_equal(link(from, to), 0);
            free(from);
            free(to);
        }
        c = open_cache(again.dir);
        assert_int_equal(token_cache_complete(c), keep == shards);
        token_cache_close(c);
        token_cache_close(build_and_open(&again));
        size_t same;
        expect_same_files(s.dir, again.dir, &same);
        assert_int_equal(same, shards);
        file_remove_tree(again.dir, NULL);
    }
}

/* ---- damage ---- */

typedef struct Damage {
    char *data;
    size_t length;
    char path[512];
} Damage;

static Damage fresh(const char *dir) {
    Spec s = {files_path(dir), {big_file("d.txt", 200000, false)}, 1, SPLIT_PARAGRAPHS, BOS, EOS, 1, 0};
    token_cache_close(build_and_open(&s));
    Damage d;
    char *path = token_shard_path(s.dir, 0);
    snprintf(d.path, sizeof d.path, "%s", path);
    free(path);
    d.data = files_read(d.path, &d.length);
    return d;
}

static void put(const char *path, const char *data, size_t length) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, length, f), length);
    fclose(f);
}

/* Opens and reads everything; the message must name the file and say what to do. */
static void expect_damage(const Damage *d, const char *dir, const char *shard) {
    TokenCache *c;
    Error err = {0};
    ErrorCode code = token_cache_open(&c, files_path(dir), key, VOCABULARY, &err);
    if (code == OK) {
        code = token_cache_verify(c, &err);
        token_cache_close(c);
    }
    assert_int_equal(code, ERR_DATA);
    assert_non_null(strstr(err.message, d->path));
    assert_true(strstr(err.message, "delete") || strstr(err.message, "remove"));
    if (!strstr(err.message, shard)) fail_msg("'%s' is not in: %s", shard, err.message);
}

static void test_every_flipped_bit_is_found(void **state) {
    (void)state;
    Damage d = fresh("flip");
    unsigned seed = 3;
    for (int i = 0; i < 600; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t at = (size_t)(seed >> 3) % d.length;
        if (i < 168) at = (size_t)i;                        /* every byte of the header */
        if (at >= 168 && at < TOKEN_HEADER_BYTES) continue; /* padding */
        d.data[at] ^= (char)(1 << (seed & 7));
        put(d.path, d.data, d.length);
        expect_damage(&d, "flip", "");
        d.data[at] ^= (char)(1 << (seed & 7));
    }
    free(d.data);
}

static void test_every_length_is_checked(void **state) {
    (void)state;
    Damage d = fresh("cut");
    for (size_t keep = 0; keep < d.length; keep += keep < 200 ? 1 : 1 + d.length / 97) {
        put(d.path, d.data, keep);
        expect_damage(&d, "cut", keep < sizeof(TokenHeader) ? "not a token cache" : "truncated");
    }
    char *longer = malloc(d.length + 1);
    memcpy(longer, d.data, d.length);
    longer[d.length] = 0;
    put(d.path, longer, d.length + 1);
    expect_damage(&d, "cut", "too long");
    free(longer);
    free(d.data);
}

/* Modifies the header, with a correct checksum. */
static void reseal(Damage *d, const TokenHeader *h) {
    TokenHeader copy = *h;
    copy.header_checksum = hash64(&copy, offsetof(TokenHeader, header_checksum));
    memcpy(d->data, &copy, sizeof copy);
    put(d->path, d->data, d->length);
}

static void test_foreign_and_newer_files(void **state) {
    (void)state;
    Damage d = fresh("foreign");
    TokenHeader h, good;
    memcpy(&good, d.data, sizeof good);
    h = good;
    h.version = TOKEN_VERSION + 1;
    reseal(&d, &h);
    expect_damage(&d, "foreign", "newer weft");
    h.version = 0;
    reseal(&d, &h);
    expect_damage(&d, "foreign", "unknown version");
    h = good;
    h.key[5] ^= 1;
    reseal(&d, &h);
    expect_damage(&d, "foreign", "another corpus or tokenizer");
    h = good;
    memcpy(h.magic,
           "\x7f"
           "ELF....",
           8);
    reseal(&d, &h);
    expect_damage(&d, "foreign", "not a token cache");
    const uint64_t wild[] = {
        0, UINT64_MAX, UINT64_C(1) << 55, UINT64_C(1) << 62, good.tokens + 1, good.tokens - 1};
    for (size_t i = 0; i < sizeof wild / sizeof *wild; i++) {
        h = good;
        h.tokens = wild[i];
        reseal(&d, &h);
        expect_damage(&d, "foreign", "");
        h = good;
        h.documents = wild[i];
        reseal(&d, &h);
        expect_damage(&d, "foreign", "");
    }
    for (uint32_t bytes = 0; bytes < 10; bytes++) {
        if (bytes == 2) continue;
        h = good;
        h.id_bytes = bytes;
        reseal(&d, &h);
        expect_damage(&d, "foreign", "impossible");
    }
    h = good;
    h.vocabulary = 1000;
    reseal(&d, &h);
    expect_damage(&d, "foreign", "impossible");
    h = good;
    h.first_token = 5;
    reseal(&d, &h);
    expect_damage(&d, "foreign", "does not continue");
    free(d.data);
}

/* Wrong ids and document ends, although every checksum is correct. */
static void test_content_is_not_trusted(void **state) {
    (void)state;
    Damage d = fresh("wrong");
    TokenHeader h;
    TokenLayout layout;
    memcpy(&h, d.data, sizeof h);
    assert_true(token_layout(&h, &layout));
    uint16_t id = VOCABULARY;
    memcpy(d.data + TOKEN_HEADER_BYTES + 2 * 1234, &id, sizeof id);
    uint64_t sum = hash64(d.data + TOKEN_HEADER_BYTES, TOKEN_BLOCK_BYTES);
    memcpy(d.data + layout.sums_at, &sum, sizeof sum);
    h.index_checksum = hash64(d.data + layout.ends_at, (size_t)(layout.file_bytes - layout.ends_at));
    reseal(&d, &h);
    expect_damage(&d, "wrong", "token 1234 has id 258, outside the vocabulary of 258");
    free(d.data);

    d = fresh("ends");
    memcpy(&h, d.data, sizeof h);
    uint64_t end = h.tokens + 1, *ends = (uint64_t *)(void *)(d.data + layout.ends_at);
    uint64_t last = ends[h.documents - 1];
    for (int i = 0; i < 3; i++) {
        ends[h.documents - 1] = i == 0 ? end : i == 1 ? ends[h.documents - 2] : 0;
        h.index_checksum = hash64(d.data + layout.ends_at, (size_t)(layout.file_bytes - layout.ends_at));
        reseal(&d, &h);
        expect_damage(&d, "ends", "document ends out of order");
        ends[h.documents - 1] = last;
    }
    free(d.data);
}

static void test_build_refuses_to_build_on_damage(void **state) {
    (void)state;
    Spec s = {files_path("calm"),
              {files_path("k1.txt"), files_path("k2.jsonl.zst"), files_path("k3.parquet")},
              3,
              SPLIT_FILE,
              BOS,
              EOS,
              2,
              1u << 19};
    char *path = token_shard_path(s.dir, 1);
    assert_int_equal(truncate(path, 5000), 0);
    Error err = {0};
    assert_int_equal(build(&s, &err), ERR_DATA);
    assert_non_null(strstr(err.message, path));
    free(path);
}

static void test_wide_ids(void **state) {
    (void)state;
    const int32_t ids[] = {0, 70000, 128255, 65536};
    const uint64_t ends[] = {0, 2, 2, 4};
    Error err = {0};
    ShardWriter *w;
    assert_int_equal(mkdir(files_path("wide"), 0700), 0);
    assert_int_equal(shard_open(&w, files_path("wide"), key, 128256, NULL, &err), OK);
    assert_int_equal(shard_add(w, ids, 4, ends, 4, 10, &err), OK);
    shard_header(w)->last = 1;
    assert_int_equal(shard_commit(w, &err), OK);
    TokenCache *c;
    assert_int_equal(token_cache_open(&c, files_path("wide"), key, 128256, &err), OK);
    int32_t got[4], starts[4];
    assert_int_equal(token_cache_read(c, 0, 4, got, starts, &err), OK);
    assert_memory_equal(got, ids, sizeof ids);
    assert_int_equal(token_cache_documents(c), 2); /* empty documents leave no trace */
    assert_int_equal(starts[2], 1);
    token_cache_close(c);
}

/* ---- errors of the text ---- */

static void test_first_bad_line_is_reported(void **state) {
    (void)state;
    Text t = {0};
    for (int i = 1; i <= 40000; i++)
        text_printf(&t, i == 31007 || i == 39000 ? "{\"txt\": 1}\n" : "{\"text\": \"fine, fine, fine\"}\n");
    files_write("bad.jsonl", t.data, t.length);
    text_free(&t);
    for (int threads = 1; threads <= 4; threads++) {
        Spec s = {files_path("bad"), {files_path("bad.jsonl")}, 1, SPLIT_FILE, BOS, EOS, threads, 0};
        Error err = {0};
        assert_int_equal(build(&s, &err), ERR_DATA);
        assert_non_null(strstr(err.message, "bad.jsonl:31007"));
        TokenCache *c = open_cache(s.dir);
        assert_false(token_cache_complete(c));
        token_cache_close(c);
    }
}

static void test_truncated_zstd_is_reported(void **state) {
    (void)state;
    char *text = calloc(1, 1u << 20);
    for (unsigned i = 0, seed = 1; i < 1u << 20; i++)
        text[i] = (char)('a' + ((seed = seed * 1664525u + 1013904223u) >> 28));
    files_zstd("half.txt.zst", text, 1u << 20, 200000);
    free(text);
    Spec s = {files_path("half"), {files_path("half.txt.zst")}, 1, SPLIT_FILE, BOS, EOS, 2, 0};
    Error err = {0};
    assert_int_equal(build(&s, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "half.txt.zst: truncated"));
}

static void test_fingerprints(void **state) {
    (void)state;
    const char *path = files_text("f.txt", "one"), *paths[] = {path};
    Fingerprint a, b;
    Error err = {0};
    assert_int_equal(fingerprint_files(files_root, paths, 1, &a, &err), OK);
    assert_string_equal(a.sha256, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed");
    assert_int_equal(fingerprint_check(path, &a, &err), OK);
    /* The same size at once: only the clock differs, or not even that. */
    files_text("f.txt", "two");
    assert_int_equal(fingerprint_files(files_root, paths, 1, &b, &err), OK);
    assert_string_not_equal(a.sha256, b.sha256);
    files_text("f.txt", "three");
    assert_int_equal(fingerprint_check(path, &b, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "changed while"));
    paths[0] = files_path("none");
    assert_int_equal(fingerprint_files(files_root, paths, 1, &b, &err), ERR_NOINPUT);
}

static void touch_inode(const char *path) {
    struct stat before, now;
    assert_int_equal(stat(path, &before), 0);
    do {
        assert_int_equal(chmod(path, 0640), 0);
        assert_int_equal(stat(path, &now), 0);
    } while (now.st_ctim.tv_sec == before.st_ctim.tv_sec && now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
}

/* chmod, a hard link or a new owner between hashing and the last byte do not change the text. */
static void test_an_inode_may_change(void **state) {
    (void)state;
    const char *path = files_text("inode.txt", "four"), *paths[] = {path};
    const struct timespec old[2] = {{1000000000, 5}, {1000000000, 5}};
    Fingerprint print, before;
    Error err = {0};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_int_equal(fingerprint_files(files_root, paths, 1, &print, &err), OK);
    before = print;
    touch_inode(path);
    if (fingerprint_check(path, &print, &err) != OK) fail_msg("%s", err.message);
    assert_string_equal(print.sha256, before.sha256);
    assert_memory_not_equal(&print.stamp, &before.stamp, sizeof before.stamp); /* not hashed for each shard */
    files_text("inode.txt", "FOUR");
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    touch_inode(path);
    assert_int_equal(fingerprint_check(path, &print, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "changed while"));
}

/* Replaces the digest of every record by zeros, so that a fingerprint of zeros comes from a record, and any
 * other from hashing. */
static void forge_records(void) {
    size_t length;
    char *records = files_read("prints/fingerprints.jsonl", &length);
    for (char *at = records; (at = strstr(at, "\"sha256\":")) != NULL;) {
        at = strchr(strchr(at, ':'), '"') + 1;
        if (strspn(at, "0123456789abcdef") == 64) memset(at, '0', 64);
    }
    files_write("prints/fingerprints.jsonl", records, length);
    free(records);
}

static bool is_recalled(const char *path) {
    Error err = {0};
    Fingerprint print;
    const char *paths[] = {path};
    assert_int_equal(fingerprint_files(files_path("prints"), paths, 1, &print, &err), OK);
    return strspn(print.sha256, "0") == 64;
}

/* The hash of a file at rest is recorded. A file that was changed in place, with size and modification time
 * restored, is hashed again, since its change time differs. */
static void test_fingerprints_are_remembered(void **state) {
    (void)state;
    const char *path = files_text("rest.txt", "three");
    const struct timespec old[2] = {{1000000000, 5}, {1000000000, 5}};
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_false(is_recalled(path));
    assert_false(file_exists(files_path("prints/fingerprints.jsonl"))); /* changed too recently */
    sleep(3);
    assert_false(is_recalled(path));
    forge_records();
    assert_true(is_recalled(path));
    int fd = open(path, O_WRONLY);
    assert_int_equal(write(fd, "THREE", 5), 5);
    close(fd);
    assert_int_equal(utimensat(AT_FDCWD, path, old, 0), 0);
    assert_false(is_recalled(path));
}

/* Records are only a cache: whatever the file contains, files are hashed, and it is written again if
 * possible. */
static void test_fingerprint_records_may_be_anything(void **state) {
    (void)state;
    size_t length;
    char *path = path_join(files_root, "rest.txt"),
         *file = path_join(files_root, "prints/fingerprints.jsonl");
    files_text(file,
               "{\"path\": 1}\n\n[]\nnull\n{\"path\": \"x\", \"stamp\": \"y\", \"sha256\": \"z\"}\n{\"pa");
    sleep(3); /* the previous test changed the file */
    assert_false(is_recalled(path));
    forge_records();
    assert_true(is_recalled(path));
    unlink(file);
    assert_int_equal(mkdir(file, 0777), 0);
    assert_false(is_recalled(path));
    assert_int_equal(rmdir(file), 0);
    assert_false(is_recalled(path));
    /* Many states of one path, from many hosts: the newest stays. */
    char *record = files_read(file, &length);
    Text many = {0};
    for (int i = 0; i < 2000; i++) text_add(&many, record, length);
    files_write(file, many.data, many.length);
    forge_records();
    assert_true(is_recalled(path));
    free(record);
    text_free(&many);
    record = files_read(file, &length);
    assert_true(length < 1000);
    free(record);
    /* Above the limit the file is not read, and starts again empty. */
    assert_int_equal(truncate(file, ((off_t)1 << 30) + 1), 0);
    assert_false(is_recalled(path));
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size < 1000);
    forge_records();
    assert_true(is_recalled(path));
    free(path);
    free(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_empty_source),
        cmocka_unit_test(test_threads_do_not_matter),
        cmocka_unit_test(test_pieces_do_not_change_tokens),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_interrupted_build_goes_on),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_any_part_can_be_the_last_done),
        cmocka_unit_test(test_every_flipped_bit_is_found),
        cmocka_unit_test(test_every_length_is_checked),
        cmocka_unit_test(test_foreign_and_newer_files),
        cmocka_unit_test(test_content_is_not_trusted),
        cmocka_unit_test(test_build_refuses_to_build_on_damage),
        cmocka_unit_test(test_wide_ids),
        cmocka_unit_test(test_first_bad_line_is_reported),
        cmocka_unit_test(test_truncated_zstd_is_reported),
        cmocka_unit_test(test_fingerprints),
        cmocka_unit_test(test_an_inode_may_change),
        cmocka_unit_test(test_fingerprints_are_remembered),
        cmocka_unit_test(test_fingerprint_records_may_be_anything),
    };
    return cmocka_run_group_tests(tests, bytes_setup, bytes_teardown);
}
