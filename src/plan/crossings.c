/* B = T/p h is what a block hands on, of the ranks of tp together; f = (t - 1) / t of it is another rank's.
 * So a gather of B sends f B elements of the compute dtype, a reduce-scatter of partial sums f B of fp32. */
#include "plan/crossings.h"

enum { RECORD = 16 }; /* bytes of a row's record of the loss */

static double others(int ranks) { return (double)(ranks - 1) / ranks; }
static double elements(const CrossingSpec *s) {
    return (double)s->tokens / s->contexts * (double)s->model->hidden_size;
}
static bool is_block(const CrossingSpec *s, int unit) {
    return unit > 0 && unit <= s->model->num_hidden_layers;
}

/* Heads of keys and values of a rank, before cp. */
static int64_t key_heads(const CrossingSpec *s) {
    int64_t own = s->model->num_key_value_heads / s->tensors;
    return own > 0 ? own : 1;
}
static int64_t query_heads(const CrossingSpec *s) { return s->model->num_attention_heads / s->tensors; }

ContextMethod crossings_method(const CrossingSpec *s) {
    if (s->contexts == 1) return CONTEXT_NONE;
    bool whole = key_heads(s) % s->contexts == 0 && query_heads(s) % s->contexts == 0;
    return whole ? CONTEXT_HEADS : CONTEXT_KEYS;
}

const char *context_method_name(ContextMethod method) {
    static const char *const names[] = {"none", "heads", "keys"};
    return names[method];
}

/* Gathers and reductions of the two halves of a block: see the table of docs/planning.md. Where a block is
 * computed again, what its products read is gathered on that way, and not once more for their weights. */
static void count_block(Recompute recompute, int gathers[2], int sums[2]) {
    gathers[0] = 2, sums[0] = 2;
    gathers[1] = 4, sums[1] = recompute == RECOMPUTE_FULL ? 3 : 2;
}

/* The embedding's rows come from the one rank that has them, and lose nothing in the compute dtype. The head
 * makes its gradients with its forward pass, and the ranks exchange a record for each row. */
Cost crossings_tensor(const CrossingSpec *s, int unit) {
    double gather = others(s->tensors) * elements(s) * (double)dtype_bytes(s->compute),
           sum = others(s->tensors) * elements(s) * (double)s->partial;
    int gathers[2], sums[2];
    if (s->tensors == 1) return (Cost){0, 0, 0};
    if (unit == 0) return (Cost){gather, gather, 0};
    if (!is_block(s, unit))
        return (Cost){gather + sum + (double)s->tokens / s->contexts * RECORD * (s->tensors - 1), 0, 0};
    count_block(s->recompute, gathers, sums);
    return (Cost){gathers[0] * gather + sums[0] * sum, gathers[1] * gather + sums[1] * sum, 0};
}

Cost crossings_context(const CrossingSpec *s, int unit) {
    double e = (double)dtype_bytes(s->compute), f = others(s->contexts), tokens = (double)s->tokens,
           head = (double)s->model->head_dim, keys = 2 * (double)key_heads(s) * head,
           all = 2 * (double)query_heads(s) * head + keys;
    double heads = f / s->contexts * tokens * all * e, again = s->recompute == RECOMPUTE_FULL ? heads : 0;
    if (!is_block(s, unit)) return (Cost){0, 0, 0};
    switch (crossings_method(s)) {
    case CONTEXT_NONE: break;
    case CONTEXT_HEADS: return (Cost){heads, heads + again, 0};
    case CONTEXT_KEYS: return (Cost){f * tokens * keys * e, f * tokens * keys * (e + (double)s->partial), 0};
    }
    return (Cost){0, 0, 0};
}

int crossings_operations(const CrossingSpec *s, int unit, AxisSet over) {
    int gathers[2], sums[2];
    count_block(s->recompute, gathers, sums);
    if (over == MESH_TENSOR) {
        if (s->tensors == 1) return 0;
        return is_block(s, unit) ? gathers[0] + gathers[1] + sums[0] + sums[1] : unit == 0 ? 2 : 3;
    }
    if (!is_block(s, unit)) return 0;
    switch (crossings_method(s)) {
    case CONTEXT_NONE: break;
    case CONTEXT_HEADS: return s->recompute == RECOMPUTE_FULL ? 6 : 4;
    case CONTEXT_KEYS: return 3;
    }
    return 0;
}

size_t crossings_memory(const CrossingSpec *s) {
    double e = (double)dtype_bytes(s->compute), tokens = (double)s->tokens, head = (double)s->model->head_dim,
           keys = 2 * (double)key_heads(s) * head, all = (double)query_heads(s) * head + keys, bytes = 0;
    if (s->tensors > 1) bytes += elements(s) * (e + (double)s->partial);
    switch (crossings_method(s)) {
    case CONTEXT_NONE: break;
    case CONTEXT_HEADS: bytes += 2 * tokens / s->contexts * all * e; break;
    case CONTEXT_KEYS: bytes += tokens * keys * (e + (double)s->partial); break;
    }
    return (size_t)bytes;
}

/* Each rank of cp has two runs of a sequence, one from either end, so that all see as many keys. */
ErrorCode crossings_check(const CrossingSpec *s, int64_t context, Error *err) {
    int64_t runs = s->contexts > 1 ? 2 * (int64_t)s->contexts : 1, shards = runs * s->tensors;
    int64_t below = context / shards * shards;
    if (context % shards == 0) return OK;
    return error_set(
        err, ERR_CONFIG,
        "train.context is %lld, which mesh.cp %d and mesh.tp %d do not deal out evenly: %lld or %lld "
        "would fit",
        (long long)context, s->contexts, s->tensors, (long long)(below > 0 ? below : 2 * shards),
        (long long)(below + shards));
}
