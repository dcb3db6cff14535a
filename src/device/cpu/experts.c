/* What the implementations of a CPU share of routing: choices and their order, which are whole numbers, and
 * what a token's scores and weights are, in double: rows are short, and this is no place to save time. */
#include <math.h>

#include "device/cpu/cpu.h"

/* Whether expert e has been chosen among the first `count`. */
static bool is_chosen(const int32_t *chosen, int count, int e) {
    for (int i = 0; i < count; i++)
        if (chosen[i] == e) return true;
    return false;
}

/* The largest logit that is left, of equal ones the first. No NaN is larger than anything: where only NaNs
 * are left, the first of them. */
static int best_left(const float *logits, int experts, const int32_t *chosen, int count) {
    int best = -1, any = -1;
    for (int e = 0; e < experts; e++) {
        bool number = logits[e] >= logits[e];
        if ((number ? best >= 0 && !(logits[e] > logits[best]) : any >= 0) || is_chosen(chosen, count, e))
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

void route_choose(RouteShape s, const float *logits, int32_t *chosen) {
    for (int i = 0; i < s.chosen; i++) chosen[i] = (int32_t)best_left(logits, s.experts, chosen, i);
    sort_ascending(chosen, s.chosen);
}

static void softmax(int n, float *x) {
    double sum = 0;
    float top = x[0];
    for (int i = 1; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) sum += exp((double)x[i] - (double)top);
    for (int i = 0; i < n; i++) x[i] = (float)(exp((double)x[i] - (double)top) / sum);
}

void route_score(RouteShape s, float *scores) { softmax(s.experts, scores); }

double route_divisor(RouteShape s, const float *scores, const int32_t *chosen) {
    double sum = 0;
    for (int i = 0; i < s.chosen; i++) sum += (double)scores[chosen[i]];
    return s.normalise ? sum : 1;
}

void route_weigh(RouteShape s, const float *scores, const int32_t *chosen, float *weights) {
    double divisor = route_divisor(s, scores, chosen);
    for (int i = 0; i < s.chosen; i++) weights[i] = (float)((double)scores[chosen[i]] / divisor);
}

void route_count(int64_t tokens, int experts, int k, const int32_t *chosen, int32_t *counts) {
    memset(counts, 0, (size_t)experts * sizeof *counts);
    for (int64_t i = 0; i < tokens * k; i++) counts[chosen[i]]++;
}

/* A stable sort by counting: rows of an expert are in the order of their tokens. */
void route_order(RouteShape s, Routes r, int64_t *counts) {
    int32_t next[EXPERTS_MAX];
    CHECK(s.experts <= EXPERTS_MAX && s.chosen <= s.experts);
    route_count(s.tokens, s.experts, s.chosen, r.chosen, next);
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
