/* Set-up of a byte tokenizer and temporary files, for tests of stages after tokenization. */
#ifndef WEFT_TESTS_BYTES_TOKENIZER_H
#define WEFT_TESTS_BYTES_TOKENIZER_H

#include "support/files.h"

#include "base/log.h"
#include "tokenizer/tokenizer.h"

enum { BOS = 256, EOS = 257, VOCABULARY = 258 };

static Tokenizer *tokenizer;

static inline int bytes_setup(void **state) {
    log_set_level(LOG_QUIET);
    if (tokenizer_open(&tokenizer, "bytes", NULL) != OK) return -1;
    return files_setup(state);
}

static inline int bytes_teardown(void **state) {
    tokenizer_free(tokenizer);
    return files_teardown(state);
}

#endif
