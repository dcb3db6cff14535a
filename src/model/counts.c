/* Parameters and FLOPs of a model, summed over the rows and ops of its layers. Nothing is counted by formulas
 * for whole models, so the cost cannot diverge from what a layer does.
 *
 * There are two counts of FLOPs. model_unit_costs counts what is executed, recomputation included: the stage
 * split and the simulator need times. model_flops_per_token counts what the mathematics requires: MFU is
 * reported by it, by the convention of 6 N plus attention (Chowdhery et al., "PaLM", 2022, appendix B), which
 * does not credit repeated work. */
#include "model/families/family.h"
#include "model/internal.h"

int64_t param_fused_experts(const ModelConfig *c, const ParamRow *row) {
    if (!row->fused) return 1;
    return param_is_of_experts(row) ? model_local_experts(c) : c->num_experts;
}

static int64_t row_elements(const ModelConfig *c, const ParamRow *row) {
    int64_t rows = param_fused_experts(c, row) * model_dim(c, row->rows);
    return row->cols == DIM_NONE ? rows : rows * model_dim(c, row->cols);
}

int64_t param_copies(const ModelConfig *c, const ParamRow *row) { return row->expert ? c->num_experts : 1; }

/* The conditions (When) that hold for this model. */
static unsigned facts_of(const ModelConfig *c) {
    const Arch *a = &model_family(c)->arch;
    return (c->attention_bias || a->qkv_bias ? WHEN_QKV_BIAS : 0) | (c->attention_bias ? WHEN_OUT_BIAS : 0) |
           (c->mlp_bias ? WHEN_MLP_BIAS : 0) | (c->tie_word_embeddings ? 0 : WHEN_UNTIED) |
           (a->fused_qkv ? WHEN_QKV_FUSED : WHEN_QKV_SEPARATE) | (a->no_gate ? 0 : WHEN_GATED) |
           (a->fused_gate_up ? WHEN_GATE_UP_FUSED : WHEN_GATE_UP_SEPARATE) |
           (a->qk_norm == QK_NORM_HEAD ? WHEN_QK_NORM : 0) |
           (a->qk_norm == QK_NORM_FLAT ? WHEN_QK_ROW_NORM : 0) |
           (a->norm == NORM_LAYER ? WHEN_LAYER_NORM : 0) |
           (a->learned_positions ? WHEN_LEARNED_POSITIONS : 0) | (a->sinks ? WHEN_SINKS : 0) |
           (a->fused_experts ? WHEN_EXPERTS_FUSED : WHEN_EXPERTS_SEPARATE) |
           (a->expert_bias ? WHEN_EXPERT_BIAS : 0) | (c->conv_size > 0 ? WHEN_CONV : 0) |
           (c->n_shared_experts > 0 ? WHEN_SHARED : 0) | (a->sigmoid_router ? WHEN_CORRECTION_BIAS : 0) |
           (c->balance_bias ? WHEN_BALANCE_BIAS : 0) |
           (c->q_lora_rank > 0 ? WHEN_LATENT_QUERIES : WHEN_FULL_QUERIES);
}

bool param_present(const ModelConfig *c, const ParamRow *row) {
    return !row->adapts && (row->when & ~facts_of(c)) == 0;
}

/* Which parameters are counted. */
typedef struct Counting {
    bool tied_too; /* also a head that is tied to the embedding */
    bool active;   /* of the experts, only those that a token is routed to */
} Counting;

/* Elements of a row in a unit; for experts, those of one expert. */
static int64_t elements_of(const ModelConfig *c, const ParamRow *row) {
    return row_elements(c, row) / param_fused_experts(c, row);
}

/* Counts units first <= u < end; INT64_MAX on overflow. */
static int64_t count_parameters(const ModelConfig *c, int64_t first, int64_t end, Counting what) {
    int64_t sum = 0;
    for (int64_t u = first; u < end; u++) {
        const ParamRow *rows[UNIT_ROWS];
        int n = param_rows(c, (int)u, rows);
        for (int i = 0; i < n; i++) {
            bool experts = rows[i]->expert || rows[i]->fused;
            int64_t copies = !experts ? 1 : what.active ? c->num_experts_per_tok : c->num_experts, elements;
            if (!param_present(c, rows[i]) && !(what.tied_too && rows[i]->when == WHEN_UNTIED)) continue;
            /* check_sizes keeps one parameter in range; their sum may leave it. */
            if (__builtin_mul_overflow(copies, elements_of(c, rows[i]), &elements) ||
                __builtin_add_overflow(sum, elements, &sum))
                return INT64_MAX;
        }
    }
    return sum;
}

int64_t model_parameter_count(const ModelConfig *c) {
    return count_parameters(c, 0, c->num_hidden_layers + 2, (Counting){false, false});
}

int64_t model_active_count(const ModelConfig *c) {
    return count_parameters(c, 0, c->num_hidden_layers + 2, (Counting){.active = true});
}

int64_t model_expert_blocks(const ModelConfig *c) {
    int64_t blocks = 0;
    for (int64_t i = 0; c->num_experts > 0 && i < model_blocks(c); i++) blocks += model_block(c, i).experts;
    return blocks;
}

double model_balance(const ModelConfig *c) {
    int64_t blocks = model_expert_blocks(c);
    return c->output_router_logits && blocks > 0 ? c->router_aux_loss_coef / (double)blocks : 0;
}

int64_t model_active_count_without_embedding(const ModelConfig *c) {
    return count_parameters(c, 1, c->num_hidden_layers + 2, (Counting){true, true});
}

/* A product costs the same in each of its three passes: 2 FLOPs per element of the matrix and token, for each
 * expert that the token is routed to. The wgrad of a replicated matrix runs with dgrad. */
static Cost op_cost(const ModelConfig *c, int unit, const LayerOp *op, int64_t context) {
    Cost cost = {0, 0, 0};
    if (op->product) {
        double product = 2 * (double)model_dim(c, op->product->out) * (double)model_dim(c, op->product->in);
        if (op->product->weight->expert || op->product->weight->fused)
            product *= (double)c->num_experts_per_tok / (c->expert_folded > 0 ? (double)c->expert_folded : 1);
        cost = op->fused                                     ? (Cost){3 * product, 0, 0}
               : param_is_replicated(c, op->product->weight) ? (Cost){product, 2 * product, 0}
                                                             : (Cost){product, product, product};
    }
    if (op->more) {
        Cost more = op->more(c, unit, context);
        cost = (Cost){cost.forward + more.forward, cost.input + more.input, cost.weight + more.weight};
    }
    return cost;
}

Cost unit_op_cost(const ModelConfig *c, int unit, int op, int64_t context) {
    Step step = unit_step(c, unit, op);
    return step.kind == STEP_LAYER ? op_cost(c, unit, step.op, context) : (Cost){0, 0, 0};
}

static Cost unit_cost(const ModelConfig *c, int unit, Recompute recompute, int64_t context) {
    Step steps[UNIT_OPS];
    Cost sum = {0, 0, 0};
    int n = unit_steps(c, unit, steps);
    uint32_t dispatched = model_expert_ranks(c) > 1 ? unit_dispatched(c, unit) : 0;
    for (int i = 0; i < n; i++) {
        if (steps[i].kind != STEP_LAYER) continue;
        Cost cost = op_cost(c, unit, steps[i].op, context);
        bool remote = dispatched >> i & 1;
        double recomputed = lifetime_stays(steps[i].makes, recompute) && !remote ? 0 : cost.forward;
        if (remote && steps[i].last) recomputed = 0;
        if (remote) cost.input += cost.weight, cost.weight = 0;
        sum =
            (Cost){sum.forward + cost.forward, sum.input + cost.input + recomputed, sum.weight + cost.weight};
    }
    return sum;
}

void model_unit_costs(const ModelConfig *c, Recompute recompute, int64_t context, Cost *units) {
    for (int u = 0; u < c->num_hidden_layers + 2; u++) units[u] = unit_cost(c, u, recompute, context);
}

/* By convention every parameter outside the embedding counts 6, norms and biases too; experts that a token is
 * not routed to count nothing. */
double model_flops_per_token(const ModelConfig *c, int64_t context) {
    double flops = 6.0 * (double)model_active_count_without_embedding(c);
    for (int u = 0; u < c->num_hidden_layers + 2; u++) {
        Step steps[UNIT_OPS];
        int n = unit_steps(c, u, steps);
        for (int i = 0; i < n; i++) {
            if (steps[i].kind != STEP_LAYER || !steps[i].op->more) continue;
            const LayerOp *op = steps[i].op;
            Cost more = (op->needed ? op->needed : op->more)(c, u, context);
            flops += more.forward + more.input + more.weight;
        }
    }
    return flops;
}
