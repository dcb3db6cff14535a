/* Sends activations and their gradients between pipeline ranks.
 *
 *     stage s                             stage s + 1
 *     FWD u, SEND_F u      ----->         RECV_F u+1, FWD u+1
 *     RECV_B u, BWD u      <-----         BWD u+1, SEND_B u+1
 *
 * Receives are posted early and waited for at use: a message that finds its receive posted needs no copy. A
 * send is waited for before the next one of its boundary, or at the end; until then the plan keeps its
 * memory. The key of a message is (kind, unit, microbatch, step), so messages may come in any order, and one
 * of another boundary or of the previous step is never mistaken for it.
 *
 * Elsewhere called: pipeline p2p communication, send_forward, recv_backward (Megatron
 * p2p_communication). */
#include "engine/execution.h"

static bool is_forward(ActionKind kind) { return kind == ACT_SEND_F || kind == ACT_RECV_F; }

/* The key of a boundary has the stage above it, which is the same on both sides. Numbers continue from step
 * to step, because a fast rank may be a step ahead of a slow one. */
static uint64_t key_of(const Execution *x, Action a) {
    const Engine *e = x->engine;
    const Program *largest = e->plan->spec.inference ? &e->plan->evaluation : &e->plan->program;
    int64_t each = largest->microbatches;
    int upper = a.kind == ACT_RECV_F || a.kind == ACT_SEND_B ? a.unit : a.unit + 1;
    int stage = stages_of_unit(&e->plan->partition.stages, upper);
    return comm_key(is_forward(a.kind) ? 0 : 1, stage, e->progress.executed * each + a.microbatch);
}

static int peer(const Execution *x, Action a) {
    int other = a.kind == ACT_RECV_F || a.kind == ACT_SEND_B ? a.unit - 1 : a.unit + 1;
    return partition_peer(&x->engine->plan->partition, other);
}

static void *memory_of(const Execution *x, Action a) {
    if (a.kind == ACT_RECV_F) return execution_buffer(x, BUFFER_SAVED, a.unit, a.microbatch);
    if (a.kind == ACT_SEND_F) return execution_buffer(x, BUFFER_OUTPUT, a.unit, a.microbatch);
    return execution_buffer(x, BUFFER_GRADIENT, gradient_unit(x->program, a.unit), a.microbatch);
}

/* One request for each receive that may be open: a schedule may post the receives of several microbatches of
 * one boundary. */
static CommRequest *receive_slot(const Execution *x, bool forward, int unit, int microbatch) {
    Engine *e = x->engine;
    size_t row = (size_t)(forward ? 0 : 1) * (size_t)e->plan->partition.table->units + (size_t)unit;
    return &e->traffic.receives[row * (size_t)x->program->microbatches + (size_t)microbatch];
}

void boundary_receive(Execution *x, Action a) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    CommRequest *request = receive_slot(x, is_forward(a.kind), a.unit, a.microbatch);
    execution_must(e,
                   comm_recv(e->comm, peer(x, a), key_of(x, a), memory_of(x, a), boundary_bytes(&e->model),
                             request, &err),
                   &err);
}

/* If the neighbouring unit is on this rank, its request is 0 and there is nothing to wait for. */
void boundary_arrived(Execution *x, ActionKind kind, int unit, int microbatch) {
    execution_wait(x->engine, receive_slot(x, is_forward(kind), unit, microbatch));
}

void boundary_send(Execution *x, Action a) {
    Engine *e = x->engine;
    Error err = {.message = ""};
    CommRequest *last =
        &e->traffic.sends[(is_forward(a.kind) ? 0 : 1) * e->plan->partition.table->units + a.unit];
    execution_wait(e, last);
    execution_must(
        e,
        comm_send(e->comm, peer(x, a), key_of(x, a), memory_of(x, a), boundary_bytes(&e->model), last, &err),
        &err);
}

void boundary_finish(Execution *x) {
    Engine *e = x->engine;
    for (int i = 0; i < 2 * e->plan->partition.table->units; i++) execution_wait(e, &e->traffic.sends[i]);
}
