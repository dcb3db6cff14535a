/* Computes coordinates of ranks, by division with remainder from the innermost axis outwards, and checks
 * meshes: degrees must multiply to the number of ranks, and an error about degrees that do not fit says which
 * would.
 *
 *     rank = ((((pp * R + dp_replicate) * S + dp_shard) * C + cp) * T + tp) * K + kv    (R, ...: degrees)
 *
 * So neighbouring ranks differ on the innermost axis, which has the heaviest traffic, and are on one machine
 * if a launcher fills machines one after the other. A group is a set of axes: the ranks whose coordinates on
 * all other axes are equal, in the order of ranks. */
#include "comm/mesh.h"

#include <stdio.h>

#include "base/text.h"

/* As the options in section mesh are called. Any number is accepted, since names go into messages. kv is part
 * of tp, and no option. */
const char *axis_name(Axis axis) {
    static const char *const names[AXES] = {"pp", "dp_replicate", "dp_shard", "ep", "cp", "cp", "tp", "tp"};
    return (unsigned)axis < AXES ? names[axis] : "unknown";
}

/* "dp_replicate x dp_shard", for messages. ep's part of cp is not named if ep or cp is in the set as well. */
char *mesh_set_name(AxisSet set, char out[64]) {
    size_t length = 0;
    *out = 0;
    set &= ~(AxisSet)MESH_FOLDED;
    if (set & 1u << AXIS_TP) set &= ~(1u << AXIS_KV);
    if (set & (1u << AXIS_EP | 1u << AXIS_CP)) set &= ~(1u << AXIS_EP_CP);
    for (int axis = 0; axis < AXES; axis++)
        if (set >> axis & 1)
            length += (size_t)snprintf(out + length, 64 - length, "%s%s", length ? " x " : "",
                                       axis_name((Axis)axis));
    return out;
}

/* ---- rules ---- */

static ErrorCode check_degree(const char *name, int64_t degree, Error *err) {
    if (degree >= 1) return OK;
    return error_set(err, ERR_CONFIG, "mesh.%s is %lld: a degree of parallelism is at least 1%s", name,
                     (long long)degree,
                     name[0] == 'd' && name[3] == 's' ? ", or -1 for the ranks that are left" : "");
}

static ErrorCode check_each(const MeshOptions *o, Error *err) {
    TRY(check_degree("pp", o->pp, err));
    TRY(check_degree("dp_replicate", o->dp_replicate, err));
    if (o->dp_shard != -1) TRY(check_degree("dp_shard", o->dp_shard, err));
    TRY(check_degree("cp", o->cp, err));
    TRY(check_degree("tp", o->tp, err));
    return check_degree("ep", o->ep, err);
}

/* Product of degrees, or more than any world if it would overflow. Degrees come from a file and may be
 * anything. */
static int64_t product(int64_t a, int64_t b) {
    return a > INT32_MAX || b > INT32_MAX ? (int64_t)INT32_MAX + 1 : a * b;
}

/* All degrees except dp_shard's. */
static int64_t product_of_others(const MeshOptions *o) {
    return product(product(o->pp, o->dp_replicate), product(o->cp, o->tp));
}

/* "mesh.pp 2 x mesh.dp_replicate 1"; cp and tp only if they are above 1. */
static const char *name_others(const MeshOptions *o, char out[160]) {
    int at = snprintf(out, 160, "mesh.pp %lld x mesh.dp_replicate %lld", (long long)o->pp,
                      (long long)o->dp_replicate);
    if (o->cp > 1) at += snprintf(out + at, 160 - (size_t)at, " x mesh.cp %lld", (long long)o->cp);
    if (o->tp > 1) snprintf(out + at, 160 - (size_t)at, " x mesh.tp %lld", (long long)o->tp);
    return out;
}

/* For dp_shard -1. */
static ErrorCode ranks_left(const MeshOptions *o, int world, int64_t *left, Error *err) {
    int64_t others = product_of_others(o);
    char names[160];
    *left = world / others;
    if (*left > 0 && *left * others == world) return OK;
    /* The nearest numbers of ranks that would fit, so that the user knows what to do. */
    int64_t below = *left * others, above = below + others;
    if (below == 0)
        return error_set(err, ERR_CONFIG,
                         "%s needs at least %lld ranks, and there are %d: start so many or lower a degree",
                         name_others(o, names), (long long)others, world);
    return error_set(err, ERR_CONFIG, "%s = %lld does not divide %d ranks: %lld or %lld ranks would fit",
                     name_others(o, names), (long long)others, world, (long long)below, (long long)above);
}

/* For a given dp_shard. */
static ErrorCode check_product(const MeshOptions *o, int world, Error *err) {
    int64_t others = product_of_others(o), ranks = product(others, o->dp_shard);
    char instead[96] = " or change a degree", names[160];
    if (ranks == world) return OK;
    if (world % others == 0)
        snprintf(instead, sizeof instead, ", or set mesh.dp_shard to %lld (-1 takes the ranks that are left)",
                 (long long)(world / others));
    return error_set(
        err, ERR_CONFIG, "%s x mesh.dp_shard %lld = %lld, but there are %d ranks: start %lld ranks%s",
        name_others(o, names), (long long)o->dp_shard, (long long)ranks, world, (long long)ranks, instead);
}

/* Experts are cut by their width over tp as an MLP is, or not at all. */
static ErrorCode check_expert_tensors(const MeshOptions *o, Error *err) {
    if (o->etp == 0 || o->etp == o->tp) return OK;
    if (o->etp != 1)
        return error_set(err, ERR_CONFIG,
                         "mesh.etp %lld with mesh.tp %lld: experts are whole, or cut over all ranks of tp: "
                         "1 or %lld would do",
                         (long long)o->etp, (long long)o->tp, (long long)o->tp);
    if (o->ep % o->tp == 0) return OK;
    return error_set(err, ERR_CONFIG,
                     "mesh.ep %lld with mesh.etp 1 is laid over all ranks of mesh.tp %lld and is no multiple "
                     "of it: set mesh.ep to %lld, or leave out mesh.etp",
                     (long long)o->ep, (long long)o->tp, (long long)((o->ep / o->tp + 1) * o->tp));
}

/* Ranks of tp in a group of ep. */
static int64_t folded_ranks(const MeshOptions *o) { return mesh_folds(o) ? o->tp : 1; }

/* One rank of a group of ep sums over its ranks, so these must be a block of the canonical tree over all
 * (base/tree.h): they are neighbours, along cp first. */
static bool lies_over(int64_t ep, int64_t shards, int64_t contexts) {
    if ((ep & (ep - 1)) != 0) return false;
    return ep <= contexts ? contexts % ep == 0 : ep % contexts == 0 && shards % (ep / contexts) == 0;
}

/* Checks ep against the ranks along dp_shard, which is known by now, and cp. */
static ErrorCode check_experts(const MeshOptions *o, Error *err) {
    char that[256], contexts[40] = "", tensors[64] = "";
    size_t at = 0;
    int64_t last = 1, tp = folded_ranks(o);
    if (lies_over(o->ep / tp, o->dp_shard, o->cp)) return OK;
    if (o->cp > 1) snprintf(contexts, sizeof contexts, " x mesh.cp %lld", (long long)o->cp);
    if (tp > 1) snprintf(tensors, sizeof tensors, "mesh.tp %lld ranks times ", (long long)tp);
    while (lies_over(2 * last, o->dp_shard, o->cp)) last *= 2;
    for (int64_t n = 1; n <= last; n *= 2)
        at += (size_t)snprintf(that + at, sizeof that - at, "%s%lld",
                               n == 1      ? ""
                               : n == last ? " or "
                                           : ", ",
                               (long long)(n * tp));
    return error_set(err, ERR_CONFIG,
                     "mesh.ep %lld is laid over mesh.dp_shard %lld%s, in groups of %sa power of two that "
                     "divides %s: %s would do",
                     (long long)o->ep, (long long)o->dp_shard, contexts, tensors,
                     o->cp > 1 ? "mesh.cp, or is a multiple of it" : "it", that);
}

/* Checks each degree by itself first: products of invalid degrees would mean nothing. */
ErrorCode mesh_build(Mesh *mesh, const MeshOptions *options, int world, Error *err) {
    CHECK(world >= 1);
    MeshOptions o = *options;
    TRY(check_each(&o, err));
    if (o.dp_shard == -1)
        TRY(ranks_left(options, world, &o.dp_shard, err));
    else
        TRY(check_product(&o, world, err));
    TRY(check_expert_tensors(&o, err));
    TRY(check_experts(&o, err));
    int64_t sources = o.ep / folded_ranks(&o);
    int contexts = (int)(sources < o.cp ? sources : o.cp), shards = (int)sources / contexts;
    *mesh = (Mesh){{(int)o.pp, (int)o.dp_replicate, (int)o.dp_shard / shards, shards, (int)o.cp / contexts,
                    contexts, (int)o.tp, 1},
                   world,
                   mesh_folds(&o),
                   o.machine < world ? (int)o.machine : 0};
    return OK;
}

Mesh mesh_of_replicas(const Mesh *mesh, int replicas) {
    Mesh m = *mesh;
    m.world = m.world / m.degree[AXIS_DP_REPLICATE] * replicas;
    m.degree[AXIS_DP_REPLICATE] = replicas;
    return m;
}

static int64_t *degree_of(MeshOptions *m, Axis axis) {
    return axis == AXIS_TP ? &m->tp : axis == AXIS_CP ? &m->cp : axis == AXIS_PP ? &m->pp : &m->ep;
}

/* Tries the degrees of the axes from number `i` on, largest first; dp_shard takes the ranks that are left.
 * Sums over tp and cp have the same bits only for divisors of the degree that the run began with. */
static bool try_axes(const Mesh *now, int left, int i, MeshFits *fits, const void *context, MeshOptions *m) {
    static const Axis axes[] = {AXIS_TP, AXIS_CP, AXIS_PP, AXIS_EP};
    if (i == sizeof axes / sizeof *axes) {
        m->dp_shard = left;
        return fits(context, m);
    }
    int most = mesh_degree(now, axes[i]);
    for (int d = most; d > 0; d--) {
        int ranks = axes[i] == AXIS_EP ? 1 : d; /* ep is laid over other axes */
        if (left % ranks != 0 || (axes[i] != AXIS_PP && most % d != 0)) continue;
        *degree_of(m, axes[i]) = d;
        if (try_axes(now, left / ranks, i + 1, fits, context, m)) return true;
    }
    return false;
}

bool mesh_shrink(const Mesh *now, int ranks, MeshFits *fits, const void *context, MeshOptions *out) {
    *out = (MeshOptions){.dp_replicate = 1, .etp = now->folded, .machine = now->machine};
    for (int world = ranks; world > 0; world--)
        if (try_axes(now, world, 0, fits, context, out)) return true;
    return false;
}

MeshOptions mesh_degrees(const Mesh *mesh) {
    return (MeshOptions){.pp = mesh_degree(mesh, AXIS_PP),
                         .dp_replicate = mesh_degree(mesh, AXIS_DP_REPLICATE),
                         .dp_shard = mesh_degree(mesh, AXIS_DP_SHARD),
                         .cp = mesh_degree(mesh, AXIS_CP),
                         .tp = mesh_degree(mesh, AXIS_TP),
                         .ep = mesh_degree(mesh, AXIS_EP),
                         .etp = mesh->folded,
                         .machine = mesh->machine};
}

static int partner_distance(const Mesh *mesh) { return mesh->world > 1 ? mesh->world / 2 : 0; }

int mesh_partner(const Mesh *mesh, int rank) { return (rank + partner_distance(mesh)) % mesh->world; }

int mesh_partner_of(const Mesh *mesh, int rank) {
    return (rank + mesh->world - partner_distance(mesh)) % mesh->world;
}

void mesh_lay_copies(Mesh *mesh, int copies) {
    int tp = mesh_size(mesh, MESH_TENSOR);
    CHECK(copies > 0 && tp % copies == 0);
    mesh->degree[AXIS_TP] = tp / copies, mesh->degree[AXIS_KV] = copies;
}

AxisSet mesh_axes(const Mesh *mesh, AxisSet set) {
    AxisSet folded = set & MESH_FOLDED && mesh->folded ? MESH_TENSOR : 0;
    return (set & ~(AxisSet)MESH_FOLDED) | folded;
}

int mesh_degree(const Mesh *mesh, Axis axis) {
    if (axis == AXIS_EP) return mesh_size(mesh, MESH_EXPERTS);
    int part = 1;
    if (axis == AXIS_DP_SHARD) part = mesh->degree[AXIS_EP];
    if (axis == AXIS_CP) part = mesh->degree[AXIS_EP_CP];
    if (axis == AXIS_TP) part = mesh->degree[AXIS_KV];
    return mesh->degree[axis] * part;
}

/* ---- ranks and coordinates ---- */

/* The inverse of mesh_coordinates. */
int mesh_rank(const Mesh *mesh, const int at[AXES]) {
    int rank = 0;
    for (int axis = 0; axis < AXES; axis++) {
        CHECK(at[axis] >= 0 && at[axis] < mesh->degree[axis]);
        rank = rank * mesh->degree[axis] + at[axis];
    }
    return rank;
}

void mesh_coordinates(const Mesh *mesh, int rank, int at[AXES]) {
    CHECK(rank >= 0 && rank < mesh->world);
    for (int axis = AXES - 1; axis >= 0; axis--) {
        at[axis] = rank % mesh->degree[axis];
        rank /= mesh->degree[axis];
    }
}

/* ---- groups ---- */

/* 1 for a set without axes: each rank is a group of its own. */
int mesh_size(const Mesh *mesh, AxisSet set) {
    int size = 1;
    set = mesh_axes(mesh, set);
    for (int axis = 0; axis < AXES; axis++)
        if (set >> axis & 1) size *= mesh->degree[axis];
    return size;
}

/* Index among the ranks of the group, which are in the order of ranks: outer axes first. */
int mesh_group_rank(const Mesh *mesh, AxisSet set, int rank) {
    int at[AXES], group_rank = 0;
    set = mesh_axes(mesh, set);
    mesh_coordinates(mesh, rank, at);
    for (int axis = 0; axis < AXES; axis++)
        if (set >> axis & 1) group_rank = group_rank * mesh->degree[axis] + at[axis];
    return group_rank;
}

/* The rank with index `group_rank` in the group of `rank`: replaces its coordinates on the axes of the
 * set. */
int mesh_member(const Mesh *mesh, AxisSet set, int rank, int group_rank) {
    int at[AXES];
    CHECK(group_rank >= 0 && group_rank < mesh_size(mesh, set));
    set = mesh_axes(mesh, set);
    mesh_coordinates(mesh, rank, at);
    for (int axis = AXES - 1; axis >= 0; axis--)
        if (set >> axis & 1) {
            at[axis] = group_rank % mesh->degree[axis];
            group_rank /= mesh->degree[axis];
        }
    return mesh_rank(mesh, at);
}

int mesh_inside(const Mesh *mesh, AxisSet set, int rank) {
    int size = mesh_size(mesh, set), inside = 0;
    if (mesh->machine == 0) return 1;
    const int first = mesh_member(mesh, set, rank, 0) / mesh->machine;
    while (inside < size && mesh_member(mesh, set, rank, inside) / mesh->machine == first) inside++;
    if (inside == size || size % inside != 0) return 1;
    for (int i = 0, last = -1; i < size; i += inside) {
        int machine = mesh_member(mesh, set, rank, i) / mesh->machine;
        if (machine == last || mesh_member(mesh, set, rank, i + inside - 1) / mesh->machine != machine)
            return 1;
        last = machine;
    }
    return inside;
}

int mesh_dp_degree(const Mesh *mesh) { return mesh_size(mesh, MESH_DATA); }
int mesh_dp_rank(const Mesh *mesh, int rank) { return mesh_group_rank(mesh, MESH_DATA, rank); }
