/* Bytes follow from the shapes of the arguments (ops/); a second read by a kernel and hits in a cache are
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

static void gemm(Device *d, const GemmArgs *o) {
    int64_t terms = o->splits.runs ? split_length(o->splits) : o->k;
    double out = by(o->m, o->n) * of(o->c_type) * (o->accumulate ? 2 : 1);
    tell_work(d,
              (OpWork){OP_GEMM, o->ab_type, o->splits.runs > 0, 2 * by(o->m, o->n) * (double)terms,
                       (by(o->m, terms) + by(terms, o->n)) * of(o->ab_type) + out, .terms = (double)terms});
}

static void grouped_gemm(Device *d, const GroupedGemmArgs *o) {
    double read = by(o->e.rows, o->k) + by(o->n, o->k) * o->e.experts;
    tell_work(d,
              (OpWork){OP_GROUPED_GEMM, o->ab_type, true, 2 * by(o->e.rows, o->n) * (double)o->k,
                       read * of(o->ab_type) + by(o->e.rows, o->n) * of(o->c_type), .terms = (double)o->k});
}

static void grouped_gemm_wgrad(Device *d, const GroupedGemmWgradArgs *o) {
    double out = by(o->m, o->n) * o->e.experts * sizeof *o->c * (o->accumulate ? 2 : 1);
    tell_work(d, (OpWork){OP_GROUPED_GEMM_WGRAD, o->ab_type, true, 2 * by(o->m, o->n) * (double)o->e.rows,
                          by(o->e.rows, o->m + o->n) * of(o->ab_type) + out,
                          .terms = (double)o->e.rows / (double)o->e.experts});
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

static int64_t most_keys(const Device *d, AttentionShape s) {
    const CountingDevice *c = d->impl;
    int64_t span = s.chunk > 0 ? s.chunk : s.window > 0 ? s.window : c->sequence;
    return span < c->sequence ? span : c->sequence;
}

static void attend(Device *d, OpId op, AttentionShape s, AttentionRun r, double times, double bytes) {
    double queries = (double)s.heads * s.head_dim;
    tell_work(d, (OpWork){.op = op,
                          .flops = times * queries * pairs(d, s, r.first, r.first + s.tokens),
                          .bytes = bytes,
                          .head_dim = s.head_dim,
                          .context = most_keys(d, s)});
}

static double key_values(AttentionShape s, AttentionRun r) {
    return by(r.keys, 2 * (int64_t)s.kv_heads * s.head_dim);
}
static double queries_of(AttentionShape s) { return by(s.tokens, (int64_t)s.heads * s.head_dim); }

static void attention_forward(Device *d, const AttentionForwardArgs *o) {
    attend(d, OP_ATTENTION_FORWARD, o->s, o->r, 4,
           (2 * queries_of(o->s) + key_values(o->s, o->r)) * of(o->c) +
               by(o->s.tokens, o->s.heads) * sizeof *o->lse);
}

static void attention_backward(Device *d, const AttentionBackwardArgs *o) {
    attend(d, OP_ATTENTION_BACKWARD, o->s, o->r, 8,
           (4 * queries_of(o->s) + key_values(o->s, o->r)) * of(o->c) +
               key_values(o->s, o->r) * (o->r.partial ? 4 : of(o->c)));
}

static void attention_decode(Device *d, const AttentionDecodeArgs *o) {
    tell(d, OP_ATTENTION_DECODE,
         2 * queries_of(o->s) + by(o->start + o->s.tokens, 2 * (int64_t)o->s.kv_heads * o->s.head_dim),
         of(o->c));
}

static void sinks_backward(Device *d, const SinksBackwardArgs *o) {
    tell(d, OP_SINKS_BACKWARD, 2 * queries_of(o->s), of(o->c));
}

static double latent_elements(LatentShape s) {
    return by(s.tokens, (int64_t)s.heads * (4 * latent_head(s) + s.nope + s.value) + s.rope);
}

static void latent_forward(Device *d, const LatentForwardArgs *o) {
    tell(d, OP_LATENT_FORWARD, latent_elements(o->s), of(o->c));
}

static void latent_backward(Device *d, const LatentBackwardArgs *o) {
    tell(d, OP_LATENT_BACKWARD, latent_elements(o->s), of(o->c));
}

/* ---- along tokens ---- */

static void embed_forward(Device *d, const EmbedForwardArgs *o) {
    tell(d, OP_EMBED_FORWARD, (o->add ? 3 : 2) * by(o->tokens, o->hidden), of(o->c));
}

static void embed_backward(Device *d, const EmbedBackwardArgs *o) {
    tell(d, OP_EMBED_BACKWARD, by(o->tokens, o->hidden), of(o->c) + 2 * sizeof *o->dtable);
}

static void norm_forward(Device *d, const NormForwardArgs *o) {
    tell(d, OP_NORM_FORWARD,
         (1 + (o->b != NULL) + (o->sum != NULL) + (o->y != NULL)) * by(o->tokens, o->hidden), of(o->c));
}

static void norm_backward(Device *d, const NormBackwardArgs *o) {
    tell(d, OP_NORM_BACKWARD, (o->add ? 4 : 3) * by(o->tokens, o->hidden), of(o->c));
}

static double heads_of(AttentionShape s) {
    return by(s.tokens, (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim);
}
static double rope_of(AttentionShape s) {
    return by(s.tokens, (s.heads + (int64_t)s.kv_heads) * (s.rotary > 0 ? s.rotary : s.head_dim));
}

static void qk_norm_forward(Device *d, const QkNormForwardArgs *o) {
    tell(d, OP_QK_NORM_FORWARD, 2 * heads_of(o->s), of(o->c));
}
static void qk_norm_backward(Device *d, const QkNormBackwardArgs *o) {
    tell(d, OP_QK_NORM_BACKWARD, 3 * heads_of(o->s), of(o->c));
}
static void qk_norm_sums(Device *d, const QkNormSumsArgs *o) {
    tell(d, OP_QK_NORM_SUMS, (o->dqkv ? 2 : 1) * heads_of(o->s), of(o->c));
}
static void rope(Device *d, const RopeArgs *o) { tell(d, OP_ROPE, 2 * rope_of(o->s), of(o->c)); }
static void queries_scale(Device *d, const QueriesScaleArgs *o) {
    tell(d, OP_QUERIES_SCALE, 2 * by(o->s.tokens, o->s.heads * (int64_t)o->s.head_dim), of(o->c));
}
static void bias_forward(Device *d, const BiasForwardArgs *o) {
    tell(d, OP_BIAS_FORWARD, 2 * by(o->tokens, o->n), of(o->c));
}
static void bias_backward(Device *d, const BiasBackwardArgs *o) {
    tell(d, OP_BIAS_BACKWARD, by(o->tokens, o->n), of(o->c));
}
static void activation_forward(Device *d, const ActivationForwardArgs *o) {
    tell(d, OP_ACTIVATION_FORWARD, (o->gated ? 3 : 2) * by(o->tokens, o->inter), of(o->c));
}
static void activation_backward(Device *d, const ActivationBackwardArgs *o) {
    tell(d, OP_ACTIVATION_BACKWARD, (o->gated ? 6 : 4) * by(o->tokens, o->inter), of(o->c));
}
static void add(Device *d, const AddArgs *o) { tell(d, OP_ADD, 3 * (double)o->n, of(o->c)); }
static void scale(Device *d, const ScaleArgs *o) { tell(d, OP_SCALE, 2 * by(o->rows, o->n), of(o->c)); }
static void softcap(Device *d, const SoftcapArgs *o) { tell(d, OP_SOFTCAP, 2 * (double)o->n, of(o->c)); }

/* ---- recurrences ---- */

static void conv_forward(Device *d, const ConvForwardArgs *o) {
    tell(d, OP_CONV_FORWARD, 2 * by(o->s.tokens, o->s.width), of(o->c));
}
static void conv_backward(Device *d, const ConvBackwardArgs *o) {
    tell(d, OP_CONV_BACKWARD, 3 * by(o->s.tokens, o->s.width), of(o->c));
}
static double scan_inputs(ScanShape s, Dtype c) {
    return by(s.tokens, s.width) * of(c) * (s.kind == SCAN_MIN_GRU ? 2 : 3);
}
static void scan_forward(Device *d, const ScanForwardArgs *o) {
    tell(d, OP_SCAN_FORWARD, 1, scan_inputs(o->s, o->c) + by(o->s.tokens, o->s.width) * sizeof *o->h);
}
static void scan_gate(Device *d, const ScanGateArgs *o) {
    tell(d, OP_SCAN_GATE, by(o->s.tokens, o->s.width), 2 * of(o->c) + sizeof *o->h);
}
static void scan_backward(Device *d, const ScanBackwardArgs *o) {
    tell(d, OP_SCAN_BACKWARD, 1,
         2 * scan_inputs(o->s, o->c) + by(o->s.tokens, o->s.width) * (3 * of(o->c) + sizeof *o->h));
}
static double mamba_inputs(MambaShape s) {
    return by(s.tokens, s.heads * (s.head_dim + 1) + 2 * s.groups * s.state);
}
static double mamba_states(MambaShape s) {
    return by(mamba_starts(s.tokens), s.heads * s.head_dim * s.state) * sizeof(float);
}
static double mamba_elements(MambaShape s) { return by(s.tokens, s.heads * s.head_dim * s.state); }
static void mamba_forward(Device *d, const MambaForwardArgs *o) {
    double bytes =
        (mamba_inputs(o->s) + by(o->s.tokens, o->s.heads * o->s.head_dim)) * of(o->c) + mamba_states(o->s);
    tell_work(d, (OpWork){.op = OP_MAMBA_FORWARD, .flops = 5 * mamba_elements(o->s), .bytes = bytes});
}
static void mamba_backward(Device *d, const MambaBackwardArgs *o) {
    double bytes = (2 * mamba_inputs(o->s) + by(o->s.tokens, o->s.heads * o->s.head_dim)) * of(o->c) +
                   mamba_states(o->s);
    tell_work(d, (OpWork){.op = OP_MAMBA_BACKWARD, .flops = 14 * mamba_elements(o->s), .bytes = bytes});
}
static void gated_norm_forward(Device *d, const GatedNormForwardArgs *o) {
    tell(d, OP_GATED_NORM_FORWARD, 3 * by(o->s.tokens, o->s.width), of(o->c));
}
static void gated_norm_backward(Device *d, const GatedNormBackwardArgs *o) {
    tell(d, OP_GATED_NORM_BACKWARD, 5 * by(o->s.tokens, o->s.width), of(o->c));
}

/* ---- experts ---- */

static void route(Device *d, const RouteArgs *o) {
    tell(d, OP_ROUTE, by(o->s.tokens, 2 * (int64_t)o->s.experts + 5 * (int64_t)o->s.chosen), sizeof(float));
}
static void route_backward(Device *d, const RouteBackwardArgs *o) {
    tell(d, OP_ROUTE_BACKWARD, by(o->s.tokens, o->s.experts), sizeof(float) + of(o->c));
}
static void route_count(Device *d, const RouteCountArgs *o) {
    tell(d, OP_ROUTE_COUNT, by(o->s.tokens, o->s.chosen), sizeof *o->chosen);
}
static void combine(Device *d, const CombineArgs *o) {
    tell(d, OP_COMBINE, by(o->s.tokens, o->hidden) * (o->s.chosen + (o->add ? 2 : 1)), of(o->c));
}
static void combine_backward(Device *d, const CombineBackwardArgs *o) {
    tell(d, OP_COMBINE_BACKWARD, 4 * by(o->s.tokens * o->s.chosen, o->inter), of(o->c));
}
static void permute(Device *d, const PermuteArgs *o) {
    tell(d, OP_PERMUTE, 2 * by(o->s.tokens * o->s.chosen, o->hidden), of(o->c));
}
static void permute_dweights(Device *d, const PermuteDweightsArgs *o) {
    tell(d, OP_PERMUTE_DWEIGHTS, 2 * by(o->s.tokens * o->s.chosen, o->runs * o->n), of(o->c));
}
static void experts_bias_forward(Device *d, const ExpertsBiasForwardArgs *o) {
    tell(d, OP_EXPERTS_BIAS_FORWARD, 2 * by(o->e.rows, o->n), of(o->c));
}
static void experts_bias_backward(Device *d, const ExpertsBiasBackwardArgs *o) {
    tell(d, OP_EXPERTS_BIAS_BACKWARD, by(o->s.tokens * o->s.chosen, o->n), of(o->c));
}

/* ---- losses ---- */

static void loss_records(Device *d, const LossRecordsArgs *o) {
    tell(d, OP_LOSS_RECORDS, by(o->rows, o->vocab), of(o->logits_type));
}
static void cross_entropy(Device *d, const CrossEntropyArgs *o) {
    double again =
        !o->dlogits ? 0 : of(o->grad_type) + (o->splits.records ? 0 : of(o->logits_type)); /* a second pass */
    tell(d, OP_CROSS_ENTROPY, by(o->rows, o->vocab), of(o->logits_type) + again);
}
static void loss_sum(Device *d, const LossSumArgs *o) {
    tell(d, OP_LOSS_SUM, (double)o->n, sizeof *o->losses);
}

/* ---- the end of a step ---- */

static double copied(const uint16_t *copy) { return copy ? sizeof *copy : 0; }

static void adamw(Device *d, const AdamWArgs *o) {
    tell(d, OP_ADAMW, (double)o->n, 3 * sizeof *o->param + 4 * of(o->s.type) + copied(o->copy));
}
static void sgd(Device *d, const SgdArgs *o) {
    tell(d, OP_SGD, (double)o->n,
         3 * sizeof *o->param + (o->momentum ? 2 * of(o->s.type) : 0) + copied(o->copy));
}
static void muon_momentum(Device *d, const MuonMomentumArgs *o) {
    tell(d, OP_MUON_MOMENTUM, by(o->shape.rows, o->shape.cols), 2 * sizeof *o->x + 2 * of(o->s.type));
}
static void muon_normalise(Device *d, const MuonNormaliseArgs *o) {
    tell(d, OP_MUON_NORMALISE, (double)o->n, 2 * sizeof *o->x);
}
static void newton_schulz(Device *d, const NewtonSchulzArgs *o) {
    tell(d, OP_NEWTON_SCHULZ, by(o->m, o->m), 3 * sizeof *o->gram);
}
static void muon_apply(Device *d, const MuonApplyArgs *o) {
    tell(d, OP_MUON_APPLY, by(o->shape.rows, o->shape.cols), 3 * sizeof *o->param + copied(o->copy));
}
static void average(Device *d, const AverageArgs *o) {
    tell(d, OP_AVERAGE, (double)o->n, 3 * sizeof *o->mean);
}
static void grad_stats(Device *d, const GradStatsArgs *o) {
    tell(d, OP_GRAD_STATS, (double)o->n, sizeof *o->g);
}
static void fixed_add(Device *d, const FixedAddArgs *o) {
    tell(d, OP_FIXED_ADD, (double)o->n, sizeof *o->g + (o->set ? 1 : 2) * sizeof *o->acc);
}
static void fixed_to_float(Device *d, const FixedToFloatArgs *o) {
    tell(d, OP_FIXED_TO_FLOAT, (double)o->n, sizeof *o->acc + sizeof *o->out);
}
static void count_nonfinite(Device *d, const CountNonfiniteArgs *o) {
    tell(d, OP_COUNT_NONFINITE, (double)o->n, of(o->type));
}

/* ---- copies ---- */

static void cast(Device *d, const CastArgs *o) {
    tell(d, OP_CAST, (double)o->n, of(o->in_type) + of(o->out_type));
}
static void zero(Device *d, const ZeroArgs *o) { tell(d, OP_ZERO, 1, (double)o->bytes); }
static void init_normal(Device *d, const InitNormalArgs *o) {
    tell(d, OP_INIT_NORMAL, (double)o->n, sizeof *o->out);
}
static void fill(Device *d, const FillArgs *o) { tell(d, OP_FILL, (double)o->n, sizeof *o->out); }
static void copy(Device *d, const CopyArgs *o) { tell(d, OP_COPY, 2, (double)o->bytes); }
static void copy_rows(Device *d, const CopyRowsArgs *o) {
    tell(d, OP_COPY_ROWS, 2 * (double)o->rows, (double)o->bytes);
}
static void upload(Device *d, const UploadArgs *o) { tell(d, OP_UPLOAD, 1, (double)o->bytes); }
static void download(Device *d, const DownloadArgs *o) { tell(d, OP_DOWNLOAD, 1, (double)o->bytes); }
static void sum_partials(Device *d, const SumPartialsArgs *o) {
    tell(d, OP_SUM_PARTIALS, by(o->n, o->partials + 1), sizeof *o->out);
}
static void sum_partials_i64(Device *d, const SumPartialsI64Args *o) {
    tell(d, OP_SUM_PARTIALS, by(o->n, o->partials + 1), sizeof *o->out);
}

static size_t scratch_bytes(const Device *d, const DeviceNeeds *needs) { return 0; }

#define SLOT(id, slot, ...) .slot = slot,
static Ops counting = {DEVICE_OPS(SLOT)};
#undef SLOT

void device_count(CountingDevice *c, int64_t sequence, OpHeard *heard, void *context) {
    *c = (CountingDevice){.sequence = sequence, .heard = heard, .context = context};
    c->device.ops = &counting;
    c->device.runtime.scratch_bytes = scratch_bytes;
    c->device.impl = c;
}
