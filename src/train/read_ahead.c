/* Two sets of batches are used alternately: while the engine runs one step, the batches of the next are
 * already complete, so all ranks can be told its valid targets beforehand.
 *
 *     both[0]   the current step           <- now
 *     both[1]   the next one, complete     <- next        swapped in the following step
 *
 * Batches are copied from the loader's memory, which is reused by microbatch, not by step. read_ahead_open
 * allocates memory for the largest steps. Where steps grow, only the loader is reopened, between two steps.
 *
 * Elsewhere called: data prefetch (DataLoader workers). */
#include "train/read_ahead.h"

#include <stdlib.h>
#include <string.h>

/* A microbatch is four consecutive rows of `row` numbers: inputs, targets, positions, first keys. */
static Batch *lay_out(const ReadAhead *f, int64_t row, int32_t *memory) {
    Batch *b = mem_alloc_array((size_t)f->most, sizeof *b);
    for (int64_t m = 0; m < f->most; m++) {
        int32_t *p = memory + 4 * row * m;
        b[m] = (Batch){.tokens = row,
                       .inputs = p,
                       .targets = p + row,
                       .positions = p + 2 * row,
                       .first_key = p + 3 * row};
    }
    return b;
}

/* Microbatches of a step on this rank, from the tokens of the step; every step has a whole number of them
 * (layout_build). */
static int64_t microbatches_of(const ReadAhead *f, int64_t step) {
    return config_step_tokens(f->config, step) / (f->sequences * f->config->train.context * f->ranks);
}

/* Rank d of a step takes the samples from d * own on; those of the next step begin one whole step later.
 * Reopened where steps grow, from the first sample that no earlier step has taken. */
static ErrorCode open_loader(ReadAhead *f, int64_t microbatches, Error *err) {
    int64_t own = f->sequences * microbatches;
    LoaderLayout layout = {.first = (uint64_t)(f->fetched_samples + f->dp_rank * own),
                           .sequences = f->sequences,
                           .microbatches = microbatches,
                           .microbatch_stride = f->sequences,
                           .step_stride = own * f->ranks};
    loader_close(f->loader);
    f->loader = NULL;
    f->loads = microbatches;
    return loader_open(&f->loader, f->dataset, &layout, f->config->data.prefetch, err);
}

ErrorCode read_ahead_open(ReadAhead *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d,
                          const ReadAheadStart *from, Error *err) {
    *f = (ReadAhead){.config = c,
                     .dataset = d,
                     .sequences = l->sequences,
                     .most = l->microbatches,
                     .ranks = mesh_dp_degree(&l->mesh),
                     .dp_rank = dp_rank,
                     .fetched = from->step,
                     .fetched_samples = from->sample,
                     .left = c->train.steps - from->step};
    int64_t row = f->sequences * c->train.context, own = f->sequences * f->most;
    f->memory = mem_alloc(STEPS_READ_AHEAD * batch_bytes(layout_tokens(l, c->train.context)));
    for (int i = 0; i < STEPS_READ_AHEAD; i++)
        f->both[i].batches = lay_out(f, row, f->memory + i * 4 * own * c->train.context);
    if (c->data.audit) f->used = mem_alloc_array((size_t)own, sizeof *f->used);
    return open_loader(f, microbatches_of(f, f->fetched), err);
}

void read_ahead_close(ReadAhead *f) {
    loader_close(f->loader);
    for (int i = 0; i < STEPS_READ_AHEAD; i++) free(f->both[i].batches);
    free(f->memory);
    free(f->used);
    *f = (ReadAhead){0};
}

static void copy(Batch *to, const Batch *from) {
    size_t bytes = (size_t)from->tokens * sizeof(int32_t);
    memcpy(to->inputs, from->inputs, bytes);
    memcpy(to->targets, from->targets, bytes);
    memcpy(to->positions, from->positions, bytes);
    memcpy(to->first_key, from->first_key, bytes);
    to->valid = from->valid;
}

bool read_ahead_restore(ReadAhead *f, int64_t m, const Batch *again) {
    Batch *held = &f->now->batches[m];
    size_t bytes = (size_t)again->tokens * sizeof(int32_t);
    bool same = memcmp(held->inputs, again->inputs, bytes) == 0 &&
                memcmp(held->targets, again->targets, bytes) == 0 &&
                memcmp(held->positions, again->positions, bytes) == 0 &&
                memcmp(held->first_key, again->first_key, bytes) == 0;
    copy(held, again);
    return !same;
}

/* Hashes what is in the batches now: the very tokens that the step will train on. */
static void note_samples(ReadAhead *f, const ReadAheadStep *s) {
    for (int64_t m = 0; f->used && m < s->microbatches; m++) {
        const Batch *b = &s->batches[m];
        for (int64_t r = 0, at = 0; r < f->sequences; r++, at += b->tokens / f->sequences) {
            int64_t own = m * f->sequences + r;
            f->used[own] =
                audit_sample(f->dataset, (uint64_t)(s->first + own), b->inputs + at, b->targets + at);
        }
    }
}

/* Adds to *waited the time for which the loader had nothing ready. */
static ErrorCode fetch(ReadAhead *f, ReadAheadStep *into, double *waited, Error *err) {
    int64_t count = microbatches_of(f, f->fetched), own = count * f->sequences;
    if (count != f->loads) TRY(open_loader(f, count, err));
    into->microbatches = count;
    into->samples = own * f->ranks;
    into->tokens = into->samples * f->config->train.context;
    into->first = f->fetched_samples + f->dp_rank * own;
    for (int64_t m = 0; m < count; m++) {
        Batch b;
        double seconds;
        TRY(loader_next(f->loader, &b, &seconds, err));
        *waited += seconds;
        copy(&into->batches[m], &b);
    }
    f->fetched++;
    f->fetched_samples += into->samples;
    return OK;
}

ErrorCode read_ahead_next(ReadAhead *f, double *waited, Error *err) {
    *waited = 0;
    if (!f->next) TRY(fetch(f, &f->both[0], waited, err)); /* the first step */
    f->now = f->next ? f->next : &f->both[0];
    /* The set that does not hold this step. */
    f->next = &f->both[f->now == &f->both[0]];
    note_samples(f, f->now);
    /* After the last step nothing is read: the loader may be at the end of its range. */
    if (--f->left > 0) return fetch(f, f->next, waited, err);
    f->next = NULL;
    return OK;
}
