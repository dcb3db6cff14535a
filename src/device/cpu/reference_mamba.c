/* Mamba-2 by the formulas in ops/recurrence.h, one element of a state at a time, in double.
 *
 * States, and the partial sums of the gradients of B and C, are kept in fp32, as they are stored. So a
 * sequence that is processed in two calls gets the same numbers as in one. */
#include <math.h>

#include "device/cpu/cpu.h"

/* ---- the recurrence ---- */

/* One head at one token. keep, the factor of the state, is 0 where a document begins. */
typedef struct Step {
    double raw, step, keep;
} Step;

static double rate_of(const MambaRun *r, int64_t head) { return -exp((double)r->in.A_log[head]); }

static Step step_at(const MambaRun *r, int64_t head, int64_t t) {
    double raw = (double)tensor_get(r->in.dt, t * r->s.dt_row + head, r->c) + (double)r->in.dt_bias[head];
    double step = raw > 0 ? raw + log1p(exp(-raw)) : log1p(exp(raw));
    return (Step){raw, step, scan_begins(r->first_key, t) ? 0 : exp(step * rate_of(r, head))};
}

static double x_of(const MambaRun *r, int64_t head, int64_t p, int64_t t) {
    return (double)tensor_get(r->in.x, mamba_x_at(&r->s, t, head, p), r->c);
}
/* An element of B or C. */
static double shared_of(const MambaRun *r, const void *tensor, int64_t head, int64_t t, int64_t n) {
    return (double)tensor_get(tensor, mamba_group_at(&r->s, t, head) + n, r->c);
}

/* From the row's state before token t to the one after it. */
static void advance(const MambaRun *r, int64_t head, int64_t p, int64_t t, const float *before, float *now) {
    Step k = step_at(r, head, t);
    double x = k.step * x_of(r, head, p, t);
    for (int64_t n = 0; n < r->s.state; n++)
        now[n] = (float)(k.keep * (double)before[n] + x * shared_of(r, r->in.B, head, t, n));
}

static void row_forward(const MambaRun *r, int64_t head, int64_t p) {
    float now[MAMBA_STATE] = {0};
    int64_t row = mamba_state_at(&r->s, head, p);
    size_t bytes = (size_t)r->s.state * sizeof *now;
    if (r->state) memcpy(now, r->state + row, bytes);
    for (int64_t t = 0; t < r->s.tokens; t++) {
        double y = (double)r->in.D[head] * x_of(r, head, p, t);
        if (t % MAMBA_CHUNK == 0) memcpy(mamba_start(r, t) + row, now, bytes);
        advance(r, head, p, t, now, now);
        for (int64_t n = 0; n < r->s.state; n++) y += (double)now[n] * shared_of(r, r->in.C, head, t, n);
        tensor_set(r->y, mamba_y_at(&r->s, t, head, p), r->c, (float)y);
    }
    if (r->state) memcpy(r->state + row, now, bytes);
}

static void mamba_forward(Device *d, const MambaForwardArgs *o) {
    MambaRun r = mamba_forward_run(o);
    for (int64_t head = 0; head < o->s.heads; head++)
        for (int64_t p = 0; p < o->s.head_dim; p++) row_forward(&r, head, p);
    mamba_profile(d, OP_MAMBA_FORWARD, &o->s);
}

/* Sums over the rows of a head, for a chunk: gradients of steps, and of the state's factors. */
typedef struct Sums {
    double step[MAMBA_CHUNK], keep[MAMBA_CHUNK], skip;
} Sums;

/* A row of the state on its way back through a chunk: its state before each token, and after the last; the
 * gradient that the next token passed on. */
typedef struct RowPass {
    float states[MAMBA_CHUNK + 1][MAMBA_STATE];
    double later[MAMBA_STATE];
} RowPass;

static void token_backward(const MambaRun *r, int64_t head, int64_t p, int64_t t, RowPass *row, Sums *sums) {
    Step k = step_at(r, head, t);
    int64_t i = t % MAMBA_CHUNK;
    const float *before = row->states[i], *now = row->states[i + 1];
    double x = x_of(r, head, p, t), along = 0,
           dy = (double)tensor_get(r->dy, mamba_y_at(&r->s, t, head, p), r->c);
    float *dB = mamba_scratch(r, i, head), *dC = dB + r->s.state;
    for (int64_t n = 0; n < r->s.state; n++) {
        double g = dy * shared_of(r, r->in.C, head, t, n) + row->later[n];
        dB[n] += (float)(g * k.step * x);
        dC[n] += (float)(dy * (double)now[n]);
        along += g * shared_of(r, r->in.B, head, t, n);
        sums->keep[i] += g * (double)before[n];
        row->later[n] = k.keep * g;
    }
    sums->step[i] += x * along;
    sums->skip += x * dy;
    tensor_set(r->out.x, mamba_x_at(&r->s, t, head, p), r->c,
               (float)(k.step * along + (double)r->in.D[head] * dy));
}

static void row_backward(const MambaRun *r, int64_t head, int64_t p, int64_t first, int64_t count,
                         Sums *sums) {
    RowPass row;
    int64_t at = mamba_state_at(&r->s, head, p);
    memcpy(row.states[0], mamba_start(r, first) + at, (size_t)r->s.state * sizeof(float));
    for (int64_t i = 0; i < count; i++) advance(r, head, p, first + i, row.states[i], row.states[i + 1]);
    for (int64_t n = 0; n < r->s.state; n++) row.later[n] = (double)r->carry[at + n];
    for (int64_t t = first + count - 1; t >= first; t--) token_backward(r, head, p, t, &row, sums);
    for (int64_t n = 0; n < r->s.state; n++) r->carry[at + n] = (float)row.later[n];
}

static void head_backward(const MambaRun *r, int64_t head, int64_t first, int64_t count) {
    Sums sums = {{0}, {0}, 0};
    double bias = 0, rate = 0;
    for (int64_t p = 0; p < r->s.head_dim; p++) row_backward(r, head, p, first, count, &sums);
    for (int64_t i = 0; i < count; i++) {
        Step k = step_at(r, head, first + i);
        double along = sums.keep[i] * k.keep * rate_of(r, head),
               dt = (sums.step[i] + along) / (1 + exp(-k.raw));
        tensor_set(r->out.dt, (first + i) * r->s.dt_row + head, r->c, (float)dt);
        bias += dt;
        rate += along * k.step;
    }
    r->out.dt_bias[head] += (float)bias;
    r->out.A_log[head] += (float)rate;
    r->out.D[head] += (float)sums.skip;
}

/* Sums over a group's heads, at the chunk's i-th token. */
static void add_terms(const MambaRun *r, int64_t first, int64_t i, int64_t head) {
    for (int64_t n = 0; n < r->s.state; n++) {
        double dB = 0, dC = 0;
        int64_t at = mamba_group_at(&r->s, first + i, head) + n;
        for (int64_t k = 0; k < r->s.heads / r->s.groups; k++) {
            dB += (double)mamba_scratch(r, i, head + k)[n];
            dC += (double)mamba_scratch(r, i, head + k)[r->s.state + n];
        }
        tensor_set(r->out.B, at, r->c, (float)dB);
        tensor_set(r->out.C, at, r->c, (float)dC);
    }
}

static void mamba_backward(Device *d, const MambaBackwardArgs *o) {
    MambaRun r = mamba_backward_run(o);
    memset(o->carry, 0, (size_t)mamba_state_at(&o->s, o->s.heads, 0) * sizeof *o->carry);
    for (int64_t first = (mamba_starts(o->s.tokens) - 1) * MAMBA_CHUNK; first >= 0; first -= MAMBA_CHUNK) {
        int64_t count = min_i64(MAMBA_CHUNK, o->s.tokens - first);
        memset(o->scratch, 0,
               (size_t)(min_i64(MAMBA_CHUNK, o->s.tokens) * o->s.heads * 2 * o->s.state) *
                   sizeof *o->scratch);
        for (int64_t head = 0; head < o->s.heads; head++) head_backward(&r, head, first, count);
        for (int64_t i = 0; i < count; i++)
            for (int64_t head = 0; head < o->s.heads; head += o->s.heads / o->s.groups)
                add_terms(&r, first, i, head);
    }
    mamba_profile(d, OP_MAMBA_BACKWARD, &o->s);
}

/* ---- gated norm ---- */

static double sigmoid(double x) { return 1 / (1 + exp(-x)); }

/* A run of a token: offsets of x and of its gate, and 1 / rms of the gated elements. */
typedef struct GatedRun {
    int64_t at, gate_at;
    double rstd;
} GatedRun;

static double gated(const GatedRun *g, const void *x, const void *gate, int64_t i, Dtype c) {
    double z = (double)tensor_get(gate, g->gate_at + i, c);
    return (double)tensor_get(x, g->at + i, c) * z * sigmoid(z);
}

static GatedRun gated_run(GatedNorm s, const void *x, const void *gate, int64_t t, int64_t first, Dtype c) {
    GatedRun g = {t * s.width + first, t * s.gate_row + first, 0};
    double squares = 0;
    for (int64_t i = 0; i < s.run; i++) squares += pow(gated(&g, x, gate, i, c), 2);
    g.rstd = 1 / sqrt(squares / (double)s.run + (double)s.eps);
    return g;
}

static void gated_norm_forward(Device *d, const GatedNormForwardArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t first = 0; first < o->s.width; first += o->s.run) {
            GatedRun g = gated_run(o->s, o->x, o->gate, t, first, o->c);
            for (int64_t i = 0; i < o->s.run; i++)
                tensor_set(o->y, g.at + i, o->c,
                           (float)(gated(&g, o->x, o->gate, i, o->c) * g.rstd * (double)o->w[first + i]));
        }
}

static void gated_norm_backward(Device *d, const GatedNormBackwardArgs *o) {
    (void)d;
    for (int64_t t = 0; t < o->s.tokens; t++)
        for (int64_t first = 0; first < o->s.width; first += o->s.run) {
            GatedRun g = gated_run(o->s, o->x, o->gate, t, first, o->c);
            double mean = 0;
            for (int64_t i = 0; i < o->s.run; i++)
                mean += gated(&g, o->x, o->gate, i, o->c) * g.rstd *
                        (double)tensor_get(o->dy, g.at + i, o->c) * (double)o->w[first + i] /
                        (double)o->s.run;
            for (int64_t i = 0; i < o->s.run; i++) {
                double z = (double)tensor_get(o->gate, g.gate_at + i, o->c), q = sigmoid(z),
                       v = (double)tensor_get(o->x, g.at + i, o->c),
                       out = (double)tensor_get(o->dy, g.at + i, o->c), n = v * z * q * g.rstd,
                       dn = (out * (double)o->w[first + i] - n * mean) * g.rstd;
                o->dw[first + i] += (float)(out * n);
                tensor_set(o->dx, g.at + i, o->c, (float)(dn * z * q));
                tensor_set(o->dgate, g.gate_at + i, o->c, (float)(dn * v * q * (1 + z * (1 - q))));
            }
        }
}

void reference_fill_mamba(Ops *ops) {
    ops->mamba_forward = mamba_forward;
    ops->mamba_backward = mamba_backward;
    ops->gated_norm_forward = gated_norm_forward;
    ops->gated_norm_backward = gated_norm_backward;
}
