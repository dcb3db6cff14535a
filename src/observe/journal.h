/* RUN/journal.jsonl: the events of a run, one JSON object per line, append-only:
 *
 *     {"time": "2026-01-31T12:34:56Z", "event": "checkpoint", "step": 500, "bytes": 75497472}
 *
 * Each line is one write(2) in append mode, so a crash tears at most the last one, and the next line starts
 * on a fresh line. journal_add syncs all events to disk before it returns, except validations, evaluations
 * and spikes. */
#ifndef WEFT_OBSERVE_JOURNAL_H
#define WEFT_OBSERVE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define JOURNAL_FILE "journal.jsonl"

typedef enum JournalEvent {
    JOURNAL_READ, /* before "started" or "resumed": the files read at start */
    JOURNAL_STARTED,
    JOURNAL_RESUMED,
    JOURNAL_RESTARTED, /* by a supervisor; before "started" or "resumed" */
    JOURNAL_RESIZED,   /* the same, for another number of ranks: weft resize */
    JOURNAL_RECOVERED, /* ranks have died, and the others go on without them */
    JOURNAL_CHANGED,   /* after "resumed": what differs from here on */
    JOURNAL_CHECKPOINT,
    JOURNAL_BEST, /* this step's checkpoint is the best so far */
    JOURNAL_VALIDATION,
    JOURNAL_EVALUATION, /* by tasks */
    JOURNAL_NONFINITE,
    JOURNAL_SPIKE,
    JOURNAL_DIVERGED,  /* replicas differ */
    JOURNAL_CORRECTED, /* a replay found a wrong microbatch; the step was made again */
    JOURNAL_STRAGGLER, /* a rank that the others wait for */
    JOURNAL_MEMORY,    /* GPU memory: users, or less free than before */
    JOURNAL_TRACED,    /* metrics.trace: a step, planned and measured */
    JOURNAL_COMMAND,   /* metrics.command: the program started, ended or lost records */
    JOURNAL_STOPPED,
    JOURNAL_FAILED,
    JOURNAL_FINISHED,
    JOURNAL_EVENTS
} JournalEvent;
const char *journal_event_name(JournalEvent event); /* "started" */

/* A number that belongs to an event. The report reads these from "started" or "resumed": parameters,
 * tokens_per_step, total_steps, flops_per_token, peak_flops, threads, planned_bytes (the total in rank 0's
 * plan). */
typedef struct JournalFact {
    const char *name;
    double value;
} JournalFact;

typedef struct Journal {
    int fd; /* -1 when closed */
    char *path;
} Journal;

ErrorCode journal_open(Journal *j, const char *run_dir, Error *err);
/* `facts` ends with a NULL name, or is NULL. `detail` is any text, one sentence, or NULL. */
ErrorCode journal_add(Journal *j, JournalEvent event, int64_t step, const char *detail,
                      const JournalFact *facts, Error *err);
/* A file, or the files of a pattern or directory, under "files" of the event "read". */
typedef struct JournalFile {
    const char *kind, *path;
    int64_t files, bytes;
    char sha256[65]; /* "": not known, and neither are bytes */
    bool sampled;    /* the digest is of a sample of the files */
} JournalFile;
/* As journal_add, for JOURNAL_READ. */
ErrorCode journal_add_files(Journal *j, int64_t step, const JournalFile *files, size_t count, Error *err);
void journal_close(Journal *j);

/* Reading. Lines that are not entries (a torn one) are skipped. */
typedef struct JournalEntry {
    char *time, *event, *detail;
    int64_t step;
    JournalFact *facts; /* ended by a NULL name */
} JournalEntry;
typedef struct JournalTable {
    JournalEntry *entries;
    size_t count;
} JournalTable;
ErrorCode journal_table_read(JournalTable *t, const char *path, Error *err);
/* The same of text. */
void journal_table_parse(JournalTable *t, const char *text, size_t length);
void journal_table_free(JournalTable *t);
/* Value of a fact in the last entry that has it; NaN when none has. */
double journal_table_fact(const JournalTable *t, const char *name);

#endif
