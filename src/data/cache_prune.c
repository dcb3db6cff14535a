/* Every decision about a cache is made while it is claimed (data/cache_use.h), from the directory's current
 * contents: a run that used it and ended in the meantime has updated its time of last use.
 *
 *     claim --> look: names, sizes, times, headers --> verdict --> remove --> release
 *
 * Files are removed one by one, only by names that weft writes, and relative to the open directory. Other
 * files that appear in the meantime stay, and the directory with them. An interrupted removal leaves an
 * interrupted build. */
#include "data/cache_prune.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/text.h"
#include "data/cache_use.h"
#include "data/token_cache.h"

#define DAY 86400.0
#define ABOUT_LIMIT ((size_t)1 << 26)
enum { NAME_DIGITS = 32 };

static const char *const cache_files[] = {"lock",
                                          TOKEN_ABOUT_FILE,
                                          TOKEN_ABOUT_FILE ".[0-9]*.tmp",
                                          "part-[0-9]*.tok",
                                          "part-[0-9]*.tok.tmp",
                                          "part-[0-9]*.bad.jsonl",
                                          "part-[0-9]*.bad.jsonl.[0-9]*.tmp",
                                          NULL};
static const char *const record_files[] = {"[0-9a-f]*.json", "[0-9a-f]*.json.[0-9]*.tmp", NULL};
static const char records_dir[] = "fingerprints";

/* A directory under examination. */
typedef struct Look {
    DIR *open;
    const char *const *files; /* patterns of the names that weft writes into it */
    bool complete;            /* has a last shard */
    CacheEntry *entry;
} Look;

static bool is_cache_name(const char *name) { return hex_is(name, NAME_DIGITS); }

static bool matches(const char *const *patterns, const char *name) {
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0) return true;
    return false;
}

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* Whether the file is a shard of ours; *last: the source ends in it. */
static bool is_part(int dir, const char *name, bool *last) {
    TokenHeader h = {0};
    int fd;
    RETRY(fd, openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (fd < 0) return false;
    bool whole = pread(fd, &h, sizeof h, 0) == (ssize_t)sizeof h;
    close(fd);
    *last = whole && h.last;
    return whole && memcmp(h.magic, TOKEN_MAGIC, sizeof h.magic) == 0;
}

static bool is_own(Look *l, const char *name, const struct stat *st) {
    bool last = false;
    if (!S_ISREG(st->st_mode) || !matches(l->files, name)) return false;
    if (fnmatch("*.tok", name, 0) == 0 && !is_part(dirfd(l->open), name, &last)) return false;
    l->complete |= last;
    return true;
}

/* Sizes and times of all files in the directory. */
static void look(Look *l) {
    CacheEntry *e = l->entry;
    rewinddir(l->open);
    for (struct dirent *file; (file = readdir(l->open));) {
        struct stat st;
        if (is_dots(file->d_name) || fstatat(dirfd(l->open), file->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (!is_own(l, file->d_name, &st)) {
            if (!e->foreign) e->foreign = mem_strdup(file->d_name);
            continue;
        }
        e->bytes += (double)st.st_size;
        if ((double)st.st_mtime > e->last_use) e->last_use = (double)st.st_mtime;
    }
    e->interrupted = !l->complete && l->files == cache_files;
}

/* For the report; what cannot be read stays unknown. */
static void read_about(const char *dir, CacheEntry *e) {
    char *path = path_join(dir, TOKEN_ABOUT_FILE), *text = NULL;
    size_t length;
    cJSON *root = NULL;
    if (file_read_own(path, ABOUT_LIMIT, &text, &length, NULL) == OK)
        json_parse(path, text, length, &root, NULL);
    const cJSON *files = cJSON_GetObjectItemCaseSensitive(root, "files");
    const cJSON *first = json_first(files);
    int count = cJSON_GetArraySize(files);
    e->source = mem_strdup(cJSON_IsString(first) ? first->valuestring : "");
    e->more_files = count > 1 ? (size_t)count - 1 : 0;
    cJSON_Delete(root);
    free(text);
    free(path);
}

CacheVerdict cache_judge(CacheEntry *e, const CacheRules *rules) {
    if (e->foreign) return CACHE_FOREIGN;
    if ((e->user = rules->user(rules->ctx, e->name))) return CACHE_NAMED;
    double days = e->interrupted && rules->days > 1 ? 1 : rules->days;
    return days > 0 && clock_wall() - e->last_use < days * DAY ? CACHE_RECENT : CACHE_GOES;
}

static CacheVerdict judge(const Look *l, const CacheRules *rules) {
    bool records = l->files == record_files && !l->entry->foreign;
    return records ? CACHE_GOES : cache_judge(l->entry, rules);
}

/* A file that disappeared meanwhile counts as removed. */
static ErrorCode remove_files(const Look *l, int parent, Error *err) {
    int result = 0;
    rewinddir(l->open);
    for (struct dirent *file; result == 0 && (file = readdir(l->open));) {
        if (is_dots(file->d_name) || !matches(l->files, file->d_name)) continue;
        RETRY(result, unlinkat(dirfd(l->open), file->d_name, 0));
        if (result != 0 && errno == ENOENT) result = 0;
    }
    if (result == 0) RETRY(result, unlinkat(parent, l->entry->name, AT_REMOVEDIR));
    return result == 0 ? OK : error_errno(err, ERR_IO, "%s: cannot be removed", l->entry->name);
}

/* Builders of earlier versions lock this file of the cache instead of a byte. The lock is released by closing
 * *fd. */
static bool is_being_built(int dir, int *fd) {
    RETRY(*fd, openat(dir, "lock", O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    return *fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB) != 0;
}

static ErrorCode judge_claimed(Look *l, int parent, const CacheRules *rules, Error *err) {
    int lock = -1;
    look(l);
    l->entry->verdict = is_being_built(dirfd(l->open), &lock) ? CACHE_OPEN : judge(l, rules);
    ErrorCode code = OK;
    if (l->entry->verdict == CACHE_GOES && rules->remove) code = remove_files(l, parent, err);
    if (lock >= 0) close(lock);
    return code;
}

/* A cache in use is examined too, for its size. */
static ErrorCode prune_directory(Look *l, int parent, CacheUse *use, const CacheRules *rules, Error *err) {
    bool claimed;
    CacheEntry *e = l->entry;
    TRY(cache_use_claim(use, e->name, &claimed, err));
    if (!claimed) {
        look(l);
        e->verdict = CACHE_OPEN;
        return OK;
    }
    ErrorCode code = judge_claimed(l, parent, rules, err);
    cache_use_release(use, e->name);
    return code;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const CacheEntry *)a)->name, ((const CacheEntry *)b)->name);
}

CacheEntry *cache_list_add(CacheList *list, const char *name) {
    if (list->count == list->capacity) {
        list->capacity = 2 * list->capacity + 16;
        list->items = mem_grow(list->items, list->capacity * sizeof *list->items);
    }
    CacheEntry *e = &list->items[list->count++];
    *e = (CacheEntry){.name = mem_strdup(name)};
    return e;
}

void cache_list_sort(CacheList *list) {
    if (list->count) qsort(list->items, list->count, sizeof *list->items, by_name);
}

/* Names of possible caches or records, whether or not they are directories. */
static void list(DIR *open, CacheList *out) {
    for (struct dirent *entry; (entry = readdir(open));) {
        if (!is_cache_name(entry->d_name) && strcmp(entry->d_name, records_dir) != 0) continue;
        cache_list_add(out, entry->d_name);
    }
    cache_list_sort(out);
}

/* Opens without following symbolic links: a link in place of a cache is somebody's own arrangement. */
static ErrorCode prune_entry(const char *cache_dir, int parent, CacheUse *use, const CacheRules *rules,
                             CacheEntry *e, Error *err) {
    int fd;
    char *dir = path_join(cache_dir, e->name);
    read_about(dir, e);
    free(dir);
    RETRY(fd, openat(parent, e->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    DIR *open = fd >= 0 ? fdopendir(fd) : NULL;
    if (!open) {
        if (fd >= 0) close(fd);
        e->verdict = CACHE_FOREIGN;
        e->foreign = mem_strdup(e->name);
        return OK;
    }
    Look l = {.open = open, .files = is_cache_name(e->name) ? cache_files : record_files, .entry = e};
    ErrorCode code = prune_directory(&l, parent, use, rules, err);
    closedir(open);
    return code == OK ? OK : error_context(err, "%s", cache_dir);
}

/* An entry that cannot be removed does not prevent the others; the first such failure is returned. */
ErrorCode cache_prune(const char *cache_dir, const CacheRules *rules, CacheList *out, Error *err) {
    *out = (CacheList){0};
    CacheUse *use = NULL;
    ErrorCode code = OK;
    DIR *open = opendir(cache_dir);
    if (!open)
        return error_errno(err, ERR_NOINPUT, "%s: cannot be read as a directory of token caches", cache_dir);
    list(open, out);
    /* Without caches, nothing is written into the directory. */
    if (out->count) code = cache_use_open_claims(&use, cache_dir, err);
    if (!use) out->count = 0;
    for (size_t i = 0; i < out->count; i++) {
        ErrorCode each =
            prune_entry(cache_dir, dirfd(open), use, rules, &out->items[i], code == OK ? err : NULL);
        if (code == OK) code = each;
    }
    cache_use_close(use);
    closedir(open);
    return code;
}

void cache_list_free(CacheList *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->items[i].name);
        free(list->items[i].foreign);
        free(list->items[i].source);
    }
    free(list->items);
    *list = (CacheList){0};
}
