/* weft report: a run as one HTML file. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "observe/report.h"

/* Written beside the run by default, where the run's owner will look for it. */
static ErrorCode run_report(const Arguments *args, Error *err) {
    const char *dir = args->operands[0], *out = arguments_flag(args, "--out");
    char *path = out ? mem_strdup(out) : path_join(dir, REPORT_FILE);
    char size[32];
    Text html = {0};
    ErrorCode code = report_write(&html, dir, err);
    if (code == OK && out && out[0] == '-' && !out[1]) {
        bool whole = fwrite(html.data, 1, html.length, stdout) == html.length && fflush(stdout) == 0;
        if (!whole) code = error_errno(err, ERR_IO, "standard output: writing the report failed");
    } else if (code == OK) {
        code = file_write_atomic(path, html.data, html.length, err);
        if (code == OK) log_info("%s written (%s)", path, text_bytes((double)html.length, size));
    }
    text_free(&html);
    free(path);
    return code;
}

static const Flag flags[] = {
    {"--out", 'o', "FILE", "where to write it; default RUN/report.html, - for standard output"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_report = {
    .name = "report",
    .summary = "write one HTML file with the curves of a run",
    .synopsis = "RUN [--out FILE]",
    .details = "RUN is a directory that \"weft train\" wrote, of a run that ended or one that is still going "
               "on. The page holds the curves of loss, gradient norm, learning rate, throughput and memory, "
               "the run's journal and its configuration, and a traced step (metrics.trace), planned above "
               "measured. It needs no network and no server: open it in a browser, or mail it.\n\n"
               "Example:\n"
               "  weft report runs/demo",
    .flags = flags,
    .min_operands = 1,
    .max_operands = 1,
    .run = run_report,
};
