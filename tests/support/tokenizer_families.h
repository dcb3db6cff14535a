/* The tokenizers of tests/tokenizer/tokenizer_families.json. */
#ifndef WEFT_TESTS_TOKENIZER_FAMILIES_H
#define WEFT_TESTS_TOKENIZER_FAMILIES_H

#include <string.h>

#include "base/json.h"
#include "tokenizer/normalize.h"
#include "tokenizer/tokenizer.h"

static cJSON *families; /* the whole file */

static inline int families_read(void) {
    Error err = {0};
    if (json_read(WEFT_SOURCE_DIR "/tests/tokenizer/tokenizer_families.json", 1 << 24, &families, &err) == OK)
        return 0;
    print_error("%s\n", err.message);
    return -1;
}

/* NULL if the build does not support it. */
static inline Tokenizer *family_open(const cJSON *family) {
    cJSON *document = cJSON_Duplicate(cJSON_GetObjectItem(family, "document"), true);
    cJSON *model = cJSON_GetObjectItem(document, "model");
    const cJSON *base = cJSON_GetObjectItem(cJSON_GetObjectItem(families, "bases"),
                                            cJSON_GetObjectItem(family, "base")->valuestring);
    cJSON_AddItemReferenceToObject(model, "vocab", cJSON_GetObjectItem(base, "vocab"));
    cJSON_AddItemReferenceToObject(model, "merges", cJSON_GetObjectItem(base, "merges"));
    char *text = cJSON_PrintUnformatted(document);
    cJSON_Delete(document);
    Tokenizer *t = NULL;
    Error err = {0};
    ErrorCode code = tokenizer_parse(&t, family->string, text, strlen(text), &err);
    cJSON_free(text);
    if (code == ERR_UNAVAILABLE && !unicode_available()) return NULL;
    if (code != OK) fail_msg("%s", err.message);
    return t;
}

#endif
