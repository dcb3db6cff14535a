/* All pipeline schedules and several numbers of microbatches for one model, number of ranks and step, beside
 * each other: predicted time of a step, each with messages of its own size, and memory of the fullest rank.
 * Where there are a limit of memory and speeds of links, degrees of tp and cp too, with the schedule that is
 * configured; and in the end what it would take, and why. */
#ifndef WEFT_FORECAST_COMPARE_H
#define WEFT_FORECAST_COMPARE_H

#include "device/device.h"
#include "forecast/forecast.h"

typedef struct CompareRequest {
    int world;
    double memory; /* bytes of a rank; 0: no limit */
    ForecastSpeed speed;
    bool whole; /* all rows, else the best */
} CompareRequest;

/* A table. The tokens of a step stay those of the configuration; its sequences are cut into powers of two,
 * and into as many microbatches as configured. What is impossible is left out, with the reason. The shape of
 * the model must be complete. */
ErrorCode compare_print(const Config *c, const Device *d, const CompareRequest *q, Text *out, Error *err);

#endif
