/* Collectives between ops of a unit, as the collective rows of its layers declare them (model/layers/layer.h:
 * Collective): COLLECTIVE starts one, WAIT ends it. docs/inside/add-a-collective.md lists the other places
 * that distinguish kinds of collectives.
 *
 *     ALL_GATHER      local shard --copy, or packed--> its range of the full tensor ==all-gather==> all
 *     REDUCE_SCATTER  partial sums ==reduce-scatter==> local shard, fp32        WAIT --round, bias--> result
 *                     and those of adapters, if any, in a message of their own        adapters --> result
 *     ALL_REDUCE      partial sums ==all-reduce==> their sum, in place
 *     ALL_TO_ALL      packed, a range for each rank ==all-to-all==> one from each    WAIT --unpacked--> ...
 *
 * All ranks' shards have the same size. They lie in the order of the ranks, except for tokens of all ranks of
 * cp (zigzag): those lie where each rank's CP chunks do, with one message per chunk.
 *
 * Sums are taken in the canonical tree over the ranks, after each rank has added up its local splits. The
 * result has the bits of one rank that has all splits, and is rounded once, when it is complete. Actions
 * between start and end touch none of these tensors: a program that would is refused (program/check.c).
 *
 * Elsewhere called: Megatron mappings.py: all-gather, reduce-scatter, all-to-all of sequence, tensor and
 * context parallelism; ncclAllGather, ncclReduceScatter, ncclAllReduce. */
#include "engine/execution.h"

#include "device/ops/memory.h"

/* A collective under way. */
typedef struct Sending {
    Engine *e;
    const Program *program;
    UnitExchange t;
    CommRequest *requests; /* [COLLECTIVE_MESSAGES] */
    CommRange *ranges;     /* [COLLECTIVE_MESSAGES, ranks]; must stay valid until the operations have ended */
    int ranks, rank;
    CommType type;
} Sending;

static Sending sending(const Execution *x, const UnitExchange *t, int row) {
    Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    int ranks = mesh_size(&p->mesh, t->row->over);
    return (Sending){e,
                     x->program,
                     *t,
                     e->traffic.collectives[row],
                     e->traffic.ranges + (size_t)(row * COLLECTIVE_MESSAGES * e->traffic.most_ranks),
                     ranks,
                     mesh_group_rank(&p->mesh, t->row->over, p->rank),
                     t->row->element == ELEMENT_COUNT ? COMM_I64 : COMM_F32};
}

static int messages(const Sending *s) { return s->t.row->zigzag ? model_cp_chunks(&s->e->model) : 1; }

/* First element of a rank's shard in the i-th message. */
static int64_t first_of(const Sending *s, int rank, int i) {
    const Model *m = &s->e->model;
    int64_t each = s->t.count / m->tokens;
    return s->t.row->zigzag ? model_cp_chunk_first(m, rank, i) * each : rank * s->t.count;
}

static const CommRange *parts_of(const Sending *s, int i) {
    CommRange *ranges = s->ranges + i * s->ranks;
    for (int r = 0; r < s->ranks; r++) ranges[r] = (CommRange){first_of(s, r, i), s->t.count / messages(s)};
    return ranges;
}

static char *at(const Sending *s, int64_t element) { return (char *)s->t.to + (size_t)element * s->t.bytes; }

static ErrorCode gather(const Sending *s, Error *err) {
    if (s->t.from)
        OP(s->e->device, copy, at(s, first_of(s, s->rank, 0)), s->t.from, (size_t)s->t.count * s->t.bytes);
    for (int i = 0; i < messages(s); i++)
        TRY(comm_all_gather(s->e->comm, s->t.row->over, parts_of(s, i), s->t.bytes, s->t.to, &s->requests[i],
                            err));
    return OK;
}

/* The partial sums of adapters: [local, inner_width] for each rank. */
static ErrorCode scatter_inner(const Sending *s, Error *err) {
    Engine *e = s->e;
    int64_t own = model_local_tokens(&e->model) * s->t.inner_width;
    CommRange *ranges = s->ranges + s->ranks;
    if (own == 0) return OK;
    for (int r = 0; r < s->ranks; r++) ranges[r] = (CommRange){r * own, own};
    return comm_reduce_scatter(
        e->comm, s->t.row->over, COMM_F32, ranges, s->t.inner, s->t.inner + s->rank * own,
        e->work.exchange + collective_workspace(s->program, &e->model, s->t.row), &s->requests[1], err);
}

static ErrorCode scatter(const Sending *s, Error *err) {
    for (int i = 0; i < messages(s); i++)
        TRY(comm_reduce_scatter(s->e->comm, s->t.row->over, s->type, parts_of(s, i), s->t.to,
                                at(s, first_of(s, s->rank, i)), s->e->work.exchange, &s->requests[i], err));
    return scatter_inner(s, err);
}

/* With zigzag, only the CP chunks of this rank among the tokens of all ranks of cp. */
static ErrorCode reduce(const Sending *s, Error *err) {
    for (int i = 0; i < messages(s); i++) {
        int64_t first = s->t.row->zigzag ? first_of(s, s->e->model.cp.rank, i) : 0;
        TRY(comm_all_reduce(s->e->comm, s->t.row->over, s->type, at(s, first), s->t.count / messages(s),
                            s->e->work.exchange, &s->requests[i], err));
    }
    return OK;
}

static ErrorCode exchange_pieces(const Sending *s, Error *err) {
    size_t range_bytes = (size_t)(s->t.count / s->ranks) * s->t.bytes;
    return comm_all_to_all(s->e->comm, s->t.row->over, range_bytes, s->t.from, s->t.to, &s->requests[0], err);
}

static ErrorCode send(const Sending *s, Error *err) {
    switch (s->t.row->kind) {
    case COLL_ALL_GATHER: return gather(s, err);
    case COLL_REDUCE_SCATTER: return scatter(s, err);
    case COLL_ALL_REDUCE: return reduce(s, err);
    case COLL_ALL_TO_ALL: return exchange_pieces(s, err);
    case COLL_DISPATCH: /* dispatch.c */
    case COLL_KINDS: break;
    }
    CHECK(false);
}

static PassKind pass_kind(Action a) {
    return a.pass == ACT_FWD ? PASS_FORWARD : a.pass == ACT_RECOMPUTE ? PASS_RECOMPUTE : PASS_BACKWARD;
}

/* Counts non-finite values in what this rank contributes (origin.c), which is still where the ops left it, or
 * packed: in `to` at this rank's place if `from` is NULL. */
static void count_own(Execution *x, const Sending *s) {
    const Collective *row = s->t.row;
    Dtype type = s->t.bytes == sizeof(float) ? DTYPE_F32 : DTYPE_BF16;
    bool sum = row->kind == COLL_REDUCE_SCATTER, in_place = row->kind == COLL_ALL_GATHER && !s->t.from;
    int own = row->zigzag ? x->engine->model.cp.rank : s->rank;
    if (row->element == ELEMENT_COUNT) return;
    if (!in_place && !row->zigzag)
        origin_states(x, ORIGIN_SENT, (sum ? s->ranks : 1) * s->t.count, type, s->t.from);
    for (int i = 0; (in_place || row->zigzag) && i < messages(s); i++)
        for (int r = sum ? 0 : own; r < (sum ? s->ranks : own + 1); r++)
            origin_states(x, ORIGIN_SENT, s->t.count / messages(s), type, at(s, first_of(s, r, i)));
}

/* If the stage's last unit is the embedding, it gathers the gradient that another rank sends, so that must
 * have arrived. */
void collective_start(Execution *x, Action a) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    int chunk = a.slice > 0 ? program_chunk(x->program, &e->model, a) : 0;
    execution_enter(x, a.microbatch);
    if (pass_kind(a) == PASS_BACKWARD) boundary_arrived(x, ACT_RECV_B, a.unit, a.microbatch);
    UnitPass unit = execution_unit(x, a);
    for (int row = a.row; row >= 0; row = program_along(x->program, a, row)) {
        UnitExchange t = unit_exchange(&unit, row, pass_kind(a), pass_grads(a.pass), chunk);
        Sending s = sending(x, &t, row);
        unit_pack(&unit, row);
        count_own(x, &s);
        execution_must(e, send(&s, &err), &err);
    }
}

/* Unpacking a sum may add a bias, so it needs the unit's parameters. */
void collective_wait(Execution *x, Action a) {
    Engine *e = x->engine;
    execution_enter(x, a.microbatch);
    UnitPass unit = execution_unit(x, a);
    bool sums = a.how == COLL_REDUCE_SCATTER;
    for (int row = a.row; row >= 0; row = program_along(x->program, a, row)) {
        for (int i = 0; i < COLLECTIVE_MESSAGES; i++) execution_wait(e, &e->traffic.collectives[row][i]);
        if (sums) parameters_ready(x, a.unit);
        unit_unpack(&unit, row, pass_kind(a));
    }
    if (sums) probe_output(x, a, unit.out);
}

/* Runs after an evaluation, when nothing else is under way. It is no action of the program because most
 * evaluations need only sums. */
void collective_gather_scores(Engine *e, LossRecord *all) {
    const Model *m = &e->model;
    CommRange *ranges = e->traffic.ranges;
    CommRequest request = 0;
    Error err = {.message = ""};
    if (m->cp.ranks == 1) return;
    for (int r = 0; r < m->cp.ranks; r++) ranges[r] = (CommRange){r * model_records(m), model_records(m)};
    execution_must(e, comm_all_gather(e->comm, MESH_CONTEXT, ranges, sizeof *all, all, &request, &err), &err);
    execution_wait(e, &request);
}
