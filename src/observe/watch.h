/* Runs as they go on, for a page that asks again and again (weft watch).
 *
 * A Watched follows the files of one run directory: what was added to metrics.jsonl since the last look is
 * read, and nothing twice. Its memory is bounded, whatever the run: a curve keeps WATCH_POINTS points at
 * most, and when they are used up every four become two, of which one has the least and one the greatest
 * loss. So a spike stays visible. Named validation sets and tasks, the first WATCH_NAMED of them, have a
 * curve of WATCH_DOTS points each. Nothing of the run is written, locked or trusted. */
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

/* What is drawn of a step, in the order of the table in watch.c. */
enum { WATCH_COLUMNS = 13 };
typedef struct WatchPoint {
    double values[WATCH_COLUMNS];
} WatchPoint;

/* Of a validation, or of a task. */
typedef struct WatchDot {
    double step, value;
} WatchDot;

/* What a named set or a task came to, time after time. */
typedef struct WatchCurve {
    MetricsKind kind; /* METRICS_SET or METRICS_TASK */
    char name[METRICS_NAME];
    TaskFigure figure; /* what is drawn of it, of a set its loss; without a name: nothing yet */
    size_t count;
    double last; /* the newest step */
} WatchCurve;

typedef struct Watched {
    char *dir, *name;
    int64_t version;       /* another one where points that were told are no longer there, or are others */
    uint64_t file;         /* the inode that was read, 0: none */
    char head[WATCH_HEAD]; /* its first bytes, once so many were read */
    bool has_head;
    uint64_t offset, size; /* read so far, of how many bytes */
    size_t count, validation_count, bad_lines;
    WatchPoint *points;    /* [WATCH_POINTS], steps ascending */
    WatchDot *validations; /* [WATCH_VALIDATIONS] */
    WatchCurve *named; /* [WATCH_NAMED], in the order in which they came, of which there are named_count */
    WatchDot *dots;    /* of named curve i: [WATCH_DOTS] from i * WATCH_DOTS on */
    size_t named_count;
    StepMetrics last; /* of the newest record of a step; step 0: none yet */
    ValidationMetrics last_validation;
} Watched;

/* The directory may not exist yet: it is looked for at every look. ERR_NOINPUT where something else has its
 * name, or its parent cannot be searched. */
ErrorCode watch_open(Watched *w, const char *dir, Error *err);
void watch_close(Watched *w);

/* Takes up what was added, a few MiB at a time: a long run is there after some looks. A file that was
 * replaced or cut (a run that was resumed, or began anew) is read from its start. */
void watch_look(Watched *w);

/* All that the page shows, as one JSON object: points and validations behind step `after` if `version` is
 * still the one that they were told of, else all of them. `pid`: of the run, 0 where none is known. Times,
 * names and texts of the run are data for the page, not markup. */
void watch_write(const Watched *w, int64_t version, int64_t after, long pid, Text *out);

/* The page, its style sheet and its script. */
typedef struct WatchAsset {
    const char *path, *type; /* "/watch.js", "text/javascript; charset=utf-8" */
    const unsigned char *data;
    size_t length;
} WatchAsset;
extern const WatchAsset watch_assets[]; /* ended by path == NULL; "/" is the page */

#endif
