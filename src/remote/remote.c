#include "remote/remote.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/url.h"
#include "remote/internal.h"

enum { MOST_THREADS = 4 };

ErrorCode remote_open(Remote **remote, const char *cache_dir, uint64_t limit, Error *err) {
    Remote *r = mem_alloc(sizeof *r);
    *remote = NULL;
    ErrorCode code = http_open(&r->client, err);
    if (code == OK) code = s3_access_open(&r->access, err);
    if (code == OK && cache_dir) code = store_open(&r->store, cache_dir, limit, err);
    if (code != OK)
        remote_close(r);
    else
        *remote = r;
    return code;
}

void remote_close(Remote *r) {
    if (!r) return;
    store_close(r->store);
    s3_access_close(&r->access);
    http_close(r->client);
    free(r);
}

/* What is missing, with bytes that are there of files that are not whole. */
typedef struct Missing {
    size_t files;
    uint64_t bytes, part;
} Missing;

static Missing look(const Remote *r, const RemoteFile *files, const size_t *which, size_t count) {
    Missing m = {0};
    for (size_t i = 0; i < count; i++) {
        uint64_t part;
        if (remote_has_copy(r, &files[which[i]], &part)) continue;
        m.files++;
        m.bytes += files[which[i]].size;
        m.part += part;
    }
    return m;
}

/* All files of a call are needed at one time. */
static ErrorCode check_limit(const Remote *r, const char *label, const RemoteFile *files, const size_t *which,
                             size_t count, Error *err) {
    uint64_t bytes = 0, limit = store_limit(r->store);
    char needed[32], given[32];
    for (size_t i = 0; i < count; i++) bytes += files[which[i]].size;
    if (limit == 0 || bytes <= limit) return OK;
    return error_set(
        err, ERR_CONFIG,
        "%s: its files that have to be read take %s, more than data.remote_cache_gib allows (%s): "
        "make it larger",
        label, text_bytes((double)bytes, needed), text_bytes((double)limit, given));
}

/* Another process may have fetched it while this one waited. */
static ErrorCode fetch_one(Remote *r, RemoteFile *file, Progress *progress, Error *err) {
    uint64_t part;
    if (remote_has_copy(r, file, &part)) return OK;
    store_enter(r->store, file->entry, file->name);
    ErrorCode code = OK;
    if (remote_has_copy(r, file, &part))
        progress_add(progress, (double)file->size / 1e6);
    else
        code = remote_download(r, file, progress, err);
    store_leave(r->store, file->entry);
    return code;
}

/* What the threads of one call share. */
typedef struct Fetch {
    Remote *remote;
    RemoteFile *files;
    const size_t *which;
    size_t count;
    Progress *progress;
    atomic_size_t next; /* index into `which` */
    atomic_bool failed;
    pthread_mutex_t lock; /* of the first error */
    Error error;
} Fetch;

static void fail(Fetch *f, const Error *error) {
    pthread_mutex_lock(&f->lock);
    if (!atomic_load(&f->failed)) f->error = *error;
    atomic_store(&f->failed, true);
    pthread_mutex_unlock(&f->lock);
}

/* Each thread has connections of its own, and finds out by itself in which region a bucket is. */
static void *fetch_files(void *ctx) {
    Fetch *f = ctx;
    Error err = {0};
    Remote own = *f->remote;
    own.client = NULL;
    own.access.region = mem_strdup(own.access.region);
    own.stop = &f->failed;
    ErrorCode code = http_open(&own.client, &err);
    while (code == OK && !atomic_load(&f->failed)) {
        size_t i = atomic_fetch_add(&f->next, 1);
        if (i >= f->count) break;
        code = fetch_one(&own, &f->files[f->which[i]], f->progress, &err);
    }
    if (code != OK) fail(f, &err);
    http_close(own.client);
    free(own.access.region);
    return NULL;
}

/* With as many threads as can be started. */
static void fetch_all(Fetch *f, size_t threads) {
    pthread_t others[MOST_THREADS];
    size_t started = 0;
    while (started + 1 < threads && pthread_create(&others[started], NULL, fetch_files, f) == 0) started++;
    fetch_files(f);
    for (size_t i = 0; i < started; i++) pthread_join(others[i], NULL);
}

ErrorCode remote_fetch(Remote *r, const char *label, RemoteFile *files, const size_t *which, size_t count,
                       Error *err) {
    Missing missing = look(r, files, which, count);
    if (missing.files == 0) return OK;
    TRY(check_limit(r, label, files, which, count, err));
    TRY(store_make_room(r->store, missing.bytes - missing.part, err));
    Text title = {0};
    text_printf(&title, "fetching %s", label);
    Fetch f = {.remote = r, .files = files, .which = which, .count = count};
    f.progress = progress_start(title.data, (double)(missing.bytes - missing.part) / 1e6, "MB");
    text_free(&title);
    pthread_mutex_init(&f.lock, NULL);
    fetch_all(&f, missing.files < MOST_THREADS ? missing.files : MOST_THREADS);
    pthread_mutex_destroy(&f.lock);
    progress_finish(f.progress);
    if (!atomic_load(&f.failed)) return OK;
    if (err) *err = f.error;
    return f.error.code;
}

ErrorCode remote_take(Remote *r, const char *url, RemoteFile **files, size_t *count, Error *err) {
    Text label = {0};
    TRY(remote_find(r, url, files, count, err));
    size_t *which = mem_alloc_array(*count, sizeof *which);
    for (size_t i = 0; i < *count; i++) which[i] = i;
    url_show(url, &label);
    ErrorCode code = remote_fetch(r, label.data, *files, which, *count, err);
    text_free(&label);
    free(which);
    if (code == OK) return OK;
    remote_free(*files, *count);
    *files = NULL;
    *count = 0;
    return code;
}

ErrorCode remote_remember(Remote *r, RemoteFile *file, const char sha256[65], Error *err) {
    StoredAbout about = {file->name, file->etag, file->modified, file->size, "", store_boot()};
    if (strcmp(file->sha256, sha256) == 0) return OK;
    memcpy(about.sha256, sha256, sizeof about.sha256);
    memcpy(file->sha256, sha256, sizeof file->sha256);
    store_enter(r->store, file->entry, file->name);
    ErrorCode code = store_set_about(r->store, file->entry, &about, err);
    store_leave(r->store, file->entry);
    return code;
}

ErrorCode remote_enter(Remote *r, const char *work, const char *label, Error *err) {
    TRY(store_hold(r->store, work, err));
    store_enter(r->store, work, label);
    return OK;
}

void remote_leave(Remote *r, const char *work) { store_leave(r->store, work); }
