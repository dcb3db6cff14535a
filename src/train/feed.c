/* Two sets of batches change places: while the engine runs one step, the next one's is complete, so that
 * its valid targets can be told to all ranks beforehand.
 *
 *     both[0]   the step that runs          <- batches
 *     both[1]   the next one, complete       <- next        and the other way around in the step after
 *
 * A batch is copied out of the loader's memory, which goes around in microbatches, not in steps.
 * Everything is allocated in feed_open. */
#include "train/feed.h"

#include <stdlib.h>
#include <string.h>

/* A microbatch is four rows of `row` numbers in one stretch of memory: inputs, targets, positions, first
 * keys. */
static Batch *lay_out(const Feed *f, int64_t row, int32_t *memory) {
    Batch *b = mem_alloc_array((size_t)f->microbatches, sizeof *b);
    for (int64_t m = 0; m < f->microbatches; m++) {
        int32_t *p = memory + 4 * row * m;
        b[m] = (Batch){.tokens = row,
                       .inputs = p,
                       .targets = p + row,
                       .positions = p + 2 * row,
                       .first_key = p + 3 * row};
    }
    return b;
}

ErrorCode feed_open(Feed *f, const Config *c, const Layout *l, int dp_rank, const Dataset *d, int64_t first,
                    int64_t steps, Error *err) {
    *f = (Feed){.sequences = l->sequences, .microbatches = l->microbatches, .samples = layout_samples(l)};
    int64_t row = f->sequences * c->train.context, own = f->sequences * f->microbatches;
    f->tokens = f->samples * c->train.context;
    f->left = steps;
    f->memory = mem_alloc_array((size_t)(2 * 4 * own * c->train.context), sizeof *f->memory);
    for (int i = 0; i < 2; i++) f->both[i] = lay_out(f, row, f->memory + i * 4 * own * c->train.context);
    f->dataset = d;
    if (c->data.audit) f->used = mem_alloc_array((size_t)own, sizeof *f->used);
    /* Rank d of a step takes the samples from d * own on; the next step's lie one whole step further.
     * `first` is where the run stands, in samples. */
    f->layout = (LoaderLayout){.first = (uint64_t)(first + dp_rank * own),
                               .sequences = f->sequences,
                               .microbatches = f->microbatches,
                               .microbatch_stride = f->sequences,
                               .step_stride = f->samples};
    return loader_open(&f->loader, d, &f->layout, c->data.prefetch, err);
}

void feed_close(Feed *f) {
    loader_close(f->loader);
    free(f->both[0]);
    free(f->both[1]);
    free(f->memory);
    free(f->used);
    *f = (Feed){0};
}

static void copy(Batch *to, const Batch *from) {
    size_t bytes = (size_t)from->tokens * sizeof(int32_t);
    memcpy(to->inputs, from->inputs, bytes);
    memcpy(to->targets, from->targets, bytes);
    memcpy(to->positions, from->positions, bytes);
    memcpy(to->first_key, from->first_key, bytes);
    to->valid = from->valid;
}

/* Hashes what stands in the batch now: the very tokens that the step will train on. */
static void note_samples(Feed *f, int64_t m) {
    const Batch *b = &f->batches[m];
    uint64_t first = loader_sample(&f->layout, f->begun);
    for (int64_t r = 0, at = 0; r < f->sequences; r++, at += b->tokens / f->sequences)
        f->used[m * f->sequences + r] =
            audit_sample(f->dataset, first + (uint64_t)r, b->inputs + at, b->targets + at);
}

/* *waited grows by the time for which the loader had nothing ready. */
static ErrorCode fetch(Feed *f, Batch *into, double *waited, Error *err) {
    for (int64_t m = 0; m < f->microbatches; m++) {
        Batch b;
        double seconds;
        TRY(loader_next(f->loader, &b, &seconds, err));
        *waited += seconds;
        copy(&into[m], &b);
    }
    return OK;
}

ErrorCode feed_next(Feed *f, double *waited, Error *err) {
    *waited = 0;
    if (!f->next) TRY(fetch(f, f->both[0], waited, err)); /* the first step */
    f->batches = f->next ? f->next : f->both[0];
    /* The one that does not hold this step. */
    f->next = f->both[f->batches == f->both[0]];
    for (int64_t m = 0; m < f->microbatches; m++, f->begun++)
        if (f->used) note_samples(f, m);
    /* After the last step nothing is read: the loader may be at the end of what was asked of it. */
    if (--f->left > 0) return fetch(f, f->next, waited, err);
    f->next = NULL;
    return OK;
}
