/* Heads of latent attention on threads: a pass over rows of tokens, at memory speed. */
#include "base/tree.h"
#include "device/cpu/optimised.h"

enum { TURNED = 256 }; /* elements of a head that are rotated at a time, in fp32 on the stack */

/* Rotates in place; sign -1 rotates back. */
static void turn_pairs(const float *cosine, const float *sine, int64_t n, float *x, float sign) {
    for (int64_t i = 0; i < n / 2; i++) {
        float u = x[2 * i], v = x[2 * i + 1], sn = sign * sine[i];
        x[2 * i] = u * cosine[i] - v * sn;
        x[2 * i + 1] = v * cosine[i] + u * sn;
    }
}

void turn_neighbours(const Device *d, int64_t n, const float *angles, const void *from, void *to, float sign,
                     Dtype c) {
    for (int64_t first = 0; first < n; first += TURNED) {
        float x[TURNED];
        int64_t count = min_i64(TURNED, n - first);
        kernels_of(d)->cast(count, tensor_at(from, first, c), c, x, DTYPE_F32);
        turn_pairs(angles + first / 2, angles + n / 2 + first / 2, count, x, sign);
        kernels_of(d)->cast(count, x, DTYPE_F32, tensor_to(to, first, c), c);
    }
}

static void turn(const Device *d, LatentShape s, const float *angles, const void *from, void *to, float sign,
                 Dtype c) {
    turn_neighbours(d, s.turned, angles, from, to, sign, c);
}

/* n elements, from `first` on, of the shared gradient: for each split, the sum over its heads in order,
 * rotated back; then the tree of the splits. */
static void common_sum(const Device *d, LatentShape s, const float *angles, int64_t first, int64_t n,
                       const void *heads, int splits, float *sum, Dtype c) {
    int64_t dim = latent_head(s), each = s.heads / latent_splits(s);
    float x[TURNED];
    if (splits > 1) {
        int half = tree_half(splits);
        common_sum(d, s, angles, first, n, heads, half, sum, c);
        common_sum(d, s, angles, first, n, tensor_at(heads, half * each * dim, c), splits - half, x, c);
        for (int64_t i = 0; i < n; i++) sum[i] += x[i];
        return;
    }
    kernels_of(d)->cast(n, tensor_at(heads, first, c), c, sum, DTYPE_F32);
    for (int64_t k = 1; k < each; k++) {
        kernels_of(d)->cast(n, tensor_at(heads, k * dim + first, c), c, x, DTYPE_F32);
        for (int64_t i = 0; i < n; i++) sum[i] += x[i];
    }
    turn_pairs(angles + first / 2, angles + s.turned / 2 + first / 2, n, sum, -1);
}

static void common_gradient(const Device *d, LatentShape s, const float *angles, const void *heads,
                            void *dkey, Dtype c) {
    Dtype type = s.partial ? DTYPE_F32 : c;
    for (int64_t first = 0; first < s.turned; first += TURNED) {
        float sum[TURNED];
        int64_t n = min_i64(TURNED, s.turned - first);
        common_sum(d, s, angles, first, n, heads, latent_splits(s), sum, c);
        kernels_of(d)->cast(n, sum, DTYPE_F32, tensor_to(dkey, first, type), type);
    }
}

static void latent_heads(const Device *d, LatentShape s, const float *angles, const void *q, const void *own,
                         const void *key, void *qkv, Dtype c) {
    int64_t dim = latent_head(s), width = s.heads * dim, each = s.plain + s.value;
    size_t e = dtype_bytes(c);
    void *common = tensor_to(qkv, width + s.plain, c);
    turn(d, s, angles, key, common, 1, c);
    for (int64_t head = 0; head < s.heads; head++) {
        void *to_q = tensor_to(qkv, head * dim, c), *to_k = tensor_to(to_q, width, c),
             *to_v = tensor_to(to_k, width, c);
        const void *mine = tensor_at(own, head * each, c);
        memcpy(to_q, tensor_at(q, head * dim, c), (size_t)s.plain * e);
        turn(d, s, angles, tensor_at(q, head * dim + s.plain, c), tensor_to(to_q, s.plain, c), 1, c);
        memcpy(to_k, mine, (size_t)s.plain * e);
        if (head > 0) memcpy(tensor_to(to_k, s.plain, c), common, (size_t)s.turned * e);
        memcpy(to_v, tensor_at(mine, s.plain, c), (size_t)s.value * e);
        memset(tensor_to(to_v, s.value, c), 0, (size_t)(dim - s.value) * e);
    }
}

/* The rotated key is the same in all heads, so it is rotated once. */
static void latent_forward(Device *d, const LatentForwardArgs *o) {
    int64_t row = 3 * o->s.heads * latent_head(o->s),
            own_row = o->s.heads * (int64_t)(o->s.plain + o->s.value), step = rows_for(row);
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++)
            latent_heads(d, o->s, o->cos_sin + (int64_t)o->positions[t] * o->s.turned,
                         tensor_at(o->q, t * o->s.q_row, o->c), tensor_at(o->own, t * own_row, o->c),
                         tensor_at(o->key, t * o->s.key_row, o->c), tensor_to(o->qkv, t * row, o->c), o->c);
    }
}

static void latent_gradients(const Device *d, LatentShape s, const float *angles, const void *dqkv, void *dq,
                             void *down, void *dkey, Dtype c) {
    int64_t dim = latent_head(s), width = s.heads * dim, each = s.plain + s.value;
    size_t e = dtype_bytes(c);
    common_gradient(d, s, angles, tensor_at(dqkv, width + s.plain, c), dkey, c);
    for (int64_t head = 0; head < s.heads; head++) {
        const void *of_q = tensor_at(dqkv, head * dim, c), *of_k = tensor_at(of_q, width, c),
                   *of_v = tensor_at(of_k, width, c);
        void *mine = tensor_to(down, head * each, c), *to = tensor_to(dq, head * dim, c);
        memcpy(to, of_q, (size_t)s.plain * e);
        turn(d, s, angles, tensor_at(of_q, s.plain, c), tensor_to(to, s.plain, c), -1, c);
        memcpy(mine, of_k, (size_t)s.plain * e);
        memcpy(tensor_to(mine, s.plain, c), of_v, (size_t)s.value * e);
    }
}

static void latent_backward(Device *d, const LatentBackwardArgs *o) {
    int64_t row = 3 * o->s.heads * latent_head(o->s),
            own_row = o->s.heads * (int64_t)(o->s.plain + o->s.value), step = rows_for(row);
    EACH_PIECE(d, first, o->s.tokens, step) {
        for (int64_t t = first; t < min_i64(o->s.tokens, first + step); t++)
            latent_gradients(d, o->s, o->cos_sin + (int64_t)o->positions[t] * o->s.turned,
                             tensor_at(o->dqkv, t * row, o->c), tensor_to(o->dq, t * o->s.q_row, o->c),
                             tensor_to(o->down, t * own_row, o->c),
                             tensor_to(o->dkey, t * o->s.key_row, o->s.partial ? DTYPE_F32 : o->c), o->c);
    }
}

void optimised_fill_latent(Ops *ops) {
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
