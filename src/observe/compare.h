/* Compares several runs with the first one.
 *
 * A row is something that differs between runs: a key of the configuration, or a fact. A split is where the
 * results part: the first metric whose bits differ from the first run's. */
#ifndef WEFT_OBSERVE_COMPARE_H
#define WEFT_OBSERVE_COMPARE_H

#include "observe/report_run.h"

#define RUNS_MAX 8 /* as many curves as a drawing can distinguish */

/* Something that is not the same in all runs. */
typedef struct RunsRow {
    const char *part;       /* "configuration", "data", "machine" */
    char *name;             /* "optimizer.lr", "ranks" */
    const char *effect;     /* effect of the value on the curve: "last bits"; NULL: none or unknown */
    bool matters;           /* false: a key that cannot change any bit of a run */
    char *values[RUNS_MAX]; /* NULL where a run does not record it */
} RunsRow;

/* A run and the first one. */
typedef struct RunsSplit {
    MetricsComparison metrics;
    bool audited;  /* both have records of their samples */
    char *samples; /* false: a key that cannot change any bit of a run */
} RunsSplit;

typedef struct Runs {
    size_t count;
    const char *dirs[RUNS_MAX]; /* as given; not owned */
    ReportRun runs[RUNS_MAX];
    RunsRow *rows; /* those that matter, then the others, in the order of the option table; then facts */
    size_t row_count;
    RunsSplit splits[RUNS_MAX]; /* [0]: the first run with itself */
} Runs;

/* Reads 1 to RUNS_MAX run directories. The strings `dirs` must outlive `r`. Free with runs_free, also after
 * an error. */
ErrorCode runs_open(Runs *r, const char *const *dirs, size_t count, Error *err);
/* Adds a fact that is not in the run directories' own files. values [runs]: NULL or "" where unknown. It
 * becomes a row only if two known values differ. */
void runs_add_fact(Runs *r, const char *part, const char *name, const char *effect,
                   const char *const *values);
void runs_free(Runs *r);

/* No metric of any run differs from the first run's. */
bool runs_equal(const Runs *r);
/* ERR_DATA if a run has no record in common with the first, so that nothing can be compared. */
ErrorCode runs_comparable(const Runs *r, Error *err);

/* Appends the loss curves in one drawing, metrics, rows and splits. `width`: most columns of the drawing. */
void runs_describe(const Runs *r, int width, bool unicode, bool colour, Text *out);
/* The same as one JSON object on a line. */
void runs_write_json(const Runs *r, Text *out);

/* Summary metrics of a run: name and value, the same rows for every run; values are "" where a run has none.
 * Returns their number; names are static. */
enum { RUN_FIGURES = 8 };
typedef struct RunFigure {
    const char *name;
    double value; /* NaN where a run has none */
    char text[32];
} RunFigure;
void runs_figures(const ReportRun *run, RunFigure out[RUN_FIGURES]);

#endif
