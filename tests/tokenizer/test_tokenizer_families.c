/* The forms of tokenizer.json that model families publish, compared with ids and text from the `tokenizers`
 * package (tokenizer_families.json, made by tests/golden/make/make_tokenizer_expectations.py). Those that
 * need libutf8proc are skipped where the build lacks it. */
#include "support/files.h"

#include "tokenizer/tokenizer.h"
#include "tokenizer/utf8.h"
#include "support/tokenizer_expectations.h"
#include "support/tokenizer_families.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* Some change the text when encoding; the others return every byte. */
static bool gives_back(const cJSON *family) {
    const cJSON *document = cJSON_GetObjectItem(family, "document");
    const cJSON *normalizer = cJSON_GetObjectItem(document, "normalizer");
    return cJSON_IsNull(normalizer) &&
           strcmp(cJSON_GetObjectItem(family, "base")->valuestring, "bytes") == 0 &&
           !cJSON_IsTrue(
               cJSON_GetObjectItem(cJSON_GetObjectItem(document, "pre_tokenizer"), "add_prefix_space"));
}

static TokenList encode(const Tokenizer *t, const char *text, size_t length) {
    TokenList list = {0};
    Error err = {0};
    if (tokenizer_encode(t, text, length, &list, &err) != OK) fail_msg("%s", err.message);
    return list;
}

static void assert_ids(const cJSON *family, size_t number, const TokenList *list, const cJSON *ids) {
    size_t i = 0;
    for (const cJSON *id = ids->child; id; id = id->next, i++) {
        if (i >= list->count || list->ids[i] != id->valueint)
            fail_msg("%s: text %zu (\"%s\"): token %zu of %zu is %d, expected %d", family->string, number,
                     nasty_texts[number].bytes, i, list->count, i < list->count ? list->ids[i] : -1,
                     id->valueint);
    }
    if (i != list->count)
        fail_msg("%s: text %zu: %zu ids, expected %zu", family->string, number, list->count, i);
}

static void assert_decoded(const cJSON *family, const Tokenizer *t, size_t number, const TokenList *list,
                           const char *expected, size_t length) {
    Text whole = {0}, streamed = {0};
    Error err = {0};
    assert_int_equal(tokenizer_decode(t, list->ids, list->count, &whole, &err), OK);
    if (whole.length != length || (length && memcmp(whole.data, expected, length) != 0))
        fail_msg("%s: text %zu decodes to \"%s\", expected \"%s\"", family->string, number, whole.data,
                 expected);
    for (size_t i = 0; i < list->count; i++) {
        size_t bytes;
        const char *text = tokenizer_token_text(t, list->ids[i], i == 0, &bytes);
        text_add(&streamed, text, bytes);
    }
    assert_int_equal(streamed.length, length);
    if (length) assert_memory_equal(streamed.data, whole.data, length);
    text_free(&whole);
    text_free(&streamed);
}

/* encode(text) = encode(head) + encode(tail) */
static bool check_cut(const Tokenizer *t, const char *text, size_t length) {
    size_t cut = tokenizer_cut(t, text, length);
    TokenList whole = encode(t, text, length), parts = encode(t, text, cut);
    Error err;
    assert_true(cut == 0 || cut < length);
    assert_int_equal(tokenizer_encode(t, text + cut, length - cut, &parts, &err), OK);
    if (whole.count != parts.count ||
        (whole.count && memcmp(whole.ids, parts.ids, whole.count * sizeof *whole.ids) != 0))
        fail_msg("cutting \"%s\" at %zu changes its ids", text, cut);
    token_list_free(&whole);
    token_list_free(&parts);
    return cut > 0;
}

#define EACH_FAMILY(family)                                                              \
    for (const cJSON *family = cJSON_GetObjectItem(families, "families")->child; family; \
         family = family->next)

static void test_ids(void **state) {
    (void)state;
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        const cJSON *expected = cJSON_GetObjectItem(family, "cases")->child;
        for (size_t i = 0; t && i < COUNT(nasty_texts); i++, expected = expected->next) {
            const char *text = nasty_texts[i].bytes;
            TokenList list = encode(t, text, nasty_texts[i].length);
            assert_ids(family, i, &list, expected->child);
            const cJSON *decoded = expected->child->next;
            if (!decoded)
                assert_decoded(family, t, i, &list, text, nasty_texts[i].length);
            else if (cJSON_IsString(decoded))
                assert_decoded(family, t, i, &list, decoded->valuestring, strlen(decoded->valuestring));
            token_list_free(&list);
        }
        assert_true(!t || !expected);
        tokenizer_free(t);
    }
}

/* Each pair of texts with a space in between, so that there is a possible cut. */
static void test_cuts(void **state) {
    (void)state;
    int families_cut = 0;
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        int cuts = 0;
        for (size_t i = 0; t && i < COUNT(nasty_texts); i++) {
            size_t next = (i * 7 + 3) % COUNT(nasty_texts);
            Text text = {0};
            text_add(&text, nasty_texts[i].bytes, nasty_texts[i].length);
            text_puts(&text, " ");
            text_add(&text, nasty_texts[next].bytes, nasty_texts[next].length);
            cuts += check_cut(t, text.data, text.length);
            text_free(&text);
        }
        families_cut += cuts > 20;
        tokenizer_free(t);
    }
    assert_true(families_cut >= 10);
}

/* Bytes that are not characters are tokens of their own, and the text after them does not begin a new text: a
 * prefix before the text is added only once. */
static void test_invalid_utf8(void **state) {
    (void)state;
    static const char *const texts[] = {("a\xff"
                                         "b"), /* two literals: \xffb would be another character */
                                        "\xe2\x82", "\xff it's", "x \xc0\xaf y", "\xf0\x9f\x98\x80\xf0\x9f"};
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        bool words = strcmp(cJSON_GetObjectItem(family, "base")->valuestring, "bytes") != 0 &&
                     strcmp(family->string, "all normalizers") != 0 && strcmp(family->string, "added") != 0;
        for (size_t i = 0; t && i < COUNT(texts) && (words || gives_back(family)); i++) {
            size_t length = strlen(texts[i]);
            TokenList list = encode(t, texts[i], length);
            assert_decoded(family, t, i, &list, texts[i], length);
            token_list_free(&list);
        }
        tokenizer_free(t);
    }
}

static void test_random_bytes(void **state) {
    (void)state;
    uint32_t seed = 3;
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        for (int i = 0; t && i < 300; i++) {
            char text[120];
            size_t length = 0;
            while (length < sizeof text - 1) {
                seed = seed * 1664525U + 1013904223U;
                const char *source = nasty_texts[(seed >> 8) % COUNT(nasty_texts)].bytes;
                text[length++] =
                    seed >> 28 ? source[0] ? source[(seed >> 16) % strlen(source)] : ' ' : (char)(seed >> 20);
            }
            text[length] = 0;
            check_cut(t, text, length);
            TokenList list = encode(t, text, length);
            if (gives_back(family)) assert_decoded(family, t, 0, &list, text, length);
            token_list_free(&list);
        }
        tokenizer_free(t);
    }
}

/* Chunks of a document, cut where corpora cut them, have the ids of the whole; only forms that report it need
 * whole documents. */
static void test_parts(void **state) {
    (void)state;
    int whole = 0, all = 0;
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        if (t) all++, whole += tokenizer_whole_documents(t);
        for (size_t i = 0; t && !tokenizer_whole_documents(t) && i < COUNT(nasty_texts); i++) {
            size_t next = (i * 11 + 5) % COUNT(nasty_texts), head = nasty_texts[i].length;
            size_t tail = nasty_texts[next].length;
            bool lone = head > 0 && tail > 0 && utf8_trailing_space(nasty_texts[i].bytes, head) == 0 &&
                        utf8_leading_space(nasty_texts[next].bytes, tail) == 0 &&
                        nasty_texts[next].bytes[0] != '/';
            if (!lone) continue;
            Text text = {0};
            Error err = {0};
            text_add(&text, nasty_texts[i].bytes, head);
            text_puts(&text, "\n");
            text_add(&text, nasty_texts[next].bytes, tail);
            TokenList together = encode(t, text.data, text.length), parts = {0};
            assert_int_equal(tokenizer_encode_part(t, text.data, head + 1, true, &parts, &err), OK);
            assert_int_equal(tokenizer_encode_part(t, text.data + head + 1, tail, false, &parts, &err), OK);
            if (together.count != parts.count ||
                memcmp(together.ids, parts.ids, parts.count * sizeof *parts.ids) != 0)
                fail_msg("%s: parts of \"%s\" have other ids", family->string, text.data);
            token_list_free(&together);
            token_list_free(&parts);
            text_free(&text);
        }
        tokenizer_free(t);
    }
    assert_in_range(whole, 1, all / 2);
}

static void test_fingerprints(void **state) {
    (void)state;
    char prints[64][65];
    size_t count = 0;
    EACH_FAMILY(family) {
        Tokenizer *t = family_open(family);
        if (!t) continue;
        assert_true(count < COUNT(prints));
        tokenizer_fingerprint(t, prints[count]);
        for (size_t k = 0; k < count; k++) assert_string_not_equal(prints[k], prints[count]);
        count++;
        tokenizer_free(t);
    }
}

static int setup(void **state) { return families_read() == 0 ? files_setup(state) : -1; }

static int teardown(void **state) {
    cJSON_Delete(families);
    return files_teardown(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),          cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_invalid_utf8), cmocka_unit_test(test_random_bytes),
        cmocka_unit_test(test_parts),        cmocka_unit_test(test_fingerprints),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
