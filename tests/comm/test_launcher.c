/* What is made of how MPICH's mpiexec says that ranks ended; its words are those of Hydra 4.0.2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "comm/launcher.h"

static RanksEnd end_of(const char *said) {
    RanksEnd end;
    assert_true(hydra_read_end(said, &end));
    return end;
}

static void test_codes(void **state) {
    (void)state;
    assert_int_equal(end_of("[mpiexec@vm] Exit codes: [vm] 0,0\n").code, 0);
    assert_int_equal(end_of("[mpiexec@vm] Exit codes: [vm] 0,0,16640,0\n").code, 65);
    /* One ended with 65, and the others were killed for it. */
    RanksEnd end = end_of("=   EXIT CODE: 9\n[mpiexec@vm] Exit codes: [vm] 9,16640,0\nYOUR APPLICATION");
    assert_int_equal(end.code, 65);
}

static void test_signals(void **state) {
    (void)state;
    RanksEnd end = end_of("[mpiexec@vm] Exit codes: [vm] 0,9,0\n");
    assert_int_equal(end.signal, 9);
    assert_string_equal(end.ranks, "rank 1");
    end = end_of("[mpiexec@vm] Exit codes: [vm] 9,0,9,0\n");
    assert_int_equal(end.signal, 9);
    assert_string_equal(end.ranks, "one of ranks 0, 2");
    end = end_of("[mpiexec@vm] Exit codes: [vm] 9,0,139,9\n");
    assert_int_equal(end.signal, 11);
    assert_string_equal(end.ranks, "rank 2");
}

static void test_silence(void **state) {
    (void)state;
    RanksEnd end;
    assert_false(hydra_read_end("", &end));
    assert_false(hydra_read_end("[mpiexec@vm] Exit codes: [vm", &end));
    assert_false(hydra_read_end("[mpiexec@vm] Exit codes: [vm] ", &end));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_codes), cmocka_unit_test(test_signals),
                                       cmocka_unit_test(test_silence)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
