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
 *   text --normalizer--> text --pre_tokenizer--> pieces --model--> ids --decoder--> text
 *
 *                   normalizer          pre_tokenizer                      decoder
 *   byte-level      forms, Replace ...  Split, Digits ..., ByteLevel last  ByteLevel, or none
 *   byte fallback   Replace, Prepend    none, or one Metaspace             ByteFallback with others */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/hf_reader.h"

/* Of the longest place, "pre_tokenizer.pretokenizers[N]" with N of any size. */
#define KEY_ROOM 80

/* `last` says that no step follows. */
typedef ErrorCode (*ReadStep)(HfReader *r, const cJSON *item, const char *key, bool last);

/* The object at `key`, or each of a Sequence whose steps are its member `list`. Absent or null: none. */
static ErrorCode read_steps(HfReader *r, const cJSON *root, const char *key, const char *list,
                            ReadStep read) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(root, key), *steps = NULL;
    if (!hf_present(item)) return OK;
    if (strcmp(hf_type(item), "Sequence") != 0) return read(r, item, key, true);
    TRY(hf_container(r, item, list, true, &steps));
    int i = 0;
    for (const cJSON *step = steps->child; step; step = step->next, i++) {
        char at[KEY_ROOM];
        snprintf(at, sizeof at, "%s.%s[%d]", key, list, i);
        TRY(read(r, step, at, step->next == NULL));
    }
    return OK;
}

/* A "pattern" that is a String, NULL for a Regex. */
static ErrorCode read_pattern(HfReader *r, const cJSON *item, const char **string, const char **regex) {
    const cJSON *pattern = NULL;
    *string = *regex = NULL;
    TRY(hf_container(r, item, "pattern", false, &pattern));
    TRY(json_get_string(pattern, r->where, "String", false, string, r->err));
    return json_get_string(pattern, r->where, "Regex", *string == NULL, regex, r->err);
}

/* The one Replace that has to do with U+2581. The decoder asks with the two turned round. */
static bool is_replacement_of_spaces(const char *string, const char *content) {
    return strcmp(string, " ") == 0 && strcmp(content, SPACE_MARK) == 0;
}

/* --- normalizer --- */

/* The strings are the normalizer's at once (normalizer_free), so that a later refusal leaks none. */
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

/* Llama 2 prepends a U+2581 behind its Replace: turned round like the rest (L3), it is a space. */
static ErrorCode read_prepend(HfReader *r, const cJSON *item, NormalizeStep *step) {
    const char *text = "";
    TRY(json_get_string(item, r->where, "prepend", true, &text, r->err));
    step->to = mem_strdup(r->t->marked && strcmp(text, SPACE_MARK) == 0 ? " " : text);
    return OK;
}

/* Sequences of published files have a few steps; eight leave room without making memory a matter of the
 * file. */
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

/* A file must not be able to make a text of a few megabytes one of terabytes. The longest that a Unicode form
 * makes of a character is 11 times as long; published files replace a space by three bytes. */
#define MOST_GROWTH 64

/* A bound, not the exact growth: steps multiply, and a Replace is taken to replace everything. */
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

/* With byte fallback pieces are words or whole sections; no published file cuts them further. */
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
    /* It puts a space before each piece that it is given, which is the text only where nothing cut before. */
    if (prefix && r->t->splits.count) return hf_refuse(r, key, "add_prefix_space behind other steps");
    if (prefix) r->t->prefix = PREFIX_ALWAYS;
    return use_regex ? add_split(r, key, PATTERN_GPT2) : OK;
}

/* Where every character belongs to some match, isolating the matches and removing what lies between them are
 * the same. */
static ErrorCode read_split(HfReader *r, const cJSON *item, const char *key) {
    const char *string, *regex, *behavior = NULL;
    bool invert = false;
    TRY(read_pattern(r, item, &string, &regex));
    TRY(json_get_string(item, r->where, "behavior", true, &behavior, r->err));
    TRY(json_get_bool(item, r->where, "invert", false, &invert, r->err));
    /* Gemma's: the normalizer has left no spaces to split at. */
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
        char what[KEY_ROOM];
        snprintf(what, sizeof what, "behavior \"%.32s\" with invert %s", behavior, invert ? "true" : "false");
        return hf_refuse(r, key, what);
    }
    return add_split(r, key, pattern);
}

/* What `tokenizers` calls a digit is any character of Unicode's numbers, Roman numerals and fractions
 * too. */
static ErrorCode read_digits(HfReader *r, const cJSON *item, const char *key) {
    bool individual = false;
    TRY(json_get_bool(item, r->where, "individual_digits", false, &individual, r->err));
    return add_split(r, key, individual ? PATTERN_DIGIT : PATTERN_DIGITS);
}

/* Files of before 2024 have add_prefix_space instead of prepend_scheme, and no split. */
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

/* "first" is a matter of where a section begins in the text as it was: steps that may take away its beginning
 * move that place. */
static bool may_shorten_beginning(const Normalizer *n) {
    for (int i = 0; i < n->count; i++) {
        const NormalizeStep *s = &n->steps[i];
        if ((s->kind == NORMALIZE_STRIP && s->left) || (s->kind == NORMALIZE_REPLACE && !*s->to)) return true;
    }
    return false;
}

/* Its replacing of spaces is the last thing that happens to text, so `marked` has no part in what the
 * normalizer does. */
static ErrorCode read_metaspace(HfReader *r, const cJSON *item, const char *key, bool last) {
    Tokenizer *t = r->t;
    if (!t->characters) return hf_refuse(r, key, "Metaspace without byte_fallback");
    if (!last || strcmp(key, "pre_tokenizer") != 0) return hf_refuse(r, key, "Metaspace beside other steps");
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
    /* Without ByteLevel at the end, text would not come to bytes. */
    if (last && !r->t->characters) return hf_refuse(r, key, type);
    if (strcmp(type, "Split") == 0) return read_split(r, item, key);
    if (strcmp(type, "Digits") == 0) return read_digits(r, item, key);
    return hf_refuse(r, key, type);
}

/* Without a pre-tokenizer a byte-level model would have nothing that makes bytes of text; one with byte
 * fallback needs none. */
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

/* What the steps so far have done. */
typedef struct Decoded {
    bool bytes, spaces, fused;
} Decoded;

/* It takes off the space that a Prepend has put before the text; that is one, at the front. */
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

/* Order matters for Strip alone: on tokens that are not fused it would take a space off each. */
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

/* The steps are walked here and not by read_steps, since each is judged by what those before it did. At the
 * end the decoder must make bytes of "<0x0A>" and undo what is done to spaces (L2). */
static ErrorCode read_character_decoder(HfReader *r, const cJSON *root) {
    Decoded done = {0};
    const cJSON *decoder = NULL, *steps = NULL;
    TRY(hf_container(r, root, "decoder", false, &decoder));
    if (strcmp(hf_type(decoder), "Sequence") == 0) {
        TRY(hf_container(r, decoder, "decoders", true, &steps));
        int i = 0;
        for (const cJSON *step = steps->child; step; step = step->next, i++) {
            char at[KEY_ROOM];
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

/* A byte-level model may lack it: for its tokens there is one way only to become text. */
static ErrorCode read_decoder(HfReader *r, const cJSON *root) {
    if (r->t->characters) return read_character_decoder(r, root);
    const cJSON *decoder = cJSON_GetObjectItemCaseSensitive(root, "decoder");
    if (!hf_present(decoder) || strcmp(hf_type(decoder), "ByteLevel") == 0) return OK;
    return hf_refuse(r, "decoder", hf_type(decoder));
}

/* In the order in which text goes through: what the normalizer does to spaces decides what the
 * pre-tokenizer may, and both decide what the decoder must. */
ErrorCode hf_read_pipeline(HfReader *r, const cJSON *root) {
    TRY(read_steps(r, root, "normalizer", "normalizers", read_normalizer));
    TRY(check_growth(r));
    TRY(read_pre_tokenizers(r, root));
    /* Merges across whole documents: no byte-level tokenizer in use does so. */
    const cJSON *merges =
        cJSON_GetObjectItemCaseSensitive(cJSON_GetObjectItemCaseSensitive(root, "model"), "merges");
    if (!r->t->characters && r->t->splits.count == 0 && merges && merges->child)
        return hf_refuse(r, "pre_tokenizer", "ByteLevel without use_regex and without a pattern before it");
    return read_decoder(r, root);
}
