#include "train/feed.h"

#include <stdlib.h>
#include <string.h>

ErrorCode feed_open(Feed *f, const Config *c, const Dataset *d, int64_t step, Error *err) {
    *f = (Feed){0};
    TRY(config_geometry(c, &f->sequences, &f->microbatches, err));
    int64_t row = f->sequences * c->train.context, samples = f->sequences * f->microbatches;
    f->tokens = row * f->microbatches;
    f->batches = mem_alloc_array((size_t)f->microbatches, sizeof *f->batches);
    f->memory = mem_alloc_array((size_t)(4 * f->tokens), sizeof *f->memory);
    for (int64_t m = 0; m < f->microbatches; m++) {
        int32_t *p = f->memory + 4 * row * m;
        f->batches[m] =
            (Batch){.tokens = row, .inputs = p, .targets = p + row, .positions = p + 2 * row, .first_key = p + 3 * row};
    }
    LoaderLayout layout = {.first = (uint64_t)(step * samples),
                           .sequences = f->sequences,
                           .microbatches = f->microbatches,
                           .microbatch_stride = f->sequences,
                           .step_stride = samples};
    return loader_open(&f->loader, d, &layout, c->data.prefetch, err);
}

void feed_close(Feed *f) {
    loader_close(f->loader);
    free(f->batches);
    free(f->memory);
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

ErrorCode feed_next(Feed *f, double *waited, Error *err) {
    *waited = 0;
    for (int64_t m = 0; m < f->microbatches; m++) {
        Batch b;
        double seconds;
        TRY(loader_next(f->loader, &b, &seconds, err));
        *waited += seconds;
        copy(&f->batches[m], &b);
    }
    return OK;
}
