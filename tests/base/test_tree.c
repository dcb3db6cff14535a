/* The canonical tree by a binary counter: terms that come one after the other get the bits of the tree. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>

#include "base/rng.h"
#include "base/tree.h"

enum { MOST = 64, LEVELS = 7 /* log2(MOST) + 1 */ };

static float tree_sum(const float *parts, int n) {
    if (n == 1) return parts[0];
    int half = tree_half(n);
    return tree_sum(parts, half) + tree_sum(parts + half, n - half);
}

/* Values over twelve decades, of both signs: their sum depends on its order. */
static float term(int n, int i) {
    uint64_t r = rng_u64((uint64_t)n, (uint64_t)i);
    return (float)ldexp((double)(int32_t)r, (int)(r >> 32) % 40 - 40);
}

/* Adds terms as they come; returns the sum, and in *most how many partial sums existed at once. */
static float count_up(const float *terms, int n, int *most) {
    float sums[LEVELS] = {0};
    *most = 0;
    for (int i = 0; i < n; i++) {
        int at = tree_waiting(i);
        assert_in_range(at, 0, LEVELS - 1);
        if (at + 1 > *most) *most = at + 1;
        sums[at] = terms[i];
        for (int carries = tree_carries(i), count; carries > 0; carries -= count - 1) {
            float parts[3];
            count = tree_carry_parts(carries);
            for (int k = 0; k < count; k++) parts[k] = sums[at - k];
            at -= count - 1;
            sums[at] = tree_sum(parts, count);
        }
    }
    return sums[0];
}

/* The same where runs of terms come as the largest blocks of the tree, each already added up. A run ends
 * behind each term whose bit of `ends` is set. */
static float count_blocks(const float *terms, int n, unsigned ends) {
    float sums[LEVELS] = {0};
    for (int first = 0, end; first < n; first = end) {
        TreeBlock blocks[TREE_BLOCKS];
        for (end = first + 1; end < n && !(ends >> (end - 1) % 32 & 1);) end++;
        int count = tree_blocks(n, (TreeBlock){first, end - first}, blocks);
        for (int b = 0; b < count; b++) {
            int at = tree_waiting(blocks[b].first);
            sums[at] = tree_sum(terms + blocks[b].first, blocks[b].size);
            for (int carries = tree_block_carries(blocks[b]); carries > 0; carries--, at--)
                sums[at - 1] += sums[at];
        }
    }
    return sums[0];
}

static void blocks_have_the_bits_of_the_tree(void **state) {
    (void)state;
    for (int n = 1; n <= MOST; n *= 2)
        for (unsigned ends = 0; ends < 200; ends++) {
            float terms[MOST];
            for (int i = 0; i < n; i++) terms[i] = term((int)ends, i);
            float sum = count_blocks(terms, n, ends * 2654435761u), tree = tree_sum(terms, n);
            assert_memory_equal(&sum, &tree, sizeof sum);
        }
}

static void counter_has_the_bits_of_the_tree(void **state) {
    (void)state;
    int ordered = 0;
    for (int n = 1, levels = 1; n <= MOST; n *= 2, levels++)
        for (int seed = 0; seed < 50; seed++) {
            float terms[MOST], chain = 0;
            int most;
            for (int i = 0; i < n; i++) terms[i] = term(seed, i), chain += terms[i];
            float sum = count_up(terms, n, &most), tree = tree_sum(terms, n);
            assert_memory_equal(&sum, &tree, sizeof sum);
            assert_int_equal(most, levels);
            ordered += chain < tree || chain > tree;
        }
    assert_true(ordered > 0); /* else the terms prove nothing */
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counter_has_the_bits_of_the_tree),
                                       cmocka_unit_test(blocks_have_the_bits_of_the_tree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
