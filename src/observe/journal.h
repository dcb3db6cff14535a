/* RUN/journal.jsonl: what happened to a run, one JSON object a line, never rewritten:
 *
 *     {"time": "2026-01-31T12:34:56Z", "event": "checkpoint", "step": 500, "bytes": 75497472}
 *
 * Each line is one write(2) in append mode, so a crash tears at most the last one, and the next line
 * starts afresh. Events that somebody may have to account for (all but validations, evaluations and spikes)
 * are on the disk when journal_add returns. */
#ifndef WEFT_OBSERVE_JOURNAL_H
#define WEFT_OBSERVE_JOURNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

#define JOURNAL_FILE "journal.jsonl"

typedef enum JournalEvent {
    JOURNAL_READ, /* before "started" or "resumed": the files that a start has read */
    JOURNAL_STARTED,
    JOURNAL_RESUMED,
    JOURNAL_RESTARTED, /* by a supervisor; before "started" or "resumed" */
    JOURNAL_CHANGED,   /* what is other from here on than in the run that goes on; after "resumed" */
    JOURNAL_CHECKPOINT,
    JOURNAL_BEST, /* the checkpoint of this step is better than those before it */
    JOURNAL_VALIDATION,
    JOURNAL_EVALUATION, /* by tasks */
    JOURNAL_NONFINITE,
    JOURNAL_SPIKE,
    JOURNAL_DIVERGED, /* replicas differ */
    JOURNAL_MEMORY,   /* of GPUs: what has taken what; less is free than was */
    JOURNAL_TRACED,   /* metrics.trace: a step, planned and measured */
    JOURNAL_COMMAND,  /* metrics.command: what became of the program */
    JOURNAL_STOPPED,
    JOURNAL_FAILED,
    JOURNAL_FINISHED,
    JOURNAL_EVENTS
} JournalEvent;
const char *journal_event_name(JournalEvent event); /* "started" */

/* A number that belongs to an event. Report reads, of "started" or "resumed": parameters, tokens_per_step,
 * total_steps, flops_per_token, peak_flops, threads, planned_bytes (the total that the plan prints, of rank
 * 0). */
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
    bool sampled;    /* the digest is of a sample of them, and of no file */
} JournalFile;
/* As journal_add, of JOURNAL_READ. */
ErrorCode journal_add_files(Journal *j, int64_t step, const JournalFile *files, size_t count, Error *err);
void journal_close(Journal *j);

/* Reading. Lines that are no entries (a torn one) are skipped. */
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
