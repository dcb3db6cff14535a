/* Messages: plain lines into a file or pipe, escapes only on a terminal, complete lines from many threads. */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/text.h"

static void drain(int fd, Text *out) {
    char buffer[4096];
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0) text_add(out, buffer, (size_t)got);
}

/* Captures what `act` writes to stderr in a separate process, on a terminal of 40 columns or into a pipe. */
static void capture(void (*act)(void), bool terminal, Text *out) {
    int ends[2];
    if (terminal) {
        ends[0] = posix_openpt(O_RDWR | O_NOCTTY);
        if (ends[0] < 0 || grantpt(ends[0]) != 0 || unlockpt(ends[0]) != 0) skip();
        ends[1] = open(ptsname(ends[0]), O_RDWR | O_NOCTTY);
        struct winsize size = {.ws_row = 10, .ws_col = 40};
        if (ends[1] < 0 || ioctl(ends[1], TIOCSWINSZ, &size) != 0) skip();
    } else {
        assert_int_equal(pipe(ends), 0);
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        act();
        log_status("%s", "");
        _exit(0);
    }
    close(ends[1]);
    text_puts(out, "");
    drain(ends[0], out);
    close(ends[0]);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void speak(void) {
    log_status("step %d", 1);
    log_error("bad %s", "thing");
    log_warn("odd");
    log_info("fact");
    log_status("%s", "");
    log_info("after");
}

static void speak_of_others(void) {
    log_info("%s: read", "a\033[31m\nb\xc2\x9b");
    log_painted("\033[32mgood\033[0m \033]0;title\007");
    log_lines("one\n\ttwo \033[2J\n");
}

/* Names and paths are untrusted bytes. */
static void test_escapes(void **state) {
    Text out = {0};
    (void)state;
    capture(speak_of_others, false, &out);
    assert_string_equal(out.data, "a\\x1B[31m\\x0Ab\\xC2\\x9B: read\n"
                                  "\033[32mgood\033[0m \\x1B]0;title\\x07\n"
                                  "one\n\ttwo \\x1B[2J\n");
    text_free(&out);
}

static void test_plain(void **state) {
    Text out = {0};
    (void)state;
    capture(speak, false, &out);
    assert_string_equal(out.data, "error: bad thing\nwarning: odd\nfact\nafter\n");
    text_free(&out);
}

static void test_terminal(void **state) {
    Text out = {0};
    (void)state;
    setenv("TERM", "xterm", 1);
    unsetenv("NO_COLOR");
    capture(speak, true, &out);
    assert_string_equal(out.data, "\r\033[Kstep 1"
                                  "\r\033[K\033[1;31merror: \033[0mbad thing\r\nstep 1"
                                  "\r\033[K\033[1;33mwarning: \033[0modd\r\nstep 1"
                                  "\r\033[Kfact\r\nstep 1"
                                  "\r\033[Kafter\r\n");
    text_clear(&out);
    setenv("NO_COLOR", "1", 1);
    capture(speak, true, &out);
    assert_null(strstr(out.data, "\033[1"));
    assert_non_null(strstr(out.data, "\r\033[Kstep 1"));
    text_clear(&out);
    setenv("TERM", "dumb", 1);
    capture(speak, true, &out);
    assert_string_equal(out.data, "error: bad thing\r\nwarning: odd\r\nfact\r\nafter\r\n");
    text_free(&out);
}

static void speak_quietly(void) {
    log_set_level(LOG_QUIET);
    speak();
    log_set_level(LOG_ERROR);
    speak();
}

static void speak_wide(void) {
    log_status("%s", "\033[1mabc\033[0m \xc3\xa9\xc3\xa9 0123456789012345678901234567890123456789");
}

static void test_levels(void **state) {
    Text out = {0};
    (void)state;
    capture(speak_quietly, false, &out);
    assert_string_equal(out.data, "error: bad thing\n");
    text_free(&out);
}

/* A status line never wraps, since it could not be cleared then. */
static void test_status_fits(void **state) {
    Text out = {0};
    (void)state;
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    capture(speak_wide, true, &out);
    const char *expected =
        "\r\033[K\033[1mabc\033[0m \xc3\xa9\xc3\xa9 01234567890123456789012345678901\r\033[K";
    assert_string_equal(out.data, expected);
    text_free(&out);
}

static void *chatter(void *argument) {
    for (int i = 0; i < 200; i++) log_info("thread %d line %03d end", *(int *)argument, i);
    return NULL;
}

static void speak_together(void) {
    pthread_t threads[4];
    int names[4] = {0, 1, 2, 3};
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, chatter, &names[i]);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

static void test_threads(void **state) {
    Text out = {0};
    int lines = 0;
    (void)state;
    capture(speak_together, false, &out);
    for (const char *line = out.data, *end; (end = strchr(line, '\n')); line = end + 1, lines++) {
        int thread, number, length = 0;
        assert_int_equal(sscanf(line, "thread %d line %d end%n", &thread, &number, &length), 2);
        assert_int_equal(end - line, length);
    }
    assert_int_equal(lines, 800);
    text_free(&out);
}

static void *advance(void *argument) {
    for (int i = 0; i < 1000; i++) progress_add(argument, 1);
    return NULL;
}

static void work(void) {
    pthread_t threads[4];
    Progress *p = progress_start("counting", 4000, "items");
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, advance, p);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    progress_finish(p);
    progress_finish(NULL);
    progress_add(NULL, 1);
    p = progress_start("open end", 0, "MB");
    progress_set(p, 12.5);
    progress_finish(p);
    p = progress_start("taken back", 0.5, "MB");
    for (int i = 0; i < 10; i++) progress_add(p, 0.01);
    progress_add(p, -0.1); /* leaves a rounding error */
    progress_finish(p);
    p = progress_start("taken back", 0.5, "MB");
    progress_add(p, -0.01);
    progress_finish(p);
}

static void test_progress(void **state) {
    Text out = {0};
    (void)state;
    capture(work, false, &out);
    assert_true(strncmp(out.data, "counting: 4,000 items in 0.", 27) == 0);
    assert_null(strchr(out.data, '\033'));
    assert_non_null(strstr(out.data, "\nopen end: 12.5 MB in "));
    int lines = 0;
    for (const char *p = out.data; *p; p++) lines += *p == '\n';
    assert_int_equal(lines, 4);
    assert_non_null(strstr(out.data, "\ntaken back: 0 MB in "));
    assert_null(strchr(out.data, '-'));
    text_clear(&out);
    setenv("TERM", "xterm", 1);
    capture(work, true, &out);
    assert_non_null(strstr(out.data, "counting ["));
    assert_non_null(strstr(out.data, "\r\033[Kcounting: 4,000 items in 0."));
    text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),    cmocka_unit_test(test_escapes),     cmocka_unit_test(test_terminal),
        cmocka_unit_test(test_levels),   cmocka_unit_test(test_status_fits), cmocka_unit_test(test_threads),
        cmocka_unit_test(test_progress),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
