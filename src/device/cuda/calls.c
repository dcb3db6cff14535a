/* Remembers which ops were called, and which of them a wait has shown to have ended.
 *
 *     op ------> an entry, numbered ------> op_run
 *     mark ----> event: entries of its stream that are older than ...
 *     finish --> ... have ended
 *
 * Entries hold arguments as they were given. They become text only when somebody asks, which is
 * when the GPU has failed. Old entries are overwritten, and so are old marks; waiting for an overwritten mark
 * shows nothing. One mutex guards all of it, since the thread that saves calls ops at the same time as the
 * one that trains. */
#include "device/cuda/calls.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device/ops/ops.h"

enum { ENTRIES = 256, MARKS = 1024, WORDS_MOST = 3000, NO_OP = -1 };

typedef struct Entry {
    OpId op;
    DeviceStream stream;
    _Alignas(16) char arguments[OP_BYTES_MAX];
} Entry;

typedef struct Mark {
    Event event;
    DeviceStream stream;
    uint64_t before; /* number of an entry */
} Mark;

static DeviceRuntime runtime; /* the plugin's */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static Entry entries[ENTRIES];
static Mark marks[MARKS];
static uint64_t called, marked;        /* sequence numbers of the next entry and the next mark */
static uint64_t ended[DEVICE_STREAMS]; /* entries of the stream older than this have ended */
static _Thread_local Entry current = {.op = NO_OP};

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
    say_number(out, "nope", s->nope);
    say_number(out, "rope", s->rope);
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

/* By OpFieldType. */
static void (*const say[])(Text *out, const char *name, const void *at) = {
    [FIELD_BOOL] = say_bool, [FIELD_INT] = say_int,       [FIELD_I64] = say_i64,
    [FIELD_SIZE] = say_size, [FIELD_DTYPE] = say_dtype,   [FIELD_ATTENTION] = say_attention,
    [FIELD_RUN] = say_run,   [FIELD_LATENT] = say_latent, [FIELD_ROUTE] = say_route,
    [FIELD_ROWS] = say_rows, [FIELD_MATRIX] = say_matrix, [FIELD_SPLIT] = say_split,
};

static void print_call(Text *out, const Entry *e) {
    const OpDescriptor *op = op_descriptor(e->op);
    Text arguments = {0};
    for (int i = 0; i < op->fields; i++)
        say[op->field[i].type](&arguments, op->field[i].name, e->arguments + op->field[i].at);
    text_printf(out, "%s(%s)", op->name, arguments.length ? arguments.data : "");
    text_free(&arguments);
}

/* ---- remembering ---- */

static void enqueue(Device *d, OpId op, const void *arguments) {
    current.op = op;
    current.stream = device_stream();
    memcpy(current.arguments, arguments, op_descriptor(op)->bytes);
    pthread_mutex_lock(&mutex);
    entries[called++ % ENTRIES] = current;
    pthread_mutex_unlock(&mutex);
    op_run(d, op, arguments);
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
    runtime = d->runtime;
    called = marked = 0;
    memset(ended, 0, sizeof ended);
    d->runtime.enqueue = enqueue;
    d->runtime.mark = mark;
    d->runtime.finish = finish;
}

/* ---- reporting ---- */

const char *calls_current(OpId op) {
    static _Thread_local Text words;
    if (current.op != op) return op_name(op);
    text_clear(&words);
    print_call(&words, &current);
    return words.data;
}

/* Calls with equal text are reported once, with their count. The search for equal ones is quadratic, but runs
 * only once in the life of a process. */
const char *calls_unfinished(void) {
    static Text words, reported[ENTRIES];
    int count[ENTRIES], kinds = 0, there = 0;
    pthread_mutex_lock(&mutex);
    for (uint64_t n = called > ENTRIES ? called - ENTRIES : 0; n < called; n++) {
        const Entry *e = &entries[n % ENTRIES];
        int k = 0;
        if (n < ended[e->stream]) continue;
        there++;
        text_clear(&reported[kinds]);
        print_call(&reported[kinds], e);
        while (k < kinds && strcmp(reported[k].data, reported[kinds].data) != 0) k++;
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
        text_printf(&words, "%s%s", k ? ", " : " ", reported[k].data);
        if (count[k] > 1) text_printf(&words, " x %d", count[k]);
    }
    return words.data;
}
