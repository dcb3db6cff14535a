/* One digest of all weights, the same on every mesh: a Merkle root (base/merkle.h) of fp32 master weights.
 *
 *     leaf       a run of consecutive elements of the unsharded parameter, in the order of its file; the last
 *                one of a parameter may be shorter
 *     parameter  SHA-256(0x02 | name | length of a leaf | shape | root of its leaves)
 *     root       of the parameters, in byte order of their names
 *
 * Strings are hashed with their lengths before them, numbers as 64 bits, all little-endian; values as they
 * are in memory, so -0 is not 0. Each rank hashes the leaves that it owns (of replicas, the first owns them)
 * and sends the digests of whole blocks of the tree, so few bytes travel. Of leaves that lie on several ranks
 * the values travel. A leaf has 1,024 elements; where tensor parallelism cuts rows, as many of them as divide
 * the columns of a rank at the highest degree that gives the same bits (numerics.tp_invariant_up_to). */
#ifndef WEFT_ENGINE_WEIGHTS_ROOT_H
#define WEFT_ENGINE_WEIGHTS_ROOT_H

#include "base/merkle.h"
#include "engine/engine.h"

typedef struct ParameterRoot {
    const char *name; /* of the engine's table */
    uint8_t digest[MERKLE_BYTES];
} ParameterRoot;

/* On rank 0; other ranks leave it as it is. */
typedef struct WeightsRoot {
    uint8_t digest[MERKLE_BYTES];
    int count;
    ParameterRoot *parameters; /* [count] ascending by name */
} WeightsRoot;

/* Collective, between steps. Free with weights_root_free, on every rank. */
ErrorCode weights_root(const Engine *e, Comm *comm, WeightsRoot *out, Error *err);
void weights_root_free(WeightsRoot *r);

#endif
