#include "train/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"

static const char WAITING[] = "OMP_WAIT_POLICY";

static bool too_many_threads(const Config *c, int ranks) {
    return ranks > 1 && c->run.threads > 1 && c->run.threads * ranks > device_cpu_cores();
}

void setup_before_ranks(const Config *c, int ranks) {
    if (too_many_threads(c, ranks)) setenv(WAITING, "passive", 0);
}

ErrorCode setup_device(const Config *c, const Comm *comm, Device *d, Error *err) {
    int local = comm ? comm_local_size(comm) : 1, cores = device_cpu_cores(),
        each = cores > local ? cores / local : 1;
    if (too_many_threads(c, local) && !getenv(WAITING) && comm_rank(comm) == 0)
        log_warn("%d ranks of %lld threads on %d cores take each other's time: set run.threads=%d, or "
                 "%s=passive in the environment",
                 local, (long long)c->run.threads, cores, each, WAITING);
    return device_open_cpu(d, device_kind(c->run.device), c->run.threads > 0 ? (int)c->run.threads : each,
                           err);
}

static ErrorCode complete_shape(Config *c, OptionSet *set, Error *err) {
    ModelConfig whole = c->model.shape;
    TRY(model_config_complete(&whole, "model", err));
    return options_derive_part(set, &c->model.shape, &whole, sizeof whole, true,
                               "derived from other keys of model", err);
}

ErrorCode setup_shape(Config *c, OptionSet *set, const Tokenizer *t, Error *err) {
    ModelConfig *m = &c->model.shape;
    int64_t size = tokenizer_vocab_size(t);
    char entries[24];
    snprintf(entries, sizeof entries, "%lld", (long long)size);
    if (m->vocab_size == 0)
        TRY(options_derive(set, "model.vocab_size", entries, "derived from data.tokenizer", err));
    if (m->vocab_size < size)
        return error_set(
            err, ERR_CONFIG,
            "model.vocab_size is %lld but tokenizer %s has %lld entries: set it to 0 or to at least that",
            (long long)m->vocab_size, c->data.tokenizer, (long long)size);
    m->bos_token_id = tokenizer_bos(t);
    m->eos_token_id = tokenizer_eos(t);
    return complete_shape(c, set, err);
}

Dtype setup_compute(const Config *c, const Device *d) {
    if (c->train.compute == COMPUTE_AUTO) return d->native_bf16 ? DTYPE_BF16 : DTYPE_F32;
    return c->train.compute == COMPUTE_BF16 ? DTYPE_BF16 : DTYPE_F32;
}

EngineSpec setup_spec(const Config *c, const Device *d, const Layout *l, int rank) {
    return (EngineSpec){.model = c->model.shape,
                        .compute = setup_compute(c, d),
                        .recompute = (Recompute)c->train.recompute,
                        .tokens = l->sequences * c->train.context,
                        .microbatches = l->microbatches,
                        .positions = c->train.context,
                        .loss_rows = c->train.loss_rows,
                        .split_backward = c->train.split_backward,
                        .exact = c->train.numerics == NUMERICS_EXACT,
                        .sync = (GradientSync)c->train.gradient_sync,
                        .reshard = (Reshard)c->train.reshard,
                        .mesh = l->mesh,
                        .rank = rank,
                        .stages = &l->stages,
                        .schedule = l->piped ? &l->schedule : NULL};
}

StepOptions setup_step(const Config *c, int64_t step) {
    const OptimizerOptions *o = &c->optimizer;
    int64_t total = c->schedule.total_steps > 0 ? c->schedule.total_steps : c->train.steps;
    return (StepOptions){.lr = o->lr * learning_rate_factor(&c->schedule, total, step),
                         .beta1 = o->beta1,
                         .beta2 = o->beta2,
                         .eps = o->eps,
                         .weight_decay = o->weight_decay,
                         .decay_all = o->decay == DECAY_ALL,
                         .clip = o->clip,
                         .clip_norm = o->clip_norm};
}

ErrorCode setup_communication(const Config *c, Comm *comm, const Mesh *mesh, Device *d, Error *err) {
    int asked = c->comm.progress_thread;
    bool core_left = device_cpu_cores() > comm_local_size(comm) * d->threads;
    TRY(comm_set_mesh(comm, mesh, err));
    comm_set_device(comm, d);
    bool wanted = asked == PROGRESS_TRUE || (asked == PROGRESS_AUTO && core_left);
    return wanted ? comm_start_progress(comm, err) : OK;
}

void setup_describe_work(const Config *c, const Layout *l, const Engine *e, Text *out) {
    const ModelConfig *m = &c->model.shape;
    char parameters[32], tokens[32];
    text_printf(out,
                "model   %s parameters: %lld blocks, width %lld, %lld heads (%lld for keys and values), MLP "
                "%lld, vocabulary %lld%s\n",
                text_count(e->model.table.elements, parameters), (long long)m->num_hidden_layers,
                (long long)m->hidden_size, (long long)m->num_attention_heads,
                (long long)m->num_key_value_heads, (long long)m->intermediate_size, (long long)m->vocab_size,
                m->tie_word_embeddings ? ", tied" : "");
    double per_token = model_flops_per_token(m, c->train.context);
    int64_t per_step = layout_samples(l) * c->train.context;
    text_printf(out,
                "step    %s tokens: %d microbatch%s of %lld sequence%s of %lld%s, compute %s; %.3g TFLOP "
                "(%.3g GFLOP a token)\n",
                text_count(per_step, tokens), e->spec.microbatches, e->spec.microbatches == 1 ? "" : "es",
                (long long)l->sequences, l->sequences == 1 ? "" : "s", (long long)c->train.context,
                mesh_dp_degree(&l->mesh) > 1 ? " on each data-parallel rank" : "",
                dtype_name(e->model.compute), per_token * (double)per_step / 1e12, per_token / 1e9);
    text_printf(out, "device  %s (%s kernels), %d threads\n", e->device->processor, e->device->name,
                e->device->threads);
    layout_describe(l, c, out);
}

void setup_describe(const Config *c, const Layout *l, const Engine *e, Text *out) {
    char total[32];
    MemoryUse machine = memory_use();
    const MemoryPlan *plan = engine_memory(e);
    setup_describe_work(c, l, e, out);
    if (l->mesh.world > 1)
        text_printf(out, "memory of rank %d\n", e->spec.rank);
    else
        text_puts(out, "memory\n");
    memory_plan_print(plan, &e->program, &e->model, out);
    double share = 100.0 * (double)memory_plan_total(plan) / (double)(machine.machine ? machine.machine : 1);
    text_printf(out, "  of this machine's %s: %.1f%%%s\n", text_bytes((double)machine.machine, total), share,
                share > 95 ? ": it will not fit" : "");
}
