/* Opens and closes devices, and measures them. Slots of the op table hold the reference, or an optimised op
 * that replaces it. Nothing here knows a model.
 *
 * Elsewhere called: backend registry (ggml_backend), CPU feature dispatch. */
#include "device/device.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

#include "base/clock.h"
#include "base/hash.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cpu/gemm.h"
#include "device/cpu/optimised.h"
#include "device/cpu/waiting.h"
#include "device/cuda/cuda.h"
#include "device/pool.h"

const char *dtype_name(Dtype t) { return t == DTYPE_F32 ? "fp32" : "bf16"; }

/* Cores of this process, not of the machine: launchers bind each rank to some of them, and with more threads
 * than cores every op waits for the slowest. */
int device_cpu_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    /* More processors than fit into a cpu_set_t. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* ---- kinds ---- */

static const char CUDA[] = "cuda";

/* From the best to the plainest. The operating system must also save the registers; __builtin_cpu_supports
 * checks that. */
#if defined(__x86_64__)
static bool runs_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool runs_avx512_bf16(void) { return runs_avx512() && __builtin_cpu_supports("avx512bf16"); }

/* Linux enables tiles, whose contents are 8 KiB in each thread, only for a process that asks for them. */
static bool runs_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18, AMX_BF16 = 22, AMX_TILE = 24 };
    unsigned eax, ebx, ecx, edx;
    return runs_avx512_bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx >> AMX_BF16 & 1 &&
           edx >> AMX_TILE & 1 && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

static bool runs_onednn(void) { return runs_avx512() && gemm_native_possible(); }

/* Intel's processors since Golden Cove, recognised by avx512_fp16, start a bf16 dot product only every second
 * cycle, so they get half the FLOPs of fp32 that way. Fast bf16 there is AMX, which a virtual machine may
 * hide; without it, operands are widened. */
static bool gains_by_bf16(void) {
    unsigned eax, ebx, ecx, edx;
    bool halved =
        __builtin_cpu_is("intel") && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && edx >> 23 & 1;
    return runs_avx512_bf16() && !halved;
}
#endif
static bool runs_never(void) { return false; }
static bool runs_always(void) { return true; }

typedef struct Kind {
    const char *name;
    bool (*runs)(void);
    bool (*gains)(void);    /* whether "auto" selects it; NULL: whenever it runs */
    bool native_bf16;       /* bf16 products are faster than fp32 ones ... */
    bool primitives;        /* ... and oneDNN's */
    const Kernels *kernels; /* NULL: the reference */
} Kind;

/* In the order of CPU_KERNELS. Every build knows every name. */
static const Kind kinds[] = {
#if defined(__x86_64__)
    {"amx", runs_amx, NULL, true, false, &kernels_amx},
    {"onednn", runs_onednn, runs_never, true, true, &kernels_avx512},
    {"avx512_bf16", runs_avx512_bf16, gains_by_bf16, true, false, &kernels_avx512_bf16},
    {"avx512", runs_avx512, NULL, false, false, &kernels_avx512},
    {"avx2", runs_avx2, NULL, false, false, &kernels_avx2},
#else
    {"amx", runs_never, NULL, true, false, NULL},
    {"onednn", runs_never, NULL, true, true, NULL},
    {"avx512_bf16", runs_never, NULL, true, false, NULL},
    {"avx512", runs_never, NULL, false, false, NULL},
    {"avx2", runs_never, NULL, false, false, NULL},
#endif
    {"portable", runs_always, NULL, false, false, &kernels_portable},
    {"reference", runs_always, NULL, false, false, NULL},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

/* Index 0 is "auto", which is not a kind but a choice among them. */
const char *device_cpu_kind(int index) {
    CHECK(index >= 0 && index <= KINDS);
    return index == 0 ? "auto" : kinds[index - 1].name;
}

/* First the devices, then the kernels of the CPU. */
const char *device_kind(int index) {
    static const char *const devices[] = {"auto", "cpu", CUDA};
    enum { DEVICES = sizeof devices / sizeof *devices };
    return index < DEVICES ? devices[index] : device_cpu_kind(index - DEVICES + 1);
}

/* A kind requested by name that does not run here is an error; no other kind replaces it, because its bits
 * may differ. Only "auto" tries the next. */
static ErrorCode find_kind(const char *name, const Kind **kind, Error *err) {
    const char *from = "";
    if (!name || strcmp(name, "auto") == 0) {
        name = getenv("WEFT_CPU");
        from = "WEFT_CPU: ";
    }
    bool automatic = !name || !*name || strcmp(name, "auto") == 0;
    for (int i = 0; i < KINDS; i++) {
        if (!automatic && strcmp(name, kinds[i].name) != 0) continue;
        *kind = &kinds[i];
        bool passed_over = automatic && kinds[i].gains && !kinds[i].gains();
        if (kinds[i].runs() && !passed_over) return OK;
        if (!automatic)
            return error_set(err, ERR_UNAVAILABLE, "%sthis processor cannot run \"%s\" kernels; use auto",
                             from, name);
    }
    char shown[64];
    return error_set(err, ERR_UNAVAILABLE, "%sunknown CPU kernels \"%s\"; expected one of " CPU_KINDS, from,
                     error_escape(shown, sizeof shown, name, strlen(name)));
}

/* Ops have ended when they return, so every event has already been reached. */
static Event mark_nothing(Device *d, DeviceStream s) {
    (void)d, (void)s;
    return 0;
}
static void follow_nothing(Device *d, DeviceStream s, Event e) { (void)d, (void)s, (void)e; }
static void finish_nothing(Device *d, Event e) { (void)d, (void)e; }

static const DeviceRuntime cpu_runtime = {.mark = mark_nothing,
                                          .follow = follow_nothing,
                                          .finish = finish_nothing,
                                          .take = cpu_take,
                                          .give = cpu_give,
                                          .available = cpu_available,
                                          .host_take = cpu_host_take,
                                          .host_give = cpu_host_give,
                                          .scratch_bytes = reference_scratch_bytes,
                                          .close = optimised_close};

/* Only shown to people (doctor, the header of a plan): if anything fails, a placeholder remains. */
static void read_processor_name(char *out, size_t size) {
    snprintf(out, size, "unknown processor");
    FILE *f = fopen("/proc/cpuinfo", "r");
    if (!f) return;
    char line[512];
    while (fgets(line, sizeof line, f)) {
        const char *value = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !value) continue;
        value += 1 + strspn(value + 1, " \t");
        snprintf(out, size, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    fclose(f);
}

/* Read from the environment, so that any program or test can run on a deferred device without changes. */
static ErrorCode defer_if_asked(Device *d, Error *err) {
    const char *seed = getenv("WEFT_DEFER");
    char *end, shown[64];
    if (!seed || !*seed) return OK;
    uint64_t value = strtoull(seed, &end, 10);
    if (*end)
        return error_set(err, ERR_USAGE, "WEFT_DEFER is \"%s\"; expected a number, the seed of an order",
                         error_escape(shown, sizeof shown, seed, strlen(seed)));
    device_defer(d, value);
    return OK;
}

/* Fills the slots with the reference, then overrides those that have a faster implementation. */
ErrorCode device_open_cpu(Device *d, const char *name, int threads, Error *err) {
    *d = (Device){0};
    const Kind *kind = NULL;
    TRY(find_kind(name, &kind, err));
    d->name = kind->name;
    d->native_bf16 = kind->native_bf16;
    d->threads = threads > 0 ? threads : device_cpu_cores();
    read_processor_name(d->processor, sizeof d->processor);
    waiting_watch(d->threads);
    d->widest_head = HEAD_DIM_MAX;
    d->runtime = cpu_runtime;
    d->ops = mem_alloc(sizeof *d->ops);
    reference_fill_ops(d->ops);
    ErrorCode code = kind->kernels ? optimised_open(d, kind->kernels, kind->primitives, err) : OK;
    if (code == OK) code = defer_if_asked(d, err);
    if (code != OK) device_close(d);
    return code;
}

/* "auto" is always the CPU: a GPU rounds differently, so it must be requested explicitly. */
ErrorCode device_open(Device *d, const char *kind, int place, int threads, Error *err) {
    if (strcmp(kind, CUDA) == 0) {
        TRY(cuda_open(d, place, err));
        d->threads = threads > 0 ? threads : device_cpu_cores();
        return OK;
    }
    return device_open_cpu(d, strcmp(kind, "cpu") == 0 ? NULL : kind, threads, err);
}

/* For plans of machines other than this one. The reference takes no scratch, so the optimised ops' needs are
 * the upper bound. */
void device_describe(Device *d, const char *kind, const char *processor, int threads) {
    *d = (Device){.threads = threads > 0 ? threads : device_cpu_cores(), .widest_head = HEAD_DIM_MAX};
    d->runtime.scratch_bytes = optimised_scratch_bytes; /* the reference takes none */
    if (strcmp(kind, CUDA) == 0) cuda_describe(d);
    snprintf(d->processor, sizeof d->processor, "%s", processor);
}

/* In reverse order of opening; also works on a device that was opened only half way. */
void device_close(Device *d) {
    deferred_close(d);
    if (d->runtime.close) d->runtime.close(d);
    free(d->ops);
    *d = (Device){0};
}

/* ---- streams ---- */

/* Per thread: the thread that communicates enqueues at the same time as the one that trains, each on its own
 * stream. */
static _Thread_local DeviceStream current = ON_COMPUTE;

/* Returns the previous stream, so that a caller can restore it and calls may nest. */
DeviceStream device_on(DeviceStream s) {
    DeviceStream before = current;
    current = s;
    return before;
}

DeviceStream device_stream(void) { return current; }

Event device_mark(Device *d, DeviceStream s) { return d->runtime.mark(d, s); }
void device_follow(Device *d, DeviceStream s, Event e) { d->runtime.follow(d, s, e); }

static long long now(void) { return (long long)(clock_seconds() * 1e9); }

/* Waits are counted by reason, because tests limit a step to one or two. If several threads wait, the last to
 * end clears waits_since; the others restart the time. */
void device_finish(Device *d, Event e, DeviceWait why) {
    atomic_fetch_add_explicit(&d->waits[why], 1, memory_order_relaxed);
    if (!d->communicators) {
        d->runtime.finish(d, e);
        return;
    }
    if (atomic_fetch_add(&d->waiting, 1) == 0) atomic_store(&d->waits_since, now());
    d->runtime.finish(d, e);
    atomic_store(&d->waits_since, atomic_fetch_sub(&d->waiting, 1) == 1 ? 0 : now());
}

/* Without OP: threads other than the training thread may call this, and the profile belongs to that one. */
void device_fetch(Device *d, void *host, const void *tensor, size_t bytes) {
    pool_unlock_all();
    op_enqueue(d, OP_DOWNLOAD, &(DownloadArgs){host, tensor, bytes});
    pool_lock_all();
    device_finish(d, device_mark(d, current), WAIT_RESULT);
}

/* ---- peak ---- */

/* Remaining budget of a measurement. */
typedef struct {
    double end, flops; /* on the clock of clock_seconds */
} PeakLimit;

/* Work that is repeated: `run` enqueues the i-th repetition; each has the same work. */
typedef struct Repeated {
    void (*run)(Device *d, const struct Repeated *what, int i);
    double work;
    int64_t n;
    Dtype type;
    char *a, *b, *c;
} Repeated;

static double product_flops(int64_t n) { return 2.0 * (double)n * (double)n * (double)n; }

/* Work per second. The best, not the mean, since disturbances only ever slow a measurement down. At least two
 * repetitions, because the first prepares its kernel. The host waits once for several repetitions that
 * together take some milliseconds: a GPU finishes a single product before the host returns from a wait. */
static double best_rate(Device *d, const Repeated *what, double seconds, PeakLimit *limit) {
    enum { MOST = 256 };
    const double worth_a_wait = 2e-3;
    double best = 0, end = clock_seconds() + seconds;
    int count = 1;
    for (int i = 0; i < 2 || (clock_seconds() < end && limit->flops >= count * what->work); i++) {
        double start = clock_seconds();
        for (int k = 0; k < count; k++) what->run(d, what, i + k);
        d->runtime.finish(d, device_mark(d, ON_COMPUTE));
        double took = clock_seconds() - start;
        best = fmax(best, count * what->work / took);
        limit->flops -= count * what->work;
        if (took < worth_a_wait && count < MOST) count *= 2;
    }
    return best;
}

/* Alternates between the layouts of the forward pass and of dgrad. */
static void run_product(Device *d, const Repeated *p, int i) {
    OP(d, gemm, .trans_b = i % 2 == 0, .m = p->n, .n = p->n, .k = p->n, .a = p->a, .b = p->b,
       .ab_type = p->type, .c = p->c, .c_type = p->type, .ldc = p->n);
}

static void run_copy(Device *d, const Repeated *p, int i) {
    (void)i;
    OP(d, copy, p->b, p->a, (size_t)p->n);
}

/* The count, which stays 0, is in what a copy would write. */
static void run_read(Device *d, const Repeated *p, int i) {
    (void)i;
    OP(d, count_nonfinite, p->n / (int64_t)sizeof(float), p->a, DTYPE_F32, (int64_t *)(void *)p->b);
}

/* 16 MiB per matrix in fp32: beyond most caches, as the matrices of a model are. A discrete GPU has caches of
 * 50 MB, and only the largest size fills it. */
enum { PEAK_LARGEST = 2048, PEAK_LARGEST_OWN = 8192 };

/* Operands and scratch of the products, in this order. The needs are minimal: no other op will run, and the
 * scratch of a product without splits depends on its dtype alone. Called twice, dry and real, as a pool
 * requires. */
static char *take_operands(Pool *p, Device *d, Dtype type, size_t matrix) {
    DeviceNeeds needs = {.compute = type,
                         .tokens = 1,
                         .hidden = 2,
                         .intermediate = 1,
                         .vocab = 1,
                         .logits_rows = 1,
                         .attention = {.tokens = 1, .heads = 1, .kv_heads = 1, .head_dim = 2}};
    char *operands = pool_take(p, 3 * matrix);
    d->scratch_size = d->runtime.scratch_bytes(d, &needs);
    d->scratch = pool_take(p, d->scratch_size);
    return operands;
}

/* Operands are neither zeros nor equal rows, for which a processor may be faster: they are numbers of both
 * signs, and each row starts at another offset of a periodic sequence. */
static void fill_operands(Device *d, char *operands, Dtype type, int64_t n) {
    enum { PERIOD = 251, STRIDE = 37 };
    float row[PEAK_LARGEST_OWN + PERIOD];
    size_t bytes = (size_t)n * dtype_bytes(type);
    for (int64_t i = 0; i < n + PERIOD; i++)
        tensor_set(row, i, type, (float)(i * i % PERIOD) / PERIOD - 0.5f);
    for (int64_t i = 0; i < 2 * n; i++) {
        const char *from = (const char *)row + (size_t)(i * STRIDE % PERIOD) * dtype_bytes(type);
        OP(d, upload, operands + (size_t)i * bytes, from, bytes);
    }
}

/* Takes its own memory, so that the peak can be measured before anything is planned. Returns 0 if there is
 * not enough. */
static double rate_of_size(Device *d, Dtype type, int64_t n, double seconds, PeakLimit *limit) {
    size_t matrix = (size_t)n * (size_t)n * dtype_bytes(type);
    double best = 0;
    Pool p = {.name = "products"};
    take_operands(&p, d, type, matrix);
    if (pool_commit(&p, d, NULL) == OK) {
        char *a = take_operands(&p, d, type, matrix);
        Repeated product = {run_product, product_flops(n), n, type, a, a + matrix, a + 2 * matrix};
        fill_operands(d, a, type, n);
        best = best_rate(d, &product, seconds, limit);
    }
    pool_free(&p);
    return best;
}

/* From small products to large ones, as far as the limits allow, so that a slow device or a short run does
 * not wait seconds for one product. Scratch and profiling are restored, because this may be called during a
 * run. */
double device_matmul_peak(Device *d, Dtype type, double seconds, double flops) {
    static const int64_t sizes[] = {128, 512, 1024, 1536, PEAK_LARGEST, 4096, PEAK_LARGEST_OWN};
    const int64_t largest = d->separate_memory ? PEAK_LARGEST_OWN : PEAK_LARGEST;
    int count = 0;
    while (count < (int)(sizeof sizes / sizeof *sizes) && sizes[count] <= largest) count++;
    size_t size = d->scratch_size;
    char *scratch = d->scratch;
    bool profiling = d->profiling;
    double best = 0;
    PeakLimit limit = {clock_seconds() + seconds, flops};
    d->profiling = false;
    for (int i = 0; i < count; i++) {
        double two = 2 * product_flops(sizes[i]);
        bool late = i > 1 && clock_seconds() + two / best > limit.end; /* the first may have been disturbed */
        if (best > 0 && (late || two > limit.flops)) break;
        best = fmax(best, rate_of_size(d, type, sizes[i], seconds / count, &limit));
    }
    d->scratch = scratch, d->scratch_size = size, d->profiling = profiling;
    return best;
}

/* ---- rounding ---- */

enum { ROUNDED = 128 }; /* rows and columns */

/* Tensor memory of the rounding test, in this order. Called twice, dry and real. */
typedef struct Rounded {
    char *matrices, *moments; /* matrices: a, b and their product */
    OptimizerStep *step;
} Rounded;

static char *rounded_matrix(const Rounded *r, int i) {
    return r->matrices + (size_t)i * ROUNDED * ROUNDED * sizeof(float);
}

static Rounded take_rounded(Pool *p, Device *d) {
    size_t matrix = (size_t)ROUNDED * ROUNDED * sizeof(float);
    char *matrices = take_operands(p, d, DTYPE_F32, matrix), *moments = pool_take(p, 2 * matrix);
    OptimizerStep *step = pool_take(p, sizeof *step);
    return (Rounded){matrices, moments, step};
}

static uint64_t hash_rounded(Device *d, const char *tensor, float *host) {
    device_fetch(d, host, tensor, (size_t)ROUNDED * ROUNDED * sizeof *host);
    return hash64(host, (size_t)ROUNDED * ROUNDED * sizeof *host);
}

/* Arbitrary numbers, chosen such that every rounding changes something. */
static void update_rounded(Device *d, const Rounded *r) {
    const OptimizerStep step = {0.01f, 0.1f, 0.05f, 0.7f, 0, 1};
    const AdamW adamw = {0.9f, 0.95f, 1e-8f, 0.1f};
    const Sgd sgd = {0.9f, 0.1f, true};
    const StateStore store = {.type = DTYPE_F32};
    const int64_t n = (int64_t)ROUNDED * ROUNDED;
    float *param = (float *)(void *)rounded_matrix(r, 0), *m = (float *)(void *)r->moments;
    const float *grad = (const float *)(const void *)rounded_matrix(r, 1);
    OP(d, upload, r->step, &step, sizeof step);
    OP(d, zero, m, 2 * (size_t)n * sizeof *m);
    for (int i = 0; i < 2; i++)
        OP(d, adamw, .n = n, .constants = adamw, .s = store, .step = r->step, .param = param, .grad = grad,
           .m = m, .v = m + n);
    OP(d, sgd, .n = n, .constants = sgd, .s = store, .step = r->step, .param = param, .grad = grad,
       .momentum = m);
}

/* Scratch and profiling are restored afterwards. */
ErrorCode device_rounding(Device *d, bool products, uint64_t *out, Error *err) {
    Pool p = {.name = "rounding"};
    size_t size = d->scratch_size;
    char *scratch = d->scratch;
    bool profiling = d->profiling;
    take_rounded(&p, d);
    ErrorCode code = pool_commit(&p, d, err);
    if (code == OK) {
        Rounded r = take_rounded(&p, d);
        float *host = mem_alloc_array((size_t)ROUNDED * ROUNDED, sizeof *host);
        char *a = rounded_matrix(&r, 0), *b = rounded_matrix(&r, 1), *c = rounded_matrix(&r, 2);
        Repeated product = {.n = ROUNDED, .type = DTYPE_F32, .a = a, .b = b, .c = c};
        d->profiling = false;
        fill_operands(d, a, DTYPE_F32, ROUNDED);
        run_product(d, &product, 0);
        *out = products ? hash_rounded(d, c, host) : 0;
        update_rounded(d, &r);
        *out = *out * 31 + hash_rounded(d, a, host);
        free(host);
    }
    d->scratch = scratch, d->scratch_size = size, d->profiling = profiling;
    pool_free(&p);
    return code;
}

static uint64_t hash_products(Device *d, char *operands, Dtype type, int64_t n, int count) {
    size_t matrix = (size_t)n * (size_t)n * dtype_bytes(type);
    char *host = mem_alloc(matrix);
    Repeated product = {.n = n, .type = type, .a = operands};
    product.b = operands + matrix;
    product.c = operands + 2 * matrix;
    uint64_t hash = 0;
    fill_operands(d, operands, type, n);
    for (int i = 0; i < count; i++) {
        run_product(d, &product, i);
        device_fetch(d, host, product.c, matrix);
        hash = hash * 31 + hash64(host, matrix);
    }
    free(host);
    return hash;
}

/* Scratch is restored afterwards. */
ErrorCode device_product_hash(Device *d, Dtype type, int64_t n, int count, uint64_t *out, Error *err) {
    size_t matrix = (size_t)n * (size_t)n * dtype_bytes(type), size = d->scratch_size;
    char *scratch = d->scratch;
    Pool p = {.name = "products"};
    CHECK(n <= PEAK_LARGEST_OWN);
    take_operands(&p, d, type, matrix);
    ErrorCode code = pool_commit(&p, d, err);
    if (code == OK) *out = hash_products(d, take_operands(&p, d, type, matrix), type, n, count);
    d->scratch = scratch, d->scratch_size = size;
    pool_free(&p);
    return code;
}

/* ---- copies ---- */

/* A copy, or a read: what it runs, and the bytes that it moves for each byte of `size`. */
typedef struct Stream {
    void (*run)(Device *d, const Repeated *p, int i);
    int moved;
} Stream;

static double stream_rate(Device *d, Stream s, size_t size, double seconds) {
    double rate = 0;
    PeakLimit limit = {.flops = INFINITY};
    Pool p = {.name = "memory rate"};
    pool_take(&p, 2 * size);
    if (pool_commit(&p, d, NULL) == OK) {
        char *from = pool_take(&p, 2 * size);
        Repeated stream = {.run = s.run, .work = s.moved * (double)size, .n = (int64_t)size, .a = from};
        stream.b = from + size;
        OP(d, zero, from, 2 * size); /* reading pages that were never written costs nothing */
        rate = best_rate(d, &stream, seconds, &limit);
    }
    pool_free(&p);
    return rate;
}

/* The largest size that there is time for, since smaller ones stay in caches. */
static double memory_rate(Device *d, Stream s, double seconds, size_t room) {
    static const int megabytes[] = {4, 16, 256};
    bool profiling = d->profiling;
    double rate = 0, end = clock_seconds() + seconds;
    d->profiling = false;
    for (int i = 0; i < 3; i++) {
        size_t size = (size_t)megabytes[i] << 20;
        if (i > 0 && (2 * size > room || rate <= 0 || clock_seconds() + 4.0 * (double)size / rate > end))
            break;
        rate = stream_rate(d, s, size, seconds / 3);
    }
    d->profiling = profiling;
    return rate;
}

double device_copy_rate(Device *d, double seconds, size_t room) {
    return memory_rate(d, (Stream){run_copy, 2}, seconds, room);
}

double device_read_rate(Device *d, double seconds, size_t room) {
    return memory_rate(d, (Stream){run_read, 1}, seconds, room);
}

double device_register_limit(const Device *d, Dtype type, double seconds) {
    for (int i = 0; i < KINDS; i++)
        if (strcmp(kinds[i].name, d->name) == 0 && kinds[i].kernels)
            return gemm_register_limit(kinds[i].kernels, d->threads, type, seconds);
    return 0;
}

/* Ops that never ran are left out. The difference between `seconds` and the sum over ops is host work and
 * waiting. */
void device_profile_print(Device *d, double seconds, Text *out) {
    if (d->runtime.read_times) d->runtime.read_times(d);
    double named = 0;
    for (int i = 0; i < OP_COUNT; i++) named += d->profile[i].seconds;
    double whole = seconds > 0 ? seconds : named;
    text_printf(out, "%-20s %9s %9s %6s %10s\n", "op", "calls", "seconds", "share", "GFLOP/s");
    for (int i = 0; i < OP_COUNT; i++) {
        const OpProfile *p = &d->profile[i];
        if (p->calls == 0) continue;
        text_printf(out, "%-20s %9lld %9.3f %5.1f%%", op_name(i), (long long)p->calls, p->seconds,
                    100 * p->seconds / whole);
        if (p->flops > 0) text_printf(out, " %10.1f", p->flops / p->seconds / 1e9);
        text_puts(out, "\n");
    }
    if (seconds > 0)
        text_printf(out, "%-20s %9s %9.3f %5.1f%%\n", "outside ops", "", seconds - named,
                    100 * (seconds - named) / seconds);
}
