/* Runs the passes of a unit, part by part. A block is the stream x with each sublayer's result added to it:
 *
 *     forward   enter: x += the result before, n = in(x)   layer: n -> f   leave: result = out(f)
 *               sum: out = result + x
 *     backward  sum: dx is the gradient of the stream      leave: dy = dx through out
 *               layer: dy -> dn                            enter: dx += dn through in
 *
 * Without norm `in`, n is x, and dx += dn; without `out`, the result is f, and dy is dx. A result lives where
 * the unit's output goes until the stream takes it. A layer that stands alone (embedding, head) goes from the
 * unit's input to its output by itself. A stream may begin in a unit, with a layer that stands alone, and end
 * there with another one (a module): then its results are where gradients of layers' inputs will be, and its
 * gradient has a place of its own.
 *
 * Everything here is a walk over the steps of sublayers.c in one direction or the other; which of them a
 * pass does is up to who runs it, and between any two of them it may stop. So nothing is carried from step to
 * step but by the tensors. */
#include "model/families/family.h"
#include "model/internal.h"

typedef struct Run {
    const UnitPass *u;
    int count;
    Step steps[UNIT_PARTS];
    Sublayer sublayers[UNIT_SUBLAYERS];
    UnitTensors tensors;
    void *out;     /* where results go: the unit's output is made there, where it has one */
    void *dstream; /* gradient of the stream: dx, where this goes through the unit */
} Run;

/* All that a pass needs to know of its unit, made anew for each: some dozens of additions, so nothing has
 * to be kept or freed. */
static Run start(const UnitPass *u) {
    const Model *m = u->pass->model;
    Run r = {.u = u};
    unit_sublayers(&m->config, u->unit, r.sublayers);
    r.count = unit_steps(&m->config, u->unit, r.steps);
    unit_tensors(m, u->unit, u->slab, u->keep, u->scratch, &r.tensors);
    bool begins = r.tensors.dstream != NULL;
    r.out = begins ? r.tensors.dn : u->out;
    r.dstream = begins ? r.tensors.dstream : u->dx;
    return r;
}

static int64_t state_elements(const Run *r) {
    const Model *m = r->u->pass->model;
    return model_own_tokens(m) * m->config.hidden_size;
}

/* out = a + b: states [own, h]. */
static void add_states(const Run *r, const void *a, const void *b, void *out) {
    const Pass *p = r->u->pass;
    OP(p->device, OP_ADD, add, state_elements(r), a, b, out, p->model->compute);
}

static bool is_shared(const Run *r) { return r->u->pass->model->sharing.ranks > 1; }

/* Whether ranks have partial sums of a layer's result, or of the gradient of its input (UNIT_Y, UNIT_DX). */
static bool has_partials(const Run *r, int sublayer, int of) {
    const Layer *l = r->sublayers[sublayer].layer;
    for (int i = 0; is_shared(r) && i < l->collective_count; i++)
        if (l->collectives[i].from == PARTIALS && l->collectives[i].to == of) return true;
    return false;
}

/* Where a sublayer's result is, for the stream or the norm behind it. */
static void *result_of(const Run *r, int sublayer, void *result) {
    void *own = r->tensors.sublayers[sublayer].result;
    return own ? own : result;
}

/* `result`: where the sublayer's, and those of sublayers before it, are. Shared, the layer reads what was
 * gathered and makes terms of a sum, which unit_summed puts there. */
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
                       .own_x = t->n,
                       .input = r->u->slab,
                       .dstream = r->dstream,
                       .x = is_shared(r) ? shared->whole : t->n,
                       .y = partials ? shared->terms : result_of(r, step->sublayer, result)};
}

/* ---- forward ---- */

/* The stream is there already where it was saved, in the first sublayer, and behind the layer that begins it:
 * then only the norm is left. */
static void enter(const Run *r, int index, const void *result, bool saved) {
    const Pass *p = r->u->pass;
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const ParamRow *norm = r->sublayers[index].in;
    bool sum = index > 0 && !saved && !sublayer_alone(&r->sublayers[index - 1]);
    if (norm)
        norm_forward(p, r->u->unit, norm, model_own_tokens(p->model), sum ? t[-1].x : t->x,
                     sum ? result : NULL, sum ? t->x : NULL, t->n, t->rstd);
    else if (sum)
        add_states(r, t[-1].x, result, t->x);
}

/* The layer's result stays where it is, since the norm's backward pass reads it; what the stream takes is
 * normed. */
static void leave(const Run *r, int index, void *result) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const Pass *p = r->u->pass;
    norm_forward(p, r->u->unit, r->sublayers[index].out, model_own_tokens(p->model), t->result, NULL, NULL,
                 result, t->out_rstd);
}

static void forward_step(const Run *r, const Step *step, void *result, bool saved) {
    LayerPass w = layer_pass(r, step, result);
    switch (step->kind) {
    case STEP_ENTER: enter(r, step->sublayer, result, saved); break;
    case STEP_LAYER: step->part->forward(&w); break;
    case STEP_LEAVE: leave(r, step->sublayer, result); break;
    case STEP_ADD: add_states(r, result, r->tensors.sublayers[step->sublayer].x, result); break;
    }
}

/* Without training a stream that begins in the unit is not made, and so not taken at its end. */
static bool is_passed_over(const Run *r, const Step *step) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    bool trains = s->training || (step->part && step->part->trains);
    return !r->u->pass->training && (trains || (step->kind == STEP_ENTER && sublayer_alone(s)));
}

void unit_forward(const UnitPass *u, Parts parts) {
    Run r = start(u);
    CHECK(parts.first >= 0 && parts.end <= r.count);
    for (int i = parts.first; i < parts.end; i++)
        if (!is_passed_over(&r, &r.steps[i])) forward_step(&r, &r.steps[i], r.out, false);
}

/* Results go where gradients of layers' inputs will: the first of those comes after the last result. */
void unit_recompute(const UnitPass *u, Parts parts) {
    Run r = start(u);
    Recompute policy = u->pass->model->recompute;
    CHECK(parts.first >= 0 && parts.end <= r.count);
    for (int i = parts.first; i < parts.end; i++) {
        const Step *step = &r.steps[i];
        bool saved = lifetime_stays(stream_lifetime(step->sublayer), policy);
        if (!lifetime_stays(step->makes, policy)) forward_step(&r, step, r.tensors.dn, saved);
    }
}

/* ---- backward ---- */

/* dx is added to and not set: the stream went past the sublayer as well as through it; but for a layer at its
 * end, which has set it. */
static void backward_enter(const Run *r, int index) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    const ParamRow *norm = r->sublayers[index].in;
    if (norm)
        norm_backward(r->u->pass, r->u->unit, norm, t->x, t->rstd, r->tensors.dn, r->dstream, true);
    else if (!sublayer_alone(&r->sublayers[index]))
        add_states(r, r->dstream, r->tensors.dn, r->dstream);
}

static void backward_leave(const Run *r, int index) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    norm_backward(r->u->pass, r->u->unit, r->sublayers[index].out, t->result, t->out_rstd, r->dstream, t->dy,
                  false);
}

/* The gradient of a sublayer's result, as the weight half alone will want it: dx goes on changing. */
static void keep_gradient(const Run *r, int index) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    const Sublayer *s = &r->sublayers[index];
    if (sublayer_alone(s) || s->out) return;
    OP(p->device, OP_CAST, cast, state_elements(r), r->dstream, m->compute, r->tensors.sublayers[index].dy,
       m->compute);
}

/* Where the gradient of the layer's result is: in dy if a norm behind the layer put it there, or if the
 * weight half comes alone, when dx has long gone on; else it is dx itself. */
static const void *result_gradient(const Run *r, int sublayer, Half half) {
    const Sublayer *s = &r->sublayers[sublayer];
    bool apart = s->out || (half == HALF_WEIGHT && !sublayer_alone(s));
    return apart ? r->tensors.sublayers[sublayer].dy : r->dstream;
}

/* Shared, the layer reads that gradient as it was gathered, and makes terms of its input's, if these are. */
static void backward_layer(const Run *r, const Step *step, Half half) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    const Shared *shared = &r->tensors.shared;
    bool alone = sublayer_alone(s);
    LayerPass w = layer_pass(r, step, NULL);
    Half pass = r->u->together ? HALF_BOTH : half;
    if (pass == HALF_INPUT && step->last) keep_gradient(r, step->sublayer);
    w.own_dy = result_gradient(r, step->sublayer, pass);
    w.dy = is_shared(r) ? shared->dwhole : w.own_dy;
    bool partials = has_partials(r, step->sublayer, UNIT_DX);
    w.dx = alone ? r->u->dx : partials ? (void *)shared->terms : r->tensors.dn;
    step->part->backward(&w, half);
}

static void backward_step(const Run *r, const Step *step, Half half) {
    switch (step->kind) {
    case STEP_ENTER:
        if (half & HALF_INPUT) backward_enter(r, step->sublayer);
        break;
    case STEP_LAYER: backward_layer(r, step, half); break;
    case STEP_LEAVE:
        if (half & HALF_INPUT) backward_leave(r, step->sublayer);
        break;
    case STEP_ADD: break; /* a sum hands its gradient on as it is */
    }
}

void unit_backward(const UnitPass *u, Half half, Parts parts) {
    Run r = start(u);
    CHECK(parts.first >= 0 && parts.end <= r.count);
    for (int i = parts.end - 1; i >= parts.first; i--) backward_step(&r, &r.steps[i], half);
}

/* ---- what ranks exchange ---- */

/* A row of the unit, and the step of the op that it is for: which makes what is sent, or reads what comes. */
typedef struct Exchange {
    UnitCollective at;
    const Collective *row;
    const Step *step;
} Exchange;

static const Step *op_of(const Step steps[UNIT_PARTS], const UnitCollective *c) {
    uint32_t ops = collective_ops(c);
    bool last = c->row->behind && c->row->passes & IN_FORWARD;
    return &steps[last ? 31 - __builtin_clz(ops) : __builtin_ctz(ops)];
}

static Exchange exchange_of(const Run *r, int row) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int count = unit_collectives(&r->u->pass->model->config, r->u->unit, rows);
    CHECK(row >= 0 && row < count);
    return (Exchange){rows[row], rows[row].row, op_of(r->steps, &rows[row])};
}

static void *tensor_of(const Run *r, const Exchange *x, int tensor, PassKind pass, Half half) {
    const SublayerTensors *t = &r->tensors.sublayers[x->at.sublayer];
    const Shared *shared = &r->tensors.shared;
    switch (tensor) {
    case UNIT_X: return t->n;
    case UNIT_DX: return r->tensors.dn;
    case UNIT_Y: return result_of(r, x->at.sublayer, pass == PASS_AGAIN ? r->tensors.dn : r->out);
    case UNIT_DY: return (void *)(uintptr_t)result_gradient(r, x->at.sublayer, half);
    case FULL_X: return shared->whole;
    case FULL_DY: return shared->dwhole;
    case PARTIALS: return shared->terms;
    case LOSS_RECORDS: return shared->records;
    default: return t->layer[tensor];
    }
}

/* Whose adapters' partial sums go along with those of the stream. */
static const Product *adapted_by(const Collective *row, const Step *step) {
    bool stream = row->from == PARTIALS && (row->to == UNIT_Y || row->to == UNIT_DX);
    return !stream ? NULL : row->adapted ? row->adapted : step->part->product;
}

int64_t unit_inner_width(const Model *m, int unit, const UnitCollective *c) {
    Step steps[UNIT_PARTS];
    if (!m->config.adapter_joint) return 0;
    unit_steps(&m->config, unit, steps);
    const Product *p = adapted_by(c->row, op_of(steps, c));
    return p ? product_adapters(m, unit, p) * m->config.adapter_rank : 0;
}

int64_t unit_widest_inner(const Model *m, int unit) {
    UnitCollective rows[UNIT_COLLECTIVES];
    int64_t widest = 0;
    int count = m->config.adapter_joint ? unit_collectives(&m->config, unit, rows) : 0;
    for (int i = 0; i < count; i++) {
        int64_t width = unit_inner_width(m, unit, &rows[i]);
        if (width > widest) widest = width;
    }
    return widest;
}

Transfer unit_transfer(const UnitPass *u, int row, PassKind pass, Half half, int chunk) {
    Run r = start(u);
    const Model *m = u->pass->model;
    Exchange x = exchange_of(&r, row);
    void *from = tensor_of(&r, &x, x.row->from, pass, half), *to = tensor_of(&r, &x, x.row->to, pass, half);
    bool sum = x.row->kind == COLL_REDUCE_SCATTER, there = from == to || x.row->pack;
    return (Transfer){.row = x.row,
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
    Exchange x = exchange_of(&r, row);
    LayerPass w = layer_pass(&r, x.step, NULL);
    x.row->pack(&w, x.row);
}

/* Only a layer's result gets the bias of the product that has made it; the embedding has no product. */
static void take_sum(const Run *r, const Exchange *x, LayerPass *w, void *to) {
    const Pass *p = r->u->pass;
    int64_t own = state_elements(r);
    const float *sum = r->tensors.shared.terms + p->model->sharing.place * own;
    const Product *product = x->step->part->product;
    if (x->row->to == UNIT_Y && product)
        product_summed(w, product, sum, to);
    else
        OP(p->device, OP_CAST, cast, own, sum, DTYPE_F32, to, p->model->compute);
    if (x->row->to == UNIT_Y && x->row->adapted) product_adapters_summed(w, x->row->adapted, to);
    if (x->row->to == UNIT_DX) product_input_summed(w, adapted_by(x->row, x->step), to);
    w->dx = to;
}

void unit_unpack(const UnitPass *u, int row, PassKind pass) {
    const Collective *c = row_at(u, row);
    if (c->from != PARTIALS && !c->unpack) return;
    Run r = start(u);
    Exchange x = exchange_of(&r, row);
    LayerPass w = layer_pass(&r, x.step, NULL);
    if (c->from == PARTIALS) take_sum(&r, &x, &w, tensor_of(&r, &x, c->to, pass, HALF_BOTH));
    if (c->unpack) c->unpack(&w, c);
}

/* ---- visits ---- */

static const Visits *visits_at(const Run *r, int part) {
    const Visits *v = r->sublayers[r->steps[part].sublayer].layer->visits;
    CHECK(v != NULL);
    return v;
}

static size_t carried_bytes(const Model *m, const Carried *c) {
    size_t element = c->element == ELEMENT_COMPUTE ? dtype_bytes(m->compute) : sizeof(float);
    return (size_t)model_dim(&m->config, c->width) * element;
}

/* How many times rows of this go: 0 where there are others in their place. */
static int carried_times(const Model *m, const Carried *c) {
    bool leaves = m->sharing.leaves > 1;
    if (c->when == CARRIED_ALWAYS) return 1;
    if (c->when == CARRIED_WHOLE) return leaves ? 0 : 1;
    return leaves ? model_own_leaves(m) : 0;
}

/* Those that do; returns how many kinds of rows these are. */
static int carry(const Model *m, const Carried *list, int count, void *const *tensors,
                 VisitedRows out[CARRIED]) {
    int n = 0;
    for (int i = 0; i < count; i++) {
        size_t bytes = carried_bytes(m, &list[i]);
        int times = carried_times(m, &list[i]);
        if (times > 0)
            out[n++] = (VisitedRows){tensors[list[i].home],
                                     tensors[list[i].away],
                                     bytes,
                                     times,
                                     (size_t)model_choices(m) * bytes,
                                     (size_t)m->visitors * bytes};
    }
    return n;
}

VisitTensors unit_visit(const UnitPass *u, int part, VisitWay way) {
    Run r = start(u);
    const Visits *v = visits_at(&r, part);
    const Visit *visit = &v->way[way];
    void *const *t = r.tensors.sublayers[r.steps[part].sublayer].layer;
    VisitTensors out = {.runs = t[v->runs], .all_runs = t[v->all_runs], .own_runs = t[v->own_runs]};
    out.out_count = carry(u->pass->model, visit->out, visit->out_count, t, out.out);
    out.back_count = carry(u->pass->model, visit->back, visit->back_count, t, out.back);
    return out;
}

size_t unit_visit_bytes(const Model *m, int unit, int part, VisitWay way) {
    Pass pass = {.model = m};
    Run r = start(&(UnitPass){.pass = &pass, .unit = unit});
    const Visit *visit = &visits_at(&r, part)->way[way];
    size_t sum = 0;
    for (int i = 0; i < visit->out_count; i++)
        sum += (size_t)carried_times(m, &visit->out[i]) * carried_bytes(m, &visit->out[i]);
    for (int i = 0; i < visit->back_count; i++)
        sum += (size_t)carried_times(m, &visit->back[i]) * carried_bytes(m, &visit->back[i]);
    return sum;
}

/* What the parts read and make at home, as if they ran here; both halves of a backward pass at once. */
static LayerPass visit_pass(const Run *r, int part, VisitWay way) {
    const Step *step = &r->steps[part];
    LayerPass w = layer_pass(r, step, r->u->out ? r->u->out : r->tensors.dn);
    if (way == VISIT_FORWARD) return w;
    w.own_dy = result_gradient(r, step->sublayer, HALF_BOTH);
    w.dy = is_shared(r) ? r->tensors.shared.dwhole : w.own_dy;
    w.dx = is_shared(r) ? (void *)r->tensors.shared.terms : r->tensors.dn; /* of all experts of a token */
    return w;
}

void unit_leave(const UnitPass *u, int part, VisitWay way) {
    Run r = start(u);
    if (way == VISIT_BACKWARD && !u->together) keep_gradient(&r, r.steps[part].sublayer);
    LayerPass w = visit_pass(&r, part, way);
    visits_at(&r, part)->way[way].leave(&w);
}

void unit_work(const UnitPass *u, int part, VisitWay way, const Visitors *v) {
    Run r = start(u);
    LayerPass w = visit_pass(&r, part, way);
    visits_at(&r, part)->way[way].work(&w, v);
}

void unit_arrive(const UnitPass *u, int part, VisitWay way) {
    Run r = start(u);
    LayerPass w = visit_pass(&r, part, way);
    visits_at(&r, part)->way[way].arrive(&w);
}
