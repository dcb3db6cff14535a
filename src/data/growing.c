/* The thread that tokenizes while a run trains.
 *
 *  T1. Caches are built in the order of their use: of a mixture, always one of the source that is furthest
 *      behind its share. The order decides only how long a reader waits, never what it reads.
 *  T2. The builder never waits for the reader. Its threads have a low priority: while a step computes, they
 *      take the cores that it leaves; while it waits for tokens, they have them all.
 *  T3. Its progress is that of the run only while somebody asks for samples: a rank that hangs elsewhere is
 *      found although its tokenizer goes on, and so is one whose tokenizer hangs.
 *  T4. A late unit is named, and built, once its files have come (data/arrivals.h). */
#include "data/growing.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"

enum { NICE = 10 };

typedef struct GrowingUnit {
    TokenUnit unit; /* `first` counts the files of all sources */
    size_t source;
} GrowingUnit;

struct Growing {
    CorpusFile *files; /* [file_count] of all sources */
    Fingerprint *prints;
    size_t file_count;
    GrowingUnit *units; /* [unit_count] */
    size_t unit_count, sources;
    TokenBuild build;
    BlockOrder *order;
    size_t *queue; /* [unit_count] units in the order of building */
    GrowingArrivals arrivals;
    TokenUnit *batch; /* [batched] to be built next */
    size_t batched;
    Progress *progress; /* of late units */
    double done;        /* MB of it */
    bool has_thread;
    pthread_t thread;
    atomic_bool stop;
    atomic_ullong beats; /* of the thread */
    /* of the thread, under the lock */
    pthread_mutex_t lock;
    bool finished;
    ErrorCode code;
    Error error;
    uint64_t heard; /* beats, when a sample was last asked for */
};

Growing *growing_open(void) {
    Growing *g = mem_alloc(sizeof *g);
    pthread_mutex_init(&g->lock, NULL);
    return g;
}

void growing_add(Growing *g, const CorpusFile *files, const Fingerprint *prints, size_t count,
                 const TokenUnit *units, size_t unit_count) {
    size_t all = g->file_count + count;
    g->files = mem_grow(g->files, all * sizeof *g->files);
    g->prints = mem_grow(g->prints, all * sizeof *g->prints);
    g->units = mem_grow(g->units, (g->unit_count + unit_count) * sizeof *g->units);
    memcpy(g->files + g->file_count, files, count * sizeof *files);
    memcpy(g->prints + g->file_count, prints, count * sizeof *prints);
    for (size_t i = 0; i < unit_count; i++) {
        GrowingUnit *u = &g->units[g->unit_count++];
        *u = (GrowingUnit){.unit = units[i], .source = g->sources};
        u->unit.first += g->file_count;
        if (units[i].dir) u->unit.dir = mem_strdup(units[i].dir);
    }
    g->file_count = all;
    g->sources++;
}

static void open_order(Growing *g, const BlockOrderSpec *spec) {
    BlockCache *caches = mem_alloc_array(g->unit_count, sizeof *caches);
    for (size_t i = 0; i < g->unit_count; i++) {
        caches[i] = (BlockCache){.source = g->units[i].source};
        if (g->units[i].unit.dir) caches[i].dir = mem_strdup(g->units[i].unit.dir);
        memcpy(caches[i].key, g->units[i].unit.key, sizeof caches[i].key);
    }
    g->order = block_order_open(spec, caches, g->unit_count);
    free(caches);
}

static double bytes_of(const Growing *g, const TokenUnit *u) {
    double bytes = 0;
    for (size_t k = 0; k < u->count; k++) bytes += (double)g->prints[u->first + k].stamp.size;
    return bytes;
}

/* T1 */
static void order_queue(Growing *g, const uint32_t *slots) {
    size_t groups = block_order_groups(g->order), *next = mem_alloc_array(groups, sizeof *next);
    double *done = mem_alloc_array(groups, sizeof *done);
    g->queue = mem_alloc_array(g->unit_count, sizeof *g->queue);
    for (size_t i = 0; i < g->unit_count; i++) {
        size_t best = groups;
        const size_t *order;
        for (size_t k = 0; k < groups; k++)
            if (next[k] < block_order_caches(g->order, k, &order) && (best == groups || done[k] < done[best]))
                best = k;
        block_order_caches(g->order, best, &order);
        g->queue[i] = order[next[best]++];
        done[best] += bytes_of(g, &g->units[g->queue[i]].unit) / (slots ? slots[best] : 1);
    }
    free(next);
    free(done);
}

void growing_begin(Growing *g, const GrowingSpec *spec) {
    open_order(g, &spec->order);
    order_queue(g, spec->slots);
    g->arrivals = spec->arrivals;
    g->batch = mem_alloc_array(g->unit_count, sizeof *g->batch);
    g->build = spec->build;
    g->build.files = g->files;
    g->build.prints = g->prints;
    g->build.is_awaited = true;
    g->build.stop = &g->stop;
}

size_t growing_queue(const Growing *g, const size_t **units) {
    *units = g->queue;
    return g->unit_count;
}

atomic_ullong *growing_beats(Growing *g) { return &g->beats; }

/* Adds a unit to the batch unless its cache is complete. */
static ErrorCode add_missing(Growing *g, const TokenUnit *u, Error *err) {
    TokenCache *cache;
    uint64_t vocabulary = (uint64_t)tokenizer_vocab_size(g->build.tokenizer);
    TRY(token_cache_open(&cache, u->dir, u->key, vocabulary, err));
    if (!token_cache_complete(cache)) g->batch[g->batched++] = *u;
    token_cache_close(cache);
    return OK;
}

static ErrorCode build_batch(Growing *g, Error *err) {
    g->build.units = g->batch;
    g->build.unit_count = g->batched;
    ErrorCode code = g->batched > 0 ? token_build(&g->build, err) : OK;
    g->batched = 0;
    return code;
}

/* Late units are built one by one: the files of a unit may go before those of the next have come. */
static ErrorCode build_late(Growing *g, size_t i, Error *err) {
    TokenUnit *u = &g->units[i].unit;
    bool here, named = u->dir != NULL;
    TRY(build_batch(g, err));
    TRY(g->arrivals.await(g->arrivals.context, i, g->files + u->first, g->prints + u->first, u, &here, err));
    if (!here) return OK;
    if (!named) block_order_name(g->order, i, mem_strdup(u->dir), u->key);
    TokenBuild late = g->build;
    late.units = u;
    late.unit_count = 1;
    late.progress = g->progress;
    late.done = g->done;
    TRY(token_build(&late, err));
    g->done += bytes_of(g, u) / 1e6;
    progress_set(g->progress, g->done);
    g->arrivals.release(g->arrivals.context, i);
    return OK;
}

static ErrorCode build_all(Growing *g, Error *err) {
    for (size_t i = 0; i < g->unit_count && !atomic_load(&g->stop); i++) {
        const TokenUnit *u = &g->units[g->queue[i]].unit;
        TRY(u->late ? build_late(g, g->queue[i], err) : add_missing(g, u, err));
    }
    return atomic_load(&g->stop) ? OK : build_batch(g, err);
}

/* Late units share one progress. */
static ErrorCode build(Growing *g, Error *err) {
    double bytes = 0;
    for (size_t i = 0; i < g->unit_count; i++)
        if (g->units[i].unit.late) bytes += bytes_of(g, &g->units[i].unit);
    if (bytes > 0) g->progress = progress_start(g->build.label, bytes / 1e6, "MB");
    ErrorCode code = build_all(g, err);
    progress_finish(g->progress);
    return code;
}

/* Threads that it starts inherit its priority. */
static void *run(void *argument) {
    Growing *g = argument;
    Error error = {0};
    progress_apart(&g->beats);
    (void)setpriority(PRIO_PROCESS, (id_t)gettid(), NICE);
    ErrorCode code = build(g, &error);
    pthread_mutex_lock(&g->lock);
    g->finished = true;
    g->code = code;
    g->error = error;
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

static ErrorCode start(Growing *g, Error *err) {
    if (g->has_thread) return OK;
    errno = pthread_create(&g->thread, NULL, run, g);
    if (errno != 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start a thread");
    g->has_thread = true;
    return OK;
}

void growing_close(Growing *g) {
    if (!g) return;
    atomic_store(&g->stop, true);
    if (g->has_thread) pthread_join(g->thread, NULL);
    block_order_close(g->order);
    for (size_t i = 0; i < g->unit_count; i++) free((char *)(uintptr_t)g->units[i].unit.dir);
    pthread_mutex_destroy(&g->lock);
    free(g->files);
    free(g->prints);
    free(g->units);
    free(g->queue);
    free(g->batch);
    free(g);
}

static ErrorCode check_thread(Growing *g, bool *finished, Error *err) {
    ErrorCode code = start(g, err);
    uint64_t beats = atomic_load(&g->beats);
    if (beats != g->heard) progress_beat(); /* T3 */
    g->heard = beats;
    *finished = code == OK && g->finished;
    if (code == OK && g->code != OK) {
        code = g->code;
        if (err) *err = g->error;
    }
    return code;
}

ErrorCode growing_ready(Growing *g, size_t group, uint64_t index, bool *ready, Error *err) {
    bool finished;
    pthread_mutex_lock(&g->lock);
    ErrorCode code = check_thread(g, &finished, err);
    pthread_mutex_unlock(&g->lock);
    TRY(code);
    TRY(block_order_ready(g->order, group, index, ready, err));
    if (*ready || !finished) return OK;
    return error_set(err, ERR_DATA, "token caches vanished while they were being read; run again");
}

BlockOrder *growing_order(Growing *g) { return g->order; }
