/* The watchdog's thread, with ranks that are threads: what it finds about ranks that wait for each other, and
 * that all data shared with it is ordered (for the thread sanitizer). A verdict ends the process, so each
 * check runs in a child. tests/ranks/test_hangs.sh and test_comm_failures.sh test how it judges processes,
 * including stopped ones. */
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
#include "comm/internal.h"
#include "support/ranks.h"

enum { RANKS = 2, MOST_SAID = 4096 };

static void describe(void *context, char *out, size_t size) { snprintf(out, size, "%s", (char *)context); }

static CommWatch watch_of(double seconds) {
    static char doing[] = "the play";
    return (CommWatch){seconds, describe, doing};
}

/* Exit status of a child in which the ranks run under a watchdog with this limit. said [MOST_SAID]: receives
 * the child's standard error; NULL: it is not captured. */
static int outcome_said(int ranks, void (*body)(Comm *comm, void *context), double limit, char *said) {
    FILE *words = tmpfile();
    assert_non_null(words);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        CommWatch watch = watch_of(limit);
        if (said) dup2(fileno(words), STDERR_FILENO);
        ranks_run_watched(ranks, 0, &watch, body, &limit);
        _exit(OK);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    rewind(words);
    if (said) said[fread(said, 1, MOST_SAID - 1, words)] = 0;
    fclose(words);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int outcome(void (*body)(Comm *comm, void *context), double limit) {
    return outcome_said(RANKS, body, limit, NULL);
}

static void barrier(Comm *comm) {
    Error err = {.message = ""};
    if (comm_barrier(comm, &err) != OK) comm_fail(comm, &err);
}

static void many_barriers(Comm *comm, void *context) {
    (void)context;
    for (int i = 0; i < 100; i++) barrier(comm);
}

/* Rank 1 works for three limits, with beats. */
static void work_that_beats(Comm *comm, void *context) {
    double until = clock_seconds() + 3 * *(double *)context;
    barrier(comm);
    while (comm_rank(comm) == 1 && clock_seconds() < until) {
        progress_beat();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    barrier(comm);
}

/* Rank 1 does something forever, without a beat. */
static void work_that_hangs(Comm *comm, void *context) {
    (void)context;
    barrier(comm);
    while (comm_rank(comm) == 1) nanosleep(&(struct timespec){0, 1000000}, NULL);
    barrier(comm);
}

/* Rank 2 works for six limits, then hangs; rank 1 has a longer limit, and is asked again and again. */
static void work_that_ends_in_a_hang(Comm *comm, void *context) {
    double limit = *(double *)context, until = clock_seconds() + 6 * limit;
    if (comm_rank(comm) == 1) atomic_store(&comm->limit, (long long)(8e9 * limit));
    barrier(comm);
    while (comm_rank(comm) == 2) {
        if (clock_seconds() < until) progress_beat();
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    barrier(comm);
}

static void test_opens_and_closes(void **state) {
    (void)state;
    assert_int_equal(outcome(many_barriers, 0), OK);
    assert_int_equal(outcome(many_barriers, 3600), OK);
}

/* If the machine is asleep for longer than a limit, that limit proves nothing: some limit is long enough. */
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

/* A question is not what a rank waits for: however often it is asked, it reports for how long nothing has
 * come. */
static void test_questions_move_nothing(void **state) {
    (void)state;
    char said[MOST_SAID];
    for (double limit = 0.25;; limit *= 2) {
        assert_int_equal(outcome_said(3, work_that_ends_in_a_hang, limit, said), ERR_PEER);
        if (strstr(said, "weft: rank 0: nothing has come for") &&
            strstr(said, "weft: rank 1: nothing has come for") && strstr(said, "have waited for rank 2 for"))
            return;
        print_message("limit of %g s: %s", limit, said);
        assert_true(limit < 4);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_opens_and_closes),
        cmocka_unit_test(test_waits_for_work),
        cmocka_unit_test(test_ends_a_hang),
        cmocka_unit_test(test_questions_move_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
