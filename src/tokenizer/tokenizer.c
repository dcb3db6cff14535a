/* Opening, properties, decoding and saving. Encoding is in tokenizer_encode.c.
 *
 *  K1. A reader fills in the file's contents. Everything derived is computed once, here, so that all readers
 *      agree on it and encoding computes none of it.
 *  K2. The fingerprint covers what decides ids, not the file: token caches and running trainings depend on
 *      it. Settings that weft learned to read later are hashed only where they are in use, so that older
 *      tokenizers keep their fingerprints.
 *
 *   "bytes" --------------------------> open_bytes --------+
 *   a directory --> its tokenizer.json                     |
 *   a file ----- { or [ first --------> hf_tokenizer_read -+--> tokenizer_set_bounds --> finish_opening
 *          \---- anything else -------> tiktoken_read -----+
 *
 * It is constant from then on, and shared by all threads. */
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "tokenizer/hf_tokenizer.h"
#include "tokenizer/tiktoken.h"
#include "tokenizer/tokenizer_config.h"
#include "tokenizer/tokenizer_internal.h"

#define FILE_LIMIT ((size_t)1 << 28)
#define BLANKS " \t\r\n"
#define BYTES_BOS "<|begin_of_text|>"
#define BYTES_EOS "<|end_of_text|>"

/* --- opening --- */

/* The tokenizer without a file: 256 bytes, BOS and EOS. */
static ErrorCode open_bytes(Tokenizer *t, Error *err) {
    Vocabulary *v = &t->vocabulary;
    int32_t byte_ids[256];
    TRY(vocabulary_init(v, "bytes", 258, 256 + strlen(BYTES_BOS) + strlen(BYTES_EOS), err));
    for (int byte = 0; byte < 256; byte++) {
        TRY(vocabulary_set(v, "bytes", byte, &(char){(char)byte}, 1, TOKEN_TEXT, err));
        byte_ids[byte] = byte;
    }
    t->bos = 256;
    t->eos = 257;
    TRY(vocabulary_set(v, "bytes", t->bos, BYTES_BOS, strlen(BYTES_BOS), TOKEN_SPECIAL, err));
    TRY(vocabulary_set(v, "bytes", t->eos, BYTES_EOS, strlen(BYTES_EOS), TOKEN_SPECIAL, err));
    return bpe_init(&t->bpe, "bytes", byte_ids, mem_alloc(sizeof(MergeRule)), 0, err);
}

static void hash_text(Sha256 *h, const char *text, size_t length) {
    sha256_add_u64(h, length);
    sha256_add(h, text, length);
}

/* "gpt2", or several names joined by +. */
static void describe_splits(const Tokenizer *t, Text *out) {
    text_puts(out, t->splits.count ? "" : pattern_name(PATTERN_NONE));
    for (int i = 0; i < t->splits.count; i++)
        text_printf(out, "%s%s", i ? "+" : "", pattern_name(t->splits.steps[i]));
}

/* NFC alone has a number of its own in the fingerprint, from when it was the only normalizer (K2). */
static bool only_form_c(const Normalizer *n) { return n->count == 1 && n->steps[0].kind == NORMALIZE_NFC; }

/* Lengths precede strings, so that no two normalizers have the same description. */
static void describe_normalizer(const Normalizer *n, Text *out) {
    if (n->count == 0 || only_form_c(n)) return;
    for (int i = 0; i < n->count; i++) {
        const NormalizeStep *s = &n->steps[i];
        text_printf(out, "%s(", normalize_name(s->kind));
        const char *strings[2] = {s->from, s->to};
        for (int k = 0; k < 2; k++)
            if (strings[k]) text_printf(out, "%zu:%s,", strlen(strings[k]), strings[k]);
        text_printf(out, "%d%d)", s->left, s->right);
    }
}

/* Texts of added tokens are in the vocabulary and hashed with it; their flags are not. Sets with both lstrip
 * and rstrip once gave other ids (tokenizer/added.c, A4), which caches may still hold. */
static void describe_added(const AddedSet *set, Text *out) {
    bool left = false, right = false;
    for (size_t i = 0; i < set->count; i++) {
        const AddedToken *a = &set->tokens[i];
        left |= a->lstrip, right |= a->rstrip;
        if (a->single_word || a->lstrip || a->rstrip)
            text_printf(out, "added(%d,%d%d%d)", a->id, a->single_word, a->lstrip, a->rstrip);
    }
    if (left && right) text_puts(out, "dropped");
}

/* Describes features other than byte-level with the patterns of GPT-2, Llama 3 and Qwen 2; empty for those
 * (K2). */
static void describe_rest(const Tokenizer *t, Text *out) {
    describe_normalizer(&t->normalizer, out);
    describe_added(&t->added, out);
    describe_added(&t->added_normalized, out);
    if (t->characters) text_printf(out, "characters(%d%d)", t->marked, t->space_splits);
    if (t->prefix != PREFIX_NONE) text_printf(out, "prefix(%d)", t->prefix);
}

static bool needs_unicode(const Normalizer *n) {
    bool needs = false;
    for (int i = 0; i < n->count; i++) needs |= normalize_needs_unicode(n->steps[i].kind);
    return needs;
}

/* Hashes tokens in the order of their ids, so that ids need not be hashed; then merges, two 32-bit numbers
 * per word. */
static void hash_tables(Sha256 *h, const Tokenizer *t) {
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        sha256_add_u64(h, token->kind);
        hash_text(h, token->bytes, token->length);
    }
    for (size_t i = 0; i < t->bpe.count; i++) {
        const MergeRule *rule = &t->bpe.rules[i];
        sha256_add_u64(h, (uint64_t)rule->left << 32 | (uint64_t)rule->right);
        sha256_add_u64(h, (uint64_t)rule->rank << 32 | (uint64_t)rule->result);
    }
}

/* Hashes everything that decides ids, and nothing else: two spellings of the same tokenizer have the same
 * fingerprint. Versions of Unicode tables count, since pre-tokens depend on them. */
static void compute_fingerprint(const Tokenizer *t, int32_t bos, int32_t eos, char out[65]) {
    Sha256 *h = sha256_start();
    char version[32];
    Text text = {0};
    hash_text(h, "weft tokenizer 1", 16);
    describe_splits(t, &text);
    hash_text(h, text.data, text.length);
    splitter_unicode_version(version);
    if (t->splits.count) hash_text(h, version, strlen(version));
    if (needs_unicode(&t->normalizer)) hash_text(h, unicode_forms_version(), strlen(unicode_forms_version()));
    const uint64_t numbers[] = {only_form_c(&t->normalizer),   t->whole_first, (uint64_t)bos, (uint64_t)eos,
                                (uint64_t)t->vocabulary.count, t->bpe.count};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sha256_add_u64(h, numbers[i]);
    hash_tables(h, t);
    text_clear(&text);
    describe_rest(t, &text);
    if (text.length) hash_text(h, text.data, text.length);
    text_free(&text);
    uint8_t digest[32];
    sha256_finish(h, digest);
    sha256_hex(digest, out);
}

/* Whether an added token, or white space that it takes, could cross a cut. */
static bool added_across(const AddedSet *set) {
    for (size_t i = 0; i < set->count; i++) {
        const AddedToken *a = &set->tokens[i];
        if (a->single_word || a->lstrip || a->rstrip || memchr(a->text + 1, ' ', a->length - 1)) return true;
    }
    return false;
}

static bool marks_spaces(const NormalizeStep *s) {
    return s->kind == NORMALIZE_REPLACE && strcmp(s->from, SPACE_MARK) == 0;
}

/* Unicode forms do not change an ASCII character before a space, and neither does replacing U+2581 by a
 * space. Other steps depend on the ends of a text or could join both sides. */
static bool normalizes_across(const Normalizer *n) {
    for (int i = 0; i < n->count; i++)
        if (n->steps[i].kind > NORMALIZE_NFKD && !marks_spaces(&n->steps[i])) return true;
    return false;
}

/* A cut is before a space and after a printable ASCII character (split_cut). Prefixes do no harm: a section
 * that begins with a space gets none. */
static bool cuts_unsafe(const Tokenizer *t) {
    if (added_across(&t->added) || added_across(&t->added_normalized) || normalizes_across(&t->normalizer))
        return true;
    if (t->characters) return t->whole_first && !t->space_splits;
    return t->bpe.count > 0 && !splits_end_at_spaces(&t->splits);
}

/* Whether the token contains a newline that could be a lone one in a text; Gemma's tokens of newlines do
 * not. */
static bool holds_lone_newline(const AddedToken *a) {
    for (size_t i = 0; i + 1 < a->length; i++) {
        bool before = i == 0 || !strchr(BLANKS, a->text[i - 1]);
        if (a->text[i] == '\n' && before && !strchr(BLANKS, a->text[i + 1])) return true;
    }
    return false;
}

/* Whether a space is put before each section, also after an added token. */
static bool prefixes_sections(const Tokenizer *t) {
    bool prefixes = t->prefix == PREFIX_ALWAYS;
    for (int i = 0; i < t->normalizer.count; i++)
        prefixes |= t->normalizer.steps[i].kind == NORMALIZE_PREPEND;
    return prefixes;
}

/* Whether an added token could cross a lone newline, or take the newline that ends the previous chunk; or end
 * with that newline, so that the next chunk begins a section and gets a space. */
static bool added_across_newline(const Tokenizer *t, const AddedSet *set) {
    bool prefixes = prefixes_sections(t);
    for (size_t i = 0; i < set->count; i++) {
        const AddedToken *a = &set->tokens[i];
        bool ends_part = a->rstrip || a->text[a->length - 1] == '\n';
        if (a->lstrip || holds_lone_newline(a) || (ends_part && prefixes)) return true;
    }
    return false;
}

/* Whether some merge joins a newline to what may follow a lone one. */
static bool joins_newline(const Tokenizer *t) {
    for (size_t i = 0; i < t->bpe.count; i++) {
        const Token *left = &t->vocabulary.tokens[t->bpe.rules[i].left],
                    *right = &t->vocabulary.tokens[t->bpe.rules[i].right];
        if (left->bytes[left->length - 1] == '\n' && !strchr(BLANKS, right->bytes[0])) return true;
    }
    return false;
}

/* Whether anything crosses the newline between two chunks of a long document (data/corpus.h). If not, the
 * chunks together have the ids of the whole. */
static bool reaches_across_newline(const Tokenizer *t) {
    if (added_across_newline(t, &t->added) || added_across_newline(t, &t->added_normalized)) return true;
    for (int i = 0; i < t->normalizer.count; i++) {
        const NormalizeStep *s = &t->normalizer.steps[i];
        if (s->kind == NORMALIZE_STRIP || (s->kind == NORMALIZE_REPLACE && !marks_spaces(s))) return true;
    }
    if (t->characters) return (t->whole_first && !t->space_splits) || joins_newline(t);
    return t->bpe.count > 0 && !splits_end_at_newlines(&t->splits);
}

/* If no merge joins a byte to a following space, text may be cut between the two before merging: a token
 * across that border could only come from such a merge. SentencePiece separates words, so in practice this
 * holds before every space, and a whole document need not be merged as one pre-token. */
static void find_joins(Tokenizer *t) {
    for (int c = 0; c < 128; c++) t->ascii_ids[c] = vocabulary_find(&t->vocabulary, &(char){(char)c}, 1);
    for (size_t i = 0; i < t->bpe.count; i++) {
        const Token *left = &t->vocabulary.tokens[t->bpe.rules[i].left],
                    *right = &t->vocabulary.tokens[t->bpe.rules[i].right];
        if (right->bytes[0] == ' ') t->joins_space[(unsigned char)left->bytes[left->length - 1]] = true;
    }
}

static bool is_put(const AddedSet *set, int32_t id) {
    for (size_t i = 0; i < set->count; i++)
        if (set->tokens[i].id == id) return true;
    return false;
}

/* Sets for text in which special tokens count. Readers of files without a list of added tokens fill none;
 * then the special tokens of the vocabulary are used. */
static void fill_chat_sets(Tokenizer *t) {
    added_copy_all(&t->chat, &t->added);
    added_copy_all(&t->chat_normalized, &t->added_normalized);
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        if (token->kind != TOKEN_SPECIAL || is_put(&t->added, id) || is_put(&t->added_normalized, id))
            continue;
        added_put(&t->chat, &(AddedToken){.id = id}, token->bytes, token->length);
    }
}

/* `tokenizers` matches some tokens after spaces have become U+2581. A Metaspace replaces spaces only
 * later. */
static void seal_added_sets(Tokenizer *t) {
    AddedSet *sets[] = {&t->added, &t->chat, &t->added_normalized, &t->chat_normalized};
    for (int i = 0; i < t->normalizer.count; i++)
        if (marks_spaces(&t->normalizer.steps[i]))
            t->added_normalized.marked = t->chat_normalized.marked = true;
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) added_seal(sets[i]);
}

/* Derives everything from what the reader has filled in. */
static ErrorCode finish_opening(Tokenizer *t, Error *err) {
    TRY(splitter_create(&t->splitter, &t->splits, err));
    fill_chat_sets(t);
    seal_added_sets(t);
    find_joins(t);
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        if (t->vocabulary.tokens[id].length > t->longest) t->longest = t->vocabulary.tokens[id].length;
    }
    t->no_cuts = cuts_unsafe(t);
    t->whole_documents = reaches_across_newline(t);
    compute_fingerprint(t, t->bos, t->eos, t->fingerprint);
    return OK;
}

/* Readers fill in what they know; BOS and EOS are -1 until found. */
static Tokenizer *tokenizer_new(void) {
    Tokenizer *t = mem_alloc(sizeof *t);
    t->bos = t->eos = t->pad = -1;
    t->pool = state_pool_create();
    return t;
}

/* Returns the finished tokenizer in *out, or frees it after a failure. `config` may be NULL. */
static ErrorCode hand_out(Tokenizer **out, Tokenizer *t, const char *where, const cJSON *config,
                          const TokenizerKeys *keys, ErrorCode code, Error *err) {
    if (code == OK) code = tokenizer_set_bounds(t, where, config, keys, err);
    if (code == OK) code = finish_opening(t, err);
    if (code == OK) {
        *out = t;
    } else {
        tokenizer_free(t);
    }
    return code;
}

/* A tiktoken file begins with base64, which has no brackets. */
static bool looks_like_json(const char *data, size_t length) {
    size_t i = 0;
    while (i < length && strchr(" \t\r\n", data[i]) && data[i]) i++;
    return i < length && (data[i] == '{' || data[i] == '[');
}

static ErrorCode parse(Tokenizer *t, const char *where, const char *data, size_t length,
                       const TokenizerKeys *keys, Error *err) {
    return looks_like_json(data, length) ? hf_tokenizer_read(t, where, data, length, err)
                                         : tiktoken_read(t, where, data, length, keys, err);
}

ErrorCode tokenizer_parse_as(Tokenizer **out, const char *where, const char *data, size_t length,
                             const TokenizerKeys *keys, Error *err) {
    *out = NULL;
    Tokenizer *t = tokenizer_new();
    return hand_out(out, t, where, NULL, keys, parse(t, where, data, length, keys, err), err);
}

ErrorCode tokenizer_parse(Tokenizer **out, const char *where, const char *data, size_t length, Error *err) {
    return tokenizer_parse_as(out, where, data, length, &(TokenizerKeys){0}, err);
}

/* The size limit keeps a mistaken path (a model, a corpus) from being read to its end. */
static ErrorCode read_file(Tokenizer *t, const char *spec, const TokenizerKeys *keys, Error *err) {
    char *path = file_is_dir(spec) ? path_join(spec, "tokenizer.json") : mem_strdup(spec);
    char *data = NULL;
    size_t length = 0;
    ErrorCode code = file_read(path, FILE_LIMIT, &data, &length, err);
    if (code == OK) code = parse(t, path, data, length, keys, err);
    free(data);
    free(path);
    return code;
}

ErrorCode tokenizer_open_as(Tokenizer **out, const char *spec, const TokenizerKeys *keys, Error *err) {
    *out = NULL;
    Tokenizer *t = tokenizer_new();
    cJSON *config = NULL;
    ErrorCode code = strcmp(spec, "bytes") == 0 ? open_bytes(t, err) : read_file(t, spec, keys, err);
    char *path = tokenizer_config_path(spec);
    if (code == OK && path) code = json_read(path, FILE_LIMIT, &config, err);
    free(path);
    code = hand_out(out, t, spec, config, keys, code, err);
    cJSON_Delete(config);
    return code;
}

ErrorCode tokenizer_open(Tokenizer **out, const char *spec, Error *err) {
    return tokenizer_open_as(out, spec, &(TokenizerKeys){0}, err);
}

/* NULL is fine, and so is a tokenizer that a reader left half filled: the rest is zero. */
void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    state_pool_free(t->pool);
    vocabulary_free(&t->vocabulary);
    bpe_free(&t->bpe);
    normalizer_free(&t->normalizer);
    splitter_free(t->splitter);
    added_free(&t->added);
    added_free(&t->added_normalized);
    added_free(&t->chat);
    added_free(&t->chat_normalized);
    free(t->source);
    free(t);
}

/* --- properties --- */

int32_t tokenizer_vocab_size(const Tokenizer *t) { return t->vocabulary.count; }

int32_t tokenizer_bos(const Tokenizer *t) { return t->bos; }

int32_t tokenizer_eos(const Tokenizer *t) { return t->eos; }

void tokenizer_document_ends(const Tokenizer *t, bool add_bos, bool add_eos, int32_t *bos, int32_t *eos) {
    *eos = add_eos ? t->eos : -1;
    *bos = add_bos && t->bos != *eos ? t->bos : -1;
}

int32_t tokenizer_pad(const Tokenizer *t) { return t->pad; }

const int32_t *tokenizer_ends(const Tokenizer *t, int *count) {
    *count = t->end_count;
    return t->ends;
}

/* A linear search: it is called a few times per run, and no index has special tokens (vocabulary.h). */
int32_t tokenizer_special(const Tokenizer *t, const char *name) {
    size_t length = strlen(name);
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        if (token->kind == TOKEN_SPECIAL && token->length == length &&
            memcmp(token->bytes, name, length) == 0)
            return id;
    }
    return -1;
}

static TokenKind kind_of(const Tokenizer *t, int32_t id) {
    return id < 0 || id >= t->vocabulary.count ? TOKEN_NONE : t->vocabulary.tokens[id].kind;
}

bool tokenizer_is_special(const Tokenizer *t, int32_t id) { return kind_of(t, id) == TOKEN_SPECIAL; }

bool tokenizer_whole_documents(const Tokenizer *t) { return t->whole_documents; }

void tokenizer_fingerprint(const Tokenizer *t, char out[65]) { memcpy(out, t->fingerprint, 65); }

bool tokenizer_same_ids(const Tokenizer *a, const Tokenizer *b) {
    char of_a[65], of_b[65];
    compute_fingerprint(a, -1, -1, of_a);
    compute_fingerprint(b, -1, -1, of_b);
    return strcmp(of_a, of_b) == 0;
}

/* NULL for an id outside the vocabulary. The tokenizer owns the bytes. */
const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *length) {
    *length = 0;
    if (id < 0 || id >= t->vocabulary.count) return NULL;
    *length = t->vocabulary.tokens[id].length;
    return t->vocabulary.tokens[id].bytes;
}

size_t tokenizer_text_bytes(const Tokenizer *t, int32_t id) {
    size_t length;
    bool control = id == tokenizer_bos(t) || id == tokenizer_eos(t) || tokenizer_is_special(t, id);
    return !control && tokenizer_token_bytes(t, id, &length) ? length : 0;
}

/* --- lists of ids --- */

/* Grows by at least half, so that adding ids one by one is linear. */
void token_list_reserve(TokenList *list, size_t more) {
    if (list->capacity - list->count >= more) return;
    size_t wanted = list->count + more, bytes;
    size_t capacity = list->capacity + list->capacity / 2;
    if (capacity < wanted) capacity = wanted;
    if (capacity < 64) capacity = 64;
    CHECK(wanted >= more && size_multiply(capacity, sizeof *list->ids, &bytes));
    list->ids = mem_grow(list->ids, bytes);
    list->capacity = capacity;
}

void token_list_free(TokenList *list) {
    free(list->ids);
    *list = (TokenList){0};
}

/* --- decoding and saving --- */

/* Drops only spaces that encoding may have added: those at the start of the first token. */
const char *tokenizer_token_text(const Tokenizer *t, int32_t id, bool first, size_t *length) {
    const char *bytes = tokenizer_token_bytes(t, id, length);
    for (int i = 0; first && bytes && i<t->drops_spaces && * length> 0 && *bytes == ' '; i++)
        bytes++, (*length)--;
    return bytes;
}

/* Appends; what precedes a bad id stays in `out`. */
ErrorCode tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out, Error *err) {
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = tokenizer_token_text(t, ids[i], i == 0, &length);
        if (!bytes) {
            return error_set(err, ERR_DATA, "token %zu has the id %d, outside the vocabulary of %d", i,
                             ids[i], t->vocabulary.count);
        }
        text_add(out, bytes, length);
    }
    return OK;
}

/* A tokenizer.json is written back unchanged: what weft does not read (post-processors, truncation) stays for
 * other readers. */
ErrorCode tokenizer_save(const Tokenizer *t, const char *path, Error *err) {
    if (t->source) return file_write_atomic(path, t->source, t->source_length, err);
    Text out = {0};
    hf_tokenizer_write(t, &out);
    ErrorCode code = file_write_atomic(path, out.data, out.length, err);
    text_free(&out);
    return code;
}
