/* Fetching the copy of one file.
 *
 *     probe --> .about.json names the version --> .part grows by ranges --> whole: synced, renamed
 *                        ^                              |
 *                        +---- another version (412, another ETag or date): at most MOST_VERSIONS times
 *
 *  D1. Bytes are appended to .part only from answers that begin where it ends and are of the version in
 *      .about.json: by If-Match and the answer's ETag and size; without a strong ETag, by If-Unmodified-Since
 *      and the answer's Last-Modified and size. Without that too, all bytes of .part are of one answer.
 *  D2. .part of an earlier process is continued only in the same boot: after a power failure its end might
 *      not be what was written. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "remote/internal.h"

enum { MOST_VERSIONS = 3, ENOUGH_PROGRESS = 1 << 20 };

/* A file being fetched. */
typedef struct Download {
    Remote *remote;
    RemoteFile *file;
    Progress *progress;
    char *part;
    int fd;
    uint64_t at; /* bytes in .part */
    int tries, versions;
    bool changed;    /* this answer is of another version */
    char wrong[160]; /* "": nothing is wrong with this answer */
    Error error;     /* of writing */
} Download;

static char *part_of(const Remote *r, const RemoteFile *file) {
    return store_path(r->store, file->entry, ".part");
}

static bool is_strong(const char *etag) { return *etag && strncmp(etag, "W/", 2) != 0; }

bool remote_is_version(const StoredAbout *a, const RemoteFile *file) {
    if (a->size != file->size || strcmp(a->etag, file->etag) != 0) return false;
    return is_strong(file->etag) || strcmp(a->modified, file->modified) == 0;
}

bool remote_has_version(const RemoteFile *file) { return is_strong(file->etag) || *file->modified; }

void remote_version(const RemoteFile *file, char out[65]) {
    Text version = {0};
    text_printf(&version, "%s\n%" PRIu64 "\n%s\n%s", file->name, file->size, file->etag,
                is_strong(file->etag) ? "" : file->modified);
    sha256_of(version.data, version.length, out);
    text_free(&version);
}

static bool has_size(const char *path, uint64_t size) {
    struct stat st;
    return lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size == size;
}

static uint64_t part_size(const Remote *r, const RemoteFile *file) {
    struct stat st;
    char *path = part_of(r, file);
    bool good = lstat(path, &st) == 0 && S_ISREG(st.st_mode) && (uint64_t)st.st_size <= file->size;
    free(path);
    return good ? (uint64_t)st.st_size : 0;
}

bool remote_has_copy(const Remote *r, const RemoteFile *file, uint64_t *part) {
    StoredAbout about;
    bool known = store_about(r->store, file->entry, &about) && remote_is_version(&about, file);
    bool whole = known && has_size(file->path, file->size);
    *part = known && !whole && strcmp(about.boot, store_boot()) == 0 ? part_size(r, file) : 0; /* D2 */
    store_about_free(&about);
    return whole;
}

/* ---- the answer ---- */

/* A strong ETag is compared by the server; else the time of change is. NULL: neither is known, and there is
 * no telling whether a later answer goes on with the same bytes. */
static const char *condition(const RemoteFile *file, char out[HTTP_ETAG + 32]) {
    if (is_strong(file->etag))
        snprintf(out, HTTP_ETAG + 32, "If-Match: %s", file->etag);
    else if (*file->modified)
        snprintf(out, HTTP_ETAG + 32, "If-Unmodified-Since: %s", file->modified);
    else
        return NULL;
    return out;
}

static bool truncate_part(Download *d) {
    progress_add(d->progress, -(double)d->at / 1e6);
    d->at = 0;
    if (ftruncate(d->fd, 0) == 0) return true;
    error_errno(&d->error, ERR_IO, "%s: cannot be truncated", d->part);
    return false;
}

/* A server may leave out what it has named before, unless bytes of an earlier answer depend on it. */
static bool agrees(const char *expected, const char *found, bool needed) {
    return !*expected || (*found ? strcmp(expected, found) == 0 : !needed);
}

/* Servers may ignore conditions, so the answer's version is compared too. */
static bool is_of_version(const Download *d, const HttpReply *reply) {
    const RemoteFile *file = d->file;
    bool strong = is_strong(file->etag), goes_on = d->at > 0;
    return agrees(file->etag, reply->etag, goes_on && strong) &&
           (strong || agrees(file->modified, reply->modified, goes_on));
}

/* The first bytes of an answer: whether it is what was asked for. */
static bool check_answer(Download *d, const HttpReply *reply) {
    const RemoteFile *file = d->file;
    uint64_t size = reply->status == HTTP_PARTIAL ? reply->size : reply->length;
    bool stated = reply->status == HTTP_PARTIAL ? reply->has_range : reply->has_length;
    if (!is_of_version(d, reply)) {
        d->changed = true;
        return false;
    }
    if (reply->status == HTTP_PARTIAL && (!stated || reply->first != d->at)) {
        snprintf(d->wrong, sizeof d->wrong, "the server sends bytes from %" PRIu64 ", not from %" PRIu64,
                 reply->first, d->at);
        return false;
    }
    if (stated && size != file->size) {
        snprintf(d->wrong, sizeof d->wrong, "the server states %" PRIu64 " bytes, where it stated %" PRIu64,
                 size, file->size);
        return false;
    }
    return true;
}

static bool write_bytes(Download *d, const char *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        ssize_t n = pwrite(d->fd, bytes + done, count - done, (off_t)(d->at + done));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            error_errno(&d->error, ERR_IO, "%s: writing failed", d->part);
            return false;
        }
        done += (size_t)n;
    }
    d->at += count;
    progress_add(d->progress, (double)count / 1e6);
    return true;
}

/* An answer is checked once, when its first bytes come. */
typedef struct Answer {
    Download *download;
    bool checked;
} Answer;

static bool take_bytes(void *ctx, const HttpReply *reply, const char *bytes, size_t count) {
    Answer *a = ctx;
    Download *d = a->download;
    if (!a->checked) {
        a->checked = true;
        /* 200: ranges are ignored, and everything comes again. */
        if (reply->status == 200 && d->at > 0 && !truncate_part(d)) return false;
        if (!check_answer(d, reply)) return false;
    }
    if (d->at + count <= d->file->size) return write_bytes(d, bytes, count);
    snprintf(d->wrong, sizeof d->wrong, "the server sends more than the %" PRIu64 " bytes that it stated",
             d->file->size);
    return false;
}

/* ---- the versions ---- */

/* A hash that is known of this version stays known. */
static ErrorCode begin_part(Download *d, Error *err) {
    const RemoteFile *f = d->file;
    StoredAbout about = {f->name, d->file->etag, d->file->modified, f->size, "", store_boot()};
    memcpy(about.sha256, f->sha256, sizeof about.sha256);
    TRY(store_clear(d->remote->store, f->entry, err));
    return store_set_about(d->remote->store, f->entry, &about, err);
}

static void add_change(Text *out, const char *what, const char *now, const char *before) {
    if (strcmp(now, before) == 0) return;
    text_printf(out, "%s%s %s, before %s", out->length ? "; " : "", what, *now ? now : "none",
                *before ? before : "none");
}

static void report_change(const RemoteFile *file, const StoredAbout *about) {
    Text changes = {0};
    char now[24], before[24];
    snprintf(now, sizeof now, "%" PRIu64, file->size);
    snprintf(before, sizeof before, "%" PRIu64, about->size);
    add_change(&changes, "ETag", file->etag, about->etag);
    add_change(&changes, "Last-Modified", file->modified, about->modified);
    add_change(&changes, "bytes", now, before);
    log_warn("%s: changed on the server (%s); it is fetched again", file->name, changes.data);
    text_free(&changes);
}

/* The hash of before is not that of another version. */
static void take_change(const Download *d) {
    StoredAbout about;
    if (store_about(d->remote->store, d->file->entry, &about) && !remote_is_version(&about, d->file)) {
        report_change(d->file, &about);
        d->file->sha256[0] = '\0';
    }
    store_about_free(&about);
}

/* Opens .part: what there is of this version, or an empty one. */
static ErrorCode open_part(Download *d, Error *err) {
    uint64_t part;
    if (d->fd >= 0) close(d->fd);
    d->fd = -1;
    remote_has_copy(d->remote, d->file, &part);
    if (!remote_has_version(d->file)) part = 0;
    if (part == 0) TRY(begin_part(d, err));
    TRY(file_open_own(d->part, O_RDWR | O_CREAT, &d->fd, err));
    d->at = part;
    return OK;
}

static ErrorCode take_other_version(Download *d, Error *err) {
    if (++d->versions >= MOST_VERSIONS)
        return error_set(err, ERR_DATA, "%s: %s; tried %d times: run again when the file is complete",
                         d->file->name, *d->wrong ? d->wrong : "it changes on the server while it is fetched",
                         MOST_VERSIONS);
    progress_add(d->progress, -(double)d->at / 1e6);
    TRY(remote_probe(d->remote, d->file, err));
    take_change(d);
    /* What is wrong with an answer may be wrong with the bytes before it. */
    if (*d->wrong) TRY(begin_part(d, err));
    TRY(open_part(d, err));
    progress_add(d->progress, (double)d->at / 1e6);
    return OK;
}

/* ---- the loop ---- */

static ErrorCode wait_or_end(Download *d, const HttpRequest *q, HttpReply *reply, bool short_of, Error *err) {
    if (short_of)
        snprintf(reply->failure, sizeof reply->failure,
                 "the server ended the transfer at byte %" PRIu64 " of %" PRIu64, d->at, d->file->size);
    if ((reply->again || short_of) && http_wait(q, reply, &d->tries)) return OK;
    return http_refuse(d->file->name, q, reply, err);
}

/* Without a version, what comes is of one answer (D1): each begins at byte 0. */
static const char *advice_of(const RemoteFile *file) {
    return remote_has_version(file)
               ? "run again to go on from there"
               : "the server names no version (a strong ETag, Last-Modified), so each try begins at byte 0: "
                 "download the file";
}

/* One answer. *more: another one is needed. */
static ErrorCode take_answer(Download *d, bool *more, Error *err) {
    char match[HTTP_ETAG + 32];
    bool goes_on = remote_has_version(d->file);
    if (!goes_on && d->at > 0 && !truncate_part(d)) return *err = d->error, err->code;
    Answer answer = {.download = d};
    HttpRequest q = {.ranged = d->at > 0,
                     .from = d->at,
                     .to = UINT64_MAX,
                     .condition = condition(d->file, match),
                     .advice = advice_of(d->file),
                     .sink = take_bytes,
                     .ctx = &answer};
    HttpReply reply = {0};
    uint64_t before = d->at;
    d->changed = false;
    *d->wrong = '\0';
    TRY(remote_get(d->remote, d->file, true, &q, &reply, err));
    ErrorCode code = OK;
    bool success = reply.status == 200 || reply.status == HTTP_PARTIAL;
    bool other = d->changed || *d->wrong || reply.status == HTTP_CHANGED || reply.status == HTTP_NO_RANGE;
    bool short_of = success && !*reply.failure;
    *more = d->error.code != OK || d->at < d->file->size || other;
    if (goes_on && d->at >= before + ENOUGH_PROGRESS) d->tries = 0;
    if (d->error.code != OK)
        *err = d->error, code = err->code;
    else if (other)
        code = take_other_version(d, err);
    else if (*more)
        code = wait_or_end(d, &q, &reply, short_of, err);
    http_reply_free(&reply);
    return code;
}

static ErrorCode finish(Download *d, Error *err) {
    TRY(file_sync(d->fd, d->part, err));
    if (rename(d->part, d->file->path) != 0)
        return error_errno(err, ERR_IO, "%s: cannot be renamed", d->part);
    char *dir = store_path(d->remote->store, d->file->entry, NULL);
    ErrorCode code = file_sync_dir(dir, err);
    free(dir);
    return code;
}

static ErrorCode fetch(Download *d, Error *err) {
    take_change(d);
    TRY(open_part(d, err));
    bool more = d->at < d->file->size;
    while (more) TRY(take_answer(d, &more, err));
    return finish(d, err);
}

ErrorCode remote_download(Remote *r, RemoteFile *file, Progress *progress, Error *err) {
    Download d = {.remote = r, .file = file, .progress = progress, .part = part_of(r, file), .fd = -1};
    ErrorCode code = fetch(&d, err);
    if (d.fd >= 0) close(d.fd);
    free(d.part);
    return code;
}
