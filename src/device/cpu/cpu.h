/* Declarations that the files of the CPU device share. */
#ifndef WEFT_DEVICE_CPU_CPU_H
#define WEFT_DEVICE_CPU_CPU_H

#include <string.h>

#include "base/rng.h"
#include "base/tree.h"
#include "device/ops/ops.h"

#define HEAD_DIM_MAX 256

/* bf16 is the upper half of an fp32, rounded to nearest, ties to even; a NaN stays a (quiet) NaN. */
static inline float bf16_widen(uint16_t h) {
    uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

static inline uint16_t bf16_round(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Element i of a tensor of either dtype. */
static inline float tensor_get(const void *p, int64_t i, Dtype t) {
    return t == DTYPE_F32 ? ((const float *)p)[i] : bf16_widen(((const uint16_t *)p)[i]);
}

static inline void tensor_set(void *p, int64_t i, Dtype t, float value) {
    if (t == DTYPE_F32)
        ((float *)p)[i] = value;
    else
        ((uint16_t *)p)[i] = bf16_round(value);
}

/* Address of element i. */
static inline const void *tensor_at(const void *p, int64_t i, Dtype t) {
    return (const char *)p + i * (int64_t)dtype_bytes(t);
}
static inline void *tensor_to(void *p, int64_t i, Dtype t) { return (char *)p + i * (int64_t)dtype_bytes(t); }

/* The random word of element i of an op in a step; see StateStore. */
static inline uint32_t state_word(const StateStore *s, uint64_t step, int64_t i) {
    uint64_t e = (uint64_t)(s->first + i), block = e / STATE_CHUNK * STATE_BLOCKS + e % STATE_BLOCKS;
    uint32_t key[2] = {(uint32_t)s->key, (uint32_t)(s->key >> 32)}, out[4];
    rng_philox(
        key, (uint32_t[4]){(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)step, (uint32_t)(step >> 32)},
        out);
    return out[e % STATE_CHUNK / STATE_BLOCKS];
}

/* The only NaN of a bf16 state. Sign and payload are dropped, since a CPU keeps them and a GPU replaces them
 * (0x7fffffff). */
enum { BF16_NAN = 0x7fc0 };

/* Stochastic rounding by 16 random bits. The largest finite number is kept, not rounded to infinity. */
static inline uint16_t bf16_round_by(float f, uint32_t bits) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffff) > 0x7f800000) return BF16_NAN;
    if ((u & 0x7fffffff) >= 0x7f7f0000) bits = 0;
    return (uint16_t)((u + bits) >> 16);
}

static inline int64_t min_i64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max_i64(int64_t a, int64_t b) { return a > b ? a : b; }

/* Number of splits of split_size in n; the last one may be shorter. */
static inline int64_t splits_of(int64_t n, int64_t split_size) { return (n + split_size - 1) / split_size; }

/* Returns the sum of `count` numbers that lie `step` apart, in the canonical tree. */
float tree_of_steps(const float *sums, int64_t step, int count);

/* The sum over all splits of token t's row of queries, or of keys. */
static inline double qk_row_sum(const QkRows *rows, const float *sums, int64_t t, bool keys) {
    return (double)tree_of_steps(sums + 2 * t + keys, 2 * rows->tokens, rows->splits);
}
static inline int64_t qk_row_length(const QkRows *rows, bool keys) {
    return keys ? rows->keys : rows->queries;
}

/* Local row of a token's embedding; -1 if it is not local. */
static inline int64_t embed_row_of(EmbedRows rows, int32_t id) {
    int64_t row = id - rows.first;
    return row >= 0 && row < rows.count ? row : -1;
}

/* Elements of a head that rope rotates. */
static inline int64_t rotary_dim(AttentionShape s) { return s.rotary > 0 ? s.rotary : s.head_dim; }

/* Scores are multiplied by this. */
static inline float score_scale(AttentionShape s) {
    return s.scale > 0 ? s.scale : 1 / __builtin_sqrtf((float)s.head_dim);
}

/* First key that the query at `position` sees; `first` is the first of its document. */
static inline int64_t window_first(AttentionShape s, int64_t position, int64_t first) {
    if (s.chunk > 0) return position - (position - first) % s.chunk;
    return s.window > 0 ? max_i64(first, position - s.window + 1) : first;
}

/* The factor of muon_normalise; 1e-7 keeps a matrix of zeros at zero. */
static inline float muon_factor(const GradStats *squares, float slack) {
    return (float)(1 / ((double)slack * __builtin_sqrt(exact_value(&squares->sum)) + 1e-7));
}

/* Whether a document begins at token t, so that the recurrence restarts. */
static inline bool scan_begins(const int32_t *first_key, int64_t t) { return first_key && first_key[t] == t; }

/* Number of gates of a kind; each is a run of W elements. */
static inline int scan_gates(ScanKind kind) { return kind == SCAN_MIN_GRU ? 1 : 2; }

/* What both passes of a convolution read. tail: the tokens before the first; of generation, else NULL. */
typedef struct ConvInputs {
    ConvShape s;
    const void *x;
    const float *w;
    const int32_t *first_key;
    float *tail;
    Dtype c;
} ConvInputs;
/* The first token that token t sees; in generation also those in the tail, at negative indices. */
static inline int64_t conv_reach(const ConvInputs *in, int64_t t) {
    int64_t first = t - in->s.taps + 1;
    return in->first_key ? max_i64(in->first_key[t], first) : first;
}

/* Arguments of Mamba-2's two ops. */
typedef struct MambaRun {
    MambaShape s;
    MambaInputs in;
    const int32_t *first_key;
    Dtype c;
    float *starts;
    /* forward */
    float *state;
    void *y;
    /* backward */
    const void *dy;
    float *carry, *scratch;
    MambaGradients out;
} MambaRun;
static inline MambaRun mamba_forward_run(const MambaForwardArgs *o) {
    return (MambaRun){.s = o->s,
                      .in = o->in,
                      .first_key = o->first_key,
                      .c = o->c,
                      .starts = o->starts,
                      .state = o->state,
                      .y = o->y};
}
static inline MambaRun mamba_backward_run(const MambaBackwardArgs *o) {
    return (MambaRun){.s = o->s,
                      .in = o->in,
                      .first_key = o->first_key,
                      .c = o->c,
                      .starts = (float *)(uintptr_t)o->starts,
                      .dy = o->dy,
                      .carry = o->carry,
                      .scratch = o->scratch,
                      .out = o->out};
}
/* Offsets of a head's state, of a row of it, of a token's x, and of its B or C. */
static inline int64_t mamba_state_at(const MambaShape *s, int64_t head, int64_t p) {
    return (head * s->head_dim + p) * s->state;
}
static inline int64_t mamba_x_at(const MambaShape *s, int64_t t, int64_t head, int64_t p) {
    return t * s->row + head * s->head_dim + p;
}
static inline int64_t mamba_group_at(const MambaShape *s, int64_t t, int64_t head) {
    return t * s->row + head / (s->heads / s->groups) * s->state;
}
/* Offset in y, and in its gradient. */
static inline int64_t mamba_y_at(const MambaShape *s, int64_t t, int64_t head, int64_t p) {
    return (t * s->heads + head) * s->head_dim + p;
}
/* Forward takes five FLOPs per element of the state and token; backward fourteen, three of them to recompute
 * states. */
static inline void mamba_profile(Device *d, OpId op, const MambaShape *s) {
    double elements = (double)(s->tokens * mamba_state_at(s, s->heads, 0));
    if (d->profiling) d->profile[op].flops += (op == OP_MAMBA_FORWARD ? 5 : 14) * elements;
}
/* Consecutive tokens of one document, at most MAMBA_CHUNK, that count from its first. before: the states
 * before them, NULL if they are zeros; after: where those after them go, NULL if no token follows that reads
 * them. row: of backward's scratch, the first of the chunk's. */
typedef struct MambaChunk {
    int64_t first, count, row;
    float *before, *after;
} MambaChunk;

/* The states before token `first`, the first of a chunk. Two chunks that have any begin at least a chunk
 * apart, since the one before the second is whole. */
static inline float *mamba_start(const MambaRun *r, int64_t first) {
    return r->starts + first / MAMBA_CHUNK * mamba_state_at(&r->s, r->s.heads, 0);
}
static inline int64_t mamba_group(const MambaShape *s, int64_t head) { return head / (s->heads / s->groups); }

/* Backward's scratch for the tokens of a chunk: of a head, what its states add to dB and dC, and its Z; of a
 * group, B and C in fp32, and the scores C_t . B_u, later the sums of Z (mamba_chunks.h). N is padded; rows
 * of Z and of scores are MAMBA_CHUNK apart. */
typedef struct MambaTerms {
    float *dB, *dC, *Z;
} MambaTerms;
static inline MambaTerms mamba_terms(const MambaRun *r, int64_t head, const MambaChunk *k) {
    int64_t rows = mamba_scratch_rows(r->s.tokens), n = mamba_whole(r->s.state), side = rows * n;
    float *at = r->scratch + head * rows * mamba_scratch_row(1, 0, r->s.state);
    at += k->row * n;
    return (MambaTerms){at, at + side, at + 2 * side + k->row * (MAMBA_CHUNK - n)};
}
typedef struct MambaShared {
    float *B, *C, *scores;
} MambaShared;
static inline MambaShared mamba_shared(const MambaRun *r, int64_t group, const MambaChunk *k) {
    MambaTerms at = mamba_terms(r, r->s.heads + group, k);
    return (MambaShared){at.dB, at.dC, at.Z};
}

/* Of the reference: a head's partial sums of dB at the chunk's i-th token, followed by those of dC. Those of
 * a head are contiguous, because one thread writes them. */
static inline float *mamba_scratch(const MambaRun *r, int64_t i, int64_t head) {
    return r->scratch + (head * min_i64(MAMBA_CHUNK, r->s.tokens) + i) * 2 * r->s.state;
}

/* Routing of one token: `scores` (logits on entry), its experts and their weights; then the order of rows;
 * experts.c. */
void route_token(RouteShape s, float *scores, int32_t *chosen, float *weights);
void route_score(RouteShape s, float *scores);
void route_weigh(RouteShape s, const float *scores, const int32_t *chosen, float *weights);
/* Divisor and factor of a token's weights. */
double route_divisor(RouteShape s, const float *scores, const int32_t *chosen);
static inline double route_factor(RouteShape s) { return s.factor > 0 ? (double)s.factor : 1; }
void route_order(RouteShape s, Routes r, int64_t *counts);
/* Adds the splits of a weight's gradient in the canonical tree. */
float weights_tree(int count, const float *x);
/* One split's gradient of a weight, from the dot product y . dy (the op permute_dweights). */
float weight_gradient(double along, float weight);
/* The op route_count. */
void route_count(Device *d, const RouteCountArgs *o);
/* For the sequence of token t: the balance loss's slope of each expert, balance * E * f_e. route_next: the
 * first token of the next sequence, at most s.tokens. */
void route_slopes(RouteShape s, const int64_t *counts, int64_t t, double *slopes /* [E] */);
static inline int64_t route_next(RouteShape s, int64_t t) {
    int64_t end = ((s.before + t) / s.sequence + 1) * s.sequence - s.before;
    return end < s.tokens ? end : s.tokens;
}

/* The assignment in a row of expert e. */
static inline int64_t route_assignment(RouteShape s, Routes r, int64_t row, int e) {
    int64_t at = (int64_t)r.token[row] * s.chosen;
    while (r.chosen[at] != e) at++;
    return at;
}

/* memory.c */
void *cpu_take(Device *d, size_t bytes);
void cpu_give(Device *d, void *memory, size_t bytes);
size_t cpu_available(const Device *d);
void *cpu_host_take(Device *d, size_t bytes);
void cpu_host_give(Device *d, void *host);

/* deferred.c */
void deferred_close(Device *d);

/* For a file with every op of a list: EXPERTS_OPS(OP_FILL). */
#define OP_FILL(id, slot, ...) ops->slot = slot;
/* Fill every slot; then those of reference_attention.c, reference_experts.c, reference_latent.c,
 * reference_scans.c and reference_mamba.c. */
void reference_fill_ops(Ops *ops);
size_t reference_scratch_bytes(const Device *d, const DeviceNeeds *needs);
void reference_fill_attention(Ops *ops);
void reference_fill_experts(Ops *ops);
void reference_fill_latent(Ops *ops);
void reference_fill_scans(Ops *ops);
void reference_fill_mamba(Ops *ops);

#endif
