/* Where the first non-finite value of a step was made: by which rank, in which pass or gradient.
 *
 * After a sum over ranks nobody can tell who contributed the NaN. So each rank counts the non-finite values
 * of what it has made by itself, before others receive it:
 *
 *     FWD, BWD, DGRAD        the output of the unit; the gradient of its input; losses
 *     COLLECTIVE             what this rank contributes
 *     DISPATCH               rows that leave; results of the local experts
 *     gradients_end          gradients of parameters, before they are reduced
 *
 * A count is one read of memory that was just written, and an integer add if something was found. Counters
 * are fetched with the other figures of the step. Only a step that is skipped looks at them: each rank finds
 * its own first event, and one small reduction finds the first of all ranks.
 *
 * Events are ordered by cause: units ascend in the forward pass and descend in the backward pass, and ranks
 * that run the same unit run the same actions. A NaN travels to other ranks only in this order, so the first
 * event is where it began. Weights come before everything: a NaN in them is everywhere at once. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/host.h"
#include "base/text.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "engine/execution.h"

/* ---- counters ---- */

/* [actions, stages], then [microbatches, parameters]. */
static int64_t *action_counter(const Execution *x, OriginStage stage) {
    int64_t action = x->engine->progress.current - x->program->actions;
    return statistics_origins(x->engine, x->engine->statistics.figures) + ORIGIN_STAGES * action + stage;
}

static int64_t gradient_counter(const Engine *e, int microbatch, int param) {
    return (int64_t)ORIGIN_STAGES * e->plan->program.count + (int64_t)microbatch * e->model.table.count +
           param;
}

/* A reduction of the whole step has microbatch -1. */
static bool is_planted(const Execution *x, StepPoison place) {
    const StepOptions *o = x->options;
    int microbatch = x->engine->progress.current->microbatch;
    bool here = microbatch < 0 || o->poison_microbatch == program_batch(x->program, microbatch);
    return o->poison == place && !x->poisoned && here;
}

/* Plants the NaN or the flipped bit of an injected fault in a tensor, as a broken kernel would have. */
static void plant(Execution *x, int64_t n, Dtype type, void *tensor) {
    static const uint32_t wide_nan = 0x7fc00000, narrow_nan = 0x7fc0;
    uint64_t index = x->options->poison_index, bit = index / (uint64_t)n;
    size_t bytes = dtype_bytes(type);
    char *at = (char *)tensor + index % (uint64_t)n * bytes;
    uint32_t value = type == DTYPE_F32 ? wide_nan : narrow_nan; /* little-endian */
    if (x->options->poison_flips) {
        device_fetch(x->engine->device, &value, at, bytes);
        value ^= UINT32_C(1) << bit % (8 * bytes);
    }
    OP(x->engine->device, upload, at, &value, bytes);
    x->poisoned = true;
}

void origin_message(Execution *x, size_t bytes, void *tensor) {
    if (bytes > 0 && is_planted(x, POISON_MESSAGE))
        plant(x, (int64_t)(bytes / sizeof(float)), DTYPE_F32, tensor);
}

/* The id stays within the vocabulary: one outside of it ends the run when it is uploaded. */
void origin_tokens(Execution *x, const Batch *b) {
    int64_t vocab = x->engine->plan->spec.model.vocab_size;
    if (!x->training || vocab < 2 || !is_planted(x, POISON_TOKENS)) return;
    uint64_t index = x->options->poison_index, bit = index / (uint64_t)b->tokens;
    uint32_t id = (uint32_t)b->inputs[index % (uint64_t)b->tokens], flipped;
    do flipped = id ^ UINT32_C(1) << bit++ % 32;
    while (flipped >= vocab);
    b->inputs[index % (uint64_t)b->tokens] = (int32_t)flipped;
    x->poisoned = true;
}

void origin_memory(Execution *x, int action) {
    const StepOptions *o = x->options;
    if (!o || o->poison != POISON_MEMORY || action != o->poison_action % x->program->count) return;
    const Pool *pool = &x->engine->pools[o->poison_pool];
    if (pool->planned > 0 && !x->poisoned)
        plant(x, (int64_t)(pool->planned / sizeof(float)), DTYPE_F32, pool->base);
}

void origin_states(Execution *x, OriginStage stage, int64_t n, Dtype type, void *tensor) {
    if (!x->training || n == 0) return;
    if (is_planted(x, POISON_ACTIVATION)) plant(x, n, type, tensor);
    OP(x->engine->device, count_nonfinite, n, tensor, type, action_counter(x, stage));
}

/* Sums of a step, which passes add to, are read once, with the last microbatch: on a GPU each reading of them
 * costs a percent of a pass. After a step that was skipped they are read each time, for the rest of the run,
 * so that the next message names the microbatch. */
static bool reads_sums(const Execution *x, int microbatch) {
    return program_has_slots(x->program) || x->engine->statistics.each_microbatch ||
           program_batch(x->program, microbatch) == program_batches(x->program) - 1;
}

void origin_gradients(Execution *x, int unit, Flat flat, int microbatch) {
    Engine *e = x->engine;
    LocalGradient g = {.param = NULL};
    while (gradient_next(x, unit, flat, &g)) {
        if (g.param->frozen) continue;
        if (is_planted(x, POISON_GRADIENT)) plant(x, g.param->count, DTYPE_F32, g.first);
        for (int r = 0; reads_sums(x, microbatch) && r < g.count; r++)
            OP(e->device, count_nonfinite, g.rows * g.param->count, g.first + (size_t)r * g.apart, DTYPE_F32,
               statistics_origins(e, e->statistics.figures) + gradient_counter(e, microbatch, g.index));
    }
}

/* ---- after a skipped step ---- */

typedef enum OriginKind {
    ORIGIN_NONE,
    ORIGIN_WEIGHTS,
    ORIGIN_PASS,
    ORIGIN_GRADIENT,
    ORIGIN_REFUSED
} OriginKind;

/* All members but the last have 64 bits, so that no byte is padding. */
typedef struct Origin {
    int64_t order; /* the lowest is the first */
    int64_t kind, rank, microbatch, unit, param, backward;
    char host[HOST_NAME_BYTES];
} Origin;

static void take_first(void *into, const void *from) {
    Origin *a = into;
    const Origin *b = from;
    if (b->order < a->order || (b->order == a->order && b->rank < a->rank)) *a = *b;
}

/* Position of a pass over a unit, from the first forward pass to the last backward pass. */
static int64_t position(const Program *p, int unit, bool backward) {
    return backward ? 2 * p->units - unit : unit;
}
static int64_t order_of(int64_t position, int64_t within) { return position << 32 | within; }
enum { AFTER_PASSES = 1 << 30 }; /* gradients of a unit influence nothing else in the step */

static void note(Origin *to, Origin found) {
    found.rank = to->rank;
    memcpy(found.host, to->host, sizeof found.host);
    if (found.order < to->order) *to = found;
}

static void find_in_passes(const Execution *x, const int64_t *counts, Origin *o) {
    for (int i = 0; i < x->program->count; i++) {
        Action a = x->program->actions[i];
        bool backward = action_pass(a) != ACT_FWD;
        for (int s = 0; s < ORIGIN_STAGES; s++)
            if (counts[ORIGIN_STAGES * i + s])
                note(o, (Origin){.order =
                                     order_of(position(x->program, a.unit, backward), ORIGIN_STAGES * i + s),
                                 .kind = ORIGIN_PASS,
                                 .microbatch = a.microbatch,
                                 .unit = a.unit,
                                 .backward = backward});
    }
}

/* Fixed point also refuses finite gradients that are too large. It does not say in which microbatch. */
static void find_in_gradients(const Execution *x, const int64_t *counts, Origin *o) {
    const Engine *e = x->engine;
    for (int i = 0; i < e->model.table.count; i++) {
        int unit = e->model.table.params[i].unit;
        int64_t order = order_of(position(x->program, unit, true), AFTER_PASSES + i);
        bool known =
            x->program->microbatches == 1 || program_has_slots(x->program) || e->statistics.each_microbatch;
        for (int m = 0; m < x->program->microbatches; m++)
            if (counts[gradient_counter(e, m, i)])
                note(o,
                     (Origin){
                         .order = order, .kind = ORIGIN_GRADIENT, .microbatch = known ? m : -1, .param = i});
        if (statistics_refused(e, i) > 0)
            note(o,
                 (Origin){.order = INT64_MAX / 2 + i, .kind = ORIGIN_REFUSED, .microbatch = -1, .param = i});
    }
}

/* A skipped step has changed no weights. The counters are free by now. */
static void find_in_weights(Execution *x, Origin *o) {
    Engine *e = x->engine;
    const ParamTable *t = &e->model.table;
    int64_t *counters = statistics_origins(e, e->statistics.figures), *found;
    size_t bytes = (size_t)t->count * sizeof *found;
    counters += gradient_counter(e, 0, 0);
    OP(e->device, zero, counters, bytes);
    for (int i = 0; i < t->count; i++) {
        ParamSegment s = partition_segment(&e->plan->partition, &t->params[i]);
        if (s.count > 0)
            OP(e->device, count_nonfinite, s.count, engine_master(e, s), DTYPE_F32, counters + i);
    }
    found = mem_alloc(bytes);
    device_fetch(e->device, found, counters, bytes);
    for (int i = 0; i < t->count; i++)
        if (found[i])
            note(o, (Origin){.order = INT64_MIN + i, .kind = ORIGIN_WEIGHTS, .microbatch = -1, .param = i});
    free(found);
}

/* "layer 2". */
static void name_unit(const Program *p, int64_t unit, Text *out) {
    if (unit == 0 || unit == p->units - 1)
        text_puts(out, unit == 0 ? "the embedding" : "the head");
    else
        text_printf(out, "layer %" PRId64, unit - 1);
}

static void describe(const Execution *x, const Origin *o, Text *out) {
    const char *param = x->engine->model.table.params[o->param].name;
    switch ((OriginKind)o->kind) {
    case ORIGIN_WEIGHTS: text_printf(out, "the weights of %s", param); break;
    case ORIGIN_REFUSED:
    case ORIGIN_GRADIENT: text_printf(out, "the gradient of %s", param); break;
    case ORIGIN_PASS:
        text_printf(out, "the %s pass of ", o->backward ? "backward" : "forward");
        name_unit(x->program, o->unit, out);
        break;
    case ORIGIN_NONE: break;
    }
    if (o->microbatch >= 0)
        text_printf(out, " in microbatch %d", program_batch(x->program, (int)o->microbatch));
    if (comm_size(x->engine->comm) > 1)
        text_printf(out, ", made by rank %" PRId64 " on host %s", o->rank, o->host);
}

bool origin_find(Execution *x, Text *out) {
    Engine *e = x->engine;
    const int64_t *counts = statistics_origins(e, e->statistics.host);
    Origin o = {.order = INT64_MAX, .kind = ORIGIN_NONE, .rank = e->plan->rank};
    host_name(o.host, sizeof o.host);
    find_in_passes(x, counts, &o);
    find_in_gradients(x, counts, &o);
    find_in_weights(x, &o);
    execution_combine(e, &o, sizeof o, take_first);
    e->statistics.each_microbatch = true;
    if (o.kind != ORIGIN_NONE) describe(x, &o, out);
    return o.kind != ORIGIN_NONE;
}
