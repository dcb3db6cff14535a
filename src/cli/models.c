/* weft models: the families that weft trains, and the published models of each.
 *
 * Everything comes from the tables of families (model/families/), so a new family is listed without changes
 * here. The sizes are facts about published models, to recognise and to reproduce them; they limit nothing,
 * since a model of any size may be configured. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "model/families/family.h"

static void print_experts(const Family *f, const PublishedSize *s) {
    const PublishedExperts *e = f->experts ? &f->experts[s - f->sizes] : NULL;
    char count[32];
    if (!e) return;
    terminal_printf(", %lld experts of %lld, %lld a token", (long long)e->experts,
                    (long long)(e->width ? e->width : s->intermediate_size), (long long)e->chosen);
    if (e->shared) terminal_printf(" and %lld shared", (long long)e->shared);
    if (e->step) terminal_printf(", in one of %lld layers", (long long)e->step);
    terminal_printf(": %s active", text_count(e->active, count));
}

static void print_latents(const Family *f, const PublishedSize *s) {
    const PublishedLatents *l = f->latents ? &f->latents[s - f->sizes] : NULL;
    if (l && l->queries) terminal_printf(", latent of queries %lld", (long long)l->queries);
    if (l)
        terminal_printf(", latent of keys and values %lld, values of %lld", (long long)l->keys,
                        (long long)l->values);
}

/* One line per size, in columns, so that the sizes of a family can be compared. A family without published
 * sizes has only a heading. */
static void print_family(const Family *f) {
    char count[32];
    terminal_printf("%s (%s)\n", f->model_type, f->architecture);
    for (const PublishedSize *s = f->sizes; s && s->name; s++) {
        terminal_printf(
            "  %-18s %8s  %3lld layers of %5lld, %3lld heads, %2lld for keys and values, of %3lld, MLP "
            "%5lld, "
            "vocabulary %6lld%s",
            s->name, text_count(s->parameters, count), (long long)s->num_hidden_layers,
            (long long)s->hidden_size, (long long)s->num_attention_heads, (long long)s->num_key_value_heads,
            (long long)s->head_dim, (long long)s->intermediate_size, (long long)s->vocab_size,
            s->tied ? ", tied" : "");
        print_experts(f, s);
        print_latents(f, s);
        terminal_printf("\n");
    }
}

/* The names are those of config.json and of the model's keys: the output can be copied into a
 * configuration. */
static void write_experts(JsonWriter *w, const PublishedExperts *e) {
    json_put_int(w, "num_experts", e->experts);
    json_put_int(w, "num_experts_per_tok", e->chosen);
    if (e->width) json_put_int(w, "moe_intermediate_size", e->width);
    if (e->shared) json_put_int(w, "n_shared_experts", e->shared);
    if (e->dense) json_put_int(w, "first_k_dense_replace", e->dense);
    if (e->step) json_put_int(w, "interleave_moe_layer_step", e->step);
    json_put_int(w, "active_parameters", e->active);
}

static void write_latents(JsonWriter *w, const PublishedLatents *l) {
    json_put_int(w, "q_lora_rank", l->queries);
    json_put_int(w, "kv_lora_rank", l->keys);
    json_put_int(w, "qk_nope_head_dim", l->nope);
    json_put_int(w, "qk_rope_head_dim", l->rope);
    json_put_int(w, "v_head_dim", l->values);
}

static void write_size(JsonWriter *w, const Family *f, const PublishedSize *s) {
    json_begin_object(w);
    json_put_string(w, "name", s->name);
    json_put_int(w, "parameters", s->parameters);
    json_put_int(w, "num_hidden_layers", s->num_hidden_layers);
    json_put_int(w, "hidden_size", s->hidden_size);
    json_put_int(w, "intermediate_size", s->intermediate_size);
    json_put_int(w, "num_attention_heads", s->num_attention_heads);
    json_put_int(w, "num_key_value_heads", s->num_key_value_heads);
    json_put_int(w, "head_dim", s->head_dim);
    json_put_int(w, "vocab_size", s->vocab_size);
    json_put_bool(w, "tie_word_embeddings", s->tied);
    if (f->experts) write_experts(w, &f->experts[s - f->sizes]);
    if (f->latents) write_latents(w, &f->latents[s - f->sizes]);
    json_end_object(w);
}

/* config.json has two names for the kind of a model, model_type and architecture; readers differ in which of
 * them they use. */
static void write_family(JsonWriter *w, const Family *f) {
    json_begin_object(w);
    json_put_string(w, "model_type", f->model_type);
    json_put_string(w, "architecture", f->architecture);
    json_key(w, "sizes");
    json_begin_array(w);
    for (const PublishedSize *s = f->sizes; s && s->name; s++) write_size(w, f, s);
    json_end_array(w);
    json_end_object(w);
}

static bool is_asked(const Family *f, const char *only) { return !only || strcmp(only, f->model_type) == 0; }

static void print_text(const char *only) {
    bool first = true;
    for (int i = 0; families[i]; i++) {
        if (!is_asked(families[i], only)) continue;
        if (!first) terminal_printf("\n");
        print_family(families[i]);
        first = false;
    }
}

static void print_json(const char *only) {
    JsonWriter w;
    Text out = {0};
    json_start(&w, &out, 2);
    json_begin_array(&w);
    for (int i = 0; families[i]; i++)
        if (is_asked(families[i], only)) write_family(&w, families[i]);
    json_end_array(&w);
    terminal_printf("%s\n", out.data);
    text_free(&out);
}

/* One family, or all. An unknown name is an error with the list of families: an empty answer could be taken
 * for a family without sizes. */
static ErrorCode run_models(const Arguments *args, Error *err) {
    const char *only = args->operand_count > 0 ? args->operands[0] : NULL;
    bool found = false;
    char shown[64];
    for (int i = 0; families[i]; i++) found = found || is_asked(families[i], only);
    if (!found)
        return error_set(err, ERR_USAGE, "no family \"%s\"; expected one of %s",
                         error_escape(shown, sizeof shown, only, strlen(only)), FAMILY_NAMES);
    if (arguments_has(args, "--json"))
        print_json(only);
    else
        print_text(only);
    return OK;
}

static const Flag flags[] = {
    {"--json", 0, NULL, "one JSON array"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_models = {
    .name = "models",
    .summary = "list the families of models that weft trains, with published sizes",
    .synopsis = "[FAMILY] [--json]",
    .details = "A model of any size of these families can be trained, from random weights (model.family) or "
               "from a Hugging Face directory (model.init); the sizes are those that were published.\n\n"
               "Examples:\n"
               "  weft models\n"
               "  weft models qwen3",
    .flags = flags,
    .max_operands = 1,
    .run = run_models,
};
