/* Timelines as SVG. All boxes of one colour on a rank are one path; numbers are written where they fit;
 * colours are CSS classes, so that a dark page can change the background. Coordinates have one decimal and
 * nothing depends on the machine, so the same step always gives the same file.
 *
 *     title, makespan, bubble                                             HEAD
 *     rank 0 |#####|#####|     |#####|        idle 20 %, peak 3           BAND: computation
 *             ==     ===                                                  STRIP: transfers, collectives
 *     ...
 *            0       10        20                                         AXIS
 *     legend: swatches and words                                          LEGEND
 *
 * A page may have many such pictures with thousands of boxes each; one element for each box would make it
 * slow to open. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "forecast/draw.h"

enum {
    LEFT = 58,
    RIGHT = 128, /* for the figures of a rank */
    HEAD = 50,   /* title and figures */
    BAND = 26,   /* computation */
    STRIP = 6,   /* transfers, below the band */
    ROW_GAP = 5,
    AXIS = 26,
    LINE_GAP = 14, /* between timelines */
    LEGEND = 30,
    CHUNKS = 4 /* steps of lightness */
};

typedef struct Svg {
    const Timeline *t;
    Text *out;
    double scale; /* pixels per unit of time */
    int width;
    bool strip; /* there are transfers */
} Svg;

/* Okabe and Ito's colours. W has their orange; B, which does the work of I and W, has their vermillion. */
static const struct {
    const char *class, *word;
    unsigned colour;
} kinds[SPAN_KINDS] = {
    [SPAN_F] = {"f", "forward", 0x0072b2},         [SPAN_B] = {"b", "backward", 0xd55e00},
    [SPAN_I] = {"i", "backward: input", 0x009e73}, [SPAN_W] = {"w", "backward: weights", 0xe69f00},
    [SPAN_UPDATE] = {"u", "optimizer", 0x7f7f7f},  [SPAN_GATHER] = {"g", "gather", 0xcc79a7},
    [SPAN_REDUCE] = {"r", "reduce", 0x8c3f6b},     [SPAN_SEND] = {"s", "send", 0x56b4e9},
    [SPAN_RECV] = {"v", "receive", 0x9a9a9a},
};

/* Later stages of a rank are lighter. */
static unsigned shade(unsigned colour, int chunk) {
    static const double to_white[CHUNKS] = {0, 0.38, 0.58, 0.72};
    unsigned out = 0;
    for (int shift = 16; shift >= 0; shift -= 8) {
        double c = (double)(colour >> shift & 255);
        out |= (unsigned)lround(c + (255 - c) * to_white[chunk]) << shift;
    }
    return out;
}

/* Whether white text is easier to read than black: relative luminance of sRGB, with the limit at equal
 * contrast. */
static bool is_dark(unsigned colour) {
    static const double weight[3] = {0.2126, 0.7152, 0.0722};
    double sum = 0;
    for (int i = 0; i < 3; i++) {
        double c = (double)(colour >> (16 - 8 * i) & 255) / 255;
        sum += weight[i] * (c <= 0.04045 ? c / 12.92 : pow((c + 0.055) / 1.055, 2.4));
    }
    return sum < 0.22;
}

/* Stages beyond the last shade share it. */
static int chunk_of(const Timeline *t, const Span *s) {
    int chunk = timeline_chunk(t, s->stage);
    return chunk < CHUNKS ? chunk : CHUNKS - 1;
}

/* Titles contain names of files and schedules, which may contain any character. */
static void puts_escaped(Text *out, const char *text) {
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c == '<' || c == '>' || c == '&' || c == '"')
            text_printf(out, "&#%d;", c);
        else
            text_add(out, c < 32 ? " " : text, 1);
    }
}

/* Writes a coordinate with one decimal, or none where that is zero. A tenth of a pixel is invisible, keeps
 * the file small and is the same on every machine. */
static void put_number(Text *out, double value) {
    double tenths = round(value * 10);
    if (fmod(tenths, 10) == 0)
        text_printf(out, "%.0f", tenths / 10);
    else
        text_printf(out, "%.1f", tenths / 10);
}

/* Uses relative moves, which are shorter than corners. */
static void put_box(Text *out, double x, double y, double w, double h) {
    text_puts(out, "M");
    put_number(out, x);
    text_puts(out, " ");
    put_number(out, y);
    text_puts(out, "h");
    put_number(out, w);
    text_puts(out, "v");
    put_number(out, h);
    text_puts(out, "h");
    put_number(out, -w);
    text_puts(out, "z");
}

/* ---- one rank ---- */

/* Rectangle of a span: half of the band where computations overlap, the strip for transfers. */
typedef struct Rect {
    double x, y, w, h;
} Rect;

/* 0: full band, 1: upper half, 2: lower half. Compares a span only with its neighbours in the list. */
static int half_of(const Timeline *t, int index) {
    const Span *s = &t->spans[index];
    for (int step = -1; step <= 1; step += 2) {
        int near = index + step;
        while (near >= 0 && near < t->count && t->spans[near].kind >= SPAN_COMPUTES) near += step;
        if (near < 0 || near >= t->count || t->spans[near].rank != s->rank) continue;
        double overlap = fmin(s->end, t->spans[near].end) - fmax(s->start, t->spans[near].start);
        if (overlap > 0.01 * (s->end - s->start)) return step < 0 ? 2 : 1;
    }
    return 0;
}

/* Boxes that overlap in time share the band: the first above, the second below. */
static Rect rect_of(const Svg *g, int index, double y) {
    const Span *s = &g->t->spans[index];
    Rect p = {LEFT + s->start * g->scale, y, (s->end - s->start) * g->scale, BAND};
    if (s->kind >= SPAN_COMPUTES) {
        p.y = y + BAND + 1;
        p.h = STRIP - 1;
    } else {
        int half = half_of(g->t, index);
        if (half) p.h = BAND / 2.0;
        if (half == 2) p.y += BAND / 2.0;
    }
    return p;
}

/* Goes class by class, so that a colour is one path of the rank. The list is walked once for each class, but
 * it is short. */
static void put_paths(const Svg *g, int rank, double y) {
    for (int class = 0; class < SPAN_KINDS * CHUNKS; class ++) {
        bool open = false;
        for (int i = 0; i < g->t->count; i++) {
            const Span *s = &g->t->spans[i];
            int chunk = s->kind < SPAN_UPDATE ? chunk_of(g->t, s) : 0;
            if (s->rank != rank || (int)s->kind * CHUNKS + chunk != class || !(s->end > s->start)) continue;
            Rect p = rect_of(g, i, y);
            if (!open) text_printf(g->out, "<path class=\"%s%d\" d=\"", kinds[s->kind].class, chunk);
            open = true;
            put_box(g->out, p.x, p.y, p.w, p.h);
        }
        if (open) text_puts(g->out, "\"/>\n");
    }
}

/* Numbers of the boxes that are wide enough, at about 5.5 pixels a digit. Those on dark and on light colours
 * are separate groups, since a group has one style. */
static void put_numbers(const Svg *g, int rank, double y) {
    for (int dark = 0; dark < 2; dark++) {
        bool open = false;
        for (int i = 0; i < g->t->count; i++) {
            const Span *s = &g->t->spans[i];
            char number[16];
            if (s->rank != rank || s->kind >= SPAN_UPDATE || s->microbatch < 0) continue;
            if (is_dark(shade(kinds[s->kind].colour, chunk_of(g->t, s))) != (dark == 1)) continue;
            Rect p = rect_of(g, i, y);
            int length = snprintf(number, sizeof number, "%d", s->microbatch);
            if (p.w < 5.5 * length + 2) continue;
            if (!open) text_printf(g->out, "<g class=\"%s\">", dark ? "on-dark" : "on-light");
            open = true;
            text_puts(g->out, "<text x=\"");
            put_number(g->out, p.x + p.w / 2);
            text_puts(g->out, "\" y=\"");
            put_number(g->out, p.y + p.h / 2 + 3.5);
            text_printf(g->out, "\">%s</text>", number);
        }
        if (open) text_puts(g->out, "</g>\n");
    }
}

/* The idle band is drawn first: whatever nothing covers is idle. */
static void put_row(const Svg *g, const Simulation *f, int rank, double y) {
    const RankTimes *k = &f->rank[rank];
    text_printf(g->out, "<text class=\"label\" x=\"%d\" y=\"", LEFT - 8);
    put_number(g->out, y + BAND / 2.0 + 4);
    text_printf(g->out, "\">rank %d</text>\n<path class=\"idle\" d=\"", rank);
    put_box(g->out, LEFT, y, f->makespan * g->scale, BAND);
    text_puts(g->out, "\"/>\n");
    put_paths(g, rank, y);
    put_numbers(g, rank, y);
    text_puts(g->out, "<text class=\"figure\" x=\"");
    put_number(g->out, g->width - RIGHT + 8);
    text_puts(g->out, "\" y=\"");
    put_number(g->out, y + BAND / 2.0 + 4);
    text_printf(g->out, "\">idle %.1f %%, peak %d</text>\n",
                f->makespan > 0 ? 100 * k->idle / f->makespan : 0, k->peak_weight);
}

/* ---- axis, legend, page ---- */

/* The smallest 1, 2 or 5 times a power of ten that is at least `least`. */
static double round_step(double least) {
    double power = pow(10, floor(log10(least)));
    for (int i = 0; i < 3; i++) {
        double step = power * (double[]){1, 2, 5}[i];
        if (step >= least * (1 - 1e-9)) return step;
    }
    return 10 * power;
}

/* Ticks are at round numbers, at least 70 pixels apart. */
static void put_axis(const Svg *g, double makespan, double y) {
    double step = round_step(70 / g->scale);
    for (int i = 0; i * step <= makespan * (1 + 1e-9); i++) {
        double x = LEFT + i * step * g->scale;
        text_puts(g->out, "<path class=\"axis\" d=\"M");
        put_number(g->out, x);
        text_puts(g->out, " ");
        put_number(g->out, y);
        text_puts(g->out, "v4\"/><text class=\"tick\" x=\"");
        put_number(g->out, x);
        text_puts(g->out, "\" y=\"");
        put_number(g->out, y + 15);
        text_printf(g->out, "\">%.6g%s%s</text>\n", i * step, *g->t->unit && i == 0 ? " " : "",
                    i == 0 ? g->t->unit : "");
    }
}

static int row_height(const Svg *g) { return BAND + (g->strip ? STRIP : 0) + ROW_GAP; }
static int line_height(const Svg *g) { return HEAD + g->t->ranks * row_height(g) + AXIS; }

/* Draws a timeline with its head and axis. */
static void put_line(const Svg *g, const Simulation *f, double y) {
    text_puts(g->out, "<text class=\"title\" x=\"14\" y=\"");
    put_number(g->out, y + 22);
    text_puts(g->out, "\">");
    puts_escaped(g->out, g->t->title);
    text_puts(g->out, "</text>\n<text class=\"figure\" x=\"14\" y=\"");
    put_number(g->out, y + 39);
    text_printf(g->out, "\">makespan %.6g", f->makespan);
    if (*g->t->unit) text_puts(g->out, " ");
    puts_escaped(g->out, g->t->unit);
    text_printf(g->out,
                ", bubble %.1f %%; peak: activations alive at most, in stages x microbatches</text>\n",
                100 * f->bubble);
    y += HEAD;
    for (int r = 0; r < g->t->ranks; r++, y += row_height(g)) put_row(g, f, r, y);
    put_axis(g, f->makespan, y);
}

/* Whether spans of a kind and chunk occur; chunk -1: any. */
static bool uses(const Timeline *lines, int count, int kind, int chunk) {
    for (int l = 0; l < count; l++)
        for (int i = 0; i < lines[l].count; i++) {
            const Span *s = &lines[l].spans[i];
            if ((int)s->kind == kind && (chunk < 0 || chunk_of(&lines[l], s) == chunk) && s->end > s->start)
                return true;
        }
    return false;
}

/* Each kind has a row of swatches, one for each stage of a rank, and a word. */
static void put_legend(const Timeline *lines, int count, double y, Text *out) {
    double x = LEFT;
    for (int k = 0; k < SPAN_KINDS; k++) {
        if (!uses(lines, count, k, -1)) continue;
        for (int chunk = 0; chunk < (k < SPAN_UPDATE ? CHUNKS : 1); chunk++) {
            if (k < SPAN_UPDATE && !uses(lines, count, k, chunk)) continue;
            text_printf(out, "<path class=\"%s%d\" d=\"", kinds[k].class, chunk);
            put_box(out, x, y, 14, 12);
            text_puts(out, "\"/>");
            x += 14;
        }
        text_puts(out, "<text class=\"figure\" x=\"");
        put_number(out, x + 5);
        text_puts(out, "\" y=\"");
        put_number(out, y + 10);
        text_printf(out, "\">%s</text>\n", kinds[k].word);
        x += 5 + 6.2 * (double)strlen(kinds[k].word) + 16;
    }
    text_puts(out, "<path class=\"idle\" d=\"");
    put_box(out, x, y, 14, 12);
    text_puts(out, "\"/><text class=\"figure\" x=\"");
    put_number(out, x + 19);
    text_puts(out, "\" y=\"");
    put_number(out, y + 10);
    bool later = false;
    for (int k = 0; k < SPAN_UPDATE; k++)
        for (int chunk = 1; chunk < CHUNKS; chunk++) later |= uses(lines, count, k, chunk);
    text_printf(out, "\">idle%s</text>\n", later ? " &#160; &#160; lighter: the later stages of a rank" : "");
}

/* Every rule is limited to this picture, since a style in an HTML page applies to the full page. */
static void put_style(bool fine, Text *out) {
    text_puts(
        out,
        "<style>.timeline text{font:11px system-ui,-apple-system,\"Segoe "
        "UI\",Helvetica,Arial,sans-serif;fill:#333}\n"
        ".timeline path{stroke:#fff;stroke-width:.8}.timeline .paper{fill:#fff}.timeline .idle{fill:#e9e9e9}"
        ".timeline .axis{stroke:#888;fill:none}.timeline .title{font-size:14px;font-weight:600;fill:#111}"
        ".timeline .label{text-anchor:end}.timeline .tick{text-anchor:middle;fill:#666}\n"
        ".timeline .on-dark text,.timeline .on-light text{font-size:10px;text-anchor:middle}"
        ".timeline .on-dark text{fill:#fff}.timeline .on-light text{fill:#111}\n");
    if (fine) text_puts(out, ".timeline path{stroke-width:.25}");
    for (int k = 0; k < SPAN_KINDS; k++)
        for (int chunk = 0; chunk < (k < SPAN_UPDATE ? CHUNKS : 1); chunk++)
            text_printf(out, ".timeline .%s%d{fill:#%06x}", kinds[k].class, chunk,
                        shade(kinds[k].colour, chunk));
    text_puts(out, "\n@media(prefers-color-scheme:dark){.timeline text{fill:#ccc}.timeline .title{fill:#eee}"
                   ".timeline .tick{fill:#999}.timeline .paper{fill:#16181c}.timeline .idle{fill:#2a2d33}"
                   ".timeline path{stroke:#16181c}}</style>\n");
}

/* End of all spans, including transfers: the axis must reach the last one. */
static double makespan_of(const Timeline *t) {
    double end = 0;
    for (int i = 0; i < t->count; i++) end = fmax(end, t->spans[i].end);
    return end;
}

/* The longest timeline with this one's unit fills the width. */
static double scale_of(const Timeline *lines, int count, int index, int width) {
    double longest = 0;
    for (int l = 0; l < count; l++)
        if (strcmp(lines[l].unit, lines[index].unit) == 0) longest = fmax(longest, makespan_of(&lines[l]));
    return longest > 0 ? (width - LEFT - RIGHT) / longest : 1;
}

/* The strip only has height where it has spans. */
static Svg svg_of(const Timeline *lines, int count, int index, int width, Text *out) {
    Svg g = {.t = &lines[index], .out = out, .width = width, .scale = scale_of(lines, count, index, width)};
    for (int k = SPAN_COMPUTES; k < SPAN_KINDS; k++) g.strip |= uses(g.t, 1, k, -1);
    return g;
}

/* Whether boxes are so narrow that the gaps between them would hide them; gaps are then narrower too. */
static bool is_fine(const Timeline *lines, int count, int width) {
    double narrowest = INFINITY;
    for (int l = 0; l < count; l++)
        for (int i = 0; i < lines[l].count; i++) {
            double length = lines[l].spans[i].end - lines[l].spans[i].start;
            if (lines[l].spans[i].kind < SPAN_UPDATE && length > 0)
                narrowest = fmin(narrowest, length * scale_of(lines, count, l, width));
        }
    return narrowest < 5;
}

/* Computes heights first, since the picture starts with its size. Timelines then follow one below the other;
 * those with one unit share a scale. */
static void draw(const Timeline *lines, int count, int width, const char *name_space, Text *out) {
    CHECK(count >= 1);
    if (width < 480) width = 480;
    int height = LEGEND + LINE_GAP * (count - 1);
    for (int l = 0; l < count; l++) {
        Svg g = svg_of(lines, count, l, width, out);
        height += line_height(&g);
    }
    text_printf(
        out,
        "<svg%s class=\"timeline\" viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n<title>",
        name_space, width, height, width, height);
    puts_escaped(out, lines[0].title);
    text_puts(out, "</title>\n");
    put_style(is_fine(lines, count, width), out);
    text_puts(out, "<rect class=\"paper\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n");
    double y = 0;
    for (int l = 0; l < count; l++) {
        Simulation figures;
        Svg g = svg_of(lines, count, l, width, out);
        timeline_figures(g.t, &figures);
        put_line(&g, &figures, y);
        y += line_height(&g) + LINE_GAP;
        free(figures.rank);
    }
    put_legend(lines, count, y - LINE_GAP + 6, out);
    text_puts(out, "</svg>\n");
}

/* A file of its own must declare the namespace; a part of a page must not. */
void draw_svg(const Timeline *lines, int count, int width, Text *out) {
    draw(lines, count, width, " xmlns=\"http://www.w3.org/2000/svg\"", out);
}

void draw_svg_in_page(const Timeline *lines, int count, int width, Text *out) {
    draw(lines, count, width, "", out);
}
