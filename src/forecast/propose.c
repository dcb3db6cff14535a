/* Depth and width follow from M, the FLOPs of a token in the blocks: the width is near 64 times the depth,
 * within the wide optimum of Kaplan et al., "Scaling Laws for Neural Language Models", 2020, figure 5. */
#include "forecast/propose.h"

#include <math.h>

#include "base/clock.h"

/* The laws' experiments. */
#define LEAST_COMPUTE 1e17
#define MOST_COMPUTE 3e20

static double law(double factor, double exponent, double compute) { return factor * pow(compute, exponent); }
static double law_model(double compute) { return law(0.1715, 0.5243, compute); }
static double law_tokens(double compute) { return law(5.8316, 0.4757, compute); }
static double law_batch(double compute) { return law(0.2920, 0.3271, compute); }
static double law_lr(double compute) { return law(0.3118, -0.1250, compute); }

/* ---- shapes ---- */

enum { MOST_WIDTH = 32768, ASPECT = 64, WIDE = 2048 };

static int64_t head_of(int64_t width) { return width < WIDE ? 64 : 128; }

/* FLOPs of a token in a block, as the laws count: parameters and attention without a mask. */
static double block_flops(int64_t width, int64_t context) {
    return 72.0 * (double)(width * width) + 12.0 * (double)(width * context);
}

static int64_t mlp_of(const ModelConfig *m, int64_t width) {
    bool gated = model_dim(m, DIM_GATE_UP) > m->intermediate_size;
    return gated ? (8 * width / 3 + 63) / 64 * 64 : 4 * width;
}

static void set_shape(ModelConfig *m, int64_t width, int64_t layers) {
    m->intermediate_size = mlp_of(m, width);
    m->hidden_size = width;
    m->num_hidden_layers = layers;
    m->head_dim = head_of(width);
    m->num_attention_heads = m->num_key_value_heads = width / m->head_dim;
}

/* Near `flops` in the blocks, and near the usual aspect. The heads divide by `tp`. */
static void find_shape(ModelConfig *m, double flops, int64_t context, int64_t tp) {
    double least = INFINITY;
    int64_t best = head_of(0) * tp, depth = 1;
    for (int64_t width = best; width <= MOST_WIDTH; width += head_of(0) * tp) {
        if (width % (head_of(width) * tp) != 0) continue;
        double each = block_flops(width, context), layers = fmax(1, round(flops / each));
        double cost = fabs(log(layers * each / flops)) + 0.25 * fabs(log((double)width / layers / ASPECT));
        if (cost >= least) continue;
        least = cost, best = width, depth = (int64_t)layers;
    }
    set_shape(m, best, depth);
}

/* ---- the budget ---- */

static ModelConfig shape_for(const Config *c, double compute) {
    ModelConfig m = c->model.shape;
    find_shape(&m, law_model(compute), c->train.context, c->mesh.tp > 1 ? c->mesh.tp : 1);
    return m;
}

static double flops_for(const Config *c, double compute) {
    ModelConfig m = shape_for(c, compute);
    return model_flops_per_token(&m, c->train.context) * law_tokens(compute);
}

/* All FLOPs are more than C at most contexts, and grow with it but for small jumps between shapes. */
static double compute_for(const Config *c, double budget) {
    double low = log(budget) - 20, high = log(budget) + 2;
    for (int i = 0; i < 60; i++) {
        double middle = 0.5 * (low + high);
        if (flops_for(c, exp(middle)) < budget)
            low = middle;
        else
            high = middle;
    }
    return exp(low);
}

static ErrorCode check_model(const Config *c, Error *err) {
    const ModelConfig *m = &c->model.shape;
    const char *what = m->num_experts > 0               ? "has experts"
                       : model_is_recurrent(m)          ? "is recurrent"
                       : m->kv_lora_rank > 0            ? "has latent attention"
                       : m->adapter_rank > 0            ? "has adapters"
                       : *model_options_init(&c->model) ? "begins with given weights"
                                                        : NULL;
    if (!what) return OK;
    return error_set(err, ERR_USAGE,
                     "plan: --budget and --hours propose the shape of a dense model with attention that is "
                     "trained from the start, but this one %s: plan it without them",
                     what);
}

ErrorCode propose(Proposal *out, const Config *c, int64_t unit, double budget, Error *err) {
    TRY(check_model(c, err));
    double compute = compute_for(c, budget);
    *out = (Proposal){.budget = budget, .compute = compute, .shape = shape_for(c, compute)};
    TRY(model_config_complete(&out->shape, "the proposed shape", err));
    double each = model_flops_per_token(&out->shape, c->train.context);
    out->tokens_per_step = unit * (int64_t)fmax(1, round(law_batch(compute) / (double)unit));
    out->steps = (int64_t)(budget / each / (double)out->tokens_per_step);
    out->lr = law_lr(compute);
    if (out->steps > 0) return OK;
    return error_set(err, ERR_USAGE,
                     "plan: %.3g FLOPs are less than one step of the smallest model, %lld tokens at %.3g "
                     "FLOPs a token: expected a larger --budget or more --hours",
                     budget, (long long)out->tokens_per_step, each);
}

/* ---- output ---- */

static void put_keys(const Proposal *p, const Config *c, Text *out) {
    const ModelConfig *m = &p->shape;
    text_printf(out,
                "model: {hidden_size: %lld, intermediate_size: %lld, num_hidden_layers: %lld, "
                "num_attention_heads: %lld, num_key_value_heads: %lld, head_dim: %lld}\n"
                "train: {tokens_per_step: %lld, steps: %lld}\noptimizer: {lr: %.3g}\n",
                (long long)m->hidden_size, (long long)m->intermediate_size, (long long)m->num_hidden_layers,
                (long long)m->num_attention_heads, (long long)m->num_key_value_heads, (long long)m->head_dim,
                (long long)p->tokens_per_step, (long long)p->steps, p->lr);
    if (c->lr_schedule.warmup_steps > p->steps / 10)
        text_printf(out, "lr_schedule: {warmup_steps: %lld}\n", (long long)(p->steps / 10));
}

void propose_print(const Proposal *p, const Config *c, double rate, Text *out) {
    char parameters[32], tokens[32], steps[32], time[16];
    double all = (double)p->steps * (double)p->tokens_per_step;
    int64_t count = model_parameter_count(&p->shape);
    double used = all * model_flops_per_token(&p->shape, c->train.context);
    text_printf(out, "proposal for %.3g FLOPs, by the scaling laws of DeepSeek LLM (docs/use/planning.md)\n",
                p->budget);
    text_printf(out, "  %s parameters, %s tokens in %s steps: %.3g tokens a parameter (Chinchilla: 20)\n",
                text_count(count, parameters), text_count((int64_t)all, tokens), text_count(p->steps, steps),
                all / (double)count);
    if (rate > 0)
        text_printf(out, "  about %s at %.3g TFLOP/s, the rate of the model as configured\n",
                    clock_duration(used / rate, time), rate / 1e12);
    if (p->compute < LEAST_COMPUTE || p->compute > MOST_COMPUTE)
        text_printf(
            out,
            "  without embedding and head %.2g FLOPs: the laws were fitted from %.2g to %.2g, so this "
            "is an extrapolation\n",
            p->compute, LEAST_COMPUTE, MOST_COMPUTE);
    put_keys(p, c, out);
}
