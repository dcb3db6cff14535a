#include "checkpoint/fetch.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/url.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"
#include "remote/location.h"
#include "remote/remote.h"

enum { WORK_DIGITS = 32 };

/* A step in a store. */
typedef struct Step {
    Remote *remote;
    char *url;
    int64_t number;
    char *text; /* of its manifest */
    size_t length;
    char work[WORK_DIGITS + 1]; /* hash of the manifest */
    Manifest manifest;
    RemoteFile *files; /* those of the manifest, [count] */
    size_t count;
} Step;

bool fetch_is_remote(const char *where) { return url_is(where) && !file_exists(where); }

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
static ErrorCode find_file(Step *s, const char *name, RemoteFile *file, Error *err) {
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
    remote_free(s->files, s->count);
    manifest_free(&s->manifest);
    free(s->text);
    free(s->url);
    remote_close(s->remote);
}

/* ---- its files ---- */

/* Sizes are compared before anything is fetched. */
static ErrorCode find_files(Step *s, Error *err) {
    s->files = mem_alloc_array(s->manifest.file_count, sizeof *s->files);
    for (size_t i = 0; i < s->manifest.file_count; i++) {
        const ManifestFile *listed = &s->manifest.files[i];
        TRY(find_file(s, listed->name, &s->files[i], err));
        s->count++;
        if (s->files[i].size != listed->bytes)
            return error_set(err, ERR_DATA,
                             "%s: %" PRIu64 " bytes in the store, where the manifest says %" PRIu64
                             ": the mirror is damaged. Name another step",
                             s->files[i].name, s->files[i].size, listed->bytes);
    }
    return OK;
}

static ErrorCode fetch_files(Step *s, Error *err) {
    size_t *which = mem_alloc_array(s->count, sizeof *which);
    for (size_t i = 0; i < s->count; i++) which[i] = i;
    ErrorCode code = remote_fetch(s->remote, s->url, s->files, which, s->count, err);
    free(which);
    return code;
}

static ErrorCode move_files(const Step *s, const char *to, Error *err) {
    for (size_t i = 0; i < s->count; i++) {
        char *path = path_join(to, s->manifest.files[i].name);
        ErrorCode code = rename(s->files[i].path, path) == 0
                             ? OK
                             : error_errno(err, ERR_IO, "%s: cannot be moved to %s", s->files[i].path, path);
        free(path);
        TRY(code);
    }
    return OK;
}

static ErrorCode verify(const Step *s, const char *dir, Error *err) {
    ErrorCode code = checkpoint_verify(dir, err);
    return code == OK ? OK
                      : error_context(err, "%s, which was fetched and is removed again, is damaged", s->url);
}

/* In `made`, which is a leftover until it is renamed. */
static ErrorCode assemble(const Step *s, const char *made, const char *dir, Error *err) {
    char *manifest = path_join(made, MANIFEST_FILE);
    ErrorCode code = file_remove_tree(made, err);
    if (code == OK) code = file_make_own_dir(made, err);
    if (code == OK) code = move_files(s, made, err);
    if (code == OK) code = file_write_atomic(manifest, s->text, s->length, err);
    if (code == OK) code = verify(s, made, err);
    if (code == OK && rename(made, dir) != 0)
        code = error_errno(err, ERR_IO, "%s: cannot be renamed to %s", made, dir);
    if (code != OK) file_remove_tree(made, NULL);
    free(manifest);
    return code;
}

static ErrorCode make(Step *s, const char *home, const char *dir, Error *err) {
    Text made = {0};
    char size[32];
    TRY(find_files(s, err));
    TRY(fetch_files(s, err));
    text_printf(&made, "%s/.tmp-%s", home, last_part(s->url));
    ErrorCode code = assemble(s, made.data, dir, err);
    if (code == OK) code = file_sync_dir(home, err);
    if (code == OK)
        log_info("fetched %s (%s) to %s", s->url, text_bytes((double)manifest_bytes(&s->manifest), size),
                 dir);
    text_free(&made);
    return code;
}

/* Another process may have made it while this one waited. */
static ErrorCode make_once(Step *s, const char *home, const char *dir, Error *err) {
    if (file_is_dir(dir)) return OK;
    TRY(remote_enter(s->remote, s->work, s->url, err));
    ErrorCode code = file_is_dir(dir) ? OK : make(s, home, dir, err);
    remote_leave(s->remote, s->work);
    return code;
}

ErrorCode fetch_checkpoint(const char *url, const char *cache_dir, char **dir, Error *err) {
    Step s;
    Text home = {0};
    *dir = NULL;
    ErrorCode code = step_open(&s, url, cache_dir, err);
    text_printf(&home, "%s/checkpoints/%s", cache_dir, s.work);
    if (code == OK) code = file_make_dirs(home.data, err);
    if (code == OK) {
        *dir = path_join(home.data, last_part(s.url));
        code = make_once(&s, home.data, *dir, err);
    }
    if (code == OK) code = manifest_check_sizes(&s.manifest, *dir, err);
    if (code != OK) {
        free(*dir);
        *dir = NULL;
    }
    text_free(&home);
    step_close(&s);
    return code;
}
