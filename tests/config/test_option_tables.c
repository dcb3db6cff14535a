/* The tables of all rooms as one: each key once, each with a field of its own inside the configuration. */
#include "support/files.h"

#include "config/config.h"

static size_t size_of(const Option *o) {
    const size_t sizes[] = {
        [OPT_BOOL] = sizeof(bool),      [OPT_INT] = sizeof(int64_t), [OPT_DOUBLE] = sizeof(double),
        [OPT_STRING] = sizeof(char *),  [OPT_CHOICE] = sizeof(int),  [OPT_STRINGS] = sizeof(StringList),
        [OPT_LIST] = sizeof(ObjectList)};
    return sizes[o->type];
}

static void fields_do_not_overlap(void **state) {
    int rows = 0;
    (void)state;
    for (const Option *o = config_options(); o->key; o++, rows++) {
        if (o->offset + size_of(o) > sizeof(Config)) fail_msg("%s lies outside", o->key);
        for (const Option *other = config_options(); other < o; other++) {
            if (strcmp(o->key, other->key) == 0) fail_msg("%s stands twice", o->key);
            if (o->offset < other->offset + size_of(other) && other->offset < o->offset + size_of(o))
                fail_msg("%s and %s have one field", o->key, other->key);
        }
    }
    assert_true(rows > 150);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(fields_do_not_overlap)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
