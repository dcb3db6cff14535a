/* Kernels of one instruction set: single-threaded functions on the part of an op's work that they are given.
 * Arguments are those of the op, cut to the part: fewer tokens, and tensors from the first of them on. Sums
 * over tokens (dw, dwq, dwk, db) are added to a partial result that the caller provides. */
#ifndef WEFT_DEVICE_CPU_KERNELS_H
#define WEFT_DEVICE_CPU_KERNELS_H

#include <stdatomic.h>

#include "device/cpu/cpu.h"

enum {
    FLASH_BLOCK = 64,      /* queries and keys in a block of attention */
    FLASH_STRIP = 16,      /* queries or keys of a block that causality cuts, taken together */
    FLASH_UNITS_MAX = 4,   /* blocks that one thread takes together */
    STATS_PIECE_LOG2 = 12, /* elements of a gradient that are summed at once */
    STATS_PIECE = 1 << STATS_PIECE_LOG2,
    PRODUCT_BLOCK =
        384,            /* terms of a product's sum that are added in one chain; a term may be two elements */
    PRODUCT_COLS = 768, /* columns of a product's tile, at most; a multiple of every STRIP_COLS */
    PACK_ROWS = 96,     /* rows that are packed at a time */
    FEW_ROWS = 16,      /* so few that packing B is what takes time */
    SCAN_CHANNELS = 128, /* of a convolution or recurrence at a time, at most; a multiple of every vector */
    SCAN_BLOCK = 32,     /* tokens of a sum over tokens that are added in one chain */
};

/* An operand of a product as lines along the inner dimension: element p of line i is data[i * row + p], or
 * data[p * row + i] where the lines lie across the rows. */
typedef struct ProductOperand {
    const void *data;
    int64_t row;
    bool along;
    const int32_t *lines; /* of A, along: line i is number lines[i]; NULL: number i */
} ProductOperand;
static inline int64_t product_line(const ProductOperand *o, int64_t i) { return o->lines ? o->lines[i] : i; }

/* C [m, n] = (add ? C : 0) + A B over k elements: lines of A are rows of C, lines of B its columns (at most
 * PRODUCT_COLS). product.h defines the order of summation. */
typedef struct ProductRun {
    int64_t m, n, k;
    ProductOperand a, b;
    Dtype type; /* of A and B */
    float *c;
    int64_t c_row;
    bool add;
    /* Sums [m, n], rows wait_row apart, that C is added to, in ascending order. */
    int waiting;
    const float *const *wait;
    int64_t wait_row;
    /* NULL, or where the complete sums go instead, rounded; C then holds sums over a part of k. */
    uint16_t *rounded;
    int64_t rounded_row;
} ProductRun;
enum { PRODUCT_SCRATCH = PRODUCT_BLOCK * (PRODUCT_COLS + PACK_ROWS) }; /* floats */
enum { LIMIT_SUMS = 384 };

/* Arguments of attention. Rows of q (and of its gradient) are q_row elements apart, those of k and v kv_row,
 * and those of their gradients dkv_row. The keys of query t begin at flash_first and end at offset + t.
 * first_key is indexed by query; NULL means 0. */
typedef struct Flash {
    AttentionShape s;
    Dtype c;
    const void *q, *k, *v;
    int64_t q_row, kv_row, offset, keys;
    const int32_t *first_key;
    void *out;
    float *lse; /* NULL: not wanted */
    /* backward */
    const void *kept, *dout; /* forward's output, and the gradient of it */
    const float *kept_lse;
    void *dq, *dk, *dv;
    int64_t dkv_row;
    Dtype dkv_type;
    float *delta;         /* [H, T] rowsum(dout * out) */
    float *dq_sum;        /* [H, T, D rounded up to 16] */
    atomic_int *progress; /* [H, blocks of T]: key blocks that dq_sum of a query block holds */
} Flash;

/* A row's sum of exponentials is exp(max) * sum. */
typedef struct RowSum {
    float max;
    double sum;
} RowSum;

static inline int64_t flash_first(const Flash *f, int64_t t) {
    return window_first(f->s, f->offset + t, f->first_key ? f->first_key[t] : 0);
}

typedef struct Kernels {
    void (*add)(int64_t n, const void *a, const void *b, void *out, Dtype c);
    void (*cast)(int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type);
    void (*norm_forward)(const NormForwardArgs *o);
    void (*norm_backward)(const NormBackwardArgs *o);
    void (*qk_norm_forward)(const QkNormForwardArgs *o);
    void (*qk_norm_backward)(const QkNormBackwardArgs *o);
    /* `step`: tokens between the sums of two splits. */
    void (*qk_norm_sums)(const QkNormSumsArgs *o, int64_t step);
    void (*rope)(AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin, bool inverse,
                 Dtype c);
    void (*bias_forward)(int64_t rows, int64_t n, void *y, const float *bias, Dtype c);
    void (*bias_backward)(int64_t rows, int64_t n, const void *dy, float *db /* partial, added to */,
                          Dtype c);
    /* Columns first .. first+count-1. */
    void (*embed_backward)(const EmbedBackwardArgs *o, int64_t first, int64_t count);
    /* One row: out = (add ? out : 0) + scale * row. */
    void (*embed_row)(int64_t hidden, const void *row, float scale, bool add, void *out, Dtype c);
    void (*activation_forward)(const ActivationForwardArgs *o);
    void (*activation_backward)(const ActivationBackwardArgs *o);
    void (*softcap)(int64_t n, float cap, void *x, Dtype c);
    /* For channels first .. first+count-1, count at most SCAN_CHANNELS. */
    void (*conv_forward)(const ConvForwardArgs *o, int64_t first, int64_t count);
    void (*conv_backward)(const ConvBackwardArgs *o, int64_t first, int64_t count);
    void (*scan_forward)(const ScanForwardArgs *o, int64_t first, int64_t count);
    void (*scan_gate)(ScanShape s, const void *gate, const float *h, void *out, Dtype c);
    void (*scan_backward)(const ScanBackwardArgs *o, int64_t first, int64_t count);
    /* A head's chunk. Forward takes and returns the factor e of its state. Backward is four steps for a batch
     * of chunks: what a group's heads share, for blocks of MAMBA_BLOCK tokens from the chunk's `from`-th;
     * heads; then dC and dB, sums over heads, blockwise. */
    float (*mamba_forward)(const MambaRun *r, int64_t head, const MambaChunk *k, float e);
    void (*mamba_scores)(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from);
    void (*mamba_backward)(const MambaRun *r, int64_t head, const MambaChunk *k);
    void (*mamba_sum_C)(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from);
    void (*mamba_sum_B)(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from);
    void (*gated_norm_forward)(const GatedNormForwardArgs *o);
    void (*gated_norm_backward)(const GatedNormBackwardArgs *o);
    /* The record of the n logits of one row in a split; target is relative to the first of them. */
    LossRecord (*loss_record)(int64_t n, const void *logits, Dtype logits_type, int64_t target);
    /* Gradient of a row, from the full vocabulary's largest logit and the sum relative to it. share: factor
     * of the softmax (z-loss), else 1. */
    void (*loss_gradient)(const CrossEntropyArgs *o, int64_t row, RowSum of, double share);
    void (*adamw)(const AdamWArgs *o);
    void (*sgd)(const SgdArgs *o);
    /* For a run of n elements; muon_blend: y = b x + c y. */
    void (*muon_momentum)(const MuonMomentumArgs *o, int64_t n);
    void (*muon_normalise)(int64_t n, float factor, float *x);
    void (*muon_blend)(int64_t n, float b, const float *x, float c, float *y);
    void (*muon_apply)(int64_t n, Muon o, OptimizerStep step, const float *x, float *param, uint16_t *copy);
    void (*average)(int64_t n, float share, const float *param, float *mean);
    /* Elements first .. first+count-1, count at most STATS_PIECE, merged into all. */
    void (*grad_stats)(int64_t first, int64_t count, const float *g, double p, double unit, GradStats *all);
    /* Elements first .. first+count-1. */
    void (*fixed_add)(const FixedAddArgs *o, int64_t first, int64_t count,
                      FixedRefusals *refused /* added to */);
    void (*fixed_to_float)(int64_t n, const int64_t *acc, float *out);
    int64_t (*count_nonfinite)(int64_t n, const void *in, Dtype type);
    void (*init_normal)(const InitNormalArgs *o, const RngRange *range);

    void (*product_run)(const ProductRun *r, float *scratch /* [PRODUCT_SCRATCH] */);
    /* About how many bf16 terms a product computes in the time of an fp32 term. Packing an element takes the
     * same time for both. */
    int bf16_pace;
    /* Multiply-adds in registers: fp32 ones, or dot products of bf16. Returns their FLOPs, some multiple of
     * rounds; 0: there is no such instruction. Adds to sums [LIMIT_SUMS], of which some are multiplied. */
    double (*product_limit)(int64_t rounds, Dtype t, float *sums);

    /* Attention of blocks of queries of the heads that share a key head. Blocks are numbered by block, then
     * by head: those from `first` on, at most flash_units. */
    void (*flash_forward)(const Flash *f, int64_t kv_head, int64_t first, int64_t count, float *scratch);
    /* delta of one block of queries of one head. */
    void (*flash_delta)(const Flash *f, int64_t head, int64_t block);
    /* Blocks of keys of one key head, from `block` on, at most flash_units. Writes dk and dv, adds their
     * contributions to dq_sum in order of key blocks (see progress), and writes dq after the last one. Calls
     * must be started in ascending order. */
    void (*flash_backward)(const Flash *f, int64_t kv_head, int64_t block, int64_t count, float *scratch);
    /* One query of one head against a cache. */
    void (*flash_decode)(const Flash *f, int64_t head, int64_t query);
} Kernels;

/* Row length of blocks whose lanes run along the head dimension. */
static inline int64_t flash_padded(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }
/* Floats between panels of a thread's scratch. A cache line separates them: products are an eighth slower if
 * operands and result have the same page offsets. */
static inline int64_t flash_panel(int64_t floats) { return floats + 16; }
/* Blocks of queries (forward) or keys (backward) that one thread takes together, so that shared operands are
 * loaded and packed once: as many as stay in a second-level cache. The number does not affect results. */
static inline int64_t flash_units(int64_t head_dim) {
    int64_t units = 256 / flash_padded(head_dim);
    return units < 1 ? 1 : units > FLASH_UNITS_MAX ? FLASH_UNITS_MAX : units;
}
/* Elements of scratch that one thread needs in flash_forward or flash_backward. */
static inline int64_t flash_scratch(int64_t head_dim) {
    int64_t padded = flash_padded(head_dim), wide = padded > FLASH_BLOCK ? padded : FLASH_BLOCK;
    int64_t rows = flash_panel(FLASH_BLOCK * padded), narrow = flash_panel(FLASH_BLOCK * head_dim);
    int64_t scores = flash_panel(FLASH_BLOCK * FLASH_BLOCK),
            across = flash_panel(FLASH_BLOCK * FLASH_BLOCK / 2);
    int64_t units = flash_units(head_dim);
    int64_t forward = 2 * rows + flash_panel(FLASH_BLOCK * wide) + units * 2 * narrow;
    int64_t backward = 2 * rows + 2 * scores + across + units * (2 * narrow + 3 * rows);
    return forward > backward ? forward : backward;
}

extern const Kernels kernels_portable;
#if defined(__x86_64__)
extern const Kernels kernels_avx2, kernels_avx512, kernels_avx512_bf16, kernels_amx;
#endif

#endif
