/* A thread that prepares batches before the step that needs them.
 *
 * A batch is a function of its number (data/dataset.h), so the thread changes only when it is made: a run has
 * the same bits with any depth. Depth hides page faults and first-time checksum verification, but not a
 * source that is slower than training; that shows in `waited`.
 *
 *  L1. Microbatch i lives in slot i mod slots. The thread fills slot `made` only while made < released +
 *      slots.
 *  L2. The caller owns microbatch given - 1, which is released by the next loader_next.
 *  L3. Once `code` is set, the thread stops. Batches made before are still returned, then the error.
 *
 *       released      given                 made            released + slots
 *   -------+-------------+--------------------+---------------------+-------> number of the microbatch
 *          | the caller's| ready              | free; one in making |
 *
 * Elsewhere called: DataLoader. */
#include "data/loader.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "data/stream.h"

/* made, given and released count microbatches from 0 and never wrap; a slot is the remainder. */
struct Loader {
    const Dataset *dataset;
    LoaderLayout layout;
    int64_t context;
    uint64_t slots;
    Batch *batches;
    int32_t *memory;
    uint64_t made, given, released;
    bool stop;
    ErrorCode code;
    Error error;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
};

/* The samples of a step are in runs: this rank's microbatch a starts at a * microbatch_stride, and the next
 * step is step_stride further on. Ranks differ only in `first`. */
uint64_t loader_sample(const LoaderLayout *l, uint64_t i) {
    uint64_t step = i / (uint64_t)l->microbatches, a = i % (uint64_t)l->microbatches;
    return l->first + step * (uint64_t)l->step_stride + a * (uint64_t)l->microbatch_stride;
}

/* Rows past the limit are empty: without targets they change no sum. */
static ErrorCode make(Loader *l, uint64_t i, Error *err) {
    Batch *b = &l->batches[i % l->slots];
    uint64_t first = loader_sample(&l->layout, i);
    b->valid = 0;
    for (int64_t r = 0; r < l->layout.sequences; r++) {
        int64_t at = r * l->context;
        SampleRow row = {b->inputs + at, b->targets + at, b->positions + at, b->first_key + at, (int32_t)at};
        if (l->layout.limit > 0 && first + (uint64_t)r >= l->layout.limit)
            stream_empty_row(l->context, &row);
        else
            TRY(dataset_sample(l->dataset, l->layout.validation, first + (uint64_t)r, &row, &b->valid, err));
    }
    return OK;
}

/* Whether microbatch i can be made without waiting for the tokenizer. */
static ErrorCode is_ready(const Loader *l, uint64_t i, bool *ready, Error *err) {
    uint64_t first = loader_sample(&l->layout, i);
    *ready = true;
    for (int64_t r = 0; *ready && !l->layout.validation && r < l->layout.sequences; r++)
        TRY(dataset_ready(l->dataset, first + (uint64_t)r, ready, err));
    return OK;
}

/* With the lock, which is released meanwhile. This wait is no beat for the watchdog, unless the tokenizer
 * has made progress (data/growing.c). */
static void pause_for_tokens(Loader *l) {
    struct timespec until = clock_after(20);
    pthread_cond_timedwait(&l->changed, &l->lock, &until);
}

/* The lock is not held while a batch is made: the slot belongs to this thread until `made` is increased. */
static void *run(void *argument) {
    Loader *l = argument;
    pthread_mutex_lock(&l->lock);
    while (!l->stop && l->code == OK) {
        if (l->made == l->released + l->slots) {
            pthread_cond_wait(&l->changed, &l->lock);
            continue;
        }
        uint64_t i = l->made;
        pthread_mutex_unlock(&l->lock);
        Error error = {0};
        bool ready;
        ErrorCode code = is_ready(l, i, &ready, &error);
        if (code == OK && ready) code = make(l, i, &error);
        pthread_mutex_lock(&l->lock);
        if (code != OK)
            l->error = error;
        else if (ready)
            l->made++;
        else
            pause_for_tokens(l);
        l->code = code;
        pthread_cond_broadcast(&l->changed);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

/* Indices within a batch are 32 bits (first_key, positions), which limits the tokens of a microbatch. */
static ErrorCode check_layout(const LoaderLayout *l, int64_t context, int64_t depth, Error *err) {
    bool positive = l->sequences >= 1 && l->microbatches >= 1 && l->microbatch_stride >= 0 &&
                    l->step_stride >= 0 && depth >= 1;
    if (!positive || depth > 1 << 20)
        return error_set(err, ERR_CONFIG,
                         "impossible batch layout: %" PRId64 " sequences, %" PRId64
                         " microbatches, depth %" PRId64,
                         l->sequences, l->microbatches, depth);
    if (l->sequences > INT32_MAX / context)
        return error_set(err, ERR_CONFIG,
                         "%" PRId64 " sequences of %" PRId64 " tokens: a microbatch holds at most %d tokens",
                         l->sequences, context, INT32_MAX);
    return OK;
}

size_t loader_bytes(int64_t tokens, int64_t depth) {
    size_t all;
    CHECK(size_multiply(batch_bytes(tokens), (size_t)depth + 1, &all));
    return all;
}

/* Allocates all memory at once, before the first step. The batch of a slot is four consecutive arrays. */
static void allocate(Loader *l) {
    int64_t tokens = l->layout.sequences * l->context;
    l->batches = mem_alloc_array(l->slots, sizeof *l->batches);
    l->memory = mem_alloc(loader_bytes(tokens, (int64_t)l->slots - 1));
    for (uint64_t i = 0; i < l->slots; i++) {
        int32_t *at = l->memory + 4 * tokens * (int64_t)i;
        l->batches[i] = (Batch){tokens, at, at + tokens, at + 2 * tokens, at + 3 * tokens, 0};
    }
}

/* Call when no thread can use the loader any more. */
static void release(Loader *l) {
    pthread_cond_destroy(&l->changed);
    pthread_mutex_destroy(&l->lock);
    free(l->memory);
    free(l->batches);
    free(l);
}

/* One slot more than the depth: the caller has one batch while `depth` are ready. */
ErrorCode loader_open(Loader **loader, const Dataset *dataset, const LoaderLayout *layout, int64_t depth,
                      Error *err) {
    int64_t context = dataset_context(dataset);
    TRY(check_layout(layout, context, depth, err));
    if (layout->validation && dataset_validation_samples(dataset) == 0)
        return error_set(err, ERR_CONFIG,
                         "no validation data: set data.validation or data.validation_fraction");
    Loader *l = mem_alloc(sizeof *l);
    *l = (Loader){.dataset = dataset, .layout = *layout, .context = context, .slots = (uint64_t)depth + 1};
    allocate(l);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->changed, NULL);
    int code = pthread_create(&l->thread, NULL, run, l);
    if (code != 0) {
        release(l);
        errno = code;
        return error_errno(err, ERR_UNAVAILABLE, "cannot start the data thread");
    }
    *loader = l;
    return OK;
}

/* Waits for the batch in progress, if any. */
void loader_close(Loader *l) {
    if (!l) return;
    pthread_mutex_lock(&l->lock);
    l->stop = true;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    release(l);
}

/* Releases the batch that was returned last: a caller that asks for the next one has finished with it. */
ErrorCode loader_next(Loader *l, Batch *out, double *waited, Error *err) {
    double start = clock_seconds();
    pthread_mutex_lock(&l->lock);
    l->released = l->given;
    pthread_cond_broadcast(&l->changed);
    while (l->made == l->given && l->code == OK) pthread_cond_wait(&l->changed, &l->lock);
    ErrorCode code = l->made > l->given ? OK : l->code;
    if (code == OK)
        *out = l->batches[l->given++ % l->slots];
    else if (err)
        *err = l->error;
    pthread_mutex_unlock(&l->lock);
    *waited = clock_seconds() - start;
    return code;
}
