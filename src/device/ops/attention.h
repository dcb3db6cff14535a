/* Ops of attention: norms and positions of queries and keys, attention itself, heads of latent attention. */
#ifndef WEFT_DEVICE_OPS_ATTENTION_H
#define WEFT_DEVICE_OPS_ATTENTION_H

#include "device/shapes.h"

/* Range of queries, and strides. The T queries are those of tokens first .. first + T - 1 of `keys` tokens.
 * q_row and kv_row are the elements between rows of queries and of keys; in a row the G*D elements of the
 * keys are followed by the values'. Gradients of keys and values are complete if all queries are here;
 * otherwise they are partial sums. */
typedef struct AttentionRun {
    int64_t first, keys, q_row, kv_row;
    /* gradients of keys and values go to [keys, 2G*D] fp32, not to rows of dtype c, kv_row apart */
    bool partial;
} AttentionRun;
/* All queries, with the queries, keys and values of a token in one row. */
static inline AttentionRun attention_whole(AttentionShape s) {
    int64_t row = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    AttentionRun r = {0, s.tokens, row, row, false};
    return r;
}

/* The rows of the norms of queries and keys: each head of a token by itself, or, if `flat`, all its queries,
 * and all its keys. With `flat`, TP ranks may hold some of the heads each. A row is then summed split by
 * split with qk_norm_sums, and the sums of all ranks' splits must be here before the norm. Otherwise the op
 * computes its sums itself, in the fastest order. */
typedef struct QkRows {
    bool flat;
    int splits;            /* of flat rows, over all ranks; 0: none, if ranks do not share rows */
    int64_t tokens;        /* in `squares` and `products`, between splits */
    int64_t queries, keys; /* elements of an unsharded row */
    /* [splits, tokens, 2] of queries and of keys, tensor memory, starting at the op's first token */
    const float *squares;
    const float *products; /* of backward only */
} QkRows;
static inline QkRows qk_rows(bool flat) {
    QkRows rows = {flat, 0, 0, 0, 0, NULL, NULL};
    return rows;
}

/* Heads of latent attention (MLA: DeepSeek-AI, "DeepSeek-V2", 2024). Queries and keys have D = N + R
 * elements. rope rotates the last R; those of the keys are the same for all heads. Values have V elements and
 * are padded to D with zeros, so that the attention ops serve them too. */
typedef struct LatentShape {
    int64_t tokens;               /* T */
    int heads, nope, rope, value; /* H, N, R (even), V <= N + R */
    int64_t q_row, key_row;       /* elements between tokens, of queries and of the rotated key */
    int splits;   /* that these heads form in the gradient of the shared key, a sum over heads; 0: as 1 */
    bool partial; /* that gradient is this rank's partial sum, and fp32 */
} LatentShape;
static inline int64_t latent_head(LatentShape s) { return s.nope + s.rope; } /* D */
static inline int latent_splits(LatentShape s) { return s.splits > 1 ? s.splits : 1; }

/* Norms of queries and keys: out = raw with q and k normed, and v as it is. Either each head by itself,
 * with one weight for all heads (n = D), or `flat`, all heads of a token as one row (n = H*D, and G*D for
 * keys). kind is NORM_RMS or NORM_RMS_PLUS_ONE. With NORM_RMS and not `flat`, weights may be NULL (all
 * ones), and their gradients are then NULL too. Henry et al., "Query-key normalization for transformers",
 * 2020. */
typedef struct QkNormForwardArgs {
    AttentionShape s;
    QkRows rows;
    NormKind kind;
    float eps;
    const void *raw; /* [T, (H+2G)*D] c */
    const float *wq; /* [D] or [H*D] */
    const float *wk; /* [D] or [G*D] */
    void *out;       /* [T, (H+2G)*D] c */
    Dtype c;
} QkNormForwardArgs;

/* dqkv, the gradient of `out`, becomes that of raw; dwq and dwk += sums over tokens and heads, a row for
 * each of `splits` equal runs of heads (1: all heads; always 1 if `flat`). The rows are added in the tree
 * after all microbatches. With fewer heads than splits, a head's sum goes to the first of the splits that
 * it covers, and the other rows are left alone. */
typedef struct QkNormBackwardArgs {
    AttentionShape s;
    QkRows rows;
    NormKind kind;
    float eps;
    const void *raw; /* [T, (H+2G)*D] c */
    const float *wq; /* [D] or [H*D] */
    const float *wk; /* [D] or [G*D] */
    void *dqkv;      /* [T, (H+2G)*D] c */
    float *dwq;      /* [splits, D] or [H*D] */
    float *dwk;
    int splits;
    Dtype c;
} QkNormBackwardArgs;

/* For flat rows: sums over the local splits of queries (run 0 of `splits`) and of keys (run 1; it skips
 * what belongs to other ranks). They are sums of raw^2, or, if dqkv (the gradient of `out`) is given, of
 * raw dqkv w, where w is the factor of a normed element. */
typedef struct QkNormSumsArgs {
    AttentionShape s;
    KSplit splits;
    NormKind kind;
    const void *raw;  /* [T, (H+2G)*D] c */
    const float *wq;  /* [H*D] */
    const float *wk;  /* [G*D] */
    const void *dqkv; /* [T, (H+2G)*D] c or NULL */
    float *sums;      /* [splits here, T, 2] */
    Dtype c;
} QkNormSumsArgs;

/* Rotates the first R = s.rotary elements of each head of q and k inside qkv, in place, by position
 * (half-split form, as in most of Hugging Face's checkpoints, or s.neighbours). `inverse` rotates back,
 * which is the gradient. cos_sin[p] = R/2 cosines, then R/2 sines. Su et al., "RoFormer", 2021. */
typedef struct RopeArgs {
    AttentionShape s;
    void *qkv;                /* [T, (H+2G)*D] c */
    const int32_t *positions; /* [T] */
    const float *cos_sin;     /* [P, R] */
    bool inverse;
    Dtype c;
} RopeArgs;

/* Multiplies q inside qkv by factors[positions[t]], in place; backward does the same to the gradient. */
typedef struct QueriesScaleArgs {
    AttentionShape s;
    void *qkv;                /* [T, (H+2G)*D] c */
    const int32_t *positions; /* [T] */
    const float *factors;     /* [P] */
    Dtype c;
} QueriesScaleArgs;

/* Causal attention inside segments: token t attends to keys first_key[t] .. t, of these to the last
 * s.window, or to those of its chunk (chunks of s.chunk tokens, counted from first_key[t]). first_key
 * never decreases. The full score matrix is never stored; lse keeps the natural log sum exp of each row,
 * of the exponentials as the kernel uses them (it may round them to bf16). Scores are scaled, then
 * capped, by s. With s.sinks each head has one more score, the same for all tokens, of a key without a
 * value: weights sum to less than 1, and lse includes it. The result of a query does not depend on the
 * run that it is in. dkv is overwritten, also at keys that no query of the run sees. Dao,
 * "FlashAttention-2", 2023; of windows Beltagy et al., "Longformer", 2020; of caps Gemma team, "Gemma 2",
 * 2024; of sinks Xiao et al., "Efficient streaming language models with attention sinks", 2023. */
typedef struct AttentionForwardArgs {
    AttentionShape s;
    AttentionRun r;
    const void *q;            /* [T, H*D] c */
    const void *kv;           /* [keys, 2G*D] c */
    const int32_t *first_key; /* [keys] */
    void *out;                /* [T, H*D] c */
    float *lse;               /* [H, T] */
    Dtype c;
} AttentionForwardArgs;

typedef struct AttentionBackwardArgs {
    AttentionShape s;
    AttentionRun r;
    const void *q;            /* [T, H*D] c */
    const void *kv;           /* [keys, 2G*D] c */
    const int32_t *first_key; /* [keys] */
    const void *out;          /* [T, H*D] c */
    const float *lse;         /* [H, T] */
    const void *dout;         /* [T, H*D] c */
    void *dq;                 /* as q */
    void *dkv;                /* [keys, 2G*D] */
    Dtype c;
} AttentionBackwardArgs;

/* Generation: s.tokens new tokens at positions start .. start+T-1 of one sequence whose keys and values
 * are in the cache (the new ones too); query t attends to cache rows 0 .. start+t, of these to the last
 * s.window, or to those of its chunk. */
typedef struct AttentionDecodeArgs {
    AttentionShape s;
    int64_t start;
    const void *qkv;     /* [T, (H+2G)*D] c */
    const void *k_cache; /* [P, G*D] c */
    const void *v_cache; /* [P, G*D] c */
    void *out;           /* [T, H*D] c */
    Dtype c;
} AttentionDecodeArgs;

/* For each head x: dsinks[x] -= sum over tokens of exp(s.sinks[x] - lse) (dout . out). */
typedef struct SinksBackwardArgs {
    AttentionShape s;
    const void *out;  /* [T, H*D] c */
    const float *lse; /* [H, T] */
    const void *dout; /* [T, H*D] c */
    float *dsinks;    /* [H] */
    Dtype c;
} SinksBackwardArgs;

/* Builds q, k, v of each token and head for the attention ops from the queries, the `key` that all heads
 * share, and each head's `own` N elements of the key and V of the value. The last R elements of q and k
 * are rotated by position, 2i and 2i + 1 by the i-th angle of cos_sin, which is laid out as in rope. */
typedef struct LatentForwardArgs {
    LatentShape s;
    const void *q;            /* [T, H*D] c, q_row */
    const void *own;          /* [T, H*(N+V)] c */
    const void *key;          /* [T, R] c, key_row */
    const int32_t *positions; /* [T] */
    const float *cos_sin;     /* [P, R] */
    void *qkv;                /* [T, 3H*D] c */
    Dtype c;
} LatentForwardArgs;

/* Gradients of the inputs from that of qkv. For the shared key: each split sums its heads in order and
 * rotates the sum back; the splits are then added in the tree. */
typedef struct LatentBackwardArgs {
    LatentShape s;
    const void *dqkv;         /* [T, 3H*D] c */
    const int32_t *positions; /* [T] */
    const float *cos_sin;     /* [P, R] */
    void *dq;                 /* [T, H*D] c, q_row */
    void *down;               /* [T, H*(N+V)] c */
    void *dkey;               /* [T, R] c, or fp32 partial sums, key_row */
    Dtype c;
} LatentBackwardArgs;

/* Each op: id, slot, struct of arguments, and the fields that an error message shows. */
/* clang-format off */
#define ATTENTION_OPS(X)                                                      \
    X(QK_NORM_FORWARD, qk_norm_forward, QkNormForwardArgs, s, c)              \
    X(QK_NORM_BACKWARD, qk_norm_backward, QkNormBackwardArgs, s, splits, c)   \
    X(QK_NORM_SUMS, qk_norm_sums, QkNormSumsArgs, s, splits, c)               \
    X(ROPE, rope, RopeArgs, s, inverse, c)                                    \
    X(QUERIES_SCALE, queries_scale, QueriesScaleArgs, s, c)                   \
    X(ATTENTION_FORWARD, attention_forward, AttentionForwardArgs, s, r, c)    \
    X(ATTENTION_BACKWARD, attention_backward, AttentionBackwardArgs, s, r, c) \
    X(ATTENTION_DECODE, attention_decode, AttentionDecodeArgs, s, start, c)   \
    X(SINKS_BACKWARD, sinks_backward, SinksBackwardArgs, s, c)                \
    X(LATENT_FORWARD, latent_forward, LatentForwardArgs, s, c)                \
    X(LATENT_BACKWARD, latent_backward, LatentBackwardArgs, s, c)
/* clang-format on */
ATTENTION_OPS(OP_DECLARE)

#endif
