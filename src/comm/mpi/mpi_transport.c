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

#include <dlfcn.h>
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"

typedef struct MpiTransport {
    CommTransport transport;
    MPI_Comm channels[TRANSPORT_CHANNELS];
    int channel_count, open, events;
    MPI_Request *requests; /* [events], the first `open` are in use */
    int *event;            /* [events] of each request */
    int *where;            /* [events] */
    bool *receives;        /* [events] by event */
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

/* A launcher may bind each rank to cores of its own, or allow all cores to all: the ranks share the union of
 * their cores. Masks are combined as bytes; with more cores than a mask can hold, none is known. */
static int find_cores(MPI_Comm local) {
    cpu_set_t own, all;
    CPU_ZERO(&own);
    if (sched_getaffinity(0, sizeof own, &own) != 0) CPU_ZERO(&own);
    int code = MPI_Allreduce(&own, &all, sizeof all, MPI_BYTE, MPI_BOR, local);
    return code == MPI_SUCCESS ? CPU_COUNT(&all) : 0;
}

static ErrorCode find_ranks(MpiTransport *m, Error *err) {
    MPI_Comm local;
    CommTransport *l = &m->transport;
    /* Otherwise MPI ends the process by itself, with its own message. */
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    TRY(check_mpi(MPI_Comm_rank(MPI_COMM_WORLD, &l->rank), "asking for the rank", err));
    TRY(check_mpi(MPI_Comm_size(MPI_COMM_WORLD, &l->size), "asking for the number of ranks", err));
    TRY(check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, l->rank, MPI_INFO_NULL, &local),
                  "finding the ranks of this machine", err));
    MPI_Comm_rank(local, &l->local_rank);
    MPI_Comm_size(local, &l->local_size);
    l->local_cores = find_cores(local);
    MPI_Comm_free(&local);
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

static int join(CommTransport *transport, int colour, int key, int size, int *channel) {
    MpiTransport *m = (MpiTransport *)transport;
    (void)size; /* MPI counts for itself */
    CHECK(m->channel_count < TRANSPORT_CHANNELS);
    MPI_Comm *c = &m->channels[ *channel = m->channel_count++];
    int code = MPI_Comm_split(MPI_COMM_WORLD, colour, key, c);
    if (code == MPI_SUCCESS) MPI_Comm_set_errhandler(*c, MPI_ERRORS_RETURN);
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

static int post_send(CommTransport *transport, const TransportPost *p, const void *data) {
    MpiTransport *m = (MpiTransport *)transport;
    return add(m, p->event, false,
               MPI_Isend(data, (int)p->bytes, MPI_BYTE, p->peer, (int)p->tag, m->channels[p->channel],
                         &m->requests[m->open]));
}

static int post_receive(CommTransport *transport, const TransportPost *p, void *data) {
    MpiTransport *m = (MpiTransport *)transport;
    int peer = p->peer == TRANSPORT_ANY ? MPI_ANY_SOURCE : p->peer;
    return add(m, p->event, true,
               MPI_Irecv(data, (int)p->bytes, MPI_BYTE, peer, (int)p->tag, m->channels[p->channel],
                         &m->requests[m->open]));
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

static int compare_ints(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* Lets receives from any rank continue although a rank has died. The function is not in every library. */
static void acknowledge(MpiTransport *m, int error) {
    union {
        void *found;
        int (*call)(MPI_Comm);
    } ack = {dlsym(RTLD_DEFAULT, "MPIX_Comm_failure_ack")};
    m->death = error;
    for (int i = 0; ack.found && i < m->channel_count; i++) ack.call(m->channels[i]);
}

/* Gaps are filled from the end, so that no open request is lost. If some operations failed, their errors are
 * in the statuses. A request that is still there has not ended, whatever its status says. */
static int finished(CommTransport *transport, TransportEnd *ends, int most, int *error) {
    MpiTransport *m = (MpiTransport *)transport;
    int count = 0, reported = 0, looked = m->open < most ? m->open : most;
    if (m->death != MPI_SUCCESS) return *error = m->death, m->death = MPI_SUCCESS, -1;
    if (looked == 0) return 0;
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
    int come = 0, at = m->where[event], code = MPI_Test(&m->requests[at], &come, &status);
    if (m->requests[at] != MPI_REQUEST_NULL) {
        if (code != MPI_SUCCESS) acknowledge(m, code);
        return false;
    }
    *out = end_of(m, at, code, &status);
    take_out(m, at);
    return true;
}

static void explain(int error, char *out, size_t size) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    snprintf(out, size, "%s", text);
}

/* ---- closing ---- */

static void abort_all(CommTransport *transport, int status) {
    (void)transport;
    MPI_Abort(MPI_COMM_WORLD, status);
}

/* Posts that are still open were abandoned after a failure, or are the standing receive of control messages.
 * MPI_Finalize waits for all ranks, which is why the watchdog watches it. */
static void close_transport(CommTransport *transport) {
    MpiTransport *m = (MpiTransport *)transport;
    for (int i = 0; i < m->open; i++) {
        MPI_Cancel(&m->requests[i]);
        MPI_Request_free(&m->requests[i]);
    }
    for (int i = 0; i < m->channel_count; i++)
        if (m->channels[i] != MPI_COMM_NULL) MPI_Comm_free(&m->channels[i]);
    MPI_Finalize();
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
                                  .close = close_transport};

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
    *m = (MpiTransport){.transport = {.kind = &mpi}};
    *transport = &m->transport;
    allocate(m, events);
    TRY(find_ranks(m, err));
    if (provided < MPI_THREAD_SERIALIZED)
        return error_set(err, ERR_UNAVAILABLE,
                         "this MPI library cannot be used by several threads, not even in turn");
    return OK;
}
