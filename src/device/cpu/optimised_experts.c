/* Expert ops on threads. Products are computed by gemm.c, one expert after another. The other ops are passes
 * over rows at memory speed, in plain C. Rows and tokens are independent, so pieces do not affect results.
 * The selection takes E k comparisons a token; sorting the assignments, on one thread, takes some nanoseconds
 * each. */
#include "device/cpu/optimised.h"

/* ---- routing ---- */

static void route(Device *d, RouteShape s, Routes r, int64_t *counts) {
    int64_t step = rows_for(s.experts * (int64_t)s.chosen);
    EACH_PIECE(d, first, s.tokens, step) {
        for (int64_t t = first; t < min_i64(s.tokens, first + step); t++)
            route_token(s, r.scores + t * s.experts, r.chosen + t * s.chosen, r.weights + t * s.chosen);
    }
    route_order(s, r, counts);
}

/* slopes: derivative of the sequence's balance loss for each expert. */
static void token_backward(RouteShape s, Routes r, int64_t t, const float *dweights, const double *slopes,
                           double scale, float *balance, void *dlogits, Dtype c) {
    double ds[EXPERTS_MAX], mean = 0, along = 0, value = 0;
    const float *scores = r.scores + t * s.experts, *weights = r.weights + t * s.chosen;
    const int32_t *chosen = r.chosen + t * s.chosen;
    const float *dw = dweights + t * s.chosen;
    double divisor = route_divisor(s, scores, chosen), factor = route_factor(s);
    for (int e = 0; e < s.experts; e++) {
        ds[e] = slopes[e] * scale;
        value += slopes[e] * (double)scores[e];
    }
    for (int i = 0; i < s.chosen && s.normalise; i++) along += (double)dw[i] * (double)weights[i];
    for (int i = 0; i < s.chosen; i++) ds[chosen[i]] += (factor * (double)dw[i] - along) / divisor;
    for (int e = 0; e < s.experts && !s.sigmoid; e++) mean += (double)scores[e] * ds[e];
    for (int e = 0; e < s.experts; e++) {
        double slope = s.sigmoid ? ds[e] * (1 - (double)scores[e]) : ds[e] - mean;
        tensor_set(dlogits, t * s.experts + e, c, (float)((double)scores[e] * slope));
    }
    balance[t] = (float)value;
}

static void route_backward(Device *d, RouteShape s, Routes r, const int64_t *counts, const float *dweights,
                           const float *scale, float *balance, void *dlogits, Dtype c) {
    int64_t step = rows_for(s.experts);
    for (int64_t start = 0, tokens; start < s.tokens; start += tokens) {
        double slopes[EXPERTS_MAX];
        tokens = route_next(s, start) - start;
        route_slopes(s, counts, start, slopes);
        EACH_PIECE(d, first, tokens, step) {
            for (int64_t t = first; t < min_i64(tokens, first + step); t++)
                token_backward(s, r, start + t, dweights, slopes, (double)*scale, balance, dlogits, c);
        }
    }
}

/* ---- products ---- */

static void grouped_gemm(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k, const void *a,
                         const void *b, Dtype ab_type, void *c, Dtype c_type, KSplit splits) {
    gemm_run_grouped(optimised_of(d)->gemm, d, e, trans_b, n, k, a, b, ab_type, c, c_type, splits);
}

static void grouped_gemm_wgrad(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a, const void *b,
                               Dtype ab_type, float *c, bool accumulate, bool sliced) {
    gemm_run_grouped_wgrad(optimised_of(d)->gemm, d, e, m, n, a, b, ab_type, c, accumulate, sliced);
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
static void combine_columns(const Device *d, RouteShape s, const Routes *r, int64_t hidden, const void *rows,
                            bool weighed, bool add, void *y, Dtype c, int64_t t, int64_t first, int64_t n) {
    float sum[COLUMNS];
    void *to = tensor_to(y, t * hidden + first, c);
    if (add)
        kernels_of(d)->cast(n, to, c, sum, DTYPE_F32);
    else
        memset(sum, 0, (size_t)n * sizeof *sum);
    for (int64_t j = t * s.chosen; j < (t + 1) * s.chosen; j++)
        add_row(n, tensor_at(rows, r->row[j] * hidden + first, c), weighed ? r->weights[j] : 1, sum, c);
    kernels_of(d)->cast(n, sum, DTYPE_F32, to, c);
}

static void combine(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows, bool weighed,
                    bool add, void *y, Dtype c) {
    int64_t step = rows_for(hidden * s.chosen);
    EACH_PIECE(d, first, s.tokens, step) {
        for (int64_t t = first; t < min_i64(s.tokens, first + step); t++)
            for (int64_t i = 0; i < hidden; i += COLUMNS)
                combine_columns(d, s, &r, hidden, rows, weighed, add, y, c, t, i,
                                min_i64(COLUMNS, hidden - i));
    }
}

/* The dot product of at most COLUMNS elements, which are then multiplied by the weight. Lanes are added in
 * order. */
static double weigh_columns(int64_t n, float *x, float *dx, float weight) {
    enum { LANES = 16 };
    float lanes[LANES] = {0};
    double sum = 0;
    for (int64_t i = 0; i < n; i++) lanes[i % LANES] += x[i] * dx[i];
    for (int i = 0; i < LANES; i++) sum += (double)lanes[i];
    for (int64_t i = 0; i < n; i++) x[i] *= weight, dx[i] *= weight;
    return sum;
}

/* The dot product, COLUMNS elements at a time. x and dx times the weight are written to `to` and `dto`, which
 * may be the same memory as x and dx, or NULL: not written. */
static double weigh(const Device *d, int64_t n, const void *x, const void *dx, float weight, void *to,
                    void *dto, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i += COLUMNS) {
        float a[COLUMNS], b[COLUMNS];
        int64_t count = min_i64(COLUMNS, n - i);
        kernels_of(d)->cast(count, tensor_at(x, i, c), c, a, DTYPE_F32);
        kernels_of(d)->cast(count, tensor_at(dx, i, c), c, b, DTYPE_F32);
        sum += weigh_columns(count, a, b, weight);
        if (to == NULL) continue;
        kernels_of(d)->cast(count, a, DTYPE_F32, tensor_to(to, i, c), c);
        kernels_of(d)->cast(count, b, DTYPE_F32, tensor_to(dto, i, c), c);
    }
    return sum;
}

static float weigh_row(const Device *d, int64_t inter, int splits, void *act, void *dact, float weight,
                       Dtype c) {
    float sums[SPLITS_MAX];
    int64_t each = inter / splits;
    for (int i = 0; i < splits; i++) {
        void *x = tensor_to(act, i * each, c), *dx = tensor_to(dact, i * each, c);
        sums[i] = (float)weigh(d, each, x, dx, weight, x, dx, c);
    }
    return weights_tree(splits, sums);
}

static void combine_backward(Device *d, RouteShape s, Routes r, int64_t inter, int splits, void *act,
                             void *dact, float *dweights, Dtype c) {
    int64_t step = rows_for(inter), assignments = s.tokens * s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++) {
            int64_t at = (r.row ? r.row[j] : j) * inter;
            dweights[j] =
                weigh_row(d, inter, splits, tensor_to(act, at, c), tensor_to(dact, at, c), r.weights[j], c);
        }
    }
}

static void permute(Device *d, RouteShape s, Routes r, int64_t hidden, const void *x, void *rows, Dtype c) {
    int64_t step = rows_for(hidden), assignments = s.tokens * s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++)
            kernels_of(d)->embed_row(hidden, tensor_at(x, j / s.chosen * hidden, c), r.weights[j], false,
                                     tensor_to(rows, r.row[j] * hidden, c), c);
    }
}

static float weights_row(const Device *d, int64_t n, int runs, int splits, const void *y, const void *dy,
                         float weight, Dtype c) {
    float sums[SPLITS_MAX];
    int64_t each = n / splits;
    for (int split = 0; split < splits; split++) {
        double sum = 0;
        for (int64_t at = split * each; at < runs * n; at += n)
            sum += weigh(d, each, tensor_at(y, at, c), tensor_at(dy, at, c), 1, NULL, NULL, c);
        sums[split] = weight_gradient(sum, weight);
    }
    return weights_tree(splits, sums);
}

static void permute_dweights(Device *d, RouteShape s, Routes r, int64_t n, int runs, int splits,
                             const void *y, const void *dy, float *dweights, Dtype c) {
    int64_t step = rows_for(runs * n), assignments = s.tokens * s.chosen;
    EACH_PIECE(d, first, assignments, step) {
        for (int64_t j = first; j < min_i64(assignments, first + step); j++) {
            int64_t at = (r.row ? r.row[j] : j) * runs * n;
            dweights[j] =
                weights_row(d, n, runs, splits, tensor_at(y, at, c), tensor_at(dy, at, c), r.weights[j], c);
        }
    }
}

/* ---- biases ---- */

static void experts_bias_forward(Device *d, ExpertRows e, int64_t n, void *y, const float *bias, Dtype c) {
    int64_t step = rows_for(n);
    for (int i = 0; i < e.experts; i++) {
        int64_t begin = e.first[i], end = e.first[i + 1];
        EACH_PIECE(d, row, end - begin, step)
        kernels_of(d)->bias_forward(min_i64(step, end - begin - row), n, tensor_to(y, (begin + row) * n, c),
                                    bias + i * n, c);
    }
}

/* Columns first .. first+count-1 of expert e: summed by one thread, in double, so that the result depends
 * neither on how rows are cut nor on the number of threads. */
static void bias_columns(RouteShape s, Routes r, int e, int64_t n, int64_t first, int64_t count,
                         const void *dy, bool weighed, float *dbias, Dtype c) {
    double sum[COLUMNS] = {0};
    for (int64_t row = r.first[e]; row < r.first[e + 1]; row++) {
        double weight = weighed ? (double)r.weights[route_assignment(s, r, row, e)] : 1;
        for (int64_t i = 0; i < count; i++) sum[i] += weight * (double)tensor_get(dy, row * n + first + i, c);
    }
    for (int64_t i = 0; i < count; i++) dbias[e * n + first + i] += (float)sum[i];
}

static float dot_bias(int64_t n, const void *dy, const float *bias, Dtype c) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)tensor_get(dy, i, c) * (double)bias[i];
    return (float)sum;
}

static void experts_bias_backward(Device *d, RouteShape s, Routes r, int64_t n, const void *dy, bool weighed,
                                  const float *bias, float *dbias, float *dweights, Dtype c) {
    int64_t columns = splits_of(n, COLUMNS), step = rows_for(n);
    EACH_PIECE(d, i, s.experts * columns, 1) {
        int64_t first = i % columns * COLUMNS;
        bias_columns(s, r, (int)(i / columns), n, first, min_i64(COLUMNS, n - first), dy, weighed, dbias, c);
    }
    if (!weighed) return;
    EACH_PIECE(d, first, s.tokens * s.chosen, step) {
        for (int64_t j = first; j < min_i64(s.tokens * s.chosen, first + step); j++)
            dweights[j] += dot_bias(n, tensor_at(dy, r.row[j] * n, c), bias + r.chosen[j] * n, c);
    }
}

void optimised_fill_experts(Ops *ops) {
    ops->route = route;
    ops->route_count = route_count;
    ops->route_backward = route_backward;
    ops->grouped_gemm = grouped_gemm;
    ops->grouped_gemm_wgrad = grouped_gemm_wgrad;
    ops->combine = combine;
    ops->combine_backward = combine_backward;
    ops->permute = permute;
    ops->permute_dweights = permute_dweights;
    ops->experts_bias_forward = experts_bias_forward;
    ops->experts_bias_backward = experts_bias_backward;
}
