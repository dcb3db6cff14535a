/* Live view of runs, for a page that polls (weft watch).
 *
 * A Watched follows the files of one run directory and reads only what was appended to metrics.jsonl since
 * the last look. Its memory is bounded: a curve keeps at most WATCH_POINTS points, and when they are used up
 * every four become two, the ones with the least and the greatest loss, so that a spike stays visible. The
 * first WATCH_NAMED named validation sets and tasks have a curve of WATCH_DOTS points each. It writes and
 * locks nothing in the run directory, and trusts nothing there. */
#ifndef WEFT_OBSERVE_WATCH_H
#define WEFT_OBSERVE_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "observe/metrics.h"

enum {
    WATCH_POINTS = 4096,
    WATCH_VALIDATIONS = 1024,
    WATCH_NAMED = 64,
    WATCH_DOTS = 256,
    WATCH_RANKS = 64,
    WATCH_EVENTS = 100,
    WATCH_HEAD = 256
};

/* Columns drawn per step, in the order of the table in watch.c. */
enum { WATCH_COLUMNS = 13 };
typedef struct WatchPoint {
    double values[WATCH_COLUMNS];
} WatchPoint;

/* A point of a validation or task curve. */
typedef struct WatchDot {
    double step, value;
} WatchDot;

/* The curve of a named set or a task. */
typedef struct WatchCurve {
    MetricsKind kind; /* METRICS_SET or METRICS_TASK */
    char name[METRICS_NAME];
    TaskFigure figure; /* the drawn metric (for a set, its loss); without a name: none yet */
    size_t count;
    double last; /* the newest step */
} WatchCurve;

typedef struct Watched {
    char *dir, *name;
    int64_t version;       /* changes when points sent earlier have gone or changed */
    uint64_t file;         /* inode of the file that was read; 0: none */
    char head[WATCH_HEAD]; /* its first bytes, once WATCH_HEAD were read */
    bool has_head;
    uint64_t offset, size; /* bytes read so far; size of the file */
    size_t count, validation_count, bad_lines;
    WatchPoint *points;    /* [WATCH_POINTS], steps ascending */
    WatchDot *validations; /* [WATCH_VALIDATIONS] */
    WatchCurve *named;     /* [WATCH_NAMED], by first occurrence; named_count are used */
    WatchDot *dots;        /* curve i: [WATCH_DOTS] from i * WATCH_DOTS on */
    size_t named_count;
    StepMetrics last; /* newest step record; step 0: none yet */
    ValidationMetrics last_validation;
} Watched;

/* The directory may not exist yet; each look checks again. ERR_NOINPUT if its name is not a directory's, or
 * its parent cannot be searched. */
ErrorCode watch_open(Watched *w, const char *dir, Error *err);
void watch_close(Watched *w);

/* Reads what was appended, a few MiB at a time: a long run is complete after several looks. A file that was
 * replaced or truncated (the run resumed or started over) is read from its start. */
void watch_look(Watched *w);

/* The page's data as one JSON object: points and validations after step `after` if `version` is still
 * current, else all of them. `pid`: process of the run, 0 if unknown. Times, names and texts of the run are
 * data for the page, not markup. */
void watch_write(const Watched *w, int64_t version, int64_t after, long pid, Text *out);

/* The page, its style sheet and its script. */
typedef struct WatchAsset {
    const char *path, *type; /* "/watch.js", "text/javascript; charset=utf-8" */
    const unsigned char *data;
    size_t length;
} WatchAsset;
extern const WatchAsset watch_assets[]; /* ended by path == NULL; "/" is the page */

#endif
