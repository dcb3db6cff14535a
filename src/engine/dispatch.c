/* Expert parallelism: the rows of (token, expert) assignments go to the ranks of their experts and back.
 * DISPATCH (model/layers/layer.h: ExpertDispatch).
 *
 *     permute ==> [dispatch chunk: exchange out, run the experts, exchange back] ==> unpermute
 *
 * The ranks first exchange how many rows each sends to each: integers, once, in the forward pass; they are
 * saved for recomputation and backward. All ranks of ep know all of these counts, so they cut the dispatch
 * into the same chunks.
 * A rank takes the rows of the other ranks in order, as many ranks at a time as fit its buffer. The rows of
 * one rank always fit: no row is ever dropped, nothing is allocated, and memory does not depend on the data.
 * How chunks are cut changes no bits: a row's results do not depend on the other rows of a product, and the
 * gradients that the rows of each rank make are added in the canonical tree. Where tokens have exact chunks,
 * the rows of each exact chunk have dispatch chunks of their own.
 *
 * A source is a rank of ep or, with mesh.etp 1, all ranks of ep of one tp group, which are neighbours. Their
 * tokens make one sum, so their rows are merged: sorted by expert, then by rank, which is by token.
 *
 *     arrived   rank 0: e0 e0 e1 | rank 1: e0 e1 e1   <==>   remote   e0 e0 e0 | e1 e1 e1
 *
 * Elsewhere called: token dispatcher (Megatron, DeepEP): all-to-all dispatch and combine of MoE, expert
 * parallelism, dropless; no capacity factor drops tokens. */
#include <stdlib.h>

#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "engine/execution.h"

/* Length of a rank's table of runs: for each of its routing pieces, where each expert's rows begin and where
 * the last ends. */
static int64_t runs_of_rank(const Engine *e) {
    return model_local_pieces(&e->model) * model_dim(&e->model.config, DIM_RUNS);
}

void dispatch_open(Engine *e) {
    const Model *m = &e->model;
    size_t ranks = (size_t)e->plan->partition.experts, each = (size_t)runs_of_rank(e), runs = each * ranks,
           local = (size_t)(model_exact_chunks(m) * model_dim(&m->config, DIM_LOCAL_RUNS));
    DispatchState *v = &e->traffic.dispatch;
    if (ranks == 1) return;
    v->runs = mem_alloc_array(runs, sizeof *v->runs);
    v->local_runs = mem_alloc_array(local, sizeof *v->local_runs);
    if (model_is_folded(m)) v->orders = mem_alloc_array(2 * (size_t)m->dispatch_rows, sizeof *v->orders);
    v->dispatch_chunk = mem_alloc_array(ranks * ranks, sizeof *v->dispatch_chunk);
    v->first = mem_alloc_array(ranks * ranks, sizeof *v->first);
    v->local = mem_alloc_array(ranks, sizeof *v->local);
    v->remote = mem_alloc_array(ranks, sizeof *v->remote);
    v->ranges = mem_alloc_array(ranks, sizeof *v->ranges);
    for (size_t r = 0; r < ranks; r++) v->ranges[r] = (CommRange){(int64_t)(r * each), (int64_t)each};
}

void dispatch_close(Engine *e) {
    DispatchState *v = &e->traffic.dispatch;
    free(v->runs);
    free(v->local_runs);
    free(v->orders);
    free(v->dispatch_chunk);
    free(v->first);
    free(v->local);
    free(v->remote);
    free(v->ranges);
}

/* ---- how many rows each rank sends to each ---- */

static int ranks_of(const Engine *e) { return e->plan->partition.experts; }
static int sources_in(const Engine *e) { return e->plan->partition.sources; }
/* Ranks of a source. */
static int parts_in(const Engine *e) { return ranks_of(e) / sources_in(e); }

/* The table of runs, by expert, of a rank's rows of an exact chunk; NULL: it has none. */
static const int32_t *runs_of(const Engine *e, int rank, int exact_chunk) {
    int piece = model_piece_in(&e->model, rank % parts_in(e), exact_chunk);
    if (piece < 0) return NULL;
    return e->traffic.dispatch.runs + rank * runs_of_rank(e) + piece * model_dim(&e->model.config, DIM_RUNS);
}

/* Rows of an exact chunk on rank `rank` that go to rank `to`. Rows are sorted by expert, so they are one
 * run. */
static CommRange leaving(const Engine *e, int exact_chunk, int rank, int to) {
    const int32_t *runs = runs_of(e, rank, exact_chunk);
    if (!runs) return (CommRange){0, 0};
    int64_t own = model_local_experts(&e->model.config),
            before = model_piece_in(&e->model, rank % parts_in(e), exact_chunk) *
                     (model_rows(&e->model) / model_local_pieces(&e->model));
    return (CommRange){before + runs[to * own], runs[(to + 1) * own] - runs[to * own]};
}

/* The same of all ranks of a source. */
static int64_t leaving_source(const Engine *e, int exact_chunk, int source, int to) {
    int64_t count = 0;
    for (int i = 0; i < parts_in(e); i++)
        count += leaving(e, exact_chunk, source * parts_in(e) + i, to).count;
    return count;
}

/* Cuts an exact chunk into dispatch chunks; every rank computes this for all ranks. Returns the number of
 * chunks. */
static int cut_dispatch_chunks(Engine *e, int exact_chunk) {
    DispatchState *v = &e->traffic.dispatch;
    int ranks = ranks_of(e), parts = parts_in(e), most = 0;
    for (int to = 0; to < ranks; to++) {
        int64_t taken = 0;
        int dispatch_chunk = 0;
        for (int from = 0; from < ranks; from++) {
            int64_t count = leaving_source(e, exact_chunk, from / parts, to);
            CHECK(count >= 0 && count <= e->model.dispatch_rows);
            bool begins = from % parts == 0;
            if (begins && taken + count > e->model.dispatch_rows) dispatch_chunk++, taken = 0;
            v->dispatch_chunk[to * ranks + from] = dispatch_chunk, v->first[to * ranks + from] = taken;
            taken += leaving(e, exact_chunk, from, to).count;
        }
        if (dispatch_chunk > most) most = dispatch_chunk;
    }
    return most + 1;
}

/* The sources whose rows come here in a dispatch chunk: first, how many. */
static TreeBlock sources_of(const Engine *e, int dispatch_chunk) {
    const int *chunk = e->traffic.dispatch.dispatch_chunk + e->plan->partition.expert * ranks_of(e);
    TreeBlock sources = {.first = 0};
    for (int s = 0; s < sources_in(e); s++)
        if (chunk[s * parts_in(e)] == dispatch_chunk && sources.size++ == 0) sources.first = s;
    return sources;
}

/* Adds a rank's runs of local experts to those of its source: where they begin, and at [own] where the last
 * ends. */
static void add_runs(const Engine *e, int rank, int exact_chunk, int32_t *to /* [own + 1] */) {
    const int32_t *runs = runs_of(e, rank, exact_chunk);
    if (!runs) return;
    runs += model_first_expert(&e->model.config);
    for (int64_t k = 0; k <= model_local_experts(&e->model.config); k++) to[k] += runs[k] - runs[0];
}

/* Makes the tables of local runs of an exact chunk's dispatch chunks (ExpertDispatch). */
static void find_local_runs(Engine *e, const DispatchTensors *t, int exact_chunk, int dispatch_chunks) {
    int64_t own = model_local_experts(&e->model.config), each = sources_in(e) * (own + 1);
    int32_t *tables = e->traffic.dispatch.local_runs + exact_chunk * each;
    for (int i = 0; i < dispatch_chunks; i++) {
        TreeBlock sources = sources_of(e, i);
        int32_t *to = tables + sources.first * (own + 1), next = 0;
        for (int s = 0; s < sources.size; s++, next = to[own], to += own) {
            for (int64_t k = 0; k <= own; k++) to[k] = next;
            for (int r = 0; r < parts_in(e); r++)
                add_runs(e, (sources.first + s) * parts_in(e) + r, exact_chunk, to);
        }
    }
    OP(e->device, upload, t->local_runs + exact_chunk * each, tables, (size_t)each * sizeof *tables);
}

/* Exchanges the tables of runs (`forward`: in the forward pass), or reads those that the forward pass saved.
 * Messages have lengths that the host must know, so it waits for the device. */
static void exchange_runs(Execution *x, const DispatchTensors *t, bool forward) {
    Engine *e = x->engine;
    DispatchState *v = &e->traffic.dispatch;
    size_t runs = (size_t)runs_of_rank(e) * sizeof(int32_t), ranks = (size_t)ranks_of(e);
    if (forward) {
        Error err = {.message = ""};
        CommRequest request = 0;
        OP(e->device, copy, (char *)t->all_runs + (size_t)e->plan->partition.expert * runs, t->runs, runs);
        execution_must(
            e,
            comm_all_gather(e->comm, MESH_EXPERTS, v->ranges, sizeof(int32_t), t->all_runs, &request, &err),
            &err);
        execution_wait(e, &request);
        if (e->interrupted) return; /* the table is rubbish, and would address memory */
    }
    device_fetch(e->device, v->runs, t->all_runs, ranks * runs);
}

/* ---- a dispatch chunk ---- */

/* For one dispatch chunk: the ranges of local rows that leave, and where the rows of other ranks lie in the
 * buffer. */
static void find_parts(Engine *e, int exact_chunk, int dispatch_chunk) {
    DispatchState *v = &e->traffic.dispatch;
    int ranks = ranks_of(e), own = e->plan->partition.expert;
    for (int r = 0; r < ranks; r++) {
        v->local[r] = leaving(e, exact_chunk, own, r);
        v->remote[r] = (CommRange){v->first[own * ranks + r], leaving(e, exact_chunk, r, own).count};
        if (v->dispatch_chunk[r * ranks + own] != dispatch_chunk) v->local[r].count = 0;
        if (v->dispatch_chunk[own * ranks + r] != dispatch_chunk) v->remote[r].count = 0;
    }
}

/* Finds the order of the merged rows of a dispatch chunk. */
static void find_orders(Engine *e, const DispatchTensors *t, int exact_chunk, TreeBlock sources) {
    DispatchState *v = &e->traffic.dispatch;
    int64_t own = model_local_experts(&e->model.config), rows = e->model.dispatch_rows;
    int32_t *arrived = v->orders, *merged = v->orders + rows, next = 0;
    int parts = parts_in(e), first = sources.first * parts;
    for (int64_t i = 0; i < sources.size * own; i++)
        for (int r = first + (int)(i / own) * parts, end = r + parts; r < end; r++) {
            const int32_t *runs = runs_of(e, r, exact_chunk);
            if (!runs) continue;
            runs += model_first_expert(&e->model.config);
            for (int32_t k = runs[i % own]; k < runs[i % own + 1]; k++, next++) {
                arrived[next] = (int32_t)v->remote[r].first + k - runs[0];
                merged[arrived[next]] = next;
            }
        }
    OP(e->device, upload, t->orders, v->orders, 2 * (size_t)rows * sizeof *v->orders);
}

/* Rows are of states, or have one weight each. */
static Dtype type_of_rows(const Engine *e, size_t bytes) {
    return bytes == (size_t)e->model.config.hidden_size * sizeof(uint16_t) ? DTYPE_BF16 : DTYPE_F32;
}

/* Copies the rows of a dispatch chunk in another order: row i of `to` is row order[i] of `from`. Rows are
 * looked up as in an embedding. */
static void reorder(Engine *e, const int32_t *order, size_t bytes, const char *from, char *to) {
    Dtype type = type_of_rows(e, bytes);
    int64_t count = 0;
    for (int r = 0; r < ranks_of(e); r++) count += e->traffic.dispatch.remote[r].count;
    OP(e->device, embed_forward, .tokens = count, .hidden = (int64_t)(bytes / dtype_bytes(type)),
       .ids = order, .table = from, .rows = ALL_ROWS, .scale = 1.0f, .out = to, .c = type);
}

static void exchange(Engine *e, const CommRange *out, const char *from, const CommRange *in, char *to,
                     size_t bytes) {
    Error err = {.message = ""};
    CommRequest request = 0;
    execution_must(e, comm_all_to_all_v(e->comm, MESH_EXPERTS, bytes, out, from, in, to, &request, &err),
                   &err);
    execution_wait(e, &request);
}

/* Counts non-finite values in rows that leave this rank (origin.c). */
static void count_rows(Execution *x, OriginStage stage, const CommRange *ranges, char *rows, size_t bytes) {
    const Engine *e = x->engine;
    Dtype type = type_of_rows(e, bytes);
    int64_t width = (int64_t)(bytes / dtype_bytes(type));
    for (int r = 0; r < ranks_of(e); r++)
        origin_states(x, stage, ranges[r].count * width, type, rows + (size_t)ranges[r].first * bytes);
}

/* Merged rows go through `arrived`, a tensor at a time. */
static void send_merged(Execution *x, const DispatchTensors *t, const DispatchRows *r) {
    Engine *e = x->engine;
    const DispatchState *v = &e->traffic.dispatch;
    CHECK(r->times == 1);
    count_rows(x, ORIGIN_SENT, v->local, r->local, r->bytes);
    exchange(e, v->local, r->local, v->remote, t->arrived, r->bytes);
    reorder(e, t->orders, r->bytes, t->arrived, r->remote);
}

static void return_merged(Execution *x, const DispatchTensors *t, const DispatchRows *r) {
    Engine *e = x->engine;
    const DispatchState *v = &e->traffic.dispatch;
    CHECK(r->times == 1);
    reorder(e, t->orders + e->model.dispatch_rows, r->bytes, r->remote, t->arrived);
    count_rows(x, ORIGIN_RETURNED, v->remote, t->arrived, r->bytes);
    exchange(e, v->remote, t->arrived, v->local, r->local, r->bytes);
}

static void send_rows(Execution *x, const DispatchTensors *t, const DispatchRows *r) {
    Engine *e = x->engine;
    const DispatchState *v = &e->traffic.dispatch;
    if (t->arrived) {
        send_merged(x, t, r);
        return;
    }
    for (int i = 0; i < r->times; i++)
        count_rows(x, ORIGIN_SENT, v->local, r->local + (size_t)i * r->local_step, r->bytes);
    for (int i = 0; i < r->times; i++)
        exchange(e, v->local, r->local + (size_t)i * r->local_step, v->remote,
                 r->remote + (size_t)i * r->remote_step, r->bytes);
}

static void return_rows(Execution *x, const DispatchTensors *t, const DispatchRows *r) {
    Engine *e = x->engine;
    const DispatchState *v = &e->traffic.dispatch;
    if (t->arrived) {
        return_merged(x, t, r);
        return;
    }
    for (int i = 0; i < r->times; i++)
        count_rows(x, ORIGIN_RETURNED, v->remote, r->remote + (size_t)i * r->remote_step, r->bytes);
    for (int i = 0; i < r->times; i++)
        exchange(e, v->remote, r->remote + (size_t)i * r->remote_step, v->local,
                 r->local + (size_t)i * r->local_step, r->bytes);
}

/* Rows of some sources of a dispatch chunk, of which `rows` has all. */
static RemoteRows rows_of_sources(const Engine *e, RemoteRows rows, TreeBlock sources) {
    rows.rank = sources.first, rows.sources = sources.size, rows.count = 0;
    int parts = parts_in(e), first = sources.first * parts, end = first + sources.size * parts;
    for (int r = first; r < end; r++) rows.count += e->traffic.dispatch.remote[r].count;
    return rows;
}

/* Gradients from the sources of a dispatch chunk: subtree by subtree, or rank by rank. */
static void make_weights(Execution *x, Action a, const UnitPass *unit, const RemoteRows *rows) {
    int sources = sources_in(x->engine), before = rows->exact_chunk * sources;
    TreeBlock all = {rows->rank, rows->sources}, blocks[TREE_BLOCKS];
    bool joined = program_joins_sources(x->program, a.unit);
    int count = joined ? tree_blocks(sources, all, blocks) : all.size;
    for (int i = 0; i < count; i++) {
        TreeBlock block = joined ? blocks[i] : (TreeBlock){all.first + i, 1};
        RemoteRows part = rows_of_sources(x->engine, *rows, block);
        block.first += before;
        gradients_begin_sources(x, a.unit, a.microbatch, block);
        unit_expert_weights(unit, a.ops.first, &part);
        gradients_end_sources(x, a.unit, a.microbatch, block);
    }
}

static void run_dispatch_chunk(Execution *x, Action a, const UnitPass *unit, DispatchPass way,
                               const DispatchTensors *t, int exact_chunk, int dispatch_chunk) {
    Engine *e = x->engine;
    TreeBlock sources = sources_of(e, dispatch_chunk);
    find_parts(e, exact_chunk, dispatch_chunk);
    if (t->arrived) find_orders(e, t, exact_chunk, sources);
    RemoteRows rows =
        rows_of_sources(e, (RemoteRows){.exact_chunk = exact_chunk, .first = sources.first}, sources);
    for (int i = 0; i < t->out_count; i++) send_rows(x, t, &t->out[i]);
    unit_experts(unit, a.ops.first, way, &rows);
    if (way == DISPATCH_BACKWARD) make_weights(x, a, unit, &rows);
    unit_expert_results(unit, a.ops.first, way, &rows);
    for (int i = 0; i < t->back_count; i++) return_rows(x, t, &t->back[i]);
}

void dispatch_run(Execution *x, Action a) {
    DispatchPass way = a.pass == ACT_BWD || a.pass == ACT_DGRAD ? DISPATCH_BACKWARD : DISPATCH_FORWARD;
    int op = a.ops.first;
    execution_enter(x, a.microbatch);
    parameters_ready(x, a.unit);
    UnitPass unit = execution_unit(x, a);
    DispatchTensors t = unit_dispatch(&unit, op, way);
    unit_permute(&unit, op, way);
    exchange_runs(x, &t, a.pass == ACT_FWD);
    if (x->engine->interrupted) return;
    for (int exact_chunk = 0; exact_chunk < model_exact_chunks(&x->engine->model); exact_chunk++) {
        int dispatch_chunks = cut_dispatch_chunks(x->engine, exact_chunk);
        find_local_runs(x->engine, &t, exact_chunk, dispatch_chunks);
        for (int dispatch_chunk = 0; dispatch_chunk < dispatch_chunks; dispatch_chunk++)
            run_dispatch_chunk(x, a, &unit, way, &t, exact_chunk, dispatch_chunk);
    }
    unit_unpermute(&unit, op, way);
}
