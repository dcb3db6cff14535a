#include "support/files.h"

#include "tokenizer/byte_level.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/tokenizer_train.h"
#include "tokenizer/utf8.h"
#include "support/tokenizer_expectations.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- documents in memory --- */

typedef struct Documents {
    const Text *texts;
    size_t count, next;
    bool backwards;
    size_t fail_at; /* 1-based; 0 never */
} Documents;

static ErrorCode next_text(void *context, const char **text, size_t *length, Error *err) {
    Documents *d = context;
    if (d->fail_at && d->next + 1 == d->fail_at)
        return error_set(err, ERR_IO, "document %zu fell off", d->fail_at);
    *text = NULL;
    if (d->next == d->count) return OK;
    const Text *t = &d->texts[d->backwards ? d->count - 1 - d->next : d->next];
    d->next++;
    *text = t->length ? t->data : "";
    *length = t->length;
    return OK;
}

static Tokenizer *train(const TokenizerTrainOptions *o, Documents d) {
    TokenizerTrainOptions quiet = *o;
    quiet.quiet = true;
    Tokenizer *t;
    Error err = {0};
    if (tokenizer_train(&t, &quiet, next_text, &d, &err) != OK) fail_msg("%s", err.message);
    return t;
}

static Text saved(const Tokenizer *t) {
    Error err;
    assert_int_equal(tokenizer_save(t, files_path("saved.json"), &err), OK);
    Text out = {0};
    size_t length;
    char *data = files_read("saved.json", &length);
    text_add(&out, data, length);
    free(data);
    return out;
}

static void assert_same(const Text *a, const Text *b) {
    assert_int_equal(a->length, b->length);
    assert_memory_equal(a->data, b->data, a->length);
}

/* --- a naive trainer: counts everything again before each merge --- */

typedef struct PreToken {
    int32_t *ids;
    size_t count;
} PreToken;

typedef struct Naive {
    PreToken *pre_tokens;
    size_t count;
    Text tokens[1024];
    size_t token_count;
} Naive;

static void naive_add_pre_token(Naive *n, const char *text, size_t length) {
    n->pre_tokens = mem_grow(n->pre_tokens, (n->count + 1) * sizeof *n->pre_tokens);
    PreToken *p = &n->pre_tokens[n->count++];
    *p = (PreToken){mem_alloc_array(length, sizeof(int32_t)), length};
    for (size_t i = 0; i < length; i++) {
        while (byte_level_nth(p->ids[i]) != (uint8_t)text[i]) p->ids[i]++;
    }
}

static void naive_add_text(Naive *n, Splitter *splitter, SplitState *split, const Text *text) {
    Error err;
    for (size_t from = 0; from < text->length;) {
        size_t valid = utf8_valid_run(text->data + from, text->length - from);
        for (size_t at = 0, end; at < valid; at = end) {
            assert_int_equal(split_next(splitter, split, text->data + from, valid, at, &end, &err), OK);
            naive_add_pre_token(n, text->data + from + at, end - at);
        }
        from += valid;
        size_t invalid = utf8_invalid_run(text->data + from, text->length - from);
        if (invalid) naive_add_pre_token(n, text->data + from, invalid);
        from += invalid;
    }
}

/* The most frequent pair, and the smallest of equals; false if there is none. */
static bool naive_best(const Naive *n, int32_t best[2]) {
    static int64_t counts[1024][1024];
    memset(counts, 0, sizeof counts);
    for (size_t p = 0; p < n->count; p++) {
        for (size_t i = 0; i + 1 < n->pre_tokens[p].count; i++)
            counts[n->pre_tokens[p].ids[i]][n->pre_tokens[p].ids[i + 1]]++;
    }
    int64_t most = 0;
    for (int32_t a = 0; a < 1024; a++) {
        for (int32_t b = 0; b < 1024; b++) {
            if (counts[a][b] <= most) continue;
            most = counts[a][b];
            best[0] = a;
            best[1] = b;
        }
    }
    return most > 0;
}

static int32_t naive_token(Naive *n, const int32_t pair[2]) {
    Text joined = {0};
    for (int k = 0; k < 2; k++) text_add(&joined, n->tokens[pair[k]].data, n->tokens[pair[k]].length);
    for (size_t i = 0; i < n->token_count; i++) {
        if (n->tokens[i].length != joined.length ||
            memcmp(n->tokens[i].data, joined.data, joined.length) != 0)
            continue;
        text_free(&joined);
        return (int32_t)i;
    }
    n->tokens[n->token_count] = joined;
    return (int32_t)n->token_count++;
}

static void naive_merge(Naive *n, const int32_t pair[2], int32_t result) {
    for (size_t p = 0; p < n->count; p++) {
        PreToken *pre_token = &n->pre_tokens[p];
        size_t kept = 0;
        for (size_t i = 0; i < pre_token->count; i++) {
            bool match =
                pre_token->ids[i] == pair[0] && i + 1 < pre_token->count && pre_token->ids[i + 1] == pair[1];
            pre_token->ids[kept++] = match ? result : pre_token->ids[i];
            i += match;
        }
        pre_token->count = kept;
    }
}

static void naive_learn(Naive *n, size_t limit) {
    for (int k = 0; k < 256; k++) text_add(&n->tokens[k], &(char){(char)byte_level_nth(k)}, 1);
    n->token_count = 256;
    int32_t pair[2];
    while (n->token_count < limit && naive_best(n, pair)) naive_merge(n, pair, naive_token(n, pair));
}

static void naive_free(Naive *n) {
    for (size_t i = 0; i < n->count; i++) free(n->pre_tokens[i].ids);
    for (size_t i = 0; i < n->token_count; i++) text_free(&n->tokens[i]);
    free(n->pre_tokens);
    free(n);
}

/* Small, with runs, repeats and ties: "aaaa", words of few letters, nasty text, bytes that are not text. */
static size_t small_corpus(Text *texts, size_t capacity) {
    size_t count = 0;
    for (; count < COUNT(nasty_texts) && count < capacity; count++)
        text_add(&texts[count], nasty_texts[count].bytes, nasty_texts[count].length);
    Text *words = &texts[count++];
    uint32_t state = 3;
    for (int i = 0; i < 1500; i++) {
        state = state * 1664525U + 1013904223U;
        for (uint32_t k = 0; k < 1 + (state >> 28); k++) text_add(words, &"aab"[(state >> (k + 4)) % 3], 1);
        text_puts(words, i % 7 ? " " : "\xff\xfe ");
    }
    return count;
}

static void free_texts(Text *texts, size_t count) {
    for (size_t i = 0; i < count; i++) text_free(&texts[i]);
}

static void test_equals_naive_trainer(void **state) {
    (void)state;
    Text texts[100] = {0};
    size_t count = small_corpus(texts, 99);
    static const char *const patterns[] = {"gpt2", "llama3", "qwen2", "o200k"};
    for (size_t p = 0; p < COUNT(patterns); p++) {
        Splitter *splitter;
        Error err;
        assert_int_equal(
            splitter_create(&splitter, &(Splits){.steps = {pattern_by_name(patterns[p])}, .count = 1}, &err),
            OK);
        SplitState *split = split_state_create(splitter);
        Naive *naive = mem_alloc(sizeof *naive);
        for (size_t i = 0; i < count; i++) naive_add_text(naive, splitter, split, &texts[i]);
        naive_learn(naive, 500);
        Tokenizer *t =
            train(&(TokenizerTrainOptions){.vocab_size = 500, .pattern = patterns[p], .threads = 2},
                  (Documents){.texts = texts, .count = count});
        assert_int_equal(tokenizer_vocab_size(t), naive->token_count);
        for (int32_t id = 0; id < tokenizer_vocab_size(t); id++) {
            size_t length;
            const char *bytes = tokenizer_token_bytes(t, id, &length);
            assert_int_equal(length, naive->tokens[id].length);
            assert_memory_equal(bytes, naive->tokens[id].data, length);
        }
        tokenizer_free(t);
        naive_free(naive);
        split_state_free(split);
        splitter_free(splitter);
    }
    free_texts(texts, count);
}

/* --- the result depends on the text alone --- */

/* About 3 MB of words from a small, skewed vocabulary, in documents of very different lengths. */
static void large_corpus(Text texts[4]) {
    static const char *const syllables[] = {"ka", "lo",        "mi", "shta", "en",
                                            "or", "\xc5\x82u", "x",  "tion", "42"};
    static const size_t lengths[4] = {2600000, 0, 300000, 1200};
    uint32_t state = 11;
    for (int d = 0; d < 4; d++) {
        while (texts[d].length < lengths[d]) {
            state = state * 1664525U + 1013904223U;
            uint32_t r = state >> 8;
            for (uint32_t k = 0; k <= r % 3; k++, r /= 7)
                text_puts(&texts[d], syllables[r % 10 * (r % 11) / 10]);
            text_puts(&texts[d], r % 17 ? " " : ".\n");
        }
    }
}

static void test_threads_and_order(void **state) {
    (void)state;
    Text texts[4] = {0};
    large_corpus(texts);
    Text first = {0};
    for (int i = 0; i < 4; i++) {
        const TokenizerTrainOptions o = {.vocab_size = 600, .threads = 1 + i % 3};
        Tokenizer *t = train(&o, (Documents){.texts = texts, .count = 4, .backwards = i == 3});
        Text now = saved(t);
        if (i == 0) {
            first = now;
        } else {
            assert_same(&first, &now);
            text_free(&now);
        }
        assert_int_equal(tokenizer_vocab_size(t), 600);
        tokenizer_free(t);
    }
    text_free(&first);
    free_texts(texts, 4);
}

static void test_files(void **state) {
    (void)state;
    static const char plain[] = "one two three\nthree two one\n",
                      json[] = "{\"body\": \"one two three\\nthree two one\\n\"}\n";
    const char *paths[4] = {
        files_text("a.txt", plain), files_zstd("a.txt.zst", plain, strlen(plain), SIZE_MAX),
        files_text("a.jsonl", json), files_gzip("a.jsonl.gz", json, strlen(json), SIZE_MAX)};
    Text results[4];
    Error err = {0};
    const TokenizerTrainOptions o = {.vocab_size = 266, .quiet = true};
    Tokenizer *t;
    for (int i = 0; i < 4; i++) {
        if (tokenizer_train_files(&t, &o, &paths[i], 1, "body", &err) != OK) fail_msg("%s", err.message);
        results[i] = saved(t);
        assert_same(&results[0], &results[i]);
        tokenizer_free(t);
    }
    free_texts(results, 4);
    const char *missing = files_path("missing.txt");
    assert_int_equal(tokenizer_train_files(&t, &o, &missing, 1, NULL, &err), ERR_NOINPUT);
    assert_null(t);
    assert_int_equal(tokenizer_train_files(&t, &o, &paths[2], 1, NULL, &err),
                     ERR_DATA); /* no member "text" */
    assert_null(t);
}

/* --- special tokens, too little text, bad requests --- */

static void test_specials(void **state) {
    (void)state;
    Text text = {0};
    text_puts(&text, "abab abab abab <|end_of_text|>");
    static const char *const specials[] = {"<|begin_of_text|>", "<|end_of_text|>", "<|\xc3\xa9|>"};
    Tokenizer *t = train(
        &(TokenizerTrainOptions){
            .vocab_size = 262, .specials = specials, .special_count = 3, .pattern = "qwen2"},
        (Documents){.texts = &text, .count = 1});
    assert_int_equal(tokenizer_vocab_size(t), 262);
    assert_int_equal(tokenizer_bos(t), 259);
    assert_int_equal(tokenizer_eos(t), 260);
    assert_int_equal(tokenizer_special(t, specials[2]), 261);
    TokenList list = {0};
    Error err;
    assert_int_equal(tokenizer_encode(t, text.data, text.length, &list, &err), OK);
    for (size_t i = 0; i < list.count; i++) assert_true(list.ids[i] < 259);
    token_list_free(&list);
    tokenizer_free(t);
    text_free(&text);
}

static void test_too_little_text(void **state) {
    (void)state;
    Text text = {0};
    text_puts(&text, "ab");
    Tokenizer *t =
        train(&(TokenizerTrainOptions){.vocab_size = 4096}, (Documents){.texts = &text, .count = 1});
    assert_int_equal(tokenizer_vocab_size(t), 257);
    tokenizer_free(t);
    t = train(&(TokenizerTrainOptions){.vocab_size = 4096}, (Documents){.count = 0});
    assert_int_equal(tokenizer_vocab_size(t), 256);
    tokenizer_free(t);
    text_free(&text);
}

static void must_fail(TokenizerTrainOptions o, Documents d, ErrorCode code, const char *fragment) {
    Tokenizer *t;
    Error err = {0};
    o.quiet = true;
    assert_int_equal(tokenizer_train(&t, &o, next_text, &d, &err), code);
    assert_null(t);
    if (!strstr(err.message, fragment)) fail_msg("\"%s\" lacks \"%s\"", err.message, fragment);
}

static void test_bad_requests(void **state) {
    (void)state;
    Text texts[3] = {0};
    for (int i = 0; i < 3; i++) text_puts(&texts[i], "the the the the");
    const Documents d = {.texts = texts, .count = 3};
    static const char *const twice[] = {"<s>", "<s>"}, *const taken[] = {" the"}, *const empty[] = {""},
                             *const invalid[] = {"\xff"}, *const word[] = {"the"};
    must_fail((TokenizerTrainOptions){.vocab_size = 255}, d, ERR_USAGE, "255 entries");
    must_fail((TokenizerTrainOptions){.vocab_size = -1}, d, ERR_USAGE, "-1 entries");
    must_fail((TokenizerTrainOptions){.vocab_size = INT32_MAX}, d, ERR_USAGE, "2147483647 entries");
    must_fail((TokenizerTrainOptions){.vocab_size = 257, .specials = twice, .special_count = 2}, d, ERR_USAGE,
              "257 entries");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .pattern = "gpt5"}, d, ERR_USAGE, "gpt5");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .pattern = "none"}, d, ERR_USAGE, "none");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .specials = twice, .special_count = 2}, d, ERR_USAGE,
              "name each once");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .specials = empty, .special_count = 1}, d, ERR_USAGE,
              "empty");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .specials = invalid, .special_count = 1}, d,
              ERR_USAGE, "UTF-8");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .specials = word, .special_count = 1}, d, ERR_DATA,
              "\"the\"");
    must_fail((TokenizerTrainOptions){.vocab_size = 300, .threads = 2},
              (Documents){.texts = texts, .count = 3, .fail_at = 2}, ERR_IO, "document 2 fell off");
    /* " the" is spelled differently in the vocabulary, so both can exist. */
    tokenizer_free(
        train(&(TokenizerTrainOptions){.vocab_size = 300, .specials = taken, .special_count = 1}, d));
    free_texts(texts, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_naive_trainer),
        cmocka_unit_test(test_threads_and_order),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_too_little_text),
        cmocka_unit_test(test_bad_requests),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
