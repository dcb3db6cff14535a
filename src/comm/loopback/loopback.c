/* A transport among the threads of one process.
 *
 * A post is in one list of its rank at a time:
 *
 *     (unused) --post--> held --end--> sends or receives --match--> ended --finished, test--> (unused)
 *
 * held: between begin and end. Lists are in the order of posting, so that the k-th send meets the k-th
 * receive. One mutex guards the hub; the thread that posts the second half of a pair copies.
 *
 * Advantages for tests over a network: every rank is in one process, where sanitizers and debuggers see them
 * all; posts end in an order drawn from a seed; and nothing is buffered, so an operation that only works
 * because small messages run ahead hangs at once. */
#include "comm/loopback/loopback.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/rng.h"
#include "base/text.h"
#include "device/device.h"

enum { TOO_LONG = 1, LONGEST_DELAY = 5 /* looks */ };

typedef struct Post {
    TransportPost post; /* peer: a rank of the hub, or TRANSPORT_ANY */
    char *data;
    bool sends;
    TransportEnd end;
    int delay; /* polls until the end is reported */
    struct Post *next;
} Post;

typedef struct List {
    Post *first, *last;
} List;

typedef struct Endpoint {
    CommTransport transport;
    Loopback *hub;
    int joins, grouped; /* grouped: inside begin and end */
    Post *posts;        /* [events] */
    List held, sends, receives, ended;
    uint64_t posts_ended; /* posts ended so far: draws delays */
} Endpoint;

/* A rank's arguments of the k-th join, and the resulting channel: the hub's rank at each index. */
typedef struct JoinEntry {
    int colour, key;
    int *members; /* [ranks] */
} JoinEntry;

struct Loopback {
    pthread_mutex_t mutex;
    pthread_cond_t joined;
    int ranks;
    uint64_t seed;
    int arrived[TRANSPORT_CHANNELS];
    JoinEntry *entries[TRANSPORT_CHANNELS]; /* [ranks] each */
    Endpoint *ends;                         /* [ranks] */
};

/* ---- lists ---- */

static void append(List *l, Post *p) {
    p->next = NULL;
    if (l->last) {
        l->last->next = p;
    } else {
        l->first = p;
    }
    l->last = p;
}

/* before: NULL for the first. */
static void take_out(List *l, Post *before, Post *p) {
    if (before) {
        before->next = p->next;
    } else {
        l->first = p->next;
    }
    if (l->last == p) l->last = before;
}

/* ---- meeting ---- */

/* Tags and channels are equal, and each is the peer of the other, or of any rank. */
static bool meet(const Post *a, int rank_a, const Post *b, int rank_b) {
    return a->post.channel == b->post.channel && a->post.tag == b->post.tag &&
           (a->post.peer == rank_b || a->post.peer == TRANSPORT_ANY) &&
           (b->post.peer == rank_a || b->post.peer == TRANSPORT_ANY);
}

/* Delays the report of an end by a number of polls drawn from the seed, so ends of later posts may be
 * reported before it. */
static void tell(Endpoint *e, Post *p, size_t bytes, int error) {
    uint64_t seed = e->hub->seed;
    p->end = (TransportEnd){.event = p->post.event, .error = error, .bytes = bytes};
    p->delay =
        seed ? (int)(rng_u64(seed + (uint64_t)e->transport.rank, e->posts_ended++) % LONGEST_DELAY) : 0;
    append(&e->ended, p);
}

/* Copies under the hub's mutex, so that whoever learns of the end sees the complete copy. */
static void move(Endpoint *from, Post *send, Endpoint *to, Post *receive) {
    bool fits = send->post.bytes <= receive->post.bytes;
    size_t bytes = fits ? send->post.bytes : receive->post.bytes;
    if (bytes) memcpy(receive->data, send->data, bytes);
    tell(from, send, send->post.bytes, TRANSPORT_OK);
    tell(to, receive, send->post.bytes, fits ? TRANSPORT_OK : TOO_LONG);
}

/* Looks for the other half of `p` at rank `other`. */
static bool match_at(Endpoint *e, Post *p, int other) {
    Endpoint *o = &e->hub->ends[other];
    List *l = p->sends ? &o->receives : &o->sends;
    for (Post *before = NULL, *q = l->first; q; before = q, q = q->next) {
        if (!meet(p, e->transport.rank, q, other)) continue;
        take_out(l, before, q);
        if (p->sends) {
            move(e, p, o, q);
        } else {
            move(o, q, e, p);
        }
        return true;
    }
    return false;
}

/* Matches the post if its other half exists; otherwise it waits in its rank's list. */
static void publish(Endpoint *e, Post *p) {
    bool any = p->post.peer == TRANSPORT_ANY;
    for (int other = any ? 0 : p->post.peer; other < (any ? e->hub->ranks : p->post.peer + 1); other++)
        if (match_at(e, p, other)) return;
    append(p->sends ? &e->sends : &e->receives, p);
}

/* ---- the transport ---- */

/* Each rank makes its own copy: a channel lives as long as its transport. */
static int *members_of(Loopback *hub, int channel, int colour, int size) {
    int *members = mem_alloc_array((size_t)size, sizeof *members);
    for (int r = 0; r < hub->ranks; r++) {
        const JoinEntry *s = &hub->entries[channel][r];
        if (s->colour == colour) members[s->key] = r;
    }
    return members;
}

/* The k-th join of a rank is the k-th of all: they wait for each other here, as in MPI_Comm_split. */
static int join(CommTransport *transport, int colour, int key, int size, int *channel) {
    Endpoint *e = (Endpoint *)transport;
    Loopback *hub = e->hub;
    int k = *channel = e->joins++;
    CHECK(k < TRANSPORT_CHANNELS);
    pthread_mutex_lock(&hub->mutex);
    JoinEntry *entry = &hub->entries[k][transport->rank];
    *entry = (JoinEntry){.colour = colour, .key = key};
    hub->arrived[k]++;
    pthread_cond_broadcast(&hub->joined);
    while (hub->arrived[k] < hub->ranks) pthread_cond_wait(&hub->joined, &hub->mutex);
    entry->members = members_of(hub, k, colour, size);
    pthread_mutex_unlock(&hub->mutex);
    return TRANSPORT_OK;
}

static int post(Endpoint *e, const TransportPost *what, char *data, bool sends) {
    Loopback *hub = e->hub;
    pthread_mutex_lock(&hub->mutex);
    Post *p = &e->posts[what->event];
    *p = (Post){.post = *what, .data = data, .sends = sends};
    /* The peer is a rank in the channel; lists use ranks of the hub. */
    if (what->peer != TRANSPORT_ANY)
        p->post.peer = hub->entries[what->channel][e->transport.rank].members[what->peer];
    if (e->grouped) {
        append(&e->held, p);
    } else {
        publish(e, p);
    }
    pthread_mutex_unlock(&hub->mutex);
    return TRANSPORT_OK;
}

static int post_send(CommTransport *transport, const TransportPost *p, const void *data) {
    return post((Endpoint *)transport, p, (char *)(uintptr_t)data, true);
}
static int post_receive(CommTransport *transport, const TransportPost *p, void *data) {
    return post((Endpoint *)transport, p, data, false);
}

static void begin(CommTransport *transport) { ((Endpoint *)transport)->grouped++; }

/* Groups may nest; held posts go out when the outermost group ends, in the order of posting. */
static void end(CommTransport *transport) {
    Endpoint *e = (Endpoint *)transport;
    CHECK(e->grouped > 0);
    if (--e->grouped) return;
    pthread_mutex_lock(&e->hub->mutex);
    for (Post *p; (p = e->held.first);) {
        take_out(&e->held, NULL, p);
        publish(e, p);
    }
    pthread_mutex_unlock(&e->hub->mutex);
}

static int finished(CommTransport *transport, TransportEnd *ends, int most, int *error) {
    Endpoint *e = (Endpoint *)transport;
    int count = 0;
    (void)error;
    pthread_mutex_lock(&e->hub->mutex);
    for (Post *before = NULL, *p = e->ended.first, *next; p && count < most; p = next) {
        next = p->next;
        /* Polling the list counts as a poll of each post in it. */
        if (p->delay-- > 0) {
            before = p;
            continue;
        }
        take_out(&e->ended, before, p);
        ends[count++] = p->end;
    }
    pthread_mutex_unlock(&e->hub->mutex);
    return count;
}

/* Delays do not apply when one event is tested. */
static bool test(CommTransport *transport, int event, TransportEnd *out) {
    Endpoint *e = (Endpoint *)transport;
    Post *before = NULL, *p;
    pthread_mutex_lock(&e->hub->mutex);
    for (p = e->ended.first; p && p->end.event != event; p = p->next) before = p;
    if (p) {
        take_out(&e->ended, before, p);
        *out = p->end;
    }
    pthread_mutex_unlock(&e->hub->mutex);
    return p != NULL;
}

static void explain(int error, char *out, size_t size) {
    snprintf(out, size, "%s",
             error == TOO_LONG ? "a message is longer than its receive: this is a bug in weft" : "no error");
}

static void abort_all(CommTransport *transport, int status) {
    (void)transport;
    _exit(status);
}

/* The hub frees the posts: other ranks may still look at their lists. */
static void close_transport(CommTransport *transport) {
    Endpoint *e = (Endpoint *)transport;
    pthread_mutex_lock(&e->hub->mutex);
    e->held = e->sends = e->receives = e->ended = (List){0};
    pthread_mutex_unlock(&e->hub->mutex);
}

/* ---- the hub ---- */

static const TransportKind loopback = {.name = "loopback",
                                       .join = join,
                                       .send = post_send,
                                       .receive = post_receive,
                                       .begin = begin,
                                       .end = end,
                                       .finished = finished,
                                       .test = test,
                                       .explain = explain,
                                       .abort = abort_all,
                                       .close = close_transport};

Loopback *loopback_new(int ranks, int events, uint64_t seed) {
    Loopback *hub = mem_alloc(sizeof *hub);
    *hub =
        (Loopback){.ranks = ranks, .seed = seed, .ends = mem_alloc_array((size_t)ranks, sizeof *hub->ends)};
    pthread_mutex_init(&hub->mutex, NULL);
    pthread_cond_init(&hub->joined, NULL);
    for (int k = 0; k < TRANSPORT_CHANNELS; k++)
        hub->entries[k] = mem_alloc_array((size_t)ranks, sizeof *hub->entries[k]);
    for (int r = 0; r < ranks; r++)
        hub->ends[r] = (Endpoint){.transport = {.kind = &loopback,
                                                .rank = r,
                                                .size = ranks,
                                                .local_rank = r,
                                                .local_size = ranks,
                                                .local_cores = device_cpu_cores(),
                                                .tags = INT64_C(1) << 30},
                                  .hub = hub,
                                  .posts = mem_alloc_array((size_t)events, sizeof(Post))};
    return hub;
}

void loopback_free(Loopback *hub) {
    for (int r = 0; r < hub->ranks; r++) free(hub->ends[r].posts);
    for (int k = 0; k < TRANSPORT_CHANNELS; k++) {
        for (int r = 0; r < hub->ranks; r++) free(hub->entries[k][r].members);
        free(hub->entries[k]);
    }
    pthread_mutex_destroy(&hub->mutex);
    pthread_cond_destroy(&hub->joined);
    free(hub->ends);
    free(hub);
}

CommTransport *loopback_transport(Loopback *hub, int rank) { return &hub->ends[rank].transport; }
