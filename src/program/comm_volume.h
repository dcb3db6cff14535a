/* Bytes that ranks exchange inside the passes of units, over tp, cp and ep, by formula. Step-time estimates
 * and `mesh.cp_comm: auto` use them. Programs are counted action by action, and tests compare the two.
 *
 * tp uses sequence parallelism (Korthikanti et al. 2022). Between the products of a block each of t ranks
 * has 1/t of the tokens. The input of a column-parallel product is all-gathered. The partial sums of a
 * row-parallel product are reduce-scattered in fp32, since they are rounded once, after the sum. Backward
 * passes do the opposite at the same places, and gather the inputs again for wgrad. A wgrad that runs
 * separately also gathers the output gradients again. Where several ranks hold the same key and value heads,
 * they all-reduce the gradients of these in fp32. With experts, all ranks of tp all-reduce the gradients of
 * the router weights, k numbers a token. Where all heads of a token are normed as one row, its sums are
 * all-gathered in each pass: two numbers a token and split. The sums of adapters, r numbers a token each,
 * are left out here; programs count them.
 *
 * cp has two methods:
 *     all-to-all     queries, keys and values change from 1/p of the tokens with all heads to all tokens
 *                    with 1/p of the heads, and back (Jacobs et al., "Ulysses", 2023); each rank must get
 *                    whole key and value heads
 *     all-gather KV  every rank gathers keys and values of all tokens (Llama team 2024), whatever the
 *                    number of heads
 *
 * With all-to-all a rank sends less the more ranks there are; with all-gather, less the fewer KV heads there
 * are. auto takes the method that sends fewer bytes, of those that the model, the tokens and the exact
 * chunks allow. It does not count recomputation: each method has its own order of sums, and the choice of
 * what is recomputed must not change bits.
 *
 * ep dispatches the rows of (token, expert) assignments to the ranks of their experts, and combines them
 * back (layers/layer.h: ExpertDispatch). */
#ifndef WEFT_PROGRAM_COMM_VOLUME_H
#define WEFT_PROGRAM_COMM_VOLUME_H

#include "comm/mesh.h"
#include "base/text.h"
#include "config/choices.h"
#include "model/unit.h"

typedef struct CommVolumeSpec {
    const ModelConfig *model; /* the unsharded one */
    Dtype compute;
    Recompute recompute;
    int64_t tokens; /* of a microbatch, over all ranks of tp and cp */
    int tensors, cp;
    int splits; /* of tp: numerics.tp_invariant_up_to; 0: one a rank */
    CpComm asked;
    int exact_chunks;    /* numerics.cp_invariant_up_to of exact sums; 0: any */
    size_t partial;      /* bytes of a partial sum as it is sent: 4 */
    int experts;         /* ranks of ep; 0: 1 */
    bool split_backward; /* dgrad and wgrad run separately */
    int64_t sequences;   /* of a microbatch: ranks of cp all-reduce the expert counts of each */
} CommVolumeSpec;

/* The method that is used. With one rank of cp: CP_COMM_ALL_TO_ALL. */
CpComm comm_volume_method(const CommVolumeSpec *s);
/* Appends the method and why: "by all_gather (auto: ...)". */
void comm_volume_describe(const CommVolumeSpec *s, Text *out);

/* Bytes that a rank sends in the passes of a unit over a microbatch. `weight` is 0 unless dgrad and wgrad
 * run separately; else the gathers for wgrad are counted with dgrad. */
Cost comm_volume_tp(const CommVolumeSpec *s, int unit);
Cost comm_volume_cp(const CommVolumeSpec *s, int unit);
Cost comm_volume_ep(const CommVolumeSpec *s, int unit); /* for balanced experts */
/* Number of collectives in these passes, forward and backward together; for their latency. */
int comm_volume_operations(const CommVolumeSpec *s, int unit,
                           AxisSet over); /* MESH_TENSOR, MESH_CONTEXT or MESH_EXPERTS */

#endif
