/* The background writer.
 *
 *  1. The staging memory belongs to the caller's thread while `busy` is false and to the worker while it is true; `busy`
 * changes under the lock only.
 *  2. A failure is kept until it has been returned once.
 *  3. The worker touches host memory only: staged tensors, never tensor memory. */
#include "checkpoint/async.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

#define ALIGN ((size_t)64)

/* A list whose tensors lie in staging memory, one after the other. */
typedef struct StagedList {
    TensorList list;
    char **at; /* [list.count] */
} StagedList;

struct CheckpointWriter {
    const FileOps *ops;
    char *dir;
    CheckpointKeep keep;
    int64_t in_use;
    char *staging;
    size_t staging_bytes;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool busy, copying, quit, has_report;
    Error failure; /* code OK: none */
    SaveReport report;

    CheckpointSave save; /* of the caller's lists, once copied of the staged ones */
    StagedList model, optimizer;
    char *state;
};

static size_t memory_bytes(const TensorDesc *t) {
    size_t bytes;
    CHECK(size_multiply((size_t)tensor_elements(t), (size_t)safe_type_bits(t->memory) / 8, &bytes));
    return bytes;
}

static size_t round_up(size_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static size_t list_bytes(const TensorList *list) {
    size_t bytes = 0;
    for (int i = 0; list != NULL && i < list->count; i++) bytes += round_up(memory_bytes(&list->tensors[i]));
    return bytes;
}

size_t checkpoint_staging_bytes(const TensorList *model, const TensorList *optimizer) {
    return list_bytes(model) + list_bytes(optimizer);
}

double checkpoint_interval(double mean_time_to_failure, double stall, double save_seconds) {
    return fmax(sqrt(2.0 * mean_time_to_failure * stall), save_seconds);
}

static ErrorCode fetch_staged(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    const StagedList *s = ctx;
    (void)err;
    memcpy(host, s->at[index] + offset, bytes);
    return OK;
}

/* Copies a list to *next and moves it on. */
static ErrorCode stage(StagedList *s, const TensorList *list, char **next, Error *err) {
    s->at = mem_grow(s->at, (size_t)list->count * sizeof *s->at);
    s->list = (TensorList){.count = list->count, .tensors = list->tensors, .ctx = s, .fetch = fetch_staged};
    for (int i = 0; i < list->count; i++) {
        size_t bytes = memory_bytes(&list->tensors[i]);
        s->at[i] = *next;
        *next += round_up(bytes);
        if (bytes > 0) TRY(list->fetch(list->ctx, i, 0, bytes, s->at[i], err));
    }
    return OK;
}

/* Turns w->save from the caller's lists to staged ones. */
static ErrorCode stage_all(CheckpointWriter *w, Error *err) {
    char *next = w->staging;
    const TensorList *model = w->save.model, *optimizer = w->save.optimizer;
    TRY(stage(&w->model, model, &next, err));
    if (optimizer != NULL) TRY(stage(&w->optimizer, optimizer, &next, err));
    w->save.model = &w->model.list;
    w->save.optimizer = optimizer != NULL ? &w->optimizer.list : NULL;
    return OK;
}

static void set_flag(CheckpointWriter *w, bool *flag, bool value) {
    pthread_mutex_lock(&w->lock);
    *flag = value;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* One save; everything slow happens outside the lock. */
static void perform(CheckpointWriter *w) {
    SaveFigures figures = {0};
    Error err = {.message = ""};
    int removed = 0;
    ErrorCode code = stage_all(w, &err);
    set_flag(w, &w->copying, false);
    if (code == OK) code = checkpoint_save(w->ops, w->dir, &w->save, &figures, &err);
    if (code == OK) code = checkpoint_prune(w->ops, w->dir, w->keep, w->in_use, CHECK_MANIFEST, &removed, &err);
    pthread_mutex_lock(&w->lock);
    w->report.seconds = figures.seconds;
    w->report.bytes = figures.bytes;
    w->report.removed = removed;
    w->has_report = code == OK;
    if (code != OK) w->failure = err;
    w->busy = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

static void *work(void *argument) {
    CheckpointWriter *w = argument;
    for (;;) {
        pthread_mutex_lock(&w->lock);
        while (!w->busy && !w->quit) pthread_cond_wait(&w->changed, &w->lock);
        bool has_work = w->busy;
        pthread_mutex_unlock(&w->lock);
        if (!has_work) return NULL;
        perform(w);
    }
}

/* Mapped and touched now, so that the first save does not pay for it. */
static ErrorCode map_staging(CheckpointWriter *w, Error *err) {
    size_t bytes = w->staging_bytes > 0 ? w->staging_bytes : 1;
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (p == MAP_FAILED) return error_errno(err, ERR_MEMORY, "checkpoint staging: cannot get %zu bytes of memory", bytes);
    w->staging = p;
    return OK;
}

static void writer_free(CheckpointWriter *w) {
    if (w->staging != NULL) munmap(w->staging, w->staging_bytes > 0 ? w->staging_bytes : 1);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w->model.at);
    free(w->optimizer.at);
    free(w->state);
    free(w->dir);
    free(w);
}

ErrorCode checkpoint_writer_start(CheckpointWriter **writer, const FileOps *ops, const char *dir, CheckpointKeep keep,
                                  int64_t in_use, size_t staging_bytes, Error *err) {
    CheckpointWriter *w = mem_alloc(sizeof *w);
    w->ops = ops != NULL ? ops : &file_ops_system;
    w->dir = mem_strdup(dir);
    w->keep = keep;
    w->in_use = in_use;
    w->staging_bytes = staging_bytes;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    ErrorCode code = map_staging(w, err);
    if (code == OK && (errno = pthread_create(&w->thread, NULL, work, w)) != 0)
        code = error_errno(err, ERR_UNAVAILABLE, "checkpoint writer: cannot start a thread");
    if (code != OK) writer_free(w);
    *writer = code == OK ? w : NULL;
    return code;
}

ErrorCode checkpoint_writer_wait(CheckpointWriter *w, Error *err) {
    pthread_mutex_lock(&w->lock);
    while (w->busy) pthread_cond_wait(&w->changed, &w->lock);
    ErrorCode code = w->failure.code;
    if (code != OK && err != NULL) *err = w->failure;
    w->failure.code = OK;
    pthread_mutex_unlock(&w->lock);
    return code;
}

ErrorCode checkpoint_writer_begin(CheckpointWriter *w, const CheckpointSave *save, Error *err) {
    double start = clock_seconds();
    CHECK(checkpoint_staging_bytes(save->model, save->optimizer) <= w->staging_bytes);
    TRY(checkpoint_writer_wait(w, err));
    free(w->state);
    w->state = save->state != NULL ? mem_strdup(save->state) : NULL;
    w->save = *save;
    w->save.state = w->state;
    pthread_mutex_lock(&w->lock);
    w->report = (SaveReport){.step = save->step, .waited = clock_seconds() - start};
    w->has_report = false;
    w->busy = w->copying = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return OK;
}

void checkpoint_writer_copied(CheckpointWriter *w) {
    double start = clock_seconds();
    pthread_mutex_lock(&w->lock);
    bool waited = w->copying;
    while (w->copying) pthread_cond_wait(&w->changed, &w->lock);
    if (waited) w->report.copied += clock_seconds() - start;
    pthread_mutex_unlock(&w->lock);
}

ErrorCode checkpoint_writer_save(CheckpointWriter *w, const CheckpointSave *save, Error *err) {
    TRY(checkpoint_writer_begin(w, save, err));
    checkpoint_writer_copied(w);
    return OK;
}

bool checkpoint_writer_report(CheckpointWriter *w, SaveReport *out) {
    pthread_mutex_lock(&w->lock);
    bool there = w->has_report && !w->busy;
    if (there) *out = w->report;
    w->has_report = w->has_report && w->busy;
    pthread_mutex_unlock(&w->lock);
    return there;
}

ErrorCode checkpoint_writer_stop(CheckpointWriter *w, Error *err) {
    if (w == NULL) return OK;
    ErrorCode code = checkpoint_writer_wait(w, err);
    set_flag(w, &w->quit, true);
    pthread_join(w->thread, NULL);
    writer_free(w);
    return code;
}
