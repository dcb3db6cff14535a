#include "model/weights.h"

#include "base/rng.h"

void weights_layout(Weights *w, const ParamTable *table, Dtype compute, Pool *master, Pool *copy) {
    size_t elements = table->unit_start[table->units];
    *w = (Weights){.table = table, .compute = compute};
    w->master = pool_take(master, elements * sizeof(float));
    if (compute == DTYPE_BF16) w->copy = pool_take(copy, elements * sizeof(uint16_t));
}

static size_t position(const Weights *w, const Param *p) { return w->table->unit_start[p->unit] + p->offset; }

float *weights_master(const Weights *w, const Param *p) { return w->master + position(w, p); }

const void *weights_matrix(const Weights *w, const Param *p) {
    return w->copy ? (const void *)(w->copy + position(w, p)) : (const void *)(w->master + position(w, p));
}

void weights_refresh(Weights *w, Device *d, const Param *p) {
    if (!w->copy || p->cols == 0) return;
    OP(d, OP_CAST, cast, p->count, weights_master(w, p), DTYPE_F32, w->copy + position(w, p), DTYPE_BF16);
}

void weights_refresh_all(Weights *w, Device *d) {
    for (int i = 0; i < w->table->count; i++) weights_refresh(w, d, &w->table->params[i]);
}

void weights_initialise(Weights *w, Device *d, const ModelConfig *c, InitKind kind, double std, uint64_t seed) {
    for (int i = 0; i < w->table->count; i++) {
        const Param *p = &w->table->params[i];
        InitRule r = param_init_rule(p, c, kind, std);
        if (r.std > 0)
            OP(d, OP_INIT_NORMAL, init_normal, p->count, rng_key(seed, p->name), 0, 0.0, r.std, r.lo, r.hi,
               weights_master(w, p));
        else
            OP(d, OP_FILL, fill, p->count, (float)r.value, weights_master(w, p));
    }
    weights_refresh_all(w, d);
}
