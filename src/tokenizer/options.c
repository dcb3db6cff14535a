/* Options of the section `tokenizer`. */
#include "base/option_rows.h"
#include "tokenizer/tokenizer.h"

#define TARGET TokenizerKeys
const Option tokenizer_options[] = {
    /* What the tokenizer's files leave open. All of it is in the tokenizer's fingerprint, except for end
     * tokens that are only recorded and end no document. */
    TEXT("tokenizer.pattern", pattern, "", CONTENT,
         "What a tiktoken rank file that weft does not know is like: gpt2, p50k, cl100k, o200k, harmony, "
         "llama3, llama4, qwen, qwen2, qwen35 or tekken; empty: such files are refused."),
    TEXTS("tokenizer.special", special, "", CONTENT,
          "Special tokens of a tiktoken rank file, with the ids behind its ranks; empty: those of its kind."),
    TEXT("tokenizer.bos", bos, "", CONTENT,
         "The token that begins a text, by its text, or none; empty: from tokenizer_config.json and names in "
         "use."),
    TEXTS("tokenizer.eos", eos, "", CONTENT,
          "The token that ends a text, or several, of which the first ends documents and all are the model's "
          "eos_token_id; none; empty: from tokenizer_config.json, names in use and model.init."),
    TEXT("tokenizer.pad", pad, "", NOTHING,
         "The token that fills up rows elsewhere, for pad_token_id; empty: that of model.init."),
    TABLE_END};
