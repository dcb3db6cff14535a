/* A traced step: the planned timeline above the measured one.
 *
 * The planned one is the simulation of the run's schedule with the mean costs of the traced steps
 * (forecast/timing.h). The difference between the two shows what the pipeline model ignores: varying costs,
 * waiting for the network, the optimizer. */
#include <stdio.h>

#include "observe/chart.h"
#include "observe/report_run.h"

/* A row per rank; more rows would be lower than their text. */
#define MOST_ROWS 32
#define WIDTH 1080

/* A row per traced step; they share one prediction, since it is made from their mean. */
static void write_figures(Text *out, const Timing *t, const Prediction *p) {
    text_puts(out,
              "<div class=\"scroll\"><table><thead><tr><th class=\"n\">Step</th><th class=\"n\">Seconds</th>"
              "<th class=\"n\">predicted</th><th class=\"n\">Bubble</th><th "
              "class=\"n\">predicted</th></tr></thead><tbody>\n");
    for (int i = 0; i < t->count; i++) {
        StepFigures f = timing_figures(t, i);
        text_printf(out,
                    "<tr><td class=\"n\">%lld</td><td class=\"n\">%.4g</td><td class=\"n\">%.4g</td><td "
                    "class=\"n\">%.1f %%</td><td class=\"n\">%.1f %%</td></tr>\n",
                    (long long)t->steps[i].step, f.seconds, p->seconds, 100 * f.bubble, 100 * p->bubble);
    }
    text_puts(out, "</tbody></table></div>\n");
}

/* The first pipeline represents the others, and the last traced step the earlier ones. The prediction owns
 * the planned timeline; the measured one is freed here. */
static void write_picture(Text *out, const Timing *t, const Prediction *p) {
    char title[64];
    Timeline lines[2] = {p->planned[0]};
    int last = t->count - 1;
    timing_measured(t, last, 0, &lines[1]);
    snprintf(title, sizeof title, "step %lld, measured", (long long)t->steps[last].step);
    lines[1].title = title;
    text_puts(out, "<div class=\"steps\" id=\"timeline\">\n");
    draw_svg_in_page(lines, 2, WIDTH, out);
    text_puts(out, "</div>\n");
    timeline_free(&lines[1]);
}

/* The text above the picture explains it: which costs the plan is made from, and what it ignores. */
static void write_traced(Text *out, const Timing *t, const Prediction *p) {
    text_puts(out, "<p class=\"sub\">Planned: the order of the schedule, with the mean costs of these steps "
                   "and nothing else that takes time");
    if (p->latency > 0) text_printf(out, " but %.3g ms for a message", 1e3 * p->latency);
    text_puts(out, ". Bubble: what the idlest rank idles.");
    if (p->pipelines > 1) text_printf(out, " Of %d pipelines that work alike, the first.", p->pipelines);
    text_puts(out, "</p>\n");
    if (t->pipeline <= MOST_ROWS)
        write_picture(out, t, p);
    else
        text_printf(out,
                    "<p>%d ranks are more than a picture here can show: open trace.json in Perfetto.</p>\n",
                    t->pipeline);
    write_figures(out, t, p);
}

void report_write_timeline(Text *out, const ReportRun *run) {
    Error err = {.message = ""};
    Prediction p = {0};
    if (run->timing.count == 0 && !run->no_timing) return;
    text_puts(out, "<h2>Traced steps</h2>\n");
    /* Errors of the trace are shown in the page: the rest of the report does not need it. */
    const char *why = run->no_timing;
    if (!why && timing_predict(&p, &run->timing, &err) != OK) why = err.message;
    if (!why) {
        write_traced(out, &run->timing, &p);
    } else {
        text_puts(out, "<p class=\"sub\">There is a trace, but ");
        html_puts(out, why);
        text_puts(out, "</p>\n");
    }
    prediction_free(&p);
}
