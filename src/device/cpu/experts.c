/* Routing code that all CPU implementations share: the selection and order of assignments, which are
 * integers, and a token's scores and weights, in double. Rows are short, so their speed does not matter. */
#include <math.h>

#include "base/tree.h"
#include "device/cpu/cpu.h"

/* Whether expert e is among the first `count` chosen. */
static bool is_chosen(const int32_t *chosen, int count, int e) {
    for (int i = 0; i < count; i++)
        if (chosen[i] == e) return true;
    return false;
}

/* The index of the largest key not chosen yet; of equal ones, the first. NaN compares as smallest: if only
 * NaNs are left, the first of them. */
static int best_left(const float *keys, int n, const int32_t *chosen, int count) {
    int best = -1, any = -1;
    for (int e = 0; e < n; e++) {
        bool number = keys[e] >= keys[e];
        if ((number ? best >= 0 && !(keys[e] > keys[best]) : any >= 0) || is_chosen(chosen, count, e))
            continue;
        *(number ? &best : &any) = e;
    }
    return best >= 0 ? best : any;
}

static void sort_ascending(int32_t *x, int count) {
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && x[j - 1] > x[j]; j--) {
            int32_t t = x[j];
            x[j] = x[j - 1], x[j - 1] = t;
        }
}

/* The indices of the `count` largest keys, ascending. */
static void choose(int n, const float *keys, int count, int32_t *chosen) {
    for (int i = 0; i < count; i++) chosen[i] = (int32_t)best_left(keys, n, chosen, i);
    sort_ascending(chosen, count);
}

static void softmax(int n, float *x) {
    double sum = 0;
    float top = x[0];
    for (int i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)top);
    for (int i = 0; i < n; i++) x[i] = (float)(exp((double)x[i] - (double)top) / sum);
}

void route_score(RouteShape s, float *scores) {
    if (!s.sigmoid) softmax(s.experts, scores);
    for (int e = 0; s.sigmoid && e < s.experts; e++) scores[e] = (float)(1 / (1 + exp(-(double)scores[e])));
}

/* A group's key: its largest, or the sum of its two largest. NaN is ignored. */
static float group_key(int count, const float *keys, bool two) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = 0; i < count; i++)
        if (keys[i] > first)
            second = first, first = keys[i];
        else if (keys[i] > second)
            second = keys[i];
    return two ? first + second : first;
}

/* Compacts the keys of the chosen groups; of[i] is the expert of key i. Returns their number. */
static int open_keys(RouteShape s, float *keys, int32_t *of) {
    int size = s.experts / s.groups, n = 0;
    float best[EXPERTS_MAX];
    int32_t open[EXPERTS_MAX];
    for (int g = 0; g < s.groups; g++) best[g] = group_key(size, keys + g * size, s.sigmoid);
    choose(s.groups, best, s.groups_chosen, open);
    for (int g = 0; g < s.groups_chosen; g++)
        for (int e = open[g] * size; e < (open[g] + 1) * size; e++) keys[n] = keys[e], of[n++] = e;
    return n;
}

static void choose_of_groups(RouteShape s, float *keys, int32_t *chosen) {
    int32_t of[EXPERTS_MAX];
    int open = open_keys(s, keys, of);
    CHECK(s.chosen <= open);
    choose(open, keys, s.chosen, chosen);
    for (int i = 0; i < s.chosen; i++) chosen[i] = of[chosen[i]];
}

/* Scores have the same order as logits, but may be equal where logits differ, so experts are chosen by logit.
 * With sigmoid and a bias or groups, however, sums of scores decide, so scores are computed first. */
void route_token(RouteShape s, float *scores, int32_t *chosen, float *weights) {
    float keys[EXPERTS_MAX];
    bool first = s.sigmoid && (s.bias || s.groups > 1);
    CHECK(s.experts <= EXPERTS_MAX && s.chosen <= s.experts);
    if (first) route_score(s, scores);
    for (int e = 0; e < s.experts; e++) keys[e] = s.bias ? scores[e] + s.bias[e] : scores[e];
    if (s.groups > 1)
        choose_of_groups(s, keys, chosen);
    else
        choose(s.experts, s.bias ? keys : scores, s.chosen, chosen);
    if (!first) route_score(s, scores);
    route_weigh(s, scores, chosen, weights);
}

/* 1e-20, since all sigmoids may be zero. */
double route_divisor(RouteShape s, const float *scores, const int32_t *chosen) {
    double sum = s.sigmoid ? 1e-20 : 0;
    for (int i = 0; i < s.chosen; i++) sum += (double)scores[chosen[i]];
    return s.normalise ? sum : 1;
}

void route_weigh(RouteShape s, const float *scores, const int32_t *chosen, float *weights) {
    double factor = route_factor(s), divisor = route_divisor(s, scores, chosen);
    for (int i = 0; i < s.chosen; i++) weights[i] = (float)(factor * (double)scores[chosen[i]] / divisor);
}

float weight_gradient(double along, float weight) {
    return weight >= 0 && weight <= 0 ? 0 : (float)(along / (double)weight);
}

float weights_tree(int count, const float *x) {
    if (count == 1) return x[0];
    int half = tree_half(count);
    return weights_tree(half, x) + weights_tree(count - half, x + half);
}

void route_count(Device *d, const RouteCountArgs *o) {
    (void)d;
    for (int64_t i = 0; i < o->s.tokens * o->s.chosen; i++)
        o->counts[(o->s.before + i / o->s.chosen) / o->s.sequence * o->s.experts + o->chosen[i]]++;
}

/* A sequence's number of tokens is its number of assignments divided by k; the last one may be shorter. */
void route_slopes(RouteShape s, const int64_t *counts, int64_t t, double *slopes) {
    bool balanced = s.balance > 0;
    int64_t assignments = 0;
    if (balanced) counts += (s.before + t) / s.sequence * s.experts;
    for (int e = 0; balanced && e < s.experts; e++) assignments += counts[e];
    for (int e = 0; e < s.experts; e++)
        slopes[e] =
            !balanced ? 0
                      : (double)s.balance * s.experts * (double)counts[e] / (double)(assignments / s.chosen);
}

/* A stable counting sort: rows of an expert are in the order of their tokens. */
void route_order(RouteShape s, Routes r, int64_t *counts) {
    int32_t next[EXPERTS_MAX];
    CHECK(s.experts <= EXPERTS_MAX && s.chosen <= s.experts);
    memset(next, 0, (size_t)s.experts * sizeof *next);
    for (int64_t i = 0; i < s.tokens * s.chosen; i++) next[r.chosen[i]]++;
    r.first[0] = 0;
    for (int e = 0; e < s.experts; e++) {
        if (counts) counts[e] += next[e];
        r.first[e + 1] = r.first[e] + next[e];
        next[e] = r.first[e];
    }
    for (int64_t i = 0; i < s.tokens * s.chosen; i++) {
        int32_t row = next[r.chosen[i]]++;
        r.row[i] = row;
        r.token[row] = (int32_t)(i / s.chosen);
    }
}
