/* How ranks of cp exchange what attention needs (mesh.cp_comm; Megatron: cp_comm_type):
 *     all-to-all     queries, keys and values change from 1/p of the tokens with all heads to all tokens
 *                    with 1/p of the heads, and back (Jacobs et al., "Ulysses", 2023); each rank must get
 *                    whole key and value heads
 *     all-gather KV  every rank gathers keys and values of all tokens (Llama team 2024), whatever the
 *                    number of heads
 *
 * With all-to-all a rank sends less the more ranks there are; with all-gather, less the fewer KV heads there
 * are. auto takes the method that sends fewer bytes, of those that the model, the tokens and the exact
 * chunks allow. It does not count recomputation: each method has its own order of sums, and the choice of
 * what is recomputed must not change bits. */
#ifndef WEFT_PROGRAM_CP_COMM_H
#define WEFT_PROGRAM_CP_COMM_H

#include "base/text.h"
#include "config/choices.h"
#include "model/unit.h"

typedef struct CpCommSpec {
    const ModelConfig *model; /* the unsharded one */
    Dtype compute;
    int64_t tokens; /* of a microbatch, over all ranks of tp and cp */
    int tensors, cp;
    int splits; /* of tp: numerics.tp_invariant_up_to; 0: one a rank */
    CpComm asked;
    int exact_chunks; /* numerics.cp_invariant_up_to of exact sums; 0: any */
} CpCommSpec;

/* The method that is used. With one rank of cp: CP_COMM_ALL_TO_ALL. */
CpComm cp_comm_method(const CpCommSpec *s);
/* Bytes that a rank sends by a method in a block's forward and backward pass over a microbatch, without
 * recomputation: what auto compares. */
double cp_comm_bytes(const CpCommSpec *s, CpComm method);
/* Appends the method and why: "by all_gather (auto: ...)". */
void cp_comm_describe(const CpCommSpec *s, Text *out);

#endif
