/* Hugging Face tokenizer.json: byte-level BPE, and BPE with byte fallback (docs/use/tokenizer-files.md). An
 * unknown feature that would change ids is refused by name. So is every contradiction that the `tokenizers`
 * package silently repairs or ignores. */
#ifndef WEFT_TOKENIZER_HF_TOKENIZER_H
#define WEFT_TOKENIZER_HF_TOKENIZER_H

#include <stddef.h>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer_internal.h"

ErrorCode hf_tokenizer_read(Tokenizer *t, const char *where, const char *data, size_t length, Error *err);

/* Writes vocabulary, merges, special tokens and pattern. For tokenizers that did not come from a
 * tokenizer.json. */
void hf_tokenizer_write(const Tokenizer *t, Text *out);

#endif
