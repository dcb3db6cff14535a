/* The proof: which records are the run (invariant A3 of audit.h), whether they are complete, and what they
 * say about samples.
 *
 * The order of the checks:
 *
 *     follow          from the last attempt backwards, each attempt gives the steps from where it began up to
 *                     where its successor began; they are the run, all others were redone
 *     check_samples   samples of the run are 0, 1, 2, ... each once
 *     check_windows   no window twice in an epoch, and always the same tokens
 *     check_epochs    every epoch that is over had all windows of its source
 *
 * A violation ends nothing: the first twenty are printed, all are counted, and the figures are computed from
 * the existing records. Nothing is taken from the configuration or the data: the log is checked against
 * itself, and against the newest checkpoint's step.
 *
 * For example, with a save after step 4 and kills in steps 9 and 8:
 *
 *     attempt 0    1 2 3 4 5 6 7 8            began after 0
 *     attempt 1            5 6 7              began after 4
 *     attempt 2            5 6 7 8 9 10       began after 4
 *     the run      1 2 3 4 5 6 7 8 9 10       1 to 4 of attempt 0, the others of attempt 2; 7 were redone */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "observe/audit.h"

/* More would be repetitions: one lost file makes a violation per step. */
enum { SHOWN = 20 };

typedef struct Check {
    const AuditRun *run;
    int64_t saved, after; /* newest checkpoint; steps up to `after` come from an earlier attempt */
    int64_t unfinished;   /* step that the last attempt recorded incompletely, 0 for none */
    AuditFigures *f;
    size_t capacity;
    uint64_t *windows; /* [sources] of the data */
    size_t sources;
    bool mixture;
    bool unknown;             /* windows of a source: it was not all tokenized */
    const AuditRecord *drawn; /* of the latest attempt of the run that records it */
    Text *out;
    Text first;     /* first violation, for the error */
    Text by_source; /* what the run used of each source, if there are several */
} Check;

static void violate(Check *c, const char *format, ...) PRINTF_LIKE(2, 3);
static void violate(Check *c, const char *format, ...) {
    char message[400];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (c->f->violations++ == 0) text_puts(&c->first, message);
    if (c->f->violations <= SHOWN) text_printf(c->out, "  violation: %s\n", message);
}

/* ---- records of an attempt: sorted, so each attempt, and in it each step, is a range ---- */

/* Records [from, to) of run->records. */
typedef struct RecordRange {
    size_t from, to;
} RecordRange;

/* The attempt that ends at record `to`. */
static RecordRange attempt_before(const AuditRun *run, size_t to) {
    RecordRange s = {to, to};
    while (s.from > 0 && run->records[s.from - 1].who.attempt == run->records[to - 1].who.attempt) s.from--;
    return s;
}

/* The records of the step of record `from`, up to `to` at most. */
static RecordRange step_at(const AuditRun *run, size_t from, size_t to) {
    RecordRange s = {from, from};
    while (s.to < to && run->records[s.to].step == run->records[from].step) s.to++;
    return s;
}

/* First record of a step beyond `step` in an attempt; skips its begin lines. By bisection: attempts may have
 * a million records. */
static size_t first_beyond(const AuditRun *run, RecordRange attempt, int64_t step) {
    size_t low = attempt.from, high = attempt.to;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const AuditRecord *r = &run->records[middle];
        if (r->begin || r->step <= step)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* Each writer must occur once and each dp rank at least once; returns what is missing or repeated, or NULL.
 * Ranks with one dp rank are the stages of a pipeline, which must have seen the same samples; the records are
 * sorted, so they are adjacent. */
static const char *step_problem(const AuditRun *run, RecordRange s, char out[160]) {
    const AuditRecord *first = &run->records[s.from], *last = &run->records[s.to - 1];
    int wanted = 0;
    for (size_t i = s.from; i < s.to; i++) {
        const AuditRecord *r = &run->records[i], *before = r - 1;
        bool same_dp = i > s.from && r->who.dp_rank == before->who.dp_rank;
        if (r->who.writers != first->who.writers || r->who.dp_ranks != first->who.dp_ranks) {
            snprintf(out, 160, "ranks %d and %d disagree on how many there are", first->who.rank,
                     r->who.rank);
            return out;
        }
        if (same_dp && r->who.rank == before->who.rank) {
            snprintf(out, 160, "rank %d has recorded it twice", r->who.rank);
            return out;
        }
        /* A dp rank is missing: reported below, as a count. */
        if (!same_dp && r->who.dp_rank != wanted++) break;
        if (same_dp && (r->length != before->length || memcmp(r->text, before->text, r->length) != 0)) {
            snprintf(out, 160, "ranks %d and %d are both dp rank %d and used other samples", before->who.rank,
                     r->who.rank, r->who.dp_rank);
            return out;
        }
    }
    if (wanted == first->who.dp_ranks && last->who.dp_rank == wanted - 1 &&
        s.to - s.from == (size_t)first->who.writers)
        return NULL;
    snprintf(out, 160, "%zu of %d records are there", s.to - s.from, first->who.writers);
    return out;
}

/* `whole`: only if its records are complete and agree. */
static bool has_step(const AuditRun *run, RecordRange attempt, int64_t step, bool whole) {
    char problem[160];
    size_t at = first_beyond(run, attempt, step - 1);
    if (at == attempt.to || run->records[at].step != step) return false;
    return !whole || !step_problem(run, step_at(run, at, attempt.to), problem);
}

/* ---- which records are the run ---- */

/* Uses one writer for each dp rank; the others have been compared with it. */
static void add_uses(Check *c, const AuditRecord *r) {
    AuditFigures *f = c->f;
    if (f->use_count + r->count > c->capacity) {
        size_t bytes;
        c->capacity = 2 * c->capacity + r->count;
        CHECK(size_multiply(c->capacity, sizeof *f->uses, &bytes));
        f->uses = mem_grow(f->uses, bytes);
    }
    AuditSample *samples = mem_alloc_array(r->count, sizeof *samples);
    audit_samples(r, samples);
    for (size_t i = 0; i < r->count; i++) f->uses[f->use_count++] = (AuditUse){samples[i], r->step};
    free(samples);
}

/* An empty range, from > to, means that nothing is missing. */
static void missing_steps(Check *c, int64_t from, int64_t to, int64_t attempt) {
    if (from == to)
        violate(c, "step %" PRId64 " is recorded by nobody (attempt %" PRId64 " should have)", from, attempt);
    else if (from < to)
        violate(c,
                "steps %" PRId64 " to %" PRId64 " are recorded by nobody (attempt %" PRId64 " should have)",
                from, to, attempt);
}

/* Steps (low, high] of this attempt. A step with a problem still counts, with the samples that it has:
 * otherwise one lost line would look like a hundred missing samples. */
static void take_steps(Check *c, RecordRange attempt, int64_t low, int64_t high) {
    const AuditRun *run = c->run;
    char problem[160];
    int64_t before = low, number = run->records[attempt.from].who.attempt;
    for (size_t i = first_beyond(run, attempt, low); i < attempt.to && run->records[i].step <= high;) {
        RecordRange s = step_at(run, i, attempt.to);
        int64_t step = run->records[i].step;
        missing_steps(c, before + 1, step - 1, number);
        if (step_problem(run, s, problem))
            violate(c, "step %" PRId64 " of attempt %" PRId64 ": %s", step, number, problem);
        for (size_t r = s.from; r < s.to; r++)
            if (r == s.from || run->records[r].who.dp_rank != run->records[r - 1].who.dp_rank)
                add_uses(c, &run->records[r]);
        c->f->steps++;
        before = step;
        i = s.to;
    }
    missing_steps(c, before + 1, high, number);
}

/* The first word in which two records of how samples were drawn differ, of each. */
static bool draw_differs(const AuditRecord *a, const AuditRecord *b, char in_a[100], char in_b[100]) {
    const char *x = a->draw, *y = b->draw, *x_end = x + a->draw_length, *y_end = y + b->draw_length;
    while (x < x_end && y < y_end) {
        size_t m = strcspn(x, " "), n = strcspn(y, " ");
        if (m > (size_t)(x_end - x)) m = (size_t)(x_end - x);
        if (n > (size_t)(y_end - y)) n = (size_t)(y_end - y);
        if (m != n || memcmp(x, y, m) != 0) {
            snprintf(in_a, 100, "%.*s", (int)(m < 60 ? m : 60), x);
            snprintf(in_b, 100, "%.*s", (int)(n < 60 ? n : 60), y);
            return true;
        }
        x += m + 1, y += n + 1;
    }
    return false;
}

/* Detects other data, another seed or another mixture than in later attempts. Lines of the first version do
 * not record them, and are skipped. */
static void check_draw(Check *c, const AuditRecord *r) {
    char here[100], later[100];
    if (!r->draw) return;
    if (c->drawn && draw_differs(r, c->drawn, here, later))
        violate(c, "attempt %" PRId64 " drew its samples with %s, attempt %" PRId64 " with %s",
                r->who.attempt, here, c->drawn->who.attempt, later);
    c->drawn = r;
}

/* The step after which an attempt began; its ranks must agree on that and on the data. Without a begin line,
 * the step before its first record. */
static int64_t began_after(Check *c, RecordRange attempt) {
    const AuditRecord *first = &c->run->records[attempt.from];
    char one[100], other[100];
    if (!first->begin) {
        violate(c, "attempt %" PRId64 " has no record of its beginning", first->who.attempt);
        return first->step - 1;
    }
    for (const AuditRecord *r = first + 1; r < &c->run->records[attempt.to] && r->begin; r++) {
        if (r->step != first->step)
            violate(
                c, "ranks %d and %d begin attempt %" PRId64 " after step %" PRId64 " and after step %" PRId64,
                first->who.rank, r->who.rank, first->who.attempt, first->step, r->step);
        if (r->draw && first->draw && draw_differs(first, r, one, other))
            violate(c, "ranks %d and %d drew their samples with %s and with %s in attempt %" PRId64,
                    first->who.rank, r->who.rank, one, other, first->who.attempt);
        if (r->length != first->length || memcmp(r->text, first->text, r->length) != 0)
            violate(c, "ranks %d and %d have other data in attempt %" PRId64 ": %.*s and %.*s windows",
                    first->who.rank, r->who.rank, first->who.attempt,
                    (int)(first->length < 60 ? first->length : 60), first->text,
                    (int)(r->length < 60 ? r->length : 60), r->text);
    }
    return first->step;
}

/* The windows of each source, from the begin line of the latest attempt of the run; earlier ones must
 * agree. */
static void take_windows(Check *c, RecordRange attempt) {
    const AuditRecord *r = &c->run->records[attempt.from];
    if (!r->begin) return;
    check_draw(c, r);
    bool known = c->sources > 0, same = c->sources == r->count && c->mixture == r->mixture;
    uint64_t *windows = mem_alloc_array(r->count, sizeof *windows);
    const char *at = r->text;
    for (size_t s = 0; s < r->count; s++) {
        char *end;
        windows[s] = strtoull(at, &end, 10);
        at = end + 1;
    }
    if (known && (!same || memcmp(windows, c->windows, r->count * sizeof *windows) != 0))
        violate(c, "attempt %" PRId64 " had other data than later ones", r->who.attempt);
    if (known) {
        free(windows);
        return;
    }
    c->windows = windows;
    c->sources = r->count;
    c->mixture = r->mixture;
}

/* The last step of the last attempt. Steps up to the checkpoint must be complete, since their records were
 * synced before it (A2). So an incomplete step after the checkpoint was killed, while one before it lost
 * records. */
static int64_t last_step(Check *c, RecordRange attempt, int64_t after) {
    const AuditRun *run = c->run;
    const AuditRecord *last = &run->records[attempt.to - 1];
    char problem[160];
    if (last->begin) return after;
    size_t from = attempt.to - 1;
    while (from > attempt.from && !run->records[from - 1].begin && run->records[from - 1].step == last->step)
        from--;
    if (last->step <= c->saved || !step_problem(run, (RecordRange){from, attempt.to}, problem))
        return last->step;
    c->unfinished = last->step;
    return last->step - 1;
}

/* The latest attempt before record `to` that has `step`, a complete one if there is any; else an empty range.
 * A step that was killed in one attempt and made in another is in both; the complete one was trained from. If
 * none is complete, the incomplete one is taken, so that the violation names it. */
static RecordRange origin_of(const AuditRun *run, size_t to, int64_t step) {
    for (int whole = 1; whole >= 0; whole--)
        for (RecordRange a = {to, to}; a.from > 0;) {
            a = attempt_before(run, a.from);
            if (has_step(run, a, step, whole)) return a;
        }
    return (RecordRange){0, 0};
}

/* Invariant A3. */
static void follow(Check *c) {
    const AuditRun *run = c->run;
    RecordRange attempt = attempt_before(run, run->count);
    int64_t low = began_after(c, attempt), high = last_step(c, attempt, low);
    if (high < c->saved)
        violate(c, "a checkpoint holds step %" PRId64 ", the last attempt recorded ends with step %" PRId64,
                c->saved, high);
    for (;;) {
        take_windows(c, attempt);
        if (high > low) take_steps(c, attempt, low, high);
        if (low <= 0) return;
        /* If an attempt made no step, `high` stays the same. */
        if (low < high) high = low;
        attempt = origin_of(run, attempt.from, high);
        if (attempt.to == 0) {
            violate(c, "steps 1 to %" PRId64 " are in no record of an earlier attempt", high);
            return;
        }
        low = began_after(c, attempt);
    }
}

/* Redone steps are those recorded beyond the run: groups of records of one step in one attempt, minus the
 * run's own. */
static void count_attempts(Check *c) {
    int64_t groups = 0;
    const AuditRun *run = c->run;
    for (size_t i = 0; i < run->count; i++) {
        const AuditRecord *r = &run->records[i], *before = r - 1;
        bool fresh = i == 0 || before->who.attempt != r->who.attempt;
        c->f->attempts += fresh;
        groups += !r->begin && (fresh || before->begin || before->step != r->step);
    }
    c->f->redone = groups - c->f->steps - (c->unfinished > 0);
}

/* ---- checks of samples ---- */

#define ORDER(a, b) \
    if ((a) != (b)) return (a) < (b) ? -1 : 1

static int by_sample(const void *a, const void *b) {
    const AuditUse *x = a, *y = b;
    ORDER(x->sample.k, y->sample.k);
    ORDER(x->step, y->step);
    return 0;
}

static int by_window(const void *a, const void *b) {
    const AuditSample *x = &((const AuditUse *)a)->sample, *y = &((const AuditUse *)b)->sample;
    ORDER(x->source, y->source);
    ORDER(x->window, y->window);
    ORDER(x->epoch, y->epoch);
    ORDER(x->k, y->k);
    return 0;
}

static int by_epoch(const void *a, const void *b) {
    const AuditSample *x = &((const AuditUse *)a)->sample, *y = &((const AuditUse *)b)->sample;
    ORDER(x->source, y->source);
    ORDER(x->epoch, y->epoch);
    ORDER(x->window, y->window);
    return 0;
}

static void sort(AuditFigures *f, int (*order)(const void *, const void *)) {
    if (f->use_count) qsort(f->uses, f->use_count, sizeof *f->uses, order);
}

/* Names the neighbours of the gap, since they show its step. */
static void missing_samples(Check *c, uint64_t from, uint64_t to, const AuditUse *next,
                            const AuditUse *before) {
    char where[100] = "before the first";
    if (before)
        snprintf(where, sizeof where, "after %" PRIu64 " of step %" PRId64, before->sample.k, before->step);
    if (from == to)
        violate(c, "sample %" PRIu64 " is missing: %s comes %" PRIu64 " of step %" PRId64, from, where,
                next->sample.k, next->step);
    else
        violate(c, "samples %" PRIu64 " to %" PRIu64 " are missing: %s comes %" PRIu64 " of step %" PRId64,
                from, to, where, next->sample.k, next->step);
}

/* 0, 1, 2, ... each once, and in ascending order over the steps. Sorted by number and, within a number, by
 * step. The sampler assigns them in order, so a gap is a sample that no step used. */
static void check_samples(Check *c) {
    AuditFigures *f = c->f;
    sort(f, by_sample);
    for (size_t i = 0; i < f->use_count; i++) {
        const AuditUse *u = &f->uses[i], *before = i ? u - 1 : NULL;
        uint64_t next = before ? before->sample.k + 1 : 0;
        if (before && before->sample.k == u->sample.k)
            violate(c, "sample %" PRIu64 " is used twice: in step %" PRId64 " and in step %" PRId64,
                    u->sample.k, before->step, u->step);
        else if (u->sample.k != next)
            missing_samples(c, next, u->sample.k - 1, u, before);
    }
}

/* Sorted by source and window, the uses of each window are adjacent, epoch by epoch: comparing neighbours is
 * enough. */
static void check_windows(Check *c) {
    AuditFigures *f = c->f;
    sort(f, by_window);
    for (size_t i = 1; i < f->use_count; i++) {
        const AuditUse *u = &f->uses[i], *b = u - 1;
        const AuditSample *x = &b->sample, *y = &u->sample;
        if (x->source != y->source || x->window != y->window) continue;
        /* check_samples has already reported a repeated number. */
        if (x->epoch == y->epoch && x->k != y->k)
            violate(c,
                    "window %" PRIu64 " of source %u comes twice in epoch %" PRIu64 ": as sample %" PRIu64
                    " (step %" PRId64 ") and %" PRIu64 " (step %" PRId64 ")",
                    y->window, y->source, y->epoch, x->k, b->step, y->k, u->step);
        if (x->print != y->print)
            violate(c,
                    "samples %" PRIu64 " (step %" PRId64 ") and %" PRIu64 " (step %" PRId64
                    ") are window %" PRIu64 " of source %u both, with other tokens",
                    x->k, b->step, y->k, u->step, y->window, y->source);
    }
}

/* Epochs [from, to) of a source are over without a single sample. */
static void empty_epochs(Check *c, uint32_t source, uint64_t from, uint64_t to) {
    if (from < to)
        violate(c, "no sample is of source %u and epoch %" PRIu64 ", though epoch %" PRIu64 " has begun",
                source, from, to);
}

/* Without a number of windows, that of the first epoch, which is over if there is another one. */
static uint64_t windows_of(const Check *c, uint32_t source, const AuditUse *uses, size_t count,
                           uint64_t newest) {
    uint64_t most = 0;
    if (c->windows[source] > 0) return c->windows[source];
    if (newest == 0) return UINT64_MAX;
    for (size_t i = 0; i < count && uses[i].sample.epoch == 0; i++)
        if (uses[i].sample.window >= most) most = uses[i].sample.window + 1;
    return most;
}

/* The samples of one source, epochs ascending: each epoch before the newest has all windows. Distinct windows
 * are counted, so a repeated one does not hide a missing one. */
static void check_epochs_of(Check *c, uint32_t source, const AuditUse *uses, size_t count, uint64_t newest) {
    uint64_t windows = windows_of(c, source, uses, count, newest), expected = 0;
    for (size_t i = 0; i < count;) {
        uint64_t epoch = uses[i].sample.epoch, distinct = 0;
        empty_epochs(c, source, expected, epoch);
        for (size_t first = i; i < count && uses[i].sample.epoch == epoch; i++) {
            const AuditSample *s = &uses[i].sample;
            distinct += i == first || uses[i - 1].sample.window != s->window;
            if (s->window >= windows)
                violate(c, "sample %" PRIu64 " is window %" PRIu64 " of source %u, which has %" PRIu64, s->k,
                        s->window, source, windows);
        }
        if (epoch < newest && distinct < windows)
            violate(c,
                    "epoch %" PRIu64 " of source %u has %" PRIu64 " of %" PRIu64
                    " windows, though epoch %" PRIu64 " has begun",
                    epoch, source, distinct, windows, newest);
        expected = epoch + 1;
    }
    empty_epochs(c, source, expected, newest);
}

/* Average number of uses of its windows. */
static void report_source(Check *c, uint32_t source, size_t samples) {
    char count[32];
    if (c->sources < 2 || source >= c->sources) return;
    text_printf(&c->by_source, "  source %u: %s samples", source, text_count((int64_t)samples, count));
    if (c->windows[source] > 0)
        text_printf(&c->by_source, ", read %.3f times", (double)samples / (double)c->windows[source]);
    text_puts(&c->by_source, "\n");
}

static void check_epochs(Check *c) {
    AuditFigures *f = c->f;
    double windows = 0;
    uint64_t newest = 0;
    sort(f, by_epoch);
    for (size_t i = 0; i < f->use_count; i++)
        if (f->uses[i].sample.epoch > newest) newest = f->uses[i].sample.epoch;
    for (size_t i = 0, j; i < f->use_count; i = j) {
        uint32_t source = f->uses[i].sample.source;
        for (j = i; j < f->use_count && f->uses[j].sample.source == source; j++) {}
        report_source(c, source, j - i);
        if (source < c->sources)
            /* In a mixture each source has its own epochs; otherwise all sources are drawn from as one, and
             * an epoch ends for all of them at once. */
            check_epochs_of(c, source, f->uses + i, j - i, c->mixture ? f->uses[j - 1].sample.epoch : newest);
        else if (c->sources)
            violate(c, "sample %" PRIu64 " is of source %u: the data has %zu", f->uses[i].sample.k, source,
                    c->sources);
    }
    for (size_t s = 0; s < c->sources; s++) {
        windows += (double)c->windows[s];
        c->unknown |= c->windows[s] == 0;
    }
    f->epochs = windows > 0 && !c->unknown ? (double)f->use_count / windows : 0;
    sort(f, by_sample);
}

/* ---- output ---- */

/* The two sentences of success are printed only if there was no violation. */
static void summarize(const Check *c) {
    const AuditFigures *f = c->f;
    char samples[32], steps[32], epochs[32] = "";
    if (!c->unknown) snprintf(epochs, sizeof epochs, "%.3f epochs, ", f->epochs);
    text_printf(c->out, "%s: %s samples in %s steps, %s%" PRId64 " attempt%s, %" PRId64 " step%s done again",
                c->run->dir, text_count((int64_t)f->use_count, samples), text_count(f->steps, steps), epochs,
                f->attempts, f->attempts == 1 ? "" : "s", f->redone, f->redone == 1 ? "" : "s");
    if (c->run->torn) text_printf(c->out, ", %zu torn line%s", c->run->torn, c->run->torn == 1 ? "" : "s");
    if (c->unfinished) text_printf(c->out, "; step %" PRId64 " was not finished", c->unfinished);
    text_puts(c->out, "\n");
    if (c->by_source.length) text_puts(c->out, c->by_source.data);
    if (f->violations > SHOWN) text_printf(c->out, "  and %zu violations more\n", f->violations - SHOWN);
    if (f->violations == 0 && f->use_count > 0)
        text_printf(c->out, "  each sample from 0 to %zu was used exactly once\n", f->use_count - 1);
    if (f->violations == 0 && c->drawn)
        text_printf(c->out, "  drawn with %.*s\n", (int)c->drawn->draw_length, c->drawn->draw);
}

/* `figures` is valid after ERR_DATA too; the caller frees it in both cases. */
ErrorCode audit_check(const AuditRun *run, int64_t saved, AuditFigures *figures, Text *out, Error *err) {
    *figures = (AuditFigures){0};
    Check c = {.run = run, .saved = saved, .f = figures, .out = out};
    ErrorCode code = OK;
    if (run->count > 0) {
        follow(&c);
        count_attempts(&c);
        check_samples(&c);
        check_windows(&c);
        check_epochs(&c);
    } else if (saved > 0) {
        violate(&c, "a checkpoint holds step %" PRId64 ", and no step is recorded", saved);
    }
    summarize(&c);
    if (figures->violations > 0)
        code = error_set(err, ERR_DATA, "%s: %zu violation%s, the first: %s", run->dir, figures->violations,
                         figures->violations == 1 ? "" : "s", c.first.data);
    text_free(&c.first);
    text_free(&c.by_source);
    free(c.windows);
    return code;
}

void audit_figures_free(AuditFigures *f) {
    free(f->uses);
    *f = (AuditFigures){0};
}

/* ---- two runs ---- */

static int by_step(const void *a, const void *b) {
    const AuditUse *x = a, *y = b;
    ORDER(x->step, y->step);
    ORDER(x->sample.k, y->sample.k);
    return 0;
}

/* A sorted copy: check_epochs left the figures sorted by sample, on which callers rely. */
static AuditUse *in_steps(const AuditFigures *f) {
    AuditUse *uses = mem_alloc_array(f->use_count + 1, sizeof *uses);
    if (f->use_count) memcpy(uses, f->uses, f->use_count * sizeof *uses);
    qsort(uses, f->use_count, sizeof *uses, by_step);
    return uses;
}

/* A sample of one run that the other did not use in that step. */
static ErrorCode only_in(const AuditUse *u, const char *one, const char *other, Error *err) {
    return error_set(err, ERR_DATA, "step %" PRId64 ": sample %" PRIu64 " is used in %s and not in %s",
                     u->step, u->sample.k, one, other);
}

/* The rank of a sample does not matter: runs on other meshes distribute the same samples of a step. */
ErrorCode audit_compare(const char *name_a, const AuditFigures *a, const char *name_b, const AuditFigures *b,
                        Error *err) {
    AuditUse *x = in_steps(a), *y = in_steps(b);
    ErrorCode code = OK;
    for (size_t i = 0; code == OK && (i < a->use_count || i < b->use_count); i++) {
        /* Both are sorted by step and sample, so the first mismatch is the first difference between the
         * runs. */
        int order = i == a->use_count ? 1 : i == b->use_count ? -1 : by_step(&x[i], &y[i]);
        if (order < 0) code = only_in(&x[i], name_a, name_b, err);
        if (order > 0) code = only_in(&y[i], name_b, name_a, err);
        if (order == 0 && x[i].sample.print != y[i].sample.print)
            code = error_set(err, ERR_DATA,
                             "step %" PRId64 ": sample %" PRIu64 " has other tokens in %s than in %s",
                             x[i].step, x[i].sample.k, name_a, name_b);
    }
    free(x);
    free(y);
    return code;
}
