/* Communicators by NCCL, split from the one of all ranks, each with its own stream.
 *
 * Only grouped sends and receives are used. NCCL's own reductions add in an order that depends on rings,
 * trees and versions; weft's add in the canonical tree, by ops (comm/communicators.c).
 *
 * An NCCL kernel occupies the GPU until its peer arrives. So that kernels of one communicator never block
 * those of another, all together get half of a large GPU's multiprocessors (NCCL_MAX_P2P_NCHANNELS), and the
 * GPU has as many queues as there are streams (CUDA_DEVICE_MAX_CONNECTIONS). Both are set unless the
 * environment sets them. A channel moves some 20 GB/s over NVLink, so few communicators get more each. NCCL
 * connects ranks, and allocates memory for that, at their first message; each communicator therefore sends
 * trial messages when it is made. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda/plugin/backend.h"
#include "device/cuda/plugin/library.h"
#include "device/cuda/plugin/nccl.h"

enum {
    TRIAL = 256,          /* bytes */
    OLDEST = 21800,       /* the first version that splits communicators */
    GROUPS_ABORTS = 22200 /* the first that takes aborts in a group */
};
enum { CHANNELS_OF_ALL = 64, CHANNELS_MOST = 32 }; /* a channel takes a multiprocessor */
enum { ABORT_SECONDS = 5 };

struct Communicators {
    Nccl nccl;
    NcclComm all, communicator[DEVICE_STREAMS];
    int ranks, count;
    int error; /* the first error, or NCCL_OK */
    char *trial;
    /* What was given up, and the thread that aborts it. */
    NcclComm aborted[DEVICE_STREAMS + 1];
    int aborts;
    bool aborting;
    pthread_t aborter;
};

/* ---- the library ---- */

/* In the order of struct Nccl. */
static const LibraryFunction functions[] = {{"ncclGetVersion", offsetof(Nccl, GetVersion)},
                                            {"ncclGetUniqueId", offsetof(Nccl, GetUniqueId)},
                                            {"ncclCommInitRank", offsetof(Nccl, CommInitRank)},
                                            {"ncclCommSplit", offsetof(Nccl, CommSplit)},
                                            {"ncclCommDestroy", offsetof(Nccl, CommDestroy)},
                                            {"ncclCommAbort", offsetof(Nccl, CommAbort)},
                                            {"ncclCommGetAsyncError", offsetof(Nccl, CommGetAsyncError)},
                                            {"ncclGroupStart", offsetof(Nccl, GroupStart)},
                                            {"ncclGroupEnd", offsetof(Nccl, GroupEnd)},
                                            {"ncclSend", offsetof(Nccl, Send)},
                                            {"ncclRecv", offsetof(Nccl, Recv)},
                                            {"ncclGetErrorString", offsetof(Nccl, GetErrorString)}};
enum { FUNCTIONS = sizeof functions / sizeof *functions };
_Static_assert(FUNCTIONS * sizeof(void *) == sizeof(Nccl), "a function is missing");

static ErrorCode open_library(Nccl *n, Error *err) {
    const char *asked = getenv("WEFT_NCCL");
    if (asked && strcmp(asked, "none") == 0)
        return cuda_refuse(err, ERR_UNAVAILABLE, "WEFT_NCCL=none in the environment");
    if (&nccl_linked) {
        *n = nccl_linked;
        return OK;
    }
    void *library = dlopen(asked && *asked ? asked : "libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) return cuda_refuse(err, ERR_UNAVAILABLE, "NCCL does not load: %s", dlerror());
    const char *missing = library_find(library, functions, FUNCTIONS, n);
    if (missing) return cuda_refuse(err, ERR_UNAVAILABLE, "this NCCL has no %s", missing);
    int version = 0;
    n->GetVersion(&version);
    return version >= OLDEST
               ? OK
               : cuda_refuse(err, ERR_UNAVAILABLE, "this NCCL is %d; %d or newer is needed", version, OLDEST);
}

int communicators_version(Error *err) {
    Nccl n;
    int version = 0;
    if (open_library(&n, err) == OK) n.GetVersion(&version);
    return version;
}

/* Opens NCCL once per device. *out belongs to the device. */
static ErrorCode find_library(Device *d, Communicators **out, Error *err) {
    Communicators **w = cuda_communicators(d);
    *out = NULL;
    if (!*w) {
        Communicators *made = calloc(1, sizeof *made);
        if (!made) return cuda_refuse(err, ERR_MEMORY, "no memory for communicators");
        ErrorCode code = open_library(&made->nccl, err);
        if (code != OK) {
            free(made);
            return code;
        }
        *w = made;
    }
    *out = *w;
    return OK;
}

static ErrorCode failed(const Communicators *w, int error, const char *what, Error *err) {
    if (error == NCCL_OK) return OK;
    return cuda_refuse(err, ERR_PEER, "NCCL: %s: %s", what, w->nccl.GetErrorString(error));
}

/* ---- opening ---- */

static ErrorCode identify(Device *d, char identity[COMMUNICATOR_IDENTITY], Error *err) {
    Communicators *w = NULL;
    PASS_ON(find_library(d, &w, err));
    cuda_identity(d, identity);
    return OK;
}

static ErrorCode make_key(Device *d, char key[COMMUNICATOR_KEY], Error *err) {
    Communicators *w = NULL;
    NcclKey made;
    _Static_assert(sizeof made == COMMUNICATOR_KEY, "keys are NCCL's");
    PASS_ON(find_library(d, &w, err));
    PASS_ON(failed(w, w->nccl.GetUniqueId(&made), "making a key", err));
    memcpy(key, &made, sizeof made);
    return OK;
}

/* NCCL takes a power of two, and reads it when the first communicator is made. */
static void share_channels(int communicators) {
    int channels = CHANNELS_MOST;
    char text[16];
    while (channels * communicators > CHANNELS_OF_ALL) channels /= 2;
    snprintf(text, sizeof text, "%d", channels);
    setenv("NCCL_MAX_P2P_NCHANNELS", text, 0);
}

static ErrorCode open_communicators(Device *d, const char key[COMMUNICATOR_KEY], int ranks, int rank,
                                    int most, Error *err) {
    Communicators *w = NULL;
    NcclKey held;
    PASS_ON(find_library(d, &w, err));
    memcpy(&held, key, sizeof held);
    share_channels(most);
    w->ranks = ranks;
    cuda_choose(d);
    w->trial = d->runtime.take(d, 2 * TRIAL);
    if (!w->trial) return cuda_refuse(err, ERR_MEMORY, "no memory of the GPU for communicators");
    return failed(w, w->nccl.CommInitRank(&w->all, ranks, held, rank), "joining the ranks", err);
}

static void begin(Device *d);
static void send_bytes(Device *d, DeviceStream communicator, int rank, const void *data, size_t bytes);
static void receive_bytes(Device *d, DeviceStream communicator, int rank, void *data, size_t bytes);
static ErrorCode end(Device *d, Error *err);

/* Sends a message from each rank to each other, so that all are connected. The received bytes are ignored. */
static ErrorCode try_out(Device *d, DeviceStream communicator, int ranks, int rank, Error *err) {
    Communicators *w = *cuda_communicators(d);
    begin(d);
    for (int p = 0; p < ranks; p++) {
        if (p == rank) continue;
        send_bytes(d, communicator, p, w->trial, TRIAL);
        receive_bytes(d, communicator, p, w->trial + TRIAL, TRIAL);
    }
    PASS_ON(end(d, err));
    d->runtime.finish(d, d->runtime.mark(d, communicator));
    return OK;
}

static ErrorCode join(Device *d, int colour, int rank, int ranks, DeviceStream *communicator, Error *err) {
    Communicators *w = *cuda_communicators(d);
    NcclComm split = NULL;
    cuda_choose(d);
    *communicator = ON_COMPUTE;
    PASS_ON(failed(w, w->nccl.CommSplit(w->all, colour < 0 ? NCCL_NO_COLOUR : colour, rank, &split, NULL),
                   "splitting a communicator", err));
    if (colour < 0) return OK;
    if (w->count == DEVICE_COMMUNICATORS)
        return cuda_refuse(err, ERR_INTERNAL, "more than %d communicators", DEVICE_COMMUNICATORS);
    *communicator = (DeviceStream)(ON_COMMUNICATORS + w->count++);
    w->communicator[*communicator] = split;
    PASS_ON(cuda_open_stream(d, *communicator, err));
    return try_out(d, *communicator, ranks, rank, err);
}

/* ---- messages ---- */

static void keep_error(Communicators *w, int error) {
    if (w->error == NCCL_OK) w->error = error;
}

static void begin(Device *d) {
    Communicators *w = *cuda_communicators(d);
    cuda_choose(d);
    keep_error(w, w->nccl.GroupStart());
}

static void send_bytes(Device *d, DeviceStream communicator, int rank, const void *data, size_t bytes) {
    Communicators *w = *cuda_communicators(d);
    keep_error(w, w->nccl.Send(data, bytes, NCCL_BYTES, rank, w->communicator[communicator],
                               cuda_stream_of(d, communicator)));
}

static void receive_bytes(Device *d, DeviceStream communicator, int rank, void *data, size_t bytes) {
    Communicators *w = *cuda_communicators(d);
    keep_error(w, w->nccl.Recv(data, bytes, NCCL_BYTES, rank, w->communicator[communicator],
                               cuda_stream_of(d, communicator)));
}

static ErrorCode end(Device *d, Error *err) {
    Communicators *w = *cuda_communicators(d);
    keep_error(w, w->nccl.GroupEnd());
    return failed(w, w->error, "a message", err);
}

/* ---- failures ---- */

static ErrorCode look(Device *d, Error *err) {
    Communicators *w = *cuda_communicators(d);
    for (int i = 0; i < w->count; i++) {
        int error = NCCL_OK;
        if (!w->communicator[ON_COMMUNICATORS + i]) continue;
        w->nccl.CommGetAsyncError(w->communicator[ON_COMMUNICATORS + i], &error);
        if (error != NCCL_IN_PROGRESS) keep_error(w, error);
    }
    return failed(w, w->error, "a communicator", err);
}

/* Moves all open communicators to `to` [DEVICE_STREAMS + 1]; returns their number. */
static int take_all(Communicators *w, NcclComm *to) {
    int count = 0;
    for (int s = ON_COMMUNICATORS; s < ON_COMMUNICATORS + w->count; s++) {
        if (w->communicator[s]) to[count++] = w->communicator[s];
        w->communicator[s] = NULL;
    }
    if (w->all) to[count++] = w->all;
    w->all = NULL;
    return count;
}

/* Aborting one communicator waits for the GPU, where the kernel of another may spin until that one is aborted
 * too (nccl#549, nccl#1013). Aborts in a group tell all kernels to end before any of them waits. */
static void *abort_all(void *device) {
    Device *d = device;
    Communicators *w = *cuda_communicators(d);
    int version = 0;
    cuda_choose(d);
    w->nccl.GetVersion(&version);
    if (version >= GROUPS_ABORTS) w->nccl.GroupStart();
    for (int i = 0; i < w->aborts; i++) w->nccl.CommAbort(w->aborted[i]);
    if (version >= GROUPS_ABORTS) w->nccl.GroupEnd();
    return NULL;
}

/* On a thread of its own, since an abort may wait for a peer that is gone (nccl#863), and the caller holds a
 * mutex that reporting the failure needs. */
static void abort_communicators(Device *d) {
    Communicators *w = *cuda_communicators(d);
    if (w->aborting) return;
    w->aborts = take_all(w, w->aborted);
    w->aborting = pthread_create(&w->aborter, NULL, abort_all, d) == 0;
    if (!w->aborting) abort_all(d);
}

/* Whether the abort has ended, after waiting for it up to ABORT_SECONDS. */
static bool abort_has_ended(Communicators *w) {
    struct timespec until;
    if (!w->aborting) return true;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += ABORT_SECONDS;
    return pthread_timedjoin_np(w->aborter, NULL, &until) == 0;
}

bool communicators_close(Device *d) {
    Communicators **at = cuda_communicators(d), *w = *at;
    NcclComm open[DEVICE_STREAMS + 1];
    if (!w) return true;
    if (!abort_has_ended(w)) return false;
    int count = take_all(w, open);
    for (int i = 0; i < count; i++) w->nccl.CommDestroy(open[i]);
    if (w->trial) d->runtime.give(d, w->trial, 2 * TRIAL);
    free(w);
    *at = NULL;
    return true;
}

const DeviceCommunicators *communicators_table(void) {
    static const DeviceCommunicators communicators = {.identify = identify,
                                                      .key = make_key,
                                                      .open = open_communicators,
                                                      .join = join,
                                                      .begin = begin,
                                                      .send = send_bytes,
                                                      .receive = receive_bytes,
                                                      .end = end,
                                                      .look = look,
                                                      .reached = cuda_reached,
                                                      .abort = abort_communicators};
    return &communicators;
}
