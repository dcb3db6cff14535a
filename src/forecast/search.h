/* Searches meshes, microbatches, schedules and what trades memory for time for the fastest layout within a
 * limit of memory: branch and bound, best first.
 *
 *     degrees    tp, cp, ep, etp, sequences of a microbatch
 *     recompute  train.recompute
 *     pipeline   pp, schedule, stages of a rank
 *     plan       dp_replicate, train.gradient_sync, train.reshard_after_forward; dp_shard takes the rest
 *
 * A branch is cut if the lower bound of its memory exceeds the limit, or that of its time is not better than
 * the best plan found (forecast/bounds.h). The rest is forecast in full. The search goes on until it has the
 * best plans of several kinds. */
#ifndef WEFT_FORECAST_SEARCH_H
#define WEFT_FORECAST_SEARCH_H

#include "forecast/bounds.h"

/* Pipelines of more than SEARCH_CELLS cells would take minutes to simulate. */
enum { SEARCH_KINDS = 10, SEARCH_CELLS = 1 << 20 };

/* A layout that was forecast. Memory is that of the fullest rank, and bytes are those of the rank that sends
 * most: a layout is as good as its worst rank. */
typedef struct Candidate {
    Choice choice;
    int microbatches, dp, stages_per_rank;
    double time, bubble; /* time as printed */
    size_t memory;
    uint64_t sent;
    ForecastTime parts; /* if hardware is given */
    bool fits, configured;
} Candidate;

typedef struct SearchRequest {
    const Config *config;
    const Device *device;
    int world;
    double memory; /* bytes of a rank, above 0 */
    ForecastSpeed speed;
    int64_t step;        /* sequences of a step, over all ranks */
    int kinds;           /* how many kinds of plans to find the best of: 1 to SEARCH_KINDS */
    bool least;          /* searches for the plan with the least memory, whatever the limit */
    int64_t most_bounds; /* ends after so many, as soon as one plan fits; 0: no such limit */
} SearchRequest;

typedef struct Search {
    Candidate *found; /* in the order in which they were forecast */
    int count, capacity;
    int64_t bounded;     /* branches and plans whose bound was computed */
    bool short_of_kinds; /* ended before the best of as many kinds were known */
    bool unproven;       /* ended at most_bounds: a faster plan may be left */
} Search;

/* Reports progress on stderr while it takes long. An empty result: no layout is possible, or none fits. */
void search_run(Search *s, const SearchRequest *q);
void search_free(Search *s);

/* Forecasts one choice. Its error says why it is not possible. */
ErrorCode search_forecast(Candidate *out, const SearchRequest *q, const Choice *c, Error *err);
void search_describe(Candidate *out, const Forecast *f, const Choice *c, double memory);

/* Calls `visit` for every plan of the space, possible or not. */
typedef void SearchVisit(void *context, const Choice *c);
void search_enumerate(const SearchRequest *q, SearchVisit *visit, void *context);

bool search_same_kind(const Choice *a, const Choice *b);

#endif
