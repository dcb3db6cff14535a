/* The background writer.
 *
 *  1. The staging memory belongs to the caller's thread in SAVE_IDLE and to the worker otherwise; phase and
 *     job change only under the lock.
 *  2. The worker takes one job after the other and never waits for another rank within one: between jobs the
 *     save waits until the caller passes in the reduced words of all ranks.
 *  3. A rank's failure goes into its blob and through the commit; a save's failure is kept until it has been
 *     returned once.
 *  4. The worker writes from host memory: staged tensors. A direct writer's goes through the lists' fetch.
 *  5. Staged tensors that changed between their copy and the end of the write make the save fail: a flipped
 *     bit there would be in the files, with a checksum that agrees.
 *
 * The phases of a save, and their transitions on each rank. "X heard" means that X is among the words that
 * checkpoint_writer_advance receives; the worker makes all other transitions:
 *
 *   rank 0   IDLE --begin--> BUSY --files made--> PREPARED --data written---> WRITTEN --commit--> COMMITTED
 *              ^               |                     |                            |                    |
 *              |               +------ a failure ----+----> FAILED ----commit-----+---> LOST           |
 *              +-------------------------- its own word heard ----------------------------+-----------+
 *
 *   others   IDLE --begin--> BUSY --PREPARED heard, data written----> WRITTEN --COMMITTED, LOST heard--> IDLE
 *                              +--a failure, or REFUSED heard-------> FAILED  --LOST heard-------------> IDLE
 *
 * The commit starts when every rank is in WRITTEN or FAILED. A single rank goes through the same phases
 * without hearing anything: the worker commits right after the write and ends in IDLE. */
#include "checkpoint/async.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/host.h"
#include "base/pages.h"
#include "device/pool.h"

/* A list whose segments are contiguous in staging memory. */
typedef struct StagedList {
    TensorList list;
    char **at;      /* [segments of list] */
    uint64_t *sums; /* [segments of list] checksums, taken once everything is copied */
} StagedList;

/* In order; only rank 0 reaches PREPARED, COMMITTED and LOST. */
typedef enum SavePhase {
    SAVE_IDLE,
    SAVE_BUSY,
    SAVE_PREPARED,
    SAVE_WRITTEN,
    SAVE_FAILED, /* instead of WRITTEN */
    SAVE_COMMITTED,
    SAVE_LOST
} SavePhase;

typedef enum Job { JOB_NONE, JOB_STAGE, JOB_WRITE, JOB_COMMIT } Job;

struct CheckpointWriter {
    WriterSetup setup;
    char *staging;

    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Job job; /* the worker's next job */
    bool running, copying, quit, has_report;
    SavePhase phase, reported; /* reported: the phase in the last word returned */
    bool prepared, refused;    /* rank 0 has made the files, or failed to */
    bool gathered;             /* the blobs have been requested */
    Error outcome;             /* of the commit */
    Error failure;             /* code OK: none */
    SaveReport report;

    CheckpointSave save; /* of the caller's lists, after the copy of the staged ones */
    StagedList model, optimizer, average;
    uint64_t flip, save_flip; /* injected: this bit of the staged tensors flips, counted from 1, 0: none; in
                                 the next save, and in this one */
    char *state;
    double start;
    Text blob;             /* this rank's */
    CheckpointBlob *blobs; /* [ranks], rank 0: copies */
};

static size_t list_bytes(const TensorList *list) {
    size_t bytes = 0;
    for (int i = 0; list != NULL && i < tensor_segments(list); i++)
        bytes += pool_round(tensor_segment_bytes(list, i));
    return bytes;
}

/* Each segment starts at a multiple of the pools' alignment, for fast copies. */
size_t checkpoint_staging_bytes(const TensorList *model, const TensorList *optimizer,
                                const TensorList *average) {
    return list_bytes(model) + list_bytes(optimizer) + list_bytes(average);
}

/* Young, "A first order approximation to the optimum checkpoint interval", 1974: sqrt(2 * M * C), where C is
 * only the time that training waits; at least the time of a save. */
double checkpoint_interval(double mean_time_to_failure, double stall, double save_seconds) {
    return fmax(sqrt(2.0 * mean_time_to_failure * stall), save_seconds);
}

/* Replaces the caller's fetch: the lists now read staging memory, and checkpoint_write does not notice the
 * difference. Copying memory cannot fail. */
static ErrorCode fetch_staged(void *ctx, int segment, size_t offset, size_t bytes, void *host, Error *err) {
    const StagedList *s = ctx;
    (void)err;
    memcpy(host, s->at[segment] + offset, bytes);
    return OK;
}

/* Copies a list to *next and advances *next. `at` is reused between saves; the caller owns the
 * descriptions. */
static ErrorCode stage(StagedList *s, const TensorList *list, char **next, Error *err) {
    s->at = mem_grow(s->at, (size_t)tensor_segments(list) * sizeof *s->at);
    s->sums = mem_grow(s->sums, (size_t)tensor_segments(list) * sizeof *s->sums);
    s->list = *list;
    s->list.ctx = s;
    s->list.fetch = fetch_staged;
    for (int i = 0; i < tensor_segments(list); i++) {
        size_t bytes = tensor_segment_bytes(list, i);
        s->at[i] = *next;
        *next += pool_round(bytes);
        if (bytes > 0) TRY(list->fetch(list->ctx, i, 0, bytes, s->at[i], err));
    }
    return OK;
}

/* Replaces the caller's lists in w->save by staged ones. All are staged before any is replaced, so that a
 * failure leaves the caller's lists intact. */
static ErrorCode stage_all(CheckpointWriter *w, Error *err) {
    char *next = w->staging;
    const TensorList *model = w->save.model, *optimizer = w->save.optimizer, *average = w->save.average;
    TRY(stage(&w->model, model, &next, err));
    if (optimizer != NULL) TRY(stage(&w->optimizer, optimizer, &next, err));
    if (average != NULL) TRY(stage(&w->average, average, &next, err));
    w->save.model = &w->model.list;
    w->save.optimizer = optimizer != NULL ? &w->optimizer.list : NULL;
    w->save.average = average != NULL ? &w->average.list : NULL;
    return OK;
}

/* Returns a segment whose bytes no longer have their checksum, -1: none. With `take`, notes all checksums. */
static int sum_list(StagedList *s, bool take) {
    for (int i = 0; i < tensor_segments(&s->list); i++) {
        uint64_t sum = hash64(s->at[i], tensor_segment_bytes(&s->list, i));
        if (!take && sum != s->sums[i]) return i;
        s->sums[i] = sum;
    }
    return -1;
}

/* The staged lists of the save; NULL where it has none. */
static void staged_lists(CheckpointWriter *w, StagedList *lists[3]) {
    const TensorList *parts[3] = {w->save.model, w->save.optimizer, w->save.average};
    StagedList *all[3] = {&w->model, &w->optimizer, &w->average};
    for (int i = 0; i < 3; i++) lists[i] = parts[i] == &all[i]->list ? all[i] : NULL;
}

static void flip_staged(CheckpointWriter *w) {
    size_t bytes = checkpoint_staging_bytes(w->save.model, w->save.optimizer, w->save.average);
    if (w->save_flip == 0 || bytes == 0) return;
    uint64_t bit = (w->save_flip - 1) % (8 * bytes);
    w->staging[bit / 8] = (char)(w->staging[bit / 8] ^ 1 << bit % 8);
}

/* After the copy, when the caller no longer waits. */
static void sum_staged(CheckpointWriter *w) {
    StagedList *lists[3];
    staged_lists(w, lists);
    for (int i = 0; i < 3; i++)
        if (lists[i]) sum_list(lists[i], true);
    flip_staged(w);
}

/* Invariant 5. */
static ErrorCode check_staged(CheckpointWriter *w, Error *err) {
    StagedList *lists[3];
    staged_lists(w, lists);
    for (int i = 0; i < 3; i++) {
        int changed = lists[i] ? sum_list(lists[i], false) : -1;
        if (changed < 0) continue;
        const TensorList *list = &lists[i]->list;
        char host[HOST_NAME_BYTES];
        host_name(host, sizeof host);
        return error_set(err, ERR_REPLICAS,
                         "the copy of %s from which it was written changed in memory of host %s. Leave this "
                         "machine out, and go on from the last checkpoint",
                         list->tensors[tensor_segment(list, changed).tensor].name, host);
    }
    return OK;
}

/* `prepared` outlives the phase: rank 0 keeps reporting in later phases that the files exist. */
static void set_phase(CheckpointWriter *w, SavePhase phase) {
    pthread_mutex_lock(&w->lock);
    w->phase = phase;
    if (phase == SAVE_PREPARED) w->prepared = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Called before anything is written: from now on the caller may update the weights. */
static void end_copy(CheckpointWriter *w) {
    pthread_mutex_lock(&w->lock);
    w->copying = false;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* A failure blob replaces the list of segments. The commit, which reads all blobs, fails with it and names
 * the rank. */
static void fail_part(CheckpointWriter *w, const Error *failure) {
    checkpoint_blob_failure(failure, &w->blob);
    set_phase(w, SAVE_FAILED);
}

static void write_part(CheckpointWriter *w) {
    Error err = {.message = ""};
    ErrorCode code = checkpoint_write(w->setup.ops, w->setup.dir, &w->save, &w->blob, NULL);
    if (w->setup.rank != 0) w->report.seconds = clock_seconds() - w->start;
    if (code == OK && check_staged(w, &err) != OK) {
        text_clear(&w->blob);
        fail_part(w, &err);
        return;
    }
    set_phase(w, code == OK ? SAVE_WRITTEN : SAVE_FAILED);
}

/* On ranks other than 0 it ends after the copy: they stay BUSY until they hear that the files exist. */
static void run_stage(CheckpointWriter *w) {
    Error err = {.message = ""};
    ErrorCode code = w->setup.direct ? OK : stage_all(w, &err);
    end_copy(w);
    if (code == OK && !w->setup.direct) sum_staged(w);
    w->start = clock_seconds();
    if (code == OK && w->setup.rank == 0) code = checkpoint_begin(w->setup.ops, w->setup.dir, &w->save, &err);
    if (code != OK) {
        fail_part(w, &err);
    } else if (w->setup.rank == 0) {
        set_phase(w, SAVE_PREPARED);
        write_part(w);
    }
}

/* On ranks other than 0. If the copy failed meanwhile, the blob already reports that. */
static void run_write(CheckpointWriter *w) {
    Error err;
    if (w->phase == SAVE_FAILED) return;
    w->start = clock_seconds();
    if (w->refused) {
        error_set(&err, ERR_CANTCREATE, "rank 0 could not begin it");
        fail_part(w, &err);
    } else {
        write_part(w);
    }
}

/* The end of a save on this rank; the caller holds the lock. Rank 0, which has the cause, prints another
 * rank's failure; here it is marked as reported, so that it is not printed twice. */
static void release(CheckpointWriter *w, bool committed) {
    w->phase = SAVE_IDLE;
    w->has_report = committed;
    if (committed) return;
    w->failure = w->outcome;
    if (w->setup.rank == 0) return;
    error_set(&w->failure, ERR_IO, "saving the checkpoint of step %" PRId64 ": failed; rank 0 knows why",
              w->save.step);
    w->failure.reported = true;
}

/* Pruning comes after the commit and counts as part of the save: a file that cannot be removed is reported as
 * a failure, although the checkpoint exists. The fields of the report change under the lock, since the caller
 * may read it at any time. */
static void run_commit(CheckpointWriter *w, const CheckpointBlob *blobs) {
    const WriterSetup *s = &w->setup;
    Error err = {.message = ""};
    uint64_t bytes = 0;
    int removed = 0;
    ErrorCode code = checkpoint_commit(s->ops, s->dir, &w->save, blobs, s->ranks, &bytes, &err);
    double seconds = clock_seconds() - w->start;
    if (code != OK) error_context(&err, "saving the checkpoint of step %" PRId64, w->save.step);
    CheckpointKeep keep = s->keep;
    keep.best = w->save.best;
    if (code == OK) code = checkpoint_prune(s->ops, s->dir, keep, s->in_use, CHECK_MANIFEST, &removed, &err);
    pthread_mutex_lock(&w->lock);
    w->report.seconds = seconds;
    w->report.bytes = bytes;
    w->report.removed = removed;
    w->outcome = err;
    w->phase = code == OK ? SAVE_COMMITTED : SAVE_LOST;
    if (s->ranks == 1) release(w, code == OK);
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Everything slow runs without the lock. */
static void run(CheckpointWriter *w, Job job) {
    if (job == JOB_STAGE) run_stage(w);
    if (job == JOB_WRITE) run_write(w);
    if (job == JOB_COMMIT) run_commit(w, w->blobs);
    /* A single rank does not wait for others. */
    if (job == JOB_STAGE && w->setup.ranks == 1)
        run_commit(w, &(CheckpointBlob){w->blob.data, w->blob.length});
}

/* `running` is false exactly while the worker waits here; checkpoint_writer_settle waits for that. */
static Job next_job(CheckpointWriter *w) {
    pthread_mutex_lock(&w->lock);
    w->running = false;
    pthread_cond_broadcast(&w->changed);
    while (w->job == JOB_NONE && !w->quit) pthread_cond_wait(&w->changed, &w->lock);
    Job job = w->quit ? JOB_NONE : w->job;
    w->job = JOB_NONE;
    w->running = job != JOB_NONE;
    pthread_mutex_unlock(&w->lock);
    return job;
}

static void *work(void *argument) {
    CheckpointWriter *w = argument;
    for (Job job; (job = next_job(w)) != JOB_NONE;) run(w, job);
    return NULL;
}

/* The caller holds the lock. One slot is enough: phases follow each other, so the previous job has been
 * taken. */
static void give_job(CheckpointWriter *w, Job job) {
    w->job = job;
    pthread_cond_broadcast(&w->changed);
}

/* Allocated and touched now, so that the first save does not pay for it. A device with separate memory copies
 * to pinned memory asynchronously; copies to other memory block the thread in the driver, segment by
 * segment. */
static ErrorCode take_staging(CheckpointWriter *w, Error *err) {
    size_t bytes = w->setup.staging_bytes;
    Device *d = w->setup.device;
    if (w->setup.direct) return OK;
    if (d) {
        w->staging = d->runtime.host_take(d, bytes);
        return w->staging ? OK
                          : error_set(err, ERR_MEMORY,
                                      "checkpoint staging: cannot get %zu bytes of pinned memory", bytes);
    }
    w->staging = pages_take(bytes, w->setup.threads);
    return w->staging
               ? OK
               : error_errno(err, ERR_MEMORY, "checkpoint staging: cannot get %zu bytes of memory", bytes);
}

static void free_blobs(CheckpointWriter *w) {
    for (int i = 0; w->blobs != NULL && i < w->setup.ranks; i++) free((void *)(uintptr_t)w->blobs[i].data);
    free(w->blobs);
    w->blobs = NULL;
}

static void free_staged(StagedList *s) {
    free(s->at);
    free(s->sums);
}

static void give_staging(CheckpointWriter *w) {
    Device *d = w->setup.device;
    if (d && w->staging)
        d->runtime.host_give(d, w->staging);
    else if (w->staging)
        pages_give(w->staging, w->setup.staging_bytes);
}

static void writer_free(CheckpointWriter *w) {
    give_staging(w);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free_staged(&w->model);
    free_staged(&w->optimizer);
    free_staged(&w->average);
    free(w->state);
    free((void *)(uintptr_t)w->setup.dir);
    text_free(&w->blob);
    free_blobs(w);
    free(w);
}

/* After a failure there is no thread and no memory, and *writer is NULL. */
ErrorCode checkpoint_writer_start(CheckpointWriter **writer, const WriterSetup *setup, Error *err) {
    CHECK(setup->rank >= 0 && setup->rank < setup->ranks);
    CheckpointWriter *w = mem_alloc(sizeof *w);
    w->setup = *setup;
    w->setup.dir = mem_strdup(setup->dir);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    ErrorCode code = take_staging(w, err);
    if (code == OK && (errno = pthread_create(&w->thread, NULL, work, w)) != 0)
        code = error_errno(err, ERR_UNAVAILABLE, "checkpoint writer: cannot start a thread");
    if (code != OK) writer_free(w);
    *writer = code == OK ? w : NULL;
    return code;
}

/* Several ranks cannot wait here: their save ends with the words of the others, which only the caller passes
 * in. */
ErrorCode checkpoint_writer_wait(CheckpointWriter *w, Error *err) {
    pthread_mutex_lock(&w->lock);
    CHECK(w->setup.ranks == 1 || w->phase == SAVE_IDLE);
    while (w->phase != SAVE_IDLE) pthread_cond_wait(&w->changed, &w->lock);
    ErrorCode code = w->failure.code;
    if (code != OK && err != NULL) *err = w->failure;
    /* Returned once: a failed save does not fail the next one. */
    w->failure.code = OK;
    pthread_mutex_unlock(&w->lock);
    return code;
}

ErrorCode checkpoint_writer_begin(CheckpointWriter *w, const CheckpointSave *save, Error *err) {
    double start = clock_seconds();
    CHECK(w->setup.direct ||
          checkpoint_staging_bytes(save->model, save->optimizer, save->average) <= w->setup.staging_bytes);
    /* With one rank a save may still be in flight: this wait is the back-pressure that the report counts as
     * `waited`. */
    TRY(checkpoint_writer_wait(w, err));
    free(w->state);
    w->state = save->state != NULL ? mem_strdup(save->state) : NULL;
    /* The worker waits in SAVE_IDLE, so these fields may change without the lock until the job is given. */
    w->save = *save;
    w->save.state = w->state;
    w->save_flip = w->flip, w->flip = 0;
    text_clear(&w->blob);
    free_blobs(w);
    pthread_mutex_lock(&w->lock);
    w->report = (SaveReport){.step = save->step, .waited = clock_seconds() - start};
    w->has_report = w->prepared = w->refused = w->gathered = false;
    w->copying = true;
    w->phase = SAVE_BUSY;
    give_job(w, JOB_STAGE);
    pthread_mutex_unlock(&w->lock);
    return OK;
}

void checkpoint_writer_flip(CheckpointWriter *w, uint64_t index) { w->flip = index % UINT64_MAX + 1; }

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

/* Changes only `reported`: settle returns when the phase differs from the last word that was sent. */
WriterWord checkpoint_writer_word(CheckpointWriter *w) {
    WriterWord word = {0, 0};
    pthread_mutex_lock(&w->lock);
    SavePhase phase = w->reported = w->phase;
    if (phase >= SAVE_WRITTEN) word.all = WRITER_WRITTEN;
    if (w->setup.rank == 0 && phase > SAVE_BUSY) word.any = w->prepared ? WRITER_PREPARED : WRITER_REFUSED;
    if (phase == SAVE_COMMITTED) word.any |= WRITER_COMMITTED;
    if (phase == SAVE_LOST) word.any |= WRITER_LOST;
    pthread_mutex_unlock(&w->lock);
    return word;
}

/* Rank 0 has made the files, or failed to. The job is given in both cases: if refused, it ends with a failure
 * blob, so that the save proceeds the same way on all ranks. The caller holds the lock. */
static void hear(CheckpointWriter *w, unsigned any) {
    if (w->setup.rank == 0 || w->prepared || w->refused) return;
    w->prepared = (any & WRITER_PREPARED) != 0;
    w->refused = (any & WRITER_REFUSED) != 0;
    if (w->prepared || w->refused) give_job(w, JOB_WRITE);
}

bool checkpoint_writer_advance(CheckpointWriter *w, WriterWord combined) {
    bool gather = false;
    pthread_mutex_lock(&w->lock);
    if (w->setup.ranks > 1 && w->phase != SAVE_IDLE) {
        /* Once per save, and on all ranks at the same boundary, since all receive the same word. */
        gather = !w->gathered && (combined.all & WRITER_WRITTEN);
        w->gathered = w->gathered || gather;
        hear(w, combined.any);
        if (combined.any & (WRITER_COMMITTED | WRITER_LOST))
            release(w, (combined.any & WRITER_COMMITTED) != 0);
    }
    pthread_mutex_unlock(&w->lock);
    return gather;
}

bool checkpoint_writer_idle(CheckpointWriter *w) {
    pthread_mutex_lock(&w->lock);
    bool idle = w->phase == SAVE_IDLE;
    pthread_mutex_unlock(&w->lock);
    return idle;
}

/* Without the lock: it is called after WRITTEN, when the worker no longer writes to the blob. */
CheckpointBlob checkpoint_writer_blob(CheckpointWriter *w) {
    return (CheckpointBlob){w->blob.data, w->blob.length};
}

/* Copied, since the caller reuses its buffers before the worker has read them. */
static CheckpointBlob copy_blob(const CheckpointBlob *blob) {
    char *data = mem_alloc(blob->length);
    if (blob->length > 0) memcpy(data, blob->data, blob->length);
    return (CheckpointBlob){data, blob->length};
}

void checkpoint_writer_commit(CheckpointWriter *w, const CheckpointBlob *blobs) {
    if (w->setup.rank != 0) return;
    w->blobs = mem_alloc_array((size_t)w->setup.ranks, sizeof *w->blobs);
    for (int i = 0; i < w->setup.ranks; i++) w->blobs[i] = copy_blob(&blobs[i]);
    pthread_mutex_lock(&w->lock);
    give_job(w, JOB_COMMIT);
    pthread_mutex_unlock(&w->lock);
}

void checkpoint_writer_settle(CheckpointWriter *w) {
    pthread_mutex_lock(&w->lock);
    while (w->phase == w->reported && (w->running || w->job != JOB_NONE))
        pthread_cond_wait(&w->changed, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

bool checkpoint_writer_report(CheckpointWriter *w, SaveReport *out) {
    pthread_mutex_lock(&w->lock);
    bool there = w->has_report;
    if (there) *out = w->report;
    w->has_report = false;
    pthread_mutex_unlock(&w->lock);
    return there;
}

ErrorCode checkpoint_writer_stop(CheckpointWriter *w, Error *err) {
    if (w == NULL) return OK;
    ErrorCode code = w->setup.ranks == 1 ? checkpoint_writer_wait(w, err) : OK;
    pthread_mutex_lock(&w->lock);
    w->quit = true;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    /* With several ranks the writer may be stopped in the middle of a save, at the end of a failed run. Its
     * temporary directory then stays, and the next start removes it (checkpoint_clean). */
    if (w->phase == SAVE_IDLE && code == OK) code = checkpoint_writer_wait(w, err);
    writer_free(w);
    return code;
}
