/* Where the caches of a source end: whenever sizes alone are said to decide, no hash moves a border. */
#include "support/files.h"

#include <inttypes.h>

#include "base/rng.h"
#include "data/token_units.h"

enum { FILES = 12, LEAST = 1000, SOURCES = 20000, HASHES = 4 };

static uint64_t drawn;

static uint64_t draw(uint64_t below) { return rng_u64(rng_key(7, "units"), drawn++) % below; }

/* Sizes around all bounds: none, below the least size, up to three times that, up to eight times, above. */
static int64_t draw_size(void) {
    const uint64_t most[] = {1, LEAST, 3 * LEAST + 2, 8 * LEAST + 2, 20 * LEAST};
    return (int64_t)draw(most[draw(5)]);
}

static void set_hashes(Fingerprint *prints, size_t count, size_t kind) {
    for (size_t i = 0; i < count; i++) {
        uint64_t digits = kind == 0 ? 0 : kind == 1 ? UINT64_MAX : draw(UINT64_MAX);
        snprintf(prints[i].sha256, sizeof prints[i].sha256, "%016" PRIx64 "%048d", digits, 0);
    }
}

/* One bit for each file that ends a cache. */
static unsigned borders(const Fingerprint *prints, size_t count) {
    unsigned ends = 0;
    for (size_t first = 0; first < count;) {
        first += token_unit_files(prints, first, count, LEAST);
        ends |= 1u << (first - 1);
    }
    return ends;
}

static void test_by_size(void **state) {
    (void)state;
    size_t decided = 0;
    for (size_t n = 0; n < SOURCES; n++) {
        Fingerprint prints[FILES] = {0};
        size_t count = 1 + draw(FILES);
        for (size_t i = 0; i < count; i++) prints[i].stamp.size = draw_size();
        if (!token_units_by_size(prints, count, LEAST)) continue;
        decided++;
        unsigned unknown = borders(prints, count);
        for (size_t kind = 0; kind < HASHES; kind++) {
            set_hashes(prints, count, kind);
            assert_int_equal(borders(prints, count), unknown);
        }
    }
    assert_true(decided > SOURCES / 20 && decided < SOURCES);
}

/* Files between the least size and three times that end a cache or not, by their hashes. */
static void test_by_hash(void **state) {
    (void)state;
    Fingerprint prints[2] = {{.stamp.size = 3 * LEAST}, {.stamp.size = 10}};
    assert_false(token_units_by_size(prints, 2, LEAST));
    set_hashes(prints, 2, 1);
    assert_int_equal(token_unit_files(prints, 0, 2, LEAST), 2);
    set_hashes(prints, 2, 0);
    assert_int_equal(token_unit_files(prints, 0, 2, LEAST), 1);
    prints[0].stamp.size++;
    assert_true(token_units_by_size(prints, 2, LEAST));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_by_size), cmocka_unit_test(test_by_hash)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
