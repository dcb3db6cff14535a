/* Reference ops of experts. As in reference.c, sums and exponentials are in double and rounded once. */
#include "device/cpu/cpu.h"

/* ---- routing ---- */

static void route(Device *d, RouteShape s, Routes r, int64_t *counts) {
    (void)d;
    for (int64_t t = 0; t < s.tokens; t++)
        route_token(s, r.scores + t * s.experts, r.chosen + t * s.chosen, r.weights + t * s.chosen);
    route_order(s, r, counts);
}

/* Gradients of one token's scores: of the chosen ones by their weights, and of all by the balance loss.
 * Returns the balance loss's value. */
static double score_gradients(RouteShape s, const float *scores, const int32_t *chosen, const float *weights,
                              const float *dweights, const double *slopes, double scale, double *ds) {
    double along = 0, value = 0, sum = route_divisor(s, scores, chosen), factor = route_factor(s);
    for (int e = 0; e < s.experts; e++) {
        ds[e] = slopes[e] * scale;
        value += slopes[e] * (double)scores[e];
    }
    for (int i = 0; i < s.chosen && s.normalise; i++) along += (double)dweights[i] * (double)weights[i];
    for (int i = 0; i < s.chosen; i++) ds[chosen[i]] += (factor * (double)dweights[i] - along) / sum;
    return value;
}

static void token_backward(RouteShape s, Routes r, int64_t t, const float *dweights, const double *slopes,
                           double scale, float *balance, void *dlogits, Dtype c) {
    double ds[EXPERTS_MAX], mean = 0;
    const float *scores = r.scores + t * s.experts;
    int64_t at = t * s.chosen;
    double value =
        score_gradients(s, scores, r.chosen + at, r.weights + at, dweights + at, slopes, scale, ds);
    for (int e = 0; e < s.experts && !s.sigmoid; e++) mean += (double)scores[e] * ds[e];
    for (int e = 0; e < s.experts; e++) {
        double along = s.sigmoid ? ds[e] * (1 - (double)scores[e]) : ds[e] - mean;
        tensor_set(dlogits, t * s.experts + e, c, (float)((double)scores[e] * along));
    }
    balance[t] = (float)value;
}

static void route_backward(Device *d, RouteShape s, Routes r, const int64_t *counts, const float *dweights,
                           const float *scale, float *balance, void *dlogits, Dtype c) {
    (void)d;
    double slopes[EXPERTS_MAX];
    for (int64_t t = 0; t < s.tokens; t++) {
        route_slopes(s, counts, t, slopes);
        token_backward(s, r, t, dweights, slopes, (double)*scale, balance, dlogits, c);
    }
}

/* ---- products ---- */

/* Whether the split includes this term. */
static bool is_taken(const KSplit *split, int64_t term) {
    int64_t first = 0;
    if (split->runs == 0) return true;
    for (int r = 0; r < split->runs; first += split->run[r++].length) {
        first += split->run[r].skip;
        if (first <= term && term < first + split->run[r].length) return true;
    }
    return false;
}

static void grouped_gemm(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k, const void *a,
                         const void *b, Dtype ab_type, void *c, Dtype c_type, KSplit splits) {
    int64_t terms = splits.runs ? split_length(splits) : k;
    if (d->profiling) d->profile[OP_GROUPED_GEMM].flops += 2.0 * (double)e.rows * (double)n * (double)terms;
    for (int i = 0; i < e.experts; i++)
        for (int64_t r = e.first[i]; r < e.first[i + 1]; r++)
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t p = 0; p < k; p++)
                    if (is_taken(&splits, p))
                        sum += (double)tensor_get(a, r * k + p, ab_type) *
                               (double)tensor_get(b, i * e.step + (trans_b ? j * k + p : p * n + j), ab_type);
                tensor_set(c, r * n + j, c_type, (float)sum);
            }
}

static void grouped_gemm_wgrad(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a, const void *b,
                               Dtype ab_type, float *c, bool accumulate, bool sliced) {
    (void)sliced;
    if (d->profiling) d->profile[OP_GROUPED_GEMM_WGRAD].flops += 2.0 * (double)e.rows * (double)m * (double)n;
    for (int i = 0; i < e.experts; i++)
        for (int64_t x = 0; x < m * n; x++) {
            double sum = accumulate ? (double)c[i * e.step + x] : 0;
            for (int64_t r = e.first[i]; r < e.first[i + 1]; r++)
                sum += (double)tensor_get(a, r * m + x / n, ab_type) *
                       (double)tensor_get(b, r * n + x % n, ab_type);
            c[i * e.step + x] = (float)sum;
        }
}

/* ---- rows ---- */

/* In fp32, in the order of the token's assignments, as the op prescribes. */
static void combine(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows, bool weighed,
                    bool add, void *y, Dtype c) {
    (void)d;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t i = 0; i < hidden; i++) {
            float sum = add ? tensor_get(y, t * hidden + i, c) : 0;
            for (int64_t j = t * s.chosen; j < (t + 1) * s.chosen; j++) {
                float x = tensor_get(rows, r.row[j] * hidden + i, c);
                sum += weighed ? r.weights[j] * x : x;
            }
            tensor_set(y, t * hidden + i, c, sum);
        }
}

/* Multiplies n elements from the i-th on by the weight; returns their dot product. */
static float weigh_split(int64_t n, int64_t i, void *act, void *dact, float weight, Dtype c) {
    double sum = 0;
    for (int64_t end = i + n; i < end; i++) {
        float x = tensor_get(act, i, c), dx = tensor_get(dact, i, c);
        sum += (double)x * (double)dx;
        tensor_set(act, i, c, weight * x);
        tensor_set(dact, i, c, weight * dx);
    }
    return (float)sum;
}

static void combine_backward(Device *d, RouteShape s, Routes r, int64_t inter, int splits, void *act,
                             void *dact, float *dweights, Dtype c) {
    (void)d;
    int64_t each = inter / splits;
    for (int64_t j = 0; j < s.tokens * s.chosen; j++) {
        float sums[SPLITS_MAX];
        int64_t row = r.row ? r.row[j] : j;
        for (int i = 0; i < splits; i++)
            sums[i] = weigh_split(each, row * inter + i * each, act, dact, r.weights[j], c);
        dweights[j] = weights_tree(splits, sums);
    }
}

static void permute(Device *d, RouteShape s, Routes r, int64_t hidden, const void *x, void *rows, Dtype c) {
    (void)d;
    for (int64_t j = 0; j < s.tokens * s.chosen; j++)
        for (int64_t i = 0; i < hidden; i++)
            tensor_set(rows, r.row[j] * hidden + i, c,
                       r.weights[j] * tensor_get(x, j / s.chosen * hidden + i, c));
}

static void permute_dweights(Device *d, RouteShape s, Routes r, int64_t n, int runs, int splits,
                             const void *y, const void *dy, float *dweights, Dtype c) {
    (void)d;
    int64_t each = n / splits;
    for (int64_t j = 0; j < s.tokens * s.chosen; j++) {
        float sums[SPLITS_MAX];
        int64_t row = r.row ? r.row[j] : j;
        for (int split = 0; split < splits; split++) {
            double sum = 0;
            for (int64_t i = 0; i < runs * each; i++) {
                int64_t at = (row * runs + i / each) * n + split * each + i % each;
                sum += (double)tensor_get(y, at, c) * (double)tensor_get(dy, at, c);
            }
            sums[split] = weight_gradient(sum, r.weights[j]);
        }
        dweights[j] = weights_tree(splits, sums);
    }
}

static void experts_bias_forward(Device *d, ExpertRows e, int64_t n, void *y, const float *bias, Dtype c) {
    (void)d;
    for (int i = 0; i < e.experts; i++)
        for (int64_t x = e.first[i] * n; x < e.first[i + 1] * n; x++)
            tensor_set(y, x, c, tensor_get(y, x, c) + bias[i * n + x % n]);
}

static double bias_gradient(RouteShape s, Routes r, int e, int64_t n, int64_t i, const void *dy, bool weighed,
                            Dtype c) {
    double sum = 0;
    for (int64_t row = r.first[e]; row < r.first[e + 1]; row++) {
        double weight = weighed ? (double)r.weights[route_assignment(s, r, row, e)] : 1;
        sum += weight * (double)tensor_get(dy, row * n + i, c);
    }
    return sum;
}

static void experts_bias_backward(Device *d, RouteShape s, Routes r, int64_t n, const void *dy, bool weighed,
                                  const float *bias, float *dbias, float *dweights, Dtype c) {
    (void)d;
    for (int e = 0; e < s.experts; e++)
        for (int64_t i = 0; i < n; i++)
            dbias[e * n + i] += (float)bias_gradient(s, r, e, n, i, dy, weighed, c);
    for (int64_t j = 0; weighed && j < s.tokens * s.chosen; j++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += (double)tensor_get(dy, r.row[j] * n + i, c) * (double)bias[r.chosen[j] * n + i];
        dweights[j] += (float)sum;
    }
}

void reference_fill_experts(Ops *ops) {
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
