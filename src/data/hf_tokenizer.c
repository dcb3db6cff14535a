/* tokenizer.json of Hugging Face's `tokenizers` into a Tokenizer: byte-level BPE with the pre-tokenizers
 * and the normalizer that weft has.
 *
 *  H1. What is not understood is refused by name: a setting that would change ids is either honoured or an
 *      error, never passed over.
 *  H2. Nothing in the file is trusted: ids, sizes and merges are checked before they are used as an index.
 *  H3. Bytes are read in the file's alphabet (data/byte_level.h). A vocabulary entry that is not written
 *      in it can never come out of encoding text, and is kept as an inert token so that its id decodes. */
#include "data/hf_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/byte_level.h"
#include "data/normalize.h"

typedef struct Reader {
    Tokenizer *t;
    const char *where;
    Error *err;
    char *scratch; /* room for the bytes of any string of the file */
} Reader;

static const char *type_of(const cJSON *object) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "type");
    return cJSON_IsString(type) ? type->valuestring : "?";
}

static bool is_present(const cJSON *item) { return item && !cJSON_IsNull(item); }

/* A member that must be an object or an array. */
static ErrorCode get_container(Reader *r, const cJSON *object, const char *key, bool array,
                               const cJSON **out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (array ? !cJSON_IsArray(item) : !cJSON_IsObject(item)) {
        return error_set(r->err, ERR_DATA, "%s: expected %s \"%s\"", r->where,
                         array ? "an array" : "an object", key);
    }
    *out = item;
    return OK;
}

static ErrorCode refuse(Reader *r, const char *what, const char *name) {
    char shown[160];
    error_escape(shown, sizeof shown, name, strlen(name));
    return error_set(
        r->err, ERR_DATA,
        "%s: %s \"%s\" is not supported; weft takes byte-level BPE as GPT-2, Llama 3 and Qwen 2 have it",
        r->where, what, shown);
}

/* --- normalizer and pre-tokenizer --- */

static ErrorCode read_normalizer(Reader *r, const cJSON *root) {
    const cJSON *normalizer = cJSON_GetObjectItemCaseSensitive(root, "normalizer");
    if (!is_present(normalizer)) return OK;
    if (strcmp(type_of(normalizer), "NFC") != 0) return refuse(r, "normalizer", type_of(normalizer));
    if (!nfc_available()) {
        return error_set(r->err, ERR_UNAVAILABLE,
                         "%s: its NFC normalizer needs libutf8proc, which this build lacks; install "
                         "libutf8proc-dev and build again",
                         r->where);
    }
    r->t->nfc = true;
    return OK;
}

static ErrorCode read_byte_level(Reader *r, const cJSON *item, bool *use_regex) {
    bool prefix = true;
    *use_regex = true;
    TRY(json_get_bool(item, r->where, "add_prefix_space", false, &prefix, r->err));
    TRY(json_get_bool(item, r->where, "use_regex", false, use_regex, r->err));
    if (prefix) return refuse(r, "pre-tokenizer option", "add_prefix_space: true");
    return OK;
}

/* Every character belongs to some match of the known patterns, so isolating the matches and removing what
 * lies between them are the same. */
static ErrorCode read_split(Reader *r, const cJSON *item, Pattern *pattern) {
    const char *behavior = NULL, *regex = NULL;
    bool invert = false;
    const cJSON *holder = NULL;
    TRY(get_container(r, item, "pattern", false, &holder));
    TRY(json_get_string(holder, r->where, "Regex", true, &regex, r->err));
    TRY(json_get_string(item, r->where, "behavior", true, &behavior, r->err));
    TRY(json_get_bool(item, r->where, "invert", false, &invert, r->err));
    if (strcmp(behavior, invert ? "Removed" : "Isolated") != 0)
        return refuse(r, "behavior of the Split pre-tokenizer", behavior);
    *pattern = pattern_by_source(regex);
    return *pattern == PATTERN_COUNT ? refuse(r, "pre-tokenizer pattern", regex) : OK;
}

/* Split, then ByteLevel without its own pattern. */
static ErrorCode read_sequence(Reader *r, const cJSON *item, Pattern *pattern) {
    const cJSON *steps = NULL;
    TRY(get_container(r, item, "pretokenizers", true, &steps));
    int count = cJSON_GetArraySize(steps);
    const cJSON *last = cJSON_GetArrayItem(steps, 1);
    for (int i = 0; i < count; i++) {
        const char *type = type_of(cJSON_GetArrayItem(steps, i));
        if (i > 1 || strcmp(type, i == 0 ? "Split" : "ByteLevel") != 0)
            return refuse(r, "pre-tokenizer in a Sequence", type);
    }
    if (count != 2) return refuse(r, "pre-tokenizer", "Sequence without ByteLevel");
    TRY(read_split(r, steps->child, pattern));
    bool use_regex;
    TRY(read_byte_level(r, last, &use_regex));
    return use_regex ? refuse(r, "pre-tokenizer", "Split followed by ByteLevel with use_regex") : OK;
}

static ErrorCode read_pre_tokenizer(Reader *r, const cJSON *root) {
    const cJSON *item = NULL;
    TRY(get_container(r, root, "pre_tokenizer", false, &item));
    if (strcmp(type_of(item), "Sequence") == 0) return read_sequence(r, item, &r->t->pattern);
    if (strcmp(type_of(item), "ByteLevel") != 0) return refuse(r, "pre-tokenizer", type_of(item));
    bool use_regex;
    TRY(read_byte_level(r, item, &use_regex));
    r->t->pattern = use_regex ? PATTERN_GPT2 : PATTERN_NONE;
    return OK;
}

/* --- vocabulary and added tokens --- */

static ErrorCode get_id(Reader *r, const cJSON *item, const char *token, int64_t *id) {
    double value = cJSON_IsNumber(item) ? item->valuedouble : -1;
    if (!(value >= 0 && value <= INT32_MAX) || value != (double)(int64_t)value) {
        char shown[80];
        error_escape(shown, sizeof shown, token, strlen(token));
        return error_set(r->err, ERR_DATA,
                         "%s: the id of token \"%s\" must be a whole number from 0 to 2147483647", r->where,
                         shown);
    }
    *id = (int64_t)value;
    return OK;
}

/* Id of a token by its text in the file, or -1. */
static int32_t find_token(Reader *r, const char *text, size_t length) {
    size_t n;
    return byte_level_read(text, length, r->scratch, &n) ? vocabulary_find(&r->t->vocabulary, r->scratch, n)
                                                         : -1;
}

static ErrorCode read_vocabulary(Reader *r, const cJSON *vocab) {
    for (const cJSON *item = vocab->child; item; item = item->next) {
        int64_t id = 0;
        size_t length = strlen(item->string), n;
        TRY(get_id(r, item, item->string, &id));
        if (byte_level_read(item->string, length, r->scratch, &n)) {
            TRY(vocabulary_set(&r->t->vocabulary, r->where, id, r->scratch, n, TOKEN_TEXT, r->err));
        } else {
            TRY(vocabulary_set(&r->t->vocabulary, r->where, id, item->string, length, TOKEN_INERT, r->err));
        }
    }
    return OK;
}

static ErrorCode read_added_flags(Reader *r, const cJSON *item, const char *content, TokenKind *kind) {
    static const char *const unsupported[] = {"single_word", "lstrip", "rstrip"};
    bool special = false, normalized = false;
    TRY(json_get_bool(item, r->where, "special", false, &special, r->err));
    TRY(json_get_bool(item, r->where, "normalized", false, &normalized, r->err));
    *kind = special ? TOKEN_SPECIAL : normalized ? TOKEN_ADDED_NORMALIZED : TOKEN_ADDED;
    for (int i = 0; i < 3; i++) {
        bool on = false;
        TRY(json_get_bool(item, r->where, unsupported[i], false, &on, r->err));
        /* A special token is never looked for in text, so how it would be found does not matter. */
        if (on && !special) {
            char shown[80];
            error_escape(shown, sizeof shown, content, strlen(content));
            return error_set(r->err, ERR_DATA,
                             "%s: added token \"%s\": %s is not supported for tokens that are not special",
                             r->where, shown, unsupported[i]);
        }
    }
    return OK;
}

/* An added token that is in the vocabulary too must have the same id in both. */
static ErrorCode add_known(Reader *r, const char *content, int64_t id, int32_t known, TokenKind kind) {
    const Token *token = &r->t->vocabulary.tokens[known];
    char shown[80];
    error_escape(shown, sizeof shown, content, strlen(content));
    if (known != id) {
        return error_set(r->err, ERR_DATA, "%s: added token \"%s\" has id %lld, but %d in the vocabulary",
                         r->where, shown, (long long)id, known);
    }
    if (token->length != strlen(content) || memcmp(token->bytes, content, token->length) != 0) {
        return error_set(r->err, ERR_DATA,
                         "%s: added token \"%s\" is spelled like the bytes of a vocabulary entry", r->where,
                         shown);
    }
    vocabulary_retire(&r->t->vocabulary, known, kind);
    return OK;
}

static ErrorCode read_added(Reader *r, const cJSON *item) {
    const char *content = NULL;
    int64_t id = 0;
    TokenKind kind = TOKEN_SPECIAL;
    if (!cJSON_IsObject(item))
        return error_set(r->err, ERR_DATA, "%s: added_tokens must hold objects only", r->where);
    TRY(json_get_string(item, r->where, "content", true, &content, r->err));
    TRY(get_id(r, cJSON_GetObjectItemCaseSensitive(item, "id"), content, &id));
    TRY(read_added_flags(r, item, content, &kind));
    size_t length = strlen(content);
    int32_t known = find_token(r, content, length);
    if (known < 0) known = vocabulary_find_inert(&r->t->vocabulary, content, length);
    if (known >= 0) return add_known(r, content, id, known, kind);
    return vocabulary_set(&r->t->vocabulary, r->where, id, content, length, kind, r->err);
}

static size_t count_added(const cJSON *added, size_t *bytes) {
    size_t count = 0;
    for (const cJSON *item = added ? added->child : NULL; item; item = item->next, count++) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
        if (cJSON_IsString(content)) *bytes += strlen(content->valuestring);
    }
    return count;
}

static ErrorCode read_tokens(Reader *r, const cJSON *root, const cJSON *model) {
    const cJSON *vocab = NULL, *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    TRY(get_container(r, model, "vocab", false, &vocab));
    if (is_present(added)) TRY(get_container(r, root, "added_tokens", true, &added));
    size_t bytes = 0, count = count_added(added, &bytes);
    for (const cJSON *item = vocab->child; item; item = item->next, count++) bytes += strlen(item->string);
    TRY(vocabulary_init(&r->t->vocabulary, r->where, count, bytes, r->err));
    TRY(read_vocabulary(r, vocab));
    for (const cJSON *item = added ? added->child : NULL; item; item = item->next) TRY(read_added(r, item));
    return vocabulary_seal(&r->t->vocabulary, r->where, r->err);
}

/* --- merges --- */

static ErrorCode bad_merge(Reader *r, size_t number, const char *problem, const char *text, size_t length) {
    char shown[120];
    error_escape(shown, sizeof shown, text, length);
    return error_set(r->err, ERR_DATA, "%s: merge %zu: %s \"%s\"", r->where, number, problem, shown);
}

/* The two halves of a merge, in the old form "a b" or the new one ["a", "b"]. */
static ErrorCode merge_halves(Reader *r, const cJSON *item, size_t number, const char *half[2],
                              size_t length[2]) {
    if (cJSON_IsString(item)) {
        const char *text = item->valuestring, *space = strchr(text, ' ');
        if (!space || strchr(space + 1, ' '))
            return bad_merge(r, number, "expected two tokens with one space between,", text, strlen(text));
        half[0] = text, length[0] = (size_t)(space - text);
        half[1] = space + 1, length[1] = strlen(space + 1);
        return OK;
    }
    if (!cJSON_IsArray(item) || cJSON_GetArraySize(item) != 2 || !cJSON_IsString(item->child) ||
        !cJSON_IsString(item->child->next)) {
        return error_set(r->err, ERR_DATA, "%s: merge %zu: expected \"a b\" or [\"a\", \"b\"]", r->where,
                         number);
    }
    for (int i = 0; i < 2; i++) {
        half[i] = (i ? item->child->next : item->child)->valuestring;
        length[i] = strlen(half[i]);
    }
    return OK;
}

static ErrorCode read_merge(Reader *r, const cJSON *item, size_t number, MergeRule *rule) {
    const char *half[2] = {NULL, NULL};
    size_t length[2] = {0, 0}, n[2];
    TRY(merge_halves(r, item, number, half, length));
    int32_t ids[2];
    for (int i = 0; i < 2; i++) {
        ids[i] = find_token(r, half[i], length[i]);
        if (ids[i] < 0)
            return bad_merge(r, number, "no byte-level token of the vocabulary is", half[i], length[i]);
    }
    /* Both halves were read once already, so their bytes fit in the scratch together: it holds the longest
     * two strings. */
    byte_level_read(half[0], length[0], r->scratch, &n[0]);
    byte_level_read(half[1], length[1], r->scratch + n[0], &n[1]);
    int32_t result = vocabulary_find(&r->t->vocabulary, r->scratch, n[0] + n[1]);
    if (result < 0)
        return bad_merge(r, number, "its result is no text token of the vocabulary:", r->scratch,
                         n[0] + n[1]);
    *rule = (MergeRule){ids[0], ids[1], result, (uint32_t)number};
    return OK;
}

static ErrorCode read_merges(Reader *r, const cJSON *model) {
    const cJSON *merges = NULL;
    TRY(get_container(r, model, "merges", true, &merges));
    size_t count = 0;
    MergeRule *rules = mem_alloc_array((size_t)cJSON_GetArraySize(merges) + 1, sizeof *rules);
    ErrorCode code = OK;
    for (const cJSON *item = merges->child; item && code == OK; item = item->next) {
        if (count == 0 && cJSON_IsString(item) && strncmp(item->valuestring, "#version", 8) == 0) continue;
        code = read_merge(r, item, count, &rules[count]);
        count++;
    }
    if (code != OK) {
        free(rules);
        return code;
    }
    int32_t byte_ids[256];
    for (int byte = 0; byte < 256; byte++)
        byte_ids[byte] = vocabulary_find(&r->t->vocabulary, &(char){(char)byte}, 1);
    return bpe_init(&r->t->bpe, r->where, byte_ids, rules, count, r->err);
}

/* --- the document --- */

/* Settings of the model that would change ids: each must be off. */
static ErrorCode read_model_settings(Reader *r, const cJSON *model) {
    const char *type = "BPE", *prefix = "", *suffix = "";
    double dropout = 0;
    bool fallback = false;
    TRY(json_get_string(model, r->where, "type", false, &type, r->err));
    TRY(json_get_double(model, r->where, "dropout", false, &dropout, r->err));
    TRY(json_get_string(model, r->where, "continuing_subword_prefix", false, &prefix, r->err));
    TRY(json_get_string(model, r->where, "end_of_word_suffix", false, &suffix, r->err));
    TRY(json_get_bool(model, r->where, "byte_fallback", false, &fallback, r->err));
    TRY(json_get_bool(model, r->where, "ignore_merges", false, &r->t->whole_first, r->err));
    if (strcmp(type, "BPE") != 0) return refuse(r, "model type", type);
    if (dropout < 0 || dropout > 0) return refuse(r, "model option", "dropout");
    if (*prefix) return refuse(r, "continuing_subword_prefix", prefix);
    if (*suffix) return refuse(r, "end_of_word_suffix", suffix);
    return fallback ? refuse(r, "model option", "byte_fallback") : OK;
}

/* The file does not say which token begins or ends a text; the names in use do. */
static void find_bounds(Tokenizer *t) {
    static const char *const begin[] = {
        "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[BOS]", NULL};
    static const char *const end[] = {"<|end_of_text|>", "<|endoftext|>", "</s>", "<eos>", "[EOS]", NULL};
    t->bos = t->eos = -1;
    for (int i = 0; begin[i] && t->bos < 0; i++) t->bos = tokenizer_special(t, begin[i]);
    for (int i = 0; end[i] && t->eos < 0; i++) t->eos = tokenizer_special(t, end[i]);
}

static ErrorCode read_document(Reader *r, const cJSON *root) {
    if (!cJSON_IsObject(root))
        return error_set(r->err, ERR_DATA, "%s: a tokenizer.json is an object", r->where);
    const char *version = "1.0";
    const cJSON *model = NULL;
    TRY(json_get_string(root, r->where, "version", false, &version, r->err));
    if (strcmp(version, "1.0") != 0) return refuse(r, "version", version);
    TRY(get_container(r, root, "model", false, &model));
    TRY(read_model_settings(r, model));
    TRY(read_normalizer(r, root));
    TRY(read_pre_tokenizer(r, root));
    TRY(read_tokens(r, root, model));
    TRY(read_merges(r, model));
    /* Merges across whole documents: no tokenizer in use does so, and no text could be cut for it. */
    if (r->t->pattern == PATTERN_NONE && r->t->bpe.count > 0)
        return refuse(r, "pre-tokenizer", "ByteLevel without use_regex");
    find_bounds(r->t);
    return OK;
}

ErrorCode hf_tokenizer_read(Tokenizer *t, const char *where, const char *data, size_t length, Error *err) {
    cJSON *root = NULL;
    TRY(json_parse(where, data, length, &root, err));
    /* No string of the file is longer than the file, and a merge joins two of them. */
    Reader r = {.t = t, .where = where, .err = err, .scratch = mem_alloc(2 * length + 1)};
    ErrorCode code = read_document(&r, root);
    free(r.scratch);
    cJSON_Delete(root);
    if (code != OK) return code;
    t->source = mem_alloc(length + 1);
    memcpy(t->source, data, length);
    t->source_length = length;
    return OK;
}
