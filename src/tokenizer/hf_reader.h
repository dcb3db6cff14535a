/* Shared by the parts of the tokenizer.json reader: hf_tokenizer.c reads vocabulary, merges and added tokens;
 * hf_pipeline.c reads the steps before and after them. */
#ifndef WEFT_TOKENIZER_HF_READER_H
#define WEFT_TOKENIZER_HF_READER_H

#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

typedef struct HfReader {
    Tokenizer *t;
    const char *where;
    Error *err;
    char *scratch; /* buffer for the bytes of any two strings of the file */
} HfReader;

const char *hf_type(const cJSON *object); /* its member "type", or "?" */
static inline bool hf_present(const cJSON *item) { return item && !cJSON_IsNull(item); }
/* A member that must be an object or an array. */
ErrorCode hf_container(HfReader *r, const cJSON *object, const char *key, bool array, const cJSON **out);
/* "FILE: KEY: WHAT is not supported": always an error. */
ErrorCode hf_refuse(HfReader *r, const char *key, const char *what);

/* Reads normalizer, pre_tokenizer and decoder. t->characters must be set. */
ErrorCode hf_read_pipeline(HfReader *r, const cJSON *root);

#endif
