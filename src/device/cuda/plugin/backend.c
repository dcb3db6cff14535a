/* The backend behind a Device: streams, events, memory, transfers, errors of the device.
 *
 *     device_mark(s)     records the next event of the stream's ring; its number is the ticket
 *     device_follow      makes a stream wait for the event of a ticket
 *     device_finish      makes the host wait for it
 *
 * A ticket older than the ring stands for the event that has taken its slot. That event is later on the same
 * stream, so waiting for it waits long enough. And since it has already been enqueued, nothing that it waits
 * for can be waiting for the caller.
 *
 * Host memory of an upload may be reused at once (device.h, 3), so uploads go through pinned memory of the
 * stream: SEGMENTS of SEGMENT bytes, used round robin. A segment is reused once the copies out of it have
 * run. An upload that waits for one holds only the mutex of its stream's segments.
 *
 * One mutex guards tickets and times of ops, since several threads mark, upload and wait. */
#include "device/cuda/plugin/backend.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/needs.h"
#include "device/cuda/plugin/nvml.h"
#include "device/cuda/plugin/products.h"
#include "device/cuda/plugin/times.h"
#include "device/pool.h"

enum { RING = 1024, SEGMENTS = CUDA_SEGMENTS, SEGMENT = CUDA_SEGMENT };

typedef struct Pinned {
    pthread_mutex_t mutex;
    char *memory; /* pinned; SEGMENTS * SEGMENT */
    cudaEvent_t free[SEGMENTS];
    int current;
    size_t used; /* bytes used of the current segment */
} Pinned;

typedef struct Backend {
    const CudaHost *host;
    cudaStream_t streams[DEVICE_STREAMS];
    cudaEvent_t ring[DEVICE_STREAMS][RING];
    uint64_t marks[DEVICE_STREAMS];
    Pinned pinned[DEVICE_STREAMS];
    Times times[DEVICE_STREAMS];
    pthread_mutex_t mutex;
    Products *products;
    Communicators *communicators;
    int ordinal, chip;
    char identity[16];  /* its UUID */
    uint64_t untouched; /* see DeviceMemory */
    bool check;         /* WEFT_CUDA_CHECK=1: wait after each op */
} Backend;

static Backend *backend_of(const Device *d) { return d->impl; }

/* A thread starts on the first GPU: its first call would create a context there, whichever GPU the call is
 * for, and its allocations and launches would go there. */
static void choose_ordinal(int ordinal) {
    static _Thread_local int chosen = -1;
    if (chosen == ordinal) return;
    cudaSetDevice(ordinal);
    chosen = ordinal;
}

/* For every function that calls CUDA: any thread may call it, as the first that it calls. */
static Backend *choose_gpu(const Device *d) {
    Backend *b = backend_of(d);
    choose_ordinal(b->ordinal);
    return b;
}
void cuda_choose(Device *d) { choose_gpu(d); }

int cuda_chip(const Device *d) { return backend_of(d)->chip; }

/* ---- errors ---- */

void cuda_fatal(Device *d, const char *format, ...) {
    char message[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(message, sizeof message, format, list);
    va_end(list);
    backend_of(d)->host->fatal(ERR_UNAVAILABLE, message);
    abort(); /* fatal does not return */
}

ErrorCode cuda_refuse(Error *err, ErrorCode code, const char *format, ...) {
    va_list list;
    if (!err) return code;
    *err = (Error){.code = code};
    va_start(list, format);
    vsnprintf(err->message, sizeof err->message, format, list);
    va_end(list);
    return code;
}

/* For a fault of the device: the driver reports neither when it happened nor which op caused it. */
static void failed_before(Device *d, const char *when, const char *call, cudaError_t e) {
    const Backend *b = backend_of(d);
    cuda_fatal(d, "GPU %d failed (found %s%s): %s; %s%s", b->ordinal, when, call, cudaGetErrorString(e),
               b->host->unfinished(), b->check ? "" : "; WEFT_CUDA_CHECK=1 in the environment names the one");
}

/* For calls that fail only if the device has failed. */
static void must(Device *d, const char *what, cudaError_t e) {
    if (e != cudaSuccess) failed_before(d, what, "", e);
}

/* Called after an op's call of CUDA. An error of the call itself is reported once. If the error is still
 * there afterwards, it is a fault of the device, caused by something called before, unless all of that has
 * been waited for. */
static void called(Device *d, OpId op, cudaError_t e) {
    const Backend *b = backend_of(d);
    DeviceStream s = b->host->stream();
    /* With a communicator this wait might never end: its peer may send only after this call has returned. */
    bool waits = b->check && s < ON_COMMUNICATORS;
    if (e == cudaSuccess && waits) e = cudaStreamSynchronize(b->streams[s]);
    if (e == cudaSuccess) return;
    cudaGetLastError();
    if (!waits && cudaGetLastError() == e) failed_before(d, "in calling ", b->host->call(op), e);
    cuda_fatal(d, "GPU %d failed in %s: %s", b->ordinal, b->host->call(op), cudaGetErrorString(e));
}

void cuda_launched(Device *d, OpId op) { called(d, op, cudaGetLastError()); }

/* The limits of all chips from sm_80 on. */
void cuda_check_grid(Device *d, OpId op, int64_t x, int64_t y) {
    enum { MOST_X = INT32_MAX, MOST_Y = 65535 };
    if (x > MOST_X || y > MOST_Y)
        cuda_fatal(
            d,
            "%s would take %lld x %lld blocks of threads; GPUs take %d x %d at most: give it less at a "
            "time (train.microbatch, train.context, train.loss_rows)",
            backend_of(d)->host->call(op), (long long)x, (long long)y, MOST_X, MOST_Y);
}

void cuda_allow_shared(Device *d, OpId op, const void *kernel, size_t bytes) {
    enum { WITHOUT_ASKING = 48 << 10 };
    if (bytes <= WITHOUT_ASKING) return;
    choose_gpu(d);
    cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
    if (e != cudaSuccess)
        cuda_fatal(d, "%s needs %zu bytes of shared memory, which this GPU does not have: %s",
                   backend_of(d)->host->call(op), bytes, cudaGetErrorString(e));
}

/* ---- what kernels are launched with ---- */

Communicators **cuda_communicators(Device *d) { return &backend_of(d)->communicators; }

cudaStream_t cuda_stream_of(Device *d, DeviceStream s) { return choose_gpu(d)->streams[s]; }
cudaStream_t cuda_stream(Device *d) { return cuda_stream_of(d, backend_of(d)->host->stream()); }

void *cuda_scratch(Device *d, size_t bytes) {
    if (bytes > d->scratch_size)
        cuda_fatal(d, "an op needs %zu bytes of scratch, and %zu were planned: a bug", bytes,
                   d->scratch_size);
    return d->scratch;
}

static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    (void)d;
    return cuda_scratch_needed(needs);
}

/* ---- streams and events ---- */

static cudaEvent_t event_of(const Backend *b, Event e) {
    return b->ring[e % DEVICE_STREAMS][e / DEVICE_STREAMS % RING];
}

/* Numbers start at 1, so that no ticket is 0. */
static Event mark(Device *d, DeviceStream s) {
    Backend *b = choose_gpu(d);
    pthread_mutex_lock(&b->mutex);
    Event e = ++b->marks[s] * DEVICE_STREAMS + (Event)s;
    must(d, "when an event was recorded", cudaEventRecord(event_of(b, e), b->streams[s]));
    pthread_mutex_unlock(&b->mutex);
    return e;
}

static void follow(Device *d, DeviceStream s, Event e) {
    if (e == 0) return;
    Backend *b = choose_gpu(d);
    pthread_mutex_lock(&b->mutex);
    must(d, "when a stream was to wait", cudaStreamWaitEvent(b->streams[s], event_of(b, e), 0));
    pthread_mutex_unlock(&b->mutex);
}

static void read_what_ended(Device *d) {
    Backend *b = choose_gpu(d);
    pthread_mutex_lock(&b->mutex);
    for (int s = 0; s < DEVICE_STREAMS; s++) must(d, "when times were read", times_read(&b->times[s]));
    pthread_mutex_unlock(&b->mutex);
}

/* Waits without the mutex, so that other threads can go on. They may record the event again, which only makes
 * the wait longer. */
static void finish(Device *d, Event e) {
    if (e != 0) must(d, "in a wait for a result", cudaEventSynchronize(event_of(choose_gpu(d), e)));
    read_what_ended(d);
}

bool cuda_reached(Device *d, Event e) {
    cudaError_t error = e == 0 ? cudaSuccess : cudaEventQuery(event_of(choose_gpu(d), e));
    if (error == cudaErrorNotReady)
        cudaGetLastError(); /* clears the error, which is no fault: the next launch would report it */
    else
        must(d, "in a look for a result", error);
    return error == cudaSuccess;
}

void cuda_identity(Device *d, char out[COMMUNICATOR_IDENTITY]) {
    memset(out, 0, COMMUNICATOR_IDENTITY);
    memcpy(out, backend_of(d)->identity, sizeof backend_of(d)->identity);
}

/* A communicator that was never joined has no stream. */
static void finish_all(Device *d) {
    const Backend *b = choose_gpu(d);
    for (int s = 0; s < DEVICE_STREAMS; s++)
        if (b->streams[s]) must(d, "in a wait for the end", cudaStreamSynchronize(b->streams[s]));
}

/* ---- times ---- */

static int64_t begin_time(Device *d) {
    Backend *b = choose_gpu(d);
    DeviceStream s = b->host->stream();
    int64_t number;
    pthread_mutex_lock(&b->mutex);
    must(d, "when a time was to be taken", times_begin(&b->times[s], b->streams[s], &number));
    pthread_mutex_unlock(&b->mutex);
    return number;
}

static void end_time(Device *d, int64_t begun, double *to) {
    Backend *b = choose_gpu(d);
    DeviceStream s = b->host->stream();
    pthread_mutex_lock(&b->mutex);
    must(d, "when a time was to be taken", times_end(&b->times[s], b->streams[s], begun, to));
    pthread_mutex_unlock(&b->mutex);
}

static void stamp(Device *d, double *to) {
    Backend *b = choose_gpu(d);
    DeviceStream s = b->host->stream();
    pthread_mutex_lock(&b->mutex);
    must(d, "when a time was to be taken", times_stamp(&b->times[s], b->streams[s], to));
    pthread_mutex_unlock(&b->mutex);
}

static void read_times(Device *d) {
    finish_all(d);
    read_what_ended(d);
}

/* ---- memory ---- */

/* Allocations are rare, so they may wait. They are multiples of the driver's granularity, so that what a pool
 * has taken is exactly what the GPU has lost. */
static void *take(Device *d, size_t bytes) {
    const Backend *b = choose_gpu(d);
    void *memory = NULL;
    if (bytes > SIZE_MAX - CUDA_GRANULARITY) return NULL;
    if (cudaMalloc(&memory, pool_taken(bytes, CUDA_GRANULARITY)) != cudaSuccess) {
        cudaGetLastError(); /* clears the error, which is no fault: the next launch would report it */
        return NULL;
    }
    must(d, "when memory was cleared", cudaMemsetAsync(memory, 0, bytes, b->streams[ON_COMPUTE]));
    must(d, "when memory was cleared", cudaStreamSynchronize(b->streams[ON_COMPUTE]));
    return memory;
}

static void give(Device *d, void *memory, size_t bytes) {
    (void)bytes;
    finish_all(d);
    must(d, "when memory was given back", cudaFree(memory));
}

static size_t available(const Device *d) {
    size_t there = 0, total = 0;
    choose_gpu(d);
    return cudaMemGetInfo(&there, &total) == cudaSuccess ? there : 0;
}

static bool memory(const Device *d, DeviceMemory *m) {
    const Backend *b = choose_gpu(d);
    size_t there = 0, total = 0;
    bool known = cudaMemGetInfo(&there, &total) == cudaSuccess;
    *m = (DeviceMemory){.total = total, .available = there, .untouched = b->untouched};
    memcpy(m->identity, b->identity, sizeof m->identity);
    return known;
}

/* Ends the process if host memory is exhausted, as mem_alloc does. */
static void *host_take(Device *d, size_t bytes) {
    void *memory = NULL;
    choose_gpu(d);
    cudaError_t e = cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e != cudaSuccess)
        cuda_fatal(d, "no %zu bytes of pinned host memory: %s", bytes, cudaGetErrorString(e));
    memset(memory, 0, bytes);
    return memory;
}

static void host_give(Device *d, void *host) {
    finish_all(d);
    must(d, "when host memory was given back", cudaFreeHost(host));
}

/* ---- transfers ---- */

static void zero(Device *d, const ZeroArgs *o) {
    if (o->bytes) called(d, OP_ZERO, cudaMemsetAsync(o->p, 0, o->bytes, cuda_stream(d)));
}

static void copy(Device *d, const CopyArgs *o) {
    if (o->bytes)
        called(d, OP_COPY,
               cudaMemcpyAsync(o->to, o->from, o->bytes, cudaMemcpyDeviceToDevice, cuda_stream(d)));
}

static void copy_rows(Device *d, const CopyRowsArgs *o) {
    if (o->bytes && o->rows)
        called(d, OP_COPY_ROWS,
               cudaMemcpy2DAsync(o->to, o->to_stride, o->from, o->from_stride, o->bytes, (size_t)o->rows,
                                 cudaMemcpyDeviceToDevice, cuda_stream(d)));
}

/* Returns the rest of the current segment, or of the next if it is full, and limits *bytes to it. */
static char *pinned_segment(Device *d, Pinned *s, cudaStream_t stream, size_t *bytes) {
    if (s->used == SEGMENT) {
        must(d, "in an upload", cudaEventRecord(s->free[s->current], stream));
        s->current = (s->current + 1) % SEGMENTS;
        must(d, "in an upload", cudaEventSynchronize(s->free[s->current]));
        s->used = 0;
    }
    if (*bytes > SEGMENT - s->used) *bytes = SEGMENT - s->used;
    char *at = s->memory + (size_t)s->current * SEGMENT + s->used;
    s->used += *bytes;
    return at;
}

static void upload(Device *d, const UploadArgs *o) {
    Backend *b = choose_gpu(d);
    DeviceStream s = b->host->stream();
    pthread_mutex_lock(&b->pinned[s].mutex);
    for (size_t done = 0, bytes; done < o->bytes; done += bytes) {
        bytes = o->bytes - done;
        char *at = pinned_segment(d, &b->pinned[s], b->streams[s], &bytes);
        memcpy(at, (const char *)o->host + done, bytes);
        called(d, OP_UPLOAD,
               cudaMemcpyAsync((char *)o->tensor + done, at, bytes, cudaMemcpyHostToDevice, b->streams[s]));
    }
    pthread_mutex_unlock(&b->pinned[s].mutex);
}

/* Asynchronous only if `host` is pinned; otherwise the driver waits here. */
static void download(Device *d, const DownloadArgs *o) {
    if (o->bytes)
        called(d, OP_DOWNLOAD,
               cudaMemcpyAsync(o->host, o->tensor, o->bytes, cudaMemcpyDeviceToHost, cuda_stream(d)));
}

/* ---- products ---- */

static void gemm(Device *d, const GemmArgs *o) {
    if (d->profiling)
        d->profile[OP_GEMM].flops +=
            2.0 * (double)o->m * (double)o->n * (double)(o->splits.runs ? split_length(o->splits) : o->k);
    if (o->m == 0 || o->n == 0) return;
    if (o->splits.runs) {
        split_k_gemm(d, o);
        return;
    }
    void *workspace = cuda_scratch(d, cuda_products_workspace());
    const char *problem = products_run(backend_of(d)->products, o, workspace, cuda_stream(d));
    if (problem)
        cuda_fatal(d, "gemm %lld x %lld x %lld, %s to %s%s%s: cuBLASLt: %s", (long long)o->m, (long long)o->n,
                   (long long)o->k, o->ab_type == DTYPE_F32 ? "fp32" : "bf16",
                   o->c_type == DTYPE_F32 ? "fp32" : "bf16", o->trans_a ? ", A transposed" : "",
                   o->trans_b ? ", B transposed" : "", problem);
    cuda_launched(d, OP_GEMM);
}

/* ---- facts ---- */

static cudaError_t describe(CudaDeviceFacts *f, int ordinal, struct cudaDeviceProp *p) {
    cudaError_t e = cudaGetDeviceProperties(p, ordinal);
    if (e != cudaSuccess) return e;
    snprintf(f->name, sizeof f->name, "%.127s", p->name);
    f->memory = p->totalGlobalMem;
    f->major = p->major, f->minor = p->minor;
    return e;
}

static void facts(CudaFacts *f) {
    struct cudaDeviceProp p;
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* read by the first call of CUDA; see communicators.c */
    *f = (CudaFacts){.products = products_version()};
    cudaDriverGetVersion(&f->driver);
    cudaRuntimeGetVersion(&f->runtime);
    cudaError_t e = cudaGetDeviceCount(&f->devices);
    if (e != cudaSuccess) {
        f->devices = 0;
        snprintf(f->problem, sizeof f->problem, "%s", cudaGetErrorString(e));
        cudaGetLastError();
    } else if (f->devices == 0) {
        snprintf(f->problem, sizeof f->problem, "the driver sees no GPU");
    }
    for (int i = 0; i < f->devices && i < CUDA_DEVICES_MAX; i++) describe(&f->device[i], i, &p);
}

static uint32_t reached_from(int ordinal, int devices) {
    uint32_t all = 0;
    for (int i = 0; i < devices && i < CUDA_DEVICES_MAX; i++) {
        int reaches = 0;
        if (i != ordinal && cudaDeviceCanAccessPeer(&reaches, ordinal, i) == cudaSuccess && reaches)
            all |= 1u << i;
    }
    return all;
}

/* Errors are ignored: opening the GPU meets them again, and reports them. */
static void survey(CudaFacts *f) {
    Error err = {.message = ""};
    for (int i = 0; i < f->devices && i < CUDA_DEVICES_MAX; i++) {
        size_t there = 0, total = 0;
        choose_ordinal(i);
        if (cudaMemGetInfo(&there, &total) == cudaSuccess) f->device[i].available = there;
        f->device[i].reaches = reached_from(i, f->devices);
    }
    cudaGetLastError();
    f->nccl = communicators_version(&err);
    snprintf(f->no_nccl, sizeof f->no_nccl, "%.255s", err.message);
}

/* ---- opening ---- */

static ErrorCode failed(Error *err, ErrorCode code, const char *what, cudaError_t e) {
    return cuda_refuse(err, code, "run.device: cuda: %s: %s", what, cudaGetErrorString(e));
}

static cudaError_t open_pinned(Pinned *p) {
    cudaError_t e = cudaHostAlloc((void **)&p->memory, (size_t)SEGMENTS * SEGMENT, cudaHostAllocDefault);
    for (int i = 0; i < SEGMENTS && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&p->free[i], cudaEventDisableTiming);
    return e;
}

/* Nothing is uploaded on communicators. Their blocks go before those of other kernels: otherwise a message
 * would start only when the product before it has placed all of its blocks. */
static cudaError_t open_stream(Backend *b, DeviceStream s) {
    int lowest = 0, highest = 0; /* the lowest is the default, and a higher priority is a smaller number */
    cudaError_t e = cudaDeviceGetStreamPriorityRange(&lowest, &highest);
    if (e == cudaSuccess)
        e = cudaStreamCreateWithPriority(&b->streams[s], cudaStreamNonBlocking,
                                         s < ON_COMMUNICATORS ? lowest : highest);
    for (int i = 0; i < RING && e == cudaSuccess; i++)
        e = cudaEventCreateWithFlags(&b->ring[s][i], cudaEventDisableTiming);
    return e == cudaSuccess && s < ON_COMMUNICATORS ? open_pinned(&b->pinned[s]) : e;
}

ErrorCode cuda_open_stream(Device *d, DeviceStream s, Error *err) {
    cudaError_t e = open_stream(choose_gpu(d), s);
    return e == cudaSuccess ? OK : failed(err, ERR_UNAVAILABLE, "streams and pinned memory", e);
}

/* Also closes a backend whose opening failed. If an abort of communicators hangs, everything stays:
 * the process is about to end. */
static void close_backend(Device *d) {
    Backend *b = backend_of(d);
    if (!b) return;
    choose_gpu(d);
    if (!communicators_close(d)) return;
    for (int s = 0; s < DEVICE_STREAMS; s++) {
        if (b->streams[s]) cudaStreamSynchronize(b->streams[s]);
        for (int i = 0; i < RING; i++)
            if (b->ring[s][i]) cudaEventDestroy(b->ring[s][i]);
        for (int i = 0; i < SEGMENTS; i++)
            if (b->pinned[s].free[i]) cudaEventDestroy(b->pinned[s].free[i]);
        if (b->pinned[s].memory) cudaFreeHost(b->pinned[s].memory);
        pthread_mutex_destroy(&b->pinned[s].mutex);
        times_close(&b->times[s]);
        if (b->streams[s]) cudaStreamDestroy(b->streams[s]);
    }
    products_close(b->products);
    pthread_mutex_destroy(&b->mutex);
    free(b);
    d->impl = NULL;
}

static void fill_ops(Ops *ops) {
    *ops = (Ops){.gemm = gemm,
                 .zero = zero,
                 .copy = copy,
                 .copy_rows = copy_rows,
                 .upload = upload,
                 .download = download};
    elements_fill(ops);
    norms_fill(ops);
    embedding_fill(ops);
    experts_fill(ops);
    attention_fill(ops);
    scans_fill(ops);
    mamba_fill(ops);
    loss_fill(ops);
    optimizers_fill(ops);
    gradients_fill(ops);
}

static ErrorCode start(Device *d, Backend *b, int ordinal, Error *err) {
    CudaDeviceFacts f = {.name = ""};
    struct cudaDeviceProp p;
    cudaError_t e = describe(&f, ordinal, &p);
    if (e == cudaSuccess) b->untouched = nvml_available(p.uuid.bytes); /* before there is a context */
    choose_gpu(d);                                                     /* ignores errors */
    if (e == cudaSuccess) e = cudaSetDevice(ordinal);
    if (e != cudaSuccess) return failed(err, ERR_UNAVAILABLE, "no GPU can be used", e);
    d->widest_head = attention_widest(p.sharedMemPerBlockOptin);
    b->chip = 10 * f.major + f.minor;
    snprintf(d->processor, sizeof d->processor, "%s", f.name);
    d->memory = f.memory;
    memcpy(b->identity, &p.uuid, sizeof b->identity);
    if (f.major < 8)
        return cuda_refuse(err, ERR_UNAVAILABLE,
                           "run.device: cuda: %s has compute capability %d.%d; 8.0 or newer is needed",
                           f.name, f.major, f.minor);
    for (DeviceStream s = ON_COMPUTE; s < ON_COMMUNICATORS; s++) PASS_ON(cuda_open_stream(d, s, err));
    b->products = products_open(err);
    return b->products ? OK : ERR_UNAVAILABLE;
}

static ErrorCode open_backend(Device *d, int ordinal, const CudaHost *host, Error *err) {
    Backend *b = calloc(1, sizeof *b);
    const char *check = getenv("WEFT_CUDA_CHECK");
    if (!b) return failed(err, ERR_MEMORY, "the backend", cudaErrorMemoryAllocation);
    b->host = host;
    b->ordinal = ordinal;
    b->check = check && *check && strcmp(check, "0") != 0;
    pthread_mutex_init(&b->mutex, NULL);
    for (int s = 0; s < DEVICE_STREAMS; s++) pthread_mutex_init(&b->pinned[s].mutex, NULL);
    d->impl = b;
    d->name = "cuda";
    d->communicators = communicators_table();
    d->runtime = (DeviceRuntime){.mark = mark,
                                 .follow = follow,
                                 .finish = finish,
                                 .take = take,
                                 .give = give,
                                 .available = available,
                                 .host_take = host_take,
                                 .host_give = host_give,
                                 .memory = memory,
                                 .begin_time = begin_time,
                                 .end_time = end_time,
                                 .stamp = stamp,
                                 .read_times = read_times,
                                 .scratch_bytes = scratch_bytes,
                                 .close = close_backend};
    fill_ops(d->ops);
    ErrorCode code = start(d, b, ordinal, err);
    if (code != OK) close_backend(d);
    return code;
}

const CudaPlugin *cuda_plugin(void) {
    static const CudaPlugin plugin = {.abi = CUDA_ABI,
                                      .device_bytes = sizeof(Device),
                                      .ops_bytes = sizeof(Ops),
                                      .facts_bytes = sizeof(CudaFacts),
                                      .host_bytes = sizeof(CudaHost),
                                      .facts = facts,
                                      .survey = survey,
                                      .open = open_backend};
    return &plugin;
}
