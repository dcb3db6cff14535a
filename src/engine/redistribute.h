/* Moves the state of a run (master weights, optimizer states) from the shards of one mesh to those of
 * another, from memory to memory. Resuming a checkpoint on another mesh does the same through files.
 *
 * Sources are ranks of the mesh before. Each has a holder: itself, or its partner with a copy. Targets are
 * ranks of the mesh to come, and copies of them. A target takes each element from the one source that counts
 * it (partition_counts), parameter after parameter, so at most one parameter is in flight at a time.
 *
 * Elsewhere called: redistribute (DTensor), resharding. */
#ifndef WEFT_ENGINE_REDISTRIBUTE_H
#define WEFT_ENGINE_REDISTRIBUTE_H

#include "engine/engine.h"

/* The state of one rank of a mesh. */
typedef struct ShardHolder {
    RankPlan plan;    /* of that rank */
    int at;           /* rank of the Comm that holds it: at most one original and one copy */
    bool copy;        /* it is a copy, held by another rank */
    ShardState state; /* memory, where that is this rank */
} ShardHolder;

typedef struct Redistribution Redistribution;

/* Plans are made here and belong to the Redistribution, which the caller fills and executes. */
Redistribution *redistribute_open(Comm *comm, Device *d, int sources, int targets);
void redistribute_close(Redistribution *r); /* after a failure: once the Comm is repaired; NULL is allowed */
ShardHolder *redistribute_source(Redistribution *r, int i);
ShardHolder *redistribute_target(Redistribution *r, int i);
/* Collective. ERR_PEER: a rank died, and what targets hold is undefined. Sources are never changed. */
ErrorCode redistribute_run(Redistribution *r, Error *err);

#endif
