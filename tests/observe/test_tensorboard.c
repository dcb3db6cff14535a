/* TensorBoard events, read back by the test's own small reader. */
#include "support/files.h"

#include <math.h>
#include <sys/wait.h>

#include "observe/tensorboard.h"

static Error err;

/* ---- the reader: a protocol buffer as a list of fields ---- */

typedef struct Span {
    const unsigned char *at, *end;
} Span;

typedef struct ProtoField {
    unsigned number, wire;
    uint64_t value; /* varint and fixed */
    Span bytes;
} ProtoField;

static uint64_t little(const unsigned char *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static uint64_t varint(Span *s) {
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        assert_true(s->at < s->end);
        value |= (uint64_t)(*s->at & 0x7f) << shift;
        if (*s->at++ < 0x80) return value;
    }
    fail_msg("varint too long");
    return 0;
}

static int next_field(Span *s, ProtoField *f) {
    if (s->at == s->end) return 0;
    uint64_t key = varint(s);
    *f = (ProtoField){.number = (unsigned)(key >> 3), .wire = (unsigned)(key & 7)};
    size_t left;
    switch (f->wire) {
    case 0: f->value = varint(s); return 1;
    case 1:
    case 5:
        left = f->wire == 1 ? 8 : 4;
        assert_true((size_t)(s->end - s->at) >= left);
        f->value = little(s->at, (int)left);
        break;
    case 2:
        left = (size_t)varint(s);
        assert_true((size_t)(s->end - s->at) >= left);
        f->bytes = (Span){s->at, s->at + left};
        break;
    default: fail_msg("wire type %u", f->wire); return 0;
    }
    s->at += left;
    return 1;
}

static int span_is(Span s, const char *text) {
    return (size_t)(s.end - s.at) == strlen(text) && memcmp(s.at, text, strlen(text)) == 0;
}

static ProtoField find(Span s, unsigned number) {
    ProtoField f;
    while (next_field(&s, &f)) {
        if (f.number == number) return f;
    }
    return (ProtoField){0};
}

/* Splits a file into the data of its records, checking both CRCs of each. */
static size_t split(const char *data, size_t length, Span *events, size_t max) {
    const unsigned char *at = (const unsigned char *)data, *end = at + length;
    size_t n = 0;
    while (at < end) {
        assert_true(end - at >= 16);
        uint64_t size = little(at, 8);
        assert_int_equal(little(at + 8, 4), tensorboard_masked_crc(at, 8));
        assert_true(size <= (uint64_t)(end - at) - 16);
        assert_int_equal(little(at + 12 + size, 4), tensorboard_masked_crc(at + 12, size));
        assert_true(n < max);
        events[n++] = (Span){at + 12, at + 12 + size};
        at += 16 + size;
    }
    return n;
}

/* A scalar of an event's summary; NaN if it is missing. */
static float scalar(Span event, const char *tag) {
    Span summary = find(event, 5).bytes;
    ProtoField value;
    while (summary.at && next_field(&summary, &value)) {
        assert_int_equal(value.number, 1);
        if (!span_is(find(value.bytes, 1).bytes, tag)) continue;
        uint32_t bits = (uint32_t)find(value.bytes, 2).value;
        float result;
        memcpy(&result, &bits, sizeof result);
        return result;
    }
    return NAN;
}

/* ---- tests ---- */

static void masked_sums_are_the_published_ones(void **state) {
    (void)state;
    static const unsigned char first[] = {0x09, 0,    0,    0x80, 0x38, 0x99, 0xd6, 0xd7,
                                          0x41, 0x1a, 0x0d, 'b',  'r',  'a',  'i',  'n',
                                          '.',  'E',  'v',  'e',  'n',  't',  ':',  '2'};
    static const unsigned char length[8] = {24};
    assert_int_equal(tensorboard_masked_crc("\x1a\x11"
                                            "CRC test, one two",
                                            19),
                     0x5794d08a);
    assert_int_equal(tensorboard_masked_crc(length, 8), 0x224b7fa3);
    assert_int_equal(tensorboard_masked_crc(first, sizeof first), 0xab364b12);
    assert_int_equal(tensorboard_masked_crc("", 0), 0xa282ead8);
}

static void events_read_back(void **state) {
    (void)state;
    TensorBoard *tb;
    assert_int_equal(tensorboard_open(&tb, files_root, 0, &err), OK);
    const StepMetrics m = {.step = 300,
                           .total_steps = 400,
                           .loss = 5.25,
                           .grad_norm = (double)NAN,
                           .lr = 3e-4,
                           .mfu = 0.5,
                           .step_seconds = 2,
                           .data_seconds = 0.5,
                           .flops_per_second = 2e12,
                           .memory_peak = 1 << 30,
                           .total_tokens = 1000000};
    const ValidationMetrics v = {
        .step = 70000, .loss = 4.5, .perplexity = 90.017, .bits_per_byte = (double)NAN};
    assert_int_equal(tensorboard_add(tb, METRICS_STEP, &m, &err), OK);
    assert_int_equal(tensorboard_add(tb, METRICS_VALIDATION, &v, &err), OK);
    char *path = mem_strdup(tensorboard_path(tb));
    assert_int_equal(tensorboard_close(tb, &err), OK);
    const char *name = strrchr(path, '/') + 1;
    assert_int_equal(strncmp(name, "events.out.tfevents.", 20), 0);
    assert_int_equal(strspn(name + 20, "0123456789"), 10);

    size_t length;
    char *data = files_read(path, &length);
    Span events[8];
    assert_int_equal(split(data, length, events, 8), 3);
    assert_true(span_is(find(events[0], 3).bytes, "brain.Event:2"));
    double wall;
    memcpy(&wall, &(uint64_t){find(events[1], 1).value}, sizeof wall);
    assert_true(wall > 1.6e9);
    assert_int_equal(find(events[1], 2).value, 300);
    assert_true(scalar(events[1], "train/loss") == 5.25f);
    assert_true(scalar(events[1], "train/lr") == 3e-4f);
    assert_true(scalar(events[1], "speed/mfu_percent") == 50);
    assert_true(scalar(events[1], "speed/tflops") == 2);
    assert_true(scalar(events[1], "speed/data_wait_percent") == 25);
    assert_true(scalar(events[1], "memory/peak_gib") == 1);
    assert_true(isnan(scalar(events[1], "train/grad_norm"))); /* omitted */
    assert_int_equal(find(events[2], 2).value, 70000);
    assert_true(scalar(events[2], "validation/loss") == 4.5f);
    free(data);
    free(path);
}

static void a_resumed_run_says_so(void **state) {
    (void)state;
    TensorBoard *tb;
    assert_int_equal(tensorboard_open(&tb, files_root, 250, &err), OK);
    char *path = mem_strdup(tensorboard_path(tb));
    size_t length;
    /* the preamble exists before the first step is logged */
    char *data = files_read(path, &length);
    Span events[4];
    assert_int_equal(split(data, length, events, 4), 2);
    assert_int_equal(find(events[1], 2).value, 251);
    assert_int_equal(find(find(events[1], 7).bytes, 1).value, 1); /* SessionLog.START */
    free(data);
    free(path);
    assert_int_equal(tensorboard_close(tb, &err), OK);
}

static void a_place_that_cannot_be_written_is_an_error(void **state) {
    (void)state;
    TensorBoard *tb;
    assert_int_not_equal(tensorboard_open(&tb, files_text("file", "x"), 0, &err), OK);
    assert_null(tb);
    assert_non_null(strstr(err.message, "file"));
    assert_int_equal(tensorboard_close(NULL, &err), OK);
}

/* A resumed run, for the real reader. */
static void write_part(const char *run, int64_t resumed, int64_t last) {
    MetricsLog log;
    TensorBoard *tb;
    assert_int_equal(metrics_log_open(&log, run, METRICS_FILE, resumed, &err), OK);
    assert_int_equal(tensorboard_open(&tb, run, resumed, &err), OK);
    for (int64_t s = resumed + 1; s <= last; s++) {
        StepMetrics m = {.step = s,
                         .loss = 1.0 / (double)s + (double)last,
                         .grad_norm = 1.0 / 3,
                         .lr = 3e-4,
                         .total_tokens = s,
                         .tokens_per_second = 12345.6,
                         .memory_peak = 123456789,
                         .step_seconds = 1,
                         .skipped = s == 7};
        if (m.skipped) m.loss = (double)NAN;
        ValidationMetrics v = {.step = s, .loss = 1.5, .perplexity = exp(1.5), .bits_per_byte = (double)NAN};
        assert_int_equal(metrics_log_add(&log, METRICS_STEP, &m, &err), OK);
        assert_int_equal(tensorboard_add(tb, METRICS_STEP, &m, &err), OK);
        if (s % 10) continue;
        assert_int_equal(metrics_log_add(&log, METRICS_VALIDATION, &v, &err), OK);
        assert_int_equal(tensorboard_add(tb, METRICS_VALIDATION, &v, &err), OK);
    }
    metrics_log_close(&log);
    assert_int_equal(tensorboard_close(tb, &err), OK);
}

/* WEFT_PYTHON names an interpreter that has the tensorboard package. */
static void the_real_tensorboard_reads_them(void **state) {
    (void)state;
    const char *python = getenv("WEFT_PYTHON");
    const char *run = files_mkdir("run");
    char command[1024];
    write_part(run, 0, 60);
    write_part(run, 40, 100);
    snprintf(command, sizeof command, "'%s' '%s/tests/interop/interop_tensorboard.py' '%s/tensorboard'",
             python ? python : "python3", WEFT_SOURCE_DIR, run);
    int status = system(command);
    int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (code == 77 || code == 127) skip(); /* no tensorboard, or no Python */
    assert_int_equal(code, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(masked_sums_are_the_published_ones),
        cmocka_unit_test(events_read_back),
        cmocka_unit_test(a_resumed_run_says_so),
        cmocka_unit_test(a_place_that_cannot_be_written_is_an_error),
        cmocka_unit_test(the_real_tensorboard_reads_them),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
