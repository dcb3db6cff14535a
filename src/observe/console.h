/* Progress on stderr: one line per logged step, in TorchTitan's form, and on a terminal a live status line
 * between them. Colour is redundant: everything is also said in words. */
#ifndef WEFT_OBSERVE_CONSOLE_H
#define WEFT_OBSERVE_CONSOLE_H

#include "observe/metrics.h"

/* All on one line:
 *     step:  10  loss:  5.12345  grad_norm:  1.2345  memory:  1.23GiB(5.10%)  tps: 12,345  tflops: 0.21
 *     mfu: 61.20%  data: 0.1%  lr: 3.00e-04  eta: 3m05s  SPIKE
 * With a rank of 0 or more the line begins with "[rank 3] "; CONSOLE_UNNAMED omits that. Probes and sources
 * have no line. */
#define CONSOLE_UNNAMED (-1)
void console_record(MetricsKind kind, const void *record, int rank);

/* Redraws the live line if stderr is a terminal, at most ten times a second. `at_once` bypasses that limit:
 * use it before the line of a step, so that the live line below it is not of an earlier one. Clear it before
 * the program ends. */
void console_status(const StepMetrics *m, bool at_once);
void console_clear(void);

/* The same as text, without a newline. `width`: columns available for the live line. */
void console_format_step(Text *out, const StepMetrics *m, bool colour);
void console_format_status(Text *out, const StepMetrics *m, int width, bool unicode, bool colour);

#endif
