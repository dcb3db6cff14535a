/* The table of families, and look-ups in an entry. The first family is the default, for a file without
 * model_type and for a run that names none. */
#include "model/families/family.h"

#include <inttypes.h>
#include <string.h>

#include "device/ops/experts.h"

#define FAMILY_POINTER(name) &family_##name,
const Family *const families[] = {FAMILIES(FAMILY_POINTER) NULL};

const Family *model_family(const ModelConfig *c) { return c->family ? c->family : families[0]; }

/* Rows without a rule keep Llama's name, so most families have no rules. */
const char *family_parameter_name(const Family *f, const ParamRow *row) {
    for (const NameRule *n = f->names; n && n->row; n++)
        if (strcmp(n->row, row->name) == 0) return n->name;
    return row->name;
}

/* Compares sizes, not bases, windows or token ids, in which models of one size may differ. */
static bool same_shape(const PublishedSize *s, const ModelConfig *c) {
    return s->vocab_size == c->vocab_size && s->hidden_size == c->hidden_size &&
           s->intermediate_size == c->intermediate_size && s->num_hidden_layers == c->num_hidden_layers &&
           s->num_attention_heads == c->num_attention_heads &&
           s->num_key_value_heads == c->num_key_value_heads && s->head_dim == c->head_dim &&
           s->tied == c->tie_word_embeddings;
}

static bool same_experts(const PublishedExperts *e, const ModelConfig *c) {
    return e->experts == c->num_experts && e->chosen == c->num_experts_per_tok &&
           e->width == c->moe_intermediate_size && e->shared == c->n_shared_experts &&
           e->dense == c->first_k_dense_replace && e->step == c->dense_layers.period;
}

static bool same_latents(const PublishedLatents *l, const ModelConfig *c) {
    return l->queries == c->q_lora_rank && l->keys == c->kv_lora_rank && l->nope == c->qk_nope_head_dim &&
           l->rope == c->qk_rope_head_dim && l->values == c->v_head_dim;
}

const PublishedSize *family_published(const ModelConfig *c) {
    const Family *f = model_family(c);
    for (const PublishedSize *s = f->sizes; s && s->name; s++)
        if (same_shape(s, c) && (!f->experts || same_experts(&f->experts[s - f->sizes], c)) &&
            (!f->latents || same_latents(&f->latents[s - f->sizes], c)))
            return s;
    return NULL;
}

/* Sizes have no useful defaults: those of transformers' classes are of one model. */
ModelConfig family_defaults(const Family *f, const ModelConfig *c) {
    ModelConfig d = f->defaults;
    d.family = f;
    d.vocab_size = c->vocab_size;
    d.hidden_size = c->hidden_size;
    d.intermediate_size = c->intermediate_size;
    d.num_hidden_layers = c->num_hidden_layers;
    d.num_attention_heads = c->num_attention_heads;
    d.num_key_value_heads = c->num_key_value_heads;
    if (d.head_dim == 0 && !f->arch.latent) d.head_dim = c->head_dim;
    d.max_position_embeddings = c->max_position_embeddings;
    d.bos_token_id = c->bos_token_id;
    d.eos_token_id = c->eos_token_id;
    if (d.partial_rotary_factor <= 0) d.partial_rotary_factor = 1;
    if (f->window_keys == WINDOWS_BEHIND || f->window_keys == WINDOWS_SWITCH)
        d.sliding_window = 0; /* use_sliding_window is false */
    return d;
}

/* ---- what a family can express ---- */

/* Offset 0 belongs to rules that are not about a field. */
static bool reads_field(const Family *f, size_t offset) {
    for (const KeyRule *k = f->keys; k->name; k++)
        if (k->offset == offset && offset > 0) return true;
    return false;
}

bool family_reads(const Family *f, KeyKind kind) {
    for (const KeyRule *k = f->keys; k->name; k++)
        if (k->kind == kind) return true;
    return false;
}

bool family_has_experts(const Family *f) { return reads_field(f, offsetof(ModelConfig, num_experts)); }

static ErrorCode refuse_field(const Family *f, const char *where, const char *field, Error *err) {
    return error_set(
        err, ERR_CONFIG,
        "%s: the family %s has no key for another %s than its own: leave it out, or take another "
        "family",
        where, f->model_type, field);
}

/* Bytes of the value that a rule of this kind holds in its field; 0: family_check has its own conditions. */
static size_t field_bytes(KeyKind kind) {
    bool integer = kind == KEY_SIZE || kind == KEY_COUNT || kind == KEY_OR_NULL;
    bool number = kind == KEY_NUMBER || kind == KEY_WHOLE || kind == KEY_OPTIONAL;
    return integer ? sizeof(int64_t) : number ? sizeof(double) : kind == KEY_SWITCH ? sizeof(bool) : 0;
}

/* Exact: a run or a file that sets the family's number has that very number. */
static bool same_field(const KeyRule *k, const ModelConfig *a, const ModelConfig *b) {
    size_t bytes = field_bytes(k->kind);
    return bytes == 0 || memcmp((const char *)a + k->offset, (const char *)b + k->offset, bytes) == 0;
}

/* Fields with several names among the families, or whose usual value depends on other fields. */
static ErrorCode check_named_fields(const ModelConfig *c, const char *where, Error *err) {
    const Family *f = model_family(c);
    const ModelConfig *d = &f->defaults;
#define FIELD(name) #name, offsetof(ModelConfig, name)
    const struct {
        const char *name;
        size_t offset;
        bool same;
    } fields[] = {
        {FIELD(num_key_value_heads), c->num_key_value_heads == c->num_attention_heads},
        {FIELD(head_dim), f->arch.latent || c->head_dim == c->hidden_size / c->num_attention_heads},
        {FIELD(num_experts), c->num_experts == d->num_experts},
        {FIELD(moe_intermediate_size), c->moe_intermediate_size == d->moe_intermediate_size},
    };
#undef FIELD
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!fields[i].same && !reads_field(f, fields[i].offset))
            return refuse_field(f, where, fields[i].name, err);
    return OK;
}

/* A field for which another family has a key and this one has none must have the value that every model of
 * the family has. A checkpoint writes only the family's config.json, so another value would be lost, and the
 * file read as another model. Called on a complete shape, so zeros that mean "the usual" are filled in. */
static ErrorCode check_fields(const ModelConfig *c, const char *where, Error *err) {
    const Family *f = model_family(c);
    ModelConfig d = f->defaults;
    TRY(check_named_fields(c, where, err));
    d.num_key_value_heads = c->num_key_value_heads, d.head_dim = c->head_dim;
    for (const Family *const *other = families; *other; other++)
        for (const KeyRule *k = (*other)->keys; k->name; k++)
            if (!reads_field(f, k->offset) && !same_field(k, c, &d))
                return refuse_field(f, where, k->name, err);
    return OK;
}

ErrorCode family_check(const ModelConfig *c, const char *where, Error *err) {
    const Family *f = model_family(c);
    if (model_is_recurrent(c) && !family_reads(f, KEY_MIXERS))
        return error_set(
            err, ERR_CONFIG,
            "%s: blocks of the family %s have attention, all of them: for other mixers take the family "
            "recurrent",
            where, f->model_type);
    TRY(check_fields(c, where, err));
    if (c->sliding_window > 0 && !family_reads(f, KEY_WINDOWS))
        return refuse_field(f, where, "sliding_window", err);
    if (c->no_rope.period > 0 && !family_reads(f, KEY_NO_ROPE))
        return refuse_field(f, where, "no_rope_layers", err);
    if (c->rope_local_theta > 0 && !f->arch.local_rotation)
        return refuse_field(f, where, "rope_local_theta", err);
    if (f->arch.local_rotation && rope_is_scaled(&c->rope_scaling) && c->rope_scaling.kind == ROPE_YARN &&
        !c->rope_scaling.truncate)
        return error_set(
            err, ERR_CONFIG,
            "%s: yarn with truncate false is not supported in the family %s: transformers "
            "truncates where a family has two kinds of layers, whatever the file has: leave it out",
            where, f->model_type);
    if (f->arch.longrope && rope_is_scaled(&c->rope_scaling) && c->rope_scaling.kind != ROPE_LONGROPE)
        return error_set(err, ERR_CONFIG, "%s: the family %s has no scaling of the rotation but longrope",
                         where, f->model_type);
    if (model_rotary_dim(c) != c->head_dim && !f->arch.partial_rotation && !f->arch.latent)
        return refuse_field(f, where, "partial_rotary_factor", err);
    if (c->dense_layers.period > 0 && !family_reads(f, KEY_DENSE) && !family_reads(f, KEY_SPARSE))
        return refuse_field(f, where, "dense_layers", err);
    if (!model_is_recurrent(c) && family_reads(f, KEY_MIXERS))
        return error_set(
            err, ERR_CONFIG,
            "%s: no block of the family %s has a recurrence: name its mixers, or take the family llama",
            where, f->model_type);
    if (family_has_experts(f) && c->num_experts == 0)
        return error_set(err, ERR_CONFIG, "%s: num_experts is 0, expected a number from 1 to %d", where,
                         EXPERTS_MAX);
    if ((f->window_keys == WINDOWS_ALL || f->window_keys == WINDOWS_SWITCH) && c->windows.period > 1)
        return refuse_field(f, where, "window_layers", err);
    return OK;
}
