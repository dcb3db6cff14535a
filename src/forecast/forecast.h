/* Forecasts what every rank of a mesh would do, hold and send, without starting any of them; with --hardware
 * also how long it takes (forecast/steptime.h).
 *
 * The ranks with one pipeline index hold shards of the same units and run programs of the same form, so one
 * of them, the fullest, stands for all: there is one RankForecast for each pipeline rank. `pipe_rank` is a
 * pipeline index. */
#ifndef WEFT_FORECAST_FORECAST_H
#define WEFT_FORECAST_FORECAST_H

#include "forecast/draw.h"
#include "plan/rank.h"
#include "forecast/steptime.h"

typedef struct RankForecast {
    RankPlan plan;    /* of the fullest rank at this pipeline rank */
    int first, count; /* world ranks with this pipeline index: first, first + 1, ... */
    ProgramTraffic traffic;
    double flops; /* of a step, including recomputation */
    OpCosts ops;  /* of a step, if hardware is given */
} RankForecast;

/* Assumed speed of the ranks. */
typedef struct ForecastSpeed {
    double tflops; /* TFLOP/s of a rank; 0: times are in TFLOP */
    double link;   /* GB/s of a message between stages; requires tflops; 0: messages take no time */
    double delay;  /* latency of a message in seconds; requires link */
    const Hardware *hardware; /* or NULL; otherwise the fields above are ignored */
} ForecastSpeed;

/* The speed of a link as text: "25 GB/s", "0.125 GB/s and 5 ms". */
const char *forecast_link(const ForecastSpeed *speed, char out[48]);

/* Seconds of a step on one rank, if hardware is given. */
typedef struct ForecastTime {
    double products, attention, memory, tensor, context, experts; /* passes, on the busiest rank */
    int busiest;                                                  /* pipeline rank with the most of these */
    double waiting;                                               /* for other pipeline ranks */
    double exposed, update; /* gathers and reductions that passes do not hide; of the slowest rank */
    double step;
} ForecastTime;

/* Must not be moved or copied: programs point into it. */
typedef struct Forecast {
    const Config *config;
    ForecastSpeed speed;
    Layout layout;
    int pipe_ranks;
    RankForecast *ranks; /* [pipe_ranks] by pipeline rank */
    int fullest;         /* pipeline rank with the most memory */
    CpCommSpec cp_comm;
    PassTraffic (*passes)[PASS_AXES]; /* [layers + 2] collectives inside passes, over a microbatch */
    Cost *units;         /* [layers + 2] passes over a microbatch on a rank, in the unit of `timing` */
    UnitTime *unit_time; /* [layers + 2] if hardware is given */
    /* Of a step, over pipeline ranks. In seconds if hardware is given, else in FLOPs: a message takes as long
     * as a rank needs for so many FLOPs. */
    Simulation timing;
    ForecastTime time;
} Forecast;

/* The shape of the model must be complete; the configuration must outlive the forecast. On failure there is
 * nothing to free. */
ErrorCode forecast_build(Forecast *f, const Config *c, const Device *d, int world, ForecastSpeed speed,
                         Error *err);
void forecast_free(Forecast *f);

size_t forecast_memory(const Forecast *f, int pipe_rank); /* bytes of a rank: memory_plan_total */
uint64_t forecast_sent(const Forecast *f, int pipe_rank); /* bytes of a step, over all axes */
double forecast_step(const Forecast *f);                  /* the full step, as far as it is known */

/* Parts of a forecast, for bounds (forecast/bounds.h): a simulation's time as it is printed, in seconds if a
 * speed is given, else in TFLOP; a message between stages whose ranks are `stride` apart, and the passes of a
 * layout whose units cost `units`, both in the unit of simulations. The caller frees `out`. */
double forecast_seconds(const ForecastSpeed *speed, double measure);
double forecast_message(const ForecastSpeed *speed, int stride, double bytes);
ErrorCode forecast_simulate(Simulation *out, const Cost *units, const Layout *l, double latency, Error *err);

/* Tables: what the ranks hold, by category; what they do and send in a step; the memory of one pipeline rank
 * in full; and what exact numerics cost that pipeline rank. `limit`: bytes of a rank, 0 for none. */
void forecast_print_memory(const Forecast *f, double limit, Text *out);
void forecast_print_work(const Forecast *f, Text *out);
void forecast_print_pipe_rank(const Forecast *f, int pipe_rank, Text *out);
ErrorCode forecast_print_exact(const Forecast *f, const Device *d, int pipe_rank, Text *out, Error *err);
/* What other values of train.gradient_sync would cost that pipeline rank. `why`: the reason for the present
 * one, or NULL. */
ErrorCode forecast_print_sync(const Forecast *f, const Device *d, int pipe_rank, const char *why, Text *out,
                              Error *err);
/* Step time, tokens/s and MFU on the hardware, and their parts. Prints nothing without hardware. */
void forecast_print_time(const Forecast *f, Text *out);
/* How the ranks of cp compute attention; nothing with one rank of cp. */
void forecast_print_context(const Forecast *f, Text *out);

/* What the pipeline ranks do over time, with the windows of gathers and reductions, and the bytes of their
 * activations. Requires layout_is_pipeline. */
typedef struct ForecastTimeline {
    Timeline timeline;
    char title[192];
    double *bytes;
} ForecastTimeline;
void forecast_timeline(const Forecast *f, ForecastTimeline *t);
void forecast_timeline_free(ForecastTimeline *t);
/* The work of the average rank relative to the busiest one's. */
double forecast_balance(const Forecast *f);

#endif
