/* Opening and closing of the CPU device, and what is around every op: guard and profile. */
#include "device/device.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/cpu/optimised.h"

const char *dtype_name(Dtype t) { return t == DTYPE_F32 ? "fp32" : "bf16"; }

const char *op_name(OpId op) {
    static const char *const names[OP_COUNT] = {"gemm",
                                                "embed_forward",
                                                "embed_backward",
                                                "rmsnorm_forward",
                                                "rmsnorm_backward",
                                                "rope",
                                                "bias_forward",
                                                "bias_backward",
                                                "attention_forward",
                                                "attention_backward",
                                                "attention_decode",
                                                "swiglu_forward",
                                                "swiglu_backward",
                                                "add",
                                                "cross_entropy",
                                                "adamw",
                                                "sgd",
                                                "grad_stats",
                                                "fixed_add",
                                                "fixed_to_float",
                                                "cast",
                                                "zero",
                                                "init_normal",
                                                "fill",
                                                "upload",
                                                "download",
                                                "sum_parts"};
    return (unsigned)op < OP_COUNT ? names[op] : "unknown";
}

int device_cpu_cores(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
    /* More processors than a cpu_set_t holds. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

/* ---- kinds ---- */

/* From the best to the plainest. The operating system must save the registers too: __builtin_cpu_supports
 * asks that. */
#if defined(__x86_64__)
static bool runs_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }
static bool runs_avx512(void) {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
static bool runs_avx512_bf16(void) { return runs_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
static bool runs_never(void) { return false; }
#endif
static bool runs_always(void) { return true; }

typedef struct Kind {
    const char *name;
    bool (*runs)(void);
    bool native_bf16;
    const Kernels *kernels; /* NULL: the reference */
} Kind;

/* In the order of DEVICE_KINDS, behind "auto"; every build knows every name. */
static const Kind kinds[] = {
#if defined(__x86_64__)
    {"avx512_bf16", runs_avx512_bf16, true, &kernels_avx512},
    {"avx512", runs_avx512, false, &kernels_avx512},
    {"avx2", runs_avx2, false, &kernels_avx2},
#else
    {"avx512_bf16", runs_never, true, NULL},
    {"avx512", runs_never, false, NULL},
    {"avx2", runs_never, false, NULL},
#endif
    {"portable", runs_always, false, &kernels_portable},
    {"reference", runs_always, false, NULL},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

const char *device_kind(int index) {
    CHECK(index >= 0 && index <= KINDS);
    return index == 0 ? "auto" : kinds[index - 1].name;
}

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
        if (kinds[i].runs()) return OK;
        if (!automatic)
            return error_set(err, ERR_UNAVAILABLE, "%sthis processor cannot run \"%s\" kernels; use auto",
                             from, name);
    }
    char shown[64];
    return error_set(err, ERR_UNAVAILABLE, "%sunknown CPU kernels \"%s\"; expected one of " DEVICE_KINDS,
                     from, error_escape(shown, sizeof shown, name, strlen(name)));
}

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

ErrorCode device_open_cpu(Device *d, const char *name, int threads, Error *err) {
    *d = (Device){0};
    const Kind *kind = NULL;
    TRY(find_kind(name, &kind, err));
    d->name = kind->name;
    d->native_bf16 = kind->native_bf16;
    d->threads = threads > 0 ? threads : device_cpu_cores();
    read_processor_name(d->processor, sizeof d->processor);
    reference_fill_ops(&d->ops);
    if (!kind->kernels) return OK;
    ErrorCode code = optimised_open(d, kind->kernels, err);
    if (code != OK) device_close(d);
    return code;
}

void device_describe_cpu(Device *d, int threads, bool native_bf16) {
    *d = (Device){.threads = threads > 0 ? threads : device_cpu_cores(), .native_bf16 = native_bf16};
    d->ops.scratch_bytes = optimised_scratch_bytes; /* the reference takes none */
}

void device_close(Device *d) {
    optimised_close(d);
    *d = (Device){0};
}

/* ---- around an op ---- */

double device_op_enter(Device *d) {
    pool_unlock_all();
    return d->profiling ? clock_seconds() : 0;
}

void device_op_leave(Device *d, OpId op, double start) {
    if (d->profiling) {
        d->profile[op].calls++;
        d->profile[op].seconds += clock_seconds() - start;
    }
    pool_lock_all();
}

/* ---- peak ---- */

static double best_rate(Device *d, Dtype type, int64_t n, const void *a, const void *b, void *c,
                        double seconds) {
    double best = 0, end = clock_seconds() + seconds;
    bool trans_b = false; /* both ways that the forward pass and its input gradients take */
    do {
        double start = clock_seconds();
        trans_b = !trans_b;
        d->ops.gemm(d, false, trans_b, n, n, n, a, b, type, c, type, n, false);
        double rate = 2.0 * (double)n * (double)n * (double)n / (clock_seconds() - start);
        if (rate > best) best = rate;
    } while (clock_seconds() < end);
    return best;
}

double device_matmul_peak(Device *d, Dtype type, double seconds) {
    static const int64_t sizes[] = {1024, 1536, 2048};
    enum { LARGEST = 2048, COUNT = sizeof sizes / sizeof *sizes };
    Device probe = *d; /* with scratch of its own, so that the peak can be taken before anything is planned */
    probe.profiling = false;
    DeviceNeeds needs = {.compute = type,
                         .tokens = 1,
                         .hidden = 2,
                         .intermediate = 1,
                         .vocab = 1,
                         .logits_rows = 1,
                         .attention = {1, 1, 1, 2}};
    size_t matrix = (size_t)LARGEST * LARGEST * dtype_bytes(type), scratch = d->ops.scratch_bytes(d, &needs);
    char *memory = NULL;
    if (posix_memalign((void **)&memory, 4096, 3 * matrix + scratch) != 0) return 0;
    probe.scratch = memory + 3 * matrix;
    probe.scratch_size = scratch;
    for (size_t i = 0; i < 2 * matrix / dtype_bytes(type); i++)
        tensor_set(memory, (int64_t)i, type, (float)(i % 251) / 251 - 0.5f);
    double best = 0;
    for (int i = 0; i < COUNT; i++) {
        double rate =
            best_rate(&probe, type, sizes[i], memory, memory + matrix, memory + 2 * matrix, seconds / COUNT);
        if (rate > best) best = rate;
    }
    free(memory);
    return best;
}

void device_profile_print(const Device *d, double seconds, Text *out) {
    double named = 0;
    for (int i = 0; i < OP_COUNT; i++) named += d->profile[i].seconds;
    double whole = seconds > 0 ? seconds : named;
    text_printf(out, "%-20s %9s %9s %6s %10s\n", "op", "calls", "seconds", "share", "GFLOP/s");
    for (int i = 0; i < OP_COUNT; i++) {
        const OpProfile *p = &d->profile[i];
        if (p->calls == 0) continue;
        text_printf(out, "%-20s %9lld %9.3f %5.1f%%", op_name((OpId)i), (long long)p->calls, p->seconds,
                    100 * p->seconds / whole);
        if (p->flops > 0) text_printf(out, " %10.1f", p->flops / p->seconds / 1e9);
        text_puts(out, "\n");
    }
    if (seconds > 0)
        text_printf(out, "%-20s %9s %9.3f %5.1f%%\n", "outside ops", "", seconds - named,
                    100 * (seconds - named) / seconds);
}
