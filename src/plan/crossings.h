/* What crosses between ranks inside the passes of units, over tp and over cp, by formula: for meshes that are
 * planned before lowering has actions for it, and for the time of a pass.
 *
 * tp with sequence parallelism (Korthikanti et al. 2022). Between the products of a block a rank has a t-th
 * of the tokens; the input of a product that is cut by rows is gathered, the partial sums of one that is cut
 * by columns are reduce-scattered, in fp32, since they are rounded once, after the sum. Backward passes do
 * the other of the two at the same places, and gather the inputs again for the gradients of the weights.
 *
 * cp, by the method that the model allows:
 *     heads   queries, keys and values change from a p-th of the tokens with all heads to all tokens with a
 *             p-th of the heads, and back (Jacobs et al., "Ulysses", 2023): where each rank gets whole heads
 *             of keys and values
 *     keys    keys and values of all tokens are gathered by everybody (Llama team 2024): no limit by heads */
#ifndef WEFT_PLAN_CROSSINGS_H
#define WEFT_PLAN_CROSSINGS_H

#include "comm/mesh.h"
#include "model/unit.h"

typedef enum ContextMethod { CONTEXT_NONE, CONTEXT_HEADS, CONTEXT_KEYS } ContextMethod;

typedef struct CrossingSpec {
    const ModelConfig *model; /* of the mesh */
    Dtype compute;
    Recompute recompute;
    int64_t tokens; /* of a microbatch, over all ranks of tp and cp */
    int tensors, contexts;
    size_t partial; /* bytes of a partial sum on its way: 4 */
} CrossingSpec;

ContextMethod crossings_method(const CrossingSpec *s);
const char *context_method_name(ContextMethod method);

/* Bytes that a rank sends in the passes of a unit over a microbatch: a Cost whose weight is 0, for gathers of
 * the weight half stand with the input half. */
Cost crossings_tensor(const CrossingSpec *s, int unit);
Cost crossings_context(const CrossingSpec *s, int unit);
/* Collectives of these passes, for their latency: forward and backward together. */
int crossings_operations(const CrossingSpec *s, int unit, AxisSet over); /* MESH_TENSOR or MESH_CONTEXT */

/* Bytes of memory for what was gathered and for partial sums, of the unit at work. */
size_t crossings_memory(const CrossingSpec *s);

/* ERR_CONFIG when the tokens of a sequence cannot be dealt out, with numbers that would do. */
ErrorCode crossings_check(const CrossingSpec *s, int64_t context, Error *err);

#endif
