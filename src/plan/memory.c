#include "plan/memory.h"

#include <stdlib.h>
#include <stdio.h>

static size_t align_up(size_t n) { return (n + POOL_ALIGN - 1) / POOL_ALIGN * POOL_ALIGN; }

static size_t buffer_bytes(const Model *m, BufferKind kind, int unit) {
    switch (kind) {
    case BUFFER_BATCH: return align_up(5 * align_up((size_t)m->tokens * sizeof(int32_t)));
    case BUFFER_SLAB: return align_up(unit_slab_bytes(m, unit));
    case BUFFER_KEEP: return align_up(unit_keep_bytes(m, unit));
    default: return align_up(boundary_bytes(m));
    }
}

static int name(const Model *m, Buffer *out, int n, BufferKind kind, int unit, int microbatch) {
    size_t bytes = buffer_bytes(m, kind, unit);
    if (bytes == 0) return n;
    out[n] = (Buffer){.kind = kind, .unit = unit, .microbatch = microbatch, .bytes = bytes};
    return n + 1;
}

int action_buffers(const Program *p, const Model *m, Action a, Buffer out[ACTION_BUFFERS]) {
    int n = 0, u = a.unit, b = a.microbatch;
    if (a.kind > ACT_BWD_W) return 0;
    n = name(m, out, n, BUFFER_BATCH, 0, b);
    if (a.kind == ACT_LOAD) return n;
    n = name(m, out, n, BUFFER_SLAB, u, b);
    if (a.kind == ACT_FWD && u + 1 < p->units) n = name(m, out, n, BUFFER_SLAB, u + 1, b);
    if (a.kind == ACT_BWD || a.kind == ACT_BWD_IN) n = name(m, out, n, BUFFER_GRADIENT, 0, b);
    if (a.kind == ACT_BWD_W && u == 0) n = name(m, out, n, BUFFER_GRADIENT, 0, b); /* the embedding's weight half reads it */
    if (a.kind == ACT_BWD_IN || a.kind == ACT_BWD_W) n = name(m, out, n, BUFFER_KEEP, u, b);
    return n;
}

static int *slot(const MemoryPlan *plan, BufferKind kind, int unit, int microbatch) {
    return &plan->index[((size_t)kind * (size_t)plan->units + (size_t)unit) * (size_t)plan->microbatches + (size_t)microbatch];
}

static void collect(MemoryPlan *plan, const Program *p, const Model *m) {
    size_t slots = (size_t)BUFFER_KINDS * (size_t)p->units * (size_t)p->microbatches;
    plan->units = p->units, plan->microbatches = p->microbatches;
    plan->index = mem_alloc_array(slots, sizeof *plan->index);
    plan->buffers = mem_alloc_array(slots, sizeof *plan->buffers);
    for (size_t i = 0; i < slots; i++) plan->index[i] = -1;
    for (int i = 0; i < p->count; i++) {
        Buffer touched[ACTION_BUFFERS];
        int n = action_buffers(p, m, p->actions[i], touched);
        for (int k = 0; k < n; k++) {
            int *at = slot(plan, touched[k].kind, touched[k].unit, touched[k].microbatch);
            if (*at < 0) {
                *at = plan->count;
                touched[k].first = i;
                plan->buffers[plan->count++] = touched[k];
            }
            plan->buffers[*at].last = i;
        }
    }
}

static int by_offset(const void *a, const void *b) {
    const Buffer *x = *(const Buffer *const *)a, *y = *(const Buffer *const *)b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Lowest offset where `buffer` fits between those placed before it that live at the same time. */
static size_t first_fit(const MemoryPlan *plan, int buffer, const Buffer **alive) {
    const Buffer *b = &plan->buffers[buffer];
    size_t n = 0, at = 0;
    for (int i = 0; i < buffer; i++)
        if (plan->buffers[i].last >= b->first) alive[n++] = &plan->buffers[i];
    qsort(alive, n, sizeof *alive, by_offset);
    for (size_t i = 0; i < n && alive[i]->offset < at + b->bytes; i++) {
        size_t end = alive[i]->offset + alive[i]->bytes;
        if (end > at) at = end;
    }
    return at;
}

static void place(MemoryPlan *plan) {
    const Buffer **alive = mem_alloc_array((size_t)plan->count + 1, sizeof *alive);
    for (int i = 0; i < plan->count; i++) {
        Buffer *b = &plan->buffers[i];
        b->offset = first_fit(plan, i, alive);
        if (b->offset + b->bytes > plan->activations) plan->activations = b->offset + b->bytes;
    }
    free(alive);
}

void memory_plan(MemoryPlan *plan, const Program *p, const Model *m, int64_t positions, size_t device_scratch, bool training) {
    *plan = (MemoryPlan){.device_scratch = align_up(device_scratch)};
    collect(plan, p, m);
    place(plan);
    size_t elements = m->table.unit_start[m->table.units];
    plan->scratch = align_up(unit_scratch_bytes(m));
    plan->keep = m->table.units > 2 ? align_up(unit_keep_bytes(m, 1)) : 0;
    plan->parameters = align_up(elements * sizeof(float));
    plan->copy = m->compute == DTYPE_BF16 ? align_up(elements * sizeof(uint16_t)) : 0;
    plan->constants = align_up((size_t)positions * (size_t)m->config.head_dim * sizeof(float));
    if (!training) return;
    plan->gradients = align_up(elements * sizeof(float));
    if (m->config.tie_word_embeddings)
        plan->gradients += align_up((size_t)m->config.vocab_size * (size_t)m->config.hidden_size * sizeof(float));
    plan->optimizer = 2 * align_up(elements * sizeof(float));
}

void memory_plan_free(MemoryPlan *plan) {
    free(plan->buffers);
    free(plan->index);
    *plan = (MemoryPlan){0};
}

const Buffer *memory_plan_buffer(const MemoryPlan *plan, BufferKind kind, int unit, int microbatch) {
    int at = *slot(plan, kind, unit, microbatch);
    CHECK(at >= 0);
    return &plan->buffers[at];
}

size_t memory_plan_pools(const MemoryPlan *plan) {
    return plan->parameters + plan->copy + plan->gradients + plan->optimizer + plan->constants + plan->activations +
           plan->keep + plan->scratch + plan->device_scratch;
}

size_t memory_plan_total(const MemoryPlan *plan) { return memory_plan_pools(plan) + plan->staging; }

static void row(Text *out, const char *category, size_t bytes, size_t total, const char *what) {
    char size[32];
    text_printf(out, "  %-14s %12s %5.1f%%  %s\n", category, text_bytes((double)bytes, size),
                100.0 * (double)bytes / (double)total, what);
}

void memory_plan_print(const MemoryPlan *plan, const Model *m, Text *out) {
    static const char *const policy[] = {"nothing recomputed", "selective recompute", "full recompute"};
    char note[128];
    size_t total = memory_plan_total(plan);
    row(out, "parameters", plan->parameters, total, "fp32 master weights");
    if (plan->copy) row(out, "compute copy", plan->copy, total, "bf16 weights that the products read");
    row(out, "gradients", plan->gradients, total, "fp32");
    row(out, "optimizer", plan->optimizer, total, "AdamW moments, fp32");
    snprintf(note, sizeof note, "%d buffers, %lld tokens a microbatch, %s", plan->count, (long long)m->tokens,
             policy[m->recompute]);
    row(out, "activations", plan->activations, total, note);
    snprintf(note, sizeof note, "block gradients, logits of %lld tokens at a time", (long long)m->loss_rows);
    row(out, "workspace", plan->keep + plan->scratch + plan->device_scratch, total, note);
    row(out, "constants", plan->constants, total, "rotation table");
    if (plan->staging)
        row(out, "staging", plan->staging, total, "copy of what a checkpoint holds, written beside the training");
    row(out, "total", total, total, "");
}
