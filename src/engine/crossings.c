/* What crosses between two parts of a unit, over the ranks of tp: GATHER_X, SUM_X, RECORDS; over those of cp:
 * SWAP_X (model/unit.h says which tensors these are, and where they lie).
 *
 *     GATHER_X   own tokens --copy--> own rows of all ==all-gather==> all
 *     SUM_X      terms of all tokens ==reduce-scatter==> own rows, fp32 --round, bias--> result
 *     RECORDS    own leaves of all ==all-gather==> all
 *     SWAP_X     own tokens --pack--> by rank ==all-to-all==> own heads      and back, unpacked at the end
 *
 * Sums are taken in the canonical tree over the ranks, of which each has added up its own leaves: what comes
 * out has the bits of one rank that has all leaves, and is rounded once, here. The part behind a crossing
 * needs it at once, so this rank waits; what else is under way goes on meanwhile. */
#include "engine/execution.h"

/* Equal parts of `each` elements, in the order of ranks; the list belongs to the operation until it has
 * ended, which is waited for. */
static const CommPart *parts_of(Engine *e, int64_t each) {
    CommPart *parts = e->traffic.tokens;
    for (int r = 0; r < e->plan->partition.tensors; r++) parts[r] = (CommPart){r * each, each};
    return parts;
}

static void gather(Engine *e, void *all, int64_t each, size_t width) {
    Error err = {.message = ""};
    CommHandle handle;
    execution_must(e, comm_all_gather(e->comm, MESH_TENSOR, parts_of(e, each), width, all, &handle, &err),
                   &err);
    execution_wait(e, &handle);
}

static void gather_tokens(Engine *e, const Crossing *c) {
    size_t bytes = boundary_bytes(&e->model);
    char *mine = (char *)c->all + (size_t)e->plan->partition.tensor * bytes;
    OP(e->device, OP_COPY, copy, mine, c->own, bytes);
    gather(e, c->all, (int64_t)bytes, 1);
}

static void sum_terms(Engine *e, const Crossing *c) {
    Error err = {.message = ""};
    CommHandle handle;
    int64_t own = model_own_tokens(&e->model) * e->model.config.hidden_size;
    float *terms = c->all, *mine = terms + e->plan->partition.tensor * own;
    execution_must(e,
                   comm_reduce_scatter(e->comm, MESH_TENSOR, COMM_F32, parts_of(e, own), terms, mine,
                                       e->work.tensor, &handle, &err),
                   &err);
    execution_wait(e, &handle);
}

/* Own tokens lie where their place is, so what has come is in the order of tokens. */
static void swap(Engine *e, const UnitPass *unit, const Crossing *c, CrossingAt at) {
    Error err = {.message = ""};
    CommHandle handle;
    unit_pack(unit, at);
    execution_must(e,
                   comm_all_to_all(e->comm, MESH_CONTEXT, unit_swap_bytes(&e->model, unit->unit, at.part),
                                   c->own, c->all, &handle, &err),
                   &err);
    execution_wait(e, &handle);
    unit_unpack(unit, at);
}

static CrossingAt place_of(Action a) {
    PassKind pass = a.pass == ACT_FWD ? PASS_FORWARD : a.pass == ACT_AGAIN ? PASS_AGAIN : PASS_BACKWARD;
    return (CrossingAt){crossing_of(a.kind), pass, action_half(a.pass), a.parts.first};
}

/* A stage whose last unit is the embedding gathers the gradient that another rank sends: it must be there. */
void crossing_run(Execution *x, Action a) {
    Engine *e = x->engine;
    CrossingAt at = place_of(a);
    execution_enter(x, a.microbatch);
    if (at.pass == PASS_BACKWARD) boundary_arrived(x, ACT_RECV_B, a.unit, a.microbatch);
    UnitPass unit = execution_unit(x, a);
    Crossing c = unit_crossing(&unit, at);
    switch (at.kind) {
    case CROSS_GATHER: gather_tokens(e, &c); break;
    case CROSS_RECORDS:
        gather(e, c.all, model_own_leaves(&e->model) * model_chunk_rows(&e->model, (a.slice - 1) / 2),
               sizeof(LossRecord));
        break;
    case CROSS_SUM:
        sum_terms(e, &c);
        parameters_ready(x, a.unit); /* a bias */
        unit_summed(&unit, at);
        break;
    case CROSS_SWAP: swap(e, &unit, &c, at); break;
    case CROSSINGS: break;
    }
}
