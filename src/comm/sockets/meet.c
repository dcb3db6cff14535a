/* Ranks find each other.
 *
 *     rank 0 listens where they meet      the others call there, until it answers or a minute is over
 *            <--- Card -------------      which machine, which port
 *            ---- Card of all ------>     once the last one has come
 *     each calls all lower ranks and is called by all higher ones: a connection for each pair, a Unix socket
 *     inside a machine and TCP between machines
 *            <--- READY ------------      it has all of them
 *            ---- GO --------------->     all have
 *
 * Until GO the connections with rank 0 stay open, and whoever waits for something looks at them, too: if one
 * closes, that rank has ended, rank 0 tells all others, and nobody waits for it.
 *
 * Strangers that call are hung up on, and have some time to say who they are, in which others are answered.
 * Ranks of a machine are those with the same boot of the same kernel and the same network: in two network
 * namespaces they count as two machines. */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "comm/sockets/address.h"
#include "comm/sockets/internal.h"
#include "comm/tell.h"

enum {
    PATIENCE_S = 60,
    GRACE_S = 5, /* rank 0 speaks first */
    HELLO_S = 10,
    RETRY_MS = 20,
    SILENCE_S = 10,
    LEAST_SILENCE_S = 4,
    FAILURE_BYTES = 1024,
    SPARE_FILES = 64 /* what a rank opens besides connections */
};

#define CALL_MAGIC UINT64_C(0x3274656d74666577) /* "weftmet2" */

typedef enum CallKind {
    CALL_HOME, /* to rank 0, until all have met */
    CALL_PAIR,
    CALL_PULSE /* a second one of a pair, for keep-alive alone */
} CallKind;

/* How a rank introduces itself. `own_size`: another build of weft may have other frames. */
typedef struct Card {
    uint64_t magic, job;
    int32_t rank, ranks, own_size, port;
    int32_t kind, spare;
    struct sockaddr_storage address; /* as rank 0 sees it; of no family: the one that rank 0 has */
    TransportPlace place;
} Card;

typedef enum WordKind {
    WORD_CARDS, /* the cards follow */
    WORD_READY,
    WORD_GO,
    WORD_ENDED,  /* number: the rank */
    WORD_FAILED, /* rank 0 has: why follows, in FAILURE_BYTES */
    WORD_REFUSED /* number: a Refusal */
} WordKind;
typedef enum Refusal { REFUSED_NOT, REFUSED_KEY, REFUSED_RANKS, REFUSED_BUILD, REFUSED_TAKEN } Refusal;

/* On a home connection. */
typedef struct Word {
    int32_t kind, number, ranks, spare; /* ranks: of the job of rank 0 */
} Word;

/* One that has called, and not yet said who it is. */
typedef struct Caller {
    int fd;
    size_t have; /* bytes of the card */
    double until;
    Card card;
} Caller;

typedef struct Meeting {
    Sockets *s;
    const char *place;
    int doors[3]; /* listeners: inside, outside, and rank 0's where all meet; -1: none */
    struct sockaddr_storage rank0;
    Card own, *cards; /* [ranks] */
    int *homes;       /* [ranks] home connections: rank 0 has those of the others, these have [0]; -1: none */
    bool *ready;      /* [ranks] on rank 0 */
    Caller *callers;
    struct pollfd *polled;
    int caller_count;
    bool has_cards, goes;
    int silence_s, patience_s;
    double until;
} Meeting;

enum { INSIDE, OUTSIDE, DOOR, DOORS };

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

static bool is_first(const Meeting *m) { return m->own.rank == 0; }

static ErrorCode open_doors(Meeting *m, Error *err) {
    TRY(address_check(m->place, err));
    TRY(address_listen_inside(m->own.job, m->own.rank, &m->doors[INSIDE], err));
    if (!address_is_local(m->place)) TRY(address_listen_outside(&m->doors[OUTSIDE], &m->own.port, err));
    return is_first(m) ? address_listen(m->place, &m->doors[DOOR], err) : OK;
}

/* ---- open files ---- */

/* A second connection to ranks of other machines, and those with rank 0. */
static long long files_needed(const Meeting *m) {
    long long others = m->own.ranks - 1;
    return (address_is_local(m->place) ? 1 : 2) * others + (is_first(m) ? others : 1) + SPARE_FILES;
}

static ErrorCode refuse_files(const Meeting *m, Error *err) {
    struct rlimit limit = {0};
    getrlimit(RLIMIT_NOFILE, &limit);
    return error_set(
        err, ERR_UNAVAILABLE,
        "rank %d may open %llu files at a time (ulimit -n), and needs up to %lld, since each of %d ranks has "
        "a "
        "connection to each other one: raise the limit (ulimit -n %lld; nofile in /etc/security/limits.conf)",
        m->own.rank, (unsigned long long)limit.rlim_cur, files_needed(m), m->own.ranks, files_needed(m));
}

static bool is_out_of_files(int error) { return error == EMFILE || error == ENFILE; }

/* Up to its hard limit a process may raise its limit itself. */
static void allow_files(const Meeting *m) {
    struct rlimit limit;
    rlim_t needed = (rlim_t)files_needed(m);
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
    limit.rlim_cur = limit.rlim_max < needed ? limit.rlim_max : needed;
    setrlimit(RLIMIT_NOFILE, &limit);
}

/* ---- reading and writing ---- */

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

static void hang_up(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static bool say(const Meeting *m, int fd, WordKind kind, int number) {
    Word word = {kind, number, m->own.ranks, 0};
    return write_all(fd, &word, sizeof word);
}

static void say_to_all(const Meeting *m, WordKind kind, int number) {
    for (int p = 0; p < m->own.ranks; p++)
        if (m->homes[p] >= 0) say(m, m->homes[p], kind, number);
}

static void say_failure(const Meeting *m, const Error *err) {
    char why[FAILURE_BYTES] = "";
    snprintf(why, sizeof why, "%s", err->message);
    for (int p = 0; p < m->own.ranks; p++)
        if (m->homes[p] >= 0 && say(m, m->homes[p], WORD_FAILED, 0)) write_all(m->homes[p], why, sizeof why);
}

/* ---- who calls ---- */

static Refusal refusal_of(const Meeting *m, const Card *c) {
    if (c->own_size != m->own.own_size) return REFUSED_BUILD;
    if (c->job != m->own.job) return REFUSED_KEY;
    if (c->ranks != m->own.ranks) return REFUSED_RANKS;
    return REFUSED_NOT;
}

static bool is_of_job(const Meeting *m, const Card *c) {
    return c->magic == CALL_MAGIC && refusal_of(m, c) == REFUSED_NOT && c->rank >= 0 && c->rank < c->ranks;
}

/* At rank 0. Each of these returns whether it has taken the connection over. */
static bool take_home(Meeting *m, Card *c, int fd) {
    socklen_t length = sizeof c->address;
    Refusal why = refusal_of(m, c);
    if (why == REFUSED_NOT && is_of_job(m, c) && (c->rank == 0 || m->homes[c->rank] >= 0))
        why = REFUSED_TAKEN;
    if (why != REFUSED_NOT) say(m, fd, WORD_REFUSED, why);
    if (why != REFUSED_NOT || !is_of_job(m, c) || m->has_cards) return false;
    c->address = (struct sockaddr_storage){0};
    if (c->place.host != m->own.place.host) getpeername(fd, (struct sockaddr *)&c->address, &length);
    m->cards[c->rank] = *c;
    m->homes[c->rank] = fd;
    return true;
}

/* If it is a connection that is missing. */
static bool take_pair(const Meeting *m, const Card *c, int fd) {
    if (!is_of_job(m, c) || c->rank <= m->own.rank) return false;
    Peer *q = &m->s->peers[c->rank];
    int *to = c->kind == CALL_PULSE ? &q->pulse : &q->fd;
    if (*to >= 0) return false;
    *to = fd;
    return true;
}

static bool take_call(Meeting *m, Card *c, int fd) {
    address_limit(fd, CALL_S);
    if (c->magic != CALL_MAGIC) return false;
    if (c->kind == CALL_HOME) return is_first(m) && take_home(m, c, fd);
    return take_pair(m, c, fd);
}

static ErrorCode answer(Meeting *m, int door, Error *err) {
    int fd = accept4(door, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) return is_out_of_files(errno) ? refuse_files(m, err) : OK;
    m->callers = mem_grow(m->callers, (size_t)(m->caller_count + 1) * sizeof *m->callers);
    m->callers[m->caller_count++] = (Caller){.fd = fd, .until = clock_seconds() + HELLO_S};
    return OK;
}

/* False: it is known, or nothing can come of it. */
static bool hear_caller(Meeting *m, Caller *c) {
    ssize_t length = recv(c->fd, (char *)&c->card + c->have, sizeof c->card - c->have, MSG_DONTWAIT);
    if (length < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (length > 0) c->have += (size_t)length;
    if (length > 0 && c->have < sizeof c->card) return true;
    if (length <= 0 || !take_call(m, &c->card, c->fd)) hang_up(&c->fd);
    return false;
}

/* `polled`: what has been found about those that were there. */
static void hear_callers(Meeting *m, const struct pollfd *polled, int count) {
    int kept = 0;
    for (int i = 0; i < m->caller_count; i++) {
        Caller *c = &m->callers[i];
        bool stays = i >= count || !polled[i].revents || hear_caller(m, c);
        if (stays && clock_seconds() > c->until) hang_up(&c->fd), stays = false;
        if (stays) m->callers[kept++] = *c;
    }
    m->caller_count = kept;
}

/* ---- homes ---- */

/* Rank 0 says it, and the others end in silence. */
static ErrorCode one_ended(const Meeting *m, int rank, Error *err) {
    if (is_first(m)) say_to_all(m, WORD_ENDED, rank);
    error_set(err, ERR_PEER, "rank %d ended before the ranks had met", rank);
    tell_lost(rank, err->message);
    err->reported = !is_first(m) && rank > 0;
    return err->code;
}

static ErrorCode refused(const Meeting *m, const Word *word, Error *err) {
    char why[300] = "it is another build of weft: give all ranks the same one";
    if (word->number == REFUSED_KEY)
        snprintf(
            why, sizeof why,
            "the job there has another key (" SOCKETS_KEY
            "), or writes the address in another way: give all ranks of a job the same two, and another job "
            "another port");
    if (word->number == REFUSED_RANKS)
        snprintf(why, sizeof why, "the job there has %d ranks, and this one %d", word->ranks, m->own.ranks);
    if (word->number == REFUSED_TAKEN)
        snprintf(why, sizeof why,
                 "there is a rank %d already: two jobs meet at one address (give one another port, or "
                 "a " SOCKETS_KEY " of its own), or two ranks have one number",
                 m->own.rank);
    return error_set(err, word->number == REFUSED_TAKEN ? ERR_PEER : ERR_CONFIG,
                     "rank %d: rank 0, at %s, did not take it in: %s", m->own.rank, m->place, why);
}

/* Rank 0 says it itself. */
static ErrorCode take_failure(const Meeting *m, Error *err) {
    char why[FAILURE_BYTES] = "";
    if (!read_all(m->homes[0], why, sizeof why)) return one_ended(m, 0, err);
    error_set(err, ERR_PEER, "%.*s", (int)sizeof why - 1, why);
    err->reported = true;
    return err->code;
}

static ErrorCode take_word(Meeting *m, const Word *word, Error *err) {
    switch ((WordKind)word->kind) {
    case WORD_CARDS:
        m->has_cards = read_all(m->homes[0], m->cards, (size_t)m->own.ranks * sizeof *m->cards) &&
                       is_of_job(m, &m->cards[0]);
        return m->has_cards ? OK : one_ended(m, 0, err);
    case WORD_GO: m->goes = true; return OK;
    case WORD_ENDED: return one_ended(m, word->number, err);
    case WORD_REFUSED: return refused(m, word, err);
    case WORD_FAILED: return take_failure(m, err);
    case WORD_READY: break;
    }
    return one_ended(m, 0, err);
}

static ErrorCode hear_home(Meeting *m, int p, Error *err) {
    Word word;
    if (!read_all(m->homes[p], &word, sizeof word)) {
        hang_up(&m->homes[p]);
        return one_ended(m, p, err);
    }
    if (!is_first(m)) return take_word(m, &word, err);
    m->ready[p] |= word.kind == WORD_READY;
    return OK;
}

/* ---- whatever happens ---- */

static int list_polled(Meeting *m) {
    int count = 0;
    m->polled = mem_grow(m->polled, (size_t)(DOORS + m->own.ranks + m->caller_count) * sizeof *m->polled);
    for (int i = 0; i < DOORS; i++) m->polled[count++] = (struct pollfd){m->doors[i], POLLIN, 0};
    for (int p = 0; p < m->own.ranks; p++) m->polled[count++] = (struct pollfd){m->homes[p], POLLIN, 0};
    for (int i = 0; i < m->caller_count; i++)
        m->polled[count++] = (struct pollfd){m->callers[i].fd, POLLIN, 0};
    return count;
}

/* Waits until something happens, or until `until`. Fails if a rank has ended. */
static ErrorCode move(Meeting *m, double until, Error *err) {
    int callers = m->caller_count, count = list_polled(m);
    for (int i = 0; i < callers; i++)
        if (m->callers[i].until < until) until = m->callers[i].until;
    double left = until - clock_seconds();
    int found = poll(m->polled, (nfds_t)count, left > 0 ? (int)(left * 1000) + 1 : 0);
    for (int p = 0; p < m->own.ranks && found > 0; p++)
        if (m->polled[DOORS + p].revents) TRY(hear_home(m, p, err));
    for (int i = 0; i < DOORS && found > 0; i++)
        if (m->polled[i].revents) TRY(answer(m, m->doors[i], err));
    hear_callers(m, m->polled + DOORS + m->own.ranks, found > 0 ? callers : 0);
    return OK;
}

static bool is_late(const Meeting *m) { return clock_seconds() >= m->until; }

/* ---- all cards ---- */

static int count_missing(const Meeting *m, int *first) {
    int missing = 0;
    for (int p = m->own.ranks - 1; p > 0; p--) {
        if (m->homes[p] >= 0) continue;
        *first = p;
        missing++;
    }
    return missing;
}

static ErrorCode waited_in_vain(const Meeting *m, Error *err) {
    char missing[64];
    int first = 0, count = count_missing(m, &first);
    snprintf(missing, sizeof missing, count > 1 ? "rank %d and %d others" : "rank %d", first, count - 1);
    return error_set(err, ERR_PEER, "rank 0 waited %d s at %s for %s (" SOCKETS_PATIENCE ")", m->patience_s,
                     m->place, missing);
}

static ErrorCode receive_cards(Meeting *m, Error *err) {
    int first;
    m->cards[0] = m->own;
    while (count_missing(m, &first) > 0) {
        if (is_late(m)) return waited_in_vain(m, err);
        TRY(move(m, m->until, err));
    }
    m->has_cards = true;
    for (int p = 1; p < m->own.ranks; p++)
        if (!say(m, m->homes[p], WORD_CARDS, 0) ||
            !write_all(m->homes[p], m->cards, (size_t)m->own.ranks * sizeof *m->cards))
            return one_ended(m, p, err);
    return OK;
}

static void pause_briefly(void) { nanosleep(&(struct timespec){0, RETRY_MS * 1000000L}, NULL); }

static ErrorCode call_home(Meeting *m, Error *err) {
    int fd = address_call(m->place, &m->rank0);
    while (fd < 0 && !is_out_of_files(errno) && !is_late(m)) {
        pause_briefly();
        fd = address_call(m->place, &m->rank0);
    }
    m->homes[0] = fd;
    if (fd < 0 && is_out_of_files(errno)) return refuse_files(m, err);
    if (fd >= 0) return OK;
    return error_set(err, ERR_PEER, "rank %d: rank 0 did not answer at %s (" SOCKETS_MEET ") for %d s",
                     m->own.rank, m->place, m->patience_s);
}

static ErrorCode introduce(Meeting *m, Error *err) {
    TRY(call_home(m, err));
    m->own.kind = CALL_HOME;
    m->until = clock_seconds() + m->patience_s + GRACE_S;
    address_limit(m->homes[0], m->patience_s);
    if (!write_all(m->homes[0], &m->own, sizeof m->own)) return one_ended(m, 0, err);
    while (!m->has_cards) {
        TRY(move(m, m->until, err));
        if (!m->has_cards && is_late(m))
            return error_set(err, ERR_PEER, "rank %d: rank 0, at %s, has said nothing for %d s", m->own.rank,
                             m->place, m->patience_s);
    }
    return OK;
}

/* ---- a connection for each pair ---- */

static bool is_near(const Meeting *m, int p) { return m->cards[p].place.host == m->own.place.host; }

static int call(const Meeting *m, int rank) {
    const Card *c = &m->cards[rank];
    struct sockaddr_storage address = c->address.ss_family == AF_UNSPEC ? m->rank0 : c->address;
    if (is_near(m, rank)) return address_call_inside(m->own.job, rank);
    if (address.ss_family == AF_INET6)
        ((struct sockaddr_in6 *)&address)->sin6_port = htons((uint16_t)c->port);
    else
        ((struct sockaddr_in *)&address)->sin_port = htons((uint16_t)c->port);
    return address_call_outside(&address);
}

/* That rank may have ended, which rank 0 is about to say. */
static ErrorCode cannot_connect(Meeting *m, int p, int why, Error *err) {
    if (is_out_of_files(why)) return refuse_files(m, err);
    for (double until = clock_seconds() + CALL_S; clock_seconds() < until;) TRY(move(m, until, err));
    return error_set(err, ERR_PEER, "rank %d cannot connect to rank %d: %s", m->own.rank, p,
                     why == EINPROGRESS ? "no answer" : strerror(why));
}

static ErrorCode call_one(Meeting *m, int p, CallKind kind, int *out, Error *err) {
    Card c = m->own;
    c.kind = kind;
    int fd = *out = call(m, p);
    return fd >= 0 && write_all(fd, &c, sizeof c) ? OK : cannot_connect(m, p, errno, err);
}

static ErrorCode call_lower(Meeting *m, Error *err) {
    for (int p = 0; p < m->own.rank; p++) {
        Peer *q = &m->s->peers[p];
        TRY(call_one(m, p, CALL_PAIR, &q->fd, err));
        if (!is_near(m, p)) TRY(call_one(m, p, CALL_PULSE, &q->pulse, err));
    }
    return OK;
}

/* The first higher rank that has not called yet, or 0. */
static int find_silent(const Meeting *m) {
    for (int p = m->own.rank + 1; p < m->own.ranks; p++)
        if (m->s->peers[p].fd < 0 || (!is_near(m, p) && m->s->peers[p].pulse < 0)) return p;
    return 0;
}

static ErrorCode answer_higher(Meeting *m, Error *err) {
    for (int p; (p = find_silent(m)) > 0;) {
        if (is_late(m))
            return error_set(err, ERR_PEER, "rank %d: rank %d did not connect within %d s", m->own.rank, p,
                             m->patience_s);
        TRY(move(m, m->until, err));
    }
    return OK;
}

/* ---- the end ---- */

static int find_unready(const Meeting *m) {
    for (int p = 1; p < m->own.ranks; p++)
        if (!m->ready[p]) return p;
    return 0;
}

/* Who is told to go when another has ended finds out later, as of any death. */
static ErrorCode let_go(Meeting *m, Error *err) {
    for (int p; (p = find_unready(m)) > 0;) {
        if (is_late(m))
            return error_set(err, ERR_PEER, "rank %d had not connected to all others after %d s", p,
                             m->patience_s);
        TRY(move(m, m->until, err));
    }
    say_to_all(m, WORD_GO, 0);
    return OK;
}

static ErrorCode wait_to_go(Meeting *m, Error *err) {
    if (!say(m, m->homes[0], WORD_READY, 0)) return one_ended(m, 0, err);
    while (!m->goes) {
        TRY(move(m, m->until, err));
        if (!m->goes && is_late(m))
            return error_set(err, ERR_PEER, "rank %d: other ranks were not ready after %d s", m->own.rank,
                             m->patience_s);
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
    if (s->poll < 0 && is_out_of_files(errno)) return refuse_files(m, err);
    if (s->poll < 0) return error_errno(err, ERR_UNAVAILABLE, "cannot make a poll set");
    for (int p = 0; p < s->transport.size; p++) {
        Peer *q = &s->peers[p];
        q->place = m->cards[p].place;
        if (p == s->transport.rank) continue;
        q->ahead = mem_alloc(READ_AHEAD);
        address_limit(q->fd, 0);
        if (!is_near(m, p)) send_at_once(q->fd);
        if (!is_near(m, p)) keep_alive(m, q->pulse);
        wire_watch(s, p);
    }
    sockets_find_local(s);
    return OK;
}

static ErrorCode meet(Meeting *m, Error *err) {
    allow_files(m);
    if (open_doors(m, err) != OK)
        return is_out_of_files(errno) ? refuse_files(m, err) : error_context(err, "rank %d", m->own.rank);
    TRY(is_first(m) ? receive_cards(m, err) : introduce(m, err));
    TRY(call_lower(m, err));
    TRY(answer_higher(m, err));
    TRY(is_first(m) ? let_go(m, err) : wait_to_go(m, err));
    return take_peers(m, err);
}

static int seconds_of(const char *name, int otherwise, int least) {
    const char *text = getenv(name);
    int seconds = text ? atoi(text) : otherwise;
    return seconds < least ? least : seconds;
}

static void open_meeting(Meeting *m) {
    int ranks = m->s->transport.size;
    m->silence_s = seconds_of(SOCKETS_SILENCE, SILENCE_S, LEAST_SILENCE_S);
    m->patience_s = seconds_of(SOCKETS_PATIENCE, PATIENCE_S, 1);
    m->until = clock_seconds() + m->patience_s;
    m->cards = mem_alloc_array((size_t)ranks, sizeof *m->cards);
    m->homes = mem_alloc_array((size_t)ranks, sizeof *m->homes);
    m->ready = mem_alloc_array((size_t)ranks, sizeof *m->ready);
    for (int i = 0; i < DOORS; i++) m->doors[i] = -1;
    for (int p = 0; p < ranks; p++) m->homes[p] = -1;
    m->own = own_card(m);
}

static void close_meeting(Meeting *m) {
    for (int i = 0; i < DOORS; i++) hang_up(&m->doors[i]);
    for (int p = 0; p < m->own.ranks; p++) hang_up(&m->homes[p]);
    for (int i = 0; i < m->caller_count; i++) hang_up(&m->callers[i].fd);
    free(m->cards);
    free(m->homes);
    free(m->ready);
    free(m->callers);
    free(m->polled);
}

ErrorCode sockets_meet(Sockets *s, int rank, int ranks, Error *err) {
    Meeting m = {.s = s, .place = getenv(SOCKETS_MEET)};
    if (rank < 0 || rank >= ranks)
        return error_set(err, ERR_USAGE, "rank %d of %d: ranks are 0 to %d (WEFT_RANK, WEFT_RANKS)", rank,
                         ranks, ranks - 1);
    s->transport.rank = rank;
    s->transport.size = ranks;
    s->peers = mem_alloc_array((size_t)ranks, sizeof *s->peers);
    for (int p = 0; p < ranks; p++) s->peers[p].fd = s->peers[p].pulse = -1;
    open_meeting(&m);
    ErrorCode code = meet(&m, err);
    if (code != OK && is_first(&m)) say_failure(&m, err);
    close_meeting(&m);
    if (code == OK) return OK;
    for (int p = 0; p < ranks; p++) {
        hang_up(&s->peers[p].fd);
        hang_up(&s->peers[p].pulse);
        free(s->peers[p].ahead);
    }
    if (s->poll > 0) close(s->poll);
    free(s->peers);
    return code;
}
