/* All-gathers parameters over the axes that shard them: GATHER, RELEASE.
 *
 * Gathered parameters are in buffers of the plan, flat after flat. A rank casts its own shard into its place,
 * and the all-gather fills the rest. A pass waits for what it reads (parameters_ready).
 *
 * Elsewhere called: FSDP all-gather (unshard) and its prefetch; ZeRO-3. */
#include "engine/execution.h"

#include "device/ops/memory.h"

uint16_t *parameters_copy(const Engine *e, size_t at) {
    return e->state.copy + (at - e->plan->partition.vectors);
}

void *parameters_owned(const Engine *e, Flat flat, size_t at) {
    return engine_held(e, flat) == DTYPE_F32 ? (void *)(e->state.master + at) : parameters_copy(e, at);
}

/* Casts this rank's shard into its place and starts to gather the others. */
static void gather(Execution *x, int unit, Flat flat, char *all) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    const FlatShard *s = &e->plan->partition.flat_shard[unit][flat];
    Dtype type = flat_dtype(flat, e->model.compute);
    size_t width = dtype_bytes(type);
    char *mine = all + (size_t)s->first * width;
    if (s->count > 0)
        OP(e->device, cast, s->count, parameters_owned(e, flat, s->start), engine_held(e, flat), mine, type);
    CommRequest *request = &e->traffic.gathers[unit][flat];
    execution_must(e, comm_all_gather(e->comm, s->axes, s->ranges, width, all, request, &err), &err);
}

/* The gathers of a unit's flats are under way at the same time. Each has its own request, since vectors
 * arrive long before matrices. */
void parameters_gather(Execution *x, Action a) {
    Engine *e = x->engine;
    char *buffer = execution_buffer(x, BUFFER_GATHERED, a.unit, a.microbatch);
    for (int f = 0; f < FLATS; f++) {
        char *all = buffer + gathered_offset(x->program, &e->model, a.unit, (Flat)f);
        gather(x, a.unit, (Flat)f, all);
        e->weights.units[a.unit].flats[f] = all;
    }
}

void parameters_ready(Execution *x, int unit) {
    for (int f = 0; f < FLATS; f++) execution_wait(x->engine, &x->engine->traffic.gathers[unit][f]);
}

void parameters_release(Execution *x, Action a) {
    parameters_ready(x, a.unit); /* if it was prefetched, but not used */
    x->engine->weights.units[a.unit] = (UnitWeights){{NULL}};
}
