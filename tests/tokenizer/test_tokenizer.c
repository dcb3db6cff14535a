#include "support/files.h"

#include <time.h>

#include "base/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "support/tokenizer_expectations.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* --- documents --- */

/* Parts of a tokenizer.json; NULL: the default part. */
typedef struct Document {
    const char *added, *normalizer, *pre_tokenizer, *decoder, *settings, *vocab, *merges;
    int missing_byte; /* byte 1 to 255, in the order of characters, that the vocabulary lacks */
    bool fallback;    /* bytes are "<0x00>" etc. */
} Document;

static void write_bytes(const Document *d, Text *out) {
    JsonWriter w;
    for (int k = 0; k < 256; k++) {
        if (d->missing_byte && k == d->missing_byte) continue;
        char byte = (char)byte_level_nth(k);
        Text name = {0};
        if (d->fallback)
            text_printf(&name, "<0x%02X>", (unsigned)k);
        else
            byte_level_write(&name, &byte, 1);
        json_start(&w, out, 0);
        json_string(&w, name.data);
        text_printf(out, ": %d, ", k);
        text_free(&name);
    }
}

static void write_document(const Document *d, Text *out) {
    const char *none = "";
    text_clear(out);
    text_printf(
        out, "{\"version\": \"1.0\", \"added_tokens\": [%s], \"normalizer\": %s, \"pre_tokenizer\": %s,\n",
        d->added ? d->added : none, d->normalizer ? d->normalizer : "null",
        d->pre_tokenizer ? d->pre_tokenizer : "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}");
    if (d->decoder) text_printf(out, "\"decoder\": %s,\n", d->decoder);
    text_printf(out, "\"model\": {\"type\": \"BPE\", %s \"vocab\": {", d->settings ? d->settings : none);
    write_bytes(d, out);
    text_printf(out, "%s}, \"merges\": [%s]}}", d->vocab ? d->vocab : "\"ab\": 256, \"abc\": 257",
                d->merges ? d->merges : "\"a b\", [\"ab\", \"c\"]");
}

static Tokenizer *must_open(const Document *d) {
    Text json = {0};
    Tokenizer *t;
    Error err = {0};
    write_document(d, &json);
    if (tokenizer_parse(&t, "test.json", json.data, json.length, &err) != OK) fail_msg("%s", err.message);
    text_free(&json);
    return t;
}

static void must_refuse(const Document *d, const char *fragment) {
    Text json = {0};
    Tokenizer *t;
    Error err = {0};
    write_document(d, &json);
    assert_int_equal(tokenizer_parse(&t, "test.json", json.data, json.length, &err), ERR_DATA);
    assert_null(t);
    if (!strstr(err.message, fragment) || !strstr(err.message, "test.json"))
        fail_msg("\"%s\" lacks \"%s\"", err.message, fragment);
    text_free(&json);
}

static TokenList encode(const Tokenizer *t, const char *text, size_t length) {
    TokenList list = {0};
    Error err = {0};
    if (tokenizer_encode(t, text, length, &list, &err) != OK) fail_msg("%s", err.message);
    return list;
}

static void assert_ids(const Tokenizer *t, const char *text, size_t count, const int32_t *expected) {
    TokenList list = encode(t, text, strlen(text));
    assert_int_equal(list.count, count);
    assert_memory_equal(list.ids, expected, count * sizeof *expected);
    token_list_free(&list);
}
#define ASSERT_IDS(t, text, ...)                                                  \
    assert_ids(t, text, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t), \
               (const int32_t[]){__VA_ARGS__})

static void assert_round_trip(const Tokenizer *t, const char *text, size_t length) {
    TokenList list = encode(t, text, length);
    Text back = {0};
    Error err;
    assert_int_equal(tokenizer_decode(t, list.ids, list.count, &back, &err), OK);
    assert_int_equal(back.length, length);
    if (length) assert_memory_equal(back.data, text, length);
    text_free(&back);
    token_list_free(&list);
}

/* encode(text) = encode(head) + encode(tail) */
static void assert_cut_at(const Tokenizer *t, const char *text, size_t length, size_t cut) {
    TokenList whole = encode(t, text, length), parts = encode(t, text, cut);
    Error err;
    assert_int_equal(tokenizer_encode(t, text + cut, length - cut, &parts, &err), OK);
    assert_int_equal(whole.count, parts.count);
    if (whole.count) assert_memory_equal(whole.ids, parts.ids, whole.count * sizeof *whole.ids);
    token_list_free(&whole);
    token_list_free(&parts);
}

/* --- the tokenizers of the stored expectations --- */

typedef struct Stored {
    const char *pattern;
    const int *merges;
    size_t merge_count; /* pairs */
    const int *ids;
    size_t id_count;
} Stored;

static const Stored stored[] = {
    {"gpt2", gpt2_merges, COUNT(gpt2_merges) / 2, gpt2_ids, COUNT(gpt2_ids)},
    {"llama3", llama3_merges, COUNT(llama3_merges) / 2, llama3_ids, COUNT(llama3_ids)},
    {"qwen2", qwen2_merges, COUNT(qwen2_merges) / 2, qwen2_ids, COUNT(qwen2_ids)},
};

/* The bytes of each token: the byte alphabet, then the merges. */
static Text *stored_tokens(const Stored *s, size_t *count) {
    *count = 256 + s->merge_count;
    Text *tokens = mem_alloc_array(*count, sizeof *tokens);
    for (int k = 0; k < 256; k++) text_add(&tokens[k], &(char){(char)byte_level_nth(k)}, 1);
    for (size_t i = 0; i < s->merge_count; i++) {
        const Text *left = &tokens[s->merges[2 * i]], *right = &tokens[s->merges[2 * i + 1]];
        text_add(&tokens[256 + i], left->data, left->length);
        text_add(&tokens[256 + i], right->data, right->length);
    }
    return tokens;
}

static void free_tokens(Text *tokens, size_t count) {
    for (size_t i = 0; i < count; i++) text_free(&tokens[i]);
    free(tokens);
}

static void spell(Text *out, const Text *token) {
    Text name = {0};
    JsonWriter w;
    byte_level_write(&name, token->data, token->length);
    json_start(&w, out, 0);
    json_string(&w, name.data);
    text_free(&name);
}

/* Vocabulary after the bytes, and merges: form 0 is "a b", form 1 is ["a", "b"]. */
static Tokenizer *open_stored(const Stored *s, int form) {
    size_t count;
    Text *tokens = stored_tokens(s, &count), vocab = {0}, merges = {0}, pre = {0};
    for (size_t i = 256; i < count; i++) {
        if (i > 256) text_puts(&vocab, ", ");
        spell(&vocab, &tokens[i]);
        text_printf(&vocab, ": %zu", i);
    }
    for (size_t i = 0; i < s->merge_count; i++) {
        Text half[2] = {{0}, {0}};
        for (int k = 0; k < 2; k++) {
            const Text *token = &tokens[s->merges[2 * i + (size_t)k]];
            if (form)
                spell(&half[k], token);
            else
                byte_level_write(&half[k], token->data, token->length);
        }
        Text line = {0};
        text_printf(&line, "%s%s%s%s%s", form ? "[" : "", half[0].data, form ? ", " : " ", half[1].data,
                    form ? "]" : "");
        if (i) text_puts(&merges, ", ");
        JsonWriter w;
        json_start(&w, &merges, 0);
        if (form)
            text_puts(&merges, line.data);
        else
            json_string(&w, line.data);
        text_free(&line);
        text_free(&half[0]);
        text_free(&half[1]);
    }
    JsonWriter w;
    text_puts(&pre,
              "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": ");
    json_start(&w, &pre, 0);
    json_string(&w, pattern_source(pattern_by_name(s->pattern)));
    text_puts(&pre, form ? "}, \"behavior\": \"Removed\", \"invert\": true},"
                         : "}, \"behavior\": \"Isolated\", \"invert\": false},");
    text_puts(&pre, "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}");
    Tokenizer *t =
        must_open(&(Document){.vocab = vocab.data, .merges = merges.data, .pre_tokenizer = pre.data});
    text_free(&vocab);
    text_free(&merges);
    text_free(&pre);
    free_tokens(tokens, count);
    return t;
}

static void assert_expected(const Tokenizer *t, const Stored *s) {
    const int *next = s->ids;
    for (size_t i = 0; i < COUNT(nasty_texts); i++) {
        TokenList list = encode(t, nasty_texts[i].bytes, nasty_texts[i].length);
        size_t count = (size_t)*next++;
        if (list.count != count || (count && memcmp(list.ids, next, count * sizeof *next) != 0))
            fail_msg("%s: text %zu (\"%s\"): %zu ids, %zu expected", s->pattern, i, nasty_texts[i].bytes,
                     list.count, count);
        next += count;
        token_list_free(&list);
        assert_round_trip(t, nasty_texts[i].bytes, nasty_texts[i].length);
    }
    assert_ptr_equal(next, s->ids + s->id_count);
}

static void test_expectations(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT(stored); i++) {
        for (int form = 0; form < 2; form++) {
            Tokenizer *t = open_stored(&stored[i], form);
            assert_expected(t, &stored[i]);
            assert_expected(t, &stored[i]); /* again, with cached pre-tokens */
            tokenizer_free(t);
        }
    }
}

static void test_threads(void **state) {
    (void)state;
    Tokenizer *t = open_stored(&stored[1], 0);
    Text text = {0};
    for (int i = 0; i < 200; i++)
        text_add(&text, nasty_texts[i % COUNT(nasty_texts)].bytes,
                 nasty_texts[i % COUNT(nasty_texts)].length);
    TokenList expected = encode(t, text.data, text.length);
    int differences = 0;
#pragma omp parallel for num_threads(4) reduction(+ : differences)
    for (int i = 0; i < 64; i++) {
        TokenList list = {0};
        Error err;
        ErrorCode code = tokenizer_encode(t, text.data, text.length, &list, &err);
        differences += code != OK || list.count != expected.count ||
                       memcmp(list.ids, expected.ids, expected.count * sizeof *expected.ids) != 0;
        token_list_free(&list);
    }
    assert_int_equal(differences, 0);
    token_list_free(&expected);
    text_free(&text);
    tokenizer_free(t);
}

/* --- bytes that are not text --- */

static void test_invalid_utf8(void **state) {
    (void)state;
    static const struct {
        const char *head, *invalid, *tail;
    } cases[] = {{"a", "\xff", "b"},
                 {"ab ", "\xc0\xaf", " ab"},
                 {"  ", "\xed\xa0\x80", "abc"},
                 {"it'", "\xc3", "s"},
                 {"\xe2\x82\xac", "\xe2\x82", "abc"},
                 {"", "\xf4\x90\x80\x80\x80", ""},
                 {"ab", "\x80\x80\xfe\xf8", "\n"},
                 {"x ", "\xf0\x9f\x98", ""}};
    for (size_t p = 0; p < COUNT(stored); p++) {
        Tokenizer *t = open_stored(&stored[p], 0);
        for (size_t i = 0; i < COUNT(cases); i++) {
            char text[64];
            int head = (int)strlen(cases[i].head), invalid = (int)strlen(cases[i].invalid);
            int length =
                snprintf(text, sizeof text, "%s%s%s", cases[i].head, cases[i].invalid, cases[i].tail);
            assert_round_trip(t, text, (size_t)length);
            assert_cut_at(t, text, (size_t)length, (size_t)head);
            assert_cut_at(t, text, (size_t)length, (size_t)(head + invalid));
        }
        tokenizer_free(t);
    }
}

static uint32_t next_random(uint32_t *state) { return (*state = *state * 1664525U + 1013904223U) >> 8; }

/* Mostly characters that matter to patterns, and some arbitrary bytes. */
static size_t random_text(uint32_t *state, char *out, size_t capacity) {
    static const char *const bits[] = {" ",
                                       "  ",
                                       "\n",
                                       "\r\n",
                                       "a",
                                       "Bc",
                                       "'s",
                                       "'RE",
                                       "12",
                                       "345",
                                       "\xc2\xa0",
                                       "\xe2\x80\xa8",
                                       "\xc5\x82",
                                       "\xcc\x81",
                                       "\xe4\xb8\xad",
                                       "\xf0\x9f\x98\x80",
                                       "...",
                                       "<|",
                                       "\t",
                                       "\xff",
                                       "\xe2\x82",
                                       "\xc2\xbd",
                                       "-"};
    size_t n = 0, wanted = next_random(state) % (capacity - 4);
    while (n < wanted) {
        const char *bit = bits[next_random(state) % COUNT(bits)];
        size_t length = strlen(bit);
        memcpy(out + n, bit, length);
        n += length;
        if (next_random(state) % 16 == 0) out[n - 1] = (char)next_random(state);
    }
    return n;
}

static void test_random_text(void **state) {
    (void)state;
    for (size_t p = 0; p < COUNT(stored); p++) {
        Tokenizer *t = open_stored(&stored[p], 0);
        uint32_t seed = 17;
        size_t cuts = 0;
        for (int i = 0; i < 2000; i++) {
            char text[200];
            size_t length = random_text(&seed, text, sizeof text), cut = tokenizer_cut(t, text, length);
            assert_round_trip(t, text, length);
            assert_true(cut == 0 || cut < length);
            assert_cut_at(t, text, length, cut);
            cuts += cut > 0;
        }
        assert_true(cuts > 100);
        tokenizer_free(t);
    }
}

#if defined(__SANITIZE_ADDRESS__)
#define RUN_SECONDS 30.0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define RUN_SECONDS 30.0
#endif
#endif
#ifndef RUN_SECONDS
#define RUN_SECONDS 1.0
#endif

static double processor_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }

static void test_long_runs(void **state) {
    (void)state;
    static const char *const units[] = {"a", "\xc5\x82", " ",        "\n",  "ab",          "7",
                                        "!", "\xff",     "\xcc\x81", " \n", "\xe3\x80\x80"};
    const size_t length = 1 << 20;
    char *text = malloc(length);
    for (size_t p = 0; p < COUNT(stored); p++) {
        Tokenizer *t = open_stored(&stored[p], 0);
        for (size_t u = 0; u < COUNT(units); u++) {
            size_t unit = strlen(units[u]);
            for (size_t i = 0; i < length; i++) text[i] = units[u][i % unit];
            double start = processor_seconds();
            assert_round_trip(t, text, length);
            double seconds = processor_seconds() - start;
            if (seconds > RUN_SECONDS)
                fail_msg("%s, 1 MiB of \"%s\": %.2f s", stored[p].pattern, units[u], seconds);
        }
        tokenizer_free(t);
    }
    free(text);
}

/* --- special and added tokens, settings --- */

#define ADDED(id, content, normalized, special)                          \
    "{\"id\": " #id ", \"content\": \"" content                          \
    "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, " \
    "\"normalized\": " #normalized ", \"special\": " #special "}"

/* In the byte alphabet '!' is 0, so printable ASCII c is c - 33; space is 220 (0x20 is the 33rd moved
 * byte). */
static int32_t ascii(char c) { return c == ' ' ? 220 : c - 33; }

static void test_special_tokens(void **state) {
    (void)state;
    Tokenizer *t =
        must_open(&(Document){.added = ADDED(259, "<|begin_of_text|>", false, true) "," ADDED(
                                  258, "<x>", false, true) "," ADDED(260, "<|end_of_text|>", false, true)});
    assert_int_equal(tokenizer_vocab_size(t), 261);
    assert_int_equal(tokenizer_bos(t), 259);
    assert_int_equal(tokenizer_eos(t), 260);
    assert_int_equal(tokenizer_special(t, "<x>"), 258);
    assert_int_equal(tokenizer_special(t, "ab"), -1);
    ASSERT_IDS(t, "<x>ab", ascii('<'), ascii('x'), ascii('>'), 256);
    size_t length;
    assert_memory_equal(tokenizer_token_bytes(t, 258, &length), "<x>", 3);
    assert_int_equal(length, 3);
    assert_null(tokenizer_token_bytes(t, 261, &length));
    assert_null(tokenizer_token_bytes(t, -1, &length));
    Text out = {0};
    Error err = {0};
    assert_int_equal(tokenizer_decode(t, (const int32_t[]){256, 261}, 2, &out, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "261"));
    text_free(&out);
    tokenizer_free(t);
    /* A special token that is also in the vocabulary, as in GPT-2, is not reached by ignore_merges either. */
    t = must_open(&(Document){.added = ADDED(257, "abc", false, true),
                              .settings = "\"ignore_merges\": true,",
                              .merges = "\"a b\""});
    ASSERT_IDS(t, "abc", 256, ascii('c'));
    assert_int_equal(tokenizer_bos(t), -1);
    tokenizer_free(t);
}

static void test_added_tokens(void **state) {
    (void)state;
    Tokenizer *t = must_open(
        &(Document){.added = ADDED(258, "<t>", false, false) "," ADDED(259, "<t>ab", false, false) "," ADDED(
                        260, "  ", true, false) "," ADDED(261, "b<", true, false)});
    ASSERT_IDS(t, "ab<t>abab", 256, 259, 256);
    ASSERT_IDS(t, "<t><t>a", 258, 258, ascii('a'));
    ASSERT_IDS(t, "a   b", ascii('a'), 260, ascii(' '), ascii('b'));
    ASSERT_IDS(t, "ab<t>", 256, 258); /* tokens of raw text come first */
    ASSERT_IDS(t, "b<b<", 261, 261);
    assert_int_equal(tokenizer_cut(t, "aaa b", 5), 0); /* "  " could cross the cut */
    assert_round_trip(t, "x<t>ab  <b<  y", 14);
    tokenizer_free(t);
}

#define STRIPPED(id, content, left, right)                             \
    "{\"id\": " #id ", \"content\": \"" content "\", \"normalized\": " \
    "false, \"lstrip\": " #left ", \"rstrip\": " #right "}"

/* White space that one token has taken is still searched for others. A token that starts after it there has
 * nothing left, and an empty match is dropped. */
static void test_white_space_taken_twice(void **state) {
    (void)state;
    Tokenizer *t =
        must_open(&(Document){.added = STRIPPED(258, "<t>", false, true) "," STRIPPED(
                                  259, "\\n", true, false) "," STRIPPED(260, "\\t", false, false)});
    ASSERT_IDS(t, "<t>\nb", 258, ascii('b'));
    ASSERT_IDS(t, "<t> \n\n <t>", 258, 258);
    ASSERT_IDS(t, "a \n<t>", ascii('a'), 259, 258);
    ASSERT_IDS(t, "<t>\tb", 258, 260, ascii('b'));
    tokenizer_free(t);
    t = must_open(&(Document){.added = STRIPPED(258, "\\n", true, true)});
    ASSERT_IDS(t, "\n\n a\n", 258, ascii('a'), 258);
    tokenizer_free(t);
}

static void test_whole_first(void **state) {
    (void)state;
    static const char vocab[] = "\"ab\": 256, \"abc\": 257, \"xyz\": 258";
    Tokenizer *t = must_open(&(Document){.vocab = vocab, .settings = "\"ignore_merges\": true,"});
    ASSERT_IDS(t, "xyz", 258);
    tokenizer_free(t);
    t = must_open(&(Document){.vocab = vocab});
    ASSERT_IDS(t, "xyz", ascii('x'), ascii('y'), ascii('z'));
    tokenizer_free(t);
}

static void test_nfc(void **state) {
    (void)state;
    if (!unicode_available()) {
        print_message("skipped: built without libutf8proc\n");
        return;
    }
    Tokenizer *t = must_open(&(Document){.normalizer = "{\"type\": \"NFC\"}"});
    TokenList one = encode(t, "\xc3\xa9", 2), two = encode(t, "e\xcc\x81", 3);
    assert_int_equal(one.count, 2);
    assert_int_equal(two.count, 2);
    assert_memory_equal(one.ids, two.ids, 2 * sizeof *one.ids);
    token_list_free(&one);
    token_list_free(&two);
    assert_round_trip(t, "plain \xff text", 12);
    tokenizer_free(t);
}

static void test_bytes(void **state) {
    (void)state;
    Tokenizer *t, *again;
    Error err = {0};
    assert_int_equal(tokenizer_open(&t, "bytes", &err), OK);
    assert_int_equal(tokenizer_vocab_size(t), 258);
    assert_int_equal(tokenizer_bos(t), 256);
    assert_int_equal(tokenizer_eos(t), 257);
    ASSERT_IDS(t, "a\xff\n", 'a', 255, '\n');
    assert_round_trip(t, "nul \0 \xc3\x28", 8);
    assert_int_equal(tokenizer_save(t, files_path("bytes.json"), &err), OK);
    if (tokenizer_open(&again, files_path("bytes.json"), &err) != OK) fail_msg("%s", err.message);
    ASSERT_IDS(again, "a\xff\n", 'a', 255, '\n');
    assert_int_equal(tokenizer_bos(again), 256);
    char one[65], two[65];
    tokenizer_fingerprint(t, one);
    tokenizer_fingerprint(again, two);
    assert_string_equal(one, two);
    tokenizer_free(again);
    tokenizer_free(t);
}

static void test_fingerprint(void **state) {
    (void)state;
    static const Document documents[] = {{0},
                                         {.settings = "\"ignore_merges\": true,"},
                                         {.merges = "\"a b\""},
                                         {.vocab = "\"ab\": 257, \"abc\": 256"},
                                         {.added = ADDED(258, "<s>", false, true)},
                                         {.added = ADDED(258, "<s>", false, false)}};
    char prints[COUNT(documents)][65];
    for (size_t i = 0; i < COUNT(documents); i++) {
        Tokenizer *t = must_open(&documents[i]);
        tokenizer_fingerprint(t, prints[i]);
        assert_int_equal(strlen(prints[i]), 64);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(prints[k], prints[i]);
        tokenizer_free(t);
    }
    /* The form of the merges does not matter. */
    Tokenizer *t = must_open(&(Document){.merges = "[\"a\", \"b\"], \"ab c\""});
    char print[65];
    tokenizer_fingerprint(t, print);
    assert_string_equal(print, prints[0]);
    tokenizer_free(t);
}

static void test_save_is_a_copy(void **state) {
    (void)state;
    Text json = {0};
    Error err = {0};
    write_document(&(Document){0}, &json);
    files_mkdir("model");
    files_text("model/tokenizer.json", json.data);
    Tokenizer *t;
    if (tokenizer_open(&t, files_path("model"), &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(tokenizer_save(t, files_path("copy.json"), &err), OK);
    size_t length;
    char *copy = files_read("copy.json", &length);
    assert_int_equal(length, json.length);
    assert_memory_equal(copy, json.data, length);
    free(copy);
    text_free(&json);
    tokenizer_free(t);
    assert_int_equal(tokenizer_open(&t, files_path("nothing.json"), &err), ERR_NOINPUT);
    assert_null(t);
}

/* --- tiktoken --- */

static void add_base64(Text *out, const Text *token) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < token->length; i += 3) {
        uint32_t group = 0;
        for (size_t k = 0; k < 3; k++)
            group = group << 8 | (i + k < token->length ? (uint8_t)token->data[i + k] : 0);
        for (size_t k = 0; k < 4; k++)
            text_add(out, i + k > token->length ? "=" : &digits[group >> (18 - 6 * k) & 63], 1);
    }
}

static void write_ranks(const Stored *s, Text *out) {
    size_t count;
    Text *tokens = stored_tokens(s, &count);
    for (size_t i = 0; i < count; i++) {
        add_base64(out, &tokens[i]);
        text_printf(out, " %zu\n", i);
    }
    free_tokens(tokens, count);
}

static void test_tiktoken(void **state) {
    (void)state;
    Text file = {0};
    Error err = {0};
    write_ranks(&stored[1], &file);
    const char *path = files_text("tokenizer.model", file.data);
    Tokenizer *t, *again;
    TokenizerKeys keys = {.pattern = (char[]){"llama3"}};
    /* The file does not contain its kind, and it is not a published one. */
    assert_int_equal(tokenizer_open(&t, path, &err), ERR_DATA);
    assert_non_null(strstr(err.message, "tokenizer.pattern"));
    if (tokenizer_open_as(&t, path, &keys, &err) != OK) fail_msg("%s", err.message);
    int32_t ranks = 256 + (int32_t)stored[1].merge_count;
    assert_int_equal(tokenizer_vocab_size(t), ranks + 256);
    assert_int_equal(tokenizer_bos(t), ranks);
    assert_int_equal(tokenizer_eos(t), ranks + 1);
    assert_int_equal(tokenizer_special(t, "<|start_header_id|>"), ranks + 6);
    assert_int_equal(tokenizer_special(t, "<|eom_id|>"), ranks + 8);
    assert_int_equal(tokenizer_special(t, "<|eot_id|>"), ranks + 9);
    assert_int_equal(tokenizer_special(t, "<|python_tag|>"), ranks + 10);
    assert_int_equal(tokenizer_special(t, "<|reserved_special_token_245|>"), ranks + 255);
    assert_expected(t, &stored[1]);
    assert_int_equal(tokenizer_save(t, files_path("tiktoken.json"), &err), OK);
    if (tokenizer_open(&again, files_path("tiktoken.json"), &err) != OK) fail_msg("%s", err.message);
    assert_expected(again, &stored[1]);
    assert_int_equal(tokenizer_eos(again), ranks + 1);
    tokenizer_free(again);
    tokenizer_free(t);
    text_free(&file);
}

/* Pattern, special tokens and their ids, after the 256 bytes, for each kind that a key can name. */
static void test_kinds_of_rank_files(void **state) {
    (void)state;
    static struct {
        char kind[8];
        const char *special;
        int32_t at, size;
    } cases[] = {{"gpt2", "<|endoftext|>", 0, 1},
                 {"cl100k", "<|endofprompt|>", 20, 21},
                 {"cl100k", "<|reserved_256|>", 0, 21},
                 {"o200k", "<|endoftext|>", 1, 21},
                 {"harmony", "<|return|>", 4, 1090},
                 {"llama3", "<|image|>", 11, 256},
                 {"llama4", "<|header_start|>", 5, 2048},
                 {"llama4", "<|text_post_train_reserved_special_token_68|>", 79, 2048},
                 {"llama4", "<|vision_reserved_special_token_1047|>", 1133, 2048},
                 {"llama4", "<|reserved_special_token_903|>", 2047, 2048},
                 {"qwen2", NULL, 0, 0},
                 {"qwen", "<|extra_204|>", 207, 208}};
    Text file = {0};
    Error err = {0};
    write_ranks(&(Stored){.merge_count = 0}, &file);
    for (size_t i = 0; i < COUNT(cases) - !unicode_available(); i++) {
        Tokenizer *t;
        TokenizerKeys keys = {.pattern = cases[i].kind};
        if (tokenizer_parse_as(&t, "ranks", file.data, file.length, &keys, &err) != OK)
            fail_msg("%s", err.message);
        assert_int_equal(tokenizer_vocab_size(t), 256 + cases[i].size);
        if (cases[i].special) assert_int_equal(tokenizer_special(t, cases[i].special), 256 + cases[i].at);
        tokenizer_free(t);
    }
    /* A kind with a hole where its special token is, which this file lacks. */
    Tokenizer *t;
    TokenizerKeys keys = {.pattern = (char[]){"p50k"}};
    assert_int_equal(tokenizer_parse_as(&t, "ranks", file.data, file.length, &keys, &err), ERR_DATA);
    /* Special tokens named by the user. */
    char *names[] = {(char[]){"<a>"}, (char[]){"<b>"}};
    keys = (TokenizerKeys){
        .pattern = (char[]){"gpt2"}, .special = {.count = 2, .items = names}, .eos = {1, &names[1]}};
    if (tokenizer_parse_as(&t, "ranks", file.data, file.length, &keys, &err) != OK)
        fail_msg("%s", err.message);
    assert_int_equal(tokenizer_vocab_size(t), 258);
    assert_int_equal(tokenizer_eos(t), 257);
    tokenizer_free(t);
    keys.pattern = (char[]){"gpt5"};
    assert_int_equal(tokenizer_parse_as(&t, "ranks", file.data, file.length, &keys, &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "cl100k"));
    text_free(&file);
}

static void test_bad_tiktoken(void **state) {
    (void)state;
    static const struct {
        const char *line, *fragment;
    } cases[] = {
        {"YWI 256", "ranks.model:257"}, {"YWI= x", "base64 rank"},  {"YW=I 256", "base64 rank"},
        {"YWI=256", "base64 rank"},     {"YWI= -1", "base64 rank"}, {"YWI= 7", "both have"},
        {"YWI= 257", "without gaps"},   {"YQ== 256", "twice"},      {"YWI= 99999999999", "base64 rank"},
        {"==== 256", "base64 rank"},    {"\x1b[31m 256", "\\x1B"}};
    TokenizerKeys keys = {.pattern = (char[]){"gpt2"}};
    Text bytes = {0};
    Error err = {0};
    write_ranks(&(Stored){.merge_count = 0}, &bytes);
    for (size_t i = 0; i < COUNT(cases); i++) {
        Text file = {0};
        Tokenizer *t;
        text_printf(&file, "%s%s\n", bytes.data, cases[i].line);
        assert_int_equal(tokenizer_parse_as(&t, "ranks.model", file.data, file.length, &keys, &err),
                         ERR_DATA);
        assert_null(t);
        if (!strstr(err.message, cases[i].fragment))
            fail_msg("\"%s\" lacks \"%s\"", err.message, cases[i].fragment);
        text_free(&file);
    }
    /* Each shorter file lacks a byte, or ends within a line. */
    for (size_t length = 0; length + 1 < bytes.length; length++) {
        Tokenizer *t;
        assert_int_equal(tokenizer_parse_as(&t, "ranks.model", bytes.data, length, &keys, &err), ERR_DATA);
    }
    text_free(&bytes);
}

/* --- BOS and EOS --- */

static void write_tokenizer(const char *dir, const char *config) {
    Text json = {0}, path = {0};
    write_document(
        &(Document){.added = ADDED(258, "<|endoftext|>", false, true) "," ADDED(
                        259, "<|im_start|>", false, true) "," ADDED(260, "<|im_end|>", false, true)},
        &json);
    files_mkdir(dir);
    text_printf(&path, "%s/tokenizer.json", dir);
    files_text(path.data, json.data);
    text_clear(&path);
    text_printf(&path, "%s/tokenizer_config.json", dir);
    if (config) files_text(path.data, config);
    text_free(&path);
    text_free(&json);
}

static void expect_bounds(const char *path, const TokenizerKeys *keys, int32_t bos, int32_t eos) {
    Tokenizer *t;
    Error err = {0};
    if (tokenizer_open_as(&t, files_path(path), keys, &err) != OK) fail_msg("%s", err.message);
    assert_int_equal(tokenizer_bos(t), bos);
    assert_int_equal(tokenizer_eos(t), eos);
    tokenizer_free(t);
}

static void test_bounds(void **state) {
    (void)state;
    const TokenizerKeys none = {0};
    char *ends[] = {(char[]){"<|endoftext|>"}, (char[]){"<|im_end|>"}}, *nothing[] = {(char[]){"none"}};
    write_tokenizer("alone", NULL);
    write_tokenizer("chatml", "{\"bos_token\": null, \"eos_token\": {\"content\": \"<|im_end|>\"}}");
    write_tokenizer("turns", "{\"bos_token\": \"<|im_start|>\", \"eos_token\": \"<|im_end|>\"}");
    write_tokenizer("gpt2", "{\"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|endoftext|>\", "
                            "\"add_bos_token\": true}");
    write_tokenizer("added", "{\"bos_token\": \"<|im_start|>\", \"add_bos_token\": true}");
    write_tokenizer("wrong", "{\"eos_token\": \"</s>\"}");
    expect_bounds("alone", &none, -1, 258);
    expect_bounds("chatml", &none, -1, 260);
    expect_bounds("chatml/tokenizer.json", &none, -1, 260);
    expect_bounds("turns", &none, -1, 260);
    expect_bounds("gpt2", &none, -1, 258);
    expect_bounds("added", &none, 259, 258);
    expect_bounds("chatml", &(TokenizerKeys){.eos = {2, ends}, .bos = (char[]){"<|im_start|>"}}, 259, 258);
    expect_bounds("chatml", &(TokenizerKeys){.eos = {1, nothing}}, -1, -1);
    Tokenizer *t, *other;
    Error err = {0};
    assert_int_equal(tokenizer_open(&t, files_path("wrong"), &err), ERR_CONFIG);
    assert_non_null(strstr(err.message, "</s>"));
    assert_non_null(strstr(err.message, "tokenizer.eos"));
    assert_int_equal(tokenizer_open_as(&t, files_path("chatml"), &(TokenizerKeys){.eos = {2, ends}}, &err),
                     OK);
    assert_int_equal(tokenizer_open(&other, files_path("alone"), &err), OK);
    int count;
    assert_int_equal(tokenizer_ends(t, &count)[1], 260);
    assert_int_equal(count, 2);
    assert_true(tokenizer_same_ids(t, other));
    tokenizer_free(other);
    tokenizer_free(t);
}

/* --- hostile tokenizer.json --- */

static void test_bad_vocabulary(void **state) {
    (void)state;
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"ab\": 257"}, "duplicate key");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"\\u0061b\": 257"}, "duplicate key");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 256"}, "both have the id 256");
    must_refuse(&(Document){.vocab = "\"ab\": 7, \"abc\": 256"}, "both have the id 7");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 258"}, "without gaps");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 2147483647"}, "without gaps");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 2147483648"}, "whole number");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 1e300"}, "whole number");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": -1"}, "whole number");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 257.5"}, "whole number");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": \"257\""}, "whole number");
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 257, \"\": 258"}, "empty");
    must_refuse(&(Document){.missing_byte = 255, .vocab = "\"ab\": 255, \"abc\": 256"}, "0xAD");
    /* The id of an added token that is already in the vocabulary. */
    must_refuse(&(Document){.vocab = "\"ab\": 256, \"abc\": 258", .added = ADDED(256, "ab", false, true)},
                "no token has the id 257");
}

static void test_bad_added(void **state) {
    (void)state;
    must_refuse(&(Document){.added = ADDED(5, "<s>", false, true)}, "both have the id 5");
    must_refuse(&(Document){.added = ADDED(300, "<s>", false, true)}, "without gaps");
    must_refuse(&(Document){.added = ADDED(258, "abc", false, true)}, "has id 258, but 257");
    must_refuse(&(Document){.added = ADDED(258, "<s>", false, true) "," ADDED(259, "<s>", false, true)},
                "twice");
    must_refuse(&(Document){.added = ADDED(257, "abc", false, true) "," ADDED(257, "abc", false, true)},
                "twice");
    must_refuse(&(Document){.added = ADDED(68, "e", false, true)}, "0x65");
    must_refuse(&(Document){.added = ADDED(258, "", false, true)}, "empty");
    must_refuse(&(Document){.added = "7"}, "objects only");
    must_refuse(&(Document){.added = "{\"id\": 258}"}, "content");
    must_refuse(&(Document){.added = "{\"content\": \"<s>\"}"}, "whole number");
    must_refuse(&(Document){.added = "{\"id\": 258, \"content\": \"<s>\", \"lstrip\": 1}"}, "lstrip");
    must_refuse(&(Document){.added = "{\"id\": 258, \"content\": \"<s>\", \"special\": 1}"}, "special");
}

static void test_bad_merges(void **state) {
    (void)state;
    must_refuse(&(Document){.merges = "\"a b\", \"ab d\""}, "its result is no text token");
    must_refuse(&(Document){.merges = "\"a b\", \"abq c\""}, "\"abq\"");
    must_refuse(&(Document){.merges = "\"a b\", \"a b\""}, "earlier merge");
    must_refuse(&(Document){.merges = "\"ab\""}, "one space");
    must_refuse(&(Document){.merges = "\"a b c\""}, "one space");
    must_refuse(&(Document){.merges = "\" ab\""}, "merge 0");
    must_refuse(&(Document){.merges = "[\"a\"]"}, "expected");
    must_refuse(&(Document){.merges = "[\"a\", 7]"}, "expected");
    must_refuse(&(Document){.merges = "[\"a\", \"b\", \"c\"]"}, "expected");
    must_refuse(&(Document){.merges = "7"}, "expected");
}

#define PRE(steps) "{\"type\": \"Sequence\", \"pretokenizers\": [" steps "]}"
#define BYTE_LEVEL "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define SPLIT(pattern, rest) "{\"type\": \"Split\", \"pattern\": {" pattern "}, \"behavior\": " rest "}"
#define NORMALIZERS(steps) "{\"type\": \"Sequence\", \"normalizers\": [" steps "]}"
#define REPLACE(from, to) "{\"type\": \"Replace\", \"pattern\": " from ", \"content\": \"" to "\"}"

static void test_bad_normalizers(void **state) {
    (void)state;
    must_refuse(&(Document){.normalizer = "{\"type\": \"BertNormalizer\"}"}, "normalizer: BertNormalizer");
    must_refuse(&(Document){.normalizer = "7"}, "normalizer");
    must_refuse(&(Document){.normalizer = "{\"type\": \"Sequence\"}"}, "normalizers");
    must_refuse(&(Document){.normalizer = NORMALIZERS("{\"type\": \"Strip\"}, {\"type\": \"Precompiled\"}")},
                "normalizer.normalizers[1]: Precompiled");
    must_refuse(&(Document){.normalizer = NORMALIZERS(NORMALIZERS(""))}, "normalizers[0]: Sequence");
    must_refuse(&(Document){.normalizer = REPLACE("{\"Regex\": \" +\"}", "x")}, "Replace of a Regex");
    must_refuse(&(Document){.normalizer = REPLACE("{\"String\": \"\"}", "x")}, "empty String");
    must_refuse(&(Document){.normalizer = REPLACE("{\"String\": \" \"}", "\\u2581")}, "U+2581");
    must_refuse(&(Document){.normalizer = REPLACE("7", "x")}, "pattern");
    must_refuse(&(Document){.normalizer = "{\"type\": \"Prepend\"}"}, "prepend");
    must_refuse(&(Document){.normalizer = "{\"type\": \"Strip\", \"strip_left\": 1}"}, "strip_left");
    must_refuse(&(Document){.normalizer = NORMALIZERS(REPLACE("{\"String\": \"a\"}", "aaaaaaaaa") "," REPLACE(
                                "{\"String\": \"a\"}", "aaaaaaaaa"))},
                "64 times");
#define STRIP "{\"type\": \"Strip\"},"
    must_refuse(&(Document){.normalizer = NORMALIZERS(STRIP STRIP STRIP STRIP STRIP STRIP STRIP STRIP
                                                      "{\"type\": \"Strip\"}")},
                "more than 8");
}

static void test_bad_pre_tokenizers(void **state) {
    (void)state;
    must_refuse(&(Document){.pre_tokenizer = "null"}, "pre_tokenizer");
    must_refuse(&(Document){.pre_tokenizer = "{\"type\": \"Whitespace\"}"}, "pre_tokenizer: Whitespace");
    must_refuse(&(Document){.pre_tokenizer = "{\"type\": \"Metaspace\"}"}, "Metaspace");
    must_refuse(&(Document){.pre_tokenizer = BYTE_LEVEL}, "use_regex");
    must_refuse(&(Document){.pre_tokenizer = PRE("")}, "Sequence");
    must_refuse(&(Document){.pre_tokenizer = PRE("7")}, "pretokenizers[0]");
    must_refuse(&(Document){.pre_tokenizer = PRE("{\"type\": \"Digits\"}")}, "Digits");
    must_refuse(&(Document){.pre_tokenizer = PRE("{\"type\": \"Digits\"}, {\"type\": \"ByteLevel\"}")},
                "pre_tokenizer.pretokenizers[1]: add_prefix_space");
    must_refuse(&(Document){.pre_tokenizer = PRE("{\"type\": \"ByteLevel\"}," BYTE_LEVEL)},
                "behind ByteLevel");
    must_refuse(&(Document){.pre_tokenizer =
                                PRE(SPLIT("\"Regex\": \"(a+)+\\u001b\"", "\"Isolated\"") "," BYTE_LEVEL)},
                "(a+)+\\x1B");
    must_refuse(&(Document){.pre_tokenizer = PRE(SPLIT("\"String\": \" \"", "\"Isolated\"") "," BYTE_LEVEL)},
                "String");
    must_refuse(&(Document){.pre_tokenizer = PRE(SPLIT("\"x\": 1", "\"Isolated\"") "," BYTE_LEVEL)}, "Regex");
    must_refuse(
        &(Document){.pre_tokenizer = PRE(SPLIT("\"Regex\": \"\\\\p{N}\"", "\"Contiguous\"") "," BYTE_LEVEL)},
        "Contiguous");
    /* Text between its matches would be lost. */
    must_refuse(&(Document){.pre_tokenizer = PRE(SPLIT("\"Regex\": \"\\\\p{N}\"",
                                                       "\"Removed\", \"invert\": true") "," BYTE_LEVEL)},
                "Removed");
}

static void test_bad_settings(void **state) {
    (void)state;
    must_refuse(&(Document){.settings = "\"dropout\": 0.1,"}, "dropout");
    must_refuse(&(Document){.settings = "\"byte_fallback\": true,"}, "ByteLevel with a byte_fallback model");
    must_refuse(&(Document){.settings = "\"end_of_word_suffix\": \"</w>\","}, "</w>");
    must_refuse(&(Document){.settings = "\"continuing_subword_prefix\": \"##\","}, "##");
    must_refuse(&(Document){.settings = "\"ignore_merges\": \"yes\","}, "ignore_merges");
    must_refuse(&(Document){.decoder = "{\"type\": \"WordPiece\"}"}, "decoder: WordPiece");
}

/* --- byte fallback --- */

#define SPACES_BACK                                                                                         \
    "{\"type\": \"Sequence\", \"decoders\": [" REPLACE(                                                     \
        "{\"String\": \"\\u2581\"}", " ") ", {\"type\": "                                                   \
                                          "\"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": \"Strip\", " \
                                          "\"content\": \" \", \"start\": 1, "                              \
                                          "\"stop\": 0}]}"
#define PREPEND "{\"type\": \"Prepend\", \"prepend\": \"\\u2581\"}"
#define MARK_SPACES REPLACE("{\"String\": \" \"}", "\\u2581")

static Document llama_like(void) {
    return (Document){
        .fallback = true,
        .settings = "\"byte_fallback\": true,",
        .normalizer = NORMALIZERS(PREPEND "," MARK_SPACES),
        .pre_tokenizer = "null",
        .decoder = SPACES_BACK,
        .vocab = "\"\\u2581\": 256, \"a\": 257, \"\\u2581a\": 258, \"b\": 259, \"<s>\": 260, \"<\": 261, "
                 "\"s>\": 262, \"s\": 263, \">\": 264, \"\\n\": 265",
        .merges = "[\"\\u2581\", \"a\"], [\"s\", \">\"], [\"<\", \"s>\"]",
        .added = ADDED(260, "<s>", false, true)};
}

/* Where the normalizer writes U+2581 for spaces, they are not white space for tokens that are matched after
 * it. */
static void test_white_space_is_marked(void **state) {
    (void)state;
    Document d = llama_like();
    d.normalizer = NORMALIZERS(MARK_SPACES);
    d.added = "{\"id\": 266, \"content\": \"x\", \"normalized\": true, \"lstrip\": true, \"rstrip\": true},"
              "{\"id\": 267, \"content\": \"y\", \"normalized\": true, \"lstrip\": true, \"rstrip\": true, "
              "\"special\": true}";
    Tokenizer *t = must_open(&d);
    ASSERT_IDS(t, "x\n a", 266, 258);
    ASSERT_IDS(t, "a \nx", 257, 256, 266);
    ASSERT_IDS(t, "\nx\n", 266);
    TokenList ids = {0};
    Error err = {0};
    assert_int_equal(tokenizer_encode_chat(t, "\ny\n ay", 6, -1, &ids, &err), OK);
    assert_int_equal(ids.count, 3);
    assert_memory_equal(ids.ids, ((int32_t[]){267, 258, 267}), 3 * sizeof *ids.ids);
    token_list_free(&ids);
    tokenizer_free(t);
}

static void test_byte_fallback(void **state) {
    (void)state;
    Document d = llama_like();
    Tokenizer *t = must_open(&d);
    ASSERT_IDS(t, "a", 258);
    ASSERT_IDS(t, " ab", 256, 258, 259);
    ASSERT_IDS(t,
               "b\xe2\x96\x81"
               "a",
               256, 259, 258);
    ASSERT_IDS(t, "\xc3\xa9\n\xff", 256, 0xC3, 0xA9, 265, 0xFF);
    ASSERT_IDS(t, "<0x41>", 256, 261, '0', 'x', '4', '1', 264);
    /* Merges do not lead to a special token either: that merge is dropped. */
    ASSERT_IDS(t, "<s>", 256, 261, 262);
    assert_int_equal(tokenizer_bos(t), 260);
    assert_int_equal(tokenizer_cut(t, "aa aa", 5), 0); /* the second half would get a space of its own */
    assert_round_trip(t, "  a<s> \xc3\xa9\xff\n", 12);
    size_t length;
    assert_memory_equal(tokenizer_token_text(t, 258, false, &length), " a", 2);
    assert_int_equal(length, 2);
    assert_memory_equal(tokenizer_token_text(t, 258, true, &length), "a", 1);
    assert_int_equal(length, 1);
    tokenizer_token_text(t, 256, true, &length);
    assert_int_equal(length, 0);
    assert_null(tokenizer_token_text(t, 266, true, &length));
    tokenizer_free(t);
}

static void test_bad_byte_fallback(void **state) {
    (void)state;
#define REFUSE(fragment, ...)            \
    do {                                 \
        Document changed = llama_like(); \
        (void)(changed.__VA_ARGS__);     \
        must_refuse(&changed, fragment); \
    } while (0)
    REFUSE("decoder", decoder = NULL);
    REFUSE("without ByteFallback", decoder = "{\"type\": \"Metaspace\"}");
    REFUSE("does not undo", decoder = "{\"type\": \"ByteFallback\"}");
    REFUSE("decoder.decoders[0]: CTC",
           decoder = "{\"type\": \"Sequence\", \"decoders\": [{\"type\": \"CTC\"}]}");
    REFUSE("Strip of other than",
           decoder = "{\"type\": \"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 0}");
    REFUSE("Replace of other than", decoder = REPLACE("{\"String\": \"x\"}", " "));
    REFUSE("behind the Replace of spaces", normalizer = NORMALIZERS(MARK_SPACES ", {\"type\": \"Strip\"}"));
    REFUSE("ByteLevel with a byte_fallback", pre_tokenizer = BYTE_LEVEL);
    REFUSE("cutting text", pre_tokenizer = "{\"type\": \"Digits\"}");
    REFUSE("Split at a String", pre_tokenizer = SPLIT("\"String\": \"a\"", "\"Isolated\""));
    REFUSE("with other steps", pre_tokenizer = PRE("{\"type\": \"Metaspace\"}"));
    REFUSE("another replacement", pre_tokenizer = "{\"type\": \"Metaspace\", \"replacement\": \"_\"}");
    REFUSE("prepend_scheme", pre_tokenizer = "{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}");
    REFUSE("no text token", merges = "[\"<0x41>\", \"a\"]");
    REFUSE("twice", added = ADDED(260, "<s>", false, true) "," ADDED(260, "<s>", false, true));
    Document lacking = llama_like();
    lacking.missing_byte = 7;
    lacking.vocab = "\"c\": 7, \"a\": 256";
    lacking.merges = "";
    lacking.added = "";
    must_refuse(&lacking, "0x07");
    Document emptied = llama_like();
    emptied.normalizer = NORMALIZERS(REPLACE("{\"String\": \"<s>\"}", "") "," MARK_SPACES);
    emptied.added = ADDED(260, "<s>", true, false);
    must_refuse(&emptied, "nothing is left");
}

static void test_bad_documents(void **state) {
    (void)state;
    static const char *const documents[] = {
        "{",
        "[]",
        "{}",
        "{\"model\": 7}",
        "{\"model\": {}}",
        "{\"model\": {\"type\": \"Unigram\"}}",
        "{\"version\": \"2.0\"}",
        "{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}"};
    Error err = {0};
    Tokenizer *t;
    for (size_t i = 0; i < COUNT(documents); i++) {
        assert_int_equal(tokenizer_parse(&t, "test.json", documents[i], strlen(documents[i]), &err),
                         ERR_DATA);
        assert_null(t);
        assert_non_null(strstr(err.message, "test.json"));
    }
    Text json = {0};
    write_document(&(Document){.added = ADDED(258, "<s>", false, true)}, &json);
    for (size_t length = 0; length < json.length; length++) {
        assert_int_equal(tokenizer_parse(&t, "test.json", json.data, length, &err), ERR_DATA);
        assert_null(t);
    }
    /* Any change of one byte gives an error or a tokenizer, never a crash. */
    uint32_t seed = 5;
    for (int i = 0; i < 3000; i++) {
        size_t at = next_random(&seed) % json.length;
        char kept = json.data[at];
        json.data[at] = (char)next_random(&seed);
        if (tokenizer_parse(&t, "test.json", json.data, json.length, &err) == OK) tokenizer_free(t);
        json.data[at] = kept;
    }
    text_free(&json);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_expectations),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_random_text),
        cmocka_unit_test(test_long_runs),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_white_space_taken_twice),
        cmocka_unit_test(test_whole_first),
        cmocka_unit_test(test_white_space_is_marked),
        cmocka_unit_test(test_nfc),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_fingerprint),
        cmocka_unit_test(test_save_is_a_copy),
        cmocka_unit_test(test_tiktoken),
        cmocka_unit_test(test_kinds_of_rank_files),
        cmocka_unit_test(test_bad_tiktoken),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_bad_vocabulary),
        cmocka_unit_test(test_bad_added),
        cmocka_unit_test(test_bad_merges),
        cmocka_unit_test(test_bad_normalizers),
        cmocka_unit_test(test_bad_pre_tokenizers),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_byte_fallback),
        cmocka_unit_test(test_bad_byte_fallback),
        cmocka_unit_test(test_bad_documents),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
