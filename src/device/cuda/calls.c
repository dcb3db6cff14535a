/* Remembers which ops were called, and which of them a wait has shown to have ended.
 *
 *     op ------> an entry, numbered ------> the plugin's op
 *     mark ----> event: entries of its stream that are older than ...
 *     finish --> ... have ended
 *
 * Entries hold arguments as they were given (arguments.h). They become text only when somebody asks, which is
 * when the GPU has failed. Old entries are overwritten, and so are old marks; waiting for an overwritten mark
 * shows nothing. One mutex guards all of it, since the thread that saves calls ops at the same time as the
 * one that trains. */
#include "device/cuda/calls.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/arguments.h"

enum { ENTRIES = 256, MARKS = 1024, ARGUMENTS_MOST = 384, WORDS_MOST = 3000 };

typedef void Say(Text *out, const void *arguments);

typedef struct Entry {
    OpId op;
    DeviceStream stream;
    Say *say;
    _Alignas(16) char arguments[ARGUMENTS_MOST];
} Entry;

typedef struct Mark {
    Event event;
    DeviceStream stream;
    uint64_t before; /* number of an entry */
} Mark;

static Ops ops; /* the plugin's, which the wrappers call */
static DeviceRuntime runtime;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Entry entries[ENTRIES];
static Mark marks[MARKS];
static uint64_t called, marked;        /* sequence numbers of the next entry and the next mark */
static uint64_t ended[DEVICE_STREAMS]; /* entries of the stream older than this have ended */
static _Thread_local Entry current;

/* ---- words ---- */

static void say_number(Text *out, const char *name, int64_t value) {
    char shown[32];
    snprintf(shown, sizeof shown, "%lld", (long long)value);
    text_printf(out, "%s%s %s", out->length ? ", " : "", name, shown);
}

static void say_i64(Text *out, const char *name, const void *at) {
    say_number(out, name, *(const int64_t *)at);
}
static void say_int(Text *out, const char *name, const void *at) { say_number(out, name, *(const int *)at); }
static void say_size(Text *out, const char *name, const void *at) {
    say_number(out, name, (int64_t) * (const size_t *)at);
}
static void say_dtype(Text *out, const char *name, const void *at) {
    text_printf(out, "%s%s %s", out->length ? ", " : "", name, dtype_name(*(const Dtype *)at));
}
static void say_bool(Text *out, const char *name, const void *at) {
    if (*(const bool *)at) text_printf(out, "%s%s", out->length ? ", " : "", name);
}
static void say_attention(Text *out, const char *name, const void *at) {
    const AttentionShape *s = at;
    (void)name;
    say_number(out, "tokens", s->tokens);
    say_number(out, "heads", s->heads);
    say_number(out, "kv_heads", s->kv_heads);
    say_number(out, "head_dim", s->head_dim);
    if (s->window) say_number(out, "window", s->window);
}
static void say_run(Text *out, const char *name, const void *at) {
    const AttentionRun *r = at;
    (void)name;
    say_number(out, "first", r->first);
    say_number(out, "keys", r->keys);
}
static void say_latent(Text *out, const char *name, const void *at) {
    const LatentShape *s = at;
    (void)name;
    say_number(out, "tokens", s->tokens);
    say_number(out, "heads", s->heads);
    say_number(out, "plain", s->plain);
    say_number(out, "turned", s->turned);
    say_number(out, "value", s->value);
}
static void say_route(Text *out, const char *name, const void *at) {
    const RouteShape *s = at;
    (void)name;
    say_number(out, "tokens", s->tokens);
    say_number(out, "experts", s->experts);
    say_number(out, "chosen", s->chosen);
}
static void say_rows(Text *out, const char *name, const void *at) {
    const ExpertRows *e = at;
    (void)name;
    say_number(out, "rows", e->rows);
    say_number(out, "experts", e->experts);
}
static void say_matrix(Text *out, const char *name, const void *at) {
    const MatrixShape *s = at;
    (void)name;
    say_number(out, "rows", s->rows);
    say_number(out, "cols", s->cols);
}
static void say_split(Text *out, const char *name, const void *at) {
    const KSplit *l = at;
    if (l->runs) say_number(out, name, l->run[0].split_size);
}
/* For addresses, and for numbers that are not shapes. */
static void say_nothing(Text *out, const char *name, const void *at) { (void)out, (void)name, (void)at; }

/* clang-format off */
#define SAY(type, name)                                                                            \
    _Generic(a->name, int64_t: say_i64, int: say_int, size_t: say_size, bool: say_bool,            \
             Dtype: say_dtype, AttentionShape: say_attention, AttentionRun: say_run,               \
             LatentShape: say_latent, RouteShape: say_route, ExpertRows: say_rows,                 \
             MatrixShape: say_matrix, KSplit: say_split, default: say_nothing)(out, #name, &a->name);
/* clang-format on */

static void say_call(Text *out, const Entry *e) {
    Text arguments = {0};
    e->say(&arguments, e->arguments);
    text_printf(out, "%s(%s)", op_name(e->op), arguments.length ? arguments.data : "");
    text_free(&arguments);
}

/* ---- remembering ---- */

static void remember(OpId op, Say *say, const void *arguments, size_t bytes) {
    current.op = op;
    current.stream = device_stream();
    current.say = say;
    memcpy(current.arguments, arguments, bytes);
    pthread_mutex_lock(&mutex);
    entries[called++ % ENTRIES] = current;
    pthread_mutex_unlock(&mutex);
}

/* Ids of ops by the names of their slots. */
#define ID_OF(id, name) ID_##name = OP_##id,
enum { DEVICE_OPS(ID_OF) };
#undef ID_OF

#define REMEMBERED(slot, ...)                                                                                \
    _Static_assert(sizeof(slot##_arguments) <= ARGUMENTS_MOST, "more arguments than an entry has room for"); \
    static void words_of_##slot(Text *out, const void *arguments) {                                          \
        const slot##_arguments *a = arguments;                                                               \
        EACH(SAY, __VA_ARGS__)                                                                               \
    }                                                                                                        \
    static void call_##slot(Device *d EACH(PARAMETER, __VA_ARGS__)) {                                        \
        remember((OpId)ID_##slot, words_of_##slot, &(slot##_arguments){EACH(VALUE, __VA_ARGS__)},            \
                 sizeof(slot##_arguments));                                                                  \
        ops.slot(d EACH(NAMED, __VA_ARGS__));                                                                \
    }

PLAIN_OPS(REMEMBERED)

static void words_of_bytes(Text *out, const void *arguments) { say_size(out, "bytes", arguments); }

static void call_upload(Device *d, void *tensor, const void *host, size_t bytes) {
    remember(OP_UPLOAD, words_of_bytes, &bytes, sizeof bytes);
    ops.upload(d, tensor, host, bytes);
}

static void call_download(Device *d, void *host, const void *tensor, size_t bytes) {
    remember(OP_DOWNLOAD, words_of_bytes, &bytes, sizeof bytes);
    ops.download(d, host, tensor, bytes);
}

typedef struct Parts {
    int64_t n;
    int parts;
} Parts;

static void words_of_parts(Text *out, const void *arguments) {
    const Parts *a = arguments;
    say_number(out, "n", a->n);
    say_number(out, "parts", a->parts);
}

static void call_sum_parts(Device *d, int64_t n, int parts, const float *const *in, float *out) {
    remember(OP_SUM_PARTS, words_of_parts, &(Parts){n, parts}, sizeof(Parts));
    ops.sum_parts(d, n, parts, in, out);
}

static void call_sum_parts_i64(Device *d, int64_t n, int parts, const int64_t *const *in, int64_t *out) {
    remember(OP_SUM_PARTS, words_of_parts, &(Parts){n, parts}, sizeof(Parts));
    ops.sum_parts_i64(d, n, parts, in, out);
}

/* Ops that other threads call meanwhile count as later than the mark. */
static Event mark(Device *d, DeviceStream s) {
    pthread_mutex_lock(&mutex);
    uint64_t before = called;
    pthread_mutex_unlock(&mutex);
    Event e = runtime.mark(d, s);
    pthread_mutex_lock(&mutex);
    marks[marked++ % MARKS] = (Mark){e, s, before};
    pthread_mutex_unlock(&mutex);
    return e;
}

static void finish(Device *d, Event e) {
    runtime.finish(d, e);
    pthread_mutex_lock(&mutex);
    for (uint64_t n = marked; n > 0 && marked - n < MARKS; n--) {
        const Mark *m = &marks[(n - 1) % MARKS];
        if (m->event != e) continue;
        if (m->before > ended[m->stream]) ended[m->stream] = m->before;
        break;
    }
    pthread_mutex_unlock(&mutex);
}

void calls_remember(Device *d) {
    ops = d->ops;
    runtime = d->runtime;
    called = marked = 0;
    memset(ended, 0, sizeof ended);
#define REPLACE(slot, ...) \
    if (ops.slot) d->ops.slot = call_##slot;
    PLAIN_OPS(REPLACE)
#undef REPLACE
    d->ops.upload = call_upload;
    d->ops.download = call_download;
    d->ops.sum_parts = call_sum_parts;
    d->ops.sum_parts_i64 = call_sum_parts_i64;
    d->runtime.mark = mark;
    d->runtime.finish = finish;
}

/* ---- telling ---- */

const char *calls_current(OpId op) {
    static _Thread_local Text words;
    if (!current.say || current.op != op) return op_name(op);
    text_clear(&words);
    say_call(&words, &current);
    return words.data;
}

/* Calls with equal text are reported once, with their count. The search for equal ones is quadratic, but runs
 * only once in the life of a process. */
const char *calls_unfinished(void) {
    static Text words, told[ENTRIES];
    int count[ENTRIES], kinds = 0, there = 0;
    pthread_mutex_lock(&mutex);
    for (uint64_t n = called > ENTRIES ? called - ENTRIES : 0; n < called; n++) {
        const Entry *e = &entries[n % ENTRIES];
        int k = 0;
        if (n < ended[e->stream]) continue;
        there++;
        text_clear(&told[kinds]);
        say_call(&told[kinds], e);
        while (k < kinds && strcmp(told[k].data, told[kinds].data) != 0) k++;
        if (k == kinds) count[kinds++] = 0;
        count[k]++;
    }
    pthread_mutex_unlock(&mutex);
    text_clear(&words);
    text_printf(&words, "%s%d op%s had been called whose end no wait has shown%s",
                there == ENTRIES ? "more than " : "", there, there == 1 ? "" : "s", there ? ":" : "");
    for (int k = 0; k < kinds; k++) {
        if (words.length > WORDS_MOST) {
            text_printf(&words, ", and %d others", kinds - k);
            break;
        }
        text_printf(&words, "%s%s", k ? ", " : " ", told[k].data);
        if (count[k] > 1) text_printf(&words, " x %d", count[k]);
    }
    return words.data;
}
