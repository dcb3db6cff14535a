/*  M1. The queue has one place: what waits is replaced by what is newer. A slow store gets fewer checkpoints.
 *  M2. A job has its files open: pruning a checkpoint does not disturb its copy.
 *  M3. The thread alone talks to the store. */
#include "checkpoint/mirror.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/fileops.h"
#include "checkpoint/manifest.h"
#include "remote/location.h"
#include "remote/remote.h"

typedef struct MirrorFile {
    char *name;
    int fd;
    uint64_t size;
} MirrorFile;

/* A checkpoint to copy; the manifest is the last file. */
typedef struct MirrorJob {
    char *step; /* "step-00000200" */
    MirrorFile *files;
    size_t count;
} MirrorJob;

struct Mirror {
    Remote *remote;
    char *dir, *url, *bucket, *prefix; /* prefix: ends in a slash */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    MirrorJob *waiting;
    bool busy, closing;
};

/* ---- jobs ---- */

static void job_free(MirrorJob *job) {
    if (!job) return;
    for (size_t i = 0; i < job->count; i++) {
        free(job->files[i].name);
        if (job->files[i].fd >= 0) close(job->files[i].fd);
    }
    free(job->files);
    free(job->step);
    free(job);
}

static ErrorCode job_add(MirrorJob *job, const char *dir, const char *name, Error *err) {
    MirrorFile *f = &job->files[job->count];
    TRY(fileops_open_in(dir, name, &f->fd, &f->size, err));
    f->name = mem_strdup(name);
    job->count++;
    return OK;
}

static ErrorCode fill(MirrorJob *job, const char *dir, Error *err) {
    Manifest manifest;
    TRY(manifest_read(&manifest, dir, err));
    job->files = mem_alloc_array(manifest.file_count + 1, sizeof *job->files);
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && i < manifest.file_count; i++)
        code = job_add(job, dir, manifest.files[i].name, err);
    if (code == OK) code = job_add(job, dir, MANIFEST_FILE, err);
    manifest_free(&manifest);
    return code;
}

/* `step` is the name of a directory, or "latest". */
static ErrorCode job_make(const Mirror *m, const char *step, MirrorJob **out, Error *err) {
    char target[64];
    char *dir = path_join(m->dir, step);
    ssize_t length = readlink(dir, target, sizeof target - 1); /* the name that `latest` stands for */
    MirrorJob *job = mem_alloc(sizeof *job);
    if (length > 0) target[length] = '\0';
    job->step = mem_strdup(length > 0 ? target : step);
    ErrorCode code = fill(job, dir, err);
    free(dir);
    if (code != OK) {
        job_free(job);
        job = NULL;
    }
    *out = job;
    return code;
}

/* ---- copying ---- */

static char *key_of(const Mirror *m, const char *step, const char *name) {
    Text key = {0};
    text_printf(&key, "%s%s%s%s", m->prefix, step, *step ? "/" : "", name);
    return key.data;
}

/* *same: the store has this checkpoint. Its manifest has the checksums of everything else. */
static ErrorCode look(const Mirror *m, const MirrorJob *job, bool *same, Error *err) {
    const MirrorFile *manifest = &job->files[job->count - 1];
    char *key = key_of(m, job->step, MANIFEST_FILE), *here = mem_alloc((size_t)manifest->size + 1);
    Text there = {0};
    ErrorCode code = fileops_read_at(manifest->fd, job->step, 0, here, (size_t)manifest->size, err);
    if (code == OK) code = remote_read(m->remote, m->bucket, key, &there, err);
    *same = code == OK && there.length == manifest->size && memcmp(there.data, here, there.length) == 0;
    if (code == OK && !*same)
        log_warn("%s/%s: replaces another checkpoint of this step; give each run a mirror of its own", m->url,
                 job->step);
    free(here);
    free(key);
    text_free(&there);
    return code == ERR_NOINPUT ? OK : code;
}

static ErrorCode copy_files(const Mirror *m, const MirrorJob *job, Error *err) {
    for (size_t i = 0; i < job->count; i++) {
        const MirrorFile *f = &job->files[i];
        char *key = key_of(m, job->step, f->name);
        ErrorCode code = remote_put_file(m->remote, m->bucket, key, f->fd, f->name, f->size, err);
        free(key);
        TRY(code);
    }
    char *key = key_of(m, "", "latest");
    ErrorCode code = remote_put(m->remote, m->bucket, key, job->step, strlen(job->step), err);
    free(key);
    return code;
}

static void report(const Mirror *m, const MirrorJob *job, double seconds) {
    char took[16], bytes[32];
    double all = 0;
    for (size_t i = 0; i < job->count; i++) all += (double)job->files[i].size;
    log_info("mirrored %s to %s: %s in %s (%.1f MB/s)", job->step, m->url, text_bytes(all, bytes),
             clock_duration(seconds, took), seconds > 0 ? all / 1e6 / seconds : 0);
}

static void copy(const Mirror *m, const MirrorJob *job) {
    Error err = {0};
    double start = clock_seconds();
    bool same = false;
    ErrorCode code = look(m, job, &same, &err);
    if (code == OK && same) return;
    if (code == OK) code = copy_files(m, job, &err);
    if (code == OK)
        report(m, job, clock_seconds() - start);
    else
        log_warn("%s was not mirrored: %s; the run goes on, and its next checkpoint is tried again",
                 job->step, err.message);
}

static void *run(void *ctx) {
    Mirror *m = ctx;
    pthread_mutex_lock(&m->lock);
    for (;;) {
        while (!m->waiting && !m->closing) pthread_cond_wait(&m->changed, &m->lock);
        MirrorJob *job = m->waiting;
        m->waiting = NULL;
        if (!job) break;
        m->busy = true;
        pthread_mutex_unlock(&m->lock);
        copy(m, job);
        job_free(job);
        pthread_mutex_lock(&m->lock);
        m->busy = false;
    }
    pthread_mutex_unlock(&m->lock);
    return NULL;
}

/* ---- the run's side ---- */

static ErrorCode start(Mirror *m, Error *err) {
    static const char text[] = "weft " WEFT_VERSION "\n";
    TRY(remote_open(&m->remote, NULL, 0, err));
    char *key = key_of(m, "", "weft");
    ErrorCode code = remote_put(m->remote, m->bucket, key, text, strlen(text), err);
    free(key);
    TRY(code);
    if (pthread_create(&m->thread, NULL, run, m) == 0) return OK;
    return error_set(err, ERR_UNAVAILABLE, "checkpoint.mirror: no thread can be started");
}

static void mirror_free(Mirror *m) {
    remote_close(m->remote);
    job_free(m->waiting);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->changed);
    free(m->dir);
    free(m->url);
    free(m->bucket);
    free(m->prefix);
    free(m);
}

ErrorCode mirror_open(Mirror **mirror, const char *url, const char *dir, Error *err) {
    Location l;
    *mirror = NULL;
    TRY(location_check_prefix(&l, url, err));
    Mirror *m = mem_alloc(sizeof *m);
    Text prefix = {0};
    bool slash = l.path[strlen(l.path) - 1] == '/';
    text_printf(&prefix, "%s%s", l.path, slash ? "" : "/");
    *m = (Mirror){.dir = mem_strdup(dir),
                  .url = mem_strdup(url),
                  .bucket = strndup(l.authority, l.authority_length),
                  .prefix = prefix.data};
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->changed, NULL);
    ErrorCode code = start(m, err);
    if (code != OK) {
        mirror_free(m);
        return error_context(err, "checkpoint.mirror");
    }
    *mirror = m;
    return OK;
}

void mirror_add(Mirror *m, int64_t step) {
    Error err = {0};
    MirrorJob *job, *passed;
    char name[32] = "latest";
    if (step >= 0) snprintf(name, sizeof name, "step-%08lld", (long long)step);
    if (job_make(m, name, &job, &err) != OK) {
        if (step >= 0) log_warn("%s was not mirrored: %s", name, err.message);
        return;
    }
    pthread_mutex_lock(&m->lock);
    passed = m->waiting;
    m->waiting = job;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    if (passed) log_warn("%s is not mirrored: %s is slower than the run saves", passed->step, m->url);
    job_free(passed);
}

/* The wait is progress: ranks whose rank 0 still copies must not take it for hung. */
static void wait(Mirror *m) {
    bool said = false;
    for (;;) {
        pthread_mutex_lock(&m->lock);
        bool done = !m->waiting && !m->busy;
        pthread_mutex_unlock(&m->lock);
        if (done) return;
        if (!said) log_info("waiting until the last checkpoint is mirrored to %s", m->url);
        said = true;
        progress_beat();
        nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
    }
}

void mirror_close(Mirror *m) {
    if (!m) return;
    wait(m);
    pthread_mutex_lock(&m->lock);
    m->closing = true;
    pthread_cond_signal(&m->changed);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    mirror_free(m);
}
