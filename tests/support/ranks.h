/* Ranks as threads of a test: a test declares how many it needs. */
#ifndef WEFT_TESTS_RANKS_H
#define WEFT_TESTS_RANKS_H

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "comm/comm.h"
#include "comm/loopback/loopback.h"

typedef struct TestRank {
    CommTransport *transport;
    const CommWatch *watch;
    void (*body)(Comm *comm, void *context);
    void *context;
} TestRank;

static void *test_rank_main(void *argument) {
    TestRank *r = argument;
    Comm *comm;
    Error err = {.message = ""};
    if (comm_open_transport_watched(&comm, r->transport, r->watch, &err) != OK) {
        fprintf(stderr, "%s\n", err.message);
        exit(1);
    }
    r->body(comm, r->context);
    comm_close(comm);
    return NULL;
}

/* Runs body on that many ranks over the loopback and waits for all. seed: see comm/loopback; watch NULL: no
 * watchdog. A rank that fails calls comm_fail, which ends the test. */
static void ranks_run_watched(int ranks, uint64_t seed, const CommWatch *watch,
                              void (*body)(Comm *comm, void *context), void *context) {
    Loopback *hub = loopback_new(ranks, COMM_EVENTS, seed);
    pthread_t *threads = calloc((size_t)ranks, sizeof *threads);
    TestRank *all = calloc((size_t)ranks, sizeof *all);
    for (int r = 0; r < ranks; r++) {
        all[r] = (TestRank){loopback_transport(hub, r), watch, body, context};
        if (pthread_create(&threads[r], NULL, test_rank_main, &all[r]) != 0) abort();
    }
    for (int r = 0; r < ranks; r++) pthread_join(threads[r], NULL);
    loopback_free(hub);
    free(threads);
    free(all);
}

static inline void ranks_run(int ranks, uint64_t seed, void (*body)(Comm *comm, void *context),
                             void *context) {
    ranks_run_watched(ranks, seed, NULL, body, context);
}

#endif
