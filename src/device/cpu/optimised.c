/* CPU ops on threads: each op cuts its work into pieces for the kernels of an instruction set.
 *
 *  1. Pieces never depend on the number of threads, and no two pieces write the same element.
 *  2. Sums over tokens are taken in blocks of constant length, counted from the start of a split, and then
 *     over blocks in ascending order (TokenBlocks). So a slice that starts at a split has the same bits as in
 *     the full tensor.
 *  3. Exact sums, maxima and counts may be merged in any order, so threads merge them as they finish. */
#include "device/cpu/optimised.h"

#include <math.h>
#include <stdlib.h>

#include "base/rng.h"
#include "base/text.h"
#include "device/cpu/cpu.h"
#include "device/losses.h"

enum {
    TOKEN_BLOCK = 32, /* tokens of a sum over tokens that are added in one chain */
    PARTS = 64,       /* most sums of such blocks that are stored before they are added */
};

static void gemm(Device *d, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, const void *a,
                 const void *b, Dtype ab_type, void *c, Dtype c_type, int64_t ldc, bool accumulate,
                 KSplit splits) {
    gemm_run(optimised_of(d)->gemm, d, trans_a, trans_b, m, n, k, a, b, ab_type, c, c_type, ldc, accumulate,
             splits);
}

/* A copy, limited by memory bandwidth, of which several threads get more than one. */
static void embed_forward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *table,
                          EmbedRows rows, float scale, bool add, void *out, Dtype c) {
    int64_t step = rows_for(hidden);
    EACH_PIECE(d, first, tokens, step) {
        for (int64_t t = first; t < min_i64(tokens, first + step); t++) {
            int64_t row = embed_row_of(rows, ids[t]);
            void *to = tensor_to(out, t * hidden, c);
            if (row >= 0)
                kernels_of(d)->embed_row(hidden, tensor_at(table, row * hidden, c), scale, add, to, c);
            else if (!add)
                for (int64_t i = 0; i < hidden; i++) tensor_set(to, i, c, -0.0f);
        }
    }
}

static void copy_rows(Device *d, int64_t rows, size_t bytes, void *to, size_t to_stride, const void *from,
                      size_t from_stride) {
    int64_t step = rows_for((int64_t)(bytes / sizeof(float)) + 1);
    EACH_PIECE(d, first, rows, step) {
        for (int64_t i = first; i < min_i64(rows, first + step); i++)
            memcpy((char *)to + (size_t)i * to_stride, (const char *)from + (size_t)i * from_stride, bytes);
    }
}

/* Pieces are columns, so each row of the table is accumulated in the order of the tokens. */
static void embed_backward(Device *d, int64_t tokens, int64_t hidden, const int32_t *ids, const void *dout,
                           EmbedRows rows, float scale, float *dtable, Dtype c) {
    enum { COLUMNS = 128 };
    EACH_PIECE(d, first, hidden, COLUMNS)
    kernels_of(d)->embed_backward(tokens, hidden, first, min_i64(COLUMNS, hidden - first), ids, dout, rows,
                                  scale, dtable, c);
}

/* A row's sums are computed in one kernel call, so rows may be cut anywhere. */
static void norm_forward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, float eps, const void *a,
                         const void *b, const float *w, const float *bias, void *sum, void *y, float *rstd,
                         Dtype c) {
    int64_t step = rows_for(hidden);
    EACH_PIECE(d, first, tokens, step) {
        int64_t at = first * hidden;
        kernels_of(d)->norm_forward(kind, min_i64(step, tokens - first), hidden, eps, tensor_at(a, at, c),
                                    b ? tensor_at(b, at, c) : NULL, w, bias,
                                    sum ? tensor_to(sum, at, c) : NULL, y ? tensor_to(y, at, c) : NULL,
                                    rstd + first, c);
    }
}

/* ---- sums over tokens ---- */

/* Tokens in blocks of TOKEN_BLOCK from the start of each split on, whatever the number of tokens. A block is
 * summed from zero, then added to the split's row, in ascending order of blocks. The block length is a
 * constant, because it determines the bits: 32 rows are enough to make the pass over the sums negligible, and
 * few enough for threads to share a microbatch. */
typedef struct TokenBlocks {
    int64_t tokens, split_size;
    int64_t each, count; /* blocks in a split, in total */
} TokenBlocks;

/* Full splits first; the remaining tokens are one more, with fewer blocks. */
static TokenBlocks token_blocks(int64_t tokens, int64_t split_size) {
    int64_t each = splits_of(split_size, TOKEN_BLOCK);
    return (TokenBlocks){tokens, split_size, each,
                         tokens / split_size * each + splits_of(tokens % split_size, TOKEN_BLOCK)};
}

/* Splits have `each` blocks, of which the last may be short; the last split may be short, too. */
static int64_t block_start(const TokenBlocks *b, int64_t block) {
    return block / b->each * b->split_size + block % b->each * TOKEN_BLOCK;
}
static int64_t block_rows(const TokenBlocks *b, int64_t block) {
    int64_t end = min_i64(b->tokens, (block / b->each + 1) * b->split_size);
    return min_i64(TOKEN_BLOCK, end - block_start(b, block));
}

/* Adds the sums of `count` blocks from `first` on ([count][row], n columns) to the rows of their splits
 * [splits][n], in ascending order. Threads divide the columns, not the blocks, so each element of a sum
 * belongs to one thread. */
static void add_blocks(Device *d, const TokenBlocks *b, int64_t first, int64_t count, int64_t row, int64_t n,
                       const float *partial, float *sum) {
    enum { COLUMNS = 256 };
    EACH_PIECE(d, at, n, COLUMNS) {
        for (int64_t p = 0; p < count; p++) {
            float *to = sum + (first + p) / b->each * n + at;
            kernels_of(d)->add(min_i64(COLUMNS, n - at), to, partial + p * row + at, to, DTYPE_F32);
        }
    }
}

/* Scratch for the sums of PARTS blocks. */
static float *block_room(Device *d, int64_t n) {
    CHECK(d->scratch_size >= (size_t)(PARTS * n) * sizeof(float));
    return (float *)(void *)d->scratch;
}

/* PARTS blocks at a time, i.e. 2048 tokens: their sums are stored in scratch, whose size therefore does not
 * depend on the microbatch, and are added before the next ones are computed. Without dw there are neither
 * sums nor scratch. */
static void norm_backward(Device *d, NormKind kind, int64_t tokens, int64_t hidden, const void *x,
                          const float *w, const float *rstd, const void *dy, void *dx, bool add, float *dw,
                          int64_t split_size, Dtype c) {
    TokenBlocks b = token_blocks(tokens, split_size);
    float *room = dw ? block_room(d, hidden) : NULL;
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            int64_t start = block_start(&b, first + p), at = start * hidden;
            float *sum = room ? room + p * hidden : NULL;
            if (sum) memset(sum, 0, (size_t)hidden * sizeof *sum);
            kernels_of(d)->norm_backward(kind, block_rows(&b, first + p), hidden, tensor_at(x, at, c), w,
                                         rstd + start, tensor_at(dy, at, c), tensor_to(dx, at, c), add, sum,
                                         c);
        }
        if (dw) add_blocks(d, &b, first, count, hidden, hidden, room, dw);
    }
}

static GatedNorm tokens_of(GatedNorm s, int64_t tokens) {
    s.tokens = tokens;
    return s;
}

static void gated_norm_forward(Device *d, GatedNorm s, const void *x, const void *gate, const float *w,
                               void *y, Dtype c) {
    int64_t step = rows_for(s.width);
    EACH_PIECE(d, first, s.tokens, step)
    kernels_of(d)->gated_norm_forward(
        tokens_of(s, min_i64(step, s.tokens - first)), tensor_at(x, first * s.width, c),
        tensor_at(gate, first * s.gate_row, c), w, tensor_to(y, first * s.width, c), c);
}

/* As norm_backward, with all tokens in one split. */
static void gated_norm_backward(Device *d, GatedNorm s, const void *x, const void *gate, const float *w,
                                const void *dy, void *dx, void *dgate, float *dw, Dtype c) {
    TokenBlocks b = token_blocks(s.tokens, s.tokens);
    float *room = block_room(d, s.width);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            int64_t start = block_start(&b, first + p), at = start * s.width, gates = start * s.gate_row;
            float *sum = room + p * s.width;
            memset(sum, 0, (size_t)s.width * sizeof *sum);
            kernels_of(d)->gated_norm_backward(tokens_of(s, block_rows(&b, first + p)), tensor_at(x, at, c),
                                               tensor_at(gate, gates, c), w, tensor_at(dy, at, c),
                                               tensor_to(dx, at, c), tensor_to(dgate, gates, c), sum, c);
        }
        add_blocks(d, &b, first, count, s.width, s.width, room, dw);
    }
}

/* Elements of a token in qkv: queries, keys, values. */
static int64_t qkv_row(AttentionShape s) { return (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim; }

/* The same heads for fewer tokens: a piece of an op on heads. */
static AttentionShape of_tokens(AttentionShape s, int64_t tokens) {
    s.tokens = tokens;
    return s;
}

/* The rows from token `first` on. */
static QkRows rows_from(QkRows rows, int64_t first) {
    if (rows.squares) rows.squares += 2 * first;
    if (rows.products) rows.products += 2 * first;
    return rows;
}

static void qk_norm_forward(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                            const void *raw, const float *wq, const float *wk, void *out, Dtype c) {
    int64_t row = qkv_row(s), step = rows_for(row);
    EACH_PIECE(d, first, s.tokens, step)
    kernels_of(d)->qk_norm_forward(of_tokens(s, min_i64(step, s.tokens - first)), rows_from(rows, first),
                                   kind, eps, tensor_at(raw, first * row, c), wq, wk,
                                   tensor_to(out, first * row, c), c);
}

/* Without weights nothing is summed: rows are independent. */
static void qk_norm_plain_backward(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                                   const void *raw, void *dqkv, Dtype c) {
    int64_t row = qkv_row(s), step = rows_for(row);
    EACH_PIECE(d, first, s.tokens, step)
    kernels_of(d)->qk_norm_backward(of_tokens(s, min_i64(step, s.tokens - first)), rows_from(rows, first),
                                    kind, eps, tensor_at(raw, first * row, c), NULL, NULL,
                                    tensor_to(dqkv, first * row, c), NULL, NULL, 1, c);
}

/* A block's sums for both weights are stored together: those of wq in all splits, then those of wk. */
static void qk_norm_backward(Device *d, AttentionShape s, QkRows rows, NormKind kind, float eps,
                             const void *raw, const float *wq, const float *wk, void *dqkv, float *dwq,
                             float *dwk, int splits, Dtype c) {
    TokenBlocks b = token_blocks(s.tokens, s.tokens);
    int64_t row = qkv_row(s), nq = (rows.flat ? s.heads : 1) * (int64_t)s.head_dim,
            nk = (rows.flat ? s.kv_heads : 1) * (int64_t)s.head_dim, both = splits * (nq + nk);
    if (!wq) {
        qk_norm_plain_backward(d, s, rows, kind, eps, raw, dqkv, c);
        return;
    }
    float *room = block_room(d, both);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            int64_t token = block_start(&b, first + p), at = token * row;
            float *sums = room + p * both;
            memset(sums, 0, (size_t)both * sizeof *sums);
            kernels_of(d)->qk_norm_backward(of_tokens(s, block_rows(&b, first + p)), rows_from(rows, token),
                                            kind, eps, tensor_at(raw, at, c), wq, wk, tensor_to(dqkv, at, c),
                                            sums, sums + splits * nq, splits, c);
        }
        add_blocks(d, &b, first, count, both, splits * nq, room, dwq);
        add_blocks(d, &b, first, count, both, splits * nk, room + splits * nq, dwk);
    }
}

static void qk_norm_sums(Device *d, AttentionShape s, KSplit splits, NormKind kind, const void *raw,
                         const float *wq, const float *wk, const void *dqkv, float *sums, Dtype c) {
    int64_t row = qkv_row(s), step = rows_for(row);
    EACH_PIECE(d, first, s.tokens, step)
    kernels_of(d)->qk_norm_sums(of_tokens(s, min_i64(step, s.tokens - first)), splits, kind,
                                tensor_at(raw, first * row, c), wq, wk,
                                dqkv ? tensor_at(dqkv, first * row, c) : NULL, sums + 2 * first, s.tokens, c);
}

/* Only the sums: a bias passes its gradient through unchanged. */
static void bias_backward(Device *d, int64_t tokens, int64_t n, const void *dy, float *db, int64_t split_size,
                          Dtype c) {
    TokenBlocks b = token_blocks(tokens, split_size);
    float *room = block_room(d, n);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            memset(room + p * n, 0, (size_t)n * sizeof *room);
            kernels_of(d)->bias_backward(block_rows(&b, first + p), n,
                                         tensor_at(dy, block_start(&b, first + p) * n, c), room + p * n, c);
        }
        add_blocks(d, &b, first, count, n, n, room, db);
    }
}

/* ---- rows and elements ---- */

static void bias_forward(Device *d, int64_t tokens, int64_t n, void *y, const float *bias, Dtype c) {
    int64_t step = rows_for(n);
    EACH_PIECE(d, first, tokens, step)
    kernels_of(d)->bias_forward(min_i64(step, tokens - first), n, tensor_to(y, first * n, c), bias, c);
}

static void rope_neighbours(Device *d, AttentionShape s, void *qkv, const int32_t *positions,
                            const float *cos_sin, bool inverse, Dtype c) {
    int64_t row = qkv_row(s), heads = s.heads + s.kv_heads, turned = rotary_dim(s);
    EACH_PIECE(d, first, s.tokens, rows_for(row))
    for (int64_t t = first; t < min_i64(s.tokens, first + rows_for(row)); t++)
        for (int64_t head = 0; head < heads; head++) {
            void *x = tensor_to(qkv, t * row + head * s.head_dim, c);
            turn_neighbours(d, turned, cos_sin + positions[t] * turned, x, x, inverse ? -1 : 1, c);
        }
}

/* Tokens are independent, and so are heads: a slice of either has the same bits as in the full tensor. */
static void rope(Device *d, AttentionShape s, void *qkv, const int32_t *positions, const float *cos_sin,
                 bool inverse, Dtype c) {
    int64_t row = qkv_row(s), step = rows_for(row);
    if (s.neighbours) {
        rope_neighbours(d, s, qkv, positions, cos_sin, inverse, c);
        return;
    }
    EACH_PIECE(d, first, s.tokens, step)
    kernels_of(d)->rope(of_tokens(s, min_i64(step, s.tokens - first)), tensor_to(qkv, first * row, c),
                        positions + first, cos_sin, inverse, c);
}

static void queries_scale(Device *d, AttentionShape s, void *qkv, const int32_t *positions,
                          const float *factors, Dtype c) {
    int64_t row = qkv_row(s), n = s.heads * (int64_t)s.head_dim, step = rows_for(n);
    EACH_PIECE(d, first, s.tokens, step)
    for (int64_t t = first; t < min_i64(s.tokens, first + step); t++) {
        void *q = tensor_to(qkv, t * row, c);
        kernels_of(d)->embed_row(n, q, factors[positions[t]], false, q, c);
    }
}

static void activation_forward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                               const void *x, void *act, Dtype c) {
    int64_t step = rows_for(inter), wide = gated ? 2 * inter : inter;
    EACH_PIECE(d, first, tokens, step)
    kernels_of(d)->activation_forward(f, gated, min_i64(step, tokens - first), inter,
                                      tensor_at(x, first * wide, c), tensor_to(act, first * inter, c), c);
}

/* act may be the memory of dact here too: kernels read an element before they write it. */
static void activation_backward(Device *d, Activation f, bool gated, int64_t tokens, int64_t inter,
                                const void *x, const void *dact, void *dx, void *act, Dtype c) {
    int64_t step = rows_for(inter), wide = gated ? 2 * inter : inter;
    EACH_PIECE(d, first, tokens, step) {
        int64_t at = first * inter;
        kernels_of(d)->activation_backward(f, gated, min_i64(step, tokens - first), inter,
                                           tensor_at(x, first * wide, c), tensor_at(dact, at, c),
                                           tensor_to(dx, first * wide, c), tensor_to(act, at, c), c);
    }
}

static void softcap(Device *d, int64_t n, float cap, void *x, Dtype c) {
    EACH_PIECE(d, first, n, GRAIN)
    kernels_of(d)->softcap(min_i64(GRAIN, n - first), cap, tensor_to(x, first, c), c);
}

static void scale(Device *d, int64_t rows, int64_t n, float factor, const void *in, int64_t ldi, void *out,
                  Dtype c) {
    int64_t step = rows_for(n);
    EACH_PIECE(d, first, rows, step)
    for (int64_t r = first; r < min_i64(rows, first + step); r++)
        kernels_of(d)->embed_row(n, tensor_at(in, r * ldi, c), factor, false, tensor_to(out, r * n, c), c);
}

static void add(Device *d, int64_t n, const void *a, const void *b, void *out, Dtype c) {
    EACH_PIECE(d, first, n, GRAIN)
    kernels_of(d)->add(min_i64(GRAIN, n - first), tensor_at(a, first, c), tensor_at(b, first, c),
                       tensor_to(out, first, c), c);
}

/* ---- sums of parts ---- */

enum { PARTS_PIECE = 2048 }; /* elements of a sum; the tree keeps one such block for each level */

/* The sum of a range of parts at elements first .. first+n-1. Returns an address in the part itself, or in
 * `room`, which has a block for this level and each below. */
static const float *tree_sum(const Device *d, int64_t first, int64_t n, int parts, const float *const *in,
                             float *room) {
    if (parts == 1) return in[0] + first;
    int half = tree_half(parts);
    const float *a = tree_sum(d, first, n, half, in, room);
    const float *b = tree_sum(d, first, n, parts - half, in + half, room + PARTS_PIECE);
    kernels_of(d)->add(n, a, b, room, DTYPE_F32);
    return room;
}

/* Piece by piece, so that the sums stored at each level of the tree stay in the L1 cache, and each part is
 * read from memory once, whatever the number of parts. The last sum goes straight to out, which may be a
 * part, because that part's piece has been read by then. */
static void sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    EACH_PIECE(d, first, n, PARTS_PIECE) {
        float room[32 * PARTS_PIECE]; /* as many levels as an int has bits */
        int64_t count = min_i64(PARTS_PIECE, n - first);
        int half = parts > 1 ? tree_half(parts) : 1;
        const float *a = tree_sum(d, first, count, half, in, room);
        if (parts == 1) {
            memmove(out + first, a, (size_t)count * sizeof *out);
        } else {
            const float *b = tree_sum(d, first, count, parts - half, in + half, room + PARTS_PIECE);
            kernels_of(d)->add(count, a, b, out + first, DTYPE_F32);
        }
    }
}

/* Integers add in any order, so this is one chain instead of a tree, wrapping around. */
static void sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    EACH_PIECE(d, first, n, PARTS_PIECE) {
        uint64_t sum[PARTS_PIECE];
        size_t count = (size_t)min_i64(PARTS_PIECE, n - first);
        memcpy(sum, in[0] + first, count * sizeof *sum);
        for (int p = 1; p < parts; p++)
            for (size_t i = 0; i < count; i++) sum[i] += (uint64_t)in[p][first + (int64_t)i];
        memcpy(out + first, sum, count * sizeof *sum);
    }
}

/* ---- loss ---- */

/* The record of the split that begins at local logit `first`. The target is relative to local logit 0; it
 * lies outside of [0, length) if another split has it. */
static LossRecord record_of(const Device *d, int64_t vocab, const void *row, Dtype type, int64_t target,
                            const VocabSplit *l, int64_t first) {
    int64_t split_size = l->split_size ? l->split_size : vocab;
    return kernels_of(d)->loss_record(min_i64(split_size, vocab - first), tensor_at(row, first, type), type,
                                      target - l->first - first);
}

/* One row per piece, since a vocabulary is usually longer than a grain. */
static void loss_records(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                         const int32_t *targets, VocabSplit splits, LossRecord *records) {
    int64_t split_size = splits.split_size ? splits.split_size : vocab;
    EACH_PIECE(d, r, rows, 1) {
        for (int64_t first = 0; first < vocab; first += split_size)
            records[first / split_size * rows + r] = record_of(
                d, vocab, tensor_at(logits, r * vocab, logits_type), logits_type, targets[r], &splits, first);
    }
}

/* If all logits are local, a row's records are computed just before its gradient, so the row is read from
 * memory once. */
static void cross_entropy(Device *d, int64_t rows, int64_t vocab, const void *logits, Dtype logits_type,
                          const int32_t *targets, VocabSplit splits, const float *scale, float cap, float z,
                          float *loss, float *z_loss, void *dlogits, Dtype grad_type) {
    int64_t split_size = splits.split_size ? splits.split_size : vocab, step = splits.records ? rows : 1;
    int count = splits.records ? splits.count : (int)splits_of(vocab, split_size);
    float factor = scale ? *scale : 0;
    CHECK(count <= SPLITS_MAX);
    EACH_PIECE(d, r, rows, 1) {
        LossRecord own[SPLITS_MAX];
        const LossRecord *records = splits.records ? splits.records + r : own;
        const void *x = tensor_at(logits, r * vocab, logits_type);
        void *dx = dlogits ? tensor_to(dlogits, r * vocab, grad_type) : NULL;
        loss[r] = 0;
        if (z_loss) z_loss[r] = 0;
        if (targets[r] < 0) {
            if (dx) memset(dx, 0, (size_t)vocab * dtype_bytes(grad_type));
            continue;
        }
        for (int i = 0; !splits.records && i < count; i++)
            own[i] = record_of(d, vocab, x, logits_type, targets[r], &splits, i * split_size);
        LossRecord row = loss_record_of_splits(records, step, count, targets[r] / split_size);
        RowSum of = {row.max, row.sum};
        double whole = (double)of.max + log(of.sum), share = 1 + 2 * (double)z * whole;
        loss[r] = (float)((double)of.max - (double)row.target + log(of.sum));
        if (z_loss) z_loss[r] = (float)((double)z * whole * whole);
        if (dx)
            kernels_of(d)->loss_gradient(vocab, x, logits_type, targets[r] - splits.first, of, factor, share,
                                         cap, dx, grad_type);
    }
}

/* ---- updates and sums of gradients ---- */

/* The state store of a piece: random bits depend on the element's index in the parameter, so each piece must
 * know where it starts. */
static StateStore from_element(StateStore s, int64_t i) {
    s.first += i;
    return s;
}

/* Elements are independent, so pieces are cut to suit threads. The step's numbers lie in tensor memory and
 * are read when the op runs. */
static void adamw(Device *d, int64_t n, AdamW a, StateStore s, const OptimizerStep *step, float *param,
                  const float *grad, void *m, void *v, uint16_t *copy) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->adamw(min_i64(GRAIN, n - i), a, from_element(s, i), *step, param + i, grad + i,
                         tensor_to(m, i, s.type), tensor_to(v, i, s.type), copy ? copy + i : NULL);
}

/* Without momentum there is no state, and its address stays NULL for every piece. */
static void sgd(Device *d, int64_t n, Sgd o, StateStore s, const OptimizerStep *step, float *param,
                const float *grad, void *momentum, uint16_t *copy) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->sgd(min_i64(GRAIN, n - i), o, from_element(s, i), *step, param + i, grad + i,
                       momentum ? tensor_to(momentum, i, s.type) : NULL, copy ? copy + i : NULL);
}

/* Rows of a matrix inside a larger one are separate runs. */
static void muon_momentum(Device *d, MatrixShape shape, Muon o, StateStore s, const OptimizerStep *step,
                          const float *grad, void *momentum, float *x) {
    int64_t rows = rows_for(shape.cols);
    EACH_PIECE(d, first, shape.rows, rows) {
        for (int64_t r = first; r < min_i64(shape.rows, first + rows); r++)
            kernels_of(d)->muon_momentum(shape.cols, o, from_element(s, r * shape.row), *step,
                                         grad + r * shape.row, tensor_to(momentum, r * shape.row, s.type),
                                         x + r * shape.cols);
    }
}

static void muon_normalise(Device *d, int64_t n, const GradStats *squares, float slack, float *x) {
    float factor = muon_factor(squares, slack);
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->muon_normalise(min_i64(GRAIN, n - i), factor, x + i);
}

/* The thread that computes a row also adds to its diagonal element, afterwards. */
static void newton_schulz(Device *d, int64_t m, float a, float b, float c, const float *gram, float *square) {
    int64_t rows = rows_for(m);
    EACH_PIECE(d, first, m, rows) {
        int64_t count = min_i64(rows, m - first);
        kernels_of(d)->muon_blend(count * m, b, gram + first * m, c, square + first * m);
        for (int64_t r = first; r < first + count; r++) square[r * m + r] += a;
    }
}

static void muon_apply(Device *d, MatrixShape shape, Muon o, const OptimizerStep *step, const float *x,
                       float *param, uint16_t *copy) {
    int64_t rows = rows_for(shape.cols);
    EACH_PIECE(d, first, shape.rows, rows) {
        for (int64_t r = first; r < min_i64(shape.rows, first + rows); r++) {
            int64_t at = r * shape.row;
            kernels_of(d)->muon_apply(shape.cols, o, *step, x + r * shape.cols, param + at,
                                      copy ? copy + at : NULL);
        }
    }
}

static void average(Device *d, int64_t n, const OptimizerStep *step, const float *param, float *mean) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->average(min_i64(GRAIN, n - i), step->average, param + i, mean + i);
}

/* Exact, so threads may merge their statistics in any order. */
static void merge_stats(GradStats *into, const GradStats *from) {
    exact_merge(&into->sum, &from->sum);
    if (from->max > into->max) into->max = from->max;
    if (!into->nonfinite || (from->nonfinite && from->first_nonfinite < into->first_nonfinite))
        into->first_nonfinite = from->first_nonfinite;
    into->nonfinite += from->nonfinite;
}

/* Each thread has its own statistics and merges them when it ends. The sums are exact, so the order in which
 * threads take the lock does not matter. */
static void grad_stats(Device *d, int64_t n, const float *g, double p, const double *unit, GradStats *out) {
    GradStats all = {.first_nonfinite = -1};
#pragma omp parallel num_threads(d->threads) if (n > STATS_PIECE)
    {
        GradStats mine = {.first_nonfinite = -1};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < n; i += STATS_PIECE)
            kernels_of(d)->grad_stats(i, min_i64(STATS_PIECE, n - i), g, p, *unit, &mine);
#pragma omp critical(merge_stats)
        merge_stats(&all, &mine);
    }
    exact_normalise(&all.sum);
    *out = all;
}

/* The first refused element is the smallest index over all pieces, whichever thread finds one first. */
static void fixed_add(Device *d, int64_t n, const float *g, int64_t *acc, bool set, double limit,
                      FixedRefusals *refused) {
    CHECK(limit <= fixed_limit(1));
    FixedRefusals all = {0};
    EACH_PIECE(d, i, n, GRAIN) {
        FixedRefusals piece = {0};
        kernels_of(d)->fixed_add(i, min_i64(GRAIN, n - i), g, acc, set, limit, &piece);
        if (piece.count) {
#pragma omp critical(merge_refusals)
            {
                if (!all.count || piece.first < all.first) all.first = piece.first;
                all.count += piece.count;
            }
        }
    }
    if (refused->count == 0) refused->first = all.first;
    refused->count += all.count;
}

/* Each element rounds by itself, so there is nothing to merge. */
static void fixed_to_float(Device *d, int64_t n, const int64_t *acc, float *out) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->fixed_to_float(min_i64(GRAIN, n - i), acc + i, out + i);
}

static void cast(Device *d, int64_t n, const void *in, Dtype in_type, void *out, Dtype out_type) {
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->cast(min_i64(GRAIN, n - i), tensor_at(in, i, in_type), in_type,
                        tensor_to(out, i, out_type), out_type);
}

/* By bytes, in pieces of 256 KiB: storing is cheaper than arithmetic, so a piece must be longer to be worth a
 * thread. */
static void zero(Device *d, void *p, size_t bytes) {
    enum { STEP = 1 << 18 };
    EACH_PIECE(d, i, (int64_t)bytes, STEP)
    memset((char *)p + i, 0, (size_t)min_i64(STEP, (int64_t)bytes - i));
}

/* A number depends only on its element's index, so pieces may be cut anywhere. */
static void init_normal(Device *d, int64_t n, uint64_t key, uint64_t first, double mean, double std,
                        double lo, double hi, float *out) {
    RngRange range = rng_range(lo, hi);
    EACH_PIECE(d, i, n, GRAIN)
    kernels_of(d)->init_normal(min_i64(GRAIN, n - i), key, first + (uint64_t)i, mean, std, &range, out + i);
}

static void fill(Device *d, int64_t n, float value, float *out) {
    EACH_PIECE(d, i, n, GRAIN) {
        for (int64_t e = i; e < min_i64(n, i + GRAIN); e++) out[e] = value;
    }
}

/* The largest scratch that any one op needs: ops on ON_COMPUTE run one after another and share it. Sums over
 * tokens need PARTS rows of the widest tensor whose bias or norm has a gradient; products and attention
 * report their own needs. */
size_t optimised_scratch_bytes(const Device *d, const DeviceNeeds *needs) {
    AttentionShape s = needs->attention;
    int64_t qkv = max_i64(needs->qkv, (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim);
    size_t widest = (size_t)max_i64(max_i64(needs->hidden, 2 * needs->intermediate), qkv);
    size_t largest = PARTS * widest * sizeof(float);
    size_t product = gemm_scratch_bytes(d->threads, needs->compute, needs->splits),
           attention = optimised_attention_scratch(d, s);
    if (product > largest) largest = product;
    return attention > largest ? attention : largest;
}

/* Slots that are not overridden remain the reference's: loss_sum, whose few numbers need no threads, and the
 * copies between host and tensor memory. Fails as gemm_open does; the caller then closes the device. */
ErrorCode optimised_open(Device *d, const Kernels *kernels, bool primitives, Error *err) {
    Optimised *o = mem_alloc(sizeof *o);
    o->kernels = kernels;
    d->impl = o;
    d->ops.gemm = gemm;
    d->ops.embed_forward = embed_forward;
    d->ops.embed_backward = embed_backward;
    d->ops.norm_forward = norm_forward;
    d->ops.norm_backward = norm_backward;
    d->ops.qk_norm_forward = qk_norm_forward;
    d->ops.qk_norm_backward = qk_norm_backward;
    d->ops.qk_norm_sums = qk_norm_sums;
    d->ops.gated_norm_forward = gated_norm_forward;
    d->ops.gated_norm_backward = gated_norm_backward;
    d->ops.rope = rope;
    d->ops.queries_scale = queries_scale;
    d->ops.bias_forward = bias_forward;
    d->ops.bias_backward = bias_backward;
    d->ops.activation_forward = activation_forward;
    d->ops.activation_backward = activation_backward;
    d->ops.add = add;
    d->ops.scale = scale;
    d->ops.softcap = softcap;
    d->ops.sum_parts = sum_parts;
    d->ops.copy_rows = copy_rows;
    d->ops.sum_parts_i64 = sum_parts_i64;
    d->ops.loss_records = loss_records;
    d->ops.cross_entropy = cross_entropy;
    d->ops.adamw = adamw;
    d->ops.sgd = sgd;
    d->ops.muon_momentum = muon_momentum;
    d->ops.muon_normalise = muon_normalise;
    d->ops.newton_schulz = newton_schulz;
    d->ops.muon_apply = muon_apply;
    d->ops.average = average;
    d->ops.grad_stats = grad_stats;
    d->ops.fixed_add = fixed_add;
    d->ops.fixed_to_float = fixed_to_float;
    d->ops.cast = cast;
    d->ops.zero = zero;
    d->ops.init_normal = init_normal;
    d->ops.fill = fill;
    d->ops.scratch_bytes = optimised_scratch_bytes;
    optimised_fill_attention(&d->ops);
    optimised_fill_scans(&d->ops);
    optimised_fill_experts(&d->ops);
    optimised_fill_latent(&d->ops);
    return gemm_open(&o->gemm, kernels, primitives, d->threads, err);
}

/* Also called for a device that was opened only half way, and for the reference, which has nothing to
 * close. */
void optimised_close(Device *d) {
    if (!d->impl) return;
    gemm_close(optimised_of(d)->gemm);
    free(d->impl);
    d->impl = NULL;
}
