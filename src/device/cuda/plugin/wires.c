/* Wires by NCCL: a communicator of all ranks, of which each wire is a part, on a stream of its own.
 *
 * Only sends and receives are used, in groups. NCCL's own sums take terms in an order that hangs on rings,
 * trees and versions; weft's are taken in the canonical tree, by ops (comm/wires.c).
 *
 * A kernel of NCCL stays on the GPU until its peer has come. So that those of one wire never keep out those
 * of another, each takes few multiprocessors (NCCL_MAX_P2P_NCHANNELS), and there are as many queues to the
 * GPU as streams (CUDA_DEVICE_MAX_CONNECTIONS): both are set where the environment does not. Wires are
 * tried out when they are made, since NCCL connects ranks at their first message, and takes memory for it. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/plugin/backend.h"
#include "device/cuda/plugin/library.h"
#include "device/cuda/plugin/nccl.h"

enum { TRIAL = 256 /* bytes */, OLDEST = 21800 /* the first that splits communicators */ };

struct Wires {
    Nccl nccl;
    NcclComm all, wire[DEVICE_STREAMS];
    int ranks, count;
    int error; /* the first, or NCCL_OK */
    char *trial;
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

int wires_version(Error *err) {
    Nccl n;
    int version = 0;
    if (open_library(&n, err) == OK) n.GetVersion(&version);
    return version;
}

/* Once a device; *out is the device's. */
static ErrorCode find_library(Device *d, Wires **out, Error *err) {
    Wires **w = cuda_wires(d);
    *out = NULL;
    if (!*w) {
        Wires *made = calloc(1, sizeof *made);
        if (!made) return cuda_refuse(err, ERR_MEMORY, "no memory for wires");
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

static ErrorCode failed(const Wires *w, int error, const char *what, Error *err) {
    if (error == NCCL_OK) return OK;
    return cuda_refuse(err, ERR_PEER, "NCCL: %s: %s", what, w->nccl.GetErrorString(error));
}

/* ---- opening ---- */

static ErrorCode identify(Device *d, char identity[WIRE_IDENTITY], Error *err) {
    Wires *w = NULL;
    PASS_ON(find_library(d, &w, err));
    cuda_identity(d, identity);
    return OK;
}

static ErrorCode make_key(Device *d, char key[WIRE_KEY], Error *err) {
    Wires *w = NULL;
    NcclKey made;
    _Static_assert(sizeof made == WIRE_KEY, "keys are NCCL's");
    PASS_ON(find_library(d, &w, err));
    PASS_ON(failed(w, w->nccl.GetUniqueId(&made), "making a key", err));
    memcpy(key, &made, sizeof made);
    return OK;
}

static ErrorCode open_wires(Device *d, const char key[WIRE_KEY], int ranks, int rank, Error *err) {
    Wires *w = NULL;
    NcclKey held;
    PASS_ON(find_library(d, &w, err));
    memcpy(&held, key, sizeof held);
    setenv("NCCL_MAX_P2P_NCHANNELS", "8", 0);
    w->ranks = ranks;
    cuda_choose(d);
    w->trial = d->runtime.take(d, 2 * TRIAL);
    if (!w->trial) return cuda_refuse(err, ERR_MEMORY, "no memory of the GPU for wires");
    return failed(w, w->nccl.CommInitRank(&w->all, ranks, held, rank), "joining the ranks", err);
}

static void begin(Device *d);
static void send_bytes(Device *d, DeviceStream wire, int place, const void *data, size_t bytes);
static void receive_bytes(Device *d, DeviceStream wire, int place, void *data, size_t bytes);
static ErrorCode end(Device *d, Error *err);

/* A message from each to each, so that nothing is left to be connected. What arrives is of no interest. */
static ErrorCode try_out(Device *d, DeviceStream wire, int places, int own, Error *err) {
    Wires *w = *cuda_wires(d);
    begin(d);
    for (int p = 0; p < places; p++) {
        if (p == own) continue;
        send_bytes(d, wire, p, w->trial, TRIAL);
        receive_bytes(d, wire, p, w->trial + TRIAL, TRIAL);
    }
    PASS_ON(end(d, err));
    d->runtime.finish(d, d->runtime.mark(d, wire));
    return OK;
}

static ErrorCode join(Device *d, int colour, int place, int places, DeviceStream *wire, Error *err) {
    Wires *w = *cuda_wires(d);
    NcclComm part = NULL;
    cuda_choose(d);
    *wire = ON_COMPUTE;
    PASS_ON(failed(w, w->nccl.CommSplit(w->all, colour < 0 ? NCCL_NO_COLOUR : colour, place, &part, NULL),
                   "making a wire", err));
    if (colour < 0) return OK;
    if (w->count == DEVICE_WIRES) return cuda_refuse(err, ERR_INTERNAL, "more than %d wires", DEVICE_WIRES);
    *wire = (DeviceStream)(ON_WIRES + w->count++);
    w->wire[*wire] = part;
    PASS_ON(cuda_open_stream(d, *wire, err));
    return try_out(d, *wire, places, place, err);
}

/* ---- messages ---- */

static void keep(Wires *w, int error) {
    if (w->error == NCCL_OK) w->error = error;
}

static void begin(Device *d) {
    Wires *w = *cuda_wires(d);
    cuda_choose(d);
    keep(w, w->nccl.GroupStart());
}

static void send_bytes(Device *d, DeviceStream wire, int place, const void *data, size_t bytes) {
    Wires *w = *cuda_wires(d);
    keep(w, w->nccl.Send(data, bytes, NCCL_BYTES, place, w->wire[wire], cuda_stream_of(d, wire)));
}

static void receive_bytes(Device *d, DeviceStream wire, int place, void *data, size_t bytes) {
    Wires *w = *cuda_wires(d);
    keep(w, w->nccl.Recv(data, bytes, NCCL_BYTES, place, w->wire[wire], cuda_stream_of(d, wire)));
}

static ErrorCode end(Device *d, Error *err) {
    Wires *w = *cuda_wires(d);
    keep(w, w->nccl.GroupEnd());
    return failed(w, w->error, "a message", err);
}

/* ---- failures ---- */

static ErrorCode look(Device *d, Error *err) {
    Wires *w = *cuda_wires(d);
    for (int i = 0; i < w->count; i++) {
        int error = NCCL_OK;
        if (!w->wire[ON_WIRES + i]) continue;
        w->nccl.CommGetAsyncError(w->wire[ON_WIRES + i], &error);
        if (error != NCCL_IN_PROGRESS) keep(w, error);
    }
    return failed(w, w->error, "a wire", err);
}

static void each_wire(Wires *w, int (*function)(NcclComm comm)) {
    for (int s = ON_WIRES; s < ON_WIRES + w->count; s++) {
        if (w->wire[s]) function(w->wire[s]);
        w->wire[s] = NULL;
    }
    if (w->all) function(w->all);
    w->all = NULL;
}

static void abort_wires(Device *d) {
    Wires *w = *cuda_wires(d);
    cuda_choose(d);
    each_wire(w, w->nccl.CommAbort);
}

void wires_close(Device *d) {
    Wires **w = cuda_wires(d);
    if (!*w) return;
    each_wire(*w, (*w)->nccl.CommDestroy);
    if ((*w)->trial) d->runtime.give(d, (*w)->trial, 2 * TRIAL);
    free(*w);
    *w = NULL;
}

const DeviceWires *wires_table(void) {
    static const DeviceWires wires = {.identify = identify,
                                      .key = make_key,
                                      .open = open_wires,
                                      .join = join,
                                      .begin = begin,
                                      .send = send_bytes,
                                      .receive = receive_bytes,
                                      .end = end,
                                      .look = look,
                                      .reached = cuda_reached,
                                      .abort = abort_wires};
    return &wires;
}
