/* weft data prune: removes unused token caches, copies of remote files and of mirrored checkpoints.
 *
 * data/cache_prune.c, data/copy_prune.c and checkpoint/fetch_prune.c decide what to remove. This file turns
 * operands into directories of caches and into names of caches and copies that a configuration uses, and
 * prints the result. Without --delete nothing is removed. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/fetch_prune.h"
#include "checkpoint/fetch.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "config/config.h"
#include "data/copy_prune.h"
#include "data/dataset.h"
#include "data/input_files.h"

/* An operand: a directory of caches, or a configuration, whose caches are kept. */
typedef struct Named {
    const char *operand;
    char *dir;
    Text caches; /* names of caches and copies, or paths that hold these names, one per line */
} Named;

typedef struct Operands {
    size_t count;
    Named *items;
} Operands;

/* ---- operands ---- */

static ErrorCode name_tasks(Named *n, const Config *c, Error *err) {
    const TaskSource *tasks = (const TaskSource *)(const void *)c->evaluation.tasks.items;
    InputCache cache = {c->data.cache_dir, data_remote_limit(&c->data)};
    for (size_t i = 0; i < c->evaluation.tasks.count; i++) {
        TRY(input_files_name(tasks[i].path, &cache, &n->caches, err));
        if (tasks[i].examples) TRY(input_files_name(tasks[i].examples, &cache, &n->caches, err));
    }
    return OK;
}

static ErrorCode name_model(Named *n, const Config *c, Error *err) {
    const char *init = model_options_init(&c->model);
    return file_is_url(init) ? fetch_name_copies(init, c->data.cache_dir, &n->caches, err) : OK;
}

static ErrorCode name_caches(Named *n, const Config *c, Error *err) {
    Tokenizer *tokenizer = NULL;
    n->dir = mem_strdup(c->data.cache_dir);
    if (!file_is_dir(n->dir))
        return error_set(err, ERR_NOINPUT, "%s: data.cache_dir is %s, and there is no such directory",
                         n->operand, n->dir);
    TRY(tokenizer_open_as(&tokenizer, c->data.tokenizer, &c->data.tokenizer_keys, err));
    ErrorCode code = dataset_name_caches(&c->data, tokenizer, c->train.context, &n->caches, err);
    tokenizer_free(tokenizer);
    if (code == OK) code = name_tasks(n, c, err);
    return code == OK ? name_model(n, c, err) : code;
}

static ErrorCode read_config(Named *n, const char *path, Error *err) {
    Config c;
    OptionSet set;
    ErrorCode code = config_load_either(&c, &set, path, 0, NULL, checkpoint_find_shape, err);
    if (code == OK) code = name_caches(n, &c, err);
    options_free(&set);
    return code == OK ? OK : error_context(err, "nothing was removed");
}

/* A directory with a configuration in it is a run. */
static ErrorCode read_operand(Named *n, const char *operand, Error *err) {
    n->operand = operand;
    char *own = path_join(operand, "config.yaml");
    ErrorCode code = OK;
    if (file_is_dir(operand) && !file_exists(own))
        n->dir = mem_strdup(operand);
    else
        code = read_config(n, operand, err);
    free(own);
    return code;
}

static ErrorCode read_operands(Operands *o, const Arguments *args, Error *err) {
    static const char *const standard[] = {".weft-cache"};
    const char *const *words = args->operand_count ? args->operands : standard;
    o->items = mem_alloc_array((size_t)args->operand_count + 1, sizeof *o->items);
    o->count = args->operand_count ? (size_t)args->operand_count : 1;
    for (size_t i = 0; i < o->count; i++) TRY(read_operand(&o->items[i], words[i], err));
    return OK;
}

static void free_operands(Operands *o) {
    for (size_t i = 0; i < o->count; i++) {
        free(o->items[i].dir);
        text_free(&o->items[i].caches);
    }
    free(o->items);
}

/* A cache's name is a hash of its content, so it is the same in all directories. */
static const char *user_of(const void *ctx, const char *name) {
    const Operands *o = ctx;
    for (size_t i = 0; i < o->count; i++)
        if (o->items[i].caches.length && strstr(o->items[i].caches.data, name)) return o->items[i].operand;
    return NULL;
}

static bool seen_before(const Operands *o, size_t at) {
    for (size_t i = 0; i < at; i++)
        if (strcmp(o->items[i].dir, o->items[at].dir) == 0) return true;
    return false;
}

/* ---- output ---- */

static const char *age_of(const CacheEntry *e, char out[32]) {
    double days = (clock_wall() - e->last_use) / 86400;
    if (e->last_use == 0) return "-";
    if (days < 1) return "today";
    snprintf(out, 32, "%.0f day%s ago", days, days < 1.5 ? "" : "s");
    return out;
}

/* What data prune looks for. */
typedef struct Kind {
    const char *dir, *interrupted; /* below the directory of caches; what an unfinished one is */
    ErrorCode (*prune)(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err);
} Kind;

static const Kind kinds[] = {{"", "an interrupted build", cache_prune},
                             {"/remote", "an interrupted download", copy_prune},
                             {"/" FETCH_COPIES, "an interrupted copy", fetch_prune}};

static void describe_verdict(const CacheEntry *e, const Kind *kind, const CacheRules *rules, Text *out) {
    const char *state = e->interrupted ? kind->interrupted : "";
    switch (e->verdict) {
    case CACHE_GOES: text_printf(out, "%s", rules->remove ? "removed" : "would be removed"); break;
    case CACHE_OPEN: text_puts(out, "kept: open by a process"); break;
    case CACHE_NAMED: text_printf(out, "kept: used by %s", e->user); break;
    case CACHE_RECENT: text_puts(out, "kept: used lately"); break;
    case CACHE_FOREIGN:
        text_printf(out, "not touched: %s is nothing that weft wrote", e->foreign);
        state = "";
        break;
    }
    if (*state) text_printf(out, "; %s", state);
    if (*e->source) text_printf(out, "; of %s", e->source);
    if (e->more_files) text_printf(out, " and %zu more", e->more_files);
    text_puts(out, "\n");
}

static void describe(const char *dir, const Kind *kind, const CacheList *list, const CacheRules *rules,
                     Text *out) {
    char bytes[32], age[32];
    double freed = 0;
    size_t gone = 0;
    text_printf(out, "%s%s\n", dir, kind->dir);
    for (size_t i = 0; i < list->count; i++) {
        const CacheEntry *e = &list->items[i];
        text_printf(out, "  %-32s  %10s  %-12s  ", e->name, text_bytes(e->bytes, bytes), age_of(e, age));
        describe_verdict(e, kind, rules, out);
        gone += e->verdict == CACHE_GOES;
        freed += e->verdict == CACHE_GOES ? e->bytes : 0;
    }
    text_printf(out, "%zu of %zu director%s, %s, %s%s\n", gone, list->count, list->count == 1 ? "y" : "ies",
                text_bytes(freed, bytes), rules->remove ? "removed" : "would be removed",
                gone && !rules->remove ? "; --delete removes them" : "");
}

/* A directory without copies is described by its caches alone. */
static ErrorCode prune_kind(const char *dir, const Kind *kind, const CacheRules *rules, Error *err) {
    CacheList list;
    Text out = {0};
    ErrorCode code = kind->prune(dir, rules, &list, err);
    if (code == OK && (list.count > 0 || !*kind->dir)) {
        describe(dir, kind, &list, rules, &out);
        terminal_printf("%s", out.data);
    }
    text_free(&out);
    cache_list_free(&list);
    return code;
}

static ErrorCode prune(const char *dir, const CacheRules *rules, Error *err) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) TRY(prune_kind(dir, &kinds[i], rules, err));
    return OK;
}

/* All operands are read first: a mistyped one fails before anything is removed. */
static ErrorCode run_data(const Arguments *args, Error *err) {
    Operands o = {0};
    CacheRules rules = {.days = 30, .remove = arguments_has(args, "--delete"), .user = user_of, .ctx = &o};
    TRY(arguments_double(args, "--older-than", 0, 36500, &rules.days, err));
    ErrorCode code = read_operands(&o, args, err);
    for (size_t i = 0; i < o.count && code == OK; i++)
        if (!seen_before(&o, i)) code = prune(o.items[i].dir, &rules, err);
    free_operands(&o);
    return code;
}

static const Flag flags[] = {
    {"--delete", 0, NULL, "remove what would be removed; without it nothing is"},
    {"--older-than", 0, "DAYS", "only what was last used so many days ago; default 30, 0: all"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_data_prune = {
    .name = "data prune",
    .summary = "list token caches and fetched copies that are not needed any more, and remove them",
    .synopsis = "[CACHE_DIR | CONFIG.yaml | RUN ...]",
    .details =
        "Lists the token caches of a directory (data.cache_dir; default .weft-cache) with their size and "
        "last use, and reports for each whether it would be removed, and why; then, in the same way, the "
        "copies of files from https:// and s3:// (remote/) and of mirrored checkpoints (checkpoints/). What "
        "a configuration or a run named here uses stays, and so does what a process has open, on this host "
        "or another. Of the rest goes what was last used more than 30 days ago (--older-than), and what was "
        "interrupted a day ago. Nothing is removed without --delete. What goes and is wanted again is "
        "tokenized or fetched again.\n\n"
        "Examples:\n"
        "  weft data prune\n"
        "  weft data prune my.yaml --older-than 0 --delete    all but what my.yaml uses\n"
        "  weft data prune /shared/cache a.yaml runs/b --older-than 7",
    .flags = flags,
    .min_operands = 0,
    .max_operands = -1,
    .run = run_data,
};
