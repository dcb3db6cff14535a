/* What a report is about: a run's files, read. Shared by the parts of the report. */
#ifndef WEFT_OBSERVE_REPORT_RUN_H
#define WEFT_OBSERVE_REPORT_RUN_H

#include "base/yaml.h"
#include "observe/journal.h"
#include "observe/metrics.h"
#include "forecast/timing.h"

typedef struct ReportRun {
    char *name;
    MetricsTable metrics;
    JournalTable journal;
    char *config;       /* text of config.yaml, or NULL */
    YamlNode *settings; /* the same as a tree, or NULL */
    Timing timing;      /* traced steps; none: count 0 */
    char *no_timing;    /* why there is a trace that cannot be shown, or NULL */
} ReportRun;

/* run must be zeroed; free it in either case. */
ErrorCode report_run_load(ReportRun *run, const char *dir, Error *err);
void report_run_free(ReportRun *run);

/* Typical value of a double of StepMetrics, by offset: the median over the logged steps; NaN when none is
 * finite. */
double report_median(const MetricsTable *t, size_t offset);

/* The head of the page: name, state, settings, facts. */
void report_write_header(Text *out, const ReportRun *run);

/* Of a run that was a learning-rate range test: what it has shown, in words, appended to out. */
bool report_range(const ReportRun *run, Text *out);

/* Planned and measured timelines of the last traced step, where there is one. */
void report_write_timeline(Text *out, const ReportRun *run);

#endif
