/* weft watch: a page that shows runs while they progress, served over HTTP by libmicrohttpd.
 *
 *  W1. It is read-only: GET and HEAD, for a fixed list of paths. Clients select a run by its number; no part
 *      of a path or a query reaches the file system.
 *  W2. Nobody on another machine sees anything without the token. On loopback, where the token is optional,
 *      the Host of a request must be this machine's: a foreign page whose name resolves to this machine gets
 *      nothing.
 *  W3. One thread serves all requests, one at a time, so its state of runs and connections needs no lock.
 *      Connections, their memory and their time are limited (clients.h). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "observe/compare.h"
#include "observe/watch.h"
#include "train/lock.h"

#ifdef WEFT_MICROHTTPD
#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/json.h"
#include "base/signals.h"
#include "cli/clients.h"

#define TOKEN_VARIABLE "WEFT_WATCH_TOKEN"
#define CONFIG_LIMIT (1 << 20)
#define PAUSE 0.5 /* seconds between reads of a run's files, however frequent the requests */

/* Requests are a line and some headers: 32 KiB hold any of a browser's. MHD's own limit of connections leaves
 * space for new connections and for those that are shut down but not closed yet. At its limit MHD accepts
 * nobody, and clients.h could not replace a connection. */
enum { LEAST_TOKEN = 16, CONNECTION_BYTES = 32 << 10, CONNECTIONS = 2 * CLIENTS, TICK = 1000 /* ms */ };

/* One per process. */
typedef struct Server {
    Watched runs[RUNS_MAX];
    double looked[RUNS_MAX];
    int count;
    bool loopback;
    const char *host; /* --bind, as given */
    char token[128];  /* empty: not required */
    struct MHD_Daemon *daemon;
    Clients clients;
} Server;

/* ---- responses ---- */

/* Every response has these headers, errors too. Only the page's own script and style run in it, no other site
 * may frame it or read it, no address with a token is sent as a referrer, and nothing is cached, since
 * figures change. Takes ownership of the response; NULL (out of memory) closes the connection. */
static enum MHD_Result reply(struct MHD_Connection *c, unsigned status, const char *type,
                             struct MHD_Response *r) {
    static const char *const headers[][2] = {
        {"Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
                                    "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                                    "frame-ancestors 'none'"},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
        {"Cache-Control", "no-store"},
        {"Connection", "close"}, /* one request per connection: none keeps a slot after it (clients.h) */
    };
    if (!r) return MHD_NO;
    MHD_add_response_header(r, "Content-Type", type);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        MHD_add_response_header(r, headers[i][0], headers[i][1]);
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) MHD_add_response_header(r, "Allow", "GET, HEAD");
    enum MHD_Result result = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return result;
}

/* `words` is not copied: string literals only. MHD takes a non-const pointer, but does not write through
 * it. */
static enum MHD_Result reply_words(struct MHD_Connection *c, unsigned status, const char *words) {
    return reply(
        c, status, "text/plain; charset=utf-8",
        MHD_create_response_from_buffer(strlen(words), (void *)(uintptr_t)words, MHD_RESPMEM_PERSISTENT));
}

/* Frees the text, which may be empty. */
static enum MHD_Result reply_text(struct MHD_Connection *c, const char *type, Text *t) {
    text_add(t, "", 0);
    struct MHD_Response *r = MHD_create_response_from_buffer(t->length, t->data, MHD_RESPMEM_MUST_COPY);
    text_free(t);
    return reply(c, MHD_HTTP_OK, type, r);
}

#define JSON_TYPE "application/json; charset=utf-8"

/* Names by number, which the page then uses to select a run (W1). Directory names need not be UTF-8:
 * json_bytes makes valid text of them. */
static enum MHD_Result send_runs(const Server *s, struct MHD_Connection *c) {
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_put_string(&w, "weft", WEFT_VERSION);
    json_key(&w, "runs");
    json_begin_array(&w);
    for (int i = 0; i < s->count; i++) json_bytes(&w, s->runs[i].name, strlen(s->runs[i].name));
    json_end_array(&w);
    json_end_object(&w);
    return reply_text(c, JSON_TYPE, &out);
}

/* An integer of the query, `fallback` if there is none. A malformed number also gives `fallback`: the page
 * never sends one. */
static int64_t asked(struct MHD_Connection *c, const char *key, int64_t fallback) {
    const char *text = MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, key);
    char *end = NULL;
    if (!text || !*text) return fallback;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    return errno == 0 && *end == '\0' ? value : fallback;
}

/* Reads the files at most twice a second, however many pages ask, but at once if more data is known to be
 * there, so that a long run is caught up with as fast as the page asks. Sends only what is new since
 * `after`. */
static enum MHD_Result send_data(Server *s, struct MHD_Connection *c, int run) {
    Watched *w = &s->runs[run];
    Text out = {0};
    double now = clock_seconds();
    if (now - s->looked[run] >= PAUSE || w->offset < w->size) {
        watch_look(w);
        s->looked[run] = now;
    }
    watch_write(w, asked(c, "version", -1), asked(c, "after", -1), lock_last_holder(w->dir), &out);
    return reply_text(c, JSON_TYPE, &out);
}

/* As the run wrote it, with the source of each value. Not through a link (file_read_own), and at most 1 MiB,
 * since others may be able to write to a run directory. An unreadable file gives an empty response. */
static enum MHD_Result send_config(const Server *s, struct MHD_Connection *c, int run) {
    char *path = path_join(s->runs[run].dir, "config.yaml"), *data = NULL;
    Text out = {0};
    size_t length;
    if (file_read_own(path, CONFIG_LIMIT, &data, &length, NULL) == OK) text_add(&out, data, length);
    free(data);
    free(path);
    return reply_text(c, "text/plain; charset=utf-8", &out);
}

/* ---- access control ---- */

/* In constant time, so that a token cannot be guessed byte by byte. Its length is not secret. */
static bool is_token(const Server *s, const char *given) {
    size_t length = strlen(s->token);
    return given && strlen(given) == length && CRYPTO_memcmp(given, s->token, length) == 0;
}

/* Compares the name before the port. */
static bool is_host(const char *header, const char *name) {
    size_t length = strlen(name);
    return strncasecmp(header, name, length) == 0 && (header[length] == '\0' || header[length] == ':');
}

/* Any port is accepted, since the request may come through a tunnel. */
static bool is_ours(const Server *s, struct MHD_Connection *c) {
    const char *host = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Host");
    char bracketed[80];
    snprintf(bracketed, sizeof bracketed, "[%s]", s->host);
    return host && (is_host(host, "localhost") || is_host(host, "127.0.0.1") || is_host(host, "[::1]") ||
                    is_host(host, s->host) || is_host(host, bracketed));
}

/* A token proves more than a name, so with a token the Host does not matter: a tunnel may use any name.
 * Without one, on loopback, the Host keeps pages of other sites out (DNS rebinding, W2). */
static bool may_see(const Server *s, struct MHD_Connection *c) {
    if (s->token[0]) return is_token(s, MHD_lookup_connection_value(c, MHD_GET_ARGUMENT_KIND, "token"));
    return is_ours(s, c);
}

/* A short list, compared as whole strings: "..", encodings and case have no effect. */
static const WatchAsset *find_asset(const char *path) {
    for (const WatchAsset *a = watch_assets; a->path; a++)
        if (strcmp(a->path, path) == 0) return a;
    return NULL;
}

/* Style and script reveal nothing of a run, and a browser requests them without the token. */
static enum MHD_Result route(Server *s, struct MHD_Connection *c, const char *path, bool trusted) {
    const WatchAsset *asset = find_asset(path);
    bool page = asset && strcmp(path, "/") == 0;
    if ((!asset || page) && !trusted)
        return reply_words(c, MHD_HTTP_FORBIDDEN,
                           s->token[0]
                               ? "This address lacks the token that weft watch printed, or has another.\n"
                               : "weft watch answers requests to this machine's own name only.\n");
    if (asset)
        return reply(c, MHD_HTTP_OK, asset->type,
                     MHD_create_response_from_buffer(asset->length, (void *)(uintptr_t)asset->data,
                                                     MHD_RESPMEM_PERSISTENT));
    int64_t run = asked(c, "run", 0);
    if (strcmp(path, "/runs") == 0) return send_runs(s, c);
    if (run < 0 || run >= s->count) return reply_words(c, MHD_HTTP_NOT_FOUND, "There is no such run.\n");
    if (strcmp(path, "/data") == 0) return send_data(s, c, (int)run);
    if (strcmp(path, "/config") == 0) return send_config(s, c, (int)run);
    return reply_words(c, MHD_HTTP_NOT_FOUND, "There is nothing here.\n");
}

/* ---- callbacks of MHD ---- */

static Client *client_of(struct MHD_Connection *c) {
    return MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

/* A connection begins or ends. */
static void on_connection(void *server, struct MHD_Connection *c, void **client,
                          enum MHD_ConnectionNotificationCode what) {
    Server *s = server;
    if (what == MHD_CONNECTION_NOTIFY_CLOSED) {
        clients_leave(&s->clients, *client);
        return;
    }
    int fd = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    const struct sockaddr *from = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr;
    *client = clients_join(&s->clients, fd, from, clock_seconds());
}

/* A complete head has arrived. A body is never read: the response to the head closes the connection. */
static enum MHD_Result on_request(void *server, struct MHD_Connection *c, const char *path,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **state) {
    Server *s = server;
    (void)version, (void)upload, (void)upload_size, (void)state;
    bool trusted = may_see(s, c);
    client_answer(client_of(c), trusted, clock_seconds());
    if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
        return reply_words(c, MHD_HTTP_METHOD_NOT_ALLOWED, "weft watch only reports: GET and HEAD.\n");
    return route(s, c, path, trusted);
}

/* ---- listening ---- */

/* 127.0.0.0/8 and ::1. Decided by the bound address, not by the given name. */
static bool is_loopback(const struct sockaddr *a) {
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)a)->sin6_addr) != 0;
}

/* Numeric addresses only: a name would be looked up, and could resolve to another address later. "localhost"
 * is taken as 127.0.0.1 without a lookup. The caller frees *out. */
static ErrorCode resolve(const char *host, int64_t port, struct addrinfo **out, Error *err) {
    const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_PASSIVE, .ai_socktype = SOCK_STREAM};
    char number[8], shown[80];
    snprintf(number, sizeof number, "%d", (int)port);
    const char *name = strcmp(host, "localhost") == 0 ? "127.0.0.1" : host;
    if (getaddrinfo(name, number, &hints, out) == 0) return OK;
    error_escape(shown, sizeof shown, host, strlen(host));
    return error_set(
        err, ERR_USAGE,
        "--bind is \"%s\": expected an address as in 127.0.0.1, ::1, 192.168.1.7, or 0.0.0.0 for all", shown);
}

/* The given token, or 128 random bits. Not a flag, since everybody on a machine can see command lines. */
static ErrorCode make_token(Server *s, Error *err) {
    const char *given = getenv(TOKEN_VARIABLE);
    unsigned char bytes[16];
    if (given &&
        strspn(given, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ-_") == strlen(given) &&
        strlen(given) >= LEAST_TOKEN && strlen(given) < sizeof s->token) {
        snprintf(s->token, sizeof s->token, "%s", given);
        return OK;
    }
    if (given)
        return error_set(err, ERR_USAGE, TOKEN_VARIABLE " must have %d to %zu letters, digits, - or _",
                         LEAST_TOKEN, sizeof s->token - 1);
    if (RAND_bytes(bytes, sizeof bytes) != 1)
        return error_set(err, ERR_UNAVAILABLE, "the system gives no random numbers for a token");
    hex_of(bytes, sizeof bytes, s->token);
    return OK;
}

/* Without a thread of MHD: serve_requests calls it (W3). MHD needs a flag for IPv6 in addition to the
 * address. errno is that of bind or listen. */
static ErrorCode listen_at(Server *s, const struct addrinfo *at, int64_t port, Error *err) {
    unsigned flags = MHD_USE_EPOLL;
    if (at->ai_family == AF_INET6) flags |= MHD_USE_IPv6;
    s->daemon = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s, MHD_OPTION_SOCK_ADDR, at->ai_addr,
                                 MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
                                 MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_END);
    if (s->daemon) return OK;
    return error_errno(err, ERR_CANTCREATE,
                       "cannot listen on port %d of %s (another --port? 0 takes one that is free)", (int)port,
                       s->host);
}

/* On standard output, for a person or a script; if bound to all addresses, with this machine's name. */
static void print_where(const Server *s) {
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_BIND_PORT);
    char name[256];
    bool all = strcmp(s->host, "0.0.0.0") == 0 || strcmp(s->host, "::") == 0;
    if (!all || !host_name(name, sizeof name))
        snprintf(name, sizeof name, strchr(s->host, ':') ? "[%s]" : "%s", s->host);
    terminal_printf("http://%s:%u/%s%s\n", name, info ? (unsigned)info->port : 0,
                    s->token[0] ? "?token=" : "", s->token);
    fflush(stdout);
}

/* Runs until one of the signals arrives. Checks connections at least once per tick, since nothing wakes the
 * server when a connection runs out of time. */
static void serve_requests(Server *s, int signals) {
    int events = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    struct pollfd fds[] = {{.fd = signals, .events = POLLIN}, {.fd = events, .events = POLLIN}};
    while (!fds[0].revents) {
        unsigned long long wait;
        MHD_run(s->daemon);
        clients_close_overdue(&s->clients, clock_seconds());
        if (MHD_get_timeout(s->daemon, &wait) != MHD_YES || wait > TICK) wait = TICK;
        poll(fds, sizeof fds / sizeof *fds, (int)wait);
    }
}

/* Signals are read from a descriptor, between requests: no handler runs. */
static ErrorCode serve(Server *s, const struct addrinfo *at, int64_t port, Error *err) {
    sigset_t ends;
    signals_to_stop(&ends);
    pthread_sigmask(SIG_BLOCK, &ends, NULL);
    signal(SIGPIPE, SIG_IGN);
    int signals = signalfd(-1, &ends, SFD_CLOEXEC);
    if (signals < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot wait for signals");
    ErrorCode code = listen_at(s, at, port, err);
    if (code == OK) {
        print_where(s);
        log_info("watching %d run%s; Ctrl-C ends it", s->count, s->count == 1 ? "" : "s");
        serve_requests(s, signals);
        MHD_stop_daemon(s->daemon);
    }
    close(signals);
    return code;
}

/* An address that other machines can reach always requires a token; loopback only with --token, for machines
 * with other users. */
static ErrorCode run_server(const Arguments *args, Server *s, int64_t port, Error *err) {
    struct addrinfo *at;
    TRY(resolve(s->host, port, &at, err));
    s->loopback = is_loopback(at->ai_addr);
    ErrorCode code = OK;
    if (!s->loopback || arguments_has(args, "--token")) code = make_token(s, err);
    if (code == OK) code = serve(s, at, port, err);
    freeaddrinfo(at);
    return code;
}

/* A run that has not begun looks like a mistyped name, so a missing directory is reported. */
static ErrorCode open_run(Watched *w, const char *dir, Error *err) {
    TRY(watch_open(w, dir, err));
    if (!file_is_dir(dir)) log_warn("%s does not exist yet; the page shows the run once it begins", dir);
    return OK;
}

static ErrorCode run(const Arguments *args, Error *err) {
    const char *host = arguments_flag(args, "--bind");
    Server s = {.host = host ? host : "127.0.0.1"};
    int64_t port = 8765;
    TRY(arguments_int(args, "--port", 0, 65535, &port, err));
    ErrorCode code = OK;
    for (int i = 0; code == OK && i < args->operand_count; i++, s.count++)
        code = open_run(&s.runs[i], args->operands[i], err);
    if (code == OK) code = run_server(args, &s, port, err);
    for (int i = 0; i < s.count; i++) watch_close(&s.runs[i]);
    return code;
}
#else
static ErrorCode run(const Arguments *args, Error *err) {
    (void)args;
    return error_set(
        err, ERR_UNAVAILABLE,
        "this weft was built without libmicrohttpd, which watch needs: install libmicrohttpd-dev and "
        "build again, or take \"weft report\"");
}
#endif

static const Flag flags[] = {
    {"--port", 'p', "N", "where to listen; default 8765; 0: a port that is free"},
    {"--bind", 'b', "ADDRESS", "default 127.0.0.1, this machine alone; any other address asks for a token"},
    {"--token", 't', NULL, "ask for a token on this machine, too: others may work on it"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_watch = {
    .name = "watch",
    .summary = "a page that shows runs while they go on",
    .synopsis = "RUN ... [--port N] [--bind ADDRESS]",
    .details =
        "Serves one page over HTTP and prints its address: curves as they come, of up to eight runs over "
        "each other, throughput, memory, ranks and what they wait for (of every rank with "
        "metrics.all_ranks), validation, journal and configuration. It reads the files of the runs and "
        "nothing else, on any machine that sees them; it may be started before a run, whose directory "
        "need not exist yet, and outlives it. The page is complete in itself, and works on a phone.\n\n"
        "It only reports. It listens to this machine alone, unless --bind says otherwise; then the address "
        "that it prints has a token, a new one each time unless WEFT_WATCH_TOKEN gives it, without which "
        "nothing is served. HTTP is not encrypted: over a network that others use, go through ssh instead, "
        "as in the last example.\n\n"
        "Examples:\n"
        "  weft watch runs/demo\n"
        "  weft watch runs/base runs/lr-2e-3 --port 0\n"
        "  ssh -L 8765:localhost:8765 cluster weft watch runs/big",
    .flags = flags,
    .min_operands = 1,
    .max_operands = RUNS_MAX,
    .run = run,
};
