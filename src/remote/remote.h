/* Files in object stores and on web servers as files of this machine: finding them, and fetching copies.
 *
 *     remote_open    reads the environment
 *     remote_find    a URL, with braces and patterns, to files and their versions; nothing is fetched
 *     remote_fetch   makes sure that the copies are there; one process of a machine fetches, others wait
 *     remote_fetch_queue   the same for files that are read one after the other meanwhile
 *     remote_close   copies may go from then on
 *
 * A version of a file is its ETag, Last-Modified and size. A copy of another version is fetched again, and
 * that is reported. */
#ifndef WEFT_REMOTE_REMOTE_H
#define WEFT_REMOTE_REMOTE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "remote/http.h"

typedef struct Remote Remote;

typedef struct RemoteFile {
    char *name;         /* its URL as it may be printed */
    char *url;          /* https://: as it is requested; NULL: s3:// */
    char *bucket, *key; /* s3:// */
    char entry[33];     /* in the store of copies */
    char *path;         /* of its copy, perhaps not there yet */
    char etag[HTTP_ETAG], modified[HTTP_DATE];
    uint64_t size;
    char sha256[65]; /* of this version; "": not known */
    bool changed;    /* another version was stored when it was found */
} RemoteFile;

/* limit: bytes of all copies, 0 for any number. cache_dir NULL: only for uploads.
 * ERR_UNAVAILABLE in a build without libcurl. */
ErrorCode remote_open(Remote **remote, const char *cache_dir, uint64_t limit, Error *err);
void remote_close(Remote *remote); /* NULL is fine */

/* The files of a URL, in the order of their names' bytes. ERR_NOINPUT if there is none. Free with
 * remote_free. */
ErrorCode remote_find(Remote *remote, const char *url, RemoteFile **files, size_t *count, Error *err);
void remote_free(RemoteFile *files, size_t count); /* NULL is fine */
/* The file next to one whose name ends in `end`, with `other` in place of that: one file, or NULL if the
 * server has none, or the name has another end. Free with remote_free. */
ErrorCode remote_find_beside(Remote *remote, const RemoteFile *file, const char *end, const char *other,
                             RemoteFile **beside, Error *err);
/* Fetches what is missing of files[which[0, count)]. `label` names them in the progress. */
ErrorCode remote_fetch(Remote *remote, const char *label, RemoteFile *files, const size_t *which,
                       size_t count, Error *err);
/* Files that are fetched in this order while earlier ones are read. The functions are called by several
 * threads. */
typedef struct RemoteQueue {
    const char *label; /* of the progress */
    RemoteFile *const *files;
    size_t count;
    /* Waits until file i may be fetched; *go false: none may any more. */
    ErrorCode (*admit)(void *context, size_t i, bool *go, Error *err);
    void (*fetched)(void *context, size_t i);
    void *context;
    atomic_bool *ended;   /* set by the caller, ends the transfers; set here after a failure */
    atomic_ullong *beats; /* progress_apart; NULL: the run's own */
} RemoteQueue;
ErrorCode remote_fetch_queue(Remote *remote, const RemoteQueue *queue, Error *err);
/* remote_find holds the copies of what it finds until remote_close. A file may be released before, and held
 * again, which recalls its hash if it has become known. Not to be called from several threads. */
ErrorCode remote_hold(Remote *remote, RemoteFile *file, Error *err);
void remote_release(Remote *remote, const RemoteFile *file);
/* Removes copies that nobody holds until the file fits. Not to be called from several threads. */
ErrorCode remote_make_room(Remote *remote, const RemoteFile *file, Error *err);
uint64_t remote_limit(const Remote *remote);
/* Whether the server tells versions of the file apart. Its version: SHA-256 of URL, size, and ETag or time of
 * change. */
bool remote_has_version(const RemoteFile *file);
void remote_version(const RemoteFile *file, char out[65]);
/* Finds and fetches all files of a URL. Free with remote_free. */
ErrorCode remote_take(Remote *remote, const char *url, RemoteFile **files, size_t *count, Error *err);
/* Stores the hash of the copy, so that a later start need not fetch a file whose tokens it has. */
ErrorCode remote_remember(Remote *remote, RemoteFile *file, const char sha256[65], Error *err);
/* The whole of a small file, appended. ERR_NOINPUT if it is not there. */
ErrorCode remote_read_url(Remote *remote, const char *url, Text *out, Error *err);
/* Keeps other processes that call this for the same `work`, 32 hexadecimal digits, waiting until remote_leave
 * or the end of this one. `label` is for the log. */
ErrorCode remote_enter(Remote *remote, const char *work, const char *label, Error *err);
void remote_leave(Remote *remote, const char *work);

/* Makes an object of `length` bytes. */
ErrorCode remote_put(Remote *remote, const char *bucket, const char *key, const char *data, size_t length,
                     Error *err);
/* Makes an object of a file: in parts if it is large, each with its SHA-256, which the store compares. Then
 * asks the store for ETag and size. `where` names the file in errors. */
ErrorCode remote_put_file(Remote *remote, const char *bucket, const char *key, int fd, const char *where,
                          uint64_t size, Error *err);
/* The whole of a small object, appended. ERR_NOINPUT if it is not there. */
ErrorCode remote_read(Remote *remote, const char *bucket, const char *key, Text *out, Error *err);

#endif
