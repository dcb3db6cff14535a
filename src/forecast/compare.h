/* Compares all pipeline schedules and several numbers of microbatches for one model, number of ranks and
 * step: predicted time of a step, where each candidate has messages of its own size, and memory of the
 * fullest rank. With a limit of memory and speeds of links it also compares degrees of tp and cp under the
 * configured schedule, and of the fastest of all these other activation checkpointing and, where they are
 * auto, other train.gradient_sync and train.reshard_after_forward. It ends with the best choice, why, and
 * its keys. */
#ifndef WEFT_FORECAST_COMPARE_H
#define WEFT_FORECAST_COMPARE_H

#include "device/device.h"
#include "forecast/forecast.h"

typedef struct CompareRequest {
    int world;
    double memory; /* bytes of a rank; 0: no limit */
    ForecastSpeed speed;
    bool whole; /* print all rows; else the best */
} CompareRequest;

/* Appends a table. A step keeps the tokens of the configuration; its sequences are split into powers of two,
 * and into the configured number of microbatches. Impossible candidates are left out, with the reason. The
 * shape of the model must be complete. ERR_CONFIG only where there is no step to compare. */
ErrorCode compare_print(const Config *c, const Device *d, const CompareRequest *q, Text *out, Error *err);

#endif
