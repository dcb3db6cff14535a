/* A microbatch of a step computed again, for a comparison in bits (train/replay_check.c).
 *
 *     before the step   engine_replay: another rank's microbatch, passes only    --> hashes `other`
 *     in the step       each gradient of this rank's microbatch, when complete   --> hashes `own`
 *     NORM              own of the owner == other of who replayed it? else no update is made
 *
 * The gradient of a microbatch is a function of weights and sample numbers, so ranks with the same weights
 * make the same bits. Hashes are taken before gradients are reduced. A microbatch is computed again before
 * the step, because the sums of the step are not in use then, and all of the step's memory is free. */
#include <stdlib.h>
#include <xxhash.h>

#include "engine/execution.h"

size_t engine_prints(const Engine *e) { return (size_t)e->model.table.count + 2; }

const char *engine_print_name(const Engine *e, size_t i) {
    size_t params = (size_t)e->model.table.count;
    if (i == params + 1) return "the losses";
    return e->model.table.params[i < params ? i : 0].name; /* params: the tied head */
}

static StepReplay *replay_of(const Execution *x, int microbatch) {
    StepReplay *r = x->training ? x->options->replay : NULL;
    return r && r->microbatch == program_batch(x->program, microbatch) ? r : NULL;
}

void replay_losses(const Execution *x, int microbatch) {
    StepReplay *r = replay_of(x, microbatch);
    Engine *e = x->engine;
    if (!r) return;
    uint64_t *hash = &r->own[e->model.table.count + 1];
    *hash = tensor_hash(&e->hash, x->pass.losses, (size_t)e->model.tokens * sizeof(float), *hash);
}

void replay_gradients(const Execution *x, int unit, Flat flat, int microbatch) {
    StepReplay *r = replay_of(x, microbatch);
    Engine *e = x->engine;
    const ParamTable *t = &e->model.table;
    LocalGradient g = {.param = NULL};
    while (r && gradient_next(x, unit, flat, &g)) {
        uint64_t *hash = &r->own[unit == t->units ? t->count : g.index]; /* units: the tied head */
        size_t bytes = (size_t)g.rows * (size_t)g.param->count * sizeof *g.first;
        for (int i = 0; !g.param->frozen && i < g.count; i++)
            *hash = tensor_hash(&e->hash, g.first + (size_t)i * g.apart, bytes, *hash);
    }
}

static uint64_t digest(const Engine *e, const uint64_t *prints) {
    return XXH3_64bits(prints, engine_prints(e) * sizeof *prints);
}

/* Each rank has its own two places in the record; the other ranks' are 0. The first number is their count. */
static void merge(void *into, const void *from) {
    uint64_t *a = into;
    const uint64_t *b = from;
    for (uint64_t i = 1; i <= b[0]; i++) a[i] |= b[i];
}

bool replay_differs(Execution *x) {
    Engine *e = x->engine;
    StepReplay *r = x->options->replay;
    size_t world = (size_t)comm_size(e->comm), rank = (size_t)e->plan->rank;
    uint64_t *all = mem_alloc_array(1 + 2 * world, sizeof *all), *own = all + 1, *other = own + world;
    all[0] = 2 * world;
    own[rank] = digest(e, r->own), other[rank] = digest(e, r->other);
    execution_combine(e, all, (1 + 2 * world) * sizeof *all, merge);
    r->differs = false;
    for (size_t i = 0; i < world; i++) r->differs |= other[i] != own[r->owners[i]];
    free(all);
    return r->differs;
}
