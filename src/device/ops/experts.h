/* Ops of mixtures of experts: routing, grouped products, permuting and combining rows. */
#ifndef WEFT_DEVICE_OPS_EXPERTS_H
#define WEFT_DEVICE_OPS_EXPERTS_H

#include "device/shapes.h"

/* Mixture of experts: each token is routed to k of E experts, and their weighted results are added up. There
 * are always T k (token, expert) *assignments*, whatever the router selects, so that memory never depends on
 * the data. Experts work on the assignments sorted by expert, then by token: these are their rows. */
typedef struct RouteShape {
    int64_t tokens;   /* T */
    int64_t sequence; /* tokens of a sequence, for the balance loss; fewer in the last */
    int experts;      /* E, at most EXPERTS_MAX */
    int chosen;       /* k <= E */
    bool normalise;   /* divide a token's weights by their sum */
    float balance;    /* coefficient of the balance loss, of softmax scores only; 0: none */
    /* Zeros from here on select plain softmax routing. */
    bool sigmoid;      /* a score is 1 / (1 + exp(-logit)); else softmax over all experts */
    int groups;        /* equal groups of consecutive experts, a divisor of E; 0: no groups */
    int groups_chosen; /* groups from which the k experts are chosen */
    float factor;      /* multiplies weights; 0: as 1 */
    const float *bias; /* [E] tensor memory, with sigmoid: added to scores to choose experts; or NULL */
    int64_t before;    /* tokens of the microbatch before the first, whose sequence may begin there */
} RouteShape;
enum { EXPERTS_MAX = 4096 };

/* Where the router sends the tokens; tensor memory. */
typedef struct Routes {
    float *scores;   /* [T, E] of the router's logits */
    int32_t *chosen; /* [T, k] experts, ascending */
    float *weights;  /* [T, k] */
    int32_t *row;    /* [T, k] row of each assignment */
    int32_t *token;  /* [T k] token of each row */
    int32_t *first;  /* [E + 1] rows of expert e: from first[e] to first[e + 1] */
} Routes;

/* Rows of the experts, and their weight matrices. Rows come from one source or several (with ep: the ranks of
 * the tokens), one source after the other, and those of each are sorted by expert. Run s E + e is of source s
 * and expert e: rows first[s E + e] to first[s E + e + 1]. */
typedef struct ExpertRows {
    int64_t rows;         /* of all runs: first[sources E] - first[0] */
    int experts;          /* E */
    const int32_t *first; /* [sources E + 1] tensor memory */
    int64_t step;         /* elements between the matrices of two experts */
    int sources;          /* at most SPLITS_MAX; 0: as 1 */
} ExpertRows;
static inline int expert_sources(const ExpertRows *e) { return e->sources > 1 ? e->sources : 1; }

/* Turns the logits in r.scores into scores, in place; then selects each token's top k experts by logit
 * (with s.sigmoid and a bias or groups: by score plus bias; ties go to lower numbers), takes their scores
 * without bias as weights, and lays out the rows. With groups, the experts come from the s.groups_chosen
 * best groups: those with the largest logit, or with s.sigmoid the largest sum of two. counts[e] += rows
 * of expert e, unless NULL. NaN is selected last. Shazeer et al., "Outrageously large neural networks:
 * the sparsely-gated mixture-of-experts layer", 2017; groups and sigmoid: DeepSeek-AI, "DeepSeek-V2" and
 * "DeepSeek-V3", 2024; bias: Wang et al., "Auxiliary-loss-free load balancing", 2024. */
typedef struct RouteArgs {
    RouteShape s;
    Routes r;
    int64_t *counts; /* [E] or NULL */
} RouteArgs;

/* counts[q, e] += assignments to expert e of tokens of sequence q of the microbatch. */
typedef struct RouteCountArgs {
    RouteShape s;
    const int32_t *chosen; /* [T, k] */
    int64_t *counts;       /* [sequences, E] */
} RouteCountArgs;

/* dlogits from dweights, through the scores of the selected experts; the selection has no gradient. With
 * s.balance each sequence has a loss that is least if experts have equally many tokens. f_e is the number
 * of the sequence's assignments to e divided by its tokens, over all ranks that hold some of them, and is
 * treated as a constant:
 *
 *     balance[t] = s.balance * E * sum_e f_e scores[t, e]
 *
 * dlogits then includes the gradient of the sum of balance, times *scale. Fedus, Zoph & Shazeer, "Switch
 * transformers", 2021; by sequence: DeepSeek-AI, "DeepSeek-V3 technical report", 2024. */
typedef struct RouteBackwardArgs {
    RouteShape s;
    Routes r;
    const int64_t *counts; /* [sequences, E]: of s.balance */
    const float *dweights; /* [T, k] */
    const float *scale;    /* [1] */
    float *balance;        /* [T] */
    void *dlogits;         /* [T, E] c */
    Dtype c;
} RouteBackwardArgs;

/* Multiplies each expert's rows by its matrix: C[r] = A[r] op(B_e), B_e [k, n], or with trans_b the
 * transpose of [n, k]. The result equals gemm of that expert's rows with one split, so the bits of a row
 * depend neither on the other rows nor on the sources. `splits` has no split, or one, and then only that
 * range of k is multiplied; callers combine a token's experts split by split. */
typedef struct GroupedGemmArgs {
    ExpertRows e;
    bool trans_b;
    int64_t n, k;
    const void *a; /* [rows, k] ab_type */
    const void *b; /* [E] matrices, ab_type */
    Dtype ab_type;
    void *c; /* [rows, n] c_type */
    Dtype c_type;
    KSplit splits;
} GroupedGemmArgs;

/* C_e [m, n] = A_e^T B_e + (accumulate ? C_e : 0), with A_e and B_e the rows of expert e; 0 (or C_e) if
 * it has none. Each source's rows are a sum of their own, as a product with one split; the sums of several
 * sources are added in the canonical tree (base/tree.h), and C_e to the result. A source without rows adds
 * zeros. */
typedef struct GroupedGemmWgradArgs {
    ExpertRows e;
    int64_t m, n;
    const void *a; /* [rows, m] */
    const void *b; /* [rows, n] */
    Dtype ab_type;
    float *c; /* [E] matrices */
    bool accumulate;
} GroupedGemmWgradArgs;

/* y[t] = (add ? y[t] : 0) + sum of the rows of the token's k assignments, in the order of their experts,
 * times r.weights if `weighed`; in fp32, rounded once. */
typedef struct CombineArgs {
    RouteShape s;
    Routes r;
    int64_t hidden;
    const void *rows; /* [T k, h] c */
    bool weighed, add;
    void *y; /* [T, h] c */
    Dtype c;
} CombineArgs;

/* For each assignment and its row: dweights = act . dact, as the tree of `splits` equal splits; then act
 * and dact are multiplied by its weight. If r.row is NULL, assignment j has row j. dweights may be
 * r.weights. */
typedef struct CombineBackwardArgs {
    RouteShape s;
    Routes r;
    int64_t inter;
    int splits;
    void *act;       /* [T k, I] c */
    void *dact;      /* [T k, I] c */
    float *dweights; /* [T, k] */
    Dtype c;
} CombineBackwardArgs;

/* For models that weight the input of an expert instead of its output: the row of each assignment is its
 * weight times its token's x ... */
typedef struct PermuteArgs {
    RouteShape s;
    Routes r;
    int64_t hidden;
    const void *x; /* [T, h] c */
    void *rows;    /* [T k, h] c */
    Dtype c;
} PermuteArgs;

/* ... and the gradient of the weight is the dot product of the row's gradient and x. Since y, `runs` runs
 * of n elements (gate, up), is linear in the row, that is (y . dy) / weight, or 0 if the weight is 0.
 * dweights = the tree of `splits` equal splits of each run. If r.row is NULL, assignment j has row j.
 * dweights may be r.weights. */
typedef struct PermuteDweightsArgs {
    RouteShape s;
    Routes r;
    int64_t n;
    int runs, splits;
    const void *y;   /* [T k, runs n] c */
    const void *dy;  /* [T k, runs n] c */
    float *dweights; /* [T, k] */
    Dtype c;
} PermuteDweightsArgs;

/* y[r] += the bias of its expert. */
typedef struct ExpertsBiasForwardArgs {
    ExpertRows e; /* step: unused */
    int64_t n;
    void *y;           /* [rows, n] c */
    const float *bias; /* [E, n] */
    Dtype c;
} ExpertsBiasForwardArgs;

/* dbias_e += sum of dy over the rows of e. `weighed`: the biased output was multiplied by the weight of
 * its assignment, so dy is too, and dweights += dy . bias_e. */
typedef struct ExpertsBiasBackwardArgs {
    RouteShape s;
    Routes r;
    int64_t n;
    const void *dy; /* [T k, n] c */
    bool weighed;
    const float *bias; /* [E, n] */
    float *dbias;      /* [E, n] */
    float *dweights;   /* [T, k]; NULL where not weighed */
    Dtype c;
} ExpertsBiasBackwardArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define EXPERTS_OPS(X)                                                                            \
    X(ROUTE, route, RouteArgs, s)                                                                 \
    X(ROUTE_COUNT, route_count, RouteCountArgs, s)                                                \
    X(ROUTE_BACKWARD, route_backward, RouteBackwardArgs, s, c)                                    \
    X(GROUPED_GEMM, grouped_gemm, GroupedGemmArgs, e, trans_b, n, k, ab_type, c_type, splits)     \
    X(GROUPED_GEMM_WGRAD, grouped_gemm_wgrad, GroupedGemmWgradArgs, e, m, n, ab_type, accumulate) \
    X(COMBINE, combine, CombineArgs, s, hidden, weighed, add, c)                                  \
    X(COMBINE_BACKWARD, combine_backward, CombineBackwardArgs, s, inter, splits, c)               \
    X(PERMUTE, permute, PermuteArgs, s, hidden, c)                                                \
    X(PERMUTE_DWEIGHTS, permute_dweights, PermuteDweightsArgs, s, n, runs, splits, c)             \
    X(EXPERTS_BIAS_FORWARD, experts_bias_forward, ExpertsBiasForwardArgs, e, n, c)                \
    X(EXPERTS_BIAS_BACKWARD, experts_bias_backward, ExpertsBiasBackwardArgs, s, n, weighed, c)
/* clang-format on */
EXPERTS_OPS(OP_DECLARE)

#endif
