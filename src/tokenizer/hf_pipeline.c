/* Reads normalizer, pre_tokenizer and decoder of a tokenizer.json.
 *
 *  L1. Each of the three is one object or a Sequence of them; nested Sequences are refused. Errors name every
 *      step by its path in the file: "pre_tokenizer.pretokenizers[1]".
 *  L2. The decoder changes no ids, but it changes text: it must undo what the other two do to spaces, or
 *      generated text would differ from that of `tokenizers`. So it is checked, not only read.
 *  L3. Spaces become U+2581 in the normalizer (Replace, as in Llama 2 and Gemma) or in the pre-tokenizer
 *      (Metaspace). weft inverts this (tokenizer_internal.h): the step read here replaces U+2581 by a space.
 *      No later step may distinguish the two, so only Prepend may follow it.
 *
 *   text --normalizer--> text --pre_tokenizer--> pre-tokens --model--> ids --decoder--> text
 *
 *                   normalizer          pre_tokenizer                      decoder
 *   byte-level      forms, Replace ...  Split, Digits ..., ByteLevel last  ByteLevel, or none
 *   byte fallback   Replace, Prepend    none, or one Metaspace             ByteFallback with others */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/hf_reader.h"

/* Enough for the longest path, "pre_tokenizer.pretokenizers[N]" with any N. */
#define KEY_SIZE 80

/* `last`: no step follows. */
typedef ErrorCode (*ReadStep)(HfReader *r, const cJSON *item, const char *key, bool last);

/* Reads the object at `key`, or each step of a Sequence in its member `list`. Absent or null: no steps. */
static ErrorCode read_steps(HfReader *r, const cJSON *root, const char *key, const char *list,
                            ReadStep read) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key), *steps = NULL;
    if (!hf_present(item)) return OK;
    if (strcmp(hf_type(item), "Sequence") != 0) return read(r, item, key, true);
    TRY(hf_container(r, item, list, true, &steps));
    int i = 0;
    for (const cJSON *step = steps->child; step; step = step->next, i++) {
        char at[KEY_SIZE];
        snprintf(at, sizeof at, "%s.%s[%d]", key, list, i);
        TRY(read(r, step, at, step->next == NULL));
    }
    return OK;
}

/* Reads a "pattern"; *string is NULL for a Regex. */
static ErrorCode read_pattern(HfReader *r, const cJSON *item, const char **string, const char **regex) {
    const cJSON *pattern = NULL;
    *string = *regex = NULL;
    TRY(hf_container(r, item, "pattern", false, &pattern));
    TRY(json_get_string(pattern, r->where, "String", false, string, r->err));
    return json_get_string(pattern, r->where, "Regex", *string == NULL, regex, r->err);
}

/* The Replace that writes U+2581 for spaces. For the decoder, arguments are swapped. */
static bool is_replacement_of_spaces(const char *string, const char *content) {
    return strcmp(string, " ") == 0 && strcmp(content, SPACE_MARK) == 0;
}

/* --- normalizer --- */

/* The strings belong to the normalizer at once (normalizer_free), so that a later refusal leaks none. */
static ErrorCode read_replace(HfReader *r, const cJSON *item, const char *key, NormalizeStep *step) {
    const char *string, *regex, *content = "";
    TRY(read_pattern(r, item, &string, &regex));
    TRY(json_get_string(item, r->where, "content", true, &content, r->err));
    if (regex) return hf_refuse(r, key, "Replace of a Regex");
    if (!*string) return hf_refuse(r, key, "Replace of an empty String");
    bool marks = is_replacement_of_spaces(string, content);
    if (marks && !r->t->characters) return hf_refuse(r, key, "Replace of spaces by U+2581 in byte-level BPE");
    if (marks) r->t->marked = true;
    step->from = mem_strdup(marks ? SPACE_MARK : string);
    step->to = mem_strdup(marks ? " " : content);
    return OK;
}

/* Llama 2 prepends a U+2581 after its Replace; inverted like the rest (L3), it is a space. */
static ErrorCode read_prepend(HfReader *r, const cJSON *item, NormalizeStep *step) {
    const char *text = "";
    TRY(json_get_string(item, r->where, "prepend", true, &text, r->err));
    step->to = mem_strdup(r->t->marked && strcmp(text, SPACE_MARK) == 0 ? " " : text);
    return OK;
}

/* Sequences of published files have a few steps; the limit of eight makes memory independent of the file. */
static ErrorCode read_normalizer(HfReader *r, const cJSON *item, const char *key, bool last) {
    (void)last;
    Normalizer *n = &r->t->normalizer;
    NormalizeKind kind = normalize_by_name(hf_type(item));
    if (kind == NORMALIZE_KINDS) return hf_refuse(r, key, hf_type(item));
    if (n->count == NORMALIZE_STEPS) return hf_refuse(r, key, "a normalizer of more than 8 steps");
    if (r->t->marked && kind != NORMALIZE_PREPEND)
        return hf_refuse(r, key, "a step behind the Replace of spaces, other than Prepend,");
    if (normalize_needs_unicode(kind) && !unicode_available()) {
        return error_set(r->err, ERR_UNAVAILABLE,
                         "%s: %s: %s needs libutf8proc, which this build lacks; install libutf8proc-dev and "
                         "build again",
                         r->where, key, normalize_name(kind));
    }
    NormalizeStep *step = &n->steps[n->count++];
    step->kind = kind;
    if (kind == NORMALIZE_REPLACE) return read_replace(r, item, key, step);
    if (kind == NORMALIZE_PREPEND) return read_prepend(r, item, step);
    if (kind != NORMALIZE_STRIP) return OK;
    step->left = step->right = true;
    TRY(json_get_bool(item, r->where, "strip_left", false, &step->left, r->err));
    return json_get_bool(item, r->where, "strip_right", false, &step->right, r->err);
}

/* Prevents a file that expands a few megabytes of text to terabytes. A Unicode form makes a character at most
 * 11 times as long; published files replace a space by three bytes. */
#define MOST_GROWTH 64

/* An upper bound: growths of the steps multiply, and a Replace is assumed to replace everything. */
static ErrorCode check_growth(HfReader *r) {
    size_t growth = 1;
    for (int i = 0; i < r->t->normalizer.count; i++) {
        const NormalizeStep *s = &r->t->normalizer.steps[i];
        size_t to = s->to ? strlen(s->to) : 0, from = s->from ? strlen(s->from) : to;
        if (to > from) growth *= to / from + 1;
        if (growth > MOST_GROWTH || (s->kind == NORMALIZE_PREPEND && to > MOST_GROWTH))
            return hf_refuse(r, "normalizer", "making text more than 64 times as long");
    }
    return OK;
}

/* --- pre-tokenizer --- */

/* With byte fallback, pre-tokens are words or whole sections; no published file splits them further. */
static ErrorCode add_split(HfReader *r, const char *key, Pattern pattern) {
    Splits *s = &r->t->splits;
    if (r->t->characters) return hf_refuse(r, key, "cutting text with a byte_fallback model");
    if (s->count == SPLIT_STEPS) return hf_refuse(r, key, "a pre-tokenizer of more than 8 patterns");
    s->steps[s->count++] = pattern;
    return OK;
}

static ErrorCode read_byte_level(HfReader *r, const cJSON *item, const char *key, bool last) {
    bool prefix = true, use_regex = true;
    TRY(json_get_bool(item, r->where, "add_prefix_space", false, &prefix, r->err));
    TRY(json_get_bool(item, r->where, "use_regex", false, &use_regex, r->err));
    if (r->t->characters) return hf_refuse(r, key, "ByteLevel with a byte_fallback model");
    if (!last) return hf_refuse(r, key, "a step behind ByteLevel");
    /* add_prefix_space applies to each pre-token of the previous step, which is the whole text only if
     * nothing was split before. */
    if (prefix && r->t->splits.count) return hf_refuse(r, key, "add_prefix_space behind other steps");
    if (prefix) r->t->prefix = PREFIX_ALWAYS;
    return use_regex ? add_split(r, key, PATTERN_GPT2) : OK;
}

/* If every character belongs to a match, isolating the matches and removing the text between them are the
 * same. */
static ErrorCode read_split(HfReader *r, const cJSON *item, const char *key) {
    const char *string, *regex, *behavior = NULL;
    bool invert = false;
    TRY(read_pattern(r, item, &string, &regex));
    TRY(json_get_string(item, r->where, "behavior", true, &behavior, r->err));
    TRY(json_get_bool(item, r->where, "invert", false, &invert, r->err));
    /* Gemma's; after its normalizer there are no spaces to split at. */
    if (string && r->t->marked && strcmp(string, " ") == 0) return OK;
    if (string) return hf_refuse(r, key, "Split at a String");
    Pattern pattern = pattern_by_source(regex);
    if (pattern == PATTERN_COUNT) {
        char shown[200];
        error_escape(shown, sizeof shown, regex, strlen(regex));
        return error_set(
            r->err, ERR_DATA,
            "%s: %s: weft does not know the Regex \"%s\"; it runs those of docs/use/tokenizer-files.md "
            "only",
            r->where, key, shown);
    }
    bool isolates = strcmp(behavior, "Isolated") == 0 && !invert,
         removes_rest = strcmp(behavior, "Removed") == 0 && invert;
    if (!isolates && !(removes_rest && pattern_is_whole(pattern))) {
        char what[KEY_SIZE];
        snprintf(what, sizeof what, "behavior \"%.32s\" with invert %s", behavior, invert ? "true" : "false");
        return hf_refuse(r, key, what);
    }
    return add_split(r, key, pattern);
}

/* `tokenizers` counts every character of Unicode's number categories as a digit, including Roman numerals and
 * fractions. */
static ErrorCode read_digits(HfReader *r, const cJSON *item, const char *key) {
    bool individual = false;
    TRY(json_get_bool(item, r->where, "individual_digits", false, &individual, r->err));
    return add_split(r, key, individual ? PATTERN_DIGIT : PATTERN_DIGITS);
}

/* Files from before 2024 have add_prefix_space instead of prepend_scheme, and no split. */
static ErrorCode read_scheme(HfReader *r, const cJSON *item, const char *key, Prefix *out) {
    const char *scheme = NULL, *replacement = SPACE_MARK;
    bool prefix = true;
    TRY(json_get_string(item, r->where, "replacement", false, &replacement, r->err));
    TRY(json_get_string(item, r->where, "prepend_scheme", false, &scheme, r->err));
    TRY(json_get_bool(item, r->where, "add_prefix_space", false, &prefix, r->err));
    if (strcmp(replacement, SPACE_MARK) != 0) return hf_refuse(r, key, "Metaspace with another replacement");
    if (!scheme) scheme = prefix ? "always" : "never";
    static const char *const names[] = {
        [PREFIX_NONE] = "never", [PREFIX_FIRST] = "first", [PREFIX_ALWAYS] = "always"};
    for (*out = PREFIX_NONE; *out <= PREFIX_ALWAYS; ++*out) {
        if (strcmp(names[*out], scheme) == 0) return OK;
    }
    return hf_refuse(r, key, "this prepend_scheme");
}

/* Whether a step may remove the start of a text. "first" depends on whether a section begins the original
 * text, which such a step would change. */
static bool may_shorten_beginning(const Normalizer *n) {
    for (int i = 0; i < n->count; i++) {
        const NormalizeStep *s = &n->steps[i];
        if ((s->kind == NORMALIZE_STRIP && s->left) || (s->kind == NORMALIZE_REPLACE && !*s->to)) return true;
    }
    return false;
}

/* Metaspace replaces spaces after everything else, so `marked` does not affect the normalizer. */
static ErrorCode read_metaspace(HfReader *r, const cJSON *item, const char *key, bool last) {
    Tokenizer *t = r->t;
    if (!t->characters) return hf_refuse(r, key, "Metaspace without byte_fallback");
    if (!last || strcmp(key, "pre_tokenizer") != 0) return hf_refuse(r, key, "Metaspace with other steps");
    t->marked = t->space_splits = true;
    TRY(read_scheme(r, item, key, &t->prefix));
    if (t->prefix == PREFIX_FIRST && may_shorten_beginning(&t->normalizer))
        return hf_refuse(r, key,
                         "prepend_scheme \"first\" behind a normalizer that may take away the beginning");
    return json_get_bool(item, r->where, "split", false, &t->space_splits, r->err);
}

static ErrorCode read_pre_tokenizer(HfReader *r, const cJSON *item, const char *key, bool last) {
    const char *type = hf_type(item);
    if (strcmp(type, "ByteLevel") == 0) return read_byte_level(r, item, key, last);
    if (strcmp(type, "Metaspace") == 0) return read_metaspace(r, item, key, last);
    /* Without ByteLevel at the end, text would not become bytes. */
    if (last && !r->t->characters) return hf_refuse(r, key, type);
    if (strcmp(type, "Split") == 0) return read_split(r, item, key);
    if (strcmp(type, "Digits") == 0) return read_digits(r, item, key);
    return hf_refuse(r, key, type);
}

/* A byte-level model needs a pre-tokenizer, since nothing else converts text to bytes; one with byte fallback
 * needs none. */
static ErrorCode read_pre_tokenizers(HfReader *r, const cJSON *root) {
    const cJSON *item = NULL, *steps;
    if (r->t->characters && !hf_present(cJSON_GetObjectItemCaseSensitive(root, "pre_tokenizer"))) return OK;
    TRY(hf_container(r, root, "pre_tokenizer", false, &item));
    steps = cJSON_GetObjectItemCaseSensitive(item, "pretokenizers");
    if (!r->t->characters && strcmp(hf_type(item), "Sequence") == 0 && !(steps && steps->child))
        return hf_refuse(r, "pre_tokenizer", "an empty Sequence");
    return read_steps(r, root, "pre_tokenizer", "pretokenizers", read_pre_tokenizer);
}

/* --- decoder --- */

/* What the decoder's steps so far have done. */
typedef struct Decoded {
    bool bytes, spaces, fused;
} Decoded;

/* Strip removes the space that a Prepend has put before the text: one, at the start. */
static ErrorCode read_strip(HfReader *r, const cJSON *item, const char *key, bool fused) {
    const char *content = "";
    int64_t start = 0, stop = 0;
    TRY(json_get_string(item, r->where, "content", true, &content, r->err));
    TRY(json_get_int(item, r->where, "start", false, 0, INT_MAX, &start, r->err));
    TRY(json_get_int(item, r->where, "stop", false, 0, INT_MAX, &stop, r->err));
    if (strcmp(content, " ") != 0 || start > 1 || stop > 0 || !fused)
        return hf_refuse(r, key, "Strip of other than one space at the beginning of the fused text");
    r->t->drops_spaces = (int)start;
    return OK;
}

/* Only Strip depends on the order: on tokens that are not fused it would remove a space from each. */
static ErrorCode read_decoder_step(HfReader *r, const cJSON *item, const char *key, Decoded *done) {
    const char *type = hf_type(item), *string, *regex, *content = "";
    Prefix prefix = PREFIX_NONE;
    if (strcmp(type, "ByteFallback") == 0) {
        done->bytes = true;
    } else if (strcmp(type, "Fuse") == 0) {
        done->fused = true;
    } else if (strcmp(type, "Strip") == 0) {
        return read_strip(r, item, key, done->fused);
    } else if (strcmp(type, "Metaspace") == 0) {
        TRY(read_scheme(r, item, key, &prefix));
        done->spaces = true;
        r->t->drops_spaces = prefix == PREFIX_NONE ? 0 : INT_MAX;
    } else if (strcmp(type, "Replace") == 0) {
        TRY(read_pattern(r, item, &string, &regex));
        TRY(json_get_string(item, r->where, "content", true, &content, r->err));
        if (!string || !is_replacement_of_spaces(content, string))
            return hf_refuse(r, key, "Replace of other than U+2581 by a space");
        done->spaces = true;
    } else {
        return hf_refuse(r, key, type);
    }
    return OK;
}

/* Iterates over the steps itself, without read_steps, since each is checked against the previous ones. In the
 * end the decoder must convert "<0x0A>" to a byte and undo the replacement of spaces (L2). */
static ErrorCode read_character_decoder(HfReader *r, const cJSON *root) {
    Decoded done = {0};
    const cJSON *decoder = NULL, *steps = NULL;
    TRY(hf_container(r, root, "decoder", false, &decoder));
    if (strcmp(hf_type(decoder), "Sequence") == 0) {
        TRY(hf_container(r, decoder, "decoders", true, &steps));
        int i = 0;
        for (const cJSON *step = steps->child; step; step = step->next, i++) {
            char at[KEY_SIZE];
            snprintf(at, sizeof at, "decoder.decoders[%d]", i);
            TRY(read_decoder_step(r, step, at, &done));
        }
    } else {
        TRY(read_decoder_step(r, decoder, "decoder", &done));
    }
    if (!done.bytes) return hf_refuse(r, "decoder", "a decoder without ByteFallback");
    if (done.spaces != r->t->marked)
        return hf_refuse(r, "decoder", "a decoder that does not undo what is done to spaces");
    return OK;
}

/* A byte-level model may lack a decoder, since its tokens become text in only one way. */
static ErrorCode read_decoder(HfReader *r, const cJSON *root) {
    if (r->t->characters) return read_character_decoder(r, root);
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(root, "decoder");
    if (!hf_present(decoder) || strcmp(hf_type(decoder), "ByteLevel") == 0) return OK;
    return hf_refuse(r, "decoder", hf_type(decoder));
}

/* In the order in which text passes through: the normalizer's treatment of spaces restricts the
 * pre-tokenizer, and both restrict the decoder. */
ErrorCode hf_read_pipeline(HfReader *r, const cJSON *root) {
    TRY(read_steps(r, root, "normalizer", "normalizers", read_normalizer));
    TRY(check_growth(r));
    TRY(read_pre_tokenizers(r, root));
    /* Merges would apply across whole documents, which no byte-level tokenizer in use does. */
    const cJSON *merges =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "model"), "merges");
    if (!r->t->characters && r->t->splits.count == 0 && merges && merges->child)
        return hf_refuse(r, "pre_tokenizer", "ByteLevel without use_regex and without a pattern before it");
    return read_decoder(r, root);
}
