#include "check_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tokenizer/tokenizer.h"
#include "fuzz.h"

/* A slot, a token, a rule and its slots, cJSON's nodes, and copies of the file. */
enum { PER_BYTE = 256, FIXED = 1 << 21 };

static void encode(const Tokenizer *t, const char *text, size_t length, TokenList *out) {
    Error err = {0};
    if (!fuzz_ok(tokenizer_encode(t, text, length, out, &err), &err))
        fuzz_fail(__FILE__, __LINE__, "any text can be encoded", err.message);
}

static bool same_ids(const TokenList *a, const TokenList *b) {
    return a->count == b->count && memcmp(a->ids, b->ids, a->count * sizeof *a->ids) == 0;
}

static void check_text(const Tokenizer *t, const char *text, size_t length, bool keeps_bytes) {
    Error err = {0};
    TokenList whole = {0}, parts = {0};
    Text back = {0};
    encode(t, text, length, &whole);
    for (size_t i = 0; i < whole.count; i++) {
        REQUIRE(whole.ids[i] >= 0 && whole.ids[i] < tokenizer_vocab_size(t));
        REQUIRE(whole.ids[i] != tokenizer_bos(t) && whole.ids[i] != tokenizer_eos(t));
    }
    REQUIRE(tokenizer_decode(t, whole.ids, whole.count, &back, &err) == OK);
    if (keeps_bytes) REQUIRE(back.length == length && memcmp(back.data, text, length) == 0);
    size_t cut = tokenizer_cut(t, text, length);
    REQUIRE(cut < length);
    encode(t, text, cut, &parts);
    encode(t, text + cut, length - cut, &parts);
    REQUIRE(same_ids(&whole, &parts));
    token_list_free(&whole);
    token_list_free(&parts);
    text_free(&back);
}

/* After saving and opening it again it is the same: a tokenizer.json byte for byte, another file in
 * behaviour. */
static void check_saved(const Tokenizer *t, bool same_file) {
    Error err = {0};
    char before[65], after[65];
    char *path = path_join(fuzz_directory(), "saved.json");
    Tokenizer *again = NULL;
    if (!fuzz_ok(tokenizer_save(t, path, &err), &err) || !fuzz_ok(tokenizer_open(&again, path, &err), &err))
        fuzz_fail(__FILE__, __LINE__, "what was saved can be opened", err.message);
    tokenizer_fingerprint(t, before);
    tokenizer_fingerprint(again, after);
    if (same_file) REQUIRE(strcmp(before, after) == 0);
    TokenList first = {0}, second = {0};
    encode(t, fuzz_nasty_text, fuzz_nasty_length, &first);
    encode(again, fuzz_nasty_text, fuzz_nasty_length, &second);
    REQUIRE(same_ids(&first, &second));
    token_list_free(&first);
    token_list_free(&second);
    tokenizer_free(again);
    free(path);
}

/* Normalizers, Metaspace and some flags of added tokens change text intentionally; so does a space before the
 * text, which one letter shows. Names may be escaped. */
static bool keeps_text(const Tokenizer *t, const uint8_t *data, size_t size) {
    static const char *const words[] = {"NF",        "Lowercase", "Strip",  "Replace", "Prepend",
                                        "Metaspace", "lstrip",    "rstrip", "\\u"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (memmem(data, size, words[i], strlen(words[i]))) return false;
    Error err = {0};
    TokenList ids = {0};
    Text back = {0};
    encode(t, "Q", 1, &ids);
    REQUIRE(tokenizer_decode(t, ids.ids, ids.count, &back, &err) == OK);
    bool keeps = back.length == 1;
    token_list_free(&ids);
    text_free(&back);
    return keeps;
}

int check_tokenizer(const uint8_t *data, size_t size, bool json) {
    Error err = {0};
    Tokenizer *t = NULL;
    fuzz_directory();
    fuzz_memory_start();
    TokenizerKeys keys = {.pattern = (char[]){"llama3"}}; /* for rank files */
    bool good = fuzz_ok(tokenizer_parse_as(&t, "tokenizer", (const char *)data, size, &keys, &err), &err);
    fuzz_memory_check(size, PER_BYTE, FIXED);
    if (!good) {
        REQUIRE(t == NULL);
        return 0;
    }
    bool keeps_bytes = keeps_text(t, data, size);
    check_text(t, fuzz_nasty_text, fuzz_nasty_length, keeps_bytes);
    check_text(t, (const char *)data, size < 4096 ? size : 4096, keeps_bytes);
    check_saved(t, json);
    tokenizer_free(t);
    return 0;
}
