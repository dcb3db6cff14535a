/* weft compare: shows runs side by side, and the first figure in which they differ.
 *
 * observe/compare.h describes what is compared and how; this file handles operands, output and status:
 *
 *     0    every figure that two runs both have is the same, bit for bit
 *     1    one differs (ERR_DIFFERENT), as for diff(1): a result, not a failure
 *     65   a run has no record in common with the first one, so that there is no result
 *
 * The drawing adapts to its terminal; with --json nothing depends on the terminal. */
#include "base/log.h"
#include "cli/runs.h"
#include "cli/terminal.h"

static const Flag flags[] = {
    {"--json", 0, NULL, "one JSON object instead of text"},
    {"--width", 'w', "N", "columns of the output; default: the terminal's, or 128"},
    {NULL, 0, NULL, NULL},
};

/* A result, not a failure, so it goes to standard output. `reported` keeps main from printing it again as an
 * error; the status stays. */
static ErrorCode verdict(const Runs *runs, Error *err) {
    if (runs_equal(runs)) return OK;
    error_set(err, ERR_DIFFERENT, "the runs differ");
    err->reported = true;
    return ERR_DIFFERENT;
}

/* Checks that there is something to compare before printing anything: to a script, partial output followed by
 * an error would look like a result. */
static ErrorCode compare(const Arguments *args, const Runs *runs, int width, Error *err) {
    Text out = {0};
    TerminalStyle style = terminal_style(width);
    TRY(runs_comparable(runs, err));
    if (arguments_has(args, "--json"))
        runs_write_json(runs, &out);
    else
        runs_describe(runs, style.width, style.utf8, style.colour, &out);
    ErrorCode code = terminal_print(&out, err);
    text_free(&out);
    return code == OK ? verdict(runs, err) : code;
}

/* Width 0 is kept if none was given: the terminal's. `runs` is freed even if only partly read. */
static ErrorCode run_compare(const Arguments *args, Error *err) {
    Runs runs = {0};
    int64_t width = 0;
    TRY(arguments_int(args, "--width", 60, 1000, &width, err));
    ErrorCode code = open_runs(args, &runs, err);
    if (code == OK) code = compare(args, &runs, (int)width, err);
    runs_free(&runs);
    return code;
}

const Verb verb_compare = {
    .name = "compare",
    .summary = "show runs over each other, and where they part",
    .synopsis = "RUN RUN ... [--json]",
    .details =
        "Draws the losses of up to eight runs over each other, with their figures; then what differs in "
        "configuration, data, mesh and machine, and what that does to the curve; then the first step and "
        "figure whose bits are others than in the first run. What counts is what configuration and data "
        "alone "
        "decide: losses, gradient norms, learning rates, tokens; not times or memory. Steps are compared "
        "that "
        "both runs have a record of (metrics.log_freq). Of runs with data.audit, samples are compared "
        "too.\n\n"
        "The status is 0 when no figure differs, 1 when one does, as diff has it, and another with a message "
        "when there was nothing to compare.\n\n"
        "Examples:\n"
        "  weft compare runs/base runs/lr-2e-3\n"
        "  weft compare runs/on-one-rank runs/on-eight-ranks --json",
    .flags = flags,
    .min_operands = 2,
    .max_operands = RUNS_MAX,
    .run = run_compare,
};
