/* Reads a token cache: the mapped shards of a directory as one sequence of tokens.
 *
 *   offset   0               TOKEN_HEADER_BYTES    ends_at              sums_at
 *            +---------------+---------------------+--------------------+-------------------+
 *            | TokenHeader,  | ids of 2 or 4 bytes,| ends of documents, | hash64 of blocks  |
 *            | zeros         | zeros up to 8       | 8 bytes each       | of ids, 8 each    |
 *            +---------------+---------------------+--------------------+-------------------+
 *   guarded by header_checksum   the sums, as read      index_checksum, when the shard is opened
 *
 * Opening reads headers and indices, not ids: a cache of terabytes opens at once, and each block of ids is
 * verified on its first read.
 *
 *  T1. A shard is in `shards` only after its header, size, index and offset in the sequence were checked: all
 *      later accesses are bounded by verified counts.
 *  T2. verified[b] is set only after block b matched its checksum and all its ids were below the
 *      vocabulary. Threads may verify the same block twice; they store the same value. */
#include "data/token_cache.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

_Static_assert(sizeof(TokenHeader) == 16 + 32 + 15 * 8, "no padding in the file header");

/* A mapped shard: pages are loaded when they are read, so a cache larger than memory costs only what is used.
 * `verified` has one byte per block. */
typedef struct TokenShard {
    char *path;
    FileMap map;
    TokenHeader header;
    TokenFigures figures;
    TokenLayout layout;
    const uint64_t *ends, *sums;
    _Atomic unsigned char *verified;
} TokenShard;

struct TokenCache {
    size_t count, capacity;
    TokenShard *shards;
    uint64_t vocabulary;
};

/* Five digits keep listings in order up to 12 TiB of text; more digits work too. */
char *token_shard_path(const char *dir, uint64_t shard) {
    char name[48];
    snprintf(name, sizeof name, "part-%05" PRIu64 ".tok", shard);
    return path_join(dir, name);
}

bool token_layout(const TokenHeader *h, TokenLayout *out) {
    /* No file system holds 2^56 of anything, and the bound prevents overflow in the sums below. */
    if (h->tokens >> 56 || h->documents >> 56 || (h->id_bytes != 2 && h->id_bytes != 4)) return false;
    out->ids_bytes = h->tokens * h->id_bytes;
    out->blocks = (out->ids_bytes + TOKEN_BLOCK_BYTES - 1) / TOKEN_BLOCK_BYTES;
    out->ends_at = TOKEN_HEADER_BYTES + (out->ids_bytes + 7) / 8 * 8;
    out->sums_at = out->ends_at + 8 * h->documents;
    out->file_bytes = out->sums_at + 8 * out->blocks;
    return true;
}

/* A cache can always be rebuilt from its source, so the advice is the same for every defect. */
static ErrorCode damaged(const TokenShard *p, Error *err, const char *what) {
    return error_set(err, ERR_DATA, "%s: %s; delete its directory and it will be built again", p->path, what);
}

/* Checks in the order in which a reader can know: is it a shard, is it a version that this code understands,
 * is the header intact, is it of this corpus. A newer version is distinguished from damage before the
 * checksum, whose offset it may have changed. */
static ErrorCode check_identity(const TokenShard *p, const uint8_t key[32], Error *err) {
    const TokenHeader *h = &p->header;
    if (p->map.length < sizeof *h || memcmp(h->magic, TOKEN_MAGIC, sizeof h->magic) != 0)
        return error_set(
            err, ERR_DATA,
            "%s: not a token cache file (it does not start with '%s' and a whole header); remove it, or give "
            "another data.cache_dir",
            p->path, TOKEN_MAGIC);
    if (h->version > TOKEN_VERSION)
        return error_set(err, ERR_DATA,
                         "%s: written by a newer weft (token cache version %u, this one reads %u); use that "
                         "weft, or delete the directory",
                         p->path, h->version, TOKEN_VERSION);
    if (h->version != TOKEN_VERSION) return damaged(p, err, "token cache of an unknown version");
    if (hash64(h, offsetof(TokenHeader, header_checksum)) != h->header_checksum)
        return damaged(p, err, "damaged header (its checksum does not match)");
    if (memcmp(h->key, key, 32) != 0)
        return damaged(p, err, "belongs to another corpus or tokenizer (its key differs)");
    return OK;
}

/* Zeros in caches written before they existed. */
static bool are_figures(const uint64_t *figures, size_t count, uint64_t checksum) {
    bool any = checksum != 0;
    for (size_t i = 0; i < count; i++) any |= figures[i] != 0;
    return !any || hash64(figures, count * sizeof *figures) == checksum;
}

static ErrorCode check_figures(TokenShard *p, Error *err) {
    static const TokenFigures none;
    memcpy(&p->figures, p->map.data + sizeof(TokenHeader), sizeof p->figures);
    if (memcmp(&p->figures, &none, sizeof none) == 0) return OK;
    const TokenFigures *f = &p->figures;
    if (are_figures(&f->null_rows, 1, f->rows_checksum) && are_figures(&f->duplicates, 3, f->left_checksum) &&
        are_figures(f->forms, TEXT_FORMS, f->forms_checksum) &&
        hash64(f, offsetof(TokenFigures, checksum)) == f->checksum)
        return OK;
    return damaged(p, err, "damaged figures (their checksum does not match)");
}

/* Counts are checked before anything is computed from them. The width of ids follows from the vocabulary, so
 * it is checked, not trusted. */
static ErrorCode check_sizes(const TokenShard *p, uint64_t vocabulary, Error *err) {
    const TokenHeader *h = &p->header;
    TokenLayout layout;
    if (!token_layout(h, &layout) || h->vocabulary != vocabulary ||
        h->id_bytes != (vocabulary <= 65536 ? 2 : 4))
        return damaged(p, err, "impossible counts in the header");
    if (p->map.length == layout.file_bytes) return OK;
    return error_set(err, ERR_DATA,
                     "%s: %s: %zu bytes where its header promises %" PRIu64
                     "; delete its directory and it will be built again",
                     p->path, p->map.length < layout.file_bytes ? "truncated" : "too long", p->map.length,
                     layout.file_bytes);
}

/* All later binary searches in the ends rely on this check. */
static ErrorCode check_index(const TokenShard *p, Error *err) {
    const TokenHeader *h = &p->header;
    if (hash64(p->map.data + p->layout.ends_at, (size_t)(p->layout.file_bytes - p->layout.ends_at)) !=
        h->index_checksum)
        return damaged(p, err, "damaged index (its checksum does not match)");
    uint64_t previous = 0;
    for (uint64_t i = 0; i < h->documents; i++) {
        /* A document that ends at the very start of a shard began in the previous one. */
        bool rising = p->ends[i] > previous || (i == 0 && h->first_token > 0);
        if (!rising || p->ends[i] > h->tokens) return damaged(p, err, "document ends out of order");
        previous = p->ends[i];
    }
    return OK;
}

/* Checks that the shard continues the previous one. */
static ErrorCode check_sequence(const TokenCache *c, const TokenShard *p, Error *err) {
    const TokenHeader *h = &p->header;
    uint64_t documents = token_cache_documents(c), bytes = token_cache_text_bytes(c);
    if (h->shard != c->count || h->first_token != token_cache_tokens(c) || h->first_document != documents ||
        h->first_byte != bytes)
        return damaged(p, err, "does not continue the part before it");
    return OK;
}

/* Checks go from those that need no other (identity) to those that need earlier shards (sequence). Pointers
 * into the map are set in between, once its size is known to be right. */
static ErrorCode load_shard(TokenCache *c, TokenShard *p, const uint8_t key[32], Error *err) {
    TRY(file_map(&p->map, p->path, err));
    if (p->map.length >= sizeof p->header) memcpy(&p->header, p->map.data, sizeof p->header);
    TRY(check_identity(p, key, err));
    TRY(check_sizes(p, c->vocabulary, err));
    TRY(check_figures(p, err));
    token_layout(&p->header, &p->layout);
    p->ends = (const uint64_t *)(const void *)(p->map.data + p->layout.ends_at);
    p->sums = (const uint64_t *)(const void *)(p->map.data + p->layout.sums_at);
    TRY(check_index(p, err));
    TRY(check_sequence(c, p, err));
    p->verified = mem_alloc((size_t)p->layout.blocks + 1);
    return OK;
}

/* Also for a shard whose loading failed: missing members are empty. */
static void free_shard(TokenShard *p) {
    file_unmap(&p->map);
    free(p->verified);
    free(p->path);
}

/* Only valid shards are counted, so closing frees exactly these. */
static ErrorCode add_shard(TokenCache *c, const char *dir, const uint8_t key[32], Error *err) {
    if (c->count == c->capacity) {
        c->capacity = 2 * c->capacity + 8;
        c->shards = mem_grow(c->shards, c->capacity * sizeof *c->shards);
    }
    TokenShard *p = &c->shards[c->count];
    *p = (TokenShard){.path = token_shard_path(dir, c->count)};
    ErrorCode code = load_shard(c, p, key, err);
    if (code == OK)
        c->count++;
    else
        free_shard(p);
    return code;
}

/* By name only; the file is checked when it is opened. */
static bool next_exists(const TokenCache *c, const char *dir) {
    char *path = token_shard_path(dir, c->count);
    bool exists = file_exists(path);
    free(path);
    return exists;
}

/* Opens shards up to the last one, or until a number is missing: that is an unfinished build. A shard after a
 * gap is ignored; building overwrites it. */
ErrorCode token_cache_grow(TokenCache *c, const char *dir, const uint8_t key[32], Error *err) {
    while (!token_cache_complete(c) && next_exists(c, dir)) TRY(add_shard(c, dir, key, err));
    return OK;
}

ErrorCode token_cache_open(TokenCache **cache, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                           Error *err) {
    *cache = NULL;
    TRY(file_check_own_dir(dir, err));
    TokenCache *c = mem_alloc(sizeof *c);
    c->vocabulary = vocabulary;
    ErrorCode code = token_cache_grow(c, dir, key, err);
    if (code != OK) {
        token_cache_close(c);
        return code;
    }
    *cache = c;
    return OK;
}

/* Once a day suffices to find unused caches, and costs a network file system nothing. */
void token_cache_touch(const char *dir) {
    struct stat about;
    char *path = path_join(dir, TOKEN_ABOUT_FILE);
    if (lstat(path, &about) == 0 && S_ISREG(about.st_mode) && clock_wall() > (double)about.st_mtime + 86400)
        utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
    free(path);
}

void token_cache_close(TokenCache *c) {
    if (!c) return;
    for (size_t i = 0; i < c->count; i++) free_shard(&c->shards[i]);
    free(c->shards);
    free(c);
}

/* Continues the running sums from one cache to the next, in memory only: each file has those of its own
 * cache. Ids and ends are then those of one cache of all files, since documents end with their file. */
static void take_shards(TokenCache *to, TokenCache *from) {
    uint64_t tokens = token_cache_tokens(to), documents = token_cache_documents(to),
             bytes = token_cache_text_bytes(to);
    for (size_t i = 0; i < from->count; i++) {
        TokenShard *p = &to->shards[to->count + i];
        *p = from->shards[i];
        p->header.first_token += tokens;
        p->header.first_document += documents;
        p->header.first_byte += bytes;
    }
    to->count += from->count;
    free(from->shards);
    free(from);
}

TokenCache *token_cache_join(TokenCache *const *caches, size_t count) {
    if (count == 1) return caches[0];
    TokenCache *c = mem_alloc(sizeof *c);
    c->vocabulary = caches[0]->vocabulary;
    for (size_t i = 0; i < count; i++) c->capacity += caches[i]->count;
    c->shards = mem_alloc_array(c->capacity, sizeof *c->shards);
    for (size_t i = 0; i < count; i++) take_shards(c, caches[i]);
    return c;
}

/* NULL if nothing has been built yet. */
const TokenHeader *token_cache_last_shard(const TokenCache *c) {
    return c->count ? &c->shards[c->count - 1].header : NULL;
}

bool token_cache_complete(const TokenCache *c) { return c->count > 0 && token_cache_last_shard(c)->last; }

/* Headers hold running sums, so totals are in the last one. */
uint64_t token_cache_tokens(const TokenCache *c) {
    const TokenHeader *h = token_cache_last_shard(c);
    return h ? h->first_token + h->tokens : 0;
}

uint64_t token_cache_documents(const TokenCache *c) {
    const TokenHeader *h = token_cache_last_shard(c);
    return h ? h->first_document + h->documents : 0;
}

uint64_t token_cache_text_bytes(const TokenCache *c) {
    const TokenHeader *h = token_cache_last_shard(c);
    return h ? h->first_byte + h->text_bytes : 0;
}

void token_figures_add(TokenFigures *to, const TokenFigures *more) {
    to->invalid_bytes += more->invalid_bytes;
    to->lines += more->lines;
    to->bad_lines += more->bad_lines;
    to->null_rows += more->null_rows;
    to->duplicates += more->duplicates;
    to->short_documents += more->short_documents;
    to->long_documents += more->long_documents;
    for (size_t i = 0; i < TEXT_FORMS; i++) to->forms[i] += more->forms[i];
}

TokenFigures token_cache_figures(const TokenCache *c) {
    TokenFigures sum = {0};
    for (size_t i = 0; i < c->count; i++) token_figures_add(&sum, &c->shards[i].figures);
    return sum;
}

/* Two bytes per id with up to 65,536 entries: half the pages for small vocabularies. */
static uint32_t id_at(const TokenShard *p, uint64_t i) {
    const unsigned char *ids = p->map.data + TOKEN_HEADER_BYTES;
    if (p->header.id_bytes == 2) return ((const uint16_t *)(const void *)ids)[i];
    return ((const uint32_t *)(const void *)ids)[i];
}

/* Correct checksums do not prove correct ids: whoever wrote the file wrote the checksums too. An id outside
 * the vocabulary would index outside the embedding. */
static ErrorCode verify_block(const TokenShard *p, uint64_t block, Error *err) {
    uint64_t begin = block * TOKEN_BLOCK_BYTES, left = p->layout.ids_bytes - begin;
    uint64_t bytes = left < TOKEN_BLOCK_BYTES ? left : TOKEN_BLOCK_BYTES;
    if (hash64(p->map.data + TOKEN_HEADER_BYTES + begin, (size_t)bytes) != p->sums[block])
        return error_set(err, ERR_DATA,
                         "%s: damaged: the checksum of bytes %" PRIu64 " to %" PRIu64
                         " does not match; delete its directory and it will be built again",
                         p->path, TOKEN_HEADER_BYTES + begin, TOKEN_HEADER_BYTES + begin + bytes - 1);
    uint64_t first = begin / p->header.id_bytes, stop = (begin + bytes) / p->header.id_bytes;
    for (uint64_t i = first; i < stop; i++)
        if (id_at(p, i) >= p->header.vocabulary)
            return error_set(err, ERR_DATA,
                             "%s: token %" PRIu64 " has id %u, outside the vocabulary of %" PRIu64
                             "; delete its directory and it will be built again",
                             p->path, i, id_at(p, i), p->header.vocabulary);
    atomic_store_explicit(&p->verified[block], 1, memory_order_relaxed);
    return OK;
}

/* Relaxed order suffices: the flag concerns constant memory, and a thread that misses it verifies again. */
static ErrorCode verify_range(const TokenShard *p, uint64_t first, uint64_t count, Error *err) {
    if (count == 0) return OK;
    uint64_t per_block = TOKEN_BLOCK_BYTES / p->header.id_bytes;
    for (uint64_t b = first / per_block; b <= (first + count - 1) / per_block; b++)
        if (!atomic_load_explicit(&p->verified[b], memory_order_relaxed)) TRY(verify_block(p, b, err));
    return OK;
}

/* Skips blocks that were already verified. */
ErrorCode token_cache_verify(const TokenCache *c, Error *err) {
    for (size_t i = 0; i < c->count; i++)
        TRY(verify_range(&c->shards[i], 0, c->shards[i].header.tokens, err));
    return OK;
}

/* Index of the first end >= token (counted from the shard's first token), or the number of documents. */
static uint64_t first_end(const TokenShard *p, uint64_t token) {
    uint64_t low = 0, high = p->header.documents;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (p->ends[middle] < token)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The shard that holds the token; one of the last shards if there is none. */
static size_t shard_of(const TokenCache *c, uint64_t token) {
    size_t low = 0, high = c->count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (c->shards[middle].header.first_token <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* A document that ends where a shard begins is listed in the nearest earlier shard with tokens: an empty file
 * may be a cache of its own, without any. */
static size_t shard_before(const TokenCache *c, size_t at) {
    while (at > 0 && c->shards[--at].header.tokens == 0) {}
    return at;
}

/* The first document end at or after the token; the end of the cache if there is none. */
uint64_t token_cache_document_end(const TokenCache *c, uint64_t token) {
    for (size_t i = shard_before(c, shard_of(c, token)); i < c->count; i++) {
        const TokenShard *p = &c->shards[i];
        uint64_t base = p->header.first_token;
        uint64_t index = first_end(p, token > base ? token - base : 0);
        if (index < p->header.documents) return base + p->ends[index];
    }
    return token_cache_tokens(c);
}

/* Widens ids to the 32 bits of a batch. */
static void copy_ids(const TokenShard *p, uint64_t first, uint64_t count, int32_t *out) {
    const unsigned char *ids = p->map.data + TOKEN_HEADER_BYTES;
    if (p->header.id_bytes == 2) {
        const uint16_t *in = (const uint16_t *)(const void *)ids + first;
        for (uint64_t i = 0; i < count; i++) out[i] = in[i];
    } else {
        const uint32_t *in = (const uint32_t *)(const void *)ids + first;
        for (uint64_t i = 0; i < count; i++) out[i] = (int32_t)in[i];
    }
}

/* Marks the tokens of [begin, begin + count) at which a document of this shard has just ended. */
static void mark_starts(const TokenShard *p, uint64_t begin, uint64_t count, int32_t *starts) {
    uint64_t base = p->header.first_token;
    for (uint64_t i = first_end(p, begin > base ? begin - base : 0); i < p->header.documents; i++) {
        uint64_t at = base + p->ends[i];
        if (at >= begin + count) return;
        starts[at - begin] = 1;
    }
}

/* Also asks the previous shard for starts: a document that ends exactly at its end is in its list. */
ErrorCode token_cache_read(const TokenCache *c, uint64_t begin, uint64_t count, int32_t *ids, int32_t *starts,
                           Error *err) {
    uint64_t total = token_cache_tokens(c);
    if (begin > total || count > total - begin)
        return error_set(err, ERR_INTERNAL, "tokens %" PRIu64 " to %" PRIu64 " asked of a cache of %" PRIu64,
                         begin, begin + count, total);
    if (count == 0) return OK;
    memset(starts, 0, (size_t)count * sizeof *starts);
    if (begin == 0) starts[0] = 1;
    size_t at = shard_of(c, begin);
    if (at > 0) mark_starts(&c->shards[shard_before(c, at)], begin, count, starts);
    for (uint64_t done = 0; done < count; at++) {
        const TokenShard *p = &c->shards[at];
        uint64_t first = begin + done - p->header.first_token, left = p->header.tokens - first;
        uint64_t n = count - done < left ? count - done : left;
        TRY(verify_range(p, first, n, err));
        copy_ids(p, first, n, ids + done);
        mark_starts(p, begin, count, starts);
        done += n;
    }
    return OK;
}
