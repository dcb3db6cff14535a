#include "train/tensors.h"

#include <stdlib.h>

#include "base/text.h"

static ErrorCode fetch(void *ctx, int piece, size_t offset, size_t bytes, void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    /* Not through OP: this may be the saving thread, and the profile belongs to the one that trains. */
    pool_unlock_all();
    t->engine->device->ops.download(t->engine->device, host, (char *)t->memory[piece] + offset, bytes);
    pool_lock_all();
    return OK;
}

static ErrorCode store(void *ctx, int piece, size_t offset, size_t bytes, const void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    OP(t->engine->device, OP_UPLOAD, upload, (char *)t->memory[piece] + offset, host, bytes);
    return OK;
}

static void describe(Tensors *t, const Param *p, const char *prefix, SafeType stored) {
    Text name = {0};
    text_printf(&name, "%s%s", prefix, p->name);
    t->descriptions[t->list.count++] = (TensorDesc){.name = name.data,
                                                    .memory = SAFE_F32,
                                                    .stored = stored,
                                                    .rank = p->cols ? 2 : 1,
                                                    .shape = {p->rows, p->cols}};
}

/* Every rank names every tensor, and has the elements that it owns of it. */
static void tensors_add(Tensors *t, const Param *p, const char *prefix, float *owned, SafeType stored) {
    const Partition *partition = &t->engine->partition;
    Piece piece = partition_piece(partition, p);
    int tensor = t->list.count;
    describe(t, p, prefix, stored);
    if (piece.count == 0 || (t->use == TENSORS_TO_SAVE && !partition_counts(partition, p->unit))) return;
    t->memory[t->list.piece_count] = owned + piece.at;
    t->pieces[t->list.piece_count++] = (TensorPiece){tensor, piece.first, piece.count};
}

static Tensors *tensors_new(Engine *e, TensorsUse use, int per_parameter) {
    size_t room = (size_t)(e->model.table.count * per_parameter);
    Tensors *t = mem_alloc(sizeof *t);
    t->engine = e;
    t->use = use;
    t->descriptions = mem_alloc_array(room, sizeof *t->descriptions);
    t->pieces = mem_alloc_array(room, sizeof *t->pieces);
    t->memory = mem_alloc_array(room, sizeof *t->memory);
    t->list = (TensorList){
        .tensors = t->descriptions, .ctx = t, .fetch = fetch, .store = store, .pieces = t->pieces};
    return t;
}

Tensors *tensors_of_model(Engine *e, TensorsUse use, SafeType stored) {
    Tensors *t = tensors_new(e, use, 1);
    for (int i = 0; i < e->model.table.count; i++)
        tensors_add(t, &e->model.table.params[i], "", e->master, stored);
    return t;
}

Tensors *tensors_of_optimizer(Engine *e, TensorsUse use, bool master) {
    Tensors *t = tensors_new(e, use, 3);
    for (int i = 0; i < e->model.table.count; i++) {
        const Param *p = &e->model.table.params[i];
        tensors_add(t, p, "exp_avg.", e->moment1, SAFE_F32);
        tensors_add(t, p, "exp_avg_sq.", e->moment2, SAFE_F32);
        if (master) tensors_add(t, p, "master.", e->master, SAFE_F32);
    }
    return t;
}

void tensors_free(Tensors *t) {
    if (!t) return;
    for (int i = 0; i < t->list.count; i++) free((void *)(uintptr_t)t->descriptions[i].name);
    free(t->descriptions);
    free(t->pieces);
    free(t->memory);
    free(t);
}
