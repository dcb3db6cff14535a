/* What ranks exchange inside the passes of units, over tp, cp and ep, by formula: for the time of a
 * pass, and for what parallel.context: auto takes. Programs are counted action by action, and tests hold the
 * two against each other.
 *
 * tp with sequence parallelism (Korthikanti et al. 2022). Between the products of a block a rank has a t-th
 * of the tokens; the input of a product that is cut by rows is gathered, the partial sums of one that is cut
 * by columns are reduce-scattered, in fp32, since they are rounded once, after the sum. Backward passes do
 * the other of the two at the same places, and gather the inputs again for the gradients of the weights; a
 * wgrad that runs apart gathers the gradients of the outputs once more, too. Where heads of keys and
 * values are fewer than the ranks, those that hold the same ones all-reduce their gradients, in fp32; where
 * there are experts, all of tp those of the weights of a token's, which are k numbers. Where all heads of a
 * token are normed as one row, sums over it are gathered each way: two numbers a token and split. What
 * adapters sum beside the stream, r numbers a token each, is left out here; programs count it.
 *
 * cp, by one of two methods:
 *     heads   queries, keys and values change from a p-th of the tokens with all heads to all tokens with a
 *             p-th of the heads, and back (Jacobs et al., "Ulysses", 2023): where each rank gets whole heads
 *             of keys and values
 *     keys    keys and values of all tokens are gathered by everybody (Llama team 2024): no limit by heads
 *
 * By heads a rank sends the less the more ranks there are, by keys the less the fewer heads they have. auto
 * takes what sends fewer bytes, of those that the model, the tokens and the exact chunks allow; recomputation
 * is not counted there, since the method has its own order of sums, and what is recomputed must change no
 * bits.
 *
 * ep sends the rows of choices to the ranks of their experts and back (layers/layer.h: ExpertDispatch). */
#ifndef WEFT_PROGRAM_COMM_VOLUME_H
#define WEFT_PROGRAM_COMM_VOLUME_H

#include "comm/mesh.h"
#include "base/text.h"
#include "config/choices.h"
#include "model/unit.h"

typedef struct CommVolumeSpec {
    const ModelConfig *model; /* of the mesh */
    Dtype compute;
    Recompute recompute;
    int64_t tokens; /* of a microbatch, over all ranks of tp and cp */
    int tensors, cp;
    int splits; /* of tp: numerics.canonical_tp; 0: as many as its ranks */
    CpComm asked;
    int exact_chunks;    /* numerics.canonical_cp of exact sums; 0: any */
    size_t partial;      /* bytes of a partial sum on its way: 4 */
    int experts;         /* ranks of ep; 0: 1 */
    bool split_backward; /* dgrad and wgrad run separately */
    int64_t sequences;   /* of a microbatch: ranks of cp tell each other what these chose of experts */
} CommVolumeSpec;

/* With one rank along cp it is CP_COMM_ALL_TO_ALL, of all of them. */
CpComm comm_volume_method(const CommVolumeSpec *s);
/* How it was found: "by keys (auto: ...)". */
void comm_volume_describe(const CommVolumeSpec *s, Text *out);

/* Bytes that a rank sends in the passes of a unit over a microbatch. The weight is 0 unless dgrad and wgrad
 * run separately: else gathers for it stand with dgrad. */
Cost comm_volume_tp(const CommVolumeSpec *s, int unit);
Cost comm_volume_cp(const CommVolumeSpec *s, int unit);
Cost comm_volume_ep(const CommVolumeSpec *s, int unit); /* where tokens go evenly */
/* Collectives of these passes, for their latency: forward and backward together. */
int comm_volume_operations(const CommVolumeSpec *s, int unit,
                           AxisSet over); /* MESH_TENSOR, MESH_CONTEXT or MESH_EXPERTS */

#endif
