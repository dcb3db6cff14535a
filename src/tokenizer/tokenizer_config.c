/* BOS, EOS and padding token. A tokenizer.json does not define them. In order of precedence, these do:
 *
 *     the keys tokenizer.bos, tokenizer.eos and tokenizer.pad of the configuration
 *     tokenizer_config.json next to the tokenizer: bos_token, eos_token, pad_token
 *     names in use, of which a vocabulary may have several; the names of base models come first
 *
 *  B1. A name that the vocabulary lacks is an error: otherwise another token would silently end texts.
 *  B2. A token that both begins and ends texts, as in GPT-2, counts as the end only: it occurs once between
 *      two texts.
 *  B3. A bos_token that transformers does not put before texts is ignored: add_bos_token is false, or its
 *      name is unusual (SmolLM2's "<|im_start|>" begins a turn). */
#include "tokenizer/tokenizer_config.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "tokenizer/tokenizer_internal.h"

#define CONFIG_LIMIT ((size_t)1 << 22)

static const char *const BEGINS[] = {
    "<|begin_of_text|>", "<|startoftext|>", "<s>", "<bos>", "[BOS]", "<｜begin▁of▁sentence｜>", NULL};
static const char *const ENDS[] = {"<|end_of_text|>", "<|endoftext|>",         "</s>", "<eos>",
                                   "[EOS]",           "<｜end▁of▁sentence｜>", NULL};

/* ---- the file ---- */

char *tokenizer_sibling(const char *tokenizer, const char *name) {
    if (strcmp(tokenizer, "bytes") == 0) return NULL;
    if (file_is_dir(tokenizer)) return path_join(tokenizer, name);
    const char *slash = strrchr(tokenizer, '/');
    Text dir = {0};
    text_add(&dir, tokenizer, slash ? (size_t)(slash - tokenizer) : 0);
    char *path = path_join(dir.length ? dir.data : slash ? "/" : "", name);
    text_free(&dir);
    return path;
}

char *tokenizer_config_path(const char *tokenizer) {
    const char *slash = strrchr(tokenizer, '/'), *name = slash ? slash + 1 : tokenizer;
    bool named = file_is_dir(tokenizer) || strncmp(name, "tokenizer.", strlen("tokenizer.")) == 0;
    char *path = named ? tokenizer_sibling(tokenizer, "tokenizer_config.json") : NULL;
    if (path && file_exists(path)) return path;
    free(path);
    return NULL;
}

ErrorCode tokenizer_config_read(const char *tokenizer, cJSON **config, Error *err) {
    char *path = tokenizer_sibling(tokenizer, "tokenizer_config.json");
    *config = NULL;
    ErrorCode code = path && file_exists(path) ? json_read(path, CONFIG_LIMIT, config, err) : OK;
    free(path);
    return code;
}

const char *tokenizer_config_token(const cJSON *config, const char *name) {
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, name);
    if (cJSON_IsObject(item)) item = cJSON_GetObjectItemCaseSensitive(item, "content");
    return cJSON_IsString(item) && item->valuestring[0] ? item->valuestring : NULL;
}

/* ---- BOS, EOS and padding ---- */

static bool is_among(const char *name, const char *const *names) {
    while (*names && strcmp(*names, name) != 0) names++;
    return *names != NULL;
}

static int32_t usual_token(const Tokenizer *t, const char *const *names) {
    int32_t id = -1;
    for (; *names && id < 0; names++) id = tokenizer_special(t, *names);
    return id;
}

/* Special tokens first, since other tokens may have the same text. */
static int32_t token_of(const Tokenizer *t, const char *text) {
    int32_t id = tokenizer_special(t, text);
    for (int kind = NAME_TEXT; id < 0 && kind <= NAME_LITERAL; kind++)
        id = vocabulary_find_name(&t->vocabulary, (TokenName)kind, text, strlen(text));
    return id;
}

static ErrorCode find_token(const Tokenizer *t, const char *where, const char *key, const char *text,
                            int32_t *id, Error *err) {
    char shown[80];
    *id = token_of(t, text);
    if (*id >= 0) return OK;
    return error_set(err, ERR_CONFIG, "%s is \"%s\", which the tokenizer %s does not have", key,
                     error_escape(shown, sizeof shown, text, strlen(text)), where);
}

/* "none", or a token's text. */
static ErrorCode find_by_key(const Tokenizer *t, const char *where, const char *key, const char *text,
                             int32_t *id, Error *err) {
    *id = -1;
    return strcmp(text, "none") == 0 ? OK : find_token(t, where, key, text, id, err);
}

static ErrorCode find_in_config(const Tokenizer *t, const char *where, const cJSON *config, const char *name,
                                int32_t *id, Error *err) {
    const char *text = tokenizer_config_token(config, name);
    *id = -1;
    if (!text) return OK;
    ErrorCode code = find_token(t, where, name, text, id, err);
    if (code != OK)
        error_context(err, "tokenizer_config.json next to it (correct it there, or set tokenizer.%.3s)",
                      name);
    return code;
}

static ErrorCode find_end(Tokenizer *t, const char *where, const cJSON *config, const StringList *key,
                          Error *err) {
    t->end_count = 0;
    for (size_t i = 0; i < key->count; i++) {
        int32_t id;
        if (t->end_count == TOKENIZER_ENDS)
            return error_set(err, ERR_CONFIG, "tokenizer.eos has more than %d tokens", TOKENIZER_ENDS);
        TRY(find_by_key(t, where, "tokenizer.eos", key->items[i], &id, err));
        if (id >= 0) t->ends[t->end_count++] = id;
    }
    if (key->count > 0) {
        t->eos = t->end_count > 0 ? t->ends[0] : -1;
        return OK;
    }
    if (cJSON_GetObjectItemCaseSensitive(config, "eos_token"))
        TRY(find_in_config(t, where, config, "eos_token", &t->eos, err));
    else if (t->eos < 0)
        t->eos = usual_token(t, ENDS);
    if (t->eos >= 0) t->ends[t->end_count++] = t->eos;
    return OK;
}

/* B3. */
static bool is_put_before(const cJSON *config, const char *name) {
    const cJSON *add = cJSON_GetObjectItemCaseSensitive(config, "add_bos_token");
    return cJSON_IsBool(add) ? cJSON_IsTrue(add) : is_among(name, BEGINS);
}

static ErrorCode find_beginning(Tokenizer *t, const char *where, const cJSON *config, const char *key,
                                Error *err) {
    if (key && *key) return find_by_key(t, where, "tokenizer.bos", key, &t->bos, err);
    const char *name = tokenizer_config_token(config, "bos_token");
    if (name && !is_put_before(config, name))
        t->bos = -1;
    else if (cJSON_GetObjectItemCaseSensitive(config, "bos_token"))
        TRY(find_in_config(t, where, config, "bos_token", &t->bos, err));
    else if (t->bos < 0)
        t->bos = usual_token(t, BEGINS);
    if (t->bos == t->eos) t->bos = -1; /* B2 */
    return OK;
}

ErrorCode tokenizer_set_bounds(Tokenizer *t, const char *where, const cJSON *config,
                               const TokenizerKeys *keys, Error *err) {
    TRY(find_end(t, where, config, &keys->eos, err));
    TRY(find_beginning(t, where, config, keys->bos, err));
    t->pad = -1;
    return keys->pad && *keys->pad ? find_by_key(t, where, "tokenizer.pad", keys->pad, &t->pad, err) : OK;
}
