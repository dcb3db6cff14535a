/* One HTTP request by libcurl, without retries, and what was answered.
 *
 * TLS certificates are always verified. Redirects of unsigned requests are followed, to https:// only and a
 * few times; those of signed ones are not. Nothing of the user's is sent along but what HttpRequest has:
 * no cookies, no netrc. */
#ifndef WEFT_REMOTE_HTTP_H
#define WEFT_REMOTE_HTTP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"
#include "remote/s3_access.h"

enum { HTTP_ETAG = 256, HTTP_DATE = 64, HTTP_REGION = 64, HTTP_FAILURE = 256 };
enum { HTTP_PARTIAL = 206, HTTP_CHANGED = 412, HTTP_NO_RANGE = 416 };

typedef struct HttpReply {
    int status;                 /* 0: no answer */
    char failure[HTTP_FAILURE]; /* what ended the transfer early; "": nothing */
    bool again;                 /* this may pass: worth another try */
    char etag[HTTP_ETAG], modified[HTTP_DATE], region[HTTP_REGION];
    bool has_length, has_range;
    bool html;            /* Content-Type is that of a page */
    uint64_t length;      /* Content-Length */
    uint64_t first, size; /* Content-Range: of the first byte, of the whole file */
    double retry_after;   /* seconds */
    Text body;            /* unless HttpRequest.sink took it */
} HttpReply;

/* Takes bytes of the body of an answer 200 or 206; false ends the transfer. */
typedef bool HttpSink(void *ctx, const HttpReply *reply, const char *bytes, size_t count);

typedef struct HttpRequest {
    const char *method;
    const char *url;
    const S3Access *access; /* signs the request; NULL: unsigned */
    bool ranged;
    uint64_t from, to;     /* bytes of a range; `to` UINT64_MAX: up to the end */
    const char *condition; /* a header: "If-Match: ..."; NULL: none */
    const char *body;
    size_t body_length;
    HttpSink *sink;
    void *ctx;
    bool patient;            /* the server may think for minutes before it answers */
    const char *advice;      /* for http_refuse, after what may pass: what to do; NULL: nothing */
    const atomic_bool *stop; /* ends the transfer, and a wait, when it is set; NULL: nothing does */
} HttpRequest;

/* Keeps connections open between requests. Used by one thread at a time. */
typedef struct HttpClient HttpClient;
/* ERR_UNAVAILABLE in a build without libcurl. */
ErrorCode http_open(HttpClient **client, Error *err);
void http_close(HttpClient *client); /* NULL is fine */
/* Fills the reply, which http_reply_free frees. ERR_CONFIG for a redirect that is not allowed; other
 * failures are in the reply. */
ErrorCode http_send(HttpClient *client, const HttpRequest *request, HttpReply *reply, Error *err);
void http_reply_free(HttpReply *reply);
/* Waits before the next try. false: `tries` is the last, or request->stop is set. Begin with *tries 0. */
bool http_wait(const HttpRequest *request, const HttpReply *reply, int *tries);
/* http_send, with retries of what may pass. */
ErrorCode http_send_again(HttpClient *client, const HttpRequest *request, HttpReply *reply, Error *err);
/* The error for a reply that is no success. `name` is the file as it may be printed. */
ErrorCode http_refuse(const char *name, const HttpRequest *request, const HttpReply *reply, Error *err);
const char *http_library(void); /* "libcurl 7.88.1", "" without */

#endif
