/* Expert ops on threads. Products are computed by gemm.c, one expert after another. The other ops are passes
 * over rows at memory speed, in plain C. Rows and tokens are independent, so pieces do not affect results.
 * The selection takes E k comparisons a token; sorting the assignments, on one thread, takes some nanoseconds
 * each. */
#include "device/cpu/optimised.h"

/* ---- routing ---- */

static void route(Device *d, const RouteArgs *o) {
    int64_t step = rows_for(o->s.experts * (int64_t)o->s.chosen);
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++)
            route_token(o->s, o->r.scores + t * o->s.experts, o->r.chosen + t * o->s.chosen,
                        o->r.weights + t * o->s.chosen);
    }
    route_order(o->s, o->r, o->counts);
}

/* slopes: derivative of the sequence's balance loss for each expert. */
static void token_backward(const RouteBackwardArgs *o, int64_t t, const double *slopes, double scale) {
    double ds[EXPERTS_MAX], mean = 0, along = 0, value = 0;
    const float *scores = o->r.scores + t * o->s.experts, *weights = o->r.weights + t * o->s.chosen;
    const int32_t *chosen = o->r.chosen + t * o->s.chosen;
    const float *dw = o->dweights + t * o->s.chosen;
    double divisor = route_divisor(o->s, scores, chosen), factor = route_factor(o->s);
    for (int e = 0; e < o->s.experts; e++) {
        ds[e] = slopes[e] * scale;
        value += slopes[e] * (double)scores[e];
    }
    for (int i = 0; i < o->s.chosen && o->s.normalise; i++) along += (double)dw[i] * (double)weights[i];
    for (int i = 0; i < o->s.chosen; i++) ds[chosen[i]] += (factor * (double)dw[i] - along) / divisor;
    for (int e = 0; e < o->s.experts && !o->s.sigmoid; e++) mean += (double)scores[e] * ds[e];
    for (int e = 0; e < o->s.experts; e++) {
        double slope = o->s.sigmoid ? ds[e] * (1 - (double)scores[e]) : ds[e] - mean;
        tensor_set(o->dlogits, t * o->s.experts + e, o->c, (float)((double)scores[e] * slope));
    }
    o->balance[t] = (float)value;
}

static void route_backward(Device *d, const RouteBackwardArgs *o) {
    int64_t step = rows_for(o->s.experts);
    for (int64_t start = 0, tokens; start < o->s.tokens; start += tokens) {
        double slopes[EXPERTS_MAX];
        tokens = route_next(o->s, start) - start;
        route_slopes(o->s, o->counts, start, slopes);
        EACH_PIECE(d, first, tokens, step) {
            for (int64_t t = first; t < min_i64(tokens, first + step); t++)
                token_backward(o, start + t, slopes, (double)*o->scale);
        }
    }
}

/* ---- products ---- */

static void grouped_gemm(Device *d, const GroupedGemmArgs *o) {
    gemm_run_grouped(optimised_of(d)->gemm, d, o);
}

static void grouped_gemm_wgrad(Device *d, const GroupedGemmWgradArgs *o) {
    gemm_run_grouped_wgrad(optimised_of(d)->gemm, d, o);
}

/* ---- rows ---- */

enum { COLUMNS = 256 }; /* of a row at a time, in fp32 on the stack */

/* sum += weight * row. */
static void add_row(int64_t n, const void *row, float weight, float *sum, Dtype c) {
    if (c == DTYPE_F32)
        for (int64_t i = 0; i < n; i++) sum[i] += weight * ((const float *)row)[i];
    else
        for (int64_t i = 0; i < n; i++) sum[i] += weight * bf16_widen(((const uint16_t *)row)[i]);
}

/* Columns first .. first+n-1 of token t. Without `weighed` the weight is 1, which changes nothing. */
static void combine_columns(const Device *d, const CombineArgs *o, int64_t t, int64_t first, int64_t n) {
    float sum[COLUMNS];
    void *to = tensor_to(o->y, t * o->hidden + first, o->c);
    if (o->add)
        kernels_of(d)->cast(n, to, o->c, sum, DTYPE_F32);
    else
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t j = t * o->s.chosen; j < (t + 1) * o->s.chosen; j++)
        add_row(n, tensor_at(o->rows, o->r.row[j] * o->hidden + first, o->c),
                o->weighed ? o->r.weights[j] : 1, sum, o->c);
    kernels_of(d)->cast(n, sum, DTYPE_F32, to, o->c);
}

static void combine(Device *d, const CombineArgs *o) {
    int64_t step = rows_for(o->hidden * o->s.chosen);
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++)
            for (int64_t i = 0; i < o->hidden; i += COLUMNS)
                combine_columns(d, o, t, i, min_i64(COLUMNS, o->hidden - i));
    }
}

/* A part of two rows: at most COLUMNS elements of each, in fp32. */
typedef struct RowPair {
    int64_t n;
    float x[COLUMNS], dx[COLUMNS];
} RowPair;

static void load_pair(const Device *d, int64_t n, const void *x, const void *dx, RowPair *p, Dtype c) {
    p->n = n;
    kernels_of(d)->cast(n, x, c, p->x, DTYPE_F32);
    kernels_of(d)->cast(n, dx, c, p->dx, DTYPE_F32);
}

/* Lanes are added in order. */
static double pair_dot(const RowPair *p) {
    enum { LANES = 16 };
    float lanes[LANES] = {0};
    double sum = 0;
    for (int64_t i = 0; i < p->n; i++) lanes[i % LANES] += p->x[i] * p->dx[i];
    for (int i = 0; i < LANES; i++) sum += (double)lanes[i];
    return sum;
}

/* The dot product of n elements, which are then multiplied by the weight. */
static double weigh(const Device *d, int64_t n, void *x, void *dx, float weight, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += COLUMNS) {
        RowPair p;
        void *to = tensor_to(x, i, c), *dto = tensor_to(dx, i, c);
        load_pair(d, min_i64(COLUMNS, n - i), to, dto, &p, c);
        sum += pair_dot(&p);
        for (int64_t k = 0; k < p.n; k++) p.x[k] *= weight, p.dx[k] *= weight;
        kernels_of(d)->cast(p.n, p.x, DTYPE_F32, to, c);
        kernels_of(d)->cast(p.n, p.dx, DTYPE_F32, dto, c);
    }
    return sum;
}

/* Assignment j. */
static float weigh_row(const Device *d, const CombineBackwardArgs *o, int64_t j) {
    float sums[SPLITS_MAX];
    int64_t at = (o->r.row ? o->r.row[j] : j) * o->inter, each = o->inter / o->splits;
    for (int i = 0; i < o->splits; i++, at += each)
        sums[i] = (float)weigh(d, each, tensor_to(o->act, at, o->c), tensor_to(o->dact, at, o->c),
                               o->r.weights[j], o->c);
    return weights_tree(o->splits, sums);
}

static void combine_backward(Device *d, const CombineBackwardArgs *o) {
    int64_t step = rows_for(o->inter), assignments = o->s.tokens * o->s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++)
            o->dweights[j] = weigh_row(d, o, j);
    }
}

static void permute(Device *d, const PermuteArgs *o) {
    int64_t step = rows_for(o->hidden), assignments = o->s.tokens * o->s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++)
            kernels_of(d)->embed_row(o->hidden, tensor_at(o->x, j / o->s.chosen * o->hidden, o->c),
                                     o->r.weights[j], false,
                                     tensor_to(o->rows, o->r.row[j] * o->hidden, o->c), o->c);
    }
}

static double dot_elements(const Device *d, int64_t n, const void *y, const void *dy, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += COLUMNS) {
        RowPair p;
        load_pair(d, min_i64(COLUMNS, n - i), tensor_at(y, i, c), tensor_at(dy, i, c), &p, c);
        sum += pair_dot(&p);
    }
    return sum;
}

/* The gradient of the weight of assignment j. */
static float weights_row(const Device *d, const PermuteDweightsArgs *o, int64_t j) {
    float sums[SPLITS_MAX];
    int64_t begin = (o->r.row ? o->r.row[j] : j) * o->runs * o->n, each = o->n / o->splits;
    for (int split = 0; split < o->splits; split++) {
        double sum = 0;
        for (int run = 0; run < o->runs; run++) {
            int64_t at = begin + run * o->n + split * each;
            sum += dot_elements(d, each, tensor_at(o->y, at, o->c), tensor_at(o->dy, at, o->c), o->c);
        }
        sums[split] = weight_gradient(sum, o->r.weights[j]);
    }
    return weights_tree(o->splits, sums);
}

static void permute_dweights(Device *d, const PermuteDweightsArgs *o) {
    int64_t step = rows_for(o->runs * o->n), assignments = o->s.tokens * o->s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++)
            o->dweights[j] = weights_row(d, o, j);
    }
}

/* ---- biases ---- */

static void experts_bias_forward(Device *d, const ExpertsBiasForwardArgs *o) {
    int64_t step = rows_for(o->n);
    for (int i = 0; i < o->e.experts * expert_sources(&o->e); i++) {
        const float *bias = o->bias + i % o->e.experts * o->n;
        int64_t begin = o->e.first[i], end = o->e.first[i + 1];
        EACH_PIECE(d, row, end - begin, step)
        kernels_of(d)->bias_forward(min_i64(step, end - begin - row), o->n,
                                    tensor_to(o->y, (begin + row) * o->n, o->c), bias, o->c);
    }
}

/* Columns first .. first+count-1 of expert e: summed by one thread, in double, so that the result depends
 * neither on how rows are cut nor on the number of threads. */
static void bias_columns(const ExpertsBiasBackwardArgs *o, int e, int64_t first, int64_t count) {
    double sum[COLUMNS] = {0};
    for (int64_t row = o->r.first[e]; row < o->r.first[e + 1]; row++) {
        double weight = o->weighed ? (double)o->r.weights[route_assignment(o->s, o->r, row, e)] : 1;
        for (int64_t i = 0; i < count; i++)
            sum[i] += weight * (double)tensor_get(o->dy, row * o->n + first + i, o->c);
    }
    for (int64_t i = 0; i < count; i++) o->dbias[e * o->n + first + i] += (float)sum[i];
}

static float dot_bias(int64_t n, const void *dy, const float *bias, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)tensor_get(dy, i, c) * (double)bias[i];
    return (float)sum;
}

static void experts_bias_backward(Device *d, const ExpertsBiasBackwardArgs *o) {
    int64_t columns = splits_of(o->n, COLUMNS), step = rows_for(o->n);
    EACH_PIECE(d, i, o->s.experts * columns, 1) {
        int64_t first = i % columns * COLUMNS;
        bias_columns(o, (int)(i / columns), first, min_i64(COLUMNS, o->n - first));
    }
    if (!o->weighed) return;
    EACH_PIECE(d, first, o->s.tokens * o->s.chosen, step) {
        for (int64_t j = first; j < min_i64(o->s.tokens * o->s.chosen, first + step); j++)
            o->dweights[j] += dot_bias(o->n, tensor_at(o->dy, o->r.row[j] * o->n, o->c),
                                       o->bias + o->r.chosen[j] * o->n, o->c);
    }
}

void optimised_fill_experts(Ops *ops) { EXPERTS_OPS(OP_FILL) }
