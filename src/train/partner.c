/* Partner copies (recovery.partner_copy): which rank holds what, and how the shards of another mesh are made
 * from it. How copies are kept up to date is in engine/partner.c.
 *
 *     partner_fill        at the start of a run: originals --> copies
 *     partner_find_mesh   after a death: is there a copy of each dead rank's state, and a mesh?
 *     partner_restore     originals of the living, copies of the dead --> originals and copies of a new mesh
 *
 * A rank of the mesh is known by its number there (Recovery.numbers); what it is called in messages is its
 * number when the run began. State and copies are of the same step on all living ranks (engine/partner.c:
 * P1), so any of them may be the source of a shard. */
#include <stdlib.h>

#include "base/log.h"
#include "comm/repair.h"
#include "plan/fit.h"
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

ErrorCode partner_fill(Trainer *t, Error *err) {
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

/* ---- after a death ---- */

/* Index among those that live of a rank of the mesh; -1: it died. */
static int find_rank(const Trainer *t, int number) {
    for (int p = 0; p < comm_size(t->comm); p++)
        if (t->recovery.numbers[p] == number) return p;
    return -1;
}

/* Who holds the state of a rank of the mesh: the rank itself, or its partner a copy; -1: nobody. */
static int find_holder(const Trainer *t, int number, bool *copy) {
    int own = find_rank(t, number);
    *copy = own < 0;
    return own >= 0 ? own : find_rank(t, mesh_partner(&t->recovery.mesh, number));
}

static int world_of(const MeshOptions *m) { return (int)(m->pp * m->dp_shard * m->cp * m->tp); }

static ErrorCode build_layout(const Config *c, const MeshOptions *m, Layout *l, Error *err) {
    Config as = *c;
    as.mesh = *m;
    as.pipeline.microbatches = 0;
    return layout_build(l, &as, world_of(m), err);
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

const char *partner_find_mesh(const Trainer *t, MeshOptions *next) {
    bool copy;
    for (int i = 0; i < t->recovery.mesh.world; i++)
        if (find_holder(t, i, &copy) < 0) return "its partner, which held the copy of its state, died too";
    if (mesh_shrink(&t->recovery.mesh, comm_size(t->comm), fits, t->c, next)) return NULL;
    return "a step or the model cannot be divided among those there are, or pipeline.memory_gib is too small";
}

/* The memory that this rank's state and copy will have. */
static ErrorCode make_state(Trainer *t, const Layout *l, EngineState **out, Error *err) {
    RankPlan plan;
    RankSpec spec = rank_spec(t->c, l, &t->device);
    ErrorCode code = rank_plan(&plan, &spec, l, comm_rank(t->comm), &t->device, err);
    if (code == OK)
        code = engine_make_state(out, &plan, &t->device, engine_state_updates(t->recovery.state), err);
    rank_plan_free(&plan);
    return code;
}

static ErrorCode place_all(Trainer *t, Redistribution *r, const Layout *l, const EngineState *to,
                           Error *err) {
    const Recovery *before = &t->recovery;
    int world = l->mesh.world;
    for (int i = 0; i < before->mesh.world; i++) {
        bool copy;
        int at = find_holder(t, i, &copy);
        TRY(place(t, &before->layout, i, at, copy, redistribute_source(r, i), err));
        point(t, redistribute_source(r, i), before->state);
    }
    for (int i = 0; i < (world > 1 ? 2 * world : 1); i++) {
        bool copy = i >= world;
        int number = i % world, at = copy ? mesh_partner(&l->mesh, number) : number;
        TRY(place(t, l, number, at, copy, redistribute_target(r, i), err));
        point(t, redistribute_target(r, i), to);
    }
    return OK;
}

/* From here on the ranks are those of the new mesh; those behind its last have no place in it. */
static void take_state(Recovery *r, Layout *l, EngineState *state, int ranks) {
    int *names = mem_alloc_array((size_t)ranks, sizeof *names);
    for (int p = 0; p < ranks; p++) names[p] = r->names[r->numbers[p]];
    for (int p = 0; p < ranks; p++) r->numbers[p] = p;
    free(r->names);
    r->names = names;
    engine_free_state(r->state);
    r->state = state;
    r->mesh = l->mesh;
    layout_free(&r->layout);
    r->layout = *l;
    *l = (Layout){.sequences = 0};
}

/* Sources are kept until all living ranks have all of their targets. */
static ErrorCode move_state(Trainer *t, const Layout *l, EngineState **state, Error *err) {
    Recovery *r = &t->recovery;
    int world = l->mesh.world, targets = world > 1 ? 2 * world : 1;
    bool has_place = comm_rank(t->comm) < world;
    TOGETHER(t, has_place ? make_state(t, l, state, err) : OK);
    r->moving = redistribute_open(t->comm, &t->device, r->mesh.world, targets);
    TOGETHER(t, place_all(t, r->moving, l, *state, err));
    TRY(redistribute_run(r->moving, err));
    TRY(comm_commit(t->comm, err));
    redistribute_close(r->moving);
    r->moving = NULL;
    return OK;
}

ErrorCode partner_restore(Trainer *t, const MeshOptions *next, Error *err) {
    Layout l;
    EngineState *state = NULL;
    ErrorCode code = build_layout(t->c, next, &l, err);
    if (code == OK) code = move_state(t, &l, &state, err);
    if (code == OK)
        take_state(&t->recovery, &l, state, comm_size(t->comm));
    else
        engine_free_state(state);
    layout_free(&l);
    return code;
}
