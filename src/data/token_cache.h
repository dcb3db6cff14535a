/* The token cache: the ids of one source's documents, tokenized once and memory-mapped.
 *
 * A cache is a directory CACHE_DIR/<key> of shards, part-00000.tok and so on. The key is a SHA-256 over
 * everything that decides the ids: content of the files in their order, how they are read, tokenizer, BOS and
 * EOS. Shards follow each other without gaps. The one marked `last` ends the source: a directory without it
 * is an interrupted build, which continues after its last shard.
 *
 * A shard, all little-endian:
 *     header      4,096 bytes, struct TokenHeader, struct TokenFigures and zeros
 *     ids         u16 if the vocabulary has at most 65,536 entries, else u32; zeros up to a multiple of
 *                 8 bytes
 *     ends        u64 [documents], end of each document that ends in this shard, counted from the shard's
 *                 first token; strictly rising
 *     checksums   u64 [blocks], XXH3 of each 64 KiB of ids (the last block may be shorter)
 * For a source of conversations the vocabulary is twice the tokenizer's: an id that is trained on is stored
 * as id + size of the tokenizer's vocabulary.
 *
 * The header holds checksums of itself and of ends + checksums, which are verified on opening. A block of ids
 * is verified, and its ids are compared with the vocabulary, when it is first read. */
#ifndef WEFT_DATA_TOKEN_CACHE_H
#define WEFT_DATA_TOKEN_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/text_form.h"

#define TOKEN_MAGIC "weft.tok"
#define TOKEN_VERSION 1u
#define TOKEN_HEADER_BYTES 4096u
#define TOKEN_BLOCK_BYTES 65536u

typedef struct TokenHeader {
    char magic[8];
    uint32_t version;
    uint32_t id_bytes; /* 2 or 4 */
    uint8_t key[32];
    uint64_t vocabulary;  /* exclusive upper bound of ids */
    uint64_t shard;       /* number of this shard */
    uint64_t last;        /* 1: the source ends here */
    uint64_t first_token; /* tokens, documents and bytes of text in earlier shards */
    uint64_t first_document;
    uint64_t first_byte;
    uint64_t tokens;    /* in this shard */
    uint64_t documents; /* that end in this shard */
    uint64_t text_bytes;
    /* where the next shard starts: file of the source, byte of its content, line, inside a document */
    uint64_t next_file;
    uint64_t next_offset;
    uint64_t next_line;
    uint64_t next_in_document;
    uint64_t index_checksum;  /* XXH3 of ends and checksums */
    uint64_t header_checksum; /* XXH3 of all above */
} TokenHeader;

/* After the header, informative only; zeros in caches written before it existed. */
typedef struct TokenFigures {
    uint64_t invalid_bytes;    /* of the text: not UTF-8 */
    uint64_t lines, bad_lines; /* of JSON: all, and the skipped ones */
    uint64_t checksum;         /* XXH3 of all above */
    uint64_t null_rows;        /* of Parquet; zero in caches written before it existed, as its checksum */
    uint64_t rows_checksum;    /* XXH3 of null_rows */
    /* Documents that were left out; zeros in caches written before they existed. */
    uint64_t duplicates, short_documents, long_documents;
    uint64_t left_checksum; /* XXH3 of these three */
    /* Files of text that begin as a form (formats/text_form.h), whatever the source states; likewise. */
    uint64_t forms[TEXT_FORMS];
    uint64_t forms_checksum; /* XXH3 of forms */
} TokenFigures;

typedef struct TokenCache TokenCache;

/* Path of a shard; caller frees. */
char *token_shard_path(const char *dir, uint64_t shard);

/* Opens a cache. A missing directory or one without shards is an empty, incomplete cache. Damaged, truncated,
 * foreign and newer files are ERR_DATA, which names the file and what to do. */
ErrorCode token_cache_open(TokenCache **cache, const char *dir, const uint8_t key[32], uint64_t vocabulary,
                           Error *err);
/* Opens the shards of an incomplete cache that have been added since. What was read before stays valid. */
ErrorCode token_cache_grow(TokenCache *cache, const char *dir, const uint8_t key[32], Error *err);
void token_cache_close(TokenCache *cache); /* NULL is fine */
/* Concatenates complete caches; the result owns them. */
TokenCache *token_cache_join(TokenCache *const *caches, size_t count);

#define TOKEN_ABOUT_FILE "about.json" /* for people: the cache's inputs; its mtime is the time of last use */
/* Records the time of last use. Failures are ignored. */
void token_cache_touch(const char *dir);

bool token_cache_complete(const TokenCache *cache);
const TokenHeader *token_cache_last_shard(const TokenCache *cache); /* NULL when empty */
uint64_t token_cache_tokens(const TokenCache *cache);
uint64_t token_cache_documents(const TokenCache *cache);
uint64_t token_cache_text_bytes(const TokenCache *cache);
TokenFigures token_cache_figures(const TokenCache *cache);          /* sums over its shards */
void token_figures_add(TokenFigures *to, const TokenFigures *more); /* except for checksums */

/* Reads tokens [begin, begin + count) into ids; starts[i]: a document starts at token begin + i.
 * Thread-safe. */
ErrorCode token_cache_read(const TokenCache *cache, uint64_t begin, uint64_t count, int32_t *ids,
                           int32_t *starts, Error *err);
/* The first document end >= token, or the number of tokens when there is none. */
uint64_t token_cache_document_end(const TokenCache *cache, uint64_t token);
/* Verifies every block now. */
ErrorCode token_cache_verify(const TokenCache *cache, Error *err);

/* Layout of a shard, from the counts in its header: offsets from the start of the file. */
typedef struct TokenLayout {
    uint64_t ids_bytes, blocks, ends_at, sums_at, file_bytes;
} TokenLayout;
/* False when the counts cannot be those of any file. */
bool token_layout(const TokenHeader *header, TokenLayout *layout);

#endif
