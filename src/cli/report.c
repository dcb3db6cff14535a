/* weft report: a run, or several in common charts, as one HTML file.
 *
 * It works on an active run as on a finished one: it reads what exists and takes no lock. The page replaces
 * an older one atomically (file_write_atomic), so a browser that reloads it meanwhile never sees a partial
 * one. */
#include <stdbool.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/runs.h"
#include "cli/terminal.h"
#include "observe/report.h"

/* By default inside the run directory, where the run's owner will look for it; for several runs in the
 * current directory, since none of them owns the comparison. The caller frees it. */
static char *path_of(const Arguments *args) {
    const char *out = arguments_flag(args, "--out");
    if (out) return mem_strdup(out);
    return args->operand_count == 1 ? path_join(args->operands[0], REPORT_FILE) : mem_strdup(COMPARISON_FILE);
}

/* "-" is standard output; then nothing is printed on stderr, since the page is the output. */
static ErrorCode write_page(const char *path, const Text *html, Error *err) {
    char size[32];
    if (path[0] == '-' && !path[1]) return terminal_write_file(path, html, err);
    TRY(file_write_atomic(path, html->data, html->length, err));
    log_info("%s written (%s)", path, text_bytes((double)html->length, size));
    return OK;
}

/* The result of a range test is short enough for a terminal. */
static void print_ranges(const Runs *runs) {
    for (size_t i = 0; i < runs->count; i++) {
        Text words = {0};
        if (report_range(&runs->runs[i], &words)) log_info("%s: %s", runs->dirs[i], words.data);
        text_free(&words);
    }
}

/* The page is made in memory before its file is touched, so a run that cannot be read leaves an existing
 * report unchanged. */
static ErrorCode run_report(const Arguments *args, Error *err) {
    char *path = path_of(args);
    Text html = {0};
    Runs runs = {0};
    ErrorCode code = open_runs(args, &runs, err);
    if (code == OK) {
        report_write_runs(&html, &runs);
        code = write_page(path, &html, err);
    }
    if (code == OK) print_ranges(&runs);
    runs_free(&runs);
    text_free(&html);
    free(path);
    return code;
}

static const Flag flags[] = {
    {"--out", 'o', "FILE",
     "where to write it; default RUN/report.html, or comparison.html of several runs; - for standard output"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_report = {
    .name = "report",
    .summary = "write one HTML file with the curves of a run, or of several",
    .synopsis = "RUN ... [--out FILE]",
    .details = "RUN is a directory that \"weft train\" wrote, of a run that ended or one that is still going "
               "on. The page holds the curves of loss, gradient norm, learning rate, throughput and memory, "
               "the run's journal and its configuration, and a traced step (metrics.trace), planned above "
               "measured. It needs no network and no server: open it in a browser, or mail it.\n\n"
               "Of several runs, up to eight, it has their curves over each other, their figures, what "
               "differs between them and where they part, as \"weft compare\" says it.\n\n"
               "Examples:\n"
               "  weft report runs/demo\n"
               "  weft report runs/base runs/lr-2e-3 --out lr.html",
    .flags = flags,
    .min_operands = 1,
    .max_operands = RUNS_MAX,
    .run = run_report,
};
