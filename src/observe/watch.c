/* Reads the files of an active run as they grow.
 *
 *  W1. A record counts once its line has its newline: the last line of a file that is being written may be
 *      incomplete, and is read again.
 *  W2. Points have ascending steps: a record that does not continue from the last one is skipped, and
 *      counted. A replaced file is recognised by its inode, its size, and its first bytes, which contain a
 *      time.
 *  W3. The amounts read per look and kept have limits that no file of a run can raise.
 *
 * The data flow of a look:
 *
 *     metrics.jsonl  --from `offset`, at most LOOK bytes-->  whole lines --> points, validations, named, last
 *     metrics-000NN.jsonl, journal.jsonl  --the last TAIL bytes, each time-->  ranks, state, events
 *
 * `version` tells whether a page has the beginning of the current data: it grows whenever points are thinned
 * or read again, and then the page gets all points instead of those after its last step. */
#include "observe/watch.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "observe/journal.h"

/* In bytes. LOOK is some thousand records; TAIL fits about WATCH_EVENTS entries of a journal, or the last
 * records of a rank; DETAIL is what a line of the page can show of an event. */
enum { LOOK = 4 << 20, TAIL = 64 << 10, DETAIL = 600 };

/* ---- columns ---- */

/* A drawn member of a record. `key` is its name in the JSON, which the script uses. */
typedef struct Column {
    const char *key;
    size_t offset;
    bool whole; /* an int64_t */
} Column;

#define OF(name) offsetof(StepMetrics, name)
static const Column columns[WATCH_COLUMNS] = {
    {"step", OF(step), true},
    {"loss", OF(loss), false},
    {"norm", OF(grad_norm), false},
    {"lr", OF(lr), false},
    {"rate", OF(tokens_per_second), false},
    {"wait", OF(wait_seconds), false},
    {"data", OF(data_seconds), false},
    {"seconds", OF(step_seconds), false},
    {"resident", OF(memory_resident), true},
    {"z_loss", OF(z_loss), false},
    {"balance_loss", OF(balance_loss), false},
    {"imbalance", OF(expert_imbalance), false},
    {"noise", OF(noise_scale), false},
};
enum { STEP = 0, LOSS = 1 };

/* ---- points ---- */

/* Keeps of four points the ones with the minimum and the maximum loss, in their order; a non-finite one is
 * greater than any. Of four equal points keeps the first and the last. */
static size_t thin_four(const WatchPoint *from, WatchPoint *to) {
    size_t least = 0, most = 0;
    for (size_t i = 1; i < 4; i++) {
        double loss = from[i].values[LOSS];
        if (loss < from[least].values[LOSS] || !isfinite(from[least].values[LOSS])) least = i;
        if (!(loss <= from[most].values[LOSS]) && isfinite(from[most].values[LOSS])) most = i;
    }
    if (least == most) most = least == 3 ? 0 : 3;
    WatchPoint first = from[least < most ? least : most], second = from[least < most ? most : least];
    to[0] = first;
    to[1] = second;
    return 2;
}

/* In place, since writing never overtakes reading. Every four become two, so thinning a full curve makes
 * space for WATCH_POINTS / 2 more: a run of n steps is thinned about n / 2048 times, at 4096 points each. */
static void thin(Watched *w) {
    size_t kept = 0;
    for (size_t i = 0; i + 4 <= w->count; i += 4) kept += thin_four(&w->points[i], &w->points[kept]);
    w->count = kept;
    w->version++;
}
_Static_assert(WATCH_POINTS % 4 == 0, "points are thinned by fours");

/* Keeps the memory; pages with the old version get everything again. */
static void start_over(Watched *w) {
    w->offset = w->count = w->validation_count = w->named_count = w->bad_lines = 0;
    w->last = (StepMetrics){0};
    w->last_validation = (ValidationMetrics){0};
    w->has_head = false;
    w->version++;
}

static void keep_step(Watched *w, const StepMetrics *m) {
    if (w->count == WATCH_POINTS) thin(w);
    WatchPoint *p = &w->points[w->count++];
    for (size_t i = 0; i < WATCH_COLUMNS; i++)
        p->values[i] = metrics_number(m, columns[i].offset, columns[i].whole);
    w->last = *m;
}

/* When the array is full, every second one is removed: they are few, and without spikes. A page gets all of
 * them every time. */
static void keep_dot(WatchDot *dots, size_t *count, size_t most, WatchDot dot) {
    if (*count == most) {
        for (size_t i = 0; i < most / 2; i++) dots[i] = dots[2 * i + 1];
        *count = most / 2;
    }
    dots[(*count)++] = dot;
}

static void keep_validation(Watched *w, const ValidationMetrics *v) {
    keep_dot(w->validations, &w->validation_count, WATCH_VALIDATIONS, (WatchDot){(double)v->step, v->loss});
    w->last_validation = *v;
}

/* The curve of this name, which may be new; NULL if there are too many. */
static WatchCurve *named_curve(Watched *w, MetricsKind kind, const char *name) {
    for (size_t i = 0; i < w->named_count; i++)
        if (w->named[i].kind == kind && strcmp(w->named[i].name, name) == 0) return &w->named[i];
    if (w->named_count == WATCH_NAMED) return NULL;
    WatchCurve *c = &w->named[w->named_count++];
    *c = (WatchCurve){.kind = kind};
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

/* False if the record does not continue the curve. A task's figure is chosen by its first record; later
 * records without a finite value of it leave a gap. */
static bool keep_named(Watched *w, const MetricsRecord *r) {
    bool set = r->kind == METRICS_SET;
    WatchCurve *c = named_curve(w, r->kind, set ? r->validation.name : r->task.name);
    if (!c) return true;
    TaskFigure figure = set ? (TaskFigure){"loss", r->validation.loss, false} : metrics_task_figure(&r->task);
    WatchDot dot = {(double)(set ? r->validation.step : r->task.step), figure.value};
    if (c->count > 0 && dot.step < c->last) return false;
    if (!c->figure.name) c->figure = figure;
    keep_dot(&w->dots[(size_t)(c - w->named) * WATCH_DOTS], &c->count, WATCH_DOTS, dot);
    c->last = dot.step;
    return true;
}

/* Two validations may have one step, two step records may not. Skipped records are counted, and the page gets
 * the count: a curve with gaps should not look complete. */
static void take_line(Watched *w, const char *line, size_t length) {
    MetricsRecord r;
    bool good = true;
    if (length == 0) return;
    if (!metrics_parse(line, length, &r)) r.kind = METRICS_KINDS;
    switch (r.kind) {
    case METRICS_STEP:
        good = r.step.step > w->last.step; /* W2 */
        if (good) keep_step(w, &r.step);
        break;
    case METRICS_VALIDATION:
        good = r.validation.step >= w->last_validation.step;
        if (good) keep_validation(w, &r.validation);
        break;
    case METRICS_SET:
    case METRICS_TASK: good = keep_named(w, &r); break;
    case METRICS_PROBE:
    case METRICS_SOURCE: break; /* not shown on the page */
    case METRICS_KINDS: good = false;
    }
    w->bad_lines += !good;
}

/* ---- reading ---- */

/* -1 if it does not exist or is not a regular file: a link that somebody put there is not followed. */
static int open_in(const char *dir, const char *name) {
    int fd;
    char *path = path_join(dir, name);
    if (file_open_own(path, O_RDONLY | O_CLOEXEC, &fd, NULL) != OK) fd = -1;
    free(path);
    return fd;
}

/* Bytes of a file into new memory, fewer at its end. By pread: the file has no position that two looks could
 * share. One byte more is allocated, so that zero is no special case. The caller frees it. */
static char *read_at(int fd, uint64_t offset, size_t most, size_t *length) {
    char *data = mem_alloc(most + 1);
    ssize_t n;
    for (*length = 0; *length < most; *length += (size_t)n) {
        RETRY(n, pread(fd, data + *length, most - *length, (off_t)(offset + *length)));
        if (n <= 0) break;
    }
    return data;
}

/* Up to the last newline; the rest is read again at the next look (W1). A block of LOOK bytes without any
 * newline would be read forever, so it is skipped as one bad line. */
static void take_lines(Watched *w, const char *data, size_t length) {
    const char *at = data, *end = data + length, *newline;
    while ((newline = memchr(at, '\n', (size_t)(end - at)))) {
        take_line(w, at, (size_t)(newline - at));
        at = newline + 1;
    }
    if (at == data && length == LOOK) { /* no record is that long */
        w->bad_lines++;
        at = end;
    }
    w->offset += (uint64_t)(at - data);
}

/* Whether the first bytes are unchanged; they are stored once there are enough. A file that was replaced by a
 * longer one under the same inode has another first record. Fewer than WATCH_HEAD bytes are not judged: the
 * next look has more. */
static bool begins_as_before(Watched *w, int fd) {
    char now[WATCH_HEAD];
    ssize_t n;
    if (w->offset < WATCH_HEAD) return true;
    RETRY(n, pread(fd, now, sizeof now, 0));
    if (n != (ssize_t)sizeof now) return false;
    if (!w->has_head) memcpy(w->head, now, sizeof now);
    w->has_head = true;
    return memcmp(w->head, now, sizeof now) == 0;
}

/* One block per look, so that the server responds while it works through a long file; `read` tells the page
 * the progress. */
static void look_at(Watched *w, int fd, const struct stat *now) {
    size_t length;
    if ((uint64_t)now->st_ino != w->file || (uint64_t)now->st_size < w->offset || !begins_as_before(w, fd))
        start_over(w);
    w->file = (uint64_t)now->st_ino;
    w->size = (uint64_t)now->st_size;
    if (w->size == w->offset) return;
    char *data = read_at(fd, w->offset, LOOK, &length);
    take_lines(w, data, length);
    free(data);
}

/* A missing file means that the run starts over. Nothing here is an error, since the next look may find
 * it. */
void watch_look(Watched *w) {
    struct stat now;
    int fd = open_in(w->dir, METRICS_FILE);
    if (fd < 0) {
        if (w->file) start_over(w);
        w->file = w->size = 0;
        return;
    }
    if (fstat(fd, &now) == 0) look_at(w, fd, &now);
    close(fd);
}

/* The last component of the real path, since "." is a possible name; of the given path if it does not exist.
 * The caller frees it. */
static char *name_of(const char *dir) {
    char *real = realpath(dir, NULL), *path = real ? real : mem_strdup(dir);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--) path[n - 1] = '\0';
    const char *slash = strrchr(path, '/');
    char *name = mem_strdup(slash && slash[1] ? slash + 1 : path);
    free(path);
    return name;
}

/* The memory for points is allocated once, here. The version starts with the time in milliseconds, and grows
 * by one at a time. */
ErrorCode watch_open(Watched *w, const char *dir, Error *err) {
    *w = (Watched){0};
    struct stat info;
    bool there = stat(dir, &info) == 0;
    if (!there && errno != ENOENT) return error_errno(err, ERR_NOINPUT, "%s: cannot stat", dir);
    if (there && !S_ISDIR(info.st_mode))
        return error_set(err, ERR_NOINPUT,
                         "%s: no directory; a run directory was expected, as \"weft train\" makes it", dir);
    w->dir = mem_strdup(dir);
    w->name = name_of(dir);
    w->points = mem_alloc_array(WATCH_POINTS, sizeof *w->points);
    w->validations = mem_alloc_array(WATCH_VALIDATIONS, sizeof *w->validations);
    w->named = mem_alloc_array(WATCH_NAMED, sizeof *w->named);
    w->dots = mem_alloc_array((size_t)WATCH_NAMED * WATCH_DOTS, sizeof *w->dots);
    w->version = (int64_t)(1000 * clock_wall()); /* pages of an earlier server have another one */
    return OK;
}

void watch_close(Watched *w) {
    free(w->dir);
    free(w->name);
    free(w->points);
    free(w->validations);
    free(w->named);
    free(w->dots);
    *w = (Watched){0};
}

/* ---- the tails of other files ---- */

/* The last complete lines of a file, at most TAIL bytes; NULL if there are none. The caller frees the result,
 * into which *lines points. If the tail does not begin the file, its first line is dropped, since it may be
 * incomplete. memrchr finds the end of the last complete line (W1). */
static char *read_tail(const char *dir, const char *name, char **lines, size_t *length) {
    struct stat now;
    char *data = NULL;
    int fd = open_in(dir, name);
    *length = 0;
    if (fd < 0) return NULL;
    if (fstat(fd, &now) == 0) {
        uint64_t size = (uint64_t)now.st_size, from = size > TAIL ? size - TAIL : 0;
        data = read_at(fd, from, TAIL, length);
        char *first = from > 0 ? memchr(data, '\n', *length) : NULL, *last = memrchr(data, '\n', *length);
        *lines = first ? first + 1 : data;
        *length = last && last >= *lines ? (size_t)(last + 1 - *lines) : 0;
    }
    close(fd);
    return data;
}

/* The newest step of a rank's file. From the back, since the last line may be a validation, or unreadable. */
static bool last_step(const char *dir, const char *name, StepMetrics *out) {
    char *lines = NULL;
    size_t length;
    char *data = read_tail(dir, name, &lines, &length);
    bool found = false;
    while (data && !found && length > 0) {
        const char *before = length > 1 ? memrchr(lines, '\n', length - 1) : NULL;
        const char *line = before ? before + 1 : lines;
        MetricsRecord r;
        found = metrics_parse(line, (size_t)(lines + length - 1 - line), &r) && r.kind == METRICS_STEP;
        if (found) *out = r.step;
        length = (size_t)(line - lines);
    }
    free(data);
    return found;
}

/* ---- output ---- */

/* Six digits: a drawing shows fewer. */
static void put_number(JsonWriter *w, double value) {
    char digits[32];
    snprintf(digits, sizeof digits, "%.6g", value);
    json_double(w, isfinite(value) ? strtod(digits, NULL) : value);
}

/* Column by column, an array each, so that names are not repeated with every point. Steps have all digits,
 * since the page asks for the points after its last step. */
static void write_points(JsonWriter *w, const Watched *run, double after) {
    size_t from = 0;
    while (from < run->count && run->points[from].values[STEP] <= after) from++;
    json_key(w, "points");
    json_begin_object(w);
    for (size_t c = 0; c < WATCH_COLUMNS; c++) {
        json_key(w, columns[c].key);
        json_begin_array(w);
        for (size_t i = from; i < run->count; i++) {
            double value = run->points[i].values[c];
            if (c == STEP)
                json_double(w, value);
            else
                put_number(w, value);
        }
        json_end_array(w);
    }
    json_end_object(w);
}

static void write_dots(JsonWriter *w, const char *key, const WatchDot *dots, size_t count) {
    json_key(w, key);
    json_begin_array(w);
    for (size_t i = 0; i < count; i++) {
        json_begin_array(w);
        json_double(w, dots[i].step);
        put_number(w, dots[i].value);
        json_end_array(w);
    }
    json_end_array(w);
}

/* All of them: they are few, and one may belong to a step that was already sent. */
static void write_validations(JsonWriter *w, const Watched *run) {
    write_dots(w, "validations", run->validations, run->validation_count);
    json_key(w, "named");
    json_begin_array(w);
    for (size_t i = 0; i < run->named_count; i++) {
        const WatchCurve *c = &run->named[i];
        json_begin_object(w);
        json_put_string(w, "kind", c->kind == METRICS_SET ? "set" : "task");
        json_put_bytes(w, "name", c->name, strlen(c->name));
        json_put_string(w, "figure", c->figure.name ? c->figure.name : "");
        json_put_bool(w, "share", c->figure.share);
        write_dots(w, "dots", &run->dots[i * WATCH_DOTS], c->count);
        json_end_object(w);
    }
    json_end_array(w);
}

/* `sent` is the sum over all axes of the mesh. */
static void write_rank(JsonWriter *w, int rank, const StepMetrics *m) {
    json_begin_object(w);
    json_put_int(w, "rank", rank);
    json_put_int(w, "step", m->step);
    json_put_double(w, "seconds", m->step_seconds);
    json_put_double(w, "wait", m->wait_seconds);
    json_put_double(w, "data", m->data_seconds);
    json_put_int(w, "resident", m->memory_resident);
    json_put_int(w, "peak", m->memory_peak);
    json_put_int(w, "sent",
                 m->sent_pp + m->sent_dp_replicate + m->sent_dp_shard + m->sent_cp + m->sent_tp + m->sent_ep);
    json_end_object(w);
}

/* Rank 0, and ranks with files of their own (metrics.all_ranks), up to the first without. At most WATCH_RANKS
 * of them: each is a file that is opened at every look. */
static void write_ranks(JsonWriter *w, const Watched *run) {
    json_key(w, "ranks");
    json_begin_array(w);
    if (run->last.step > 0) write_rank(w, 0, &run->last);
    for (int rank = 1; rank < WATCH_RANKS; rank++) {
        char name[32];
        StepMetrics m;
        if (!last_step(run->dir, metrics_file_name(rank, name), &m)) break;
        write_rank(w, rank, &m);
    }
    json_end_array(w);
}

/* The text of an event, or else its numbers. Cut to DETAIL: an error may quote a file, and there are up to a
 * hundred events in every response. */
static void write_event(JsonWriter *w, const JournalEntry *e) {
    char detail[DETAIL];
    Text facts = {0};
    for (const JournalFact *f = e->facts; f->name && !*e->detail; f++)
        text_printf(&facts, "%s%s %.6g", f == e->facts ? "" : ", ", f->name, f->value);
    const char *words = facts.length ? facts.data : e->detail;
    error_escape(detail, sizeof detail, words, strlen(words));
    text_free(&facts);
    json_begin_object(w);
    json_put_bytes(w, "time", e->time, strlen(e->time));
    json_put_bytes(w, "event", e->event, strlen(e->event));
    json_put_int(w, "step", e->step);
    json_put_string(w, "detail", detail);
    json_end_object(w);
}

/* The newest events first, and the run's facts from its start, as long as that event is among the newest.
 * Read again each time and not stored: it is the tail of a file that changes seldom. The newest event is the
 * state of the run; the page decides which states mean that it is active. */
static void write_journal(JsonWriter *w, const Watched *run) {
    static const char *const facts[][2] = {
        {"parameters", "parameters"}, {"ranks", "rank_count"}, {"threads", "threads"}};
    char *lines = NULL;
    size_t length;
    char *data = read_tail(run->dir, JOURNAL_FILE, &lines, &length);
    JournalTable t = {0};
    if (data) journal_table_parse(&t, lines, length);
    json_put_string(w, "state", t.count ? t.entries[t.count - 1].event : "");
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++)
        json_put_double(w, facts[i][1], journal_table_fact(&t, facts[i][0]));
    json_key(w, "journal");
    json_begin_array(w);
    for (size_t i = t.count; i-- > 0 && t.count - i <= WATCH_EVENTS;) write_event(w, &t.entries[i]);
    json_end_array(w);
    journal_table_free(&t);
    free(data);
}

/* Figures in full digits: they are shown as numbers, not drawn. For a run without a record all are 0, except
 * the losses, which are null, since 0 would be read as a loss. */
static void write_last(JsonWriter *w, const Watched *run) {
    const StepMetrics *m = &run->last;
    const ValidationMetrics *v = &run->last_validation;
    json_key(w, "last");
    json_begin_object(w);
    json_put_int(w, "step", m->step);
    json_put_int(w, "total_steps", m->total_steps);
    json_put_double(w, "wall", m->wall);
    json_put_double(w, "loss", m->step ? m->loss : (double)NAN);
    json_put_double(w, "validation", v->tokens ? v->loss : (double)NAN);
    json_put_double(w, "bits_per_byte", v->tokens ? v->bits_per_byte : (double)NAN);
    json_put_double(w, "rate", m->tokens_per_second);
    json_put_double(w, "mfu", m->mfu);
    json_put_double(w, "eta", m->eta);
    json_put_double(w, "goodput", m->step ? m->goodput : (double)NAN);
    json_put_double(w, "epoch", m->epoch);
    json_put_int(w, "tokens", m->total_tokens);
    json_put_int(w, "resident", m->memory_resident);
    json_put_int(w, "peak", m->memory_peak);
    json_put_double(w, "memory_fraction", m->memory_fraction);
    json_put_int(w, "device_memory", m->device_memory);
    json_put_double(w, "device_fraction", m->device_fraction);
    json_put_int(w, "skipped", m->skipped_total);
    json_end_object(w);
}

/* `all`: the points replace those of the page. A page without a version (-1) has none. */
void watch_write(const Watched *run, int64_t version, int64_t after, long pid, Text *out) {
    JsonWriter w;
    bool goes_on = version == run->version;
    json_start(&w, out, 0);
    json_begin_object(&w);
    json_put_bytes(&w, "name", run->name, strlen(run->name));
    json_put_int(&w, "version", run->version);
    json_put_bool(&w, "all", !goes_on);
    json_put_int(&w, "pid", pid);
    json_put_double(&w, "now", clock_wall());
    json_put_double(&w, "read", run->size ? (double)run->offset / (double)run->size : 1);
    json_put_int(&w, "bad_lines", (int64_t)run->bad_lines);
    write_journal(&w, run);
    write_last(&w, run);
    write_points(&w, run, goes_on ? (double)after : -1);
    write_validations(&w, run);
    write_ranks(&w, run);
    json_end_object(&w);
}
