/* Ranks find each other.
 *
 *     rank 0 listens where they meet      the others call there, until it answers or a minute is over
 *            <--- Card -------------      which machine, which port
 *            ---- Card of all ------>     once the last one has come
 *     each calls all lower ranks and is called by all higher ones: a connection for each pair, a Unix socket
 *     inside a machine and TCP between machines
 *
 * Strangers that call are hung up on. Ranks of a machine are those with the same boot of the same kernel
 * and the same network: in two network namespaces they count as two machines. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "comm/sockets/internal.h"

enum { PATIENCE_S = 60, HELLO_S = 2, RETRY_MS = 20, SILENCE_S = 10, LEAST_SILENCE_S = 4, BACKLOG = 4096 };

#define CALL_MAGIC UINT64_C(0x3174656d74666577) /* "weftmet1" */

/* How a rank introduces itself. `own_size`: another build of weft may have other frames. */
typedef struct Card {
    uint64_t magic, job;
    int32_t rank, ranks, own_size, port;
    int32_t pulse;                   /* the connection is a second one, for keep-alive alone */
    struct sockaddr_storage address; /* as rank 0 sees it; of no family: the one that rank 0 has */
    TransportPlace place;
} Card;

typedef struct Meeting {
    Sockets *s;
    const char *place;
    int inside, outside, door; /* listeners: Unix, TCP, and rank 0's where all meet; -1: none */
    struct sockaddr_storage rank0;
    Card own, *cards; /* [ranks] */
    int silence_s, patience_s;
    double until;
} Meeting;

static bool is_local(const Meeting *m) { return m->place[0] == '@'; }

/* ---- who and where ---- */

static uint64_t host_of(void) {
    char boot[64] = "";
    struct stat network = {0};
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file) {
        if (!fgets(boot, sizeof boot, file)) *boot = 0;
        fclose(file);
    }
    stat("/proc/self/ns/net", &network);
    char all[128];
    snprintf(all, sizeof all, "%s %llu", boot, (unsigned long long)network.st_ino);
    return hash64(all, strlen(all));
}

static uint64_t job_of(const char *place) {
    const char *key = getenv(SOCKETS_KEY);
    char all[1024];
    snprintf(all, sizeof all, "%s\n%s", place, key ? key : "");
    return hash64(all, strlen(all));
}

static Card own_card(const Meeting *m) {
    Card c = {.magic = CALL_MAGIC,
              .job = job_of(m->place),
              .place = {.host = host_of()},
              .rank = m->s->transport.rank,
              .ranks = m->s->transport.size,
              .own_size = (int32_t)sizeof(Frame)};
    transport_own_cores(&c.place.cores);
    return c;
}

/* An abstract name: it is gone with its last descriptor. */
static socklen_t unix_name(const Meeting *m, int rank, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int length = rank < 0 ? snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "%s", m->place + 1)
                          : snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "weft-%016llx-%d",
                                     (unsigned long long)m->own.job, rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

/* ---- listening ---- */

static ErrorCode listen_inside(const Meeting *m, int rank, int *out, Error *err) {
    struct sockaddr_un name;
    socklen_t length = unix_name(m, rank, &name);
    *out = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (*out < 0 || bind(*out, (struct sockaddr *)&name, length) != 0 || listen(*out, BACKLOG) != 0)
        return error_errno(err, ERR_UNAVAILABLE, "rank %d cannot listen at %s", m->own.rank,
                           rank < 0 ? m->place : "a Unix socket");
    return OK;
}

/* port 0: any. IPv6 sockets take IPv4 too; a machine without IPv6 has IPv4 alone. */
static ErrorCode listen_outside(const Meeting *m, int port, int *out, Error *err) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int yes = 1, no = 0;
    *out = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_six = *out >= 0;
    if (!is_six) *out = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(*out, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (is_six) setsockopt(*out, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
    int bound = is_six ? bind(*out, (struct sockaddr *)&six, sizeof six)
                       : bind(*out, (struct sockaddr *)&four, sizeof four);
    if (*out < 0 || bound != 0 || listen(*out, BACKLOG) != 0)
        return error_errno(err, ERR_UNAVAILABLE, "rank %d cannot listen at %s", m->own.rank,
                           port ? m->place : "a TCP port");
    return OK;
}

static int port_of(int listener) {
    struct sockaddr_storage name = {0};
    socklen_t length = sizeof name;
    getsockname(listener, (struct sockaddr *)&name, &length);
    return ntohs(name.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&name)->sin6_port
                                            : ((struct sockaddr_in *)&name)->sin_port);
}

/* "HOST:PORT"; HOST may have colons itself, in brackets or not. */
static ErrorCode split_place(const Meeting *m, char host[256], int *port, Error *err) {
    const char *first = m->place, *colon = strrchr(first, ':');
    size_t length = colon ? (size_t)(colon - first) : 0;
    char *end = NULL;
    long number = colon ? strtol(colon + 1, &end, 10) : 0;
    if (length > 2 && first[0] == '[' && first[length - 1] == ']') first++, length -= 2;
    if (!length || length > 255 || number <= 0 || number > 65535 || *end)
        return error_set(err, ERR_USAGE, SOCKETS_MEET "=%s: neither HOST:PORT nor @NAME", m->place);
    *port = (int)number;
    snprintf(host, 256, "%.*s", (int)length, first);
    return OK;
}

static ErrorCode open_listeners(Meeting *m, Error *err) {
    char host[256];
    int port = 0;
    if (!is_local(m)) TRY(split_place(m, host, &port, err));
    TRY(listen_inside(m, m->own.rank, &m->inside, err));
    if (!is_local(m)) TRY(listen_outside(m, 0, &m->outside, err));
    if (!is_local(m)) m->own.port = port_of(m->outside);
    if (m->own.rank > 0) return OK;
    return is_local(m) ? listen_inside(m, -1, &m->door, err) : listen_outside(m, port, &m->door, err);
}

/* ---- calling ---- */

static void set_limit(int fd, int seconds) {
    struct timeval limit = {.tv_sec = seconds};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

static bool read_all(int fd, void *to, size_t bytes) {
    return recv(fd, to, bytes, MSG_WAITALL) == (ssize_t)bytes;
}
static bool write_all(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        ssize_t length = send(fd, (const char *)from + done, bytes - done, MSG_NOSIGNAL);
        if (length <= 0) return false;
        done += (size_t)length;
    }
    return true;
}

static int call_inside(const Meeting *m, int rank) {
    struct sockaddr_un name;
    socklen_t length = unix_name(m, rank, &name);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&name, length) == 0) return fd;
    close(fd);
    return -1;
}

static int call_address(const struct sockaddr_storage *address) {
    socklen_t length =
        address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    set_limit(fd, HELLO_S);
    if (connect(fd, (const struct sockaddr *)address, length) == 0) return fd;
    close(fd);
    return -1;
}

/* The name may have several addresses. */
static int call_rank0(Meeting *m) {
    char host[256], port_text[16];
    int port, fd = -1;
    struct addrinfo *all = NULL, hints = {.ai_socktype = SOCK_STREAM};
    if (is_local(m)) return call_inside(m, -1);
    if (split_place(m, host, &port, NULL) != OK) return -1;
    snprintf(port_text, sizeof port_text, "%d", port);
    if (getaddrinfo(host, port_text, &hints, &all) != 0) return -1;
    for (struct addrinfo *a = all; a && fd < 0; a = a->ai_next) {
        m->rank0 = (struct sockaddr_storage){0};
        memcpy(&m->rank0, a->ai_addr, a->ai_addrlen);
        fd = call_address(&m->rank0);
    }
    freeaddrinfo(all);
    return fd;
}

static void pause_briefly(void) { nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL); }

static bool is_of_job(const Meeting *m, const Card *c) {
    return c->magic == CALL_MAGIC && c->job == m->own.job && c->ranks == m->own.ranks &&
           c->own_size == m->own.own_size && c->rank >= 0 && c->rank < c->ranks;
}

/* Waits at up to two doors. -1: nobody came in time. */
static int answer(const Meeting *m, int door, int other) {
    struct pollfd fds[2] = {{door, POLLIN, 0}, {other, POLLIN, 0}};
    double left = m->until - clock_seconds();
    if (left <= 0 || poll(fds, 2, (int)(left * 1000)) <= 0) return -1;
    int fd = accept4(fds[0].revents ? door : other, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) set_limit(fd, HELLO_S);
    return fd;
}

/* ---- all cards ---- */

static void name_missing(const int *calls, int ranks, char *out, size_t size) {
    int missing = 0, first = -1;
    for (int p = 1; p < ranks; p++) {
        if (calls[p] >= 0) continue;
        if (first < 0) first = p;
        missing++;
    }
    snprintf(out, size, missing > 1 ? "rank %d and %d others" : "rank %d", first, missing - 1);
}

static ErrorCode take_cards(Meeting *m, int *calls, Error *err) {
    char missing[64];
    for (int come = 1; come < m->own.ranks;) {
        int fd = answer(m, m->door, -1);
        if (fd < 0 && clock_seconds() >= m->until) {
            name_missing(calls, m->own.ranks, missing, sizeof missing);
            return error_set(err, ERR_PEER, "rank 0 waited %d s at %s for %s (" SOCKETS_PATIENCE ")",
                             m->patience_s, m->place, missing);
        }
        Card c;
        if (fd < 0) continue;
        if (!read_all(fd, &c, sizeof c) || !is_of_job(m, &c) || c.rank == 0 || calls[c.rank] >= 0) {
            close(fd);
            continue;
        }
        socklen_t length = sizeof c.address;
        c.address = (struct sockaddr_storage){0};
        if (c.place.host != m->own.place.host) getpeername(fd, (struct sockaddr *)&c.address, &length);
        m->cards[c.rank] = c;
        calls[c.rank] = fd;
        come++;
    }
    return OK;
}

static ErrorCode receive_callers(Meeting *m, Error *err) {
    int ranks = m->own.ranks, *calls = mem_alloc_array((size_t)ranks, sizeof *calls);
    for (int p = 0; p < ranks; p++) calls[p] = -1;
    m->cards[0] = m->own;
    ErrorCode code = take_cards(m, calls, err);
    for (int p = 1; p < ranks; p++) {
        if (calls[p] < 0) continue;
        if (code == OK && !write_all(calls[p], m->cards, (size_t)ranks * sizeof *m->cards))
            code = error_set(err, ERR_PEER, "rank %d ended while the ranks met", p);
        close(calls[p]);
    }
    free(calls);
    return code;
}

static ErrorCode introduce(Meeting *m, Error *err) {
    int fd = call_rank0(m);
    for (; fd < 0 && clock_seconds() < m->until; fd = call_rank0(m)) pause_briefly();
    if (fd < 0)
        return error_set(err, ERR_PEER, "rank %d: rank 0 did not answer at %s (" SOCKETS_MEET ") for %d s",
                         m->own.rank, m->place, m->patience_s);
    set_limit(fd, m->patience_s);
    bool done = write_all(fd, &m->own, sizeof m->own) &&
                read_all(fd, m->cards, (size_t)m->own.ranks * sizeof *m->cards);
    close(fd);
    if (done && is_of_job(m, &m->cards[0])) return OK;
    return error_set(
        err, ERR_PEER,
        "rank %d: rank 0, at %s, did not take it in: there the job has another key (" SOCKETS_KEY
        "), number of ranks or build of weft, has this rank already, or waits for other ranks in vain",
        m->own.rank, m->place);
}

/* ---- a connection for each pair ---- */

static bool is_near(const Meeting *m, int p) { return m->cards[p].place.host == m->own.place.host; }

static int call(const Meeting *m, int rank) {
    const Card *c = &m->cards[rank];
    struct sockaddr_storage address = c->address.ss_family == AF_UNSPEC ? m->rank0 : c->address;
    if (is_near(m, rank)) return call_inside(m, rank);
    if (address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address)->sin6_port = htons((uint16_t)c->port);
    else
        ((struct sockaddr_in *)&address)->sin_port = htons((uint16_t)c->port);
    return call_address(&address);
}

static ErrorCode call_one(Meeting *m, int p, bool pulse, int *out, Error *err) {
    Card c = m->own;
    c.pulse = pulse;
    int fd = *out = call(m, p);
    if (fd >= 0 && write_all(fd, &c, sizeof c)) return OK;
    return error_set(err, ERR_PEER, "rank %d cannot connect to rank %d: %s", m->own.rank, p,
                     errno == EINPROGRESS ? "no answer" : strerror(errno));
}

static ErrorCode call_lower(Meeting *m, Error *err) {
    for (int p = 0; p < m->own.rank; p++) {
        Peer *q = &m->s->peers[p];
        TRY(call_one(m, p, false, &q->fd, err));
        if (!is_near(m, p)) TRY(call_one(m, p, true, &q->pulse, err));
    }
    return OK;
}

/* Takes the connection over, if it is one that is missing. */
static bool take_call(Meeting *m, const Card *c, int fd) {
    if (!is_of_job(m, c) || c->rank <= m->own.rank) return false;
    Peer *q = &m->s->peers[c->rank];
    int *to = c->pulse ? &q->pulse : &q->fd;
    if (*to >= 0) return false;
    *to = fd;
    return true;
}

static ErrorCode answer_higher(Meeting *m, Error *err) {
    int left = 0;
    for (int p = m->own.rank + 1; p < m->own.ranks; p++) left += is_near(m, p) ? 1 : 2;
    while (left > 0) {
        Card c;
        int fd = answer(m, m->inside, m->outside);
        if (fd < 0 && clock_seconds() >= m->until)
            return error_set(err, ERR_PEER, "rank %d: not all higher ranks connected within %d s",
                             m->own.rank, m->patience_s);
        if (fd < 0) continue;
        if (read_all(fd, &c, sizeof c) && take_call(m, &c, fd)) {
            left--;
        } else {
            close(fd);
        }
    }
    return OK;
}

/* The kernels find out that a machine is gone or a cable cut, also while ranks compute: after five questions
 * without an answer, a quarter of the silence apart. So a cut shorter than the silence is survived. */
static void keep_alive(const Meeting *m, int fd) {
    int yes = 1, quarter = m->silence_s / 4, five = 5;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &yes, sizeof yes);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &quarter, sizeof quarter);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &quarter, sizeof quarter);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &five, sizeof five);
}

static void send_at_once(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
}

void sockets_find_local(Sockets *s) {
    TransportPlace *places = mem_alloc_array((size_t)s->transport.size, sizeof *places);
    for (int p = 0; p < s->transport.size; p++)
        if (!s->peers[p].aside) places[p] = s->peers[p].place;
    transport_find_local(&s->transport, places);
    free(places);
}

static ErrorCode take_peers(Meeting *m, Error *err) {
    Sockets *s = m->s;
    s->poll = epoll_create1(EPOLL_CLOEXEC);
    if (s->poll < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot make a poll set");
    for (int p = 0; p < s->transport.size; p++) {
        Peer *q = &s->peers[p];
        q->place = m->cards[p].place;
        if (p == s->transport.rank) continue;
        q->ahead = mem_alloc(READ_AHEAD);
        set_limit(q->fd, 0);
        if (!is_near(m, p)) send_at_once(q->fd);
        if (!is_near(m, p)) keep_alive(m, q->pulse);
        wire_watch(s, p);
    }
    sockets_find_local(s);
    return OK;
}

static ErrorCode meet(Meeting *m, Error *err) {
    TRY(open_listeners(m, err));
    TRY(m->own.rank == 0 ? receive_callers(m, err) : introduce(m, err));
    TRY(call_lower(m, err));
    TRY(answer_higher(m, err));
    return take_peers(m, err);
}

static int seconds_of(const char *name, int otherwise, int least) {
    const char *text = getenv(name);
    int seconds = text ? atoi(text) : otherwise;
    return seconds < least ? least : seconds;
}

static void close_door(int fd) {
    if (fd >= 0) close(fd);
}

ErrorCode sockets_meet(Sockets *s, int rank, int ranks, Error *err) {
    Meeting m = {.s = s, .place = getenv(SOCKETS_MEET), .inside = -1, .outside = -1, .door = -1};
    m.silence_s = seconds_of(SOCKETS_SILENCE, SILENCE_S, LEAST_SILENCE_S);
    m.patience_s = seconds_of(SOCKETS_PATIENCE, PATIENCE_S, 1);
    m.until = clock_seconds() + m.patience_s;
    if (rank < 0 || rank >= ranks)
        return error_set(err, ERR_USAGE, "rank %d of %d: ranks are 0 to %d (WEFT_RANK, WEFT_RANKS)", rank,
                         ranks, ranks - 1);
    s->transport.rank = rank;
    s->transport.size = ranks;
    s->peers = mem_alloc_array((size_t)ranks, sizeof *s->peers);
    for (int p = 0; p < ranks; p++) s->peers[p].fd = s->peers[p].pulse = -1;
    m.cards = mem_alloc_array((size_t)ranks, sizeof *m.cards);
    m.own = own_card(&m);
    ErrorCode code = meet(&m, err);
    close_door(m.inside);
    close_door(m.outside);
    close_door(m.door);
    free(m.cards);
    if (code == OK) return OK;
    for (int p = 0; p < ranks; p++) {
        close_door(s->peers[p].fd);
        close_door(s->peers[p].pulse);
    }
    free(s->peers);
    return code;
}
