/* Parsing of how MPICH's mpiexec reports the end of ranks (with the messages of Hydra 4.0.2), and of the
 * ranks' own reports. The launcher of the second half is a script that is told what to print and how to end;
 * its ranks are this program. */
#include <setjmp.h>
#include <stdarg.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/facts.h"
#include "comm/launch.h"
#include "comm/launcher.h"
#include "comm/launcher_output.h"

/* In place of src/comm/mpi/facts.c, so that MPICH's launcher is simulated with any library. */
static char launcher[] = "/tmp/weft-launcher-XXXXXX";
const char *comm_launcher(void) { return launcher; }
bool comm_is_open_mpi(void) { return false; }
int comm_library_version(void) { return 4; }
char *comm_library_name(char *out, size_t size) {
    snprintf(out, size, "made up");
    return out;
}

static RanksEnd end_of(const char *said) {
    RanksEnd end;
    assert_true(hydra_read_end(said, &end));
    return end;
}

static void test_codes(void **state) {
    (void)state;
    assert_int_equal(end_of("[mpiexec@vm] Exit codes: [vm] 0,0\n").code, 0);
    assert_int_equal(end_of("[mpiexec@vm] Exit codes: [vm] 0,0,16640,0\n").code, 65);
    /* One ended with 65, and the others were killed because of it. */
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

/* ---- ranks that report their own end ---- */

static const char script[] = "#!/bin/sh\n"
                             "while [ \"$1\" != -n ]; do shift; done\n"
                             "shift 2\n"
                             "for RANK in 0 1; do RANK=$RANK \"$@\" & done\n"
                             "wait\n"
                             "printf '%s' \"$SAYS\"\n"
                             "exit $ENDS\n";

static void make_launcher(void) {
    int file = mkstemp(launcher);
    assert_true(file >= 0);
    assert_int_equal(write(file, script, sizeof script - 1), sizeof script - 1);
    assert_int_equal(fchmod(file, 0700), 0);
    close(file);
}

/* Ends a rank: "exit 75", "abort 65" (bypassing exit(), as MPI_Abort may do), "twice 0" (and then exit),
 * "signal 11". */
static int end_as(const char *p2p_channel) {
    int number = atoi(strchr(p2p_channel, ' ') + 1);
    if (*p2p_channel == 's') raise(number);
    if (*p2p_channel == 'e') return number;
    launched_report_end(number);
    if (*p2p_channel == 't') exit(number);
    _exit(0);
}

/* Result of two ranks that end in this way, under a launcher that prints and ends as given. */
static Error launched(const char *first, const char *second, const char *says, const char *ends) {
    Error err = {0};
    char program[] = "test_launcher",
         *words[] = {program, (char *)(uintptr_t)first, (char *)(uintptr_t)second, NULL};
    setenv("SAYS", says, 1);
    setenv("ENDS", ends, 1);
    ErrorCode code = launch_ranks(&(LaunchTerms){.ranks = 2}, words, &err);
    assert_int_equal(code, err.code);
    return err;
}

static void test_told_codes(void **state) {
    (void)state;
    Error err = launched("exit 75", "exit 75", "", "0");
    assert_int_equal(err.code, 75);
    assert_true(err.reported);
    assert_int_equal(launched("exit 0", "exit 75", "", "0").code, 75);
    assert_int_equal(launched("abort 65", "exit 0", "", "9").code, 65);
    assert_int_equal(launched("exit 75", "exit 75", "Exit codes: [vm] 0,0\n", "0").code, 75);
    /* The others were killed because of it, which is all that the launcher reports. */
    assert_int_equal(launched("abort 65", "signal 9", "Exit codes: [vm] 9,9\n", "9").code, 65);
    assert_int_equal(launched("exit 0", "exit 0", "", "0").code, 0);
}

/* Two ranks that end at the same time: a byte lost in any of the launches would show. */
static void test_told_at_once(void **state) {
    (void)state;
    for (int launch = 0; launch < 100; launch++) {
        assert_int_equal(launched("exit 0", "exit 75", "", "0").code, 75);
        assert_int_equal(launched("exit 0", "exit 0", "", "0").code, 0);
    }
}

/* For ranks without a report the launcher's counts, and a crash is a crash. If it has none either, the
 * missing reports are enough. */
static void test_untold_ends(void **state) {
    (void)state;
    assert_int_equal(launched("signal 9", "exit 0", "", "9").code, 9);
    assert_int_equal(launched("signal 9", "exit 0", "Exit codes: [vm] 9,0\n", "9").code, 128 + 9);
    Error err = launched("exit 76", "signal 11", "Exit codes: [vm] 19456,11\n", "11");
    assert_int_equal(err.code, 128 + 11);
    assert_string_equal(err.message, "rank 1 was killed by signal 11 (SIGSEGV)");
    assert_int_equal(launched("signal 9", "exit 0", "", "0").code, ERR_PEER);
    assert_int_equal(launched("exit 0", "signal 15", "Exit codes: [vm] 0,0\n", "0").code, ERR_PEER);
    assert_int_equal(launched("twice 0", "signal 9", "", "0").code, ERR_PEER);
}

/* ---- what Open MPI prints ---- */

#define DASHES "--------------------------------------------------------------------------\n"

/* What passes of these bytes; the caller frees it. *rank and *signal: as in LauncherOutput. */
static char *passed_bytes(const char *said, size_t length, int *rank, int *signal) {
    LauncherOutput c = {0};
    char path[] = "/tmp/weft-said-XXXXXX", *out = calloc(1, 4096);
    int file = mkstemp(path), before = dup(STDERR_FILENO);
    assert_true(file >= 0 && before >= 0 && out != NULL);
    unlink(path);
    dup2(file, STDERR_FILENO);
    launcher_output_add(&c, said, length);
    launcher_output_flush(&c);
    dup2(before, STDERR_FILENO);
    close(before);
    assert_true(pread(file, out, 4095, 0) >= 0);
    close(file);
    *rank = c.killed_rank, *signal = c.killed_by;
    launcher_output_free(&c);
    return out;
}

static char *passed(const char *said, int *rank, int *signal) {
    return passed_bytes(said, strlen(said), rank, signal);
}

/* Version 5.0 adds zero bytes. */
static void test_open_mpi_zeros(void **state) {
    (void)state;
    static const char said[] = "a line\n\0\0another\n";
    int rank, signal;
    char *rest = passed_bytes(said, sizeof said - 1, &rank, &signal);
    assert_string_equal(rest, "a line\nanother\n");
    free(rest);
}

/* The words of versions 4.1 and 5.0, which wraps them. */
static void test_open_mpi_blocks(void **state) {
    (void)state;
    static const char *const killed[] = {
        DASHES
        "mpirun noticed that process rank 2 with PID 0 on node vm exited on signal 9 (Killed).\n" DASHES,
        DASHES "prterun noticed that process rank 2 with PID 4331 on node vm exited on\nsignal 9 "
               "(Killed).\n" DASHES};
    int rank, signal;
    for (int i = 0; i < 2; i++) {
        char *rest = passed(killed[i], &rank, &signal);
        assert_string_equal(rest, "");
        assert_int_equal(rank, 2);
        assert_int_equal(signal, 9);
        free(rest);
    }
    char *rest = passed(DASHES "prterun has exited due to process rank 1 with PID 0 on node vm calling\n"
                               "\"abort\". This may have caused other processes in the application to be\n"
                               "terminated by signals sent by prterun (as reported here).\n" DASHES
                               "weft: rank 1: a line of its own\n",
                        &rank, &signal);
    assert_string_equal(rest, "weft: rank 1: a line of its own\n");
    assert_int_equal(signal, 0);
    free(rest);
    rest = passed(DASHES "There are not enough slots\navailable\n" DASHES, &rank, &signal);
    assert_string_equal(rest, DASHES "There are not enough slots\navailable\n" DASHES);
    free(rest);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_open_mpi_zeros), cmocka_unit_test(test_open_mpi_blocks),
        cmocka_unit_test(test_codes),          cmocka_unit_test(test_signals),
        cmocka_unit_test(test_silence),        cmocka_unit_test(test_told_codes),
        cmocka_unit_test(test_told_at_once),   cmocka_unit_test(test_untold_ends)};
    const char *rank = getenv("RANK");
    launched_streams();
    if (rank && argc == 3) return end_as(argv[1 + atoi(rank)]);
    make_launcher();
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(launcher);
    return failed;
}
