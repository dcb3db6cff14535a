/* Fills a token cache (token_cache.h): reads files, tokenizes on several threads, writes parts.
 *
 * One thread reads jobs of about 1 MiB of text in the order of the files, workers tokenize them, the first
 * thread writes them in that same order. Parts end at the end of a job and are committed one by one
 * (temporary file, fsync, rename), each with the place where the next goes on, so a build that was killed
 * loses one part at most. Jobs depend on content alone: the bytes of a cache do not depend on threads or on
 * interruptions. */
#ifndef WEFT_DATA_TOKEN_BUILD_H
#define WEFT_DATA_TOKEN_BUILD_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/chat.h"
#include "data/corpus.h"
#include "data/fingerprint.h"
#include "data/tokenizer.h"

typedef struct TokenBuild {
    const char *label; /* of the progress bar */
    const char *dir;   /* of this cache */
    uint8_t key[32];
    const CorpusFile *files;   /* [count] */
    const Fingerprint *prints; /* [count] */
    size_t count;
    const Tokenizer *tokenizer;
    const Chat *chat;    /* of files of conversations, whose ids are of twice the vocabulary; else NULL */
    int32_t bos, eos;    /* ids put around each document of text, -1 for none */
    int threads;         /* 0: one per core */
    uint64_t part_bytes; /* of text in a part; 0: 128 MiB */
} TokenBuild;

/* Goes on where an earlier build stopped; does nothing when the cache is complete. Builders of one cache wait
 * for each other. */
ErrorCode token_build(const TokenBuild *build, Error *err);

#endif
