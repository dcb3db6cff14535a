/* Writes config.json by the rules of a family, in the dialect of transformers 4, which transformers 5 reads
 * too.
 *
 * Each kind of rule has one writer and one reader (read.c): what is written here is read back as the same
 * shape. Kinds that only refuse are not written, except where transformers would fill in a default of its
 * own: dropout is written as 0, the padding token as null. */
#include <math.h>
#include <string.h>

#include "model/families/family.h"

/* json_double may write a number without point or exponent; then ".0" is added. */
void family_write_double(JsonWriter *w, const char *key, double value) {
    json_key(w, key);
    size_t start = w->out->length;
    json_double(w, value);
    if (strpbrk(w->out->data + start, ".en") == NULL) text_puts(w->out, ".0");
}

/* -1 is weft's own value for none; files have null. */
static void write_token(JsonWriter *w, const char *key, int64_t id) {
    if (id < 0)
        json_put_null(w, key);
    else
        json_put_int(w, key, id);
}

const char *family_activation(const Family *f) {
    switch (f->arch.activation) {
    case ACT_SILU:
    case ACT_CLAMPED: return "silu";
    /* One function, with the name of its era. */
    case ACT_GELU_TANH: return f->arch.no_gate ? "gelu_new" : "gelu_pytorch_tanh";
    }
    return "unknown";
}

const char *family_word(const KeyRule *k) {
    static const char *const words[] = {
        [WORD_SIGMOID] = "sigmoid", [WORD_SOFTMAX] = "softmax", [WORD_NOAUX] = "noaux_tc"};
    return words[k->offset];
}

static void write_optional(JsonWriter *w, const char *key, double value) {
    if (value > 0)
        family_write_double(w, key, value);
    else
        json_put_null(w, key);
}

static void write_or_null(JsonWriter *w, const char *key, int64_t value) {
    if (value > 0)
        json_put_int(w, key, value);
    else
        json_put_null(w, key);
}

/* Some classes of transformers accept only integers, where others accept 9.0. */
static void write_whole(JsonWriter *w, const char *key, double value) {
    if (value <= (double)MODEL_MAX_POSITIONS && floor(value) >= value)
        json_put_int(w, key, (int64_t)value);
    else
        family_write_double(w, key, value);
}

/* Writes one id as a number, as most files have it. */
void model_write_ends(const ModelConfig *c, const char *key, JsonWriter *w) {
    int64_t ends[MODEL_ENDS];
    int count = model_ends(c, ends);
    if (count < 2) {
        write_token(w, key, count ? ends[0] : -1);
        return;
    }
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < count; i++) json_int(w, ends[i]);
    json_end_array(w);
}

static void write_key(JsonWriter *w, const ModelConfig *c, const KeyRule *k) {
    const void *from = (const char *)c + k->offset;
    switch (k->kind) {
    case KEY_EXPERTS:
    case KEY_COUNT:
    case KEY_SIZE: json_put_int(w, k->name, *(const int64_t *)from); break;
    case KEY_NUMBER: family_write_double(w, k->name, *(const double *)from); break;
    case KEY_SWITCH: json_put_bool(w, k->name, *(const bool *)from); break;
    case KEY_TOKEN: write_token(w, k->name, *(const int64_t *)from); break;
    case KEY_WHOLE: write_whole(w, k->name, *(const double *)from); break;
    case KEY_OPTIONAL: write_optional(w, k->name, *(const double *)from); break;
    case KEY_INNER: json_put_int(w, k->name, *(const int64_t *)from); break;
    case KEY_ROTATION: rope_keys_write(c, w); break;
    case KEY_WINDOWS: window_keys_write(c, w); break;
    case KEY_NO_ROPE: no_rope_write(c, w); break;
    case KEY_MIXERS: mixers_write(c, w); break;
    case KEY_OR_NULL: write_or_null(w, k->name, *(const int64_t *)from); break;
    case KEY_DENSE:
    case KEY_SPARSE: dense_layers_write(k->kind, c, w); break;
    case KEY_TUNING: json_put_bool(w, k->name, c->attn_scale > 0); break;
    case KEY_ACTIVATION: json_put_string(w, k->name, family_activation(model_family(c))); break;
    case KEY_ZERO:
    case KEY_DROPOUT: family_write_double(w, k->name, 0); break;
    case KEY_ONLY: family_write_double(w, k->name, (double)k->offset / 1000); break;
    case KEY_WORD: json_put_string(w, k->name, family_word(k)); break;
    case KEY_GREEDY: json_put_string(w, k->name, c->n_group > 1 ? "group_limited_greedy" : "greedy"); break;
    case KEY_MTP: json_put_int(w, k->name, c->mtp_module); break;
    case KEY_ENDS: model_write_ends(c, k->name, w); break;
    case KEY_PAD:
    case KEY_UNPADDED:
        if (c->has_pad)
            json_put_int(w, k->name, c->pad_token_id);
        else if (k->kind == KEY_UNPADDED)
            json_put_null(w, k->name);
        break;
    case KEY_FALSE:
    case KEY_TRUE:
    case KEY_NONE: break;
    }
}

/* Appends to *out. The shape must be complete. `use_cache` is for generation and affects no weight. */
void model_config_write(const ModelConfig *c, const char *torch_dtype, Text *out) {
    const Family *f = model_family(c);
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_key(&w, "architectures");
    json_begin_array(&w);
    json_string(&w, f->architecture);
    json_end_array(&w);
    json_put_string(&w, "model_type", f->model_type);
    for (const KeyRule *k = f->keys; k->name; k++) write_key(&w, c, k);
    json_put_bool(&w, "use_cache", true);
    json_put_string(&w, "torch_dtype", torch_dtype);
    json_end_object(&w);
    text_puts(out, "\n");
}
