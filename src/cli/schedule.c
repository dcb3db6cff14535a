/* weft schedule: pipeline schedules drawn, timed, compared, and written as text. No model, no ranks.
 *
 *     NAME, sizes --made--+             +--simulated with the costs--> drawing, SVG or JSON
 *                         +--> Schedule-+
 *     FILE.csv -----read--+             +--transfers, parameters added--> CSV, which reads back
 *
 * A schedule is made or read (schedule/schedule.h), then simulated with the given costs
 * (schedule/simulate.h), then shown. Times are in units of the costs: if a stage's forward costs 1, the
 * drawing is in forwards. Without a name every schedule takes the upper path, and is a row of a table. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "cli/terminal.h"

/* Limits of a command: a few million cells take seconds and some hundred megabytes. ACTIVE_STAGES is the
 * number of stages of a rank whose parameters are gathered at a time in --csv=lowered, as in a run. */
enum {
    MOST_RANKS = 4096,
    MOST_MICROBATCHES = 1 << 16,
    MOST_STAGES_PER_RANK = 64,
    MOST_SEGMENTS = 64,
    MOST_CELLS = 1 << 22,
    ACTIVE_STAGES = 3
};

/* Sums of that many cells at this cost are still exact enough to compare. */
#define MOST_COST 1e12

static const Flag flags[] = {
    {"--pp", 'p', "N", "pipeline ranks"},
    {"--microbatches", 'm', "N", "microbatches of a step"},
    {"--stages-per-rank", 'v', "N", "default 1, or 2 for schedules made for several"},
    {"--segments", 0, "K",
     "segments of a microbatch (1f1b and gpipe), of equal time; --cost is still of the whole; default 1"},
    {"--cost", 0, "F,I,W[,LATENCY]",
     "time of forward, dgrad and wgrad of one stage, and of a transfer; default 1,1,1,0"},
    {"--activations", 0, "X",
     "limit of zbv: the largest share of the activations of 1f1b that a rank keeps, such as 0.75"},
    {"--overlap", 0, NULL,
     "a forward and a backward that are scheduled as one take as long as the longer of them"},
    {"--csv", 0, "[=FORM]",
     "the schedule as CSV: the compute order; with =p2p transfers too; with =lowered everything"},
    {"--json", 0, NULL, "the figures as one JSON object"},
    {"--svg", 0, "FILE", "the drawing as SVG; FILE may be - for standard output"},
    {"--width", 'w', "N", "columns of the drawing, pixels with --svg; default: the terminal's, or 128; 960"},
    {NULL, 0, NULL, NULL}};

/* The flags, checked; sizes that were not given stay 0 until a name or a file determines them. */
typedef struct Request {
    int64_t ranks, microbatches, stages_per_rank; /* 0: not given */
    int64_t segments;
    int64_t width;
    double activations; /* 0: not given */
    SimulateCosts costs;
} Request;

/* ---- the command line ---- */

/* Three costs and an optional latency, and nothing after them. Not all zero: the schedule would have no
 * length, and no bubble fraction. */
static ErrorCode parse_costs(const char *text, SimulateCosts *costs, Error *err) {
    double values[4] = {0, 0, 0, 0};
    int count = 0;
    const char *at = text;
    bool good = true;
    while (good && count < 4) {
        char *end = NULL;
        values[count] = strtod(at, &end);
        good = end != at && isfinite(values[count]) && values[count] >= 0 && values[count] <= MOST_COST;
        count++;
        at = end;
        if (*at != ',') break;
        at++;
    }
    if (!good || count < 3 || *at || values[0] + values[1] + values[2] <= 0) {
        char shown[80];
        error_escape(shown, sizeof shown, text, strlen(text));
        return error_set(err, ERR_USAGE,
                         "schedule: --cost is \"%s\"; expected three or four numbers, F,I,W[,LATENCY], from "
                         "0 to %g and not all 0",
                         shown, MOST_COST);
    }
    costs->uniform = (StageCost){values[0], values[1], values[2]};
    costs->latency = values[3];
    return OK;
}

/* Checks the bounds of each size; check_cells checks their product. */
static ErrorCode read_request(const Arguments *args, Request *q, Error *err) {
    *q = (Request){.segments = 1, .costs = {.uniform = {1, 1, 1}}};
    const char *costs = arguments_flag(args, "--cost");
    TRY(arguments_int(args, "--pp", 1, MOST_RANKS, &q->ranks, err));
    TRY(arguments_int(args, "--microbatches", 1, MOST_MICROBATCHES, &q->microbatches, err));
    TRY(arguments_int(args, "--stages-per-rank", 1, MOST_STAGES_PER_RANK, &q->stages_per_rank, err));
    TRY(arguments_int(args, "--segments", 1, MOST_SEGMENTS, &q->segments, err));
    TRY(arguments_double(args, "--activations", 0, 1, &q->activations, err));
    TRY(arguments_int(args, "--width", 40, 20000, &q->width, err));
    if (costs) TRY(parse_costs(costs, &q->costs, err));
    q->costs.overlap_is_max = arguments_has(args, "--overlap");
    if (arguments_has(args, "--csv") + arguments_has(args, "--json") > 1)
        return error_set(err, ERR_USAGE, "schedule: --csv and --json are two outputs; give one");
    return OK;
}

/* Lists the nearest name and all. At most three edits: a far-fetched suggestion would mislead. */
static ErrorCode unknown_schedule(const char *operand, Error *err) {
    char shown[80];
    Text all = {0};
    int near = -1, least = 4;
    for (int i = 0; i < PIPE_NAMES; i++) {
        const char *name = schedule_name((ScheduleName)i);
        int distance = text_distance(operand, name);
        if (distance < least) {
            least = distance;
            near = i;
        }
        text_printf(&all, "%s%s", i ? ", " : "", name);
    }
    error_escape(shown, sizeof shown, operand, strlen(operand));
    error_set(err, ERR_USAGE,
              "schedule: no schedule is called \"%s\"%s%s%s; there are %s, and files that end in .csv", shown,
              near >= 0 ? "; did you mean \"" : "", near >= 0 ? schedule_name((ScheduleName)near) : "",
              near >= 0 ? "\"?" : "", all.data);
    text_free(&all);
    return ERR_USAGE;
}

/* Not required by the table of flags, since a file has its own sizes. */
static ErrorCode need_sizes(const Request *q, Error *err) {
    if (q->ranks && q->microbatches) return OK;
    return error_set(err, ERR_USAGE, "schedule: %s is needed; for example --pp 4 --microbatches 8",
                     q->ranks ? "--microbatches" : "--pp");
}

/* Checked before anything is made of it. The product fits: 2^12 * 2^16 * 2^6 * 2^6 is 2^40. */
static ErrorCode check_cells(const Request *q, int stages_per_rank, Error *err) {
    if (q->ranks * q->microbatches * q->segments * stages_per_rank <= MOST_CELLS) return OK;
    char segments[32] = "";
    if (q->segments > 1) snprintf(segments, sizeof segments, " in %d segments", (int)q->segments);
    return error_set(err, ERR_USAGE,
                     "schedule: %lld ranks x %lld microbatches%s x %d stage%s a rank are more than the %d "
                     "cells that this is made for",
                     (long long)q->ranks, (long long)q->microbatches, segments, stages_per_rank,
                     stages_per_rank == 1 ? "" : "s", MOST_CELLS);
}

static OrderTerms order_terms(const Request *q, double activations) {
    StageCost u = q->costs.uniform;
    return (OrderTerms){activations, {u.forward, u.input, u.weight}, (int)q->segments};
}

/* Of a stage that has one of `parts` equal parts of what --cost is of. */
static SimulateCosts costs_of(const Request *q, int parts) {
    SimulateCosts costs = q->costs;
    costs.uniform = cost_scaled(costs.uniform, 1.0 / parts);
    return costs;
}

/* Made by name, or read from a file, which has its own sizes: flags for them are refused, since a file cannot
 * follow them. On failure there is nothing to free. */
static ErrorCode open_schedule(const char *operand, const Request *q, Schedule *s, Error *err) {
    ScheduleName name;
    if (!schedule_names_file(operand)) {
        if (!schedule_find(operand, &name)) return unknown_schedule(operand, err);
        TRY(need_sizes(q, err));
        /* By default the number of stages that the schedule is made for; schedule_make refuses impossible
         * ones. */
        int v = q->stages_per_rank ? (int)q->stages_per_rank : schedule_default_stages_per_rank(name);
        TRY(check_cells(q, v, err));
        OrderTerms terms = order_terms(q, q->activations);
        return schedule_make_on(s, name, (int)q->ranks, (int)q->microbatches, v, &terms, err);
    }
    if (q->ranks || q->microbatches || q->stages_per_rank || q->activations > 0 || q->segments > 1)
        return error_set(
            err, ERR_USAGE,
            "schedule: --pp, --microbatches, --stages-per-rank, --segments and --activations come "
            "from the file %s",
            operand);
    return schedule_read_csv(s, operand, err);
}

/* ---- outputs ---- */

/* The forms build on each other: transfers are added to the compute order, parameters to both. The passes run
 * in their fixed order (schedule/schedule.h), parameters first. They change the schedule, so nothing else may
 * be made of it afterwards. */
static ErrorCode write_csv(Schedule *s, const char *form, Text *out, Error *err) {
    bool lowered = strcmp(form, "lowered") == 0, p2p = strcmp(form, "p2p") == 0;
    if (*form && !lowered && !p2p && strcmp(form, "compute") != 0) {
        char shown[80];
        error_escape(shown, sizeof shown, form, strlen(form));
        return error_set(err, ERR_USAGE,
                         "schedule: --csv=%s is no form; expected --csv, --csv=p2p or --csv=lowered", shown);
    }
    if (lowered) schedule_add_parameters(s, ACTIVE_STAGES);
    if (lowered || p2p) TRY(schedule_add_transfers(s, err));
    schedule_write_csv(s, out);
    return OK;
}

/* Times in the units of the costs; peaks as numbers of microbatches' activations, since bytes depend on the
 * model. */
static void json_rank(JsonWriter *w, const Schedule *s, int rank, const RankTimes *t) {
    json_begin_object(w);
    json_put_int(w, "rank", rank);
    json_key(w, "stages");
    json_begin_array(w);
    for (int i = 0; i < s->stages; i++)
        if (s->rank_of_stage[i] == rank) json_int(w, i);
    json_end_array(w);
    const char *const names[] = {"start", "end", "busy", "idle"};
    const double values[] = {t->start, t->end, t->busy, t->idle};
    for (int i = 0; i < 4; i++) { json_put_double(w, names[i], values[i]); }
    json_put_int(w, "peak_to_input", t->peak_input);
    json_put_int(w, "peak_to_weight", t->peak_weight);
    json_end_object(w);
}

/* The same figures as below the drawing, for scripts and notebooks. "bubble" is that of the most idle rank
 * over the whole step; "bubble_without_barrier" counts only between a rank's own first and last cell, as the
 * zero-bubble papers do (Qi and others, "Zero bubble pipeline parallelism", 2023): a run whose steps overlap
 * at the ends has no larger bubble. */
static void write_json(const Schedule *s, const Simulation *timing, Text *out) {
    JsonWriter w;
    json_start(&w, out, 2);
    json_begin_object(&w);
    json_put_string(&w, "schedule", s->name);
    const char *const counts[] = {"ranks", "microbatches", "stages", "segments"};
    const int numbers[] = {s->ranks, s->microbatches / s->segments, s->stages, s->segments};
    for (int i = 0; i < 4; i++) { json_put_int(&w, counts[i], numbers[i]); }
    const char *const names[] = {"makespan", "bubble", "bubble_without_barrier"};
    /* In the order of the names above. */
    const double values[] = {timing->makespan, timing->bubble,
                             timing->makespan > 0 ? timing->span / timing->makespan : 0};
    for (int i = 0; i < 3; i++) { json_put_double(&w, names[i], values[i]); }
    json_key(&w, "per_rank");
    json_begin_array(&w);
    for (int r = 0; r < s->ranks; r++) json_rank(&w, s, r, &timing->rank[r]);
    json_end_array(&w);
    json_end_object(&w);
    text_puts(out, "\n");
}

/* Names the costs unless they are the default, so that drawings with different costs are not confused. */
static void title_of(const Schedule *s, const SimulateCosts *c, char out[256]) {
    int microbatches = s->microbatches / s->segments;
    char segments[32] = "";
    if (s->segments > 1) snprintf(segments, sizeof segments, " in %d segments", s->segments);
    int used = snprintf(out, 256, "%s: %d rank%s, %d microbatch%s%s, %d stage%s", s->name, s->ranks,
                        s->ranks == 1 ? "" : "s", microbatches, microbatches == 1 ? "" : "es", segments,
                        s->stages, s->stages == 1 ? "" : "s");
    StageCost u = c->uniform;
    bool plain = u.forward == 1 && u.input == 1 && u.weight == 1 && c->latency == 0;
    if (plain || used < 0 || used >= 256) return;
    snprintf(out + used, (size_t)(256 - used), "; F %g, I %g, W %g, latency %g", u.forward, u.input, u.weight,
             c->latency);
}

/* One timeline, to scale; in the terminal a column is an interval of time, so that waiting shows as a gap.
 * 960 pixels for SVG: the width of a text column on most pages. The title is on the stack, and the timeline
 * only points to it. */
static void draw(const Schedule *s, const Simulation *timing, const Request *q, bool svg, Text *out) {
    Timeline t;
    char title[256];
    title_of(s, &q->costs, title);
    timeline_from_simulation(&t, title, s, timing);
    if (svg) {
        draw_svg(&t, 1, q->width ? (int)q->width : 960, out);
    } else {
        draw_terminal(&t, terminal_style((int)q->width), out);
    }
    timeline_free(&t);
}

/* To a file and to the terminal, or one of them: with --svg no other drawing is made, but JSON figures may be
 * printed as well. */
static ErrorCode show_timed(const Arguments *args, const Schedule *s, const Request *q, Error *err) {
    Simulation timing;
    Text out = {0};
    const char *svg = arguments_flag(args, "--svg");
    SimulateCosts costs = costs_of(q, s->segments);
    TRY(simulate(&timing, s, &costs, err));
    ErrorCode code = OK;
    if (svg) {
        draw(s, &timing, q, true, &out);
        code = terminal_write_file(svg, &out, err);
        text_clear(&out);
    }
    if (arguments_has(args, "--json"))
        write_json(s, &timing, &out);
    else if (!svg)
        draw(s, &timing, q, false, &out);
    if (code == OK && out.length) code = terminal_print(&out, err);
    text_free(&out);
    simulation_free(&timing);
    return code;
}

/* The CSV comes last, since it changes the schedule that the drawing is made of. */
static ErrorCode show(const Arguments *args, Schedule *s, const Request *q, Error *err) {
    if (!arguments_has(args, "--csv") || arguments_has(args, "--svg")) TRY(show_timed(args, s, q, err));
    if (!arguments_has(args, "--csv")) return OK;
    Text out = {0};
    ErrorCode code = write_csv(s, arguments_flag(args, "--csv"), &out, err);
    if (code == OK) code = terminal_print(&out, err);
    text_free(&out);
    return code;
}

/* ---- all schedules compared ---- */

/* Messages of the busiest rank. Only sends count: every message is one rank's send and another's receive.
 * Adds transfers to the schedule, which its caller no longer needs. 0 if transfers cannot be added, which is
 * impossible for a schedule that was just simulated. */
static int most_messages(Schedule *s) {
    int most = 0;
    Error ignored;
    if (schedule_add_transfers(s, &ignored) != OK) return 0;
    for (int r = 0; r < s->ranks; r++) {
        int sends = 0;
        for (int i = 0; i < s->orders[r].count; i++)
            sends += s->orders[r].cells[i].kind == CELL_SEND_F || s->orders[r].cells[i].kind == CELL_SEND_B;
        if (sends > most) most = sends;
    }
    return most;
}

/* Peaks by stage are scaled to fractions of the model, so that one stage of four counts a quarter. Each is
 * the maximum over ranks, which determines the memory. Messages are counted last, since that changes the
 * schedule. */
static void compare_row(Schedule *s, const Simulation *t, int v, Text *out) {
    int peak_input = 0, peak_weight = 0;
    for (int r = 0; r < t->ranks; r++) {
        if (t->rank[r].peak_input > peak_input) peak_input = t->rank[r].peak_input;
        if (t->rank[r].peak_weight > peak_weight) peak_weight = t->rank[r].peak_weight;
    }
    text_printf(out, "%-24s %6d %9.6g %7.1f %% %10.1f %% %10.4g %10.4g %9d\n", s->name, v, t->makespan,
                100 * t->bubble, t->makespan > 0 ? 100 * t->span / t->makespan : 0,
                (double)peak_input / (v * s->segments), (double)peak_weight / (v * s->segments),
                most_messages(s));
}

/* A stage of a rank with v stages costs 1 / v, so that rows compare: each is the same model on the same
 * ranks. --stages-per-rank and --activations apply to the schedules that leave them open; V-shaped ones
 * need exactly two stages, others one. A schedule that these sizes do not allow shows the reason in its
 * row, and the others follow. */
static void compare_one(ScheduleName name, const Request *q, Text *out) {
    Schedule s;
    Simulation t;
    Error why;
    int usual = schedule_default_stages_per_rank(name);
    int v = usual > 1 && !schedule_is_v(name) && q->stages_per_rank ? (int)q->stages_per_rank : usual;
    SimulateCosts costs = costs_of(q, v * (int)q->segments);
    OrderTerms terms = order_terms(q, schedule_takes_limit(name) ? q->activations : 0);
    ErrorCode code = schedule_make_on(&s, name, (int)q->ranks, (int)q->microbatches, v, &terms, &why);
    if (code == OK) {
        code = simulate(&t, &s, &costs, &why);
        if (code == OK) {
            compare_row(&s, &t, v, out);
            simulation_free(&t);
        }
        schedule_free(&s);
    }
    if (code != OK) text_printf(out, "%-24s %6d %s\n", schedule_name(name), v, why.message);
}

/* Assumes at least two stages per rank, which is the default of some schedules. Flags for a single schedule
 * are refused, not ignored. */
static ErrorCode compare(const Arguments *args, const Request *q, Error *err) {
    static const char *const one_only[] = {"--csv", "--json", "--svg", "--width"};
    TRY(need_sizes(q, err));
    TRY(check_cells(q, q->stages_per_rank ? (int)q->stages_per_rank : 2, err));
    for (int i = 0; i < 4; i++)
        if (arguments_has(args, one_only[i]))
            return error_set(err, ERR_USAGE, "schedule: %s needs one schedule: weft schedule NAME %s",
                             one_only[i], one_only[i]);
    Text out = {0};
    StageCost u = q->costs.uniform;
    char segments[32] = "";
    if (q->segments > 1) snprintf(segments, sizeof segments, " in %d segments", (int)q->segments);
    text_printf(
        &out,
        "%lld ranks, %lld microbatches%s; a rank's share of the model costs F %g, I %g, W %g, a transfer "
        "%g\n\n"
        "schedule                 stages  makespan    bubble  no barrier  peak to I  peak to W  messages\n",
        (long long)q->ranks, (long long)q->microbatches, segments, u.forward, u.input, u.weight,
        q->costs.latency);
    for (int i = 0; i < PIPE_NAMES; i++) compare_one((ScheduleName)i, q, &out);
    text_puts(&out, "\n"
                    "stages: of a rank. peak: activations of a rank's share of the model and one microbatch, "
                    "alive at most on any rank,\n"
                    "kept to the end of I (or B), or of W (or B). messages: those the busiest rank sends in "
                    "a step\n");
    ErrorCode code = terminal_print(&out, err);
    text_free(&out);
    return code;
}

/* Without a name compares all schedules; with one shows it. */
static ErrorCode run_schedule(const Arguments *args, Error *err) {
    Request q;
    Schedule s;
    TRY(read_request(args, &q, err));
    if (args->operand_count == 0) return compare(args, &q, err);
    TRY(open_schedule(args->operands[0], &q, &s, err));
    ErrorCode code = show(args, &s, &q, err);
    schedule_free(&s);
    return code;
}

const Verb verb_schedule = {
    .name = "schedule",
    .summary = "draw, time and compare pipeline schedules",
    .synopsis = "[NAME|FILE.csv] --pp N --microbatches N",
    .details = "Without a name all schedules are compared: time of a step, bubble (the share of it that the "
               "idlest rank idles), the bubble that a run without a barrier between steps would see, memory, "
               "messages. With a name, one is drawn, to scale. A file holds a schedule as CSV, a line a rank "
               "and a cell an action: 0F0 is the forward of stage 0 on microbatch 0, B a backward, I and W "
               "its halves. What --csv prints can be edited and read back.\n\n"
               "Names: gpipe, 1f1b, looped_bfs, interleaved_1f1b, zb_h1, zb_h2, interleaved_zero_bubble, "
               "v_min, v_half, zbv, dualpipev.\n\n"
               "Examples:\n"
               "  weft schedule --pp 4 --microbatches 8\n"
               "  weft schedule 1f1b --pp 4 --microbatches 8 --cost 1,1,0.8,0.1\n"
               "  weft schedule 1f1b --pp 4 --microbatches 4 --segments 4\n"
               "  weft schedule interleaved_1f1b --pp 4 --microbatches 8 --svg interleaved.svg\n"
               "  weft schedule zbv --pp 4 --microbatches 8 --csv >mine.csv\n"
               "  weft schedule mine.csv",
    .flags = flags,
    .min_operands = 0,
    .max_operands = 1,
    .run = run_schedule,
};
