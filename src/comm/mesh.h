/* The mesh (DeviceMesh, parallel_state): ranks' coordinates on the axes of parallelism. Pure arithmetic.
 *
 * Axes from outer to inner: pp, dp_replicate, dp_shard, cp, tp, kv. The inner ones vary fastest, so that
 * ranks which communicate most are neighbours:
 *     rank = ((((pp * DP_REPLICATE + dp_replicate) * DP_SHARD + dp_shard) * CP + cp) * TP + tp) * KV + kv
 *
 * ep is laid over dp_shard x cp: each mesh.ep neighbours among these ranks form a group that divides a
 * layer's experts. They are some ranks of cp, or all of cp and some of dp_shard. mesh.dp_shard and mesh.cp
 * are therefore products of two axes each, which only expert parallelism distinguishes:
 *     dp_shard = dp_shard * EP + ep, cp = cp * EP_CP + ep_cp, where CP or EP is 1
 *
 * In the same way kv is laid over tp where TP exceeds the number of KV heads: KV neighbouring ranks hold the
 * same KV heads. kv has no option, and is named as tp.
 *
 * With mesh.etp 1 each rank of tp has whole experts of its own (MoE parallel folding, Liu et al. 2025, arXiv
 * 2504.14960). ep is then laid over dp_shard x cp x tp: its groups include all ranks of tp. */
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
/* Whether the axis has a key of its own, which sets its degree (mesh_degree). */
static inline bool axis_is_asked(Axis axis) { return axis != AXIS_EP_CP && axis != AXIS_KV; }

/* A group is a set of axes: the ranks that differ on these axes only, in the order of their numbers. The
 * purpose of each group has a name here, so that no other code needs to know its axes. */
typedef uint32_t AxisSet; /* bit a: Axis a; MESH_FOLDED */
enum {
    MESH_PIPELINE = 1 << AXIS_PP,           /* the stages of one pipeline */
    MESH_REPLICAS = 1 << AXIS_DP_REPLICATE, /* ranks with equal shards of the parameters */
    MESH_FOLDED = 1 << AXES, /* stands for tp and kv where these ranks divide experts, else for no axis */
    MESH_EXPERT_SOURCES = 1 << AXIS_EP | 1 << AXIS_EP_CP, /* ranks of an EP group with tokens of other data */
    MESH_EXPERTS = MESH_EXPERT_SOURCES | MESH_FOLDED,     /* ranks that divide a layer's experts (EP group) */
    MESH_EXPERT_SHARDS =
        1 << AXIS_DP_SHARD | 1 << AXIS_CP, /* ranks that shard the parameters of the same experts */
    /* ranks that shard all other parameters (FSDP group) */
    MESH_SHARDS = MESH_EXPERT_SHARDS | MESH_EXPERT_SOURCES,
    MESH_TENSOR = 1 << AXIS_TP | 1 << AXIS_KV, /* ranks that shard single matrices (TP group) */
    MESH_KEY_COPIES = 1 << AXIS_KV,            /* ranks of tp with the same KV heads */
    /* ranks that divide the tokens of a sequence (CP group) */
    MESH_CONTEXT = 1 << AXIS_CP | 1 << AXIS_EP_CP,
    /* ranks that read different data */
    MESH_DATA = 1 << AXIS_DP_REPLICATE | 1 << AXIS_DP_SHARD | 1 << AXIS_EP,
    MESH_SETS = 1 << AXES,          /* sets of axes */
    MESH_ASKED_SETS = 2 * MESH_SETS /* with MESH_FOLDED or without */
};
/* Writes "dp_replicate x dp_shard" to out; returns out. */
char *mesh_set_name(AxisSet set, char out[64]);

/* Requested degrees; dp_shard -1 takes the remaining ranks, and etp 0 is tp. */
typedef struct MeshOptions {
    int64_t pp, dp_replicate, dp_shard, cp, tp, ep, etp;
    int64_t machine; /* Mesh.machine; no option */
} MeshOptions;

typedef struct Mesh {
    int degree[AXES]; /* each at least 1; their product is world */
    int world;
    bool folded; /* ranks of tp divide experts */
    /* Collectives over several machines have two levels, inside a machine and between machines (comm.h): how
     * many consecutive ranks each machine has. 0: one level. */
    int machine;
} Mesh;

/* The same mesh with another number of replicas (dp_replicate). */
Mesh mesh_of_replicas(const Mesh *mesh, int replicas);
/* The largest mesh of at most `ranks` ranks, without replicas, that `fits` accepts. Of equally large ones
 * that which keeps most of tp, then of cp, pp, ep; no degree but that of dp_shard grows, and whole experts
 * stay whole. Returns false if there is none. */
typedef bool MeshFits(const void *context, const MeshOptions *m);
bool mesh_shrink(const Mesh *now, int ranks, MeshFits *fits, const void *context, MeshOptions *out);
MeshOptions mesh_degrees(const Mesh *mesh); /* from which mesh_build makes it */
/* Partner copies (recovery.partner_copy): the rank that holds a copy of this one's state, and the rank whose
 * state this one holds a copy of. Half the ranks lie between them, so they are on two hosts where each host
 * has a run of equally many ranks. The rank itself if there is only one. */
int mesh_partner(const Mesh *mesh, int rank);
int mesh_partner_of(const Mesh *mesh, int rank);
/* Builds the mesh of `world` ranks. ERR_CONFIG names the numbers that do not fit and those that would. */
ErrorCode mesh_build(Mesh *mesh, const MeshOptions *options, int world, Error *err);
/* Gives each `copies` neighbours along tp the same KV heads; `copies` divides the degree of tp.
 * program/axes.h computes it. */
void mesh_lay_copies(Mesh *mesh, int copies);
/* The degree of an axis as its option gives it: those of dp_shard and cp include their factor of ep, that of
 * tp includes kv, that of ep includes tp where it is folded. */
int mesh_degree(const Mesh *mesh, Axis axis);
/* Whether a mesh of these options is folded. */
static inline bool mesh_folds(const MeshOptions *o) { return o->etp == 1 && o->tp > 1; }
/* The axes of a set: MESH_FOLDED is replaced by those that it stands for. */
AxisSet mesh_axes(const Mesh *mesh, AxisSet set);

int mesh_rank(const Mesh *mesh, const int at[AXES]);
void mesh_coordinates(const Mesh *mesh, int rank, int at[AXES]);

/* The size of a group; a rank's index in its group of that set; the rank with index `group_rank` in that
 * group. */
int mesh_size(const Mesh *mesh, AxisSet set);
int mesh_group_rank(const Mesh *mesh, AxisSet set, int rank);
int mesh_member(const Mesh *mesh, AxisSet set, int rank, int group_rank);
/* Ranks of the inner level of a group: the group has so many consecutive members on each of several machines.
 * 1: its collectives have one level. */
int mesh_inside(const Mesh *mesh, AxisSet set, int rank);

/* Data parallelism (MESH_DATA): how many ranks read different data, and the index of a rank among them,
 * dp_replicate_rank * dp_shard + dp_shard_rank. */
int mesh_dp_degree(const Mesh *mesh);
int mesh_dp_rank(const Mesh *mesh, int rank);

#endif
