/* The table of families, and what is looked up in an entry. */
#include "model/families/family.h"

#include <string.h>

const Family *const families[] = {&family_llama, NULL};

const Family *model_family(const ModelConfig *c) { return c->family ? c->family : families[0]; }

const char *family_parameter_name(const Family *f, const ParamRow *row) {
    for (const NameRule *n = f->names; n && n->row; n++)
        if (strcmp(n->row, row->name) == 0) return n->name;
    return row->name;
}

static bool same_shape(const PublishedSize *s, const ModelConfig *c) {
    return s->vocab_size == c->vocab_size && s->hidden_size == c->hidden_size &&
           s->intermediate_size == c->intermediate_size && s->num_hidden_layers == c->num_hidden_layers &&
           s->num_attention_heads == c->num_attention_heads &&
           s->num_key_value_heads == c->num_key_value_heads && s->head_dim == c->head_dim &&
           s->tied == c->tie_word_embeddings;
}

const PublishedSize *family_published(const ModelConfig *c) {
    for (const PublishedSize *s = model_family(c)->sizes; s && s->name; s++)
        if (same_shape(s, c)) return s;
    return NULL;
}
