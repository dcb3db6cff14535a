#include "data/copy_prune.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "remote/store.h"

/* An entry under examination. */
typedef struct Look {
    CacheEntry *entry;
    const char *name; /* of the copy; "": not known */
} Look;

/* The time of its about file is the time of an entry's last use. */
static void look_at(void *ctx, int dir, const char *name, const struct stat *st) {
    Look *l = ctx;
    CacheEntry *e = l->entry;
    (void)dir;
    if (store_is_about(name)) {
        e->last_use = (double)st->st_mtime;
        return;
    }
    bool part = strcmp(name, ".part") == 0;
    e->bytes += (double)st->st_size;
    e->interrupted |= part;
    if (!part && strcmp(name, l->name) != 0 && !e->foreign) e->foreign = mem_strdup(name);
}

static void look(const RemoteStore *store, CacheEntry *e) {
    StoredAbout about;
    Text name = {0};
    bool known = store_about(store, e->name, &about);
    if (known) store_copy_name(about.url, &name);
    Look l = {e, known ? name.data : ""};
    store_walk(store, e->name, look_at, &l);
    e->source = mem_strdup(known ? about.url : "");
    if (known) store_about_free(&about);
    text_free(&name);
}

static ErrorCode prune_copy(RemoteStore *store, const CacheRules *rules, CacheEntry *e, Error *err) {
    bool claimed = false;
    ErrorCode code = store_claim(store, e->name, &claimed, err);
    look(store, e);
    if (code != OK) return code;
    e->verdict = claimed ? cache_judge(e, rules) : CACHE_OPEN;
    if (e->verdict == CACHE_GOES && rules->remove) code = store_clear(store, e->name, err);
    if (claimed) store_disclaim(store, e->name);
    return code;
}

static ErrorCode prune_all(RemoteStore *store, const CacheRules *rules, CacheList *out, Error *err) {
    StoredCopies all;
    TRY(store_list(store, &all, err));
    ErrorCode code = OK;
    for (size_t i = 0; i < all.count; i++) {
        CacheEntry *e = cache_list_add(out, all.items[i].entry);
        ErrorCode each = prune_copy(store, rules, e, code == OK ? err : NULL);
        if (code == OK) code = each;
    }
    free(all.items);
    return code;
}

ErrorCode copy_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err) {
    RemoteStore *store = NULL;
    *out = (CacheList){0};
    char *dir = path_join(cache_dir, "remote");
    bool there = file_is_dir(dir);
    free(dir);
    if (!there) return OK;
    ErrorCode code = store_open(&store, cache_dir, 0, err);
    if (code == OK) code = prune_all(store, rules, out, err);
    store_close(store);
    return code;
}
