/* Opens a model for inference: directory, tokenizer, shape, plan; then memory and weights. The headers of the
 * weights are compared with the shape before memory is allocated by it.
 *
 * For generate and eval. There is no optimizer, and nothing is saved for a backward pass; the memory
 * allocated is the plan's. Several ranks are laid out like those of a training run: by a configuration in
 * which only mesh, context and microbatch are set. Whenever a rank does something alone that may fail, the
 * ranks agree on the result at once (TOGETHER), as in a run (train/trainer.c). */
#include "cli/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/fetch.h"
#include "checkpoint/find.h"
#include "checkpoint/modelfiles.h"
#include "model/families/family.h"
#include "train/agree.h"
#include "train/setup.h"
#include "train/state.h"

#define TOGETHER(m, call) TRY(comm_agree((m)->comm, (call), err))

/* Only these two types, which every reader of safetensors knows. */
ErrorCode stored_type(const Arguments *args, SafeType *out, Error *err) {
    const char *name = arguments_flag(args, "--dtype");
    *out = name && strcmp(name, "bf16") == 0 ? SAFE_BF16 : SAFE_F32;
    if (!name || *out == SAFE_BF16 || strcmp(name, "fp32") == 0) return OK;
    return error_set(err, ERR_USAGE, "--dtype is \"%s\": expected fp32 or bf16", name);
}

static const char *weights_of(const OpenModel *m) { return m->adapter.dir ? m->adapter.base : m->dir; }

/* If an adapter has no tokenizer, its base's is used. */
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

/* The model's own, unless another is named: a model directory may lack one. */
static ErrorCode open_tokenizer(OpenModel *m, const Arguments *args, Error *err) {
    const char *spec = arguments_flag(args, "--tokenizer");
    if (spec) return tokenizer_open(&m->tokenizer, spec, err);
    return tokenizer_open(&m->tokenizer, m->dir, err);
}

/* By default the dtype that the processors multiply natively, like train.compute: auto. */
static ErrorCode read_compute(OpenModel *m, const Arguments *args, Error *err) {
    const char *name = arguments_flag(args, "--compute");
    if (!name) return OK;
    if (strcmp(name, "fp32") != 0 && strcmp(name, "bf16") != 0)
        return error_set(err, ERR_USAGE, "--compute is \"%s\": expected fp32 or bf16", name);
    m->config.train.compute = strcmp(name, "fp32") == 0 ? COMPUTE_FP32 : COMPUTE_BF16;
    return OK;
}

/* Parsed like run.device, by the option table, including its errors. */
static ErrorCode read_device(OpenModel *m, const Arguments *args, Error *err) {
    const char *name = arguments_flag(args, "--device");
    char key[256];
    if (!name) return OK;
    snprintf(key, sizeof key, "run.device=%s", name);
    return options_apply_override(&m->set, key, err);
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

/* ---- end tokens ---- */

static void add_end(OpenModel *m, int64_t id) {
    if (id < 0 || id > INT32_MAX || model_ends_text(m, (int32_t)id)) return;
    token_list_reserve(&m->ends, 1);
    m->ends.ids[m->ends.count++] = (int32_t)id;
}

/* From generation_config.json, which transformers uses: a number, or a list. */
static ErrorCode read_generation_ends(OpenModel *m, const char *dir, Error *err) {
    char *path = path_join(dir, "generation_config.json");
    cJSON *root = NULL;
    ErrorCode code = file_exists(path) ? json_read(path, (size_t)1 << 24, &root, err) : OK;
    const cJSON *ends = cJSON_GetObjectItemCaseSensitive(root, "eos_token_id");
    for (const cJSON *item = json_first(ends); item; item = json_next(ends, item))
        if (cJSON_IsNumber(item) && item->valuedouble >= 0 && item->valuedouble <= INT32_MAX)
            add_end(m, (int64_t)item->valuedouble);
    cJSON_Delete(root);
    free(path);
    return code;
}

bool model_ends_text(const OpenModel *m, int32_t id) {
    for (size_t i = 0; i < m->ends.count; i++)
        if (m->ends.ids[i] == id) return true;
    return false;
}

/* The tokens of all files: an instruction-tuned model ends turns by one token and texts by another. */
static ErrorCode read_ends(OpenModel *m, const ModelConfig *c, Error *err) {
    int64_t of_model[MODEL_ENDS];
    int count, own = model_ends(c, of_model);
    const int32_t *ends = tokenizer_ends(m->tokenizer, &count);
    for (int i = 0; i < own; i++) add_end(m, of_model[i]);
    for (int i = 0; i < count; i++) add_end(m, ends[i]);
    TRY(read_generation_ends(m, weights_of(m), err));
    return m->adapter.dir ? read_generation_ends(m, m->adapter.dir, err) : OK;
}

/* The requested context, else the model's, limited by shape.most. */
static int64_t context_of(const ModelConfig *c, PassShape shape) {
    int64_t longest = c->max_position_embeddings;
    if (shape.context > 0) return shape.context;
    return shape.most > 0 && longest > shape.most ? shape.most : longest;
}

/* Rotary angles exist for any position. With dynamic scaling they depend on the length of each sequence, and
 * learned positions have a maximum: both refuse longer contexts. */
static ErrorCode check_positions(const ModelConfig *c, int64_t positions, Error *err) {
    bool learned = model_family(c)->arch.learned_positions;
    bool dynamic = rope_is_scaled(&c->rope_scaling) && c->rope_scaling.kind == ROPE_DYNAMIC;
    if ((!learned && !dynamic) || positions <= c->max_position_embeddings) return OK;
    if (dynamic)
        return error_set(err, ERR_USAGE,
                         "a context of %lld is asked for, but rope_type dynamic has other angles beyond "
                         "max_position_embeddings, %lld, which weft does not make",
                         (long long)positions, (long long)c->max_position_embeddings);
    return error_set(err, ERR_USAGE,
                     "a context of %lld is asked for, but the model has learned %lld positions",
                     (long long)positions, (long long)c->max_position_embeddings);
}

/* ---- ranks ---- */

bool model_is_key(const char *word) {
    static const char *const keys[] = {"mesh.", "numerics.tp_invariant_up_to", "numerics.etp_invariant_up_to",
                                       "numerics.cp_invariant_up_to", "comm.watchdog_s",
                                       /* Old names, which read_keys refuses with the new ones. */
                                       "numerics.canonical_", "parallel.context"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strncmp(word, keys[i], strlen(keys[i])) == 0) return true;
    return false;
}

static ErrorCode read_keys(OptionSet *set, const ModelRanks *ranks, Error *err) {
    for (int i = 0; i < ranks->key_count; i++) {
        const char *key = ranks->keys[i];
        if (!model_is_key(key))
            return error_set(err, ERR_USAGE, "\"%s\": expected keys of mesh here, as in mesh.pp=2", key);
        TRY(options_apply_override(set, key, err));
    }
    return OK;
}

ErrorCode model_check_ranks(const ModelRanks *ranks, int size, Error *err) {
    Config c = {.data.seed = 0};
    OptionSet set = {0};
    Mesh built;
    ErrorCode code = config_set_open(&set, &c, err);
    if (code == OK) code = read_keys(&set, ranks, err);
    if (code == OK) code = mesh_build(&built, &c.mesh, size, err);
    options_free(&set);
    return code;
}

ErrorCode model_watchdog(const ModelRanks *ranks, double *seconds, Error *err) {
    Config c = {.data.seed = 0};
    OptionSet set = {0};
    ErrorCode code = config_set_open(&set, &c, err);
    if (code == OK) code = read_keys(&set, ranks, err);
    *seconds = c.comm.watchdog_s;
    options_free(&set);
    return code;
}

/* Everything that must be equal on all ranks: build, passes, mesh, shape and weights. */
static ErrorCode agree_on_model(OpenModel *m, Error *err) {
    char base[65] = "", own[65] = "", both[132];
    if (comm_size(m->comm) == 1) return OK;
    TRY(agree_on_config(m->comm, &m->set, err));
    ErrorCode code = state_sample_weights(weights_of(m), base, err);
    if (code == OK && m->adapter.dir) code = modelfiles_sample(&m->adapter.files, own, err);
    TOGETHER(m, code);
    snprintf(both, sizeof both, "%s%s%s", base, *own ? " " : "", own);
    return agree_on_file(m->comm, "the fingerprint of the model", both, "give all ranks the same weights",
                         err);
}

/* ---- opening ---- */

/* Reads the command line and the model's files. Headers of the weights are compared with the shape before the
 * plan is made: a wrong config.json alone could ask for any amount of memory. */
static ErrorCode read_model(OpenModel *m, const char *where, const Arguments *args, PassShape shape,
                            const ModelRanks *ranks, RankSpec *spec, Error *err) {
    Config *c = &m->config;
    TRY(config_set_open(&m->set, c, err));
    if (ranks) TRY(read_keys(&m->set, ranks, err));
    TRY(arguments_int(args, "--threads", 0, 4096, &c->run.threads, err));
    TRY(read_compute(m, args, err));
    TRY(read_device(m, args, err));
    TRY(checkpoint_find_weights(where, &m->dir, err));
    TRY(open_adapter(m, args, err));
    TRY(open_tokenizer(m, args, err));
    TRY(read_shape(m, &spec->model, err));
    TRY(read_ends(m, &spec->model, err));
    checkpoint_warn_balance(weights_of(m));
    TRY(modelfiles_check_shape(weights_of(m), &spec->model, err));
    spec->adapters = adapter_spec(&m->adapter);
    spec->context = (CpComm)c->cp_comm;
    spec->splits = (int)c->numerics.tp_invariant_up_to;
    spec->expert_splits = (int)c->numerics.etp_invariant_up_to;
    spec->exact_chunks = (int)c->numerics.cp_invariant_up_to;
    spec->exact =
        spec->exact_chunks > 0; /* only exact sums have exact chunks, and inference has no such sums */
    spec->positions = context_of(&spec->model, shape);
    TRY(check_positions(&spec->model, spec->positions, err));
    spec->tokens = shape.sequences > 0 ? shape.sequences * spec->positions : shape.tokens;
    c->model.shape = spec->model;
    c->train.context = spec->positions;
    c->train.microbatch = shape.sequences > 0 ? shape.sequences : 1;
    return OK;
}

/* Plans the rank for its coordinates in the mesh. */
static ErrorCode plan_model(OpenModel *m, RankSpec *spec, Error *err) {
    spec->compute = m->config.train.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
    TRY(layout_build(&m->layout, &m->config, comm_size(m->comm), err));
    return rank_plan(&m->plan, spec, &m->layout, comm_rank(m->comm), &m->device, err);
}

static ErrorCode load_weights(OpenModel *m, Error *err) {
    TRY(state_load_weights(m->engine, weights_of(m), err));
    return m->adapter.dir ? state_load_adapter(m->engine, m->adapter.dir, err) : OK;
}

/* `m` holds whatever was opened, for close_model, also after a failure. RECOMPUTE_FULL with `inference`: a
 * pass keeps only the input of the next unit. */
ErrorCode open_model(OpenModel *m, const char *where, const Arguments *args, PassShape shape,
                     const ModelRanks *ranks, Error *err) {
    RankSpec spec = {.recompute = RECOMPUTE_FULL, .inference = true};
    *m = (OpenModel){.comm = ranks ? ranks->comm : NULL, .alone = !ranks};
    char *here;
    if (!ranks) TRY(comm_open_transport(&m->comm, NULL, err));
    TRY(checkpoint_find_on_ranks(where, FETCH_CACHE, m->comm, &here, err));
    ErrorCode code = read_model(m, here, args, shape, ranks, &spec, err);
    free(here);
    TOGETHER(m, code);
    TOGETHER(m, setup_device(&m->config, m->comm, 0, &m->device, err));
    TRY(agree_on_compute(m->comm, &m->config, &m->set, &m->device, err));
    TRY(agree_on_model(m, err));
    TOGETHER(m, plan_model(m, &spec, err));
    return OK;
}

ErrorCode load_model(OpenModel *m, const NeedsSpec *needs, Error *err) {
    TOGETHER(m, setup_communication(&m->config, m->comm, &m->layout.mesh, &m->device, err));
    TRY(needs_check(m->comm, &m->device, &m->plan, needs, err));
    TOGETHER(m, engine_open(&m->engine, &m->plan, &m->device, m->comm, err));
    TOGETHER(m, load_weights(m, err));
    return OK;
}

/* In the reverse order of opening: the engine uses the plan, the device and the Comm. Each of these calls
 * accepts what was never opened, so a half-opened model can be closed. A Comm of the caller may reduce on
 * this model's device, which is about to be closed. */
void close_model(OpenModel *m) {
    engine_close(m->engine);
    if (m->comm) comm_set_device(m->comm, NULL);
    if (m->alone) comm_close(m->comm);
    rank_plan_free(&m->plan);
    layout_free(&m->layout);
    device_close(&m->device);
    tokenizer_free(m->tokenizer);
    token_list_free(&m->ends);
    adapter_close(&m->adapter);
    options_free(&m->set);
    free(m->dir);
    *m = (OpenModel){0};
}
