/* The shape of a model as its keys, a config.json and the defaults of its family have it together.
 *
 * A field of the shape that no key has stays beside the key that it follows: shape.family beside family,
 * shape.mixers beside mixer, shape.rope_scaling's factors beside the lists of them. */
#include <stdlib.h>
#include <string.h>

#include "model/families/family.h"
#include "model/options.h"

/* ---- what follows from words that were given ---- */

/* Names become a pattern. */
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

/* The keys of longrope's factors, and where in the scaling they are. */
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
                "%zu numbers, expected one for each pair that is turned, in both lists, and at "
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

/* shape.family goes with the key that names it: the index is what is written down and compared, the
 * pointer what the model is built by, and neither may say another family than the other. A family that was
 * asked for and is not the file's is refused, since names and meaning of its tensors may be others. */
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

/* A pattern becomes names. */
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

/* Special tokens have no key: they come from the file, later from the tokenizer. The path is escaped: it
 * becomes the `where` of every key, which is printed and written down. */
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

/* ---- without one ---- */

/* Llama's own defaults are those of the table, so for family 0 there is nothing to do. They count as
 * derived, not as given: what a file or the command line says has won before. */
ErrorCode model_options_default(ModelOptions *m, OptionSet *set, Error *err) {
    const Family *f = families[m->family];
    ModelConfig defaults = family_defaults(f, &m->shape);
    m->shape.family = f;
    if (m->family == 0) return OK;
    return options_derive_part(set, &m->shape, &defaults, sizeof defaults, false, "default of model.family",
                               err);
}

/* It has a key all the same, since config.json does not say it. */
ErrorCode model_options_initialiser(const ModelOptions *m, OptionSet *set, Error *err) {
    static const char *const names[] = {INIT_NAMES(CHOICE_NAME)};
    if (m->family == 0 || options_is_set(set, "model.initialiser")) return OK;
    return options_derive(set, "model.initialiser", names[families[m->family]->init],
                          "default of model.family", err);
}

/* ---- keys beside weights that are there ---- */

/* A vocabulary of 0 asks for none. */
static bool fits_vocabulary(const ModelConfig *own, const ModelConfig *asked) {
    return asked->vocab_size == 0 || asked->vocab_size == own->vocab_size;
}

static int64_t head_dim(const ModelConfig *c) { return c->head_dim ? c->head_dim : model_usual_head_dim(c); }

/* Heads are compared by what they take of the weights (number times size), since either may be given. */
static bool fits_queries(const ModelConfig *own, const ModelConfig *asked) {
    return own->num_attention_heads * head_dim(own) == asked->num_attention_heads * head_dim(asked);
}

static bool fits_keys(const ModelConfig *own, const ModelConfig *asked) {
    return own->num_key_value_heads * head_dim(own) == asked->num_key_value_heads * head_dim(asked);
}

/* Patterns may say the same in two ways. */
static bool fits_dense_layers(const ModelConfig *own, const ModelConfig *asked) {
    for (int64_t i = 0; i < own->num_hidden_layers; i++)
        if (layer_set_has(own->dense_layers, i) != layer_set_has(asked->dense_layers, i)) return false;
    return true;
}

static bool fits_mixers(const ModelConfig *own, const ModelConfig *asked) {
    return mixers_equal(&own->mixers, &asked->mixers, own->num_hidden_layers);
}

/* A head of its own can be begun from the embedding. */
static bool fits_tied(const ModelConfig *own, const ModelConfig *asked) {
    return !own->tie_word_embeddings || asked->tie_word_embeddings;
}

/* model_options_take has refused another one. */
static bool fits_family(const ModelConfig *own, const ModelConfig *asked) {
    (void)own, (void)asked;
    return true;
}

/* Keys of the shape that may differ in what is written and fit. */
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

/* What model.init brings has this shape: a key that says another cannot win. A key that says the same is
 * allowed: configurations of checkpoints are complete. Only keys that somebody gave are looked at: the rest
 * have taken the file's value already. Keys of the shape are those that another value of makes another run.
 * The first that does not fit is enough: the cure is the same for all, to leave the shape to the file. */
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

/* ---- what may be said in several ways ---- */

/* Without scaling its other numbers say nothing, and are always the same. Two configurations that mean no
 * scaling so have the same digest, whatever else they say of it. `given` gives way here too: a value that
 * was given and means nothing must not tell two runs apart. */
ErrorCode model_options_derive(ModelOptions *m, OptionSet *set, Error *err) {
    RopeScaling *rope = &m->shape.rope_scaling, none = ROPE_UNSCALED;
    if (rope_is_scaled(rope) || rope->factor < 1) return OK;
    return options_derive_part(set, rope, &none, sizeof none, true, "derived from model.rope_factor", err);
}
