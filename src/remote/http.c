#include "remote/http.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/url.h"
#include "remote/http_transfer.h"
#include "remote/location.h"
#include "remote/s3_listing.h"

/* Random waits of at most 0.25 s, 0.5 s, ... 16 s: 32 s at most in all, unless the server asks for more. */
enum { MOST_TRIES = 8, MOST_REDIRECTS = 5 };
#define FIRST_WAIT 0.25
#define LONGEST_WAIT 16.0
#define LONGEST_ASKED 60.0

static bool is_redirect(int status) {
    return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

/* Appends the URL that a Location header means; relative to the host at most. */
static void resolve(const char *from, const char *target, Text *out) {
    size_t authority = (size_t)(strstr(from, "://") - from) + 3;
    authority += strcspn(from + authority, "/?#");
    if (strncmp(target, "//", 2) == 0)
        text_add(out, from, (size_t)(strchr(from, ':') - from) + 1);
    else if (!url_is(target))
        text_add(out, from, authority);
    if (!url_is(target) && *target != '/') text_puts(out, "/");
    text_add(out, target, strcspn(target, "#"));
}

/* A redirect may carry a signature in its query, which a URL of the configuration may not. */
static ErrorCode check_redirect(const char *from, const char *to, Error *err) {
    Location l;
    Text shown = {0};
    bool secure = strncasecmp(from, "https://", 8) == 0;
    url_show(to, &shown);
    ErrorCode code = location_read(&l, shown.data, err);
    if (code == OK && secure && strncasecmp(to, "https://", 8) != 0)
        code = error_set(err, ERR_CONFIG, "%s: not https://", shown.data);
    text_free(&shown);
    return code == OK ? OK : error_context(err, "the server redirects to a place that weft does not follow");
}

static ErrorCode follow(Text *url, const Text *target, int redirects, Error *err) {
    Text next = {0};
    if (redirects == MOST_REDIRECTS)
        return error_set(err, ERR_DATA, "the server redirects more than %d times", MOST_REDIRECTS);
    resolve(url->data, target->data, &next);
    ErrorCode code = check_redirect(url->data, next.data, err);
    text_free(url);
    *url = next;
    return code;
}

ErrorCode http_send(HttpClient *client, const HttpRequest *request, HttpReply *reply, Error *err) {
    HttpRequest q = *request;
    Text url = {0}, target = {0};
    ErrorCode code = OK;
    text_puts(&url, request->url);
    for (int redirects = 0; code == OK; redirects++) {
        q.url = url.data;
        http_transfer(client, &q, reply, &target);
        if (!is_redirect(reply->status) || request->access || target.length == 0) break;
        http_reply_free(reply);
        code = follow(&url, &target, redirects, err);
    }
    text_free(&url);
    text_free(&target);
    return code;
}

void http_reply_free(HttpReply *reply) {
    text_free(&reply->body);
    reply->body = (Text){0};
}

/* Ranks of many machines must not try again at the same moments, so the wait is random. */
static double wait_of(const HttpReply *reply, int tries) {
    static _Thread_local unsigned seed;
    if (!seed) seed = (unsigned)getpid() ^ (unsigned)(uint64_t)(clock_seconds() * 1e6);
    double longest = fmin(LONGEST_WAIT, FIRST_WAIT * pow(2, tries));
    double wait = longest * ((double)rand_r(&seed) / RAND_MAX);
    return fmax(wait, fmin(reply->retry_after, LONGEST_ASKED));
}

static bool is_stopped(const HttpRequest *q) { return q->stop && atomic_load(q->stop); }

bool http_wait(const HttpRequest *request, const HttpReply *reply, int *tries) {
    if (++*tries >= MOST_TRIES) return false;
    double end = clock_seconds() + wait_of(reply, *tries - 1);
    while (clock_seconds() < end && !is_stopped(request)) {
        nanosleep(&(struct timespec){0, 50 * 1000 * 1000}, NULL);
        progress_beat();
    }
    return !is_stopped(request);
}

ErrorCode http_send_again(HttpClient *client, const HttpRequest *request, HttpReply *reply, Error *err) {
    for (int tries = 0;;) {
        TRY(http_send(client, request, reply, err));
        if (!reply->again || !http_wait(request, reply, &tries)) return OK;
        http_reply_free(reply);
    }
}

static const char *advice_of(const HttpRequest *q, int status) {
    bool s3 = q->access, is_signed = s3 && q->access->key_id, reads = strcmp(q->method, "GET") == 0;
    if (status == 404)
        return !s3     ? "check the URL"
               : reads ? "check bucket, key and AWS_ENDPOINT_URL"
                       : "check bucket and AWS_ENDPOINT_URL";
    if (status == 301) return "set AWS_REGION to the region of the bucket";
    if (status == 401 || status == 403)
        return !s3          ? "weft sends no credentials to https:// sources: download the file"
               : !is_signed ? "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
               : reads      ? "check the credentials, what they may read, and AWS_REGION"
                            : "check the credentials, what they may write, and AWS_REGION";
    return q->advice;
}

static ErrorCode code_of(int status) { return status >= 400 && status < 500 ? ERR_NOINPUT : ERR_IO; }

ErrorCode http_refuse(const char *name, const HttpRequest *request, const HttpReply *reply, Error *err) {
    S3Problem p = s3_problem_read(reply->body.data, reply->body.length);
    char tries[32] = "";
    bool failed = reply->status == 0 || (*reply->failure && reply->status < 400);
    const char *advice = failed ? request->advice : advice_of(request, reply->status);
    const char *then = advice ? "; " : "";
    if (!advice) advice = "";
    if (reply->again) snprintf(tries, sizeof tries, ", also after %d tries", MOST_TRIES);
    if (failed)
        return error_set(err, ERR_IO, "%s: %s%s%s%s", name, *reply->failure ? reply->failure : "no answer",
                         tries, then, advice);
    return error_set(err, code_of(reply->status), "%s: the server answers %d%s%s%s%s%s%s%s%s", name,
                     reply->status, *p.code ? " " : "", p.code, *p.message ? " (" : "", p.message,
                     *p.message ? ")" : "", tries, then, advice);
}
