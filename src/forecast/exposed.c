/* Walks the first microbatch only: all others are alike, and no other unit's work runs inside the passes of a
 * unit. */
#include "forecast/exposed.h"

#include <math.h>

enum { OVER_TENSOR, OVER_CONTEXT, NETWORKS };

typedef struct Walk {
    const ExposedSpec *s;
    const Program *p;
    const Model *m;
    double now;
    double free[NETWORKS];          /* time at which an axis has sent everything so far */
    double there[UNIT_COLLECTIVES]; /* arrival time of each row that the current unit has started */
} Walk;

static bool is_pass(ActionKind kind) { return action_is_pass(kind) || kind == ACT_RECOMPUTE; }

/* Logits are a third of the head's work on a chunk. */
static double share_of_slice(const Walk *w, Action a) {
    return a.slice == 0 ? 1 : (a.slice % 2 ? 1.0 / 3 : 2.0 / 3) / w->p->chunks;
}

static double work_of(const Walk *w, Action a) {
    Grads grads = action_grads(a);
    double sum = 0;
    for (int i = a.ops.first; i < a.ops.end; i++) {
        Cost c = unit_op_cost(w->s->model, a.unit, i, w->s->context);
        if (a.kind == ACT_FWD)
            sum += c.forward * share_of_slice(w, a);
        else if (a.kind == ACT_RECOMPUTE)
            sum += unit_op_recomputed(w->s->model, a.unit, i, w->p->recompute) ? c.forward : 0;
        else
            sum += (grads & DGRAD ? c.input : 0) + (grads & WGRAD ? c.weight : 0);
    }
    return sum * w->s->tokens;
}

static void start(Walk *w, Action a) {
    double *link = &w->free[a.over & MESH_TENSOR ? OVER_TENSOR : OVER_CONTEXT];
    *link = fmax(*link, w->now) + (double)program_collective_bytes(w->p, w->m, a) * w->s->byte;
    w->there[a.row] = *link + w->s->delay;
}

static void wait(Walk *w, Action a, Cost *unit) {
    double waited = fmax(0, w->there[a.row] - w->now);
    w->now += waited;
    *(a.pass == ACT_FWD ? &unit->forward : a.pass == ACT_WGRAD ? &unit->weight : &unit->input) += waited;
}

void exposed_comm(const ExposedSpec *s, const Program *p, const Model *m, Cost *units) {
    Walk w = {.s = s, .p = p, .m = m};
    for (int i = 0; i < p->count; i++) {
        Action a = p->actions[i];
        if (a.microbatch != 0 || a.unit < 0 || a.unit >= p->units) continue;
        if (is_pass(a.kind))
            w.now += work_of(&w, a);
        else if (a.kind == ACT_WAIT)
            wait(&w, a, &units[a.unit]);
        else if (a.kind == ACT_COLLECTIVE)
            start(&w, a);
    }
}
