/* Compares replicas that must be equal.
 *
 * Ranks that differ only on dp_replicate hold the same weights and moments, and so does the tied copy of the
 * embedding at the head. They make the same updates from the same sums, so they stay equal to the last bit. A
 * difference means that memory, a computation or the program was wrong on one of them. Each rank hashes
 * (XXH3-64) what it owns of every parameter, rank 0 compares, and all ranks get the result. Data without
 * replicas, as with dp_replicate 1, cannot be checked this way.
 *
 * A state that is compared just before it is saved is known to be equal on all replicas. */
#ifndef WEFT_ENGINE_REPLICAS_H
#define WEFT_ENGINE_REPLICAS_H

#include "engine/engine.h"
#include "engine/tensor_hash.h"

enum { PRINTED_ARRAYS = 1 + PARAM_STATES }; /* weights, then optimizer states and average */

/* Hashes of what one rank owns of one parameter. */
typedef struct ParamPrint {
    uint64_t held; /* 1: this rank owns elements of it, hashed below; 0: none */
    uint64_t hash[PRINTED_ARRAYS];
} ParamPrint;

typedef struct Replicas {
    Engine *engine;
    Comm *comm;
    bool exist; /* there are replicas; otherwise a check does nothing */
    TensorHash hash;
    ParamPrint *mine; /* [parameters] */
    int64_t agreed;   /* step after which all replicas were equal, -1: never compared */
    double seconds;   /* duration of the last check on this rank */
} Replicas;

/* The engine must be open. */
void replicas_open(Replicas *r, Engine *e, Comm *comm);
void replicas_close(Replicas *r);

/* Compares after `step` steps. Collective; the result is the same on all ranks. ERR_REPLICAS names the first
 * parameter that differs, the ranks that differ from the majority (all its holders if there is none), and the
 * last step at which all were equal. err->reported is set on all ranks but 0. */
ErrorCode replicas_check(Replicas *r, int64_t step, Error *err);

/* Determines which ranks are replicas of which parameter. */
typedef struct ReplicaScene {
    const ModelConfig *model; /* the model of the mesh */
    const ParamTable *table;
    const ParamGroups *groups;
    const Mesh *mesh;
} ReplicaScene;
/* Only the comparison: `all` is [ranks, parameters]. */
ErrorCode replicas_judge(const ParamPrint *all, const ReplicaScene *scene, int64_t step, int64_t agreed,
                         Error *err);

#endif
