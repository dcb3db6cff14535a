/* Writing the audit log: what a rank used, line by line, each with a checksum of its own, so that a line
 * that a kill has torn is known for one. The proof is in audit_check.c.
 *
 * The log is read by the same file that writes it, from a memory map: records point into the files, which
 * must stay mapped as long as they are used (AuditRun owns both). What a line says is parsed by hand,
 * since there are a step's samples on it, of every step, and each is looked at twice: once when the line
 * is checked, once when its samples are wanted. */
#include "observe/audit.h"

#include <ctype.h>
#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"

#define PATTERN "audit-[0-9]*.log"
enum { SUM_LENGTH = 10 }; /* " *0123abcd" */

/* ---- writing ---- */

/* From the batch itself, not from the cache that it was read from: what is proved is what was trained on.
 * Inputs and targets are hashed apart, since they differ by one token at either end only. */
AuditSample audit_sample(const Dataset *d, uint64_t k, const int32_t *inputs, const int32_t *targets) {
    Sample at = dataset_locate(d, k);
    size_t bytes = (size_t)dataset_context(d) * sizeof *inputs;
    uint64_t hashes[2] = {hash64(inputs, bytes), hash64(targets, bytes)};
    return (AuditSample){k, at.epoch, at.window, (uint32_t)at.source,
                         (uint32_t)hash64(hashes, sizeof hashes)};
}

/* Paths of all logs; none is no error. Free with globfree. The directory's own name may hold wildcards,
 * which must not be any here. */
static void find_logs(const char *run_dir, glob_t *found) {
    Text pattern = {0};
    for (const char *c = run_dir; *c; c++) text_printf(&pattern, strchr("*?[\\", *c) ? "\\%c" : "%c", *c);
    text_puts(&pattern, "/" PATTERN);
    memset(found, 0, sizeof *found);
    if (glob(pattern.data, 0, NULL, found) != 0) found->gl_pathc = 0;
    text_free(&pattern);
}

/* Of a run that begins anew in this directory: its records would be mixed with the old ones. */
ErrorCode audit_discard(const char *run_dir, Error *err) {
    return file_remove_matching(run_dir, PATTERN, err);
}

/* Puts the checksum behind the line and writes it. 32 bits are enough to know a torn line; the file is no
 * defence against a forger, who could hash as well. */
static ErrorCode add_line(AuditLog *log, Error *err) {
    Text *line = &log->line;
    text_printf(line, " *%08" PRIx32 "\n", (uint32_t)hash64(line->data, line->length));
    return file_add_line(log->fd, log->path, line->data, line->length, err);
}

/* The words come in one order, and readers insist on it: a line has one spelling, so that lines of several
 * ranks can be compared as bytes. */
static void start_line(AuditLog *log, const char *kind, const char *key, int64_t step) {
    const AuditWriter *w = &log->who;
    text_clear(&log->line);
    text_printf(&log->line, "%s attempt=%" PRId64 " %s=%" PRId64 " rank=%d dp=%d/%d writers=%d", kind,
                w->attempt, key, step, w->rank, w->dp_rank, w->dp_ranks, w->writers);
}

/* On the disk before the first step of the attempt (A3 rests on where attempts began). */
static ErrorCode add_begin(AuditLog *log, int64_t after, const Dataset *d, const AuditDraw *draw,
                           Error *err) {
    start_line(log, "begin", "after", after);
    for (size_t s = 0; s < dataset_sources(d); s++)
        text_printf(&log->line, "%s%" PRIu64, s ? "," : " windows=", dataset_source_windows(d, s));
    text_printf(&log->line, " mixture=%s seed=%" PRId64 " data=%s tokenizer=%s", draw->mixture, draw->seed,
                draw->data, draw->tokenizer);
    TRY(add_line(log, err));
    return audit_sync(log, err);
}

/* Five digits of rank, so that names sort as ranks do. The file is opened by lines: a torn last one is
 * ended first, and stays torn. */
ErrorCode audit_open(AuditLog *log, const char *run_dir, const AuditWriter *who, int64_t after,
                     const Dataset *d, const AuditDraw *draw, Error *err) {
    char name[32];
    snprintf(name, sizeof name, "audit-%05d.log", who->rank);
    *log = (AuditLog){.fd = -1, .path = path_join(run_dir, name), .who = *who};
    ErrorCode code = file_open_lines(log->path, &log->fd, err);
    if (code == OK) code = add_begin(log, after, d, draw, err);
    if (code != OK) audit_close(log);
    return code;
}

/* Not synced: audit_sync comes before a checkpoint, and steps behind it are made again anyway. */
ErrorCode audit_step(AuditLog *log, int64_t step, const AuditSample *samples, int64_t microbatches,
                     int64_t sequences, Error *err) {
    start_line(log, "step", "step", step);
    for (int64_t i = 0; i < microbatches * sequences; i++) {
        const AuditSample *s = &samples[i];
        if (i % sequences == 0) text_puts(&log->line, " |");
        text_printf(&log->line, " %" PRIu64 ":%" PRIu32 ".%" PRIu64 ".%" PRIu64 ":%08" PRIx32, s->k,
                    s->source, s->epoch, s->window, s->print);
    }
    return add_line(log, err);
}

ErrorCode audit_sync(AuditLog *log, Error *err) { return file_sync(log->fd, log->path, err); }

void audit_close(AuditLog *log) {
    if (log->fd >= 0) close(log->fd);
    free(log->path);
    text_free(&log->line);
    *log = (AuditLog){.fd = -1};
}

/* ---- one line ---- */

/* What is left of a line. Nothing here reads at or beyond `end`: the map has no NUL behind it. */
typedef struct Scan {
    const char *at, *end;
} Scan;

/* All of these move on only when they succeed, but for take_number and take_hex, after whose failure the
 * line is given up. */
static bool take(Scan *s, const char *literal) {
    size_t length = strlen(literal);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, literal, length) != 0) return false;
    s->at += length;
    return true;
}

/* Decimal digits and nothing else, no sign, no blanks, as strtoull would take: what is read is what was
 * written. */
static bool take_number(Scan *s, uint64_t max, uint64_t *out) {
    uint64_t value = 0;
    const char *start = s->at;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        uint64_t digit = (uint64_t)(*s->at - '0');
        /* An overflow is caught before it happens; `max` is at most INT64_MAX. */
        if (digit > max || value > (max - digit) / 10) return false;
        value = 10 * value + digit;
    }
    *out = value;
    return s->at > start;
}

static bool take_int(Scan *s, const char *before, int64_t max, int64_t *out) {
    uint64_t value;
    if (!take(s, before) || !take_number(s, (uint64_t)max, &value)) return false;
    *out = (int64_t)value;
    return true;
}

/* Eight digits, lower case, as they are written. */
static bool take_hex(Scan *s, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 8; i++, s->at++) {
        static const char digits[] = "0123456789abcdef";
        const char *digit = s->at < s->end && *s->at ? strchr(digits, *s->at) : NULL;
        if (!digit) return false;
        *out = *out << 4 | (uint32_t)(digit - digits);
    }
    return true;
}

/* " 24:0.0.17:1a2b3c4d", after " |" or not */
static bool take_sample(Scan *s, AuditSample *out) {
    uint64_t source;
    take(s, " |");
    bool good = take(s, " ") && take_number(s, INT64_MAX, &out->k) && take(s, ":") &&
                take_number(s, SAMPLER_SOURCES - 1, &source) && take(s, ".") &&
                take_number(s, INT64_MAX, &out->epoch) && take(s, ".") &&
                take_number(s, INT64_MAX, &out->window) && take(s, ":") && take_hex(s, &out->print);
    out->source = good ? (uint32_t)source : 0;
    return good;
}

/* The line was parsed when it was read, so it parses again. */
void audit_samples(const AuditRecord *record, AuditSample *out) {
    Scan s = {record->text, record->text + record->length};
    for (size_t i = 0; i < record->count; i++) CHECK(take_sample(&s, &out[i]));
}

static bool take_writer(Scan *s, AuditWriter *w) {
    int64_t rank, dp_rank, dp_ranks, writers;
    if (!take_int(s, " rank=", INT32_MAX, &rank) || !take_int(s, " dp=", INT32_MAX, &dp_rank) ||
        !take_int(s, "/", INT32_MAX, &dp_ranks) || !take_int(s, " writers=", INT32_MAX, &writers))
        return false;
    w->rank = (int)rank, w->dp_rank = (int)dp_rank, w->dp_ranks = (int)dp_ranks, w->writers = (int)writers;
    /* Every dp rank has a writer at least; with pipelines it has several. */
    return w->dp_rank < w->dp_ranks && w->writers >= w->dp_ranks;
}

/* "120,30" */
static bool take_list(Scan *s, size_t *count) {
    uint64_t number;
    *count = 0;
    do {
        if (!take_number(s, INT64_MAX, &number)) return false;
        ++*count;
    } while (take(s, ","));
    return true;
}

/* A fingerprint: hexadecimal digits. */
static bool take_print(Scan *s, const char *before) {
    if (!take(s, before)) return false;
    const char *start = s->at;
    while (s->at < s->end && isxdigit((unsigned char)*s->at)) s->at++;
    return s->at > start;
}

/* Lines of the first version end with mixture=0 or mixture=1, which says whether it is one. */
static bool take_draw(Scan *s, AuditRecord *r) {
    size_t slots;
    int64_t seed;
    if (!take(s, " ")) return false;
    const char *start = s->at;
    if (!take(s, "mixture=") || !take_list(s, &slots)) return false;
    r->mixture = slots > 1 || start[strlen("mixture=")] != '0';
    if (s->at == s->end) return slots == 1;
    if (!take_int(s, " seed=", INT64_MAX, &seed) || !take_print(s, " data=") || !take_print(s, " tokenizer="))
        return false;
    r->draw = start;
    r->draw_length = (size_t)(s->at - start);
    return true;
}

/* Bounded by what a run can have, since audit_check takes memory by it. */
static bool take_windows(Scan *s, AuditRecord *r) {
    if (!take(s, " windows=")) return false;
    r->text = s->at;
    if (!take_list(s, &r->count)) return false;
    r->length = (size_t)(s->at - r->text);
    return take_draw(s, r) && r->count <= SAMPLER_SOURCES;
}

/* Counted and checked here, kept nowhere: a run has more samples than records, and audit_samples reads those
 * that are wanted. */
static bool take_samples(Scan *s, AuditRecord *r) {
    AuditSample sample;
    r->text = s->at;
    for (; s->at < s->end; r->count++)
        if (!take_sample(s, &sample)) return false;
    r->length = (size_t)(s->at - r->text);
    return r->count > 0;
}

/* Invariant A1. */
static bool has_sum(const char *line, size_t length) {
    uint32_t sum;
    if (length <= SUM_LENGTH) return false;
    Scan s = {line + length - SUM_LENGTH, line + length};
    return take(&s, " *") && take_hex(&s, &sum) && sum == (uint32_t)hash64(line, length - SUM_LENGTH);
}

/* r->text is empty after a failure, and of a record it leads into the map. */
static bool read_line(const char *line, size_t length, AuditRecord *r) {
    *r = (AuditRecord){0};
    if (!has_sum(line, length)) return false;
    Scan s = {line, line + length - SUM_LENGTH};
    r->begin = take(&s, "begin");
    if (!r->begin && !take(&s, "step")) return false;
    if (!take_int(&s, " attempt=", INT32_MAX, &r->who.attempt)) return false;
    if (!take_int(&s, r->begin ? " after=" : " step=", INT64_MAX - 1, &r->step) || !take_writer(&s, &r->who))
        return false;
    if (!r->begin && r->step == 0) return false;
    return (r->begin ? take_windows(&s, r) : take_samples(&s, r)) && s.at == s.end;
}

/* ---- the files of a run ---- */

/* Attempts ascend in a file, so its last whole line tells. Read from the back: a log has a line for each
 * step, and only its end is of interest when a run starts. */
static int64_t last_attempt(const FileMap *map) {
    const char *start = (const char *)map->data, *end = start ? start + map->length : NULL;
    AuditRecord r;
    while (end != start) {
        const char *newline = memrchr(start, '\n', (size_t)(end - 1 - start));
        const char *line = newline ? newline + 1 : start;
        size_t length = (size_t)(end - line);
        if (line[length - 1] == '\n') length--;
        if (read_line(line, length, &r)) return r.who.attempt;
        end = line;
    }
    return -1;
}

/* The largest of all ranks': a rank that was killed at once may not have written its beginning. */
ErrorCode audit_next_attempt(const char *run_dir, int64_t *attempt, Error *err) {
    glob_t found;
    ErrorCode code = OK;
    *attempt = 0;
    find_logs(run_dir, &found);
    for (size_t i = 0; i < found.gl_pathc && code == OK; i++) {
        FileMap map;
        code = file_map(&map, found.gl_pathv[i], err);
        if (code != OK) break;
        int64_t last = last_attempt(&map);
        if (last >= *attempt) *attempt = last + 1;
        file_unmap(&map);
    }
    globfree(&found);
    return code;
}

/* Attempts, and in each first the beginnings, then steps, and within a step dp ranks beside each other:
 * what audit_check.c walks through in stretches. */
static int by_place(const void *a, const void *b) {
    const AuditRecord *x = a, *y = b;
#define COMPARE(field) \
    if (x->field != y->field) return x->field < y->field ? -1 : 1
    COMPARE(who.attempt);
    if (x->begin != y->begin) return x->begin ? -1 : 1;
    COMPARE(step);
    COMPARE(who.dp_rank);
    COMPARE(who.rank);
#undef COMPARE
    return 0;
}

static void add_record(AuditRun *run, const AuditRecord *r) {
    size_t n = run->count++, bytes;
    if ((n & (n - 1)) == 0) { /* full: 0, 1, 2, 4, ... */
        CHECK(size_multiply(n ? 2 * n : 1, sizeof *r, &bytes));
        run->records = mem_grow(run->records, bytes);
    }
    run->records[n] = *r;
}

/* A torn line is counted and passed over; an empty one is no line. */
static void read_file(AuditRun *run, const FileMap *map) {
    const char *at = (const char *)map->data, *end = map->length ? at + map->length : at;
    AuditRecord r;
    while (at != end) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        size_t length = (size_t)((newline ? newline : end) - at);
        if (newline && read_line(at, length, &r))
            add_record(run, &r);
        else
            run->torn += length > 0;
        at = newline ? newline + 1 : end;
    }
}

static ErrorCode read_logs(AuditRun *run, const glob_t *found, Error *err) {
    if (found->gl_pathc == 0)
        return error_set(err, ERR_NOINPUT, "%s: no audit logs in it; a run keeps them with data.audit=true",
                         run->dir);
    run->files = mem_alloc_array(found->gl_pathc, sizeof *run->files);
    for (; run->file_count < found->gl_pathc; run->file_count++) {
        FileMap *map = &run->files[run->file_count];
        TRY(file_map(map, found->gl_pathv[run->file_count], err));
        read_file(run, map);
    }
    if (run->count) qsort(run->records, run->count, sizeof *run->records, by_place);
    return OK;
}

/* After a failure too audit_free frees what was mapped so far. */
ErrorCode audit_read(AuditRun *run, const char *run_dir, Error *err) {
    glob_t found;
    char shown[512];
    *run = (AuditRun){.dir = mem_strdup(error_escape(shown, sizeof shown, run_dir, strlen(run_dir)))};
    find_logs(run_dir, &found);
    ErrorCode code = read_logs(run, &found, err);
    globfree(&found);
    return code;
}

void audit_free(AuditRun *run) {
    for (size_t i = 0; i < run->file_count; i++) file_unmap(&run->files[i]);
    free(run->files);
    free(run->records);
    free(run->dir);
    *run = (AuditRun){0};
}
