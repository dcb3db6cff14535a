/* The result of an op on a slice is the slice of its result on the full tensor, bit for bit, on every backend
 * that runs here. Tensor, sequence, context and loss parallelism depend on this. "Ranks" here are calls on
 * slices that were copied out of the full tensors, as a rank would hold them. Sizes are odd and have tails.
 * Each kind of slice is also shifted a little, which the comparison must notice.
 *
 *     test_slices [BACKEND [TEST]]     on one backend: avx2, portable, reference, deferred, cuda, ... */
#include <math.h>
#include <stdio.h>

#include "device/ops/ops.h"
#include "support/devices.h"

static const int degrees[] = {1, 2, 4, 8};
enum { DEGREES = 4, SPLITS = 8 };

/* Copies [rows, cols] at (i, j) out of a tensor whose rows are `row` long. */
static void *box_of(const void *from, int64_t row, int64_t i, int64_t j, int64_t rows, int64_t cols,
                    Dtype t) {
    char *p = tensor(rows * cols, t);
    size_t bytes = (size_t)cols * dtype_bytes(t);
    for (int64_t r = 0; r < rows; r++)
        memcpy(p + (size_t)r * bytes, tensor_at(from, (i + r) * row + j, t), bytes);
    return p;
}

static bool same_box(const void *whole, int64_t row, int64_t i, int64_t j, const void *box, int64_t rows,
                     int64_t cols, Dtype t) {
    size_t bytes = (size_t)cols * dtype_bytes(t);
    for (int64_t r = 0; r < rows; r++)
        if (memcmp((const char *)box + (size_t)r * bytes, tensor_at(whole, (i + r) * row + j, t), bytes) != 0)
            return false;
    return true;
}

static void assert_box(const Device *d, const char *what, const void *whole, int64_t row, int64_t i,
                       int64_t j, const void *box, int64_t rows, int64_t cols, Dtype t) {
    if (!same_box(whole, row, i, j, box, rows, cols, t))
        fail_msg("%s, %s, %s: the slice %lld x %lld at (%lld, %lld) differs from the whole", d->name, what,
                 dtype_name(t), (long long)rows, (long long)cols, (long long)i, (long long)j);
}

static void keep_scratch(Device *d, Dtype c, int64_t tokens, int64_t hidden, AttentionShape s) {
    DeviceNeeds needs = small_needs(c, tokens, hidden);
    needs.attention = s;
    needs.splits = SPLITS;
    set_scratch(d, &needs);
}
/* The reference must keep the contract too. */
static void check_all(void (*check)(Device *d, Dtype c)) {
    on_all(check);
    on_one("reference", check);
}

static void keep_product_scratch(Device *d, Dtype c) {
    keep_scratch(d, c, 1, 2, (AttentionShape)SHAPE(1, 1, 1, 2));
}

/* ---- products: rows and columns ---- */

/* The three products of a linear layer. */
typedef struct Form {
    const char *name;
    bool trans_a, trans_b;
} Form;
static const Form forms[] = {
    {"forward", false, true}, {"input gradient", false, false}, {"weight gradient", true, false}};

typedef struct Operands {
    const Form *form;
    int64_t m, n, k;
    void *a, *b, *c; /* c: previous contents */
    Dtype type, c_type;
} Operands;

static Operands operands(const Form *form, const int64_t shape[3], Dtype type, Dtype c_type) {
    int64_t m = shape[0], n = shape[1], k = shape[2];
    return (Operands){form,
                      m,
                      n,
                      k,
                      random_tensor(m * k, type, -1, 1),
                      random_tensor(n * k, type, -1, 1),
                      random_tensor(m * n, c_type, -1, 1),
                      type,
                      c_type};
}

/* The product of rows i .. i+rows-1 of op(A) and columns j .. j+cols-1 of op(B). */
static void *product_box(Device *d, const Operands *o, int64_t i, int64_t j, int64_t rows, int64_t cols,
                         bool accumulate) {
    const Form *f = o->form;
    void *a = f->trans_a ? box_of(o->a, o->m, 0, i, o->k, rows, o->type)
                         : box_of(o->a, o->k, i, 0, rows, o->k, o->type);
    void *b = f->trans_b ? box_of(o->b, o->k, j, 0, cols, o->k, o->type)
                         : box_of(o->b, o->n, 0, j, o->k, cols, o->type);
    void *c = box_of(o->c, o->n, i, j, rows, cols, o->c_type);
    KSplit one = {.runs = 1, .run = {{.length = o->k, .split_size = o->k}}};
    RUN(d, gemm, f->trans_a, f->trans_b, rows, cols, o->k, a, b, o->type, c, o->c_type, cols, accumulate,
        one);
    return c;
}

static void check_boxes(Device *d, const Operands *o, bool accumulate) {
    void *whole = product_box(d, o, 0, 0, o->m, o->n, accumulate);
    const int64_t rows[] = {0, o->m / 7, o->m / 2, o->m - 1, o->m};
    const int64_t cols[] = {0, 1, o->n / 3, o->n / 2 + 1, o->n};
    for (int i = 0; i < 4; i++) {
        int64_t count = rows[i + 1] - rows[i], wide = cols[i + 1] - cols[i];
        if (count > 0)
            assert_box(d, o->form->name, whole, o->n, rows[i], 0,
                       product_box(d, o, rows[i], 0, count, o->n, accumulate), count, o->n, o->c_type);
        if (wide > 0)
            assert_box(d, o->form->name, whole, o->n, 0, cols[i],
                       product_box(d, o, 0, cols[i], o->m, wide, accumulate), o->m, wide, o->c_type);
    }
    int64_t half = o->m / 2; /* shifted by a row */
    if (half > 1)
        assert_false(same_box(whole, o->n, half, 0,
                              product_box(d, o, half - 1, 0, o->m - half, o->n, accumulate), o->m - half,
                              o->n, o->c_type));
}

static void check_products(Device *d, Dtype c) {
    static const int64_t shapes[][3] = {{5, 3, 7},     {37, 50, 300}, {130, 101, 65},
                                        {70, 900, 33}, {450, 60, 20}, {40, 130, 96}};
    keep_product_scratch(d, c);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int f = 0; f < 3; f++)
            for (int variant = 0; variant < 4; variant++) {
                if (variant & 2 && c == DTYPE_F32) continue;
                Operands o = operands(&forms[f], shapes[s], c, variant & 2 ? DTYPE_BF16 : DTYPE_F32);
                check_boxes(d, &o, variant & 1);
                drop_all();
            }
}
static void test_products(void **state) { (void)state, check_all(check_products); }

/* ---- products: splits of the inner dimension ---- */

/* An inner dimension: runs of `length` terms, in splits of split_size. */
typedef struct Inner {
    int runs;
    int64_t length[SPLIT_RUNS], split_size[SPLIT_RUNS];
} Inner;

static int64_t inner_of(const Inner *in) {
    int64_t k = 0;
    for (int r = 0; r < in->runs; r++) k += in->length[r];
    return k;
}

static KSplit splits_here(const Inner *in) {
    KSplit l = {.runs = in->runs};
    for (int r = 0; r < in->runs; r++)
        l.run[r].length = in->length[r], l.run[r].split_size = in->split_size[r];
    return l;
}

/* The inner dimension of a rank that holds `count` splits from `first` on. */
static Inner part_of_inner(const Inner *in, int first, int count) {
    Inner part = *in;
    for (int r = 0; r < in->runs; r++)
        part.length[r] =
            min_i64(in->length[r], (first + count) * in->split_size[r]) - first * in->split_size[r];
    return part;
}

/* Copies those terms of every line of an operand. `along`: lines are rows. */
static void *terms_of(const void *from, int64_t lines, bool along, const Inner *in, int first,
                      const Inner *part, Dtype t) {
    int64_t whole = inner_of(in), here = inner_of(part), from_run = 0, to_run = 0;
    void *to = tensor(lines * here, t);
    for (int r = 0; r < in->runs; r++) {
        int64_t start = from_run + first * in->split_size[r];
        for (int64_t p = 0; p < part->length[r]; p++)
            for (int64_t i = 0; i < lines; i++)
                tensor_set(to, along ? i * here + to_run + p : (to_run + p) * lines + i, t,
                           tensor_get(from, along ? i * whole + start + p : (start + p) * lines + i, t));
        from_run += in->length[r], to_run += part->length[r];
    }
    return to;
}

static float *partial_product(Device *d, const Operands *o, const Inner *in, int first, int count) {
    Inner part = part_of_inner(in, first, count);
    void *a = terms_of(o->a, o->m, !o->form->trans_a, in, first, &part, o->type);
    void *b = terms_of(o->b, o->n, o->form->trans_b, in, first, &part, o->type);
    float *c = tensor(o->m * o->n, DTYPE_F32);
    RUN(d, gemm, o->form->trans_a, o->form->trans_b, o->m, o->n, inner_of(&part), a, b, o->type, c, DTYPE_F32,
        o->n, false, splits_here(&part));
    return c;
}

/* The same with all terms as input, where those of other ranks are skipped. */
static void check_skipped(Device *d, const Operands *o, const Inner *in, int first, int count) {
    Inner part = part_of_inner(in, first, count);
    KSplit l = splits_here(&part);
    int64_t left = 0;
    for (int r = 0; r < in->runs; r++) {
        int64_t before = first * in->split_size[r];
        l.run[r].skip = left + before;
        left = in->length[r] - before - part.length[r];
    }
    float *c = tensor(o->m * o->n, DTYPE_F32);
    RUN(d, gemm, o->form->trans_a, o->form->trans_b, o->m, o->n, o->k, o->a, o->b, o->type, c, DTYPE_F32,
        o->n, false, l);
    assert_box(d, "splits among others'", partial_product(d, o, in, first, count), o->n, 0, 0, c, o->m, o->n,
               DTYPE_F32);
}

/* As on several ranks: each sums its splits, then the tree over ranks, then rounding. */
static void *product_on_ranks(Device *d, const Operands *o, const Inner *in, int ranks) {
    const float *parts[SPLITS];
    for (int r = 0; r < ranks; r++)
        parts[r] = partial_product(d, o, in, r * (SPLITS / ranks), SPLITS / ranks);
    float *sum = tensor(o->m * o->n, DTYPE_F32);
    void *c = tensor(o->m * o->n, o->c_type);
    RUN(d, sum_partials, o->m * o->n, ranks, parts, sum);
    RUN(d, cast, o->m * o->n, sum, DTYPE_F32, c, o->c_type);
    return c;
}

static void check_inner(Device *d, const Form *form, const Inner *in, Dtype type, Dtype c_type) {
    const int64_t shape[3] = {37, 50, inner_of(in)};
    Operands o = operands(form, shape, type, c_type);
    void *whole = tensor(o.m * o.n, c_type);
    RUN(d, gemm, form->trans_a, form->trans_b, o.m, o.n, o.k, o.a, o.b, type, whole, c_type, o.n, false,
        splits_here(in));
    for (int i = 0; i < DEGREES; i++)
        assert_box(d, "splits of a product", whole, o.n, 0, 0, product_on_ranks(d, &o, in, degrees[i]), o.m,
                   o.n, c_type);
    check_skipped(d, &o, in, 2, 4);
    check_skipped(d, &o, in, SPLITS - 1, 1);
    if (c_type == DTYPE_F32) { /* C + the tree; and splits of another length */
        float *c = tensor(o.m * o.n, DTYPE_F32), *want = tensor(o.m * o.n, DTYPE_F32);
        RUN(d, add, o.m * o.n, o.c, whole, want, DTYPE_F32);
        memcpy(c, o.c, (size_t)(o.m * o.n) * sizeof *c);
        RUN(d, gemm, form->trans_a, form->trans_b, o.m, o.n, o.k, o.a, o.b, type, c, DTYPE_F32, o.n, true,
            splits_here(in));
        assert_box(d, "splits added to C", want, o.n, 0, 0, c, o.m, o.n, DTYPE_F32);
        Inner moved = *in;
        moved.split_size[0]++;
        RUN(d, gemm, form->trans_a, form->trans_b, o.m, o.n, o.k, o.a, o.b, type, c, DTYPE_F32, o.n, false,
            splits_here(&moved));
        assert_false(same_box(whole, o.n, 0, 0, c, o.m, o.n, DTYPE_F32));
    }
    drop_all();
}

static void check_splits(Device *d, Dtype c) {
    /* One run; gate and up; q, k and v; a vocabulary whose last split is short; splits longer than a
     * block. */
    static const Inner inners[] = {{1, {320}, {40}},
                                   {2, {136, 136}, {17, 17}},
                                   {3, {256, 64, 64}, {32, 8, 8}},
                                   {1, {1003}, {126}},
                                   {1, {4400}, {550}}};
    keep_product_scratch(d, c);
    for (size_t i = 0; i < sizeof inners / sizeof *inners; i++)
        for (int f = 0; f < 3; f++) {
            check_inner(d, &forms[f], &inners[i], c, DTYPE_F32);
            if (c == DTYPE_BF16) check_inner(d, &forms[f], &inners[i], c, DTYPE_BF16);
        }
}
static void test_splits(void **state) { (void)state, check_all(check_splits); }

/* ---- products of experts ---- */

enum { EXPERTS = 4, EXPERT_ROWS = 108 };
static const int32_t first_rows[EXPERTS + 1] = {0, 0, 37, 38, EXPERT_ROWS};

/* Matrices are [n, k], or [k, n] without `across`. */
typedef struct ExpertOperands {
    bool across;
    int64_t n, k;
    void *a, *b;
    Dtype type;
} ExpertOperands;

static ExpertRows rows_of_experts(int64_t step) {
    int32_t *first = copy_of(first_rows, EXPERTS + 1, DTYPE_F32);
    return (ExpertRows){.rows = EXPERT_ROWS, .experts = EXPERTS, .first = first, .step = step};
}

/* Copies the same part of each of the matrices [rows, cols], one after another. */
static void *boxes_of(const void *from, int64_t rows, int64_t cols, int64_t i, int64_t j, int64_t high,
                      int64_t wide, Dtype t) {
    void *to = tensor(EXPERTS * high * wide, t);
    for (int64_t e = 0; e < EXPERTS; e++)
        memcpy(tensor_to(to, e * high * wide, t),
               box_of(tensor_at(from, e * rows * cols, t), cols, i, j, high, wide, t),
               (size_t)(high * wide) * dtype_bytes(t));
    return to;
}

/* Outputs first .. first+count-1. */
static float *expert_outputs(Device *d, const ExpertOperands *o, int64_t first, int64_t count) {
    void *b = o->across ? boxes_of(o->b, o->n, o->k, first, 0, count, o->k, o->type)
                        : boxes_of(o->b, o->k, o->n, 0, first, o->k, count, o->type);
    float *c = tensor(EXPERT_ROWS * count, DTYPE_F32);
    KSplit one = {.runs = 1, .run = {{.length = o->k, .split_size = o->k}}};
    RUN(d, grouped_gemm, rows_of_experts(o->k * count), o->across, count, o->k, o->a, b, o->type, c,
        DTYPE_F32, one);
    return c;
}

/* One split, with all terms as input. split_alone has only its terms. */
static float *split_among_others(Device *d, const ExpertOperands *o, const Inner *in, int split) {
    KSplit l = {.runs = in->runs};
    int64_t left = 0;
    for (int r = 0; r < in->runs; r++) {
        l.run[r].skip = left + split * in->split_size[r],
        l.run[r].length = l.run[r].split_size = in->split_size[r];
        left = in->length[r] - (split + 1) * in->split_size[r];
    }
    float *c = tensor(EXPERT_ROWS * o->n, DTYPE_F32);
    RUN(d, grouped_gemm, rows_of_experts(o->k * o->n), o->across, o->n, o->k, o->a, o->b, o->type, c,
        DTYPE_F32, l);
    return c;
}

static float *split_alone(Device *d, const ExpertOperands *o, const Inner *in, int split) {
    Inner part = part_of_inner(in, split, 1);
    int64_t k = inner_of(&part);
    void *a = terms_of(o->a, EXPERT_ROWS, true, in, split, &part, o->type),
         *b = tensor(EXPERTS * k * o->n, o->type);
    for (int64_t e = 0; e < EXPERTS; e++)
        memcpy(
            tensor_to(b, e * k * o->n, o->type),
            terms_of(tensor_at(o->b, e * o->k * o->n, o->type), o->n, o->across, in, split, &part, o->type),
            (size_t)(k * o->n) * dtype_bytes(o->type));
    float *c = tensor(EXPERT_ROWS * o->n, DTYPE_F32);
    RUN(d, grouped_gemm, rows_of_experts(k * o->n), o->across, o->n, k, a, b, o->type, c, DTYPE_F32,
        splits_here(&part));
    return c;
}

/* Rows from m0 and columns from n0 on of the gradients of matrices [n, k]. */
static float *expert_gradients(Device *d, const ExpertOperands *o, const void *dy, int64_t m0, int64_t m,
                               int64_t n0, int64_t n) {
    void *left = box_of(dy, o->n, 0, m0, EXPERT_ROWS, m, o->type),
         *right = box_of(o->a, o->k, 0, n0, EXPERT_ROWS, n, o->type);
    float *c = tensor(EXPERTS * m * n, DTYPE_F32);
    RUN(d, grouped_gemm_wgrad, rows_of_experts(m * n), m, n, left, right, o->type, c, false);
    return c;
}

static void check_expert_gradients(Device *d, const ExpertOperands *o) {
    void *dy = random_tensor(EXPERT_ROWS * o->n, o->type, -1, 1);
    float *whole = expert_gradients(d, o, dy, 0, o->n, 0, o->k),
          *rows = expert_gradients(d, o, dy, 3, 11, 0, o->k),
          *columns = expert_gradients(d, o, dy, 0, o->n, o->k / 2, o->k / 4);
    for (int64_t e = 0; e < EXPERTS; e++) {
        assert_box(d, "rows of an expert's gradient", whole, o->k, e * o->n + 3, 0, rows + e * 11 * o->k, 11,
                   o->k, DTYPE_F32);
        assert_box(d, "columns of an expert's gradient", whole, o->k, e * o->n, o->k / 2,
                   columns + e * o->n * (o->k / 4), o->n, o->k / 4, DTYPE_F32);
    }
}

static void check_expert_products(Device *d, Dtype c) {
    /* An expert's width; gate and up. */
    static const Inner inners[] = {{1, {320}, {40}}, {2, {136, 136}, {17, 17}}};
    static const int64_t cuts[] = {0, 1, 18, 50};
    keep_product_scratch(d, c);
    for (int way = 0; way < 4; way++) {
        const Inner *in = &inners[way / 2];
        int64_t n = 50, k = inner_of(in);
        ExpertOperands o = {
            way % 2, n, k, random_tensor(EXPERT_ROWS * k, c, -1, 1), random_tensor(EXPERTS * n * k, c, -1, 1),
            c};
        float *whole = expert_outputs(d, &o, 0, n);
        for (int i = 0; i < 3; i++) {
            int64_t count = cuts[i + 1] - cuts[i];
            assert_box(d, "outputs of experts", whole, n, 0, cuts[i], expert_outputs(d, &o, cuts[i], count),
                       EXPERT_ROWS, count, DTYPE_F32);
        }
        assert_false(same_box(whole, n, 0, 1, expert_outputs(d, &o, 2, 9), EXPERT_ROWS, 9, DTYPE_F32));
        for (int split = 0; split < SPLITS; split += SPLITS - 1)
            assert_box(d, "a split of experts", split_among_others(d, &o, in, split), n, 0, 0,
                       split_alone(d, &o, in, split), EXPERT_ROWS, n, DTYPE_F32);
        assert_false(same_box(split_among_others(d, &o, in, 2), n, 0, 0, split_alone(d, &o, in, 3),
                              EXPERT_ROWS, n, DTYPE_F32));
        check_expert_gradients(d, &o);
        drop_all();
    }
}
static void test_expert_products(void **state) { (void)state, check_all(check_expert_products); }

/* Rows of experts from several sources: none, so few that a library would multiply them, more than are packed
 * at a time. */
enum { SOURCES = 5, SOURCES_ROWS = 237 };
static ExpertRows rows_of_sources(int64_t step) {
    static const int32_t counts[SOURCES * EXPERTS] = {0, 3, 1, 0, 2, 4,   0,  0, 0, 0,
                                                      0, 0, 9, 5, 0, 150, 17, 8, 0, 38};
    int32_t *first = tensor(SOURCES * EXPERTS + 1, DTYPE_F32);
    first[0] = 0;
    for (int run = 0; run < SOURCES * EXPERTS; run++) first[run + 1] = first[run] + counts[run];
    assert_int_equal(first[SOURCES * EXPERTS], SOURCES_ROWS);
    return (ExpertRows){
        .rows = SOURCES_ROWS, .experts = EXPERTS, .first = first, .step = step, .sources = SOURCES};
}

/* Sources `from` .. `from` + count - 1 of them. */
static ExpertRows part_of_sources(ExpertRows e, int from, int count) {
    e.first += from * EXPERTS, e.sources = count;
    e.rows = e.first[count * EXPERTS] - e.first[0];
    return e;
}

static void check_rows_of_sources(Device *d, const ExpertOperands *o, ExpertRows e, Dtype c_type) {
    KSplit inner = {.runs = 1, .run = {{.length = o->k - 3, .split_size = o->k - 3, .skip = 3}}};
    void *whole = tensor(SOURCES_ROWS * o->n, c_type), *part = tensor(SOURCES_ROWS * o->n, c_type);
    float *bias = random_tensor(EXPERTS * o->n, DTYPE_F32, -1, 1);
    RUN(d, grouped_gemm, e, o->across, o->n, o->k, o->a, o->b, o->type, whole, c_type, inner);
    RUN(d, experts_bias_forward, e, o->n, whole, bias, c_type);
    for (int s = 0; s < SOURCES; s++) {
        ExpertRows own = part_of_sources(e, s, 1);
        int64_t first = own.first[0];
        RUN(d, grouped_gemm, own, o->across, o->n, o->k, o->a, o->b, o->type, part, c_type, inner);
        RUN(d, experts_bias_forward, own, o->n, part, bias, c_type);
        assert_box(d, "rows of one source", whole, o->n, first, 0, tensor_at(part, first * o->n, c_type),
                   own.rows, o->n, c_type);
    }
    assert_false(same_box(whole, o->n, 0, 0, tensor_at(part, o->n, c_type), 6, o->n, c_type));
}

static void check_gradients_of_sources(Device *d, const ExpertOperands *o, ExpertRows e) {
    int64_t size = o->n * o->k;
    void *dy = random_tensor(SOURCES_ROWS * o->n, o->type, -1, 1);
    float *before = random_tensor(EXPERTS * size, DTYPE_F32, -1, 1), *sum = tensor(EXPERTS * size, DTYPE_F32);
    const float *parts[SOURCES], *both[2] = {before, sum};
    for (int s = 0; s < SOURCES; s++) {
        float *part = random_tensor(EXPERTS * size, DTYPE_F32, -1, 1); /* overwritten */
        RUN(d, grouped_gemm_wgrad, part_of_sources(e, s, 1), o->n, o->k, dy, o->a, o->type, part, false);
        parts[s] = part;
    }
    for (int count = SOURCES; count > 1; count--) {
        float *whole = random_tensor(EXPERTS * size, DTYPE_F32, -1, 1),
              *added = copy_of(before, EXPERTS * size, DTYPE_F32);
        ExpertRows some = part_of_sources(e, 0, count);
        RUN(d, grouped_gemm_wgrad, some, o->n, o->k, dy, o->a, o->type, whole, false);
        RUN(d, grouped_gemm_wgrad, some, o->n, o->k, dy, o->a, o->type, added, true);
        RUN(d, sum_partials, EXPERTS * size, count, parts, sum);
        assert_box(d, "gradient from sources", whole, size, 0, 0, sum, EXPERTS, size, DTYPE_F32);
        RUN(d, sum_partials, EXPERTS * size, 2, both, sum);
        assert_box(d, "gradient added", added, size, 0, 0, sum, EXPERTS, size, DTYPE_F32);
        assert_false(same_box(whole, size, 0, 0, parts[0], EXPERTS, size, DTYPE_F32));
    }
}

static void check_sources_of_experts(Device *d, Dtype c) {
    static const int64_t shapes[][2] = {{50, 320}, {33, 1003}};
    DeviceNeeds needs = small_needs(c, 1, 2);
    needs.sources = SOURCES;
    set_scratch(d, &needs);
    for (int way = 0; way < 4; way++) {
        int64_t n = shapes[way / 2][0], k = shapes[way / 2][1];
        ExpertOperands o = {way % 2,
                            n,
                            k,
                            random_tensor(SOURCES_ROWS * k, c, -1, 1),
                            random_tensor(EXPERTS * n * k, c, -1, 1),
                            c};
        ExpertRows e = rows_of_sources(n * k);
        check_rows_of_sources(d, &o, e, DTYPE_F32);
        check_rows_of_sources(d, &o, e, c);
        check_gradients_of_sources(d, &o, e);
        drop_all();
    }
}
static void test_sources_of_experts(void **state) { (void)state, check_all(check_sources_of_experts); }

/* For splits first .. first+count-1 of an expert's width: returns the gradient of each assignment's weight,
 * and in *left act times the weight. */
static float *weighed(Device *d, const void *act, const void *dact, const float *weights, int64_t split_size,
                      int first, int count, Dtype c, void **left) {
    int64_t inter = SPLITS * split_size, own = count * split_size;
    void *x = box_of(act, inter, 0, first * split_size, EXPERT_ROWS, own, c),
         *dx = box_of(dact, inter, 0, first * split_size, EXPERT_ROWS, own, c);
    float *dw = tensor(EXPERT_ROWS, DTYPE_F32);
    RUN(d, combine_backward, (RouteShape){.tokens = EXPERT_ROWS, .chosen = 1},
        (Routes){.weights = copy_of(weights, EXPERT_ROWS, DTYPE_F32)}, own, count, x, dx, dw, c);
    *left = x;
    return dw;
}

static void check_weights_of_experts(Device *d, Dtype c) {
    static const int64_t widths[] = {1, 17, 300};
    EACH(split_size, widths) {
        int64_t inter = SPLITS * *split_size;
        void *act = random_tensor(EXPERT_ROWS * inter, c, -1, 1),
             *dact = random_tensor(EXPERT_ROWS * inter, c, -1, 1), *all, *own;
        float *weights = random_tensor(EXPERT_ROWS, DTYPE_F32, 0, 1);
        float *whole = weighed(d, act, dact, weights, *split_size, 0, SPLITS, c, &all);
        for (int i = 0; i < DEGREES; i++) {
            int ranks = degrees[i], each = SPLITS / ranks;
            const float *parts[SPLITS];
            float *sum = tensor(EXPERT_ROWS, DTYPE_F32);
            for (int r = 0; r < ranks; r++) {
                parts[r] = weighed(d, act, dact, weights, *split_size, r * each, each, c, &own);
                assert_box(d, "weighed columns", all, inter, 0, r * each * *split_size, own, EXPERT_ROWS,
                           each * *split_size, c);
            }
            RUN(d, sum_partials, EXPERT_ROWS, ranks, parts, sum);
            assert_box(d, "splits of a weight", whole, 1, 0, 0, sum, EXPERT_ROWS, 1, DTYPE_F32);
        }
        float *moved = weighed(d, act, dact, weights, *split_size, 1, SPLITS - 1, c, &own);
        assert_false(same_box(whole, 1, 0, 0, moved, EXPERT_ROWS, 1, DTYPE_F32));
        drop_all();
    }
}
/* By columns: the biased output, and the biases' gradients. */
static void check_biases_of_experts(Device *d, Dtype c) {
    enum { WIDTH = 168 };
    ExpertRows e = rows_of_experts(0);
    RouteShape s = {.experts = EXPERTS};
    Routes r = {.first = (int32_t *)(uintptr_t)e.first};
    void *y = random_tensor(EXPERT_ROWS * WIDTH, c, -1, 1), *added = copy_of(y, EXPERT_ROWS * WIDTH, c);
    float *bias = random_tensor(EXPERTS * WIDTH, DTYPE_F32, -1, 1),
          *sums = tensor(EXPERTS * WIDTH, DTYPE_F32);
    RUN(d, fill, EXPERTS * WIDTH, 0, sums);
    RUN(d, experts_bias_forward, e, WIDTH, added, bias, c);
    RUN(d, experts_bias_backward, s, r, WIDTH, y, false, bias, sums, NULL, c);
    for (int i = 0; i < DEGREES; i++) {
        int64_t own = WIDTH / degrees[i], first = WIDTH - own;
        void *part = box_of(y, WIDTH, 0, first, EXPERT_ROWS, own, c);
        float *sums2 = tensor(EXPERTS * own, DTYPE_F32),
              *bias2 = box_of(bias, WIDTH, 0, first, EXPERTS, own, DTYPE_F32);
        RUN(d, fill, EXPERTS * own, 0, sums2);
        RUN(d, experts_bias_backward, s, r, own, part, false, bias2, sums2, NULL, c);
        assert_box(d, "gradients of experts' biases", sums, WIDTH, 0, first, sums2, EXPERTS, own, DTYPE_F32);
        RUN(d, experts_bias_forward, e, own, part, bias2, c);
        assert_box(d, "biases of experts", added, WIDTH, 0, first, part, EXPERT_ROWS, own, c);
    }
    drop_all();
}
static void test_biases_of_experts(void **state) { (void)state, check_all(check_biases_of_experts); }

static void test_weights_of_experts(void **state) { (void)state, check_all(check_weights_of_experts); }

/* The same for models that weight the input of an expert: gradients from y, two runs (gate and up) that are
 * split alike. */
static float *input_weights(Device *d, const void *y, const void *dy, const float *weights,
                            int64_t split_size, int first, int count, Dtype c) {
    int64_t run = SPLITS * split_size, own = count * split_size;
    void *to[2];
    for (int i = 0; i < 2; i++) {
        const void *from = i ? dy : y;
        void *gate = box_of(from, 2 * run, 0, first * split_size, EXPERT_ROWS, own, c),
             *up = box_of(from, 2 * run, 0, run + first * split_size, EXPERT_ROWS, own, c);
        to[i] = tensor(EXPERT_ROWS * 2 * own, c);
        for (int64_t r = 0; r < 2 * EXPERT_ROWS; r++)
            memcpy(tensor_to(to[i], r * own, c), tensor_at(r % 2 ? up : gate, r / 2 * own, c),
                   (size_t)own * dtype_bytes(c));
    }
    float *dw = tensor(EXPERT_ROWS, DTYPE_F32);
    RUN(d, permute_dweights, (RouteShape){.tokens = EXPERT_ROWS, .chosen = 1},
        (Routes){.weights = copy_of(weights, EXPERT_ROWS, DTYPE_F32)}, own, 2, count, to[0], to[1], dw, c);
    return dw;
}

static void check_weights_of_inputs(Device *d, Dtype c) {
    static const int64_t widths[] = {1, 17, 300};
    EACH(split_size, widths) {
        int64_t wide = 2 * SPLITS * *split_size;
        void *y = random_tensor(EXPERT_ROWS * wide, c, -1, 1),
             *dy = random_tensor(EXPERT_ROWS * wide, c, -1, 1);
        float *weights = random_tensor(EXPERT_ROWS, DTYPE_F32, 0.1f, 1);
        float *whole = input_weights(d, y, dy, weights, *split_size, 0, SPLITS, c);
        for (int i = 0; i < DEGREES; i++) {
            int ranks = degrees[i], each = SPLITS / ranks;
            const float *parts[SPLITS];
            float *sum = tensor(EXPERT_ROWS, DTYPE_F32);
            for (int r = 0; r < ranks; r++)
                parts[r] = input_weights(d, y, dy, weights, *split_size, r * each, each, c);
            RUN(d, sum_partials, EXPERT_ROWS, ranks, parts, sum);
            assert_box(d, "splits of an input's weight", whole, 1, 0, 0, sum, EXPERT_ROWS, 1, DTYPE_F32);
        }
        float *moved = input_weights(d, y, dy, weights, *split_size, 1, SPLITS - 1, c);
        assert_false(same_box(whole, 1, 0, 0, moved, EXPERT_ROWS, 1, DTYPE_F32));
        drop_all();
    }
}
static void test_weights_of_inputs(void **state) { (void)state, check_all(check_weights_of_inputs); }

/* ---- tokens ---- */

enum { TOKENS = 150, SPLIT_SIZE = 19 }; /* the last split has 17 */

typedef struct Norm {
    int64_t h;
    Dtype c;
    void *x, *other, *dy, *dx;
    float *w;
} Norm;

/* Gradients of tokens first .. first+count-1: returns dx, and adds to dw and db, one row for each split. */
static void *norm_box(Device *d, const Norm *n, int64_t first, int64_t count, float *dw, float *db) {
    int64_t h = n->h;
    void *x = box_of(n->x, h, first, 0, count, h, n->c),
         *other = box_of(n->other, h, first, 0, count, h, n->c);
    void *dy = box_of(n->dy, h, first, 0, count, h, n->c), *dx = box_of(n->dx, h, first, 0, count, h, n->c);
    void *sum = tensor(count * h, n->c), *y = tensor(count * h, n->c);
    float *rstd = tensor(count, DTYPE_F32);
    RUN(d, norm_forward, NORM_RMS, count, h, 1e-5f, x, other, n->w, NULL, sum, y, rstd, n->c);
    RUN(d, norm_backward, NORM_RMS, count, h, sum, n->w, rstd, dy, dx, true, dw, SPLIT_SIZE, n->c);
    RUN(d, bias_backward, count, h, dy, db, SPLIT_SIZE, n->c);
    RUN(d, bias_forward, count, h, y, n->w, n->c);
    RUN(d, add, count * h, y, dx, dx, n->c);
    return dx; /* forward plus backward */
}

static void check_norm(Device *d, Dtype c) {
    static const int64_t widths[] = {1, 24, 521};
    EACH(h, widths) {
        keep_scratch(d, c, TOKENS, *h, (AttentionShape)SHAPE(1, 1, 1, 2));
        int64_t n = TOKENS * *h, rows = SPLITS * *h;
        Norm norm = {*h,
                     c,
                     random_tensor(n, c, -1, 1),
                     random_tensor(n, c, -1, 1),
                     random_tensor(n, c, -1, 1),
                     random_tensor(n, c, -1, 1),
                     random_tensor(*h, DTYPE_F32, 0.5, 1.5)};
        float *before = random_tensor(rows, DTYPE_F32, -1, 1), *dw = copy_of(before, rows, DTYPE_F32),
              *db = copy_of(before, rows, DTYPE_F32);
        void *whole = norm_box(d, &norm, 0, TOKENS, dw, db);
        for (int i = 0; i < DEGREES; i++) {
            int64_t each = SPLITS / degrees[i];
            for (int64_t r = 0; r < degrees[i]; r++) {
                int64_t first = r * each * SPLIT_SIZE,
                        count = min_i64(TOKENS, first + each * SPLIT_SIZE) - first;
                float *dw2 = box_of(before, *h, r * each, 0, each, *h, DTYPE_F32),
                      *db2 = box_of(before, *h, r * each, 0, each, *h, DTYPE_F32);
                assert_box(d, "norm", whole, *h, first, 0, norm_box(d, &norm, first, count, dw2, db2), count,
                           *h, c);
                assert_box(d, "norm dw", dw, *h, r * each, 0, dw2, each, *h, DTYPE_F32);
                assert_box(d, "bias gradient", db, *h, r * each, 0, db2, each, *h, DTYPE_F32);
            }
        }
        float *moved = copy_of(before, rows, DTYPE_F32), *moved2 = copy_of(before, rows, DTYPE_F32);
        norm_box(d, &norm, 1, TOKENS - 1, moved, moved2);
        assert_false(same_box(dw, *h, 0, 0, moved, SPLITS, *h, DTYPE_F32));
        assert_false(same_box(db, *h, 0, 0, moved2, SPLITS, *h, DTYPE_F32));
        drop_all();
    }
}
static void test_norm(void **state) { (void)state, check_all(check_norm); }

/* ---- heads, and columns of the MLP ---- */

/* The columns of some heads in up to three groups (q, k, v). */
typedef struct Columns {
    int groups;
    int64_t start[3], count[3]; /* columns in the full tensor */
} Columns;

/* Copies those columns out of a full tensor. */
static void *columns_of(const void *whole, int64_t rows, int64_t row, const Columns *k, Dtype t) {
    int64_t here = k->count[0] + k->count[1] + k->count[2];
    char *to = tensor(rows * here, t);
    for (int64_t r = 0, at = 0; r < rows; r++)
        for (int g = 0; g < k->groups; at += k->count[g++])
            memcpy(tensor_to(to, at, t), tensor_at(whole, r * row + k->start[g], t),
                   (size_t)k->count[g] * dtype_bytes(t));
    return to;
}

static void assert_columns(const Device *d, const char *what, const void *whole, int64_t rows, int64_t row,
                           const Columns *k, const void *got, Dtype t) {
    int64_t here = k->count[0] + k->count[1] + k->count[2];
    const void *want = columns_of(whole, rows, row, k, t);
    if (memcmp(want, got, (size_t)(rows * here) * dtype_bytes(t)) != 0)
        fail_msg("%s, %s, %s: columns %lld and on differ from the whole", d->name, what, dtype_name(t),
                 (long long)k->start[0]);
}

typedef struct Attended {
    void *qkv, *out, *dqkv; /* qkv: rotated */
    float *lse;
} Attended;

static Attended attend(Device *d, AttentionShape s, void *qkv, const void *dout, const int32_t *first,
                       const int32_t *positions, const float *angles, Dtype c) {
    int64_t t = s.tokens, wide = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
    Attended a = {qkv, tensor(t * s.heads * s.head_dim, c), tensor(t * wide, c),
                  tensor(t * s.heads, DTYPE_F32)};
    AttentionRun r = attention_whole(s);
    int64_t query = s.heads * s.head_dim;
    const void *kv = tensor_at(qkv, query, c);
    RUN(d, rope, s, qkv, positions, angles, false, c);
    if (s.chunk > 0) RUN(d, queries_scale, s, qkv, positions, angles, c);
    RUN(d, attention_forward, s, r, qkv, kv, first, a.out, a.lse, c);
    RUN(d, attention_backward, s, r, qkv, kv, first, a.out, a.lse, dout, a.dqkv, tensor_to(a.dqkv, query, c),
        c);
    RUN(d, rope, s, a.dqkv, positions, angles, true, c);
    return a;
}

/* The heads of rank r of n: its query heads, and their key and value heads. */
static void check_heads_of(Device *d, AttentionShape s, int n, int r, const void *qkv, const void *dout,
                           const Attended *whole, const int32_t *first, const int32_t *positions,
                           const float *angles, Dtype c) {
    int64_t dim = s.head_dim, wide = (s.heads + 2 * (int64_t)s.kv_heads) * dim, t = s.tokens;
    AttentionShape part = s;
    part.heads = s.heads / n, part.kv_heads = s.kv_heads / n;
    int64_t q = part.heads * dim, kv = part.kv_heads * dim;
    Columns in = {3, {r * q, s.heads * dim + r * kv, (s.heads + s.kv_heads) * dim + r * kv}, {q, kv, kv}};
    Columns out = {1, {r * q}, {q}};
    Attended got = attend(d, part, columns_of(qkv, t, wide, &in, c),
                          columns_of(dout, t, s.heads * dim, &out, c), first, positions, angles, c);
    assert_columns(d, "rope of heads", whole->qkv, t, wide, &in, got.qkv, c);
    assert_columns(d, "attention of heads", whole->out, t, s.heads * dim, &out, got.out, c);
    assert_columns(d, "attention gradient of heads", whole->dqkv, t, wide, &in, got.dqkv, c);
    assert_box(d, "lse of heads", whole->lse, t, r * part.heads, 0, got.lse, part.heads, t, DTYPE_F32);
}

/* Runs of queries, whose keys lie elsewhere. Their result is a slice of the full one, wherever they begin.
 * Partial sums over all queries at once equal the full gradients before rounding. */
static void check_runs(Device *d, AttentionShape s, const void *qkv, const void *dout, const int32_t *first,
                       Dtype c) {
    int64_t dim = s.head_dim, query = s.heads * dim, width = 2 * (int64_t)s.kv_heads * dim, t = s.tokens;
    AttentionRun all = attention_whole(s);
    const void *kv = columns_of(qkv, t, all.q_row, &(Columns){1, {query}, {width}}, c);
    void *out = tensor(t * query, c), *dqkv = tensor(t * all.q_row, c);
    float *lse = tensor(t * s.heads, DTYPE_F32), *terms = tensor(t * width, DTYPE_F32);
    RUN(d, attention_forward, s, all, qkv, tensor_at(qkv, query, c), first, out, lse, c);
    RUN(d, attention_backward, s, all, qkv, tensor_at(qkv, query, c), first, out, lse, dout, dqkv,
        tensor_to(dqkv, query, c), c);
    for (int64_t from = 0, n = t; from < t; from += n, n = 11 + from) {
        if (from + n > t) n = t - from;
        AttentionShape part = s;
        AttentionRun r = {from, t, all.q_row, width, true};
        part.tokens = n;
        const void *q = tensor_at(qkv, from * all.q_row, c), *dout2 = tensor_at(dout, from * query, c);
        void *out2 = tensor(n * query, c), *dq = tensor(n * all.q_row, c);
        float *lse2 = tensor(n * s.heads, DTYPE_F32);
        memcpy(dq, tensor_at(dqkv, from * all.q_row, c), (size_t)(n * all.q_row) * dtype_bytes(c));
        RUN(d, attention_forward, part, r, q, kv, first, out2, lse2, c);
        assert_box(d, "attention of a run", out, query, from, 0, out2, n, query, c);
        assert_box(d, "lse of a run", lse, t, 0, from, lse2, s.heads, n, DTYPE_F32);
        RUN(d, attention_backward, part, r, q, kv, first, out2, lse2, dout2, dq, terms, c);
        assert_box(d, "gradient of a run's queries", dqkv, all.q_row, from, 0, dq, n, all.q_row, c);
        if (n < t) continue;
        void *rounded = tensor(t * width, c);
        RUN(d, cast, t * width, terms, DTYPE_F32, rounded, c);
        assert_columns(d, "terms of all queries", dqkv, t, all.q_row, &(Columns){1, {query}, {width}},
                       rounded, c);
        from = -1, n = 1; /* then shorter runs */
    }
}

/* Norms of single heads: the weights' gradients have a row for each run of heads, which does not depend on
 * the other heads. */
static void check_normed_heads(Device *d, AttentionShape s, const void *raw, const void *dout, Dtype c) {
    int64_t dim = s.head_dim, wide = (s.heads + 2 * (int64_t)s.kv_heads) * dim, t = s.tokens;
    int splits = (int)s.kv_heads;
    float *w = random_tensor(dim, DTYPE_F32, 0.5, 1.5), *dq = tensor(splits * dim, DTYPE_F32),
          *dk = tensor(splits * dim, DTYPE_F32);
    void *out = tensor(t * wide, c), *grad = copy_of(dout, t * wide, c);
    RUN(d, qk_norm_forward, s, qk_rows(false), NORM_RMS, 1e-5f, raw, w, w, out, c);
    RUN(d, qk_norm_backward, s, qk_rows(false), NORM_RMS, 1e-5f, raw, w, w, grad, dq, dk, splits, c);
    for (int n = 2; n <= splits; n *= 2) {
        int r = n - 1, each = splits / n;
        AttentionShape part = SHAPE(s.tokens, s.heads / n, s.kv_heads / n, s.head_dim);
        int64_t q = part.heads * dim, kv = part.kv_heads * dim;
        Columns in = {3, {r * q, s.heads * dim + r * kv, (s.heads + s.kv_heads) * dim + r * kv}, {q, kv, kv}};
        void *raw2 = columns_of(raw, t, wide, &in, c), *grad2 = columns_of(dout, t, wide, &in, c),
             *out2 = tensor(t * (q + 2 * kv), c);
        float *dq2 = tensor(each * dim, DTYPE_F32), *dk2 = tensor(each * dim, DTYPE_F32);
        RUN(d, qk_norm_forward, part, qk_rows(false), NORM_RMS, 1e-5f, raw2, w, w, out2, c);
        RUN(d, qk_norm_backward, part, qk_rows(false), NORM_RMS, 1e-5f, raw2, w, w, grad2, dq2, dk2, each, c);
        assert_columns(d, "norm of heads", out, t, wide, &in, out2, c);
        assert_columns(d, "gradient of normed heads", grad, t, wide, &in, grad2, c);
        assert_box(d, "dw of queries", dq, dim, r * each, 0, dq2, each, dim, DTYPE_F32);
        assert_box(d, "dw of keys", dk, dim, r * each, 0, dk2, each, dim, DTYPE_F32);
    }
}

/* The splits of rank r of n, if all ranks together have `splits` of a row of queries and of a row of keys.
 * With fewer key heads than ranks, a head is replicated, and each replica sums a part of it. */
static KSplit row_splits(AttentionShape s, int splits, int n, int r) {
    int copies = n > s.kv_heads ? n / s.kv_heads : 1;
    int64_t dim = s.head_dim, query = s.heads * dim / n, key = s.kv_heads * dim / n;
    KSplit l = {.runs = 2, .run = {{.length = query, .split_size = query * n / splits}, {.length = key}}};
    l.run[1].split_size = key * n / splits, l.run[1].skip = r % copies * key;
    return l;
}

static void check_rows_of(Device *d, AttentionShape s, int n, int r, QkRows rows, const void *raw,
                          const void *dout, const float *w[2], const void *want[2], const float *dw[2],
                          Dtype c) {
    int copies = n > s.kv_heads ? n / s.kv_heads : 1;
    int64_t dim = s.head_dim, wide = (s.heads + 2 * (int64_t)s.kv_heads) * dim, t = s.tokens;
    AttentionShape part = SHAPE(s.tokens, s.heads / n, s.kv_heads * copies / n, s.head_dim);
    int64_t q = part.heads * dim, kv = part.kv_heads * dim, key = r / copies * kv,
            mine = rows.splits / n * t * 2;
    Columns in = {3, {r * q, s.heads * dim + key, (s.heads + s.kv_heads) * dim + key}, {q, kv, kv}};
    void *raw2 = columns_of(raw, t, wide, &in, c), *grad = columns_of(dout, t, wide, &in, c),
         *out = tensor(t * (q + 2 * kv), c);
    float *sums = tensor(mine, DTYPE_F32), *dq = tensor(q, DTYPE_F32), *dk = tensor(kv, DTYPE_F32);
    const float *wq = w[0] + r * q, *wk = w[1] + key;
    KSplit l = row_splits(s, rows.splits, n, r);
    RUN(d, qk_norm_sums, part, l, NORM_RMS, raw2, wq, wk, NULL, sums, c);
    assert_bits("squares of a rank's splits", d, sums, rows.squares + r * mine, mine, DTYPE_F32);
    RUN(d, qk_norm_sums, part, l, NORM_RMS, raw2, wq, wk, grad, sums, c);
    assert_bits("products of a rank's splits", d, sums, rows.products + r * mine, mine, DTYPE_F32);
    RUN(d, qk_norm_forward, part, rows, NORM_RMS, 1e-5f, raw2, wq, wk, out, c);
    assert_columns(d, "norm of rows", want[0], t, wide, &in, out, c);
    RUN(d, qk_norm_backward, part, rows, NORM_RMS, 1e-5f, raw2, wq, wk, grad, dq, dk, 1, c);
    assert_columns(d, "gradient of normed rows", want[1], t, wide, &in, grad, c);
    assert_bits("dw of a rank's queries", d, dq, dw[0] + r * q, q, DTYPE_F32);
    assert_bits("dw of a rank's keys", d, dk, dw[1] + key, kv, DTYPE_F32);
}

/* Norms over all heads of a token, which are sharded over ranks. Sums of a rank's splits equal those computed
 * with all heads, and given the sums of all ranks, a rank norms its heads as if it had all. The same holds
 * for some of the tokens. */
static void check_normed_rows(Device *d, AttentionShape s, const void *raw, const void *dout, Dtype c) {
    enum { FROM = 21 };
    int64_t dim = s.head_dim, wide = (s.heads + 2 * (int64_t)s.kv_heads) * dim, t = s.tokens,
            q = s.heads * dim, k = s.kv_heads * dim;
    int splits = s.heads;
    float *wq = random_tensor(q, DTYPE_F32, 0.5, 1.5), *wk = random_tensor(k, DTYPE_F32, 0.5, 1.5),
          *dq = tensor(q, DTYPE_F32), *dk = tensor(k, DTYPE_F32),
          *squares = tensor(splits * t * 2, DTYPE_F32), *products = tensor(splits * t * 2, DTYPE_F32);
    void *out = tensor(t * wide, c), *grad = copy_of(dout, t * wide, c), *out2 = tensor(t * wide, c);
    QkRows rows = {true, splits, t, q, k, squares, products};
    KSplit l = row_splits(s, splits, 1, 0);
    RUN(d, qk_norm_sums, s, l, NORM_RMS, raw, wq, wk, NULL, squares, c);
    RUN(d, qk_norm_sums, s, l, NORM_RMS, raw, wq, wk, grad, products, c);
    RUN(d, qk_norm_forward, s, rows, NORM_RMS, 1e-5f, raw, wq, wk, out, c);
    RUN(d, qk_norm_backward, s, rows, NORM_RMS, 1e-5f, raw, wq, wk, grad, dq, dk, 1, c);
    for (int n = 2; n <= splits; n *= 2)
        for (int r = 0; r < n; r++)
            check_rows_of(d, s, n, r, rows, raw, dout, (const float *[]){wq, wk}, (const void *[]){out, grad},
                          (const float *[]){dq, dk}, c);
    AttentionShape some = s;
    some.tokens = s.tokens - FROM;
    rows.squares += 2 * FROM, rows.products += 2 * FROM;
    RUN(d, qk_norm_forward, some, rows, NORM_RMS, 1e-5f, tensor_at(raw, FROM * wide, c), wq, wk, out2, c);
    assert_box(d, "norm of some tokens' rows", out, wide, FROM, 0, out2, t - FROM, wide, c);
    void *grad2 = copy_of(tensor_at(dout, FROM * wide, c), (t - FROM) * wide, c);
    RUN(d, qk_norm_backward, some, rows, NORM_RMS, 1e-5f, tensor_at(raw, FROM * wide, c), wq, wk, grad2, dq,
        dk, 1, c);
    assert_box(d, "gradient of some tokens' rows", grad, wide, FROM, 0, grad2, t - FROM, wide, c);
}

/* With more splits than key heads, a head's gradient is in the row of its first split; its other rows stay
 * zero. */
static void check_fewer_heads(Device *d, AttentionShape s, const void *raw, const void *dout, Dtype c) {
    int64_t dim = s.head_dim, wide = (s.heads + 2 * (int64_t)s.kv_heads) * dim, t = s.tokens;
    int each = s.heads / s.kv_heads;
    float *w = random_tensor(dim, DTYPE_F32, 0.5, 1.5), *dk[2], *dq = tensor(s.heads * dim, DTYPE_F32);
    void *grad[2];
    for (int i = 0; i < 2; i++) {
        dk[i] = tensor(s.heads * dim, DTYPE_F32), grad[i] = copy_of(dout, t * wide, c);
        memset(dk[i], 0, (size_t)(s.heads * dim) * sizeof(float));
        RUN(d, qk_norm_backward, s, qk_rows(false), NORM_RMS, 1e-5f, raw, w, w, grad[i], dq, dk[i],
            i ? s.heads : s.kv_heads, c);
    }
    assert_bits("gradient of normed heads", d, grad[1], grad[0], t * wide, c);
    for (int i = 0; i < s.heads; i++)
        if (i % each == 0)
            assert_bits("dw of fewer keys", d, dk[1] + i * dim, dk[0] + i / each * dim, dim, DTYPE_F32);
        else
            for (int k = 0; k < dim; k++) assert_true(dk[1][i * dim + k] == 0);
}

/* Query heads that share a key head, on several ranks that each have a replica of it: a rank's result equals
 * its slice of one call in which each query head has its own copy of the key head. */
static void check_shared_keys(Device *d, AttentionShape s, const void *qkv, const void *dout,
                              const int32_t *first, Dtype c) {
    int64_t dim = s.head_dim, query = s.heads * dim, t = s.tokens;
    AttentionRun all = attention_whole(s);
    AttentionShape spread = s, one = s;
    one.heads = one.kv_heads = 1;
    AttentionRun wide = {0, t, all.q_row, 2 * query, true}, own = {0, t, 3 * dim, 3 * dim, true};
    char *copies = tensor(t * 2 * query, c);
    void *out = tensor(t * query, c), *dq = tensor(t * all.q_row, c);
    float *lse = tensor(t * s.heads, DTYPE_F32), *terms = tensor(t * 2 * query, DTYPE_F32);
    size_t bytes = (size_t)dim * dtype_bytes(c);
    int each = s.heads / s.kv_heads;
    for (int i = 0; i < 2 * s.heads; i++)
        RUN(d, copy_rows, t, bytes, copies + (size_t)i * bytes, (size_t)(2 * s.heads) * bytes,
            tensor_at(qkv, query + i / each * dim, c), (size_t)all.q_row * dtype_bytes(c));
    spread.kv_heads = s.heads;
    RUN(d, attention_forward, s, all, qkv, tensor_at(qkv, query, c), first, out, lse, c);
    RUN(d, attention_backward, spread, wide, qkv, copies, first, out, lse, dout, dq, terms, c);
    for (int h = 0; h < s.heads; h++) {
        Columns in = {
            3, {h * dim, query + h / each * dim, query + (s.kv_heads + h / each) * dim}, {dim, dim, dim}};
        Columns res = {1, {h * dim}, {dim}}, kv = {2, {h * dim, query + h * dim}, {dim, dim}};
        void *part = columns_of(qkv, t, all.q_row, &in, c), *dpart = columns_of(dout, t, query, &res, c);
        void *out2 = tensor(t * dim, c), *dq2 = tensor(t * 3 * dim, c);
        float *lse2 = tensor(t, DTYPE_F32), *terms2 = tensor(t * 2 * dim, DTYPE_F32);
        RUN(d, attention_forward, one, own, part, tensor_at(part, dim, c), first, out2, lse2, c);
        RUN(d, attention_backward, one, own, part, tensor_at(part, dim, c), first, out2, lse2, dpart, dq2,
            terms2, c);
        assert_columns(d, "attention of shared keys", out, t, query, &res, out2, c);
        assert_columns(d, "queries of shared keys", dq, t, all.q_row, &res,
                       columns_of(dq2, t, 3 * dim, &(Columns){1, {0}, {dim}}, c), c);
        assert_columns(d, "terms of shared keys", terms, t, 2 * query, &kv, terms2, DTYPE_F32);
    }
}

static void check_heads(Device *d, Dtype c) {
    static const AttentionShape shapes[] = {
        SHAPE(133, 8, 8, 20),
        SHAPE(70, 8, 4, 40),
        SHAPE(65, 4, 4, 64),
        SHAPE(150, 4, 4, 16),
        SHAPE(133, 8, 4, 48),
        {.tokens = 150, .heads = 8, .kv_heads = 4, .head_dim = 20, .chunk = 47, .neighbours = true}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        AttentionShape s = shapes[i];
        keep_scratch(d, c, s.tokens, 2, s);
        int64_t t = s.tokens, wide = (s.heads + 2 * (int64_t)s.kv_heads) * s.head_dim;
        void *qkv = random_tensor(t * wide, c, -2, 2), *rotated = copy_of(qkv, t * wide, c);
        void *dout = random_tensor(t * s.heads * s.head_dim, c, -1, 1);
        int32_t *first = tensor(t, DTYPE_F32), *positions = random_ints(t, 50);
        float *angles = random_tensor(50 * s.head_dim, DTYPE_F32, -1, 1);
        for (int64_t k = 0; k < t; k++) first[k] = k < 30 ? 0 : 30;
        check_normed_heads(d, s, qkv, random_tensor(t * wide, c, -1, 1), c);
        check_normed_rows(d, s, qkv, random_tensor(t * wide, c, -1, 1), c);
        Attended whole = attend(d, s, rotated, dout, first, positions, angles, c);
        for (int n = 2; n <= s.kv_heads; n *= 2)
            check_heads_of(d, s, n, n - 1, qkv, dout, &whole, first, positions, angles, c);
        check_runs(d, s, qkv, dout, first, c);
        check_shared_keys(d, s, qkv, dout, first, c);
        check_fewer_heads(d, s, qkv, random_tensor(t * wide, c, -1, 1), c);
        drop_all();
    }
}
static void test_heads(void **state) { (void)state, check_all(check_heads); }

typedef struct LatentGradients {
    void *q, *own, *key; /* key: fp32 partial sums */
} LatentGradients;

static LatentGradients latent_gradients(Device *d, LatentShape s, const void *dqkv, const int32_t *positions,
                                        const float *angles, Dtype c) {
    int64_t t = s.tokens, q = s.heads * latent_head(s), own = s.heads * (int64_t)(s.nope + s.value);
    LatentGradients g = {tensor(t * q, c), tensor(t * own, c), tensor(t * s.rope, DTYPE_F32)};
    s.q_row = q, s.key_row = s.rope, s.partial = true;
    RUN(d, latent_backward, s, dqkv, positions, angles, g.q, g.own, g.key, c);
    return g;
}

/* Ranks that have the heads of some splits each: their slices, and the sum of their partial gradients of the
 * shared key, which after rounding equals the result of one rank with all heads. */
static void check_latent_heads(Device *d, Dtype c) {
    LatentShape all = {.tokens = 37, .heads = SPLITS, .nope = 5, .rope = 6, .value = 7, .splits = SPLITS};
    int64_t t = all.tokens, dim = latent_head(all), width = all.heads * dim, own = all.nope + all.value;
    keep_product_scratch(d, c);
    void *dqkv = random_tensor(t * 3 * width, c, -2, 2), *rounded = tensor(t * all.rope, c);
    int32_t *positions = random_ints(t, 50);
    float *angles = random_tensor(50 * all.rope, DTYPE_F32, -1, 1), *sum = tensor(t * all.rope, DTYPE_F32);
    LatentGradients whole = latent_gradients(d, all, dqkv, positions, angles, c);
    for (int i = 0; i < DEGREES; i++) {
        int n = degrees[i];
        LatentShape s = all;
        const float *terms[SPLITS];
        s.heads /= n, s.splits /= n;
        int64_t q = s.heads * dim, mine = s.heads * own;
        for (int r = 0; r < n; r++) {
            Columns in = {3, {r * q, width + r * q, 2 * width + r * q}, {q, q, q}};
            LatentGradients g =
                latent_gradients(d, s, columns_of(dqkv, t, 3 * width, &in, c), positions, angles, c);
            assert_box(d, "queries of latent heads", whole.q, width, 0, r * q, g.q, t, q, c);
            assert_box(d, "keys and values of latent heads", whole.own, SPLITS * own, 0, r * mine, g.own, t,
                       mine, c);
            terms[r] = g.key;
        }
        RUN(d, sum_partials, t * all.rope, n, terms, sum);
        assert_box(d, "the common key of latent heads", whole.key, all.rope, 0, 0, sum, t, all.rope,
                   DTYPE_F32);
    }
    RUN(d, cast, t * all.rope, sum, DTYPE_F32, rounded, c);
    all.q_row = width, all.key_row = all.rope;
    RUN(d, latent_backward, all, dqkv, positions, angles, whole.q, whole.own, whole.key, c);
    assert_box(d, "the common key, rounded", whole.key, all.rope, 0, 0, rounded, t, all.rope, c);
    drop_all();
}
static void test_latent_heads(void **state) { (void)state, check_all(check_latent_heads); }

/* All gates before all ups, or interleaved (ACT_CLAMPED). */
static void check_gated(Device *d, Activation f, Dtype c) {
    enum { T = 37, INTER = 168 };
    bool clamped = f == ACT_CLAMPED;
    float most = clamped ? 9 : 4;
    void *gate_up = random_tensor(T * 2 * INTER, c, -most, most), *dact = random_tensor(T * INTER, c, -1, 1);
    void *act = tensor(T * INTER, c), *again = tensor(T * INTER, c), *grad = tensor(T * 2 * INTER, c);
    RUN(d, activation_forward, f, true, T, INTER, gate_up, act, c);
    RUN(d, activation_backward, f, true, T, INTER, gate_up, dact, grad, again, c);
    for (int n = 2; n <= 8; n *= 2) {
        int64_t each = INTER / n, r = n - 1;
        Columns apart = {2, {r * each, INTER + r * each}, {each, each}},
                pairs = {1, {r * 2 * each}, {2 * each}}, in = clamped ? pairs : apart,
                out = {1, {r * each}, {each}};
        void *part = columns_of(gate_up, T, 2 * INTER, &in, c), *dpart = columns_of(dact, T, INTER, &out, c);
        void *act2 = tensor(T * each, c), *grad2 = tensor(T * 2 * each, c);
        RUN(d, activation_forward, f, true, T, each, part, act2, c);
        assert_columns(d, "gated", act, T, INTER, &out, act2, c);
        RUN(d, activation_backward, f, true, T, each, part, dpart, grad2, act2, c);
        assert_columns(d, "gated gradient", grad, T, 2 * INTER, &in, grad2, c);
        assert_columns(d, "gated again", again, T, INTER, &out, act2, c);
    }
    drop_all();
}
static void check_mlp(Device *d, Dtype c) { check_gated(d, ACT_SILU, c), check_gated(d, ACT_CLAMPED, c); }
static void test_mlp(void **state) { (void)state, check_all(check_mlp); }

/* ---- recurrences: slices of channels, and single documents ---- */

enum { SCAN_T = 150, SCAN_W = 168, SCAN_LAST = 97 }; /* tokens, channels, first token of the last document */

/* Inputs or outputs of a slice of tokens and channels. With two gates, a token has two rows of W of them. */
typedef struct Scan {
    int64_t t, first, tokens, width;
    void *gates, *values, *gate, *dout;
    float *lambda, *w, *h;
    void *conv;
} Scan;

/* first_key of tokens from t on; the last document begins at `last`. */
static int32_t *scan_documents(int64_t last, int64_t t, int64_t tokens) {
    int32_t *first = tensor(tokens, DTYPE_F32);
    for (int64_t u = t; u < t + tokens; u++)
        first[u - t] = (int32_t)((u < 30 ? 0 : u < 31 ? 30 : u < last ? 31 : last) - t);
    return first;
}

static Scan scan_whole(int64_t gates, Dtype c) {
    enum { N = SCAN_T * SCAN_W };
    return (Scan){.tokens = SCAN_T,
                  .width = SCAN_W,
                  .gates = random_tensor(gates * N, c, -2, 2),
                  .values = random_tensor(N, c, -1, 1),
                  .gate = random_tensor(N, c, -2, 2),
                  .dout = random_tensor(N, c, -1, 1),
                  .lambda = random_tensor(SCAN_W, DTYPE_F32, -6, 0),
                  .w = random_tensor(CONV_TAPS * SCAN_W, DTYPE_F32, -1, 1)};
}

static Scan scan_box(const Scan *of, int64_t gates, int64_t t, int64_t first, Dtype c) {
    int64_t tokens = SCAN_T - t, width = SCAN_W - first;
    return (Scan){.t = t,
                  .first = first,
                  .tokens = tokens,
                  .width = width,
                  .gates = box_of(of->gates, SCAN_W, gates * t, first, gates * tokens, width, c),
                  .values = box_of(of->values, SCAN_W, t, first, tokens, width, c),
                  .gate = box_of(of->gate, SCAN_W, t, first, tokens, width, c),
                  .dout = box_of(of->dout, SCAN_W, t, first, tokens, width, c),
                  .lambda = box_of(of->lambda, SCAN_W, 0, first, 1, width, DTYPE_F32),
                  .w = box_of(of->w, SCAN_W, 0, first, CONV_TAPS, width, DTYPE_F32)};
}

/* Forward and backward; values also go through a convolution. */
static Scan scan_of(Device *d, ScanKind kind, int64_t gates, const Scan *in, Dtype c) {
    int64_t n = in->tokens * in->width;
    ScanShape s = {in->tokens, in->width, gates * in->width, in->width, in->width, kind};
    ConvShape conv = {in->tokens, in->width, in->width, CONV_TAPS};
    float *lambda = kind == SCAN_HAWK ? in->lambda : NULL;
    int32_t *first = scan_documents(SCAN_LAST, in->t, in->tokens);
    Scan out = *in;
    out.gates = tensor(gates * n, c), out.values = tensor(n, c), out.gate = tensor(n, c);
    out.dout = tensor(n, c), out.conv = tensor(n, c), out.h = tensor(n, DTYPE_F32);
    out.lambda = tensor(in->width, DTYPE_F32), out.w = tensor(CONV_TAPS * in->width, DTYPE_F32);
    RUN(d, fill, in->width, 0, out.lambda);
    RUN(d, fill, CONV_TAPS * in->width, 0, out.w);
    ScanInputs read = {in->gates, in->values, in->gate, lambda};
    ScanGradients to = {out.gates, out.values, out.gate, lambda ? out.lambda : NULL};
    RUN(d, scan_forward, s, read, first, NULL, out.h, c);
    RUN(d, scan_backward, s, read, first, out.h, in->dout, to, c);
    RUN(d, conv_forward, conv, in->values, in->w, first, NULL, out.conv, c);
    RUN(d, conv_backward, conv, in->values, in->w, first, in->dout, out.dout, out.w, c);
    return out;
}

static void check_scan_box(Device *d, ScanKind kind, int64_t gates, const Scan *in, const Scan *whole,
                           int64_t t, int64_t first, Dtype c) {
    Scan from = scan_box(in, gates, t, first, c), box = scan_of(d, kind, gates, &from, c);
    int64_t tokens = box.tokens, width = box.width;
    assert_box(d, "states", whole->h, SCAN_W, t, first, box.h, tokens, width, DTYPE_F32);
    if (first > 0) assert_false(same_box(whole->h, SCAN_W, t, first - 1, box.h, tokens, width, DTYPE_F32));
    assert_box(d, "gates", whole->gates, SCAN_W, gates * t, first, box.gates, gates * tokens, width, c);
    assert_box(d, "values", whole->values, SCAN_W, t, first, box.values, tokens, width, c);
    assert_box(d, "gate", whole->gate, SCAN_W, t, first, box.gate, tokens, width, c);
    assert_box(d, "convolved", whole->conv, SCAN_W, t, first, box.conv, tokens, width, c);
    assert_box(d, "convolution's dx", whole->dout, SCAN_W, t, first, box.dout, tokens, width, c);
    if (t > 0) return; /* the rest are sums over tokens */
    assert_box(d, "lambda", whole->lambda, SCAN_W, 0, first, box.lambda, 1, width, DTYPE_F32);
    assert_box(d, "taps", whole->w, SCAN_W, 0, first, box.w, CONV_TAPS, width, DTYPE_F32);
}

static void check_recurrences(Device *d, Dtype c) {
    for (int kind = 0; kind < SCAN_KINDS; kind++) {
        int64_t gates = kind == SCAN_MIN_GRU ? 1 : 2;
        keep_product_scratch(d, c);
        Scan in = scan_whole(gates, c), whole = scan_of(d, (ScanKind)kind, gates, &in, c);
        for (int i = 1; i < DEGREES; i++)
            check_scan_box(d, (ScanKind)kind, gates, &in, &whole, 0, SCAN_W - SCAN_W / degrees[i], c);
        check_scan_box(d, (ScanKind)kind, gates, &in, &whole, SCAN_LAST, 0, c);
        drop_all();
    }
}
static void test_recurrences(void **state) { (void)state, check_all(check_recurrences); }

/* Slices are the second of two groups, and the last document, whose sums over tokens are cut the same way
 * without the others. x, B, C and dt keep their positions in the full
 * rows. */
enum { MAMBA_HEADS = 4, MAMBA_P = 5, MAMBA_N = 40, MAMBA_X = MAMBA_HEADS * MAMBA_P };
enum { MAMBA_ROW = MAMBA_X + 4 * MAMBA_N };
typedef struct Mamba {
    void *read, *dt, *y; /* y: output, or its gradient */
    float *heads;
} Mamba;

static MambaGradients mamba_part(Mamba m, int64_t t, int64_t head, Dtype c) {
    int64_t B = MAMBA_X + head / 2 * MAMBA_N;
    void *row = tensor_to(m.read, t * MAMBA_ROW, c);
    float *heads = m.heads + head;
    return (MambaGradients){tensor_to(row, head * MAMBA_P, c),
                            tensor_to(row, B, c),
                            tensor_to(row, B + 2 * MAMBA_N, c),
                            tensor_to(m.dt, t * MAMBA_HEADS + head, c),
                            heads,
                            heads + MAMBA_HEADS,
                            heads + 2 * MAMBA_HEADS};
}

/* Tokens from t on, heads from `head` on. */
static Mamba mamba_of(Device *d, Mamba from, int64_t last, int64_t t, int64_t head, Dtype c) {
    int64_t tokens = SCAN_T - t, heads = MAMBA_HEADS - head, width = heads * MAMBA_P;
    MambaShape s = {tokens, heads, heads / 2, MAMBA_P, MAMBA_N, MAMBA_ROW, MAMBA_HEADS};
    MambaGradients at = mamba_part(from, t, head, c);
    MambaInputs in = {at.x, at.B, at.C, at.dt, at.dt_bias, at.A_log, at.D};
    Mamba out = {tensor(SCAN_T * MAMBA_ROW, c), tensor(SCAN_T * MAMBA_HEADS, c), tensor(tokens * width, c),
                 tensor(3 * MAMBA_HEADS, DTYPE_F32)};
    float *starts = tensor(mamba_starts(tokens) * width * MAMBA_N, DTYPE_F32),
          *carry = tensor(width * MAMBA_N, DTYPE_F32),
          *scratch =
              tensor(mamba_scratch_rows(tokens) * mamba_scratch_row(heads, heads / 2, MAMBA_N), DTYPE_F32);
    int32_t *first = scan_documents(last, t, tokens);
    void *dy = box_of(from.y, MAMBA_X, t, head * MAMBA_P, tokens, width, c);
    RUN(d, fill, 3 * MAMBA_HEADS, 0, out.heads);
    RUN(d, mamba_forward, s, in, first, NULL, starts, out.y, c);
    RUN(d, mamba_backward, s, in, first, starts, dy, carry, scratch, mamba_part(out, t, head, c), c);
    return out;
}

static void check_mamba_part(Device *d, Mamba from, Mamba whole, int64_t last, int64_t t, int64_t head,
                             Dtype c) {
    int64_t tokens = SCAN_T - t, groups = MAMBA_ROW - 4 * MAMBA_N, first = head * MAMBA_P;
    Mamba part = mamba_of(d, from, last, t, head, c);
    assert_box(d, "mamba", whole.y, MAMBA_X, t, first, part.y, tokens, MAMBA_X - first, c);
    for (int64_t i = 0; i < 5; i++) { /* x; B and C of both groups */
        int64_t at = i == 0 ? first : groups + (i - 1) * MAMBA_N, n = i == 0 ? MAMBA_X - first : MAMBA_N;
        if (head > 0 && i % 2 == 1) continue; /* of the first group */
        assert_box(d, "mamba's gradients", whole.read, MAMBA_ROW, t, at,
                   box_of(part.read, MAMBA_ROW, t, at, tokens, n, c), tokens, n, c);
    }
    int64_t heads = MAMBA_HEADS - head;
    assert_box(d, "mamba's steps", whole.dt, MAMBA_HEADS, t, head,
               box_of(part.dt, MAMBA_HEADS, t, head, tokens, heads, c), tokens, heads, c);
    if (t == 0)
        assert_box(d, "mamba's heads", whole.heads, MAMBA_HEADS, 0, head,
                   box_of(part.heads, MAMBA_HEADS, 0, head, 3, heads, DTYPE_F32), 3, heads, DTYPE_F32);
}

static void check_mamba(Device *d, Dtype c) {
    keep_product_scratch(d, c);
    Mamba from = {random_tensor(SCAN_T * MAMBA_ROW, c, -1, 1), random_tensor(SCAN_T * MAMBA_HEADS, c, -3, 1),
                  random_tensor(SCAN_T * MAMBA_X, c, -1, 1),
                  random_tensor(3 * MAMBA_HEADS, DTYPE_F32, -1, 1)};
    /* The last document begins with a chunk of the call; or, where chunks count from a document's first token
     * (not in the reference and on GPUs), anywhere. */
    const int64_t lasts[] = {MAMBA_CHUNK, SCAN_LAST};
    bool by_document = strcmp(d->name, "reference") != 0 && !d->separate_memory;
    for (int i = 0; i < (by_document ? 2 : 1); i++) {
        Mamba whole = mamba_of(d, from, lasts[i], 0, 0, c);
        check_mamba_part(d, from, whole, lasts[i], 0, MAMBA_HEADS / 2, c);
        check_mamba_part(d, from, whole, lasts[i], lasts[i], 0, c);
        check_mamba_part(d, from, whole, lasts[i], lasts[i], MAMBA_HEADS / 2, c);
    }
    drop_all();
}
/* Inputs of a gated norm, or their gradients; dy: gradient of the output, or the output. */
typedef struct Gated {
    void *x, *gate, *dy;
    float *w;
} Gated;
enum { GATED_T = 37, GATED_RUN = 42, GATED_W = 8 * GATED_RUN };
static Gated gated_of(Device *d, Gated from, int64_t first, Dtype c) {
    int64_t width = GATED_W - first;
    GatedNorm s = {GATED_T, width, GATED_RUN, width, 1e-5f};
    void *x = box_of(from.x, GATED_W, 0, first, GATED_T, width, c),
         *gate = box_of(from.gate, GATED_W, 0, first, GATED_T, width, c),
         *dy = box_of(from.dy, GATED_W, 0, first, GATED_T, width, c), *y = tensor(GATED_T * width, c);
    float *w = box_of(from.w, GATED_W, 0, first, 1, width, DTYPE_F32);
    Gated out = {tensor(GATED_T * width, c), tensor(GATED_T * width, c), y, tensor(width, DTYPE_F32)};
    RUN(d, fill, width, 0, out.w);
    RUN(d, gated_norm_forward, s, x, gate, w, y, c);
    RUN(d, gated_norm_backward, s, x, gate, w, dy, out.x, out.gate, out.w, c);
    return out;
}

static void check_gated_norm(Device *d, Dtype c) {
    enum { N = GATED_T * GATED_W, FIRST = 3 * GATED_RUN, WIDTH = GATED_W - FIRST };
    keep_product_scratch(d, c);
    Gated from = {random_tensor(N, c, -2, 2), random_tensor(N, c, -2, 2), random_tensor(N, c, -1, 1),
                  random_tensor(GATED_W, DTYPE_F32, -1, 1)},
          whole = gated_of(d, from, 0, c), part = gated_of(d, from, FIRST, c);
    assert_box(d, "gated norm", whole.dy, GATED_W, 0, FIRST, part.dy, GATED_T, WIDTH, c);
    assert_box(d, "gated norm's dx", whole.x, GATED_W, 0, FIRST, part.x, GATED_T, WIDTH, c);
    assert_box(d, "its gate's gradient", whole.gate, GATED_W, 0, FIRST, part.gate, GATED_T, WIDTH, c);
    assert_box(d, "its weight's", whole.w, GATED_W, 0, FIRST, part.w, 1, WIDTH, DTYPE_F32);
    drop_all();
}
static void test_mamba(void **state) { (void)state, check_all(check_mamba), check_all(check_gated_norm); }

/* ---- the vocabulary ---- */

enum { ROWS = 9, VOCAB = 1003, VOCAB_SPLIT_SIZE = 126 }; /* the last split has 121 */

/* Slices of an embedding's rows: rows that are not local give -0, and -0 + x is x, also if x is -0. */
static void check_embedding(Device *d, Dtype c) {
    enum { T = 70, H = 21, WORDS = 29, FIRST = 13 };
    int32_t *ids = random_ints(T, WORDS);
    void *table = random_tensor(WORDS * H, c, -1, 1), *whole = tensor(T * H, c);
    void *dout = random_tensor(T * H, c, -1, 1);
    float *dtable = random_tensor(WORDS * H, DTYPE_F32, -1, 1),
          *dwhole = copy_of(dtable, WORDS * H, DTYPE_F32);
    for (int i = 0; i < WORDS * H; i += 5) tensor_set(table, i, c, i % 2 ? -0.0f : 0.0f);
    RUN(d, embed_forward, T, H, ids, table, ALL_ROWS, 1.5f, false, whole, c);
    RUN(d, embed_backward, T, H, ids, dout, ALL_ROWS, 1.5f, dwhole, c);
    const float *terms[2];
    for (int r = 0; r < 2; r++) {
        EmbedRows rows = {r * FIRST, r ? WORDS - FIRST : FIRST};
        int64_t at = rows.first * H, count = rows.count * H;
        void *part = tensor(T * H, c);
        float *wide = tensor(T * H, DTYPE_F32), *dpart = tensor(count, DTYPE_F32);
        memcpy(dpart, dtable + at, (size_t)count * sizeof *dpart);
        RUN(d, embed_forward, T, H, ids, tensor_at(table, at, c), rows, 1.5f, false, part, c);
        RUN(d, embed_backward, T, H, ids, dout, rows, 1.5f, dpart, c);
        RUN(d, cast, T * H, part, c, wide, DTYPE_F32);
        assert_bits("rows of an embedding's gradient", d, dpart, dwhole + at, count, DTYPE_F32);
        terms[r] = wide;
    }
    float *sum = tensor(T * H, DTYPE_F32);
    void *got = tensor(T * H, c);
    RUN(d, sum_partials, T * H, 2, terms, sum);
    RUN(d, cast, T * H, sum, DTYPE_F32, got, c);
    assert_bits("rows of an embedding", d, got, whole, T * H, c);
    drop_all();
}
static void test_embedding(void **state) { (void)state, check_all(check_embedding); }

typedef struct Loss {
    void *logits;
    Dtype type, grad_type;
    int32_t *targets;
    float *loss, *z_loss;
    void *grad;
} Loss;

/* Records of all splits, made on `ranks` ranks. */
static LossRecord *all_records(Device *d, const Loss *l, int ranks, int64_t split_size) {
    int64_t each = SPLITS / ranks;
    LossRecord *records = tensor(SPLITS * ROWS * (int64_t)sizeof *records / 4, DTYPE_F32);
    for (int64_t r = 0; r < ranks; r++) {
        int64_t first = r * each * split_size, count = min_i64(VOCAB, first + each * split_size) - first;
        RUN(d, loss_records, ROWS, count, box_of(l->logits, VOCAB, 0, first, ROWS, count, l->type), l->type,
            l->targets, (VocabSplit){.first = first, .split_size = split_size, .count = SPLITS},
            records + r * each * ROWS);
    }
    return records;
}

static void check_loss_on(Device *d, const Loss *l, int ranks) {
    int64_t each = SPLITS / ranks;
    const LossRecord *records = all_records(d, l, ranks, VOCAB_SPLIT_SIZE);
    const float eighth = 0.125f, *scale = COPY_OF(eighth);
    for (int64_t r = 0; r < ranks; r++) {
        int64_t first = r * each * VOCAB_SPLIT_SIZE,
                count = min_i64(VOCAB, first + each * VOCAB_SPLIT_SIZE) - first;
        float *loss = tensor(ROWS, DTYPE_F32), *z_loss = tensor(ROWS, DTYPE_F32);
        void *grad = tensor(ROWS * count, l->grad_type);
        RUN(d, cross_entropy, ROWS, count, box_of(l->logits, VOCAB, 0, first, ROWS, count, l->type), l->type,
            l->targets, (VocabSplit){first, VOCAB_SPLIT_SIZE, SPLITS, records}, scale, 0, 0.25f, loss, z_loss,
            grad, l->grad_type);
        assert_bits("loss of a slice", d, loss, l->loss, ROWS, DTYPE_F32);
        assert_bits("z-loss of a slice", d, z_loss, l->z_loss, ROWS, DTYPE_F32);
        assert_box(d, "gradient of a slice of logits", l->grad, VOCAB, 0, first, grad, ROWS, count,
                   l->grad_type);
    }
}

static void check_loss_types(Device *d, Dtype type, Dtype grad_type) {
    Loss l = {.logits = random_tensor(ROWS * VOCAB, type, -12, 12),
              .type = type,
              .grad_type = grad_type,
              .targets = random_ints(ROWS, VOCAB),
              .loss = tensor(ROWS, DTYPE_F32),
              .z_loss = tensor(ROWS, DTYPE_F32),
              .grad = tensor(ROWS * VOCAB, grad_type)};
    const float eighth = 0.125f, *scale = COPY_OF(eighth);
    l.targets[1] = -1, l.targets[2] = 0, l.targets[3] = VOCAB - 1, l.targets[4] = VOCAB_SPLIT_SIZE;
    RUN(d, cross_entropy, ROWS, VOCAB, l.logits, type, l.targets,
        (VocabSplit){.split_size = VOCAB_SPLIT_SIZE}, scale, 0, 0.25f, l.loss, l.z_loss, l.grad, grad_type);
    for (int i = 0; i < DEGREES; i++) check_loss_on(d, &l, degrees[i]);
    /* With splits of another length the sums differ. */
    LossRecord *records = all_records(d, &l, 1, VOCAB_SPLIT_SIZE),
               *moved = all_records(d, &l, 1, VOCAB_SPLIT_SIZE + 1);
    assert_memory_not_equal(records, moved, sizeof *records * ROWS);
    drop_all();
}

static void check_loss(Device *d, Dtype c) {
    check_loss_types(d, DTYPE_F32, c);
    if (c != DTYPE_F32) check_loss_types(d, c, c);
}
static void test_loss(void **state) { (void)state, check_all(check_loss); }

int main(int argc, char **argv) {
    only = argc > 1 ? argv[1] : NULL;
    if (argc > 2) cmocka_set_test_filter(argv[2]);
    unsetenv("WEFT_DEFER");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_splits),
        cmocka_unit_test(test_expert_products),
        cmocka_unit_test(test_sources_of_experts),
        cmocka_unit_test(test_weights_of_experts),
        cmocka_unit_test(test_biases_of_experts),
        cmocka_unit_test(test_weights_of_inputs),
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_latent_heads),
        cmocka_unit_test(test_mlp),
        cmocka_unit_test(test_recurrences),
        cmocka_unit_test(test_mamba),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_embedding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
