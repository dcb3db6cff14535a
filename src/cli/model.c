/* Opening a model for use: directory, tokenizer, shape, plan, memory, weights, in this order; the weights'
 * headers are compared with the shape before memory is taken by it.
 *
 * For generate and eval. One rank, no optimizer, nothing kept for a backward pass: the plan says so, and
 * the memory taken is the plan's. */
#include "cli/model.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/find.h"
#include "checkpoint/modelfiles.h"
#include "model/families/family.h"
#include "train/state.h"

/* Only these two, which every reader of safetensors knows. */
ErrorCode stored_type(const Arguments *args, SafeType *out, Error *err) {
    const char *name = arguments_flag(args, "--dtype");
    *out = name && strcmp(name, "bf16") == 0 ? SAFE_BF16 : SAFE_F32;
    if (!name || *out == SAFE_BF16 || strcmp(name, "fp32") == 0) return OK;
    return error_set(err, ERR_USAGE, "--dtype is \"%s\": expected fp32 or bf16", name);
}

static const char *weights_of(const OpenModel *m) { return m->adapter.dir ? m->adapter.base : m->dir; }

/* An adapter may come without a tokenizer: then it is its base's. */
static ErrorCode open_adapter(OpenModel *m, const Arguments *args, Error *err) {
    const char *base = arguments_flag(args, "--base");
    if (!adapter_is(m->dir) && base)
        return error_set(err, ERR_USAGE, "--base goes with an adapter, and %s is a model", m->dir);
    if (!adapter_is(m->dir)) return OK;
    TRY(adapter_open(&m->adapter, m->dir, base, err));
    char *own = path_join(m->dir, "tokenizer.json");
    bool has_own = file_exists(own);
    free(own);
    if (has_own) return OK;
    free(m->dir);
    m->dir = mem_strdup(m->adapter.base);
    return OK;
}

/* The model's own, unless another is named: a model directory may come without. */
static ErrorCode open_tokenizer(OpenModel *m, const Arguments *args, Error *err) {
    const char *spec = arguments_flag(args, "--tokenizer");
    if (spec) return tokenizer_open(&m->tokenizer, spec, err);
    return tokenizer_open(&m->tokenizer, m->dir, err);
}

/* By default what the processor multiplies natively, as train.compute: auto does. */
static ErrorCode compute_type(const Arguments *args, const Device *d, Dtype *out, Error *err) {
    const char *name = arguments_flag(args, "--compute");
    *out = d->native_bf16 ? DTYPE_BF16 : DTYPE_F32;
    if (!name) return OK;
    if (strcmp(name, "fp32") != 0 && strcmp(name, "bf16") != 0)
        return error_set(err, ERR_USAGE, "--compute is \"%s\": expected fp32 or bf16", name);
    *out = strcmp(name, "fp32") == 0 ? DTYPE_F32 : DTYPE_BF16;
    return OK;
}

/* A token beyond the embedding would be read out of bounds. */
static ErrorCode read_shape(const OpenModel *m, ModelConfig *shape, Error *err) {
    char *path = path_join(weights_of(m), "config.json");
    ErrorCode code = model_config_read(shape, path, err);
    free(path);
    if (code == OK && tokenizer_vocab_size(m->tokenizer) > shape->vocab_size)
        code = error_set(err, ERR_DATA,
                         "the tokenizer has %d entries but the model only %lld: this is not its tokenizer",
                         tokenizer_vocab_size(m->tokenizer), (long long)shape->vocab_size);
    return code;
}

/* What was asked for, else what the model is for, within shape.most. */
static int64_t context_of(const ModelConfig *c, PassShape shape) {
    int64_t longest = c->max_position_embeddings;
    if (shape.context > 0) return shape.context;
    return shape.most > 0 && longest > shape.most ? shape.most : longest;
}

/* Angles can be made for any position; learned positions end. */
static ErrorCode check_positions(const ModelConfig *c, int64_t positions, Error *err) {
    bool learned = model_family(c)->arch.learned_positions;
    if (!learned || positions <= c->max_position_embeddings) return OK;
    return error_set(err, ERR_USAGE,
                     "a context of %lld is asked for, but the model has learned %lld positions",
                     (long long)positions, (long long)c->max_position_embeddings);
}

/* What was opened is in `m`, to be closed by close_model after a failure too. RECOMPUTE_FULL with
 * `inference`: nothing is kept of a pass but what the next unit reads. Headers of the weights are compared
 * with the shape before the plan is made: by a wrong config.json alone any amount of memory could be asked
 * for. */
ErrorCode open_model(OpenModel *m, const char *where, const Arguments *args, PassShape shape, Error *err) {
    RankSpec spec = {.recompute = RECOMPUTE_FULL, .inference = true};
    int64_t threads = 0;
    *m = (OpenModel){0};
    TRY(arguments_int(args, "--threads", 0, 4096, &threads, err));
    TRY(checkpoint_find_weights(where, &m->dir, err));
    TRY(open_adapter(m, args, err));
    TRY(open_tokenizer(m, args, err));
    TRY(read_shape(m, &spec.model, err));
    TRY(modelfiles_check_shape(weights_of(m), &spec.model, err));
    spec.adapters = adapter_spec(&m->adapter);
    TRY(device_open_cpu(&m->device, NULL, (int)threads, err));
    TRY(compute_type(args, &m->device, &spec.compute, err));
    spec.positions = context_of(&spec.model, shape);
    TRY(check_positions(&spec.model, spec.positions, err));
    spec.tokens = shape.sequences > 0 ? shape.sequences * spec.positions : shape.tokens;
    TRY(layout_single(&m->layout, &spec.model, 1, false, err));
    TRY(rank_plan(&m->plan, &spec, &m->layout, 0, &m->device, err));
    TRY(comm_open_link(&m->comm, NULL, err));
    TRY(engine_open(&m->engine, &m->plan, &m->device, m->comm, err));
    TRY(state_load_weights(m->engine, weights_of(m), err));
    return m->adapter.dir ? state_load_adapter(m->engine, m->adapter.dir, err) : OK;
}

/* In the reverse order of opening: the engine uses the plan, the device and the link. Each of these takes
 * what was never opened, so a half-opened model can be closed. */
void close_model(OpenModel *m) {
    engine_close(m->engine);
    comm_close(m->comm);
    rank_plan_free(&m->plan);
    layout_free(&m->layout);
    device_close(&m->device);
    tokenizer_free(m->tokenizer);
    adapter_close(&m->adapter);
    free(m->dir);
    *m = (OpenModel){0};
}
