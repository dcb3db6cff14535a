/* Assigns an optimizer, with its settings, to each parameter.
 *
 *     section optimizer ----------------------------+ what an item leaves out
 *     items of optimizer.groups, in order ----------+--> settings of each group, complete
 *         | patterns (PCRE2), tried on every name       |
 *         +--> the first that matches takes it          +--> each must be read by the group's optimizer
 *     parameters that none matches: the rest, with the section's settings
 *         |
 *         +--> an optimizer of matrices keeps those of blocks; its others get an AdamW fallback group
 *
 * Groups are made in three steps: settings are completed, patterns are tried on every name in order, and what
 * would go unnoticed (a pattern without effect, a setting that nothing reads) is refused. Groups depend on
 * names alone, so they are the same on every rank and mesh without communication. */
#include "optimizer/groups.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/pattern.h"

/* ---- settings ---- */

/* Completing, refusing and printing iterate over the option rows of an item of optimizer.groups: a new
 * setting needs a row there, one in the section, and its name in what its optimizers read. */
static bool is_setting(const Option *row) {
    return row->optional && row->offset < offsetof(OptimizerGroup, whole);
}

static const void *field_of(const OptimizerSettings *of, const Option *s) {
    return (const char *)of + s->offset - offsetof(OptimizerGroup, settings);
}

static bool is_given(const Option *s, const OptimizerSettings *of) {
    return !option_is_unset(s, field_of(of, s));
}

/* Takes what a group leaves out from the section. */
static void complete(OptimizerSettings *group, const OptimizerSettings *section) {
    for (const Option *s = group_options; s->key; s++) {
        size_t at = s->offset - offsetof(OptimizerGroup, settings);
        size_t bytes = s->type == OPT_CHOICE ? sizeof(int) : sizeof(double);
        if (is_setting(s) && !is_given(s, group))
            memcpy((char *)group + at, (const char *)section + at, bytes);
    }
}

/* Whether the list contains the name: "beta1" is in "lr, beta1, beta2", "beta" is not. */
static bool is_listed(const char *name, const char *list) {
    size_t length = strlen(name);
    for (const char *at = list; (at = strstr(at, name)); at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ',' || at[length] == '\0')) return true;
    return false;
}

/* Every optimizer accepts a kind, and a dtype for states that it may have. Any other setting that the group's
 * optimizer does not read would silently have no effect. */
static ErrorCode check_given(const OptimizerSettings *given, int item, const Optimizer *o, Error *err) {
    for (const Option *s = group_options; s->key; s++) {
        if (!is_setting(s) || strcmp(s->key, "kind") == 0 || strcmp(s->key, "states") == 0) continue;
        if (is_given(s, given) && !is_listed(s->key, o->reads))
            return error_set(err, ERR_CONFIG, "optimizer.groups[%d].%s: %s does not read it, only %s", item,
                             s->key, o->name, o->reads);
    }
    return OK;
}

/* Frozen parameters read no setting. */
static ErrorCode check_frozen(const OptimizerGroup *from, int item, Error *err) {
    for (const Option *s = group_options; s->key; s++) {
        if (is_setting(s) && is_given(s, &from->settings))
            return error_set(err, ERR_CONFIG,
                             "optimizer.groups[%d].%s: the group is frozen, so nothing reads it", item,
                             s->key);
    }
    if (from->whole <= 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "optimizer.groups[%d].whole: the group is frozen, and no optimizer asks for whole matrices", item);
}

/* A run that trains nothing has a mistake in a pattern. */
static ErrorCode check_trains(const ParamGroups *g, Error *err) {
    for (int i = 0; i < g->count; i++)
        if (!g->items[i].frozen && g->items[i].params > 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "optimizer.groups: every parameter is frozen, so there is nothing to train");
}

/* ---- patterns ---- */

enum { FREE = -1, BASE = -2, FIXED = -3 }; /* of a parameter that has no group yet */

/* Takes the parameters that the pattern matches and no group has. Sets *found to how many it matches, taken
 * or not: this tells a useless pattern from one that comes too late. */
static ErrorCode take(ParamGroups *g, int item, const Pattern *pattern, const ParamTable *t, int *found,
                      Error *err) {
    for (int i = 0; i < t->count; i++) {
        bool finds;
        TRY(pattern_find(pattern, t->params[i].name, &finds, err));
        *found += finds;
        if (finds && g->of[i] == FREE) g->of[i] = item;
    }
    return OK;
}

/* Why a pattern takes nothing: no name matches, or earlier groups took all that do, or they are not trained
 * because there are adapters. */
static ErrorCode refuse_idle(const ParamGroups *g, int item, const ParamTable *t, int found, Error *err) {
    char shown[80];
    const char *match = g->items[item].match;
    error_escape(shown, sizeof shown, match, strlen(match));
    if (found > 0 && param_table_is_adapted(t))
        return error_set(
            err, ERR_CONFIG,
            "optimizer.groups[%d].match: \"%s\" finds no adapter that is in no group before it, and "
            "with lora.rank nothing else is trained",
            item, shown);
    if (found > 0)
        return error_set(err, ERR_CONFIG,
                         "optimizer.groups[%d].match: the %d parameters that have \"%s\" in their names are "
                         "in groups before it: put it in front of them, or leave it out",
                         item, found, shown);
    return error_set(
        err, ERR_CONFIG,
        "optimizer.groups[%d].match: no parameter has \"%s\" in its name; the last one is %s, and "
        "\"weft inspect --groups\" of a configuration without this group lists all",
        item, shown, t->params[t->count - 1].name);
}

/* Compiles the pattern for one item and frees it again: patterns are needed once. */
static ErrorCode fill(ParamGroups *g, int item, const ParamTable *t, Error *err) {
    Pattern *pattern;
    char key[48];
    int found = 0, taken = 0;
    snprintf(key, sizeof key, "optimizer.groups[%d].match", item);
    TRY(pattern_compile(&pattern, key, g->items[item].match, err));
    ErrorCode outcome = take(g, item, pattern, t, &found, err);
    pattern_free(pattern);
    TRY(outcome);
    for (int i = 0; i < t->count; i++) taken += g->of[i] == item;
    return taken > 0 ? OK : refuse_idle(g, item, t, found, err);
}

/* ---- all groups ---- */

/* decays_all: a weight decay that an item sets applies to all parameters that it matches. */
static ErrorCode add_group(ParamGroups *g, int item, const OptimizerGroup *from,
                           const OptimizerSettings *section, const ParamTable *t, Error *err) {
    ParamGroup *to = &g->items[item];
    to->match = mem_strdup(from->match);
    to->settings = from->settings;
    to->decays_all = !isnan(from->settings.weight_decay);
    to->whole = from->whole > 0;
    to->frozen = from->frozen > 0;
    complete(&to->settings, section);
    to->optimizer = optimizer_of((OptimizerKind)to->settings.kind);
    if (to->optimizer->matrices && from->whole == 0)
        return error_set(err, ERR_CONFIG, "optimizer.groups[%d].whole: %s sees whole matrices: leave it out",
                         item, to->optimizer->name);
    TRY(check_given(&from->settings, item, to->optimizer, err));
    if (to->frozen) TRY(check_frozen(from, item, err));
    return fill(g, item, t, err);
}

/* ---- optimizers of matrices ---- */

/* The rows of an embedding, and of a head, are used one by one: all descriptions of Muon leave them to
 * AdamW. */
static bool is_matrix_of_block(const Param *p) { return p->cols > 0 && p->layer >= 0; }

/* An item that leaves its optimizer no parameter would have no effect. The rest, however, may be empty. */
static ErrorCode check_kept(const ParamGroup *from, int item, int kept, Error *err) {
    char shown[80];
    if (kept > 0 || !from->match) return OK;
    return error_set(
        err, ERR_CONFIG, "optimizer.groups[%d].kind: %s is for the matrices of blocks, and \"%s\" finds none",
        item, from->optimizer->name, error_escape(shown, sizeof shown, from->match, strlen(from->match)));
}

/* Moves what the group's optimizer does not handle to a fallback group after all others; items has space for
 * one per group. */
static ErrorCode set_separate_group(ParamGroups *g, int item, const ParamTable *t, Error *err) {
    ParamGroup *from = &g->items[item], rest = *from;
    int kept = 0, moved = 0;
    if (!from->optimizer->matrices || from->frozen) return OK;
    for (int i = 0; i < t->count; i++) {
        if (g->of[i] != item) continue;
        bool stays = is_matrix_of_block(&t->params[i]);
        kept += stays, moved += !stays;
        if (!stays) g->of[i] = g->count;
    }
    TRY(check_kept(from, item, kept, err));
    from->whole = true;
    if (moved == 0) return OK;
    rest.fallback = true;
    rest.match = from->match ? mem_strdup(from->match) : NULL;
    rest.settings.kind = OPTIMIZER_ADAMW;
    rest.optimizer = optimizer_of(OPTIMIZER_ADAMW);
    g->items[g->count++] = rest;
    return OK;
}

/* With adapters nothing else is trained, whatever groups say, and some vectors never are. These are taken
 * before groups choose, ... */
static void take_base(ParamGroups *g, const ParamTable *t) {
    bool adapted = param_table_is_adapted(t);
    for (int i = 0; i < t->count; i++) {
        const ParamRow *row = t->params[i].row;
        g->of[i] = adapted && !row->adapts ? BASE : row->fixed ? FIXED : FREE;
    }
}

/* ... and become groups after all others, if there are any. Parameters that no item chose are the rest. */
static void give_rest(ParamGroups *g, int rest, const ParamTable *t) {
    for (int i = 0; i < t->count; i++)
        if (g->of[i] == FREE) g->of[i] = rest;
}

static void set_taken(ParamGroups *g, int rest, const ParamTable *t, int taken) {
    int found = 0;
    for (int i = 0; i < t->count; i++)
        if (g->of[i] == taken) g->of[i] = g->count, found++;
    if (found == 0) return;
    ParamGroup group = g->items[rest];
    group.frozen = true, group.whole = false;
    *(taken == BASE ? &group.base : &group.fixed) = true;
    g->items[g->count++] = group;
}

void param_groups_count(ParamGroups *g, const ParamTable *t, const ModelConfig *whole) {
    for (int i = 0; i < g->count; i++)
        g->items[i].params = 0, g->items[i].elements = 0, g->items[i].flops = 0;
    for (int i = 0; i < t->count; i++) {
        ParamGroup *group = &g->items[g->of[i]];
        Param p = whole ? param_unsharded(whole, &t->params[i]) : t->params[i];
        group->params++;
        group->elements += p.count;
        if (!group->frozen) group->flops += optimizer_flops(group->optimizer, &p);
    }
}

/* The rest follows the items, so the index of an item is that of its group. *g is empty after a failure. */
ErrorCode param_groups_build(ParamGroups *g, const OptimizerOptions *o, const ParamTable *t, Error *err) {
    int rest = (int)o->groups.count;
    const OptimizerGroup *given = (const OptimizerGroup *)(const void *)o->groups.items;
    *g = (ParamGroups){.count = rest + 1, .seed = (uint64_t)o->seed, .ema = o->ema};
    g->items = mem_alloc_array(2 * (size_t)g->count + 2, sizeof *g->items);
    g->of = mem_alloc_array((size_t)t->count, sizeof *g->of);
    take_base(g, t);
    g->items[rest] = (ParamGroup){.settings = o->settings,
                                  .optimizer = optimizer_of((OptimizerKind)o->settings.kind),
                                  .decays_all = o->decay == DECAY_ALL};
    ErrorCode code = OK;
    for (int i = 0; i < rest && code == OK; i++) code = add_group(g, i, &given[i], &o->settings, t, err);
    give_rest(g, rest, t);
    for (int i = 0; i <= rest && code == OK; i++) code = set_separate_group(g, i, t, err);
    if (code == OK) set_taken(g, rest, t, BASE);
    if (code == OK) set_taken(g, rest, t, FIXED);
    if (code == OK) param_groups_count(g, t, NULL);
    if (code == OK) code = check_trains(g, err);
    if (code != OK) param_groups_free(g);
    return code;
}

/* Accepts groups that were never built. */
void param_groups_free(ParamGroups *g) {
    for (int i = 0; i < g->count; i++) free(g->items[i].match);
    free(g->items);
    free(g->of);
    *g = (ParamGroups){0};
}

const ParamGroup *param_group(const ParamGroups *g, int param) { return &g->items[g->of[param]]; }

static int optimizer_states(const ParamGroups *g, int param) {
    const ParamGroup *group = param_group(g, param);
    return group->frozen ? 0 : group->optimizer->states(&group->settings);
}

int param_states(const ParamGroups *g, int param) { return optimizer_states(g, param) + (g->ema > 0); }

bool param_state_is_average(const ParamGroups *g, int param, int which) {
    return which == optimizer_states(g, param);
}

const OptimizerState *param_state(const ParamGroups *g, int param, int which) {
    static const OptimizerState average = {"ema", "the average of the weights"};
    return param_state_is_average(g, param, which) ? &average
                                                   : &param_group(g, param)->optimizer->state[which];
}

size_t param_state_width(const ParamGroups *g, int param, int which) {
    if (param_state_is_average(g, param, which)) return sizeof(float);
    return dtype_bytes((Dtype)param_group(g, param)->settings.states);
}

size_t param_state_bytes(const ParamGroups *g, int param) {
    size_t sum = 0;
    for (int k = 0; k < param_states(g, param); k++) sum += param_state_width(g, param, k);
    return sum;
}

/* The row of a parameter states whether it decays, unless the group, or the section for the rest, asks for
 * all. */
double param_weight_decay(const ParamGroups *g, int param, const Param *p) {
    const ParamGroup *group = param_group(g, param);
    return p->row->decays || group->decays_all ? group->settings.weight_decay : 0;
}

bool param_stays_whole(const ParamGroups *g, int param, const Param *p) {
    return p->cols > 0 && param_group(g, param)->whole;
}

bool param_needs_matrix(const ParamGroups *g, int param, const Param *p) {
    const ParamGroup *group = param_group(g, param);
    return p->cols > 0 && group->optimizer->matrices && !group->frozen;
}

bool param_groups_keep_whole(const ParamGroups *g) {
    for (int i = 0; i < g->count; i++)
        if (g->items[i].whole) return true;
    return false;
}

bool param_groups_need_matrices(const ParamGroups *g) {
    for (int i = 0; i < g->count; i++)
        if (g->items[i].optimizer->matrices && !g->items[i].frozen && g->items[i].params > 0) return true;
    return false;
}

size_t param_scratch_bytes(const ParamGroups *g, int param, const Param *p) {
    const ParamGroup *group = param_group(g, param);
    return group->frozen ? 0 : optimizer_scratch_bytes(group->optimizer, p);
}

/* ---- descriptions ---- */

/* "adamw moments fp32" */
static void name_states(const ParamGroup *group, Text *out) {
    text_printf(out, "%s %s %s", group->optimizer->name, group->optimizer->keeps,
                dtype_name((Dtype)group->settings.states));
}

/* Each description once, though several groups may have the same. */
void param_groups_name_states(const ParamGroups *g, Text *out) {
    Text name = {0};
    for (int i = 0; i < g->count; i++) {
        const ParamGroup *group = &g->items[i];
        bool keeps = !group->frozen && group->optimizer->states(&group->settings) > 0;
        if (group->params == 0 || !keeps) continue;
        text_clear(&name);
        name_states(group, &name);
        if (out->length && strstr(out->data, name.data)) continue;
        text_printf(out, "%s%s", out->length ? ", " : "", name.data);
    }
    if (g->ema > 0) text_printf(out, "%saverage of weights fp32", out->length ? ", " : "");
    if (out->length == 0) text_puts(out, "none");
    text_free(&name);
}

/* Settings that the optimizer reads, except for the two that have columns of their own. */
static void put_others(const ParamGroup *group, Text *out) {
    const char *gap = "";
    char word[64];
    for (const Option *s = group_options; s->key; s++) {
        if (!is_setting(s) || !is_listed(s->key, group->optimizer->reads) || strcmp(s->key, "lr") == 0 ||
            strcmp(s->key, "weight_decay") == 0)
            continue;
        const void *field = field_of(&group->settings, s);
        text_printf(out, "%s%s ", gap, s->key);
        if (s->type == OPT_CHOICE)
            text_puts(out, options_choice_name(s, *(const int *)field, word));
        else
            text_printf(out, "%g", *(const double *)field);
        gap = ", ";
    }
}

static void put_name(const ParamGroup *group, Text *out) {
    if (group->fallback) text_puts(out, "fallback of ");
    text_puts(out, group->match ? group->match : group->params ? "the rest" : "the rest: nothing");
}

/* Bytes and FLOPs are over all ranks; the plan shows how they are divided. */
static void put_group(const ParamGroup *group, Text *out) {
    char elements[32], bytes[32], flops[32];
    const OptimizerSettings *s = &group->settings;
    size_t each = optimizer_state_bytes(s);
    if (group->frozen) {
        text_printf(out, "  %-24s %6d %9s  frozen\n",
                    group->base    ? "the base"
                    : group->fixed ? "fixed"
                                   : group->match,
                    group->params, text_count(group->elements, elements));
        return;
    }
    Text name = {0};
    put_name(group, &name);
    text_printf(out, "  %-24s %6d %9s  %-6s %8g %7g%s  %-5s %10s %9s  ", name.data, group->params,
                text_count(group->elements, elements), group->optimizer->name, s->lr, s->weight_decay,
                group->decays_all ? " " : "*", each ? dtype_name((Dtype)s->states) : "none",
                each ? text_bytes((double)each * (double)group->elements, bytes) : "0",
                text_count((int64_t)group->flops, flops));
    text_free(&name);
    put_others(group, out);
    text_puts(out, group->whole ? "; whole matrices\n" : "\n");
}

/* With what distinguishes a parameter from others of its group. */
static void put_names(const ParamGroups *g, int group, const ParamTable *t, Text *out) {
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        char shape[64];
        if (g->of[i] != group) continue;
        if (p->cols)
            snprintf(shape, sizeof shape, "[%lld, %lld]", (long long)p->rows, (long long)p->cols);
        else
            snprintf(shape, sizeof shape, "[%lld]", (long long)p->rows);
        bool still = param_group(g, i)->frozen || param_weight_decay(g, i, p) > 0;
        text_printf(out, "      %-52s %s%s%s\n", p->name, shape, still ? "" : ", does not decay",
                    param_stays_whole(g, i, p) ? ", whole" : "");
    }
}

/* "optim   adamw: lr 0.0003, weight decay 0.1 on matrices, beta1 0.9, beta2 0.95, eps 1e-08; moments fp32" */
static void put_only_group(const ParamGroup *group, Text *out) {
    const OptimizerSettings *s = &group->settings;
    text_printf(out, "optim   %s: lr %g, weight decay %g%s, ", group->optimizer->name, s->lr, s->weight_decay,
                group->decays_all ? "" : " on matrices");
    put_others(group, out);
    if (optimizer_state_bytes(s) > 0)
        text_printf(out, "; %s %s", group->optimizer->keeps, dtype_name((Dtype)s->states));
    text_puts(out, "\n");
}

/* A single group takes one line, as most runs have no others. */
void param_groups_print(const ParamGroups *g, const ParamTable *t, bool each, Text *out) {
    if (g->count == 1 && !each) {
        put_only_group(&g->items[0], out);
        return;
    }
    text_puts(out, "optimizer\n"
                   "  group                    tensors  elements  kind         lr   decay   states      bytes"
                   "      flop  settings\n");
    for (int i = 0; i < g->count; i++) {
        put_group(&g->items[i], out);
        if (each) put_names(g, i, t, out);
    }
    text_puts(out, "  decay*: of matrices only. bytes, flop: of states, and of an update, over all ranks\n");
}
