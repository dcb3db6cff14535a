/* A training run in one file: a two-layer Llama learns the bytes of a text, through weft's own plan, program
 * and engine. It is what `weft train` does, without configuration, tokenizer, checkpoints and supervision.
 *
 *     build/one_step README.md
 *
 * A run has four stages, and each stage only reads what the one before it made:
 *
 *     describe    the model's shape and the optimizer's settings, as plain structs
 *     plan        which actions one optimizer step consists of, and where each buffer lies;
 *                 nothing is allocated yet
 *     open        the engine takes exactly the memory that was planned
 *     step        the engine executes the list of actions; nothing is allocated in a step */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "engine/engine.h"

enum { VOCAB = 256, CONTEXT = 64, SEQUENCES = 4, TOKENS = CONTEXT * SEQUENCES, MICROBATCHES = 2, STEPS = 20 };

/* ---- 1. describe ---- */

/* Names are those of Hugging Face's config.json. Token ids are bytes, hence a vocabulary of 256. */
static const ModelConfig shape = {.vocab_size = VOCAB,
                                  .hidden_size = 64,
                                  .intermediate_size = 192,
                                  .num_hidden_layers = 2,
                                  .num_attention_heads = 4,
                                  .num_key_value_heads = 2,
                                  .head_dim = 16,
                                  .max_position_embeddings = CONTEXT,
                                  .rms_norm_eps = 1e-5,
                                  .rope_theta = 10000,
                                  .rope_scaling = ROPE_NONE,
                                  .bos_token_id = -1,
                                  .eos_token_id = -1};

/* AdamW with fp32 moments, gradients clipped at a norm of 1. */
static const OptimizerOptions optimizer = {.settings = {.kind = OPTIMIZER_ADAMW,
                                                        .states = DTYPE_F32,
                                                        .lr = 3e-3,
                                                        .weight_decay = 0.1,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.95,
                                                        .eps = 1e-8},
                                           .clip = 1,
                                           .clip_norm = 2};

/* ---- 2. plan ---- */

/* A step of two microbatches on one rank. On a mesh the layout has more ranks and pipeline stages, and the
 * plan of each rank is made by the same call. */
static ErrorCode make_plan(RankPlan *plan, const Device *device, Error *err) {
    RankSpec spec = {.model = shape,
                     .compute = DTYPE_F32,
                     .tokens = TOKENS,
                     .positions = CONTEXT,
                     .optimizer = &optimizer};
    Layout layout;
    TRY(layout_single(&layout, &spec.model, MICROBATCHES, false, err));
    ErrorCode code = rank_plan(plan, &spec, &layout, 0, device, err);
    layout_free(&layout);
    return code;
}

/* The program is data: it can be printed, checked, simulated and counted without being run. */
static void print_plan(const RankPlan *plan) {
    Text program = {.data = NULL};
    program_print(&plan->program, false, &program);
    printf("one optimizer step is this list of %d actions:\n%s\n", plan->program.count, program.data);
    text_free(&program);
}

/* ---- 3. data ---- */

/* Samples are windows of CONTEXT + 1 bytes: window k starts at byte k * CONTEXT, and the text repeats. The
 * target of a token is the byte that follows it. Each window is a sequence of its own: positions start at 0,
 * and no token attends to a key before its window (first_key). */
static void fill(Batch *b, const char *text, size_t length, int first_window) {
    for (int t = 0; t < TOKENS; t++) {
        size_t at = ((size_t)first_window * CONTEXT + (size_t)t) % (length - 1);
        b->inputs[t] = (unsigned char)text[at];
        b->targets[t] = (unsigned char)text[at + 1];
        b->positions[t] = t % CONTEXT;
        b->first_key[t] = t - t % CONTEXT;
    }
}

static Batch new_batch(void) {
    return (Batch){.tokens = TOKENS,
                   .inputs = mem_alloc_array(TOKENS, sizeof(int32_t)),
                   .targets = mem_alloc_array(TOKENS, sizeof(int32_t)),
                   .positions = mem_alloc_array(TOKENS, sizeof(int32_t)),
                   .first_key = mem_alloc_array(TOKENS, sizeof(int32_t)),
                   .valid = TOKENS}; /* targets that count: none is -1 here */
}

static void free_batch(Batch *b) {
    free(b->inputs);
    free(b->targets);
    free(b->positions);
    free(b->first_key);
}

/* ---- 4. step ---- */

/* The loss is the mean cross-entropy over the target tokens of the whole step, the gradient norm that of the
 * whole model before clipping: on a mesh, every rank would get the same bits. */
static void train(Engine *engine, const char *text, size_t length) {
    Batch batches[MICROBATCHES];
    for (int m = 0; m < MICROBATCHES; m++) batches[m] = new_batch();
    for (int step = 0; step < STEPS; step++) {
        StepOptions options = {.lr_factor = fmin(1, (step + 1) / 5.0), .clip = 1, .clip_norm = 2};
        StepResult result;
        for (int m = 0; m < MICROBATCHES; m++)
            fill(&batches[m], text, length, (step * MICROBATCHES + m) * SEQUENCES);
        engine_step(engine, batches, &options, &result);
        printf("step %2d  loss %.4f  gradient norm %.4f\n", step + 1, result.loss, result.grad_norm);
    }
    for (int m = 0; m < MICROBATCHES; m++) free_batch(&batches[m]);
}

/* Device, plan and communicator must live as long as the engine, which is closed first. */
static ErrorCode run(const char *text, size_t length, Error *err) {
    Device device;
    RankPlan plan;
    Comm *comm = NULL;
    Engine *engine = NULL;
    TRY(device_open(&device, "auto", 0, 1, err)); /* the fastest kernels of this CPU, one thread */
    ErrorCode code = make_plan(&plan, &device, err);
    if (code == OK) {
        print_plan(&plan);
        code = comm_open_transport(&comm, NULL, err); /* no transport: a world of one rank */
    }
    if (code == OK) code = engine_open(&engine, &plan, &device, comm, err);
    if (code == OK) {
        printf("memory planned and taken: %.1f MiB\n\n", (double)engine_bytes(engine) / 0x1p20);
        engine_initialise(engine, INIT_NORMAL, 0.02, 42);
        train(engine, text, length);
    }
    engine_close(engine);
    comm_close(comm);
    rank_plan_free(&plan);
    device_close(&device);
    return code;
}

int main(int argc, char **argv) {
    Error err = {.code = OK};
    char *text = NULL;
    size_t length = 0;
    ErrorCode code = OK;
    if (argc != 2) code = error_set(&err, ERR_USAGE, "usage: one_step FILE (a text to learn)");
    if (code == OK) code = file_read(argv[1], (size_t)1 << 30, &text, &length, &err);
    if (code == OK && length < 2)
        code = error_set(&err, ERR_DATA, "%s: found %zu bytes, expected at least 2", argv[1], length);
    if (code == OK) code = run(text, length, &err);
    if (code != OK) fprintf(stderr, "one_step: %s\n", err.message);
    free(text);
    return (int)code;
}
