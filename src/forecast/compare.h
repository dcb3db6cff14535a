/* Compares layouts for one model, number of ranks and step: predicted time of a step, where each candidate
 * has messages of its own size, and memory of the fullest rank. Without a limit of memory or speeds of links:
 * all pipeline schedules and several numbers of microbatches. With both: all layouts (forecast/search.h), and
 * at the end the best choice, why, and its keys. */
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

/* Appends a table. A step keeps the tokens of the configuration. Impossible candidates of the configured mesh
 * are left out, with the reason. The
 * shape of the model must be complete. ERR_CONFIG only where there is no step to compare. */
ErrorCode compare_print(const Config *c, const Device *d, const CompareRequest *q, Text *out, Error *err);

#endif
