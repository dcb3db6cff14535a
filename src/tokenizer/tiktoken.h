/* tiktoken rank files: one line per token, "base64 rank". Pattern and special tokens are those of the
 * published file with this content, or of the kind named by keys->pattern. */
#ifndef WEFT_TOKENIZER_TIKTOKEN_H
#define WEFT_TOKENIZER_TIKTOKEN_H

#include <stddef.h>

#include "base/error.h"
#include "tokenizer/tokenizer_internal.h"

ErrorCode tiktoken_read(Tokenizer *t, const char *where, const char *data, size_t length,
                        const TokenizerKeys *keys, Error *err);

#endif
