/* Finds and opens the plugin. It also computes on the host those values whose bits depend on the CPU's math
 * library: initial weights (logarithms and error functions in double), and powers of gradients other than
 * 1, 2 and infinity.
 *
 * The plugin is opened once and never closed, since what it registers with the driver cannot be undone. */
#include "device/cuda/cuda.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/rng.h"
#include "device/cpu/cpu.h"
#include "device/cuda/calls.h"
#include "device/cuda/needs.h"

/* ---- the plugin ---- */

static const char FILE_NAME[] = "weft-cuda.so";

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const CudaPlugin *plugin;
/* The plugin's slot, called by the one below. */
static void (*plugin_grad_stats)(Device *d, const GradStatsArgs *o);

/* Exits at once: after a fault of the device nothing can be trusted. */
static void end_process(ErrorCode code, const char *message) {
    log_error("%s", message);
    _exit((int)code);
}

static const CudaHost host = {
    .fatal = end_process, .stream = device_stream, .call = calls_current, .unfinished = calls_unfinished};

/* Returns the directory of the program, which the caller frees. */
static char *program_directory(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    char *slash = strrchr(path, '/');
    if (slash) *slash = 0;
    return mem_strdup(slash ? path : ".");
}

/* Finds the first directory that has the plugin. The caller frees *path. */
static ErrorCode find_plugin(char **path, Error *err) {
    const char *asked = getenv("WEFT_CUDA");
    if (asked && *asked) {
        *path = mem_strdup(asked);
        return OK;
    }
    static const char *const directories[] = {".", "../lib/weft"};
    char *directory = program_directory();
    *path = NULL;
    for (int i = 0; i < 2 && !*path; i++) {
        char *at = path_join(directory, directories[i]), *file = path_join(at, FILE_NAME);
        if (access(file, R_OK) == 0)
            *path = file;
        else
            free(file);
        free(at);
    }
    ErrorCode code = OK;
    if (!*path)
        code = error_set(err, ERR_UNAVAILABLE,
                         "there is no %s in %s nor in ../lib/weft from there: build where a CUDA toolkit is, "
                         "or name the file by WEFT_CUDA in the environment",
                         FILE_NAME, directory);
    free(directory);
    return code;
}

static ErrorCode check_plugin(const CudaPlugin *p, const char *path, Error *err) {
    if (p->abi == CUDA_ABI && p->device_bytes == sizeof(Device) && p->ops_bytes == sizeof(Ops) &&
        p->facts_bytes == sizeof(CudaFacts) && p->host_bytes == sizeof(CudaHost))
        return OK;
    return error_set(err, ERR_UNAVAILABLE, "%s is of another build of weft: install both from one build",
                     path);
}

/* The loader's message names the missing library. */
static ErrorCode load_file(const char *path, Error *err) {
    void *file = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!file) return error_set(err, ERR_UNAVAILABLE, "the plugin for GPUs does not load: %s", dlerror());
    const CudaPlugin *(*entry)(void);
    *(void **)&entry = dlsym(file, "cuda_plugin");
    if (!entry) return error_set(err, ERR_UNAVAILABLE, "%s is no plugin of weft", path);
    TRY(check_plugin(entry(), path, err));
    plugin = entry();
    return OK;
}

static ErrorCode load_plugin(Error *err) {
    char *path;
    pthread_mutex_lock(&mutex);
    ErrorCode code = plugin ? OK : find_plugin(&path, err);
    if (!plugin && code == OK) {
        code = load_file(path, err);
        free(path);
    }
    pthread_mutex_unlock(&mutex);
    return code;
}

/* ---- numbers made on the host ---- */

enum { BLOCK = 1 << 14, SLICE = 1 << 10 };

/* The same values as the CPU's op, a block at a time. `block` may be reused since an upload has read its
 * memory when it returns. */
static void init_normal(Device *d, const InitNormalArgs *o) {
    float block[BLOCK];
    for (int64_t at = 0; at < o->n; at += BLOCK) {
        int64_t count = min_i64(BLOCK, o->n - at);
#pragma omp parallel for num_threads(d->threads) schedule(static)
        for (int64_t slice = 0; slice < count; slice += SLICE) {
            double normals[SLICE];
            int64_t here = min_i64(SLICE, count - slice);
            rng_normals(o->key, o->first + (uint64_t)(at + slice), here, o->lo, o->hi, normals);
            for (int64_t i = 0; i < here; i++) block[slice + i] = (float)(o->mean + o->std * normals[i]);
        }
        op_enqueue(d, OP_UPLOAD, &(UploadArgs){o->out + at, block, (size_t)count * sizeof *block});
    }
}

/* For use inside an op. */
static void fetch(Device *d, void *to, const void *from, size_t bytes) {
    op_enqueue(d, OP_DOWNLOAD, &(DownloadArgs){to, from, bytes});
    device_finish(d, device_mark(d, device_stream()), WAIT_RESULT);
}

static void merge_stats(GradStats *all, const GradStats *chunk, int64_t first) {
    exact_merge(&all->sum, &chunk->sum);
    exact_normalise(&all->sum);
    all->max = fmax(all->max, chunk->max);
    if (chunk->nonfinite > 0 && all->nonfinite == 0) all->first_nonfinite = first + chunk->first_nonfinite;
    all->nonfinite += chunk->nonfinite;
}

/* The reference's statistics, a block at a time, since the GPU's pow() has other last bits. Each
 * block costs a wait. */
static void stats_on_host(Device *d, const GradStatsArgs *o) {
    Ops reference;
    float block[BLOCK];
    double one;
    GradStats all = {.first_nonfinite = -1}, chunk;
    reference_fill_ops(&reference);
    for (int64_t at = 0; at < o->n; at += BLOCK) {
        int64_t count = min_i64(BLOCK, o->n - at);
        /* arrives with the block */
        if (at == 0) op_enqueue(d, OP_DOWNLOAD, &(DownloadArgs){&one, o->unit, sizeof one});
        fetch(d, block, o->g + at, (size_t)count * sizeof *block);
        reference.grad_stats(d, &(GradStatsArgs){count, block, o->p, &one, &chunk});
        merge_stats(&all, &chunk, at);
    }
    op_enqueue(d, OP_UPLOAD, &(UploadArgs){o->out, &all, sizeof all});
}

static void grad_stats(Device *d, const GradStatsArgs *o) {
    bool on_gpu = isinf(o->p) || o->p == 1 || o->p == 2;
    (on_gpu ? plugin_grad_stats : stats_on_host)(d, o);
}

/* ---- opening ---- */

/* The properties of every GPU, whether it is present or only planned for. */
static void describe_any(Device *d) {
    d->separate_memory = d->native_bf16 = true;
    d->granularity = CUDA_GRANULARITY;
    d->pinned = cuda_pinned();
    d->loss_rows = CUDA_LOSS_ROWS;
}

ErrorCode cuda_open(Device *d, int local_rank, Error *err) {
    CudaFacts f = {0};
    *d = (Device){0};
    describe_any(d);
    if (load_plugin(err) != OK) return error_context(err, "run.device: cuda");
    plugin->facts(&f);
    d->ops = mem_alloc(sizeof *d->ops);
    ErrorCode code = plugin->open(d, f.devices > 0 ? local_rank % f.devices : 0, &host, err);
    if (code != OK) {
        free(d->ops);
        *d = (Device){0};
        return code;
    }
    calls_remember(d);
    plugin_grad_stats = d->ops->grad_stats;
    d->ops->init_normal = init_normal;
    d->ops->grad_stats = grad_stats;
    return OK;
}

static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    (void)d;
    return cuda_scratch_needed(needs);
}

void cuda_describe(Device *d) {
    describe_any(d);
    d->widest_head = CUDA_WIDEST_HEAD;
    d->runtime.scratch_bytes = scratch_bytes;
}

ErrorCode cuda_facts(CudaFacts *f, Error *err) {
    *f = (CudaFacts){0};
    TRY(load_plugin(err));
    plugin->facts(f);
    plugin->survey(f);
    return OK;
}
