/* Drawings of what ranks do over time: planned, from a schedule and its simulation, or measured. Both are a
 * Timeline, a plain list of spans, so that one can be drawn above the other.
 *
 * Colours are those of Okabe and Ito ("Color universal design", 2008), which people of every colour vision
 * tell apart; the stages of one rank differ in lightness, and letters or numbers say the rest. */
#ifndef WEFT_FORECAST_DRAW_H
#define WEFT_FORECAST_DRAW_H

#include "program/program.h"
#include "schedule/simulate.h"

typedef enum SpanKind {
    SPAN_F, /* forward */
    SPAN_B, /* dgrad and wgrad */
    SPAN_I, /* gradient of the input */
    SPAN_W, /* gradient of the weights */
    SPAN_UPDATE,
    SPAN_COMPUTES, /* those above keep a rank busy; those below go on beside them */
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
    const char *unit;  /* of time, "ms"; "" for units of cost; not owned */
    int ranks, stages;
    int *rank_of_stage; /* [stages] */
    int count, capacity;
    Span *spans;
    const double *bytes; /* [ranks] of activations at their peak, or NULL; not owned */
} Timeline;

void timeline_start(Timeline *t, const char *title, const char *unit, int ranks, int stages,
                    const int *rank_of_stage);
void timeline_add(Timeline *t, Span span);
/* Spans of a simulated schedule. Transfers and parameter actions that take no time leave none. */
void timeline_from_simulation(Timeline *t, const char *title, const Schedule *s, const Simulation *timing);
/* Gathers and reductions of the program that was lowered from this order, one of the schedule's ranks: from
 * where they are started to where they are waited for. `times` are those of the order's cells; costs of
 * units, [units], only part a cell between its units. */
void timeline_add_collectives(Timeline *t, const Program *p, const Order *order, const CellTime *times,
                              const StageCost *units);
void timeline_free(Timeline *t);

/* Makespan, bubble, and each rank's start, end, busy time, idle time and peaks, from the spans alone; a rank
 * is idle when it does none of the computing kinds. Times count from 0. Free with simulation_free. */
void timeline_figures(const Timeline *t, Simulation *out);

typedef struct TerminalStyle {
    int width; /* columns, at least 40 are used */
    bool utf8, colour;
    int rows; /* at most so many ranks are drawn and listed, the first and the last; 0: all. A drawing that
               * would be too fine to read is then left out */
} TerminalStyle;
/* A row a rank, to scale, then an axis, a legend and the figures. In colour a box is the number of its
 * microbatch on the colour of its kind; without, it begins with the letter of its kind, small for the later
 * stages of a rank. A line below says when cells are too narrow to be all there. */
void draw_terminal(const Timeline *t, TerminalStyle style, Text *out);

/* A picture that stands alone, `width` CSS pixels wide, with the timelines one below the other: on one scale
 * where they have the same unit, each over the full width otherwise. It follows a page's dark mode. */
void draw_svg(const Timeline *lines, int count, int width, Text *out);
/* The same as a part of an HTML page, whose other pictures its style leaves alone. */
void draw_svg_in_page(const Timeline *lines, int count, int width, Text *out);

/* Which of its rank's stages a stage is, from 0; 0 for stage -1. */
int timeline_chunk(const Timeline *t, int stage);

#endif
