/* What every rank of a mesh would do, hold and send, planned without starting any of them; with --hardware,
 * in which time (forecast/steptime.h).
 *
 * The ranks of one pipeline place hold equal shares of the same units (the last share is padded) and run
 * programs of the same form, so one of them stands for all: there is one RankForecast for each pipeline rank.
 */
#ifndef WEFT_FORECAST_FORECAST_H
#define WEFT_FORECAST_FORECAST_H

#include "forecast/draw.h"
#include "plan/rank.h"
#include "forecast/steptime.h"

typedef struct RankForecast {
    RankPlan plan;    /* of the first rank of the place */
    int first, count; /* world's ranks of this pipeline place: first, first + 1, ... */
    ProgramTraffic traffic;
    double flops; /* of a step, recomputation among them */
    OpCosts ops;  /* of a step, where hardware is known */
} RankForecast;

/* How fast the ranks are thought to be. */
typedef struct ForecastSpeed {
    double tflops; /* TFLOP/s of a rank; 0: time is counted in TFLOP */
    double link;   /* GB/s of a message between stages, where tflops is known; 0: messages take no time */
    double delay;  /* seconds that a message takes beside its bytes, with a link */
    const Hardware *hardware; /* or NULL; then those above are not looked at */
} ForecastSpeed;

/* A link's speed in words: "25 GB/s", "0.125 GB/s and 5 ms". */
const char *forecast_link(const ForecastSpeed *speed, char out[48]);

/* Of a rank, in seconds of a step, where hardware is known. */
typedef struct ForecastTime {
    double products, attention, memory, tensor, context,
        experts;            /* passes, of the rank that has most of them */
    int busiest;            /* the place of that rank */
    double waiting;         /* in the pipeline */
    double exposed, update; /* gathers and reductions that passes do not hide; of the rank that has most */
    double step;
} ForecastTime;

/* Not to be moved or copied: programs point into it. */
typedef struct Forecast {
    const Config *config;
    ForecastSpeed speed;
    Layout layout;
    int places;
    RankForecast *ranks; /* [places] by pipeline rank */
    int fullest;         /* place with the most memory */
    CommVolumeSpec volume;
    Cost *units;         /* [layers + 2] passes over a microbatch on a rank, in the measure of `timing` */
    UnitTime *unit_time; /* [layers + 2] where hardware is known */
    /* Of a step, in FLOPs, where a message takes as long as what a rank computes meanwhile; with hardware in
     * seconds. Ranks are pipeline ranks. */
    Simulation timing;
    ForecastTime time;
} Forecast;

/* The shape of the model must be complete; the configuration must outlive the forecast. Nothing to free on
 * failure. */
ErrorCode forecast_build(Forecast *f, const Config *c, const Device *d, int world, ForecastSpeed speed,
                         Error *err);
void forecast_free(Forecast *f);

size_t forecast_memory(const Forecast *f, int place); /* bytes of a rank: memory_plan_total */
uint64_t forecast_sent(const Forecast *f, int place); /* bytes of a step, over all axes */
double forecast_time(const Forecast *f,
                     double measure);         /* of `timing`, as it is printed: seconds, or TFLOP */
double forecast_step(const Forecast *f);      /* the whole step, as far as it is known */
const char *forecast_unit(const Forecast *f); /* "s" or "TFLOP" */

/* Tables: what the ranks hold, by category; what they do and send in a step; the memory of one place in full;
 * and what exact numerics cost it. `limit`: bytes of a rank, 0 for none. */
void forecast_print_memory(const Forecast *f, double limit, Text *out);
void forecast_print_work(const Forecast *f, Text *out);
void forecast_print_place(const Forecast *f, int place, Text *out);
ErrorCode forecast_print_exact(const Forecast *f, const Device *d, int place, Text *out, Error *err);
/* What other values of train.gradient_sync would cost that place, and `why` this one was taken, or NULL. */
ErrorCode forecast_print_sync(const Forecast *f, const Device *d, int place, const char *why, Text *out,
                              Error *err);
/* Step time, tokens/s and MFU on the hardware, and what they are made of. Nothing without hardware. */
void forecast_print_time(const Forecast *f, Text *out);
/* How the ranks of cp share attention; nothing where there is one. */
void forecast_print_context(const Forecast *f, Text *out);

/* What the ranks of a pipeline do over time, with the windows of gathers and reductions, and the bytes of
 * their activations. Only where layout_is_pipeline. */
typedef struct ForecastTimeline {
    Timeline timeline;
    char title[192];
    double *bytes;
} ForecastTimeline;
void forecast_timeline(const Forecast *f, ForecastTimeline *t);
void forecast_timeline_free(ForecastTimeline *t);
/* The average rank's work as a share of the busiest one's. */
double forecast_balance(const Forecast *f);

#endif
