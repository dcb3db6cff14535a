/* TensorBoard's event files, written without its libraries: records of (length, CRC, data, CRC) in TFRecord
 * framing around protocol buffers of three messages (event.proto, summary.proto, tensor.proto).
 *
 *  T1. A file is never appended to: each start writes a new one, whose first record names the version.
 *  T2. After a resume the first event declares that the session starts there, so that readers drop what was
 *      logged beyond.
 *  T3. Non-finite values are omitted: TensorBoard would scale its axis by them.
 *
 * A record, as bytes:
 *
 *     u64 length | u32 masked CRC-32C of the length | data | u32 masked CRC-32C of the data
 *
 * The encoding of one scalar, as fields of the messages (numbers are those of the .proto files):
 *
 *     Event    1 wall_time (double) | 2 step (varint) | 5 summary (bytes):
 *     Summary      1 value (bytes), once for each scalar:
 *     Value            1 tag (bytes) | 2 simple_value (float) */
#include "observe/tensorboard.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/host.h"

/* Often enough for live viewing; TensorBoard itself reloads at most every five seconds. */
#define FLUSH_SECONDS 5.0
#define GIB (1024.0 * 1024 * 1024)

/* The three buffers grow to the size of the largest event and are reused: later logged steps allocate
 * nothing. */
struct TensorBoard {
    FILE *file;
    char *path;
    Text event, part, value; /* buffers of the encoder, innermost last */
    double flushed;          /* clock_seconds of the last flush */
};

/* ---- protocol buffers: a field is a varint key (number << 3 | wire type) and its value ---- */

enum { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

/* Seven bits per byte, the lowest first; the high bit says that more follow. */
static void put_varint(Text *t, uint64_t value) {
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((value & 0x7f) | (value > 0x7f ? 0x80 : 0));
        value >>= 7;
    } while (value);
    text_add(t, bytes, n);
}

static void put_little(Text *t, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) text_add(t, &(char){(char)(value >> (8 * i) & 0xff)}, 1);
}

static void put_key(Text *t, unsigned number, unsigned wire) { put_varint(t, number << 3 | wire); }

/* Negative numbers would take ten bytes; steps are never negative. */
static void put_int(Text *t, unsigned number, int64_t value) {
    put_key(t, number, WIRE_VARINT);
    put_varint(t, (uint64_t)value);
}

/* By its bits, through an integer, so that the bytes are little-endian on any machine. */
static void put_double(Text *t, unsigned number, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(t, number, WIRE_64);
    put_little(t, bits, 8);
}

static void put_float(Text *t, unsigned number, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(t, number, WIRE_32);
    put_little(t, bits, 4);
}

/* The length comes before the bytes, so messages are built from the inside out: value, part, event. */
static void put_bytes(Text *t, unsigned number, const char *data, size_t length) {
    put_key(t, number, WIRE_BYTES);
    put_varint(t, length);
    if (length > 0) text_add(t, data, length);
}

static void put_string(Text *t, unsigned number, const char *s) { put_bytes(t, number, s, strlen(s)); }

/* ---- records ---- */

/* A CRC of data that contains CRCs is weak: TFRecord rotates and shifts it. */
uint32_t tensorboard_masked_crc(const void *data, size_t length) {
    uint32_t crc = crc32c(data, length);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Fields of Event (event.proto). */
enum {
    EVENT_WALL_TIME = 1,
    EVENT_STEP = 2,
    EVENT_FILE_VERSION = 3,
    EVENT_SUMMARY = 5,
    EVENT_SESSION_LOG = 7
};

/* A step of 0 is omitted, as protocol buffers omit default values. */
static void begin_event(TensorBoard *tb, int64_t step) {
    text_clear(&tb->event);
    put_double(&tb->event, EVENT_WALL_TIME, clock_wall());
    if (step != 0) put_int(&tb->event, EVENT_STEP, step);
}

/* Not synced to disk: metrics.jsonl has the curves too. */
static ErrorCode flush(TensorBoard *tb, Error *err) {
    tb->flushed = clock_seconds();
    return fflush(tb->file) == 0 ? OK : error_errno(err, ERR_IO, "%s: writing failed", tb->path);
}

/* `part` is free again here: its content is already in the event. */
static ErrorCode write_event(TensorBoard *tb, Error *err) {
    Text *frame = &tb->part;
    text_clear(frame);
    put_little(frame, tb->event.length, 8);
    put_little(frame, tensorboard_masked_crc(frame->data, 8), 4);
    text_add(frame, tb->event.data, tb->event.length);
    put_little(frame, tensorboard_masked_crc(tb->event.data, tb->event.length), 4);
    if (fwrite(frame->data, 1, frame->length, tb->file) != frame->length) {
        return error_errno(err, ERR_IO, "%s: writing an event failed", tb->path);
    }
    if (clock_seconds() - tb->flushed < FLUSH_SECONDS) return OK;
    return flush(tb, err);
}

/* The names of TensorBoard's own writer; readers look for "tfevents" and sort by the time. */
#define EVENT_FILES "events.out.tfevents."

/* Time, host, process and microseconds: no two starts share a name, on any machine with a shared
 * directory. */
static char *event_path(const char *dir) {
    char host[HOST_NAME_BYTES];
    if (!host_name(host, sizeof host)) strcpy(host, "localhost");
    for (char *c = host; *c; c++) {
        if (*c == '/') *c = '-';
    }
    double now = clock_wall();
    Text name = {0};
    text_printf(&name, EVENT_FILES "%010lld.%s.%ld.%06u", (long long)now, host, (long)getpid(),
                (unsigned)((now - floor(now)) * 1e6));
    char *path = path_join(dir, name.data);
    text_free(&name);
    return path;
}

/* Flushed at once, so that a reader finds the file immediately. */
static ErrorCode write_preamble(TensorBoard *tb, int64_t resumed, Error *err) {
    begin_event(tb, 0);
    put_string(&tb->event, EVENT_FILE_VERSION, "brain.Event:2");
    TRY(write_event(tb, err));
    if (resumed > 0) {
        /* SessionLog{status = START} at step s makes readers forget what earlier files say about steps >=
         * s. */
        begin_event(tb, resumed + 1);
        put_bytes(&tb->event, EVENT_SESSION_LOG, "\x08\x01", 2);
        TRY(write_event(tb, err));
    }
    return flush(tb, err);
}

/* *out is NULL after a failure; files already made on disk stay. */
ErrorCode tensorboard_open(TensorBoard **out, const char *run_dir, int64_t resumed, Error *err) {
    *out = NULL;
    char *dir = path_join(run_dir, "tensorboard");
    ErrorCode code = file_make_own_dir(dir, err);
    if (code != OK) {
        free(dir);
        return code;
    }
    TensorBoard *tb = mem_alloc(sizeof *tb);
    tb->path = event_path(dir);
    free(dir);
    tb->file = fopen(tb->path, "wbxe"); /* x: never over another process's file */
    if (!tb->file) {
        code = error_errno(err, ERR_CANTCREATE, "%s: cannot be created", tb->path);
    } else {
        code = write_preamble(tb, resumed, err);
    }
    if (code != OK) {
        tensorboard_close(tb, NULL);
        return code;
    }
    *out = tb;
    return OK;
}

/* For a run that starts over: TensorBoard would draw both curves as one. */
ErrorCode tensorboard_discard(const char *run_dir, Error *err) {
    char *dir = path_join(run_dir, "tensorboard");
    ErrorCode code = file_check_own_dir(dir, err);
    if (code == OK) code = file_remove_matching(dir, EVENT_FILES "*", err);
    free(dir);
    return code;
}

const char *tensorboard_path(const TensorBoard *tb) { return tb->path; }

/* fclose writes buffered data, so it may fail; the memory is freed anyway. */
ErrorCode tensorboard_close(TensorBoard *tb, Error *err) {
    if (!tb) return OK;
    ErrorCode code = OK;
    if (tb->file && fclose(tb->file) != 0) code = error_errno(err, ERR_IO, "%s: writing failed", tb->path);
    text_free(&tb->event);
    text_free(&tb->part);
    text_free(&tb->value);
    free(tb->path);
    free(tb);
    return code;
}

/* ---- summaries: Summary{1 value: Value{1 tag, 2 simple_value, 8 tensor, 9 metadata}} ---- */

static void add_scalar(TensorBoard *tb, const char *tag, double value) {
    if (!isfinite(value)) return;
    Text *v = &tb->value;
    text_clear(v);
    put_string(v, 1, tag);
    /* This format has float scalars; metrics.jsonl has the doubles. */
    put_float(v, 2, (float)value);
    put_bytes(&tb->part, 1, v->data, v->length);
}

/* For a tag "section/name/figure"; the figures of a step contain their section. */
typedef struct Scalar {
    const char *figure;
    double value;
} Scalar;

/* One event for all scalars of a step, so that they share a time. If none of them is finite, its summary is
 * empty, and readers skip it. */
static ErrorCode write_scalars(TensorBoard *tb, int64_t step, const char *section, const char *name,
                               const Scalar *scalars, size_t count, Error *err) {
    char tag[256];
    text_clear(&tb->part);
    for (size_t i = 0; i < count; i++) {
        snprintf(tag, sizeof tag, "%s%s%s%s%s", section, *section ? "/" : "", name, *name ? "/" : "",
                 scalars[i].figure);
        add_scalar(tb, tag, scalars[i].value);
    }
    begin_event(tb, step);
    put_bytes(&tb->event, EVENT_SUMMARY, tb->part.data, tb->part.length);
    return write_event(tb, err);
}

#define COUNT(a) (sizeof(a) / sizeof *(a))

/* Tags with the same word before the slash share a section of the page. Percent and GiB, since the page shows
 * numbers without units. */
static ErrorCode write_step(TensorBoard *tb, const StepMetrics *m, Error *err) {
    const Scalar scalars[] = {
        {"train/loss", m->loss},
        {"train/grad_norm", m->grad_norm},
        {"train/clip_coefficient", m->clip_coefficient},
        {"train/lr", m->lr},
        {"train/z_loss", m->z_loss},
        {"train/loss_2", m->loss_2},
        {"train/loss_3", m->loss_3},
        {"train/loss_4", m->loss_4},
        {"train/loss_5", m->loss_5},
        {"experts/balance_loss", m->balance_loss},
        {"experts/imbalance", m->expert_imbalance},
        {"experts/dead", isfinite(m->expert_imbalance) ? (double)m->dead_experts : (double)NAN},
        {"train/noise_scale", m->noise_scale},
        {"train/tokens", (double)m->total_tokens},
        {"train/epoch", m->epoch},
        {"train/skipped_steps", (double)m->skipped_total},
        {"speed/tokens_per_second", m->tokens_per_second},
        {"speed/tflops", m->flops_per_second / 1e12},
        {"speed/mfu_percent", m->mfu * 100},
        {"speed/goodput_percent", m->goodput * 100},
        {"speed/step_seconds", m->step_seconds},
        {"speed/data_wait_percent", m->data_seconds / m->step_seconds * 100},
        {"memory/resident_gib", (double)m->memory_resident / GIB},
        {"memory/peak_gib", (double)m->memory_peak / GIB},
        {"memory/peak_percent", m->memory_fraction * 100},
        {"memory/device_gib", m->device_memory > 0 ? (double)m->device_memory / GIB : (double)NAN},
        {"memory/device_percent", m->device_fraction * 100},
    };
    return write_scalars(tb, m->step, "", "", scalars, COUNT(scalars), err);
}

static ErrorCode write_validation(TensorBoard *tb, const ValidationMetrics *v, Error *err) {
    const Scalar scalars[] = {
        {"loss", v->loss},
        {"perplexity", v->perplexity},
        {"bits_per_byte", v->bits_per_byte},
        {"tokens_per_second", v->tokens_per_second},
    };
    return write_scalars(tb, v->step, "validation", v->name, scalars, COUNT(scalars), err);
}

static ErrorCode write_task(TensorBoard *tb, const TaskMetrics *m, Error *err) {
    const TaskFigures *f = &m->figures;
    const Scalar scalars[] = {
        {"acc", f->acc},
        {"acc_norm", f->acc_norm},
        {"gold_bits_per_byte", f->gold_bits_per_byte},
        {"perplexity", f->perplexity},
        {"word_perplexity", f->word_perplexity},
        {"byte_perplexity", f->byte_perplexity},
        {"bits_per_byte", f->bits_per_byte},
    };
    return write_scalars(tb, m->step, "task", m->name, scalars, COUNT(scalars), err);
}

static ErrorCode write_source(TensorBoard *tb, const SourceMetrics *m, Error *err) {
    const Scalar scalars[] = {{"loss", m->loss}, {"epoch", m->epoch}};
    return write_scalars(tb, m->step, "source", m->name, scalars, COUNT(scalars), err);
}

static ErrorCode write_probe(TensorBoard *tb, const ProbeMetrics *m, Error *err) {
    const Scalar scalars[] = {
        {"output_rms", m->output_rms},
        {"output_max", m->output_max},
        {"gradient_rms", m->gradient_rms},
        {"gradient_max", m->gradient_max},
        {"weight_rms", m->weight_rms},
        {"weight_max", m->weight_max},
        {"weight_gradient_rms", m->weight_gradient_rms},
        {"weight_gradient_max", m->weight_gradient_max},
    };
    return write_scalars(tb, m->step, "probe", m->name, scalars, COUNT(scalars), err);
}

ErrorCode tensorboard_add(TensorBoard *tb, MetricsKind kind, const void *record, Error *err) {
    switch (kind) {
    case METRICS_STEP: return write_step(tb, record, err);
    case METRICS_VALIDATION:
    case METRICS_SET: return write_validation(tb, record, err);
    case METRICS_TASK: return write_task(tb, record, err);
    case METRICS_PROBE: return write_probe(tb, record, err);
    case METRICS_SOURCE: return write_source(tb, record, err);
    case METRICS_KINDS: break;
    }
    return OK;
}
