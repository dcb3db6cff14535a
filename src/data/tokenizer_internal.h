/* What a Tokenizer is made of. Readers (hf_tokenizer.c, tiktoken.c) fill the first part; tokenizer.c derives
 * the second. */
#ifndef WEFT_DATA_TOKENIZER_INTERNAL_H
#define WEFT_DATA_TOKENIZER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "data/added.h"
#include "data/bpe.h"
#include "data/pretokenize.h"
#include "data/tokenizer.h"
#include "data/vocabulary.h"

/* States that no thread uses now. Behind a pointer, because the tokenizer itself is constant while they come
 * and go. */
typedef struct StatePool {
    pthread_mutex_t lock;
    struct EncodeState *idle;
} StatePool;

struct Tokenizer {
    Vocabulary vocabulary;
    Bpe bpe;
    Pattern pattern;
    bool nfc;         /* text is brought to Unicode form C first */
    bool whole_first; /* a piece that is a token is that token, whatever the merges say */
    int32_t bos, eos; /* -1: none */
    char *source;     /* the tokenizer.json it came from; NULL when it came from elsewhere */
    size_t source_length;

    Splitter *splitter;
    AddedSet added, added_normalized;
    bool no_cuts; /* tokenizer_cut knows no safe place */
    char fingerprint[65];
    StatePool *pool;
};

#endif
