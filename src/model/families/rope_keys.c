/* RoPE in config.json: rope_theta and rope_scaling of transformers 4, one rope_parameters of transformers 5,
 * or both where they agree. In families where layers with windows have a base of their own, rope_parameters
 * holds two such objects, by the kind of layer, and version 4 has rope_local_base_freq. weft writes the first
 * form, which transformers 5 reads too.
 *
 *     transformers 4   "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}
 *     transformers 5   "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, ...}
 *     by kind          "rope_parameters": {"full_attention": {...}, "sliding_attention": {...}}
 *
 * Both forms are read, each with the keys of the root (rope_theta, partial_rotary_factor,
 * original_max_position_embeddings), and compared. If a file has a number twice with different values, no
 * reader can know which was used in training. transformers silently takes one of them. */
#include <string.h>

#include "model/families/family.h"

static const char *const kinds[] = {ROPE_KINDS(CHOICE_NAME)};

/* The content of one form. */
typedef struct Rotary {
    double theta, share; /* fraction of a head that is rotated */
    RopeScaling scaling;
} Rotary;

/* Member of an object that may be NULL. */
static const cJSON *member_of(const cJSON *object, const char *key) {
    return object != NULL ? family_member(object, key) : NULL;
}

/* Exact: files with a number in two places write it with the same digits. */
static bool same_number(double a, double b) { return a >= b && a <= b; }

static ErrorCode refuse_twice(const char *where, const char *key, double one, double other, Error *err) {
    return error_set(err, ERR_CONFIG,
                     "%s: %s is given twice, as %g and as %g, which contradict each other; remove one", where,
                     key, one, other);
}

/* Reads a number of the root, of the object, or of both if they agree. */
static ErrorCode read_twice(const cJSON *root, const cJSON *object, const char *where, const char *key,
                            double *out, Error *err) {
    const cJSON *in_root = member_of(root, key), *in_object = member_of(object, key);
    if (in_root) TRY(json_get_double(root, where, key, true, out, err));
    double outer = *out;
    if (in_object) TRY(json_get_double(object, where, key, true, out, err));
    bool both = in_root != NULL && in_object != NULL;
    return both && !same_number(outer, *out) ? refuse_twice(where, key, outer, *out, err) : OK;
}

/* "type" in older files, "rope_type" in newer ones, and both in some files. */
static ErrorCode read_rope_type(const cJSON *rope, const char *where, const char **type, Error *err) {
    const char *old = NULL, *new = NULL;
    TRY(json_get_string(rope, where, "type", false, &old, err));
    TRY(json_get_string(rope, where, "rope_type", false, &new, err));
    if (old != NULL && new != NULL && strcmp(old, new) != 0)
        return error_set(err, ERR_CONFIG, "%s: RoPE type and rope_type contradict each other; remove one",
                         where);
    *type = new != NULL ? new : old != NULL ? old : "default";
    return OK;
}

/* For llama3, yarn and longrope. transformers prefers the root's value to the object's; Phi-3 reads only the
 * root's, so the object's has no effect there. With objects by kind of layer it is the other way round. */
static ErrorCode read_original(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                               int64_t *out, Error *err) {
    const char *key = "original_max_position_embeddings";
    const cJSON *outer = f->arch.local_rotation ? NULL : family_member(root, key);
    int64_t usual = *out;
    TRY(json_get_int(rope, where, key, false, 1, MODEL_MAX_POSITIONS, out, err));
    int64_t inner = *out;
    if (outer) TRY(json_get_int(root, where, key, true, 1, MODEL_MAX_POSITIONS, out, err));
    if (!outer && f->arch.longrope) *out = usual;
    bool said = family_member(rope, key) != NULL;
    return said && inner != *out ? refuse_twice(where, key, (double)inner, (double)*out, err) : OK;
}

/* All are required, since any default would be that of one model. */
static ErrorCode read_llama3(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                             RopeScaling *out, Error *err) {
    TRY(json_get_double(rope, where, "low_freq_factor", true, &out->low_freq_factor, err));
    TRY(json_get_double(rope, where, "high_freq_factor", true, &out->high_freq_factor, err));
    out->original_max_position_embeddings = 0;
    TRY(read_original(f, root, rope, where, &out->original_max_position_embeddings, err));
    if (out->original_max_position_embeddings > 0) return OK;
    return error_set(err, ERR_CONFIG, "%s: missing key \"original_max_position_embeddings\"", where);
}

/* Only null means the kind's formula: transformers multiplies by a 0. */
static ErrorCode read_attention_factor(const cJSON *rope, const char *where, RopeScaling *out, Error *err) {
    const char *key = "attention_factor";
    TRY(json_get_double(rope, where, key, false, &out->attention_factor, err));
    if (family_member(rope, key) == NULL || out->attention_factor > 0) return OK;
    return error_set(err, ERR_CONFIG, "%s: %s is %g, expected more than 0, or null", where, key,
                     out->attention_factor);
}

/* The original context defaults to the model's own. With objects by kind of layer, transformers looks for
 * `truncate` next to the objects, not in them, so one in an object has no effect there. */
static ErrorCode read_yarn(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                           int64_t positions, RopeScaling *out, Error *err) {
    out->original_max_position_embeddings = positions;
    TRY(read_original(f, root, rope, where, &out->original_max_position_embeddings, err));
    TRY(read_attention_factor(rope, where, out, err));
    if (out->factor <= 1 && out->attention_factor > 0 && !same_number(out->attention_factor, 1))
        return error_set(err, ERR_CONFIG,
                         "%s: yarn by a factor of %g has an attention_factor of %g, expected none", where,
                         out->factor, out->attention_factor);
    TRY(json_get_double(rope, where, "beta_fast", false, &out->beta_fast, err));
    TRY(json_get_double(rope, where, "beta_slow", false, &out->beta_slow, err));
    TRY(json_get_double(rope, where, "mscale", false, &out->mscale, err));
    TRY(json_get_double(rope, where, "mscale_all_dim", false, &out->mscale_all_dim, err));
    /* transformers treats null as false */
    if (cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(rope, "truncate")))
        return error_set(err, ERR_CONFIG, "%s: truncate is null, expected true or false", where);
    return json_get_bool(rope, where, "truncate", false, &out->truncate, err);
}

static ErrorCode read_factors(const cJSON *rope, const char *where, const char *key, double *out, int *count,
                              Error *err) {
    const cJSON *list = family_member(rope, key), *item;
    if (!cJSON_IsArray(list))
        return error_set(err, ERR_CONFIG, "%s: longrope needs %s, a list of a number for each pair", where,
                         key);
    *count = 0;
    cJSON_ArrayForEach(item, list) {
        if (!cJSON_IsNumber(item) || *count == ROPE_PAIRS)
            return error_set(err, ERR_CONFIG, "%s: %s: expected at most %d numbers", where, key, ROPE_PAIRS);
        out[(*count)++] = item->valuedouble;
    }
    return OK;
}

/* longrope's factor only scales sines and cosines, and defaults to the ratio of the context to the original
 * one. */
static ErrorCode read_longrope(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                               int64_t positions, RopeScaling *out, Error *err) {
    int longer = 0;
    out->original_max_position_embeddings =
        f->arch.longrope ? f->defaults.rope_scaling.original_max_position_embeddings : positions;
    TRY(read_original(f, root, rope, where, &out->original_max_position_embeddings, err));
    TRY(read_attention_factor(rope, where, out, err));
    TRY(read_factors(rope, where, "short_factor", out->short_factor, &out->pairs, err));
    TRY(read_factors(rope, where, "long_factor", out->long_factor, &longer, err));
    if (longer != out->pairs)
        return error_set(err, ERR_CONFIG, "%s: short_factor has %d numbers, but long_factor %d", where,
                         out->pairs, longer);
    out->factor = (double)positions / (double)out->original_max_position_embeddings;
    TRY(json_get_double(rope, where, "factor", false, &out->factor, err));
    if (out->factor < 1) out->factor = 1; /* the scale is 1 there too */
    return OK;
}

static const char *supported(const Family *f) {
    return f->arch.longrope ? "\"default\" or \"longrope\""
                            : "\"default\", \"llama3\", \"linear\", \"dynamic\", \"yarn\" or \"longrope\"";
}

static ErrorCode find_kind(const Family *f, const char *where, const char *type, int *kind, Error *err) {
    bool known = false;
    /* Earlier names of longrope. This family has no other kind, and no real yarn. */
    if (f->arch.longrope && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0)) type = "longrope";
    for (*kind = f->arch.longrope ? ROPE_LONGROPE : 0; !known && *kind <= ROPE_LONGROPE; ++*kind)
        known = strcmp(type, kinds[*kind]) == 0;
    --*kind;
    return known ? OK : family_refuse(where, "RoPE type", type, supported(f), err);
}

/* Starts from no scaling, so that no member of an older object remains. Type "default" has no members. */
static ErrorCode read_scaling(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                              int64_t positions, RopeScaling *out, Error *err) {
    const char *type = NULL;
    int kind;
    *out = ROPE_UNSCALED;
    TRY(read_rope_type(rope, where, &type, err));
    if (strcmp(type, "default") == 0) return OK;
    TRY(find_kind(f, where, type, &kind, err));
    out->kind = kind;
    if (kind == ROPE_LONGROPE) return read_longrope(f, root, rope, where, positions, out, err);
    TRY(json_get_double(rope, where, "factor", true, &out->factor, err));
    if (kind == ROPE_LLAMA3) TRY(read_llama3(f, root, rope, where, out, err));
    if (kind == ROPE_YARN) return read_yarn(f, root, rope, where, positions, out, err);
    if (f->arch.latent) /* scales scores, not angles, whatever the kind */
        return json_get_double(rope, where, "mscale_all_dim", false, &out->mscale_all_dim, err);
    return OK;
}

static bool same_factors(const RopeScaling *a, const RopeScaling *b) {
    for (int i = 0; i < ROPE_PAIRS; i++)
        if (!same_number(a->short_factor[i], b->short_factor[i]) ||
            !same_number(a->long_factor[i], b->long_factor[i]))
            return false;
    return a->pairs == b->pairs;
}

static bool same_scaling(const RopeScaling *a, const RopeScaling *b) {
    return a->kind == b->kind && a->truncate == b->truncate && same_number(a->factor, b->factor) &&
           same_number(a->low_freq_factor, b->low_freq_factor) &&
           same_number(a->high_freq_factor, b->high_freq_factor) &&
           a->original_max_position_embeddings == b->original_max_position_embeddings &&
           same_number(a->attention_factor, b->attention_factor) && same_number(a->beta_fast, b->beta_fast) &&
           same_number(a->beta_slow, b->beta_slow) && same_number(a->mscale, b->mscale) &&
           same_number(a->mscale_all_dim, b->mscale_all_dim) && same_factors(a, b);
}

/* Reads the fraction of a head that is rotated. Families without that key may have 1, which is what they
 * do. */
static ErrorCode read_share(const Family *f, const cJSON *root, const cJSON *rope, const char *where,
                            double *share, Error *err) {
    TRY(read_twice(root, rope, where, "partial_rotary_factor", share, err));
    if (f->arch.partial_rotation || same_number(*share, 1)) return OK;
    return error_set(err, ERR_CONFIG, "%s: partial_rotary_factor is %g, expected 1", where, *share);
}

/* Reads one form: `rope` is its object, or NULL, with the keys of the root. */
static ErrorCode read_form(const Family *f, const ModelConfig *c, const cJSON *root, const cJSON *rope,
                           const char *where, Rotary *out, Error *err) {
    *out =
        (Rotary){c->rope_theta, c->partial_rotary_factor > 0 ? c->partial_rotary_factor : 1, c->rope_scaling};
    TRY(read_twice(root, rope, where, "rope_theta", &out->theta, err));
    TRY(read_share(f, root, rope, where, &out->share, err));
    if (rope == NULL) return OK;
    return read_scaling(f, root, rope, where, c->max_position_embeddings, &out->scaling, err);
}

static bool same_rotary(const Rotary *a, const Rotary *b) {
    return same_number(a->theta, b->theta) && same_number(a->share, b->share) &&
           same_scaling(&a->scaling, &b->scaling);
}

/* Layers with windows are not scaled: a type other than "default" there would need a third kind of table. If
 * neither the object nor rope_local_base_freq gives their base, it is the family's. A family without one
 * (OLMo 3) has one base, and transformers uses its default there whatever rope_theta is. */
static ErrorCode read_local(const Family *f, ModelConfig *c, const cJSON *root, const cJSON *local,
                            const char *where, Error *err) {
    const char *type = "default";
    double share = 1, base = f->defaults.rope_local_theta;
    bool own = base > 0;
    if (local != NULL) TRY(read_rope_type(local, where, &type, err));
    if (strcmp(type, "default") != 0)
        return family_refuse(where, "RoPE type of sliding_attention", type, "\"default\"", err);
    TRY(read_share(f, NULL, local, where, &share, err));
    if (own) TRY(json_get_double(root, where, "rope_local_base_freq", false, &base, err));
    if (!own) base = f->defaults.rope_theta;
    TRY(read_twice(NULL, local, where, "rope_theta", &base, err));
    if (!own && member_of(local, "rope_theta") == NULL && !same_number(c->rope_theta, base))
        return error_set(
            err, ERR_CONFIG,
            "%s: rope_theta is %g, but layers with windows would rotate by %g in transformers, the "
            "default of the family: set rope_theta for both kinds of layers in rope_parameters",
            where, c->rope_theta, base);
    c->rope_local_theta = base;
    return OK;
}

/* Checks which objects a file has. In families without two kinds of layers, transformers fails on objects by
 * kind; in the others it ignores one object for all layers. */
static ErrorCode check_forms(const Family *f, const cJSON *old, const cJSON *new, const cJSON *full,
                             const cJSON *local, const char *where, Error *err) {
    bool kinds_of_layers = full != NULL || local != NULL;
    if ((old != NULL && !cJSON_IsObject(old)) || (new != NULL && !cJSON_IsObject(new)))
        return error_set(err, ERR_CONFIG, "%s: rope_scaling and rope_parameters must be objects", where);
    if (kinds_of_layers && !f->arch.local_rotation)
        return error_set(err, ERR_CONFIG,
                         "%s: rope_parameters by kind of layer are not supported in the family %s", where,
                         f->model_type);
    if (!f->arch.local_rotation) return OK;
    if (new != NULL && !kinds_of_layers &&new->child != NULL)
        return error_set(err, ERR_CONFIG,
                         "%s: rope_parameters of the family %s are by kind of layer: expected full_attention "
                         "and sliding_attention in it",
                         where, f->model_type);
    if (old != NULL && family_member(old, "type") != NULL && family_member(old, "rope_type") == NULL)
        return error_set(err, ERR_CONFIG,
                         "%s: rope_scaling.type is not read by transformers in the family %s: expected "
                         "rope_type",
                         where, f->model_type);
    return kinds_of_layers && family_member(new, "truncate") != NULL
               ? error_set(err, ERR_CONFIG, "%s: rope_parameters.truncate is not supported, expected none",
                           where)
               : OK;
}

/* Comes after max_position_embeddings in every entry (keys.h), since yarn's original context defaults to it.
 * An empty object counts as null. */
ErrorCode rope_keys_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *old = family_member(root, "rope_scaling"), *new = family_member(root, "rope_parameters"),
                *full = member_of(new, "full_attention"), *local = member_of(new, "sliding_attention");
    Rotary older, newer;
    TRY(check_forms(f, old, new, full, local, where, err));
    if (new != NULL &&new->child == NULL && rope_is_scaled(&f->defaults.rope_scaling))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_parameters is empty: leave it out, or set rope_type: default in it",
                         where);
    if (full != NULL || local != NULL) new = full;
    if (old != NULL && old->child == NULL) old = NULL;
    if (new != NULL &&new->child == NULL) new = NULL;
    TRY(read_form(f, c, root, new ? new : old, where, &newer, err));
    TRY(read_form(f, c, root, old ? old : new, where, &older, err));
    if (!same_rotary(&older, &newer))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_scaling and rope_parameters contradict each other; remove one", where);
    c->rope_theta = newer.theta;
    c->rope_scaling = newer.scaling;
    if (f->arch.partial_rotation) c->partial_rotary_factor = newer.share;
    return f->arch.local_rotation ? read_local(f, c, root, local, where, err) : OK;
}

/* ---- writing ---- */

static void write_optional(JsonWriter *w, const char *key, double value) {
    if (value > 0) family_write_double(w, key, value);
}

static void write_factors(JsonWriter *w, const char *key, const double *factors, int count) {
    json_key(w, key);
    json_begin_array(w);
    for (int i = 0; i < count; i++) json_double(w, factors[i]);
    json_end_array(w);
}

/* Omits a factor that follows from the contexts. In Phi-3 the type has its older key: transformers 4 requires
 * exactly these three members there. */
static void write_longrope(JsonWriter *w, const ModelConfig *c) {
    const RopeScaling *s = &c->rope_scaling;
    bool phi = model_family(c)->arch.longrope;
    double follows = (double)c->max_position_embeddings / (double)s->original_max_position_embeddings;
    json_put_string(w, phi ? "type" : "rope_type", kinds[s->kind]);
    if (!phi) json_put_int(w, "original_max_position_embeddings", s->original_max_position_embeddings);
    if (!same_number(s->factor, follows > 1 ? follows : 1)) family_write_double(w, "factor", s->factor);
    write_optional(w, "attention_factor", s->attention_factor);
    write_factors(w, "short_factor", s->short_factor, s->pairs);
    write_factors(w, "long_factor", s->long_factor, s->pairs);
}

/* Writes only what the kind reads, and omits a 0 that means the kind's formula. */
static void write_members(JsonWriter *w, const ModelConfig *c) {
    const RopeScaling *s = &c->rope_scaling;
    if (s->kind == ROPE_LONGROPE) {
        write_longrope(w, c);
        return;
    }
    json_put_string(w, "rope_type", kinds[s->kind]);
    family_write_double(w, "factor", s->factor);
    if (s->kind == ROPE_LLAMA3) {
        family_write_double(w, "low_freq_factor", s->low_freq_factor);
        family_write_double(w, "high_freq_factor", s->high_freq_factor);
    }
    if (s->kind == ROPE_LLAMA3 || s->kind == ROPE_YARN)
        json_put_int(w, "original_max_position_embeddings", s->original_max_position_embeddings);
    if (s->kind == ROPE_YARN || model_family(c)->arch.latent)
        write_optional(w, "mscale_all_dim", s->mscale_all_dim);
    if (s->kind != ROPE_YARN) return;
    family_write_double(w, "beta_fast", s->beta_fast);
    family_write_double(w, "beta_slow", s->beta_slow);
    write_optional(w, "attention_factor", s->attention_factor);
    write_optional(w, "mscale", s->mscale);
    if (!s->truncate) json_put_bool(w, "truncate", false);
}

/* null without scaling: "factor": 1 would be a kind without effect. Families that scale by default get type
 * "default" instead. */
static void write_scaling(JsonWriter *w, const ModelConfig *c) {
    json_key(w, "rope_scaling");
    if (!rope_is_scaled(&c->rope_scaling) && !rope_is_scaled(&model_family(c)->defaults.rope_scaling)) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    if (rope_is_scaled(&c->rope_scaling))
        write_members(w, c);
    else
        json_put_string(w, "rope_type", "default");
    json_end_object(w);
}

static void write_kind_of_layer(JsonWriter *w, const char *layers, double theta, const ModelConfig *c) {
    json_key(w, layers);
    json_begin_object(w);
    family_write_double(w, "rope_theta", theta);
    if (c && rope_is_scaled(&c->rope_scaling))
        write_members(w, c);
    else
        json_put_string(w, "rope_type", "default");
    json_end_object(w);
}

/* Writes both forms: transformers 4 has no key for some families' local base, and transformers 5 does not use
 * rope_theta for it. */
static void write_local(const ModelConfig *c, JsonWriter *w) {
    family_write_double(w, "rope_local_base_freq", c->rope_local_theta);
    json_key(w, "rope_parameters");
    json_begin_object(w);
    write_kind_of_layer(w, "full_attention", c->rope_theta, c);
    write_kind_of_layer(w, "sliding_attention", c->rope_local_theta, NULL);
    json_end_object(w);
}

void rope_keys_write(const ModelConfig *c, JsonWriter *w) {
    const Arch *a = &model_family(c)->arch;
    family_write_double(w, "rope_theta", c->rope_theta);
    write_scaling(w, c);
    if (a->longrope && rope_is_scaled(&c->rope_scaling))
        json_put_int(w, "original_max_position_embeddings", c->rope_scaling.original_max_position_embeddings);
    if (a->partial_rotation) family_write_double(w, "partial_rotary_factor", c->partial_rotary_factor);
    if (a->local_rotation) write_local(c, w);
}
