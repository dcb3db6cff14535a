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
    if (!store_enter(r->store, file->entry, file->name, r->stop))
        return error_set(err, ERR_STOPPED, "%s: the run ended while another process fetched it", file->name);
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
    const RemoteQueue *queue;
    Progress *progress;
    atomic_size_t next; /* index into the queue */
    pthread_mutex_t lock;
    Error error; /* the first one */
} Fetch;

static void fail(Fetch *f, const Error *error) {
    pthread_mutex_lock(&f->lock);
    if (f->error.code == OK) f->error = *error;
    atomic_store(f->queue->ended, true);
    pthread_mutex_unlock(&f->lock);
}

static ErrorCode fetch_next(Fetch *f, Remote *own, bool *more, Error *err) {
    const RemoteQueue *q = f->queue;
    size_t i = atomic_fetch_add(&f->next, 1);
    *more = i < q->count;
    if (*more && q->admit) TRY(q->admit(q->context, i, more, err));
    if (!*more) return OK;
    TRY(fetch_one(own, q->files[i], f->progress, err));
    if (q->fetched) q->fetched(q->context, i);
    return OK;
}

/* Each thread has connections of its own, and finds out by itself in which region a bucket is. */
static void *fetch_files(void *ctx) {
    Fetch *f = ctx;
    Error err = {0};
    Remote own = *f->remote;
    own.client = NULL;
    own.access.region = mem_strdup(own.access.region);
    own.stop = f->queue->ended;
    if (f->queue->beats) progress_apart(f->queue->beats);
    bool more = true;
    ErrorCode code = http_open(&own.client, &err);
    while (code == OK && more && !atomic_load(f->queue->ended)) code = fetch_next(f, &own, &more, &err);
    if (code != OK) fail(f, &err);
    http_close(own.client);
    free(own.access.region);
    return NULL;
}

/* With as many threads as can be started. `bytes`: to be fetched. */
static ErrorCode fetch_all(Remote *r, const RemoteQueue *q, size_t threads, uint64_t bytes, Error *err) {
    pthread_t others[MOST_THREADS];
    size_t started = 0;
    Fetch f = {.remote = r, .queue = q};
    Text title = {0};
    text_printf(&title, "fetching %s", q->label);
    f.progress = progress_start(title.data, (double)bytes / 1e6, "MB");
    text_free(&title);
    pthread_mutex_init(&f.lock, NULL);
    while (started + 1 < threads && pthread_create(&others[started], NULL, fetch_files, &f) == 0) started++;
    fetch_files(&f);
    for (size_t i = 0; i < started; i++) pthread_join(others[i], NULL);
    pthread_mutex_destroy(&f.lock);
    progress_finish(f.progress);
    if (f.error.code != OK && err) *err = f.error;
    return f.error.code;
}

ErrorCode remote_fetch(Remote *r, const char *label, RemoteFile *files, const size_t *which, size_t count,
                       Error *err) {
    Missing missing = look(r, files, which, count);
    if (missing.files == 0) return OK;
    TRY(check_limit(r, label, files, which, count, err));
    TRY(store_make_room(r->store, missing.bytes - missing.part, err));
    atomic_bool ended = false;
    RemoteFile **all = mem_alloc_array(count, sizeof *all);
    for (size_t i = 0; i < count; i++) all[i] = &files[which[i]];
    RemoteQueue q = {.label = label, .files = all, .count = count, .ended = &ended};
    size_t threads = missing.files < MOST_THREADS ? missing.files : MOST_THREADS;
    ErrorCode code = fetch_all(r, &q, threads, missing.bytes - missing.part, err);
    free(all);
    return code;
}

/* What is there, or may come to be fetched by another process, is not known before its turn. */
ErrorCode remote_fetch_queue(Remote *r, const RemoteQueue *q, Error *err) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < q->count; i++) {
        uint64_t part;
        if (!remote_has_copy(r, q->files[i], &part)) bytes += q->files[i]->size - part;
    }
    return fetch_all(r, q, q->count < MOST_THREADS ? q->count : MOST_THREADS, bytes, err);
}

void remote_release(Remote *r, const RemoteFile *file) { store_release(r->store, file->entry); }

ErrorCode remote_make_room(Remote *r, const RemoteFile *file, Error *err) {
    uint64_t part;
    if (remote_has_copy(r, file, &part)) return OK;
    return store_make_room(r->store, file->size - part, err);
}

uint64_t remote_limit(const Remote *r) { return store_limit(r->store); }

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
    store_enter(r->store, file->entry, file->name, NULL);
    ErrorCode code = store_set_about(r->store, file->entry, &about, err);
    store_leave(r->store, file->entry);
    return code;
}

ErrorCode remote_enter(Remote *r, const char *work, const char *label, Error *err) {
    TRY(store_hold(r->store, work, err));
    store_enter(r->store, work, label, NULL);
    return OK;
}

void remote_leave(Remote *r, const char *work) { store_leave(r->store, work); }
