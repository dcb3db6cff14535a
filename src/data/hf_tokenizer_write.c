/* A Tokenizer as tokenizer.json, for tokenizers that weft trained or that came as a tiktoken file. Those
 * that came as tokenizer.json are written back byte for byte instead (tokenizer_save).
 *
 * Only what readers need is written, in the form that the oldest versions of `tokenizers` take too. */
#include <string.h>

#include "base/json.h"
#include "data/byte_level.h"
#include "data/hf_tokenizer.h"

static void write_bool(JsonWriter *w, const char *key, bool value) {
    json_key(w, key);
    json_bool(w, value);
}

static void write_null(JsonWriter *w, const char *key) {
    json_key(w, key);
    json_null(w);
}

static void write_type(JsonWriter *w, const char *type) {
    json_begin_object(w);
    json_key(w, "type");
    json_string(w, type);
}

static void write_added(JsonWriter *w, const Tokenizer *t) {
    json_key(w, "added_tokens");
    json_begin_array(w);
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        if (token->kind != TOKEN_SPECIAL) continue;
        json_begin_object(w);
        json_key(w, "id");
        json_int(w, id);
        json_key(w, "content");
        json_bytes(w, token->bytes, token->length);
        write_bool(w, "single_word", false);
        write_bool(w, "lstrip", false);
        write_bool(w, "rstrip", false);
        write_bool(w, "normalized", false);
        write_bool(w, "special", true);
        json_end_object(w);
    }
    json_end_array(w);
}

static void write_byte_level(JsonWriter *w, bool use_regex) {
    write_type(w, "ByteLevel");
    write_bool(w, "add_prefix_space", false);
    write_bool(w, "trim_offsets", true);
    write_bool(w, "use_regex", use_regex);
    json_end_object(w);
}

static void write_pre_tokenizer(JsonWriter *w, Pattern pattern) {
    json_key(w, "pre_tokenizer");
    if (pattern == PATTERN_GPT2 || pattern == PATTERN_NONE) {
        write_byte_level(w, pattern == PATTERN_GPT2);
        return;
    }
    write_type(w, "Sequence");
    json_key(w, "pretokenizers");
    json_begin_array(w);
    write_type(w, "Split");
    json_key(w, "pattern");
    json_begin_object(w);
    json_key(w, "Regex");
    json_string(w, pattern_source(pattern));
    json_end_object(w);
    json_key(w, "behavior");
    json_string(w, "Isolated");
    write_bool(w, "invert", false);
    json_end_object(w);
    write_byte_level(w, false);
    json_end_array(w);
    json_end_object(w);
}

static void write_vocabulary(JsonWriter *w, const Vocabulary *v) {
    Text name = {0};
    json_key(w, "vocab");
    json_begin_object(w);
    for (int32_t id = 0; id < v->count; id++) {
        if (v->tokens[id].kind != TOKEN_TEXT) continue;
        text_clear(&name);
        byte_level_write(&name, v->tokens[id].bytes, v->tokens[id].length);
        json_key(w, name.data);
        json_int(w, id);
    }
    json_end_object(w);
    text_free(&name);
}

/* In the old form, "a b", which every version of `tokenizers` reads. */
static void write_merges(JsonWriter *w, const Tokenizer *t) {
    Text line = {0};
    json_key(w, "merges");
    json_begin_array(w);
    for (size_t i = 0; i < t->bpe.count; i++) {
        const Token *left = &t->vocabulary.tokens[t->bpe.rules[i].left],
                    *right = &t->vocabulary.tokens[t->bpe.rules[i].right];
        text_clear(&line);
        byte_level_write(&line, left->bytes, left->length);
        text_puts(&line, " ");
        byte_level_write(&line, right->bytes, right->length);
        json_bytes(w, line.data, line.length);
    }
    json_end_array(w);
    text_free(&line);
}

static void write_model(JsonWriter *w, const Tokenizer *t) {
    json_key(w, "model");
    write_type(w, "BPE");
    write_null(w, "dropout");
    write_null(w, "unk_token");
    write_null(w, "continuing_subword_prefix");
    write_null(w, "end_of_word_suffix");
    write_bool(w, "fuse_unk", false);
    write_bool(w, "byte_fallback", false);
    write_bool(w, "ignore_merges", t->whole_first);
    write_vocabulary(w, &t->vocabulary);
    write_merges(w, t);
    json_end_object(w);
}

void hf_tokenizer_write(const Tokenizer *t, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "version");
    json_string(&w, "1.0");
    write_null(&w, "truncation");
    write_null(&w, "padding");
    write_added(&w, t);
    write_null(&w, "normalizer");
    write_pre_tokenizer(&w, t->pattern);
    write_null(&w, "post_processor");
    json_key(&w, "decoder");
    write_byte_level(&w, true);
    write_model(&w, t);
    json_end_object(&w);
    text_puts(out, "\n");
}
