/* The parsed files of a run. Shared by the parts of the report. */
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
    char *no_timing;    /* why an existing trace cannot be shown, or NULL */
} ReportRun;

/* run must be zeroed; free it in either case. */
ErrorCode report_run_load(ReportRun *run, const char *dir, Error *err);
void report_run_free(ReportRun *run);

/* The median over the logged steps of a double of StepMetrics, by offset; NaN when none is finite. */
double report_median(const MetricsTable *t, size_t offset);

/* The head of the page: name, state, settings, facts. */
void report_write_header(Text *out, const ReportRun *run);

/* If the run was a learning-rate range test, appends its result in words. False if it was not. */
bool report_range(const ReportRun *run, Text *out);

/* Planned and measured timelines of the last traced step, where there is one. */
void report_write_timeline(Text *out, const ReportRun *run);

#endif
