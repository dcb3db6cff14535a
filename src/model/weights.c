#include "model/weights.h"

const float *weights_vector(const Weights *w, const Param *p) {
    return w->units[p->unit].vectors + p->offset;
}

const void *weights_matrix(const Weights *w, const Param *p) {
    return (const char *)w->units[p->unit].matrices + param_place(w->table, p) * dtype_bytes(w->compute);
}

float *gradient_of(const Gradients *g, const Param *p) {
    const UnitGradients *u = &g->units[p->unit];
    return (p->cols ? u->matrices : u->vectors) + param_place(g->table, p);
}
