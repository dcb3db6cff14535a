#include "data/arrivals.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

/* Caches ahead. ROOM_TRIES: waits for other processes to release copies, half a minute in all. */
enum { AHEAD = 16, PAUSE_MS = 100, ROOM_TRIES = 300 };

typedef struct Arrival {
    RemoteFile *file;
    size_t cache;
    bool held, here;
} Arrival;

struct Arrivals {
    Remote *remote;
    char *label;
    atomic_ullong *beats;
    Arrival *all; /* [count] */
    size_t count, caches;
    bool has_thread;
    pthread_t thread;
    atomic_bool ended; /* RemoteQueue */
    /* under the lock, with all[].held and .here */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    size_t admitted; /* files, in order */
    size_t released; /* caches, in order */
    uint64_t bytes;  /* of files that are held */
    bool stopped, finished;
    ErrorCode code;
    Error error;
};

Arrivals *arrivals_open(Remote *remote, const char *label, atomic_ullong *beats) {
    Arrivals *a = mem_alloc(sizeof *a);
    *a = (Arrivals){.remote = remote, .label = mem_strdup(label), .beats = beats};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->changed, NULL);
    return a;
}

void arrivals_add(Arrivals *a, RemoteFile *files, size_t count) {
    a->all = mem_grow(a->all, (a->count + count) * sizeof *a->all);
    for (size_t i = 0; i < count; i++) a->all[a->count++] = (Arrival){.file = &files[i], .cache = a->caches};
    a->caches++;
}

/* With the lock, which is released meanwhile. */
static void pause_for_others(Arrivals *a) {
    struct timespec until = clock_after(PAUSE_MS);
    pthread_cond_timedwait(&a->changed, &a->lock, &until);
}

/* A2 */
static bool is_due(const Arrivals *a, const Arrival *next) {
    uint64_t limit = remote_limit(a->remote);
    if (next->cache <= a->released) return true;
    if (next->cache >= a->released + AHEAD) return false;
    return limit == 0 || a->bytes + next->file->size <= limit / 2;
}

/* Other processes may hold copies now and release them soon. */
static ErrorCode make_room(Arrivals *a, const RemoteFile *file, Error *err) {
    ErrorCode code = OK;
    for (int tries = 0; tries < ROOM_TRIES && !atomic_load(&a->ended); tries++) {
        code = remote_make_room(a->remote, file, err);
        if (code != ERR_CONFIG || file->size > remote_limit(a->remote)) return code;
        pause_for_others(a);
    }
    return code;
}

/* A1 */
static ErrorCode take(Arrivals *a, Arrival *next, Error *err) {
    TRY(remote_hold(a->remote, next->file, err));
    next->held = true;
    a->bytes += next->file->size;
    return make_room(a, next->file, err);
}

static ErrorCode admit(void *context, size_t i, bool *go, Error *err) {
    Arrivals *a = context;
    ErrorCode code = OK;
    pthread_mutex_lock(&a->lock);
    while (!atomic_load(&a->ended) && (a->admitted != i || !is_due(a, &a->all[i]))) pause_for_others(a);
    *go = !atomic_load(&a->ended);
    if (*go) code = take(a, &a->all[i], err);
    if (code == OK) a->admitted += *go;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return code;
}

static void note_fetched(void *context, size_t i) {
    Arrivals *a = context;
    pthread_mutex_lock(&a->lock);
    a->all[i].here = true;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

static void *run(void *argument) {
    Arrivals *a = argument;
    Error error = {0};
    RemoteFile **files = mem_alloc_array(a->count, sizeof *files);
    for (size_t i = 0; i < a->count; i++) files[i] = a->all[i].file;
    RemoteQueue queue = {.label = a->label,
                         .files = files,
                         .count = a->count,
                         .admit = admit,
                         .fetched = note_fetched,
                         .context = a,
                         .ended = &a->ended,
                         .beats = a->beats};
    progress_apart(a->beats);
    ErrorCode code = remote_fetch_queue(a->remote, &queue, &error);
    free(files);
    pthread_mutex_lock(&a->lock);
    a->finished = true;
    a->code = code;
    a->error = error;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static ErrorCode start(Arrivals *a, Error *err) {
    if (a->has_thread) return OK;
    errno = pthread_create(&a->thread, NULL, run, a);
    if (errno != 0) return error_errno(err, ERR_UNAVAILABLE, "cannot start a thread");
    a->has_thread = true;
    return OK;
}

/* Of a cache, from a position on. */
static size_t end_of(const Arrivals *a, size_t first) {
    size_t end = first;
    while (end < a->count && a->all[end].cache == a->all[first].cache) end++;
    return end;
}

/* A3: those before it are released, so that few are passed over. */
static size_t begin_of(const Arrivals *a, size_t cache) {
    size_t low = 0, high = a->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (a->all[middle].cache < cache)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool is_here(const Arrivals *a, size_t cache) {
    size_t first = begin_of(a, cache), end = end_of(a, first);
    for (size_t i = first; i < end; i++)
        if (!a->all[i].here) return false;
    return true;
}

ErrorCode arrivals_await(Arrivals *a, size_t cache, bool *here, Error *err) {
    ErrorCode code = OK;
    pthread_mutex_lock(&a->lock);
    if (!a->stopped) code = start(a, err);
    while (code == OK && !a->stopped && !is_here(a, cache)) {
        if (a->finished) code = a->code;
        if (code == OK) pause_for_others(a);
    }
    if (code != OK && a->finished && err) *err = a->error;
    *here = code == OK && !a->stopped;
    pthread_mutex_unlock(&a->lock);
    return code;
}

void arrivals_release(Arrivals *a, size_t cache) {
    pthread_mutex_lock(&a->lock);
    size_t first = begin_of(a, cache), end = end_of(a, first);
    for (size_t i = first; i < end; i++) {
        if (!a->all[i].held) continue;
        a->all[i].held = false;
        a->bytes -= a->all[i].file->size;
        remote_release(a->remote, a->all[i].file);
    }
    a->released = cache + 1;
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void arrivals_stop(Arrivals *a) {
    if (!a) return;
    pthread_mutex_lock(&a->lock);
    a->stopped = true;
    atomic_store(&a->ended, true);
    pthread_cond_broadcast(&a->changed);
    pthread_mutex_unlock(&a->lock);
}

void arrivals_close(Arrivals *a) {
    if (!a) return;
    arrivals_stop(a);
    if (a->has_thread) pthread_join(a->thread, NULL);
    pthread_cond_destroy(&a->changed);
    pthread_mutex_destroy(&a->lock);
    free(a->label);
    free(a->all);
    free(a);
}
