/* A shape, tokens, batch and learning rate for a number of training FLOPs: `weft plan --budget` and
 * `--hours`.
 *
 * By the scaling laws of DeepSeek LLM (DeepSeek-AI, "DeepSeek LLM: Scaling Open-Source Language Models with
 * Longtermism", 2024, section 3), fitted to dense models of 1e17 to 3e20 FLOPs. With C = M D, M being the
 * FLOPs of a token in the blocks and D the tokens:
 *
 *     M = 0.1715 C^0.5243    D = 5.8316 C^0.4757    batch = 0.2920 C^0.3271    lr = 0.3118 C^-0.1250
 *
 * C leaves out embedding and head, which are most of a small model, so C is chosen such that all FLOPs of the
 * run are the budget. */
#ifndef WEFT_FORECAST_PROPOSE_H
#define WEFT_FORECAST_PROPOSE_H

#include "config/config.h"

typedef struct Proposal {
    double budget;  /* FLOPs of the run, as model_flops_per_token counts them */
    double compute; /* C of the laws */
    ModelConfig shape;
    int64_t steps, tokens_per_step;
    double lr;
} Proposal;

/* For the family, vocabulary and context of `c`, whose steps have multiples of `unit` tokens. ERR_USAGE where
 * the laws say nothing about the model, or the budget is below one step. */
ErrorCode propose(Proposal *out, const Config *c, int64_t unit, double budget, Error *err);
/* Appends the proposal with its keys as YAML. `rate`: FLOP/s of the model in training on all ranks together;
 * 0: unknown. */
void propose_print(const Proposal *p, const Config *c, double rate, Text *out);

#endif
