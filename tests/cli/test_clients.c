/* The connections that weft watch closes: time is an argument here, so nothing waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <arpa/inet.h>
#include <cmocka.h>
#include <netinet/in.h>

#include "cli/clients.h"

/* An invalid descriptor: shutting it down fails, on which nothing here depends. */
static Client *join_from(Clients *all, const char *address, double now) {
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    if (inet_pton(AF_INET, address, &four.sin_addr) == 1)
        return clients_join(all, -1, (const struct sockaddr *)(const void *)&four, now);
    assert_int_equal(inet_pton(AF_INET6, address, &six.sin6_addr), 1);
    return clients_join(all, -1, (const struct sockaddr *)(const void *)&six, now);
}

static Client *join_trusted(Clients *all, const char *address, double now) {
    Client *c = join_from(all, address, now);
    client_answer(c, true, now);
    return c;
}

static int staying(const Clients *all) {
    int count = 0;
    for (const Client *c = all->first; c; c = c->next) count += !c->leaving;
    return count;
}

static void leave_all(Clients *all) {
    while (all->first) clients_leave(all, all->first);
}

static void each_head_has_a_deadline(void **state) {
    (void)state;
    Clients all = {0};
    Client *slow = join_from(&all, "10.0.0.1", 100), *later = join_from(&all, "10.0.0.1", 101);
    clients_close_overdue(&all, 100 + HEAD_SECONDS - 1);
    assert_false(slow->leaving);
    clients_close_overdue(&all, 100 + HEAD_SECONDS);
    assert_true(slow->leaving);
    assert_false(later->leaving);
    leave_all(&all);
}

static void an_answer_has_a_longer_one(void **state) {
    (void)state;
    Clients all = {0};
    Client *reader = join_from(&all, "10.0.0.1", 100);
    client_answer(reader, true, 105);
    clients_close_overdue(&all, 105 + ANSWER_SECONDS - 1);
    assert_false(reader->leaving);
    clients_close_overdue(&all, 105 + ANSWER_SECONDS);
    assert_true(reader->leaving);
    leave_all(&all);
}

static void an_address_has_its_share(void **state) {
    (void)state;
    Clients all = {0};
    Client *other = join_from(&all, "10.0.0.2", 1), *oldest = join_from(&all, "10.0.0.1", 2);
    for (int i = 1; i < CLIENTS_PER_ADDRESS; i++) join_from(&all, "10.0.0.1", 2 + i);
    assert_false(oldest->leaving);
    Client *newest = join_from(&all, "10.0.0.1", 100);
    assert_true(oldest->leaving);
    assert_false(newest->leaving);
    assert_false(other->leaving);
    assert_int_equal(staying(&all), 1 + CLIENTS_PER_ADDRESS);
    leave_all(&all);
}

static void a_network_of_ipv6_is_one_address(void **state) {
    (void)state;
    Clients all = {0};
    Client *other = join_from(&all, "2001:db8:0:2::1", 1), *oldest = join_from(&all, "2001:db8:0:1::1", 2);
    for (int i = 1; i < CLIENTS_PER_ADDRESS; i++) join_from(&all, "2001:db8:0:1::1", 2 + i);
    join_from(&all, "2001:db8:0:1:2:3:4:5", 100);
    assert_true(oldest->leaving);
    assert_false(other->leaving);
    leave_all(&all);
}

/* Many slow heads from everywhere: a reader that has shown the token keeps its slot, and a new one gets
 * one. */
static void the_unproven_go_first(void **state) {
    (void)state;
    Clients all = {0};
    char address[16];
    Client *reader = join_trusted(&all, "10.0.0.1", 1);
    for (int i = 0; i < 10 * CLIENTS; i++) {
        snprintf(address, sizeof address, "10.1.%d.%d", i / 250, i % 250);
        join_from(&all, address, 2);
    }
    Client *late = join_from(&all, "10.0.0.3", 3);
    assert_false(reader->leaving);
    assert_false(late->leaving);
    assert_int_equal(staying(&all), CLIENTS);
    leave_all(&all);
}

/* Only if all are trusted the oldest is closed, and only one: the newcomer in its slot is closed before any
 * other. */
static void then_the_oldest(void **state) {
    (void)state;
    Clients all = {0};
    char address[16];
    Client *oldest = join_trusted(&all, "10.0.0.1", 1), *second = join_trusted(&all, "10.0.0.2", 2);
    for (int i = 2; i < CLIENTS; i++) {
        snprintf(address, sizeof address, "10.1.0.%d", i);
        join_trusted(&all, address, 3);
    }
    Client *late = join_from(&all, "10.0.0.3", 4);
    assert_true(oldest->leaving);
    Client *later = join_from(&all, "10.0.0.4", 5);
    assert_true(late->leaving);
    assert_false(later->leaving);
    assert_false(second->leaving);
    assert_int_equal(staying(&all), CLIENTS);
    leave_all(&all);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_head_has_a_deadline), cmocka_unit_test(an_answer_has_a_longer_one),
        cmocka_unit_test(an_address_has_its_share), cmocka_unit_test(a_network_of_ipv6_is_one_address),
        cmocka_unit_test(the_unproven_go_first),    cmocka_unit_test(then_the_oldest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
