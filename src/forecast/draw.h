/* Drawings of what ranks do over time, either planned, from a schedule and its simulation, or measured. Both
 * are a Timeline, a plain list of spans, so one can be drawn above the other.
 *
 * Colours are those of Okabe and Ito ("Color universal design", 2008), which can be told apart with every
 * kind of colour vision. The stages of one rank differ in lightness; letters or numbers give the rest. */
#ifndef WEFT_FORECAST_DRAW_H
#define WEFT_FORECAST_DRAW_H

#include "program/program.h"
#include "schedule/simulate.h"

typedef enum SpanKind {
    SPAN_F, /* forward */
    SPAN_B, /* dgrad and wgrad */
    SPAN_I, /* dgrad */
    SPAN_W, /* wgrad */
    SPAN_UPDATE,
    SPAN_COMPUTES, /* kinds above keep a rank busy; those below run concurrently */
    SPAN_GATHER = SPAN_COMPUTES,
    SPAN_REDUCE,
    SPAN_SEND,
    SPAN_RECV,
    SPAN_KINDS
} SpanKind;

typedef struct Span {
    int rank;
    SpanKind kind;
    int stage, microbatch; /* -1 where there is none */
    double start, end;
} Span;

typedef struct Timeline {
    const char *title; /* "1f1b, planned"; not owned */
    const char *unit;  /* of time, "ms"; "" for abstract cost; not owned */
    int ranks, stages;
    int *rank_of_stage; /* [stages] */
    int count, capacity;
    Span *spans;
    const double *bytes; /* [ranks] peak bytes of activations, or NULL; not owned */
} Timeline;

void timeline_start(Timeline *t, const char *title, const char *unit, int ranks, int stages,
                    const int *rank_of_stage);
void timeline_add(Timeline *t, Span span);
/* Makes the spans of a simulated schedule. Transfers and parameter actions that take no time leave none. */
void timeline_from_simulation(Timeline *t, const char *title, const Schedule *s, const Simulation *timing);
/* Adds the gathers and reductions of a program that was lowered from `order`, the order of one rank: from
 * their start to where they are waited for. `times` belongs to the cells of the order. `units`, [segments,
 * units] costs, only divide a cell among its units. */
void timeline_add_collectives(Timeline *t, const Program *p, const Order *order, const CellTime *times,
                              const StageCost *units);
void timeline_free(Timeline *t);

/* Computes makespan, bubble, and each rank's start, end, busy time, idle time and peaks from the spans alone.
 * A rank is idle when it does none of the computing kinds. Times count from 0. Free with simulation_free. */
void timeline_figures(const Timeline *t, Simulation *out);

typedef struct TerminalStyle {
    int width; /* columns; at least 40 are used */
    bool utf8, colour;
    /* At most so many ranks are drawn and listed, from both ends; 0: all. With a limit, a drawing that is too
     * fine to read is left out */
    int rows;
} TerminalStyle;
/* Draws a row for each rank, to scale, then an axis, a legend and the figures. With colour, a box shows the
 * number of its microbatch on the colour of its kind. Without colour, it begins with the letter of its kind,
 * in lower case for a rank's later stages. A line below reports cells that are too narrow to be drawn. */
void draw_terminal(const Timeline *t, TerminalStyle style, Text *out);

/* Draws a standalone picture, `width` CSS pixels wide, with the timelines one below the other. Timelines of
 * the same unit share a scale; otherwise each has the full width. The picture follows the dark mode of the
 * page. */
void draw_svg(const Timeline *lines, int count, int width, Text *out);
/* The same as part of an HTML page; its style does not affect other pictures there. */
void draw_svg_in_page(const Timeline *lines, int count, int width, Text *out);

/* Index of a stage among its rank's stages, from 0; 0 for stage -1. */
int timeline_chunk(const Timeline *t, int stage);

#endif
