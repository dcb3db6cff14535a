#include "checkpoint/fetch.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"
#include "data/cache_use.h"
#include "remote/location.h"
#include "remote/remote.h"

enum { WORK_DIGITS = 32 };

/* A step in a store. */
typedef struct Step {
    Remote *remote;
    char *url;
    int64_t number;
    char *path; /* of the copy of its manifest */
    char *text; /* of the manifest */
    size_t length;
    char work[WORK_DIGITS + 1]; /* hash of the manifest */
    Manifest manifest;
} Step;

/* ---- which step ---- */

static const char *last_part(const char *url) {
    const char *slash = strrchr(url, '/');
    return slash ? slash + 1 : url;
}

/* Without slashes at the end, and without "/latest". */
static char *bare_url(const char *url) {
    char *bare = mem_strdup(url);
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(bare);
        while (length > 0 && bare[length - 1] == '/') bare[--length] = '\0';
        if (text_ends(bare, length, "/latest")) bare[length - strlen("/latest")] = '\0';
    }
    return bare;
}

static ErrorCode take_latest(const char *object, Text *latest, Error *err) {
    char shown[80];
    int64_t number;
    while (latest->length && strchr(" \r\n", latest->data[latest->length - 1]))
        latest->data[--latest->length] = '\0';
    if (latest->length && strlen(latest->data) == latest->length && checkpoint_step(latest->data, &number))
        return OK;
    return error_set(err, ERR_DATA, "%s: expected the name of a checkpoint, as step-00000200, found \"%s\"",
                     object, error_escape(shown, sizeof shown, latest->data, latest->length));
}

/* Appends the URL of the newest step. */
static ErrorCode read_latest(Remote *remote, const char *url, Text *step, Error *err) {
    Text object = {0}, latest = {0};
    text_printf(&object, "%s/latest", url);
    ErrorCode code = remote_read_url(remote, object.data, &latest, err);
    if (code == ERR_NOINPUT) error_context(err, "no checkpoint is found");
    if (code == OK) code = take_latest(object.data, &latest, err);
    if (code == OK) text_printf(step, "%s/%s", url, latest.data);
    text_free(&object);
    text_free(&latest);
    return code;
}

static ErrorCode name_step(Remote *remote, const char *url, char **step, Error *err) {
    Text named = {0};
    int64_t number;
    char *bare = bare_url(url);
    ErrorCode code = location_check_directory(bare, err);
    if (code == OK && checkpoint_step(last_part(bare), &number))
        text_puts(&named, bare);
    else if (code == OK)
        code = read_latest(remote, bare, &named, err);
    free(bare);
    if (code != OK) text_free(&named);
    *step = named.data;
    return code;
}

ErrorCode fetch_name_step(const char *url, const char *cache_dir, char **step, Error *err) {
    Remote *remote;
    *step = NULL;
    TRY(remote_open(&remote, cache_dir, 0, err));
    ErrorCode code = name_step(remote, url, step, err);
    remote_close(remote);
    return code;
}

/* ---- its manifest ---- */

/* *file is empty after a failure. */
static ErrorCode find_file(const Step *s, const char *name, RemoteFile *file, Error *err) {
    RemoteFile *found = NULL;
    size_t count = 0;
    Text url = {0};
    text_printf(&url, "%s/%s", s->url, name);
    ErrorCode code = remote_find(s->remote, url.data, &found, &count, err);
    text_free(&url);
    *file = (RemoteFile){0};
    if (code != OK) return code;
    CHECK(count == 1); /* there is no pattern in it */
    *file = *found;
    free(found);
    return OK;
}

static ErrorCode check_manifest_size(const RemoteFile *file, Error *err) {
    if (file->size == 0)
        return error_set(
            err, ERR_NOINPUT,
            "%s is empty: a run is replacing this checkpoint. Wait until it is complete, or name "
            "another step",
            file->name);
    if (file->size <= MANIFEST_LIMIT) return OK;
    return error_set(err, ERR_DATA, "%s: %" PRIu64 " bytes, which no manifest has", file->name, file->size);
}

/* Appends it to the copies of the cache like any file: a manifest of many ranks may be long. */
static ErrorCode read_manifest(Step *s, RemoteFile *file, Error *err) {
    size_t first = 0;
    TRY(check_manifest_size(file, err));
    TRY(remote_fetch(s->remote, file->name, file, &first, 1, err));
    TRY(file_read_own(file->path, MANIFEST_LIMIT, &s->text, &s->length, err));
    TRY(manifest_parse(&s->manifest, file->name, s->text, s->length, err));
    if (s->manifest.step != s->number)
        return error_set(err, ERR_DATA, "%s is that of step %" PRId64 ": the checkpoint was renamed",
                         file->name, s->manifest.step);
    return manifest_check_complete(&s->manifest, s->url, err);
}

static ErrorCode find_manifest(Step *s, Error *err) {
    RemoteFile *file = mem_alloc(sizeof *file);
    ErrorCode code = find_file(s, MANIFEST_FILE, file, err);
    if (code == ERR_NOINPUT)
        error_context(err, "no committed checkpoint is found");
    else if (code == OK)
        code = read_manifest(s, file, err);
    if (code == OK) s->path = mem_strdup(file->path);
    remote_free(file, 1);
    char hash[65];
    sha256_of(code == OK ? s->text : "", code == OK ? s->length : 0, hash);
    memcpy(s->work, hash, WORK_DIGITS);
    return code;
}

/* To be closed also after a failure. */
static ErrorCode step_open(Step *s, const char *url, const char *cache_dir, Error *err) {
    *s = (Step){0};
    TRY(remote_open(&s->remote, cache_dir, 0, err));
    TRY(name_step(s->remote, url, &s->url, err));
    checkpoint_step(last_part(s->url), &s->number);
    return find_manifest(s, err);
}

static void step_close(Step *s) {
    manifest_free(&s->manifest);
    free(s->path);
    free(s->text);
    free(s->url);
    remote_close(s->remote);
}

/* ---- its files ---- */

/* Those of the model, but no weights. */
static bool describes(const ManifestFile *f) {
    return !f->is_safetensors && strcmp(f->name, CHECKPOINT_STATE) != 0 && strcmp(f->name, MODEL_INDEX) != 0;
}

/* A directory to make: of all files, or of those that describe the model. */
typedef struct Target {
    char *home, *dir;
    bool whole;
    size_t *listed; /* indices of its files in the manifest, [count] */
    RemoteFile *files;
    size_t count;
} Target;

static void target_open(Target *t, const Step *s, const char *home, bool whole) {
    *t = (Target){.home = mem_strdup(home), .whole = whole};
    t->dir = path_join(home, whole ? last_part(s->url) : "described");
    t->listed = mem_alloc_array(s->manifest.file_count, sizeof *t->listed);
    for (size_t i = 0; i < s->manifest.file_count; i++)
        if (whole || describes(&s->manifest.files[i])) t->listed[t->count++] = i;
    t->files = mem_alloc_array(t->count, sizeof *t->files);
}

static void target_close(Target *t) {
    remote_free(t->files, t->count);
    free(t->listed);
    free(t->home);
    free(t->dir);
}

/* Sizes are compared before anything is fetched. */
static ErrorCode find_files(const Step *s, Target *t, Error *err) {
    for (size_t i = 0; i < t->count; i++) {
        const ManifestFile *listed = &s->manifest.files[t->listed[i]];
        TRY(find_file(s, listed->name, &t->files[i], err));
        if (t->files[i].size != listed->bytes)
            return error_set(err, ERR_DATA,
                             "%s: %" PRIu64 " bytes in the store, where the manifest says %" PRIu64
                             ": the mirror is damaged. Name another step",
                             t->files[i].name, t->files[i].size, listed->bytes);
    }
    return OK;
}

static ErrorCode fetch_files(const Step *s, Target *t, Error *err) {
    size_t *which = mem_alloc_array(t->count, sizeof *which);
    for (size_t i = 0; i < t->count; i++) which[i] = i;
    ErrorCode code = remote_fetch(s->remote, s->url, t->files, which, t->count, err);
    free(which);
    return code;
}

static ErrorCode move_files(const Step *s, const Target *t, const char *to, Error *err) {
    for (size_t i = 0; i < t->count; i++) {
        char *path = path_join(to, s->manifest.files[t->listed[i]].name);
        ErrorCode code = rename(t->files[i].path, path) == 0
                             ? OK
                             : error_errno(err, ERR_IO, "%s: cannot be moved to %s", t->files[i].path, path);
        free(path);
        TRY(code);
    }
    return OK;
}

static ErrorCode verify(const Step *s, const Target *t, const char *dir, Error *err) {
    ErrorCode code = t->whole ? checkpoint_verify(dir, err) : OK;
    for (size_t i = 0; !t->whole && code == OK && i < t->count; i++)
        code = manifest_check_file(&s->manifest, t->listed[i], dir, err);
    return code == OK ? OK
                      : error_context(err, "%s, which was fetched and is removed again, is damaged", s->url);
}

/* Only a whole checkpoint has a manifest. */
static ErrorCode write_manifest(const Step *s, const Target *t, const char *dir, Error *err) {
    if (!t->whole) return OK;
    char *path = path_join(dir, MANIFEST_FILE);
    ErrorCode code = file_write_atomic(path, s->text, s->length, err);
    free(path);
    return code;
}

/* In `made`, which is a leftover until it is renamed. */
static ErrorCode assemble(const Step *s, const Target *t, const char *made, Error *err) {
    ErrorCode code = file_remove_tree(made, err);
    if (code == OK) code = file_make_own_dir(made, err);
    if (code == OK) code = move_files(s, t, made, err);
    if (code == OK) code = write_manifest(s, t, made, err);
    if (code == OK) code = verify(s, t, made, err);
    if (code == OK && rename(made, t->dir) != 0)
        code = error_errno(err, ERR_IO, "%s: cannot be renamed to %s", made, t->dir);
    if (code != OK) file_remove_tree(made, NULL);
    return code == OK ? file_sync_dir(t->home, err) : code;
}

static ErrorCode make(const Step *s, Target *t, Error *err) {
    Text made = {0};
    char size[32];
    TRY(find_files(s, t, err));
    TRY(fetch_files(s, t, err));
    text_printf(&made, "%s/.tmp-%s", t->home, last_part(t->dir));
    ErrorCode code = assemble(s, t, made.data, err);
    if (code == OK && t->whole)
        log_info("fetched %s (%s) to %s", s->url, text_bytes((double)manifest_bytes(&s->manifest), size),
                 t->dir);
    text_free(&made);
    return code;
}

/* Another process may have made it while this one waited. */
static ErrorCode make_once(const Step *s, Target *t, Error *err) {
    if (file_is_dir(t->dir)) return OK;
    TRY(remote_enter(s->remote, s->work, s->url, err));
    ErrorCode code = file_is_dir(t->dir) ? OK : make(s, t, err);
    remote_leave(s->remote, s->work);
    return code;
}

/* What a process has renamed to its name is complete. */
static ErrorCode take(const Step *s, const char *home, bool whole, char **dir, Error *err) {
    Target t;
    target_open(&t, s, home, whole);
    ErrorCode code = make_once(s, &t, err);
    if (code == OK && whole) code = manifest_check_sizes(&s->manifest, t.dir, err);
    if (code == OK) *dir = mem_strdup(t.dir);
    target_close(&t);
    return code;
}

/* What this process holds until its end: a model is read long after it was found. */
typedef struct Held {
    CacheUse *use;
    struct Held *next;
} Held;
static Held *held;

static void hold(const char *cache_dir, const char *copy) {
    Held *h = mem_alloc(sizeof *h);
    *h = (Held){cache_use_open(cache_dir), held};
    cache_use_hold(h->use, copy);
    held = h;
}

static bool has_whole(const Step *s, const char *home) { return file_holds(home, last_part(s->url)); }

static ErrorCode fetch(const char *url, const char *cache_dir, bool whole, char **dir, Error *err) {
    Step s;
    Text home = {0};
    *dir = NULL;
    ErrorCode code = step_open(&s, url, cache_dir, err);
    text_printf(&home, "%s/" FETCH_COPIES "/%s", cache_dir, s.work);
    if (code == OK) code = file_make_dirs(cache_dir, err);
    if (code == OK) hold(cache_dir, s.work);
    if (code == OK) code = file_make_dirs(home.data, err);
    if (code == OK) code = take(&s, home.data, whole || has_whole(&s, home.data), dir, err);
    if (code == OK) utimensat(AT_FDCWD, home.data, NULL, AT_SYMLINK_NOFOLLOW); /* its last use */
    text_free(&home);
    step_close(&s);
    return code;
}

ErrorCode fetch_name_copies(const char *url, const char *cache_dir, Text *names, Error *err) {
    Step s;
    ErrorCode code = step_open(&s, url, cache_dir, err);
    if (code == OK) text_printf(names, "%s\n%s\n", s.work, s.path);
    step_close(&s);
    return code;
}

ErrorCode fetch_checkpoint(const char *url, const char *cache_dir, char **dir, Error *err) {
    return fetch(url, cache_dir, true, dir, err);
}

ErrorCode fetch_description(const char *url, const char *cache_dir, char **dir, Error *err) {
    return fetch(url, cache_dir, false, dir, err);
}

static ErrorCode check_resumable(const Step *s, Error *err) {
    if (s->manifest.resumable) return OK;
    return error_set(err, ERR_DATA, "%s holds weights only: name another step, or start from it (model.init)",
                     s->url);
}

ErrorCode fetch_into_run(const char *url, const char *checkpoints, Error *err) {
    Step s;
    char *dir = NULL, *cache = path_join(checkpoints, ".fetch");
    ErrorCode code = file_make_own_dir(checkpoints, err);
    if (code == OK) code = file_make_own_dir(cache, err);
    if (code == OK) {
        code = step_open(&s, url, cache, err);
        if (code == OK) code = check_resumable(&s, err);
        if (code == OK) code = take(&s, checkpoints, true, &dir, err);
        step_close(&s);
    }
    if (code == OK) code = file_remove_tree(cache, err);
    free(dir);
    free(cache);
    return code;
}
