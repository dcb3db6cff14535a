/* The device: a queue of operations (ops) on tensor memory. The ops themselves are declared in ops/, a header
 * for each kind: every op has a struct of arguments, whose comments give shapes. A file includes the headers
 * of the ops that it calls. Structs that arguments consist of are in shapes.h.
 *
 * The contract
 * 1. Calling an op *enqueues* it on the stream that the calling thread has chosen with device_on (by default
 *    ON_COMPUTE). Ops of one stream run in the order in which they were enqueued. Ops of two streams run in
 *    any order, unless an event orders them: device_mark, then device_follow.
 * 2. Arguments are taken when an op is enqueued; tensor memory is read and written when it runs. To see what
 *    a tensor holds, host code calls `download` and then device_finish; device_fetch does both.
 * 3. Host memory given to `upload`, and the list of addresses given to sum_partials, are read when the op is
 *    enqueued and may be reused at once. Host memory given to `download` is written when the op runs; until
 *    that has finished its contents are undefined.
 *    No op returns a value to the host or takes one that the device has computed: such numbers, and learning
 *    rate and the like, are in tensor memory, so that a step is enqueued whole. (But see fixed_add: limit.)
 * 4. device_finish makes the host wait, which costs a GPU tens of microseconds of work: waits are counted.
 * 5. Only device/ dereferences tensor memory. Other code holds addresses, adds offsets, and calls ops. The
 *    guard build (pool.h) proves it.
 * 6. device/cpu/reference.c fills every slot in plain C; faster implementations override slots. Each
 *    override is tested against the reference, on odd shapes and tails.
 * 7. Results depend neither on the number of threads nor on how much of a tensor an op is given: the result
 *    of a slice (of tokens, heads, outputs, logits) is the slice of the full result, bit for bit. For matrix
 *    products this holds of those with splits (see KSplit). Sums are cut by constants and by splits, never
 *    by the length of a slice.
 * 8. No op takes tensor memory. Scratch is Device.scratch, whose size `scratch_bytes` returns in advance. It
 *    belongs to ON_COMPUTE: other streams only take copies, uploads, downloads and sum_partials.
 *
 * On the CPU an op has ended when its call returns, every event has been reached, and finishing costs
 * nothing. A deferred CPU (device_defer) runs nothing before it must: code that works there keeps the
 * contract. */
#ifndef WEFT_DEVICE_DEVICE_H
#define WEFT_DEVICE_DEVICE_H

#ifdef __cplusplus
typedef long long atomic_llong; /* GPU kernels are C++ and use no counter */
#else
#include <stdatomic.h>
#endif
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

typedef enum Dtype { DTYPE_F32, DTYPE_BF16 } Dtype; /* ggml type_traits; docs/inside/add-a-dtype.md */
static inline size_t dtype_bytes(Dtype t) { return t == DTYPE_F32 ? 4 : 2; }
const char *dtype_name(Dtype t); /* "fp32", "bf16" */

typedef struct Device Device;
typedef struct DeviceNeeds DeviceNeeds;
typedef struct Deferred Deferred;
typedef struct Ops Ops; /* a backend's functions (ops/ops.h) */

/* OP_GEMM and so on; ops/ops.h has them all, so that a new op does not change this file. */
typedef int OpId;
enum { DEVICE_OPS_MAX = 96 };

/* ---- streams, events, memory ---- */

/* ON_COMMUNICATORS and the streams after it are communicators (see DeviceCommunicators): as many as a rank of
 * any mesh may need. comm/communicators.c checks this number. */
enum { DEVICE_COMMUNICATORS = 11 };
typedef enum DeviceStream {
    ON_COMPUTE,
    ON_COMM,
    ON_COPY,
    ON_COMMUNICATORS,
    DEVICE_STREAMS = ON_COMMUNICATORS + DEVICE_COMMUNICATORS
} DeviceStream;

/* A ticket returned by device_mark; 0 has always been reached. Nothing to free. */
typedef uint64_t Event;

/* Why the host waits: for a result that the program asked for, or for memory that a transport between ranks
 * reads and writes by itself (MPI; a transport on the device lets streams wait instead). */
typedef enum DeviceWait { WAIT_RESULT, WAIT_TRANSPORT, DEVICE_WAITS } DeviceWait;

/* Memory of a discrete device, over all processes that use the device. */
typedef struct DeviceMemory {
    uint64_t total, available;
    uint64_t untouched; /* available before this process took any; 0: not known */
    char identity[16];  /* unique to the device */
} DeviceMemory;

/* The functions behind device_mark and those below; the same for all kernels of a device. */
typedef struct DeviceRuntime {
    Event (*mark)(Device *d, DeviceStream s);
    void (*follow)(Device *d, DeviceStream s, Event e);
    void (*finish)(Device *d, Event e);
    void *(*take)(Device *d, size_t bytes); /* tensor memory, zeroed; NULL: not enough */
    void (*give)(Device *d, void *memory, size_t bytes);
    size_t (*available)(const Device *d);        /* bytes of tensor memory; 0: not known */
    void *(*host_take)(Device *d, size_t bytes); /* pinned host memory, zeroed */
    void (*host_give)(Device *d, void *host);
    /* Only of a device with separate memory; else NULL. Returns false if unknown. Never waits. */
    bool (*memory)(const Device *d, DeviceMemory *m);
    /* Timing by the device's clock, for devices whose ops have not ended when their calls return; else NULL.
     * Times are of the calling thread's stream. They are written to `to` after the host has waited for
     * something enqueued later. None of these waits, except read_times: it waits for everything under way.
     *    begin_time, end_time   *to += seconds between the two; end_time takes what begin_time returned on
     *                           the same stream
     *    stamp                  *to = seconds since the stream's last stamp with a NULL `to` */
    int64_t (*begin_time)(Device *d);
    void (*end_time)(Device *d, int64_t begun, double *to);
    void (*stamp)(Device *d, double *to);
    void (*read_times)(Device *d);
    /* Scratch that ops may need for the largest shapes of a run. */
    size_t (*scratch_bytes)(const Device *d, const DeviceNeeds *needs);
    /* What calling an op does; it may call op_run at once or later. NULL: calls op_run. */
    void (*enqueue)(Device *d, OpId op, const void *arguments);
    void (*close)(Device *d); /* frees everything that opening allocated, also if it failed half way */
} DeviceRuntime;

/* Communicators move tensors from the memory of one rank's device to that of another without the host (NCCL).
 * A communicator is a stream that several ranks share, each with its rank 0 .. n-1 in it. Between two ranks
 * of a communicator the k-th send meets the k-th receive: there are no tags, and a rank that enqueues in
 * another order than its peers waits forever. Calls of one rank come one at a time. */
enum { COMMUNICATOR_KEY = 128, COMMUNICATOR_IDENTITY = 64 };
typedef struct DeviceCommunicators {
    /* Identifies this device among all; ERR_UNAVAILABLE says why it has no communicators. */
    ErrorCode (*identify)(Device *d, char identity[COMMUNICATOR_IDENTITY], Error *err);
    /* One rank makes the key with which all ranks open their communicators. */
    ErrorCode (*key)(Device *d, char key[COMMUNICATOR_KEY], Error *err);
    /* `most`: communicators with peers that a rank joins afterwards at most; the same on all ranks. */
    ErrorCode (*open)(Device *d, const char key[COMMUNICATOR_KEY], int ranks, int rank, int most, Error *err);
    /* Collective: all ranks call it, equally often and in the same order. Ranks of one colour get a
     * communicator, each at its place (rank in it) 0 .. places-1. Colour -1: none, and *communicator is
     * ON_COMPUTE. Takes all memory that the communicator will need. */
    ErrorCode (*join)(Device *d, int colour, int place, int places, DeviceStream *communicator, Error *err);
    /* Calls between begin and end are one group that starts together; none of them waits. */
    void (*begin)(Device *d);
    void (*send)(Device *d, DeviceStream communicator, int place, const void *data, size_t bytes);
    void (*receive)(Device *d, DeviceStream communicator, int place, void *data, size_t bytes);
    ErrorCode (*end)(Device *d, Error *err);
    /* ERR_PEER if a communicator has failed; never waits. */
    ErrorCode (*look)(Device *d, Error *err);
    bool (*reached)(Device *d, Event e); /* never waits */
    /* Aborts what waits for a peer, so that host waits end soon; never waits itself. The communicators cannot
     * be used again. */
    void (*abort)(Device *d);
} DeviceCommunicators;

typedef struct OpProfile {
    int64_t calls;
    double seconds; /* on the device; concurrent streams are added up */
    double flops;   /* gemm: 2MNK, K counting only elements read; attention: by computed blocks */
} OpProfile;

struct Device {
    Ops *ops;
    DeviceRuntime runtime;
    const DeviceCommunicators *communicators; /* NULL: none */
    const char *name;                         /* of CPU_KERNELS, or "cuda"; NULL: described, not opened */
    char processor[128];                      /* the processor's own name, or the GPU's */
    int threads;
    bool native_bf16;     /* bf16 matrix products are at least as fast as fp32 ones */
    bool separate_memory; /* tensor memory is not the machine's */
    uint64_t memory; /* bytes of separate memory; 0: it is the machine's, or not known (described device) */
    uint64_t granularity; /* `take` rounds up to a multiple of it, at least one; bytes; 0: exact sizes */
    uint64_t pinned;      /* bytes of host memory that opening takes, for uploads */
    int64_t loss_rows;    /* tokens whose logits are computed at a time; 0: few, to fit in caches */
    int widest_head;      /* most elements of an attention head; 0: no limit */
    char *scratch;
    size_t scratch_size;
    atomic_llong waits[DEVICE_WAITS]; /* calls of device_finish */
    atomic_llong
        waits_since;      /* of communicators: nanoseconds of a monotonic clock; 0: no call is under way */
    atomic_llong waiting; /* calls under way: the training thread and a saving thread may both wait */
    bool profiling;
    OpProfile profile[DEVICE_OPS_MAX]; /* by OpId */
    void *impl;                        /* private to the implementation */
    Deferred *deferred;                /* queued ops; NULL: not a deferred device */
};

/* Sets the stream for ops that this thread enqueues from now on; returns the previous one. */
DeviceStream device_on(DeviceStream s);
DeviceStream device_stream(void); /* the current one */
/* An event that is reached when everything enqueued on s so far has run. */
Event device_mark(Device *d, DeviceStream s);
/* Everything enqueued on s from now on runs after e. */
void device_follow(Device *d, DeviceStream s, Event e);
/* Returns when e has been reached. */
void device_finish(Device *d, Event e, DeviceWait why);
/* A download on this thread's stream and a device_finish for it (WAIT_RESULT). */
void device_fetch(Device *d, void *host, const void *tensor, size_t bytes);

/* ---- kinds, opening, calls ---- */

/* Names of CPU kernels, from the best to the plainest (onednn: avx512, with bf16 products by oneDNN's
 * primitives; "auto" never selects it). Device kinds, as an option table takes them: "auto" and "cpu" are the
 * best kernels that the processor runs, "cuda" is a GPU. */
#define CPU_KERNELS "amx|onednn|avx512_bf16|avx512|avx2|portable|reference"
#define CPU_KINDS "auto|" CPU_KERNELS
#define DEVICE_KINDS "auto|cpu|cuda|" CPU_KERNELS
const char *device_cpu_kind(int index); /* one of CPU_KINDS */
const char *device_kind(int index);     /* one of DEVICE_KINDS */

/* Opens a device of DEVICE_KINDS. ERR_UNAVAILABLE says what this machine or build lacks. place: local rank on
 * its machine; ranks take GPUs round-robin, several one GPU if there are fewer. threads: of the CPU. */
ErrorCode device_open(Device *d, const char *kind, int place, int threads, Error *err);
/* The CPU. `kind`: NULL or "auto" for the best that the processor runs, or a name above (ERR_UNAVAILABLE if
 * it can't run). threads <= 0: one per core that this process may use. WEFT_CPU in the environment replaces
 * "auto". */
ErrorCode device_open_cpu(Device *d, const char *kind, int threads, Error *err);
void device_close(Device *d);
/* Makes an open device a deferred one (deferred.c) until it is closed: nothing runs before something waits
 * for it, and streams take turns drawn from the seed. For tests: results are the same bit for bit, unless the
 * program breaks the contract. device_open_cpu calls it if WEFT_DEFER=seed is set in the environment. */
void device_defer(Device *d, uint64_t seed);
/* A device to plan for, possibly on another machine: only runtime.scratch_bytes may be called. Of
 * DEVICE_KINDS: "cuda" needs what any GPU does (the caller fills in its memory), all others the most that any
 * CPU implementation needs. It has no name. threads as above. Nothing to close. */
void device_describe(Device *d, const char *kind, const char *processor, int threads);
/* Cores this process may run on. */
int device_cpu_cores(void);

/* Calls an op. Arguments are fields of its struct, in their order or by name; those left out are 0:
 *     OP(d, add, n, a, b, out, c);
 *     OP(d, gemm, .trans_b = true, .m = tokens, .n = out, .k = in, .a = x, .b = w, .ab_type = c, ...);
 * Every call opens the guard, and keeps the profile if enabled. */
#define OP(d, slot, ...) op_##slot((d), &(slot##_args){__VA_ARGS__})
/* For the list of ops at the end of each header in ops/: the function behind OP. */
#define OP_DECLARE(id, slot, Args, ...) \
    typedef Args slot##_args;           \
    void op_##slot(Device *d, const Args *o);

/* Prints the profile as a table: calls, seconds, share of `seconds` (0: of all ops), rate. Waits for the
 * device. */
void device_profile_print(Device *d, double seconds, Text *out);

/* A hash of how this device rounds what replicas compute independently: optimizer updates and, with
 * `products`, fp32 matrix products. Devices with equal hashes produced the same bits from the same
 * operands. */
ErrorCode device_rounding(Device *d, bool products, uint64_t *out, Error *err);

/* Makes `count` n x n matrix products of fixed operands, in the layouts of the forward pass and of dgrad in
 * turn, and hashes all their bits. The same on every core, and with any number of threads. */
ErrorCode device_product_hash(Device *d, Dtype type, int64_t n, int count, uint64_t *out, Error *err);

/* Measured matrix-product peak of this device in FLOP/s: the best of square products of several sizes; 0 if
 * memory is short. Takes at most about `seconds` and `flops`: below 5e9 FLOPs the products are small, and
 * show less than the peak. */
double device_matmul_peak(Device *d, Dtype type, double seconds, double flops);
/* Measured rate of a copy within tensor memory, read plus written, in bytes/s. Copies 256 MiB if there is
 * time and `room` holds them twice. 0 if memory is short. */
double device_copy_rate(Device *d, double seconds, size_t room);
/* The same of reading alone, as decoding reads weights. */
double device_read_rate(Device *d, double seconds, size_t room);
/* Upper bound in FLOP/s of the cores' multiply-adds if every operand were in a register; of bf16, by dot
 * products or AMX. 0 if there are none, and for kinds without kernels of their own. */
double device_register_limit(const Device *d, Dtype type, double seconds);

#endif
