/* Inside of a Tokenizer. Readers (hf_tokenizer.c, tiktoken.c) fill the first part; tokenizer.c derives the
 * second.
 *
 * There are two kinds. Byte-level tokenizers split text by patterns, and a pre-token starts as its bytes.
 * SentencePiece's kind (`characters`) splits text at spaces or not at all, and a pre-token starts as its
 * characters; a character without a token starts as its bytes.
 *
 * SentencePiece's files write U+2581 for a space, in tokens and, while encoding, in text, so that U+2581 and
 * a space become the same. weft uses the space for both: each U+2581 of a token is read as a space, and
 * U+2581 in text, which is very rare, is replaced. Most text then needs no copy, and the bytes of a token are
 * what it decodes to. */
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

#define SPACE_MARK "\xE2\x96\x81" /* U+2581: a space in files of SentencePiece's kind */

/* Idle states. Behind a pointer, because the pool changes while the tokenizer is constant. */
typedef struct StatePool {
    pthread_mutex_t lock;
    struct EncodeState *idle;
} StatePool;

/* Whether the pre-tokenizer puts a space before a section (text between added tokens) that does not start
 * with one. */
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
    AddedSet chat, chat_normalized;   /* the same including special tokens, for rendered chat templates */
    Splits splits;                    /* byte-level: how sections are split into pre-tokens */
    bool characters;                  /* SentencePiece's kind */
    bool marked;                      /* characters: U+2581 is a space in text and in the bytes of tokens */
    bool space_splits; /* characters: a pre-token begins at each space; else a section is one pre-token */
    Prefix prefix;
    bool whole_first;             /* a pre-token that is a token is not merged (ignore_merges) */
    int drops_spaces;             /* decoding: number of spaces dropped at the start of a text */
    int32_t bos, eos, pad;        /* -1: none */
    int32_t ends[TOKENIZER_ENDS]; /* [end_count], eos first */
    int end_count;
    char *source; /* contents of the tokenizer.json it came from, or NULL */
    size_t source_length;

    Splitter *splitter;
    int32_t ascii_ids[128]; /* characters: the token of each, or -1 */
    bool joins_space[256];  /* characters: some merge joins this byte and a following space */
    uint32_t longest;       /* bytes of the longest text token */
    bool no_cuts;           /* tokenizer_cut finds no safe cut */
    bool whole_documents;   /* a lone newline is no safe cut either */
    char fingerprint[65];
    StatePool *pool;
};

/* States that encoding borrows; tokenizer_encode.c defines their content. */
StatePool *state_pool_create(void);
void state_pool_free(StatePool *pool);

#endif
