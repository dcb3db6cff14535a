/* How OpenMP's threads wait for each other when other programs use the same cores.
 *
 * libgomp's threads spin for milliseconds at the end of a parallel region. On a quiet machine that is
 * fastest, because a small model has a region every few microseconds. If another program needs the core, the
 * spinning thread occupies it while the thread that it waits for is in the run queue, and a step takes 8 to
 * 37 times as long. So threads may spin until the kernel reports that the main thread waits in the run queue;
 * from then on they sleep.
 *
 * libgomp reads its settings once, before main. But it documents one rule that it applies at every wait:
 * while a process has more OpenMP threads than cores, a thread spins 100 times instead of 300,000. A second
 * team of sleeping threads triggers this rule for as long as it exists.
 *
 *     quiet --- a sample of 15% and more ---> busy (crowd_keep)
 *       ^                                       |
 *       +--- samples below 5% for `patience` ---+
 *
 * patience doubles if the machine turns busy again soon after threads were allowed to spin. */
#include "device/cpu/waiting.h"

#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"

static const double BUSY = 0.15, QUIET = 0.05;
static const double PATIENCE = 1, PATIENCE_MOST = 60;

bool waiting_is_set(void) {
    return getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT") || getenv("KMP_BLOCKTIME");
}

bool machine_is_loaded(double *load, int *cores) {
    int running = 0;
    *cores = (int)sysconf(_SC_NPROCESSORS_ONLN);
    FILE *f = fopen("/proc/loadavg", "r");
    bool known = f && fscanf(f, "%lf %*f %*f %d/", load, &running) == 2;
    if (f) fclose(f);
    return known && *load > *cores && running > *cores;
}

/* ---- the decision ---- */

static void enter(Crowd *c) {
    bool at_once = c->patience > 0 && c->calm < c->patience;
    c->patience = at_once ? 2 * c->patience : PATIENCE;
    if (c->patience > PATIENCE_MOST) c->patience = PATIENCE_MOST;
    c->busy = true;
    c->quiet = 0;
}

void crowd_sample(Crowd *c, double share, double seconds) {
    if (!c->busy) {
        c->calm += seconds;
        if (share >= BUSY) enter(c);
        return;
    }
    c->quiet = share < QUIET ? c->quiet + seconds : 0;
    if (c->quiet < c->patience) return;
    c->busy = false;
    c->calm = 0;
}

/* ---- the second team ---- */

typedef struct Keep {
    int threads;
    bool (*done)(void *arg);
    void *arg;
} Keep;

/* The team's other threads sleep at the end of the region. */
static void *keep(void *arg) {
    Keep *k = arg;
    omp_set_dynamic(0);
#pragma omp parallel num_threads(k->threads)
    if (omp_get_thread_num() == 0)
        while (!k->done(k->arg)) continue;
    return NULL;
}

/* Runs on a separate thread, because libgomp ends a team's threads when the thread that started it ends. */
void crowd_keep(int threads, bool (*done)(void *arg), void *arg) {
    Keep k = {threads, done, arg};
    pthread_t thread;
    if (pthread_create(&thread, NULL, keep, &k) == 0)
        pthread_join(thread, NULL);
    else
        while (!done(arg)) continue;
}

/* ---- the watch ---- */

#ifndef __clang__ /* its runtime has a setting that can be changed later */
static const double PERIOD = 0.05;

typedef struct Watch {
    Crowd crowd;
    int file, crowding; /* schedstat of the main thread; number of threads that exceeds the cores */
    double at, queued;  /* time and queued time of the last sample, in seconds */
} Watch;

/* Seconds that the main thread was ready to run but had no core; negative if the kernel does not report
 * it. */
static double queued_seconds(int file) {
    char text[96];
    unsigned long long ran, queued;
    ssize_t length = pread(file, text, sizeof text - 1, 0);
    if (length <= 0) return -1;
    text[length] = 0;
    return sscanf(text, "%llu %llu", &ran, &queued) == 2 ? 1e-9 * (double)queued : -1;
}

static void sample(Watch *w) {
    nanosleep(&(struct timespec){0, (long)(PERIOD * 1e9)}, NULL);
    double at = clock_seconds(), queued = queued_seconds(w->file), seconds = at - w->at;
    crowd_sample(&w->crowd, (queued - w->queued) / seconds, seconds);
    w->at = at, w->queued = queued;
}

static bool is_quiet(void *watch_queues) {
    Watch *w = watch_queues;
    sample(w);
    return !w->crowd.busy;
}

static void *watch_queues(void *arg) {
    Watch *w = arg;
    for (;;) {
        sample(w);
        if (w->crowd.busy) crowd_keep(w->crowding, is_quiet, w);
    }
    return NULL;
}

/* The watch and its teams must not receive signals (base/signals.h). If its thread cannot be created, nothing
 * is watched. */
static void start(Watch *w) {
    sigset_t all, before;
    pthread_t thread;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch_queues, w) == 0) pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

static void watch_queue(Watch *w) {
    w->file = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    w->at = clock_seconds();
    w->queued = queued_seconds(w->file);
    if (w->queued >= 0) start(w);
}
#endif

/* A process with at most a quarter as many threads as cores can move to other cores; and there may be many
 * such processes. */
void waiting_watch(int threads) {
    static bool watched;
    int cores = omp_get_num_procs();
    if (watched || threads < 2 || 4 * threads < cores || waiting_is_set()) return;
    watched = true;
#ifdef __clang__
    kmp_set_blocktime(1); /* milliseconds */
#else
    static Watch watch_queues;
    watch_queues.crowding = cores >= threads ? cores - threads + 2 : 2;
    watch_queue(&watch_queues);
#endif
}
