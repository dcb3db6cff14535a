/* Rotary positions in config.json: rope_theta and rope_scaling of transformers 4, one rope_parameters of
 * transformers 5, or both where they agree. Written in the first form, which transformers 5 reads too. */
#include <string.h>

#include "model/families/family.h"

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

static ErrorCode read_scaling(const cJSON *rope, const char *where, RopeScaling *out, Error *err) {
    const char *type = NULL;
    double partial = 1.0;
    *out = (RopeScaling){.factor = 1.0};
    TRY(read_rope_type(rope, where, &type, err));
    TRY(json_get_double(rope, where, "partial_rotary_factor", false, &partial, err));
    if (!(partial >= 1.0 && partial <= 1.0))
        return error_set(err, ERR_CONFIG, "%s: partial_rotary_factor is %g, expected 1", where, partial);
    if (strcmp(type, "default") == 0) return OK;
    if (strcmp(type, "llama3") != 0)
        return family_refuse(where, "RoPE type", type, "\"default\" or \"llama3\"", err);
    TRY(json_get_double(rope, where, "factor", true, &out->factor, err));
    TRY(json_get_double(rope, where, "low_freq_factor", true, &out->low_freq_factor, err));
    TRY(json_get_double(rope, where, "high_freq_factor", true, &out->high_freq_factor, err));
    return json_get_int(rope, where, "original_max_position_embeddings", true, 1, MODEL_MAX_POSITIONS,
                        &out->original_max_position_embeddings, err);
}

static bool same_number(double a, double b) { return a >= b && a <= b; }

static bool same_scaling(const RopeScaling *a, const RopeScaling *b) {
    return same_number(a->factor, b->factor) && same_number(a->low_freq_factor, b->low_freq_factor) &&
           same_number(a->high_freq_factor, b->high_freq_factor) &&
           a->original_max_position_embeddings == b->original_max_position_embeddings;
}

/* The two dialects: rope_theta and rope_scaling of transformers 4, one rope_parameters of transformers 5. */
ErrorCode rotation_read(ModelConfig *c, const cJSON *root, const char *where, Error *err) {
    const cJSON *old = family_member(root, "rope_scaling"), *new = family_member(root, "rope_parameters");
    RopeScaling scaling;
    double theta;
    if ((old != NULL && !cJSON_IsObject(old)) || (new != NULL && !cJSON_IsObject(new)))
        return error_set(err, ERR_CONFIG, "%s: rope_scaling and rope_parameters must be objects", where);
    TRY(json_get_double(root, where, "rope_theta", false, &c->rope_theta, err));
    if (old != NULL) TRY(read_scaling(old, where, &c->rope_scaling, err));
    if (new == NULL) return OK;
    theta = c->rope_theta;
    TRY(json_get_double(new, where, "rope_theta", false, &theta, err));
    TRY(read_scaling(new, where, &scaling, err));
    if (family_member(root, "rope_theta") != NULL && !same_number(theta, c->rope_theta))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_theta %g and rope_parameters.rope_theta %g contradict each other", where,
                         c->rope_theta, theta);
    if (old != NULL && !same_scaling(&scaling, &c->rope_scaling))
        return error_set(err, ERR_CONFIG,
                         "%s: rope_scaling and rope_parameters contradict each other; remove one", where);
    c->rope_theta = theta;
    c->rope_scaling = scaling;
    return OK;
}

static void write_scaling(JsonWriter *w, const RopeScaling *s) {
    json_key(w, "rope_scaling");
    if (s->factor <= 1.0) {
        json_null(w);
        return;
    }
    json_begin_object(w);
    json_put_string(w, "rope_type", "llama3");
    family_write_double(w, "factor", s->factor);
    family_write_double(w, "low_freq_factor", s->low_freq_factor);
    family_write_double(w, "high_freq_factor", s->high_freq_factor);
    json_put_int(w, "original_max_position_embeddings", s->original_max_position_embeddings);
    json_end_object(w);
}

void rotation_write(const ModelConfig *c, JsonWriter *w) {
    family_write_double(w, "rope_theta", c->rope_theta);
    write_scaling(w, &c->rope_scaling);
}
