/* What crosses between two parts of a unit, over the ranks of tp: GATHER_X, SUM_X, ROWS_X, RECORDS,
 * SUM_WEIGHTS, SUM_LATENTS; over those of them that hold the same heads of keys: SUM_COPIES; over those of
 * cp: SWAP_X, GATHER_KV, SUM_KV, COUNT_X (model/unit.h says which tensors these are, and where they lie).
 * CROSSED waits for it, and ends it.
 *
 *     GATHER_X   own tokens --copy--> own rows of all ==all-gather==> all
 *     SUM_X      terms of all tokens ==reduce-scatter==> own rows, fp32      CROSSED --round, bias--> result
 *                and of adapters, if any, as another one                             adapters --> result
 *     RECORDS    own leaves of all ==all-gather==> all
 *     SWAP_X     own tokens --pack--> by rank ==all-to-all==> own heads      and back, unpacked by CROSSED
 *                and of sinks, on the way back, sums of own heads the other way, as another one
 *     GATHER_KV  own keys --pack--> own rows of all ==all-gather==> all
 *     SUM_KV     terms of all ==reduce-scatter==> own rows, fp32
 *     SUM_COPIES terms of own rows ==all-reduce==> the same, fp32
 *     ROWS_X     own leaves of all ==all-gather==> all
 *     COUNT_X    own tokens' choices of each sequence ==all-reduce==> all tokens'
 *     SUM_WEIGHTS terms of gradients of all tokens' weights ==all-reduce==> the same, fp32
 *     SUM_LATENTS terms of gradients of all tokens' latents ==all-reduce==> the same, fp32
 *
 * Sums are taken in the canonical tree over the ranks, of which each has added up its own leaves: what comes
 * out has the bits of one rank that has all leaves, and is rounded once, here. What runs between start and
 * end touches none of these tensors: programs that would are refused (plan/program.c). */
#include "engine/execution.h"

/* Equal parts of `each` elements, in the order of ranks; the list belongs to the operations until they have
 * ended: those of the stream are always the same, and of records one chunk is under way at a time. */
static const CommPart *parts_of(Engine *e, int list, int64_t each) {
    CommPart *parts = e->traffic.crossing_parts[list];
    for (int r = 0; r < e->plan->partition.tensors; r++) parts[r] = (CommPart){r * each, each};
    return parts;
}

/* Elements of the stream that a rank has. */
static int64_t own_elements(const Engine *e) {
    return model_own_tokens(&e->model) * e->model.config.hidden_size;
}

static ErrorCode gather_tokens(Engine *e, const Crossing *c, CommHandle *handle, Error *err) {
    size_t bytes = boundary_bytes(&e->model);
    char *mine = (char *)c->all + (size_t)e->plan->partition.tensor * bytes;
    OP(e->device, OP_COPY, copy, mine, c->own, bytes);
    return comm_all_gather(e->comm, MESH_TENSOR, parts_of(e, PARTS_OF_STREAM, own_elements(e)),
                           dtype_bytes(e->model.compute), c->all, handle, err);
}

static ErrorCode gather_records(Engine *e, const Crossing *c, int chunk, CommHandle *handle, Error *err) {
    int64_t each = model_own_leaves(&e->model) * model_chunk_rows(&e->model, chunk);
    return comm_all_gather(e->comm, MESH_TENSOR, parts_of(e, PARTS_OF_RECORDS, each), sizeof(LossRecord),
                           c->all, handle, err);
}

static ErrorCode sum_terms(Engine *e, const Crossing *c, CommHandle *handle, Error *err) {
    int64_t own = own_elements(e);
    float *terms = c->all, *mine = terms + e->plan->partition.tensor * own;
    return comm_reduce_scatter(e->comm, MESH_TENSOR, COMM_F32, parts_of(e, PARTS_OF_STREAM, own), terms, mine,
                               e->work.crossing, handle, err);
}

/* Beside these, of adapters; `width` of a token. */
static ErrorCode sum_inner(Engine *e, const Crossing *c, int64_t width, Error *err) {
    if (width == 0) return OK;
    int64_t own = model_own_tokens(&e->model) * width;
    float *mine = c->inner + e->plan->partition.tensor * own;
    return comm_reduce_scatter(e->comm, MESH_TENSOR, COMM_F32, parts_of(e, PARTS_OF_INNER, own), c->inner,
                               mine, e->work.crossing + stream_workspace(&e->model), &e->traffic.inner, err);
}

static ErrorCode gather_rows(Engine *e, const Crossing *c, CommHandle *handle, Error *err) {
    return comm_all_gather(e->comm, MESH_TENSOR, parts_of(e, PARTS_OF_ROWS, model_row_sums(&e->model)),
                           ROW_SUMS_BYTES, c->all, handle, err);
}

/* Parts of what has `each` elements of a token, for the i-th of the stretches that ranks have. */
static const CommPart *stretch(Engine *e, int i, int64_t each) {
    const Model *m = &e->model;
    CommPart *parts = e->traffic.stretches[i];
    for (int r = 0; r < m->contexts.ranks; r++)
        parts[r] = (CommPart){model_stretch_first(m, r, i) * each, model_stretch(m) * each};
    return parts;
}

static ErrorCode gather_keys(Engine *e, const Crossing *c, Error *err) {
    for (int i = 0; i < model_stretches(&e->model); i++)
        TRY(comm_all_gather(e->comm, MESH_CONTEXT, stretch(e, i, 1), unit_key_bytes(&e->model), c->all,
                            &e->traffic.keys[i], err));
    return OK;
}

static ErrorCode sum_keys(Engine *e, const Crossing *c, Error *err) {
    int64_t each = model_dim(&e->model.config, DIM_KEY_VALUE);
    for (int i = 0; i < model_stretches(&e->model); i++) {
        const CommPart *parts = stretch(e, i, each);
        float *own = (float *)c->all + parts[e->model.contexts.place].first;
        TRY(comm_reduce_scatter(e->comm, MESH_CONTEXT, COMM_F32, parts, c->all, own, e->work.crossing,
                                &e->traffic.keys[i], err));
    }
    return OK;
}

static ErrorCode sum_copies(Engine *e, const Crossing *c, Error *err) {
    const Model *m = &e->model;
    int64_t each = model_dim(&m->config, DIM_KEY_VALUE);
    for (int i = 0; i < model_stretches(m); i++)
        TRY(comm_all_reduce(e->comm, MESH_KEY_COPIES, COMM_F32,
                            (float *)c->all + model_stretch_first(m, m->contexts.place, i) * each,
                            model_stretch(m) * each, e->work.crossing, &e->traffic.keys[i], err));
    return OK;
}

static CrossingAt place_of(Action a) {
    PassKind pass = a.pass == ACT_FWD ? PASS_FORWARD : a.pass == ACT_AGAIN ? PASS_AGAIN : PASS_BACKWARD;
    return (CrossingAt){crossing_of(a), pass, pass_half(a.pass), a.parts.first};
}

/* Of the passes of one unit, which end what they start. */
static CommHandle *handle_of(Engine *e, CrossingAt at) { return &e->traffic.crossings[at.kind][at.part]; }

/* A stage whose last unit is the embedding gathers the gradient that another rank sends: it must be there.
 * Own tokens of a swap lie where their place is, so what has come is in the order of tokens. */
void crossing_start(Execution *x, Action a) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    ErrorCode code = OK;
    CrossingAt at = place_of(a);
    execution_enter(x, a.microbatch);
    if (at.pass == PASS_BACKWARD) boundary_arrived(x, ACT_RECV_B, a.unit, a.microbatch);
    UnitPass unit = execution_unit(x, a);
    Crossing c = unit_crossing(&unit, at);
    CommHandle *handle = handle_of(e, at);
    switch (at.kind) {
    case CROSS_GATHER: code = gather_tokens(e, &c, handle, &err); break;
    case CROSS_RECORDS:
        code = gather_records(e, &c, program_chunk(x->program, &e->model, a), handle, &err);
        break;
    case CROSS_SUM:
        code = sum_terms(e, &c, handle, &err);
        if (code == OK) code = sum_inner(e, &c, unit_inner_width(&e->model, a.unit, at.part), &err);
        break;
    case CROSS_SWAP:
        unit_pack(&unit, at);
        code = comm_all_to_all(e->comm, MESH_CONTEXT, unit_swap_bytes(&e->model, a.unit, at.part), c.own,
                               c.all, handle, &err);
        if (code == OK && c.sums)
            code =
                comm_all_to_all(e->comm, MESH_CONTEXT, unit_swap_sum_bytes(&e->model, a.unit, at.part, true),
                                c.sums, c.own_sums, &e->traffic.inner, &err);
        break;
    case CROSS_KEYS:
        unit_pack(&unit, at);
        code = gather_keys(e, &c, &err);
        break;
    case CROSS_KEY_SUM: code = sum_keys(e, &c, &err); break;
    case CROSS_COPY_SUM: code = sum_copies(e, &c, &err); break;
    case CROSS_ROWS: code = gather_rows(e, &c, handle, &err); break;
    case CROSS_COUNTS:
        code = comm_all_reduce(e->comm, MESH_CONTEXT, COMM_I64, c.all, model_counts(&e->model),
                               e->work.crossing, handle, &err);
        break;
    case CROSS_WEIGHTS:
        code = comm_all_reduce(e->comm, MESH_TENSOR, COMM_F32, c.all, model_choices(&e->model),
                               e->work.crossing, handle, &err);
        break;
    case CROSS_LATENTS:
        code = comm_all_reduce(e->comm, MESH_TENSOR, COMM_F32, c.all, model_latents(&e->model),
                               e->work.crossing, handle, &err);
        break;
    case CROSS_VISIT:
    case CROSSINGS: break;
    }
    execution_must(e, code, &err);
}

void crossing_end(Execution *x, Action a) {
    CrossingAt at = place_of(a);
    execution_enter(x, a.microbatch);
    execution_wait(x->engine, handle_of(x->engine, at));
    execution_wait(x->engine, &x->engine->traffic.inner);
    for (int i = 0; i < 2; i++) execution_wait(x->engine, &x->engine->traffic.keys[i]);
    UnitPass unit = execution_unit(x, a);
    if (at.kind == CROSS_SUM) {
        parameters_ready(x, a.unit); /* a bias */
        unit_summed(&unit, at);
        probe_output(x, a, unit.out);
    }
    if (at.kind == CROSS_SWAP) unit_unpack(&unit, at);
}

/* Behind an evaluation, and no action of it: most of them ask for sums alone. Nothing else of cp is under
 * way. */
void crossing_gather_scores(Engine *e, LossRecord *all) {
    const Model *m = &e->model;
    CommPart *parts = e->traffic.stretches[0];
    CommHandle handle = 0;
    Error err = {.message = ""};
    if (m->contexts.ranks == 1) return;
    for (int r = 0; r < m->contexts.ranks; r++) parts[r] = (CommPart){r * model_records(m), model_records(m)};
    execution_must(e, comm_all_gather(e->comm, MESH_CONTEXT, parts, sizeof *all, all, &handle, &err), &err);
    execution_wait(e, &handle);
}
