/* What layers share that attend, whatever they make queries, keys and values of: the tensors around
 * attention, with which those of each layer begin, and the op itself (attention.c).
 *
 * The gradient of the scores' operands, DQKV, becomes that of the product's result where it lies.
 *
 * Where ranks of cp share the tokens out by heads, QKV, LSE and BY_HEADS are of all tokens and some heads,
 * and the others of some tokens and all heads; it takes as many bytes. HANDED and TURNED are on the way
 * between the two:
 *
 *     forward    TURNED -> HANDED =all-to-all=> QKV  attention  BY_HEADS =all-to-all=> HANDED -> ATTENDED
 *     backward   DATTENDED -> HANDED =all-to-all=> TURNED  attention  HANDED =all-to-all=> TURNED -> DQKV
 *
 * Gradients of sinks are made by tokens, as the exact chunks are that these are rounded by: with the
 * all-to-all on the way back LSE comes the other way, to OWN_LSE, for its own tokens and all heads.
 *
 * By keys, queries are those of QKV, keys and values those of KEYS; KV_PARTIALS are of their gradients, which
 * are rounded in KEYS and then go to DQKV:
 *
 *     forward    QKV -> KEYS =gather=> KEYS  attention
 *     backward   QKV -> KEYS =gather=> KEYS  attention  KV_PARTIALS =sum=> KV_PARTIALS -> KEYS -> DQKV
 *
 * KV_PARTIALS and KEYS are there, for that way back alone, wherever queries come in several runs.
 *
 * Where splits of what tp may share are more than heads of keys, each head is looked at by the queries of
 * several, and gradients of keys and values are sums over these splits. Those that are here get a copy of
 * each head each, SPREAD, so that KV_PARTIALS are of one split; APART they lie split by split, and are added
 * up where KV_PARTIALS were. Ranks that have copies of a head then sum over what each has come to:
 *
 *     backward   QKV -> SPREAD  attention  KV_PARTIALS -> APART -> KV_PARTIALS  =sum over copies=>  -> KEYS
 *                -> DQKV
 *
 * With one split here that sum is over KV_PARTIALS as they are. Splits are added outside of runs of
 * queries. */
#ifndef WEFT_MODEL_LAYERS_HEADS_H
#define WEFT_MODEL_LAYERS_HEADS_H

#include "model/layers/layer.h"

enum {
    QKV,
    ATTENDED,
    LSE,
    DQKV,
    DATTENDED,
    TURNED,
    BY_HEADS,
    HANDED,
    KEYS,
    KV_PARTIALS,
    SPREAD,
    APART,
    OWN_LSE,
    HANDED_LSE,
    ATTENTION_TENSORS
};
/* All but QKV and DQKV, of which layers want different things; LSE is [H, T]. */
#define SHARED_TENSORS                                                                                       \
    [ATTENDED] = {.width = DIM_QUERY, .life = LIFE_SAVED, .operand = true},                                  \
    [LSE] = {.width = DIM_HEADS, .element = ELEMENT_FP32, .life = LIFE_SAVED},                               \
    [DATTENDED] = {.width = DIM_QUERY, .life = LIFE_SCRATCH},                                                \
    [TURNED] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .need = NEED_CP_ALL_TO_ALL},                         \
    [BY_HEADS] = {.width = DIM_QUERY, .life = LIFE_SAVED, .need = NEED_CP_ALL_TO_ALL},                       \
    [HANDED] = {.width = DIM_QKV, .life = LIFE_SCRATCH, .need = NEED_CP_ALL_TO_ALL},                         \
    [KEYS] = {EXTENT_KEYS, DIM_KEY_VALUE, .life = LIFE_SCRATCH, .need = NEED_PARTIALS},                      \
    [KV_PARTIALS] = {EXTENT_PARTIALS, DIM_KEY_VALUE, ELEMENT_FP32, LIFE_SCRATCH, .need = NEED_PARTIALS},     \
    [SPREAD] = {EXTENT_KEY_SPLITS, DIM_KEY_VALUE, .life = LIFE_SCRATCH, .need = NEED_KEY_SPLITS},            \
    [APART] = {EXTENT_KEY_SPLITS, DIM_KEY_VALUE, ELEMENT_FP32, LIFE_SCRATCH, .need = NEED_KEY_SPLITS},       \
    [OWN_LSE] = {.width = DIM_HEADS, .element = ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_HEAD_SUMS}, \
    [HANDED_LSE] = {                                                                                         \
        .width = DIM_HEADS, .element = ELEMENT_FP32, .life = LIFE_SCRATCH, .need = NEED_HEAD_SUMS}

/* Around attention, op `op`; the one before it makes what it reads. */
#define ATTENTION_COLLECTIVES(op)                                                                            \
    {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS((op)-1)), ALL_TO_ALL, CONTEXT, HANDED, QKV, TOKENS,    \
                QKV, COMPUTE),                                                                               \
     .when = NEED_CP_ALL_TO_ALL, .pack = heads_split, .packed = TURNED},                                     \
        {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE, BEHIND(OPS(op)), ALL_TO_ALL, CONTEXT, BY_HEADS, HANDED,       \
                    TOKENS, QUERY, COMPUTE),                                                                 \
         .when = NEED_CP_ALL_TO_ALL, .unpack = heads_join, .packed = ATTENDED},                              \
        {COLLECTIVE(IN_DGRAD, BEFORE(OPS(op)), ALL_TO_ALL, CONTEXT, HANDED, TURNED, TOKENS, QUERY, COMPUTE), \
         .when = NEED_CP_ALL_TO_ALL, .pack = heads_split, .packed = DATTENDED},                              \
        {COLLECTIVE(IN_DGRAD, BEFORE(OPS(op)), ALL_TO_ALL, CONTEXT, OWN_LSE, HANDED_LSE, TOKENS, HEADS,      \
                    FP32),                                                                                   \
         .when = NEED_HEAD_SUMS,                                                                             \
         .along = true,                                                                                      \
         .what = "LSE",                                                                                      \
         .pack = lse_split,                                                                                  \
         .unpack = lse_join,                                                                                 \
         .packed = LSE},                                                                                     \
        {COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), ALL_TO_ALL, CONTEXT, HANDED, TURNED, TOKENS, QKV, COMPUTE),   \
         .when = NEED_CP_ALL_TO_ALL, .unpack = heads_join, .packed = DQKV},                                  \
        {COLLECTIVE(IN_FORWARD | IN_RECOMPUTE | IN_DGRAD, BEFORE(OPS(op)), ALL_GATHER, CONTEXT, QKV, KEYS,   \
                    TOKENS, KEY_VALUE, COMPUTE),                                                             \
         .when = NEED_KEYS, .zigzag = true, .what = "KV", .pack = keys_place},                               \
        {COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), REDUCE_SCATTER, CONTEXT, KV_PARTIALS, KV_PARTIALS, TOKENS,    \
                    KEY_VALUE, FP32),                                                                        \
         .when = NEED_KEYS, .zigzag = true, .what = "DKV"},                                                  \
    {                                                                                                        \
        COLLECTIVE(IN_DGRAD, BEHIND(OPS(op)), ALL_REDUCE, KEY_COPIES, KV_PARTIALS, KV_PARTIALS, TOKENS,      \
                   KEY_VALUE, FP32),                                                                         \
            .zigzag = true, .what = "DKV"                                                                    \
    }

/* Between rows of all heads of own tokens (Collective.packed), and for each rank rows of its own heads: taken
 * apart before they are sent, put together when they have come (Jacobs et al., "DeepSpeed Ulysses", 2023). */
void heads_split(const LayerPass *w, const Collective *c);
void heads_join(const LayerPass *w, const Collective *c);
/* Numbers of each token and head, which go the other way beside the gradients of results: [H, T] of each run
 * of queries (by heads), or of each exact chunk (by tokens). */
void lse_split(const LayerPass *w, const Collective *c);
void lse_join(const LayerPass *w, const Collective *c);
/* Own keys and values go where they lie among those of all tokens (Llama team, "The Llama 3 herd of models",
 * 2024). */
void keys_place(const LayerPass *w, const Collective *c);

/* Where queries, keys and values are to be made: QKV, or what is changed for heads before it is that. */
void *attend_made(const LayerPass *w);
void attend_forward(const LayerPass *w);
void attend_backward(const LayerPass *w, Grads grads);
/* Before DQKV is read: where terms are summed over ranks, the sums of this rank's tokens have come after
 * attention's own op. */
void attend_take_sums(const LayerPass *w);

#endif
