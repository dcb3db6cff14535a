/* Lines for people: a logged step in TorchTitan's form ("step: 10  loss: 7.1234 ..."), which scripts can
 * parse, and one status line that is redrawn in a terminal.
 *
 *  C1. An unknown figure is omitted or "n/a", never an invented zero.
 *  C2. The status line is at most as wide as the terminal, and is never written to a log file. */
#include "observe/console.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "observe/plot.h"

#define GIB (1024.0 * 1024 * 1024)

#define RESET "\033[0m"
#define RED "\033[31m"
#define GREEN "\033[32m"
#define YELLOW "\033[33m"
#define BLUE "\033[34m"
#define MAGENTA "\033[35m"
#define CYAN "\033[36m"
#define DIM "\033[2m"

/* Fields are "name: value", separated by two spaces. Colour is only an addition. */
static void add_field(Text *out, bool colour, const char *escape, const char *name, const char *value) {
    if (out->length > 0) text_puts(out, "  ");
    text_printf(out, "%s%s: %s%s", colour ? escape : "", name, value, colour ? RESET : "");
}

/* The warning is suppressed only for this call. */
static void add_number(Text *out, bool colour, const char *escape, const char *name, const char *format,
                       double value) {
    char number[64];
    if (isnan(value)) {
        strcpy(number, "nan"); /* never "-nan" */
    } else {
        /* every format is a literal of this file with one double in it */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(number, sizeof number, format, value);
#pragma GCC diagnostic pop
    }
    add_field(out, colour, escape, name, number);
}

/* Above 9e15 a double cannot represent integers; such a rate is meaningless. */
static void add_rate(Text *out, bool colour, double tokens_per_second) {
    char number[32] = "n/a";
    if (isfinite(tokens_per_second) && tokens_per_second < 9e15)
        text_count((int64_t)llround(tokens_per_second), number);
    add_field(out, colour, BLUE, "tps", number);
}

/* The peak, not the current resident size: the peak has to fit. If tensors are in a device's separate memory,
 * the usage of that. */
static void add_memory(Text *out, bool colour, const StepMetrics *m) {
    char value[64];
    bool apart = m->device_memory > 0;
    double share = apart ? m->device_fraction : m->memory_fraction;
    int n =
        snprintf(value, sizeof value, "%5.2fGiB", (double)(apart ? m->device_memory : m->memory_peak) / GIB);
    if (isfinite(share)) snprintf(value + n, sizeof value - (size_t)n, "(%.2f%%)", 100 * share);
    add_field(out, colour, CYAN, "memory", value);
}

/* Aligns steps: as many columns as the last step needs, at least TorchTitan's two. */
static int step_width(int64_t total) {
    int width = 1;
    for (int64_t n = total; n >= 10; n /= 10) width++;
    return width > 2 ? width : 2;
}

/* TorchTitan's fields in their order come first, then weft's, so that scripts find TorchTitan's. The colours
 * are also TorchTitan's. */
void console_format_step(Text *out, const StepMetrics *m, bool colour) {
    char value[64];
    snprintf(value, sizeof value, "%*lld", step_width(m->total_steps), (long long)m->step);
    add_field(out, colour, RED, "step", value);
    add_number(out, colour, GREEN, "loss", "%8.5f", m->loss);
    add_number(out, colour, YELLOW, "grad_norm", "%7.4f", m->grad_norm);
    add_memory(out, colour, m);
    add_rate(out, colour, m->tokens_per_second);
    if (isfinite(m->flops_per_second)) {
        double tflops = m->flops_per_second / 1e12;
        add_number(out, colour, MAGENTA, "tflops", tflops < 10 ? "%.3f" : "%.2f", tflops);
    }
    if (isfinite(m->mfu)) add_number(out, colour, CYAN, "mfu", "%.2f%%", 100 * m->mfu);
    if (isfinite(m->data_seconds / m->step_seconds)) {
        add_number(out, colour, DIM, "data", "%.1f%%", 100 * m->data_seconds / m->step_seconds);
    }
    /* Only if there are ranks to wait for. */
    if (m->wait_seconds > 0)
        add_number(out, colour, DIM, "wait", "%.1f%%", 100 * m->wait_seconds / m->step_seconds);
    add_number(out, colour, DIM, "lr", "%.2e", m->lr);
    if (m->z_loss > 0) add_number(out, colour, DIM, "z_loss", "%.2e", m->z_loss);
    if (m->balance_loss > 0) add_number(out, colour, DIM, "balance", "%.2e", m->balance_loss);
    if (isfinite(m->loss_2)) add_number(out, colour, DIM, "loss_2", "%.4f", m->loss_2);
    if (isfinite(m->loss_3)) add_number(out, colour, DIM, "loss_3", "%.4f", m->loss_3);
    if (isfinite(m->loss_4)) add_number(out, colour, DIM, "loss_4", "%.4f", m->loss_4);
    if (isfinite(m->loss_5)) add_number(out, colour, DIM, "loss_5", "%.4f", m->loss_5);
    if (m->expert_imbalance > 0) add_number(out, colour, DIM, "experts", "%.2f", m->expert_imbalance);
    if (m->dead_experts > 0) add_number(out, colour, YELLOW, "dead", "%.0f", (double)m->dead_experts);
    if (isfinite(m->eta)) add_field(out, colour, DIM, "eta", clock_duration(m->eta, value));
    if (m->skipped) text_printf(out, "  %sSKIPPED (not finite)%s", colour ? RED : "", colour ? RESET : "");
    if (m->spike && !m->skipped) text_printf(out, "  %sSPIKE%s", colour ? YELLOW : "", colour ? RESET : "");
}

/* Formatted like the line of a step, so that both read alike; NOT FINITE counts tokens, a single one of which
 * makes the loss NaN. */
static void format_validation(Text *out, const ValidationMetrics *v, bool colour) {
    char value[32];
    snprintf(value, sizeof value, "%2lld", (long long)v->step);
    add_field(out, colour, RED, "validate step", value);
    if (*v->name) add_field(out, colour, DIM, "set", v->name);
    add_number(out, colour, GREEN, "loss", "%8.5f", v->loss);
    add_number(out, colour, YELLOW, "perplexity", "%.3f", v->perplexity);
    if (isfinite(v->bits_per_byte)) add_number(out, colour, CYAN, "bits/byte", "%.4f", v->bits_per_byte);
    add_field(out, colour, DIM, "tokens", text_count(v->tokens, value));
    if (isfinite(v->tokens_per_second)) add_rate(out, colour, v->tokens_per_second);
    if (v->nonfinite)
        text_printf(out, "  %s%lld NOT FINITE%s", colour ? RED : "", (long long)v->nonfinite,
                    colour ? RESET : "");
}

/* The figures that the task has, the most important first. */
static void format_task(Text *out, const TaskMetrics *m, bool colour) {
    const TaskFigures *f = &m->figures;
    const struct {
        const char *name, *format;
        double value;
    } figures[] = {{"acc", "%.4f", f->acc},
                   {"+-", "%.4f", f->acc_stderr},
                   {"acc_norm", "%.4f", f->acc_norm},
                   {"+-", "%.4f", f->acc_norm_stderr},
                   {"perplexity", "%.3f", f->perplexity},
                   {"word_perplexity", "%.3f", f->word_perplexity},
                   {"bits/byte", "%.4f", f->bits_per_byte},
                   {"gold bits/byte", "%.4f", f->gold_bits_per_byte}};
    char value[32];
    snprintf(value, sizeof value, "%2lld", (long long)m->step);
    add_field(out, colour, RED, "evaluate step", value);
    add_field(out, colour, GREEN, "task", m->name);
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++)
        if (isfinite(figures[i].value))
            add_number(out, colour, i % 2 ? DIM : YELLOW, figures[i].name, figures[i].format,
                       figures[i].value);
    add_field(out, colour, DIM, "documents", text_count(f->documents, value));
    if (f->truncated) add_field(out, colour, DIM, "truncated", text_count(f->truncated, value));
    if (f->nonfinite)
        text_printf(out, "  %s%lld NOT FINITE%s", colour ? RED : "", (long long)f->nonfinite,
                    colour ? RESET : "");
}

/* Each character of the bar takes one column but three bytes of UTF-8, so it is counted separately from the
 * figures. */
static void add_bar(Text *out, double fraction, int columns, bool unicode) {
    int full = (int)(fraction * columns);
    for (int i = 0; i < columns; i++)
        text_puts(out, i < full ? (unicode ? "━" : "#") : (unicode ? "─" : "."));
}

/* Figures first: the bar takes the remaining width, and is omitted if it would be too short to read. */
void console_format_status(Text *out, const StepMetrics *m, int width, bool unicode, bool colour) {
    Text figures = {0};
    char number[32];
    text_printf(&figures, " %lld/%lld  loss ", (long long)m->step, (long long)m->total_steps);
    if (isnan(m->loss))
        text_puts(&figures, "nan"); /* never "-nan" */
    else
        text_printf(&figures, "%.4f", m->loss);
    if (isfinite(m->tokens_per_second) && m->tokens_per_second < 9e15) {
        text_printf(&figures, "  %s tok/s", text_count((int64_t)llround(m->tokens_per_second), number));
    }
    if (isfinite(m->eta)) text_printf(&figures, "  eta %s", clock_duration(m->eta, number));
    double fraction = m->total_steps > 0 ? (double)m->step / (double)m->total_steps : 0;
    fraction = fmin(fmax(fraction, 0), 1);
    int width_left = width - 1 - (int)figures.length - 5;
    /* A longer bar would not show more. */
    if (width_left > 40) width_left = 40;
    text_printf(out, "%3d%% ", (int)(100 * fraction));
    if (width_left >= 8) {
        if (colour) text_puts(out, GREEN);
        add_bar(out, fraction, width_left, unicode);
        if (colour) text_puts(out, RESET);
    }
    int left = width - 1 - 5 - (width_left >= 8 ? width_left : 0);
    /* Figures are ASCII, so bytes are columns. They are truncated if the terminal is too narrow even for
     * them. */
    size_t fits = left < 0 ? 0 : (size_t)left;
    text_add(out, figures.data, figures.length < fits ? figures.length : fits);
    text_free(&figures);
}

/* Frees the line. The rank is named if several ranks write to one terminal. */
static void print_line(Text *line, int rank) {
    if (rank < 0)
        log_painted("%s", line->data);
    else
        log_painted("[rank %d] %s", rank, line->data);
    text_free(line);
}

void console_record(MetricsKind kind, const void *record, int rank) {
    Text line = {0};
    bool colour = log_has_colour();
    switch (kind) {
    case METRICS_STEP: console_format_step(&line, record, colour); break;
    case METRICS_VALIDATION:
    case METRICS_SET: format_validation(&line, record, colour); break;
    case METRICS_TASK: format_task(&line, record, colour); break;
    case METRICS_PROBE:
    case METRICS_SOURCE:
    case METRICS_KINDS: return;
    }
    print_line(&line, rank);
}

/* Ten times a second is enough for the eye; more would slow the steps of a tiny model. */
void console_status(const StepMetrics *m, bool at_once) {
    static double drawn = -1; /* only the training thread draws */
    double now = clock_seconds();
    if (!log_is_terminal() || (!at_once && drawn >= 0 && now - drawn < 0.1)) return;
    drawn = now;
    Text line = {0};
    console_format_status(&line, m, log_width(), plot_locale_is_utf8(), log_has_colour());
    log_status("%s", line.data);
    text_free(&line);
}

/* An empty status line means none: the next message takes its place. */
void console_clear(void) { log_status("%s", ""); }
