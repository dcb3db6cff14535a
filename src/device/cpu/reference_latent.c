/* Reference ops of latent attention's heads. Sums are in double, over each split, rounded once. */
#include "base/tree.h"
#include "device/cpu/cpu.h"

/* The rotation of R elements by a token's angles. */
typedef struct Rotation {
    int64_t n;
    const float *angles;
    bool inverse;
} Rotation;

/* Element i of the rotated ones, where u and v are its pair. */
static double rotated(const Rotation *by, double u, double v, int64_t i) {
    double cosine = (double)by->angles[i / 2], sine = (double)by->angles[by->n / 2 + i / 2];
    if (by->inverse) sine = -sine;
    return i % 2 == 0 ? u * cosine - v * sine : v * cosine + u * sine;
}

static void rotate(const Rotation *by, const void *x, int64_t at, void *to, int64_t to_at, Dtype c) {
    for (int64_t i = 0; i < by->n; i++) {
        double u = (double)tensor_get(x, at + i / 2 * 2, c), v = (double)tensor_get(x, at + i / 2 * 2 + 1, c);
        tensor_set(to, to_at + i, c, (float)rotated(by, u, v, i));
    }
}

static void copy_elements(int64_t n, const void *x, int64_t at, void *to, int64_t to_at, Dtype c) {
    for (int64_t i = 0; i < n; i++) tensor_set(to, to_at + i, c, tensor_get(x, at + i, c));
}

static void latent_forward(Device *d, const LatentForwardArgs *o) {
    (void)d;
    const LatentShape s = o->s;
    int64_t dim = latent_head(s), width = s.heads * dim, each = s.nope + s.value;
    for (int64_t t = 0; t < s.tokens; t++)
        for (int64_t head = 0; head < s.heads; head++) {
            const Rotation by = {s.rope, o->cos_sin + (int64_t)o->positions[t] * s.rope, false};
            int64_t from = t * s.q_row + head * dim, own = (t * s.heads + head) * each,
                    to = t * 3 * width + head * dim;
            copy_elements(s.nope, o->q, from, o->qkv, to, o->c);
            rotate(&by, o->q, from + s.nope, o->qkv, to + s.nope, o->c);
            copy_elements(s.nope, o->own, own, o->qkv, to + width, o->c);
            rotate(&by, o->key, t * s.key_row, o->qkv, to + width + s.nope, o->c);
            copy_elements(s.value, o->own, own + s.nope, o->qkv, to + 2 * width, o->c);
            for (int64_t i = s.value; i < dim; i++) tensor_set(o->qkv, to + 2 * width + i, o->c, 0);
        }
}

/* All heads rotate alike, so each split's sum over heads is rotated back, not each head. The tree of `splits`
 * splits, whose first head's key is at `at`. */
static float shared_sum(const LatentBackwardArgs *o, const Rotation *back, int64_t at, int splits,
                        int64_t i) {
    int64_t dim = latent_head(o->s), heads = o->s.heads / latent_splits(o->s);
    double u = 0, v = 0;
    if (splits > 1) {
        int half = tree_half(splits);
        float left = shared_sum(o, back, at, half, i);
        return left + shared_sum(o, back, at + half * heads * dim, splits - half, i);
    }
    for (int64_t head = 0; head < heads; head++) {
        int64_t pair = at + head * dim + o->s.nope + i / 2 * 2;
        u += (double)tensor_get(o->dqkv, pair, o->c), v += (double)tensor_get(o->dqkv, pair + 1, o->c);
    }
    return (float)rotated(back, u, v, i);
}

static void latent_backward(Device *d, const LatentBackwardArgs *o) {
    (void)d;
    const LatentShape s = o->s;
    int64_t dim = latent_head(s), width = s.heads * dim, each = s.nope + s.value;
    for (int64_t t = 0; t < s.tokens; t++) {
        const Rotation back = {s.rope, o->cos_sin + (int64_t)o->positions[t] * s.rope, true};
        for (int64_t head = 0; head < s.heads; head++) {
            int64_t from = t * 3 * width + head * dim, to = t * s.q_row + head * dim,
                    own = (t * s.heads + head) * each;
            copy_elements(s.nope, o->dqkv, from, o->dq, to, o->c);
            rotate(&back, o->dqkv, from + s.nope, o->dq, to + s.nope, o->c);
            copy_elements(s.nope, o->dqkv, from + width, o->down, own, o->c);
            copy_elements(s.value, o->dqkv, from + 2 * width, o->down, own + s.nope, o->c);
        }
        for (int64_t i = 0; i < s.rope; i++)
            tensor_set(o->dkey, t * s.key_row + i, s.partial ? DTYPE_F32 : o->c,
                       shared_sum(o, &back, t * 3 * width + width, latent_splits(s), i));
    }
}

void reference_fill_latent(Ops *ops) {
    ops->latent_forward = latent_forward;
    ops->latent_backward = latent_backward;
}
