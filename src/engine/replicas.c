/* Each rank hashes what it holds; rank 0 compares the hashes of replicas and reports the result to all.
 *
 *     each rank: XXH3 of weights and states, parameter by parameter   (print_all)
 *         | gather
 *     rank 0: for each parameter, all ranks of a replica group (axes_replica_group) must have the same hash
 *     (replicas_judge)
 *         | broadcast
 *     all ranks: the same verdict
 *
 * 8 bytes per array and rank travel, so a check costs one pass over memory. With more than two replicas the
 * majority decides which are wrong; with two nobody can tell, and both are named. The verdict is broadcast as
 * an error value: ranks return it together, so the run can stop in an orderly way. */
#include "engine/replicas.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "engine/execution.h"

/* ---- what this rank holds ---- */

static void print_all(Replicas *r) {
    const Engine *e = r->engine;
    const ParamGroups *g = &e->plan->groups;
    for (int i = 0; i < e->model.table.count; i++) {
        ParamSegment segment = partition_segment(&e->plan->partition, &e->model.table.params[i]);
        r->mine[i] = (ParamPrint){.held = segment.count > 0};
        if (segment.count == 0) continue;
        size_t count = (size_t)segment.count;
        r->mine[i].hash[0] = tensor_hash(&r->hash, engine_master(e, segment), count * sizeof(float), 0);
        for (int k = 0; k < param_states(g, i); k++)
            r->mine[i].hash[1 + k] =
                tensor_hash(&r->hash, engine_optimizer_state(e, i, k), count * param_state_width(g, i, k), 0);
    }
}

/* ---- comparison ---- */

/* The replicas of a shard of the current parameter, and the hash of each. */
typedef struct Copies {
    int count;
    int *rank;      /* [world] of each replica, ascending */
    uint64_t *hash; /* [world] */
} Copies;

typedef struct Comparison {
    const ReplicaScene *scene;
    const ParamPrint *all; /* [world, params] */
    int world;
    int *group; /* [world] replica group for the current parameter: ranks of one group must be equal */
    int *first; /* [world] first rank of each group that holds elements; -1: none */
    Copies copies;
} Comparison;

static const ParamPrint *print_of(const Comparison *c, int rank, int param) {
    return &c->all[(size_t)rank * (size_t)c->scene->table->count + (size_t)param];
}

/* Depends on the parameter, since replicas lie along different axes: a norm is the same on all ranks of tp, a
 * matrix on those of dp_replicate only. */
static void find_replica_groups(Comparison *c, const Param *p) {
    for (int rank = 0; rank < c->world; rank++)
        c->group[rank] = axes_replica_group(c->scene->model, p, c->scene->mesh, rank);
}

/* Returns a rank that differs from the first of its replica group; -1: all are equal. */
static int find_difference(Comparison *c, int param, int array) {
    for (int i = 0; i < c->world; i++) c->first[i] = -1;
    for (int rank = 0; rank < c->world; rank++) {
        const ParamPrint *p = print_of(c, rank, param);
        int *first = &c->first[c->group[rank]];
        if (!p->held) continue;
        if (*first < 0) *first = rank;
        if (p->hash[array] != print_of(c, *first, param)->hash[array]) return rank;
    }
    return -1;
}

/* All holders of the shard in which a difference was found, for the message. */
static void find_copies(Comparison *c, int param, int array, int group) {
    c->copies.count = 0;
    for (int rank = 0; rank < c->world; rank++) {
        const ParamPrint *p = print_of(c, rank, param);
        if (!p->held || c->group[rank] != group) continue;
        c->copies.rank[c->copies.count] = rank;
        c->copies.hash[c->copies.count++] = p->hash[array];
    }
}

/* The hash of more than half of the replicas; false if there is none. Comparing each with all is fast enough,
 * as there are few replicas. */
static bool majority(const Copies *c, uint64_t *hash) {
    for (int i = 0; i < c->count; i++) {
        int same = 0;
        for (int k = 0; k < c->count; k++) same += c->hash[k] == c->hash[i];
        *hash = c->hash[i];
        if (2 * same > c->count) return true;
    }
    return false;
}

/* "rank 3", "ranks 1, 5": the ranks that have `hash`, or, if not `has`, another. */
static void name_ranks(const Copies *c, uint64_t hash, bool has, Text *out) {
    enum { NAMED = 8 };
    int count = 0, named = 0;
    for (int i = 0; i < c->count; i++) count += (c->hash[i] == hash) == has;
    text_puts(out, count == 1 ? "rank " : "ranks ");
    for (int i = 0; i < c->count && named < NAMED; i++)
        if ((c->hash[i] == hash) == has) text_printf(out, named++ ? ", %d" : "%d", c->rank[i]);
    if (count > named) text_printf(out, " and %d others", count - named);
}

/* "on rank 5 not as on ranks 1, 3, 7", or, without a majority, all ranks. */
static void name_difference(const Copies *c, Text *out) {
    uint64_t right;
    if (majority(c, &right)) {
        text_puts(out, "on ");
        name_ranks(c, right, false, out);
        text_puts(out, " not as on ");
        name_ranks(c, right, true, out);
    } else {
        text_puts(out, "unlike on ");
        for (int i = 0; i < c->count; i++)
            text_printf(out, i + 1 == c->count ? " and %d" : i ? ", %d" : "ranks %d", c->rank[i]);
        text_puts(out, ", too few to tell which is wrong");
    }
}

static ErrorCode refuse(const Copies *c, const Param *p, const char *what, int64_t step, int64_t agreed,
                        Error *err) {
    Text where = {0}, before = {0};
    name_difference(c, &where);
    if (agreed >= 0)
        text_printf(&before, "all copies were equal after step %lld", (long long)agreed);
    else
        text_puts(&before, "they were not compared before");
    error_set(err, ERR_REPLICAS,
              "replicas differ after step %lld: %s of %s (unit %d) %s; %s. Memory or arithmetic failed on a "
              "machine: go on from a checkpoint no later than that",
              (long long)step, what, p->name, p->unit, where.data, before.data);
    text_free(&where);
    text_free(&before);
    return ERR_REPLICAS;
}

static const char *array_title(const ParamGroups *g, int param, int array) {
    return array == 0 ? "the weights" : param_state(g, param, array - 1)->title;
}

static ErrorCode compare(Comparison *c, int64_t step, int64_t agreed, Error *err) {
    const ReplicaScene *s = c->scene;
    for (int i = 0; i < s->table->count; i++) {
        find_replica_groups(c, &s->table->params[i]);
        for (int array = 0; array < PRINTED_ARRAYS; array++) {
            int rank = find_difference(c, i, array);
            if (rank < 0) continue;
            find_copies(c, i, array, c->group[rank]);
            return refuse(&c->copies, &s->table->params[i], array_title(s->groups, i, array), step, agreed,
                          err);
        }
    }
    return OK;
}

ErrorCode replicas_judge(const ParamPrint *all, const ReplicaScene *scene, int64_t step, int64_t agreed,
                         Error *err) {
    size_t world = (size_t)scene->mesh->world;
    Comparison c = {.scene = scene, .all = all, .world = scene->mesh->world};
    c.group = mem_alloc_array(world, sizeof *c.group);
    c.first = mem_alloc_array(world, sizeof *c.first);
    c.copies.rank = mem_alloc_array(world, sizeof *c.copies.rank);
    c.copies.hash = mem_alloc_array(world, sizeof *c.copies.hash);
    ErrorCode code = compare(&c, step, agreed, err);
    free(c.group);
    free(c.first);
    free(c.copies.rank);
    free(c.copies.hash);
    return code;
}

/* ---- the check ---- */

void replicas_open(Replicas *r, Engine *e, Comm *comm) {
    *r = (Replicas){
        .engine = e, .comm = comm, .exist = partition_has_copies(&e->plan->partition), .agreed = -1};
    if (!r->exist) return;
    tensor_hash_open(&r->hash, e->device);
    r->mine = mem_alloc_array((size_t)e->model.table.count, sizeof *r->mine);
}

void replicas_close(Replicas *r) {
    free(r->mine);
    tensor_hash_close(&r->hash);
    *r = (Replicas){0};
}

/* Called before each checkpoint, and as often as configured: a state saved with unequal replicas could not be
 * trusted afterwards. */
ErrorCode replicas_check(Replicas *r, int64_t step, Error *err) {
    Error verdict = {.code = OK};
    char *all = NULL;
    if (!r->exist) return OK;
    double start = clock_seconds();
    const Engine *e = r->engine;
    print_all(r);
    TRY(comm_concatenate(r->comm, r->mine, (size_t)e->model.table.count * sizeof *r->mine, &all, NULL, err));
    if (all)
        replicas_judge((const ParamPrint *)(const void *)all,
                       &(ReplicaScene){&e->plan->spec.model, &e->model.table, &e->plan->groups,
                                       &e->plan->partition.mesh},
                       step, r->agreed, &verdict);
    free(all);
    /* Ranks whose replicas are equal also get the verdict, because all ranks of a run end together. */
    TRY(comm_broadcast(r->comm, &verdict, sizeof verdict, 0, err));
    r->seconds = clock_seconds() - start;
    if (verdict.code == OK) {
        r->agreed = step;
        return OK;
    }
    error_set(err, verdict.code, "%s", verdict.message);
    if (err) err->reported = comm_rank(r->comm) != 0;
    return verdict.code;
}
