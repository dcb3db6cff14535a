/* Common to all attention layers, whatever they make queries, keys and values from: the tensors around
 * attention, which come first among the tensors of each layer, and the op itself (attention.c).
 *
 * DQKV first holds the gradient after norm and RoPE. Their backward pass replaces it, in place, by the
 * gradient of the qkv product's output.
 *
 * CP all-to-all (Ulysses): QKV, LSE and OUT_BY_HEADS hold all tokens and some heads; the other tensors hold
 * some tokens and all heads, in as many bytes. A2A_RECEIVED and A2A_PACKED are the buffers of the all-to-all:
 *
 *     forward    A2A_PACKED -> A2A_RECEIVED =all-to-all=> QKV  attention  OUT_BY_HEADS =all-to-all=>
 *                A2A_RECEIVED -> ATTENDED
 *     backward   DATTENDED -> A2A_RECEIVED =all-to-all=> A2A_PACKED  attention  A2A_RECEIVED =all-to-all=>
 *                A2A_PACKED -> DQKV
 *
 * Gradients of sinks are made from local tokens, since exact chunks, by which they are rounded, are chunks of
 * tokens. So in the backward pass an all-to-all also brings LSE of local tokens and all heads to LOCAL_LSE.
 *
 * CP all-gather: queries are read from QKV, keys and values from KEYS. KV_PARTIALS holds partial sums of the
 * gradients of keys and values, which are rounded into KEYS and then copied to DQKV:
 *
 *     forward    QKV -> KEYS =gather=> KEYS  attention
 *     backward   QKV -> KEYS =gather=> KEYS  attention  KV_PARTIALS =sum=> KV_PARTIALS -> KEYS -> DQKV
 *
 * KV_PARTIALS and KEYS also exist, for the backward pass only, wherever queries come in several runs.
 *
 * Segments: SEGMENT_KEYS has keys and values of all segments of a microbatch so far. The backward pass of a
 * segment adds the gradients of the keys that it attends to, which KV_PARTIALS takes first, to SEGMENT_SUMS.
 * Those of its own keys are complete then, since only later segments attend to them:
 *
 *     forward    QKV -> SEGMENT_KEYS  attention
 *     backward   attention  KV_PARTIALS + SEGMENT_SUMS -> SEGMENT_SUMS -> KEYS -> DQKV
 *
 * With more splits than KV heads, the queries of several splits share a KV head, and gradients of keys and
 * values are sums over these splits. SPREAD gives each local split its own copy of the KV head. KV_PARTIALS
 * then has one block per split; APART regroups it for the sum, which goes to KV_PARTIALS. Ranks with replicas
 * of a KV head then all-reduce their sums:
 *
 *     backward   QKV -> SPREAD  attention  KV_PARTIALS -> APART -> KV_PARTIALS  =all-reduce=>  -> KEYS
 *                -> DQKV
 *
 * With one local split, KV_PARTIALS is all-reduced as it is. Splits are added after the runs of queries. */
#ifndef WEFT_MODEL_LAYERS_HEADS_H
#define WEFT_MODEL_LAYERS_HEADS_H

#include "model/layers/layer.h"

enum {
    QKV,
    ATTENDED,
    LSE,
    DQKV,
    DATTENDED,
    A2A_PACKED,
    OUT_BY_HEADS,
    A2A_RECEIVED,
    KEYS,
    KV_PARTIALS,
    SPREAD,
    APART,
    LOCAL_LSE,
    A2A_RECEIVED_LSE,
    SEGMENT_KEYS,
    SEGMENT_SUMS,
    ATTENTION_TENSORS
};
/* All but QKV and DQKV, which differ between layers; LSE is [H, T]. */
#define SHARED_TENSORS                                                                                   \
    [ATTENDED] = {.width = DIM_QUERY, .life = LIFE_SAVED, .operand = true},                              \
    [LSE] = {.width = DIM_HEADS, .element = ELEMENT_FP32, .life = LIFE_SAVED},                           \
    [DATTENDED] = {.width = DIM_QUERY, .life = LIFE_SCRATCH},                                            \
    [A2A_PACKED] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .need = NEED_CP_ALL_TO_ALL},                 \
    [OUT_BY_HEADS] = {.width = DIM_QUERY, .life = LIFE_SAVED, .need = NEED_CP_ALL_TO_ALL},               \
    [A2A_RECEIVED] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .need = NEED_CP_ALL_TO_ALL},               \
    [KEYS] = {EXTENT_KEYS, DIM_KEY_VALUE, .life = LIFE_SCRATCH, .need = NEED_PARTIALS},                  \
    [KV_PARTIALS] = {EXTENT_PARTIALS, DIM_KEY_VALUE, ELEMENT_FP32, LIFE_SCRATCH, .need = NEED_PARTIALS}, \
    [SPREAD] = {EXTENT_KEY_SPLITS, DIM_KEY_VALUE, .life = LIFE_SCRATCH, .need = NEED_KEY_SPLITS},        \
    [APART] = {EXTENT_KEY_SPLITS, DIM_KEY_VALUE, ELEMENT_FP32, LIFE_SCRATCH, .need = NEED_KEY_SPLITS},   \
    [LOCAL_LSE] = {.width = DIM_HEADS,                                                                   \
                   .element = ELEMENT_FP32,                                                              \
                   .life = LIFE_SCRATCH,                                                                 \
                   .need = NEED_HEAD_SUMS},                                                              \
    [A2A_RECEIVED_LSE] = {.width = DIM_HEADS,                                                            \
                          .element = ELEMENT_FP32,                                                       \
                          .life = LIFE_SCRATCH,                                                          \
                          .need = NEED_HEAD_SUMS},                                                       \
    [SEGMENT_KEYS] = {EXTENT_MICROBATCH, DIM_KEY_VALUE, .life = LIFE_SEGMENTS, .need = NEED_SEGMENTS},   \
    [SEGMENT_SUMS] = {EXTENT_SEGMENT_SUMS, DIM_KEY_VALUE, ELEMENT_FP32, LIFE_SEGMENTS_BACKWARD,          \
                      .need = NEED_SEGMENTS}

/* Collectives around attention, which is op `op` and reads the results of the op before it. */
#define ATTENTION_COLLECTIVES(op)                                                                            \
    {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS((op)-1)), ALL_TO_ALL, CONTEXT, A2A_RECEIVED, QKV,      \
                TOKENS, QKV, COMPUTE),                                                                       \
     .when = NEED_CP_ALL_TO_ALL, .pack = heads_split, .packed = A2A_PACKED},                                 \
        {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS(op)), ALL_TO_ALL, CONTEXT, OUT_BY_HEADS,           \
                    A2A_RECEIVED, TOKENS, QUERY, COMPUTE),                                                   \
         .when = NEED_CP_ALL_TO_ALL, .unpack = heads_join, .packed = ATTENDED},                              \
        {COLLECTIVE(IN_DGRAD, BEFORE(OPS(op)), ALL_TO_ALL, CONTEXT, A2A_RECEIVED, A2A_PACKED, TOKENS, QUERY, \
                    COMPUTE),                                                                                \
         .when = NEED_CP_ALL_TO_ALL, .pack = heads_split, .packed = DATTENDED},                              \
        {COLLECTIVE(IN_DGRAD, BEFORE(OPS(op)), ALL_TO_ALL, CONTEXT, LOCAL_LSE, A2A_RECEIVED_LSE, TOKENS,     \
                    HEADS, FP32),                                                                            \
         .when = NEED_HEAD_SUMS,                                                                             \
         .along = true,                                                                                      \
         .what = "LSE",                                                                                      \
         .pack = lse_split,                                                                                  \
         .unpack = lse_join,                                                                                 \
         .packed = LSE},                                                                                     \
        {COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), ALL_TO_ALL, CONTEXT, A2A_RECEIVED, A2A_PACKED, TOKENS, QKV,   \
                    COMPUTE),                                                                                \
         .when = NEED_CP_ALL_TO_ALL, .unpack = heads_join, .packed = DQKV},                                  \
        {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_DGRAD, BEFORE(OPS(op)), ALL_GATHER, CONTEXT, QKV, KEYS,   \
                    TOKENS, KEY_VALUE, COMPUTE),                                                             \
         .when = NEED_KEYS, .zigzag = true, .what = "KV", .pack = keys_pack},                                \
        {COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), REDUCE_SCATTER, CONTEXT, KV_PARTIALS, KV_PARTIALS, TOKENS,    \
                    KEY_VALUE, FP32),                                                                        \
         .when = NEED_KEYS, .zigzag = true, .what = "DKV"},                                                  \
    {                                                                                                        \
        COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), ALL_REDUCE, KEY_COPIES, KV_PARTIALS, KV_PARTIALS, TOKENS,      \
                   KEY_VALUE, FP32),                                                                         \
            .zigzag = true, .what = "DKV"                                                                    \
    }

/* Permute for the all-to-all, between rows of all heads of local tokens (Collective.packed) and one block of
 * rows per rank with that rank's heads: split before sending, joined after receiving (Jacobs et al.,
 * "DeepSpeed Ulysses", 2023). */
void heads_split(const LayerPass *w, const Collective *c);
void heads_join(const LayerPass *w, const Collective *c);
/* The same for LSE, which goes the other way, alongside the gradients of results: [H, T] for each run of
 * queries (by heads), or for each exact chunk (by tokens). */
void lse_split(const LayerPass *w, const Collective *c);
void lse_join(const LayerPass *w, const Collective *c);
/* Copies local keys and values to their offset among those of all tokens (Llama team, "The Llama 3 herd of
 * models", 2024). */
void keys_pack(const LayerPass *w, const Collective *c);

/* Where queries, keys and values are to be made: QKV, or the tensor that the all-to-all sends from. */
void *attend_made(const LayerPass *w);
void attend_forward(const LayerPass *w);
void attend_backward(const LayerPass *w, Grads grads);
/* Takes the reduced gradients of keys and values into DQKV, where they were summed over ranks after
 * attention's own op. Call before reading DQKV. */
void attend_take_sums(const LayerPass *w);

#endif
