/* Memory pools: the dry and the real pass, refusals, and the guard. */
#include <build_kind.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/pool.h"

static Device device;

static void lay_out(Pool *p, char *parts[3]) {
    parts[0] = pool_take(p, 1);
    parts[1] = pool_take(p, 100);
    parts[2] = pool_take(p, 3 << 20);
}

static void test_pool(void **state) {
    Pool p = {.name = "test"};
    char *parts[3];
    Error err = {0};
    (void)state;
    lay_out(&p, parts);
    assert_null(parts[2]);
    assert_int_equal(p.planned, 64 + 128 + (3 << 20));
    if (pool_commit(&p, &device, &err) != OK) fail_msg("%s", err.message);
    lay_out(&p, parts);
    assert_int_equal(p.used, p.planned);
    assert_int_equal(parts[1] - parts[0], 64);
    assert_int_equal((uintptr_t)parts[0] % (2 << 20), 0);
    pool_unlock_all();
    for (size_t i = 0; i < 3 << 20; i++) assert_int_equal(parts[2][i], 0);
    memset(parts[2], 1, 3 << 20);
    pool_lock_all();
    pool_free(&p);
    assert_null(p.base);
    assert_int_equal(p.planned, 0);
}

static void test_empty_pool(void **state) {
    Pool p = {.name = "empty"};
    Error err;
    (void)state;
    assert_null(pool_take(&p, 0));
    assert_int_equal(pool_commit(&p, &device, &err), OK);
    assert_non_null(pool_take(&p, 0));
    pool_free(&p);
}

static void test_pool_too_large(void **state) {
    static const size_t sizes[] = {(size_t)1 << 50, SIZE_MAX / 2, SIZE_MAX - 100, SIZE_MAX};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        Pool p = {.name = "activations"};
        Error err;
        pool_take(&p, sizes[i]);
        pool_take(&p, 100);
        assert_true(p.planned >= sizes[i]);
        assert_int_equal(pool_commit(&p, &device, &err), ERR_MEMORY);
        assert_non_null(strstr(err.message, "pool \"activations\""));
        assert_null(p.base);
        pool_free(&p);
    }
}

/* Whether a child that runs `act` is killed by a signal, or by a sanitizer that catches it. */
static bool dies(void (*act)(Pool *), Pool *p) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        int null = open("/dev/null", O_WRONLY);
        if (null >= 0) dup2(null, STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        signal(SIGSEGV, SIG_DFL);
        act(p);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return !(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void take_more(Pool *p) { pool_take(p, 65); }
static void read_locked(Pool *p) { (void)*(volatile char *)p->base; }
static void read_unlocked(Pool *p) {
    pool_unlock_all();
    pool_unlock_all();
    pool_lock_all();
    (void)*(volatile char *)p->base;
    pool_lock_all();
}
static void read_locked_again(Pool *p) {
    read_unlocked(p);
    read_locked(p);
}
static void lock_too_often(Pool *p) {
    (void)p;
    pool_lock_all();
}

static void test_pool_misuse(void **state) {
    Pool p = {.name = "small"};
    Error err;
    (void)state;
    pool_take(&p, 64);
    assert_int_equal(pool_commit(&p, &device, &err), OK);
    assert_true(dies(take_more, &p));
    assert_false(dies(read_unlocked, &p));
#if WEFT_GUARD
    assert_true(dies(read_locked, &p));
    assert_true(dies(read_locked_again, &p));
    assert_true(dies(lock_too_often, &p));
#else
    assert_false(dies(read_locked, &p));
    assert_false(dies(read_locked_again, &p));
    assert_false(dies(lock_too_often, &p));
#endif
    pool_free(&p);
}

static int open_device(void **state) {
    Error err;
    (void)state;
    return device_open_cpu(&device, "reference", 1, &err);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_empty_pool),
        cmocka_unit_test(test_pool_too_large),
        cmocka_unit_test(test_pool_misuse),
    };
    return cmocka_run_group_tests(tests, open_device, NULL);
}
