/* Several runs beside each other: the first is the one that the others are compared with.
 *
 * What may differ between runs is a row: a key of the configuration, or a fact. What came of it is a split:
 * the first figure whose bits are others than in the first run. */
#ifndef WEFT_OBSERVE_COMPARE_H
#define WEFT_OBSERVE_COMPARE_H

#include "observe/report_run.h"

#define RUNS_MAX 8 /* as many as can be told apart in a drawing */

/* Something that is not the same in all runs. */
typedef struct RunsRow {
    const char *part;   /* "configuration", "data", "machine" */
    char *name;         /* "optimizer.lr", "ranks" */
    const char *effect; /* what another value does to the curve: "last bits"; NULL: nothing, or not known */
    bool matters;       /* false: a key that no bit of a run depends on */
    char *values[RUNS_MAX]; /* NULL where a run does not say */
} RunsRow;

/* A run and the first one. */
typedef struct RunsSplit {
    MetricsComparison metrics;
    bool audited;  /* both have records of their samples */
    char *samples; /* why these are not the same; NULL: they are, or it is not known */
} RunsSplit;

typedef struct Runs {
    size_t count;
    const char *dirs[RUNS_MAX]; /* as they were given; not owned */
    ReportRun runs[RUNS_MAX];
    RunsRow *rows; /* those that matter and those that do not, in the order of the option table; then facts */
    size_t row_count;
    RunsSplit splits[RUNS_MAX]; /* [0] is of the first run with itself */
} Runs;

/* Reads what is needed of 1 to RUNS_MAX run directories, which must stay. Free with runs_free, also after an
 * error. */
ErrorCode runs_open(Runs *r, const char *const *dirs, size_t count, Error *err);
/* A fact that the run directories' own files do not tell; values [runs], NULL or "" where it is not known. A
 * row comes of it only if two that are known differ. */
void runs_add_fact(Runs *r, const char *part, const char *name, const char *effect,
                   const char *const *values);
void runs_free(Runs *r);

/* No figure of any run differs from the first run's. */
bool runs_equal(const Runs *r);
/* ERR_DATA where a run has no record in common with the first: then nothing can be said. */
ErrorCode runs_comparable(const Runs *r, Error *err);

/* The curves of the loss over each other, figures, rows, splits. `width` columns at most for the drawing. */
void runs_describe(const Runs *r, int width, bool unicode, bool colour, Text *out);
/* The same as one JSON object on a line. */
void runs_write_json(const Runs *r, Text *out);

/* Figures of a run for people: name and value, the same rows for every run; values are "" where a run has
 * none. Returns how many there are; names[i] is static. */
enum { RUN_FIGURES = 8 };
typedef struct RunFigure {
    const char *name;
    double value; /* NaN where a run has none */
    char text[32];
} RunFigure;
void runs_figures(const ReportRun *run, RunFigure out[RUN_FIGURES]);

#endif
