#include "model/weights.h"

static size_t in_matrices(const ParamTable *t, const Param *p) { return p->offset - t->unit_vectors[p->unit]; }

const float *weights_vector(const Weights *w, const Param *p) { return w->units[p->unit].vectors + p->offset; }

const void *weights_matrix(const Weights *w, const Param *p) {
    return (const char *)w->units[p->unit].matrices + in_matrices(w->table, p) * dtype_bytes(w->compute);
}

float *gradient_of(const Gradients *g, const Param *p) {
    const UnitGradients *u = &g->units[p->unit];
    return p->cols ? u->matrices + in_matrices(g->table, p) : u->vectors + p->offset;
}
