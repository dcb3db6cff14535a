/* The token cache: the ids of one source's documents, tokenized once, mapped into memory.
 *
 * A cache is a directory CACHE_DIR/<key> of shards, shard-00000.tok and so on. The key is a SHA-256 over all
 * that decides the ids: content of the files in their order, how they are read, tokenizer, BOS and EOS. Parts
 * follow each other without gaps; the one marked `last` ends the source, so a directory without it is a build
 * that was interrupted, and goes on behind its last shard.
 *
 * A shard, all little-endian:
 *     header      4,096 bytes, struct TokenHeader, struct TokenFigures and zeros
 *     ids         u16 if the vocabulary has at most 65,536 entries, else u32; zeros up to a multiple of
 *                 8 bytes
 *     ends        u64 [documents], where each document that ends in this shard ends, counted from the
 *                 shard's first token;
 *                 strictly rising
 *     checksums   u64 [blocks], XXH3 of each 64 KiB of ids (the last block may be shorter)
 * Of a source of conversations the vocabulary is twice the tokenizer's: an id that is learned stands as
 * id + size of the tokenizer's vocabulary.
 * The header holds checksums of itself and of ends + checksums, which are verified on opening; a block of
 * ids is verified, and its ids compared with the vocabulary, when it is first read. */
#ifndef WEFT_DATA_TOKEN_CACHE_H
#define WEFT_DATA_TOKEN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define TOKEN_MAGIC "weft.tok"
#define TOKEN_VERSION 1u
#define TOKEN_HEADER_BYTES 4096u
#define TOKEN_BLOCK_BYTES 65536u

typedef struct TokenHeader {
    char magic[8];
    uint32_t version;
    uint32_t id_bytes; /* 2 or 4 */
    uint8_t key[32];
    uint64_t vocabulary;  /* every id is below */
    uint64_t shard;       /* number of this shard */
    uint64_t last;        /* 1: the source ends here */
    uint64_t first_token; /* tokens, documents and bytes of text in the shards before */
    uint64_t first_document;
    uint64_t first_byte;
    uint64_t tokens;    /* in this shard */
    uint64_t documents; /* that end in this shard */
    uint64_t text_bytes;
    /* where the next shard goes on: file of the source, byte of its content, line, inside a document */
    uint64_t next_file;
    uint64_t next_offset;
    uint64_t next_line;
    uint64_t next_in_document;
    uint64_t index_checksum;  /* XXH3 of ends and checksums */
    uint64_t header_checksum; /* XXH3 of all above */
} TokenHeader;

/* Behind the header, for people; zeros in caches that are older than it. */
typedef struct TokenFigures {
    uint64_t invalid_bytes;    /* of the text: not UTF-8 */
    uint64_t lines, bad_lines; /* of JSON: all, and those that were skipped */
    uint64_t checksum;         /* XXH3 of all above */
} TokenFigures;

typedef struct TokenCache TokenCache;

/* Path of a shard; caller frees. */
char *token_shard_path(const char *dir, uint64_t shard);

/* Opens what is there: no directory or no shard is an empty, incomplete cache. Damaged, truncated, foreign
 * and newer files are ERR_DATA, each named with what to do. */
ErrorCode token_cache_open(TokenCache **cache, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                           Error *err);
void token_cache_close(TokenCache *cache); /* NULL is fine */
/* Complete caches one behind the other as one; they belong to it. */
TokenCache *token_cache_join(TokenCache *const *caches, size_t count);

#define TOKEN_ABOUT_FILE "about.json" /* for people: what it was made of; its time is that of the last use */
/* The cache is in use; where that cannot be written down it does not matter. */
void token_cache_touch(const char *dir);

bool token_cache_complete(const TokenCache *cache);
const TokenHeader *token_cache_last_shard(const TokenCache *cache); /* NULL when empty */
uint64_t token_cache_tokens(const TokenCache *cache);
uint64_t token_cache_documents(const TokenCache *cache);
uint64_t token_cache_text_bytes(const TokenCache *cache);
TokenFigures token_cache_figures(const TokenCache *cache); /* sums over its shards */

/* Tokens [begin, begin + count) into ids, and into starts[i] whether a document starts at token begin + i.
 * Any thread. */
ErrorCode token_cache_read(const TokenCache *cache, uint64_t begin, uint64_t count, int32_t *ids,
                           int32_t *starts, Error *err);
/* The first document end >= token; tokens when there is none. */
uint64_t token_cache_document_end(const TokenCache *cache, uint64_t token);
/* Every block, now. */
ErrorCode token_cache_verify(const TokenCache *cache, Error *err);

/* Layout of a shard, from the counts in its header: offsets from the start of the file. */
typedef struct TokenLayout {
    uint64_t ids_bytes, blocks, ends_at, sums_at, file_bytes;
} TokenLayout;
/* False when the counts cannot be those of any file. */
bool token_layout(const TokenHeader *header, TokenLayout *layout);

#endif
