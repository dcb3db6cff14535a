/* RUN/trace.json: some steps as measured and as planned, in the trace event format that Perfetto
 * (https://ui.perfetto.dev) and Chrome (about:tracing) open.
 *
 * A rank is a process with two tracks. "planned": the cells of its schedule ("0F2": stage 0, forward of
 * microbatch 2), simulated with measured costs. "measured": every action of its program ("FWD 4 m2"), with
 * its unit, microbatch and stage; time spent waiting for other ranks is a nested slice "wait". Arrows go from
 * a SEND to the pass that receives its message. Times are microseconds since the start of the first traced
 * step.
 *
 * The report reads the file back and does not trust it: parsing gives either an error or a Timing that is
 * safe to draw and to predict from. */
#ifndef WEFT_OBSERVE_TRACE_H
#define WEFT_OBSERVE_TRACE_H

#include "base/text.h"
#include "forecast/timing.h"

#define TRACE_FILE "trace.json"

/* `p` must be the prediction for this timing. */
void trace_format(const Timing *t, const Prediction *p, Text *out);
ErrorCode trace_write(const char *path, const Timing *t, const Prediction *p, Error *err);

/* `where` names the text in errors. Free the timing in either case. */
ErrorCode trace_parse(Timing *t, const char *where, const char *text, size_t length, Error *err);
ErrorCode trace_read(Timing *t, const char *path, Error *err);

#endif
