/* B = T/p h elements are a block's output on the ranks of tp together; f = (t - 1) / t of them are remote. An
 * all-gather of B sends f B elements of the compute dtype, a reduce-scatter of partial sums f B elements of
 * fp32.
 *
 * Elsewhere called: context parallelism by all-to-all (Ulysses) or all-gather of KV; Megatron calls the
 * choice cp_comm_type. */
#include "program/comm_volume.h"

#include "model/families/family.h"
#include "program/axes.h"

enum { RECORD = 16 }; /* bytes of the loss record of a row */

static double others(int ranks) { return (double)(ranks - 1) / ranks; }
static double elements(const CommVolumeSpec *s) {
    return (double)s->tokens / s->cp * (double)s->model->hidden_size;
}
static bool is_block(const CommVolumeSpec *s, int unit) {
    return unit > 0 && unit <= s->model->num_hidden_layers;
}

static int copies_of(const CommVolumeSpec *s) { return axes_copies(s->model, s->tensors); }

/* KV heads of a rank, before cp. */
static int64_t key_heads(const CommVolumeSpec *s) {
    return s->model->num_key_value_heads * copies_of(s) / s->tensors;
}
static int64_t query_heads(const CommVolumeSpec *s) { return s->model->num_attention_heads / s->tensors; }

typedef struct CollectiveCount {
    int gathers, sums;
} CollectiveCount;

/* Collectives of a block (docs/inside/mesh-traffic.md has a table). With recomputation, the inputs of
 * products are gathered for that, and gathered again for wgrad only if wgrad is a separate action. */
static CollectiveCount count_forward(void) { return (CollectiveCount){2, 2}; }
static CollectiveCount count_input(const CommVolumeSpec *s) {
    bool full = s->recompute == RECOMPUTE_FULL,
         last = model_family(s->model)->arch.norms != NORMS_BEFORE; /* a norm reads the last result too */
    return (CollectiveCount){s->split_backward && !full ? 2 : 4, full ? 3 + last : 2};
}
static CollectiveCount count_weight(const CommVolumeSpec *s) {
    return (CollectiveCount){s->split_backward ? 4 : 0, 0};
}

/* The all-reduce of the gradients of keys and values, over the ranks that hold replicas of them. */
static double copy_sums(const CommVolumeSpec *s) {
    double keys = 2 * (double)key_heads(s) * (double)s->model->head_dim;
    return 2 * others(copies_of(s)) * (double)s->tokens / s->cp * keys * (double)s->partial;
}

/* Norms over all heads of a token, which ranks of tp share: an all-gather of two partial sums a token. */
static bool norms_rows(const CommVolumeSpec *s) {
    return model_family(s->model)->arch.qk_norm == QK_NORM_FLAT;
}
static Cost row_sums(const CommVolumeSpec *s) {
    double splits = s->splits > s->tensors ? s->splits : s->tensors,
           once = others(s->tensors) * splits * (double)s->tokens / s->cp * 2 * sizeof(float);
    if (!norms_rows(s)) return (Cost){0, 0, 0};
    return (Cost){once, s->recompute == RECOMPUTE_FULL ? 2 * once : once, 0};
}

/* The all-reduce of the gradients of router weights. */
static double weight_sums(const CommVolumeSpec *s, int unit) {
    if (!model_block(s->model, unit - 1).experts) return 0;
    return 2 * others(s->tensors) * (double)s->tokens / s->cp * (double)s->model->num_experts_per_tok *
           (double)s->partial;
}

/* The embedding's rows come from the one rank that has them, so the compute dtype loses nothing. The head
 * computes its gradients in the forward pass, and ranks exchange a record for each row. */
Cost comm_volume_tp(const CommVolumeSpec *s, int unit) {
    double gather = others(s->tensors) * elements(s) * (double)dtype_bytes(s->compute),
           sum = others(s->tensors) * elements(s) * (double)s->partial;
    if (s->tensors == 1) return (Cost){0, 0, 0};
    if (unit == 0) return (Cost){gather, gather, 0};
    if (!is_block(s, unit))
        return (Cost){gather + sum + (double)s->tokens / s->cp * RECORD * (s->tensors - 1), 0, 0};
    CollectiveCount forward = count_forward(), input = count_input(s), weight = count_weight(s);
    return cost_plus((Cost){forward.gathers * gather + forward.sums * sum,
                            input.gathers * gather + input.sums * sum + copy_sums(s) + weight_sums(s, unit),
                            weight.gathers * gather},
                     row_sums(s));
}

/* With sinks, the sums of softmaxes return to their tokens for the gradients of the sinks. */
static bool has_sinks(const CommVolumeSpec *s) { return model_family(s->model)->arch.sinks; }

static Cost by_heads(const CommVolumeSpec *s) {
    double head = (double)s->model->head_dim * (double)dtype_bytes(s->compute),
           all = 2 * (double)(query_heads(s) + key_heads(s)) * head,
           each = others(s->cp) / s->cp * (double)s->tokens, once = each * all,
           sums = has_sinks(s) ? each * (double)query_heads(s) * sizeof(float) : 0;
    return (Cost){once, (s->recompute == RECOMPUTE_FULL ? 2 * once : once) + sums, 0};
}

static Cost by_keys(const CommVolumeSpec *s) {
    double e = (double)dtype_bytes(s->compute), keys = 2 * (double)key_heads(s) * (double)s->model->head_dim,
           sent = others(s->cp) * (double)s->tokens * keys;
    return (Cost){sent * e, sent * (e + (double)s->partial), 0};
}

/* ---- which method ---- */

static bool heads_fit(const CommVolumeSpec *s) {
    return axes_splits_heads(s->model, (TpGroup){.size = s->tensors}, s->cp);
}

/* A rank has two CP chunks, each of which the ranks of tp split. */
static bool keys_fit(const CommVolumeSpec *s) {
    int64_t splits = s->splits > s->tensors ? s->splits : s->tensors;
    return axes_splits_keys(s->model, (TpGroup){.size = s->tensors, .splits = (int)splits}) &&
           axes_splits_exact_chunks(s->cp, s->exact_chunks) && s->tokens % (2 * (int64_t)s->cp * splits) == 0;
}

/* What auto compares: bytes of a block and microbatch without recomputation and with fp32 sums, so that the
 * choice depends only on model, mesh and dtype. */
static double bytes_by(const CommVolumeSpec *s, CpComm method) {
    CommVolumeSpec plain = *s;
    plain.recompute = RECOMPUTE_NONE, plain.partial = sizeof(float);
    Cost c = method == CP_COMM_ALL_GATHER ? by_keys(&plain) : by_heads(&plain);
    return c.forward + c.input;
}

CpComm comm_volume_method(const CommVolumeSpec *s) {
    if (s->cp == 1) return CP_COMM_ALL_TO_ALL;
    if (s->asked != CP_COMM_AUTO) return s->asked;
    if (!heads_fit(s)) return CP_COMM_ALL_GATHER;
    return keys_fit(s) && bytes_by(s, CP_COMM_ALL_GATHER) < bytes_by(s, CP_COMM_ALL_TO_ALL)
               ? CP_COMM_ALL_GATHER
               : CP_COMM_ALL_TO_ALL;
}

void comm_volume_describe(const CommVolumeSpec *s, Text *out) {
    CpComm method = comm_volume_method(s);
    bool keys = method == CP_COMM_ALL_GATHER;
    char taken[32], other[32];
    text_printf(out, "by %s", keys ? "all_gather" : "all_to_all");
    if (s->asked != CP_COMM_AUTO)
        text_puts(out, " (mesh.cp_comm)");
    else if (!heads_fit(s))
        text_printf(out, " (auto: %d ranks cannot share %lld key and value heads)", s->cp,
                    (long long)key_heads(s));
    else if (!keys_fit(s))
        text_puts(out, " (auto: the tokens of a microbatch, or their spans, cannot be split for all_gather)");
    else
        text_printf(out, " (auto: %s a block and microbatch, by %s %s)",
                    text_bytes(bytes_by(s, method), taken), keys ? "all_to_all" : "all_gather",
                    text_bytes(bytes_by(s, keys ? CP_COMM_ALL_TO_ALL : CP_COMM_ALL_GATHER), other));
}

/* A balance loss needs the number of tokens of each sequence at each expert. */
static bool counts(const CommVolumeSpec *s, int unit) {
    return model_balance(s->model) > 0 && model_block(s->model, unit - 1).experts;
}

Cost comm_volume_cp(const CommVolumeSpec *s, int unit) {
    if (!is_block(s, unit) || s->cp == 1) return (Cost){0, 0, 0};
    Cost c = comm_volume_method(s) == CP_COMM_ALL_GATHER ? by_keys(s) : by_heads(s);
    if (counts(s, unit))
        c.forward +=
            2 * others(s->cp) * (double)(s->sequences * s->model->num_experts) * (double)sizeof(int64_t);
    return c;
}

/* Bytes of a combined row: the row itself, or fp32 for each split of this rank. */
static double row_back(const CommVolumeSpec *s, double row) {
    int splits = s->splits > s->tensors ? s->splits : s->tensors;
    return splits > 1 ? (double)splits / s->tensors * (double)s->model->hidden_size * sizeof(float) : row;
}

/* Forward dispatches rows of x and combines results. Backward dispatches rows of x, of dy, and weights, and
 * combines the gradients of x and of the weights. */
Cost comm_volume_ep(const CommVolumeSpec *s, int unit) {
    const ModelConfig *c = s->model;
    double rows = others(s->experts) * (double)s->tokens / s->cp * (double)c->num_experts_per_tok,
           row = (double)c->hidden_size * (double)dtype_bytes(s->compute);
    if (s->experts <= 1 || !is_block(s, unit) || !model_block(c, unit - 1).experts) return (Cost){0, 0, 0};
    double back = row_back(s, row);
    return (Cost){rows * (row + back), rows * (2 * row + back + 2 * sizeof(float)), 0};
}

int comm_volume_operations(const CommVolumeSpec *s, int unit, AxisSet over) {
    if (over == MESH_TENSOR) {
        CollectiveCount forward = count_forward(), input = count_input(s), weight = count_weight(s);
        if (s->tensors == 1) return 0;
        if (!is_block(s, unit)) return unit == 0 ? 2 : 3;
        return forward.gathers + forward.sums + input.gathers + input.sums + weight.gathers +
               (copies_of(s) > 1 ? 2 : 0) + (model_block(s->model, unit - 1).experts ? 2 : 0) +
               (norms_rows(s) ? (s->recompute == RECOMPUTE_FULL ? 3 : 2) : 0);
    }
    if (over == MESH_EXPERTS) return s->experts > 1 && is_block(s, unit) ? 8 : 0; /* with row counts */
    if (!is_block(s, unit) || s->cp == 1) return 0;
    int more = counts(s, unit);
    if (comm_volume_method(s) == CP_COMM_ALL_GATHER) return 3 * 2 + more; /* one for each CP chunk */
    return (s->recompute == RECOMPUTE_FULL ? 6 : 4) + has_sinks(s) + more;
}
