/* What a Tokenizer is made of. Readers (hf_tokenizer.c, tiktoken.c) fill the first part; tokenizer.c
 * derives the second.
 *
 * There are two kinds. Byte-level ones cut text by patterns, and a piece starts as its bytes. Those of
 * SentencePiece (`characters`) cut text at spaces or not at all, and a piece starts as its characters; one
 * that is no token starts as its bytes.
 *
 * SentencePiece's files write U+2581 for a space, in tokens and, while encoding, in text, so that U+2581
 * and a space become one. weft takes the space of the two: tokens are read with a space for each U+2581,
 * and text has its U+2581 replaced, which nearly none has. Then most text is used as it is, and the bytes
 * of a token are what it decodes to. */
#ifndef WEFT_TOKENIZER_TOKENIZER_INTERNAL_H
#define WEFT_TOKENIZER_TOKENIZER_INTERNAL_H

#include <pthread.h>
#include <stdbool.h>

#include "tokenizer/added.h"
#include "tokenizer/bpe.h"
#include "tokenizer/normalize.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocabulary.h"

#define SPACE_MARK "\xE2\x96\x81" /* U+2581, which files of SentencePiece's kind write for a space */

/* States that no thread uses now. Behind a pointer, because the tokenizer itself is constant while they come
 * and go. */
typedef struct StatePool {
    pthread_mutex_t lock;
    struct EncodeState *idle;
} StatePool;

/* A space that the pre-tokenizer puts before a section (text between added tokens) that has none there. */
typedef enum Prefix {
    PREFIX_NONE,
    PREFIX_FIRST, /* only before a section that begins its text */
    PREFIX_ALWAYS
} Prefix;

struct Tokenizer {
    Vocabulary vocabulary;
    Bpe bpe;
    Normalizer normalizer;
    AddedSet added, added_normalized; /* cut out before and after normalization */
    AddedSet chat, chat_normalized;   /* the same with special ones, for what chat templates make */
    Splits splits;                    /* byte-level: how sections are cut into pieces */
    bool characters;                  /* SentencePiece's kind */
    bool marked;       /* characters: U+2581 in text is a space, and so it is in the bytes of tokens */
    bool space_splits; /* characters: a piece begins at each space, otherwise a section is one piece */
    Prefix prefix;
    bool whole_first;             /* a piece that is a token is that token, whatever the merges say */
    int drops_spaces;             /* decoding: so many spaces are left out at the beginning of a text */
    int32_t bos, eos, pad;        /* -1: none */
    int32_t ends[TOKENIZER_ENDS]; /* [end_count], eos first */
    int end_count;
    char *source; /* the tokenizer.json it came from; NULL when it came from elsewhere */
    size_t source_length;

    Splitter *splitter;
    int32_t ascii_ids[128]; /* characters: the token of each, or -1 */
    bool joins_space[256];  /* characters: some merge joins this byte and a space behind it */
    uint32_t longest;       /* bytes of the longest text token */
    bool no_cuts;           /* tokenizer_cut knows no safe place */
    bool whole_documents;   /* a lone newline is no safe place either */
    char fingerprint[65];
    StatePool *pool;
};

/* States that encoding borrows; tokenizer_encode.c knows what is in them. */
StatePool *state_pool_create(void);
void state_pool_free(StatePool *pool);

#endif
