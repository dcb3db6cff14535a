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
    bool terms = is_shared(r) && !(step->part && step->part->own);
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
                       .y = terms ? shared->terms : result_of(r, step->sublayer, result)};
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
    bool terms = is_shared(r) && !step->part->whole;
    w.dx = alone ? r->u->dx : terms ? (void *)shared->terms : r->tensors.dn;
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

/* ---- crossings ---- */

/* The step that a crossing belongs to: before one that reads all tokens, behind one that makes terms. */
static const Step *step_at(const Run *r, int part) {
    bool reads = part < r->count && r->steps[part].kind == STEP_LAYER && part_reads_all(r->steps[part].part);
    CHECK(reads || part > 0);
    return &r->steps[reads ? part : part - 1];
}

static bool reads_there(const Run *r, const Step *step, int part) { return step == &r->steps[part]; }

int64_t unit_inner_width(const Model *m, int unit, int part) {
    if (!m->config.adapter_joint) return 0;
    bool reads = unit_part_reads_all(&m->config, unit, part);
    const Product *p = unit_part_adapted(&m->config, unit, reads ? part : part - 1);
    return p ? product_adapters(m, unit, p) * m->config.adapter_rank : 0;
}

int64_t unit_widest_inner(const Model *m, int unit) {
    int64_t widest = 0;
    for (int part = 0; m->config.adapter_joint && part <= unit_parts(&m->config, unit).end; part++)
        if (unit_part_reads_all(&m->config, unit, part) ||
            unit_part_makes_terms(&m->config, unit, part - 1)) {
            int64_t width = unit_inner_width(m, unit, part);
            if (width > widest) widest = width;
        }
    return widest;
}

/* Rows of the embedding that begin a stream in a unit are not yet its result. */
static bool is_inside(const Run *r, const Step *step) { return step->part->embeds && r->tensors.dstream; }

/* What is gathered: in a forward pass, and for the weight half, what the layer reads; on the way back also
 * the gradient of what it has made. */
static Crossing gathering(const Run *r, const Step *step, CrossingAt at) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    const SublayerTensors *t = &r->tensors.sublayers[step->sublayer];
    const Shared *shared = &r->tensors.shared;
    if (reads_there(r, step, at.part))
        return (Crossing){.own = sublayer_alone(s) ? t->layer[step->part->read] : t->n, .all = shared->whole};
    const void *gradient = is_inside(r, step) ? t->layer[step->part->made_gradient]
                                              : result_gradient(r, step->sublayer, at.half);
    return (Crossing){.own = gradient, .all = shared->dwhole};
}

/* What is summed: what a layer makes, and the gradient of what it reads; that of the head, which its forward
 * pass makes. */
static Crossing summing(const Run *r, const Step *step, CrossingAt at) {
    const Sublayer *s = &r->sublayers[step->sublayer];
    const SublayerTensors *t = &r->tensors.sublayers[step->sublayer];
    Crossing c = {.all = r->tensors.shared.terms, .inner = r->tensors.shared.inner};
    if (reads_there(r, step, at.part))
        c.result = sublayer_alone(s) ? t->layer[step->part->read_gradient] : r->tensors.dn;
    else if (is_inside(r, step))
        c.result = t->layer[step->part->made];
    else
        c.result = result_of(r, step->sublayer, at.pass == PASS_AGAIN ? r->tensors.dn : r->out);
    return c;
}

/* What changes hands at a place: before the part by heads, or behind it, forward or back. */
typedef struct Handing {
    SwapPlace place;
    const Swap *swap;
    void *const *tensors; /* of the layer */
} Handing;

static Handing handing(const Run *r, CrossingAt at) {
    bool in = at.part < r->count && r->steps[at.part].kind == STEP_LAYER && r->steps[at.part].part->attends;
    int sublayer = r->steps[at.part - 1].sublayer;
    SwapPlace place =
        at.pass != PASS_BACKWARD ? (in ? SWAP_IN : SWAP_OUT) : (in ? SWAP_IN_GRADIENT : SWAP_OUT_GRADIENT);
    return (Handing){place, &r->sublayers[sublayer].layer->swaps[place],
                     r->tensors.sublayers[sublayer].layer};
}

/* Tokens are given for heads, and not heads for tokens. */
static bool goes_to_heads(SwapPlace place) { return place == SWAP_IN || place == SWAP_OUT_GRADIENT; }

static bool carries_sums(const Model *m, const Swap *swap) {
    return swap->sums && model_family(&m->config)->arch.sinks;
}

static Crossing swapping(const Run *r, CrossingAt at) {
    Handing h = handing(r, at);
    void *heads = h.tensors[h.swap->heads], *through = h.tensors[h.swap->through];
    Crossing c = goes_to_heads(h.place) ? (Crossing){.own = through, .all = heads}
                                        : (Crossing){.own = heads, .all = through};
    if (carries_sums(r->u->pass->model, h.swap))
        c.sums = h.tensors[h.swap->sums->tokens], c.own_sums = h.tensors[h.swap->sums->through];
    return c;
}

/* At the part that attends. */
static void *key_tensor(const Run *r, CrossingAt at) {
    int sublayer = r->steps[at.part].sublayer;
    const KeysOfAll *keys = r->sublayers[sublayer].layer->keys;
    bool apart = model_key_leaves(r->u->pass->model) > 1;
    int tensor = at.kind == CROSS_KEYS                ? keys->all
                 : apart && at.kind == CROSS_COPY_SUM ? keys->apart
                                                      : keys->terms;
    return r->tensors.sublayers[sublayer].layer[tensor];
}

/* Before the part that norms rows; on the way back behind its own sums. */
static void *rows_at(const Run *r, CrossingAt at) {
    int sublayer = r->steps[at.part].sublayer;
    const RowSums *rows = r->sublayers[sublayer].layer->rows;
    return r->tensors.sublayers[sublayer].layer[at.pass == PASS_BACKWARD ? rows->products : rows->squares];
}

/* Behind the part that routes: how often sequences chose experts, or gradients of weights; behind the one
 * that makes latents, gradients of these. */
static void *all_tokens_at(const Run *r, CrossingAt at) {
    int sublayer = r->steps[at.part - 1].sublayer;
    const Layer *l = r->sublayers[sublayer].layer;
    int tensor = at.kind == CROSS_COUNTS ? l->counts : at.kind == CROSS_WEIGHTS ? l->dweights : l->latents;
    return r->tensors.sublayers[sublayer].layer[tensor];
}

Crossing unit_crossing(const UnitPass *u, CrossingAt at) {
    Run r = start(u);
    CHECK(at.part >= 0 && at.part <= r.count);
    if (at.kind == CROSS_COUNTS || at.kind == CROSS_WEIGHTS || at.kind == CROSS_LATENTS)
        return (Crossing){.all = all_tokens_at(&r, at)};
    if (at.kind == CROSS_SWAP) return swapping(&r, at);
    if (at.kind == CROSS_KEYS || at.kind == CROSS_KEY_SUM || at.kind == CROSS_COPY_SUM)
        return (Crossing){.all = key_tensor(&r, at)};
    CHECK(is_shared(&r));
    if (at.kind == CROSS_ROWS) return (Crossing){.all = rows_at(&r, at)};
    const Step *step = step_at(&r, at.part);
    switch (at.kind) {
    case CROSS_GATHER: return gathering(&r, step, at);
    case CROSS_SUM: return summing(&r, step, at);
    case CROSS_RECORDS: return (Crossing){.all = r.tensors.shared.records};
    case CROSS_SWAP:
    case CROSS_KEYS:
    case CROSS_KEY_SUM:
    case CROSS_COPY_SUM:
    case CROSS_ROWS:
    case CROSS_COUNTS:
    case CROSS_WEIGHTS:
    case CROSS_LATENTS:
    case CROSS_VISIT:
    case CROSSINGS: break;
    }
    CHECK(false);
}

/* Only what a layer has made gets the layer's bias; the embedding has no product. */
void unit_summed(const UnitPass *u, CrossingAt at) {
    Run r = start(u);
    const Pass *p = u->pass;
    const Step *step = step_at(&r, at.part);
    Crossing c = summing(&r, step, at);
    int64_t own = state_elements(&r);
    const float *sum = (const float *)c.all + p->model->sharing.place * own;
    LayerPass w = layer_pass(&r, step, NULL);
    bool reads = reads_there(&r, step, at.part);
    if (reads || !step->part->product)
        OP(p->device, OP_CAST, cast, own, sum, DTYPE_F32, c.result, p->model->compute);
    else
        product_summed(&w, step->part->product, sum, c.result);
    if (!reads && step->part->adapted) product_adapters_summed(&w, step->part->adapted, c.result);
    w.dx = c.result;
    if (reads && part_adapted(step->part)) product_input_summed(&w, part_adapted(step->part), c.result);
    if (reads && step->part->summed) step->part->summed(&w);
}

/* ---- visits ---- */

static const Visits *visits_at(const Run *r, int part) {
    const Visits *v = r->sublayers[r->steps[part].sublayer].layer->visits;
    CHECK(v != NULL && r->steps[part].part->by_experts);
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
    w.dx = is_shared(r) ? (void *)r->tensors.shared.terms : r->tensors.dn;
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

/* ---- tokens for heads ---- */

size_t unit_swap_bytes(const Model *m, int unit, int part) {
    bool in = unit_part_attends(&m->config, unit, part);
    int64_t width = model_dim(&m->config, in ? DIM_QKV : DIM_QUERY) / m->contexts.ranks;
    return (size_t)(m->tokens * width) * dtype_bytes(m->compute);
}

/* Between rows of all heads, and for each rank rows of its own heads: a p-th of queries, keys and values. */
static void move_heads(const Run *r, const Handing *h) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    int ranks = m->contexts.ranks;
    bool out = goes_to_heads(h->place);
    Dim outputs[PARAM_MATRICES];
    int64_t first = 0;
    size_t e = dtype_bytes(m->compute), wide = (size_t)model_dim(&m->config, h->swap->width) * e,
           narrow = wide / (size_t)ranks;
    int count = param_outputs(&m->config, h->swap->width, outputs);
    for (int i = 0; i < count; first += model_dim(&m->config, outputs[i++]))
        for (int rank = 0; rank < ranks; rank++) {
            size_t bytes = (size_t)(model_dim(&m->config, outputs[i]) / ranks) * e;
            char *row = (char *)h->tensors[h->swap->tokens] + (size_t)first * e + (size_t)rank * bytes;
            char *piece = (char *)h->tensors[h->swap->through] + (size_t)rank * (size_t)m->tokens * narrow +
                          (size_t)(first / ranks) * e;
            OP(p->device, OP_COPY_ROWS, copy_rows, m->tokens, bytes, out ? piece : row, out ? narrow : wide,
               out ? row : piece, out ? wide : narrow);
        }
}

size_t unit_swap_sum_bytes(const Model *m, int unit, int part, bool back) {
    bool out = unit_part_attends(&m->config, unit, part - 1);
    if (!back || !out || !model_family(&m->config)->arch.sinks) return 0;
    return (size_t)(m->tokens * m->config.num_attention_heads / m->contexts.ranks) * sizeof(float);
}

/* Of each rank's tokens, span by span, the heads of this rank side by side: from the runs that it attends by,
 * which are spans, or all tokens. */
static void pack_sums(const Run *r, const Handing *h) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    int64_t heads = m->config.num_attention_heads / m->contexts.ranks, span = model_span(m, m->tokens),
            run = model_all_tokens(m) / model_query_runs(m);
    const float *from = h->tensors[h->swap->sums->heads];
    float *to = h->tensors[h->swap->sums->tokens];
    for (int64_t token = 0; token < model_all_tokens(m); token += span)
        OP(p->device, OP_COPY_ROWS, copy_rows, heads, (size_t)span * sizeof *to, to + token * heads,
           (size_t)span * sizeof *to, from + token / run * run * heads + token % run,
           (size_t)run * sizeof *to);
}

/* Span by span all heads, of which each rank had some. */
static void unpack_sums(const Run *r, const Handing *h) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    int ranks = m->contexts.ranks;
    size_t piece = (size_t)(model_span(m, m->tokens) * m->config.num_attention_heads / ranks) * sizeof(float);
    char *from = h->tensors[h->swap->sums->through], *to = h->tensors[h->swap->sums->tokens];
    for (int rank = 0; rank < ranks; rank++)
        OP(p->device, OP_COPY_ROWS, copy_rows, model_spans(m), piece, to + (size_t)rank * piece,
           (size_t)ranks * piece, from + (size_t)rank * (size_t)model_spans(m) * piece, piece);
}

/* ---- keys of all ---- */

size_t unit_key_bytes(const Model *m) {
    return (size_t)model_dim(&m->config, DIM_KEY_VALUE) * dtype_bytes(m->compute);
}

/* Each stretch where it lies among all tokens. */
static void place_keys(const Run *r, CrossingAt at) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    int sublayer = r->steps[at.part].sublayer;
    const char *own = r->tensors.sublayers[sublayer].layer[r->sublayers[sublayer].layer->keys->own];
    size_t bytes = unit_key_bytes(m), e = dtype_bytes(m->compute),
           row = (size_t)model_dim(&m->config, DIM_QKV) * e;
    int64_t rows = model_stretch(m);
    for (int i = 0; i < model_stretches(m); i++)
        OP(p->device, OP_COPY_ROWS, copy_rows, rows, bytes,
           (char *)key_tensor(r, at) + (size_t)model_stretch_first(m, m->contexts.place, i) * bytes, bytes,
           own + (size_t)(i * rows) * row + (size_t)model_dim(&m->config, DIM_QUERY) * e, row);
}

void unit_pack(const UnitPass *u, CrossingAt at) {
    Run r = start(u);
    if (at.kind == CROSS_KEYS) {
        place_keys(&r, at);
        return;
    }
    Handing h = handing(&r, at);
    if (goes_to_heads(h.place)) move_heads(&r, &h);
    if (carries_sums(u->pass->model, h.swap)) pack_sums(&r, &h);
}

void unit_unpack(const UnitPass *u, CrossingAt at) {
    Run r = start(u);
    Handing h = handing(&r, at);
    if (!goes_to_heads(h.place)) move_heads(&r, &h);
    if (carries_sums(u->pass->model, h.swap)) unpack_sums(&r, &h);
}
