/* The wait before the next try ends when a transfer is ended. */
#include "support/files.h"

#include "remote/http.h"

static void test_stop(void **state) {
    (void)state;
    const HttpReply reply = {.again = true, .retry_after = 0};
    atomic_bool stop = false;
    const HttpRequest endless = {0}, request = {.stop = &stop};
    int tries = 0;
    assert_true(http_wait(&request, &reply, &tries));
    assert_true(http_wait(&endless, &reply, &tries));
    atomic_store(&stop, true);
    assert_false(http_wait(&request, &reply, &tries));
    assert_int_equal(tries, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stop)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
