/* Requests for files, whether of a web server or of an object store. */
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "remote/internal.h"

/* Another region that the answer names, for a request that went to the wrong one. */
static bool moved(const S3Access *a, const HttpReply *reply) {
    bool refused =
        reply->status == 301 || reply->status == 307 || reply->status == 400 || reply->status == 403;
    return refused && *reply->region && strcmp(reply->region, a->region) != 0;
}

static ErrorCode send_once(Remote *r, const char *bucket, const char *key, const char *query, bool once,
                           HttpRequest *q, HttpReply *reply, Error *err) {
    Text url = {0};
    s3_url(&r->access, bucket, key, query, &url);
    q->url = url.data;
    q->access = &r->access;
    ErrorCode code = once ? http_send(r->client, q, reply, err) : http_send_again(r->client, q, reply, err);
    q->url = NULL;
    text_free(&url);
    return code;
}

ErrorCode s3_send(Remote *r, const char *bucket, const char *key, const char *query, bool once,
                  HttpRequest *q, HttpReply *reply, Error *err) {
    TRY(send_once(r, bucket, key, query, once, q, reply, err));
    if (!moved(&r->access, reply)) return OK;
    free(r->access.region);
    r->access.region = mem_strdup(reply->region);
    http_reply_free(reply);
    return send_once(r, bucket, key, query, once, q, reply, err);
}

ErrorCode remote_get(Remote *r, const RemoteFile *file, bool once, HttpRequest *q, HttpReply *reply,
                     Error *err) {
    q->method = "GET";
    q->stop = r->stop;
    if (!file->url) return s3_send(r, file->bucket, file->key, NULL, once, q, reply, err);
    q->url = file->url;
    ErrorCode code = once ? http_send(r->client, q, reply, err) : http_send_again(r->client, q, reply, err);
    return code == OK ? OK : error_context(err, "%s", file->name);
}

ErrorCode remote_read_file(Remote *r, const RemoteFile *file, Text *out, Error *err) {
    HttpRequest q = {.ranged = false};
    HttpReply reply = {0};
    ErrorCode code = remote_get(r, file, false, &q, &reply, err);
    if (code == OK && (reply.status != 200 || *reply.failure))
        code = http_refuse(file->name, &q, &reply, err);
    if (code == OK && reply.body.length) text_add(out, reply.body.data, reply.body.length);
    http_reply_free(&reply);
    return code;
}

static bool take_nothing(void *ctx, const HttpReply *reply, const char *bytes, size_t count) {
    (void)ctx, (void)reply, (void)bytes, (void)count;
    return false;
}

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), tail = strlen(end);
    return length >= tail && strcasecmp(text + length - tail, end) == 0;
}

/* Servers answer 200 with a page where one has to log in, or where there is no such file. */
static ErrorCode check_page(const RemoteFile *file, const HttpReply *reply, Error *err) {
    static const char *const pages[] = {".html", ".htm", ".xhtml"};
    if (!file->url || !reply->html) return OK;
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++)
        if (ends_with(file->name, pages[i])) return OK;
    return error_set(err, ERR_DATA,
                     "%s: the server sends an HTML page (by its Content-Type), as for a login or an error: "
                     "check the URL in a browser, or download the file; only names that end in .html may be "
                     "pages",
                     file->name);
}

static ErrorCode take_version(RemoteFile *file, const HttpReply *reply, Error *err) {
    TRY(check_page(file, reply, err));
    bool partial = reply->status == HTTP_PARTIAL && reply->has_range;
    bool empty = reply->status == HTTP_NO_RANGE && !reply->size && !reply->has_range;
    if (!partial && !empty && !reply->has_length)
        return error_set(err, ERR_DATA,
                         "%s: the server states no length (Content-Length), so a cut transfer would go "
                         "unnoticed: download the file",
                         file->name);
    file->size = partial ? reply->size : empty ? 0 : reply->length;
    memcpy(file->etag, reply->etag, sizeof file->etag);
    memcpy(file->modified, reply->modified, sizeof file->modified);
    if (!*file->etag && !*file->modified)
        log_warn("%s: the server names no version (ETag, Last-Modified): a change that keeps the size is not "
                 "noticed",
                 file->name);
    return OK;
}

/* A GET of the first byte, since HEAD is not implemented everywhere, or needs other permissions. */
ErrorCode remote_probe(Remote *r, RemoteFile *file, Error *err) {
    HttpRequest q = {.ranged = true, .from = 0, .to = 0, .sink = take_nothing};
    if (r->store) q.advice = "try again later"; /* not to a run that mirrors its checkpoints */
    HttpReply reply;
    TRY(remote_get(r, file, false, &q, &reply, err));
    bool known = (reply.status == 200 || reply.status == HTTP_PARTIAL || reply.status == HTTP_NO_RANGE) &&
                 !*reply.failure;
    ErrorCode code = known ? take_version(file, &reply, err) : http_refuse(file->name, &q, &reply, err);
    http_reply_free(&reply);
    return code;
}
