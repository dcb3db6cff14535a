/* Writes a Tokenizer as tokenizer.json if weft trained it or it came from a tiktoken file. One that came from
 * a tokenizer.json is copied byte for byte instead (tokenizer_save).
 *
 * Only required members are written, in the form that the oldest versions of `tokenizers` accept too.
 *
 *   {
 *     "version": "1.0", "truncation": null, "padding": null,
 *     "added_tokens": [{"id": 256, "content": "...", four flags, "special": true} ...],
 *     "normalizer": null, or NFC,
 *     "pre_tokenizer": a ByteLevel, or a Sequence of a Split and a ByteLevel,
 *     "post_processor": null,
 *     "decoder": a ByteLevel,
 *     "model": {"type": "BPE", settings, "vocab": {"spelling": id ...}, "merges": ["a b" ...]}
 *   }
 *
 * Members have the order in which `tokenizers` writes them. Text is appended to `out`; nothing here can
 * fail. */
#include <string.h>

#include "base/json.h"
#include "tokenizer/byte_level.h"
#include "tokenizer/hf_tokenizer.h"

/* The object stays open: the caller adds its own members and ends it. */
static void write_type(JsonWriter *w, const char *type) {
    json_begin_object(w);
    json_put_string(w, "type", type);
}

/* All flags are written, since old readers have no defaults for them. `normalized` is false, so that a
 * special token is found as it is spelled, whatever normalizer is added later. */
static void write_added(JsonWriter *w, const Tokenizer *t) {
    json_key(w, "added_tokens");
    json_begin_array(w);
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        if (token->kind != TOKEN_SPECIAL) continue;
        json_begin_object(w);
        json_put_int(w, "id", id);
        json_put_bytes(w, "content", token->bytes, token->length);
        json_put_bool(w, "single_word", false);
        json_put_bool(w, "lstrip", false);
        json_put_bool(w, "rstrip", false);
        json_put_bool(w, "normalized", false);
        json_put_bool(w, "special", true);
        json_end_object(w);
    }
    json_end_array(w);
}

/* trim_offsets only affects offsets, but old readers require it. */
static void write_byte_level(JsonWriter *w, bool use_regex) {
    write_type(w, "ByteLevel");
    json_put_bool(w, "add_prefix_space", false);
    json_put_bool(w, "trim_offsets", true);
    json_put_bool(w, "use_regex", use_regex);
    json_end_object(w);
}

/* GPT-2's pattern is built into ByteLevel; any other is a Split before a ByteLevel without a pattern. */
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
    json_put_string(w, "Regex", pattern_source(pattern));
    json_end_object(w);
    json_put_string(w, "behavior", "Isolated");
    json_put_bool(w, "invert", false);
    json_end_object(w);
    write_byte_level(w, false);
    json_end_array(w);
    json_end_object(w);
}

/* Special tokens are only in added_tokens: if they were in both, a reader could take them for text. */
static void write_vocabulary(JsonWriter *w, const Vocabulary *v) {
    Text name = {0};
    json_key(w, "vocab");
    json_begin_object(w);
    for (int32_t id = 0; id < v->count; id++) {
        if (v->tokens[id].kind != TOKEN_TEXT) continue;
        text_clear(&name);
        byte_level_write(&name, v->tokens[id].bytes, v->tokens[id].length);
        json_put_int(w, name.data, id);
    }
    json_end_object(w);
    text_free(&name);
}

/* In the old form, "a b", which every version of `tokenizers` reads. The space cannot be part of a token: in
 * the byte alphabet it is another character (U+0120). */
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

/* Nulls and falses are the defaults of missing members, written for readers without defaults. */
static void write_model(JsonWriter *w, const Tokenizer *t) {
    json_key(w, "model");
    write_type(w, "BPE");
    json_put_null(w, "dropout");
    json_put_null(w, "unk_token");
    json_put_null(w, "continuing_subword_prefix");
    json_put_null(w, "end_of_word_suffix");
    json_put_bool(w, "fuse_unk", false);
    json_put_bool(w, "byte_fallback", false);
    json_put_bool(w, "ignore_merges", t->whole_first);
    write_vocabulary(w, &t->vocabulary);
    write_merges(w, t);
    json_end_object(w);
}

/* Only some rank files have a normalizer here: NFC. */
static void write_normalizer(JsonWriter *w, const Tokenizer *t) {
    if (t->normalizer.count == 0) {
        json_put_null(w, "normalizer");
        return;
    }
    json_key(w, "normalizer");
    write_type(w, "NFC");
    json_end_object(w);
}

/* Trained tokenizers and tiktoken files have at most one pattern, the first step of `splits`. A ByteLevel
 * decoder uses none of its settings; they are for readers that require them. */
void hf_tokenizer_write(const Tokenizer *t, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_string(&w, "version", "1.0");
    json_put_null(&w, "truncation");
    json_put_null(&w, "padding");
    write_added(&w, t);
    write_normalizer(&w, t);
    write_pre_tokenizer(&w, t->splits.count ? t->splits.steps[0] : PATTERN_NONE);
    json_put_null(&w, "post_processor");
    json_key(&w, "decoder");
    write_byte_level(&w, true);
    write_model(&w, t);
    json_end_object(&w);
    text_puts(out, "\n");
}
