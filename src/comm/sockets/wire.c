/* Frames on connections.
 *
 * A connection is a stream of frames in each direction. What is queued for a peer is written in order; a
 * part of a message whose post was given up is completed with zeros, since the other side counts bytes.
 *
 * A peer counts as dead when
 *  - its connection was closed: its kernel reports that the process ended;
 *  - the pulse fails, a second connection to a peer on another machine that carries only the kernels'
 *    keep-alive probes. The first connection cannot show this: while the peer computes, its buffers may be
 *    full, and nothing moves although all is well;
 *  - the first connection fails with an error over TCP. The process may have ended, or the machine or the
 *    cable may be lost, and the peer may see the same of this rank. agreement.c decides which of the two goes
 *    on. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/text.h"
#include "comm/sockets/internal.h"

enum { EVENTS_MAX = 64, READS_MAX = 256 };

/* ---- writing ---- */

static void poll_for(Sockets *s, int p, int how, bool writes) {
    struct epoll_event event = {.events = EPOLLIN | (writes ? EPOLLOUT : 0), .data.u32 = (uint32_t)p};
    CHECK(epoll_ctl(s->poll, how, s->peers[p].fd, &event) == 0);
    s->peers[p].wakes = writes;
}

static const uint32_t PULSE = UINT32_C(1) << 31; /* flag alongside the peer's number in the poll set */

static void poll_pulse(Sockets *s, int p, int how) {
    struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)p | PULSE};
    if (s->peers[p].pulse >= 0) epoll_ctl(s->poll, how, s->peers[p].pulse, &event);
}

void wire_watch(Sockets *s, int p) {
    poll_for(s, p, EPOLL_CTL_ADD, false);
    poll_pulse(s, p, EPOLL_CTL_ADD);
}

void wire_renumber(Sockets *s, int p) {
    poll_for(s, p, EPOLL_CTL_MOD, s->peers[p].wakes);
    poll_pulse(s, p, EPOLL_CTL_MOD);
}

static void free_out(Out *out) {
    if (!out->ours) return;
    free((char *)(uintptr_t)out->body);
    free(out);
}

/* The first of the queue is written: what it belongs to may queue the next. */
static void take_first(Sockets *s, Peer *q) {
    Out *out = q->first;
    q->first = out->next;
    if (!q->first) q->last = NULL;
    if (out->ours) {
        free_out(out);
    } else {
        frame_written(s, (Post *)out);
    }
}

static ssize_t write_some(const Peer *q, Out *out) {
    const size_t head = sizeof out->frame;
    struct iovec parts[2];
    int count = 0;
    if (out->written < head)
        parts[count++] = (struct iovec){(char *)&out->frame + out->written, head - out->written};
    size_t body = out->written < head ? 0 : out->written - head;
    if (body < out->bytes)
        parts[count++] = (struct iovec){(char *)(uintptr_t)out->body + body, out->bytes - body};
    return sendmsg(q->fd, &(struct msghdr){.msg_iov = parts, .msg_iovlen = (size_t)count},
                   MSG_NOSIGNAL | MSG_DONTWAIT);
}

static bool is_full(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

/* Writes what the connection takes. */
static void flush(Sockets *s, int p) {
    Peer *q = &s->peers[p];
    while (q->first && !q->mute) {
        ssize_t length = write_some(q, q->first);
        if (length < 0 && is_full(errno)) break;
        if (length < 0) {
            /* What it has sent before is to be read first. */
            q->mute = true;
            q->silent = errno != EPIPE && !peer_is_near(s, p);
            break;
        }
        q->first->written += (size_t)length;
        if (q->first->written == sizeof(Frame) + q->first->bytes) take_first(s, q);
    }
    bool more = q->first && !q->mute;
    if (q->state != PEER_DEAD && q->wakes != more) poll_for(s, p, EPOLL_CTL_MOD, more);
}

void wire_queue(Sockets *s, int p, Out *out) {
    Peer *q = &s->peers[p];
    bool idle = !q->first;
    out->next = NULL;
    out->written = 0;
    if (q->last) {
        q->last->next = out;
    } else {
        q->first = out;
    }
    q->last = out;
    if (idle) flush(s, p);
}

void wire_send(Sockets *s, int p, Frame frame, const void *body, size_t bytes) {
    if (p == s->transport.rank || s->peers[p].state == PEER_DEAD || s->peers[p].fd < 0) return;
    Out *out = mem_alloc(sizeof *out);
    char *copy = mem_alloc(bytes ? bytes : 1);
    if (bytes) memcpy(copy, body, bytes);
    frame.bytes = bytes;
    *out = (Out){.frame = frame, .body = copy, .bytes = bytes, .ours = true};
    wire_queue(s, p, out);
}

/* mem_alloc fills with zeros. */
static Out *with_zeros(const Out *out) {
    Out *rest = mem_alloc(sizeof *rest);
    *rest = *out;
    rest->ours = true;
    rest->body = mem_alloc(out->bytes ? out->bytes : 1);
    return rest;
}

void wire_withdraw(Sockets *s, Post *post) {
    if (post->peer < 0 || post->peer == s->transport.rank) return;
    Peer *q = &s->peers[post->peer];
    Out **at = &q->first, *before = NULL;
    while (*at && *at != &post->out) before = *at, at = &(*at)->next;
    if (!*at) return;
    *at = post->out.written ? with_zeros(&post->out) : post->out.next;
    if (q->last == &post->out) q->last = *at ? *at : before;
}

/* ---- reading ---- */

/* Returns false if nothing can be read now. */
static bool receive(Sockets *s, int p, char *to, size_t most, size_t *came) {
    Peer *q = &s->peers[p];
    ssize_t length = recv(q->fd, to, most, MSG_DONTWAIT);
    if (length > 0) return *came = (size_t)length, true;
    if (length < 0 && is_full(errno)) return false;
    wire_lose(s, p, q->silent || (length < 0 && !peer_is_near(s, p)));
    return false;
}

static void end_body(Sockets *s, int p) {
    s->peers[p].in_body = false;
    frame_ends(s, p);
}

static bool read_frame(Sockets *s, int p) {
    Peer *q = &s->peers[p];
    if (q->have - q->at < sizeof q->frame) {
        size_t came = 0;
        memmove(q->ahead, q->ahead + q->at, q->have - q->at);
        q->have -= q->at;
        q->at = 0;
        if (!receive(s, p, q->ahead + q->have, READ_AHEAD - q->have, &came)) return false;
        q->have += came;
        return true;
    }
    memcpy(&q->frame, q->ahead + q->at, sizeof q->frame);
    q->at += sizeof q->frame;
    q->in_body = true;
    q->post = NULL;
    q->early = NULL;
    q->into = NULL;
    q->room = q->left = 0;
    frame_begins(s, p);
    if (q->state != PEER_DEAD && !q->left) end_body(s, p);
    return q->state != PEER_DEAD;
}

/* Of what was read ahead first, then straight to where it goes. */
static bool read_body(Sockets *s, int p) {
    Peer *q = &s->peers[p];
    size_t came = q->have - q->at, most = q->left;
    if (q->room && q->room < most) most = q->room;
    if (came) {
        if (came > most) came = most;
        if (q->room) memcpy(q->into, q->ahead + q->at, came);
        q->at += came;
    } else {
        q->at = q->have = 0;
        if (!q->room && most > READ_AHEAD) most = READ_AHEAD;
        if (!receive(s, p, q->room ? q->into : q->ahead, most, &came)) return false;
    }
    if (q->room) q->into += came, q->room -= came;
    q->left -= came;
    if (!q->left) end_body(s, p);
    return q->state != PEER_DEAD;
}

/* At most READS_MAX reads, so that one peer cannot starve the others. */
static void read_peer(Sockets *s, int p) {
    Peer *q = &s->peers[p];
    for (int i = 0; i < READS_MAX && q->state != PEER_DEAD && q->fd >= 0; i++)
        if (!(q->in_body ? read_body(s, p) : read_frame(s, p))) return;
}

/* If it has merely ended, so has the process: the first connection says so, after what was sent before. */
static void feel_pulse(Sockets *s, int p) {
    char byte;
    ssize_t length = recv(s->peers[p].pulse, &byte, 1, MSG_DONTWAIT);
    if (length < 0 && is_full(errno)) return;
    poll_pulse(s, p, EPOLL_CTL_DEL);
    if (length < 0) wire_lose(s, p, true);
}

void wire_move(Sockets *s, int ms) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(s->poll, events, EVENTS_MAX, ms);
    for (int i = 0; i < count; i++) {
        int p = (int)(events[i].data.u32 & ~PULSE);
        if (events[i].data.u32 & PULSE) {
            feel_pulse(s, p);
            continue;
        }
        if (s->peers[p].state == PEER_DEAD || s->peers[p].fd < 0) continue;
        if (events[i].events & EPOLLOUT) flush(s, p);
        if (events[i].events & ~(uint32_t)EPOLLOUT) read_peer(s, p);
    }
}

/* ---- the end of a peer ---- */

void wire_drop(Sockets *s, int p) {
    Peer *q = &s->peers[p];
    while (q->first) {
        Out *out = q->first;
        q->first = out->next;
        free_out(out);
    }
    q->last = NULL;
}

/* One that has said goodbye is not dead. */
void wire_lose(Sockets *s, int p, bool silent) {
    Peer *q = &s->peers[p];
    bool left = q->state == PEER_LEFT;
    if (q->state == PEER_DEAD || q->fd < 0) return;
    epoll_ctl(s->poll, EPOLL_CTL_DEL, q->fd, NULL);
    poll_pulse(s, p, EPOLL_CTL_DEL);
    q->state = PEER_DEAD;
    q->silent = silent;
    wire_drop(s, p);
    if (!left) {
        peer_lost(s, p);
        return;
    }
    q->state = PEER_LEFT;
    close(q->fd);
    q->fd = -1;
}

/* If it can still hear: before the connection is closed, which would say that this rank has ended. */
void wire_expel(Sockets *s, int p) {
    wire_send(s, p, (Frame){.kind = FRAME_EXPEL, .epoch = s->epoch}, NULL, 0);
    wire_lose(s, p, true);
}
