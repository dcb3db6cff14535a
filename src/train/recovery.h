/* Which ranks go on after some have died: a mesh of fewer replicas, with ranks of the first one that hold the
 * shards it needs. Pure arithmetic. */
#ifndef WEFT_TRAIN_RECOVERY_H
#define WEFT_TRAIN_RECOVERY_H

#include <stdbool.h>

#include "comm/mesh.h"

/* alive: [count] ranks of the mesh `first`, ascending. Chooses, for each rank of mesh_of_replicas in turn,
 * one that has the same coordinates but for dp_replicate: chosen[rank] is its index in alive, ascending,
 * since ranks keep their order. Returns false if there is no such choice. */
bool recovery_choose(const Mesh *first, const int *alive, int count, int replicas,
                     int *chosen /* [world of mesh_of_replicas] out */);

#endif
