/* Encoding.
 *
 * Text passes through a chain of stages, each splitting it further: runs of valid UTF-8, added tokens,
 * normalized text, added tokens again, pre-tokens, ids. The chain's scratch memory is an EncodeState, which a
 * thread borrows for the length of a call.
 *
 *  E1. The order of the stages is that of `tokenizers`, and each stage sees only its section: nothing beyond
 *      an added token exists for it.
 *  E2. Bytes that are not UTF-8 are encoded on their own, so that every text can be encoded. The text after
 *      them continues the same text: no space is put before it.
 *  E3. A state caches the ids of short pre-tokens, which repeat; that never changes a result.
 *
 *   encode_text            runs of valid UTF-8; other bytes               --> encode_pre_token
 *     encode_around          added tokens of raw text                      --> their ids
 *       encode_raw             the normalizer
 *         encode_normalized      added tokens of normalized text           --> their ids
 *           encode_section         U+2581, and the space before a section
 *             encode_split           patterns, or words with byte fallback
 *               encode_pre_token       cached ids, or else merging         --> ids */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"
#include "tokenizer/utf8.h"

/* --- cache of pre-tokens --- */

#define MEMORY_SLOTS 16384 /* of 64 bytes: 1 MiB, which fits a core's L2 cache */
#define MEMORY_BYTES 22
#define MEMORY_IDS 10

typedef struct Remembered {
    uint8_t length, count; /* length 0: empty */
    char bytes[MEMORY_BYTES];
    int32_t ids[MEMORY_IDS];
} Remembered;

typedef struct EncodeState {
    struct EncodeState *next;
    SplitState *split;
    Remembered *memory; /* [MEMORY_SLOTS]; a new pre-token overwrites the old one in its slot */
} EncodeState;

/* There are as many states as threads that have encoded at a time. They live as long as the tokenizer. */
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

/* Puts the state at the front, so that few threads use few states, whose memory is warm. */
static void state_return(StatePool *pool, EncodeState *state) {
    pthread_mutex_lock(&pool->lock);
    state->next = pool->idle;
    pool->idle = state;
    pthread_mutex_unlock(&pool->lock);
}

/* The pool is separate from the tokenizer, which is constant while encoding. */
StatePool *state_pool_create(void) {
    StatePool *pool = mem_alloc(sizeof *pool);
    pthread_mutex_init(&pool->lock, NULL);
    return pool;
}

void state_pool_free(StatePool *pool) {
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

/* Grows by half, so that a document costs a few allocations, however long it is. */
static void token_list_add(TokenList *list, const int32_t *ids, size_t count) {
    token_list_reserve(list, count);
    memcpy(list->ids + list->count, ids, count * sizeof *ids);
    list->count += count;
}

/* --- pre-tokens --- */

typedef struct Encoding {
    const Tokenizer *t;
    EncodeState *state;
    TokenList *out;
    bool begins;  /* the section begins the text */
    bool goes_on; /* the section follows other text of its document, not an added token */
    bool chat;    /* special tokens become their ids, and TOKENIZER_CUT is a cut */
    Error *err;
} Encoding;

static void add_id(Encoding *e, int32_t id) { token_list_add(e->out, &id, 1); }

/* The initial tokens of a pre-token of characters. `out` has space for one per byte. */
static size_t start_characters(const Tokenizer *t, const char *text, size_t length, int32_t *out) {
    size_t n = 0;
    for (size_t i = 0, bytes; i < length; i += bytes) {
        unsigned char first = (unsigned char)text[i];
        bytes = first < 0x80 ? 1 : text_utf8(text + i, length - i, NULL);
        int32_t id = -1;
        if (first < 0x80)
            id = t->ascii_ids[first];
        else if (bytes > 0)
            id = vocabulary_find(&t->vocabulary, text + i, bytes);
        if (bytes == 0) bytes = 1;
        if (id >= 0) out[n++] = id;
        for (size_t k = 0; id < 0 && k < bytes; k++) out[n++] = t->bpe.byte_ids[(unsigned char)text[i + k]];
    }
    return n;
}

/* whole_first is Llama 3's rule (ignore_merges): a pre-token that is itself a token is not merged. */
static int32_t whole_pre_token(const Tokenizer *t, const char *text, size_t length) {
    return t->whole_first && length <= t->longest ? vocabulary_find(&t->vocabulary, text, length) : -1;
}

static ErrorCode encode_pre_token_afresh(Encoding *e, const char *text, size_t length) {
    const Tokenizer *t = e->t;
    if (length > INT_MAX) {
        return error_set(e->err, ERR_DATA,
                         "a piece of text of %zu bytes without any break cannot be tokenized", length);
    }
    /* Without space_splits this is a segment of a pre-token, which encode_words has already looked up as a
     * whole. */
    int32_t whole = t->characters && !t->space_splits ? -1 : whole_pre_token(t, text, length);
    if (whole >= 0) {
        add_id(e, whole);
        return OK;
    }
    token_list_reserve(e->out, length);
    int32_t *out = e->out->ids + e->out->count;
    e->out->count += t->characters ? bpe_merge(&t->bpe, out, start_characters(t, text, length, out))
                                   : bpe_encode(&t->bpe, (const unsigned char *)text, length, out);
    return OK;
}

/* A pre-token has only one possible slot, by its hash, without search or age. Common pre-tokens soon return
 * after a rare one has overwritten them. */
static ErrorCode encode_pre_token(Encoding *e, const char *text, size_t length) {
    if (length > MEMORY_BYTES) return encode_pre_token_afresh(e, text, length);
    Remembered *r = &e->state->memory[hash64(text, length) % MEMORY_SLOTS];
    if (r->length == length && memcmp(r->bytes, text, length) == 0) {
        token_list_add(e->out, r->ids, r->count);
        return OK;
    }
    size_t before = e->out->count;
    TRY(encode_pre_token_afresh(e, text, length));
    size_t count = e->out->count - before;
    if (count > MEMORY_IDS) return OK;
    r->length = (uint8_t)length;
    r->count = (uint8_t)count;
    memcpy(r->bytes, text, length);
    memcpy(r->ids, e->out->ids + before, count * sizeof *r->ids);
    return OK;
}

/* Without merges each byte is its token: no patterns, no cache, one pass. */
static ErrorCode encode_bytes(Encoding *e, const char *text, size_t length) {
    token_list_reserve(e->out, length);
    int32_t *ids = e->out->ids + e->out->count;
    for (size_t i = 0; i < length; i++) ids[i] = e->t->bpe.byte_ids[(unsigned char)text[i]];
    e->out->count += length;
    return OK;
}

/* Up to the next space that no merge joins to what precedes it. */
static size_t word_end(const Tokenizer *t, const char *text, size_t length, size_t from) {
    for (size_t i = from + 1; i < length; i++) {
        const char *space = memchr(text + i, ' ', length - i);
        if (!space) return length;
        i = (size_t)(space - text);
        if (t->space_splits || !t->joins_space[(unsigned char)text[i - 1]]) return i;
    }
    return length;
}

/* Segments of an unsplit pre-token are cached like pre-tokens: the ids of a segment do not depend on its
 * neighbours, otherwise it would not have been cut there. */
static ErrorCode encode_words(Encoding *e, const char *text, size_t length) {
    int32_t whole = e->t->space_splits ? -1 : whole_pre_token(e->t, text, length);
    if (whole >= 0) {
        add_id(e, whole);
        return OK;
    }
    for (size_t from = 0, end; from < length; from = end) {
        end = word_end(e->t, text, length, from);
        TRY(encode_pre_token(e, text + from, end - from));
    }
    return OK;
}

static ErrorCode encode_split(Encoding *e, const char *text, size_t length) {
    if (e->t->characters) return encode_words(e, text, length);
    if (e->t->bpe.count == 0 && !e->t->whole_first) return encode_bytes(e, text, length);
    for (size_t from = 0, end; from < length; from = end) {
        TRY(split_next(e->t->splitter, e->state->split, text, length, from, &end, e->err));
        TRY(encode_pre_token(e, text + from, end - from));
    }
    return OK;
}

/* --- sections --- */

static bool wants_prefix(const Encoding *e, const char *text) {
    if (e->goes_on || text[0] == ' ') return false;
    return e->t->prefix == PREFIX_ALWAYS || (e->t->prefix == PREFIX_FIRST && e->begins);
}

/* Replaces U+2581 by a space if the tokenizer does, and adds the prefix. Most text needs neither and is not
 * copied. */
static ErrorCode encode_section(Encoding *e, const char *text, size_t length) {
    const size_t mark = strlen(SPACE_MARK);
    const char *hit = e->t->marked ? memmem(text, length, SPACE_MARK, mark) : NULL;
    bool prefix = hit != text && wants_prefix(e, text);
    if (!hit && !prefix) return encode_split(e, text, length);
    Text copy = {0};
    if (prefix) text_add(&copy, " ", 1);
    for (const char *end = text + length; hit; hit = memmem(text, (size_t)(end - text), SPACE_MARK, mark)) {
        text_add(&copy, text, (size_t)(hit - text));
        text_add(&copy, " ", 1);
        text = hit + mark;
        length = (size_t)(end - text);
    }
    text_add(&copy, text, length);
    ErrorCode code = encode_split(e, copy.data, copy.length);
    text_free(&copy);
    return code;
}

/* Ids of the added tokens of a set; the sections between them go to the next stage. */
static ErrorCode encode_around(Encoding *e, const AddedSet *set, const char *text, size_t length,
                               ErrorCode (*between)(Encoding *, const char *, size_t)) {
    bool begins = e->begins, goes_on = e->goes_on;
    AddedSearch search = {0};
    AddedMatch match;
    for (size_t from = 0;; from = match.end) {
        bool found = added_next(set, text, length, &search, &match);
        size_t until = found ? match.start : length;
        e->begins = begins && from == 0;
        e->goes_on = goes_on && from == 0;
        if (until > from) TRY(between(e, text + from, until - from));
        if (!found) return OK;
        add_id(e, match.id);
    }
}

/* Tokens that are matched after normalization see only normalized text between tokens that were matched
 * before. */
static ErrorCode encode_normalized(Encoding *e, const char *text, size_t length) {
    const AddedSet *set = e->chat ? &e->t->chat_normalized : &e->t->added_normalized;
    return encode_around(e, set, text, length, encode_section);
}

/* Normalizes each section by itself, as `tokenizers` does: Prepend applies to each, and Strip to the ends of
 * each. */
static ErrorCode encode_raw(Encoding *e, const char *text, size_t length) {
    if (e->t->normalizer.count == 0) return encode_normalized(e, text, length);
    Text made = {0};
    bool changed;
    ErrorCode code = normalizer_run(&e->t->normalizer, text, length, !e->goes_on, &made, &changed, e->err);
    if (code == OK && changed)
        code = encode_normalized(e, made.length ? made.data : "", made.length);
    else if (code == OK)
        code = encode_normalized(e, text, length);
    text_free(&made);
    return code;
}

/* Position of a text. No space is put before text that continues other text; one may be put before text after
 * an added token. */
typedef enum TextPlace { TEXT_BEGINS, TEXT_GOES_ON, TEXT_BEHIND_TOKEN } TextPlace;

/* In rendered chat templates (e->chat) the only bytes that are not UTF-8 are cuts. */
static ErrorCode encode_text(Encoding *e, const char *text, size_t length, TextPlace place) {
    const AddedSet *set = e->chat ? &e->t->chat : &e->t->added;
    for (size_t from = 0; from < length;) {
        size_t valid = utf8_valid_run(text + from, length - from);
        e->begins = place == TEXT_BEGINS && from == 0;
        e->goes_on = place == TEXT_GOES_ON || from > 0;
        if (valid) TRY(encode_around(e, set, text + from, valid, encode_raw));
        from += valid;
        size_t invalid = utf8_invalid_run(text + from, length - from);
        if (invalid && !e->chat) TRY(encode_pre_token(e, text + from, invalid));
        from += invalid;
    }
    return OK;
}

ErrorCode tokenizer_encode(const Tokenizer *t, const char *text, size_t length, TokenList *out, Error *err) {
    return tokenizer_encode_part(t, text, length, true, out, err);
}

ErrorCode tokenizer_encode_part(const Tokenizer *t, const char *text, size_t length, bool begins,
                                TokenList *out, Error *err) {
    Encoding e = {.t = t, .state = state_borrow(t), .out = out, .err = err};
    ErrorCode code = encode_text(&e, text, length, begins ? TEXT_BEGINS : TEXT_GOES_ON);
    state_return(t->pool, e.state);
    return code;
}

static const AddedToken *added_of(const AddedSet *set, int32_t id) {
    for (size_t i = 0; i < set->count; i++)
        if (set->tokens[i].id == id) return &set->tokens[i];
    return NULL;
}

/* If the preceding token takes following white space (rstrip), it takes that of this text too. */
ErrorCode tokenizer_encode_chat(const Tokenizer *t, const char *text, size_t length, int32_t before,
                                TokenList *out, Error *err) {
    const AddedSet *set = added_of(&t->chat, before) ? &t->chat : &t->chat_normalized;
    const AddedToken *token = added_of(set, before);
    size_t taken = token && token->rstrip ? added_space_behind(set, text, utf8_valid_run(text, length)) : 0;
    TextPlace place = before < 0 ? TEXT_BEGINS : token ? TEXT_BEHIND_TOKEN : TEXT_GOES_ON;
    Encoding e = {.t = t, .state = state_borrow(t), .out = out, .chat = true, .err = err};
    ErrorCode code = encode_text(&e, text + taken, length - taken, place);
    state_return(t->pool, e.state);
    return code;
}

/* --- cuts --- */

/* The last cut of split_cut where no merge joins the space to what precedes it. */
static size_t word_cut(const Tokenizer *t, const char *text, size_t length) {
    for (size_t cut = length; (cut = split_cut(text, cut)) > 0;) {
        if (t->space_splits || !t->joins_space[(unsigned char)text[cut - 1]]) return cut;
    }
    return 0;
}

size_t tokenizer_cut(const Tokenizer *t, const char *text, size_t length) {
    if (t->no_cuts) return 0;
    return t->characters ? word_cut(t, text, length) : split_cut(text, length);
}
