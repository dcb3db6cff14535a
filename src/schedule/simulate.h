/* Timed simulation of a schedule. Each rank executes its cells in order; a cell starts when the rank is free
 * and its inputs have arrived. No model, no memory, no MPI. Times are in the caller's unit. */
#ifndef WEFT_SCHEDULE_SIMULATE_H
#define WEFT_SCHEDULE_SIMULATE_H

#include "model/layers/layer.h"
#include "schedule/schedule.h"

typedef Cost StageCost; /* of the units of a stage, in any unit; B costs input + weight */

/* Cost of a compute cell. */
static inline double stage_cost_of(const StageCost *c, CellKind kind) {
    if (kind == CELL_F) return c->forward;
    if (kind == CELL_I) return c->input;
    return kind == CELL_W ? c->weight : c->input + c->weight;
}

typedef struct SimulateCosts {
    const StageCost *stages; /* [segments, stages], or NULL: `uniform` for each */
    StageCost uniform;
    int segments;           /* that `stages` tells apart; 0: 1, all microbatches cost the same */
    const double *backward; /* [stages] cost of B where it is known; or NULL: input + weight */
    double latency;         /* of a transfer between ranks, from the end of the sender's cell */
    bool overlap_is_max;    /* a composite costs the larger of its parts instead of their sum */
    bool receive_blocks;    /* a rank waits at the receive, not at the use of the data (lowered programs) */
} SimulateCosts;

typedef struct CellTime {
    double start, end;
} CellTime;

typedef struct RankTimes {
    double start, end; /* of its first and last compute cell */
    double busy, idle; /* idle: makespan - busy */
    /* Most live activations of (stage, microbatch): until the end of I or B, and until the end of W or B. */
    int peak_input, peak_weight;
    CellTime *cells; /* [cells of the order]; both cells of a composite have the times of the composite */
} RankTimes;

typedef struct Simulation {
    double makespan; /* last end of all ranks */
    double bubble;   /* worst idle / makespan */
    /* Largest (end - start - busy) of a rank: the bubble as the zero-bubble papers count it, without a
     * barrier. */
    double span;
    int ranks;
    RankTimes *rank; /* [ranks] */
} Simulation;

/* Simulates compute orders and lowered programs. A transfer takes `latency`, but no time of its ranks;
 * parameter actions take no time. ERR_DATA for everything that schedule_check refuses; where ranks wait for
 * each other, the message names the cells. ERR_CONFIG unless costs are finite and not negative. On failure
 * there is nothing to free. */
ErrorCode simulate(Simulation *out, const Schedule *s, const SimulateCosts *costs, Error *err);
void simulation_free(Simulation *s);

/* Whether a lowered program ends under a transport. EAGER: a send completes at once. RENDEZVOUS: a send waits
 * for the posted receive. BLOCKING: both sides block until they meet. */
typedef enum Transport { TRANSPORT_EAGER, TRANSPORT_RENDEZVOUS, TRANSPORT_BLOCKING } Transport;
ErrorCode simulate_transport(const Schedule *s, Transport transport, Error *err);

#endif
