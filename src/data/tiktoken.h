/* tiktoken rank files: one line a token, "base64 rank". Taken as Llama 3 does: its pattern, and 256 special
 * tokens with the ids after the ranks. */
#ifndef WEFT_DATA_TIKTOKEN_H
#define WEFT_DATA_TIKTOKEN_H

#include <stddef.h>

#include "base/error.h"
#include "data/tokenizer_internal.h"

ErrorCode tiktoken_read(Tokenizer *t, const char *where, const char *data, size_t length, Error *err);

#endif
