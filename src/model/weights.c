#include "model/weights.h"

Dtype flat_dtype(Flat flat, Dtype compute) { return flat == FLAT_VECTORS ? DTYPE_F32 : compute; }

static const void *weight(const Weights *w, const Param *p) {
    const char *flat = w->units[p->unit].flats[p->flat];
    return flat + p->place * dtype_bytes(flat_dtype(p->flat, w->compute));
}

const float *weights_vector(const Weights *w, const Param *p) { return weight(w, p); }
const void *weights_matrix(const Weights *w, const Param *p) { return weight(w, p); }

float *gradient_of(const Gradients *g, const Param *p) { return g->units[p->unit].flats[p->flat] + p->place; }
