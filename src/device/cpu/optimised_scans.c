/* Convolutions and recurrences on threads. Channels are independent, and each goes through its tokens in one
 * order. So pieces are channels, and the assignment to threads does not affect results. Ops without a chain
 * over tokens are cut by rows. */
#include "device/cpu/optimised.h"

/* Channels of a piece: as few as let all threads work equally long, in whole vectors. */
static int64_t channels_for(const Device *d, int64_t width) {
    enum { WIDEST = 16 };
    const int64_t at_once = (int64_t)d->threads * SCAN_CHANNELS,
                  pieces = (width + at_once - 1) / at_once * d->threads, step = (width + pieces - 1) / pieces;
    return (step + WIDEST - 1) / WIDEST * WIDEST;
}

static void conv_forward(Device *d, const ConvForwardArgs *o) {
    const int64_t step = channels_for(d, o->s.width);
    EACH_PIECE(d, first, o->s.width, step)
    kernels_of(d)->conv_forward(o, first, min_i64(step, o->s.width - first));
}

static void conv_backward(Device *d, const ConvBackwardArgs *o) {
    const int64_t step = channels_for(d, o->s.width);
    EACH_PIECE(d, first, o->s.width, step)
    kernels_of(d)->conv_backward(o, first, min_i64(step, o->s.width - first));
}

static void scan_forward(Device *d, const ScanForwardArgs *o) {
    const int64_t step = channels_for(d, o->s.width);
    EACH_PIECE(d, first, o->s.width, step)
    kernels_of(d)->scan_forward(o, first, min_i64(step, o->s.width - first));
}

static void scan_gate(Device *d, const ScanGateArgs *o) {
    int64_t step = rows_for(o->s.width), tokens = o->s.tokens;
    EACH_PIECE(d, first, tokens, step) {
        ScanShape piece = o->s;
        piece.tokens = min_i64(step, tokens - first);
        kernels_of(d)->scan_gate(piece, tensor_at(o->gate, first * o->s.gate_row, o->c),
                                 o->h + first * o->s.width, tensor_to(o->out, first * o->s.width, o->c),
                                 o->c);
    }
}

static void scan_backward(Device *d, const ScanBackwardArgs *o) {
    const int64_t step = channels_for(d, o->s.width);
    EACH_PIECE(d, first, o->s.width, step)
    kernels_of(d)->scan_backward(o, first, min_i64(step, o->s.width - first));
}

/* ---- Mamba-2 ---- */

/* First token of the document of token t. */
static int64_t document_of(const MambaRun *r, int64_t t) { return r->first_key ? r->first_key[t] : 0; }

static MambaChunk chunk_between(const MambaRun *r, int64_t first, int64_t end) {
    int64_t document = document_of(r, first);
    bool last = end == r->s.tokens || document_of(r, end) != document;
    if (r->state) return (MambaChunk){first, end - first, 0, r->state, r->state};
    return (MambaChunk){first, end - first, 0, first > document ? mamba_start(r, first) : NULL,
                        last ? NULL : mamba_start(r, end)};
}

/* The chunk that begins at token `first`. */
static MambaChunk chunk_from(const MambaRun *r, int64_t first) {
    int64_t end = first, most = min_i64(r->s.tokens, first + MAMBA_CHUNK), document = document_of(r, first);
    while (end < most && document_of(r, end) == document) end++;
    return chunk_between(r, first, end);
}

/* The chunk that ends before token `end`. */
static MambaChunk chunk_to(const MambaRun *r, int64_t end) {
    int64_t document = document_of(r, end - 1), chunks = (end - 1 - document) / MAMBA_CHUNK;
    return chunk_between(r, document + chunks * MAMBA_CHUNK, end);
}

/* The factors of heads' states in generation, after the states. */
static float *factors_of(const MambaRun *r) {
    return r->state ? r->state + mamba_state_at(&r->s, r->s.heads, 0) : NULL;
}

/* Heads are independent: in forward, a piece is one head, through all tokens. */
static void mamba_forward(Device *d, const MambaForwardArgs *o) {
    MambaRun r = mamba_forward_run(o);
    float *factors = factors_of(&r);
    EACH_PIECE(d, head, o->s.heads, 1) {
        float factor = factors ? factors[head] : 0;
        for (int64_t first = 0; first < o->s.tokens;) {
            MambaChunk k = chunk_from(&r, first);
            factor = kernels_of(d)->mamba_forward(&r, head, &k, factor);
            first += k.count;
        }
        if (factors) factors[head] = factor;
    }
    mamba_profile(d, OP_MAMBA_FORWARD, &o->s);
}

/* Chunks whose rows fit into backward's scratch together, the last one first: threads wait for each other
 * after each step of a batch, which takes longer than the step of a short document. With twice the rows,
 * documents of 1,024 tokens took twice the time: the scratch left the L2 cache. */
typedef struct Batch {
    MambaChunk chunk[MAMBA_CHUNK / MAMBA_BLOCK];
    int64_t chunks, rows;
} Batch;

/* The batch that ends before token `end`. */
static Batch batch_to(const MambaRun *r, int64_t end) {
    Batch b = {.chunks = 0};
    while (end > 0) {
        MambaChunk k = chunk_to(r, end);
        if (b.rows + mamba_whole(k.count) > mamba_scratch_rows(r->s.tokens)) break;
        k.row = b.rows, end = k.first;
        b.rows += mamba_whole(k.count);
        b.chunk[b.chunks++] = k;
    }
    return b;
}

/* Calls a kernel for each block of a batch's tokens, for each group of heads. */
static void each_block(Device *d, const MambaRun *r, const Batch *b,
                       void (*kernel)(const MambaRun *r, int64_t group, const MambaChunk *k, int64_t from)) {
    EACH_PIECE(d, i, b->rows * r->s.groups, MAMBA_BLOCK) {
        const MambaChunk *k = b->chunk;
        int64_t row = i % b->rows;
        while (row >= k->row + mamba_whole(k->count)) k++;
        kernel(r, i / b->rows, k, row - k->row);
    }
}

/* Heads of a group contribute to the same sums, dB and dC. Their partial sums are added, in the order of the
 * heads, when those of a batch are complete. */
static void mamba_backward(Device *d, const MambaBackwardArgs *o) {
    MambaRun r = mamba_backward_run(o);
    const Kernels *kernels = kernels_of(d);
    for (int64_t end = o->s.tokens; end > 0;) {
        const Batch b = batch_to(&r, end);
        each_block(d, &r, &b, kernels->mamba_scores);
        EACH_PIECE(d, head, o->s.heads, 1) {
            for (int64_t i = 0; i < b.chunks; i++) kernels->mamba_backward(&r, head, &b.chunk[i]);
        }
        each_block(d, &r, &b, kernels->mamba_sum_C);
        each_block(d, &r, &b, kernels->mamba_sum_B);
        end = b.chunk[b.chunks - 1].first;
    }
    mamba_profile(d, OP_MAMBA_BACKWARD, &o->s);
}

void optimised_fill_scans(Ops *ops) {
    ops->conv_forward = conv_forward;
    ops->conv_backward = conv_backward;
    ops->scan_forward = scan_forward;
    ops->scan_gate = scan_gate;
    ops->scan_backward = scan_backward;
    ops->mamba_forward = mamba_forward;
    ops->mamba_backward = mamba_backward;
}
