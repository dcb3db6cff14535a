/* What the files of this directory share. */
#ifndef WEFT_REMOTE_INTERNAL_H
#define WEFT_REMOTE_INTERNAL_H

#include "base/log.h"
#include "remote/remote.h"
#include "remote/store.h"

struct Remote {
    HttpClient *client;
    S3Access access;
    RemoteStore *store;
    const atomic_bool *stop; /* ends a download: another one has failed; NULL: nothing does */
};

/* Sends a request for an object or, with an empty key, for a bucket; `query` as in s3_url. Uses the region
 * that the store names if it is another one. With retries unless `once`. */
ErrorCode s3_send(Remote *r, const char *bucket, const char *key, const char *query, bool once,
                  HttpRequest *request, HttpReply *reply, Error *err);
/* A GET of a file, whose ranges, condition and sink are the caller's; without retries if `once`. */
ErrorCode remote_get(Remote *r, const RemoteFile *file, bool once, HttpRequest *request, HttpReply *reply,
                     Error *err);
/* Appends the whole of a small file. */
ErrorCode remote_read_file(Remote *r, const RemoteFile *file, Text *out, Error *err);
/* Asks for the file's version. */
ErrorCode remote_probe(Remote *r, RemoteFile *file, Error *err);
/* Fetches one file that is held. Progress in megabytes. */
ErrorCode remote_download(Remote *r, RemoteFile *file, Progress *progress, Error *err);
/* Whether what is stored is of the file's version: of the same strong ETag and size, or else of the same time
 * of change too. */
bool remote_is_version(const StoredAbout *about, const RemoteFile *file);
/* Whether the copy is there; *part: bytes that are there of one that is not whole. */
bool remote_has_copy(const Remote *r, const RemoteFile *file, uint64_t *part);

#endif
