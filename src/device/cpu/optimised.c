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

static void gemm(Device *d, const GemmArgs *o) { gemm_run(optimised_of(d)->gemm, d, o); }

/* A copy, limited by memory bandwidth, of which several threads get more than one. */
static void embed_forward(Device *d, const EmbedForwardArgs *o) {
    int64_t step = rows_for(o->hidden);
    EACH_PIECE(d, first, o->tokens, step) {
        for (int64_t t = first; t < min_i64(o->tokens, first + step); t++) {
            int64_t row = embed_row_of(o->rows, o->ids[t]);
            void *to = tensor_to(o->out, t * o->hidden, o->c);
            if (row >= 0)
                kernels_of(d)->embed_row(o->hidden, tensor_at(o->table, row * o->hidden, o->c), o->scale,
                                         o->add, to, o->c);
            else if (!o->add)
                for (int64_t i = 0; i < o->hidden; i++) tensor_set(to, i, o->c, -0.0f);
        }
    }
}

static void copy_rows(Device *d, const CopyRowsArgs *o) {
    int64_t step = rows_for((int64_t)(o->bytes / sizeof(float)) + 1);
    EACH_PIECE(d, first, o->rows, step) {
        for (int64_t i = first; i < min_i64(o->rows, first + step); i++)
            memcpy((char *)o->to + (size_t)i * o->to_stride,
                   (const char *)o->from + (size_t)i * o->from_stride, o->bytes);
    }
}

/* Pieces are columns, so each row of the table is accumulated in the order of the tokens. */
static void embed_backward(Device *d, const EmbedBackwardArgs *o) {
    enum { COLUMNS = 128 };
    EACH_PIECE(d, first, o->hidden, COLUMNS)
    kernels_of(d)->embed_backward(o, first, min_i64(COLUMNS, o->hidden - first));
}

/* A row's sums are computed in one kernel call, so rows may be cut anywhere. */
static void norm_forward(Device *d, const NormForwardArgs *o) {
    int64_t step = rows_for(o->hidden);
    EACH_PIECE(d, first, o->tokens, step) {
        int64_t at = first * o->hidden;
        NormForwardArgs piece = *o;
        piece.tokens = min_i64(step, o->tokens - first);
        piece.a = tensor_at(o->a, at, o->c);
        piece.b = o->b ? tensor_at(o->b, at, o->c) : NULL;
        piece.sum = o->sum ? tensor_to(o->sum, at, o->c) : NULL;
        piece.y = o->y ? tensor_to(o->y, at, o->c) : NULL;
        piece.rstd = o->rstd + first;
        kernels_of(d)->norm_forward(&piece);
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

/* Sums of `count` blocks from `first` on: n columns of rows that lie `row` apart. */
typedef struct BlockSums {
    int64_t first, count, row, n;
    const float *at;
} BlockSums;

/* Adds the sums of blocks to the rows of their splits, [splits][n], in ascending order. Threads divide the
 * columns, not the blocks, so each element of a sum belongs to one thread. */
static void add_blocks(Device *d, const TokenBlocks *b, BlockSums s, float *sum) {
    enum { COLUMNS = 256 };
    EACH_PIECE(d, at, s.n, COLUMNS) {
        for (int64_t p = 0; p < s.count; p++) {
            float *to = sum + (s.first + p) / b->each * s.n + at;
            kernels_of(d)->add(min_i64(COLUMNS, s.n - at), to, s.at + p * s.row + at, to, DTYPE_F32);
        }
    }
}

/* Scratch for the sums of PARTS blocks. */
static float *block_scratch(Device *d, int64_t n) {
    CHECK(d->scratch_size >= (size_t)(PARTS * n) * sizeof(float));
    return (float *)(void *)d->scratch;
}

/* PARTS blocks at a time, i.e. 2048 tokens: their sums are stored in scratch, whose size therefore does not
 * depend on the microbatch, and are added before the next ones are computed. Without dw there are neither
 * sums nor scratch. */
static void norm_backward(Device *d, const NormBackwardArgs *o) {
    TokenBlocks b = token_blocks(o->tokens, o->split_size);
    float *scratch = o->dw ? block_scratch(d, o->hidden) : NULL;
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            int64_t start = block_start(&b, first + p), at = start * o->hidden;
            NormBackwardArgs block = *o;
            block.tokens = block_rows(&b, first + p);
            block.x = tensor_at(o->x, at, o->c), block.rstd = o->rstd + start;
            block.dy = tensor_at(o->dy, at, o->c), block.dx = tensor_to(o->dx, at, o->c);
            block.dw = scratch ? scratch + p * o->hidden : NULL;
            if (scratch) memset(block.dw, 0, (size_t)o->hidden * sizeof *block.dw);
            kernels_of(d)->norm_backward(&block);
        }
        if (o->dw) add_blocks(d, &b, (BlockSums){first, count, o->hidden, o->hidden, scratch}, o->dw);
    }
}

static void gated_norm_forward(Device *d, const GatedNormForwardArgs *o) {
    int64_t step = rows_for(o->s.width);
    EACH_PIECE(d, first, o->s.tokens, step) {
        GatedNormForwardArgs piece = *o;
        piece.s.tokens = min_i64(step, o->s.tokens - first);
        piece.x = tensor_at(o->x, first * o->s.width, o->c);
        piece.gate = tensor_at(o->gate, first * o->s.gate_row, o->c);
        piece.y = tensor_to(o->y, first * o->s.width, o->c);
        kernels_of(d)->gated_norm_forward(&piece);
    }
}

/* As norm_backward, with all tokens in one split. */
static void gated_norm_backward(Device *d, const GatedNormBackwardArgs *o) {
    TokenBlocks b = token_blocks(o->s.tokens, o->s.tokens);
    float *scratch = block_scratch(d, o->s.width);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            int64_t start = block_start(&b, first + p), at = start * o->s.width,
                    gates = start * o->s.gate_row;
            GatedNormBackwardArgs block = *o;
            block.s.tokens = block_rows(&b, first + p);
            block.x = tensor_at(o->x, at, o->c), block.gate = tensor_at(o->gate, gates, o->c);
            block.dy = tensor_at(o->dy, at, o->c), block.dx = tensor_to(o->dx, at, o->c);
            block.dgate = tensor_to(o->dgate, gates, o->c);
            block.dw = scratch + p * o->s.width;
            memset(block.dw, 0, (size_t)o->s.width * sizeof *block.dw);
            kernels_of(d)->gated_norm_backward(&block);
        }
        add_blocks(d, &b, (BlockSums){first, count, o->s.width, o->s.width, scratch}, o->dw);
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

static void qk_norm_forward(Device *d, const QkNormForwardArgs *o) {
    int64_t row = qkv_row(o->s), step = rows_for(row);
    EACH_PIECE(d, first, o->s.tokens, step) {
        QkNormForwardArgs piece = *o;
        piece.s.tokens = min_i64(step, o->s.tokens - first);
        piece.rows = rows_from(o->rows, first);
        piece.raw = tensor_at(o->raw, first * row, o->c), piece.out = tensor_to(o->out, first * row, o->c);
        kernels_of(d)->qk_norm_forward(&piece);
    }
}

/* The op on `tokens` tokens from `first` on. */
static QkNormBackwardArgs qk_norm_part(const QkNormBackwardArgs *o, int64_t first, int64_t tokens) {
    int64_t at = first * qkv_row(o->s);
    QkNormBackwardArgs part = *o;
    part.s.tokens = tokens;
    part.rows = rows_from(o->rows, first);
    part.raw = tensor_at(o->raw, at, o->c), part.dqkv = tensor_to(o->dqkv, at, o->c);
    return part;
}

/* Without weights nothing is summed: rows are independent. */
static void qk_norm_plain_backward(Device *d, const QkNormBackwardArgs *o) {
    int64_t step = rows_for(qkv_row(o->s));
    EACH_PIECE(d, first, o->s.tokens, step) {
        QkNormBackwardArgs piece = qk_norm_part(o, first, min_i64(step, o->s.tokens - first));
        kernels_of(d)->qk_norm_backward(&piece);
    }
}

/* A block's sums for both weights are stored together: those of wq in all splits, then those of wk. */
static void qk_norm_backward(Device *d, const QkNormBackwardArgs *o) {
    TokenBlocks b = token_blocks(o->s.tokens, o->s.tokens);
    int64_t nq = (o->rows.flat ? o->s.heads : 1) * (int64_t)o->s.head_dim,
            nk = (o->rows.flat ? o->s.kv_heads : 1) * (int64_t)o->s.head_dim, both = o->splits * (nq + nk);
    if (!o->wq) {
        qk_norm_plain_backward(d, o);
        return;
    }
    float *scratch = block_scratch(d, both);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            QkNormBackwardArgs block = qk_norm_part(o, block_start(&b, first + p), block_rows(&b, first + p));
            block.dwq = scratch + p * both, block.dwk = block.dwq + o->splits * nq;
            memset(block.dwq, 0, (size_t)both * sizeof *block.dwq);
            kernels_of(d)->qk_norm_backward(&block);
        }
        add_blocks(d, &b, (BlockSums){first, count, both, o->splits * nq, scratch}, o->dwq);
        add_blocks(d, &b, (BlockSums){first, count, both, o->splits * nk, scratch + o->splits * nq}, o->dwk);
    }
}

static void qk_norm_sums(Device *d, const QkNormSumsArgs *o) {
    int64_t row = qkv_row(o->s), step = rows_for(row);
    EACH_PIECE(d, first, o->s.tokens, step) {
        QkNormSumsArgs piece = *o;
        piece.s.tokens = min_i64(step, o->s.tokens - first);
        piece.raw = tensor_at(o->raw, first * row, o->c);
        piece.dqkv = o->dqkv ? tensor_at(o->dqkv, first * row, o->c) : NULL;
        piece.sums = o->sums + 2 * first;
        kernels_of(d)->qk_norm_sums(&piece, o->s.tokens);
    }
}

/* Only the sums: a bias passes its gradient through unchanged. */
static void bias_backward(Device *d, const BiasBackwardArgs *o) {
    TokenBlocks b = token_blocks(o->tokens, o->split_size);
    float *scratch = block_scratch(d, o->n);
    for (int64_t first = 0; first < b.count; first += PARTS) {
        int64_t count = min_i64(PARTS, b.count - first);
        EACH_PIECE(d, p, count, 1) {
            memset(scratch + p * o->n, 0, (size_t)o->n * sizeof *scratch);
            kernels_of(d)->bias_backward(block_rows(&b, first + p), o->n,
                                         tensor_at(o->dy, block_start(&b, first + p) * o->n, o->c),
                                         scratch + p * o->n, o->c);
        }
        add_blocks(d, &b, (BlockSums){first, count, o->n, o->n, scratch}, o->db);
    }
}

/* ---- rows and elements ---- */

static void bias_forward(Device *d, const BiasForwardArgs *o) {
    int64_t step = rows_for(o->n);
    EACH_PIECE(d, first, o->tokens, step)
    kernels_of(d)->bias_forward(min_i64(step, o->tokens - first), o->n, tensor_to(o->y, first * o->n, o->c),
                                o->bias, o->c);
}

static void rope_neighbours(Device *d, const RopeArgs *o) {
    int64_t row = qkv_row(o->s), heads = o->s.heads + o->s.kv_heads, n = rotary_dim(o->s);
    EACH_PIECE(d, first, o->s.tokens, rows_for(row))
    for (int64_t t = first; t < min_i64(o->s.tokens, first + rows_for(row)); t++) {
        const Rotation by = {n, o->cos_sin + o->positions[t] * n, o->inverse ? -1 : 1};
        for (int64_t head = 0; head < heads; head++) {
            void *x = tensor_to(o->qkv, t * row + head * o->s.head_dim, o->c);
            rotate_neighbours(d, &by, x, x, o->c);
        }
    }
}

/* Tokens are independent, and so are heads: a slice of either has the same bits as in the full tensor. */
static void rope(Device *d, const RopeArgs *o) {
    int64_t row = qkv_row(o->s), step = rows_for(row);
    if (o->s.neighbours) {
        rope_neighbours(d, o);
        return;
    }
    EACH_PIECE(d, first, o->s.tokens, step)
    kernels_of(d)->rope(of_tokens(o->s, min_i64(step, o->s.tokens - first)),
                        tensor_to(o->qkv, first * row, o->c), o->positions + first, o->cos_sin, o->inverse,
                        o->c);
}

static void queries_scale(Device *d, const QueriesScaleArgs *o) {
    int64_t row = qkv_row(o->s), n = o->s.heads * (int64_t)o->s.head_dim, step = rows_for(n);
    EACH_PIECE(d, first, o->s.tokens, step)
    for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++) {
        void *q = tensor_to(o->qkv, t * row, o->c);
        kernels_of(d)->embed_row(n, q, o->factors[o->positions[t]], false, q, o->c);
    }
}

static void activation_forward(Device *d, const ActivationForwardArgs *o) {
    int64_t step = rows_for(o->inter), wide = o->gated ? 2 * o->inter : o->inter;
    EACH_PIECE(d, first, o->tokens, step) {
        ActivationForwardArgs piece = *o;
        piece.tokens = min_i64(step, o->tokens - first);
        piece.x = tensor_at(o->x, first * wide, o->c);
        piece.act = tensor_to(o->act, first * o->inter, o->c);
        kernels_of(d)->activation_forward(&piece);
    }
}

/* act may be the memory of dact here too: kernels read an element before they write it. */
static void activation_backward(Device *d, const ActivationBackwardArgs *o) {
    int64_t step = rows_for(o->inter), wide = o->gated ? 2 * o->inter : o->inter;
    EACH_PIECE(d, first, o->tokens, step) {
        int64_t at = first * o->inter;
        ActivationBackwardArgs piece = *o;
        piece.tokens = min_i64(step, o->tokens - first);
        piece.x = tensor_at(o->x, first * wide, o->c), piece.dx = tensor_to(o->dx, first * wide, o->c);
        piece.dact = tensor_at(o->dact, at, o->c), piece.act = tensor_to(o->act, at, o->c);
        kernels_of(d)->activation_backward(&piece);
    }
}

static void softcap(Device *d, const SoftcapArgs *o) {
    EACH_PIECE(d, first, o->n, GRAIN)
    kernels_of(d)->softcap(min_i64(GRAIN, o->n - first), o->cap, tensor_to(o->x, first, o->c), o->c);
}

static void scale(Device *d, const ScaleArgs *o) {
    int64_t step = rows_for(o->n);
    EACH_PIECE(d, first, o->rows, step)
    for (int64_t r = first; r < min_i64(o->rows, first + step); r++)
        kernels_of(d)->embed_row(o->n, tensor_at(o->in, r * o->ldi, o->c), o->factor, false,
                                 tensor_to(o->out, r * o->n, o->c), o->c);
}

static void add(Device *d, const AddArgs *o) {
    EACH_PIECE(d, first, o->n, GRAIN)
    kernels_of(d)->add(min_i64(GRAIN, o->n - first), tensor_at(o->a, first, o->c),
                       tensor_at(o->b, first, o->c), tensor_to(o->out, first, o->c), o->c);
}

/* ---- sums of parts ---- */

enum { PARTIALS_PIECE = 2048 }; /* elements of a sum; the tree keeps one such block for each level */

/* The sum of a range of parts at elements first .. first+n-1. Returns an address in the part itself, or in
 * `scratch`, which has a block for this level and each below. */
static const float *tree_sum(const Device *d, int64_t first, int64_t n, int parts, const float *const *in,
                             float *scratch) {
    if (parts == 1) return in[0] + first;
    int half = tree_half(parts);
    const float *a = tree_sum(d, first, n, half, in, scratch);
    const float *b = tree_sum(d, first, n, parts - half, in + half, scratch + PARTIALS_PIECE);
    kernels_of(d)->add(n, a, b, scratch, DTYPE_F32);
    return scratch;
}

/* Piece by piece, so that the sums stored at each level of the tree stay in the L1 cache, and each partial
 * sum is read from memory once, whatever their number. The last sum goes straight to out, which may be one
 * of them, because its piece has been read by then. */
static void sum_partials(Device *d, const SumPartialsArgs *o) {
    EACH_PIECE(d, first, o->n, PARTIALS_PIECE) {
        float scratch[32 * PARTIALS_PIECE]; /* as many levels as an int has bits */
        int64_t count = min_i64(PARTIALS_PIECE, o->n - first);
        int half = o->partials > 1 ? tree_half(o->partials) : 1;
        const float *a = tree_sum(d, first, count, half, o->in, scratch);
        if (o->partials == 1) {
            memmove(o->out + first, a, (size_t)count * sizeof *o->out);
        } else {
            const float *b =
                tree_sum(d, first, count, o->partials - half, o->in + half, scratch + PARTIALS_PIECE);
            kernels_of(d)->add(count, a, b, o->out + first, DTYPE_F32);
        }
    }
}

/* Integers add in any order, so this is one chain instead of a tree, wrapping around. */
static void sum_partials_i64(Device *d, const SumPartialsI64Args *o) {
    EACH_PIECE(d, first, o->n, PARTIALS_PIECE) {
        uint64_t sum[PARTIALS_PIECE];
        size_t count = (size_t)min_i64(PARTIALS_PIECE, o->n - first);
        memcpy(sum, o->in[0] + first, count * sizeof *sum);
        for (int p = 1; p < o->partials; p++)
            for (size_t i = 0; i < count; i++) sum[i] += (uint64_t)o->in[p][first + (int64_t)i];
        memcpy(o->out + first, sum, count * sizeof *sum);
    }
}

/* ---- loss ---- */

static int64_t split_size_of(const LossRecordsArgs *o) {
    return o->splits.split_size ? o->splits.split_size : o->vocab;
}

/* The record of the split that begins at local logit `first`. The target is relative to local logit 0; it
 * lies outside of [0, length) if another split has it. */
static LossRecord record_of(const Device *d, const LossRecordsArgs *o, int64_t row, int64_t first) {
    int64_t count = min_i64(split_size_of(o), o->vocab - first), at = row * o->vocab + first;
    return kernels_of(d)->loss_record(count, tensor_at(o->logits, at, o->logits_type), o->logits_type,
                                      o->targets[row] - o->splits.first - first);
}

/* One row per piece, since a vocabulary is usually longer than a grain. */
static void loss_records(Device *d, const LossRecordsArgs *o) {
    EACH_PIECE(d, r, o->rows, 1) {
        for (int64_t first = 0; first < o->vocab; first += split_size_of(o))
            o->records[first / split_size_of(o) * o->rows + r] = record_of(d, o, r, first);
    }
}

/* If all logits are local, a row's records are computed just before its gradient, so the row is read from
 * memory once. */
static void cross_entropy(Device *d, const CrossEntropyArgs *o) {
    const LossRecordsArgs local = {o->rows, o->vocab, o->logits, o->logits_type, o->targets, o->splits, NULL};
    int64_t split_size = split_size_of(&local), step = o->splits.records ? o->rows : 1;
    int count = o->splits.records ? o->splits.count : (int)splits_of(o->vocab, split_size);
    CHECK(count <= SPLITS_MAX);
    EACH_PIECE(d, r, o->rows, 1) {
        LossRecord own[SPLITS_MAX];
        const LossRecord *records = o->splits.records ? o->splits.records + r : own;
        void *dx = o->dlogits ? tensor_to(o->dlogits, r * o->vocab, o->grad_type) : NULL;
        o->loss[r] = 0;
        if (o->z_loss) o->z_loss[r] = 0;
        if (o->targets[r] < 0) {
            if (dx) memset(dx, 0, (size_t)o->vocab * dtype_bytes(o->grad_type));
            continue;
        }
        for (int i = 0; !o->splits.records && i < count; i++)
            own[i] = record_of(d, &local, r, i * split_size);
        LossRecord row = loss_record_of_splits(records, step, count, o->targets[r] / split_size);
        RowSum of = {row.max, row.sum};
        double whole = (double)of.max + log(of.sum), share = 1 + 2 * (double)o->z * whole;
        o->loss[r] = (float)((double)of.max - (double)row.target + log(of.sum));
        if (o->z_loss) o->z_loss[r] = (float)((double)o->z * whole * whole);
        if (dx) kernels_of(d)->loss_gradient(o, r, of, share);
    }
}

/* ---- updates and sums of gradients ---- */

/* Elements are independent, so pieces are cut to suit threads. The step's numbers lie in tensor memory and
 * are read when the op runs. Random bits depend on the element's index in the parameter (s.first), so each
 * piece must know where it starts. */
static void adamw(Device *d, const AdamWArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN) {
        AdamWArgs piece = *o;
        piece.n = min_i64(GRAIN, o->n - i), piece.s.first += i;
        piece.param += i, piece.grad += i;
        piece.m = tensor_to(o->m, i, o->s.type), piece.v = tensor_to(o->v, i, o->s.type);
        piece.copy = o->copy ? o->copy + i : NULL;
        kernels_of(d)->adamw(&piece);
    }
}

/* Without momentum there is no state, and its address stays NULL for every piece. */
static void sgd(Device *d, const SgdArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN) {
        SgdArgs piece = *o;
        piece.n = min_i64(GRAIN, o->n - i), piece.s.first += i;
        piece.param += i, piece.grad += i;
        piece.momentum = o->momentum ? tensor_to(o->momentum, i, o->s.type) : NULL;
        piece.copy = o->copy ? o->copy + i : NULL;
        kernels_of(d)->sgd(&piece);
    }
}

/* Rows of a matrix inside a larger one are separate runs. */
static void muon_momentum(Device *d, const MuonMomentumArgs *o) {
    int64_t rows = rows_for(o->shape.cols);
    EACH_PIECE(d, first, o->shape.rows, rows) {
        for (int64_t r = first; r < min_i64(o->shape.rows, first + rows); r++) {
            int64_t at = r * o->shape.row;
            MuonMomentumArgs row = *o;
            row.s.first += at;
            row.grad += at, row.momentum = tensor_to(o->momentum, at, o->s.type);
            row.x += r * o->shape.cols;
            kernels_of(d)->muon_momentum(&row, o->shape.cols);
        }
    }
}

static void muon_normalise(Device *d, const MuonNormaliseArgs *o) {
    float factor = muon_factor(o->squares, o->slack);
    EACH_PIECE(d, i, o->n, GRAIN)
    kernels_of(d)->muon_normalise(min_i64(GRAIN, o->n - i), factor, o->x + i);
}

/* The thread that computes a row also adds to its diagonal element, afterwards. */
static void newton_schulz(Device *d, const NewtonSchulzArgs *o) {
    int64_t rows = rows_for(o->m);
    EACH_PIECE(d, first, o->m, rows) {
        int64_t count = min_i64(rows, o->m - first);
        kernels_of(d)->muon_blend(count * o->m, o->b, o->gram + first * o->m, o->c, o->square + first * o->m);
        for (int64_t r = first; r < first + count; r++) o->square[r * o->m + r] += o->a;
    }
}

static void muon_apply(Device *d, const MuonApplyArgs *o) {
    int64_t rows = rows_for(o->shape.cols);
    EACH_PIECE(d, first, o->shape.rows, rows) {
        for (int64_t r = first; r < min_i64(o->shape.rows, first + rows); r++) {
            int64_t at = r * o->shape.row;
            kernels_of(d)->muon_apply(o->shape.cols, o->constants, *o->step, o->x + r * o->shape.cols,
                                      o->param + at, o->copy ? o->copy + at : NULL);
        }
    }
}

static void average(Device *d, const AverageArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN)
    kernels_of(d)->average(min_i64(GRAIN, o->n - i), o->step->average, o->param + i, o->mean + i);
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
static void grad_stats(Device *d, const GradStatsArgs *o) {
    GradStats all = {.first_nonfinite = -1};
#pragma omp parallel num_threads(d->threads) if (o->n > STATS_PIECE)
    {
        GradStats mine = {.first_nonfinite = -1};
#pragma omp for schedule(static) nowait
        for (int64_t i = 0; i < o->n; i += STATS_PIECE)
            kernels_of(d)->grad_stats(i, min_i64(STATS_PIECE, o->n - i), o->g, o->p, *o->unit, &mine);
#pragma omp critical(merge_stats)
        merge_stats(&all, &mine);
    }
    exact_normalise(&all.sum);
    *o->out = all;
}

/* The first refused element is the smallest index over all pieces, whichever thread finds one first. */
static void fixed_add(Device *d, const FixedAddArgs *o) {
    CHECK(o->limit <= fixed_limit(1));
    FixedRefusals all = {0};
    EACH_PIECE(d, i, o->n, GRAIN) {
        FixedRefusals piece = {0};
        kernels_of(d)->fixed_add(o, i, min_i64(GRAIN, o->n - i), &piece);
        if (piece.count) {
#pragma omp critical(merge_refusals)
            {
                if (!all.count || piece.first < all.first) all.first = piece.first;
                all.count += piece.count;
            }
        }
    }
    if (o->refused->count == 0) o->refused->first = all.first;
    o->refused->count += all.count;
}

/* Each element rounds by itself, so there is nothing to merge. */
static void fixed_to_float(Device *d, const FixedToFloatArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN)
    kernels_of(d)->fixed_to_float(min_i64(GRAIN, o->n - i), o->acc + i, o->out + i);
}

static void count_nonfinite(Device *d, const CountNonfiniteArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN) {
        int64_t found =
            kernels_of(d)->count_nonfinite(min_i64(GRAIN, o->n - i), tensor_at(o->in, i, o->type), o->type);
        if (found) {
#pragma omp atomic
            *o->count += found;
        }
    }
}

static void cast(Device *d, const CastArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN)
    kernels_of(d)->cast(min_i64(GRAIN, o->n - i), tensor_at(o->in, i, o->in_type), o->in_type,
                        tensor_to(o->out, i, o->out_type), o->out_type);
}

/* By bytes, in pieces of 256 KiB: storing is cheaper than arithmetic, so a piece must be longer to be worth a
 * thread. */
static void zero(Device *d, const ZeroArgs *o) {
    enum { STEP = 1 << 18 };
    EACH_PIECE(d, i, (int64_t)o->bytes, STEP)
    memset((char *)o->p + i, 0, (size_t)min_i64(STEP, (int64_t)o->bytes - i));
}

/* A number depends only on its element's index, so pieces may be cut anywhere. */
static void init_normal(Device *d, const InitNormalArgs *o) {
    RngRange range = rng_range(o->lo, o->hi);
    EACH_PIECE(d, i, o->n, GRAIN) {
        InitNormalArgs piece = *o;
        piece.n = min_i64(GRAIN, o->n - i), piece.first += (uint64_t)i, piece.out += i;
        kernels_of(d)->init_normal(&piece, &range);
    }
}

static void fill(Device *d, const FillArgs *o) {
    EACH_PIECE(d, i, o->n, GRAIN) {
        for (int64_t e = i; e < min_i64(o->n, i + GRAIN); e++) o->out[e] = o->value;
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
    size_t product = gemm_scratch_bytes(d->threads, needs->compute, needs->splits, needs->sources),
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
    d->ops->gemm = gemm;
    d->ops->embed_forward = embed_forward;
    d->ops->embed_backward = embed_backward;
    d->ops->norm_forward = norm_forward;
    d->ops->norm_backward = norm_backward;
    d->ops->qk_norm_forward = qk_norm_forward;
    d->ops->qk_norm_backward = qk_norm_backward;
    d->ops->qk_norm_sums = qk_norm_sums;
    d->ops->gated_norm_forward = gated_norm_forward;
    d->ops->gated_norm_backward = gated_norm_backward;
    d->ops->rope = rope;
    d->ops->queries_scale = queries_scale;
    d->ops->bias_forward = bias_forward;
    d->ops->bias_backward = bias_backward;
    d->ops->activation_forward = activation_forward;
    d->ops->activation_backward = activation_backward;
    d->ops->add = add;
    d->ops->scale = scale;
    d->ops->softcap = softcap;
    d->ops->sum_partials = sum_partials;
    d->ops->copy_rows = copy_rows;
    d->ops->sum_partials_i64 = sum_partials_i64;
    d->ops->loss_records = loss_records;
    d->ops->cross_entropy = cross_entropy;
    d->ops->adamw = adamw;
    d->ops->sgd = sgd;
    d->ops->muon_momentum = muon_momentum;
    d->ops->muon_normalise = muon_normalise;
    d->ops->newton_schulz = newton_schulz;
    d->ops->muon_apply = muon_apply;
    d->ops->average = average;
    d->ops->grad_stats = grad_stats;
    d->ops->fixed_add = fixed_add;
    d->ops->fixed_to_float = fixed_to_float;
    d->ops->count_nonfinite = count_nonfinite;
    d->ops->cast = cast;
    d->ops->zero = zero;
    d->ops->init_normal = init_normal;
    d->ops->fill = fill;
    d->runtime.scratch_bytes = optimised_scratch_bytes;
    optimised_fill_attention(d->ops);
    optimised_fill_scans(d->ops);
    optimised_fill_experts(d->ops);
    optimised_fill_latent(d->ops);
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
