/* Reference ops of latent attention's heads. Sums are in double, over each split, rounded once. */
#include "base/tree.h"
#include "device/cpu/cpu.h"

/* Element i of the rotated R, where u and v are its pair. */
static double turned(const float *angles, int64_t turned, bool inverse, double u, double v, int64_t i) {
    double cosine = (double)angles[i / 2], sine = (double)angles[turned / 2 + i / 2];
    if (inverse) sine = -sine;
    return i % 2 == 0 ? u * cosine - v * sine : v * cosine + u * sine;
}

static void turn(LatentShape s, const float *angles, const void *x, int64_t at, void *to, int64_t to_at,
                 bool inverse, Dtype c) {
    for (int64_t i = 0; i < s.turned; i++) {
        double u = (double)tensor_get(x, at + i / 2 * 2, c), v = (double)tensor_get(x, at + i / 2 * 2 + 1, c);
        tensor_set(to, to_at + i, c, (float)turned(angles, s.turned, inverse, u, v, i));
    }
}

static void copy_elements(int64_t n, const void *x, int64_t at, void *to, int64_t to_at, Dtype c) {
    for (int64_t i = 0; i < n; i++) tensor_set(to, to_at + i, c, tensor_get(x, at + i, c));
}

static void latent_forward(Device *d, const LatentForwardArgs *o) {
    (void)d;
    int64_t dim = latent_head(o->s), width = o->s.heads * dim, each = o->s.plain + o->s.value;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t head = 0; head < o->s.heads; head++) {
            const float *angles = o->cos_sin + (int64_t)o->positions[t] * o->s.turned;
            int64_t from = t * o->s.q_row + head * dim, mine = (t * o->s.heads + head) * each,
                    to = t * 3 * width + head * dim;
            copy_elements(o->s.plain, o->q, from, o->qkv, to, o->c);
            turn(o->s, angles, o->q, from + o->s.plain, o->qkv, to + o->s.plain, false, o->c);
            copy_elements(o->s.plain, o->own, mine, o->qkv, to + width, o->c);
            turn(o->s, angles, o->key, t * o->s.key_row, o->qkv, to + width + o->s.plain, false, o->c);
            copy_elements(o->s.value, o->own, mine + o->s.plain, o->qkv, to + 2 * width, o->c);
            for (int64_t i = o->s.value; i < dim; i++) tensor_set(o->qkv, to + 2 * width + i, o->c, 0);
        }
}

/* All heads rotate alike, so each split's sum over heads is rotated back, not each head. The tree of `splits`
 * splits, whose first head is at `at`. */
static float common_sum(LatentShape s, const float *angles, const void *dqkv, int64_t at, int splits,
                        int64_t i, Dtype c) {
    int64_t dim = latent_head(s), heads = s.heads / latent_splits(s);
    double u = 0, v = 0;
    if (splits > 1) {
        int half = tree_half(splits);
        float left = common_sum(s, angles, dqkv, at, half, i, c);
        return left + common_sum(s, angles, dqkv, at + half * heads * dim, splits - half, i, c);
    }
    for (int64_t head = 0; head < heads; head++) {
        int64_t pair = at + head * dim + s.plain + i / 2 * 2;
        u += (double)tensor_get(dqkv, pair, c), v += (double)tensor_get(dqkv, pair + 1, c);
    }
    return (float)turned(angles, s.turned, true, u, v, i);
}

static void common_gradient(LatentShape s, const float *angles, const void *dqkv, int64_t at, void *dkey,
                            int64_t to, Dtype c) {
    for (int64_t i = 0; i < s.turned; i++)
        tensor_set(dkey, to + i, s.partial ? DTYPE_F32 : c,
                   common_sum(s, angles, dqkv, at, latent_splits(s), i, c));
}

static void latent_backward(Device *d, const LatentBackwardArgs *o) {
    (void)d;
    int64_t dim = latent_head(o->s), width = o->s.heads * dim, each = o->s.plain + o->s.value;
    for (int64_t t = 0; t < o->s.tokens; t++) {
        const float *angles = o->cos_sin + (int64_t)o->positions[t] * o->s.turned;
        for (int64_t head = 0; head < o->s.heads; head++) {
            int64_t from = t * 3 * width + head * dim, to = t * o->s.q_row + head * dim,
                    mine = (t * o->s.heads + head) * each;
            copy_elements(o->s.plain, o->dqkv, from, o->dq, to, o->c);
            turn(o->s, angles, o->dqkv, from + o->s.plain, o->dq, to + o->s.plain, true, o->c);
            copy_elements(o->s.plain, o->dqkv, from + width, o->down, mine, o->c);
            copy_elements(o->s.value, o->dqkv, from + 2 * width, o->down, mine + o->s.plain, o->c);
        }
        common_gradient(o->s, angles, o->dqkv, t * 3 * width + width, o->dkey, t * o->s.key_row, o->c);
    }
}

void reference_fill_latent(Ops *ops) {
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
