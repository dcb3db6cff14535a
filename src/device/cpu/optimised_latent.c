/* Heads of latent attention on threads: a pass over rows of tokens, at memory speed. */
#include "base/tree.h"
#include "device/cpu/optimised.h"

enum { COLUMNS = 256 }; /* of a head that are rotated at a time, in fp32 on the stack */

/* Rotates elements first .. first+count-1, which are in x. */
static void rotate_pairs(const Rotation *by, int64_t first, int64_t count, float *x) {
    const float *cosine = by->angles + first / 2, *sine = cosine + by->n / 2;
    for (int64_t i = 0; i < count / 2; i++) {
        float u = x[2 * i], v = x[2 * i + 1], sn = by->sign * sine[i];
        x[2 * i] = u * cosine[i] - v * sn;
        x[2 * i + 1] = v * cosine[i] + u * sn;
    }
}

void rotate_neighbours(const Device *d, const Rotation *by, const void *from, void *to, Dtype c) {
    for (int64_t first = 0; first < by->n; first += COLUMNS) {
        float x[COLUMNS];
        int64_t count = min_i64(COLUMNS, by->n - first);
        kernels_of(d)->cast(count, tensor_at(from, first, c), c, x, DTYPE_F32);
        rotate_pairs(by, first, count, x);
        kernels_of(d)->cast(count, x, DTYPE_F32, tensor_to(to, first, c), c);
    }
}

/* Elements first .. first+n-1 of a token's shared gradient, which is rotated back. */
typedef struct SharedPart {
    const LatentBackwardArgs *o;
    Rotation back;
    int64_t first, n;
} SharedPart;

/* For each split, the sum over its heads in order, rotated back; then the tree of the splits. */
static void shared_sum(const Device *d, const SharedPart *p, const void *heads, int splits, float *sum) {
    const LatentShape *s = &p->o->s;
    int64_t dim = latent_head(*s), each = s->heads / latent_splits(*s);
    float x[COLUMNS];
    Dtype c = p->o->c;
    if (splits > 1) {
        int half = tree_half(splits);
        shared_sum(d, p, heads, half, sum);
        shared_sum(d, p, tensor_at(heads, half * each * dim, c), splits - half, x);
        for (int64_t i = 0; i < p->n; i++) sum[i] += x[i];
        return;
    }
    kernels_of(d)->cast(p->n, tensor_at(heads, p->first, c), c, sum, DTYPE_F32);
    for (int64_t k = 1; k < each; k++) {
        kernels_of(d)->cast(p->n, tensor_at(heads, k * dim + p->first, c), c, x, DTYPE_F32);
        for (int64_t i = 0; i < p->n; i++) sum[i] += x[i];
    }
    rotate_pairs(&p->back, p->first, p->n, sum);
}

/* heads: the last elements of the gradients of token t's keys. */
static void shared_gradient(const Device *d, const LatentBackwardArgs *o, int64_t t, const Rotation *back,
                            const void *heads) {
    Dtype type = o->s.partial ? DTYPE_F32 : o->c;
    for (int64_t first = 0; first < o->s.rope; first += COLUMNS) {
        float sum[COLUMNS];
        const SharedPart p = {o, *back, first, min_i64(COLUMNS, o->s.rope - first)};
        shared_sum(d, &p, heads, latent_splits(o->s), sum);
        kernels_of(d)->cast(p.n, sum, DTYPE_F32, tensor_to(o->dkey, t * o->s.key_row + first, type), type);
    }
}

/* Elements of a token's row of qkv, and of its heads' own elements. */
static int64_t qkv_row(const LatentShape *s) { return 3 * s->heads * latent_head(*s); }
static int64_t own_row(const LatentShape *s) { return s->heads * (int64_t)(s->nope + s->value); }

/* The rotated key is the same in all heads of token t, so it is rotated once. */
static void token_forward(const Device *d, const LatentForwardArgs *o, int64_t t) {
    const LatentShape *s = &o->s;
    const Rotation by = {s->rope, o->cos_sin + (int64_t)o->positions[t] * s->rope, 1};
    int64_t dim = latent_head(*s), width = s->heads * dim;
    size_t e = dtype_bytes(o->c), nope = (size_t)s->nope * e;
    void *qkv = tensor_to(o->qkv, t * qkv_row(s), o->c), *shared = tensor_to(qkv, width + s->nope, o->c);
    rotate_neighbours(d, &by, tensor_at(o->key, t * s->key_row, o->c), shared, o->c);
    for (int64_t head = 0; head < s->heads; head++) {
        void *to_q = tensor_to(qkv, head * dim, o->c), *to_k = tensor_to(to_q, width, o->c),
             *to_v = tensor_to(to_k, width, o->c);
        const void *q = tensor_at(o->q, t * s->q_row + head * dim, o->c),
                   *own = tensor_at(o->own, t * own_row(s) + head * (s->nope + s->value), o->c);
        memcpy(to_q, q, nope);
        rotate_neighbours(d, &by, tensor_at(q, s->nope, o->c), tensor_to(to_q, s->nope, o->c), o->c);
        memcpy(to_k, own, nope);
        if (head > 0) memcpy(tensor_to(to_k, s->nope, o->c), shared, (size_t)s->rope * e);
        memcpy(to_v, tensor_at(own, s->nope, o->c), (size_t)s->value * e);
        memset(tensor_to(to_v, s->value, o->c), 0, (size_t)(dim - s->value) * e);
    }
}

static void latent_forward(Device *d, const LatentForwardArgs *o) {
    int64_t step = rows_for(qkv_row(&o->s));
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++) token_forward(d, o, t);
    }
}

static void token_backward(const Device *d, const LatentBackwardArgs *o, int64_t t) {
    const LatentShape *s = &o->s;
    const Rotation back = {s->rope, o->cos_sin + (int64_t)o->positions[t] * s->rope, -1};
    int64_t dim = latent_head(*s), width = s->heads * dim;
    size_t e = dtype_bytes(o->c), nope = (size_t)s->nope * e;
    const void *dqkv = tensor_at(o->dqkv, t * qkv_row(s), o->c);
    shared_gradient(d, o, t, &back, tensor_at(dqkv, width + s->nope, o->c));
    for (int64_t head = 0; head < s->heads; head++) {
        const void *of_q = tensor_at(dqkv, head * dim, o->c), *of_k = tensor_at(of_q, width, o->c),
                   *of_v = tensor_at(of_k, width, o->c);
        void *own = tensor_to(o->down, t * own_row(s) + head * (s->nope + s->value), o->c),
             *dq = tensor_to(o->dq, t * s->q_row + head * dim, o->c);
        memcpy(dq, of_q, nope);
        rotate_neighbours(d, &back, tensor_at(of_q, s->nope, o->c), tensor_to(dq, s->nope, o->c), o->c);
        memcpy(own, of_k, nope);
        memcpy(tensor_to(own, s->nope, o->c), of_v, (size_t)s->value * e);
    }
}

static void latent_backward(Device *d, const LatentBackwardArgs *o) {
    int64_t step = rows_for(qkv_row(&o->s));
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++) token_backward(d, o, t);
    }
}

void optimised_fill_latent(Ops *ops) {
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
