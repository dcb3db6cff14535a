/* The lines that a run prints about itself before its first step, and that `weft plan` prints without ranks:
 * model, step, device, layout, optimizer, then memory. They are the same lines, so a plan can be compared
 * with a log.
 *
 * Nothing here decides anything: the layout and the rank's plan, which a run and `weft plan` build in the
 * same way, have the facts. */
#include "forecast/describe.h"

#include "base/memory.h"
#include "base/text.h"

static void describe_experts(const ModelConfig *m, Text *out) {
    char active[32];
    if (m->num_experts > 0)
        text_printf(out,
                    "        %lld experts of width %lld in %lld of the blocks, %lld a token: %s parameters "
                    "active\n",
                    (long long)m->num_experts, (long long)model_dim(m, DIM_EXPERT),
                    (long long)model_expert_blocks(m), (long long)m->num_experts_per_tok,
                    text_count(model_active_count(m), active));
}

static void describe_mixers(const ModelConfig *m, Text *out) {
    if (!model_is_recurrent(m)) return;
    text_puts(out, "        blocks: ");
    model_mixers_text(m, out);
    text_puts(out, "\n");
}

/* Prints nothing without adapters. */
static void describe_adapters(const RankPlan *p, Text *out) {
    const ParamTable *t = &p->model.table;
    char elements[32];
    int matrices = 0;
    if (!param_table_is_adapted(t)) return;
    for (int i = 0; i < t->count; i++) matrices += t->params[i].row->adapts != NULL;
    text_printf(out, "lora    %s parameters: rank %lld on %d matrices, scale %g; all else stays as it is\n",
                text_count(adapters_count(t, &p->spec.model), elements),
                (long long)p->model.config.adapter_rank, matrices / 2, p->model.config.adapter_scale);
}

static void describe_spares(const Config *c, Text *out) {
    long long spares = (long long)c->recovery.spares;
    if (spares > 0)
        text_printf(
            out, "spares  %lld rank%s more wait%s, and take%s the place of %s that die%s (recovery.spares)\n",
            spares, spares == 1 ? "" : "s", spares == 1 ? "s" : "", spares == 1 ? "s" : "",
            spares == 1 ? "one" : "those", spares == 1 ? "s" : "");
}

/* FLOPs are those of the model in training, forward and backward, without recomputation. Tokens are those of
 * the full step, over all data-parallel ranks; microbatches are those of one such rank. */
/* Which silent errors are found how soon. A replay compares one microbatch, and costs as much as it does,
 * without its reduction. */
static void describe_checks(const Config *c, const Layout *l, const RankPlan *p, Text *out) {
    int64_t every = c->check.replay_every, replicas = c->check.replicas_every;
    double share = every > 0 ? 100.0 / ((double)every * l->microbatches) : 0;
    if (every == 0) return;
    text_printf(
        out,
        "checks  1 of %d microbatch%s of a rank is computed again every %lld step%s: that finds %.3g%% of "
        "single errors in passes, errors in a share q of them after about %lld/q steps, and takes about "
        "%.3g%% of the time\n",
        l->microbatches, l->microbatches == 1 ? "" : "es", (long long)every, every == 1 ? "" : "s", share,
        (long long)every, share);
    if (replicas > 0 && partition_has_copies(&p->partition))
        text_printf(
            out,
            "        copies of weights and moments are compared every %lld steps and before checkpoints: "
            "what changed in one of them is found then\n",
            (long long)replicas);
}

void describe_work(const Config *c, const Layout *l, const RankPlan *p, const Device *d, Text *out) {
    const ModelConfig *m = &c->model.shape;
    char parameters[32], tokens[32];
    text_printf(out,
                "model   %s parameters: %lld blocks, width %lld, %lld heads (%lld for keys and values), MLP "
                "%lld, vocabulary %lld%s\n",
                text_count(model_parameter_count(m), parameters), (long long)m->num_hidden_layers,
                (long long)m->hidden_size, (long long)m->num_attention_heads,
                (long long)m->num_key_value_heads, (long long)m->intermediate_size, (long long)m->vocab_size,
                m->tie_word_embeddings ? ", tied" : "");
    if (m->mtp_module)
        text_puts(out, "        a module for the token behind the next among them, in the last unit\n");
    describe_experts(m, out);
    describe_mixers(m, out);
    describe_adapters(p, out);
    double per_token = adapters_flops_per_token(m, &p->model.table, c->train.context);
    int64_t per_step = layout_samples(l) * c->train.context;
    text_printf(out,
                "step    %s tokens: %d microbatch%s of %lld sequence%s of %lld%s, compute %s; %.3g TFLOP "
                "(%.3g GFLOP a token)\n",
                text_count(per_step, tokens), l->microbatches, l->microbatches == 1 ? "" : "es",
                (long long)l->sequences, l->sequences == 1 ? "" : "s", (long long)c->train.context,
                mesh_dp_degree(&l->mesh) > 1 ? " on each data-parallel rank" : "",
                dtype_name(p->model.compute), per_token * (double)per_step / 1e12, per_token / 1e9);
    int64_t sizes[STEP_SIZES];
    int smaller = config_step_sizes(c, sizes) - 1;
    if (smaller > 0)
        text_printf(out,
                    "        batch ramp-up: %s tokens at first, doubled %d time%s, all from step %lld on\n",
                    text_count(c->train.rampup_start, tokens), smaller, smaller == 1 ? "" : "s",
                    (long long)config_first_whole_step(c) + 1);
    if (d->name)
        text_printf(out, "device  %s (%s kernels), %d threads\n", d->processor, d->name, d->threads);
    else
        text_printf(out, "device  %s, as stated: not this machine\n", d->processor);
    layout_describe(l, c, out);
    describe_spares(c, out);
    param_groups_print(&p->groups, &p->model.table, false, out);
    describe_checks(c, l, p, out);
}

static void put_share(const char *whose, uint64_t there, size_t taken, Text *out) {
    char size[32];
    double share = there > 0 ? 100.0 * (double)taken / (double)there : 0;
    if (there > 0)
        text_printf(out, "  of this %s's %s: %.1f%%%s\n", whose, text_bytes((double)there, size), share,
                    share > 95 ? ": it will not fit" : "");
}

/* For the calling rank. The comparison with the machine's memory, which other ranks may use too, is a hint;
 * only the allocation itself is a test. Above 95% the line warns that it will not fit, since the program, the
 * libraries and the system need the rest. */
void describe_run(const Config *c, const Layout *l, const RankPlan *p, const Device *d, Text *out) {
    MemoryUse machine = memory_use();
    const MemoryPlan *plan = rank_memory(p);
    describe_work(c, l, p, d, out);
    if (l->mesh.world > 1)
        text_printf(out, "memory of rank %d\n", p->rank);
    else
        text_puts(out, "memory\n");
    memory_plan_print(plan, &p->program, &p->model, &p->groups, out);
    partition_print_owners(&p->partition, &p->groups, out);
    if (!d->name) return;
    put_share("GPU", d->memory, memory_plan_pools(plan), out);
    put_share("machine", machine.machine,
              plan->separate_memory ? memory_plan_host(plan) : memory_plan_total(plan), out);
}
