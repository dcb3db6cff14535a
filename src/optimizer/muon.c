/* Muon (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024): replaces the
 * momentum of a matrix by a matrix with the same singular vectors and singular values of about 1, so that
 * rare directions of the gradient move as far as common ones.
 *
 *     x = direction / (slack |direction|)                 Frobenius norm: no singular value is above 1
 *     ITERATIONS times: A = x x^T,  x = (a I + b A + c A^2) x      a Newton-Schulz iteration of degree 5
 *     p -= lr (scale x + weight decay p)
 *
 * If a matrix has more rows than columns, A is x^T x and multiplies from the right: it is the smaller of the
 * two, with the same polynomial of singular values. The matrix is used as it is stored, transposed or not.
 *
 * Everything is fp32 (others use bf16), on full matrices, one rank per matrix, so the result does not depend
 * on the mesh. The steps before and after are element-wise and run where the elements are.
 *
 * Scratch of a matrix, reused by the next:
 *
 *     figure | x [rows, cols] | next x [rows, cols] | A [m, m] | A^2, then the polynomial [m, m]
 *
 * Elsewhere called: Newton-Schulz, distributed Muon (program/owners.h). */
#include <math.h>

#include "device/ops/linear.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "device/pool.h"
#include "optimizer/optimizer.h"

enum { ITERATIONS = 5 };

/* Coefficients of each iteration, in the order of MuonCoefficients.
 *   jordan         the same each time: steepest at 0, at the price of values between 0.7 and 1.2
 *   polar_express  Amsel et al., "The Polar Express", 2025: the best for each iteration, for values from
 *                  1e-3 on; closer to 1. Its slack is theirs, against rounding above 1 */
typedef struct Quintic {
    float a, b, c;
} Quintic;
#define JORDAN \
    { 3.4445f, -4.7750f, 2.0315f }
static const struct {
    float slack;
    Quintic step[ITERATIONS];
} iterations[] = {
    [MUON_JORDAN] = {1, {JORDAN, JORDAN, JORDAN, JORDAN, JORDAN}},
    [MUON_POLAR_EXPRESS] = {1.02f,
                            {{8.156555f, -22.483293f, 15.878770f},
                             {4.042930f, -2.808917f, 0.500018f},
                             {3.891668f, -2.772484f, 0.506065f},
                             {3.285754f, -2.368129f, 0.464490f},
                             {2.346541f, -1.709783f, 0.423236f}}},
};

/* Holds the exact sum of squares. Squares need no unit, but the op's contract requires one. */
typedef struct Figure {
    GradStats squares;
    double unit;
} Figure;

static int64_t smaller(const ParamMatrix *m) { return m->rows < m->cols ? m->rows : m->cols; }

typedef struct Workspace {
    Figure *figure;
    float *x, *next, *gram, *square;
} Workspace;

/* Offset of each buffer, and total bytes: used for planning and for allocation. */
typedef struct WorkspaceOffsets {
    size_t x, next, gram, square, bytes;
} WorkspaceOffsets;

static WorkspaceOffsets workspace_offsets(const ParamMatrix *m) {
    size_t all = pool_round((size_t)(m->rows * m->cols) * sizeof(float)),
           small = pool_round((size_t)(smaller(m) * smaller(m)) * sizeof(float)),
           x = pool_round(sizeof(Figure));
    return (WorkspaceOffsets){x, x + all, x + 2 * all, x + 2 * all + small, x + 2 * all + 2 * small};
}

static size_t scratch_bytes(const ParamMatrix *m) { return workspace_offsets(m).bytes; }

static Workspace workspace_in(char *scratch, const ParamMatrix *m) {
    WorkspaceOffsets at = workspace_offsets(m);
    return (Workspace){.figure = (Figure *)(void *)scratch,
                       .x = (float *)(void *)(scratch + at.x),
                       .next = (float *)(void *)(scratch + at.next),
                       .gram = (float *)(void *)(scratch + at.gram),
                       .square = (float *)(void *)(scratch + at.square)};
}

/* FLOPs of x x^T, of its square, and of the product with x. */
static double flops(const ParamMatrix *m) {
    double least = (double)smaller(m), all = (double)m->rows * (double)m->cols;
    return ITERATIONS * (2 * least * all + 2 * least * least * least + 2 * least * all);
}

static void product(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const float *a,
                    const float *b, float *c) {
    OP(d, gemm, .trans_a = trans_a, .trans_b = trans_b, .m = m, .n = n, .k = k, .a = a, .b = b,
       .ab_type = DTYPE_F32, .c = c, .c_type = DTYPE_F32, .ldc = n);
}

/* Runs one iteration on x; x and next swap. */
static void iterate(Device *d, const ParamMatrix *m, Quintic q, Workspace *r) {
    int64_t rows = m->rows, cols = m->cols, least = smaller(m);
    bool wide = rows <= cols;
    product(d, !wide, wide, least, least, wide ? cols : rows, r->x, r->x, r->gram);
    product(d, false, false, least, least, least, r->gram, r->gram, r->square);
    OP(d, newton_schulz, .m = least, .a = q.a, .b = q.b, .c = q.c, .gram = r->gram, .square = r->square);
    product(d, false, false, rows, cols, least, wide ? r->square : r->x, wide ? r->x : r->square, r->next);
    float *made = r->next;
    r->next = r->x, r->x = made;
}

/* Factor of the step of a matrix [outputs, inputs].
 *   moonlight  Liu et al., "Muon is scalable for LLM training", 2025: elements move as far as under AdamW, on
 *              average, so that its learning rates and weight decay can be used
 *   jordan     Jordan et al.
 *   spectral   Bernstein, "Deriving Muon", 2025: by how far the outputs of a layer may move */
static double scale_of(int kind, double outputs, double inputs) {
    if (kind == MUON_MOONLIGHT) return 0.2 * sqrt(fmax(outputs, inputs));
    return kind == MUON_SPECTRAL ? sqrt(outputs / inputs) : sqrt(fmax(1, outputs / inputs));
}

/* ---- the three stages of an update ---- */

static MatrixShape shape_of(const ParamMatrix *m) { return (MatrixShape){m->rows, m->cols, m->row}; }

static void momentum_of(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                        const ParamMatrix *m, int64_t number, float *x) {
    Muon o = {.momentum = (float)s->momentum, .nesterov = s->nesterov};
    StateStore store = r->store;
    size_t before = (size_t)m->first * dtype_bytes(store.type);
    store.first = number;
    OP(d, muon_momentum, .shape = shape_of(m), .constants = o, .s = store, .step = step,
       .grad = r->grad + m->first, .momentum = (char *)r->state[0] + before, .x = x);
}

static float *momentum_buffer(char *scratch, const ParamMatrix *m) { return workspace_in(scratch, m).x; }

static float *orthogonalise(Device *d, const OptimizerSettings *s, const ParamMatrix *m, char *scratch) {
    Workspace workspace = workspace_in(scratch, m);
    OP(d, zero, workspace.figure, sizeof *workspace.figure);
    OP(d, grad_stats, .n = m->rows * m->cols, .g = workspace.x, .p = 2.0, .unit = &workspace.figure->unit,
       .out = &workspace.figure->squares);
    OP(d, muon_normalise, m->rows * m->cols, &workspace.figure->squares,
       iterations[s->muon_coefficients].slack, workspace.x);
    for (int i = 0; i < ITERATIONS; i++) iterate(d, m, iterations[s->muon_coefficients].step[i], &workspace);
    return workspace.x;
}

static void apply(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r,
                  const ParamMatrix *m, const ParamMatrix *whole, const float *x) {
    double outputs = (double)(r->of->transposed ? whole->cols : whole->rows),
           inputs = (double)(r->of->transposed ? whole->rows : whole->cols);
    Muon o = {.weight_decay = (float)r->weight_decay,
              .scale = (float)scale_of(s->muon_scale, outputs, inputs)};
    OP(d, muon_apply, .shape = shape_of(m), .constants = o, .step = step, .x = x,
       .param = r->param + m->first, .copy = r->copy ? r->copy + m->first : NULL);
}

const MatrixUpdate muon_matrices = {scratch_bytes, flops, momentum_of, momentum_buffer, orthogonalise, apply};

/* Matrices that are stored as one parameter are still several: q, k and v are updated separately. */
void muon_update(Device *d, const OptimizerSettings *s, const OptimizerStep *step, const UpdateRun *r) {
    CHECK(r->of && r->count == r->of->count);
    for (int k = 0; k < param_matrices(r->of); k++) {
        ParamMatrix m = param_matrix(r->of, k);
        momentum_of(d, s, step, r, &m, r->store.first + m.first, momentum_buffer(r->scratch, &m));
        apply(d, s, step, r, &m, &m, orthogonalise(d, s, &m, r->scratch));
    }
}
