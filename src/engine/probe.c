/* Figures of a step's activations, their gradients, and the weights, unit by unit.
 *
 * On a probed step, ops compute figures of what passes have just made, in tensor memory. They are read all at
 * once after the step has ended. On other steps only non-finite values are counted (origin.c).
 *
 *     forward of u       figures of its output            slot (OUTPUT, u, m): after its last op, or after
 *                                                         the sum over ranks that ends it
 *     backward of u      of its input's gradient          slot (GRADIENT, u - 1, m): that of u - 1's output
 *     end of the step    of weights and their gradients   slots after those, one per parameter
 *
 * Sums are exact, and each element is counted by one rank: where tp or cp shard the tokens, each rank counts
 * its local tokens of the residual stream. So the figures have the same bits on every mesh on which the
 * activations and gradients do. bf16 tensors are first copied to fp32, which changes no number. */
#include <math.h>

#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "engine/execution.h"

enum { OUTPUT, GRADIENT, PASS_SLOTS };

static GradStats *pass_slot(const Engine *e, int kind, int unit, int microbatch) {
    int64_t units = e->model.table.units, microbatches = e->plan->program.microbatches;
    return e->statistics.probe.slots + ((int64_t)kind * units + unit) * microbatches + microbatch;
}

static GradStats *param_slot(const Engine *e, bool gradient, int param) {
    int64_t behind = (int64_t)PASS_SLOTS * e->model.table.units * e->plan->program.microbatches;
    return e->statistics.probe.slots + behind + (gradient ? e->model.table.count : 0) + param;
}

void probe_layout(Engine *e) {
    const MemoryPlan *m = &e->plan->memory;
    e->statistics.probe.slots = m->probe.slots ? pool_take(&e->pools[POOL_STATISTICS], m->probe.slots) : NULL;
    e->statistics.probe.wide = m->probe.wide ? pool_take(&e->pools[POOL_STATISTICS], m->probe.wide) : NULL;
}

ErrorCode probe_open(Engine *e, Error *err) {
    size_t bytes = e->plan->memory.probe.slots;
    if (bytes == 0) return OK;
    e->statistics.probe.host = e->device->runtime.host_take(e->device, bytes);
    if (e->statistics.probe.host) return OK;
    return error_set(err, ERR_MEMORY, "the system gave no pinned memory for %zu bytes", bytes);
}

void probe_close(Engine *e) {
    if (e->statistics.probe.host) e->device->runtime.host_give(e->device, e->statistics.probe.host);
}

static bool probing(const Execution *x) { return x->training && x->options->probe; }

void probe_begin(Execution *x) {
    Engine *e = x->engine;
    if (!probing(x)) return;
    CHECK(e->statistics.probe.slots); /* the plan was made with probes */
    OP(e->device, zero, e->statistics.probe.slots, e->plan->memory.probe.slots);
}

/* norm_unit is 1 until the norm is taken; squares need no other. */
static void take(Engine *e, int64_t count, const float *values, GradStats *slot) {
    OP(e->device, grad_stats, .n = count, .g = values, .p = 2, .unit = &e->statistics.scalars->norm_unit,
       .out = slot);
}

/* Elements of a unit's output in a microbatch that are this rank's. */
static int64_t local_states(const Engine *e) {
    return model_local_tokens(&e->model) * e->model.config.hidden_size;
}

/* [local, h] in the compute dtype. */
static void take_states(const Execution *x, int kind, int unit, int microbatch, const void *states) {
    Engine *e = x->engine;
    int64_t count = local_states(e);
    const float *wide = states;
    if (e->model.compute == DTYPE_BF16) {
        OP(e->device, cast, count, states, DTYPE_BF16, e->statistics.probe.wide, DTYPE_F32);
        wide = e->statistics.probe.wide;
    }
    take(e, count, wide, pass_slot(e, kind, unit, microbatch));
}

/* Whether a sum over ranks follows the unit's last op. */
static bool is_summed(const Program *p, int unit) {
    Anatomy n;
    program_anatomy(p, unit, &n);
    for (int i = 0; i < n.count; i++)
        if (n.uses[ACT_FWD][i] && collective_cut(&n.rows[i]) == n.all.end) return true;
    return false;
}

/* An output of which ranks have partial sums is complete after their sum. */
static bool makes_output(const Program *p, Action a) {
    if (a.kind == ACT_WAIT) return a.pass == ACT_FWD && a.ops.first == unit_ops(p->model, a.unit).end;
    return program_ends_unit(p, a) && !is_summed(p, a.unit);
}

void probe_output(Execution *x, Action a, void *out) {
    if (!out || !makes_output(x->program, a)) return;
    origin_states(x, ORIGIN_SENT, local_states(x->engine), x->engine->model.compute, out);
    if (probing(x)) take_states(x, OUTPUT, a.unit, a.microbatch, out);
}

void probe_gradient(Execution *x, Action a, Grads grads, void *dx) {
    if (!(grads & DGRAD) || a.unit == 0 || !program_ends_unit(x->program, a)) return;
    origin_states(x, ORIGIN_SENT, local_states(x->engine), x->engine->model.compute, dx);
    if (probing(x)) take_states(x, GRADIENT, a.unit - 1, a.microbatch, dx);
}

/* ---- at the end of the step ---- */

typedef enum ProbeKind {
    PROBE_OUTPUT,
    PROBE_GRADIENT,
    PROBE_WEIGHT,
    PROBE_WEIGHT_GRADIENT,
    PROBE_KINDS
} ProbeKind;

/* Figures of a unit; after combining, over all ranks. */
typedef struct ProbeRecord {
    struct {
        ExactSum squares;
        double max;
        int64_t nonfinite, count;
    } items[PROBE_KINDS];
} ProbeRecord;

static void add(ProbeRecord *r, ProbeKind kind, const GradStats *s, int64_t count) {
    exact_merge(&r->items[kind].squares, &s->sum);
    r->items[kind].max = fmax(r->items[kind].max, s->max);
    r->items[kind].nonfinite += s->nonfinite;
    r->items[kind].count += count;
}

static void combine(void *into, const void *from) {
    ProbeRecord *a = into;
    const ProbeRecord *b = from;
    for (int k = 0; k < PROBE_KINDS; k++) {
        GradStats s = {
            .sum = b->items[k].squares, .max = b->items[k].max, .nonfinite = b->items[k].nonfinite};
        add(a, (ProbeKind)k, &s, b->items[k].count);
        exact_normalise(&a->items[k].squares);
    }
}

static int64_t counted(const Engine *e, const Param *p) {
    return partition_counts(&e->plan->partition, p) ? partition_segment(&e->plan->partition, p).count : 0;
}

static void take_parameters(Engine *e) {
    const ParamTable *t = &e->model.table;
    for (int i = 0; i < t->count; i++) {
        const Param *p = &t->params[i];
        ParamSegment segment = partition_segment(&e->plan->partition, p);
        if (counted(e, p) == 0) continue;
        take(e, segment.count, engine_master(e, segment), param_slot(e, false, i));
        if (!p->frozen) take(e, segment.count, engine_gradient(e, p, segment), param_slot(e, true, i));
    }
}

static const GradStats *on_host(const Engine *e, const GradStats *slot) {
    return e->statistics.probe.host + (slot - e->statistics.probe.slots);
}

/* Slots that no op of this rank wrote are zero, and their elements are not counted. */
static void add_passes(const Execution *x, int unit, ProbeRecord *r) {
    const Engine *e = x->engine;
    const Partition *p = &e->plan->partition;
    int64_t each = local_states(e);
    bool output = partition_runs(p, unit), gradient = partition_runs(p, unit + 1);
    for (int m = 0; m < x->program->microbatches; m++) {
        if (output) add(r, PROBE_OUTPUT, on_host(e, pass_slot(e, OUTPUT, unit, m)), each);
        if (gradient) add(r, PROBE_GRADIENT, on_host(e, pass_slot(e, GRADIENT, unit, m)), each);
    }
}

static void add_parameters(const Engine *e, int unit, ProbeRecord *r) {
    const ParamTable *t = &e->model.table;
    for (int i = t->unit_first[unit]; i < t->unit_first[unit + 1]; i++) {
        int64_t count = counted(e, &t->params[i]);
        if (count == 0) continue;
        add(r, PROBE_WEIGHT, on_host(e, param_slot(e, false, i)), count);
        if (!t->params[i].frozen) add(r, PROBE_WEIGHT_GRADIENT, on_host(e, param_slot(e, true, i)), count);
    }
}

static ProbeFigures figures_of(const ProbeRecord *r, ProbeKind kind) {
    int64_t count = r->items[kind].count;
    double mean = exact_value(&r->items[kind].squares) / (double)count;
    return (ProbeFigures){.count = count,
                          .nonfinite = r->items[kind].nonfinite,
                          .rms = count > 0 ? sqrt(mean) : (double)NAN,
                          .max = count > 0 ? r->items[kind].max : (double)NAN};
}

void probe_end(Execution *x) {
    Engine *e = x->engine;
    const ParamTable *t = &e->model.table;
    if (!probing(x)) return;
    take_parameters(e);
    device_fetch(e->device, e->statistics.probe.host, e->statistics.probe.slots, e->plan->memory.probe.slots);
    for (int u = 0; u < t->units; u++) {
        ProbeRecord r = {0};
        if (u + 1 < t->units) add_passes(x, u, &r);
        add_parameters(e, u, &r);
        execution_combine(e, &r, sizeof r, combine);
        x->options->probe[u] = (UnitProbe){.output = figures_of(&r, PROBE_OUTPUT),
                                           .gradient = figures_of(&r, PROBE_GRADIENT),
                                           .weight = figures_of(&r, PROBE_WEIGHT),
                                           .weight_gradient = figures_of(&r, PROBE_WEIGHT_GRADIENT)};
    }
}
