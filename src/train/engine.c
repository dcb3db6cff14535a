#include "train/engine.h"

#include <math.h>
#include <stdlib.h>

ErrorCode engine_plan(Engine *e, Device *d, const EngineSpec *spec, Error *err) {
    *e = (Engine){.device = d, .spec = *spec};
    TRY(model_build(&e->model, &spec->model, spec->compute, spec->recompute, spec->tokens, spec->loss_rows, err));
    int units = e->model.table.units;
    DeviceNeeds needs = model_device_needs(&e->model);
    size_t scratch = d->ops.scratch_bytes(d, &needs);
    program_lower_evaluation(&e->evaluation, units);
    memory_plan(&e->evaluation_memory, &e->evaluation, &e->model, spec->positions, scratch, false);
    if (spec->inference) return OK;
    program_lower(&e->program, (ProgramSpec){units, spec->microbatches, spec->model.tie_word_embeddings, spec->split_backward});
    TRY(program_check(&e->program, err));
    memory_plan(&e->memory, &e->program, &e->model, spec->positions, scratch, true);
    /* Evaluation runs in the memory of training: it keeps no activations, so it never needs more. */
    CHECK(e->evaluation_memory.activations <= e->memory.activations);
    return OK;
}

const MemoryPlan *engine_memory(const Engine *e) { return e->spec.inference ? &e->evaluation_memory : &e->memory; }

static void layout_training(Engine *e) {
    const ModelConfig *c = &e->model.config;
    size_t bytes = e->model.table.unit_start[e->model.table.units] * sizeof(float);
    e->gradients.flat = pool_take(&e->gradient_pool, bytes);
    if (c->tie_word_embeddings)
        e->gradients.tied_head = pool_take(&e->gradient_pool, (size_t)c->vocab_size * (size_t)c->hidden_size * sizeof(float));
    e->moment1 = pool_take(&e->optimizer, bytes);
    e->moment2 = pool_take(&e->optimizer, bytes);
}

/* Takes every region from its pool; run dry first, then for real. */
static void layout(Engine *e) {
    const MemoryPlan *plan = engine_memory(e);
    weights_layout(&e->weights, &e->model.table, e->model.compute, &e->parameters, &e->copy);
    if (!e->spec.inference) layout_training(e);
    model_layout_constants(&e->model, e->spec.positions, &e->constants);
    e->activations = pool_take(&e->activation_pool, plan->activations);
    e->keep = pool_take(&e->workspace, plan->keep);
    e->scratch = pool_take(&e->workspace, plan->scratch);
    e->device->scratch = pool_take(&e->workspace, plan->device_scratch);
    e->device->scratch_size = plan->device_scratch;
}

#define POOLS(e)                                                                                                    \
    {                                                                                                               \
        &(e)->parameters, &(e)->copy, &(e)->gradient_pool, &(e)->optimizer, &(e)->constants, &(e)->activation_pool, \
            &(e)->workspace                                                                                         \
    }
enum { POOL_COUNT = 7 };

ErrorCode engine_allocate(Engine *e, Error *err) {
    static const char *const names[POOL_COUNT] = {"parameters", "compute copy", "gradients", "optimizer",
                                                  "constants",  "activations",  "workspace"};
    Pool *pools[POOL_COUNT] = POOLS(e);
    for (int i = 0; i < POOL_COUNT; i++) pools[i]->name = names[i];
    layout(e);
    for (int i = 0; i < POOL_COUNT; i++) TRY(pool_commit(pools[i], err));
    layout(e);
    CHECK(engine_bytes(e) == memory_plan_pools(engine_memory(e)));
    e->host_losses = mem_alloc_array((size_t)e->spec.tokens, sizeof *e->host_losses);
    model_compute_constants(&e->model, e->device);
    return OK;
}

size_t engine_bytes(const Engine *e) {
    const Pool *pools[POOL_COUNT] = POOLS(e);
    size_t total = 0;
    for (int i = 0; i < POOL_COUNT; i++) total += pools[i]->planned;
    return total;
}

void engine_free(Engine *e) {
    Pool *pools[POOL_COUNT] = POOLS(e);
    for (int i = 0; i < POOL_COUNT; i++) pool_free(pools[i]);
    memory_plan_free(&e->memory);
    memory_plan_free(&e->evaluation_memory);
    program_free(&e->program);
    program_free(&e->evaluation);
    model_free(&e->model);
    free(e->host_losses);
    *e = (Engine){0};
}

void engine_initialise(Engine *e, InitKind kind, double std, uint64_t seed) {
    weights_initialise(&e->weights, e->device, &e->model.config, kind, std, seed);
}

/* State of one execution of a program. */
typedef struct Execution {
    Engine *engine;
    const MemoryPlan *memory;
    const Program *program;
    const Batch *batches;
    const StepOptions *options;
    Pass pass;
    StepResult *result;
    double loss_sum;
    bool training;
} Execution;

static char *buffer(const Execution *x, BufferKind kind, int unit, int microbatch) {
    return x->engine->activations + memory_plan_buffer(x->memory, kind, unit, microbatch)->offset;
}

/* The five arrays of a microbatch in its buffer, in order. */
static void *batch_array(const Execution *x, int microbatch, int array) {
    size_t bytes = ((size_t)x->engine->spec.tokens * sizeof(int32_t) + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN;
    return buffer(x, BUFFER_BATCH, 0, microbatch) + (size_t)array * bytes;
}

static void enter_microbatch(Execution *x, int m) {
    x->pass.batch = (Microbatch){batch_array(x, m, 0), batch_array(x, m, 1), batch_array(x, m, 2), batch_array(x, m, 3)};
    x->pass.first = m == 0;
}

static void load(Execution *x, int m) {
    const Batch *b = &x->batches[m];
    const Microbatch *to = &x->pass.batch;
    Device *d = x->engine->device;
    size_t bytes = (size_t)x->engine->spec.tokens * sizeof(int32_t);
    OP(d, OP_UPLOAD, upload, to->ids, b->inputs, bytes);
    OP(d, OP_UPLOAD, upload, to->targets, b->targets, bytes);
    OP(d, OP_UPLOAD, upload, to->positions, b->positions, bytes);
    OP(d, OP_UPLOAD, upload, to->first_key, b->first_key, bytes);
}

/* Adds the microbatch's losses in the order of its tokens, in double. */
static void add_losses(Execution *x, const float *losses) {
    Engine *e = x->engine;
    OP(e->device, OP_DOWNLOAD, download, e->host_losses, losses, (size_t)e->spec.tokens * sizeof(float));
    for (int64_t t = 0; t < e->spec.tokens; t++) x->loss_sum += (double)e->host_losses[t];
}

static void forward(Execution *x, int u, int m) {
    Engine *e = x->engine;
    int last = x->program->units - 1;
    if (u == last) {
        float *losses = batch_array(x, m, 4);
        head_forward(&x->pass, buffer(x, BUFFER_SLAB, u, m), losses, x->training, x->program->split_backward, e->scratch);
        add_losses(x, losses);
        return;
    }
    char *out = buffer(x, BUFFER_SLAB, u + 1, m);
    if (u == 0)
        embed_forward_unit(&x->pass, out);
    else
        block_forward(&x->pass, u, buffer(x, BUFFER_SLAB, u, m), out, e->keep, e->scratch);
}

static void backward(Execution *x, int u, int m, Half half) {
    Engine *e = x->engine;
    char *dx = half == HALF_WEIGHT && u > 0 ? NULL : buffer(x, BUFFER_GRADIENT, 0, m);
    if (u == x->program->units - 1) {
        head_backward(&x->pass, half, x->program->split_backward, buffer(x, BUFFER_SLAB, u, m), dx, e->scratch);
    } else if (u > 0) {
        char *keep = half == HALF_BOTH ? e->keep : buffer(x, BUFFER_KEEP, u, m);
        block_backward(&x->pass, u, half, buffer(x, BUFFER_SLAB, u, m), dx, keep, e->scratch);
    } else if (half & HALF_WEIGHT) {
        embed_backward_unit(&x->pass, dx);
    }
}

double engine_gradient_norm(Engine *e, double p, int64_t *nonfinite, const char **culprit) {
    const ParamTable *t = &e->model.table;
    double sum = 0, max = 0;
    *nonfinite = 0;
    *culprit = NULL;
    for (int i = 0; i < t->count; i++) {
        const Param *param = &t->params[i];
        GradStats s;
        OP(e->device, OP_GRAD_STATS, grad_stats, param->count, gradient_of(&e->model, e->gradients, param), p, &s);
        sum += s.sum;
        max = s.max > max ? s.max : max;
        *nonfinite += s.nonfinite;
        if (s.nonfinite && !*culprit) *culprit = param->name;
    }
    if (*nonfinite) return NAN;
    return isinf(p) ? max : pow(sum, 1 / p);
}

static void norm_and_clip(Execution *x) {
    StepResult *r = x->result;
    const StepOptions *o = x->options;
    r->grad_norm = engine_gradient_norm(x->engine, o->clip_norm, &r->nonfinite, &r->culprit);
    if (!isfinite(r->loss)) r->culprit = "the loss";
    r->skipped = !isfinite(r->loss) || !isfinite(r->grad_norm);
    if (r->skipped && !r->culprit) r->culprit = "the gradient norm";
    /* PyTorch's rule: the small constant keeps the quotient finite. */
    double coefficient = o->clip > 0 ? o->clip / (r->grad_norm + 1e-6) : 1;
    r->clip_coefficient = r->skipped ? 0 : fmin(1, coefficient);
    if (!r->skipped) x->engine->updates++;
    if (o->before_update) o->before_update(o->context);
}

static void update(Execution *x, int u) {
    Engine *e = x->engine;
    const StepOptions *o = x->options;
    const ParamTable *t = &e->model.table;
    if (x->result->skipped) return;
    for (int i = t->unit_first[u]; i < t->unit_first[u + 1]; i++) {
        const Param *p = &t->params[i];
        size_t at = t->unit_start[u] + p->offset;
        AdamW a = {.lr = (float)o->lr,
                   .beta1 = (float)o->beta1,
                   .beta2 = (float)o->beta2,
                   .eps = (float)o->eps,
                   .weight_decay = p->cols || o->decay_all ? (float)o->weight_decay : 0,
                   .correction1 = (float)(1 - pow(o->beta1, (double)e->updates)),
                   .correction2 = (float)(1 - pow(o->beta2, (double)e->updates)),
                   .grad_scale = (float)x->result->clip_coefficient};
        uint16_t *copy = e->weights.copy && p->cols ? e->weights.copy + at : NULL;
        OP(e->device, OP_ADAMW, adamw, p->count, a, e->weights.master + at, e->gradients.flat + at, e->moment1 + at,
           e->moment2 + at, copy);
    }
}

static void finish_loss(Execution *x) {
    if (x->result->valid > 0) x->result->loss = x->loss_sum / (double)x->result->valid;
}

static void execute(Execution *x) {
    for (int i = 0; i < x->program->count; i++) {
        Action a = x->program->actions[i];
        if (a.microbatch >= 0) enter_microbatch(x, a.microbatch);
        switch (a.kind) {
        case ACT_LOAD: load(x, a.microbatch); break;
        case ACT_FWD: forward(x, a.unit, a.microbatch); break;
        case ACT_BWD: backward(x, a.unit, a.microbatch, HALF_BOTH); break;
        case ACT_BWD_IN: backward(x, a.unit, a.microbatch, HALF_INPUT); break;
        case ACT_BWD_W: backward(x, a.unit, a.microbatch, HALF_WEIGHT); break;
        case ACT_TIE: gradients_tie(&x->engine->model, x->engine->device, x->engine->gradients); break;
        case ACT_NORM:
            finish_loss(x);
            norm_and_clip(x);
            break;
        default: update(x, a.unit); break;
        }
    }
}

static Execution start(Engine *e, const Program *p, const MemoryPlan *memory, const Batch *batches) {
    Execution x = {.engine = e, .memory = memory, .program = p, .batches = batches};
    x.pass = (Pass){.model = &e->model, .device = e->device, .weights = &e->weights, .gradients = e->gradients};
    return x;
}

void engine_step(Engine *e, const Batch *batches, const StepOptions *options, StepResult *result) {
    *result = (StepResult){0};
    for (int m = 0; m < e->program.microbatches; m++) result->valid += batches[m].valid;
    Execution x = start(e, &e->program, &e->memory, batches);
    x.training = true, x.options = options, x.result = result;
    x.pass.loss_scale = result->valid > 0 ? 1.0 / (double)result->valid : 0;
    gradients_begin(&e->model, e->device, e->gradients);
    execute(&x);
}

double engine_evaluate(Engine *e, const Batch *batch) {
    Execution x = start(e, &e->evaluation, &e->evaluation_memory, batch);
    execute(&x);
    return x.loss_sum;
}
