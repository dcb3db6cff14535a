#include "checkpoint/fetch_prune.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "checkpoint/fetch.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"
#include "data/cache_use.h"

/* Files of a copy whose manifest is not there: one being made, or of the model's description alone. */
static const char *const files_made[] = {"*.safetensors", "*.json",     "*.json.[0-9]*.tmp",
                                         "*.jinja",       "*.tiktoken", "*.model"};

/* A copy under examination, open without following links. */
typedef struct Look {
    CacheEntry *entry;
    char *path; /* of the copy */
    int fd;
} Look;

static void note_foreign(CacheEntry *e, const char *name) {
    if (!e->foreign) e->foreign = mem_strdup(name);
}

static void take_time(CacheEntry *e, const struct stat *st) {
    if ((double)st->st_mtime > e->last_use) e->last_use = (double)st->st_mtime;
}

static bool is_listed(const Manifest *m, const char *name) {
    bool found = strcmp(name, MANIFEST_FILE) == 0;
    for (size_t i = 0; i < m->file_count && !found; i++) found = strcmp(m->files[i].name, name) == 0;
    return found;
}

static bool is_made(const char *name) {
    for (size_t i = 0; i < sizeof files_made / sizeof *files_made; i++)
        if (fnmatch(files_made[i], name, 0) == 0) return true;
    return false;
}

/* The files of one directory of a copy; `manifest` NULL: it has none. */
typedef struct Part {
    CacheEntry *entry;
    const Manifest *manifest;
} Part;

static void look_at_file(void *ctx, int dir, const char *name, const struct stat *st) {
    Part *p = ctx;
    (void)dir;
    bool own = S_ISREG(st->st_mode) && (p->manifest ? is_listed(p->manifest, name) : is_made(name));
    if (!own) note_foreign(p->entry, name);
    p->entry->bytes += (double)st->st_size;
    take_time(p->entry, st);
}

/* A step, the description of the model alone, or one of them that is being made. */
static void look_at_part(void *ctx, int dir, const char *name, const struct stat *st) {
    Look *l = ctx;
    int64_t number;
    Manifest manifest = {0};
    bool step = checkpoint_step(name, &number), temporary = fnmatch(".tmp-*", name, 0) == 0;
    char *path = path_join(l->path, name);
    bool known = S_ISDIR(st->st_mode) && (step || temporary || strcmp(name, "described") == 0);
    if (known && step) known = manifest_read(&manifest, path, NULL) == OK;
    Part part = {l->entry, step ? &manifest : NULL};
    if (!known || !file_walk(dir, name, look_at_file, &part)) note_foreign(l->entry, name);
    l->entry->interrupted |= temporary;
    if (step && !l->entry->source) l->entry->source = mem_strdup(name);
    manifest_free(&manifest);
    free(path);
}

static void look(const char *copies, int parent, CacheEntry *e) {
    struct stat st;
    Look l = {.entry = e, .path = path_join(copies, e->name)};
    if (fstatat(parent, e->name, &st, AT_SYMLINK_NOFOLLOW) == 0) take_time(e, &st);
    if (!file_walk(parent, e->name, look_at_part, &l)) note_foreign(e, e->name);
    if (!e->source) e->source = mem_strdup("");
    free(l.path);
}

static ErrorCode prune_claimed(const char *copies, int parent, const CacheRules *rules, CacheEntry *e,
                               Error *err) {
    look(copies, parent, e);
    e->verdict = cache_judge(e, rules);
    if (e->verdict != CACHE_GOES || !rules->remove) return OK;
    char *path = path_join(copies, e->name);
    ErrorCode code = file_remove_tree(path, err);
    free(path);
    return code;
}

static ErrorCode prune_copy(const char *copies, int parent, CacheUse *use, const CacheRules *rules,
                            CacheEntry *e, Error *err) {
    bool claimed;
    TRY(cache_use_claim(use, e->name, &claimed, err));
    /* Perhaps held by this process, which has read a configuration that names it. */
    if (!claimed) {
        look(copies, parent, e);
        e->user = rules->user(rules->ctx, e->name);
        e->verdict = e->user ? CACHE_NAMED : CACHE_OPEN;
        return OK;
    }
    ErrorCode code = prune_claimed(copies, parent, rules, e, err);
    cache_use_release(use, e->name);
    return code;
}

static void add_name(void *ctx, int dir, const char *name, const struct stat *st) {
    (void)dir;
    (void)st;
    if (hex_is(name, 32)) cache_list_add(ctx, name);
}

/* An entry that cannot be removed does not prevent the others; the first such failure is returned. */
static ErrorCode prune_all(const char *cache_dir, const char *copies, int parent, const CacheRules *rules,
                           CacheList *out, Error *err) {
    CacheUse *use;
    TRY(cache_use_open_claims(&use, cache_dir, err));
    ErrorCode code = OK;
    for (size_t i = 0; i < out->count; i++) {
        ErrorCode each = prune_copy(copies, parent, use, rules, &out->items[i], code == OK ? err : NULL);
        if (code == OK) code = each;
    }
    cache_use_close(use);
    return code;
}

ErrorCode fetch_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err) {
    int fd;
    *out = (CacheList){0};
    char *copies = path_join(cache_dir, FETCH_COPIES);
    RETRY(fd, open(copies, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd >= 0) file_walk(fd, ".", add_name, out);
    cache_list_sort(out);
    ErrorCode code = out->count ? prune_all(cache_dir, copies, fd, rules, out, err) : OK;
    if (fd >= 0) close(fd);
    free(copies);
    return code;
}
