/* Which ranks go on after some have died: those that hold the shards of a mesh with fewer replicas, or of the
 * same one with spares in the place of the dead. Pure arithmetic. */
#ifndef WEFT_TRAIN_RECOVERY_H
#define WEFT_TRAIN_RECOVERY_H

#include <stdbool.h>

#include "comm/mesh.h"

enum { RECOVERY_SPARE = -1 /* in place of a rank's number: it holds no shard */ };

/* Coordinates but for dp_replicate, as one number. */
int recovery_shard_of(const Mesh *mesh, int rank);

/* numbers: [count] of those that live: ranks of the mesh `first`, ascending, then RECOVERY_SPARE. Chooses,
 * for each rank of mesh_of_replicas in turn, one that has the same coordinates but for dp_replicate, or a
 * spare: chosen[rank] is its index in numbers. Without spares these ascend: ranks keep their order. With
 * spares a rank keeps its place, and there is always one that holds the shard. Returns false if there is no
 * such choice. */
bool recovery_choose(const Mesh *first, const int *numbers, int count, int replicas,
                     int *chosen /* [world of mesh_of_replicas] out */);

#endif
