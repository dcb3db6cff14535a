/* Addresses of parameters in the buffers of their units, which come and go. So an address is computed for
 * each use, from the current address of the unit's flat and the parameter's offset. */
#include "model/weights.h"

Dtype flat_dtype(Flat flat, Dtype compute) { return flat_of_vectors(flat) ? DTYPE_F32 : compute; }

/* Offsets count elements, whose size depends on the flat. NULL where the unit is not gathered: a separate
 * wgrad asks for some weights, but reads none. */
static const void *weight(const Weights *w, const Param *p) {
    const char *flat = w->units[p->unit].flats[p->flat];
    return flat ? flat + p->offset * dtype_bytes(flat_dtype(p->flat, w->compute)) : NULL;
}

const float *weights_vector(const Weights *w, const Param *p) { return weight(w, p); }
const void *weights_matrix(const Weights *w, const Param *p) { return weight(w, p); }

/* With several rows (one per split), a vector's gradient is that many times as long, and the order in the
 * flat stays. A vector that continues another forms one vector with it, which has one row per split, since
 * the op adds to both at once: so its offset counts within the first row. In an MLP without gate there is no
 * vector to continue. */
size_t gradient_offset(const Gradients *g, const Param *p) {
    size_t rows = p->flat == FLAT_VECTORS && g->rows > 1 ? (size_t)g->rows : 1;
    const Param *first = p;
    while (rows > 1 && first->row->continues && first[-1].row == first->row - 1) first--;
    return rows * first->offset + (p->offset - first->offset);
}

/* Gradients are fp32 in every flat. */
float *gradient_of(const Gradients *g, const Param *p) { return gradient_of_exact_chunk(g, p, 0); }

float *gradient_of_exact_chunk(const Gradients *g, const Param *p, int exact_chunk) {
    return g->units[p->unit].flats[p->flat] +
           (size_t)exact_chunk * gradient_exact_chunk(g, p->unit, p->flat) + gradient_offset(g, p);
}

float *gradient_tied(const Gradients *g, int exact_chunk) {
    int last = g->table->units;
    return g->units[last].flats[FLAT_MATRICES] +
           (size_t)exact_chunk * gradient_exact_chunk(g, last, FLAT_MATRICES);
}

/* The gradient of the tied head is laid out as that of the embedding. */
size_t gradient_exact_chunk(const Gradients *g, int unit, Flat flat) {
    size_t rows = flat == FLAT_VECTORS && g->rows > 1 ? (size_t)g->rows : 1;
    return rows * g->table->flats[unit < g->table->units ? unit : 0][flat];
}
