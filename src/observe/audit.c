/* Writes the audit log: the samples that a rank used, line by line. Each line has its own checksum, so that a
 * line torn by a kill is recognised. audit_check.c proves the log.
 *
 * The same file reads the log, from a memory map: records point into the files, which must stay mapped as
 * long as the records are used (AuditRun owns both). Lines are parsed by hand, since they hold all samples of
 * every step. Each line is parsed twice: when it is checked, and when its samples are needed. */
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
#include "base/lines.h"

#define PATTERN "audit-[0-9]*.log"
enum { SUM_LENGTH = 10 }; /* " *0123abcd" */

/* ---- writing ---- */

/* Hashed from the batch itself, not from the cache: the proof is about what was trained on. Inputs and
 * targets are hashed separately, since they differ only by one token at either end. */
AuditSample audit_sample(const Dataset *d, uint64_t k, const int32_t *inputs, const int32_t *targets) {
    Sample at = dataset_locate(d, k);
    size_t bytes = (size_t)dataset_context(d) * sizeof *inputs;
    uint64_t hashes[2] = {hash64(inputs, bytes), hash64(targets, bytes)};
    return (AuditSample){k, at.epoch, at.window, (uint32_t)at.source,
                         (uint32_t)hash64(hashes, sizeof hashes)};
}

/* Paths of all logs, possibly none. Free with globfree. Wildcards in the directory's own name are escaped. */
static void find_logs(const char *run_dir, glob_t *found) {
    Text pattern = {0};
    for (const char *c = run_dir; *c; c++) text_printf(&pattern, strchr("*?[\\", *c) ? "\\%c" : "%c", *c);
    text_puts(&pattern, "/" PATTERN);
    memset(found, 0, sizeof *found);
    if (glob(pattern.data, 0, NULL, found) != 0) found->gl_pathc = 0;
    text_free(&pattern);
}

/* For a run that starts over in this directory: its records must not be mixed with the old ones. */
ErrorCode audit_discard(const char *run_dir, Error *err) {
    return file_remove_matching(run_dir, PATTERN, err);
}

/* Appends the checksum to the line and writes it. 32 bits are enough to detect a torn line; they are no
 * protection against forgery. */
static ErrorCode add_line(AuditLog *log, Error *err) {
    Text *line = &log->line;
    text_printf(line, " *%08" PRIx32 "\n", (uint32_t)hash64(line->data, line->length));
    return file_add_line(log->fd, log->path, line->data, line->length, err);
}

/* The words have a fixed order, on which readers insist: a line has one spelling, so that lines of several
 * ranks can be compared as bytes. */
static void start_line(AuditLog *log, const char *kind, const char *key, int64_t step) {
    const AuditWriter *w = &log->who;
    text_clear(&log->line);
    text_printf(&log->line, "%s attempt=%" PRId64 " %s=%" PRId64 " rank=%d dp=%d/%d writers=%d", kind,
                w->attempt, key, step, w->rank, w->dp_rank, w->dp_ranks, w->writers);
}

/* On disk before the first step of the attempt: invariant A3 relies on where attempts began. */
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

/* Five digits of rank, so that names sort by rank. Opening the file ends a torn last line, which stays
 * torn. */
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

/* Not synced: audit_sync comes before a checkpoint, and later steps would be redone anyway. */
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

/* The rest of a line. Nothing here reads at or beyond `end`: no NUL follows the map. */
typedef struct Scan {
    const char *at, *end;
} Scan;

/* Each of these advances only on success, except take_number and take_hex, after whose failure the line is
 * rejected. */
static bool take(Scan *s, const char *literal) {
    size_t length = strlen(literal);
    if ((size_t)(s->end - s->at) < length || memcmp(s->at, literal, length) != 0) return false;
    s->at += length;
    return true;
}

/* Decimal digits only, unlike strtoull without sign and blanks: only the written form is accepted. */
static bool take_number(Scan *s, uint64_t max, uint64_t *out) {
    uint64_t value = 0;
    const char *start = s->at;
    for (; s->at < s->end && *s->at >= '0' && *s->at <= '9'; s->at++) {
        uint64_t digit = (uint64_t)(*s->at - '0');
        /* Detects an overflow before it happens; `max` is at most INT64_MAX. */
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

/* Eight digits, lower case, as written. */
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

/* " 24:0.0.17:1a2b3c4d", with or without a preceding " |" */
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

/* The line was parsed successfully when it was read, so it parses again. */
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
    /* Every dp rank has at least one writer; with pipelines it has several. */
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

/* Lines of the first version end with mixture=0 or mixture=1, which only states whether it is a mixture. */
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

/* Bounded by the maximum for a run, since audit_check allocates memory by it. */
static bool take_windows(Scan *s, AuditRecord *r) {
    if (!take(s, " windows=")) return false;
    r->text = s->at;
    if (!take_list(s, &r->count)) return false;
    r->length = (size_t)(s->at - r->text);
    return take_draw(s, r) && r->count <= SAMPLER_SOURCES;
}

/* Counted and checked here but not stored: a run has more samples than records, and audit_samples parses
 * those that are needed. */
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

/* r->text is empty after a failure; otherwise it points into the map. */
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

/* Attempts ascend in a file, so its last complete line has the largest. Read from the back: a log has a line
 * per step, and only its end is needed when a run starts. */
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

/* The maximum over all ranks: a rank that was killed early may not have written its begin line. */
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

/* By attempt, in each first the begin lines, then steps, and within a step by dp rank: audit_check.c
 * processes such ranges. */
static int by_step(const void *a, const void *b) {
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

/* A torn line is counted and skipped; an empty one does not count. */
static void read_file(AuditRun *run, const FileMap *map) {
    Lines lines = lines_of((const char *)map->data, map->length);
    Line line;
    AuditRecord r;
    while (lines_next(&lines, &line)) {
        if (line.whole && read_line(line.text, line.length, &r))
            add_record(run, &r);
        else
            run->torn += line.length > 0;
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
    if (run->count) qsort(run->records, run->count, sizeof *run->records, by_step);
    return OK;
}

/* After a failure, too, audit_free unmaps whatever was mapped. */
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
