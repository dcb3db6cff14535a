/* Training of byte-level BPE tokenizers.
 *
 * The textbook algorithm: count adjacent pairs within pre-tokens, merge the pair with the highest count (on a
 * tie the smaller pair of ids, left one first), repeat. The result depends on the text alone, not on the
 * number of threads or the order of documents. Memory grows with the number of distinct pre-tokens, not with
 * the text. */
#ifndef WEFT_TOKENIZER_TOKENIZER_TRAIN_H
#define WEFT_TOKENIZER_TOKENIZER_TRAIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "tokenizer/tokenizer.h"

typedef struct TokenizerTrainOptions {
    int32_t vocab_size;          /* entries in all: 256 bytes, merges, special tokens */
    const char *pattern;         /* pre-tokenizer: "gpt2", "llama3" (NULL), "qwen2" ... */
    const char *const *specials; /* texts of special tokens; their ids come last */
    size_t special_count;
    int threads;          /* 0: OpenMP's default */
    uint64_t total_bytes; /* of all documents, for the progress bar; 0 when unknown */
    bool quiet;           /* no progress */
    /* of files: */
    bool any_bytes;        /* also accept files that are not text */
    const char *cache_dir; /* copies of those from URLs are in CACHE_DIR/remote */
} TokenizerTrainOptions;

/* Returns the next document; *text = NULL at the end. Called by one thread at a time; the text must stay
 * valid until the next call. */
typedef ErrorCode (*DocumentSource)(void *context, const char **text, size_t *length, Error *err);

/* If the text has too few pairs, the vocabulary is smaller than requested; that is logged, not an error. */
ErrorCode tokenizer_train(Tokenizer **t, const TokenizerTrainOptions *options, DocumentSource source,
                          void *context, Error *err);

/* The same over files of text, JSON lines and Parquet, compressed or not, by path or URL, as data/corpus.h
 * reads them. `key` names the member with the text; NULL is "text". Sets total_bytes itself. */
ErrorCode tokenizer_train_files(Tokenizer **t, const TokenizerTrainOptions *options, const char *const *paths,
                                size_t count, const char *key, Error *err);

#endif
