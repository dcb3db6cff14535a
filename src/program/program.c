/* What holds for any program: what its actions are, what it sends, and how it is printed. lower.c makes
 * programs, check.c checks them. */
#include "program/program.h"

#include <stdlib.h>
#include <string.h>

#include "base/tree.h"
#include "comm/comm.h"
#include "program/owners.h"

void program_free(Program *p) {
    free(p->actions);
    *p = (Program){0};
}

bool action_is_pass(ActionKind kind) {
    return kind == ACT_FWD || kind == ACT_BWD || kind == ACT_DGRAD || kind == ACT_WGRAD;
}

bool action_exchanges(ActionKind kind) {
    return kind == ACT_COLLECTIVE || kind == ACT_WAIT || kind == ACT_DISPATCH;
}

ActionKind action_pass(Action a) { return action_exchanges(a.kind) ? a.pass : a.kind; }

Grads pass_grads(ActionKind pass) {
    return pass == ACT_DGRAD ? DGRAD : pass == ACT_WGRAD ? WGRAD : BOTH_GRADS;
}

Grads action_grads(Action a) { return a.kind == ACT_BWD && a.grads ? a.grads : pass_grads(a.kind); }

/* Backward passes take the ops in reverse, so their first action has the last op. A delayed wgrad is neither
 * first nor last. */
bool program_begins_unit(const Program *p, Action a) {
    OpRange all = unit_ops(p->model, a.unit);
    if (a.kind == ACT_BWD && a.grads == WGRAD) return false;
    return a.kind == ACT_FWD ? a.ops.first == all.first : a.ops.end == all.end;
}

bool program_ends_unit(const Program *p, Action a) {
    OpRange all = unit_ops(p->model, a.unit);
    bool rest = a.slice > 0 && a.slice < 2 * p->chunks; /* chunks remain */
    return a.kind == ACT_FWD ? a.ops.end == all.end && !rest : a.ops.first == all.first;
}

bool program_cuts(const Program *p, int unit) {
    OpRange all = unit_ops(p->model, unit);
    for (int op = all.first + 1; op <= all.end; op++)
        if (p->has_collective(p->partition, unit, op)) return true;
    return false;
}

int program_chunk(const Program *p, const Model *m, Action a) {
    return (a.slice - 1) / 2 / (p->chunks / model_chunks(m));
}

bool program_sums_partials(const Program *p, int unit) {
    if (unit >= p->units || partition_flat_elements(p->partition, unit, FLAT_VECTORS) == 0) return false;
    return p->partition->tensors > 1 || (p->partition->splits > 1 && !p->exact);
}

bool program_reads_adapters(const Program *p, Action a) {
    return a.kind == ACT_WGRAD && p->model->adapter_rank > 0 && a.unit > 0 && a.unit < p->units - 1;
}

/* In fast numerics a reduction of a microbatch sends the total of its partial sums, so these must be added up
 * before it. */
bool program_sums_partials_once(const Program *p) { return p->sync == SYNC_STEP; }

/* ---- collectives of a unit ---- */

bool program_has_collective(const Partition *p, int unit, int op) {
    UnitCollective rows[UNIT_COLLECTIVES];
    if (p->tensors * p->cp.ranks * p->experts == 1) return false;
    int count = unit_collectives(p->unsharded, unit, rows);
    for (int i = 0; i < count; i++) {
        uint32_t ops = collective_ops(&rows[i]);
        bool ends = rows[i].row->kind == COLL_DISPATCH && op == 32 - __builtin_clz(ops);
        if ((ends || collective_cut(&rows[i]) == op) && mesh_size(&p->mesh, rows[i].row->over) > 1 &&
            collective_applies(p->unsharded, p->cp, rows[i].row))
            return true;
    }
    return false;
}

static bool is_there(const Program *p, int unit, const UnitCollective *c) {
    const Collective *row = c->row;
    int first = __builtin_ctz(collective_ops(c));
    if (mesh_size(&p->partition->mesh, row->over) == 1) return false;
    if (!collective_applies(p->model, p->partition->cp, row)) return false;
    return p->training ||
           (row->passes & IN_FORWARD && !row->trains && !unit_op_trains(p->model, unit, first));
}

/* Dispatched ops recompute what they need where they run; here only the output of the last one is
 * recomputed. */
static bool is_recomputed(const Anatomy *n, uint32_t ops) {
    if (ops & n->dispatched) ops = (ops & ~n->dispatched) | 1u << (31 - __builtin_clz(n->dispatched));
    return ops & n->recomputed;
}

static void set_uses(Anatomy *n, int i) {
    const Collective *row = n->rows[i].row;
    uint32_t ops = collective_ops(&n->rows[i]), by = row->behind ? 1u << (31 - __builtin_clz(ops)) : ops;
    bool recomputed = row->passes & IN_RECOMPUTE && is_recomputed(n, by),
         dgrad = row->passes & IN_DGRAD && !recomputed, wgrad = row->passes & IN_WGRAD;
    n->uses[ACT_FWD][i] = row->passes & IN_FORWARD ? ops : 0;
    n->uses[ACT_RECOMPUTE][i] = recomputed ? ops : 0;
    n->uses[ACT_BWD][i] = dgrad || wgrad ? ops : 0;
    n->uses[ACT_DGRAD][i] = dgrad ? ops : wgrad ? ops & n->dispatched : 0;
    n->uses[ACT_WGRAD][i] = wgrad ? ops & ~n->dispatched : 0;
}

static void set_ops(Anatomy *n, const Program *p, int unit) {
    for (int op = 0; op < n->all.end; op++) {
        if (unit_op_recomputed(p->model, unit, op, p->recompute)) n->recomputed |= 1u << op;
        if (unit_op_product(p->model, unit, op)) n->products |= 1u << op;
    }
}

/* Properties of ops that follow from the rows, whatever the mesh. */
static void set_layers(Anatomy *n) {
    uint32_t of_layer[2][UNIT_SUBLAYERS] = {{0}};
    for (int i = 0; i < n->count; i++) {
        uint32_t ops = collective_ops(&n->rows[i]);
        int to = n->rows[i].row->to;
        n->ops |= ops;
        if (to == FULL_X) n->reads_x |= ops, n->begins |= ops & -ops;
        if (to == FULL_X || to == FULL_DY) of_layer[to == FULL_DY][n->rows[i].sublayer] |= ops;
    }
    for (int s = 0; s < UNIT_SUBLAYERS; s++) {
        uint32_t x = of_layer[0][s], dy = of_layer[1][s];
        if (x && dy) n->parallel |= (2u << (31 - __builtin_clz(x | dy))) - (x & -x);
    }
}

void program_anatomy(const Program *p, int unit, Anatomy *out) {
    *out = (Anatomy){.all = unit_ops(p->model, unit)};
    CHECK(out->all.end <= UNIT_OPS);
    out->count = unit_collectives(p->model, unit, out->rows);
    set_ops(out, p, unit);
    set_layers(out);
    for (int i = 0; i < out->count; i++) {
        const UnitCollective *c = &out->rows[i];
        if (!is_there(p, unit, c)) continue;
        if (c->row->kind == COLL_DISPATCH) out->dispatched |= collective_ops(c);
        if (c->row->chunked) out->sliced |= collective_ops(c);
    }
    for (int i = 0; i < out->count; i++)
        if (is_there(p, unit, &out->rows[i])) set_uses(out, i);
}

int anatomy_dispatch(const Anatomy *n, int op) {
    for (int i = 0; n->dispatched >> op & 1 && i < n->count; i++)
        if (n->rows[i].row->kind == COLL_DISPATCH && collective_ops(&n->rows[i]) >> op & 1) return i;
    return -1;
}

/* Gradients of a microbatch need their own memory to be rounded to fixed point, or to be reduced before the
 * next microbatch. */
bool program_has_slots(const Program *p) { return p->exact || p->sync != SYNC_STEP; }

bool program_adds_sources(const Program *p, Flat flat) {
    return flat_of_experts(flat) && p->partition->experts > 1 && program_has_slots(p);
}

bool program_joins_sources(const Program *p, int unit) {
    return program_adds_sources(p, FLAT_EXPERTS) && !p->exact &&
           partition_flat_elements(p->partition, unit, FLAT_EXPERT_VECTORS) == 0;
}

int program_gradients(const Program *p, Flat flat) {
    if (program_adds_sources(p, flat)) return 1;
    return partition_exact_chunks(p->partition) * (flat_of_experts(flat) ? p->partition->sources : 1);
}

/* Fixed point takes each gradient at once. */
int program_partial_sums(const Program *p, Flat flat) {
    return program_adds_sources(p, flat) && !p->exact ? tree_waiting(p->partition->sources - 1) : 0;
}

/* The unit whose flat gets a gradient from this action; -1: none. Gradients of vectors are made with dgrad,
 * those of matrices with wgrad. The head computes that of its matrix in the forward pass, together with its
 * logits, unless it is deferred. With tied embeddings that gradient has its own memory, unit number `units`:
 * the embedding's own gradient comes much later, and from another pipeline rank. An MTP module's gradient of
 * the embedding comes in addition to the gradients of the unit itself. */
static int gradient_unit(const Program *p, Action a, Flat flat) {
    bool head = a.unit == p->units - 1, whole = a.kind == ACT_BWD;
    bool weight = whole || a.kind == ACT_WGRAD;
    bool early = flat_of_vectors(flat) || (flat_of_experts(flat) && p->partition->experts > 1);
    if (early) return whole || a.kind == ACT_DGRAD ? a.unit : -1;
    if (head && !p->defer_head) weight = a.kind == ACT_FWD;
    if (!weight) return -1;
    return head && p->model->tie_word_embeddings ? p->units : a.unit;
}

bool program_gradient(const Program *p, Action a, int i, PassGradient *out) {
    bool flat = i < GRADIENT_FLATS, mtp_module = p->model->mtp_module && a.unit == p->units - 1;
    out->flat = flat ? (Flat)i : FLAT_MATRICES;
    out->unit = flat || mtp_module ? gradient_unit(p, a, out->flat) : -1;
    if (!flat && out->unit >= 0) out->unit = p->units;
    return out->unit >= 0;
}

const char *action_name(ActionKind kind) {
    static const char *const names[ACT_KINDS] = {"LOAD",
                                                 "GATHER",
                                                 "RELEASE",
                                                 "RECV_F",
                                                 "FWD",
                                                 "SEND_F",
                                                 "RECV_B",
                                                 "BWD",
                                                 "DGRAD",
                                                 "WGRAD",
                                                 "SEND_B",
                                                 "RECOMPUTE",
                                                 "COLLECTIVE",
                                                 "WAIT",
                                                 "DISPATCH",
                                                 "SUM_PARTIALS",
                                                 "REDUCE_SCATTER",
                                                 "ALL_REDUCE",
                                                 "REDUCED",
                                                 "TIE",
                                                 "NORM",
                                                 "MATRIX_GATHER",
                                                 "MATRIX_SCATTER",
                                                 "UPDATE"};
    return names[kind];
}

/* "TP", by the purpose of the group. */
static const char *axis_word(AxisSet over) {
    if (over == MESH_EXPERTS) return "EP";
    return over & MESH_TENSOR ? "TP" : "CP";
}

void collective_name(Action a, Text *out) {
    static const char *const kinds[COLL_KINDS] = {[COLL_ALL_GATHER] = "ALL_GATHER",
                                                  [COLL_REDUCE_SCATTER] = "REDUCE_SCATTER",
                                                  [COLL_ALL_REDUCE] = "ALL_REDUCE",
                                                  [COLL_ALL_TO_ALL] = "ALL_TO_ALL",
                                                  [COLL_DISPATCH] = "DISPATCH"};
    text_printf(out, "%s_%s", axis_word(a.over), kinds[a.how]);
}

/* ---- Counting ---- */

/* With SYNC_REPLICA, the sums of microbatches are accumulated before the all-reduce over replicas. That
 * all-reduce is then a sum of its own, whose tree has only the replicas as leaves. */
int program_inner_ranks(const Program *p, const FlatShard *s) {
    return p->sync == SYNC_REPLICA ? 1 : s->shards;
}

static uint64_t all_reduce_bytes(const Program *p, const FlatShard *s) {
    const Partition *op = p->partition;
    return (uint64_t)comm_sum_outer_traffic(program_inner_ranks(p, s), op->replicas, op->replicas_inside,
                                            op->replica, p->exact ? COMM_I64 : COMM_F32, s->count);
}

uint64_t program_flat_bytes(const Program *p, const Model *m, Action a, Flat flat) {
    const FlatShard *s = &p->partition->flat_shard[a.unit][flat];
    size_t gradient = p->exact ? sizeof(int64_t) : sizeof(float);
    if (a.kind == ACT_GATHER)
        return (uint64_t)comm_gather_traffic(s->ranges, s->shards, s->inside, s->shard) *
               dtype_bytes(flat_dtype(flat, m->compute));
    if (flat >= GRADIENT_FLATS) return 0;
    if (a.kind == ACT_REDUCE_SCATTER)
        return (uint64_t)comm_scatter_traffic(s->ranges, s->shards, s->shard) * gradient;
    return a.kind == ACT_ALL_REDUCE ? all_reduce_bytes(p, s) : 0;
}

static uint64_t collective_bytes(const Program *p, const Model *m, Action a) {
    uint64_t sum = 0;
    for (int f = 0; f < FLATS; f++) sum += program_flat_bytes(p, m, a, (Flat)f);
    return sum;
}

/* ---- collectives inside passes ---- */

static CommType sum_type(const Collective *row) {
    return row->element == ELEMENT_COUNT ? COMM_I64 : COMM_F32;
}

/* Messages of equal size in a collective: one for each CP chunk. */
static int messages(const Model *m, const Collective *row) { return row->zigzag ? model_cp_chunks(m) : 1; }

static uint64_t row_bytes(const Program *p, const Model *m, int unit, const UnitCollective *c, int chunk) {
    const Mesh *mesh = &p->partition->mesh;
    int ranks = mesh_size(mesh, c->row->over), rank = mesh_group_rank(mesh, c->row->over, p->partition->rank);
    int64_t count = collective_count(m, c->row, chunk), n = messages(m, c->row);
    uint64_t others = (uint64_t)ranks - 1, bytes = (uint64_t)count * collective_element(m, c->row);
    switch (c->row->kind) {
    case COLL_ALL_GATHER: return others * bytes;
    case COLL_REDUCE_SCATTER:
        return others *
               (bytes + (uint64_t)(model_local_tokens(m) * unit_inner_width(m, unit, c)) * sizeof(float));
    case COLL_ALL_REDUCE:
        return (uint64_t)(n * comm_sum_outer_traffic(1, ranks,
                                                     mesh_inside(mesh, c->row->over, p->partition->rank),
                                                     rank, sum_type(c->row), count / n));
    case COLL_ALL_TO_ALL: return others * (bytes / (uint64_t)ranks);
    case COLL_DISPATCH:
    case COLL_KINDS: break;
    }
    return 0;
}

/* Assumes that rows go evenly to all experts: sends those of remote experts, and returns as many. A forward
 * pass first sends the numbers of rows. */
static uint64_t dispatch_bytes(const Program *p, const Model *m, Action a) {
    uint64_t others = (uint64_t)p->partition->experts - 1;
    bool back = a.pass == ACT_BWD || a.pass == ACT_DGRAD;
    uint64_t rows = (uint64_t)model_rows(m) * others / (others + 1),
             runs = a.pass == ACT_FWD ? others * (uint64_t)model_dim(&m->config, DIM_RUNS) : 0;
    return rows * unit_dispatch_bytes(m, a.unit, a.ops.first, back ? DISPATCH_BACKWARD : DISPATCH_FORWARD) +
           runs * (uint64_t)model_local_pieces(m) * sizeof(int32_t);
}

int program_along(const Program *p, Action a, int row) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(p->model, a.unit, rows);
    while (++row < count && rows[row].row->along)
        if (is_there(p, a.unit, &rows[row])) return row;
    return -1;
}

uint64_t program_collective_bytes(const Program *p, const Model *m, Action a) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int chunk = a.slice > 0 ? program_chunk(p, m, a) : 0;
    uint64_t sum = 0;
    if (a.kind == ACT_DISPATCH) return dispatch_bytes(p, m, a);
    unit_collectives(p->model, a.unit, rows);
    for (int row = a.row; row >= 0; row = program_along(p, a, row))
        sum += row_bytes(p, m, a.unit, &rows[row], chunk);
    return sum;
}

/* Bytes relative to those that weft sends. */
static double as_sent(const Collective *row, size_t partial) {
    bool sums = row->kind == COLL_REDUCE_SCATTER || row->kind == COLL_ALL_REDUCE;
    return sums && sum_type(row) == COMM_F32 ? (double)partial / sizeof(float) : 1;
}

/* Forward exchanges numbers of rows, rows and results; backward rows, dy, weights, and their gradients. */
static void add_dispatch(const Program *p, const Model *m, Action a, double *bytes, PassTraffic *t) {
    *bytes += (double)dispatch_bytes(p, m, a);
    t->operations += a.pass == ACT_FWD ? 3 : 5;
}

static void add_rows(const Program *p, const Model *m, Action a, size_t partial, double *bytes,
                     PassTraffic *t) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int chunk = a.slice > 0 ? program_chunk(p, m, a) : 0;
    unit_collectives(p->model, a.unit, rows);
    for (int i = a.row; i >= 0; i = program_along(p, a, i)) {
        const Collective *row = rows[i].row;
        *bytes += (double)row_bytes(p, m, a.unit, &rows[i], chunk) * as_sent(row, partial);
        t->operations += messages(m, row) * (row->kind == COLL_ALL_REDUCE ? 2 : 1);
    }
}

static PassAxis pass_axis(AxisSet over) {
    if (over == MESH_EXPERTS) return PASS_EXPERTS;
    return over & MESH_TENSOR ? PASS_TENSOR : PASS_CONTEXT;
}

/* All microbatches are alike. */
void program_pass_traffic(const Program *p, const Model *m, size_t partial, PassTraffic (*units)[PASS_AXES]) {
    for (int u = 0; u < p->units; u++)
        if (partition_runs(p->partition, u)) memset(units[u], 0, sizeof units[u]);
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.microbatch != 0 || (a.kind != ACT_COLLECTIVE && a.kind != ACT_DISPATCH)) continue;
        PassTraffic *t = &units[a.unit][pass_axis(a.over)];
        double *bytes = a.pass == ACT_FWD     ? &t->bytes.forward
                        : a.pass == ACT_WGRAD ? &t->bytes.weight
                                              : &t->bytes.input;
        if (a.kind == ACT_DISPATCH)
            add_dispatch(p, m, a, bytes, t);
        else
            add_rows(p, m, a, partial, bytes, t);
    }
}

size_t collective_workspace(const Program *p, const Model *m, const Collective *row) {
    int ranks = mesh_size(&p->partition->mesh, row->over);
    int64_t count = collective_count(m, row, 0) / messages(m, row);
    if (row->kind == COLL_REDUCE_SCATTER)
        return pool_round(comm_reduce_scatter_workspace(ranks, sum_type(row), count));
    return row->kind == COLL_ALL_REDUCE ? comm_all_reduce_workspace(ranks, sum_type(row), count) : 0;
}

static size_t workspace_of_unit(const Program *p, const Model *m, int unit) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(p->model, unit, rows);
    size_t most = 0;
    for (int i = 0; i < count; i++) {
        const Collective *row = rows[i].row;
        if (!is_there(p, unit, &rows[i])) continue;
        int64_t inner = row->kind == COLL_REDUCE_SCATTER ? unit_inner_width(m, unit, &rows[i]) : 0;
        size_t bytes = collective_workspace(p, m, row);
        if (inner > 0)
            bytes += comm_reduce_scatter_workspace(mesh_size(&p->partition->mesh, row->over), COMM_F32,
                                                   model_local_tokens(m) * inner);
        if (bytes > most) most = bytes;
    }
    return most;
}

size_t program_collective_workspace(const Program *p, const Model *m) {
    size_t most = 0;
    for (int u = 0; u < p->units; u++) {
        size_t bytes = partition_runs(p->partition, u) ? workspace_of_unit(p, m, u) : 0;
        if (bytes > most) most = bytes;
    }
    return most;
}

bool program_next_sum(const Program *p, int unit, int *next, VectorRun *run) {
    const ParamTable *t = p->partition->table;
    int i = *next > t->unit_first[unit] ? *next : t->unit_first[unit], end = t->unit_first[unit + 1];
    AxisSet tensor = MESH_TENSOR;
    *run = (VectorRun){.count = 0};
    for (; i < end && t->params[i].flat == FLAT_VECTORS; i++) {
        const Param *param = &t->params[i];
        bool sum = axes_any(axes_kind(p->partition->unsharded, param), DOES_SUM) & tensor;
        if (!sum && run->count > 0) break;
        if (!sum) continue;
        if (run->count == 0) run->first = (int64_t)param->offset;
        run->count = (int64_t)param->offset + param->count - run->first;
    }
    *next = i;
    return run->count > 0;
}

static uint64_t partials_bytes(const Program *p, int unit) {
    uint64_t sum = 0;
    const Partition *op = p->partition;
    VectorRun run;
    for (int next = 0; op->tensors > 1 && program_next_sum(p, unit, &next, &run);)
        sum += (uint64_t)comm_sum_outer_traffic(1, op->tensors, mesh_inside(&op->mesh, MESH_TENSOR, op->rank),
                                                op->tensor, p->exact ? COMM_I64 : COMM_F32, run.count);
    return sum;
}

int program_record_rounds(int ranks) {
    int rounds = 0;
    while (2 << rounds <= ranks) rounds++;
    return rounds + (1 << rounds < ranks);
}

static uint64_t *traffic_over(ProgramTraffic *t, AxisSet over) {
    uint64_t *const axes[PASS_AXES] = {&t->tensor, &t->context, &t->experts};
    return axes[pass_axis(over)];
}

/* Everything that a step sends is an action of the list. */
ProgramTraffic program_traffic(const Program *p, const Model *m) {
    const Partition *op = p->partition;
    bool exchanges = partition_runs(op, 0) != partition_runs(op, p->units - 1);
    ProgramTraffic t = {.parameters = 0};
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.kind == ACT_GATHER) t.parameters += collective_bytes(p, m, a);
        if (a.kind == ACT_REDUCE_SCATTER) t.gradients += collective_bytes(p, m, a);
        if (a.kind == ACT_ALL_REDUCE) t.replicas += collective_bytes(p, m, a);
        if (a.kind == ACT_SEND_F || a.kind == ACT_SEND_B) t.pipeline += COMM_HEADER + boundary_bytes(m);
        if (a.kind == ACT_COLLECTIVE || a.kind == ACT_DISPATCH)
            *traffic_over(&t, a.over) += program_collective_bytes(p, m, a);
        if (a.kind == ACT_SUM_PARTIALS) t.tensor += partials_bytes(p, a.unit);
        if (a.kind == ACT_MATRIX_GATHER) t.tensor += owners_traffic(op, a.unit, BUFFER_LOCAL);
        if (a.kind == ACT_MATRIX_SCATTER) t.tensor += owners_traffic(op, a.unit, BUFFER_OWNED);
        if (a.kind == ACT_TIE && exchanges && op->flat_shard[0][FLAT_MATRICES].count > 0)
            t.pipeline += COMM_HEADER + (size_t)op->flat_shard[0][FLAT_MATRICES].count * sizeof(float);
    }
    return t;
}

/* ---- Printing ---- */

/* "what down makes": describes what a row moves by the ops that make or read it. */
static void print_moved(const Program *p, Action a, const UnitCollective *c, Text *out) {
    uint32_t ops = collective_ops(c);
    bool back = !(c->row->passes & (IN_FORWARD | IN_RECOMPUTE)) ||
                (c->row->trains && c->row->to != c->row->from),
         makes = back != c->row->behind;
    int op = makes ? 31 - __builtin_clz(ops) : __builtin_ctz(ops);
    text_printf(out, " %swhat %s %s", back ? "gradient of " : "", unit_op_name(p->model, a.unit, op),
                makes ? "makes" : "reads");
    if (a.slice > 0) text_printf(out, ", chunk %d", (a.slice - 1) / 2);
}

/* A start is printed by its own name, for searching: "TP_ALL_GATHER_LSE". */
static void print_name(const Program *p, Action a, Text *out) {
    UnitCollective rows[UNIT_COLLECTIVES];
    Text name = {0};
    unit_collectives(p->model, a.unit, rows);
    collective_name(a, &name);
    const char *what = rows[a.row].row->what;
    if (a.kind == ACT_WAIT)
        text_printf(out, "%-14s u%d m%d %s", action_name(a.kind), a.unit, a.microbatch, name.data);
    if (a.kind != ACT_WAIT) text_puts(out, name.data);
    if (what) text_printf(out, "_%s", what);
    if (a.kind != ACT_WAIT) text_printf(out, " u%d m%d", a.unit, a.microbatch);
    if (a.kind == ACT_DISPATCH) text_printf(out, " %s", action_name(a.pass));
    if (a.kind != ACT_DISPATCH) print_moved(p, a, &rows[a.row], out);
    text_free(&name);
}

static void print_passed(const Program *p, int first, int last, Text *out) {
    Action a = p->actions[first];
    text_printf(out, "%-14s", action_name(a.kind));
    if (a.unit == p->units)
        text_puts(out, " tied head");
    else if (a.unit >= 0 && first == last)
        text_printf(out, " u%d", a.unit);
    else if (a.unit >= 0)
        text_printf(out, " u%d..%d", a.unit, p->actions[last].unit);
    if (a.microbatch >= 0 && a.kind != ACT_GATHER && a.kind != ACT_RELEASE)
        text_printf(out, " m%d", a.microbatch);
}

static void print_action(const Program *p, int first, int last, Text *out) {
    Action a = p->actions[first];
    if (action_exchanges(a.kind))
        print_name(p, a, out);
    else
        print_passed(p, first, last, out);
    bool ops = action_is_pass(a.kind) || a.kind == ACT_RECOMPUTE || a.kind == ACT_DISPATCH;
    bool whole = !ops || (program_begins_unit(p, a) && program_ends_unit(p, a));
    for (int i = a.ops.first; !whole && i < a.ops.end; i++)
        text_printf(out, "%s %s", i > a.ops.first ? "," : "", unit_op_name(p->model, a.unit, i));
    if (a.kind == ACT_BWD && a.grads && a.grads != BOTH_GRADS)
        text_puts(out, a.grads == DGRAD ? ": dgrad" : ": wgrad");
    if (a.slice > 0 && ops)
        text_printf(out, ", chunk %d: %s", (a.slice - 1) / 2, a.slice % 2 ? "logits" : "loss");
    text_puts(out, "\n");
}

/* Whether action i continues a run of one kind over units that step by one, up or down, as passes, updates
 * and releases do. A step of a hundred units then fits on a page. */
static bool continues(const Program *p, int first, int i) {
    Action a = p->actions[first], b = p->actions[i];
    if (a.kind != b.kind || a.microbatch != b.microbatch || a.unit < 0 || b.unit == p->units) return false;
    int step = p->actions[first + 1].unit - a.unit;
    return (step == 1 || step == -1) && b.unit - p->actions[i - 1].unit == step;
}

void program_print(const Program *p, bool whole, Text *out) {
    for (int i = 0; i < p->count;) {
        int last = i;
        while (!whole && last + 1 < p->count && continues(p, i, last + 1)) last++;
        print_action(p, i, last, out);
        i = last + 1;
    }
}
