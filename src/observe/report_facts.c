/* The head of the report: how the run ended, what was trained, and the most important figures.
 *
 * Everything comes from the files of the run (metrics, journal, resolved configuration), nothing from the
 * machine that writes the report, which may be another one, years later. Unknown figures are omitted.
 *
 * The sources:
 *
 *     name, state        the directory's name; the last event of the journal
 *     settings           config.yaml, by bare names of keys
 *     losses             the last logged step; the newest and the best validation
 *     steps, tokens      the last logged step; parameters from the journal
 *     speed, memory      medians and the peak over all logged steps
 *     time               means times numbers of steps, summed */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "observe/chart.h"
#include "observe/lr_range.h"
#include "observe/report_run.h"

/* The journal's last event shows how a run ended; any event other than those below means that the process did
 * not come to its end, for example because it was killed. */
static void write_state(Text *out, const ReportRun *run) {
    static const struct {
        const char *event, *style;
    } ends[] = {{"finished", "good"}, {"stopped", "warn"}, {"failed", "bad"}};
    const char *last = run->journal.count ? run->journal.entries[run->journal.count - 1].event : "";
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        if (strcmp(last, ends[i].event) == 0) {
            text_printf(out, "<span class=\"state %s\">%s</span>", ends[i].style, ends[i].event);
            return;
        }
    }
    text_puts(out, "<span class=\"state plain\">running or interrupted</span>");
}

/* The first scalar with this name, sections in their order. By its bare name, so that a report also finds a
 * key in the configuration of an older version, which had it in another section. */
static const char *setting(const YamlNode *node, const char *name) {
    if (!node || node->kind != YAML_NODE_MAP) return NULL;
    for (size_t i = 0; i < node->count; i++) {
        if (node->items[i]->kind == YAML_NODE_SCALAR && strcmp(node->keys[i], name) == 0)
            return node->items[i]->text;
    }
    for (size_t i = 0; i < node->count; i++) {
        const char *found = setting(node->items[i], name);
        if (found) return found;
    }
    return NULL;
}

/* A scalar by section and name; the first scalar of that name in any section may be a different one. */
static bool is_set_to(const YamlNode *root, const char *section, const char *name, const char *value) {
    for (size_t i = 0; root && root->kind == YAML_NODE_MAP && i < root->count; i++) {
        const char *found = strcmp(root->keys[i], section) == 0 ? setting(root->items[i], name) : NULL;
        if (found) return strcmp(found, value) == 0;
    }
    return false;
}

/* The section of older runs is called schedule. */
static bool is_range_test(const ReportRun *run) {
    return is_set_to(run->settings, "lr_schedule", "kind", "range") ||
           is_set_to(run->settings, "schedule", "kind", "range");
}

bool report_range(const ReportRun *run, Text *out) {
    if (!is_range_test(run) || run->metrics.step_count == 0) return false;
    LrRange range = lr_range_find(&run->metrics);
    lr_range_describe(&range, out);
    return true;
}

/* Settings that are not set, or unknown to this run's version, are omitted. */
static void write_settings(Text *out, const ReportRun *run) {
    /* The settings that distinguish runs at a glance; the rest is in the configuration below. */
    static const char *const shown[][2] = {
        {"num_hidden_layers", "layers"},
        {"hidden_size", "hidden"},
        {"num_attention_heads", "heads"},
        {"num_key_value_heads", "kv heads"},
        {"vocab_size", "vocabulary"},
        {"context", "context"},
        {"lr", "lr"},
        {"compute", "compute"},
        {"seed", "seed"},
    };
    size_t written = 0;
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
        const char *value = setting(run->settings, shown[i][0]);
        if (!value || !*value) continue;
        text_puts(out, written++ ? " · " : "<p class=\"sub\">");
        text_printf(out, "%s ", shown[i][1]);
        html_puts(out, value);
    }
    text_puts(out, written ? "</p>\n" : "<p class=\"sub\"></p>\n");
}

/* `note` is small print below the value, NULL for none. All three are escaped: some come from files. */
static void write_fact(Text *out, const char *name, const char *value, const char *note) {
    text_puts(out, "<div><dt>");
    html_puts(out, name);
    text_puts(out, "</dt><dd>");
    html_puts(out, value);
    if (note) {
        text_puts(out, "<small>");
        html_puts(out, note);
        text_puts(out, "</small>");
    }
    text_puts(out, "</dd></div>\n");
}

/* 12345678 -> "12.3 M": readable rather than exact. */
static char *big_number(double value, char out[32]) {
    static const char *const suffix[] = {"", " k", " M", " G", " T"};
    int i = 0;
    /* 999.5 would be rounded to "1000". */
    while (fabs(value) >= 999.5 && i < 4) {
        value /= 1000;
        i++;
    }
    int decimals = i == 0 || fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f%s", decimals, value, suffix[i]);
    return out;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The upper of two middle values: a measured value, not an interpolated one. Non-finite steps are skipped. */
double report_median(const MetricsTable *t, size_t offset) {
    double *values = mem_alloc_array(t->step_count + 1, sizeof *values), result = (double)NAN;
    size_t n = 0;
    for (size_t i = 0; i < t->step_count; i++) {
        double value = metrics_number(&t->steps[i], offset, false);
        if (isfinite(value)) values[n++] = value;
    }
    if (n > 0) {
        qsort(values, n, sizeof *values, ascending);
        result = values[n / 2];
    }
    free(values);
    return result;
}

/* Parameters come from the journal, since no other file of a run has their number. */
static void write_progress_facts(Text *out, const ReportRun *run) {
    char value[64], number[32];
    const StepMetrics *last = &run->metrics.steps[run->metrics.step_count - 1];
    snprintf(value, sizeof value, "%s", text_count(last->step, number));
    char note[64];
    snprintf(note, sizeof note, "of %s", text_count(last->total_steps, number));
    write_fact(out, "Steps", value, last->total_steps > 0 ? note : NULL);
    snprintf(note, sizeof note, "%.2f epochs", last->epoch);
    write_fact(out, "Tokens", big_number((double)last->total_tokens, number),
               isfinite(last->epoch) ? note : NULL);
    double parameters = journal_table_fact(&run->journal, "parameters");
    if (isfinite(parameters)) {
        char exact[32];
        write_fact(out, "Parameters", big_number(parameters, number), text_count((int64_t)parameters, exact));
    }
}

/* The best of the validations, not of the training loss, which also falls by overfitting. */
static void write_loss_facts(Text *out, const MetricsTable *t) {
    char value[32], note[64], number[32];
    const StepMetrics *last = &t->steps[t->step_count - 1];
    snprintf(value, sizeof value, "%.4f", last->loss);
    write_fact(out, "Training loss", isfinite(last->loss) ? value : "not finite", "last logged step");
    if (t->validation_count == 0) return;
    /* The newest validation along with the best: they differ once a run overfits. */
    const ValidationMetrics *final = &t->validations[t->validation_count - 1], *best = final;
    for (size_t i = 0; i < t->validation_count; i++) {
        if (t->validations[i].loss < best->loss || !isfinite(best->loss)) best = &t->validations[i];
    }
    snprintf(value, sizeof value, "%.4f", final->loss);
    if (final->nonfinite > 0)
        snprintf(note, sizeof note, "%s tokens", text_count(final->nonfinite, number));
    else if (isfinite(final->bits_per_byte))
        snprintf(note, sizeof note, "%.3f bits per byte", final->bits_per_byte);
    else
        snprintf(note, sizeof note, "perplexity %.2f", final->perplexity);
    write_fact(out, "Validation loss", isfinite(final->loss) ? value : "not finite", note);
    snprintf(value, sizeof value, "%.4f", best->loss);
    snprintf(note, sizeof note, "at step %s", text_count(best->step, number));
    write_fact(out, "Best validation", isfinite(best->loss) ? value : "not finite", note);
}

/* Medians, since the first steps and those during a save are slower. Spikes are counted by their flags,
 * skipped steps by the run's own count. A step skipped as non-finite does not also count as a spike. */
static void write_speed_facts(Text *out, const MetricsTable *t) {
    char value[64], number[32], note[64];
    double rate = report_median(t, offsetof(StepMetrics, tokens_per_second)),
           mfu = report_median(t, offsetof(StepMetrics, mfu));
    if (isfinite(rate) && rate < 9e15) {
        snprintf(note, sizeof note, "MFU %.1f%%", 100 * mfu);
        write_fact(out, "Tokens per second", text_count((int64_t)llround(rate), number),
                   isfinite(mfu) ? note : "median");
    }
    double goodput = t->steps[t->step_count - 1].goodput;
    if (isfinite(goodput)) {
        snprintf(value, sizeof value, "%.1f%%", 100 * goodput);
        write_fact(out, "Goodput", value, "time in steps that count, since the first start");
    }
    int64_t peak = 0, device = 0, skipped = t->steps[t->step_count - 1].skipped_total, spikes = 0;
    for (size_t i = 0; i < t->step_count; i++) {
        if (t->steps[i].memory_peak > peak) peak = t->steps[i].memory_peak;
        if (t->steps[i].device_memory > device) device = t->steps[i].device_memory;
        spikes += t->steps[i].spike && !t->steps[i].skipped;
    }
    if (device > 0)
        write_fact(out, "Memory of the device", text_bytes((double)device, value),
                   "taken before the first step");
    if (peak > 0)
        write_fact(out, device > 0 ? "Peak memory of the host" : "Peak memory",
                   text_bytes((double)peak, value), NULL);
    snprintf(note, sizeof note, "%lld spikes flagged", (long long)spikes);
    write_fact(out, "Skipped steps", text_count(skipped, number), note);
}

/* From the last step, like the loss: experts may be unbalanced at first, and should not stay so. */
static void write_expert_fact(Text *out, const MetricsTable *t) {
    const StepMetrics *last = &t->steps[t->step_count - 1];
    char value[32], note[64];
    if (!(last->expert_imbalance > 0)) return;
    snprintf(value, sizeof value, "%.2f", last->expert_imbalance);
    snprintf(note, sizeof note, "largest / mean, %lld dead", (long long)last->dead_experts);
    write_fact(out, "Tokens per expert", value, note);
}

/* As a separate sentence, since its figures need words. */
static void write_range(Text *out, const ReportRun *run) {
    Text words = {0};
    if (report_range(run, &words)) {
        text_puts(out, "<p class=\"sub\">Learning-rate range test: ");
        html_puts(out, words.data);
        text_puts(out, ".</p>\n");
    }
    text_free(&words);
}

static void write_time_fact(Text *out, const MetricsTable *t) {
    double seconds = metrics_training_seconds(t);
    char value[16];
    if (seconds > 0) write_fact(out, "Training time", clock_duration(seconds, value), "in steps alone");
}

/* Facts need at least one logged step: without any, there are only name, state and settings. */
void report_write_header(Text *out, const ReportRun *run) {
    text_puts(out, "<header><div class=\"head\"><h1>");
    html_puts(out, run->name);
    text_puts(out, "</h1>");
    write_state(out, run);
    text_puts(out, "</div>\n");
    write_settings(out, run);
    if (run->metrics.step_count > 0) {
        text_puts(out, "<dl>\n");
        write_loss_facts(out, &run->metrics);
        write_progress_facts(out, run);
        write_speed_facts(out, &run->metrics);
        write_time_fact(out, &run->metrics);
        write_expert_fact(out, &run->metrics);
        text_puts(out, "</dl>\n");
        write_range(out, run);
    }
    text_puts(out, "</header>\n");
}
