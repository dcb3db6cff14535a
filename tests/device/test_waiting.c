/* How threads wait alongside other programs: when they should sleep, and that they do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "device/cpu/waiting.h"

enum { REGIONS = 200 };

static const char *const names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"};

/* Samples every tenth of a second. */
static bool after(Crowd *c, double share, double seconds) {
    for (double s = 0; s < seconds - 0.05; s += 0.1) crowd_sample(c, share, 0.1);
    return c->busy;
}

static void test_decision(void **state) {
    Crowd c = {0};
    (void)state;
    assert_false(after(&c, 0.10, 10)); /* the load of a data loader's thread */
    assert_true(after(&c, 0.50, 0.1));
    assert_true(after(&c, 0.01, 0.9));
    assert_true(after(&c, 0.10, 5)); /* neither busy nor quiet: the second of quiet restarts */
    assert_true(after(&c, 0.01, 0.9));
    assert_false(after(&c, 0.01, 0.2));
    /* Busy again at once: each time it waits twice as long, at most a minute. */
    for (double patience = 2; patience < 200; patience *= 2) {
        double expected = patience < 60 ? patience : 60;
        assert_true(after(&c, 0.50, 0.1));
        assert_true(after(&c, 0, expected - 0.5));
        assert_false(after(&c, 0, 1));
    }
    /* Quiet for longer than that: back to the initial patience. */
    assert_false(after(&c, 0, 100));
    assert_true(after(&c, 0.50, 0.1));
    assert_false(after(&c, 0, 1.2));
}

#ifndef __clang__ /* libomp has a setting for this */
typedef struct Team {
    atomic_bool there, ended;
} Team;

/* Called by the team's first thread, so the others exist from the first call on. */
static bool has_ended(void *team) {
    Team *t = team;
    atomic_store(&t->there, true);
    nanosleep(&(struct timespec){0, 1000000}, NULL);
    return atomic_load(&t->ended);
}

static void *hold(void *team) {
    crowd_keep(omp_get_num_procs() + 2, has_ended, team);
    return NULL;
}

static void work_for(double seconds) {
    for (double begun = clock_seconds(); clock_seconds() - begun < seconds;) continue;
}

/* How often the second thread of a team went to sleep while the first worked. */
static long sleeps(void) {
    struct rusage first = {0}, last = {0};
    for (int i = 0; i < REGIONS; i++) {
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 0)
            work_for(200e-6);
        else
            getrusage(RUSAGE_THREAD, i == 0 ? &first : &last);
    }
    return last.ru_nvcsw - first.ru_nvcsw;
}

/* Threads of a process with a second team sleep at the end of each region, provided that they get there
 * before the one that works; on a loaded machine some do not. */
static void test_second_team(void **state) {
    Team team = {false, false};
    pthread_t thread;
    (void)state;
    assert_int_equal(pthread_create(&thread, NULL, hold, &team), 0);
    while (!atomic_load(&team.there)) sched_yield();
    long slept = sleeps();
    atomic_store(&team.ended, true);
    pthread_join(thread, NULL);
    assert_true(slept >= REGIONS / 4);
}
#endif

static void test_environment(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) unsetenv(names[i]);
    assert_false(waiting_is_set());
    for (int i = 0; i < 3; i++) {
        setenv(names[i], "1", 1);
        assert_true(waiting_is_set());
        unsetenv(names[i]);
    }
}

/* The OpenMP library reads its environment before main, and ctest sets what makes all threads sleep. So main
 * clears it and restarts itself. */
int main(int argc, char **argv) {
    (void)argc;
    if (waiting_is_set()) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
        execv("/proc/self/exe", argv);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decision),
#ifndef __clang__
        cmocka_unit_test(test_second_team),
#endif
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
