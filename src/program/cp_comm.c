#include "program/cp_comm.h"

#include "model/families/family.h"
#include "program/axes.h"

/* KV heads of a rank, before cp. */
static int64_t key_heads(const CpCommSpec *s) {
    return s->model->num_key_value_heads * axes_copies(s->model, s->tensors) / s->tensors;
}
static int64_t query_heads(const CpCommSpec *s) { return s->model->num_attention_heads / s->tensors; }

static double others(int ranks) { return (double)(ranks - 1) / ranks; }

/* In backward, ranks exchange the same again. With sinks, the sums of softmaxes return to their tokens for
 * the gradients of the sinks. */
static double by_heads(const CpCommSpec *s) {
    double head = (double)s->model->head_dim * (double)dtype_bytes(s->compute),
           all = 2 * (double)(query_heads(s) + key_heads(s)) * head,
           sums = model_family(s->model)->arch.sinks ? (double)query_heads(s) * sizeof(float) : 0;
    return others(s->cp) / s->cp * (double)s->tokens * (2 * all + sums);
}

/* Backward gathers keys and values again, and sums their gradients in fp32. */
static double by_keys(const CpCommSpec *s) {
    double keys = 2 * (double)key_heads(s) * (double)s->model->head_dim;
    return others(s->cp) * (double)s->tokens * keys * (double)(2 * dtype_bytes(s->compute) + sizeof(float));
}

double cp_comm_bytes(const CpCommSpec *s, CpComm method) {
    return method == CP_COMM_ALL_GATHER ? by_keys(s) : by_heads(s);
}

static bool heads_fit(const CpCommSpec *s) {
    return axes_splits_heads(s->model, (TpGroup){.size = s->tensors}, s->cp);
}

/* A rank has two CP chunks, each of which the ranks of tp split. */
static bool keys_fit(const CpCommSpec *s) {
    int64_t splits = s->splits > s->tensors ? s->splits : s->tensors;
    return axes_splits_keys(s->model, (TpGroup){.size = s->tensors, .splits = (int)splits}) &&
           axes_splits_exact_chunks(s->cp, s->exact_chunks) && s->tokens % (2 * (int64_t)s->cp * splits) == 0;
}

CpComm cp_comm_method(const CpCommSpec *s) {
    if (s->cp == 1) return CP_COMM_ALL_TO_ALL;
    if (s->asked != CP_COMM_AUTO) return s->asked;
    if (!heads_fit(s)) return CP_COMM_ALL_GATHER;
    return keys_fit(s) && by_keys(s) < by_heads(s) ? CP_COMM_ALL_GATHER : CP_COMM_ALL_TO_ALL;
}

void cp_comm_describe(const CpCommSpec *s, Text *out) {
    CpComm method = cp_comm_method(s);
    bool keys = method == CP_COMM_ALL_GATHER;
    char taken[32], other[32];
    text_printf(out, "by %s", keys ? "all_gather" : "all_to_all");
    if (s->asked != CP_COMM_AUTO)
        text_puts(out, " (mesh.cp_comm)");
    else if (!heads_fit(s))
        text_printf(out, " (auto: %d ranks cannot share %lld key and value heads)", s->cp,
                    (long long)key_heads(s));
    else if (!keys_fit(s))
        text_puts(out,
                  " (auto: the tokens of a microbatch, or its exact chunks, cannot be split for all_gather)");
    else
        text_printf(out, " (auto: %s a block and microbatch, by %s %s)",
                    text_bytes(cp_comm_bytes(s, method), taken), keys ? "all_to_all" : "all_gather",
                    text_bytes(cp_comm_bytes(s, keys ? CP_COMM_ALL_TO_ALL : CP_COMM_ALL_GATHER), other));
}
