/* Run directories for verbs that show several runs together. */
#ifndef WEFT_CLI_RUNS_H
#define WEFT_CLI_RUNS_H

#include "cli/cli.h"
#include "observe/compare.h"

/* Opens the operands as runs, with what their checkpoints record about data and machine. Free with runs_free,
 * also after an error. */
ErrorCode open_runs(const Arguments *args, Runs *runs, Error *err);

#endif
