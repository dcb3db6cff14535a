/* The only file that knows libcurl.
 *
 *  H1. One transfer is one request: libcurl follows no redirects and repeats nothing, so what may be sent
 *      where is decided in http.c alone.
 *  H2. The bytes of a file are never decoded: no Accept-Encoding is sent. */
#include "remote/http_transfer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "remote/location.h"

#ifdef WEFT_CURL
#include <curl/curl.h>
#include <pthread.h>
#include <signal.h>
#include <time.h>

#include "base/hash.h"
#include "remote/http_headers.h"

enum {
    CONNECT_SECONDS = 10,
    STALL_SECONDS = 30,
    PATIENT_SECONDS = 600,
    STALL_BYTES = 1000,
    MOST_BODY = 8 << 20
};

struct HttpClient {
    CURL *curl;
};

/* A transfer under way. */
typedef struct Transfer {
    HttpClient *client;
    const HttpRequest *request;
    HttpReply *reply;
    Text *target; /* of a redirect */
    size_t sent;
    bool refused; /* the sink, or the limit of MOST_BODY, ended it */
} Transfer;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CURLcode started;
static void start(void) { started = curl_global_init(CURL_GLOBAL_DEFAULT); }

ErrorCode http_open(HttpClient **client, Error *err) {
    pthread_once(&once, start);
    CURL *curl = started == CURLE_OK ? curl_easy_init() : NULL;
    if (!curl) return error_set(err, ERR_UNAVAILABLE, "libcurl cannot be started");
    *client = mem_alloc(sizeof **client);
    **client = (HttpClient){curl};
    return OK;
}

void http_close(HttpClient *client) {
    if (!client) return;
    curl_easy_cleanup(client->curl);
    free(client);
}

const char *http_library(void) {
    static char name[64];
    snprintf(name, sizeof name, "libcurl %s", curl_version_info(CURLVERSION_NOW)->version);
    return name;
}

static size_t on_header(char *line, size_t size, size_t count, void *ctx) {
    Transfer *t = ctx;
    http_take_header(t->reply, t->target, line, size * count);
    return size * count;
}

/* ---- bodies ---- */

static size_t on_body(char *bytes, size_t size, size_t count, void *ctx) {
    Transfer *t = ctx;
    HttpReply *r = t->reply;
    size_t length = size * count;
    long status = 0;
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &status);
    r->status = (int)status;
    progress_beat();
    if (t->request->sink && (status == 200 || status == HTTP_PARTIAL)) {
        t->refused = !t->request->sink(t->request->ctx, r, bytes, length);
    } else {
        t->refused = r->body.length + length > MOST_BODY;
        if (!t->refused) text_add(&r->body, bytes, length);
    }
    return t->refused ? 0 : length;
}

static size_t on_upload(char *out, size_t size, size_t count, void *ctx) {
    Transfer *t = ctx;
    size_t length = t->request->body_length - t->sent;
    if (length > size * count) length = size * count;
    memcpy(out, t->request->body + t->sent, length);
    t->sent += length;
    progress_beat();
    return length;
}

/* An answer may ask for the body again. */
static int on_rewind(void *ctx, curl_off_t offset, int origin) {
    Transfer *t = ctx;
    if (origin != SEEK_SET || offset < 0 || (uint64_t)offset > t->request->body_length)
        return CURL_SEEKFUNC_FAIL;
    t->sent = (size_t)offset;
    return CURL_SEEKFUNC_OK;
}

/* ---- one transfer ---- */

/* Also while nothing arrives: a server may take long to answer. */
static int on_progress(void *ctx, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d) {
    Transfer *t = ctx;
    (void)a, (void)b, (void)c, (void)d;
    progress_beat();
    if (t->request->stop && atomic_load(t->request->stop)) return 1;
    return 0;
}

static void set_trust(CURL *curl) {
    const char *file = getenv("CURL_CA_BUNDLE"), *directory = getenv("SSL_CERT_DIR");
    if (!file || !*file) file = getenv("SSL_CERT_FILE");
    if (file && *file) curl_easy_setopt(curl, CURLOPT_CAINFO, file);
    if (directory && *directory) curl_easy_setopt(curl, CURLOPT_CAPATH, directory);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 2L);
    curl_easy_setopt(curl, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
}

/* A proxy cannot reach this machine's loopback addresses. */
static void set_connection(CURL *curl, const char *url) {
    bool here = location_is_loopback(url);
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, here ? "http,https" : "https");
    if (here) curl_easy_setopt(curl, CURLOPT_PROXY, "");
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES);
    curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS);
    curl_easy_setopt(curl, CURLOPT_PATH_AS_IS, 1L);
    curl_easy_setopt(curl, CURLOPT_USERAGENT, "weft/" WEFT_VERSION);
}

static void set_body(CURL *curl, Transfer *t) {
    const HttpRequest *q = t->request;
    if (strcmp(q->method, "HEAD") == 0)
        curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    else
        curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, q->method);
    if (strcmp(q->method, "PUT") != 0 && strcmp(q->method, "POST") != 0) return;
    curl_easy_setopt(curl, CURLOPT_UPLOAD, 1L);
    curl_easy_setopt(curl, CURLOPT_READFUNCTION, on_upload);
    curl_easy_setopt(curl, CURLOPT_READDATA, t);
    curl_easy_setopt(curl, CURLOPT_SEEKFUNCTION, on_rewind);
    curl_easy_setopt(curl, CURLOPT_SEEKDATA, t);
    curl_easy_setopt(curl, CURLOPT_INFILESIZE_LARGE, (curl_off_t)q->body_length);
}

static struct curl_slist *add_header(struct curl_slist *list, const char *name, const char *value) {
    Text line = {0};
    text_printf(&line, "%s: %s", name, value);
    struct curl_slist *longer = curl_slist_append(list, line.data);
    explicit_bzero(line.data, line.length);
    text_free(&line);
    return longer ? longer : list;
}

/* libcurl signs these headers too. Stores refuse requests without the hash of the body. */
static struct curl_slist *sign(CURL *curl, const HttpRequest *q, struct curl_slist *headers) {
    const S3Access *a = q->access;
    char scope[128], hex[65];
    sha256_of(q->body_length ? q->body : "", q->body_length, hex);
    snprintf(scope, sizeof scope, "aws:amz:%.64s:s3", a->region);
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, scope);
    curl_easy_setopt(curl, CURLOPT_USERNAME, a->key_id);
    curl_easy_setopt(curl, CURLOPT_PASSWORD, a->secret);
    if (a->session_token) headers = add_header(headers, "x-amz-security-token", a->session_token);
    return add_header(headers, "x-amz-content-sha256", hex);
}

static struct curl_slist *set_headers(CURL *curl, const HttpRequest *q) {
    struct curl_slist *headers = NULL;
    char range[64];
    if (q->condition) headers = curl_slist_append(headers, q->condition);
    if (q->ranged) {
        snprintf(range, sizeof range, q->to == UINT64_MAX ? "%llu-" : "%llu-%llu",
                 (unsigned long long)q->from, (unsigned long long)q->to);
        curl_easy_setopt(curl, CURLOPT_RANGE, range);
    }
    if (q->access && q->access->key_id) headers = sign(curl, q, headers);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers);
    return headers;
}

/* Failures that pass by themselves: of names, connections, transfers that were cut, and answers that are not
 * HTTP (CURLE_UNSUPPORTED_PROTOCOL). */
static bool may_pass(CURLcode code) {
    static const CURLcode codes[] = {CURLE_COULDNT_RESOLVE_HOST, CURLE_COULDNT_RESOLVE_PROXY,
                                     CURLE_COULDNT_CONNECT,      CURLE_HTTP2,
                                     CURLE_PARTIAL_FILE,         CURLE_OPERATION_TIMEDOUT,
                                     CURLE_SSL_CONNECT_ERROR,    CURLE_GOT_NOTHING,
                                     CURLE_SEND_ERROR,           CURLE_RECV_ERROR,
                                     CURLE_HTTP2_STREAM,         CURLE_WEIRD_SERVER_REPLY,
                                     CURLE_UNSUPPORTED_PROTOCOL};
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (code == codes[i]) return true;
    return false;
}

static bool is_busy(int status) {
    return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 || status == 504;
}

static void judge(Transfer *t, CURLcode code, const char *message) {
    HttpReply *r = t->reply;
    long status = 0;
    curl_easy_getinfo(t->client->curl, CURLINFO_RESPONSE_CODE, &status);
    r->status = (int)status;
    r->again = is_busy(r->status);
    if (code == CURLE_OK || t->refused) return;
    snprintf(r->failure, sizeof r->failure, "%s", *message ? message : curl_easy_strerror(code));
    r->again |= may_pass(code);
}

/* With CURLOPT_NOSIGNAL libcurl leaves SIGPIPE, of a connection that the server has closed, to the caller. */
static CURLcode perform(CURL *curl) {
    sigset_t pipe, before, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &before);
    CURLcode code = curl_easy_perform(curl);
    sigpending(&pending);
    if (sigismember(&pending, SIGPIPE) && !sigismember(&before, SIGPIPE))
        sigtimedwait(&pipe, NULL, &(struct timespec){0, 0});
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}

void http_transfer(HttpClient *client, const HttpRequest *request, HttpReply *reply, Text *target) {
    CURL *curl = client->curl;
    char message[CURL_ERROR_SIZE] = "";
    Transfer t = {.client = client, .request = request, .reply = reply, .target = target};
    *reply = (HttpReply){0};
    curl_easy_reset(curl);
    set_connection(curl, request->url);
    set_trust(curl);
    curl_easy_setopt(curl, CURLOPT_URL, request->url);
    curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message);
    curl_easy_setopt(curl, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(curl, CURLOPT_HEADERDATA, &t);
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &t);
    curl_easy_setopt(curl, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(curl, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(curl, CURLOPT_XFERINFODATA, &t);
    if (request->patient) curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)PATIENT_SECONDS);
    set_body(curl, &t);
    struct curl_slist *headers = set_headers(curl, request);
    CURLcode code = perform(curl);
    judge(&t, code, message);
    curl_easy_reset(curl); /* forgets the password */
    curl_slist_free_all(headers);
}

#else

ErrorCode http_open(HttpClient **client, Error *err) {
    *client = NULL;
    return error_set(err, ERR_UNAVAILABLE,
                     "this weft was built without libcurl and expat, so it reads no URLs: install "
                     "libcurl4-openssl-dev and libexpat1-dev (make setup) and build again, or download the "
                     "files");
}

void http_close(HttpClient *client) { (void)client; }
const char *http_library(void) { return ""; }
void http_transfer(HttpClient *client, const HttpRequest *request, HttpReply *reply, Text *target) {
    (void)client, (void)request, (void)target;
    *reply = (HttpReply){0};
}

#endif
