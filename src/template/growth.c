/* Renders one conversation message by message.
 *
 * The outermost loop over messages does the same for the first k of them, however many follow, as long as the
 * template does not look at their number. So the state before each item is saved (text, names, members of
 * namespaces), and a rendering of more messages resumes from the last saved state.
 *
 *     open values    messages, slices of them after the first few, add_generation_prompt, loop.length and
 *                    similar ones; loop.last and loop.nextitem of the last item; loop as a whole
 *     looked at      when an open value is used for anything but an existing item or member, [n:], `for`,
 *                    `set`, tests of its kind, default(x), and whether what has items has any
 *
 *  G1. A state is saved only while no open value was looked at: it is the same for any greater or equal
 *      number of messages.
 *  G2. An open list is a slice of all[]; each further message makes it one item longer.
 *  G3. Memory of a rendering stays in the arena as long as later ones resume from its states; beyond a limit
 *      the next rendering starts over. */
#include <stdlib.h>
#include <string.h>

#include "template/internal.h"

enum { MOST_KEPT = 1 << 27 };

struct TemplateGrowth {
    Run run;
    Arena arena;         /* of variables */
    Namespace variables; /* including messages, with all[] of them */
    const Value *all;
    size_t all_count, count; /* all messages; those of the last rendering */
    Text text;
    /* The saved state; loop NULL: none. */
    const Node *loop;
    Value over;
    size_t at, length, saved; /* index of the next item; length of the text; messages at the time */
    Namespace *spaces;
    /* [name_count] of the template, then of each namespace: their number, then keys and values */
    Value *names;
    size_t name_count, name_capacity;
};

TemplateGrowth *template_growth_open(const Template *t, const cJSON *variables, const char *date) {
    TemplateGrowth *g = mem_alloc(sizeof *g);
    g->run = (Run){.t = t, .date = date, .growth = g};
    for (const cJSON *v = variables->child; v; v = v->next) {
        Value value = value_of_json(&g->arena, v, false);
        const char *name = value_copy(&g->arena, v->string, strlen(v->string)).bytes;
        namespace_set(&g->arena, &g->variables, name, &value);
    }
    const Value names = {.kind = VALUE_DICT, .items = g->variables.items, .size = g->variables.count},
                *messages = value_member(&names, "messages", strlen("messages"));
    CHECK(messages && messages->kind == VALUE_LIST);
    g->all = messages->items;
    g->all_count = messages->size;
    return g;
}

void template_growth_close(TemplateGrowth *g) {
    if (!g) return;
    arena_free(&g->run.arena);
    arena_free(&g->arena);
    text_free(&g->text);
    free(g->names);
    free(g);
}

size_t template_growth_kept(const TemplateGrowth *g) { return g->loop ? g->length : 0; }

/* ---- saving ---- */

static void put_values(TemplateGrowth *g, const Value *items, size_t count) {
    if (g->name_count + count > g->name_capacity) {
        g->name_capacity = 2 * (g->name_count + count);
        g->names = mem_grow(g->names, g->name_capacity * sizeof *g->names);
    }
    if (count) memcpy(g->names + g->name_count, items, count * sizeof *items);
    g->name_count += count;
}

static void put_names(TemplateGrowth *g, const Namespace *n) {
    Value count = value_int((int64_t)n->count);
    put_values(g, &count, 1);
    put_values(g, n->items, 2 * n->count);
}

void growth_save(TemplateGrowth *g, const Node *loop, const Value *over, size_t at) {
    g->loop = loop;
    g->over = *over;
    g->at = at;
    g->length = g->text.length;
    g->saved = g->count;
    g->spaces = g->run.spaces;
    g->name_count = 0;
    put_names(g, &g->run.root.names);
    for (const Namespace *n = g->spaces; n; n = n->before) put_names(g, n);
}

/* ---- resuming ---- */

/* Updates an open value for a rendering with `more` additional messages (G2). */
static void update_open(Value *v, size_t more, bool prompt) {
    if (v->open == OPEN) v->size += more;
    if (v->open == OPEN_PROMPT) v->integer = prompt;
}

/* Restores saved names; the capacity of a namespace never shrinks. */
static const Value *take_names(Namespace *n, const Value *from, size_t more, bool prompt) {
    n->count = (size_t)from->integer;
    if (n->count) memcpy(n->items, from + 1, 2 * n->count * sizeof *from);
    for (size_t i = 0; i < n->count; i++) update_open(&n->items[2 * i + 1], more, prompt);
    return from + 1 + 2 * n->count;
}

static ErrorCode go_on(TemplateGrowth *g, size_t more, bool prompt) {
    Run *r = &g->run;
    g->text.length = g->length;
    if (g->text.data) g->text.data[g->length] = 0;
    r->looked_ahead = false;
    r->spaces = g->spaces;
    const Value *from = take_names(&r->root.names, g->names, more, prompt);
    for (Namespace *n = r->spaces; n; n = n->before) from = take_names(n, from, more, prompt);
    Value over = g->over;
    update_open(&over, more, prompt);
    return run_on(r, g->loop, &over, g->at);
}

static ErrorCode begin(TemplateGrowth *g, size_t count, bool prompt) {
    Run *r = &g->run;
    Value messages = value_list(g->all, count), asked = value_bool(prompt);
    messages.open = OPEN;
    asked.open = OPEN_PROMPT;
    arena_free(&r->arena);
    text_clear(&g->text);
    g->loop = NULL;
    *r = (Run){.t = r->t, .date = r->date, .growth = g, .out = r->out, .err = r->err};
    for (size_t i = 0; i < g->variables.count; i++)
        namespace_set(&r->arena, &r->root.names, g->variables.items[2 * i].bytes,
                      &g->variables.items[2 * i + 1]);
    namespace_set(&r->arena, &r->root.names, "messages", &messages);
    namespace_set(&r->arena, &r->root.names, "add_generation_prompt", &asked);
    return run_template(r);
}

ErrorCode template_growth_render(TemplateGrowth *g, size_t count, bool prompt, const Text **out, Error *err) {
    Run *r = &g->run;
    CHECK(count >= g->count && count <= g->all_count);
    r->out = &g->text;
    r->err = err;
    r->steps = r->depth = 0;
    bool goes_on = g->loop && r->arena.used < MOST_KEPT;
    size_t more = count - g->saved;
    g->count = count;
    ErrorCode code = goes_on ? go_on(g, more, prompt) : begin(g, count, prompt);
    if (code != OK) g->loop = NULL;
    *out = &g->text;
    return code;
}
