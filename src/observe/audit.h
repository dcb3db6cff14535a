/* Records which samples a run used, by step and rank, and proves that none was left out or used twice.
 *
 * RUN/audit-00003.log, that of rank 3, is an append-only file of lines over all restarts:
 *
 *     begin attempt=1 after=6 rank=3 dp=1/2 writers=4 windows=120,30 mixture=3,1 seed=42 data=51c0...
 *         tokenizer=77e1... *5ce0a1f2
 *     step attempt=1 step=7 rank=3 dp=1/2 writers=4 | 24:0.0.17:1a2b3c4d 25:1.0.4:99887766 |
 *         26:0.0.3:5e6f7a8b ... *00c0ffee
 *
 * each on one line. With data.order: stream, windows are 0: not known when a run begins. An attempt is one
 * process of the run, counted from 0, which continues after step `after`. Each bar starts the samples of a
 * microbatch: number in the run, the source.epoch.window it maps to (data/sampler.h), and a hash of the
 * tokens that were trained on, computed from the batch itself. `writers` ranks write a record of each
 * step. Together they cover all dp ranks; those with the same dp rank (stages of a pipeline) must have
 * used the same samples.
 *
 *  A1. A line is complete when its last word is its checksum (XXH3, low 32 bits, of the text before " *").
 *      Other lines were torn by a kill and are ignored.
 *  A2. A step is recorded after it was made, and is on disk (audit_sync) before a checkpoint contains it. So
 *      a step with incomplete records is in no checkpoint, unless records were lost.
 *  A3. The steps of the run are: those of the last attempt, back to its start; before that, those of the
 *      attempt whose checkpoint it started from (the latest earlier attempt that has step `after`); and so
 *      on. All other recorded steps were redone. */
#ifndef WEFT_OBSERVE_AUDIT_H
#define WEFT_OBSERVE_AUDIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/file.h"
#include "base/text.h"
#include "data/dataset.h"

/* ---- writing ---- */

typedef struct AuditSample {
    uint64_t k; /* number in the run */
    uint64_t epoch, window;
    uint32_t source, print;
} AuditSample;

typedef struct AuditWriter {
    int64_t attempt;
    int rank, writers; /* number of ranks that write */
    int dp_rank, dp_ranks;
} AuditWriter;

/* The data that samples are drawn from, and how. */
typedef struct AuditDraw {
    const char *mixture;          /* dataset_mixture */
    int64_t seed;                 /* of their order */
    const char *data, *tokenizer; /* fingerprints */
} AuditDraw;

typedef struct AuditLog {
    int fd; /* -1 when closed */
    char *path;
    AuditWriter who;
    Text line;
} AuditLog;

/* Training sample k, with the hash of its `context` inputs and targets as they stand in a batch. */
AuditSample audit_sample(const Dataset *d, uint64_t k, const int32_t *inputs, const int32_t *targets);

/* The number of the next attempt: one more than the last recorded in the directory. One rank calls this
 * before any rank opens its log, and broadcasts the result. */
ErrorCode audit_next_attempt(const char *run_dir, int64_t *attempt, Error *err);
/* Opens the log of who->rank and records that its attempt begins after step `after`. */
ErrorCode audit_open(AuditLog *log, const char *run_dir, const AuditWriter *who, int64_t after,
                     const Dataset *d, const AuditDraw *draw, Error *err);
/* Step `step` (1-based) was made with samples [microbatches * sequences]. */
ErrorCode audit_step(AuditLog *log, int64_t step, const AuditSample *samples, int64_t microbatches,
                     int64_t sequences, Error *err);
ErrorCode audit_sync(AuditLog *log, Error *err);
void audit_close(AuditLog *log);
/* Removes the logs of a run that starts over. */
ErrorCode audit_discard(const char *run_dir, Error *err);

/* ---- reading ---- */

/* A parsed line. `text` points into the mapped file. */
typedef struct AuditRecord {
    bool begin;
    AuditWriter who;
    int64_t step;     /* begin: `after` */
    bool mixture;     /* begin */
    const char *draw; /* begin: "mixture=3,1 seed=42 data=51c0... tokenizer=77e1..."; NULL: not recorded */
    size_t draw_length;
    const char *text;     /* step: " | 24:..."; begin: "120,30" */
    size_t length, count; /* of text; samples, or sources */
} AuditRecord;

typedef struct AuditRun {
    char *dir; /* escaped for printing */
    size_t file_count, count, torn;
    FileMap *files;
    AuditRecord *records; /* sorted: attempt, begin before step, step, dp_rank, rank */
} AuditRun;

/* ERR_NOINPUT when there is no log. Free with audit_free, also after an error. */
ErrorCode audit_read(AuditRun *run, const char *run_dir, Error *err);
void audit_free(AuditRun *run);
/* The samples of a record: out[record->count]. */
void audit_samples(const AuditRecord *record, AuditSample *out);

/* ---- proving ---- */

typedef struct AuditUse {
    AuditSample sample;
    int64_t step;
} AuditUse;

typedef struct AuditFigures {
    int64_t steps, attempts, redone; /* of the run; recorded attempts; steps that were redone */
    double epochs;                   /* samples / windows of all sources */
    size_t use_count, violations;
    AuditUse *uses; /* [use_count] of the steps of the run, by sample; freed by audit_figures_free */
} AuditFigures;

/* Checks that each step of the run has records of every rank, that its samples are 0, 1, 2, ... each once,
 * that no window repeats within an epoch and none is missing from a finished one, that a window always has
 * the same tokens, and that all attempts drew from the same data in the same way. `saved` is the step of the
 * newest checkpoint, 0 for none: up to it nothing may be missing; after it the last step may be incomplete.
 * Appends the findings to `out`, with up to 20 violations; any violation is ERR_DATA. */
ErrorCode audit_check(const AuditRun *run, int64_t saved, AuditFigures *figures, Text *out, Error *err);
void audit_figures_free(AuditFigures *f);

/* Checks that two runs used the same samples, with the same tokens, in each step. ERR_DATA names the first
 * difference. */
ErrorCode audit_compare(const char *name_a, const AuditFigures *a, const char *name_b, const AuditFigures *b,
                        Error *err);

#endif
