/* Combines the shape of a model from its keys, a config.json and the defaults of its family.
 *
 * Fields of the shape without a key of their own are derived from another key: shape.family from family,
 * shape.mixers from mixer, shape.rope_scaling's factors from the lists of them. */
#include <stdlib.h>
#include <string.h>

#include "model/families/family.h"
#include "model/options.h"

/* ---- from lists of words ---- */

/* Converts names into a pattern. */
static ErrorCode read_mixers(ModelOptions *m, const OptionSet *set, Error *err) {
    const StringList *names = &m->mixer;
    MixerPattern *p = &m->shape.mixers;
    if (names->count > MIXER_PERIOD)
        return options_fail(set, "model.mixer", err, "%zu mixers are a pattern longer than %d", names->count,
                            MIXER_PERIOD);
    *p = (MixerPattern){.period = (int64_t)names->count};
    for (size_t i = 0; i < names->count; i++) {
        Mixer mixer;
        if (!mixer_find(names->items[i], &mixer))
            return options_fail(set, "model.mixer", err,
                                "\"%s\" is no mixer that models have: expected " MIXER_NAMES,
                                names->items[i]);
        p->kind[i] = (uint8_t)mixer;
    }
    return OK;
}

/* longrope's factors: the keys, and the offsets in the scaling. */
static const struct {
    const char *key;
    size_t list, factors;
} rope_factors[] = {
    {"model.rope_short_factor", offsetof(ModelOptions, rope_short_factor),
     offsetof(RopeScaling, short_factor)},
    {"model.rope_long_factor", offsetof(ModelOptions, rope_long_factor), offsetof(RopeScaling, long_factor)}};

static ErrorCode read_factor(const OptionSet *set, const char *key, const char *text, double *out,
                             Error *err) {
    char *end;
    *out = strtod(text, &end);
    if (end != text && *end == '\0') return OK;
    return options_fail(set, key, err, "\"%s\" is no number", text);
}

static ErrorCode read_rope_factors(ModelOptions *m, const OptionSet *set, Error *err) {
    RopeScaling *s = &m->shape.rope_scaling;
    for (int i = 0; i < 2; i++) {
        const StringList *list = (const StringList *)(const void *)((char *)m + rope_factors[i].list);
        double *factors = (double *)(void *)((char *)s + rope_factors[i].factors);
        if (list->count > ROPE_PAIRS || (i > 0 && (int)list->count != s->pairs))
            return options_fail(
                set, rope_factors[i].key, err,
                "%zu numbers, expected one for each pair that is rotated, in both lists, and at "
                "most %d",
                list->count, ROPE_PAIRS);
        s->pairs = (int)list->count;
        for (int p = 0; p < s->pairs; p++)
            TRY(read_factor(set, rope_factors[i].key, list->items[p], &factors[p], err));
    }
    return OK;
}

ErrorCode model_options_read(ModelOptions *m, const OptionSet *set, Error *err) {
    m->shape.bos_token_id = m->shape.eos_token_id = -1;
    TRY(read_mixers(m, set, err));
    return read_rope_factors(m, set, err);
}

/* ---- from a config.json ---- */

/* shape.family must match the key `family`: the index is recorded and compared, and the model is built by the
 * pointer. A given family that is not the file's is refused, since names and meanings of its tensors may
 * differ. */
static ErrorCode take_family(ModelOptions *m, OptionSet *set, const ModelConfig *own, const char *where,
                             Error *err) {
    const char *name = model_family(own)->model_type;
    if (options_is_set(set, "model.family") && families[m->family] != model_family(own))
        return options_fail(set, "model.family", err, "%s is of the family %s: leave the key out", where,
                            name);
    TRY(options_derive(set, "model.family", name, where, err));
    m->shape.family = model_family(own);
    return OK;
}

/* Converts a pattern into names. */
static ErrorCode take_mixers(ModelOptions *m, OptionSet *set, const ModelConfig *own, const char *where,
                             Error *err) {
    Text names = {0};
    if (options_is_set(set, "model.mixer") || own->mixers.period == 0) return OK;
    m->shape.mixers = own->mixers;
    text_puts(&names, "[");
    model_mixers_text(own, &names);
    text_puts(&names, "]");
    ErrorCode code = options_derive(set, "model.mixer", names.data, where, err);
    text_free(&names);
    return code;
}

static ErrorCode take_rope_factors(ModelOptions *m, OptionSet *set, const ModelConfig *own, const char *where,
                                   Error *err) {
    RopeScaling *s = &m->shape.rope_scaling;
    for (int i = 0; i < 2; i++) {
        const double *from =
            (const double *)(const void *)((const char *)&own->rope_scaling + rope_factors[i].factors);
        Text list = {0};
        char number[32];
        if (options_is_set(set, rope_factors[i].key) || own->rope_scaling.pairs == 0) continue;
        for (int p = 0; p < own->rope_scaling.pairs; p++)
            text_printf(&list, "%s%s", p == 0 ? "[" : ", ", text_double(from[p], number));
        text_puts(&list, "]");
        ErrorCode code = options_derive(set, rope_factors[i].key, list.data, where, err);
        text_free(&list);
        TRY(code);
        memcpy((char *)s + rope_factors[i].factors, from, sizeof s->short_factor);
        s->pairs = own->rope_scaling.pairs;
    }
    return OK;
}

/* Special tokens have no key: they come from the file, and later from the tokenizer. The path is escaped,
 * since it becomes the `where` of every key, which is printed and recorded. */
ErrorCode model_options_take(ModelOptions *m, OptionSet *set, const char *path, ModelConfig *own,
                             Error *err) {
    ModelConfig *shape = &m->shape;
    char where[512];
    TRY(model_config_read(own, path, err));
    shape->bos_token_id = own->bos_token_id;
    shape->eos_token_id = own->eos_token_id;
    shape->more_eos = own->more_eos;
    shape->has_pad = own->has_pad;
    shape->pad_token_id = own->pad_token_id;
    error_escape(where, sizeof where, path, strlen(path));
    TRY(take_family(m, set, own, where, err));
    TRY(take_mixers(m, set, own, where, err));
    TRY(take_rope_factors(m, set, own, where, err));
    return options_derive_part(set, shape, own, sizeof *own, false, where, err);
}

/* ---- without a config.json ---- */

/* Llama's defaults are those of the table, so family 0 needs nothing. The values count as derived, not as
 * given: keys from a file or the command line take precedence. */
ErrorCode model_options_default(ModelOptions *m, OptionSet *set, Error *err) {
    const Family *f = families[m->family];
    ModelConfig defaults = family_defaults(f, &m->shape);
    m->shape.family = f;
    if (m->family == 0) return OK;
    return options_derive_part(set, &m->shape, &defaults, sizeof defaults, false, "default of model.family",
                               err);
}

/* The initialiser has a key since config.json does not have it. */
ErrorCode model_options_initialiser(const ModelOptions *m, OptionSet *set, Error *err) {
    static const char *const names[] = {INIT_NAMES(CHOICE_NAME)};
    if (m->family == 0 || options_is_set(set, "model.initialiser")) return OK;
    return options_derive(set, "model.initialiser", names[families[m->family]->init],
                          "default of model.family", err);
}

/* ---- keys and existing weights ---- */

/* A vocabulary of 0 fits any. */
static bool fits_vocabulary(const ModelConfig *own, const ModelConfig *asked) {
    return asked->vocab_size == 0 || asked->vocab_size == own->vocab_size;
}

static int64_t head_dim(const ModelConfig *c) { return c->head_dim ? c->head_dim : model_usual_head_dim(c); }

/* Heads are compared by the width that they have in the weights (number times size), since either may be
 * given. */
static bool fits_queries(const ModelConfig *own, const ModelConfig *asked) {
    return own->num_attention_heads * head_dim(own) == asked->num_attention_heads * head_dim(asked);
}

static bool fits_keys(const ModelConfig *own, const ModelConfig *asked) {
    return own->num_key_value_heads * head_dim(own) == asked->num_key_value_heads * head_dim(asked);
}

/* Two patterns may mean the same layers. */
static bool fits_dense_layers(const ModelConfig *own, const ModelConfig *asked) {
    for (int64_t i = 0; i < own->num_hidden_layers; i++)
        if (layer_set_has(own->dense_layers, i) != layer_set_has(asked->dense_layers, i)) return false;
    return true;
}

static bool fits_mixers(const ModelConfig *own, const ModelConfig *asked) {
    return mixers_equal(&own->mixers, &asked->mixers, own->num_hidden_layers);
}

/* A separate head can start from a copy of the embedding. */
static bool fits_tied(const ModelConfig *own, const ModelConfig *asked) {
    return !own->tie_word_embeddings || asked->tie_word_embeddings;
}

/* model_options_take has already refused any other. */
static bool fits_family(const ModelConfig *own, const ModelConfig *asked) {
    (void)own, (void)asked;
    return true;
}

/* Keys of the shape that may differ from the file's values and still fit. */
static const struct {
    const char *key;
    bool (*fits)(const ModelConfig *own, const ModelConfig *asked);
} rules[] = {
    {"model.family", fits_family},
    {"model.vocab_size", fits_vocabulary},
    {"model.head_dim", fits_queries},
    {"model.num_attention_heads", fits_queries},
    {"model.num_key_value_heads", fits_keys},
    {"model.dense_period", fits_dense_layers},
    {"model.dense_layers", fits_dense_layers},
    {"model.mixer", fits_mixers},
    {"model.tie_word_embeddings", fits_tied},
};

static bool fits(const Option *row, const ModelOptions *own, const ModelOptions *asked) {
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].key, row->key) == 0) return rules[i].fits(&own->shape, &asked->shape);
    return !option_differs(row, own, asked);
}

/* The weights of model.init have this shape, and a key cannot change it. A key with the same value is
 * allowed, since configurations of checkpoints are complete. Only given keys are compared: the others have
 * taken the file's values already. Keys of the shape are those with EFFECT_RUN. Only the first conflict is
 * reported, since the remedy is the same for all: leave the shape to the file. */
ErrorCode model_options_fit(const ModelOptions *m, const OptionSet *set, const ModelConfig *own,
                            const char *dir, Error *err) {
    const ModelOptions weights = {.shape = *own};
    for (const Option *row = model_options; row->key; row++)
        if (row->effect == EFFECT_RUN && options_is_set(set, row->key) && !fits(row, &weights, m))
            return error_set(err, ERR_CONFIG,
                             "%s does not fit the weights of model.init, %s, which have the shape in its "
                             "config.json: leave the key out",
                             row->key, dir);
    return OK;
}

/* ---- equivalent spellings ---- */

/* Without scaling the other numbers of RoPE scaling have no effect and are reset, so that all configurations
 * without scaling have the same digest. This also overrides given keys: a value without effect must not
 * distinguish two runs. */
ErrorCode model_options_derive(ModelOptions *m, OptionSet *set, Error *err) {
    RopeScaling *rope = &m->shape.rope_scaling, none = ROPE_UNSCALED;
    if (rope_is_scaled(rope) || rope->factor < 1) return OK;
    return options_derive_part(set, rope, &none, sizeof none, true, "derived from model.rope_factor", err);
}
