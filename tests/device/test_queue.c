/* The contract of the queue, on a deferred CPU, which exposes violations, and on one that is not deferred,
 * where none can show. With TEST_KIND=cuda, the GPU plugin takes the place of the deferred CPU. TEST_REAL=1
 * says that it is a real GPU, whose orders are not drawn at random: correct results are then required, but
 * mistakes need not show. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "device/ops/ops.h"
#include "device/pool.h"

enum { N = 8, SEEDS = 20, OPS = 600 /* more than are timed at once at first */ };

typedef struct Bench {
    Device d;
    Pool pool;
    float *a, *b, *sum; /* [N] tensor memory */
    GradStats *stats;   /* likewise */
    int64_t begun[2];   /* times that have not ended */
    int times;
    double seconds;
} Bench;

static void lay_out(Bench *t) {
    t->a = pool_take(&t->pool, N * sizeof(float));
    t->b = pool_take(&t->pool, N * sizeof(float));
    t->sum = pool_take(&t->pool, N * sizeof(float));
    t->stats = pool_take(&t->pool, sizeof *t->stats);
}

/* seed 0: not deferred. place: of several GPUs. */
static void open_device(Device *d, uint64_t seed, int place) {
    Error err;
    const char *other = seed ? getenv("TEST_KIND") : NULL;
    unsetenv("WEFT_DEFER");
    if (device_open(d, other ? other : "cpu", place, 1, &err) != OK) fail_msg("%s", err.message);
    if (seed && !other) device_defer(d, seed);
}

static void open_bench_at(Bench *t, uint64_t seed, int place) {
    Error err;
    *t = (Bench){.pool = {.name = "test"}};
    open_device(&t->d, seed, place);
    lay_out(t);
    if (pool_commit(&t->pool, &t->d, &err) != OK) fail_msg("%s", err.message);
    lay_out(t);
}

static void open_bench(Bench *t, uint64_t seed) { open_bench_at(t, seed, 0); }

static void close_bench(Bench *t) {
    pool_free(&t->pool);
    device_close(&t->d);
}

static void fill(Bench *t, float *tensor, float value) { OP(&t->d, fill, N, value, tensor); }

static float first_of(Bench *t, const float *tensor) {
    float host[N];
    device_fetch(&t->d, host, tensor, sizeof host);
    return host[0];
}

static bool shows_mistakes(void) { return !getenv("TEST_REAL"); }

static bool is(float x, float value) { return x >= value && x <= value; }

/* ---- one stream ---- */

static void test_order(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < SEEDS; seed++) {
        Bench t;
        open_bench(&t, seed);
        for (int i = 0; i < 10; i++) {
            fill(&t, t.a, (float)i);
            OP(&t.d, add, N, t.a, t.a, t.b, DTYPE_F32);
            OP(&t.d, add, N, t.a, t.b, t.sum, DTYPE_F32);
        }
        assert_true(is(first_of(&t, t.sum), 27));
        close_bench(&t);
    }
}

/* Host memory of an upload, and a list of parts, are read when the op is enqueued. */
static void test_arguments(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        Bench t;
        float host[N] = {3};
        open_bench(&t, seed);
        const float *parts[2] = {t.a, t.b};
        OP(&t.d, upload, t.a, host, sizeof host);
        host[0] = 4;
        OP(&t.d, upload, t.b, host, sizeof host);
        host[0] = 5;
        OP(&t.d, sum_partials, N, 2, parts, t.sum);
        parts[1] = t.a;
        assert_true(is(first_of(&t, t.sum), 7));
        close_bench(&t);
    }
}

/* An upload larger than what a device can have in flight. */
static void test_long_upload(void **state) {
    enum { LONG = 5 << 19 }; /* 10 MiB */
    (void)state;
    int32_t *host = malloc(LONG * sizeof *host), *back = malloc(LONG * sizeof *back);
    assert_true(host && back);
    for (uint64_t seed = 0; seed < 2; seed++) {
        Device d;
        Error err;
        Pool pool = {.name = "test"};
        open_device(&d, seed, 0);
        pool_take(&pool, LONG * sizeof *host);
        if (pool_commit(&pool, &d, &err) != OK) fail_msg("%s", err.message);
        int32_t *tensor = pool_take(&pool, LONG * sizeof *host);
        for (int i = 0; i < LONG; i++) host[i] = i;
        OP(&d, upload, tensor, host, LONG * sizeof *host);
        memset(host, 0, LONG * sizeof *host);
        device_fetch(&d, back, tensor, LONG * sizeof *back);
        for (int i = 0; i < LONG; i++) assert_int_equal(back[i], i);
        pool_free(&pool);
        device_close(&d);
    }
    free(host);
    free(back);
}

/* Host code that reads before the download has finished sees NaN, neither the new nor the old contents. */
static void test_download(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        Bench t;
        open_bench(&t, seed);
        float *host = t.d.runtime.host_take(&t.d, N * sizeof *host);
        assert_non_null(host);
        fill(&t, t.a, 2);
        OP(&t.d, download, host, t.a, N * sizeof *host);
        if (shows_mistakes()) assert_true(seed ? isnan(host[0]) : is(host[0], 2));
        device_finish(&t.d, device_mark(&t.d, ON_COMPUTE), WAIT_RESULT);
        assert_true(is(host[0], 2) && is(host[N - 1], 2));
        t.d.runtime.host_give(&t.d, host);
        close_bench(&t);
    }
}

static void test_waits(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 2; seed++) {
        Bench t;
        open_bench(&t, seed);
        fill(&t, t.a, 1);
        assert_int_equal(t.d.waits[WAIT_RESULT], 0);
        first_of(&t, t.a);
        device_finish(&t.d, 0, WAIT_TRANSPORT);
        assert_int_equal(t.d.waits[WAIT_RESULT], 1);
        assert_int_equal(t.d.waits[WAIT_TRANSPORT], 1);
        close_bench(&t);
    }
}

static void cube(Bench *t) {
    const double one = 1;
    OP(&t->d, upload, t->b, &one, sizeof one);
    OP(&t->d, grad_stats, N, t->a, 3, (const double *)(const void *)t->b, t->stats);
}

/* Times of ops are available after a wait, and nothing waits for them. One of the ops waits itself, so times
 * are read while it is under way. */
static void test_times(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        Bench t;
        open_bench(&t, seed);
        bool later = seed && getenv("TEST_KIND");
        const OpProfile *add = &t.d.profile[OP_ADD];
        float *host = t.d.runtime.host_take(&t.d, N * sizeof *host);
        t.d.profiling = true;
        fill(&t, t.a, 2);
        OP(&t.d, add, N, t.a, t.a, t.sum, DTYPE_F32);
        OP(&t.d, download, host, t.sum, N * sizeof *host);
        if (later && shows_mistakes()) assert_true(isnan(host[0]) && is((float)add->seconds, 0));
        for (int i = 1; i < OPS; i++) OP(&t.d, add, N, t.a, t.a, t.sum, DTYPE_F32);
        cube(&t);
        device_finish(&t.d, device_mark(&t.d, ON_COMPUTE), WAIT_RESULT);
        assert_true(is(host[0], 4));
        assert_int_equal(t.d.waits[WAIT_RESULT], later ? 2 : 1); /* a GPU computes powers on the host */
        assert_int_equal(add->calls, OPS);
        /* A simulated kernel takes a microsecond; the sum of so many floats is not exact. */
        if (later && shows_mistakes()) assert_true(fabs(add->seconds - OPS * 1e-6) < 1e-9);
        if (later) assert_true(add->seconds > 0 && t.d.profile[OP_GRAD_STATS].seconds > 0);
        device_on(ON_COPY);
        OP(&t.d, copy, t.b, t.a, N * sizeof(float));
        device_on(ON_COMPUTE);
        Text table = {0};
        device_profile_print(&t.d, 0, &table); /* waits for the copy */
        assert_non_null(strstr(table.data, "grad_stats"));
        if (later) assert_true(t.d.profile[OP_COPY].seconds > 0);
        text_free(&table);
        t.d.runtime.host_give(&t.d, host);
        close_bench(&t);
    }
}

/* Stamps count from the first of their series, may be read while another series is under way, and can be
 * combined with times of ops. They are not available before a wait. */
static void test_stamps(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 4 && getenv("TEST_KIND"); seed++) {
        Bench t;
        double at[2 * OPS], inside = 0;
        open_bench(&t, seed);
        const DeviceRuntime *r = &t.d.runtime;
        t.d.profiling = seed % 2;
        for (int series = 0; series < 2; series++) {
            r->stamp(&t.d, NULL);
            int64_t begun = r->begin_time(&t.d);
            for (int i = series * OPS; i < (series + 1) * OPS; i++) {
                at[i] = NAN;
                fill(&t, t.a, 1);
                r->stamp(&t.d, &at[i]);
                if (i == OPS - 2) assert_true(isnan(at[0]) || !shows_mistakes());
                if (i == OPS + 5) device_finish(&t.d, device_mark(&t.d, ON_COMPUTE), WAIT_RESULT);
                if (i == OPS + 5) assert_false(isnan(at[OPS - 1]));
            }
            r->end_time(&t.d, begun, &inside);
        }
        r->read_times(&t.d);
        assert_int_equal(t.d.waits[WAIT_RESULT], 1);
        for (int i = 0; i < 2 * OPS; i++) assert_true(at[i] >= (i % OPS ? at[i - 1] : 0));
        /* A simulated kernel takes a microsecond. */
        for (int i = 0; i < 2 * OPS && shows_mistakes(); i++)
            assert_true(fabs(at[i] - (i % OPS + 1) * 1e-6) < 1e-9);
        if (shows_mistakes()) assert_true(fabs(inside - 2 * OPS * 1e-6) < 1e-9);
        close_bench(&t);
    }
}

/* ---- two streams ---- */

/* One stream fills, the other copies what it finds, with or without an event between them. */
static float copied(uint64_t seed, bool event) {
    Bench t;
    open_bench(&t, seed);
    fill(&t, t.a, 1);
    device_finish(&t.d, device_mark(&t.d, ON_COMPUTE), WAIT_RESULT);
    fill(&t, t.a, 2);
    if (event) device_follow(&t.d, ON_COPY, device_mark(&t.d, ON_COMPUTE));
    DeviceStream before = device_on(ON_COPY);
    assert_int_equal(before, ON_COMPUTE);
    assert_int_equal(device_stream(), ON_COPY);
    OP(&t.d, copy, t.b, t.a, N * sizeof(float));
    float found = first_of(&t, t.b);
    device_on(before);
    close_bench(&t);
    return found;
}

/* Without an event both orders occur; with one, only the correct order. */
static void test_streams(void **state) {
    int early = 0, late = 0;
    (void)state;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        float found = copied(seed, false);
        early += is(found, 1), late += is(found, 2);
        assert_true(is(copied(seed, true), 2));
    }
    assert_int_equal(early + late, SEEDS);
    if (shows_mistakes()) assert_true(early > 0 && late > 0);
    assert_true(is(copied(0, false), 2));
}

/* An op that nobody waits for does not run, unless it is drawn while something else is waited for. */
static void test_event(void **state) {
    Bench t;
    (void)state;
    open_bench(&t, 1);
    fill(&t, t.a, 1);
    Event first = device_mark(&t.d, ON_COMPUTE);
    fill(&t, t.a, 2);
    device_finish(&t.d, first, WAIT_RESULT);
    device_on(ON_COPY);
    OP(&t.d, copy, t.b, t.a, N * sizeof(float));
    device_follow(&t.d, ON_COPY, device_mark(&t.d, ON_COMPUTE));
    OP(&t.d, copy, t.sum, t.a, N * sizeof(float));
    assert_true(is(first_of(&t, t.sum), 2));
    device_on(ON_COMPUTE);
    close_bench(&t);
}

/* Memory is given back after everything that may use it has run: the last op writes to the pool's memory. */
static void test_memory(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed < 4; seed++) {
        Bench t;
        open_bench(&t, seed);
        for (int i = 0; i < 100; i++) fill(&t, t.a, (float)i);
        Event last = device_mark(&t.d, ON_COMPUTE);
        pool_free(&t.pool);
        device_finish(&t.d, last, WAIT_RESULT); /* nothing is left that could write */
        close_bench(&t);
    }
}

/* ---- threads ---- */

static void *fetch_often(void *context) {
    Bench *t = context;
    for (int i = 0; i < 200; i++) {
        float found = first_of(t, t->b);
        if (!is(found, 5)) return t;
    }
    return NULL;
}

/* One thread reads constant data while another continues. */
static void test_threads(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 3; seed++) {
        Bench t;
        pthread_t other;
        void *wrong;
        open_bench(&t, seed);
        fill(&t, t.b, 5);
        device_finish(&t.d, device_mark(&t.d, ON_COMPUTE), WAIT_RESULT);
        assert_int_equal(pthread_create(&other, NULL, fetch_often, &t), 0);
        for (int i = 0; i < 200; i++) OP(&t.d, add, N, t.b, t.b, t.sum, DTYPE_F32);
        assert_int_equal(pthread_join(other, &wrong), 0);
        assert_null(wrong);
        assert_true(is(first_of(&t, t.sum), 10));
        close_bench(&t);
    }
}

/* ---- the first call of a thread ---- */

static void call_op(Bench *t) { fill(t, t->a, 3); }
static void call_upload(Bench *t) {
    const float one = 1;
    OP(&t->d, upload, t->b, &one, sizeof one);
}
static void call_mark(Bench *t) { device_mark(&t->d, ON_COMPUTE); }
/* DEVICE_STREAMS stands for the first event ON_COMPUTE. */
static void call_follow(Bench *t) { device_follow(&t->d, ON_COPY, DEVICE_STREAMS); }
static void call_finish(Bench *t) { device_finish(&t->d, DEVICE_STREAMS, WAIT_RESULT); }
static void call_take(Bench *t) { t->d.runtime.give(&t->d, t->d.runtime.take(&t->d, N), N); }
static void call_host_take(Bench *t) { t->d.runtime.host_give(&t->d, t->d.runtime.host_take(&t->d, N)); }
static void call_available(Bench *t) { t->d.runtime.available(&t->d); }
static void call_memory(Bench *t) {
    DeviceMemory m;
    if (t->d.runtime.memory) t->d.runtime.memory(&t->d, &m);
}
static void call_begin_time(Bench *t) {
    if (t->d.runtime.begin_time) t->begun[t->times++] = t->d.runtime.begin_time(&t->d);
}
static void call_end_time(Bench *t) {
    if (t->d.runtime.end_time) t->d.runtime.end_time(&t->d, t->begun[--t->times], &t->seconds);
}
static void call_stamp(Bench *t) {
    if (t->d.runtime.stamp) t->d.runtime.stamp(&t->d, NULL);
}
static void call_read_times(Bench *t) {
    if (t->d.runtime.read_times) t->d.runtime.read_times(&t->d);
}

typedef struct Call {
    void (*function)(Bench *t);
    Bench *t;
} Call;

static void *make_call(void *call) {
    Call *c = call;
    c->function(c->t);
    return NULL;
}

static void on_new_thread(void (*function)(Bench *t), Bench *t) {
    pthread_t thread;
    Call call = {function, t};
    assert_int_equal(pthread_create(&thread, NULL, make_call, &call), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
}

/* Each call may be the first of its thread, or follow one for the other of two GPUs. */
static void test_first_calls(void **state) {
    void (*const calls[])(Bench *) = {call_op,        call_upload,     call_mark,      call_follow,
                                      call_finish,    call_take,       call_host_take, call_available,
                                      call_memory,    call_begin_time, call_end_time,  call_stamp,
                                      call_read_times};
    Bench t[2];
    (void)state;
    setenv("WEFT_SIM_DEVICES", "2", 1);
    for (int g = 0; g < 2; g++) open_bench_at(&t[g], 1, g);
    for (int g = 0; g < 2; g++) call_mark(&t[g]);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        for (int g = 0; g < 2; g++) {
            call_op(&t[!g]);
            calls[i](&t[g]);
            on_new_thread(calls[i], &t[g]);
        }
    for (int g = 0; g < 2; g++) on_new_thread(close_bench, &t[g]);
    unsetenv("WEFT_SIM_DEVICES");
}

/* ---- opening ---- */

static void test_environment(void **state) {
    Device d;
    Error err;
    (void)state;
    setenv("WEFT_DEFER", "7", 1);
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), OK);
    assert_non_null(d.deferred);
    device_close(&d);
    setenv("WEFT_DEFER", "soon", 1);
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), ERR_USAGE);
    assert_non_null(strstr(err.message, "WEFT_DEFER is \"soon\""));
    setenv("WEFT_DEFER", "", 1);
    assert_int_equal(device_open_cpu(&d, NULL, 1, &err), OK);
    assert_null(d.deferred);
    device_close(&d);
    unsetenv("WEFT_DEFER");
}

/* A backend without an op, as a GPU has none until its kernel is written: the call names it. */
static void test_an_op_that_is_missing(void **state) {
    (void)state;
    Ops none = {.zero = NULL};
    Device d = {.ops = &none};
    char text[512];
    int ends[2], status;
    float x = 0;
    assert_int_equal(pipe(ends), 0);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        OP(&d, add, 1, &x, &x, &x, DTYPE_F32);
        _exit(0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], text, sizeof text - 1);
    text[length > 0 ? length : 0] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_non_null(strstr(text, "expected d->ops->add != NULL"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_op_that_is_missing),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_arguments),
        cmocka_unit_test(test_download),
        cmocka_unit_test(test_waits),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_event),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_environment),
        cmocka_unit_test(test_long_upload),
        cmocka_unit_test(test_times),
        cmocka_unit_test(test_stamps),
        cmocka_unit_test(test_first_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
