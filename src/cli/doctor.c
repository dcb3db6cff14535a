/* weft doctor: measures what this machine offers to a run, and lists what is missing and how to get it.
 *
 * First everything is collected, then it is printed, as a table or as JSON with the same content. Advice is
 * about what a user can change, with the command for it. Only a measurement that fails is an error. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/burn.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "comm/facts.h"
#include "comm/launcher.h"
#include "device/cuda/cuda.h"
#include "device/device.h"
#include "device/facts.h"

/* 64 MiB are enough to measure a disk's rate and too few to disturb anybody; eight syncs give a median. */
enum { ADVICE_MAX = 16, DISK_BLOCK = 1 << 20, DISK_BLOCKS = 64, SYNC_COUNT = 8 };

/* The disk of one directory: machines have several, and runs are stored on one of them. */
typedef struct Disk {
    char *directory;
    double free_bytes, write_rate; /* bytes, bytes/s with the final fsync */
    double sync_seconds;           /* median of writing 4 KiB and fsync */
} Disk;

/* Measurements of one GPU. */
typedef struct GpuRates {
    double peak_fp32, peak_bf16, copy; /* FLOP/s; bytes/s read and written */
    char problem[256];                 /* why it was not measured; "" if it was */
} GpuRates;

/* Everything that was found, of fixed size except for two texts. Table and JSON are made from the same
 * struct, and the order of output is independent of the order of measuring. */
typedef struct Findings {
    int cores, threads;
    char processor[128], kernels[32], library[64];
    Text instruction_sets;
    MemoryUse memory;
    double peak_fp32, peak_bf16, limit_fp32, limit_bf16; /* FLOP/s */
    double memory_read;                                  /* bytes/s */
    bool native_bf16;
    CudaFacts cuda;
    char no_cuda[1024]; /* why no GPU can be used; "" if one can */
    GpuRates gpu[CUDA_DEVICES_MAX];
    Disk disk;
    char mpi[128], launcher[256]; /* library; path of the launcher, "" if none */
    int advice_count;
    char advice[ADVICE_MAX][256];
} Findings;

static void advise(Findings *f, const char *format, ...) PRINTF_LIKE(2, 3);
/* Advice beyond ADVICE_MAX is dropped; this file has fewer pieces of advice. */
static void advise(Findings *f, const char *format, ...) {
    if (f->advice_count == ADVICE_MAX) return;
    va_list list;
    va_start(list, format);
    vsnprintf(f->advice[f->advice_count++], sizeof f->advice[0], format, list);
    va_end(list);
}

/* ---- processor ---- */

/* The sets by which kernels or oneDNN are selected, in the kernel's spelling (x86 "flags", Arm
 * "Features"). */
static const char *const known_sets[] = {"avx",         "f16c",        "fma",      "avx2",     "avx_vnni",
                                         "avx512f",     "avx512bw",    "avx512dq", "avx512vl", "avx512_vnni",
                                         "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
                                         "asimd",       "sve",         "sve2",     "bf16",     "i8mm"};

/* Matches a whole word: "avx" is also a prefix of "avx2", and "bf16" a suffix of "avx512_bf16". Words are
 * delimited by blanks, tabs, the colon after the line's name and the end. strchr finds the NUL too, so the
 * last word of a line needs no newline. */
static bool has_word(const char *line, const char *word) {
    size_t length = strlen(word);
    for (const char *at = strstr(line, word); at; at = strstr(at + 1, word))
        if ((at == line || strchr(" \t:", at[-1])) && strchr(" \n", at[length])) return true;
    return false;
}

/* Reads the first processor's line only: kernels are chosen once per process. Without /proc the result is
 * "unknown", not an error. */
static void find_instruction_sets(Findings *f) {
    FILE *file = fopen("/proc/cpuinfo", "re");
    char *line = NULL;
    size_t capacity = 0;
    while (file && getline(&line, &capacity, file) > 0) {
        if (strncmp(line, "flags", 5) != 0 && strncmp(line, "Features", 8) != 0) continue;
        for (size_t i = 0; i < sizeof known_sets / sizeof *known_sets; i++)
            if (has_word(line, known_sets[i]))
                text_printf(&f->instruction_sets, "%s%s", f->instruction_sets.length ? " " : "",
                            known_sets[i]);
        break;
    }
    free(line);
    if (file) fclose(file);
    if (!f->instruction_sets.length) text_puts(&f->instruction_sets, "unknown");
}

/* Measured, not looked up: what matters is the rate in this container now. Both dtypes for the same time
 * each: their ratio decides what train.compute: auto selects. */
static ErrorCode measure_device(Findings *f, double seconds, Error *err) {
    Device d = {0};
    TRY(device_open_cpu(&d, NULL, 0, err));
    f->cores = device_cpu_cores();
    f->threads = d.threads;
    snprintf(f->processor, sizeof f->processor, "%s", d.processor);
    snprintf(f->kernels, sizeof f->kernels, "%s", d.name);
    f->native_bf16 = d.native_bf16;
    device_library_name(f->library);
    find_instruction_sets(f);
    f->peak_fp32 = device_matmul_peak(&d, DTYPE_F32, seconds, INFINITY);
    f->peak_bf16 = device_matmul_peak(&d, DTYPE_BF16, seconds, INFINITY);
    f->limit_fp32 = device_register_limit(&d, DTYPE_F32, seconds / 10);
    f->limit_bf16 = device_register_limit(&d, DTYPE_BF16, seconds / 10);
    f->memory_read = device_read_rate(&d, seconds / 2, SIZE_MAX);
    device_close(&d);
    if (!device_library_has_openmp())
        advise(f, "oneDNN was built without OpenMP: its threads and weft's get in each other's way. Install "
                  "Debian's libdnnl-dev.");
    if (strcmp(f->kernels, "portable") == 0 || strcmp(f->kernels, "reference") == 0)
        advise(f,
               "No optimised kernels for this processor: training will be slow. AVX2 or AVX-512 is wanted.");
    if (f->threads < f->cores)
        advise(f, "%d of %d cores are used. Unset OMP_NUM_THREADS to use all.", f->threads, f->cores);
    return OK;
}

/* ---- GPUs ---- */

/* A GPU that cannot be opened is listed along with the others. */
static void measure_gpu(GpuRates *r, int ordinal, double seconds) {
    Device d = {0};
    Error err;
    if (device_open(&d, "cuda", ordinal, 1, &err) != OK) {
        snprintf(r->problem, sizeof r->problem, "%.255s", err.message);
        return;
    }
    r->peak_fp32 = device_matmul_peak(&d, DTYPE_F32, seconds, INFINITY);
    r->peak_bf16 = device_matmul_peak(&d, DTYPE_BF16, seconds, INFINITY);
    r->copy = device_copy_rate(&d, seconds / 4, SIZE_MAX);
    device_close(&d);
}

/* Most machines have no GPU: that is no advice. A GPU that is unusable because something is missing is, and
 * so are ranks on several GPUs whose tensors go through host memory. */
static void find_gpus(Findings *f, double seconds) {
    Error err;
    if (cuda_facts(&f->cuda, &err) != OK)
        snprintf(f->no_cuda, sizeof f->no_cuda, "%s", err.message);
    else
        snprintf(f->no_cuda, sizeof f->no_cuda, "%s", f->cuda.problem);
    if (*f->no_cuda && access("/dev/nvidiactl", F_OK) == 0)
        advise(f, "This machine has an NVIDIA GPU that run.device: cuda cannot use: %s", f->no_cuda);
    if (f->cuda.devices > 1 && f->cuda.nccl == 0)
        advise(f, "Ranks on several GPUs would send through the host's memory: %.150s", f->cuda.no_nccl);
    for (int i = 0; i < f->cuda.devices && i < CUDA_DEVICES_MAX; i++) measure_gpu(&f->gpu[i], i, seconds);
}

static void print_reach(const CudaDeviceFacts *d) {
    const char *before = "                  reads and writes the memory of GPU";
    for (int i = 0; i < CUDA_DEVICES_MAX; i++) {
        if (!(d->reaches >> i & 1)) continue;
        terminal_printf("%s %d", before, i);
        before = ",";
    }
    terminal_printf(d->reaches ? " directly\n"
                               : "                  reaches no other GPU's memory directly\n");
}

static void print_gpu(const CudaDeviceFacts *d, const GpuRates *r, int i, int devices) {
    char memory[32], available[32];
    terminal_printf("GPU %-2d            %s, %s, %s free, sm_%d%d\n", i, d->name,
                    text_bytes((double)d->memory, memory), text_bytes((double)d->available, available),
                    d->major, d->minor);
    if (*r->problem)
        terminal_printf("                  not measured: %s\n", r->problem);
    else
        terminal_printf(
            "                  products %.1f TFLOP/s fp32, %.1f TFLOP/s bf16; a copy reads and writes "
            "%.1f GB/s\n",
            r->peak_fp32 / 1e12, r->peak_bf16 / 1e12, r->copy / 1e9);
    if (devices > 1) print_reach(d);
}

/* Formats NVIDIA's version numbers: 13000 is 13.0, and 22809 of NCCL is 2.28.9. */
static void print_gpus(const Findings *f) {
    const CudaFacts *c = &f->cuda;
    if (*f->no_cuda) terminal_printf("GPU               none: %s\n", f->no_cuda);
    for (int i = 0; i < c->devices && i < CUDA_DEVICES_MAX; i++)
        print_gpu(&c->device[i], &f->gpu[i], i, c->devices);
    if (*f->no_cuda) return;
    terminal_printf("CUDA              driver for %d.%d, runtime %d.%d, cuBLASLt %llu\n", c->driver / 1000,
                    c->driver % 1000 / 10, c->runtime / 1000, c->runtime % 1000 / 10,
                    (unsigned long long)c->products);
    if (c->nccl)
        terminal_printf("NCCL              %d.%d.%d\n", c->nccl / 10000, c->nccl % 10000 / 100,
                        c->nccl % 100);
    else
        terminal_printf("NCCL              none: %s\n", c->no_nccl);
}

static void put_gpus(JsonWriter *w, const Findings *f) {
    const CudaFacts *c = &f->cuda;
    json_put_string(w, "gpu_problem", f->no_cuda);
    json_put_int(w, "cuda_driver", c->driver);
    json_put_int(w, "cuda_runtime", c->runtime);
    json_put_int(w, "cublaslt", (int64_t)c->products);
    json_put_int(w, "nccl", c->nccl);
    json_put_string(w, "nccl_problem", c->no_nccl);
    json_key(w, "gpus");
    json_begin_array(w);
    for (int i = 0; i < c->devices && i < CUDA_DEVICES_MAX; i++) {
        json_begin_object(w);
        json_put_string(w, "name", c->device[i].name);
        json_put_int(w, "memory_bytes", (int64_t)c->device[i].memory);
        json_put_int(w, "capability", c->device[i].major * 10 + c->device[i].minor);
        json_put_int(w, "memory_available_bytes", (int64_t)c->device[i].available);
        json_put_string(w, "problem", f->gpu[i].problem);
        json_put_double(w, "peak_fp32_flops", f->gpu[i].peak_fp32);
        json_put_double(w, "peak_bf16_flops", f->gpu[i].peak_bf16);
        json_put_double(w, "copy_bytes_per_second", f->gpu[i].copy);
        json_key(w, "reaches");
        json_begin_array(w);
        for (int k = 0; k < CUDA_DEVICES_MAX; k++)
            if (c->device[i].reaches >> k & 1) json_int(w, k);
        json_end_array(w);
        json_end_object(w);
    }
    json_end_array(w);
}

/* ---- memory ---- */

/* Of the control group; 0 for none. A group that may use all of the machine limits nothing. */
static uint64_t memory_limit(const Findings *f) {
    return f->memory.machine < f->memory.physical ? f->memory.machine : 0;
}

/* Containers are killed at a limit that the machine's own figures do not show. */
static void find_memory(Findings *f) {
    char limit[32], machine[32];
    f->memory = memory_use();
    if (memory_limit(f))
        advise(f, "This process may use %s of the machine's %s: a control group (container) limits it.",
               text_bytes((double)f->memory.machine, limit), text_bytes((double)f->memory.physical, machine));
}

/* ---- disk ---- */

/* For qsort. Returning the difference would not work: fractions of a second are 0 as an int. */
static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* By write, not through stdio's buffer: the system is measured. */
static ErrorCode write_all(int fd, const char *data, size_t length, const char *where, Error *err) {
    while (length) {
        ssize_t written = write(fd, data, length);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return error_errno(err, ERR_IO, "cannot write to a test file in %s", where);
        data += written;
        length -= (size_t)written;
    }
    return OK;
}

/* The time includes the sync, as for a checkpoint. */
static ErrorCode timed_write(int fd, const char *block, size_t size, int count, const char *where,
                             double *seconds, Error *err) {
    double start = clock_seconds();
    for (int i = 0; i < count; i++) TRY(write_all(fd, block, size, where, err));
    if (fsync(fd) != 0) return error_errno(err, ERR_IO, "cannot sync a test file in %s", where);
    *seconds = clock_seconds() - start;
    return OK;
}

/* Large blocks first, for the rate (checkpoints), then single pages with a sync each, for the latency
 * (journals). */
static ErrorCode measure_open_file(Disk *disk, int fd, const char *block, Error *err) {
    double seconds = 0, syncs[SYNC_COUNT];
    TRY(timed_write(fd, block, DISK_BLOCK, DISK_BLOCKS, disk->directory, &seconds, err));
    disk->write_rate = (double)DISK_BLOCK * DISK_BLOCKS / seconds;
    for (int i = 0; i < SYNC_COUNT; i++)
        TRY(timed_write(fd, block, 4096, 1, disk->directory, &syncs[i], err));
    qsort(syncs, SYNC_COUNT, sizeof *syncs, compare_doubles);
    /* The median, since one sync may have collided with another program's. */
    disk->sync_seconds = syncs[SYNC_COUNT / 2];
    return OK;
}

/* The file is unlinked from the start, so that nothing is left behind. Its bytes are random, since some disks
 * and file systems compress. */
static ErrorCode measure_disk(Disk *disk, Error *err) {
    char *path = path_join(disk->directory, ".weft-doctor-XXXXXX");
    int fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    free(path);
    if (fd < 0) return error_errno(err, ERR_CANTCREATE, "cannot create a test file in %s", disk->directory);
    char *block = mem_alloc(DISK_BLOCK);
    for (uint32_t i = 0, x = 1; i < DISK_BLOCK; i++, x = x * 1664525u + 1013904223u)
        block[i] = (char)(x >> 24);
    ErrorCode code = measure_open_file(disk, fd, block, err);
    free(block);
    close(fd);
    struct statvfs info;
    if (statvfs(disk->directory, &info) == 0)
        disk->free_bytes = (double)info.f_bavail * (double)info.f_frsize;
    return code;
}

/* Thresholds of 4 GB and a tenth of a second, where the limits become noticeable; 12 bytes per parameter are
 * fp32 weights and two moments. */
static ErrorCode find_disk(Findings *f, Error *err) {
    TRY(measure_disk(&f->disk, err));
    char free_text[32];
    if (f->disk.free_bytes < 4e9)
        advise(f, "Only %s free in %s: a checkpoint of N parameters takes 12 N bytes.",
               text_bytes(f->disk.free_bytes, free_text), f->disk.directory);
    if (f->disk.sync_seconds > 0.1)
        advise(
            f,
            "Writing to %s is slow to reach the disk (%.0f ms a sync): put run directories on a local disk.",
            f->disk.directory, f->disk.sync_seconds * 1e3);
    return OK;
}

/* ---- MPI ---- */

/* The library that weft was built with, and its launcher; another launcher would start processes that do not
 * find each other. Its version is requested, since a file of that name may not run; only the presence of a
 * first line matters. */
static void find_mpi(Findings *f) {
    /* In single quotes: CMake found the path, which may contain blanks. */
    char command[512], library[96], launcher[128] = "";
    comm_library_name(library, sizeof library);
    snprintf(command, sizeof command, "'%s' --version 2>/dev/null", comm_launcher());
    FILE *pipe = popen(command, "re");
    if (pipe && !fgets(launcher, sizeof launcher, pipe)) launcher[0] = 0;
    if (pipe) pclose(pipe);
    launcher[strcspn(launcher, "\r\n")] = 0;
    snprintf(f->mpi, sizeof f->mpi, "%s", library);
    snprintf(f->launcher, sizeof f->launcher, "%s", *launcher ? comm_launcher() : "");
    if (!*launcher)
        advise(f, "No %s: it is needed for runs on several processes or machines. apt-get install %s",
               comm_launcher(), launcher_kind()->package);
}

/* ---- output ---- */

/* The left column has a fixed width, so that outputs of two machines can be put side by side. */
static void print_table(Findings *f) {
    char total[32], available[32], free_text[32], rate[32];
    terminal_printf("processor         %s\n", f->processor);
    terminal_printf("cores             %d (%d threads used)\n", f->cores, f->threads);
    terminal_printf("instruction sets  %s\n", f->instruction_sets.data);
    terminal_printf("kernels           %s, %s\n", f->kernels, f->library);
    terminal_printf("memory            %s, %s available\n", text_bytes((double)f->memory.physical, total),
                    text_bytes((double)f->memory.available, available));
    terminal_printf("memory read       %.1f GB/s\n", f->memory_read / 1e9);
    if (memory_limit(f))
        terminal_printf("memory limit      %s\n", text_bytes((double)memory_limit(f), total));
    terminal_printf("matrix products   %.1f GFLOP/s fp32, %.1f GFLOP/s bf16%s\n", f->peak_fp32 / 1e9,
                    f->peak_bf16 / 1e9, f->native_bf16 ? "" : " (bf16 is widened here)");
    terminal_printf("cores' limit      %.1f GFLOP/s fp32, %.1f GFLOP/s bf16\n", f->limit_fp32 / 1e9,
                    f->limit_bf16 / 1e9);
    print_gpus(f);
    terminal_printf("disk              %s free, %s/s written, %.2f ms a sync (%s)\n",
                    text_bytes(f->disk.free_bytes, free_text), text_bytes(f->disk.write_rate, rate),
                    f->disk.sync_seconds * 1e3, f->disk.directory);
    terminal_printf("MPI               %s, %s\n", f->mpi, *f->launcher ? f->launcher : "no launcher");
    terminal_printf("\n%s\n", f->advice_count ? "Worth knowing:" : "Nothing is missing.");
    for (int i = 0; i < f->advice_count; i++) terminal_printf("  - %s\n", f->advice[i]);
}

/* For scripts that compare machines or monitor one: in base units, bytes and FLOP/s; every name is present,
 * also if nothing was found. A limit of 0 is none. */
static void print_json(const Findings *f) {
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 2);
    json_begin_object(&w);
    json_put_string(&w, "processor", f->processor);
    json_put_int(&w, "cores", f->cores);
    json_put_int(&w, "threads", f->threads);
    json_put_string(&w, "instruction_sets", f->instruction_sets.data);
    json_put_string(&w, "kernels", f->kernels);
    json_put_string(&w, "library", f->library);
    json_put_int(&w, "memory_bytes", (int64_t)f->memory.physical);
    json_put_int(&w, "memory_available_bytes", (int64_t)f->memory.available);
    json_put_int(&w, "memory_limit_bytes", (int64_t)memory_limit(f));
    json_put_double(&w, "memory_read_bytes_per_second", f->memory_read);
    json_put_double(&w, "peak_fp32_flops", f->peak_fp32);
    json_put_double(&w, "peak_bf16_flops", f->peak_bf16);
    json_put_double(&w, "limit_fp32_flops", f->limit_fp32);
    json_put_double(&w, "limit_bf16_flops", f->limit_bf16);
    json_put_bool(&w, "native_bf16", f->native_bf16);
    put_gpus(&w, f);
    json_put_string(&w, "disk_directory", f->disk.directory);
    json_put_double(&w, "disk_free_bytes", f->disk.free_bytes);
    json_put_double(&w, "disk_write_bytes_per_second", f->disk.write_rate);
    json_put_double(&w, "disk_sync_seconds", f->disk.sync_seconds);
    json_put_string(&w, "mpi", f->mpi);
    json_put_string(&w, "mpi_launcher", f->launcher);
    json_key(&w, "advice");
    json_begin_array(&w);
    for (int i = 0; i < f->advice_count; i++) json_string(&w, f->advice[i]);
    json_end_array(&w);
    json_end_object(&w);
    terminal_printf("%s\n", out.data);
    text_free(&out);
}

/* The status line shows what is being measured; it is removed before anything is printed. The first failure
 * ends it: a failed measurement is an error, a missing feature is advice. */
static ErrorCode examine(Findings *f, double seconds, Error *err) {
    log_status("measuring matrix products");
    TRY(measure_device(f, seconds, err));
    log_status("measuring GPUs");
    find_gpus(f, seconds);
    find_memory(f);
    log_status("measuring the disk");
    TRY(find_disk(f, err));
    find_mpi(f);
    log_status("%s", "");
    return OK;
}

/* ---- --burn ---- */

/* "bitflip:core=1", "bitflip:memory=4096", "bitflip:file=0". */
static ErrorCode read_fault(const char *text, BurnFault *fault, Error *err) {
    static const char kind[] = "bitflip:";
    const struct {
        const char *name;
        int64_t *value;
    } places[] = {{"core=", &fault->core}, {"memory=", &fault->memory}, {"file=", &fault->file}};
    char shown[80], *end = NULL;
    *fault = (BurnFault){-1, -1, -1};
    const char *at = text && strncmp(text, kind, strlen(kind)) == 0 ? text + strlen(kind) : "";
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *number = at + strlen(places[i].name);
        if (strncmp(at, places[i].name, strlen(places[i].name)) != 0 || *number < '0' || *number > '9')
            continue;
        *places[i].value = strtoll(number, &end, 10);
    }
    if (!text || (end && !*end)) return OK;
    return error_set(err, ERR_USAGE,
                     "doctor: --inject is \"%s\": expected bitflip:core=N, bitflip:memory=OFFSET or "
                     "bitflip:file=OFFSET",
                     error_escape(shown, sizeof shown, text, strlen(text)));
}

static ErrorCode read_burn_seconds(const char *text, double *seconds, Error *err) {
    char *end, shown[80];
    if (!*text) return OK;
    *seconds = strtod(text, &end);
    if (!*end && *seconds >= 0.1 && *seconds <= 86400) return OK;
    return error_set(err, ERR_USAGE, "doctor: --burn is \"%s\": expected seconds from 0.1 to 86400",
                     error_escape(shown, sizeof shown, text, strlen(text)));
}

/* By default a minute: cores are warm by then. */
static ErrorCode run_burn(const Arguments *args, Error *err) {
    double percent = 50;
    const char *directory = arguments_flag(args, "--dir");
    Burn b = {.seconds = 60, .directory = directory ? directory : "."};
    if (arguments_has(args, "--json"))
        return error_set(err, ERR_USAGE, "doctor: --burn and --json do not go together: give one");
    TRY(read_burn_seconds(arguments_flag(args, "--burn"), &b.seconds, err));
    TRY(arguments_double(args, "--memory", 0.001, 90, &percent, err));
    TRY(read_fault(arguments_flag(args, "--inject"), &b.fault, err));
    b.share = percent / 100;
    return burn_run(&b, err);
}

/* By default one second per dtype, which is short enough to wait for. Advice does not change the status: the
 * examination succeeded also on a machine with little disk space. */
static ErrorCode run_doctor(const Arguments *args, Error *err) {
    double seconds = 1;
    if (arguments_has(args, "--burn")) return run_burn(args, err);
    TRY(arguments_double(args, "--seconds", 0.01, 60, &seconds, err));
    const char *directory = arguments_flag(args, "--dir");
    Findings f = {.disk.directory = mem_strdup(directory ? directory : ".")};
    ErrorCode code = examine(&f, seconds, err);
    if (code == OK) {
        if (arguments_has(args, "--json")) {
            print_json(&f);
        } else {
            print_table(&f);
        }
    }
    text_free(&f.instruction_sets);
    free(f.disk.directory);
    return code;
}

static const Flag doctor_flags[] = {
    {"--dir", 'd', "DIR",
     "directory whose disk is measured, where runs are to be kept (default: the current one)"},
    {"--seconds", 0, "S", "time for each measurement of matrix products (default 1)"},
    {"--json", 0, NULL, "the same as one JSON object"},
    {"--burn", 0, "[=SECONDS]",
     "test instead of measuring, for about so long (default 60): cores, memory, a file; bits are compared"},
    {"--memory", 0, "PERCENT", "with --burn: share of the free memory that is tested (default 50)"},
    {"--inject", 0, "FAULT",
     "with --burn: break something on purpose: bitflip:core=N, bitflip:memory=OFFSET, bitflip:file=OFFSET"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_doctor = {
    .name = "doctor",
    .summary = "examine this machine: kernels, GPUs, memory, speed, disk, MPI",
    .synopsis = "[--dir DIR] [--json] [--burn[=SECONDS]]",
    .details = "Measures what a run would have here: the peak of matrix products in fp32 and bf16 (what MFU "
               "is a share of), memory and the rate of reading it, the time that a sync to the disk takes. "
               "Says what is missing and how "
               "to get it. 64 MiB are written to DIR and removed.\n\n"
               "With --burn the machine is tested instead: products and training steps with fixed inputs on "
               "each core alone, on all at once and on all as threads must have the same bits, memory must "
               "hold patterns, a file in DIR must read back. Any difference is printed with its core, "
               "addresses or offset, and the status is 1. Memory that fails is given by offsets in what the "
               "test took; by physical address only to root.\n",
    .flags = doctor_flags,
    .run = run_doctor,
};
