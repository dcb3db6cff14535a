/* One self-contained HTML page about a run (its facts, curves, journal and configuration) or about several
 * runs in the same charts. It works from file://, makes no network requests, and needs no script to be read
 * (a few lines add a read-out under the pointer). */
#ifndef WEFT_OBSERVE_REPORT_H
#define WEFT_OBSERVE_REPORT_H

#include "base/error.h"
#include "base/text.h"
#include "observe/compare.h"

/* Default file names: in the run directory; for several runs, in the current directory. */
#define REPORT_FILE "report.html"
#define COMPARISON_FILE "comparison.html"

void report_write_runs(Text *html, const Runs *runs);
/* The page of one run. Reads RUN/metrics.jsonl and, if they exist, RUN/journal.jsonl, RUN/config.yaml and
 * RUN/trace.json. */
ErrorCode report_write(Text *html, const char *run_dir, Error *err);

/* The page's style sheet and script. */
extern const char *const report_style;
extern const char *const report_script;

#endif
