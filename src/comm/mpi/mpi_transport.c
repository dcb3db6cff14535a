/* A transport over MPI: a channel is a communicator, a post is a request.
 *
 * Open requests are in one dense array, so that one MPI_Testsome checks all of them; where[event] is an
 * event's index in it, or -1. Several threads use MPI in turn (MPI_THREAD_SERIALIZED): the Comm's mutex
 * ensures this.
 *
 * An MPI library that tolerates failures (ULFM: Open MPI 5 started with --with-ft ulfm) does not end the job
 * when a rank dies. Operations with that rank fail, and a receive from any rank stays open but reports an
 * error until the death is acknowledged. */
#include "comm/mpi/mpi_transport.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "comm/mpi/ulfm.h"

/* A communicator of its own; or, where repairs are allowed, messages of the communicator of all ranks, with
 * tags of their own. */
typedef struct Channel {
    MPI_Comm comm;
    int *members; /* ranks in comm by their ranks in the channel; NULL: the same */
    int first_tag;
} Channel;

typedef struct MpiTransport {
    CommTransport transport;
    MPI_Comm all;                /* all ranks; a shrunk one after a repair */
    TransportPlace own, *places; /* places: [size] of all ranks, where repairs are allowed */
    Channel channels[TRANSPORT_CHANNELS];
    int channel_count, open, events;
    MPI_Request *requests; /* [events], the first `open` are in use */
    int *event;            /* [events] of each request */
    int *where;            /* [events] */
    bool *receives;        /* [events] by event */
    bool tolerant;         /* ranks may die: repairs are allowed */
    bool repaired;         /* ranks have died, and the others go on */
    int death;             /* the error of a receive that stays open, not yet reported; or MPI_SUCCESS */
    MPI_Status *statuses;
    int *indices;
} MpiTransport;

/* ---- opening ---- */

static ErrorCode check_mpi(int code, const char *what, Error *err) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (code == MPI_SUCCESS) return OK;
    MPI_Error_string(code, text, &length);
    return error_set(err, ERR_PEER, "%s: %s", what, text);
}

/* Takes the largest power of two, so that message numbers wrap without a gap. 2^18 tags leave six bits for a
 * message's number besides its kind and stage (comm_key). */
static ErrorCode find_tags(MpiTransport *m, Error *err) {
    int *limit = NULL, found = 0;
    TRY(check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found), "asking for the largest tag",
                  err));
    for (m->transport.tags = 1; found && 2 * m->transport.tags - 1 <= *limit;) m->transport.tags *= 2;
    if (m->transport.tags >= 1 << 18) return OK;
    return error_set(err, ERR_UNAVAILABLE, "this MPI library has tags up to %d only; at least %d are needed",
                     found ? *limit : 0, (1 << 18) - 1);
}

/* Masks are combined as bytes. */
static int find_cores(TransportPlace *own, MPI_Comm local) {
    cpu_set_t all;
    transport_own_cores(&own->cores);
    int code = MPI_Allreduce(&own->cores, &all, sizeof all, MPI_BYTE, MPI_BOR, local);
    return code == MPI_SUCCESS ? CPU_COUNT(&all) : 0;
}

static ErrorCode find_ranks(MpiTransport *m, Error *err) {
    MPI_Comm local;
    CommTransport *l = &m->transport;
    /* Otherwise MPI ends the process by itself, with its own message. */
    MPI_Comm_set_errhandler(m->all, MPI_ERRORS_RETURN);
    TRY(check_mpi(MPI_Comm_rank(m->all, &l->rank), "asking for the rank", err));
    TRY(check_mpi(MPI_Comm_size(m->all, &l->size), "asking for the number of ranks", err));
    TRY(check_mpi(MPI_Comm_split_type(m->all, MPI_COMM_TYPE_SHARED, l->rank, MPI_INFO_NULL, &local),
                  "finding the ranks of this machine", err));
    MPI_Comm_rank(local, &l->local_rank);
    MPI_Comm_size(local, &l->local_size);
    l->local_cores = find_cores(&m->own, local);
    m->own.host = (uint64_t)l->rank; /* of its first rank */
    MPI_Bcast(&m->own.host, 1, MPI_UINT64_T, 0, local);
    MPI_Comm_free(&local);
    l->hosts = mem_alloc_array((size_t)l->size, sizeof *l->hosts);
    TRY(check_mpi(MPI_Allgather(&m->own.host, 1, MPI_UINT64_T, l->hosts, 1, MPI_UINT64_T, m->all),
                  "finding the machines of all ranks", err));
    return find_tags(m, err);
}

/* Allocates once: except for MPI's own structures, posting allocates nothing. */
static void allocate(MpiTransport *m, int events) {
    size_t n = (size_t)events;
    m->events = events;
    m->requests = mem_alloc_array(n, sizeof *m->requests);
    m->event = mem_alloc_array(n, sizeof *m->event);
    m->where = mem_alloc_array(n, sizeof *m->where);
    m->receives = mem_alloc_array(n, sizeof *m->receives);
    m->statuses = mem_alloc_array(n, sizeof *m->statuses);
    m->indices = mem_alloc_array(n, sizeof *m->indices);
}

/* ---- channels ---- */

static int join_communicator(MpiTransport *m, int colour, int key, Channel *c) {
    int code = MPI_Comm_split(m->all, colour, key, &c->comm);
    if (code == MPI_SUCCESS) MPI_Comm_set_errhandler(c->comm, MPI_ERRORS_RETURN);
    return code;
}

/* Without a new communicator: a death while Open MPI 5.0 makes one may crash the ranks that take part. */
static int join_tags(MpiTransport *m, int colour, int key, int size, Channel *c) {
    int own[2] = {colour, key}, ranks = m->transport.size;
    int *all = mem_alloc_array(2 * (size_t)ranks, sizeof *all);
    int code = MPI_Allgather(own, 2, MPI_INT, all, 2, MPI_INT, m->all);
    int *members = mem_alloc_array((size_t)size, sizeof *members);
    for (int p = 0; p < ranks && code == MPI_SUCCESS; p++)
        if (all[2 * p] == colour && all[2 * p + 1] < size) members[all[2 * p + 1]] = p;
    free(all);
    *c = (Channel){m->all, members, (int)(m->transport.tags * (c - m->channels))};
    return code;
}

static int join(CommTransport *transport, int colour, int key, int size, int *channel) {
    MpiTransport *m = (MpiTransport *)transport;
    CHECK(m->channel_count < TRANSPORT_CHANNELS);
    Channel *c = &m->channels[ *channel = m->channel_count];
    *c = (Channel){.comm = MPI_COMM_NULL};
    int code = m->tolerant ? join_tags(m, colour, key, size, c) : join_communicator(m, colour, key, c);
    /* If a split fails, the handle may be anything. */
    if (code == MPI_SUCCESS || c->members) m->channel_count++;
    return code;
}

/* ---- posts ---- */

static int add(MpiTransport *m, int event, bool receives, int code) {
    if (code != MPI_SUCCESS) return code;
    CHECK(event >= 0 && event < m->events);
    m->receives[event] = receives;
    m->event[m->open] = event;
    m->where[event] = m->open++;
    return TRANSPORT_OK;
}

static int peer_of(const Channel *c, int peer) {
    if (peer == TRANSPORT_ANY) return MPI_ANY_SOURCE;
    return c->members ? c->members[peer] : peer;
}

static int post_send(CommTransport *transport, const TransportPost *p, const void *data) {
    MpiTransport *m = (MpiTransport *)transport;
    const Channel *c = &m->channels[p->channel];
    return add(m, p->event, false,
               MPI_Isend(data, (int)p->bytes, MPI_BYTE, peer_of(c, p->peer), c->first_tag + (int)p->tag,
                         c->comm, &m->requests[m->open]));
}

static int post_receive(CommTransport *transport, const TransportPost *p, void *data) {
    MpiTransport *m = (MpiTransport *)transport;
    const Channel *c = &m->channels[p->channel];
    return add(m, p->event, true,
               MPI_Irecv(data, (int)p->bytes, MPI_BYTE, peer_of(c, p->peer), c->first_tag + (int)p->tag,
                         c->comm, &m->requests[m->open]));
}

/* MPI sends each message when it is posted. */
static void begin(CommTransport *transport) { (void)transport; }
static void end(CommTransport *transport) { (void)transport; }

/* ---- ends ---- */

/* Gets the length of a received message: MPI itself only guarantees that it was not longer than the
 * receive. */
static TransportEnd end_of(const MpiTransport *m, int at, int error, const MPI_Status *status) {
    TransportEnd e = {.event = m->event[at], .error = error};
    int count = 0;
    if (error == TRANSPORT_OK && m->receives[e.event]) MPI_Get_count(status, MPI_BYTE, &count);
    e.bytes = (size_t)count;
    return e;
}

/* Moves the last request into the gap. */
static void take_out(MpiTransport *m, int at) {
    int last = --m->open;
    m->requests[at] = m->requests[last];
    m->event[at] = m->event[last];
    m->where[m->event[at]] = at;
}

/* Lets receives from any rank continue although a rank has died. */
static void acknowledge(MpiTransport *m, int error) {
    const Ulfm *u = ulfm_find();
    m->death = error;
    for (int i = 0; u && i < m->channel_count; i++) u->acknowledge(m->channels[i].comm);
}

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
/* Whether one request has ended; *error: how. */
static bool test_request(MpiTransport *m, int at, int *error, MPI_Status *status) {
    int come = 0;
    if (m->tolerant && !m->receives[m->event[at]]) {
        /* In a test Open MPI 5 would end a send over a revoked communicator with an error, and then the
         * process, once the receiver has let go of the message. A mere look ends nothing. */
        *error = MPI_Request_get_status(m->requests[at], &come, status);
        if (*error != MPI_SUCCESS || !come) return false;
    }
    *error = MPI_Test(&m->requests[at], &come, status);
    if (m->requests[at] == MPI_REQUEST_NULL) return true;
    if (*error != MPI_SUCCESS) acknowledge(m, *error);
    return false;
}

/* One by one: MPI_Testsome of Open MPI 5 tests sends (test_request), and may end requests without naming them
 * in a call that reports the failure of another. */
static int finished_each(MpiTransport *m, TransportEnd *ends, int most) {
    MPI_Status status;
    int reported = 0, error;
    for (int at = m->open - 1; at >= 0 && reported < most; at--) {
        if (!test_request(m, at, &error, &status)) continue;
        ends[reported++] = end_of(m, at, error, &status);
        take_out(m, at);
    }
    return reported;
}

/* Gaps are filled from the end, so that no open request is lost. If some operations failed, their errors are
 * in the statuses. A request that is still there has not ended, whatever its status says. */
static int finished(CommTransport *transport, TransportEnd *ends, int most, int *error) {
    MpiTransport *m = (MpiTransport *)transport;
    int count = 0, reported = 0, looked = m->open < most ? m->open : most;
    if (m->death != MPI_SUCCESS) return *error = m->death, m->death = MPI_SUCCESS, -1;
    if (looked == 0) return 0;
    if (m->tolerant) return finished_each(m, ends, most);
    int code = MPI_Testsome(looked, m->requests, &count, m->indices, m->statuses);
    if (count == MPI_UNDEFINED) count = 0;
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return *error = code, -1;
    for (int i = 0; i < count; i++) {
        int at = m->indices[i], failed = code == MPI_ERR_IN_STATUS ? m->statuses[i].MPI_ERROR : MPI_SUCCESS;
        if (m->requests[at] == MPI_REQUEST_NULL) {
            ends[reported] = end_of(m, at, failed, &m->statuses[i]);
            m->indices[reported++] = at;
        } else if (failed != MPI_ERR_PENDING) {
            acknowledge(m, failed);
        }
    }
    qsort(m->indices, (size_t)reported, sizeof *m->indices, compare_ints);
    for (int i = reported - 1; i >= 0; i--) take_out(m, m->indices[i]);
    return reported;
}

static bool test(CommTransport *transport, int event, TransportEnd *out) {
    MpiTransport *m = (MpiTransport *)transport;
    MPI_Status status;
    int at = m->where[event], error;
    if (!test_request(m, at, &error, &status)) return false;
    *out = end_of(m, at, error, &status);
    take_out(m, at);
    return true;
}

static void explain(int error, char *out, size_t size) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    snprintf(out, size, "%s", text);
}

/* ---- repair ---- */

/* Channels take the upper bits of the tags. */
enum { CHANNEL_TAGS = 128 /* at least TRANSPORT_CHANNELS */, LEAST_TAGS = 1 << 18 };

static bool can_repair(CommTransport *transport, char *problem, size_t size) {
    ulfm_problem(problem, size);
    if (!*problem && transport->tags / CHANNEL_TAGS < LEAST_TAGS)
        snprintf(problem, size, "this MPI library has tags up to %lld only", (long long)transport->tags - 1);
    return !*problem;
}

static int allow_repair(CommTransport *transport) {
    MpiTransport *m = (MpiTransport *)transport;
    m->tolerant = true;
    transport->tags /= CHANNEL_TAGS;
    m->places = mem_alloc_array((size_t)transport->size, sizeof *m->places);
    return MPI_Allgather(&m->own, sizeof m->own, MPI_BYTE, m->places, sizeof m->own, MPI_BYTE, m->all);
}

static void revoke(CommTransport *transport) {
    MpiTransport *m = (MpiTransport *)transport;
    for (int i = 0; i < m->channel_count; i++)
        if (!m->channels[i].members) ulfm_find()->revoke(m->channels[i].comm);
    ulfm_find()->revoke(m->all);
}

/* old: for each rank of `now`, its rank in `before`. */
static int translate(MPI_Comm now, MPI_Comm before, int size, int *old) {
    MPI_Group group, whole;
    int *own = mem_alloc_array((size_t)size, sizeof *own);
    for (int p = 0; p < size; p++) own[p] = p;
    MPI_Comm_group(now, &group);
    MPI_Comm_group(before, &whole);
    int code = MPI_Group_translate_ranks(group, size, own, whole, old);
    MPI_Group_free(&group);
    MPI_Group_free(&whole);
    free(own);
    return code;
}

static void forget_channels(MpiTransport *m) {
    for (int i = 0; i < m->channel_count; i++) free(m->channels[i].members);
    m->death = MPI_SUCCESS;
    m->open = m->channel_count = 0;
}

/* Takes the places of the ranks that are left, in place: their order is kept. */
static void find_places(MpiTransport *m, const int *old) {
    for (int p = 0; p < m->transport.size; p++) m->places[p] = m->places[old[p]];
    transport_find_local(&m->transport, m->places);
}

/* Revoked communicators are not freed: Open MPI would give their numbers to new ones, which would then get
 * messages that were under way. */
static int shrink(CommTransport *transport, int *old) {
    MpiTransport *m = (MpiTransport *)transport;
    MPI_Comm now, before = m->all;
    forget_channels(m);
    int code = ulfm_find()->shrink(before, &now);
    if (code != MPI_SUCCESS) return code;
    m->all = now;
    m->repaired = true;
    MPI_Comm_set_errhandler(now, MPI_ERRORS_RETURN);
    MPI_Comm_size(now, &transport->size);
    MPI_Comm_rank(now, &transport->rank);
    code = translate(now, before, transport->size, old);
    if (code == MPI_SUCCESS) find_places(m, old);
    return code;
}

static bool agree(CommTransport *transport, bool well) {
    MpiTransport *m = (MpiTransport *)transport;
    int all = well;
    if (!well) revoke(transport);
    return ulfm_find()->agree(m->all, &all) == MPI_SUCCESS && all;
}

/* ---- closing ---- */

static void abort_all(CommTransport *transport, int status) {
    (void)transport;
    MPI_Abort(MPI_COMM_WORLD, status);
}

/* Posts that are still open were abandoned after a failure, or are the standing receive of control messages.
 * MPI_Finalize waits for all ranks, which is why the watchdog watches it. */
static void end_mpi(MpiTransport *m) {
    for (int i = 0; i < m->open; i++) {
        MPI_Cancel(&m->requests[i]);
        MPI_Request_free(&m->requests[i]);
    }
    for (int i = 0; i < m->channel_count; i++)
        if (!m->channels[i].members) MPI_Comm_free(&m->channels[i].comm);
    MPI_Finalize();
}

/* After a repair MPI_Finalize would wait for the dead. The process may end once all others have come here: a
 * rank that ends while others wait for its messages is one that died. */
static void close_transport(CommTransport *transport) {
    MpiTransport *m = (MpiTransport *)transport;
    m->repaired ? (void)agree(transport, true) : end_mpi(m);
    for (int i = 0; i < m->channel_count; i++) free(m->channels[i].members);
    free(m->places);
    free(m->requests);
    free(m->event);
    free(m->where);
    free(m->receives);
    free(m->statuses);
    free(m->indices);
    free(m);
}

static const TransportKind mpi = {.name = "mpi",
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
                                  .can_repair = can_repair,
                                  .allow_repair = allow_repair,
                                  .revoke = revoke,
                                  .shrink = shrink,
                                  .agree = agree};

/* Sets *transport as soon as there is something to close, also if an error follows. */
ErrorCode mpi_transport_open(CommTransport **transport, int events, const char *variable, Error *err) {
    int provided = 0, initialised = 0;
    MPI_Initialized(&initialised);
    /* A second MPI_Init in one process is not allowed. */
    CHECK(!initialised);
    *transport = NULL;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return error_set(err, ERR_UNAVAILABLE,
                         "MPI could not be initialised, though %s says that a launcher started this process",
                         variable);
    MpiTransport *m = mem_alloc(sizeof *m);
    *m = (MpiTransport){.transport = {.kind = &mpi}, .all = MPI_COMM_WORLD};
    *transport = &m->transport;
    allocate(m, events);
    TRY(find_ranks(m, err));
    if (provided < MPI_THREAD_SERIALIZED)
        return error_set(err, ERR_UNAVAILABLE,
                         "this MPI library cannot be used by several threads, not even in turn");
    return OK;
}
