/* Runs the passes of a unit, op by op. In a block, each sublayer's result is added to the residual stream x:
 *
 *     forward   enter: x += previous result, n = in(x)     layer: n -> f   norm after: result = out(f)
 *               add: out = result + x
 *     backward  add: dx is the gradient of the stream      norm after: dy = dx through out
 *               layer: dy -> dn                            enter: dx += dn through in
 *
 * Without norm `in`, n is x, and dx += dn; without `out`, the result is f, and dy is dx. A result is written
 * where the unit's output goes, until the stream takes it. A layer that stands alone (embedding, head) goes
 * from the unit's input to its output. A stream may also begin in a unit, with a layer that stands alone, and
 * end there with another one (MTP module): then its results share the memory of dn, and its gradient has
 * memory of its own.
 *
 * Every pass is a walk over the steps of sublayers.c in one direction or the other. The caller chooses which
 * steps to run and may stop between any two. So nothing is carried from step to step except in the
 * tensors. */
#include "model/families/family.h"
#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "model/internal.h"

typedef struct Run {
    const UnitPass *u;
    int count;
    Step steps[UNIT_OPS];
    Sublayer sublayers[UNIT_SUBLAYERS];
    UnitTensors tensors;
    void *out;     /* where results go: the unit's output, if the stream goes through the unit */
    void *dstream; /* gradient of the stream: dx, if the stream goes through the unit */
} Run;

/* Everything that a pass needs to know of its unit. It is derived for each call, which costs some dozens of
 * additions, so nothing has to be kept or freed. */
static Run start(const UnitPass *u) {
    const Model *m = u->pass->model;
    Run r = {.u = u};
    unit_sublayers(&m->config, u->unit, r.sublayers);
    r.count = unit_steps(&m->config, u->unit, r.steps);
    unit_tensors(u, &r.tensors);
    bool begins = r.tensors.dstream != NULL;
    r.out = begins ? r.tensors.dn : u->out;
    r.dstream = begins ? r.tensors.dstream : u->dx;
    return r;
}

static int64_t state_elements(const Run *r) {
    const Model *m = r->u->pass->model;
    return model_local_tokens(m) * m->config.hidden_size;
}

/* out = a + b: states [local, h]. */
static void add_states(const Run *r, const void *a, const void *b, void *out) {
    const Pass *p = r->u->pass;
    OP(p->device, add, state_elements(r), a, b, out, p->model->compute);
}

static bool is_shared(const Run *r) { return r->u->pass->model->tp.size > 1; }

/* Whether ranks have partial sums of a layer's result, or of the gradient of its input (`of`: UNIT_Y,
 * UNIT_DX). */
static bool has_partials(const Run *r, int sublayer, int of) {
    const Layer *l = r->sublayers[sublayer].layer;
    for (int i = 0; is_shared(r) && i < l->collective_count; i++)
        if (l->collectives[i].from == PARTIALS && l->collectives[i].to == of) return true;
    return false;
}

/* Where a sublayer's result is, for the stream or the norm after the layer. */
static void *result_of(const Run *r, int sublayer, void *result) {
    void *own = r->tensors.sublayers[sublayer].result;
    return own ? own : result;
}

/* `result`: where the results of this and earlier sublayers are. With TP, the layer reads the all-gathered
 * input and writes partial sums, which unit_unpack rounds into `result`. */
static LayerPass layer_pass(const Run *r, const Step *step, void *result) {
    const SublayerTensors *t = &r->tensors.sublayers[step->sublayer];
    const Shared *shared = &r->tensors.shared;
    bool partials = has_partials(r, step->sublayer, UNIT_Y);
    return (LayerPass){.pass = r->u->pass,
                       .unit = r->u->unit,
                       .slice = r->u->slice,
                       .tensors = t->layer,
                       .shared = shared,
                       .adapters = &r->tensors.adapters,
                       .inner = t->inner,
                       .local_x = t->n,
                       .input = r->u->saved,
                       .dstream = r->dstream,
                       .x = is_shared(r) ? shared->full : t->n,
                       .y = partials ? shared->partials : result_of(r, step->sublayer, result)};
}

/* ---- forward ---- */

/* The stream already exists if it was saved, in the first sublayer, and after the layer that begins it: then
 * only the norm remains. */
static void enter(const Run *r, int index, const void *result, bool saved) {
    const Pass *p = r->u->pass;
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const ParamRow *norm = r->sublayers[index].in;
    bool sum = index > 0 && !saved && !sublayer_alone(&r->sublayers[index - 1]);
    if (norm)
        norm_forward(p, r->u->unit, norm, model_local_tokens(p->model), sum ? t[-1].x : t->x,
                     sum ? result : NULL, sum ? t->x : NULL, t->n, t->rstd);
    else if (sum)
        add_states(r, t[-1].x, result, t->x);
}

/* The layer's result stays in its own tensor, since the norm's backward pass reads it. The stream takes the
 * normed one. */
static void norm_behind(const Run *r, int index, void *result) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const Pass *p = r->u->pass;
    norm_forward(p, r->u->unit, r->sublayers[index].out, model_local_tokens(p->model), t->result, NULL, NULL,
                 result, t->out_rstd);
}

static void forward_step(const Run *r, const Step *step, void *result, bool saved) {
    LayerPass w = layer_pass(r, step, result);
    switch (step->kind) {
    case STEP_ENTER: enter(r, step->sublayer, result, saved); break;
    case STEP_LAYER: step->op->forward(&w); break;
    case STEP_NORM_BEHIND: norm_behind(r, step->sublayer, result); break;
    case STEP_ADD: add_states(r, result, r->tensors.sublayers[step->sublayer].x, result); break;
    }
}

/* Without training, a stream that begins in the unit is not computed, and so not read at its end. */
static bool is_passed_over(const Run *r, const Step *step) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    bool trains = s->training || (step->op && step->op->trains);
    return !r->u->pass->training && (trains || (step->kind == STEP_ENTER && sublayer_alone(s)));
}

void unit_forward(const UnitPass *u, OpRange ops) {
    Run r = start(u);
    CHECK(ops.first >= 0 && ops.end <= r.count);
    for (int i = ops.first; i < ops.end; i++)
        if (!is_passed_over(&r, &r.steps[i])) forward_step(&r, &r.steps[i], r.out, false);
}

/* Results go to dn, where gradients of the layers' inputs will be: the first of those is written after the
 * last result is read. */
void unit_recompute(const UnitPass *u, OpRange ops) {
    Run r = start(u);
    Recompute policy = u->pass->model->recompute;
    CHECK(ops.first >= 0 && ops.end <= r.count);
    for (int i = ops.first; i < ops.end; i++) {
        const Step *step = &r.steps[i];
        bool saved = lifetime_stays(stream_lifetime(step->sublayer), policy);
        if (!lifetime_stays(step->makes, policy)) forward_step(&r, step, r.tensors.dn, saved);
    }
}

/* ---- backward ---- */

/* Adds to dx, since the stream went past the sublayer as well as through it. A layer that ends the stream has
 * set dx. */
static void backward_enter(const Run *r, int index) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const ParamRow *norm = r->sublayers[index].in;
    if (norm)
        norm_backward(r->u->pass, r->u->unit, norm, t->x, t->rstd, r->tensors.dn, r->dstream, true);
    else if (!sublayer_alone(&r->sublayers[index]))
        add_states(r, r->dstream, r->tensors.dn, r->dstream);
}

static void backward_norm_behind(const Run *r, int index) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    norm_backward(r->u->pass, r->u->unit, r->sublayers[index].out, t->result, t->out_rstd, r->dstream, t->dy,
                  false);
}

/* Saves the gradient of a sublayer's result for a separate wgrad, since dx changes meanwhile. */
static void keep_gradient(const Run *r, int index) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    const Sublayer *s = &r->sublayers[index];
    if (sublayer_alone(s) || s->out) return;
    OP(p->device, cast, state_elements(r), r->dstream, m->compute, r->tensors.sublayers[index].dy,
       m->compute);
}

/* Where the gradient of the layer's result is. It is in dy if a norm after the layer put it there, or if
 * wgrad runs separately, when dx has changed; else it is dx itself. */
static const void *result_gradient(const Run *r, int sublayer, Grads grads) {
    const Sublayer *s = &r->sublayers[sublayer];
    bool apart = s->out || (grads == WGRAD && !sublayer_alone(s));
    return apart ? r->tensors.sublayers[sublayer].dy : r->dstream;
}

/* With TP, the layer reads the all-gathered gradient, and writes partial sums of its input's gradient if that
 * is reduced over ranks. */
static void backward_layer(const Run *r, const Step *step, Grads grads) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    const Shared *shared = &r->tensors.shared;
    bool alone = sublayer_alone(s);
    LayerPass w = layer_pass(r, step, NULL);
    Grads pass = r->u->together ? BOTH_GRADS : grads;
    if (pass == DGRAD && step->last) keep_gradient(r, step->sublayer);
    w.local_dy = result_gradient(r, step->sublayer, pass);
    w.dy = is_shared(r) ? shared->dfull : w.local_dy;
    bool partials = has_partials(r, step->sublayer, UNIT_DX);
    w.dx = alone ? r->u->dx : partials ? (void *)shared->partials : r->tensors.dn;
    step->op->backward(&w, grads);
}

static void backward_step(const Run *r, const Step *step, Grads grads) {
    switch (step->kind) {
    case STEP_ENTER:
        if (grads & DGRAD) backward_enter(r, step->sublayer);
        break;
    case STEP_LAYER: backward_layer(r, step, grads); break;
    case STEP_NORM_BEHIND:
        if (grads & DGRAD) backward_norm_behind(r, step->sublayer);
        break;
    case STEP_ADD: break; /* the gradient passes through unchanged */
    }
}

void unit_backward(const UnitPass *u, Grads grads, OpRange ops) {
    Run r = start(u);
    CHECK(ops.first >= 0 && ops.end <= r.count);
    for (int i = ops.end - 1; i >= ops.first; i--) backward_step(&r, &r.steps[i], grads);
}

/* ---- what ranks exchange ---- */

/* A collective row of the unit, and the step of the op that makes what is sent or reads what is received. */
typedef struct RowStep {
    UnitCollective at;
    const Collective *row;
    const Step *step;
} RowStep;

static const Step *op_of(const Step steps[UNIT_OPS], const UnitCollective *c) {
    uint32_t ops = collective_ops(c);
    bool last = c->row->behind && c->row->passes & IN_FORWARD;
    return &steps[last ? 31 - __builtin_clz(ops) : __builtin_ctz(ops)];
}

static RowStep row_step(const Run *r, int row) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(&r->u->pass->model->config, r->u->unit, rows);
    CHECK(row >= 0 && row < count);
    return (RowStep){rows[row], rows[row].row, op_of(r->steps, &rows[row])};
}

static void *tensor_of(const Run *r, const RowStep *x, int tensor, PassKind pass, Grads grads) {
    const SublayerTensors *t = &r->tensors.sublayers[x->at.sublayer];
    const Shared *shared = &r->tensors.shared;
    switch (tensor) {
    case UNIT_X: return t->n;
    case UNIT_DX: return r->tensors.dn;
    case UNIT_Y: return result_of(r, x->at.sublayer, pass == PASS_RECOMPUTE ? r->tensors.dn : r->out);
    case UNIT_DY: return (void *)(uintptr_t)result_gradient(r, x->at.sublayer, grads);
    case FULL_X: return shared->full;
    case FULL_DY: return shared->dfull;
    case PARTIALS: return shared->partials;
    case LOSS_RECORDS: return shared->records;
    default: return t->layer[tensor];
    }
}

/* The product whose adapters' partial sums are sent along with those of the stream; NULL: none. */
static const Product *adapted_by(const Collective *row, const Step *step) {
    bool stream = row->from == PARTIALS && (row->to == UNIT_Y || row->to == UNIT_DX);
    return !stream ? NULL : row->adapted ? row->adapted : step->op->product;
}

int64_t unit_inner_width(const Model *m, int unit, const UnitCollective *c) {
    Step steps[UNIT_OPS];
    if (!m->config.adapter_replicated) return 0;
    unit_steps(&m->config, unit, steps);
    const Product *p = adapted_by(c->row, op_of(steps, c));
    return p ? product_adapters(m, unit, p) * m->config.adapter_rank : 0;
}

int64_t unit_widest_inner(const Model *m, int unit) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int64_t widest = 0;
    int count = m->config.adapter_replicated ? unit_collectives(&m->config, unit, rows) : 0;
    for (int i = 0; i < count; i++) {
        int64_t width = unit_inner_width(m, unit, &rows[i]);
        if (width > widest) widest = width;
    }
    return widest;
}

UnitExchange unit_exchange(const UnitPass *u, int row, PassKind pass, Grads grads, int chunk) {
    Run r = start(u);
    const Model *m = u->pass->model;
    RowStep x = row_step(&r, row);
    void *from = tensor_of(&r, &x, x.row->from, pass, grads), *to = tensor_of(&r, &x, x.row->to, pass, grads);
    bool sum = x.row->kind == COLL_REDUCE_SCATTER, there = from == to || x.row->pack;
    return (UnitExchange){.row = x.row,
                          .from = x.row->kind == COLL_ALL_GATHER && there ? NULL : from,
                          .to = sum ? from : to,
                          .count = collective_count(m, x.row, chunk),
                          .bytes = collective_element(m, x.row),
                          .inner = r.tensors.shared.inner,
                          .inner_width = unit_inner_width(m, u->unit, &x.at)};
}

static const Collective *row_at(const UnitPass *u, int row) {
    UnitCollective rows[UNIT_COLLECTIVES];
    unit_collectives(&u->pass->model->config, u->unit, rows);
    return rows[row].row;
}

void unit_pack(const UnitPass *u, int row) {
    if (!row_at(u, row)->pack) return;
    Run r = start(u);
    RowStep x = row_step(&r, row);
    LayerPass w = layer_pass(&r, x.step, NULL);
    x.row->pack(&w, x.row);
}

/* Only a layer's result gets the bias of the product that made it; the embedding has no product. */
static void take_sum(const Run *r, const RowStep *x, LayerPass *w, void *to) {
    const Pass *p = r->u->pass;
    int64_t own = state_elements(r);
    const float *sum = r->tensors.shared.partials + p->model->tp.rank * own;
    const Product *product = x->step->op->product;
    if (x->row->to == UNIT_Y && product)
        product_summed(w, product, sum, to);
    else
        OP(p->device, cast, own, sum, DTYPE_F32, to, p->model->compute);
    if (x->row->to == UNIT_Y && x->row->adapted) product_adapters_summed(w, x->row->adapted, to);
    if (x->row->to == UNIT_DX) product_input_summed(w, adapted_by(x->row, x->step), to);
    w->dx = to;
}

void unit_unpack(const UnitPass *u, int row, PassKind pass) {
    const Collective *c = row_at(u, row);
    if (c->from != PARTIALS && !c->unpack) return;
    Run r = start(u);
    RowStep x = row_step(&r, row);
    LayerPass w = layer_pass(&r, x.step, NULL);
    if (c->from == PARTIALS) take_sum(&r, &x, &w, tensor_of(&r, &x, c->to, pass, BOTH_GRADS));
    if (c->unpack) c->unpack(&w, c);
}

/* ---- dispatch ---- */

static const ExpertDispatch *dispatch_at(const Run *r, int op) {
    const ExpertDispatch *v = r->sublayers[r->steps[op].sublayer].layer->dispatch;
    CHECK(v != NULL);
    return v;
}

static size_t dispatch_tensor_bytes(const Model *m, const DispatchTensor *c) {
    size_t element = c->element == ELEMENT_COMPUTE ? dtype_bytes(m->compute) : sizeof(float);
    return (size_t)model_dim(&m->config, c->width) * element;
}

/* How many tensors of this kind are sent; 0 where others replace it. */
static int dispatch_times(const Model *m, const DispatchTensor *c) {
    bool splits = model_expert_splits(m) > 1;
    if (c->when == DISPATCH_ALWAYS) return 1;
    if (c->when == DISPATCH_WHOLE) return splits ? 0 : 1;
    return splits ? model_local_expert_splits(m) : 0;
}

/* Lists the tensors that are sent; returns their number. */
static int list_tensors(const Model *m, const DispatchTensor *list, int count, void *const *tensors,
                        DispatchRows out[DISPATCH_TENSORS]) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = dispatch_tensor_bytes(m, &list[i]);
        int times = dispatch_times(m, &list[i]);
        if (times > 0)
            out[n++] =
                (DispatchRows){tensors[list[i].local],        tensors[list[i].remote],         bytes, times,
                               (size_t)model_rows(m) * bytes, (size_t)m->dispatch_rows * bytes};
    }
    return n;
}

DispatchTensors unit_dispatch(const UnitPass *u, int op, DispatchPass way) {
    Run r = start(u);
    const ExpertDispatch *v = dispatch_at(&r, op);
    const ExpertPass *expert_pass = &v->way[way];
    void *const *t = r.tensors.sublayers[r.steps[op].sublayer].layer;
    const Model *m = u->pass->model;
    int64_t runs = model_first_piece(m) * model_dim(&m->config, DIM_RUNS);
    DispatchTensors out = {.runs = (int32_t *)t[v->runs] + runs,
                           .all_runs = t[v->all_runs],
                           .local_runs = t[v->local_runs],
                           .arrived = model_is_folded(m) ? t[v->arrived] : NULL,
                           .orders = model_is_folded(m) ? t[v->orders] : NULL};
    out.out_count = list_tensors(u->pass->model, expert_pass->out, expert_pass->out_count, t, out.out);
    out.back_count = list_tensors(u->pass->model, expert_pass->back, expert_pass->back_count, t, out.back);
    return out;
}

size_t unit_dispatch_bytes(const Model *m, int unit, int op, DispatchPass way) {
    Pass pass = {.model = m};
    Run r = start(&(UnitPass){.pass = &pass, .unit = unit});
    const ExpertPass *expert_pass = &dispatch_at(&r, op)->way[way];
    size_t sum = 0;
    for (int i = 0; i < expert_pass->out_count; i++)
        sum +=
            (size_t)dispatch_times(m, &expert_pass->out[i]) * dispatch_tensor_bytes(m, &expert_pass->out[i]);
    for (int i = 0; i < expert_pass->back_count; i++)
        sum += (size_t)dispatch_times(m, &expert_pass->back[i]) *
               dispatch_tensor_bytes(m, &expert_pass->back[i]);
    return sum;
}

/* Operands as if the ops ran locally; dgrad and wgrad together. */
static LayerPass dispatch_pass(const Run *r, int op, DispatchPass way) {
    const Step *step = &r->steps[op];
    LayerPass w = layer_pass(r, step, r->u->out ? r->u->out : r->tensors.dn);
    if (way == DISPATCH_FORWARD) return w;
    w.local_dy = result_gradient(r, step->sublayer, BOTH_GRADS);
    w.dy = is_shared(r) ? r->tensors.shared.dfull : w.local_dy;
    /* sums over all experts of a token */
    bool partials = has_partials(r, step->sublayer, UNIT_DX);
    w.dx = partials ? (void *)r->tensors.shared.partials : r->tensors.dn;
    return w;
}

void unit_permute(const UnitPass *u, int op, DispatchPass way) {
    Run r = start(u);
    if (way == DISPATCH_BACKWARD && !u->together) keep_gradient(&r, r.steps[op].sublayer);
    LayerPass w = dispatch_pass(&r, op, way);
    dispatch_at(&r, op)->way[way].permute(&w);
}

void unit_experts(const UnitPass *u, int op, DispatchPass way, const RemoteRows *v) {
    Run r = start(u);
    LayerPass w = dispatch_pass(&r, op, way);
    if (v->count > 0) dispatch_at(&r, op)->way[way].experts(&w, v);
}

void unit_expert_weights(const UnitPass *u, int op, const RemoteRows *v) {
    Run r = start(u);
    LayerPass w = dispatch_pass(&r, op, DISPATCH_BACKWARD);
    dispatch_at(&r, op)->way[DISPATCH_BACKWARD].weights(&w, v);
}

void unit_expert_results(const UnitPass *u, int op, DispatchPass way, const RemoteRows *v) {
    Run r = start(u);
    LayerPass w = dispatch_pass(&r, op, way);
    if (v->count > 0) dispatch_at(&r, op)->way[way].results(&w, v);
}

void unit_unpermute(const UnitPass *u, int op, DispatchPass way) {
    Run r = start(u);
    LayerPass w = dispatch_pass(&r, op, way);
    dispatch_at(&r, op)->way[way].unpermute(&w);
}
