/* Posts: a send and its receive find each other here. internal.h has the protocol.
 *
 *     send:     writing --> (offered --> writing -->) ended
 *     receive:  waiting --> accepted --> ended
 *
 * Those that wait are in a list of their peer, in the order of posting; those that have ended are in
 * another until `finished` or `test` has reported them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "comm/launch.h"
#include "comm/sockets/internal.h"
#include "comm/tell.h"

enum { LOOK_MS = 100, OFFERS_POOLED = 4096, MESSAGES_POOLED = 512 };

/* ---- lists ---- */

static void append(PostList *l, Post *p) {
    p->next = NULL;
    p->before = l->last;
    if (l->last) {
        l->last->next = p;
    } else {
        l->first = p;
    }
    l->last = p;
}

static void take_out(PostList *l, Post *p) {
    if (p->before) {
        p->before->next = p->next;
    } else {
        l->first = p->next;
    }
    if (p->next) {
        p->next->before = p->before;
    } else {
        l->last = p->before;
    }
}

static PostList *waiting_for(Sockets *s, int peer) {
    return peer == TRANSPORT_ANY ? &s->any : &s->peers[peer].receives;
}

/* ---- ends ---- */

void post_end(Sockets *s, Post *post, size_t bytes, int error) {
    if (post->state == POST_WAITING) take_out(waiting_for(s, post->peer), post);
    if (post->state == POST_ACCEPTED && s->peers[post->peer].post == post) {
        /* Its body is on its way, and goes nowhere. */
        s->peers[post->peer].post = NULL;
        s->peers[post->peer].room = 0;
    }
    if (error != SOCKETS_OK) wire_withdraw(s, post);
    post->state = POST_ENDED;
    post->end = (TransportEnd){.event = post->what.event, .error = error, .bytes = bytes};
    append(&s->ended, post);
}

static bool is_open(const Post *p) { return p->state != POST_FREE && p->state != POST_ENDED; }

/* Those of one peer, or all. Returns whether there were any. */
static bool end_posts(Sockets *s, int peer, int error) {
    bool any = false;
    for (int e = 0; e < s->used; e++) {
        Post *p = &s->posts[e];
        if (!is_open(p) || (peer != TRANSPORT_ANY && p->peer != peer)) continue;
        post_end(s, p, 0, error);
        any = true;
    }
    return any;
}

/* Of a peer that does not live. */
static int error_of(const Sockets *s, int peer) {
    return (s->peers[peer].silent ? SOCKETS_SILENT : SOCKETS_DEAD) + peer * SOCKETS_ERRORS;
}

void peer_lost(Sockets *s, int peer) {
    char why[128];
    snprintf(why, sizeof why, "rank %d has ended, and the others do not go on without it", peer);
    tell_lost(peer, why);
    s->trouble = error_of(s, peer);
    end_posts(s, peer, s->trouble);
}

/* ---- what comes ---- */

/* The first receive that was posted for it. Directed receives and those from any rank have tags of their
 * own. */
static Post *find_receive(Sockets *s, int peer, const Frame *f) {
    PostList *lists[] = {&s->peers[peer].receives, &s->any};
    for (int i = 0; i < 2; i++)
        for (Post *p = lists[i]->first; p; p = p->next)
            if (p->what.channel == f->channel && p->what.tag == f->tag) return p;
    return NULL;
}

static void take_receive(Sockets *s, Post *post, int peer) {
    take_out(waiting_for(s, post->peer), post);
    post->peer = peer;
    post->state = POST_ACCEPTED;
}

/* A message longer than its receive is an error that ends the job, so the send may stay open. */
static void accept_offer(Sockets *s, int peer, Post *post, const Frame *offer) {
    take_receive(s, post, peer);
    if (offer->bytes > post->what.bytes) {
        post_end(s, post, (size_t)offer->bytes, SOCKETS_TOO_LONG);
        return;
    }
    post->out = (Out){
        .frame = {.kind = FRAME_ACCEPT, .epoch = s->epoch, .from = offer->from, .to = post->what.event}};
    wire_queue(s, peer, &post->out);
}

/* From the pool as long as it lasts: no step allocates then. */
static Early *new_early(Sockets *s, const Frame *f, size_t bytes) {
    bool big = bytes > 0;
    Early **pool = big ? &s->free_messages : &s->free_offers, *e = *pool;
    if (e && bytes <= EAGER_BYTES) {
        *pool = e->next;
    } else {
        e = mem_alloc(sizeof *e + bytes);
        e->pooled = false;
    }
    e->next = NULL;
    e->big = big;
    e->frame = *f;
    return e;
}

static void free_early(Sockets *s, Early *e) {
    if (!e) return;
    if (!e->pooled) {
        free(e);
        return;
    }
    Early **pool = e->big ? &s->free_messages : &s->free_offers;
    e->next = *pool;
    *pool = e;
}

static void fill_pool(Early **pool, int count, size_t bytes) {
    for (int i = 0; i < count; i++) {
        Early *e = mem_alloc(sizeof *e + bytes);
        e->pooled = true;
        e->next = *pool;
        *pool = e;
    }
}

static void empty_pool(Early **pool) {
    for (Early *e; (e = *pool);) {
        *pool = e->next;
        free(e);
    }
}

static void keep_early(Peer *q, Early *e) {
    if (q->last_early) {
        q->last_early->next = e;
    } else {
        q->first_early = e;
    }
    q->last_early = e;
}

static void read_into(Peer *q, char *into, size_t room) {
    q->into = into;
    q->room = room < q->left ? room : q->left;
}

static void message_begins(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    Post *post = find_receive(s, peer, &q->frame);
    if (post) {
        take_receive(s, post, peer);
        q->post = post;
        read_into(q, post->data, post->what.bytes);
    } else {
        q->early = new_early(s, &q->frame, q->left);
        read_into(q, q->early->data, q->left);
    }
}

static bool is_event(const Sockets *s, int event) { return event >= 0 && event < s->events; }

static void data_begins(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    if (!is_event(s, q->frame.to)) return;
    Post *post = &s->posts[q->frame.to];
    if (post->state != POST_ACCEPTED || post->peer != peer) return;
    q->post = post;
    read_into(q, post->data, post->what.bytes);
}

enum { OPINION_MAX = 1 << 20 };

void frame_begins(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    const Frame *f = &q->frame;
    bool current = f->epoch == s->epoch;
    switch ((FrameKind)f->kind) {
    case FRAME_MESSAGE:
        q->left = f->bytes;
        if (current && f->bytes <= EAGER_BYTES) message_begins(s, peer);
        break;
    case FRAME_DATA:
        q->left = f->bytes;
        if (current) data_begins(s, peer);
        break;
    case FRAME_AGREE:
        q->left = f->bytes;
        if (f->bytes < sizeof(Opinion) || f->bytes > OPINION_MAX) break;
        q->opinion = mem_alloc(f->bytes);
        read_into(q, (char *)q->opinion, f->bytes);
        break;
    case FRAME_OFFER:
    case FRAME_ACCEPT:
    case FRAME_JOIN:
    case FRAME_REVOKE:
    case FRAME_EXPEL:
    case FRAME_ABORT:
    case FRAME_BYE: break;
    }
}

static void message_ends(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    size_t bytes = (size_t)q->frame.bytes;
    Post *post = q->post;
    if (q->frame.epoch != s->epoch) {
        free_early(s, q->early);
        q->early = NULL;
        return;
    }
    if (q->early && (post = find_receive(s, peer, &q->frame))) {
        /* It was posted in the meantime. */
        take_receive(s, post, peer);
        memcpy(post->data, q->early->data, bytes < post->what.bytes ? bytes : post->what.bytes);
        free_early(s, q->early);
        q->early = NULL;
    }
    if (q->early) keep_early(q, q->early);
    q->early = NULL;
    q->post = NULL;
    if (post) post_end(s, post, bytes, bytes > post->what.bytes ? SOCKETS_TOO_LONG : SOCKETS_OK);
}

static void offer_comes(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    Post *post = find_receive(s, peer, &q->frame);
    if (post) {
        accept_offer(s, peer, post, &q->frame);
    } else {
        keep_early(q, new_early(s, &q->frame, 0));
    }
}

static void accept_comes(Sockets *s, int peer) {
    const Frame *f = &s->peers[peer].frame;
    if (!is_event(s, f->from)) return;
    Post *post = &s->posts[f->from];
    if (post->state != POST_OFFERED || post->peer != peer) return;
    post->state = POST_WRITING;
    post->out =
        (Out){.frame = {.kind = FRAME_DATA, .epoch = s->epoch, .to = f->to, .bytes = post->what.bytes},
              .body = post->data,
              .bytes = post->what.bytes};
    wire_queue(s, peer, &post->out);
}

static void opinion_comes(Sockets *s, int peer) {
    Opinion *o = s->peers[peer].opinion;
    s->peers[peer].opinion = NULL;
    if (o) agreement_hears(s, peer, o, (size_t)s->peers[peer].frame.bytes);
}

static void revoke_here(Sockets *s) {
    if (s->revoked) return;
    s->revoked = true;
    s->trouble = SOCKETS_REVOKED;
    end_posts(s, TRANSPORT_ANY, SOCKETS_REVOKED);
    for (int p = 0; p < s->transport.size; p++)
        wire_send(s, p, (Frame){.kind = FRAME_REVOKE, .epoch = s->epoch}, NULL, 0);
}

static void join_comes(Sockets *s, int peer) {
    Joined *j = mem_alloc(sizeof *j), **at = &s->peers[peer].joins;
    j->frame = s->peers[peer].frame;
    while (*at) at = &(*at)->next;
    *at = j;
}

/* A rank that leaves while others still wait for its messages counts as dead. */
static void peer_leaves(Sockets *s, int peer) {
    s->peers[peer].state = PEER_LEFT;
    if (end_posts(s, peer, error_of(s, peer))) s->trouble = error_of(s, peer);
}

void frame_ends(Sockets *s, int peer) {
    Peer *q = &s->peers[peer];
    bool current = q->frame.epoch == s->epoch;
    switch ((FrameKind)q->frame.kind) {
    case FRAME_MESSAGE: message_ends(s, peer); return;
    case FRAME_DATA:
        if (q->post) post_end(s, q->post, (size_t)q->frame.bytes, SOCKETS_OK);
        return;
    case FRAME_OFFER:
        if (current) offer_comes(s, peer);
        return;
    case FRAME_ACCEPT:
        if (current) accept_comes(s, peer);
        return;
    case FRAME_JOIN: join_comes(s, peer); return;
    case FRAME_REVOKE:
        if (current) revoke_here(s);
        return;
    case FRAME_AGREE: opinion_comes(s, peer); return;
    case FRAME_EXPEL: agreement_leave("the other ranks cannot reach it, and go on without it");
    case FRAME_ABORT: launched_end(q->frame.to); /* the other rank has said why */
    case FRAME_BYE: peer_leaves(s, peer); return;
    }
    wire_lose(s, peer, false); /* no frame of ours */
}

void frame_written(Sockets *s, Post *post) {
    if (!post->sends) return;
    if (post->out.frame.kind == FRAME_OFFER) {
        post->state = POST_OFFERED;
    } else {
        post_end(s, post, post->what.bytes, SOCKETS_OK);
    }
}

/* ---- posting ---- */

static Post *new_post(Sockets *s, const TransportPost *what, char *data, bool sends) {
    CHECK(is_event(s, what->event));
    Post *p = &s->posts[what->event];
    *p = (Post){.what = *what, .data = data, .sends = sends};
    p->peer = what->peer == TRANSPORT_ANY ? TRANSPORT_ANY : s->channels[what->channel][what->peer];
    CHECK(p->peer != s->transport.rank);
    if (what->event >= s->used) s->used = what->event + 1;
    return p;
}

/* Whether nothing can come of it; then it has ended. */
static bool is_in_vain(Sockets *s, Post *p) {
    bool gone = p->peer != TRANSPORT_ANY && s->peers[p->peer].state != PEER_LIVES;
    if (!gone && !s->revoked) return false;
    post_end(s, p, 0, gone ? error_of(s, p->peer) : SOCKETS_REVOKED);
    return true;
}

static int post_send(CommTransport *transport, const TransportPost *what, const void *data) {
    Sockets *s = (Sockets *)transport;
    Post *p = new_post(s, what, (char *)(uintptr_t)data, true);
    bool eager = what->bytes <= EAGER_BYTES;
    if (is_in_vain(s, p)) return TRANSPORT_OK;
    p->state = POST_WRITING;
    p->out = (Out){.frame = {.kind = eager ? FRAME_MESSAGE : FRAME_OFFER,
                             .epoch = s->epoch,
                             .channel = what->channel,
                             .from = what->event,
                             .tag = what->tag,
                             .bytes = what->bytes},
                   .body = eager ? p->data : NULL,
                   .bytes = eager ? what->bytes : 0};
    wire_queue(s, p->peer, &p->out);
    return TRANSPORT_OK;
}

static void drop_early(Sockets *s, Peer *q, Early *before, Early *e) {
    if (before) {
        before->next = e->next;
    } else {
        q->first_early = e->next;
    }
    if (q->last_early == e) q->last_early = before;
    free_early(s, e);
}

/* Matches a new receive with the earliest message or offer that arrived before it. False: there is none. */
static bool take_early(Sockets *s, Post *post, int peer) {
    Peer *q = &s->peers[peer];
    for (Early *before = NULL, *e = q->first_early; e; before = e, e = e->next) {
        size_t bytes = (size_t)e->frame.bytes, most = post->what.bytes;
        if (e->frame.channel != post->what.channel || e->frame.tag != post->what.tag) continue;
        if (e->frame.kind == FRAME_OFFER) {
            accept_offer(s, peer, post, &e->frame);
        } else {
            take_receive(s, post, peer);
            memcpy(post->data, e->data, bytes < most ? bytes : most);
            post_end(s, post, bytes, bytes > most ? SOCKETS_TOO_LONG : SOCKETS_OK);
        }
        drop_early(s, q, before, e);
        return true;
    }
    return false;
}

static int post_receive(CommTransport *transport, const TransportPost *what, void *data) {
    Sockets *s = (Sockets *)transport;
    Post *p = new_post(s, what, data, false);
    if (is_in_vain(s, p)) return TRANSPORT_OK;
    p->state = POST_WAITING;
    append(waiting_for(s, p->peer), p);
    bool any = p->peer == TRANSPORT_ANY, taken = false;
    int first = any ? 0 : p->peer, end = any ? transport->size : p->peer + 1;
    for (int peer = first; peer < end && !taken; peer++) taken = take_early(s, p, peer);
    return TRANSPORT_OK;
}

/* Each post goes out at once. */
static void begin(CommTransport *transport) { (void)transport; }
static void end(CommTransport *transport) { (void)transport; }

static int finished(CommTransport *transport, TransportEnd *ends, int most, int *error) {
    Sockets *s = (Sockets *)transport;
    int count = 0;
    wire_move(s, 0);
    if (s->trouble) return *error = s->trouble, s->trouble = SOCKETS_OK, -1;
    while (s->ended.first && count < most) {
        Post *p = s->ended.first;
        take_out(&s->ended, p);
        p->state = POST_FREE;
        ends[count++] = p->end;
    }
    return count;
}

static bool test(CommTransport *transport, int event, TransportEnd *out) {
    Sockets *s = (Sockets *)transport;
    Post *p = &s->posts[event];
    if (p->state != POST_ENDED) wire_move(s, 0);
    if (p->state != POST_ENDED) return false;
    take_out(&s->ended, p);
    p->state = POST_FREE;
    *out = p->end;
    return true;
}

static void explain(int error, char *out, size_t size) {
    int rank = error / SOCKETS_ERRORS;
    switch ((SocketsError)(error % SOCKETS_ERRORS)) {
    case SOCKETS_DEAD: snprintf(out, size, "rank %d has ended", rank); return;
    case SOCKETS_SILENT: snprintf(out, size, "rank %d cannot be reached any more", rank); return;
    case SOCKETS_REVOKED: snprintf(out, size, "another rank has begun a repair"); return;
    case SOCKETS_TOO_LONG:
        snprintf(out, size, "a message is longer than its receive: this is a bug in weft");
        return;
    case SOCKETS_OK:
    case SOCKETS_ERRORS: break;
    }
    snprintf(out, size, "no error");
}

/* ---- channels ---- */

static const Frame *joined(const Sockets *s, int peer, int which) {
    for (const Joined *j = s->peers[peer].joins; j; j = j->next)
        if (j->frame.epoch == s->epoch && j->frame.from == which) return &j->frame;
    return NULL;
}

/* The first error of a dead peer; a channel needs all of them. */
static int loss(const Sockets *s) {
    for (int p = 0; p < s->transport.size; p++)
        if (s->peers[p].state != PEER_LIVES) return error_of(s, p);
    return s->revoked ? SOCKETS_REVOKED : SOCKETS_OK;
}

static bool all_joined(const Sockets *s, int which) {
    for (int p = 0; p < s->transport.size; p++)
        if (p != s->transport.rank && !s->peers[p].aside && !joined(s, p, which)) return false;
    return true;
}

/* Forgets joins up to number `which`, and those of earlier epochs. */
static void forget_joins(Peer *q, uint32_t epoch, int which) {
    for (Joined **at = &q->joins, *j; (j = *at);) {
        bool old = j->frame.epoch < epoch || (j->frame.epoch == epoch && j->frame.from <= which);
        *at = old ? j->next : *at;
        if (old) {
            free(j);
        } else {
            at = &j->next;
        }
    }
}

static int join(CommTransport *transport, int colour, int key, int size, int *channel) {
    Sockets *s = (Sockets *)transport;
    int which = *channel = s->channel_count;
    CHECK(which < TRANSPORT_CHANNELS);
    Frame own = {.kind = FRAME_JOIN, .epoch = s->epoch, .channel = colour, .from = which, .to = key};
    for (int p = 0; p < transport->size; p++)
        if (!s->peers[p].aside) wire_send(s, p, own, NULL, 0);
    while (!all_joined(s, which)) {
        int error = loss(s);
        if (error) return error;
        wire_move(s, LOOK_MS);
    }
    int *members = s->channels[s->channel_count++] = mem_alloc_array((size_t)size, sizeof *members);
    for (int p = 0; p < transport->size; p++) {
        if (s->peers[p].aside) continue;
        const Frame *f = p == transport->rank ? &own : joined(s, p, which);
        if (f->channel == colour && f->to >= 0 && f->to < size) members[f->to] = p;
        if (p != transport->rank) forget_joins(&s->peers[p], s->epoch, which);
    }
    return TRANSPORT_OK;
}

/* ---- repair ---- */

static bool can_repair(CommTransport *transport, char *problem, size_t size) {
    (void)transport;
    (void)size;
    *problem = 0;
    return true;
}

static int allow_repair(CommTransport *transport) {
    (void)transport;
    return TRANSPORT_OK;
}

static void revoke_all(CommTransport *transport) { revoke_here((Sockets *)transport); }

static bool agree(CommTransport *transport, bool well) {
    Sockets *s = (Sockets *)transport;
    uint64_t *dead;
    if (!well) revoke_here(s);
    bool all = agreement_reach(s, well, &dead);
    free(dead);
    return all;
}

static void drop_all_early(Sockets *s, Peer *q) {
    while (q->first_early) drop_early(s, q, NULL, q->first_early);
}

static void forget_channels(Sockets *s) {
    for (int i = 0; i < s->channel_count; i++) free(s->channels[i]);
    s->channel_count = 0;
}

/* Open sends are withdrawn; a body that is under way goes nowhere. */
static void forget_posts(Sockets *s) {
    end_posts(s, TRANSPORT_ANY, SOCKETS_REVOKED);
    for (int e = 0; e < s->used; e++) s->posts[e].state = POST_FREE;
    s->used = 0;
    s->any = s->ended = (PostList){0};
    for (int p = 0; p < s->transport.size; p++) {
        drop_all_early(s, &s->peers[p]);
        s->peers[p].receives = (PostList){0};
    }
}

static void set_aside(CommTransport *transport, const bool *aside) {
    Sockets *s = (Sockets *)transport;
    forget_posts(s);
    for (int p = 0; p < transport->size; p++) s->peers[p].aside = aside[p];
    sockets_find_local(s);
}

static void free_peer(Sockets *s, Peer *q) {
    if (q->fd >= 0) close(q->fd);
    if (q->pulse >= 0) close(q->pulse);
    drop_all_early(s, q);
    free_early(s, q->early);
    free(q->opinion);
    forget_joins(q, UINT32_MAX, 0);
    free(q->ahead);
}

static void renumber(Sockets *s, const uint64_t *dead, int *old) {
    Agreement *a = &s->agreement;
    int size = 0, rank = 0;
    for (int p = 0; p < s->transport.size; p++) {
        if (set_has(dead, p)) {
            free_peer(s, &s->peers[p]);
            free(a->votes[p]);
            free(a->accepts[p]);
            continue;
        }
        if (p == s->transport.rank) rank = size;
        if (size < p) {
            s->peers[size] = s->peers[p];
            a->votes[size] = a->votes[p];
            a->accepts[size] = a->accepts[p];
        }
        old[size++] = p;
    }
    s->transport.rank = rank;
    s->transport.size = size;
    for (int p = 0; p < size; p++) s->peers[p].aside = false;
    for (int p = 0; p < size; p++)
        if (s->peers[p].fd >= 0 && s->peers[p].state == PEER_LIVES) wire_renumber(s, p);
}

/* Ranks that have died since they agreed are found by the next agreement. */
static int shrink(CommTransport *transport, int *old) {
    Sockets *s = (Sockets *)transport;
    uint64_t *dead;
    forget_channels(s);
    forget_posts(s);
    agreement_reach(s, true, &dead);
    forget_posts(s);
    renumber(s, dead, old);
    free(dead);
    sockets_find_local(s);
    s->epoch++;
    s->revoked = false;
    s->trouble = SOCKETS_OK;
    return TRANSPORT_OK;
}

/* ---- the end ---- */

static void say_all(Sockets *s, FrameKind kind, int status) {
    for (int p = 0; p < s->transport.size; p++)
        wire_send(s, p, (Frame){.kind = kind, .epoch = s->epoch, .to = status}, NULL, 0);
}

static void abort_all(CommTransport *transport, int status) {
    Sockets *s = (Sockets *)transport;
    say_all(s, FRAME_ABORT, status);
    wire_move(s, LOOK_MS);
    _exit(status);
}

static void dismiss(CommTransport *transport, int rank, int status) {
    Sockets *s = (Sockets *)transport;
    wire_send(s, rank, (Frame){.kind = FRAME_ABORT, .epoch = s->epoch, .to = status}, NULL, 0);
    if (s->peers[rank].state == PEER_LIVES) s->peers[rank].state = PEER_LEFT;
}

static bool has_left(const Sockets *s) {
    for (int p = 0; p < s->transport.size; p++) {
        const Peer *q = &s->peers[p];
        if (p == s->transport.rank || q->state == PEER_DEAD) continue;
        if (q->state == PEER_LIVES || q->first) return false;
    }
    return true;
}

/* Nobody closes a connection before its other side has said goodbye: that would look like a death. */
static void close_transport(CommTransport *transport) {
    Sockets *s = (Sockets *)transport;
    end_posts(s, TRANSPORT_ANY, SOCKETS_REVOKED);
    say_all(s, FRAME_BYE, 0);
    while (!has_left(s)) wire_move(s, LOOK_MS);
    forget_channels(s);
    for (int p = 0; p < transport->size; p++) wire_drop(s, p);
    agreement_close(s);
    for (int p = 0; p < transport->size; p++) free_peer(s, &s->peers[p]);
    empty_pool(&s->free_offers);
    empty_pool(&s->free_messages);
    close(s->poll);
    free(s->peers);
    free(s->posts);
    free(s);
}

static bool is_gone(CommTransport *transport, int rank) {
    return ((Sockets *)transport)->peers[rank].state == PEER_DEAD;
}

static const TransportKind sockets = {.name = "sockets",
                                      .join = join,
                                      .send = post_send,
                                      .receive = post_receive,
                                      .begin = begin,
                                      .end = end,
                                      .finished = finished,
                                      .test = test,
                                      .explain = explain,
                                      .abort = abort_all,
                                      .close = close_transport,
                                      .is_gone = is_gone,
                                      .can_repair = can_repair,
                                      .allow_repair = allow_repair,
                                      .revoke = revoke_all,
                                      .shrink = shrink,
                                      .agree = agree,
                                      .set_aside = set_aside,
                                      .dismiss = dismiss};

/* *transport is NULL after a failure: there is nothing to close. */
ErrorCode sockets_transport_open(CommTransport **transport, int rank, int ranks, int events, Error *err) {
    Sockets *s = mem_alloc(sizeof *s);
    *s = (Sockets){.transport = {.kind = &sockets, .size = 1, .tags = INT64_C(1) << 40}, .events = events};
    *transport = NULL;
    tell_starts();
    ErrorCode code = sockets_meet(s, rank, ranks, err);
    if (code != OK) {
        free(s);
        tell_failed(err);
        return code;
    }
    tell_met();
    s->posts = mem_alloc_array((size_t)events, sizeof *s->posts);
    fill_pool(&s->free_offers, OFFERS_POOLED, 0);
    fill_pool(&s->free_messages, MESSAGES_POOLED, EAGER_BYTES);
    agreement_open(s);
    *transport = &s->transport;
    return OK;
}
