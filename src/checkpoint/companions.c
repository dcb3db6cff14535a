/* Small files next to the weights, which make the directory complete for transformers.
 *
 * The caller passes both texts to a save as CheckpointFile. generation_config.json holds the tokens at which
 * to stop, tokenizer_config.json the class that reads tokenizer.json. If the run already has such a file,
 * from the model that it fine-tunes or from the directory of its tokenizer, that file is copied byte for
 * byte: it holds settings that weft does not read, such as sampling and padding. It is written again only to
 * change a token. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"

#define FILE_LIMIT ((size_t)1 << 24)

/* ---- existing files ---- */

static void put_member(cJSON *root, const char *key, cJSON *value) {
    if (cJSON_HasObjectItem(root, key))
        cJSON_ReplaceItemInObjectCaseSensitive(root, key, value);
    else
        cJSON_AddItemToObject(root, key, value);
}

static void print_json(const cJSON *root, Text *out) {
    char *printed = cJSON_Print(root);
    text_clear(out);
    text_printf(out, "%s\n", printed);
    cJSON_free(printed);
}

/* ---- generation_config.json ---- */

/* A token that the tokenizer lacks is omitted, not written as null. */
static void write_id(JsonWriter *w, const char *key, int64_t id) {
    if (id < 0) return;
    json_key(w, key);
    json_int(w, id);
}

static cJSON *list_of_ends(const ModelConfig *c) {
    int64_t ends[MODEL_ENDS];
    int count = model_ends(c, ends);
    if (count == 0) return cJSON_CreateNull();
    if (count == 1) return cJSON_CreateNumber((double)ends[0]);
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < count; i++) cJSON_AddItemToArray(list, cJSON_CreateNumber((double)ends[i]));
    return list;
}

static void make_generation_config(const ModelConfig *c, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_bool(&w, "_from_model_config", true);
    write_id(&w, "bos_token_id", c->bos_token_id);
    if (c->eos_token_id >= 0) model_write_ends(c, "eos_token_id", &w);
    if (c->has_pad) write_id(&w, "pad_token_id", c->pad_token_id);
    json_end_object(&w);
    text_puts(out, "\n");
}

static bool holds_id(const cJSON *ends, int64_t id) {
    for (const cJSON *item = json_first(ends); item; item = json_next(ends, item))
        if (cJSON_IsNumber(item) && (int64_t)item->valuedouble == id) return true;
    return false;
}

/* Appends one more end token to those of the file. */
static void add_end(cJSON *root, int64_t id) {
    const cJSON *ends = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id");
    cJSON *list = cJSON_CreateArray();
    for (const cJSON *item = json_first(ends); item; item = json_next(ends, item))
        if (cJSON_IsNumber(item)) cJSON_AddItemToArray(list, cJSON_CreateNumber(item->valuedouble));
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)id));
    put_member(root, "eos_token_id", list);
}

/* Returns whether anything changed. */
static bool change_ids(cJSON *root, const ModelConfig *c, const TokenChanges *changes) {
    bool adds = changes->answer_end >= 0 &&
                !holds_id(cJSON_GetObjectItemCaseSensitive(root, "eos_token_id"), changes->answer_end);
    if (changes->bos)
        put_member(root, "bos_token_id",
                   c->bos_token_id < 0 ? cJSON_CreateNull() : cJSON_CreateNumber((double)c->bos_token_id));
    if (changes->pad)
        put_member(root, "pad_token_id",
                   c->has_pad ? cJSON_CreateNumber((double)c->pad_token_id) : cJSON_CreateNull());
    if (changes->eos)
        put_member(root, "eos_token_id", list_of_ends(c));
    else if (adds)
        add_end(root, changes->answer_end);
    return changes->bos || changes->eos || changes->pad || adds;
}

ErrorCode checkpoint_generation_config(const ModelConfig *c, const char *base, const TokenChanges *changes,
                                       Text *out, Error *err) {
    cJSON *root = NULL;
    char *path = base ? path_join(base, "generation_config.json") : NULL;
    ErrorCode code = OK;
    if (!path || !file_exists(path)) {
        make_generation_config(c, out);
    } else {
        code = file_read_text(path, FILE_LIMIT, out, err);
        if (code == OK) code = json_parse(path, out->data, out->length, &root, err);
        if (code == OK && change_ids(root, c, changes)) print_json(root, out);
    }
    cJSON_Delete(root);
    free(path);
    return code;
}

/* ---- tokenizer_config.json ---- */

/* Readers take null as none, so unlike for an id, the key may stay. */
static void write_token(JsonWriter *w, const char *key, const char *token) {
    json_key(w, key);
    if (token == NULL)
        json_null(w);
    else
        json_string(w, token);
}

static void make_tokenizer_config(const TokenNames *names, bool bos_given, int64_t context, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_string(&w, "tokenizer_class", "PreTrainedTokenizerFast");
    write_token(&w, "bos_token", names->bos);
    if (bos_given) json_put_bool(&w, "add_bos_token", names->bos != NULL);
    write_token(&w, "eos_token", names->eos);
    if (names->pad) write_token(&w, "pad_token", names->pad);
    json_put_int(&w, "model_max_length", context);
    /* Otherwise decoding would change the text ("do n't" to "don't"); a byte-level tokenizer must return its
     * input. */
    json_put_bool(&w, "clean_up_tokenization_spaces", false);
    json_end_object(&w);
    text_puts(out, "\n");
}

static void put_name(cJSON *root, const char *key, const char *name) {
    put_member(root, key, name ? cJSON_CreateString(name) : cJSON_CreateNull());
}

/* Returns whether anything changed. A token that a key names is prepended to texts, whatever its name is
 * (tokenizer/tokenizer_config.c). */
static bool change_names(cJSON *root, const TokenNames *names, const TokenChanges *changes, int64_t context) {
    if (changes->bos) {
        put_name(root, "bos_token", names->bos);
        put_member(root, "add_bos_token", cJSON_CreateBool(names->bos != NULL));
    }
    if (changes->eos) put_name(root, "eos_token", names->eos);
    if (changes->pad) put_name(root, "pad_token", names->pad);
    if (context > 0) put_member(root, "model_max_length", cJSON_CreateNumber((double)context));
    return changes->bos || changes->eos || changes->pad || context > 0;
}

ErrorCode checkpoint_tokenizer_config(const char *from, const TokenNames *names, const TokenChanges *changes,
                                      int64_t context, bool tuned, Text *out, Error *err) {
    cJSON *root = NULL;
    if (!from) {
        make_tokenizer_config(names, changes->bos, context, out);
        return OK;
    }
    TRY(file_read_text(from, FILE_LIMIT, out, err));
    TRY(json_parse(from, out->data, out->length, &root, err));
    if (change_names(root, names, changes, tuned ? 0 : context)) print_json(root, out);
    cJSON_Delete(root);
    return OK;
}
