/* Parameters and FLOPs of a model, added up over the rows and parts of its layers. */
#include "model/internal.h"

int64_t param_elements(const ModelConfig *c, const ParamRow *row) {
    int64_t rows = model_dim(c, row->rows);
    return row->cols == DIM_NONE ? rows : rows * model_dim(c, row->cols);
}

bool param_present(const ModelConfig *c, const ParamRow *row) {
    switch (row->when) {
    case WHEN_ALWAYS: return true;
    case WHEN_ATTENTION_BIAS: return c->attention_bias;
    case WHEN_MLP_BIAS: return c->mlp_bias;
    case WHEN_UNTIED: return !c->tie_word_embeddings;
    }
    return false;
}

/* Of the units first <= u < end; INT64_MAX when there are more than that. */
static int64_t count_parameters(const ModelConfig *c, int64_t first, int64_t end, bool tied_too) {
    int64_t sum = 0;
    for (int64_t u = first; u < end; u++) {
        const ParamRow *rows[UNIT_ROWS];
        int n = param_rows(c, (int)u, rows);
        for (int i = 0; i < n; i++) {
            if (!param_present(c, rows[i]) && !(tied_too && rows[i]->when == WHEN_UNTIED)) continue;
            /* check_sizes keeps one parameter in range; their sum may leave it. */
            if (__builtin_add_overflow(sum, param_elements(c, rows[i]), &sum)) return INT64_MAX;
        }
    }
    return sum;
}

int64_t model_parameter_count(const ModelConfig *c) {
    return count_parameters(c, 0, c->num_hidden_layers + 2, false);
}

int64_t model_parameter_count_without_embedding(const ModelConfig *c) {
    return count_parameters(c, 1, c->num_hidden_layers + 2, true);
}

static Cost part_cost(const ModelConfig *c, const Part *part, int64_t context) {
    Cost cost = {0, 0, 0};
    if (part->product) {
        double product =
            2 * (double)model_dim(c, part->product->out) * (double)model_dim(c, part->product->in);
        cost = part->fused ? (Cost){3 * product, 0, 0} : (Cost){product, product, product};
    }
    if (part->more) {
        Cost more = part->more(c, context);
        cost = (Cost){cost.forward + more.forward, cost.input + more.input, cost.weight + more.weight};
    }
    return cost;
}

static Cost unit_cost(const ModelConfig *c, int unit, Recompute recompute, int64_t context) {
    Step steps[UNIT_PARTS];
    Cost sum = {0, 0, 0};
    int n = unit_steps(c, unit, steps);
    for (int i = 0; i < n; i++) {
        if (steps[i].kind != STEP_LAYER) continue;
        Cost cost = part_cost(c, steps[i].part, context);
        double again = lifetime_stays(steps[i].makes, recompute) ? 0 : cost.forward;
        sum = (Cost){sum.forward + cost.forward, sum.input + cost.input + again, sum.weight + cost.weight};
    }
    return sum;
}

void model_unit_costs(const ModelConfig *c, Recompute recompute, int64_t context, Cost *units) {
    for (int u = 0; u < c->num_hidden_layers + 2; u++) units[u] = unit_cost(c, u, recompute, context);
}

/* By convention every parameter that is not the embedding counts 6, norms and biases too. */
double model_flops_per_token(const ModelConfig *c, int64_t context) {
    double flops = 6.0 * (double)model_parameter_count_without_embedding(c);
    for (int u = 0; u < c->num_hidden_layers + 2; u++) {
        Step steps[UNIT_PARTS];
        int n = unit_steps(c, u, steps);
        for (int i = 0; i < n; i++) {
            if (steps[i].kind != STEP_LAYER || !steps[i].part->more) continue;
            Cost more = steps[i].part->more(c, context);
            flops += more.forward + more.input + more.weight;
        }
    }
    return flops;
}
