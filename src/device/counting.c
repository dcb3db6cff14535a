/* Bytes follow from the shapes of the arguments (device.h); a second read by a kernel and hits in a cache are
 * not modelled. Small arguments, such as norm weights, ids and records, are left out if the op also has
 * activations. */
#include "device/counting.h"

/* Most ops look at few of their arguments. */
#pragma GCC diagnostic ignored "-Wunused-parameter"

static void tell_work(Device *d, OpWork work) {
    const CountingDevice *c = d->impl;
    c->heard(c->context, &work);
}

/* Work of a memory-bound op; each element is read or written once. */
static void tell(Device *d, OpId op, double elements, double bytes) {
    tell_work(d, (OpWork){.op = op, .bytes = elements * bytes});
}

static double of(Dtype c) { return (double)dtype_bytes(c); }
static double by(int64_t rows, int64_t columns) { return (double)rows * (double)columns; }

/* ---- products ---- */

static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate,
                 KSplit splits) {
    int64_t terms = splits.runs ? split_length(splits) : k;
    double out = by(m, n) * of(c_type) * (accumulate ? 2 : 1);
    tell_work(d, (OpWork){OP_GEMM, ab_type, splits.runs > 0, 2 * by(m, n) * (double)terms,
                          (by(m, terms) + by(terms, n)) * of(ab_type) + out});
}

static void grouped_gemm(Device *d, ExpertRows e, bool trans_b, int64_t n, int64_t k, const void *a,
                         const void *b, Dtype ab_type, void *c, Dtype c_type, KSplit splits) {
    double read = by(e.rows, k) + by(n, k) * e.experts;
    tell_work(d, (OpWork){OP_GROUPED_GEMM, ab_type, true, 2 * by(e.rows, n) * (double)k,
                          read * of(ab_type) + by(e.rows, n) * of(c_type)});
}

static void grouped_gemm_wgrad(Device *d, ExpertRows e, int64_t m, int64_t n, const void *a, const void *b,
                               Dtype ab_type, float *c, bool accumulate, bool sliced) {
    double out = by(m, n) * e.experts * sizeof *c * (accumulate ? 2 : 1);
    tell_work(d, (OpWork){OP_GROUPED_GEMM_WGRAD, ab_type, true, 2 * by(m, n) * (double)e.rows,
                          by(e.rows, m + n) * of(ab_type) + out});
}

/* ---- attention ---- */

/* Query-key pairs of the first `queries` tokens of a sequence; by convention causality halves a square. */
static double seen(int64_t queries, AttentionShape s) {
    int64_t window = s.window, left = s.chunk > 0 ? queries % s.chunk : 0;
    if (s.chunk > 0) return 0.5 * (by(queries - left, s.chunk) + by(left, left));
    int64_t full = window > 0 && window < queries ? window : queries;
    return 0.5 * by(full, full) + by(queries - full, full);
}

static double pairs(const Device *d, AttentionShape s, int64_t first, int64_t end) {
    const CountingDevice *c = d->impl;
    int64_t one = c->sequence;
    double each = seen(one, s);
    return (double)(end / one) * each + seen(end % one, s) - (double)(first / one) * each -
           seen(first % one, s);
}

static void attend(Device *d, OpId op, AttentionShape s, AttentionRun r, double times, double bytes) {
    double queries = (double)s.heads * s.head_dim;
    tell_work(d, (OpWork){.op = op,
                          .flops = times * queries * pairs(d, s, r.first, r.first + s.tokens),
                          .bytes = bytes});
}

static double key_values(AttentionShape s, AttentionRun r) {
    return by(r.keys, 2 * (int64_t)s.kv_heads * s.head_dim);
}
static double queries_of(AttentionShape s) { return by(s.tokens, (int64_t)s.heads * s.head_dim); }

static void attention_forward(Device *d, AttentionShape s, AttentionRun r, const void *q, const void *kv,
                              const int32_t *first_key, void *out, float *lse, Dtype c) {
    attend(d, OP_ATTENTION_FORWARD, s, r, 4,
           (2 * queries_of(s) + key_values(s, r)) * of(c) + by(s.tokens, s.heads) * sizeof *lse);
}

static void attention_backward(Device *d, AttentionShape s, AttentionRun r, const void *q, const void *kv,
                               const int32_t *first_key, const void *out, const float *lse, const void *dout,
                               void *dq, void *dkv, Dtype c) {
    attend(d, OP_ATTENTION_BACKWARD, s, r, 8,
           (4 * queries_of(s) + key_values(s, r)) * of(c) + key_values(s, r) * (r.partial ? 4 : of(c)));
}

static void attention_decode(Device *d, AttentionShape s, int64_t start, const void *qkv, const void *k_cache,
                             const void *v_cache, void *out, Dtype c) {
    tell(d, OP_ATTENTION_DECODE,
         2 * queries_of(s) + by(start + s.tokens, 2 * (int64_t)s.kv_heads * s.head_dim), of(c));
}

static void sinks_backward(Device *d, AttentionShape s, const void *out, const float *lse, const void *dout,
                           float *dsinks, Dtype c) {
    tell(d, OP_SINKS_BACKWARD, 2 * queries_of(s), of(c));
}

static double latent_elements(LatentShape s) {
    return by(s.tokens, (int64_t)s.heads * (4 * latent_head(s) + s.plain + s.value) + s.turned);
}

static void latent_forward(Device *d, LatentShape s, const void *q, const void *own, const void *key,
                           const int32_t *positions, const float *cos_sin, void *qkv, Dtype c) {
    tell(d, OP_LATENT_FORWARD, latent_elements(s), of(c));
}

static void latent_backward(Device *d, LatentShape s, const void *dqkv, const int32_t *positions,
                            const float *cos_sin, void *dq, void *down, void *dkey, Dtype c) {
    tell(d, OP_LATENT_BACKWARD, latent_elements(s), of(c));
}

/* ---- along tokens ---- */

static void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                          EmbedRows rows, float scale, bool add, void *out, Dtype c) {
    tell(d, OP_EMBED_FORWARD, (add ? 3 : 2) * by(tokens, hidden), of(c));
}

static void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                           EmbedRows rows, float scale, float *dtable, Dtype c) {
    tell(d, OP_EMBED_BACKWARD, by(tokens, hidden), of(c) + 2 * sizeof *dtable);
}

static void norm_forward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, float eps, const void *a,
                         const void *b, const float *w, const float *bias, void *sum, void *y, float *rstd,
                         Dtype c) {
    tell(d, OP_NORM_FORWARD, (1 + (b != NULL) + (sum != NULL) + (y != NULL)) * by(tokens, hidden), of(c));
}

static void norm_backward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, const void *x,
                          const float *w, const float *rstd, const void *dy, void *dx, bool add, float *dw,
                          int64_t split_size, Dtype c) {
    tell(d, OP_NORM_BACKWARD, (add ? 4 : 3) * by(tokens, hidden), of(c));
}

static double heads_of(AttentionShape s) {
    return by(s.tokens, (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim);
}
static double turned_of(AttentionShape s) {
    return by(s.tokens, (s.heads + (int64_t)s.kv_heads) * (s.rotary > 0 ? s.rotary : s.head_dim));
}

static void qk_norm_forward(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                            const void *raw, const float *wq, const float *wk, void *out, Dtype c) {
    tell(d, OP_QK_NORM_FORWARD, 2 * heads_of(s), of(c));
}
static void qk_norm_backward(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                             const void *raw, const float *wq, const float *wk, void *dqkv, float *dwq,
                             float *dwk, int splits, Dtype c) {
    tell(d, OP_QK_NORM_BACKWARD, 3 * heads_of(s), of(c));
}
static void qk_norm_sums(Device *d, AttentionShape s, KSplit splits, NormKind kind, const void *raw,
                         const float *wq, const float *wk, const void *dqkv, float *sums, Dtype c) {
    tell(d, OP_QK_NORM_SUMS, (dqkv ? 2 : 1) * heads_of(s), of(c));
}
static void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                 bool inverse, Dtype c) {
    tell(d, OP_ROPE, 2 * turned_of(s), of(c));
}
static void queries_scale(Device *d, AttentionShape s, void *qkv, const int32_t *positions,
                          const float *factors, Dtype c) {
    tell(d, OP_QUERIES_SCALE, 2 * by(s.tokens, s.heads * (int64_t)s.head_dim), of(c));
}
static void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    tell(d, OP_BIAS_FORWARD, 2 * by(tokens, n), of(c));
}
static void bias_backward(Device *d, int64_t tokens, int64_t n, const void *dy, float *db, int64_t split_size,
                          Dtype c) {
    tell(d, OP_BIAS_BACKWARD, by(tokens, n), of(c));
}
static void activation_forward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                               const void *x, void *act, Dtype c) {
    tell(d, OP_ACTIVATION_FORWARD, (gated ? 3 : 2) * by(tokens, inter), of(c));
}
static void activation_backward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                                const void *x, const void *dact, void *dx, void *act, Dtype c) {
    tell(d, OP_ACTIVATION_BACKWARD, (gated ? 6 : 4) * by(tokens, inter), of(c));
}
static void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    tell(d, OP_ADD, 3 * (double)n, of(c));
}
static void scale(Device *d, int64_t rows, int64_t n, float factor, const void *in, int64_t ldi, void *out,
                  Dtype c) {
    tell(d, OP_SCALE, 2 * by(rows, n), of(c));
}
static void softcap(Device *d, int64_t n, float cap, void *x, Dtype c) {
    tell(d, OP_SOFTCAP, 2 * (double)n, of(c));
}

/* ---- recurrences ---- */

static void conv_forward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                         float *tail, void *y, Dtype c) {
    tell(d, OP_CONV_FORWARD, 2 * by(s.tokens, s.width), of(c));
}
static void conv_backward(Device *d, ConvShape s, const void *x, const float *w, const int32_t *first_key,
                          const void *dy, void *dx, float *dw, Dtype c) {
    tell(d, OP_CONV_BACKWARD, 3 * by(s.tokens, s.width), of(c));
}
static double scan_inputs(ScanShape s, Dtype c) {
    return by(s.tokens, s.width) * of(c) * (s.kind == SCAN_MIN_GRU ? 2 : 3);
}
static void scan_forward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, float *state,
                         float *h, Dtype c) {
    tell(d, OP_SCAN_FORWARD, 1, scan_inputs(s, c) + by(s.tokens, s.width) * sizeof *h);
}
static void scan_gate(Device *d, ScanShape s, const void *gate, const float *h, void *out, Dtype c) {
    tell(d, OP_SCAN_GATE, by(s.tokens, s.width), 2 * of(c) + sizeof *h);
}
static void scan_backward(Device *d, ScanShape s, ScanInputs in, const int32_t *first_key, const float *h,
                          const void *dout, ScanGradients out, Dtype c) {
    tell(d, OP_SCAN_BACKWARD, 1, 2 * scan_inputs(s, c) + by(s.tokens, s.width) * (3 * of(c) + sizeof *h));
}
static double mamba_inputs(MambaShape s) {
    return by(s.tokens, s.heads * (s.head_dim + 1) + 2 * s.groups * s.state);
}
static double mamba_states(MambaShape s) {
    return by(mamba_starts(s.tokens), s.heads * s.head_dim * s.state) * sizeof(float);
}
static double mamba_elements(MambaShape s) { return by(s.tokens, s.heads * s.head_dim * s.state); }
static void mamba_forward(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key, float *state,
                          float *starts, void *y, Dtype c) {
    double bytes = (mamba_inputs(s) + by(s.tokens, s.heads * s.head_dim)) * of(c) + mamba_states(s);
    tell_work(d, (OpWork){.op = OP_MAMBA_FORWARD, .flops = 5 * mamba_elements(s), .bytes = bytes});
}
static void mamba_backward(Device *d, MambaShape s, MambaInputs in, const int32_t *first_key,
                           const float *starts, const void *dy, float *carry, float *room, MambaGradients out,
                           Dtype c) {
    double bytes = (2 * mamba_inputs(s) + by(s.tokens, s.heads * s.head_dim)) * of(c) + mamba_states(s);
    tell_work(d, (OpWork){.op = OP_MAMBA_BACKWARD, .flops = 14 * mamba_elements(s), .bytes = bytes});
}
static void gated_norm_forward(Device *d, GatedNorm s, const void *x, const void *gate, const float *w,
                               void *y, Dtype c) {
    tell(d, OP_GATED_NORM_FORWARD, 3 * by(s.tokens, s.width), of(c));
}
static void gated_norm_backward(Device *d, GatedNorm s, const void *x, const void *gate, const float *w,
                                const void *dy, void *dx, void *dgate, float *dw, Dtype c) {
    tell(d, OP_GATED_NORM_BACKWARD, 5 * by(s.tokens, s.width), of(c));
}

/* ---- experts ---- */

static void route(Device *d, RouteShape s, Routes r, int64_t *counts) {
    tell(d, OP_ROUTE, by(s.tokens, 2 * (int64_t)s.experts + 5 * (int64_t)s.chosen), sizeof(float));
}
static void route_backward(Device *d, RouteShape s, Routes r, const int64_t *counts, const float *dweights,
                           const float *factor, float *balance, void *dlogits, Dtype c) {
    tell(d, OP_ROUTE_BACKWARD, by(s.tokens, s.experts), sizeof(float) + of(c));
}
static void route_count(Device *d, RouteShape s, const int32_t *chosen, int64_t *counts) {
    tell(d, OP_ROUTE_COUNT, by(s.tokens, s.chosen), sizeof *chosen);
}
static void combine(Device *d, RouteShape s, Routes r, int64_t hidden, const void *rows, bool weighed,
                    bool adds, void *y, Dtype c) {
    tell(d, OP_COMBINE, by(s.tokens, hidden) * (s.chosen + (adds ? 2 : 1)), of(c));
}
static void combine_backward(Device *d, RouteShape s, Routes r, int64_t inter, int splits, void *act,
                             void *dact, float *dweights, Dtype c) {
    tell(d, OP_COMBINE_BACKWARD, 4 * by(s.tokens * s.chosen, inter), of(c));
}
static void permute(Device *d, RouteShape s, Routes r, int64_t hidden, const void *x, void *rows, Dtype c) {
    tell(d, OP_PERMUTE, 2 * by(s.tokens * s.chosen, hidden), of(c));
}
static void permute_dweights(Device *d, RouteShape s, Routes r, int64_t n, int runs, int splits,
                             const void *y, const void *dy, float *dweights, Dtype c) {
    tell(d, OP_PERMUTE_DWEIGHTS, 2 * by(s.tokens * s.chosen, runs * n), of(c));
}
static void experts_bias_forward(Device *d, ExpertRows e, int64_t n, void *y, const float *bias, Dtype c) {
    tell(d, OP_EXPERTS_BIAS_FORWARD, 2 * by(e.rows, n), of(c));
}
static void experts_bias_backward(Device *d, RouteShape s, Routes r, int64_t n, const void *dy, bool weighed,
                                  const float *bias, float *dbias, float *dweights, Dtype c) {
    tell(d, OP_EXPERTS_BIAS_BACKWARD, by(s.tokens * s.chosen, n), of(c));
}

/* ---- losses ---- */

static void loss_records(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                         const int32_t *targets, VocabSplit splits, LossRecord *records) {
    tell(d, OP_LOSS_RECORDS, by(rows, vocab), of(logits_type));
}
static void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                          const int32_t *targets, VocabSplit splits, const float *factor, float cap, float z,
                          float *loss, float *z_loss, void *dlogits, Dtype grad_type) {
    double again = !dlogits ? 0 : of(grad_type) + (splits.records ? 0 : of(logits_type)); /* a second pass */
    tell(d, OP_CROSS_ENTROPY, by(rows, vocab), of(logits_type) + again);
}
static void loss_sum(Device *d, int64_t n, const float *losses, LossSum *into) {
    tell(d, OP_LOSS_SUM, (double)n, sizeof *losses);
}

/* ---- the end of a step ---- */

static double copied(const uint16_t *copy) { return copy ? sizeof *copy : 0; }

static void adamw(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
                  const float *grad, void *m, void *v, uint16_t *copy) {
    tell(d, OP_ADAMW, (double)n, 3 * sizeof *param + 4 * of(s.type) + copied(copy));
}
static void sgd(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
                const float *grad, void *momentum, uint16_t *copy) {
    tell(d, OP_SGD, (double)n, 3 * sizeof *param + (momentum ? 2 * of(s.type) : 0) + copied(copy));
}
static void muon_momentum(Device *d, MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                          const float *grad, void *momentum, float *x) {
    tell(d, OP_MUON_MOMENTUM, by(shape.rows, shape.cols), 2 * sizeof *x + 2 * of(s.type));
}
static void muon_normalise(Device *d, int64_t n, const GradStats *squares, float slack, float *x) {
    tell(d, OP_MUON_NORMALISE, (double)n, 2 * sizeof *x);
}
static void newton_schulz(Device *d, int64_t m, float a, float b, float c, const float *gram, float *square) {
    tell(d, OP_NEWTON_SCHULZ, by(m, m), 3 * sizeof *gram);
}
static void muon_apply(Device *d, MatrixShape shape, Muon o, const OptimizerStep *step, const float *x,
                       float *param, uint16_t *copy) {
    tell(d, OP_MUON_APPLY, by(shape.rows, shape.cols), 3 * sizeof *param + copied(copy));
}
static void average(Device *d, int64_t n, const OptimizerStep *step, const float *param, float *mean) {
    tell(d, OP_AVERAGE, (double)n, 3 * sizeof *mean);
}
static void grad_stats(Device *d, int64_t n, const float *g, double p, const double *unit, GradStats *out) {
    tell(d, OP_GRAD_STATS, (double)n, sizeof *g);
}
static void fixed_add(Device *d, int64_t n, const float *g, int64_t *acc, bool set, double limit,
                      FixedRefusals *refused) {
    tell(d, OP_FIXED_ADD, (double)n, sizeof *g + (set ? 1 : 2) * sizeof *acc);
}
static void fixed_to_float(Device *d, int64_t n, const int64_t *acc, float *out) {
    tell(d, OP_FIXED_TO_FLOAT, (double)n, sizeof *acc + sizeof *out);
}

/* ---- copies ---- */

static void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    tell(d, OP_CAST, (double)n, of(in_type) + of(out_type));
}
static void zero(Device *d, void *p, size_t bytes) { tell(d, OP_ZERO, 1, (double)bytes); }
static void init_normal(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out) {
    tell(d, OP_INIT_NORMAL, (double)n, sizeof *out);
}
static void fill(Device *d, int64_t n, float value, float *out) { tell(d, OP_FILL, (double)n, sizeof *out); }
static void copy(Device *d, void *to, const void *from, size_t bytes) { tell(d, OP_COPY, 2, (double)bytes); }
static void copy_rows(Device *d, int64_t rows, size_t bytes, void *to, size_t to_stride, const void *from,
                      size_t from_stride) {
    tell(d, OP_COPY_ROWS, 2 * (double)rows, (double)bytes);
}
static void upload(Device *d, void *tensor, const void *host, size_t bytes) {
    tell(d, OP_UPLOAD, 1, (double)bytes);
}
static void download(Device *d, void *host, const void *tensor, size_t bytes) {
    tell(d, OP_DOWNLOAD, 1, (double)bytes);
}
static void sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    tell(d, OP_SUM_PARTS, by(n, parts + 1), sizeof *out);
}
static void sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    tell(d, OP_SUM_PARTS, by(n, parts + 1), sizeof *out);
}

static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) { return 0; }

#define SLOT(id, slot) .slot = slot,
void device_count(CountingDevice *c, int64_t sequence, OpHeard *heard, void *context) {
    *c = (CountingDevice){.sequence = sequence, .heard = heard, .context = context};
    c->device.ops = (Ops){DEVICE_OPS(SLOT).sum_parts_i64 = sum_parts_i64, .scratch_bytes = scratch_bytes};
    c->device.impl = c;
}
