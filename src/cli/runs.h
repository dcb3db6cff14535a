/* Run directories that several verbs show beside each other. */
#ifndef WEFT_CLI_RUNS_H
#define WEFT_CLI_RUNS_H

#include "cli/cli.h"
#include "observe/compare.h"

/* The operands as runs, with what their checkpoints say of data and machine. Free with runs_free, also after
 * an error. */
ErrorCode open_runs(const Arguments *args, Runs *runs, Error *err);

#endif
