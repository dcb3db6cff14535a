/* Counts the pre-tokens of text, with several threads. */
#ifndef WEFT_TOKENIZER_WORD_COUNT_H
#define WEFT_TOKENIZER_WORD_COUNT_H

#include "base/error.h"
#include "base/log.h"
#include "tokenizer/pretokenize.h"
#include "tokenizer/tokenizer_train.h"
#include "tokenizer/word_table.h"

/* Adds the pre-tokens of all documents to `words`. Counts do not depend on `threads`; the order of the words
 * does. */
ErrorCode count_words(WordTable *words, Pattern pattern, int threads, DocumentSource source, void *context,
                      Progress *progress, Error *err);

#endif
