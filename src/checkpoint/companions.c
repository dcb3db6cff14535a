/* Small files beside the weights, so that transformers needs nothing else.
 *
 * Both are texts that the caller hands to a save as CheckpointFile. generation_config.json says where to
 * stop, tokenizer_config.json which class reads tokenizer.json. */
#include "base/json.h"
#include "checkpoint/checkpoint.h"

/* A token that the tokenizer does not have is left out, not written as null. */
static void write_id(JsonWriter *w, const char *key, int64_t id) {
    if (id < 0) return;
    json_key(w, key);
    json_int(w, id);
}

void checkpoint_generation_config(const ModelConfig *c, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "_from_model_config");
    json_bool(&w, true);
    write_id(&w, "bos_token_id", c->bos_token_id);
    write_id(&w, "eos_token_id", c->eos_token_id);
    json_end_object(&w);
    text_puts(out, "\n");
}

/* null is what a reader takes for none: unlike an id, the key may stay. */
static void write_token(JsonWriter *w, const char *key, const char *token) {
    json_key(w, key);
    if (token == NULL)
        json_null(w);
    else
        json_string(w, token);
}

void checkpoint_tokenizer_config(const char *bos, const char *eos, int64_t context, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "tokenizer_class");
    json_string(&w, "PreTrainedTokenizerFast");
    write_token(&w, "bos_token", bos);
    write_token(&w, "eos_token", eos);
    json_key(&w, "model_max_length");
    json_int(&w, context);
    /* Else decoding would change the text ("do n't" to "don't"), and a byte-level tokenizer gives back
     * what it took. */
    json_key(&w, "clean_up_tokenization_spaces");
    json_bool(&w, false);
    json_end_object(&w);
    text_puts(out, "\n");
}
