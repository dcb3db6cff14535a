#include "train/tensors.h"

#include <stdlib.h>

#include "base/text.h"

static ErrorCode fetch(void *ctx, int index, size_t offset, size_t bytes, void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    /* Not through OP: this may be the saving thread, and the profile belongs to the one that trains. */
    pool_unlock_all();
    t->device->ops.download(t->device, host, (char *)t->memory[index] + offset, bytes);
    pool_lock_all();
    return OK;
}

static ErrorCode store(void *ctx, int index, size_t offset, size_t bytes, const void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    OP(t->device, OP_UPLOAD, upload, (char *)t->memory[index] + offset, host, bytes);
    return OK;
}

static void tensors_add(Tensors *t, const Param *p, const char *prefix, float *memory, SafeType stored) {
    Text name = {0};
    text_printf(&name, "%s%s", prefix, p->name);
    TensorDesc *d = &t->descriptions[t->list.count];
    *d = (TensorDesc){
        .name = name.data, .memory = SAFE_F32, .stored = stored, .rank = p->cols ? 2 : 1, .shape = {p->rows, p->cols}};
    t->memory[t->list.count++] = memory;
}

static Tensors *tensors_new(Engine *e, int per_parameter) {
    size_t room = (size_t)(e->model.table.count * per_parameter);
    Tensors *t = mem_alloc(sizeof *t);
    t->device = e->device;
    t->descriptions = mem_alloc_array(room, sizeof *t->descriptions);
    t->memory = mem_alloc_array(room, sizeof *t->memory);
    t->list = (TensorList){.tensors = t->descriptions, .ctx = t, .fetch = fetch, .store = store};
    return t;
}

Tensors *tensors_of_model(Engine *e, SafeType stored) {
    Tensors *t = tensors_new(e, 1);
    for (int i = 0; i < e->model.table.count; i++) {
        const Param *p = &e->model.table.params[i];
        tensors_add(t, p, "", weights_master(&e->weights, p), stored);
    }
    return t;
}

Tensors *tensors_of_optimizer(Engine *e, bool master) {
    Tensors *t = tensors_new(e, 3);
    const ParamTable *table = &e->model.table;
    for (int i = 0; i < table->count; i++) {
        const Param *p = &table->params[i];
        size_t at = table->unit_start[p->unit] + p->offset;
        tensors_add(t, p, "exp_avg.", e->moment1 + at, SAFE_F32);
        tensors_add(t, p, "exp_avg_sq.", e->moment2 + at, SAFE_F32);
        if (master) tensors_add(t, p, "master.", weights_master(&e->weights, p), SAFE_F32);
    }
    return t;
}

void tensors_free(Tensors *t) {
    if (!t) return;
    for (int i = 0; i < t->list.count; i++) free((void *)(uintptr_t)t->descriptions[i].name);
    free(t->descriptions);
    free(t->memory);
    free(t);
}
