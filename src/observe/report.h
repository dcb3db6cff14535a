/* One self-contained HTML page about a run: its facts, its curves, its journal, its configuration; or about
 * several, over each other. Works from file://, asks nothing of the network, and needs no script to be read
 * (a few lines add a read-out under the pointer). */
#ifndef WEFT_OBSERVE_REPORT_H
#define WEFT_OBSERVE_REPORT_H

#include "base/error.h"
#include "base/text.h"
#include "observe/compare.h"

/* Where it is written, if nothing else is said: in the run; of several, in the current directory. */
#define REPORT_FILE "report.html"
#define COMPARISON_FILE "comparison.html"

void report_write_runs(Text *html, const Runs *runs);
/* Of one run. Reads RUN/metrics.jsonl and, where they are, RUN/journal.jsonl, RUN/config.yaml and
 * RUN/trace.json. */
ErrorCode report_write(Text *html, const char *run_dir, Error *err);

/* The page's style sheet and script. */
extern const char *const report_style;
extern const char *const report_script;

#endif
