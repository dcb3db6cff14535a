/* Merkle trees of SHA-256: one digest that stands for many values, computed in parts.
 *
 * The tree over n leaves is the canonical one of base/tree.h (RFC 6962 has the same). Whoever has a run of
 * the leaves computes the digests of the blocks of the tree in that run, and whoever has the blocks joins
 * them. Leaves and nodes are hashed with different first bytes, so that a node cannot pass as a leaf:
 *
 *     leaf = SHA-256(0x00 | bytes)     node = SHA-256(0x01 | left | right) */
#ifndef WEFT_BASE_MERKLE_H
#define WEFT_BASE_MERKLE_H

#include <stdbool.h>

#include "base/hash.h"
#include "base/tree.h"

enum { MERKLE_BYTES = 32 };

typedef struct MerkleBlock {
    TreeBlock block;
    uint8_t digest[MERKLE_BYTES];
} MerkleBlock;

/* `h` is any started hash, which is started again afterwards. */
void merkle_leaf(Sha256 *h, const void *data, size_t bytes, uint8_t out[MERKLE_BYTES]);

/* Digest of a block from its leaves, one after the other. */
typedef struct MerkleStack {
    int count;
    MerkleBlock subtrees[40]; /* [count] of decreasing sizes */
} MerkleStack;
void merkle_push(MerkleStack *s, Sha256 *h, const uint8_t leaf[MERKLE_BYTES]);
/* Also empties the stack, which must have a leaf. */
void merkle_fold(MerkleStack *s, Sha256 *h, uint8_t out[MERKLE_BYTES]);

/* Root of the tree over `total` leaves, from blocks that are ascending and cover it. Returns the first leaf
 * that is missing or comes twice, or -1. */
int merkle_join(const MerkleBlock *blocks, size_t count, int total, Sha256 *h, uint8_t out[MERKLE_BYTES]);

#endif
