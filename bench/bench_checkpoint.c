/* Cost of a save, as one JSON line: the total (save_seconds), and the time that training waits if a thread
 * writes: with a copy that blocks (blocking_stall), and with a copy that runs during matrix products on all
 * cores from one update to the next (beside_stall), as in training. Both are also given as fractions of the
 * total. Best of a few rounds.
 *
 *     bench_checkpoint [MILLIONS OF PARAMETERS [DIRECTORY [SECONDS BETWEEN UPDATES]]] */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/async.h"
#include "device/device.h"

#define TENSORS 24
#define ROUNDS 5
#define PIECE ((size_t)1 << 20)

/* Weights and two moments, in plain memory: copying from a CPU device costs the same. */
typedef struct Model {
    TensorDesc tensors[3 * TENSORS];
    char names[3 * TENSORS][24];
    float *values; /* shared by all tensors of one size */
} Model;

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    const Model *m = ctx;
    size_t each = (size_t)tensor_elements(&m->tensors[0]) * sizeof(float);
    const char *from = (const char *)m->values + (size_t)index * each + offset;
    (void)err;
#pragma omp parallel for schedule(static)
    for (size_t at = 0; at < bytes; at += PIECE)
        memcpy((char *)host + at, from + at, bytes - at < PIECE ? bytes - at : PIECE);
    return OK;
}

static ErrorCode fetch_moments(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    return fetch(ctx, TENSORS + index, offset, bytes, host, err);
}

static void make(Model *m, int64_t parameters) {
    int64_t each = parameters / TENSORS / 1024 * 1024;
    for (int i = 0; i < 3 * TENSORS; i++) {
        snprintf(m->names[i], sizeof m->names[i], "%s%02d",
                 i < TENSORS       ? "w"
                 : i < 2 * TENSORS ? "m"
                                   : "v",
                 i % TENSORS);
        m->tensors[i] = (TensorDesc){m->names[i], SAFE_F32, SAFE_F32, 2, {each / 1024, 1024}};
    }
    size_t count = (size_t)each * 3 * TENSORS;
    m->values = mem_alloc_array(count, sizeof(float));
    for (size_t i = 0; i < count; i++) m->values[i] = (float)(i % 8191) * 0.001f;
}

typedef struct Bench {
    TensorList model, optimizer;
    CheckpointSave save;
    const char *dir;
    Device device;
    double between; /* seconds of products between two updates */
    SaveFigures whole;
    double verify, blocking, beside;
} Bench;

static ErrorCode measure_whole(Bench *b, Error *err) {
    SaveFigures figures;
    b->whole.seconds = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        TRY(checkpoint_save(NULL, b->dir, &b->save, &figures, err));
        if (figures.seconds < b->whole.seconds) b->whole = figures;
    }
    double start = clock_seconds();
    char *path = path_join(b->dir, "step-00000001");
    ErrorCode code = checkpoint_verify(path, err);
    free(path);
    b->verify = clock_seconds() - start;
    return code;
}

/* Measures the wait for the copy at the next update, after `between` seconds of products. */
static ErrorCode measure_stall(Bench *b, CheckpointWriter *w, double between, double *stall, Error *err) {
    SaveReport report;
    *stall = 1e30;
    for (int i = 0; i < ROUNDS; i++) {
        TRY(checkpoint_writer_begin(w, &b->save, err));
        if (between > 0) device_matmul_peak(&b->device, DTYPE_F32, between, INFINITY);
        checkpoint_writer_copied(w);
        TRY(checkpoint_writer_wait(w, err));
        if (checkpoint_writer_report(w, &report) && report.copied < *stall) *stall = report.copied;
    }
    return OK;
}

static ErrorCode measure_writer(Bench *b, Error *err) {
    CheckpointWriter *w;
    WriterSetup setup = {.dir = b->dir, .keep = {.last = 2}, .in_use = -1, .ranks = 1};
    setup.staging_bytes = checkpoint_staging_bytes(&b->model, &b->optimizer, NULL);
    TRY(checkpoint_writer_start(&w, &setup, err));
    ErrorCode code = measure_stall(b, w, 0, &b->blocking, err);
    if (code == OK) code = measure_stall(b, w, b->between, &b->beside, err);
    checkpoint_writer_stop(w, NULL);
    return code;
}

static ErrorCode measure(Model *m, const char *dir, double between, Error *err) {
    Bench b = {.model = {.count = TENSORS, .tensors = m->tensors, .ctx = m, .fetch = fetch},
               .optimizer = {.count = 2 * TENSORS,
                             .tensors = m->tensors + TENSORS,
                             .ctx = m,
                             .fetch = fetch_moments},
               .dir = dir,
               .between = between};
    b.save = (CheckpointSave){.step = 1, .model = &b.model, .optimizer = &b.optimizer, .state = "{}"};
    TRY(device_open_cpu(&b.device, "auto", 0, err));
    ErrorCode code = measure_whole(&b, err);
    if (code == OK) code = measure_writer(&b, err);
    device_close(&b.device);
    if (code != OK) return code;
    double bytes = (double)b.whole.bytes;
    printf("{\"bytes\": %.0f, \"save_seconds\": %.3f, \"save_gb_per_second\": %.3f, "
           "\"verify_gb_per_second\": %.3f, \"blocking_stall\": %.3f, \"blocking_share\": %.4f, "
           "\"seconds_between\": %.1f, \"beside_stall\": %.4f, \"beside_share\": %.5f}\n",
           bytes, b.whole.seconds, bytes / b.whole.seconds / 1e9, bytes / b.verify / 1e9, b.blocking,
           b.blocking / b.whole.seconds, between, b.beside, b.beside / b.whole.seconds);
    return OK;
}

int main(int argc, char **argv) {
    Model *m = mem_alloc(sizeof *m);
    Error err = {.message = ""};
    int64_t millions = argc > 1 ? strtoll(argv[1], NULL, 10) : 125;
    const char *parent = argc > 2 ? argv[2] : ".";
    double between = argc > 3 ? strtod(argv[3], NULL) : 4.0;
    char *path = path_join(parent, "weft-bench-checkpoint-XXXXXX");
    if (millions < 1 || millions > 100000 || !(between > 0 && between < 1000))
        return fprintf(stderr, "expected millions of parameters, a directory, seconds\n"), ERR_USAGE;
    if (file_make_dirs(parent, &err) != OK) return fprintf(stderr, "%s\n", err.message), err.code;
    if (!mkdtemp(path)) return perror(path), ERR_CANTCREATE;
    make(m, millions * 1000000);
    ErrorCode code = measure(m, path, between, &err);
    if (code != OK) fprintf(stderr, "%s\n", err.message);
    file_remove_tree(path, NULL);
    free(m->values);
    free(m);
    free(path);
    return code;
}
