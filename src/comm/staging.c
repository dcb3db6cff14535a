/* Staging: messages of tensors in separate device memory, which no transport can read, go through host
 * memory, with one slot per post.
 *
 *     send      tensor --(download, waited for)--> slot --> transport
 *     receive   transport --> slot --(upload, waited for)--> tensor, before the receive counts as ended
 *
 * There are as many slots as posts have been open at a time. They are allocated when that number grows, which
 * is in the first steps of a run, and kept. A slot that is in use when a failure happens is never freed. */
#include <stdlib.h>

#include "comm/internal.h"
#include "device/ops/memory.h"

bool staging_needed(const Comm *c) { return c->device && c->device->separate_memory; }

static StagingSlot *free_slot(Comm *c) {
    for (int i = 0; i < c->slot_count; i++)
        if (!c->slots[i].busy) return &c->slots[i];
    c->slots = mem_grow(c->slots, (size_t)(c->slot_count + 1) * sizeof *c->slots);
    StagingSlot *slot = &c->slots[c->slot_count++];
    *slot = (StagingSlot){.memory = c->device->runtime.host_take(c->device, MESSAGE_PART_MAX)};
    return slot;
}

static void finish(Device *d, DeviceStream before) {
    device_finish(d, device_mark(d, ON_COMM), WAIT_TRANSPORT);
    device_on(before);
}

void *staging_begin(Comm *c, const Transfer *t, void *tensor) {
    CHECK(t->bytes <= MESSAGE_PART_MAX);
    StagingSlot *slot = free_slot(c);
    *slot = (StagingSlot){.memory = slot->memory, .tensor = tensor, .busy = true};
    if (t->receives) return slot->memory;
    DeviceStream before = device_on(ON_COMM);
    OP(c->device, download, slot->memory, tensor, t->bytes);
    finish(c->device, before);
    return slot->memory;
}

void staging_end(Comm *c, const Transfer *t, bool arrived) {
    StagingSlot *slot = c->slots;
    while (slot->memory != t->staged) slot++;
    slot->busy = false;
    if (!arrived) return;
    DeviceStream before = device_on(ON_COMM);
    OP(c->device, upload, slot->tensor, slot->memory, t->bytes);
    finish(c->device, before);
}

void staging_close(Comm *c) {
    for (int i = 0; i < c->slot_count; i++)
        if (!c->slots[i].busy) c->device->runtime.host_give(c->device, c->slots[i].memory);
    free(c->slots);
    c->slots = NULL;
    c->slot_count = 0;
}
