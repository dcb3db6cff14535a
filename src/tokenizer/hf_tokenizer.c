/* Reads tokenizer.json of Hugging Face's `tokenizers`: byte-level BPE, and BPE with byte fallback as
 * converted from SentencePiece models.
 *
 *  H1. Unknown features are refused by name: a setting that would change ids is either honoured or an error,
 *      never ignored. So is every contradiction that `tokenizers` silently repairs.
 *  H2. Nothing in the file is trusted: ids, sizes and merges are checked before they are used as an index.
 *  H3. Tokens of byte-level files are bytes in the file's alphabet (tokenizer/byte_level.h). A token that is
 *      not written in it can never result from encoding text; it is kept as an inert token so that its id
 *      decodes. With byte fallback, tokens are text with U+2581 for a space, and "<0x0A>" is a byte.
 *  H4. Text never gives special tokens. A merge whose result or operand is one is dropped, since files
 *      converted from SentencePiece models may have "<s" + ">". The spelling stays text.
 *  H5. The post-processor is not read: the configuration decides about BOS and EOS.
 *
 *   member of the file                  read by               into
 *   model.type and settings             read_model_settings   `characters`, `whole_first`
 *   normalizer, pre_tokenizer, decoder  hf_read_pipeline      `normalizer`, `splits`, `prefix`, `marked`
 *   model.vocab                         read_vocabulary       `vocabulary`
 *   added_tokens                        read_added            `vocabulary`, `added`, `added_normalized`
 *   model.merges                        read_merges           `bpe`
 *
 * In this order: how a token's text is read depends on `characters` and `marked`, added tokens go through the
 * normalizer, and merges are looked up in the finished vocabulary. */
#include "tokenizer/hf_tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "tokenizer/byte_level.h"
#include "tokenizer/hf_reader.h"

/* "?" if there is none; no reader knows that type, so it is refused like other unknown ones. */
const char *hf_type(const cJSON *object) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "type");
    return cJSON_IsString(type) ? type->valuestring : "?";
}

/* A member that must be an array or an object. *out belongs to cJSON and lives as long as the document. */
ErrorCode hf_container(HfReader *r, const cJSON *object, const char *key, bool array, const cJSON **out) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, key);
    if (array ? !cJSON_IsArray(item) : !cJSON_IsObject(item)) {
        return error_set(r->err, ERR_DATA, "%s: expected %s \"%s\"", r->where,
                         array ? "an array" : "an object", key);
    }
    *out = item;
    return OK;
}

/* `what` may come from the file, so it is escaped and truncated: a message must not send control characters
 * to a terminal. */
ErrorCode hf_refuse(HfReader *r, const char *key, const char *what) {
    char shown[160];
    error_escape(shown, sizeof shown, what, strlen(what));
    return error_set(r->err, ERR_DATA,
                     "%s: %s: %s is not supported (docs/use/tokenizer-files.md says what is)", r->where, key,
                     shown);
}

/* --- vocabulary and added tokens --- */

/* cJSON stores numbers as doubles: only an integer in range is accepted. */
static ErrorCode get_id(HfReader *r, const cJSON *item, const char *token, int64_t *id) {
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

/* Capitals only, as SentencePiece writes them: "<0x0a>" is a text of six characters. */
static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* 10 for "<0x0A>"; -1 for any other text. */
static int byte_token(const char *text, size_t length) {
    if (length != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    int high = hex_digit(text[3]), low = hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : 16 * high + low;
}

/* Replaces each U+2581 by a space. */
static size_t unmark_spaces(const char *text, size_t length, char *out) {
    const size_t mark = strlen(SPACE_MARK);
    size_t n = 0;
    for (size_t i = 0; i < length; n++) {
        bool marked = length - i >= mark && memcmp(text + i, SPACE_MARK, mark) == 0;
        out[n] = marked ? ' ' : text[i];
        i += marked ? mark : 1;
    }
    return n;
}

/* Converts the spelling of a token in the file: bytes to `out`; returns its namespace. */
static TokenName read_token(const HfReader *r, const char *text, size_t length, char *out, size_t *n) {
    int byte = r->t->characters ? byte_token(text, length) : -1;
    if (byte >= 0) {
        out[0] = (char)byte;
        *n = 1;
        return NAME_BYTE;
    }
    if (!r->t->characters && byte_level_read(text, length, out, n)) return NAME_TEXT;
    /* A space in the file, although text has no spaces at this point: no text leads to this token. */
    if (r->t->characters && !(r->t->marked && memchr(text, ' ', length))) {
        *n = r->t->marked ? unmark_spaces(text, length, out) : length;
        if (!r->t->marked) memcpy(out, text, length);
        return NAME_TEXT;
    }
    memcpy(out, text, length);
    *n = length;
    return NAME_LITERAL;
}

/* The namespace decides the kind: a token that no text can spell is inert (H3). The vocabulary copies the
 * bytes, so one scratch buffer suffices. */
static ErrorCode read_vocabulary(HfReader *r, const cJSON *vocab) {
    static const TokenKind kinds[] = {
        [NAME_TEXT] = TOKEN_TEXT, [NAME_LITERAL] = TOKEN_INERT, [NAME_BYTE] = TOKEN_BYTE};
    for (const cJSON *item = vocab->child; item; item = item->next) {
        int64_t id = 0;
        size_t n;
        TRY(get_id(r, item, item->string, &id));
        TokenName name = read_token(r, item->string, strlen(item->string), r->scratch, &n);
        TRY(vocabulary_set(&r->t->vocabulary, r->where, id, r->scratch, n, kinds[name], r->err));
    }
    return OK;
}

static ErrorCode bad_added(HfReader *r, const char *content, const char *problem) {
    char shown[80];
    error_escape(shown, sizeof shown, content, strlen(content));
    return error_set(r->err, ERR_DATA, "%s: added token \"%s\": %s", r->where, shown, problem);
}

/* Absent flags are false. Flags that this build does not support are refused (H1). */
static ErrorCode read_added_flags(HfReader *r, const cJSON *item, const char *content, AddedToken *a,
                                  bool *normalized) {
    TRY(json_get_bool(item, r->where, "special", false, &a->special, r->err));
    TRY(json_get_bool(item, r->where, "normalized", false, normalized, r->err));
    TRY(json_get_bool(item, r->where, "single_word", false, &a->single_word, r->err));
    TRY(json_get_bool(item, r->where, "lstrip", false, &a->lstrip, r->err));
    TRY(json_get_bool(item, r->where, "rstrip", false, &a->rstrip, r->err));
    if (a->special) return OK; /* never found in text, so it does not matter how */
    if (a->single_word && !unicode_available())
        return bad_added(r, content, "single_word needs libutf8proc, which this build lacks");
    return OK;
}

/* An added token that is also in the vocabulary must have the same id in both. In a byte-level file the two
 * may look alike and mean different bytes. */
static ErrorCode add_known(HfReader *r, const char *content, int64_t id, int32_t known, TokenKind kind) {
    const Token *token = &r->t->vocabulary.tokens[known];
    char shown[80];
    error_escape(shown, sizeof shown, content, strlen(content));
    if (token->kind != TOKEN_TEXT && token->kind != TOKEN_INERT && token->kind != TOKEN_BYTE)
        return bad_added(r, content, "it is there twice");
    if (known != id) {
        return error_set(r->err, ERR_DATA, "%s: added token \"%s\" has id %lld, but %d in the vocabulary",
                         r->where, shown, (long long)id, known);
    }
    if (!r->t->characters &&
        (token->length != strlen(content) || memcmp(token->bytes, content, token->length) != 0))
        return bad_added(r, content, "it is spelled like the bytes of a vocabulary entry");
    vocabulary_set_kind(&r->t->vocabulary, known, kind);
    return OK;
}

/* Maximum length of a normalized added token; the vocabulary's memory is sized in advance. */
static size_t added_capacity(size_t length) { return 2 * length + 16; }

/* The text to search for: normalized if the token is matched in normalized text. */
static ErrorCode normalize_added(HfReader *r, const char *content, Text *out) {
    bool changed = false;
    TRY(normalizer_run(&r->t->normalizer, content, strlen(content), true, out, &changed, r->err));
    if (!changed) text_puts(out, content);
    if (out->length == 0) return bad_added(r, content, "nothing is left of it once normalized");
    if (out->length > added_capacity(strlen(content)))
        return bad_added(r, content, "it becomes more than twice as long once normalized");
    return OK;
}

/* Adds a token that the vocabulary lacks. It decodes to the text that was cut out; a special one to its
 * name. */
static ErrorCode add_new(HfReader *r, const char *content, int64_t id, const Text *text, TokenKind kind) {
    bool named = kind == TOKEN_SPECIAL;
    const char *bytes = named ? content : text->data;
    size_t length = named ? strlen(content) : text->length;
    if (r->t->marked) length = unmark_spaces(bytes, length, r->scratch), bytes = r->scratch;
    return vocabulary_set(&r->t->vocabulary, r->where, id, bytes, length, kind, r->err);
}

/* The kind decides where it is matched: in raw text, in normalized text, or never. Special ones are put into
 * a set too, since they consume text that they match (added.c, A3). */
static ErrorCode put_added(HfReader *r, const char *content, AddedToken *a, bool normalized, Text *text) {
    TokenKind kind = a->special ? TOKEN_SPECIAL : normalized ? TOKEN_ADDED_NORMALIZED : TOKEN_ADDED;
    size_t n;
    if (normalized)
        TRY(normalize_added(r, content, text));
    else
        text_puts(text, content);
    TokenName name = read_token(r, content, strlen(content), r->scratch, &n);
    int32_t known = vocabulary_find_name(&r->t->vocabulary, name, r->scratch, n);
    if (known >= 0)
        TRY(add_known(r, content, a->id, known, kind));
    else
        TRY(add_new(r, content, a->id, text, kind));
    added_put(normalized ? &r->t->added_normalized : &r->t->added, a, text->data, text->length);
    return OK;
}

static ErrorCode read_added(HfReader *r, const cJSON *item) {
    const char *content = NULL;
    int64_t id = 0;
    AddedToken a = {0};
    bool normalized = false;
    Text text = {0};
    if (!cJSON_IsObject(item))
        return error_set(r->err, ERR_DATA, "%s: added_tokens must hold objects only", r->where);
    TRY(json_get_string(item, r->where, "content", true, &content, r->err));
    TRY(get_id(r, cJSON_GetObjectItemCaseSensitive(item, "id"), content, &id));
    TRY(read_added_flags(r, item, content, &a, &normalized));
    if (!*content) return bad_added(r, content, "it is empty");
    a.id = (int32_t)id;
    ErrorCode code = put_added(r, content, &a, normalized, &text);
    text_free(&text);
    return code;
}

/* Space for all tokens is allocated before the first is read (vocabulary.h), so they are counted first. */
static size_t count_added(const cJSON *added, size_t *bytes) {
    size_t count = 0;
    for (const cJSON *item = added ? added->child : NULL; item; item = item->next, count++) {
        const cJSON *content = cJSON_GetObjectItemCaseSensitive(item, "content");
        if (cJSON_IsString(content)) *bytes += added_capacity(strlen(content->valuestring));
    }
    return count;
}

/* Reads the vocabulary before the added tokens: tokens in both take the id of the vocabulary, as in
 * `tokenizers`. */
static ErrorCode read_tokens(HfReader *r, const cJSON *root, const cJSON *model) {
    const cJSON *vocab = NULL, *added = cJSON_GetObjectItemCaseSensitive(root, "added_tokens");
    TRY(hf_container(r, model, "vocab", false, &vocab));
    if (hf_present(added)) TRY(hf_container(r, root, "added_tokens", true, &added));
    size_t bytes = 0, count = count_added(added, &bytes);
    for (const cJSON *item = vocab->child; item; item = item->next, count++) bytes += strlen(item->string);
    TRY(vocabulary_init(&r->t->vocabulary, r->where, count, bytes, r->err));
    TRY(read_vocabulary(r, vocab));
    for (const cJSON *item = added ? added->child : NULL; item; item = item->next) TRY(read_added(r, item));
    return vocabulary_seal(&r->t->vocabulary, r->where, r->err);
}

/* --- merges --- */

static ErrorCode bad_merge(HfReader *r, size_t number, const char *problem, const char *text, size_t length) {
    char shown[120];
    error_escape(shown, sizeof shown, text, length);
    return error_set(r->err, ERR_DATA, "%s: merge %zu: %s \"%s\"", r->where, number, problem, shown);
}

/* The two halves of a merge, in the old form "a b" or the new form ["a", "b"]. */
static ErrorCode merge_halves(HfReader *r, const cJSON *item, size_t number, const char *half[2],
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

/* Id of a half or a result, or -1. *special: a special token has this text. */
static int32_t merge_token(HfReader *r, const char *bytes, size_t length, bool *special) {
    int32_t id = vocabulary_find_name(&r->t->vocabulary, NAME_TEXT, bytes, length);
    *special |= id >= 0 && r->t->vocabulary.tokens[id].kind == TOKEN_SPECIAL;
    return id;
}

/* *skip: the merge involves a special token (H4). */
static ErrorCode read_merge(HfReader *r, const cJSON *item, size_t number, MergeRule *rule, bool *skip) {
    const char *half[2] = {NULL, NULL};
    size_t length[2] = {0, 0}, n[2] = {0, 0};
    TRY(merge_halves(r, item, number, half, length));
    int32_t ids[2];
    for (int i = 0; i < 2; i++) {
        /* Bytes of both halves, adjacent: scratch holds the two longest strings. */
        char *bytes = r->scratch + (i ? n[0] : 0);
        TokenName name = read_token(r, half[i], length[i], bytes, &n[i]);
        ids[i] = name == NAME_TEXT ? merge_token(r, bytes, n[i], skip) : -1;
        if (ids[i] < 0) return bad_merge(r, number, "no text token of the vocabulary is", half[i], length[i]);
    }
    int32_t result = merge_token(r, r->scratch, n[0] + n[1], skip);
    if (result < 0)
        return bad_merge(r, number, "its result is no text token of the vocabulary:", r->scratch,
                         n[0] + n[1]);
    *rule = (MergeRule){ids[0], ids[1], result, (uint32_t)number};
    return OK;
}

/* Ranks are positions in the file, so omitted merges leave gaps. bpe_init takes ownership of the rules, even
 * if it fails; before that they are freed here. A first entry "#version ..." is the header of a merges.txt
 * and not a merge. */
static ErrorCode read_merges(HfReader *r, const cJSON *model) {
    const cJSON *merges = NULL;
    TRY(hf_container(r, model, "merges", true, &merges));
    size_t count = 0, number = 0;
    MergeRule *rules = mem_alloc_array((size_t)cJSON_GetArraySize(merges) + 1, sizeof *rules);
    ErrorCode code = OK;
    for (const cJSON *item = merges->child; item && code == OK; item = item->next) {
        bool skip = false;
        if (number == 0 && cJSON_IsString(item) && strncmp(item->valuestring, "#version", 8) == 0) continue;
        code = read_merge(r, item, number++, &rules[count], &skip);
        count += !skip;
    }
    int32_t byte_ids[256];
    if (code == OK)
        code = vocabulary_bytes(&r->t->vocabulary, r->where, r->t->characters ? NAME_BYTE : NAME_TEXT,
                                byte_ids, r->err);
    if (code != OK) {
        free(rules);
        return code;
    }
    return bpe_init(&r->t->bpe, r->where, byte_ids, rules, count, r->err);
}

/* --- the document --- */

/* Checks settings of the model that would change ids. unk_token and fuse_unk do not: with all 256 bytes
 * nothing is unknown. */
static ErrorCode read_model_settings(HfReader *r, const cJSON *model) {
    const char *type = "BPE", *prefix = "", *suffix = "";
    double dropout = 0;
    TRY(json_get_string(model, r->where, "type", false, &type, r->err));
    TRY(json_get_double(model, r->where, "dropout", false, &dropout, r->err));
    TRY(json_get_string(model, r->where, "continuing_subword_prefix", false, &prefix, r->err));
    TRY(json_get_string(model, r->where, "end_of_word_suffix", false, &suffix, r->err));
    TRY(json_get_bool(model, r->where, "byte_fallback", false, &r->t->characters, r->err));
    TRY(json_get_bool(model, r->where, "ignore_merges", false, &r->t->whole_first, r->err));
    if (strcmp(type, "BPE") != 0) return hf_refuse(r, "model.type", type);
    if (dropout < 0 || dropout > 0) return hf_refuse(r, "model.dropout", "dropout");
    if (*prefix) return hf_refuse(r, "model.continuing_subword_prefix", prefix);
    return *suffix ? hf_refuse(r, "model.end_of_word_suffix", suffix) : OK;
}

/* Mistral's own format, next to its tokenizer.json. */
static bool is_tekken(const cJSON *root) {
    return cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(root, "vocab")) &&
           cJSON_IsObject(cJSON_GetObjectItemCaseSensitive(root, "config"));
}

static ErrorCode read_document(HfReader *r, const cJSON *root) {
    if (!cJSON_IsObject(root))
        return error_set(r->err, ERR_DATA, "%s: a tokenizer.json is an object", r->where);
    if (is_tekken(root))
        return error_set(r->err, ERR_DATA, "%s: a tekken.json is not read: take the model's tokenizer.json",
                         r->where);
    const char *version = "1.0";
    const cJSON *model = NULL;
    TRY(json_get_string(root, r->where, "version", false, &version, r->err));
    if (strcmp(version, "1.0") != 0) return hf_refuse(r, "version", version);
    TRY(hf_container(r, root, "model", false, &model));
    TRY(read_model_settings(r, model));
    TRY(hf_read_pipeline(r, root));
    TRY(read_tokens(r, root, model));
    TRY(read_merges(r, model));
    return OK;
}

/* The text of the file is kept, so that tokenizer_save can write members that weft does not read. */
ErrorCode hf_tokenizer_read(Tokenizer *t, const char *where, const char *data, size_t length, Error *err) {
    cJSON *root = NULL;
    TRY(json_parse(where, data, length, &root, err));
    /* No string of the file is longer than the file, and a merge joins two of them. */
    HfReader r = {.t = t, .where = where, .err = err, .scratch = mem_alloc(added_capacity(length))};
    ErrorCode code = read_document(&r, root);
    free(r.scratch);
    cJSON_Delete(root);
    if (code != OK) return code;
    t->source = mem_alloc(length + 1);
    memcpy(t->source, data, length);
    t->source_length = length;
    return OK;
}
