/* tokenizer_config.json, where it lies beside a tokenizer: which tokens begin and end its texts, and what
 * transformers keeps for itself. */
#ifndef WEFT_TOKENIZER_TOKENIZER_CONFIG_H
#define WEFT_TOKENIZER_TOKENIZER_CONFIG_H

#include <cjson/cJSON.h>

#include "base/error.h"
#include "base/text.h"
#include "tokenizer/tokenizer.h"

/* The path of a file beside the tokenizer (as of tokenizer_open), to be freed; NULL where it has no place of
 * its own. */
char *tokenizer_beside(const char *tokenizer, const char *name);
/* That of the tokenizer_config.json that is this tokenizer's; NULL where there is none. Beside a file that
 * is not called tokenizer.something it may be another one's. */
char *tokenizer_config_path(const char *tokenizer);
/* The one beside it, or NULL where there is none. cJSON_Delete. */
ErrorCode tokenizer_config_read(const char *tokenizer, cJSON **config, Error *err);
/* The text of "eos_token" and its like, a string or an object with its content; NULL where there is none. */
const char *tokenizer_config_token(const cJSON *config, const char *name);

/* Sets the tokens that begin a text, end it, and fill up rows: by the keys, else by `config` (NULL: none),
 * else by names in use. `where` is the tokenizer, for errors. */
ErrorCode tokenizer_set_bounds(Tokenizer *t, const char *where, const cJSON *config,
                               const TokenizerKeys *keys, Error *err);

#endif
