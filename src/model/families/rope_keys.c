/* Rotary positions in config.json: rope_theta and rope_scaling of transformers 4, one rope_parameters of
 * transformers 5, or both where they agree. In families whose layers with windows have a base of their own,
 * rope_parameters holds two such objects, by the kind of layer, and version 4 has rope_local_base_freq.
 * Written in the first form, which transformers 5 reads too.
 *
 *     transformers 4   "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 8.0, ...}
 *     transformers 5   "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8.0, ...}
 *     by kind          "rope_parameters": {"full_attention": {...}, "sliding_attention": {...}}
 *
 * The older keys are read first and the newer ones held against them: where a file has both and they
 * differ, no reader could tell which was trained with. */
#include <string.h>

#include "model/families/family.h"

/* In the order of RopeKind. */
static const char *const kinds[] = {"llama3", "linear", "dynamic", "yarn"};

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

/* All required: a default for any of them would be one model's. */
static ErrorCode read_llama3(const cJSON *rope, const char *where, RopeScaling *out, Error *err) {
    TRY(json_get_double(rope, where, "low_freq_factor", true, &out->low_freq_factor, err));
    TRY(json_get_double(rope, where, "high_freq_factor", true, &out->high_freq_factor, err));
    return json_get_int(rope, where, "original_max_position_embeddings", true, 1, MODEL_MAX_POSITIONS,
                        &out->original_max_position_embeddings, err);
}

/* The original context is the model's own where the file does not say. */
static ErrorCode read_yarn(const cJSON *rope, const char *where, int64_t positions, RopeScaling *out,
                           Error *err) {
    out->original_max_position_embeddings = positions;
    TRY(json_get_int(rope, where, "original_max_position_embeddings", false, 1, MODEL_MAX_POSITIONS,
                     &out->original_max_position_embeddings, err));
    TRY(json_get_double(rope, where, "attention_factor", false, &out->attention_factor, err));
    TRY(json_get_double(rope, where, "beta_fast", false, &out->beta_fast, err));
    TRY(json_get_double(rope, where, "beta_slow", false, &out->beta_slow, err));
    TRY(json_get_double(rope, where, "mscale", false, &out->mscale, err));
    TRY(json_get_double(rope, where, "mscale_all_dim", false, &out->mscale_all_dim, err));
    return json_get_bool(rope, where, "truncate", false, &out->truncate, err);
}

static ErrorCode find_kind(const Family *f, const char *where, const char *type, int *kind, Error *err) {
    /* Phi-3 means another scaling by yarn: longrope, whose factors are lists. */
    int known = f->arch.partial_rotation ? 0 : (int)(sizeof kinds / sizeof *kinds);
    for (*kind = 0; *kind < known; ++*kind)
        if (strcmp(type, kinds[*kind]) == 0) return OK;
    return family_refuse(
        where, "RoPE type", type,
        known ? "\"default\", \"llama3\", \"linear\", \"dynamic\" or \"yarn\"" : "\"default\"", err);
}

/* Starts from no scaling, so that members of an older object do not shine through. `type` "default" has no
 * members worth reading. */
static ErrorCode read_scaling(const Family *f, const cJSON *rope, const char *where, int64_t positions,
                              RopeScaling *out, Error *err) {
    const char *type = NULL;
    int kind;
    *out = ROPE_UNSCALED;
    TRY(read_rope_type(rope, where, &type, err));
    if (strcmp(type, "default") == 0) return OK;
    TRY(find_kind(f, where, type, &kind, err));
    out->kind = kind;
    TRY(json_get_double(rope, where, "factor", true, &out->factor, err));
    if (kind == ROPE_LLAMA3) return read_llama3(rope, where, out, err);
    return kind == ROPE_YARN ? read_yarn(rope, where, positions, out, err) : OK;
}

/* Exactly: files that say a number twice say it with the same digits. */
static bool same_number(double a, double b) { return a >= b && a <= b; }

static bool same_scaling(const RopeScaling *a, const RopeScaling *b) {
    return a->kind == b->kind && a->truncate == b->truncate && same_number(a->factor, b->factor) &&
           same_number(a->low_freq_factor, b->low_freq_factor) &&
           same_number(a->high_freq_factor, b->high_freq_factor) &&
           a->original_max_position_embeddings == b->original_max_position_embeddings &&
           same_number(a->attention_factor, b->attention_factor) && same_number(a->beta_fast, b->beta_fast) &&
           same_number(a->beta_slow, b->beta_slow) && same_number(a->mscale, b->mscale) &&
           same_number(a->mscale_all_dim, b->mscale_all_dim);
}

/* The share of a head that is turned, wherever a dialect has it. Other families may say 1, which is what
 * they do. */
static ErrorCode read_partial(const Family *f, ModelConfig *c, const cJSON *object, const char *where,
                              Error *err) {
    double share = c->partial_rotary_factor > 0 ? c->partial_rotary_factor : 1;
    TRY(json_get_double(object, where, "partial_rotary_factor", false, &share, err));
    if (!f->arch.partial_rotation && !same_number(share, 1))
        return error_set(err, ERR_CONFIG, "%s: partial_rotary_factor is %g, expected 1", where, share);
    if (f->arch.partial_rotation) c->partial_rotary_factor = share;
    return OK;
}

/* Layers with windows turn unscaled: a type other than "default" there would be a third kind of table.
 * Their base is that of the other layers where the object does not give one. */
static ErrorCode read_local(const Family *f, ModelConfig *c, const cJSON *local, const char *where,
                            Error *err) {
    const char *type = NULL;
    if (!f->arch.local_rotation)
        return error_set(err, ERR_CONFIG,
                         "%s: rope_parameters by kind of layer are not supported in the family %s", where,
                         f->model_type);
    c->rope_local_theta = c->rope_theta;
    TRY(read_rope_type(local, where, &type, err));
    if (strcmp(type, "default") != 0)
        return family_refuse(where, "RoPE type of sliding_attention", type, "\"default\"", err);
    return json_get_double(local, where, "rope_theta", false, &c->rope_local_theta, err);
}

/* One object of transformers 5, that of all layers or of those without windows. */
static ErrorCode read_new(const Family *f, ModelConfig *c, const cJSON *root, const cJSON *rope,
                          const char *where, Error *err) {
    RopeScaling scaling;
    double theta = c->rope_theta;
    TRY(json_get_double(rope, where, "rope_theta", false, &theta, err));
    TRY(read_partial(f, c, rope, where, err));
    TRY(read_scaling(f, rope, where, c->max_position_embeddings, &scaling, err));
    if (family_member(root, "rope_theta") != NULL && !same_number(theta, c->rope_theta))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_theta %g and rope_parameters.rope_theta %g contradict each other", where,
                         c->rope_theta, theta);
    if (family_member(root, "rope_scaling") != NULL && !same_scaling(&scaling, &c->rope_scaling))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_scaling and rope_parameters contradict each other; remove one", where);
    c->rope_theta = theta;
    c->rope_scaling = scaling;
    return OK;
}

/* Files of version 4 keep the partial factor beside rope_theta or within rope_scaling. */
static ErrorCode read_old(const Family *f, ModelConfig *c, const cJSON *root, const cJSON *scaling,
                          const char *where, Error *err) {
    TRY(json_get_double(root, where, "rope_theta", false, &c->rope_theta, err));
    TRY(read_partial(f, c, root, where, err));
    if (scaling != NULL) TRY(read_partial(f, c, scaling, where, err));
    if (f->arch.local_rotation)
        TRY(json_get_double(root, where, "rope_local_base_freq", false, &c->rope_local_theta, err));
    if (scaling == NULL) return OK;
    return read_scaling(f, scaling, where, c->max_position_embeddings, &c->rope_scaling, err);
}

/* Comes behind max_position_embeddings in every entry (keys.h): yarn's original context defaults to it. */
ErrorCode rope_keys_read(const Family *f, ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *old = family_member(root, "rope_scaling"), *new = family_member(root, "rope_parameters");
    if ((old != NULL && !cJSON_IsObject(old)) || (new != NULL && !cJSON_IsObject(new)))
        return error_set(err, ERR_CONFIG, "%s: rope_scaling and rope_parameters must be objects", where);
    TRY(read_old(f, c, root, old, where, err));
    const cJSON *full = new ? family_member(new, "full_attention") : NULL,
                *local = new ? family_member(new, "sliding_attention") : NULL;
    if (new != NULL) TRY(read_new(f, c, root, full || local ? full : new, where, err));
    if (local != NULL) return read_local(f, c, local, where, err);
    return OK;
}

/* ---- writing ---- */

static void write_optional(JsonWriter *w, const char *key, double value) {
    if (value > 0) family_write_double(w, key, value);
}

/* Only what the kind reads. What is 0 for "by its formula" is left out. */
static void write_members(JsonWriter *w, const RopeScaling *s) {
    json_put_string(w, "rope_type", kinds[s->kind]);
    family_write_double(w, "factor", s->factor);
    if (s->kind == ROPE_LLAMA3) {
        family_write_double(w, "low_freq_factor", s->low_freq_factor);
        family_write_double(w, "high_freq_factor", s->high_freq_factor);
    }
    if (s->kind == ROPE_LLAMA3 || s->kind == ROPE_YARN)
        json_put_int(w, "original_max_position_embeddings", s->original_max_position_embeddings);
    if (s->kind != ROPE_YARN) return;
    family_write_double(w, "beta_fast", s->beta_fast);
    family_write_double(w, "beta_slow", s->beta_slow);
    write_optional(w, "attention_factor", s->attention_factor);
    write_optional(w, "mscale", s->mscale);
    write_optional(w, "mscale_all_dim", s->mscale_all_dim);
    if (!s->truncate) json_put_bool(w, "truncate", false);
}

/* null where there is none: "factor": 1 would be a kind that does nothing. Families that scale where a file
 * says nothing are told so. */
static void write_scaling(JsonWriter *w, const Family *f, const RopeScaling *s) {
    json_key(w, "rope_scaling");
    if (s->factor <= 1.0 && f->defaults.rope_scaling.factor <= 1.0) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    if (s->factor > 1.0)
        write_members(w, s);
    else
        json_put_string(w, "rope_type", "default");
    json_end_object(w);
}

static void write_kind_of_layer(JsonWriter *w, const char *layers, double theta, const RopeScaling *s) {
    json_key(w, layers);
    json_begin_object(w);
    family_write_double(w, "rope_theta", theta);
    if (s->factor > 1)
        write_members(w, s);
    else
        json_put_string(w, "rope_type", "default");
    json_end_object(w);
}

/* Both forms: transformers 4 has no key for some families' local base, and transformers 5 does not take
 * rope_theta for it. */
static void write_local(const ModelConfig *c, JsonWriter *w) {
    family_write_double(w, "rope_local_base_freq", c->rope_local_theta);
    json_key(w, "rope_parameters");
    json_begin_object(w);
    write_kind_of_layer(w, "full_attention", c->rope_theta, &c->rope_scaling);
    write_kind_of_layer(w, "sliding_attention", c->rope_local_theta, &ROPE_UNSCALED);
    json_end_object(w);
}

void rope_keys_write(const ModelConfig *c, JsonWriter *w) {
    const Arch *a = &model_family(c)->arch;
    family_write_double(w, "rope_theta", c->rope_theta);
    write_scaling(w, model_family(c), &c->rope_scaling);
    if (a->partial_rotation) family_write_double(w, "partial_rotary_factor", c->partial_rotary_factor);
    if (a->local_rotation) write_local(c, w);
}
