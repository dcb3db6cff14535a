/* Where a rank stands: coordinates of ranks on the axes of parallelism. Pure arithmetic; nothing here knows
 * of processes.
 *
 * Axes from outer to inner: pp, dp_replicate, dp_shard, cp, tp, kv. The inner ones vary fastest, so that
 * those who talk most are neighbours:
 *     rank = ((((pp * DP_REPLICATE + dp_replicate) * DP_SHARD + dp_shard) * CP + cp) * TP + tp) * KV + kv
 *
 * ep is laid over dp_shard x cp: of these ranks each mesh.ep neighbours are a group that shares a layer's
 * experts out. They are some of cp's, or all of these and some of dp_shard's. So mesh.dp_shard and mesh.cp
 * are the products of two axes each here, of which only experts tell one from the other:
 *     dp_shard = dp_shard * EP + ep, cp = cp * EP_CP + ep_cp, where CP or EP is 1
 * In the same way kv is laid over tp, where ranks are more than heads of keys and values: each so many
 * neighbours hold the same ones. It has no option, and no name but tp's. */
#ifndef WEFT_COMM_MESH_H
#define WEFT_COMM_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef enum Axis {
    AXIS_PP,
    AXIS_DP_REPLICATE,
    AXIS_DP_SHARD,
    AXIS_EP,
    AXIS_CP,
    AXIS_EP_CP,
    AXIS_TP,
    AXIS_KV,
    AXES
} Axis;
const char *axis_name(Axis axis); /* "pp", "dp_replicate", ... */
/* It has a key of its own, which says its degree (mesh_degree). */
static inline bool axis_is_asked(Axis axis) { return axis != AXIS_EP_CP && axis != AXIS_KV; }

/* Ranks talk in groups, and a group is a set of axes: those ranks that differ on these axes alone, in the
 * order of their numbers. What a group is for has a name here, so that nobody else needs to know its axes. */
typedef uint32_t AxisSet; /* bit a: Axis a */
enum {
    MESH_PIPELINE = 1 << AXIS_PP,                  /* the stages of one pipeline */
    MESH_REPLICAS = 1 << AXIS_DP_REPLICATE,        /* those with equal shares of the parameters */
    MESH_EXPERTS = 1 << AXIS_EP | 1 << AXIS_EP_CP, /* those that share a layer's experts out */
    MESH_EXPERT_SHARDS =
        1 << AXIS_DP_SHARD | 1 << AXIS_CP,           /* those that share the same experts' parameters */
    MESH_SHARDS = MESH_EXPERT_SHARDS | MESH_EXPERTS, /* those that share all other parameters out */
    MESH_TENSOR = 1 << AXIS_TP | 1 << AXIS_KV,       /* those that share single matrices out */
    MESH_KEY_COPIES = 1 << AXIS_KV,                  /* of these, those with the same heads of keys */
    MESH_CONTEXT = 1 << AXIS_CP | 1 << AXIS_EP_CP,   /* those that share the tokens of a sequence out */
    /* those that read different data */
    MESH_DATA = 1 << AXIS_DP_REPLICATE | 1 << AXIS_DP_SHARD | 1 << AXIS_EP,
    MESH_SETS = 1 << AXES
};
/* "dp_replicate x dp_shard" into out; returns out. */
char *mesh_set_name(AxisSet set, char out[64]);

/* Degrees as asked for; dp_shard -1 takes the ranks that are left. */
typedef struct MeshOptions {
    int64_t pp, dp_replicate, dp_shard, cp, tp, ep;
} MeshOptions;

typedef struct Mesh {
    int degree[AXES]; /* each at least 1; their product is world */
    int world;
} Mesh;

/* The mesh of `world` ranks. ERR_CONFIG says which numbers do not fit and which would. */
ErrorCode mesh_build(Mesh *mesh, const MeshOptions *options, int world, Error *err);
/* Of the ranks along tp each `copies` neighbours hold the same heads of keys and values: a divisor of them.
 * program/axes.h knows how many these are. */
void mesh_lay_copies(Mesh *mesh, int copies);
/* The degree of an axis as an option says it: dp_shard's and cp's have what ep has of them, tp's has kv. */
int mesh_degree(const Mesh *mesh, Axis axis);
/* The mesh with one rank along the axes of the set. */
Mesh mesh_without(const Mesh *mesh, AxisSet set);

int mesh_rank(const Mesh *mesh, const int at[AXES]);
void mesh_coordinates(const Mesh *mesh, int rank, int at[AXES]);

/* Ranks of a group; the place of a rank in its group of that set; the rank that has this place there. */
int mesh_size(const Mesh *mesh, AxisSet set);
int mesh_place(const Mesh *mesh, AxisSet set, int rank);
int mesh_member(const Mesh *mesh, AxisSet set, int rank, int place);

/* Data parallelism, MESH_DATA: how many ranks read different data, and the place of a rank among them,
 * dp_replicate_rank * dp_shard + dp_shard_rank. */
int mesh_dp_degree(const Mesh *mesh);
int mesh_dp_rank(const Mesh *mesh, int rank);

#endif
