/* Validation loss over the held-out samples, computed by all ranks together.
 *
 * All ranks run the same number of rounds, even if fewer samples than ranks are left: a rank without a sample
 * evaluates a batch without valid targets. A rank that stopped earlier would leave the others waiting in the
 * next gather or receive.
 *
 * Sums are exact and each number is counted once (tokens by the first stage of a pipeline, losses by the
 * last, where they are made), so the result has the same bits on every mesh. */
#include "engine/evaluate.h"

#include <math.h>

#include "data/loader.h"
#include "engine/execution.h"

enum { PREFETCH = 2 };

/* Bytes of text that the targets stand for. Bits per byte can compare models with different tokenizers. */
static int64_t target_bytes(const Tokenizer *t, const Batch *b) {
    int64_t sum = 0;
    for (int64_t i = 0; i < b->tokens; i++) sum += (int64_t)tokenizer_text_bytes(t, b->targets[i]);
    return sum;
}

/* Sums over ranks. */
typedef struct Sums {
    LossSum loss;
    int64_t tokens, bytes;
} Sums;

static void combine(void *into, const void *from) {
    Sums *a = into;
    const Sums *b = from;
    exact_merge(&a->loss.sum, &b->loss.sum);
    exact_normalise(&a->loss.sum);
    a->loss.nonfinite += b->loss.nonfinite;
    a->tokens += b->tokens;
    a->bytes += b->bytes;
}

static ErrorCode sum_up(Engine *e, Loader *loader, const Tokenizer *t, int64_t rounds, Sums *sums,
                        Error *err) {
    /* The ranks of a pipeline see the same batches: the first one counts their tokens, the last one has the
     * loss. */
    bool counts = partition_counts_batches(&e->plan->partition);
    for (int64_t i = 0; i < rounds; i++) {
        Batch b;
        double waited;
        TRY(loader_next(loader, &b, &waited, err));
        engine_evaluate(e, &b, &sums->loss);
        if (counts) sums->tokens += b.valid, sums->bytes += target_bytes(t, &b);
    }
    return OK;
}

/* Samples are divided as in training: data-parallel ranks take them side by side, and all ranks of a pipeline
 * take the same. */
static ErrorCode sum_set(Engine *e, const Dataset *d, const Tokenizer *t, ValidationSet set, Sums *sums,
                         Error *err) {
    const Mesh *mesh = &e->plan->partition.mesh;
    int64_t sequences = e->plan->spec.tokens / dataset_context(d), all = sequences * mesh_dp_degree(mesh);
    Loader *loader;
    LoaderLayout layout = {.validation = true,
                           .first = set.first + (uint64_t)(sequences * mesh_dp_rank(mesh, e->plan->rank)),
                           .sequences = sequences,
                           .microbatches = 1,
                           .microbatch_stride = sequences,
                           .step_stride = all,
                           .limit = set.first + set.samples};
    TRY(loader_open(&loader, d, &layout, PREFETCH, err));
    ErrorCode code = sum_up(e, loader, t, ((int64_t)set.samples + all - 1) / all, sums, err);
    loader_close(loader);
    return code == OK ? comm_combine(e->comm, sums, sizeof *sums, combine, err) : code;
}

static Evaluation figures_of(const Sums *s) {
    double sum = s->loss.nonfinite ? (double)NAN : exact_value(&s->loss.sum);
    return (Evaluation){.loss = sum / (double)s->tokens,
                        .tokens = s->tokens,
                        .nonfinite = s->loss.nonfinite,
                        .bytes = s->bytes,
                        .bits_per_byte = s->bytes ? sum / log(2) / (double)s->bytes : (double)NAN};
}

/* The sums of all sets together are the exact sums of theirs, so no token is evaluated twice. */
ErrorCode evaluate(Engine *e, const Dataset *d, const Tokenizer *t, int64_t samples, Evaluation *out,
                   Evaluation *sets, Error *err) {
    Sums all = {.tokens = 0};
    for (size_t i = 0; i < dataset_validation_sets(d); i++) {
        ValidationSet set = dataset_validation_set(d, i);
        Sums sums = {.tokens = 0};
        if (samples > 0 && (uint64_t)samples < set.samples) set.samples = (uint64_t)samples;
        TRY(sum_set(e, d, t, set, &sums, err));
        if (sets) sets[i] = figures_of(&sums);
        combine(&all, &sums);
    }
    *out = figures_of(&all);
    return OK;
}
