/* What the files of comm/sockets/ share.
 *
 *     meet.c        ranks find each other, and connect
 *     wire.c        frames: what is written to and read from a connection, and when a peer counts as dead
 *     agreement.c   one answer for all ranks that live, whoever dies meanwhile
 *     sockets.c     posts: matching sends and receives; channels; repairs
 *
 * A message of up to EAGER_BYTES is sent when it is posted. A larger one is offered, and sent when its
 * receive is posted, straight into the receive's memory:
 *
 *     sender                receiver
 *     MESSAGE and data ---> receive posted? into its memory : kept until it is
 *
 *     OFFER --------------> receive posted? answered         : kept until it is
 *            <------ ACCEPT
 *     DATA and data ------> into the receive's memory */
#ifndef WEFT_COMM_SOCKETS_INTERNAL_H
#define WEFT_COMM_SOCKETS_INTERNAL_H

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/sockets/sockets.h"

enum { EAGER_BYTES = 4096, READ_AHEAD = 16384 };

/* Error numbers, for `explain`. For DEAD and SILENT, rank * SOCKETS_ERRORS is added. */
typedef enum SocketsError {
    SOCKETS_OK = TRANSPORT_OK,
    SOCKETS_DEAD,
    SOCKETS_SILENT,
    SOCKETS_REVOKED,
    SOCKETS_TOO_LONG,
    SOCKETS_ERRORS
} SocketsError;

typedef enum FrameKind {
    FRAME_MESSAGE = 1,
    FRAME_OFFER,
    FRAME_ACCEPT,
    FRAME_DATA,
    FRAME_JOIN,
    FRAME_REVOKE,
    FRAME_AGREE, /* agreement.c: the body is an Opinion */
    FRAME_EXPEL, /* the others go on without the receiver */
    FRAME_ABORT,
    FRAME_BYE
} FrameKind;

/* The header of a frame, in the byte order of the machine, which is the same on all ranks (meet.c checks it).
 * Ranks are renumbered by each repair, so messages of another epoch are dropped. */
typedef struct Frame {
    uint32_t kind, epoch;
    int32_t channel; /* JOIN: the colour */
    int32_t from;    /* event of the send (OFFER, ACCEPT); JOIN: which */
    int32_t to;      /* event of the receive (ACCEPT, DATA); JOIN: the key; ABORT: the exit status */
    int32_t spare;
    int64_t tag;
    uint64_t bytes; /* of the body; OFFER: of the message */
} Frame;

/* What is to be written to a peer. */
typedef struct Out {
    struct Out *next;
    Frame frame;
    const char *body;
    size_t bytes, written; /* bytes: of the body; written: of frame and body */
    bool ours;             /* freed when written, with its body; otherwise it is a Post's */
} Out;

typedef enum PostState {
    POST_FREE,
    POST_WRITING,
    POST_OFFERED,
    POST_WAITING,
    POST_ACCEPTED,
    POST_ENDED
} PostState;
typedef struct Post {
    Out out;
    TransportPost what;
    int peer; /* among all ranks, or TRANSPORT_ANY */
    PostState state;
    bool sends;
    char *data;
    TransportEnd end;
    struct Post *next, *before; /* in the list of its state */
} Post;
typedef struct PostList {
    Post *first, *last;
} PostList;

/* A message or an offer whose receive is not posted yet. */
typedef struct Early {
    struct Early *next;
    bool pooled, big; /* big: there is room for a message */
    Frame frame;
    char data[]; /* MESSAGE */
} Early;

/* A peer's call of join. It may arrive before this rank calls join. */
typedef struct Joined {
    struct Joined *next;
    Frame frame;
} Joined;

typedef enum PeerState { PEER_LIVES, PEER_LEFT /* said goodbye */, PEER_DEAD } PeerState;
typedef struct Peer {
    int pulse; /* a second connection to another machine, on which nothing is sent; -1: none */
    int fd;    /* -1: none: this rank itself, or one that has left */
    PeerState state;
    bool silent; /* counts as dead, although no kernel reported its end */
    bool aside;  /* joins no channel (TransportKind.set_aside) */
    bool wakes;  /* the poll set reports when it can be written to */
    TransportPlace place;
    /* writing */
    Out *first, *last;
    bool mute; /* writing failed: reading will find out why */
    /* reading */
    char *ahead; /* [READ_AHEAD] */
    size_t at, have;
    bool in_body;
    Frame frame;
    char *into;        /* where the body goes; NULL: nowhere */
    size_t room, left; /* left: bytes of the body to come; room: of them, those for which there is memory */
    Post *post;        /* of the body */
    Early *early;      /* of the body */
    struct Opinion *opinion; /* the body */
    /* what came early */
    Early *first_early, *last_early;
    Joined *joins;
    PostList receives; /* waiting for a message from this peer */
} Peer;

/* What a rank says in an agreement. Sets of ranks are bits, 64 in a word. */
typedef enum OpinionKind {
    OPINION_VOTE,
    OPINION_ASK,
    OPINION_PROPOSAL,
    OPINION_ACCEPT,
    OPINION_DECISION
} OpinionKind;
typedef struct Opinion {
    uint64_t round;
    int32_t kind, leader; /* leader: of a proposal and its acceptance */
    int32_t well, words;
    uint64_t sets[]; /* dead[words], silent[words] */
} Opinion;
typedef struct Agreement {
    uint64_t round;                         /* agreements so far, this one included */
    Opinion **votes, **accepts;             /* [size] the last of each peer */
    Opinion *proposal, *decision, *earlier; /* adopted; of this round; of the round before */
} Agreement;

typedef struct Sockets {
    CommTransport transport;
    uint32_t epoch;
    int poll;         /* epoll */
    Peer *peers;      /* [size] */
    Post *posts;      /* [events] */
    int events, used; /* used: posts from here on were never used */
    PostList any;     /* receives from any rank */
    Early *free_offers, *free_messages;
    PostList ended;                    /* not yet reported */
    int *channels[TRANSPORT_CHANNELS]; /* peers by their ranks in the channel */
    int channel_count;
    int trouble; /* a SocketsError that `finished` has not reported yet */
    bool revoked;
    Agreement agreement;
} Sockets;

/* Inside this machine connections are Unix sockets, which do not fail by themselves. */
static inline bool peer_is_near(const Sockets *s, int peer) {
    return s->peers[peer].place.host == s->peers[s->transport.rank].place.host;
}

/* ---- meet.c ---- */
/* Fills in the peers, the poll set and the numbers of the transport. */
ErrorCode sockets_meet(Sockets *s, int rank, int ranks, Error *err);
/* Ranks and cores of this machine, from the peers' places; without those set aside. */
void sockets_find_local(Sockets *s);

/* ---- wire.c ---- */
/* Reads and writes what can be, after waiting for up to `ms` for something. */
void wire_move(Sockets *s, int ms);
void wire_watch(Sockets *s, int peer);    /* adds a new connection to the poll set */
void wire_renumber(Sockets *s, int peer); /* a connection's peer has another number */
void wire_drop(Sockets *s, int peer);     /* what is queued is not written any more */
void wire_queue(Sockets *s, int peer, Out *out);
/* A frame of its own; the body is copied. No-op for peers that are not there. */
void wire_send(Sockets *s, int peer, Frame frame, const void *body, size_t bytes);
/* Withdraws a post's frame. If part of it is written already, the rest is filled with zeros, because the
 * receiver counts bytes. */
void wire_withdraw(Sockets *s, Post *post);
/* Whatever is queued is dropped, and nothing is read any more. */
void wire_lose(Sockets *s, int peer, bool silent);
/* Excludes a peer that other ranks cannot reach: sends it FRAME_EXPEL and drops the connection. */
void wire_expel(Sockets *s, int peer);

/* ---- sockets.c, for wire.c ---- */
void post_end(Sockets *s, Post *post, size_t bytes, int error);
/* peer->frame has come: sets how long its body is, and where that goes. */
void frame_begins(Sockets *s, int peer);
/* All of its body has come. */
void frame_ends(Sockets *s, int peer);
/* All of a post's frame, with its body, is written. */
void frame_written(Sockets *s, Post *post);
void peer_lost(Sockets *s, int peer);

/* ---- agreement.c ---- */
void agreement_open(Sockets *s);
void agreement_close(Sockets *s);
/* An opinion of this peer has come; takes it over. */
void agreement_hears(Sockets *s, int peer, Opinion *opinion, size_t bytes);
_Noreturn void agreement_leave(const char *why); /* ends this rank alone */
/* Collective over the living ranks. Returns whether all passed `well` and none has died. *dead is the set of
 * the dead, which the caller frees. All ranks get the same answer. Ends this process if its part of the ranks
 * must not go on: it is the smaller one, or of two equal ones the one without rank 0. */
bool agreement_reach(Sockets *s, bool well, uint64_t **dead);

static inline bool set_has(const uint64_t *set, int rank) { return set[rank / 64] >> (rank % 64) & 1; }
static inline void set_add(uint64_t *set, int rank) { set[rank / 64] |= UINT64_C(1) << (rank % 64); }

#endif
