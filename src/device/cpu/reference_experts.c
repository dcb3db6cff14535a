/* Reference ops of experts. As in reference.c, sums and exponentials are in double and rounded once. */
#include "base/tree.h"
#include "device/cpu/cpu.h"

/* ---- routing ---- */

static void route(Device *d, const RouteArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->s.tokens; t++)
        route_token(o->s, o->r.scores + t * o->s.experts, o->r.chosen + t * o->s.chosen,
                    o->r.weights + t * o->s.chosen);
    route_order(o->s, o->r, o->counts);
}

/* Gradients of token t's scores: of the chosen ones by their weights, and of all by the balance loss. Returns
 * the balance loss's value. */
static double score_gradients(const RouteBackwardArgs *o, int64_t t, const double *slopes, double *ds) {
    const RouteShape *s = &o->s;
    const float *scores = o->r.scores + t * s->experts, *weights = o->r.weights + t * s->chosen,
                *dweights = o->dweights + t * s->chosen;
    const int32_t *chosen = o->r.chosen + t * s->chosen;
    double along = 0, value = 0, sum = route_divisor(*s, scores, chosen), factor = route_factor(*s);
    for (int e = 0; e < s->experts; e++) {
        ds[e] = slopes[e] * (double)*o->scale;
        value += slopes[e] * (double)scores[e];
    }
    for (int i = 0; i < s->chosen && s->normalise; i++) along += (double)dweights[i] * (double)weights[i];
    for (int i = 0; i < s->chosen; i++) ds[chosen[i]] += (factor * (double)dweights[i] - along) / sum;
    return value;
}

static void token_backward(const RouteBackwardArgs *o, int64_t t, const double *slopes) {
    double ds[EXPERTS_MAX], mean = 0, value = score_gradients(o, t, slopes, ds);
    const float *scores = o->r.scores + t * o->s.experts;
    for (int e = 0; e < o->s.experts && !o->s.sigmoid; e++) mean += (double)scores[e] * ds[e];
    for (int e = 0; e < o->s.experts; e++) {
        double along = o->s.sigmoid ? ds[e] * (1 - (double)scores[e]) : ds[e] - mean;
        tensor_set(o->dlogits, t * o->s.experts + e, o->c, (float)((double)scores[e] * along));
    }
    o->balance[t] = (float)value;
}

static void route_backward(Device *d, const RouteBackwardArgs *o) {
    (void)d;
    double slopes[EXPERTS_MAX];
    for (int64_t t = 0; t < o->s.tokens; t++) {
        route_slopes(o->s, o->counts, t, slopes);
        token_backward(o, t, slopes);
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

static void grouped_gemm(Device *d, const GroupedGemmArgs *o) {
    int64_t terms = o->splits.runs ? split_length(o->splits) : o->k;
    if (d->profiling)
        d->profile[OP_GROUPED_GEMM].flops += 2.0 * (double)o->e.rows * (double)o->n * (double)terms;
    for (int run = 0; run < o->e.experts * expert_sources(&o->e); run++)
        for (int64_t r = o->e.first[run]; r < o->e.first[run + 1]; r++)
            for (int64_t j = 0; j < o->n; j++) {
                int i = run % o->e.experts;
                double sum = 0;
                for (int64_t p = 0; p < o->k; p++)
                    if (is_taken(&o->splits, p))
                        sum += (double)tensor_get(o->a, r * o->k + p, o->ab_type) *
                               (double)tensor_get(o->b,
                                                  i * o->e.step + (o->trans_b ? j * o->k + p : p * o->n + j),
                                                  o->ab_type);
                tensor_set(o->c, r * o->n + j, o->c_type, (float)sum);
            }
}

/* Element x of an expert's gradient, from the rows of run `run`, starting from `sum`. */
static float gradient_of_run(const GroupedGemmWgradArgs *o, int run, int64_t x, double sum) {
    for (int64_t r = o->e.first[run]; r < o->e.first[run + 1]; r++)
        sum += (double)tensor_get(o->a, r * o->m + x / o->n, o->ab_type) *
               (double)tensor_get(o->b, r * o->n + x % o->n, o->ab_type);
    return (float)sum;
}

/* From sources first .. first+count-1, in the canonical tree. */
static float gradient_of_sources(const GroupedGemmWgradArgs *o, int expert, int first, int count, int64_t x) {
    if (count == 1) return gradient_of_run(o, first * o->e.experts + expert, x, 0);
    int half = tree_half(count);
    return gradient_of_sources(o, expert, first, half, x) +
           gradient_of_sources(o, expert, first + half, count - half, x);
}

static void grouped_gemm_wgrad(Device *d, const GroupedGemmWgradArgs *o) {
    int sources = expert_sources(&o->e);
    if (d->profiling)
        d->profile[OP_GROUPED_GEMM_WGRAD].flops += 2.0 * (double)o->e.rows * (double)o->m * (double)o->n;
    for (int i = 0; i < o->e.experts; i++)
        for (int64_t x = 0; x < o->m * o->n; x++) {
            float *c = &o->c[i * o->e.step + x], start = o->accumulate ? *c : 0;
            *c = sources == 1 ? gradient_of_run(o, i, x, (double)start)
                              : start + gradient_of_sources(o, i, 0, sources, x);
        }
}

/* ---- rows ---- */

/* In fp32, in the order of the token's assignments, as the op prescribes. */
static void combine(Device *d, const CombineArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t i = 0; i < o->hidden; i++) {
            float sum = o->add ? tensor_get(o->y, t * o->hidden + i, o->c) : 0;
            for (int64_t j = t * o->s.chosen; j < (t + 1) * o->s.chosen; j++) {
                float x = tensor_get(o->rows, o->r.row[j] * o->hidden + i, o->c);
                sum += o->weighed ? o->r.weights[j] * x : x;
            }
            tensor_set(o->y, t * o->hidden + i, o->c, sum);
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

static void combine_backward(Device *d, const CombineBackwardArgs *o) {
    (void)d;
    int64_t each = o->inter / o->splits;
    for (int64_t j = 0; j < o->s.tokens * o->s.chosen; j++) {
        float sums[SPLITS_MAX];
        int64_t row = o->r.row ? o->r.row[j] : j;
        for (int i = 0; i < o->splits; i++)
            sums[i] = weigh_split(each, row * o->inter + i * each, o->act, o->dact, o->r.weights[j], o->c);
        o->dweights[j] = weights_tree(o->splits, sums);
    }
}

static void permute(Device *d, const PermuteArgs *o) {
    (void)d;
    for (int64_t j = 0; j < o->s.tokens * o->s.chosen; j++)
        for (int64_t i = 0; i < o->hidden; i++)
            tensor_set(o->rows, o->r.row[j] * o->hidden + i, o->c,
                       o->r.weights[j] * tensor_get(o->x, j / o->s.chosen * o->hidden + i, o->c));
}

static void permute_dweights(Device *d, const PermuteDweightsArgs *o) {
    (void)d;
    int64_t each = o->n / o->splits;
    for (int64_t j = 0; j < o->s.tokens * o->s.chosen; j++) {
        float sums[SPLITS_MAX];
        int64_t row = o->r.row ? o->r.row[j] : j;
        for (int split = 0; split < o->splits; split++) {
            double sum = 0;
            for (int64_t i = 0; i < o->runs * each; i++) {
                int64_t at = (row * o->runs + i / each) * o->n + split * each + i % each;
                sum += (double)tensor_get(o->y, at, o->c) * (double)tensor_get(o->dy, at, o->c);
            }
            sums[split] = weight_gradient(sum, o->r.weights[j]);
        }
        o->dweights[j] = weights_tree(o->splits, sums);
    }
}

static void experts_bias_forward(Device *d, const ExpertsBiasForwardArgs *o) {
    (void)d;
    for (int i = 0; i < o->e.experts * expert_sources(&o->e); i++)
        for (int64_t x = o->e.first[i] * o->n; x < o->e.first[i + 1] * o->n; x++)
            tensor_set(o->y, x, o->c,
                       tensor_get(o->y, x, o->c) + o->bias[i % o->e.experts * o->n + x % o->n]);
}

static double bias_gradient(const ExpertsBiasBackwardArgs *o, int e, int64_t i) {
    double sum = 0;
    for (int64_t row = o->r.first[e]; row < o->r.first[e + 1]; row++) {
        double weight = o->weighed ? (double)o->r.weights[route_assignment(o->s, o->r, row, e)] : 1;
        sum += weight * (double)tensor_get(o->dy, row * o->n + i, o->c);
    }
    return sum;
}

static void experts_bias_backward(Device *d, const ExpertsBiasBackwardArgs *o) {
    (void)d;
    for (int e = 0; e < o->s.experts; e++)
        for (int64_t i = 0; i < o->n; i++) o->dbias[e * o->n + i] += (float)bias_gradient(o, e, i);
    for (int64_t j = 0; o->weighed && j < o->s.tokens * o->s.chosen; j++) {
        double sum = 0;
        for (int64_t i = 0; i < o->n; i++)
            sum += (double)tensor_get(o->dy, o->r.row[j] * o->n + i, o->c) *
                   (double)o->bias[o->r.chosen[j] * o->n + i];
        o->dweights[j] += (float)sum;
    }
}

void reference_fill_experts(Ops *ops) { EXPERTS_OPS(OP_FILL) }
