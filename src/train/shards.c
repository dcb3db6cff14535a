/* Which rank holds what, and how others get it: replicas, and partner copies (recovery.partner_copy; how
 * these are kept up to date is in engine/partner.c).
 *
 *     shards_fill_copies  at the start of a run: originals --> copies
 *     shards_find_mesh    after a death, with copies: is there one of each dead rank's state, and a mesh?
 *     shards_move         what the living hold --> what the ranks of the next mesh lack
 *
 * Recovery.numbers gives each rank's number in the mesh; messages name ranks by Recovery.names. States and
 * copies are of the same step on all living ranks (recovery.c: V1; engine/partner.c: P1), so any of them may
 * be the source of a shard. */
#include <stdlib.h>

#include "base/log.h"
#include "comm/repair.h"
#include "plan/fit.h"
#include "train/recovery.h"
#include "train/run.h"

/* Plans a rank of a layout, whose state, or a copy of it, is on rank `at` now. */
static ErrorCode place(Trainer *t, const Layout *l, int rank, int at, bool copy, ShardHolder *out,
                       Error *err) {
    RankSpec spec = rank_spec(t->c, l, &t->device);
    spec.partner_copy = false;
    out->at = at, out->copy = copy;
    return rank_plan(&out->plan, &spec, l, rank, &t->device, err);
}

/* Where this rank holds it, the memory is in s. */
static void point(const Trainer *t, ShardHolder *h, const EngineState *s) {
    if (h->at == comm_rank(t->comm)) h->state = h->copy ? engine_state_copied(s) : engine_state_own(s);
}

/* ---- the start ---- */

static ErrorCode fill(Trainer *t, Redistribution *r, const EngineState *s, Error *err) {
    const Mesh *mesh = &t->layout.mesh;
    for (int i = 0; i < mesh->world; i++) {
        ShardHolder *from = redistribute_source(r, i), *to = redistribute_target(r, i);
        TRY(place(t, &t->layout, i, i, false, from, err));
        TRY(place(t, &t->layout, i, mesh_partner(mesh, i), true, to, err));
        point(t, from, s);
        point(t, to, s);
    }
    return redistribute_run(r, err);
}

ErrorCode shards_fill_copies(Trainer *t, Error *err) {
    if (!t->rank.copied) return OK;
    int world = t->layout.mesh.world;
    t->recovery.moving = redistribute_open(t->comm, &t->device, world, world);
    EngineState *s = engine_get_state(t->engine);
    ErrorCode code = fill(t, t->recovery.moving, s, err);
    engine_free_state(s);
    TRY(code);
    redistribute_close(t->recovery.moving);
    t->recovery.moving = NULL;
    return OK;
}

/* ---- after a death: who holds what ---- */

/* Index among those that live of a rank of the mesh; -1: it died. */
static int find_rank(const Trainer *t, int number) {
    for (int p = 0; p < comm_size(t->comm); p++)
        if (t->recovery.numbers[p] == number) return p;
    return -1;
}

/* One of its replicas. */
static int find_replica(const Trainer *t, int number) {
    const Recovery *r = &t->recovery;
    int shard = recovery_shard_of(&r->mesh, number);
    for (int p = 0; p < comm_size(t->comm); p++)
        if (r->numbers[p] >= 0 && recovery_shard_of(&r->mesh, r->numbers[p]) == shard) return p;
    return -1;
}

/* Who holds the state of a rank of the mesh: the rank itself, a replica, or its partner a copy; -1:
 * nobody. */
static int find_holder(const Trainer *t, int number, bool *copy) {
    int own = find_rank(t, number);
    *copy = own < 0 && t->c->recovery.partner_copy;
    if (own >= 0) return own;
    return *copy ? find_rank(t, mesh_partner(&t->recovery.mesh, number)) : find_replica(t, number);
}

static ErrorCode build_layout(const Config *c, const MeshOptions *m, Layout *l, Error *err) {
    Config as = *c;
    as.mesh = *m;
    as.pipeline.microbatches = 0;
    return layout_build(l, &as, (int)(m->pp * m->dp_replicate * m->dp_shard * m->cp * m->tp), err);
}

/* Whether a step's microbatches and the model can be divided so, within the limit of memory. */
static bool fits(const void *config, const MeshOptions *m) {
    const Config *c = config;
    Error ignored = {.message = ""};
    Layout l;
    double bytes = 0, limit = fit_limit(c);
    bool fit = build_layout(c, m, &l, &ignored) == OK && fit_measure(c, &l, &bytes, &ignored) == OK &&
               (limit == 0 || bytes <= limit);
    layout_free(&l);
    return fit;
}

const char *shards_find_mesh(const Trainer *t, MeshOptions *next) {
    const Recovery *r = &t->recovery;
    bool copy;
    for (int i = 0; i < r->mesh.world; i++)
        if (find_holder(t, i, &copy) < 0) return "its partner, which held the copy of its state, died too";
    *next = mesh_degrees(&r->mesh);
    if (comm_size(t->comm) >= r->mesh.world) return NULL;
    if (!recovery_may_change_mesh(t)) return RECOVERY_NO_SPARE;
    if (mesh_shrink(&r->mesh, comm_size(t->comm), fits, t->c, next)) return NULL;
    return "a step or the model cannot be divided among those there are, or pipeline.memory_gib is too small";
}

/* ---- after a death: what the others lack ---- */

/* From the mesh of now to the next one. */
typedef struct Move {
    const Layout *from, *to;
    const int *seats;   /* [ranks of `to`] who is to be that rank */
    EngineState *state; /* what this rank had not, and gets; or NULL */
} Move;

/* With copies all shards of all ranks are made anew. */
static bool lacks(const Trainer *t, const Move *m, int number) {
    return t->c->recovery.partner_copy || t->recovery.numbers[m->seats[number]] == RECOVERY_SPARE;
}

static int own_seat(const Trainer *t, const Move *m) {
    for (int i = 0; i < m->to->mesh.world; i++)
        if (m->seats[i] == comm_rank(t->comm)) return i;
    return -1;
}

/* The memory that this rank's state and copy will have. */
static ErrorCode make_state(Trainer *t, Move *m, Error *err) {
    RankPlan plan;
    RankSpec spec = rank_spec(t->c, m->to, &t->device);
    ErrorCode code = rank_plan(&plan, &spec, m->to, own_seat(t, m), &t->device, err);
    if (code == OK) code = engine_make_state(&m->state, &plan, &t->device, t->recovery.updates, err);
    rank_plan_free(&plan);
    return code;
}

/* One replica of each shard. */
static bool is_source(const Mesh *mesh, int number) {
    return mesh_group_rank(mesh, MESH_REPLICAS, number) == 0;
}

static ErrorCode place_sources(Trainer *t, const Move *m, Error *err) {
    const Mesh *mesh = &m->from->mesh;
    for (int i = 0, source = 0; i < mesh->world; i++) {
        bool copy;
        if (!is_source(mesh, i)) continue;
        int at = find_holder(t, i, &copy);
        ShardHolder *h = redistribute_source(t->recovery.moving, source++);
        TRY(place(t, m->from, i, at, copy, h, err));
        point(t, h, t->recovery.state);
    }
    return OK;
}

static ErrorCode place_targets(Trainer *t, const Move *m, int copies, Error *err) {
    const Mesh *mesh = &m->to->mesh;
    for (int i = 0, target = 0; i < mesh->world + copies; i++) {
        int number = i % mesh->world;
        bool copy = i >= mesh->world;
        if (!lacks(t, m, number)) continue;
        ShardHolder *h = redistribute_target(t->recovery.moving, target++);
        TRY(place(t, m->to, number, m->seats[copy ? mesh_partner(mesh, number) : number], copy, h, err));
        point(t, h, m->state);
    }
    return OK;
}

static int count_lacking(const Trainer *t, const Move *m) {
    int count = 0;
    for (int i = 0; i < m->to->mesh.world; i++) count += lacks(t, m, i);
    return count;
}

/* Sources are kept until all living ranks have all of their targets. */
static ErrorCode run_move(Trainer *t, Move *m, Error *err) {
    Recovery *r = &t->recovery;
    int own = own_seat(t, m), world = m->to->mesh.world;
    int copies = t->c->recovery.partner_copy && world > 1 ? world : 0;
    TOGETHER(t, own >= 0 && lacks(t, m, own) ? make_state(t, m, err) : OK);
    r->moving =
        redistribute_open(t->comm, &t->device, m->from->mesh.world / mesh_size(&m->from->mesh, MESH_REPLICAS),
                          count_lacking(t, m) + copies);
    TOGETHER(t, place_sources(t, m, err));
    TOGETHER(t, place_targets(t, m, copies, err));
    TRY(redistribute_run(r->moving, err));
    TRY(comm_commit(t->comm, err));
    redistribute_close(r->moving);
    r->moving = NULL;
    return OK;
}

ErrorCode shards_move(Trainer *t, const MeshOptions *next, const int *seats, Error *err) {
    Recovery *r = &t->recovery;
    const MeshOptions now = mesh_degrees(&r->mesh);
    Layout from = {.sequences = 0}, to = from;
    Move m = {&from, &to, seats, NULL};
    ErrorCode code = build_layout(t->c, &now, &from, err);
    if (code == OK) code = build_layout(t->c, next, &to, err);
    if (code == OK) code = run_move(t, &m, err);
    if (code == OK && m.state) {
        engine_free_state(r->state);
        r->state = m.state;
    } else {
        engine_free_state(m.state);
    }
    layout_free(&from);
    layout_free(&to);
    return code;
}
