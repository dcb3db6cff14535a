/* Microbatches are alike: the passes of the first one are run and counted for all of them, and so are those
 * of each of its segments, whose attention differs. Ops run one by
 * one, so that a product can be attributed to its op, and dgrad and wgrad run one after the other, which is
 * the same work either way (layers/layer.h, 2). Tensor memory is an address that is never read or written. */
#include "forecast/opcosts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/tree.h"
#include "device/counting.h"
#include "device/ops/ops.h"
#include "program/owners.h"

typedef struct Counter {
    CountingDevice counting;
    const Hardware *h;
    const RankPlan *p;
    OpCosts *out;
    UnitTime *unit; /* NULL after the passes */
    const char *op;
    bool head;
    double times;  /* how often the counted work is done */
    size_t offset; /* in a Cost: where seconds are added */
    Model model;
    Pass pass;
} Counter;

/* ---- a roofline ---- */

static bool is_product(OpId op) {
    return op == OP_GEMM || op == OP_GROUPED_GEMM || op == OP_GROUPED_GEMM_WGRAD;
}
static bool is_attention(OpId op) { return op == OP_ATTENTION_FORWARD || op == OP_ATTENTION_BACKWARD; }

static double rate_of(const Counter *c, const OpWork *w) {
    if (is_attention(w->op))
        return hardware_attention(c->h, c->model.compute, w->op == OP_ATTENTION_BACKWARD, w->head_dim,
                                  w->context);
    bool block = c->unit && !c->head && w->type == c->model.compute;
    return block ? hardware_products(c->h, w->type, w->terms) : hardware_head(c->h, w->type, w->terms);
}

static OpCost *row_of(OpCosts *out, const char *name) {
    int i = 0;
    while (i < out->count && strcmp(out->rows[i].name, name) != 0) i++;
    CHECK(i < OP_COSTS);
    if (i == out->count) {
        snprintf(out->rows[i].name, sizeof out->rows[i].name, "%s", name);
        out->count++;
    }
    return &out->rows[i];
}

static void add_to_unit(Counter *c, OpId op, double seconds) {
    Cost *to = is_product(op)     ? &c->unit->products
               : is_attention(op) ? &c->unit->attention
                                  : &c->unit->memory;
    *(double *)(void *)((char *)to + c->offset) += seconds;
}

static void hear(void *context, const OpWork *w) {
    Counter *c = context;
    double memory = w->bytes / hardware_bandwidth(c->h),
           compute = w->flops > 0 ? w->flops / rate_of(c, w) : 0, seconds = fmax(memory, compute);
    OpCost *row = row_of(c->out, is_product(w->op) ? c->op : op_name(w->op));
    row->calls += c->times;
    row->flops += c->times * w->flops;
    row->bytes += c->times * w->bytes;
    row->seconds += c->times * seconds;
    if (memory >= compute) row->by_memory += c->times * seconds;
    c->out->splits |= w->splits;
    if (c->unit)
        add_to_unit(c, w->op, seconds);
    else
        c->out->update += c->times * seconds;
}

/* ---- passes ---- */

/* An address far from NULL and from any mapped memory. */
static void *somewhere(void) { return (void *)((uintptr_t)1 << 40); }

static void begin_grads(Counter *c, Grads grads) {
    c->offset = grads == DGRAD   ? offsetof(Cost, input)
                : grads == WGRAD ? offsetof(Cost, weight)
                                 : offsetof(Cost, forward);
}
static const Grads FORWARD = (Grads)0;

static ActionKind pass_of(Action a) {
    ActionKind pass = action_pass(a);
    return pass == ACT_RECOMPUTE ? a.before : pass;
}

static UnitPass unit_of(const Counter *c, Action a) {
    ActionKind pass = pass_of(a);
    return (UnitPass){.pass = &c->pass,
                      .unit = a.unit,
                      .together = pass != ACT_FWD && pass_grads(pass) == BOTH_GRADS,
                      .slice = a.slice,
                      .saved = a.unit > 0 ? somewhere() : NULL,
                      .stash = somewhere(),
                      .scratch = somewhere(),
                      .keys = somewhere(),
                      .key_sums = somewhere(),
                      .out = somewhere(),
                      .dx = somewhere()};
}

static OpRange op_alone(Counter *c, int unit, int op) {
    c->op = unit_op_name(&c->model.config, unit, op);
    return (OpRange){op, op + 1};
}

static void forward(Counter *c, const UnitPass *u, OpRange ops) {
    begin_grads(c, FORWARD);
    for (int i = ops.first; i < ops.end; i++) unit_forward(u, op_alone(c, u->unit, i));
}

static void recompute(Counter *c, const UnitPass *u, OpRange ops, Grads grads) {
    begin_grads(c, grads);
    for (int i = ops.first; i < ops.end; i++) unit_recompute(u, op_alone(c, u->unit, i));
}

static void backward_grads(Counter *c, const UnitPass *u, Grads grads, int op) {
    begin_grads(c, grads);
    unit_backward(u, grads, op_alone(c, u->unit, op));
}

static void backward(Counter *c, const UnitPass *u, Action a) {
    Grads grads = action_grads(a);
    const Program *p = &c->p->program;
    if ((grads & DGRAD) && program_begins_unit(p, a) && !program_cuts(p, a.unit))
        recompute(c, u, unit_ops(&c->model.config, a.unit), DGRAD);
    for (int i = a.ops.end - 1; i >= a.ops.first; i--) {
        if (grads & DGRAD) backward_grads(c, u, DGRAD, i);
        if (grads & WGRAD) backward_grads(c, u, WGRAD, i);
    }
}

/* The engine's work on a gradient of a microbatch that is complete. */
static void complete(Counter *c, int64_t n) {
    Device *d = &c->counting.device;
    if (program_has_slots(&c->p->program)) OP(d, count_nonfinite, n, somewhere(), DTYPE_F32, somewhere());
    if (c->p->program.exact) OP(d, fixed_add, .n = n, .g = somewhere(), .acc = somewhere(), .limit = 1);
}

/* The same on the gradient for the tokens of one rank of ep, or of several. */
static void end_sources(Counter *c, int unit, TreeBlock sources) {
    const Program *p = &c->p->program;
    for (int f = 0; f < GRADIENT_FLATS; f++) {
        int64_t n = (int64_t)partition_flat_elements(&c->p->partition, unit, (Flat)f);
        if (!program_adds_sources(p, (Flat)f) || n == 0) continue;
        if (p->exact) complete(c, n);
        for (int carries = p->exact ? 0 : tree_block_carries(sources), parts; carries > 0;
             carries -= parts - 1) {
            parts = tree_carry_parts(carries);
            OP(&c->counting.device, sum_partials, n, parts, NULL, somewhere());
        }
    }
}

/* From all sources at once, or from one after the other. */
static void expert_weights(Counter *c, const UnitPass *u, Action a, RemoteRows rows) {
    int ranks = rows.sources, size = program_joins_sources(&c->p->program, a.unit) ? ranks : 1;
    rows.count = rows.count / ranks * size, rows.sources = size;
    for (rows.rank = 0; rows.rank < ranks; rows.rank += size) {
        unit_expert_weights(u, a.ops.first, &rows);
        end_sources(c, a.unit, (TreeBlock){rows.exact_chunk * ranks + rows.rank, size});
    }
}

/* Assumes that tokens go evenly to all ranks, and so in one dispatch chunk. */
static void dispatch(Counter *c, const UnitPass *u, Action a) {
    DispatchPass way = a.pass == ACT_FWD || a.pass == ACT_RECOMPUTE ? DISPATCH_FORWARD : DISPATCH_BACKWARD;
    const ModelConfig *m = &c->model.config;
    int ranks = (int)model_expert_sources(m), exact_chunks = model_exact_chunks(&c->model);
    int64_t each = model_assignments(&c->model) / exact_chunks / model_expert_ranks(m);
    c->op = "experts, of remote tokens";
    unit_permute(u, a.ops.first, way);
    for (int s = 0; s < exact_chunks; s++) {
        RemoteRows rows = {.exact_chunk = s, .sources = ranks, .count = each * ranks};
        unit_experts(u, a.ops.first, way, &rows);
        if (way == DISPATCH_BACKWARD) expert_weights(c, u, a, rows);
        unit_expert_results(u, a.ops.first, way, &rows);
    }
    unit_unpermute(u, a.ops.first, way);
}

/* The rank's own work for a collective: packing, unpacking, remote tokens' experts. */
static void exchange(Counter *c, const UnitPass *u, Action a) {
    PassKind pass = a.pass == ACT_FWD         ? PASS_FORWARD
                    : a.pass == ACT_RECOMPUTE ? PASS_RECOMPUTE
                                              : PASS_BACKWARD;
    begin_grads(c, pass == PASS_FORWARD ? FORWARD : pass_of(a) == ACT_WGRAD ? WGRAD : DGRAD);
    if (a.kind == ACT_DISPATCH) {
        dispatch(c, u, a);
        return;
    }
    for (int row = a.row; row >= 0; row = program_along(&c->p->program, a, row))
        if (a.kind == ACT_COLLECTIVE)
            unit_pack(u, row);
        else
            unit_unpack(u, row, pass);
}

/* The engine's work on the gradients of a microbatch after a pass. Exact sums have taken experts' by then. */
static void end_gradients(Counter *c, Action a) {
    const Program *p = &c->p->program;
    PassGradient g;
    for (int i = 0; program_ends_unit(p, a) && i < PASS_GRADIENTS; i++) {
        if (!program_gradient(p, a, i, &g) || (p->exact && program_adds_sources(p, g.flat))) continue;
        complete(c, (int64_t)partition_flat_elements(&c->p->partition, g.unit, g.flat) *
                        program_gradients(p, g.flat));
    }
}

static void run(Counter *c, Action a) {
    UnitPass u = unit_of(c, a);
    c->head = a.unit == c->p->program.units - 1;
    if (a.kind == ACT_FWD)
        forward(c, &u, a.ops);
    else if (a.kind == ACT_RECOMPUTE)
        recompute(c, &u, a.ops, a.before == ACT_WGRAD ? WGRAD : DGRAD);
    else if (action_is_pass(a.kind))
        backward(c, &u, a);
    else
        exchange(c, &u, a);
    if (action_is_pass(a.kind)) end_gradients(c, a);
}

static void run_passes(Counter *c, UnitTime *units) {
    const Program *p = &c->p->program;
    c->times = program_batches(p);
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        bool mine = action_is_pass(a.kind) || a.kind == ACT_RECOMPUTE || action_exchanges(a.kind);
        if (!mine || program_batch(p, a.microbatch) != 0) continue;
        c->pass.segment = program_segment(p, a.microbatch);
        c->unit = &units[c->pass.segment * p->units + a.unit];
        run(c, a);
    }
    c->unit = NULL;
    c->times = 1;
}

/* ---- after the passes ---- */

static void update_parameter(Counter *c, int i) {
    const ParamGroups *groups = &c->p->groups;
    const ParamGroup *group = param_group(groups, i);
    const Param *param = &c->p->model.table.params[i];
    Device *d = &c->counting.device;
    int64_t n = partition_segment(&c->p->partition, param).count;
    if (n == 0 || param->frozen) return;
    bool copied = c->p->memory.copy > 0 && !flat_of_vectors(param->flat);
    UpdateRun all = {.count = n,
                     .param = somewhere(),
                     .grad = somewhere(),
                     .state = {somewhere(), somewhere()},
                     .copy = copied ? somewhere() : NULL,
                     .store.type = (Dtype)group->settings.states,
                     .of = param,
                     .scratch = somewhere()};
    OP(d, grad_stats, .n = n, .g = all.grad, .p = 2, .unit = somewhere(), .out = somewhere());
    group->optimizer->update(d, &group->settings, somewhere(), &all);
    if (groups->ema > 0) OP(d, average, n, somewhere(), all.param, somewhere());
}

/* The result of a reduction is added to the sums, or converted to fp32. */
static void end_reduction(Counter *c, Action a) {
    Device *d = &c->counting.device;
    for (int f = 0; f < GRADIENT_FLATS; f++) {
        int64_t n = c->p->partition.flat_shard[a.unit][f].count;
        if (n == 0) continue;
        if (a.microbatch < 0 && c->p->program.exact)
            OP(d, fixed_to_float, n, somewhere(), somewhere());
        else if (a.microbatch >= 0 && c->p->program.exact)
            OP(d, sum_partials_i64, n, 2, NULL, somewhere());
        else if (a.microbatch >= 0)
            OP(d, sum_partials, n, 2, NULL, somewhere());
    }
}

static void run_rest(Counter *c) {
    const Program *p = &c->p->program;
    const Partition *op = &c->p->partition;
    Device *d = &c->counting.device;
    c->op = "the optimizer";
    for (int i = 0; i < p->count; i++) {
        if (p->actions[i].kind == ACT_REDUCED) end_reduction(c, p->actions[i]);
        if (p->actions[i].kind == ACT_TIE)
            OP(d, sum_partials, op->flat_shard[0][FLAT_MATRICES].count, 2, NULL, somewhere());
    }
    for (int i = 0; i < c->p->model.table.count; i++) update_parameter(c, i);
}

/* ---- all ---- */

static void point_everywhere(Weights *w, Gradients *g, int units) {
    for (int u = 0; u < units; u++)
        for (int f = 0; f < FLATS; f++) {
            if (u < units - 1) w->units[u].flats[f] = somewhere();
            g->units[u].flats[f] = somewhere();
        }
}

static Pass pass_everywhere(Counter *c, const Weights *w, Gradients g) {
    const RankPlan *p = c->p;
    Pass pass = {.model = &c->model,
                 .device = &c->counting.device,
                 .weights = w,
                 .gradients = g,
                 .batch = {somewhere(), somewhere(), somewhere(), somewhere()},
                 .losses = somewhere(),
                 .z_losses = p->spec.z_loss > 0 ? somewhere() : NULL,
                 .z_loss = (float)p->spec.z_loss,
                 .routed = p->model.config.num_experts > 0 ? somewhere() : NULL,
                 .balance = somewhere(),
                 .mtp_inverse_token_count = somewhere(),
                 .next_ids = program_has_mtp_module(&p->program) ? somewhere() : NULL,
                 .training = true,
                 .defer_head = p->program.defer_head,
                 .inverse_token_count = somewhere()};
    for (int k = 0; k < program_mtp_heads(&p->program); k++)
        pass.mtp_targets[k] = somewhere(), pass.mtp_losses[k] = somewhere();
    return pass;
}

void opcosts_count(OpCosts *out, const Hardware *h, const RankPlan *p, UnitTime *units) {
    size_t n = (size_t)p->model.table.units + 1;
    Counter c = {.h = h, .p = p, .out = out, .model = p->model};
    Weights w = {&p->model.table, p->model.compute, mem_alloc_array(n, sizeof *w.units)};
    Gradients g = {&p->model.table, mem_alloc_array(n, sizeof *g.units), p->partition.tied,
                   partition_rows(&p->partition)};
    *out = (OpCosts){.count = 0};
    c.model.cos_sin = somewhere();
    device_count(&c.counting, model_sequence(&c.model), hear, &c);
    point_everywhere(&w, &g, (int)n);
    c.pass = pass_everywhere(&c, &w, g);
    run_passes(&c, units);
    run_rest(&c);
    free(w.units);
    free(g.units);
}

/* ---- the table ---- */

static int slower(const void *a, const void *b) {
    const OpCost *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void put(const OpCost *c, double all, Text *out) {
    char bytes[32], flops[32] = "";
    if (c->flops > 0) snprintf(flops, sizeof flops, "%.4g", c->flops / 1e12);
    text_printf(out, "    %-28s %9.0f %11s %11s %10.4g %5.1f%%  %s\n", c->name, c->calls, flops,
                text_bytes(c->bytes, bytes), c->seconds, 100 * c->seconds / all,
                c->flops <= 0                    ? "memory"
                : 2 * c->by_memory >= c->seconds ? "memory, not FLOPs"
                                                 : "FLOPs");
}

void opcosts_print(const OpCosts *costs, Text *out) {
    OpCosts sorted = *costs;
    OpCost rest = {.name = "all others"};
    double all = 0;
    for (int i = 0; i < sorted.count; i++) all += sorted.rows[i].seconds;
    qsort(sorted.rows, (size_t)sorted.count, sizeof *sorted.rows, slower);
    text_printf(out, "    %-28s %9s %11s %11s %10s %6s  %s\n", "op, or product of a part", "calls", "TFLOP",
                "moved", "seconds", "share", "bound by");
    for (int i = 0; i < sorted.count; i++) {
        const OpCost *c = &sorted.rows[i];
        if (c->seconds >= 0.002 * all) {
            put(c, all, out);
            continue;
        }
        rest.calls += c->calls, rest.flops += c->flops, rest.bytes += c->bytes, rest.seconds += c->seconds;
        rest.by_memory += c->by_memory;
    }
    if (rest.calls > 0) put(&rest, all, out);
    if (sorted.splits)
        text_puts(
            out,
            "    split-K products and grouped ones count as others do: the kernels that weft has for them "
            "use no matrix\n    instructions yet (docs/use/gpus.md)\n");
}
