/* Where a rank stands: coordinates of ranks on the axes of parallelism. Pure arithmetic; nothing here knows
 * of processes.
 *
 * Axes from outer to inner: pp, dp_replicate, dp_shard, cp, tp. The inner ones vary fastest, so that those
 * who talk most are neighbours: rank = (((pp * DP_REPLICATE + dp_replicate) * DP_SHARD + dp_shard) * CP + cp)
 * * TP + tp. */
#ifndef WEFT_COMM_MESH_H
#define WEFT_COMM_MESH_H

#include <stdint.h>

#include "base/error.h"

typedef enum Axis { AXIS_PP, AXIS_DP_REPLICATE, AXIS_DP_SHARD, AXIS_CP, AXIS_TP, AXES } Axis;
const char *axis_name(Axis axis); /* "pp", "dp_replicate", ... */

/* Degrees as asked for; dp_shard -1 takes the ranks that are left. */
typedef struct MeshOptions {
    int64_t pp, dp_replicate, dp_shard, cp, tp, ep;
} MeshOptions;

typedef struct Mesh {
    int degree[AXES]; /* each at least 1; their product is world */
    int world;
} Mesh;

/* The mesh of `world` ranks. ERR_CONFIG says which numbers do not fit and which would; degrees of cp, tp, ep
 * above 1 are refused by name. */
ErrorCode mesh_build(Mesh *mesh, const MeshOptions *options, int world, Error *err);

int mesh_rank(const Mesh *mesh, const int at[AXES]);
void mesh_coordinates(const Mesh *mesh, int rank, int at[AXES]);

/* Data parallelism: dp_replicate * dp_shard ranks that read different data; the place of a rank among them,
 * dp_replicate_rank * dp_shard + dp_shard_rank. */
int mesh_dp_degree(const Mesh *mesh);
int mesh_dp_rank(const Mesh *mesh, int rank);

#endif
