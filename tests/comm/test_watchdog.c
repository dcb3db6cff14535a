/* The watchdog's thread beside ranks that are threads: what it finds of ranks that wait for each other, and
 * that nothing is shared with it without an order (the thread sanitizer looks). A verdict ends the process,
 * so each check plays in a child. How it judges processes, stopped ones too, tests/ranks/test_hangs.sh and
 * test_comm_failures.sh see. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "support/ranks.h"

enum { RANKS = 2 };

static void describe(void *context, char *out, size_t size) { snprintf(out, size, "%s", (char *)context); }

static CommWatch watch_of(double seconds) {
    static char doing[] = "the play";
    return (CommWatch){seconds, describe, doing};
}

/* Exit status of a child in which the ranks play under a watchdog with this limit. */
static int outcome(void (*body)(Comm *comm, void *context), double limit) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CommWatch watch = watch_of(limit);
        ranks_run_watched(RANKS, 0, &watch, body, &limit);
        _exit(OK);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void barrier(Comm *comm) {
    Error err = {.message = ""};
    if (comm_barrier(comm, &err) != OK) comm_fail(comm, &err);
}

static void many_barriers(Comm *comm, void *context) {
    (void)context;
    for (int i = 0; i < 100; i++) barrier(comm);
}

/* Rank 1 works three limits long, and says that it moves on. */
static void work_that_beats(Comm *comm, void *context) {
    double until = clock_seconds() + 3 * *(double *)context;
    barrier(comm);
    while (comm_rank(comm) == 1 && clock_seconds() < until) {
        progress_beat();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    barrier(comm);
}

/* Rank 1 does something for ever, and says nothing. */
static void work_that_hangs(Comm *comm, void *context) {
    (void)context;
    barrier(comm);
    while (comm_rank(comm) == 1) nanosleep(&(struct timespec){0, 1000000}, NULL);
    barrier(comm);
}

static void test_opens_and_closes(void **state) {
    (void)state;
    assert_int_equal(outcome(many_barriers, 0), OK);
    assert_int_equal(outcome(many_barriers, 3600), OK);
}

/* On a machine that is asleep for longer than a limit that limit says nothing: some limit is long enough. */
static void test_waits_for_work(void **state) {
    (void)state;
    double limit = 0.25;
    while (outcome(work_that_beats, limit) != OK) {
        limit *= 2;
        assert_true(limit < 100);
    }
}

static void test_ends_a_hang(void **state) {
    (void)state;
    assert_int_equal(outcome(work_that_hangs, 0.2), ERR_PEER);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_and_closes),
        cmocka_unit_test(test_waits_for_work),
        cmocka_unit_test(test_ends_a_hang),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
