/*  M1. The queue has one place: what waits is replaced by what is newer. A slow store gets fewer checkpoints.
 *  M2. A job has its files open: pruning a checkpoint does not disturb its copy.
 *  M3. The thread alone talks to the store, once it has started.
 *  M4. A checkpoint is written over only by its own run, and while that happens it has no valid manifest. */
#include "checkpoint/mirror.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fileops.h"
#include "checkpoint/manifest.h"
#include "formats/stored_file.h"
#include "remote/location.h"
#include "remote/remote.h"

#define OWNER_OBJECT "weft"
#define ID_FILE "mirror-id"
enum { ID_BYTES = 16, ID_DIGITS = 2 * ID_BYTES };

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
    char id[ID_DIGITS + 1];            /* of this run */
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

/* Appends a small object; nothing if it is not there, or may not be read. */
static ErrorCode read_object(const Mirror *m, const char *step, const char *name, Text *out, Error *err) {
    char *key = key_of(m, step, name);
    ErrorCode code = remote_read(m->remote, m->bucket, key, out, err);
    free(key);
    return code == ERR_NOINPUT ? OK : code;
}

static ErrorCode put_object(const Mirror *m, const char *step, const char *name, const char *text,
                            Error *err) {
    char *key = key_of(m, step, name);
    ErrorCode code = remote_put(m->remote, m->bucket, key, text, strlen(text), err);
    free(key);
    return code;
}

/* What the store has of a checkpoint. Its manifest has the checksums of everything else. */
typedef enum Stored { STORED_NOTHING, STORED_SAME, STORED_ANOTHER } Stored;

static ErrorCode look(const Mirror *m, const MirrorJob *job, Stored *stored, Error *err) {
    const MirrorFile *manifest = &job->files[job->count - 1];
    char *here = mem_alloc((size_t)manifest->size + 1);
    Text there = {0};
    ErrorCode code = stored_read_at(manifest->fd, job->step, 0, here, (size_t)manifest->size, err);
    if (code == OK) code = read_object(m, job->step, MANIFEST_FILE, &there, err);
    bool same = there.length == manifest->size && memcmp(there.data, here, there.length) == 0;
    *stored = there.length == 0 ? STORED_NOTHING : same ? STORED_SAME : STORED_ANOTHER;
    free(here);
    text_free(&there);
    return code;
}

/* An empty manifest is no valid one, and needs no permission to remove objects. */
static ErrorCode invalidate(const Mirror *m, const MirrorJob *job, Error *err) {
    log_warn("%s/%s: replaces another checkpoint of this run and step", m->url, job->step);
    return put_object(m, job->step, MANIFEST_FILE, "", err);
}

static ErrorCode copy_files(const Mirror *m, const MirrorJob *job, Error *err) {
    for (size_t i = 0; i < job->count; i++) {
        const MirrorFile *f = &job->files[i];
        char *key = key_of(m, job->step, f->name);
        ErrorCode code = remote_put_file(m->remote, m->bucket, key, f->fd, f->name, f->size, err);
        free(key);
        TRY(code);
    }
    return put_object(m, "", "latest", job->step, err);
}

/* ---- whose prefix it is ---- */

static ErrorCode refuse_owner(const Mirror *m, Error *err) {
    return error_set(err, ERR_CONFIG,
                     "%s belongs to another run (so its object \"" OWNER_OBJECT
                     "\" says): give each run a prefix of its own, or remove what is there",
                     m->url);
}

static ErrorCode make_id(Mirror *m, Error *err) {
    unsigned char bytes[ID_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return error_errno(err, ERR_IO, "the system gives no random numbers");
    hex_of(bytes, sizeof bytes, m->id);
    return OK;
}

static ErrorCode read_id(Mirror *m, const char *path, Error *err) {
    char *text;
    size_t length;
    TRY(file_read_own(path, 2 * ID_DIGITS, &text, &length, err));
    bool good = strspn(text, "0123456789abcdef") == ID_DIGITS;
    if (good) memcpy(m->id, text, ID_DIGITS);
    free(text);
    return good ? OK : error_set(err, ERR_DATA, "%s: expected %d hex digits; remove it", path, ID_DIGITS);
}

/* Of an earlier start, or a new one. */
static ErrorCode take_id(Mirror *m, Error *err) {
    char *path = path_join(m->dir, ID_FILE);
    ErrorCode code = file_exists(path) ? read_id(m, path, err) : make_id(m, err);
    free(path);
    return code;
}

static ErrorCode keep_id(const Mirror *m, Error *err) {
    char *path = path_join(m->dir, ID_FILE), line[ID_DIGITS + 2];
    snprintf(line, sizeof line, "%s\n", m->id);
    ErrorCode code = file_make_own_dir(m->dir, err);
    if (code == OK) code = file_write_atomic(path, line, ID_DIGITS + 1, err);
    free(path);
    return code;
}

/* Whether the store has a checkpoint of the run's directory: the run was restored from there. */
static ErrorCode shares_checkpoint(const Mirror *m, bool *shares, Error *err) {
    CheckpointSet set;
    TRY(checkpoint_list(&set, m->dir, CHECK_MANIFEST, err));
    ErrorCode code = OK;
    for (size_t i = set.count; !*shares && code == OK && i-- > 0;) {
        MirrorJob *job;
        Stored stored = STORED_NOTHING;
        char step[32];
        snprintf(step, sizeof step, "step-%08lld", (long long)set.items[i].step);
        if (!set.items[i].good || job_make(m, step, &job, NULL) != OK) continue;
        code = look(m, job, &stored, err);
        *shares = stored == STORED_SAME;
        job_free(job);
    }
    checkpoint_set_free(&set);
    return code;
}

/* A prefix that names no run, as by earlier versions, is free if it has no checkpoint. */
static ErrorCode check_owner(const Mirror *m, Error *err) {
    Text owner = {0}, latest = {0};
    ErrorCode code = read_object(m, "", OWNER_OBJECT, &owner, err);
    if (code == OK) code = read_object(m, "", "latest", &latest, err);
    bool named = owner.length && strstr(owner.data, "run ");
    bool ours = named ? strstr(owner.data, m->id) != NULL : latest.length == 0;
    if (code == OK && !ours) code = shares_checkpoint(m, &ours, err);
    if (code == OK && !ours) code = refuse_owner(m, err);
    text_free(&owner);
    text_free(&latest);
    return code;
}

static ErrorCode claim(Mirror *m, Error *err) {
    Text owner = {0};
    TRY(take_id(m, err));
    TRY(check_owner(m, err));
    TRY(keep_id(m, err));
    text_printf(&owner, "weft " WEFT_VERSION "\nrun %s\n", m->id);
    ErrorCode code = put_object(m, "", OWNER_OBJECT, owner.data, err);
    text_free(&owner);
    return code;
}

/* Two runs may have claimed a prefix at the same moment: the later one has it. */
static ErrorCode check_claim(const Mirror *m, Error *err) {
    Text owner = {0};
    ErrorCode code = read_object(m, "", OWNER_OBJECT, &owner, err);
    if (code == OK && owner.length && !strstr(owner.data, m->id)) code = refuse_owner(m, err);
    text_free(&owner);
    return code;
}

/* ---- one checkpoint ---- */

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
    Stored stored = STORED_NOTHING;
    ErrorCode code = check_claim(m, &err);
    if (code == OK) code = look(m, job, &stored, &err);
    if (code == OK && stored == STORED_SAME) return;
    if (code == OK && stored == STORED_ANOTHER) code = invalidate(m, job, &err);
    if (code == OK) code = copy_files(m, job, &err);
    if (code == OK)
        report(m, job, clock_seconds() - start);
    else
        log_warn("%s was not mirrored: %s; the run goes on, and its next checkpoint is tried again",
                 job->step, err.message);
}

static void *run(void *ctx) {
    Mirror *m = ctx;
    progress_apart(NULL);
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
    TRY(remote_open(&m->remote, NULL, 0, err));
    TRY(claim(m, err));
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
