/* Small files beside the weights, so that transformers needs nothing else.
 *
 * Both are texts that the caller hands to a save as CheckpointFile. generation_config.json says where to
 * stop, tokenizer_config.json which class reads tokenizer.json. Where the run has such a file already, from
 * the model that it tunes or from beside its tokenizer, that one goes along byte for byte: it holds what
 * weft does not read, sampling and padding among it. It is written anew only where a token in it is to be
 * another. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"

#define FILE_LIMIT ((size_t)1 << 24)

/* ---- files that are there ---- */

static ErrorCode read_text(const char *path, Text *out, Error *err) {
    char *data;
    size_t length;
    TRY(file_read(path, FILE_LIMIT, &data, &length, err));
    text_add(out, data, length);
    free(data);
    return OK;
}

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

/* A token that the tokenizer does not have is left out, not written as null. */
static void write_id(JsonWriter *w, const char *key, int64_t id) {
    if (id < 0) return;
    json_key(w, key);
    json_int(w, id);
}

static cJSON *list_of_ends(const ModelConfig *c) {
    if (c->eos_token_id < 0) return cJSON_CreateNull();
    if (c->more_eos.count == 0) return cJSON_CreateNumber((double)c->eos_token_id);
    cJSON *list = cJSON_CreateArray();
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)c->eos_token_id));
    for (int64_t i = 0; i < c->more_eos.count; i++)
        cJSON_AddItemToArray(list, cJSON_CreateNumber((double)c->more_eos.ids[i]));
    return list;
}

static void make_generation_config(const ModelConfig *c, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_bool(&w, "_from_model_config", true);
    write_id(&w, "bos_token_id", c->bos_token_id);
    if (c->more_eos.count > 0) {
        json_key(&w, "eos_token_id");
        json_begin_array(&w);
        json_int(&w, c->eos_token_id);
        for (int64_t i = 0; i < c->more_eos.count; i++) json_int(&w, c->more_eos.ids[i]);
        json_end_array(&w);
    } else {
        write_id(&w, "eos_token_id", c->eos_token_id);
    }
    if (c->has_pad) write_id(&w, "pad_token_id", c->pad_token_id);
    json_end_object(&w);
    text_puts(out, "\n");
}

static bool holds_id(const cJSON *ends, int64_t id) {
    const cJSON *item = cJSON_IsArray(ends) ? ends->child : ends;
    while (item && !(cJSON_IsNumber(item) && (int64_t)item->valuedouble == id))
        item = cJSON_IsArray(ends) ? item->next : NULL;
    return item != NULL;
}

/* An end more, behind those of the file. */
static void add_end(cJSON *root, int64_t id) {
    cJSON *ends = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id"), *list = cJSON_CreateArray();
    const cJSON *item = cJSON_IsArray(ends) ? ends->child : ends;
    for (; item; item = cJSON_IsArray(ends) ? item->next : NULL)
        if (cJSON_IsNumber(item)) cJSON_AddItemToArray(list, cJSON_CreateNumber(item->valuedouble));
    cJSON_AddItemToArray(list, cJSON_CreateNumber((double)id));
    put_member(root, "eos_token_id", list);
}

/* Whether anything changed. */
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
        code = read_text(path, out, err);
        if (code == OK) code = json_parse(path, out->data, out->length, &root, err);
        if (code == OK && change_ids(root, c, changes)) print_json(root, out);
    }
    cJSON_Delete(root);
    free(path);
    return code;
}

/* ---- tokenizer_config.json ---- */

/* null is what a reader takes for none: unlike an id, the key may stay. */
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
    /* Else decoding would change the text ("do n't" to "don't"), and a byte-level tokenizer gives back
     * what it took. */
    json_put_bool(&w, "clean_up_tokenization_spaces", false);
    json_end_object(&w);
    text_puts(out, "\n");
}

static void put_name(cJSON *root, const char *key, const char *name) {
    put_member(root, key, name ? cJSON_CreateString(name) : cJSON_CreateNull());
}

/* Whether anything changed. A token that a key names is put before texts, whatever its name is
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
    TRY(read_text(from, out, err));
    TRY(json_parse(from, out->data, out->length, &root, err));
    if (change_names(root, names, changes, tuned ? 0 : context)) print_json(root, out);
    cJSON_Delete(root);
    return OK;
}
