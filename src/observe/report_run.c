/* Loads what a report needs from a run directory. Metrics are required; journal, configuration and trace are
 * optional. A trace that cannot be read is reported in the page instead of drawn. */
#include "observe/report_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "observe/trace.h"

#define CONFIG_FILE "config.yaml"
/* A larger file is not a configuration that weft wrote (base/yaml.c has the same bound). */
#define CONFIG_LIMIT (1 << 20)

/* The directory's own name, also for "." and for a link. It is the title of the page, by which open reports
 * are distinguished. */
static char *run_name(const char *dir) {
    char *real = realpath(dir, NULL);
    const char *whole = real ? real : dir, *slash = strrchr(whole, '/');
    char *name = mem_strdup(slash && slash[1] ? slash + 1 : whole);
    free(real);
    return name;
}

/* The report is useful without it, so its errors are not fatal. */
static void load_trace(ReportRun *run, const char *dir) {
    char *path = path_join(dir, TRACE_FILE);
    Error err = {.message = ""};
    if (file_exists(path) && trace_read(&run->timing, path, &err) != OK) {
        timing_free(&run->timing);
        run->no_timing = mem_strdup(err.message);
    }
    free(path);
}

/* A file that exists but cannot be read is an error, not a gap in the report. */
static ErrorCode load_optional(ReportRun *run, const char *dir, Error *err) {
    char *journal = path_join(dir, JOURNAL_FILE), *config = path_join(dir, CONFIG_FILE);
    ErrorCode code = OK;
    if (file_exists(journal)) code = journal_table_read(&run->journal, journal, err);
    if (code == OK && file_exists(config)) {
        size_t length;
        code = file_read_own(config, CONFIG_LIMIT, &run->config, &length, err);
        /* a configuration that does not parse is still shown as text */
        if (code == OK && yaml_tree_parse(config, run->config, length, &run->settings, NULL) != OK)
            run->settings = NULL;
    }
    free(journal);
    free(config);
    if (code == OK) load_trace(run, dir);
    return code;
}

/* The caller frees the run after a failure too. */
ErrorCode report_run_load(ReportRun *run, const char *dir, Error *err) {
    if (!file_is_dir(dir)) {
        return error_set(err, ERR_NOINPUT,
                         "%s: no such directory; a run directory was expected, as \"weft train\" makes it",
                         dir);
    }
    char *metrics = path_join(dir, METRICS_FILE);
    ErrorCode code = OK;
    if (!file_exists(metrics)) {
        code = error_set(err, ERR_NOINPUT, "%s: no %s in it, so it is not the directory of a run", dir,
                         METRICS_FILE);
    } else {
        code = metrics_table_read(&run->metrics, metrics, err);
    }
    free(metrics);
    if (code == OK) code = load_optional(run, dir, err);
    if (code == OK) run->name = run_name(dir);
    return code;
}

void report_run_free(ReportRun *run) {
    metrics_table_free(&run->metrics);
    journal_table_free(&run->journal);
    yaml_tree_free(run->settings);
    free(run->config);
    timing_free(&run->timing);
    free(run->no_timing);
    free(run->name);
}
