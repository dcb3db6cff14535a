/* Builds the token caches (token_cache.h) of one source: reads files, tokenizes on several threads, writes
 * shards.
 *
 * One thread reads jobs of about 1 MiB of text in the order of the files, workers tokenize them, and the
 * first thread writes them in the same order. Shards end at the end of a job and are committed one by one
 * (temporary file, fsync, rename), each with the position where the next one starts, so a killed build loses
 * at most one shard. Jobs depend on content alone: the bytes of a cache do not depend on threads or
 * interruptions. */
#ifndef WEFT_DATA_TOKEN_BUILD_H
#define WEFT_DATA_TOKEN_BUILD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/log.h"
#include "data/chat.h"
#include "data/corpus.h"
#include "data/fingerprint.h"
#include "tokenizer/tokenizer.h"

/* One cache: consecutive files of a source. */
typedef struct TokenUnit {
    const char *dir;
    uint8_t key[32];
    size_t first, count; /* indices into the build's files */
    bool late;           /* its files come while the run trains (data/arrivals.h) */
} TokenUnit;

typedef struct TokenBuild {
    const char *label;       /* of the progress bar */
    Progress *progress;      /* of this build and others; NULL: its own */
    double done;             /* MB, of that progress, before this build */
    const CorpusFile *files; /* of the source */
    Fingerprint *prints;     /* of these files; stamps are updated (fingerprint_check) */
    const TokenUnit *units;  /* the caches to build, in any order of the files */
    size_t unit_count;
    const Tokenizer *tokenizer;
    const Chat *chat;        /* for conversations, whose ids use twice the vocabulary; else NULL */
    int32_t bos, eos;        /* ids put around each document of text, -1 for none */
    int threads;             /* 0: one per core */
    uint64_t part_bytes;     /* of text per shard; 0: 128 MiB */
    bool is_awaited;         /* others read the shards meanwhile: the first ones are small */
    const atomic_bool *stop; /* set by another thread: what is not committed is given up; NULL: none */
    bool skip_bad;           /* malformed JSON lines are counted, and listed next to their shard */
    bool dedup;              /* documents that were there before in their cache are left out */
    double bad_limit;        /* data.bad_lines_limit: a count ends the build; the caller checks a fraction */
} TokenBuild;

/* Continues an interrupted build; does nothing for complete caches. Concurrent builders of one cache wait for
 * each other. Returns OK, too, when it was stopped. */
ErrorCode token_build(const TokenBuild *build, Error *err);

#endif
