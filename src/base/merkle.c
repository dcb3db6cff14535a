/* The stack holds complete subtrees of sizes that are powers of two, the largest first: as a binary counter
 * does, two of one size become one of twice that. What remains is folded from the right, which gives the
 * canonical tree of any number of leaves. */
#include "base/merkle.h"

#include <string.h>

void merkle_leaf(Sha256 *h, const void *data, size_t bytes, uint8_t out[MERKLE_BYTES]) {
    sha256_add(h, "\0", 1);
    sha256_add(h, data, bytes);
    sha256_next(h, out);
}

/* out may be one of the two. */
static void node(Sha256 *h, const uint8_t left[MERKLE_BYTES], const uint8_t right[MERKLE_BYTES],
                 uint8_t out[MERKLE_BYTES]) {
    sha256_add(h, "\1", 1);
    sha256_add(h, left, MERKLE_BYTES);
    sha256_add(h, right, MERKLE_BYTES);
    sha256_next(h, out);
}

static void join_last_two(MerkleStack *s, Sha256 *h) {
    MerkleBlock *right = &s->subtrees[--s->count], *left = right - 1;
    node(h, left->digest, right->digest, left->digest);
    left->block.size += right->block.size;
}

static bool last_two_are_even(const MerkleStack *s) {
    return s->count > 1 && s->subtrees[s->count - 1].block.size == s->subtrees[s->count - 2].block.size;
}

void merkle_push(MerkleStack *s, Sha256 *h, const uint8_t leaf[MERKLE_BYTES]) {
    MerkleBlock *top = &s->subtrees[s->count++];
    top->block.size = 1;
    memcpy(top->digest, leaf, MERKLE_BYTES);
    while (last_two_are_even(s)) join_last_two(s, h);
}

void merkle_fold(MerkleStack *s, Sha256 *h, uint8_t out[MERKLE_BYTES]) {
    while (s->count > 1) join_last_two(s, h);
    memcpy(out, s->subtrees[0].digest, MERKLE_BYTES);
    s->count = 0;
}

typedef struct Joining {
    const MerkleBlock *next, *end;
    Sha256 *hash;
} Joining;

/* The digest of a block of the tree: one of the given blocks, or made of its halves. Returns -1, or the leaf
 * at which the given blocks do not go on. */
static int join(Joining *j, TreeBlock block, uint8_t out[MERKLE_BYTES]) {
    const MerkleBlock *given = j->next;
    if (given == j->end || given->block.first != block.first || given->block.size > block.size)
        return block.first;
    if (given->block.size == block.size) {
        memcpy(out, given->digest, MERKLE_BYTES);
        j->next++;
        return -1;
    }
    uint8_t right[MERKLE_BYTES];
    int half = tree_half(block.size), bad = join(j, (TreeBlock){block.first, half}, out);
    if (bad < 0) bad = join(j, (TreeBlock){block.first + half, block.size - half}, right);
    if (bad < 0) node(j->hash, out, right, out);
    return bad;
}

int merkle_join(const MerkleBlock *blocks, size_t count, int total, Sha256 *h, uint8_t out[MERKLE_BYTES]) {
    Joining j = {blocks, blocks + count, h};
    int bad = join(&j, (TreeBlock){0, total}, out);
    return bad < 0 && j.next < j.end ? j.next->block.first : bad;
}
