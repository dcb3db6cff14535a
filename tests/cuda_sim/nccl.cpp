/* An NCCL on the CPU: grouped sends and receives between processes of one machine, over sockets. A group is
 * work of a stream that stays at its front until all of it is done. It is as strict as the real NCCL may
 * be. A send ends only when its receive has taken all of it. Between two ranks of a communicator messages
 * match in the order of their calls. A receive of another size ends the process, where the real one would
 * hang or corrupt memory.
 *
 * Each rank of a pair has a socket for what it sends, on which acknowledgements come back.
 *
 * WEFT_SIM_NCCL=fail:RANK, hang:RANK, stop:RANK: when ranks are joined, that rank fails, hangs in the call,
 * or is stopped (SIGSTOP). WEFT_SIM_NCCL=break:RANK: later, in a step of a run, a call of that rank fails. A
 * rank that gives up communicators prints a message.
 *
 * An abort waits for the groups of all communicators that are not aborted with it, as the real one waits for
 * the kernels of the GPU. */
#include "cuda_runtime.h"
#include "device/cuda/plugin/nccl.h"
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <vector>

struct ncclComm {
    std::string name;
    int ranks, rank, splits, error;
    std::atomic<bool> given_up;
    std::vector<int> out, in;  /* sockets by peer */
    std::atomic<int> underway; /* groups that are queued and not done */
};

namespace {

enum { SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4, REMOTE_ERROR = 6, PATIENCE = 60000 /* ms */ };
enum {
    BREAKS_AT = 40 /* groups: after the communicators' trials and what is made before a run */
};
int this_rank; /* among all ranks */

[[noreturn]] void broken(const char *why) {
    fprintf(stderr, "cuda_sim: NCCL: %s\n", why);
    abort();
}

/* ---- sockets ---- */

/* In the abstract namespace, so that no files are left behind. */
socklen_t address_of(const std::string &name, int rank, sockaddr_un *out) {
    *out = {};
    out->sun_family = AF_UNIX;
    int length = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "weft-%s-%d", name.c_str(), rank);
    return (socklen_t)(offsetof(sockaddr_un, sun_path) + 1 + (size_t)length);
}

int listen_as(const std::string &name, int rank, int ranks) {
    sockaddr_un at;
    socklen_t length = address_of(name, rank, &at);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (sockaddr *)&at, length) != 0 || listen(s, ranks) != 0) broken("no socket");
    return s;
}

/* Retries, since the other rank may not listen yet. */
int connect_to(const std::string &name, int rank, int own) {
    sockaddr_un at;
    socklen_t length = address_of(name, rank, &at);
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    for (int ms = 0; connect(s, (sockaddr *)&at, length) != 0; ms++) {
        if (ms == PATIENCE) broken("a rank does not come");
        usleep(1000);
    }
    if (write(s, &own, sizeof own) != sizeof own) broken("a rank is gone");
    fcntl(s, F_SETFL, O_NONBLOCK);
    return s;
}

/* All connect before any accepts: the backlog of a socket holds the connections. */
void meet(ncclComm *c) {
    c->out.assign((size_t)c->ranks, -1);
    c->in.assign((size_t)c->ranks, -1);
    int door = listen_as(c->name, c->rank, c->ranks);
    for (int p = 0; p < c->ranks; p++)
        if (p != c->rank) c->out[(size_t)p] = connect_to(c->name, p, c->rank);
    for (int i = 1; i < c->ranks; i++) {
        pollfd wait = {door, POLLIN, 0};
        int who = -1;
        if (poll(&wait, 1, PATIENCE) != 1) broken("a rank does not come");
        int s = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (read(s, &who, sizeof who) != sizeof who) broken("a rank is gone");
        fcntl(s, F_SETFL, O_NONBLOCK);
        c->in[(size_t)who] = s;
    }
    close(door);
}

/* Transfer as much as is possible without waiting. False if the other side is gone. */
bool put(int s, const char *from, size_t bytes, size_t *done) {
    while (*done < bytes) {
        ssize_t n = send(s, from + *done, bytes - *done, MSG_NOSIGNAL);
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        *done += (size_t)n;
    }
    return true;
}
bool get(int s, char *to, size_t bytes, size_t *done) {
    while (*done < bytes) {
        ssize_t n = recv(s, to + *done, bytes - *done, 0);
        if (n == 0) return false;
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        *done += (size_t)n;
    }
    return true;
}

/* ---- groups ---- */

/* The size is sent first, and comes back as the acknowledgement. */
struct Message {
    ncclComm *comm;
    int peer;
    bool sends;
    char *data;
    size_t bytes;
    cudaStream_t stream;
    size_t size, ahead, moved, back; /* bytes transferred: of the size, the data, the answer */
    bool done;
};

thread_local int depth;
thread_local std::vector<Message> group;
thread_local std::vector<ncclComm *> aborted;
std::vector<ncclComm *> communicators; /* of this process; changed by one thread at a time */

bool step_send(Message *m) {
    int s = m->comm->out[(size_t)m->peer];
    size_t answer;
    m->size = m->bytes;
    if (!put(s, (const char *)&m->size, sizeof m->size, &m->ahead)) return false;
    if (m->ahead == sizeof m->size && !put(s, m->data, m->bytes, &m->moved)) return false;
    if (m->ahead < sizeof m->size || m->moved < m->bytes) return true;
    if (!get(s, (char *)&answer, sizeof answer, &m->back)) return false;
    m->done = m->back == sizeof answer;
    return true;
}

bool step_receive(Message *m) {
    int s = m->comm->in[(size_t)m->peer];
    if (!get(s, (char *)&m->size, sizeof m->size, &m->ahead)) return false;
    if (m->ahead < sizeof m->size) return true;
    if (m->size != m->bytes) broken("a message has another size than its receive");
    if (!get(s, m->data, m->bytes, &m->moved)) return false;
    if (m->moved < m->bytes) return true;
    if (!put(s, (const char *)&m->size, sizeof m->size, &m->back)) return false;
    m->done = m->back == sizeof m->size;
    return true;
}

bool same_way(const Message &a, const Message &b) {
    return a.comm == b.comm && a.peer == b.peer && a.sends == b.sends;
}

/* True when all are done, or given up. Messages with the same peer and direction go one after another. */
bool advance(std::vector<Message> *all) {
    bool done = true;
    for (size_t i = 0; i < all->size(); i++) {
        Message *m = &(*all)[i];
        bool first = true;
        if (m->comm->given_up) return true;
        for (size_t j = 0; j < i; j++) first = first && ((*all)[j].done || !same_way((*all)[j], *m));
        if (!m->done && first && !(m->sends ? step_send(m) : step_receive(m))) m->comm->error = REMOTE_ERROR;
        done = done && m->done;
    }
    return done;
}

int add(bool sends, char *data, size_t bytes, int peer, ncclComm *c, cudaStream_t s) {
    if (!c || peer < 0 || peer >= c->ranks || peer == c->rank || depth == 0) return INVALID_ARGUMENT;
    sim_need_priority(s);
    group.push_back({c, peer, sends, data, bytes, s, 0, 0, 0, 0, false});
    return NCCL_OK;
}

/* ---- the functions ---- */

int get_version(int *version) { return *version = 22800, NCCL_OK; }

int get_unique_id(NcclKey *key) {
    static int made;
    *key = {};
    snprintf(key->internal, sizeof key->internal, "%d-%d", (int)getpid(), made++);
    return NCCL_OK;
}

/* Whether WEFT_SIM_NCCL asks this rank to do `what`. */
bool asked_to(const char *what, int rank) {
    const char *asked = getenv("WEFT_SIM_NCCL");
    return asked && asked == std::string(what) + ":" + std::to_string(rank);
}

ncclComm *open_communicator(const std::string &name, int ranks, int rank) {
    ncclComm *c = new ncclComm{name, ranks, rank, 0, NCCL_OK, {false}, {}, {}, {0}};
    meet(c);
    communicators.push_back(c);
    return c;
}

int comm_init_rank(NcclComm *comm, int ranks, NcclKey key, int rank) {
    if (asked_to("fail", rank)) return SYSTEM_ERROR;
    if (asked_to("stop", rank)) raise(SIGSTOP);
    while (asked_to("hang", rank)) pause();
    this_rank = rank;
    sim_take("wire");
    *comm = open_communicator(key.internal, ranks, rank);
    return NCCL_OK;
}

struct Seat {
    int colour, place;
};

/* Blocks, since nothing else is in flight on a communicator that is split. */
Seat seat_of(ncclComm *c, int peer) {
    Seat s;
    size_t done = 0;
    for (int ms = 0; done < sizeof s; ms++) {
        if (!get(c->in[(size_t)peer], (char *)&s, sizeof s, &done) || ms == PATIENCE)
            broken("a rank is gone");
        usleep(done < sizeof s ? 1000 : 0);
    }
    return s;
}

/* NCCL reads this when the first communicator is made. Kernels of all communicators must find room on half of
 * an H100's 132 multiprocessors, at one for each channel: they wait for peers, and block other kernels. */
void check_channels(void) {
    const char *channels = getenv("NCCL_MAX_P2P_NCHANNELS");
    long most = channels ? strtol(channels, NULL, 10) : 32;
    long with_peers = std::count_if(communicators.begin(), communicators.end(),
                                    [](const ncclComm *c) { return c->ranks > 1; });
    /* the first, of all ranks, is only split */
    if (most * (with_peers - 1) > 64) broken("communicators have too many channels in all");
}

/* `place` is the rank in the new communicator, 0 .. n-1, as the plugin gives it. */
int comm_split(NcclComm c, int colour, int place, NcclComm *part, void *config) {
    (void)config;
    Seat own = {colour, place};
    int split = c->splits++, ranks = 1;
    for (int p = 0; p < c->ranks; p++) {
        size_t done = 0;
        if (p != c->rank &&
            (!put(c->out[(size_t)p], (const char *)&own, sizeof own, &done) || done < sizeof own))
            broken("a rank is gone");
    }
    for (int p = 0; p < c->ranks; p++)
        if (p != c->rank) ranks += seat_of(c, p).colour == colour;
    *part = NULL;
    if (colour == NCCL_NO_COLOUR) return NCCL_OK;
    std::string name = c->name + "." + std::to_string(split) + "." + std::to_string(colour);
    sim_take("wire");
    *part = open_communicator(name, ranks, place);
    check_channels();
    return NCCL_OK;
}

int comm_destroy(NcclComm c) {
    for (int s : c->out)
        if (s >= 0) close(s);
    for (int s : c->in)
        if (s >= 0) close(s);
    communicators.erase(std::find(communicators.begin(), communicators.end(), c));
    delete c;
    return NCCL_OK;
}

/* Queued groups still refer to them, so they are not deleted. */
int end_aborts(void) {
    for (ncclComm *c : aborted) {
        fprintf(stderr, "cuda_sim: NCCL: rank %d gives up %s\n", this_rank, c->name.c_str());
        for (int s : c->out) shutdown(s, SHUT_RDWR);
        for (int s : c->in) shutdown(s, SHUT_RDWR);
        c->given_up = true;
    }
    aborted.clear();
    for (ncclComm *c : communicators)
        while (c->underway > 0 && !c->given_up) usleep(1000);
    return NCCL_OK;
}

int comm_abort(NcclComm c) {
    aborted.push_back(c);
    return depth ? (int)NCCL_OK : end_aborts();
}

int get_async_error(NcclComm c, int *error) { return *error = c->error, NCCL_OK; }

int group_start(void) { return depth++, NCCL_OK; }

int group_end(void) {
    if (depth == 0) return INVALID_ARGUMENT;
    if (--depth) return NCCL_OK;
    if (!aborted.empty()) return end_aborts();
    if (group.empty()) return NCCL_OK;
    static int groups;
    if (++groups == BREAKS_AT && asked_to("break", this_rank)) return SYSTEM_ERROR;
    auto all = std::make_shared<std::vector<Message>>(std::move(group));
    group.clear();
    for (const Message &m : *all)
        if (m.stream != all->front().stream) broken("a group on several streams: the plugin makes none");
    ncclComm *c = all->front().comm;
    c->underway++;
    sim_queue_until(all->front().stream, [all, c] {
        bool done = advance(all.get());
        if (done) c->underway--;
        return done;
    });
    return NCCL_OK;
}

int send_bytes(const void *data, size_t count, int type, int peer, NcclComm c, cudaStream_t s) {
    return type == NCCL_BYTES ? add(true, (char *)data, count, peer, c, s) : INVALID_ARGUMENT;
}
int receive_bytes(void *data, size_t count, int type, int peer, NcclComm c, cudaStream_t s) {
    return type == NCCL_BYTES ? add(false, (char *)data, count, peer, c, s) : INVALID_ARGUMENT;
}

const char *get_error_string(int error) {
    switch (error) {
    case REMOTE_ERROR: return "remote process exited or there was a network error";
    case SYSTEM_ERROR: return "unhandled system error";
    }
    return "invalid argument";
}

} // namespace

const Nccl nccl_linked = {get_version,  get_unique_id, comm_init_rank,  comm_split,
                          comm_destroy, comm_abort,    get_async_error, group_start,
                          group_end,    send_bytes,    receive_bytes,   get_error_string};
