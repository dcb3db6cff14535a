/* Muon against what its papers write, in float64: every shape of matrix, every choice, matrices that are
 * stored as one parameter and those that are stored transposed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"
#include "model/families/family.h"
#include "support/devices.h"
#include "support/optimizers.h"
#include "support/tiny_model.h"

enum { STEPS = 3 };
static const double lr = 0.05, decay = 0.1, clip = 0.5;

/* ---- the plain one ---- */

/* [rows, cols] doubles. */
typedef struct Plain {
    int64_t rows, cols;
    double *x;
} Plain;

static Plain plain(int64_t rows, int64_t cols) {
    return (Plain){rows, cols, mem_alloc_array((size_t)(rows * cols), sizeof(double))};
}

static Plain times(Plain a, Plain b) {
    Plain c = plain(a.rows, b.cols);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < b.cols; j++)
            for (int64_t k = 0; k < a.cols; k++)
                c.x[i * b.cols + j] += a.x[i * a.cols + k] * b.x[k * b.cols + j];
    return c;
}

static Plain transpose(Plain a) {
    Plain t = plain(a.cols, a.rows);
    for (int64_t i = 0; i < a.rows; i++)
        for (int64_t j = 0; j < a.cols; j++) t.x[j * a.rows + i] = a.x[i * a.cols + j];
    return t;
}

/* x = a x + (b A + c A A) x, A = x x^T; x is given up. */
static Plain quintic(Plain x, const double q[3]) {
    Plain t = transpose(x), gram = times(x, t), square = times(gram, gram);
    for (int64_t i = 0; i < gram.rows * gram.rows; i++) square.x[i] = q[1] * gram.x[i] + q[2] * square.x[i];
    Plain more = times(square, x);
    for (int64_t i = 0; i < x.rows * x.cols; i++) more.x[i] += q[0] * x.x[i];
    free(t.x), free(gram.x), free(square.x), free(x.x);
    return more;
}

static const double jordan[3] = {3.4445, -4.7750, 2.0315};
static const double polar_express[5][3] = {{8.156555, -22.483293, 15.878770},
                                           {4.042930, -2.808917, .500018},
                                           {3.891668, -2.772484, .506065},
                                           {3.285754, -2.368129, .464490},
                                           {2.346541, -1.709783, .423236}};

/* As Jordan writes it: transposed if it is tall. */
static Plain orthogonal(Plain u, int coefficients) {
    double sum = 0, slack = coefficients == MUON_POLAR_EXPRESS ? 1.02 : 1;
    bool tall = u.rows > u.cols;
    Plain x = tall ? transpose(u) : plain(u.rows, u.cols);
    if (!tall) memcpy(x.x, u.x, (size_t)(u.rows * u.cols) * sizeof *u.x);
    for (int64_t i = 0; i < u.rows * u.cols; i++) sum += x.x[i] * x.x[i];
    for (int64_t i = 0; i < u.rows * u.cols; i++) x.x[i] /= slack * sqrt(sum) + 1e-7;
    for (int i = 0; i < 5; i++)
        x = quintic(x, coefficients == MUON_POLAR_EXPRESS ? polar_express[i] : jordan);
    if (!tall) return x;
    Plain back = transpose(x);
    free(x.x);
    return back;
}

static double scale_of(int kind, double out, double in) {
    if (kind == MUON_MOONLIGHT) return 0.2 * sqrt(fmax(out, in));
    return kind == MUON_SPECTRAL ? sqrt(out / in) : sqrt(fmax(1, out / in));
}

/* One step of the matrix [out, in] whose element (o, i) is p[first + o * along + i * across]. */
static void plain_step(const OptimizerSettings *s, int64_t out, int64_t in, int64_t along, int64_t across,
                       double *p, double *m, const float *g) {
    Plain u = plain(out, in);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            int64_t e = o * along + i * across;
            double gradient = (double)g[e] * clip;
            m[e] = s->momentum * m[e] + gradient;
            u.x[o * in + i] = s->nesterov ? gradient + s->momentum * m[e] : m[e];
        }
    Plain x = orthogonal(u, s->muon_coefficients);
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double *at = &p[o * along + i * across];
            *at -= lr * decay * *at + lr * scale_of(s->muon_scale, (double)out, (double)in) * x.x[o * in + i];
        }
    free(u.x), free(x.x);
}

/* ---- weft's ---- */

static ParamTable table;

/* A family's own names and places: what tells how its matrices are stored. */
static const Param *param_of_family(const char *family, const char *name) {
    Error err;
    ModelConfig c = tiny_model(50, 1, 16);
    for (int i = 0; families[i]; i++)
        if (strcmp(families[i]->model_type, family) == 0) c.family = families[i];
    param_table_free(&table);
    assert_int_equal(param_table_build(&table, &c, &err), OK);
    for (int i = 0; i < table.count; i++)
        if (strstr(table.params[i].name, name) && table.params[i].cols) return &table.params[i];
    fail_msg("%s has no %s", family, name);
    return NULL;
}

/* Parts [outputs] of the parameter, one below the other where outputs are rows, else side by side. */
static void follow(Device *d, const OptimizerSettings *s, const Param *p, const int64_t *parts, int count) {
    size_t n = (size_t)p->count, bytes = optimizer_scratch_bytes(optimizer_of(OPTIMIZER_MUON), p);
    float *w = mem_alloc_array(n, sizeof *w), *g = mem_alloc_array(n, sizeof *g),
          *m = mem_alloc_array(n, sizeof *m);
    double *want = mem_alloc_array(n, sizeof *want), *momentum = mem_alloc_array(n, sizeof *momentum);
    char *scratch = NULL;
    assert_int_equal(posix_memalign((void **)&scratch, 64, bytes), 0);
    assert_int_equal(p->matrix_count, count);
    for (size_t i = 0; i < n; i++) want[i] = (double)(w[i] = (float)rng_uniform(3, i) - 0.5f);
    int64_t inputs = p->transposed ? p->rows : p->cols, along = p->transposed ? 1 : p->cols,
            across = p->transposed ? p->cols : 1;
    for (int step = 1; step <= STEPS; step++) {
        UpdateStep now = {.lr_factor = lr, .clip_coefficient = clip, .updates = step};
        OptimizerStep of_step = optimizer_step(s, &now);
        UpdateRun run = {.count = p->count,
                         .param = w,
                         .grad = g,
                         .state = {m},
                         .weight_decay = decay,
                         .store = {.type = DTYPE_F32},
                         .of = p,
                         .scratch = scratch};
        for (size_t i = 0; i < n; i++) g[i] = (float)rng_uniform((uint64_t)step, 7 * i) - 0.5f;
        muon_update(d, s, &of_step, &run);
        device_finish(d, device_mark(d, ON_COMPUTE), WAIT_RESULT);
        for (int64_t k = 0, at = 0; k < count; at += parts[k++])
            plain_step(s, parts[k], inputs, along, across, want + at * along, momentum + at * along,
                       g + at * along);
    }
    /* An error of rounding grows at most as the smallest singular values do, about 500 times (8,000 with
     * Polar Express' coefficients), and is some 1e-7 of a length of 1 before; the step multiplies it by lr
     * and scale. */
    for (size_t i = 0; i < n; i++)
        if (fabs((double)w[i] - want[i]) > 2e-4)
            fail_msg("%s, %s, element %zu: %g, by the formula %g", d->name, p->name, i, (double)w[i],
                     want[i]);
    free(w), free(g), free(m), free(want), free(momentum), free(scratch);
}

static OptimizerSettings settings_of(int scale, int coefficients, int nesterov) {
    OptimizerSettings s = USUAL_SETTINGS;
    s.kind = OPTIMIZER_MUON, s.momentum = 0.95, s.nesterov = nesterov;
    s.muon_scale = scale, s.muon_coefficients = coefficients;
    return s;
}

/* What products work in. */
static void keep_scratch(Device *d) {
    DeviceNeeds needs = small_needs(DTYPE_F32, 1, 2);
    set_scratch(d, &needs);
}

/* hidden 20, heads of 6: q [24, 20] tall, o [20, 24] wide, k [12, 20]; gate and up [28, 20]. */
static void test_formulas(void **state) {
    static const struct {
        const char *family, *name;
        int count;
        int64_t parts[3];
    } cases[] = {{"llama", "q_proj", 1, {24}},
                 {"llama", "o_proj", 1, {20}},
                 {"llama", "k_proj", 1, {12}},
                 {"phi3", "qkv_proj", 3, {24, 12, 12}},
                 {"phi3", "gate_up_proj", 2, {28, 28}},
                 {"gpt2", "c_attn", 3, {24, 12, 12}},
                 {"gpt2", "c_fc", 1, {28}}};
    static const char *const kinds[] = {"auto", "reference"};
    (void)state;
    for (int k = 0; k < 2; k++) {
        Device d;
        Error err;
        assert_int_equal(device_open_cpu(&d, kinds[k], 2, &err), OK);
        keep_scratch(&d);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            for (int choice = 0; choice < 3; choice++) {
                OptimizerSettings s =
                    settings_of(choice, choice == 1 ? MUON_POLAR_EXPRESS : MUON_JORDAN, choice != 2);
                follow(&d, &s, param_of_family(cases[i].family, cases[i].name), cases[i].parts,
                       cases[i].count);
            }
        close_device(&d);
    }
}

/* A gradient of zeros moves nothing but by decay, and makes no NaN. */
static void test_zeros(void **state) {
    Device d;
    Error err;
    (void)state;
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), OK);
    keep_scratch(&d);
    const Param *p = param_of_family("llama", "v_proj");
    OptimizerSettings s = settings_of(MUON_MOONLIGHT, MUON_JORDAN, 1);
    float w[12 * 20], g[12 * 20] = {0}, m[12 * 20] = {0};
    char *scratch = NULL;
    assert_int_equal(
        posix_memalign((void **)&scratch, 64, optimizer_scratch_bytes(optimizer_of(OPTIMIZER_MUON), p)), 0);
    for (int i = 0; i < 12 * 20; i++) w[i] = 1;
    OptimizerStep of_step =
        optimizer_step(&s, &(UpdateStep){.lr_factor = 0.5, .clip_coefficient = 1, .updates = 1});
    muon_update(&d, &s, &of_step,
                &(UpdateRun){.count = p->count,
                             .param = w,
                             .grad = g,
                             .state = {m},
                             .weight_decay = 0.5,
                             .store = {.type = DTYPE_F32},
                             .of = p,
                             .scratch = scratch});
    device_finish(&d, device_mark(&d, ON_COMPUTE), WAIT_RESULT);
    for (int i = 0; i < 12 * 20; i++) assert_true(w[i] > 0.7499f && w[i] < 0.7501f);
    free(scratch);
    close_device(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formulas), cmocka_unit_test(test_zeros)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    param_table_free(&table);
    return failed;
}
