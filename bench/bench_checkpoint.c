/* What a save costs: the whole of it, and what training sees of it when a thread writes. Prints one JSON line.
 *
 *     bench_checkpoint [MILLIONS OF PARAMETERS [DIRECTORY]]
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/async.h"

#define TENSORS 24
#define ROUNDS 5
#define PIECE ((size_t)1 << 20)

/* Weights and two moments, in plain memory: the copy of a device on this machine costs the same. */
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
    for (size_t at = 0; at < bytes; at += PIECE) memcpy((char *)host + at, from + at, bytes - at < PIECE ? bytes - at : PIECE);
    return OK;
}

static ErrorCode fetch_moments(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    return fetch(ctx, TENSORS + index, offset, bytes, host, err);
}

static void make(Model *m, int64_t parameters) {
    int64_t each = parameters / TENSORS / 1024 * 1024;
    for (int i = 0; i < 3 * TENSORS; i++) {
        snprintf(m->names[i], sizeof m->names[i], "%s%02d", i < TENSORS ? "w" : i < 2 * TENSORS ? "m" : "v", i % TENSORS);
        m->tensors[i] = (TensorDesc){m->names[i], SAFE_F32, SAFE_F32, 2, {each / 1024, 1024}};
    }
    size_t count = (size_t)each * 3 * TENSORS;
    m->values = mem_alloc_array(count, sizeof(float));
    for (size_t i = 0; i < count; i++) m->values[i] = (float)(i % 8191) * 0.001f;
}

static ErrorCode measure(Model *m, const char *dir, Error *err) {
    TensorList model = {TENSORS, m->tensors, m, fetch, NULL};
    TensorList optimizer = {2 * TENSORS, m->tensors + TENSORS, m, fetch_moments, NULL};
    CheckpointSave save = {.step = 1, .model = &model, .optimizer = &optimizer, .state = "{}"};
    SaveFigures whole, best = {.seconds = 1e30};
    SaveReport report, least = {.copied = 1e30};
    CheckpointWriter *w;
    double start;
    for (int i = 0; i < ROUNDS; i++) {
        TRY(checkpoint_save(NULL, dir, &save, &whole, err));
        if (whole.seconds < best.seconds) best = whole;
    }
    start = clock_seconds();
    char *path = path_join(dir, "step-00000001");
    TRY(checkpoint_verify(path, err));
    free(path);
    double verify = clock_seconds() - start;
    TRY(checkpoint_writer_start(&w, NULL, dir, (CheckpointKeep){2, 0}, -1, checkpoint_staging_bytes(&model, &optimizer), err));
    for (int i = 0; i < ROUNDS; i++) {
        TRY(checkpoint_writer_save(w, &save, err));
        TRY(checkpoint_writer_wait(w, err));
        if (checkpoint_writer_report(w, &report) && report.copied < least.copied) least = report;
    }
    TRY(checkpoint_writer_stop(w, err));
    printf("{\"bytes\": %.0f, \"save_seconds\": %.3f, \"save_gb_per_second\": %.3f, \"verify_gb_per_second\": %.3f, "
           "\"stall_seconds\": %.3f, \"stall_share\": %.4f}\n",
           (double)best.bytes, best.seconds, (double)best.bytes / best.seconds / 1e9, (double)best.bytes / verify / 1e9,
           least.copied, least.copied / best.seconds);
    return OK;
}

int main(int argc, char **argv) {
    char dir[] = "weft-bench-checkpoint-XXXXXX";
    Model *m = mem_alloc(sizeof *m);
    Error err = {.message = ""};
    int64_t millions = argc > 1 ? strtoll(argv[1], NULL, 10) : 125;
    char *path = path_join(argc > 2 ? argv[2] : ".", dir);
    if (millions < 1 || millions > 100000) return fprintf(stderr, "expected millions of parameters\n"), ERR_USAGE;
    if (!mkdtemp(path)) return perror(path), ERR_CANTCREATE;
    make(m, millions * 1000000);
    ErrorCode code = measure(m, path, &err);
    if (code != OK) fprintf(stderr, "%s\n", err.message);
    file_remove_tree(path, NULL);
    free(m->values);
    free(m);
    free(path);
    return code;
}
