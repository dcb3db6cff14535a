/* Opening, encoding and decoding.
 *
 * Text goes down a chain, each stage cutting it smaller: runs of valid UTF-8, added tokens, normalized text,
 * added tokens again, pieces of the pattern, ids. Scratch memory of the chain lives in an EncodeState; a
 * thread borrows an idle one for the length of a call. A state remembers the ids of short pieces, which
 * repeat; that never changes a result. */
#include "data/tokenizer.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "data/hf_tokenizer.h"
#include "data/normalize.h"
#include "data/tiktoken.h"
#include "data/tokenizer_internal.h"
#include "data/utf8.h"

#define FILE_LIMIT ((size_t)1 << 28)
#define BYTES_BOS "<|begin_of_text|>"
#define BYTES_EOS "<|end_of_text|>"

/* --- pieces remembered --- */

#define MEMORY_SLOTS 16384 /* of 64 bytes: 1 MiB, which stays in a core's second-level cache */
#define MEMORY_BYTES 22
#define MEMORY_IDS 10

typedef struct Remembered {
    uint8_t length, count; /* length 0: nothing here */
    char bytes[MEMORY_BYTES];
    int32_t ids[MEMORY_IDS];
} Remembered;

typedef struct EncodeState {
    struct EncodeState *next;
    SplitState *split;
    Remembered *memory; /* [MEMORY_SLOTS]; a newer piece takes the place of an older one */
} EncodeState;

/* As many states come to be as threads encode at a time; they live as long as the tokenizer. */
static EncodeState *state_borrow(const Tokenizer *t) {
    pthread_mutex_lock(&t->pool->lock);
    EncodeState *state = t->pool->idle;
    if (state) t->pool->idle = state->next;
    pthread_mutex_unlock(&t->pool->lock);
    if (state) return state;
    state = mem_alloc(sizeof *state);
    state->split = split_state_create(t->splitter);
    state->memory = mem_alloc_array(MEMORY_SLOTS, sizeof *state->memory);
    return state;
}

static void state_return(StatePool *pool, EncodeState *state) {
    pthread_mutex_lock(&pool->lock);
    state->next = pool->idle;
    pool->idle = state;
    pthread_mutex_unlock(&pool->lock);
}

static void pool_destroy(StatePool *pool) {
    while (pool->idle) {
        EncodeState *state = pool->idle;
        pool->idle = state->next;
        split_state_free(state->split);
        free(state->memory);
        free(state);
    }
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* --- opening --- */

/* The tokenizer that needs no file: 256 bytes and two bounds. */
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
    t->pattern = PATTERN_NONE;
    return bpe_init(&t->bpe, "bytes", byte_ids, mem_alloc(sizeof(MergeRule)), 0, err);
}

static void hash_text(Sha256 *h, const char *text, size_t length) {
    sha256_add_u64(h, length);
    sha256_add(h, text, length);
}

/* Over everything that decides ids, and nothing else: two files that spell the same tokenizer in two ways
 * have the same fingerprint. Versions of Unicode tables count, since pieces depend on them. */
static void compute_fingerprint(Tokenizer *t) {
    Sha256 *h = sha256_start();
    char version[32];
    hash_text(h, "weft tokenizer 1", 16);
    hash_text(h, pattern_name(t->pattern), strlen(pattern_name(t->pattern)));
    splitter_unicode_version(version);
    if (t->pattern != PATTERN_NONE) hash_text(h, version, strlen(version));
    if (t->nfc) hash_text(h, nfc_unicode_version(), strlen(nfc_unicode_version()));
    const uint64_t numbers[] = {
        t->nfc,      t->whole_first, (uint64_t)t->bos, (uint64_t)t->eos, (uint64_t)t->vocabulary.count,
        t->bpe.count};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sha256_add_u64(h, numbers[i]);
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
    uint8_t digest[32];
    sha256_finish(h, digest);
    sha256_hex(digest, t->fingerprint);
}

/* A cut falls before a space. It is unsafe when an added token could lie across it. */
static bool cuts_unsafe(const Tokenizer *t) {
    for (int32_t id = 0; id < t->vocabulary.count; id++) {
        const Token *token = &t->vocabulary.tokens[id];
        bool cut_out = token->kind == TOKEN_ADDED || token->kind == TOKEN_ADDED_NORMALIZED;
        if (cut_out && memchr(token->bytes + 1, ' ', token->length - 1)) return true;
    }
    return false;
}

/* What follows from what the reader filled in. */
static ErrorCode finish_opening(Tokenizer *t, Error *err) {
    TRY(splitter_create(&t->splitter, t->pattern, err));
    added_init(&t->added, &t->vocabulary, TOKEN_ADDED);
    added_init(&t->added_normalized, &t->vocabulary, TOKEN_ADDED_NORMALIZED);
    t->no_cuts = cuts_unsafe(t);
    compute_fingerprint(t);
    return OK;
}

static Tokenizer *tokenizer_new(void) {
    Tokenizer *t = mem_alloc(sizeof *t);
    t->bos = t->eos = -1;
    t->pool = mem_alloc(sizeof *t->pool);
    pthread_mutex_init(&t->pool->lock, NULL);
    return t;
}

/* Hands out a tokenizer that was filled, or frees it. */
static ErrorCode tokenizer_hand_out(Tokenizer **out, Tokenizer *t, ErrorCode code, Error *err) {
    if (code == OK) code = finish_opening(t, err);
    if (code == OK) {
        *out = t;
    } else {
        tokenizer_free(t);
    }
    return code;
}

/* A tiktoken file begins with base64, which has neither bracket. */
static bool looks_like_json(const char *data, size_t length) {
    size_t i = 0;
    while (i < length && strchr(" \t\r\n", data[i]) && data[i]) i++;
    return i < length && (data[i] == '{' || data[i] == '[');
}

ErrorCode tokenizer_parse(Tokenizer **out, const char *where, const char *data, size_t length, Error *err) {
    *out = NULL;
    Tokenizer *t = tokenizer_new();
    ErrorCode code = looks_like_json(data, length) ? hf_tokenizer_read(t, where, data, length, err)
                                                   : tiktoken_read(t, where, data, length, err);
    return tokenizer_hand_out(out, t, code, err);
}

ErrorCode tokenizer_open(Tokenizer **out, const char *spec, Error *err) {
    *out = NULL;
    if (strcmp(spec, "bytes") == 0) {
        Tokenizer *t = tokenizer_new();
        return tokenizer_hand_out(out, t, open_bytes(t, err), err);
    }
    char *path = file_is_dir(spec) ? path_join(spec, "tokenizer.json") : mem_strdup(spec);
    char *data = NULL;
    size_t length = 0;
    ErrorCode code = file_read(path, FILE_LIMIT, &data, &length, err);
    if (code == OK) code = tokenizer_parse(out, path, data, length, err);
    free(data);
    free(path);
    return code;
}

void tokenizer_free(Tokenizer *t) {
    if (!t) return;
    pool_destroy(t->pool);
    vocabulary_free(&t->vocabulary);
    bpe_free(&t->bpe);
    splitter_free(t->splitter);
    added_free(&t->added);
    added_free(&t->added_normalized);
    free(t->source);
    free(t);
}

/* --- facts --- */

int32_t tokenizer_vocab_size(const Tokenizer *t) { return t->vocabulary.count; }

int32_t tokenizer_bos(const Tokenizer *t) { return t->bos; }

int32_t tokenizer_eos(const Tokenizer *t) { return t->eos; }

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

void tokenizer_fingerprint(const Tokenizer *t, char out[65]) { memcpy(out, t->fingerprint, 65); }

const char *tokenizer_token_bytes(const Tokenizer *t, int32_t id, size_t *length) {
    *length = 0;
    if (id < 0 || id >= t->vocabulary.count) return NULL;
    *length = t->vocabulary.tokens[id].length;
    return t->vocabulary.tokens[id].bytes;
}

/* --- encoding --- */

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

static void token_list_add(TokenList *list, const int32_t *ids, size_t count) {
    token_list_reserve(list, count);
    memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
}

typedef struct Encoding {
    const Tokenizer *t;
    EncodeState *state;
    TokenList *out;
    Error *err;
} Encoding;

/* whole_first is Llama 3's rule (ignore_merges): a piece that is a token as it stands is that token,
 * whatever merging would have made of it. */
static ErrorCode encode_piece_afresh(Encoding *e, const char *text, size_t length) {
    if (length > INT_MAX) {
        return error_set(e->err, ERR_DATA,
                         "a piece of text of %zu bytes without any break cannot be tokenized", length);
    }
    int32_t whole = e->t->whole_first ? vocabulary_find(&e->t->vocabulary, text, length) : -1;
    if (whole >= 0) {
        token_list_add(e->out, &whole, 1);
        return OK;
    }
    token_list_reserve(e->out, length);
    e->out->count += bpe_encode(&e->t->bpe, (const unsigned char *)text, length, e->out->ids + e->out->count);
    return OK;
}

static ErrorCode encode_piece(Encoding *e, const char *text, size_t length) {
    if (length > MEMORY_BYTES) return encode_piece_afresh(e, text, length);
    Remembered *r = &e->state->memory[hash64(text, length) % MEMORY_SLOTS];
    if (r->length == length && memcmp(r->bytes, text, length) == 0) {
        token_list_add(e->out, r->ids, r->count);
        return OK;
    }
    size_t before = e->out->count;
    TRY(encode_piece_afresh(e, text, length));
    size_t count = e->out->count - before;
    if (count > MEMORY_IDS) return OK;
    r->length = (uint8_t)length;
    r->count = (uint8_t)count;
    memcpy(r->bytes, text, length);
    memcpy(r->ids, e->out->ids + before, count * sizeof *r->ids);
    return OK;
}

/* Without merges each byte is its token: no patterns, no memory, one pass. */
static ErrorCode encode_bytes(Encoding *e, const char *text, size_t length) {
    token_list_reserve(e->out, length);
    int32_t *ids = e->out->ids + e->out->count;
    for (size_t i = 0; i < length; i++) ids[i] = e->t->bpe.byte_ids[(unsigned char)text[i]];
    e->out->count += length;
    return OK;
}

static ErrorCode encode_pieces(Encoding *e, const char *text, size_t length) {
    if (e->t->bpe.count == 0 && !e->t->whole_first) return encode_bytes(e, text, length);
    for (size_t from = 0, end; from < length; from = end) {
        TRY(split_next(e->t->splitter, e->state->split, text, length, from, &end, e->err));
        TRY(encode_piece(e, text + from, end - from));
    }
    return OK;
}

/* Ids of the added tokens of a set; what lies between them goes to the next stage. */
static ErrorCode encode_around(Encoding *e, const AddedSet *set, const char *text, size_t length,
                               ErrorCode (*between)(Encoding *, const char *, size_t)) {
    for (size_t from = 0; from < length;) {
        int32_t id = -1;
        size_t found = added_find(set, &e->t->vocabulary, text, length, from, &id);
        if (found > from) TRY(between(e, text + from, found - from));
        if (id < 0) break;
        token_list_add(e->out, &id, 1);
        from = found + e->t->vocabulary.tokens[id].length;
    }
    return OK;
}

static ErrorCode encode_normalized(Encoding *e, const char *text, size_t length) {
    return encode_around(e, &e->t->added_normalized, text, length, encode_pieces);
}

static ErrorCode encode_raw(Encoding *e, const char *text, size_t length) {
    if (!e->t->nfc) return encode_normalized(e, text, length);
    char *composed;
    size_t composed_length = 0;
    TRY(nfc_normalize(text, length, &composed, &composed_length, e->err));
    if (!composed) return encode_normalized(e, text, length);
    ErrorCode code = encode_normalized(e, composed, composed_length);
    free(composed);
    return code;
}

/* Bytes that are no UTF-8 are encoded by themselves, so that every text can be encoded and comes back as
 * it was. */
static ErrorCode encode_text(Encoding *e, const char *text, size_t length) {
    for (size_t from = 0; from < length;) {
        size_t valid = utf8_valid_run(text + from, length - from);
        if (valid) TRY(encode_around(e, &e->t->added, text + from, valid, encode_raw));
        from += valid;
        size_t invalid = utf8_invalid_run(text + from, length - from);
        if (invalid) TRY(encode_piece(e, text + from, invalid));
        from += invalid;
    }
    return OK;
}

ErrorCode tokenizer_encode(const Tokenizer *t, const char *text, size_t length, TokenList *out, Error *err) {
    Encoding e = {.t = t, .state = state_borrow(t), .out = out, .err = err};
    ErrorCode code = encode_text(&e, text, length);
    state_return(t->pool, e.state);
    return code;
}

size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t length) {
    return t->no_cuts ? 0 : split_cut(text, length);
}

/* --- decoding and saving --- */

ErrorCode tokenizer_decode(const Tokenizer *t, const int32_t *ids, size_t count, Text *out, Error *err) {
    for (size_t i = 0; i < count; i++) {
        size_t length;
        const char *bytes = tokenizer_token_bytes(t, ids[i], &length);
        if (!bytes) {
            return error_set(err, ERR_DATA, "token %zu has the id %d, outside the vocabulary of %d", i,
                             ids[i], t->vocabulary.count);
        }
        text_add(out, bytes, length);
    }
    return OK;
}

ErrorCode tokenizer_save(const Tokenizer *t, const char *path, Error *err) {
    if (t->source) return file_write_atomic(path, t->source, t->source_length, err);
    Text out = {0};
    hf_tokenizer_write(t, &out);
    ErrorCode code = file_write_atomic(path, out.data, out.length, err);
    text_free(&out);
    return code;
}
