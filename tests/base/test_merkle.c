/* Merkle trees: blocks of any division give the root of the whole, and holes are found. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/merkle.h"

enum { MOST = 70 };
static Sha256 *hash;
static uint8_t leaves[MOST][MERKLE_BYTES];

static void fold(int first, int size, uint8_t out[MERKLE_BYTES]) {
    MerkleStack stack = {.count = 0};
    for (int i = 0; i < size; i++) merkle_push(&stack, hash, leaves[first + i]);
    merkle_fold(&stack, hash, out);
}

/* Adds the blocks of a run of the leaves. */
static size_t add(MerkleBlock *out, int total, int first, int size) {
    TreeBlock blocks[TREE_BLOCKS];
    int count = size ? tree_blocks(total, (TreeBlock){first, size}, blocks) : 0;
    for (int i = 0; i < count; i++) {
        out[i].block = blocks[i];
        fold(blocks[i].first, blocks[i].size, out[i].digest);
    }
    return (size_t)count;
}

static void any_division_gives_the_root(void **state) {
    (void)state;
    for (int n = 1; n <= MOST; n++) {
        uint8_t whole[MERKLE_BYTES], joined[MERKLE_BYTES];
        fold(0, n, whole);
        for (int cut = 0; cut <= n; cut++) {
            MerkleBlock blocks[2 * TREE_BLOCKS];
            size_t count = add(blocks, n, 0, cut);
            count += add(blocks + count, n, cut, n - cut);
            assert_int_equal(merkle_join(blocks, count, n, hash, joined), -1);
            assert_memory_equal(whole, joined, MERKLE_BYTES);
        }
    }
}

static void holes_and_repeats_are_found(void **state) {
    (void)state;
    MerkleBlock blocks[2 * TREE_BLOCKS];
    uint8_t out[MERKLE_BYTES];
    size_t count = add(blocks, 13, 0, 5);
    assert_int_equal(merkle_join(blocks, count, 13, hash, out), 5);
    count += add(blocks + count, 13, 6, 7);
    assert_int_equal(merkle_join(blocks, count, 13, hash, out), 5);
    count = add(blocks, 13, 0, 5);
    count += add(blocks + count, 13, 4, 9);
    assert_int_equal(merkle_join(blocks, count, 13, hash, out), 5);
    assert_int_equal(merkle_join(blocks, 0, 13, hash, out), 0);
}

/* RFC 6962: SHA-256 of a zero byte is the leaf of nothing. */
static void known_values(void **state) {
    (void)state;
    uint8_t out[MERKLE_BYTES];
    char hex[65];
    merkle_leaf(hash, "", 0, out);
    sha256_hex(out, hex);
    assert_string_equal(hex, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_division_gives_the_root),
                                       cmocka_unit_test(holes_and_repeats_are_found),
                                       cmocka_unit_test(known_values)};
    uint8_t unused[MERKLE_BYTES];
    hash = sha256_start();
    for (int i = 0; i < MOST; i++) merkle_leaf(hash, &i, sizeof i, leaves[i]);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    sha256_finish(hash, unused);
    return failed;
}
