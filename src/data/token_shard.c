/* Writing one shard of a token cache: header, ids, ends of documents, checksums of blocks
 * (data/token_cache.h has the layout).
 *
 *  P1. A shard is written under a temporary name and renamed when it is complete and on disk, so that its
 *      name guarantees complete content whatever happens to process or machine.
 *  P2. Ids are written block by block as they arrive, and only ends and checksums stay in memory: a shard's
 *      ids may exceed the free memory. The header depends on both, so space is left for it at the front and
 *      it is written last.
 *  P3. Checksums cover blocks as stored in the file, so that a reader verifies mapped bytes without a
 *      copy. */
#include "data/token_shard.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"

typedef struct Numbers {
    uint64_t *items;
    uint64_t count, capacity;
} Numbers;

struct ShardWriter {
    char *dir, *path, *temporary;
    int fd;
    TokenHeader header;
    TokenFigures figures;
    Numbers ends, sums;
    uint64_t last_end; /* of a document, from the shard's first token */
    bool any_end;      /* last_end is set, even when it is 0 */
    size_t block_used;
    unsigned char block[TOKEN_BLOCK_BYTES];
};

/* Doubling keeps the work linear. */
static void push(Numbers *n, uint64_t value) {
    if (n->count == n->capacity) {
        n->capacity = 2 * n->capacity + 1024;
        n->items = mem_grow(n->items, (size_t)n->capacity * sizeof *n->items);
    }
    n->items[n->count++] = value;
}

/* A write may be partial, for example on a full disk, and reports why only when it is called again. */
static ErrorCode write_all(const ShardWriter *w, const void *data, size_t length, Error *err) {
    const char *at = data;
    while (length > 0) {
        ssize_t n = write(w->fd, at, length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_errno(err, ERR_IO, "%s: writing failed", w->temporary);
        at += n;
        length -= (size_t)n;
    }
    return OK;
}

/* Leaves the temporary file alone: it has its final name by now, or shard_abandon has removed it. */
static void release(ShardWriter *w) {
    if (w->fd >= 0) close(w->fd);
    free(w->dir);
    free(w->path);
    free(w->temporary);
    free(w->ends.items);
    free(w->sums.items);
    free(w);
}

/* A shard that was not committed leaves nothing. Its tokens are made again, from the position in the last
 * committed shard. */
void shard_abandon(ShardWriter *w) {
    if (!w) return;
    if (w->fd >= 0) unlink(w->temporary);
    release(w);
}

/* Continues the running sums of the previous shard; all counts of this shard start at 0. */
static void start_header(TokenHeader *h, const uint8_t key[32], uint64_t vocabulary,
                         const TokenHeader *previous) {
    memcpy(h->magic, TOKEN_MAGIC, sizeof h->magic);
    h->version = TOKEN_VERSION;
    h->id_bytes = vocabulary <= 65536 ? 2 : 4;
    memcpy(h->key, key, sizeof h->key);
    h->vocabulary = vocabulary;
    if (!previous) return;
    h->shard = previous->shard + 1;
    h->first_token = previous->first_token + previous->tokens;
    h->first_document = previous->first_document + previous->documents;
    h->first_byte = previous->first_byte + previous->text_bytes;
}

/* *writer is set only on success; a failure leaves no file. */
ErrorCode shard_open(ShardWriter **writer, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                     const TokenHeader *previous, Error *err) {
    ShardWriter *w = mem_alloc(sizeof *w);
    start_header(&w->header, key, vocabulary, previous);
    w->any_end = !previous || !previous->next_in_document;
    w->dir = mem_strdup(dir);
    w->path = token_shard_path(dir, w->header.shard);
    Text temporary = {0};
    text_printf(&temporary, "%s.tmp", w->path);
    w->temporary = temporary.data;
    unlink(w->temporary); /* left by a killed build; the cache's lock is held */
    RETRY(w->fd, open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    ErrorCode code = OK;
    if (w->fd < 0)
        code = error_errno(err, ERR_CANTCREATE, "%s: cannot create", w->temporary);
    else if (lseek(w->fd, TOKEN_HEADER_BYTES, SEEK_SET) < 0)
        code = error_errno(err, ERR_IO, "%s: cannot seek", w->temporary);
    if (code != OK)
        shard_abandon(w);
    else
        *writer = w;
    return code;
}

/* For the caller to set where reading continues, before the commit. */
TokenHeader *shard_header(ShardWriter *w) { return &w->header; }
TokenFigures *shard_figures(ShardWriter *w) { return &w->figures; }

/* The last block of a shard may be short. */
static ErrorCode flush_block(ShardWriter *w, Error *err) {
    if (w->block_used == 0) return OK;
    push(&w->sums, hash64(w->block, w->block_used));
    TRY(write_all(w, w->block, w->block_used, err));
    w->block_used = 0;
    return OK;
}

/* Little-endian, as the machine: weft does not run on others. */
static void put_id(ShardWriter *w, int32_t id) {
    if (w->header.id_bytes == 2) {
        uint16_t narrow = (uint16_t)id;
        memcpy(w->block + w->block_used, &narrow, sizeof narrow);
    } else {
        memcpy(w->block + w->block_used, &id, sizeof id);
    }
    w->block_used += w->header.id_bytes;
}

/* Ends must rise (token_cache.h). Two ends at one token mean that the second document is empty: it has no
 * tokens and is omitted. So is an end at the very start of the shard, when the previous shard has it. */
ErrorCode shard_add(ShardWriter *w, const int32_t *ids, uint64_t count, const uint64_t *ends,
                    uint64_t end_count, uint64_t text_bytes, Error *err) {
    uint64_t first = w->header.tokens;
    for (uint64_t i = 0; i < count; i++) {
        put_id(w, ids[i]);
        if (w->block_used == TOKEN_BLOCK_BYTES) TRY(flush_block(w, err));
    }
    for (uint64_t i = 0; i < end_count; i++) {
        uint64_t end = first + ends[i];
        if (w->any_end && end <= w->last_end) continue;
        push(&w->ends, end);
        w->last_end = end;
        w->any_end = true;
    }
    w->header.tokens += count;
    w->header.documents = w->ends.count;
    w->header.text_bytes += text_bytes;
    return OK;
}

/* Everything after the ids, then the header at the front. */
static ErrorCode write_index(ShardWriter *w, Error *err) {
    static const char zeros[8];
    TRY(flush_block(w, err));
    size_t tail = (size_t)(w->header.tokens * w->header.id_bytes % 8);
    if (tail) TRY(write_all(w, zeros, 8 - tail, err));
    size_t ends_bytes = (size_t)w->ends.count * 8, sums_bytes = (size_t)w->sums.count * 8;
    char *index = mem_alloc(ends_bytes + sums_bytes + 1);
    if (ends_bytes) memcpy(index, w->ends.items, ends_bytes);
    if (sums_bytes) memcpy(index + ends_bytes, w->sums.items, sums_bytes);
    w->header.index_checksum = hash64(index, ends_bytes + sums_bytes);
    ErrorCode code = write_all(w, index, ends_bytes + sums_bytes, err);
    free(index);
    TRY(code);
    w->header.header_checksum = hash64(&w->header, offsetof(TokenHeader, header_checksum));
    char page[TOKEN_HEADER_BYTES] = {0};
    memcpy(page, &w->header, sizeof w->header);
    w->figures.checksum = hash64(&w->figures, offsetof(TokenFigures, checksum));
    w->figures.rows_checksum = hash64(&w->figures.null_rows, sizeof w->figures.null_rows);
    w->figures.left_checksum = hash64(&w->figures.duplicates, 3 * sizeof w->figures.duplicates);
    w->figures.forms_checksum = hash64(w->figures.forms, sizeof w->figures.forms);
    memcpy(page + sizeof w->header, &w->figures, sizeof w->figures);
    if (lseek(w->fd, 0, SEEK_SET) < 0) return error_errno(err, ERR_IO, "%s: cannot seek", w->temporary);
    return write_all(w, page, sizeof page, err);
}

/* The content first, then the name, then the directory: in any other order a power failure could leave a name
 * without its content. */
static ErrorCode publish(ShardWriter *w, Error *err) {
    int result;
    TRY(file_sync(w->fd, w->temporary, err));
    RETRY(result, rename(w->temporary, w->path));
    if (result != 0) return error_errno(err, ERR_IO, "%s: cannot rename", w->temporary);
    return file_sync_dir(w->dir, err);
}

/* Frees the writer in any case. */
ErrorCode shard_commit(ShardWriter *w, Error *err) {
    ErrorCode code = write_index(w, err);
    if (code == OK) code = publish(w, err);
    if (code == OK)
        release(w);
    else
        shard_abandon(w);
    return code;
}
