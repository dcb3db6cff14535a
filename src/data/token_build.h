/* Fills token caches (token_cache.h), those of one source in one go: reads files, tokenizes on several
 * threads, writes parts.
 *
 * One thread reads jobs of about 1 MiB of text in the order of the files, workers tokenize them, the first
 * thread writes them in that same order. Parts end at the end of a job and are committed one by one
 * (temporary file, fsync, rename), each with the place where the next goes on, so a build that was killed
 * loses one part at most. Jobs depend on content alone: the bytes of a cache do not depend on threads or on
 * interruptions. */
#ifndef WEFT_DATA_TOKEN_BUILD_H
#define WEFT_DATA_TOKEN_BUILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "data/chat.h"
#include "data/corpus.h"
#include "data/fingerprint.h"
#include "tokenizer/tokenizer.h"

/* A cache: of consecutive files of a source. */
typedef struct TokenUnit {
    const char *dir;
    uint8_t key[32];
    size_t first, count; /* of the build's files */
} TokenUnit;

typedef struct TokenBuild {
    const char *label;       /* of the progress bar */
    const CorpusFile *files; /* of the source */
    Fingerprint *prints;     /* of these files; stamps are kept up (fingerprint_check) */
    const TokenUnit *units;  /* the caches to build, in the order of the files */
    size_t unit_count;
    const Tokenizer *tokenizer;
    const Chat *chat;    /* of files of conversations, whose ids are of twice the vocabulary; else NULL */
    int32_t bos, eos;    /* ids put around each document of text, -1 for none */
    int threads;         /* 0: one per core */
    uint64_t part_bytes; /* of text in a part; 0: 128 MiB */
    bool skip_bad;       /* lines of JSON that are broken are counted, and listed beside their part */
    double bad_limit;    /* data.bad_lines_limit: a count ends the build; a share is left to the caller */
} TokenBuild;

/* Goes on where an earlier build stopped; does nothing with what is complete. Builders of one cache wait for
 * each other. */
ErrorCode token_build(const TokenBuild *build, Error *err);

#endif
