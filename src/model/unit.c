/* Runs the passes of a unit, part by part. A block is the stream x with each sublayer's result added to it:
 *
 *     forward   norm: x += the result before, n = norm(x)   layer: n -> result   sum: out = result + x
 *     backward  sum: dx is the gradient of the stream       layer: dx -> dn      norm: dx += dn through the
 *     norm
 *
 * A result lives where the unit's output goes until the stream takes it. A layer that stands alone
 * (embedding, head) goes from the unit's input to its output by itself. */
#include "model/internal.h"

typedef struct Run {
    const UnitPass *u;
    int count;
    Step steps[UNIT_PARTS];
    Sublayer sublayers[UNIT_SUBLAYERS];
    UnitTensors tensors;
} Run;

static Run start(const UnitPass *u) {
    const Model *m = u->pass->model;
    Run r = {.u = u};
    unit_sublayers(&m->config, u->unit, r.sublayers);
    r.count = unit_steps(&m->config, u->unit, r.steps);
    unit_tensors(m, u->unit, u->slab, u->keep, u->scratch, &r.tensors);
    return r;
}

/* `result`: where the layer's, and those of layers before it, are. */
static LayerPass layer_pass(const Run *r, const Step *step, void *result) {
    const SublayerTensors *t = &r->tensors.sublayers[step->sublayer];
    return (LayerPass){.pass = r->u->pass, .unit = r->u->unit, .tensors = t->layer, .x = t->n, .y = result};
}

/* The stream is there already where it was saved, and in the first sublayer. */
static void forward_norm(const Run *r, int index, const void *result, bool saved) {
    const Pass *p = r->u->pass;
    const SublayerTensors *t = &r->tensors.sublayers[index];
    bool sum = index > 0 && !saved;
    norm_forward(p, r->u->unit, r->sublayers[index].norm, p->model->tokens, sum ? t[-1].x : t->x,
                 sum ? result : NULL, sum ? t->x : NULL, t->n, t->rstd);
}

static void forward_add(const Run *r, int index, void *result) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    OP(p->device, OP_ADD, add, m->tokens * m->config.hidden_size, result, r->tensors.sublayers[index].x,
       result, m->compute);
}

static void forward_step(const Run *r, const Step *step, void *result, bool saved) {
    LayerPass w = layer_pass(r, step, result);
    switch (step->kind) {
    case STEP_NORM: forward_norm(r, step->sublayer, result, saved); break;
    case STEP_LAYER: step->part->forward(&w); break;
    case STEP_ADD: forward_add(r, step->sublayer, result); break;
    }
}

void unit_forward(const UnitPass *u, Parts parts) {
    Run r = start(u);
    CHECK(parts.first >= 0 && parts.end <= r.count);
    for (int i = parts.first; i < parts.end; i++) forward_step(&r, &r.steps[i], u->out, false);
}

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

static void backward_norm(const Run *r, int index) {
    const SublayerTensors *t = &r->tensors.sublayers[index];
    norm_backward(r->u->pass, r->u->unit, r->sublayers[index].norm, t->x, t->rstd, r->tensors.dn, r->u->dx,
                  true);
}

/* The gradient of a sublayer's result, as the weight half alone will want it: dx goes on changing. */
static void keep_gradient(const Run *r, int index) {
    const Pass *p = r->u->pass;
    const Model *m = p->model;
    OP(p->device, OP_CAST, cast, m->tokens * m->config.hidden_size, r->u->dx, m->compute,
       r->tensors.sublayers[index].dy, m->compute);
}

static void backward_layer(const Run *r, const Step *step, Half half) {
    const SublayerTensors *t = &r->tensors.sublayers[step->sublayer];
    bool alone = !r->sublayers[step->sublayer].norm;
    LayerPass w = layer_pass(r, step, NULL);
    if (half == HALF_INPUT && step->last && !alone) keep_gradient(r, step->sublayer);
    w.dy = half == HALF_WEIGHT && !alone ? t->dy : r->u->dx;
    w.dx = alone ? r->u->dx : r->tensors.dn;
    step->part->backward(&w, half);
}

void unit_backward(const UnitPass *u, Half half, Parts parts) {
    Run r = start(u);
    CHECK(parts.first >= 0 && parts.end <= r.count);
    for (int i = parts.end - 1; i >= parts.first; i--) {
        const Step *step = &r.steps[i];
        switch (step->kind) {
        case STEP_NORM:
            if (half & HALF_INPUT) backward_norm(&r, step->sublayer);
            break;
        case STEP_LAYER: backward_layer(&r, step, half); break;
        case STEP_ADD: break; /* a sum hands its gradient on as it is */
        }
    }
}
