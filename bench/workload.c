#include "workload.h"

#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/text.h"

/* tiny only checks that a benchmark runs. 1B: Llama 3.2's. */
static const Size sizes[] = {{"tiny", 64, 2, 4, 2, 96, 256, false},
                             {"5M", 256, 6, 4, 2, 704, 4096, false},
                             {"15M", 384, 6, 6, 6, 1280, 4096, false},
                             {"50M", 512, 6, 8, 8, 1408, 32000, false},
                             {"125M", 768, 12, 12, 12, 2048, 32000, false},
                             {"125M-gqa", 768, 12, 12, 4, 2048, 32000, false},
                             {"125M-16h", 768, 12, 16, 16, 2048, 32000, false},
                             {"1B", 2048, 16, 32, 8, 8192, 128256, true}};

const Size *workload_size(const char *name) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (strcmp(sizes[i].name, name) == 0) return &sizes[i];
    return NULL;
}

ModelConfig workload_model(const Size *s, int64_t context) {
    return (ModelConfig){.vocab_size = s->vocab,
                         .hidden_size = s->hidden,
                         .intermediate_size = s->intermediate,
                         .num_hidden_layers = s->layers,
                         .num_attention_heads = s->heads,
                         .num_key_value_heads = s->kv_heads,
                         .head_dim = s->hidden / s->heads,
                         .max_position_embeddings = context,
                         .rms_norm_eps = 1e-5,
                         .tie_word_embeddings = s->tied,
                         .rope_theta = 10000,
                         .rope_scaling = ROPE_NONE,
                         .bos_token_id = -1,
                         .eos_token_id = -1};
}

Batch workload_batch(int64_t sequences, int64_t context, int64_t vocab, uint64_t key) {
    Batch b = {.tokens = sequences * context, .valid = sequences * context};
    int32_t **arrays[] = {&b.inputs, &b.targets, &b.positions, &b.first_key};
    for (int i = 0; i < 4; i++) *arrays[i] = mem_alloc_array((size_t)b.tokens, sizeof(int32_t));
    for (int64_t t = 0; t < b.tokens; t++) {
        b.inputs[t] = (int32_t)(rng_u64(key, (uint64_t)t) % (uint64_t)vocab);
        b.targets[t] = (int32_t)(rng_u64(key, (uint64_t)t + 1) % (uint64_t)vocab);
        b.positions[t] = (int32_t)(t % context);
        b.first_key[t] = (int32_t)(t - t % context);
    }
    return b;
}

void workload_free(Batch *batches, int count) {
    for (int i = 0; i < count; i++) {
        free(batches[i].inputs);
        free(batches[i].targets);
        free(batches[i].positions);
        free(batches[i].first_key);
    }
    free(batches);
}

const OptimizerOptions workload_optimizer = {
    .settings = {.lr = 1e-4, .weight_decay = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
