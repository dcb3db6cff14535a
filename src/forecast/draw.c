/* Timelines, their figures, and their drawing in a terminal.
 *
 *     simulation, trace, program --> Timeline: spans of (rank, kind, stage, microbatch, start, end)
 *                                       |             |               |
 *                              timeline_figures  draw_terminal   draw_svg (draw_svg.c)
 *
 * A timeline does not know its origin, so the same code draws and measures planned and measured steps.
 *
 * In a terminal a rank is a row, and a column belongs to the span that covers its middle. All rows share one
 * scale. Where there is space, the shortest computation has a whole number of columns, so that equal times
 * look equal. Where there is not, boxes would be lost between columns; the drawing then reports it, or is
 * left out. */
#include "forecast/draw.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- timelines ---- */

/* Titles and units belong to the caller and must outlive the timeline. */
void timeline_start(Timeline *t, const char *title, const char *unit, int ranks, int stages,
                    const int *rank_of_stage) {
    *t = (Timeline){.title = title, .unit = unit, .ranks = ranks, .stages = stages};
    t->rank_of_stage = mem_alloc_array((size_t)stages, sizeof *t->rank_of_stage);
    memcpy(t->rank_of_stage, rank_of_stage, (size_t)stages * sizeof *t->rank_of_stage);
}

void timeline_add(Timeline *t, Span span) {
    CHECK(span.rank >= 0 && span.rank < t->ranks && span.stage >= -1 && span.stage < t->stages);
    if (t->count == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 256;
        t->spans = mem_grow(t->spans, (size_t)t->capacity * sizeof *t->spans);
    }
    t->spans[t->count++] = span;
}

/* SPAN_KINDS for cells without a span. */
static SpanKind span_of_cell(CellKind kind) {
    switch (kind) {
    case CELL_F: return SPAN_F;
    case CELL_I: return SPAN_I;
    case CELL_W: return SPAN_W;
    case CELL_B: return SPAN_B;
    case CELL_SEND_F:
    case CELL_SEND_B: return SPAN_SEND;
    case CELL_RECV_F:
    case CELL_RECV_B: return SPAN_RECV;
    case CELL_UNSHARD: return SPAN_GATHER;
    case CELL_REDUCE_GRAD: return SPAN_REDUCE;
    case CELL_RESHARD:
    case CELL_KINDS:
    case CELL_IDLE: break;
    }
    return SPAN_KINDS;
}

/* Cells that take no time (transfers that no rank waits for, parameter actions) leave no span. */
void timeline_from_simulation(Timeline *t, const char *title, const Schedule *s, const Simulation *timing) {
    timeline_start(t, title, "", s->ranks, s->stages, s->rank_of_stage);
    for (int r = 0; r < s->ranks; r++) {
        for (int i = 0; i < s->orders[r].count; i++) {
            const Cell *cell = &s->orders[r].cells[i];
            CellTime time = timing->rank[r].cells[i];
            SpanKind kind = span_of_cell(cell->kind);
            if (kind == SPAN_KINDS || (kind >= SPAN_COMPUTES && !(time.end > time.start))) continue;
            timeline_add(t, (Span){r, kind, cell->stage, cell->microbatch, time.start, time.end});
        }
    }
}

void timeline_free(Timeline *t) {
    free(t->spans);
    free(t->rank_of_stage);
    *t = (Timeline){0};
}

/* The index decides the shade of a box or its lower case. */
int timeline_chunk(const Timeline *t, int stage) {
    int chunk = 0;
    for (int s = 0; s < stage; s++) chunk += t->rank_of_stage[s] == t->rank_of_stage[stage];
    return chunk;
}

/* ---- figures ---- */

/* Ties are broken by contents, never by position, since the sort is not stable. */
static int by_rank_and_time(const void *a, const void *b) {
    const Span *x = a, *y = b;
    if (x->rank != y->rank) return x->rank < y->rank ? -1 : 1;
    if (x->start != y->start) return x->start < y->start ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return (x->kind > y->kind) - (x->kind < y->kind); /* F before B: an overlapping pair keeps both alive */
}

/* Adds the next computing span of a rank. Time in which spans overlap counts once. `live` counts activations:
 * until I, and until W. */
static void account(RankTimes *r, const Span *span, int live[2]) {
    bool first = r->busy == 0 && r->end == 0;
    if (first) r->start = span->start;
    double from = !first && r->end > span->start ? r->end : span->start;
    if (span->end > from) r->busy += span->end - from;
    if (span->end > r->end) r->end = span->end;
    for (int i = 0; i < 2; i++) live[i] += span->kind == SPAN_F;
    if (live[0] > r->peak_input) r->peak_input = live[0];
    if (live[1] > r->peak_weight) r->peak_weight = live[1];
    live[0] -= span->kind == SPAN_I || span->kind == SPAN_B;
    live[1] -= span->kind == SPAN_W || span->kind == SPAN_B;
}

/* Counts as the simulator does (schedule/simulate.h), for any timeline. */
void timeline_figures(const Timeline *t, Simulation *out) {
    *out = (Simulation){.ranks = t->ranks, .rank = mem_alloc_array((size_t)t->ranks, sizeof *out->rank)};
    Span *sorted = mem_alloc_array((size_t)t->count, sizeof *sorted);
    if (t->count) memcpy(sorted, t->spans, (size_t)t->count * sizeof *sorted);
    qsort(sorted, (size_t)t->count, sizeof *sorted, by_rank_and_time);
    int live[2] = {0, 0};
    for (int i = 0; i < t->count; i++) {
        const Span *span = &sorted[i];
        if (i == 0 || sorted[i - 1].rank != span->rank) live[0] = live[1] = 0;
        if (span->kind < SPAN_COMPUTES) account(&out->rank[span->rank], span, live);
        if (span->end > out->makespan) out->makespan = span->end;
    }
    for (int r = 0; r < t->ranks; r++) {
        RankTimes *rank = &out->rank[r];
        rank->idle = out->makespan - rank->busy;
        double share = out->makespan > 0 ? rank->idle / out->makespan : 0,
               inside = rank->end - rank->start - rank->busy;
        if (share > out->bubble) out->bubble = share;
        if (inside > out->span) out->span = inside;
    }
    free(sorted);
}

/* ---- terminal ---- */

enum { MOST_COLUMNS = 20000 };

/* Columns of one rank: the span that covers the middle of each, or NULL. */
typedef struct Raster {
    const Timeline *t;
    TerminalStyle style;
    int columns, label;
    double scale; /* columns per unit of time */
    int chunks;   /* most stages on one rank */
    bool numbers; /* a box with a number has been drawn */
    const Span **at;
} Raster;

/* In the order of SpanKind: capitals compute, lower case transfers. */
static const char span_letter[SPAN_KINDS + 1] = "FBIWUgrsv";

/* 256-colour codes closest to Okabe and Ito's; the second one is for the later stages of a rank. */
static const unsigned char span_code[SPAN_KINDS][2] = {
    [SPAN_F] = {25, 74},        [SPAN_B] = {166, 215},      [SPAN_I] = {29, 79},
    [SPAN_W] = {178, 228},      [SPAN_UPDATE] = {244, 244}, [SPAN_GATHER] = {175, 175},
    [SPAN_REDUCE] = {175, 175}, [SPAN_SEND] = {250, 250},   [SPAN_RECV] = {250, 250}};

/* The codes above on which white is easier to read. */
static bool is_dark(int code) { return code == 25 || code == 29 || code == 166; }

static int code_of(const Raster *r, const Span *s) {
    return span_code[s->kind][timeline_chunk(r->t, s->stage) > 0];
}

/* The first column whose middle is not before `time`. A little slack is allowed, since times are sums. */
static int column_at(const Raster *r, double time) { return (int)ceil(time * r->scale - 0.5 - 1e-6); }

/* A forward and a backward that run as one have the same times and are adjacent in the list. Returns 1 for
 * the first, -1 for the second, 0 for others; the two are drawn side by side. */
static int pair_of(const Timeline *t, int index) {
    for (int step = -1; step <= 1; step += 2) {
        int near = index + step;
        if (near < 0 || near >= t->count) continue;
        const Span *a = &t->spans[index], *b = &t->spans[near];
        if (a->rank == b->rank && a->start == b->start && a->end == b->end && a->end > a->start &&
            b->kind < SPAN_COMPUTES)
            return step;
    }
    return 0;
}

/* The shortest computation; INFINITY when there is none. Each of a pair that runs as one has half of its
 * time. */
static double shortest_box(const Timeline *t) {
    double shortest = INFINITY;
    for (int i = 0; i < t->count; i++) {
        const Span *s = &t->spans[i];
        double length = (s->end - s->start) / (pair_of(t, i) ? 2 : 1);
        if (s->kind < SPAN_COMPUTES && length > 0) shortest = fmin(shortest, length);
    }
    return shortest;
}

/* Columns per unit of time: as wide as possible, with a whole number of columns for the shortest computation
 * if that fits. */
static double scale_of(const Timeline *t, double makespan, int columns) {
    double shortest = shortest_box(t), scale = makespan > 0 ? columns / makespan : 1;
    double whole = floor(shortest * scale + 1e-9);
    return isfinite(shortest) && whole >= 1 ? whole / shortest : scale;
}

/* Later spans are drawn over earlier ones, and computation over transfers, so that it is never hidden. */
static void raster_rank(Raster *r, int rank) {
    for (int c = 0; c < r->columns; c++) r->at[c] = NULL;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < r->t->count; i++) {
            const Span *s = &r->t->spans[i];
            if (s->rank != rank || (s->kind < SPAN_COMPUTES) != (pass == 1)) continue;
            int from = column_at(r, s->start), to = column_at(r, s->end);
            if (pass == 1 && pair_of(r->t, i) < 0) from = (from + to) / 2;
            if (pass == 1 && pair_of(r->t, i) > 0) to = (from + to) / 2;
            for (int c = from < 0 ? 0 : from; c < to && c < r->columns; c++) r->at[c] = s;
        }
    }
}

/* The text of a box of `width` columns: as much of "F12" or "12" as fits without being wrong. Where ranks
 * have more stages than upper and lower case distinguish, a letter names the stage: "fc12". */
static void box_text(Raster *r, const Span *s, int width, char *out, size_t size) {
    char number[16] = "", stage[2] = "", letter[2] = {span_letter[s->kind], 0};
    int chunk = timeline_chunk(r->t, s->stage);
    bool plain = !r->style.colour;
    if (chunk > 0 && *letter >= 'A' && *letter <= 'Z') *letter = (char)(*letter + 32);
    if (!plain && s->kind < SPAN_UPDATE) *letter = 0;
    if (plain && r->chunks > 2 && s->stage >= 0 && chunk < 26 && width > 1) *stage = (char)('a' + chunk);
    if (s->microbatch >= 0) snprintf(number, sizeof number, "%d", s->microbatch);
    if ((int)(strlen(number) + strlen(letter) + strlen(stage)) > width) *number = 0;
    r->numbers |= *number != 0;
    snprintf(out, size, "%s%s%s", letter, stage, number);
}

/* Lines fill a box to its width, so that it is visible without colours. */
static void draw_box(Raster *r, const Span *s, int width, Text *out) {
    char text[24];
    box_text(r, s, width, text, sizeof text);
    if (r->style.colour) {
        int code = code_of(r, s);
        text_printf(out, "\x1b[48;5;%d;38;5;%dm%-*s", code, is_dark(code) ? 231 : 16, width, text);
        return;
    }
    text_puts(out, text);
    for (int c = (int)strlen(text); c < width; c++) text_puts(out, r->style.utf8 ? "─" : "-");
}

static void draw_idle(const Raster *r, int width, Text *out) {
    if (r->style.colour) text_puts(out, "\x1b[0m");
    for (int c = 0; c < width; c++) text_puts(out, r->style.colour ? " " : r->style.utf8 ? "·" : ".");
}

/* Adjacent columns of one span are one box. */
static void draw_row(Raster *r, int rank, Text *out) {
    raster_rank(r, rank);
    text_printf(out, "rank %-*d ", r->label - 6, rank);
    for (int c = 0; c < r->columns;) {
        int end = c + 1;
        while (end < r->columns && r->at[end] == r->at[c]) end++;
        if (r->at[c])
            draw_box(r, r->at[c], end - c, out);
        else
            draw_idle(r, end - c, out);
        c = end;
    }
    text_puts(out, r->style.colour ? "\x1b[0m\n" : "\n");
}

/* 0 is at the left edge, the makespan at the right edge of the last column. */
static void draw_axis(const Raster *r, double makespan, const char *unit, Text *out) {
    char end[48];
    int length = snprintf(end, sizeof end, "%.6g%s%s", makespan, *unit ? " " : "", unit);
    text_printf(out, "%*s0%*s\n", r->label, "", r->columns - 1 > length ? r->columns - 1 : length + 1, end);
}

static const char *const span_words[SPAN_KINDS] = {
    [SPAN_F] = "forward",           [SPAN_B] = "backward",       [SPAN_I] = "backward: input",
    [SPAN_W] = "backward: weights", [SPAN_UPDATE] = "optimizer", [SPAN_GATHER] = "gather",
    [SPAN_REDUCE] = "reduce",       [SPAN_SEND] = "send",        [SPAN_RECV] = "receive"};

/* Explains numbers, letters and lightness, as far as they occur. */
static void draw_notation(const Raster *r, Text *out) {
    const char *later =
        r->chunks < 2     ? ""
        : r->style.colour ? "the later stages of a rank are lighter"
        : r->chunks == 2  ? "the later stages of a rank in small letters"
                          : "the later stages of a rank in small letters; a, b, c: its first, second, third";
    if (!r->numbers && !*later) return;
    text_printf(out, "%*s%s%s%s\n", r->label, "", r->numbers ? "numbers are microbatches" : "",
                r->numbers && *later ? "; " : "", later);
}

/* Terminal width, with the label, at which every box has a column; 0: more than any terminal has. */
static int width_for_all(const Timeline *t, double makespan, int label) {
    double columns = ceil(makespan / shortest_box(t) - 1e-6) + label;
    return columns <= MOST_COLUMNS ? (int)columns : 0;
}

/* Where boxes are narrower than a column, only some are visible, and their order may look wrong: reports
 * this. */
static void draw_notice(const Raster *r, double makespan, Text *out) {
    if (!(shortest_box(r->t) * r->scale < 1 - 1e-6)) return;
    int width = width_for_all(r->t, makespan, r->label);
    text_printf(out, "%*scells are narrower than a column: not all are shown", r->label, "");
    if (width > 0) text_printf(out, "; %d columns show all: --width %d", width - r->label, width);
    text_puts(out, "\n");
}

/* Only kinds that occur. */
static void draw_legend(const Raster *r, Text *out) {
    bool used[SPAN_KINDS] = {false};
    for (int i = 0; i < r->t->count; i++) used[r->t->spans[i].kind] = true;
    text_printf(out, "%*s", r->label, "");
    for (int k = 0; k < SPAN_KINDS; k++) {
        if (!used[k]) continue;
        if (r->style.colour)
            text_printf(out, "\x1b[48;5;%d;38;5;%dm %c \x1b[0m %s  ", span_code[k][0],
                        is_dark(span_code[k][0]) ? 231 : 16, span_letter[k], span_words[k]);
        else
            text_printf(out, "%c %s  ", span_letter[k], span_words[k]);
    }
    if (!r->style.colour) text_printf(out, "%s idle", r->style.utf8 ? "·" : ".");
    text_puts(out, "\n");
    draw_notation(r, out);
}

static void draw_stages(const Timeline *t, int rank, Text *out) {
    const char *comma = "";
    for (int s = 0; s < t->stages; s++) {
        if (t->rank_of_stage[s] != rank) continue;
        text_printf(out, "%s%d", comma, s);
        comma = ", ";
    }
}

/* Whether a rank is shown: `rows` / 2 from each end are. Prints a line for those left out when it reaches the
 * first of them. */
static bool is_shown(const Timeline *t, int rank, int rows, Text *out) {
    int head = (rows + 1) / 2, tail = t->ranks - rows / 2;
    if (rows <= 0 || t->ranks <= rows || rank < head || rank >= tail) return true;
    if (rank == head) text_printf(out, "ranks %d to %d are left out\n", head, tail - 1);
    return false;
}

/* Peaks count activations of (stage, microbatch), by which schedules are compared; with a plan there are
 * bytes too. */
static void draw_figures(const Timeline *t, const Simulation *f, int rows, Text *out) {
    char bytes[32];
    text_printf(out, "\nmakespan %.6g%s%s, bubble %.1f %% (%.1f %% without a barrier between steps)\n\n",
                f->makespan, *t->unit ? " " : "", t->unit, 100 * f->bubble,
                f->makespan > 0 ? 100 * f->span / f->makespan : 0);
    text_printf(out, "rank        busy        idle   idle %%   peak to I   peak to W   %sstages\n",
                t->bytes ? "     bytes   " : "");
    for (int r = 0; r < t->ranks; r++) {
        const RankTimes *k = &f->rank[r];
        if (!is_shown(t, r, rows, out)) continue;
        text_printf(out, "%4d  %10.5g  %10.5g  %6.1f %%  %10d  %10d   ", r, k->busy, k->idle,
                    f->makespan > 0 ? 100 * k->idle / f->makespan : 0, k->peak_input, k->peak_weight);
        if (t->bytes) text_printf(out, "%10s   ", text_bytes(t->bytes[r], bytes));
        draw_stages(t, r, out);
        text_puts(out, "\n");
    }
    text_puts(out, "\npeak: activations of (stage, microbatch) alive at most, kept to the end of I (or B), "
                   "or of W (or B)\n");
}

/* Number of computing spans on the rank with the most. */
static int most_boxes(const Timeline *t) {
    int *count = mem_alloc_array((size_t)t->ranks, sizeof *count), most = 0;
    for (int i = 0; i < t->count; i++) {
        const Span *s = &t->spans[i];
        if (s->kind < SPAN_COMPUTES && s->end > s->start && ++count[s->rank] > most) most = count[s->rank];
    }
    free(count);
    return most;
}

static int most_stages(const Timeline *t) {
    int *count = mem_alloc_array((size_t)t->ranks, sizeof *count), most = 0;
    for (int s = 0; s < t->stages; s++) {
        int rank = t->rank_of_stage[s];
        if (rank >= 0 && ++count[rank] > most) most = count[rank];
    }
    free(count);
    return most;
}

/* Replaces a drawing of many boxes on few columns: only the figures follow. */
static void leave_out(const Raster *r, double makespan, int boxes, Text *out) {
    int width = width_for_all(r->t, makespan, r->label);
    text_printf(out, "not drawn: %d passes of a rank on %d columns", boxes, r->columns);
    if (width > 0) text_printf(out, "; --width %d draws them", width);
    text_puts(out, "\n");
}

/* Uses fewer columns than available where that makes boxes equal. Below 40 columns nothing is readable. */
void draw_terminal(const Timeline *t, TerminalStyle style, Text *out) {
    Simulation figures;
    timeline_figures(t, &figures);
    int label = snprintf(NULL, 0, "rank %d ", t->ranks - 1);
    Raster r = {.t = t,
                .style = style,
                .chunks = most_stages(t),
                .columns = (style.width < 40 ? 40 : style.width) - label,
                .label = label};
    r.scale = scale_of(t, figures.makespan, r.columns);
    int needed = (int)ceil(figures.makespan * r.scale - 1e-6);
    if (needed >= 1 && needed < r.columns) r.columns = needed;
    r.at = mem_alloc_array((size_t)r.columns, sizeof *r.at);
    text_printf(out, "%s\n\n", t->title);
    int each = most_boxes(t);
    if (style.rows > 0 && each > r.columns) {
        leave_out(&r, figures.makespan, each, out);
    } else {
        for (int rank = 0; rank < t->ranks; rank++)
            if (is_shown(t, rank, style.rows, out)) draw_row(&r, rank, out);
        draw_axis(&r, figures.makespan, t->unit, out);
        draw_legend(&r, out);
        draw_notice(&r, figures.makespan, out);
    }
    draw_figures(t, &figures, style.rows, out);
    free(r.at);
    free(figures.rank);
}
