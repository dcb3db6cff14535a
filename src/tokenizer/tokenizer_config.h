/* tokenizer_config.json next to a tokenizer: its BOS and EOS, and settings of transformers. */
#ifndef WEFT_TOKENIZER_TOKENIZER_CONFIG_H
#define WEFT_TOKENIZER_TOKENIZER_CONFIG_H

#include <cjson/cJSON.h>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

/* The path of a file in the tokenizer's directory (as for tokenizer_open); caller frees. NULL if the
 * tokenizer has no directory. */
char *tokenizer_sibling(const char *tokenizer, const char *name);
/* The path of this tokenizer's tokenizer_config.json; NULL where there is none. A tokenizer file that is not
 * called tokenizer.something has none: the one next to it may belong to another. */
char *tokenizer_config_path(const char *tokenizer);
/* Reads the tokenizer_config.json next to the tokenizer; NULL where there is none. Free with cJSON_Delete. */
ErrorCode tokenizer_config_read(const char *tokenizer, cJSON **config, Error *err);
/* The text of "eos_token" and similar members, a string or an object with its content; NULL where there is
 * none. */
const char *tokenizer_config_token(const cJSON *config, const char *name);

/* Sets the tokens for beginning, ending and padding texts: from the keys, else from `config` (NULL: none),
 * else by their usual names. `where` is the tokenizer, for errors. */
ErrorCode tokenizer_set_bounds(Tokenizer *t, const char *where, const cJSON *config,
                               const TokenizerKeys *keys, Error *err);

#endif
