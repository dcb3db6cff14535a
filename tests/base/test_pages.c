/* Large memory is allocated, zeroed and touched, by one thread and by several. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/pages.h"

enum { MIB = 1 << 20 };

static void assert_real(char *memory, size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    for (size_t at = 0; at < bytes; at += page) {
        unsigned char resident = 0;
        assert_int_equal(mincore(memory + at, 1, &resident), 0);
        assert_true(resident & 1);
        assert_int_equal(memory[at], 0);
    }
}

static void test_taken(void **state) {
    static const size_t sizes[] = {0, 1, 5000, 2 * MIB, 2 * MIB + 1, 32 * MIB, 100 * MIB + 7};
    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (int threads = 0; threads <= 4; threads++) {
            char *memory = pages_take(sizes[i], threads);
            size_t length = pages_length(sizes[i]);
            assert_non_null(memory);
            assert_true(length >= sizes[i] && length > 0);
            if (sizes[i] >= 2 * MIB) assert_int_equal((uintptr_t)memory % (2 * MIB), 0);
            assert_real(memory, length);
            memory[length - 1] = 1;
            pages_give(memory, sizes[i]);
        }
}

static void test_too_much(void **state) {
    (void)state;
    assert_int_equal(pages_length(SIZE_MAX), 0);
    errno = 0;
    assert_null(pages_take(SIZE_MAX, 2));
    assert_int_equal(errno, ENOMEM);
    errno = 0;
    assert_null(pages_take((size_t)1 << 60, 2));
    assert_int_equal(errno, ENOMEM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_taken),
        cmocka_unit_test(test_too_much),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
