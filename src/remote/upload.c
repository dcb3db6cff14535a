/* Making objects. A large file goes in parts, of which a lost one is sent again; an object exists when all
 * parts are there, so a reader never sees half a file.
 *
 *     POST ?uploads=  -->  PUT ?partNumber=N&uploadId=  -->  POST ?uploadId= (list of parts)  -->  look at it
 *                                any failure  -->  DELETE ?uploadId= */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "remote/internal.h"
#include "remote/location.h"
#include "remote/s3_listing.h"

/* Stores allow 10,000 parts, of 5 MiB at least; some want all but the last equally long. */
enum { LEAST_PART = 16 << 20, MOST_PARTS = 9000, MOST_COMPLETIONS = 4 };

typedef struct Upload {
    Remote *remote;
    const char *bucket, *key, *where;
    Text name; /* s3://bucket/key */
    int fd;
    uint64_t size;
    Text id;    /* as a parameter of a query */
    Text parts; /* the list of parts */
    char etag[HTTP_ETAG];
} Upload;

static ErrorCode send(Upload *u, const char *query, HttpRequest *q, HttpReply *reply, Error *err) {
    TRY(s3_send(u->remote, u->bucket, u->key, query, false, q, reply, err));
    if (reply->status >= 200 && reply->status < 300 && !*reply->failure) return OK;
    return http_refuse(u->name.data, q, reply, err);
}

static ErrorCode put(Upload *u, const char *query, const char *data, size_t length, char etag[HTTP_ETAG],
                     Error *err) {
    HttpRequest q = {.method = "PUT", .body = data, .body_length = length};
    HttpReply reply = {0};
    ErrorCode code = send(u, query, &q, &reply, err);
    memcpy(etag, reply.etag, HTTP_ETAG);
    http_reply_free(&reply);
    return code;
}

/* ---- parts ---- */

static ErrorCode begin(Upload *u, Error *err) {
    HttpRequest q = {.method = "POST"};
    HttpReply reply = {0};
    Text id = {0};
    ErrorCode code = send(u, "uploads=", &q, &reply, err);
    if (code == OK &&
        !s3_element_read(reply.body.data, reply.body.length, "/InitiateMultipartUploadResult/UploadId", &id))
        code = error_set(err, ERR_DATA, "%s: the store gives no id for an upload in parts", u->name.data);
    if (code == OK) percent_encode(id.data, id.length, "", &u->id);
    http_reply_free(&reply);
    text_free(&id);
    return code;
}

static ErrorCode read_part(const Upload *u, uint64_t at, char *out, size_t count, Error *err) {
    for (size_t got = 0; got < count;) {
        ssize_t n = pread(u->fd, out + got, count - got, (off_t)(at + got));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return error_errno(err, ERR_IO, "%s: reading failed", u->where);
        if (n == 0) return error_set(err, ERR_DATA, "%s: has become shorter", u->where);
        got += (size_t)n;
    }
    return OK;
}

static ErrorCode put_part(Upload *u, int number, uint64_t at, char *buffer, size_t count, Error *err) {
    Text query = {0};
    char etag[HTTP_ETAG] = "";
    text_printf(&query, "partNumber=%d&uploadId=%s", number, u->id.data);
    ErrorCode code = read_part(u, at, buffer, count, err);
    if (code == OK) code = put(u, query.data, buffer, count, etag, err);
    if (code == OK && (!*etag || strpbrk(etag, "<&")))
        code = error_set(err, ERR_DATA, "%s: the store gives no ETag for part %d", u->name.data, number);
    text_printf(&u->parts, "<Part><PartNumber>%d</PartNumber><ETag>%s</ETag></Part>", number, etag);
    text_free(&query);
    return code;
}

static ErrorCode put_parts(Upload *u, Error *err) {
    uint64_t part = LEAST_PART;
    if (u->size / MOST_PARTS >= part) part = (u->size / MOST_PARTS / LEAST_PART + 1) * LEAST_PART;
    char *buffer = mem_alloc((size_t)part);
    ErrorCode code = OK;
    uint64_t at = 0;
    for (int number = 1; code == OK && at < u->size; number++) {
        uint64_t count = u->size - at < part ? u->size - at : part;
        code = put_part(u, number, at, buffer, (size_t)count, err);
        at += count;
    }
    free(buffer);
    return code;
}

/* The answer may be 200 and yet an error, since the store begins to answer before it is done. */
static ErrorCode complete_once(Upload *u, const char *query, const char *body, bool *again, Error *err) {
    HttpRequest q = {.method = "POST", .body = body, .body_length = strlen(body), .patient = true};
    HttpReply reply = {0};
    Text etag = {0};
    ErrorCode code = send(u, query, &q, &reply, err);
    *again = false;
    if (code == OK &&
        !s3_element_read(reply.body.data, reply.body.length, "/CompleteMultipartUploadResult/ETag", &etag)) {
        reply.status = 500;
        *again = true;
        code = http_refuse(u->name.data, &q, &reply, err);
    }
    if (code == OK && etag.length < sizeof u->etag) memcpy(u->etag, etag.data, etag.length + 1);
    http_reply_free(&reply);
    text_free(&etag);
    return code;
}

static ErrorCode complete(Upload *u, Error *err) {
    Text query = {0}, body = {0};
    text_printf(&query, "uploadId=%s", u->id.data);
    text_printf(&body, "<CompleteMultipartUpload>%s</CompleteMultipartUpload>", u->parts.data);
    ErrorCode code = OK;
    bool again = true;
    for (int i = 0; again && i < MOST_COMPLETIONS; i++)
        code = complete_once(u, query.data, body.data, &again, err);
    text_free(&query);
    text_free(&body);
    return code;
}

/* Else the parts would be kept, and paid for. */
static void abandon(Upload *u) {
    HttpRequest q = {.method = "DELETE"};
    HttpReply reply = {0};
    Text query = {0};
    text_printf(&query, "uploadId=%s", u->id.data);
    s3_send(u->remote, u->bucket, u->key, query.data, false, &q, &reply, NULL);
    http_reply_free(&reply);
    text_free(&query);
}

static ErrorCode put_in_parts(Upload *u, Error *err) {
    TRY(begin(u, err));
    ErrorCode code = put_parts(u, err);
    if (code == OK) code = complete(u, err);
    if (code != OK) abandon(u);
    return code;
}

static ErrorCode put_whole(Upload *u, Error *err) {
    char *buffer = mem_alloc((size_t)u->size + 1);
    ErrorCode code = read_part(u, 0, buffer, (size_t)u->size, err);
    if (code == OK) code = put(u, NULL, buffer, (size_t)u->size, u->etag, err);
    free(buffer);
    return code;
}

/* ---- objects ---- */

static ErrorCode verify(Upload *u, Error *err) {
    RemoteFile file = {
        .name = u->name.data, .bucket = (char *)(uintptr_t)u->bucket, .key = (char *)(uintptr_t)u->key};
    TRY(remote_probe(u->remote, &file, err));
    if (file.size == u->size && strcmp(file.etag, u->etag) == 0) return OK;
    return error_set(err, ERR_DATA,
                     "%s: the store has %" PRIu64 " bytes (ETag %s) after %" PRIu64 " were sent (ETag %s)",
                     u->name.data, file.size, file.etag, u->size, u->etag);
}

ErrorCode remote_put_file(Remote *r, const char *bucket, const char *key, int fd, const char *where,
                          uint64_t size, Error *err) {
    Upload u = {.remote = r, .bucket = bucket, .key = key, .where = where, .fd = fd, .size = size};
    text_printf(&u.name, "s3://%s/%s", bucket, key);
    ErrorCode code = size <= LEAST_PART ? put_whole(&u, err) : put_in_parts(&u, err);
    if (code == OK) code = verify(&u, err);
    text_free(&u.name);
    text_free(&u.id);
    text_free(&u.parts);
    return code;
}

ErrorCode remote_put(Remote *r, const char *bucket, const char *key, const char *data, size_t length,
                     Error *err) {
    Upload u = {.remote = r, .bucket = bucket, .key = key};
    text_printf(&u.name, "s3://%s/%s", bucket, key);
    ErrorCode code = put(&u, NULL, data, length, u.etag, err);
    text_free(&u.name);
    return code;
}

ErrorCode remote_read(Remote *r, const char *bucket, const char *key, Text *out, Error *err) {
    Text name = {0};
    text_printf(&name, "s3://%s/%s", bucket, key);
    RemoteFile file = {.name = name.data, .bucket = (char *)(uintptr_t)bucket, .key = (char *)(uintptr_t)key};
    ErrorCode code = remote_read_file(r, &file, out, err);
    text_free(&name);
    return code;
}
