#include "train/evaluate.h"

#include <math.h>

#include "data/loader.h"

enum { PREFETCH = 2 };

static int64_t target_bytes(const Tokenizer *t, const Batch *b) {
    int64_t sum = 0;
    for (int64_t i = 0; i < b->tokens; i++) {
        int32_t id = b->targets[i];
        size_t length;
        if (id < 0 || id == tokenizer_bos(t) || id == tokenizer_eos(t)) continue;
        if (tokenizer_token_bytes(t, id, &length)) sum += (int64_t)length;
    }
    return sum;
}

static ErrorCode sum_up(Engine *e, Loader *loader, const Tokenizer *t, int64_t batches, Evaluation *out, Error *err) {
    double sum = 0;
    for (int64_t i = 0; i < batches; i++) {
        Batch b;
        double waited;
        TRY(loader_next(loader, &b, &waited, err));
        sum += engine_evaluate(e, &b);
        out->tokens += b.valid;
        out->bytes += target_bytes(t, &b);
    }
    out->loss = sum / (double)out->tokens;
    out->bits_per_byte = out->bytes ? sum / log(2) / (double)out->bytes : (double)NAN;
    return OK;
}

ErrorCode evaluate(Engine *e, const Dataset *d, const Tokenizer *t, int64_t samples, Evaluation *out, Error *err) {
    int64_t there = (int64_t)dataset_validation_samples(d), sequences = e->spec.tokens / dataset_context(d);
    Loader *loader;
    *out = (Evaluation){0};
    if (samples == 0 || samples > there) samples = there;
    LoaderLayout layout = {.validation = true,
                           .sequences = sequences,
                           .microbatches = 1,
                           .microbatch_stride = sequences,
                           .step_stride = sequences};
    TRY(loader_open(&loader, d, &layout, PREFETCH, err));
    ErrorCode code = sum_up(e, loader, t, (samples + sequences - 1) / sequences, out, err);
    loader_close(loader);
    return code;
}
