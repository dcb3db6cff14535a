/* Describes each tensor of the parameter table, and each optimizer state of it. Bytes move through the
 * device's ops, since tensor memory must not be read here directly.
 *
 * A rank describes all tensors and holds segments of some. When saving, one of the replicas (dp_replicate, a
 * tied embedding that is held twice) counts and writes; when loading, every holder reads.
 *
 *     description   each tensor of the model, on every rank: name, shape, dtype in memory and in the file
 *     segment       a run of its elements that this rank holds, contiguous in memory
 *     memory[i]     where segment i lies on the device
 *
 * Elsewhere called: state_dict, sharded_state_dict. */
#include "train/tensors.h"

#include <stdlib.h>

#include "base/text.h"
#include "checkpoint/adapter.h"
#include "device/ops/memory.h"

/* Waits for the device, so that what is fetched has been computed. */
static ErrorCode fetch(void *ctx, int segment, size_t offset, size_t bytes, void *host, Error *err) {
    Tensors *t = ctx;
    Device *d = engine_device(t->engine);
    (void)err;
    device_fetch(d, host, (char *)t->memory[segment] + offset, bytes);
    return OK;
}

static ErrorCode store(void *ctx, int segment, size_t offset, size_t bytes, const void *host, Error *err) {
    Tensors *t = ctx;
    (void)err;
    OP(engine_device(t->engine), upload, (char *)t->memory[segment] + offset, host, bytes);
    return OK;
}

/* The shape is that of the unsharded tensor in the model file. A vector has no columns. The list owns the
 * name and frees it. */
static void describe(Tensors *t, const Param *p, const char *prefix, SafeType memory, SafeType stored) {
    TensorDesc *d = &t->descriptions[t->list.count++];
    Text name = {0};
    text_printf(&name, "%s%s%s", prefix, *prefix ? "." : "", p->name);
    *d = (TensorDesc){.name = name.data, .memory = memory, .stored = stored};
    d->rank = param_shape(&engine_plan(t->engine)->spec.model, p, d->shape);
}

static ParamSegment segment_of(const Engine *e, const Param *p) {
    return partition_segment(&engine_plan(e)->partition, p);
}

/* Adds tensor PREFIX.NAME, and the elements of it that this rank owns, at `at` (NULL: none) with dtype
 * `memory`. Every rank adds the description, since the layout of files must be the same everywhere
 * (checkpoint/segments.h); only owners add segments. */
static void tensors_add(Tensors *t, const Param *p, const char *prefix, void *at, SafeType memory,
                        SafeType stored) {
    ParamSegment segment = segment_of(t->engine, p);
    SegmentRun run;
    int tensor = t->list.count;
    size_t width = safe_type_bits(memory) / 8;
    describe(t, p, prefix, memory, stored);
    if (!at) return;
    if (t->use == TENSORS_TO_SAVE && !partition_counts(&engine_plan(t->engine)->partition, p)) return;
    for (int64_t first = 0; first < segment.count; first += run.count) {
        run = segment_run(&segment, first);
        t->memory[t->list.segment_count] = (char *)at + (size_t)first * width;
        t->segments[t->list.segment_count++] = (TensorSegment){tensor, run.element, run.count};
    }
}

/* Number of segments of all parameters: each parameter may have several. */
static int64_t count_runs(const Engine *e) {
    int64_t sum = 0;
    for (int i = 0; i < engine_model(e)->table.count; i++) {
        ParamSegment segment = segment_of(e, &engine_model(e)->table.params[i]);
        sum += segment_runs(&segment);
    }
    return sum;
}

/* Allocates for all tensors and segments at once: they must not move once the list points at them. */
static Tensors *tensors_new(const Engine *e, TensorsUse use, int per_parameter) {
    size_t capacity = (size_t)(engine_model(e)->table.count * per_parameter),
           runs = (size_t)(count_runs(e) * per_parameter);
    Tensors *t = mem_alloc(sizeof *t);
    t->engine = e;
    t->use = use;
    t->descriptions = mem_alloc_array(capacity, sizeof *t->descriptions);
    t->segments = mem_alloc_array(runs, sizeof *t->segments);
    t->memory = mem_alloc_array(runs, sizeof *t->memory);
    t->list = (TensorList){
        .tensors = t->descriptions, .ctx = t, .fetch = fetch, .store = store, .segments = t->segments};
    return t;
}

/* What an engine holds of a parameter: master weights, except for inference. `stored` is the dtype in the
 * file. */
static void add_weight(Tensors *t, const Param *p, const char *prefix, SafeType stored) {
    SafeType held = engine_held(t->engine, p->flat) == DTYPE_BF16 ? SAFE_BF16 : SAFE_F32;
    tensors_add(t, p, prefix, engine_weight(t->engine, p, segment_of(t->engine, p)), held, stored);
}

static Tensors *tensors_of(const Engine *e, TensorsUse use, bool adapters, SafeType stored) {
    const ParamTable *table = &engine_model(e)->table;
    Tensors *t = tensors_new(e, use, 1);
    for (int i = 0; i < table->count; i++) {
        const Param *p = &table->params[i];
        if ((p->row->adapts != NULL) == adapters && !p->row->with_states)
            add_weight(t, p, adapters ? ADAPTER_PREFIX : "", stored);
    }
    return t;
}

Tensors *tensors_of_model(const Engine *e, TensorsUse use, SafeType stored) {
    return tensors_of(e, use, param_table_is_adapted(&engine_model(e)->table), stored);
}

Tensors *tensors_of_base(const Engine *e, TensorsUse use) { return tensors_of(e, use, false, SAFE_F32); }

/* States are stored in the dtype that they have in memory, so resuming changes no bit. */
static void add_states(Tensors *t, int param, const Param *p) {
    const ParamGroups *g = &engine_plan(t->engine)->groups;
    SafeType type = param_group(g, param)->settings.states == DTYPE_BF16 ? SAFE_BF16 : SAFE_F32;
    for (int k = 0; k < param_states(g, param); k++)
        if (!param_state_is_average(g, param, k))
            tensors_add(t, p, param_state(g, param, k)->name, engine_optimizer_state(t->engine, param, k),
                        type, type);
}

/* Adds what model files cannot hold, under the prefix "kept": "master" would signal that the model file is
 * rounded. */
static void add_kept(Tensors *t, const Param *p) {
    tensors_add(t, p, "kept", engine_master(t->engine, segment_of(t->engine, p)), SAFE_F32, SAFE_F32);
}

static bool is_there(const ModelFiles *from, const char *prefix, const Param *p) {
    Text name = {0};
    text_printf(&name, "%s.%s", prefix, p->name);
    bool there = modelfiles_find(from, name.data) != NULL;
    text_free(&name);
    return there;
}

/* Adds such a parameter, and its average. An older file may lack them, and memory then stays zero; an average
 * that is no longer wanted is skipped, as those of weights are. */
static void add_with_states(Tensors *t, int param, const Param *p, const ModelFiles *from) {
    const ParamGroups *g = &engine_plan(t->engine)->groups;
    bool averaged = g->ema > 0;
    void *average = averaged ? engine_optimizer_state(t->engine, param, param_states(g, param) - 1) : NULL;
    if (!from || is_there(from, "kept", p)) add_kept(t, p);
    if (from ? is_there(from, "average", p) : averaged)
        tensors_add(t, p, "average", average, SAFE_F32, SAFE_F32);
}

/* With `master` also the fp32 weights, for a model file that is rounded: without them a resumed run would
 * continue from different weights. */
Tensors *tensors_of_optimizer(const Engine *e, const ModelFiles *from, bool master) {
    const ParamTable *table = &engine_model(e)->table;
    Tensors *t = tensors_new(e, from ? TENSORS_TO_LOAD : TENSORS_TO_SAVE, 1 + OPTIMIZER_STATES);
    for (int i = 0; i < table->count; i++) {
        const Param *p = &table->params[i];
        add_states(t, i, p);
        if (p->row->with_states)
            add_with_states(t, i, p, from);
        else if (master && !param_group(&engine_plan(e)->groups, i)->base)
            tensors_add(t, p, "master", engine_master(e, segment_of(t->engine, p)), SAFE_F32, SAFE_F32);
    }
    return t;
}

Tensors *tensors_of_kept(const Engine *e) {
    const ParamTable *table = &engine_model(e)->table;
    if (!engine_plan(e)->spec.model.balance_bias) return NULL;
    Tensors *t = tensors_new(e, TENSORS_TO_SAVE, 1);
    for (int i = 0; i < table->count; i++)
        if (table->params[i].row->with_states) add_kept(t, &table->params[i]);
    return t;
}

/* Always fp32, whatever the model file is rounded to, because a run resumes with it. */
Tensors *tensors_of_average(const Engine *e, TensorsUse use) {
    const ParamTable *table = &engine_model(e)->table;
    const ParamGroups *g = &engine_plan(e)->groups;
    if (g->ema <= 0) return NULL;
    Tensors *t = tensors_new(e, use, 1);
    for (int i = 0; i < table->count; i++) {
        if (table->params[i].row->with_states) continue;
        tensors_add(t, &table->params[i], "", engine_optimizer_state(e, i, param_states(g, i) - 1), SAFE_F32,
                    SAFE_F32);
    }
    return t;
}

void tensors_free(Tensors *t) {
    if (!t) return;
    for (int i = 0; i < t->list.count; i++) free((void *)(uintptr_t)t->descriptions[i].name);
    free(t->descriptions);
    free(t->segments);
    free(t->memory);
    free(t);
}
