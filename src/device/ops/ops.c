/* What is the same for every op, from the lists in ops/: descriptors and calls. */
#include "device/ops/ops.h"

#include "base/clock.h"
#include "device/pool.h"

_Static_assert((int)OP_COUNT <= (int)DEVICE_OPS_MAX, "Device.profile has too few entries");

/* ---- descriptors ---- */

/* EACH(m, x, a, b, ...) is m(x, a) m(x, b) ..., for up to 10. */
#define EACH_1(m, x, a) m(x, a)
#define EACH_2(m, x, a, ...) m(x, a) EACH_1(m, x, __VA_ARGS__)
#define EACH_3(m, x, a, ...) m(x, a) EACH_2(m, x, __VA_ARGS__)
#define EACH_4(m, x, a, ...) m(x, a) EACH_3(m, x, __VA_ARGS__)
#define EACH_5(m, x, a, ...) m(x, a) EACH_4(m, x, __VA_ARGS__)
#define EACH_6(m, x, a, ...) m(x, a) EACH_5(m, x, __VA_ARGS__)
#define EACH_7(m, x, a, ...) m(x, a) EACH_6(m, x, __VA_ARGS__)
#define EACH_8(m, x, a, ...) m(x, a) EACH_7(m, x, __VA_ARGS__)
#define EACH_9(m, x, a, ...) m(x, a) EACH_8(m, x, __VA_ARGS__)
#define EACH_10(m, x, a, ...) m(x, a) EACH_9(m, x, __VA_ARGS__)
#define COUNT(...) COUNT_OF(__VA_ARGS__, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define COUNT_OF(a, b, c, d, e, f, g, h, i, j, k, ...) k
#define JOIN(a, b) JOIN_AGAIN(a, b)
#define JOIN_AGAIN(a, b) a##b
#define EACH(m, x, ...) JOIN(EACH_, COUNT(__VA_ARGS__))(m, x, __VA_ARGS__)

/* clang-format off */
#define FIELD_TYPE(value)                                                                        \
    _Generic(value, bool: FIELD_BOOL, int: FIELD_INT, int64_t: FIELD_I64, size_t: FIELD_SIZE,    \
             Dtype: FIELD_DTYPE, AttentionShape: FIELD_ATTENTION, AttentionRun: FIELD_RUN,       \
             LatentShape: FIELD_LATENT, RouteShape: FIELD_ROUTE, ExpertRows: FIELD_ROWS,         \
             MatrixShape: FIELD_MATRIX, KSplit: FIELD_SPLIT)
/* clang-format on */
#define FIELD(Args, name) {#name, FIELD_TYPE(((Args *)0)->name), offsetof(Args, name)},
#define FIELDS(id, slot, Args, ...)                                                    \
    _Static_assert(sizeof(Args) <= OP_BYTES_MAX, "more arguments than wrappers keep"); \
    static const OpField fields_of_##slot[] = {EACH(FIELD, Args, __VA_ARGS__)};
DEVICE_OPS(FIELDS)

#define DESCRIPTOR(id, slot, Args, ...) \
    {#slot, sizeof(Args), sizeof fields_of_##slot / sizeof *fields_of_##slot, fields_of_##slot},

const OpDescriptor *op_descriptor(OpId op) {
    static const OpDescriptor all[OP_COUNT] = {DEVICE_OPS(DESCRIPTOR)};
    CHECK(op >= 0 && op < OP_COUNT);
    return &all[op];
}

const char *op_name(OpId op) { return op_descriptor(op)->name; }

/* ---- calls ---- */

/* A backend may lack an op that no model needs there yet; the failed check names it. */
void op_run(Device *d, OpId op, const void *arguments) {
    switch (op) {
#define RUN(id, slot, ...)           \
    case OP_##id:                    \
        CHECK(d->ops->slot != NULL); \
        d->ops->slot(d, arguments);  \
        break;
        DEVICE_OPS(RUN)
#undef RUN
    }
}

void op_enqueue(Device *d, OpId op, const void *arguments) {
    (d->runtime.enqueue ? d->runtime.enqueue : op_run)(d, op, arguments);
}

/* The clock is read only when profiling, because ops of small models take less than a microsecond. A GPU
 * times ops itself, with events. */
static int64_t begin_profile(Device *d) {
    return d->runtime.begin_time ? d->runtime.begin_time(d) : (int64_t)(clock_seconds() * 1e9);
}

static void end_profile(Device *d, OpProfile *p, int64_t begun) {
    p->calls++;
    if (d->runtime.end_time)
        d->runtime.end_time(d, begun, &p->seconds);
    else
        p->seconds += (clock_seconds() * 1e9 - (double)begun) / 1e9;
}

/* On a deferred device the profile times the queueing, not the op. */
static void call(Device *d, OpId op, const void *arguments) {
    pool_unlock_all();
    int64_t begun = d->profiling ? begin_profile(d) : 0;
    op_enqueue(d, op, arguments);
    if (d->profiling) end_profile(d, &d->profile[op], begun);
    pool_lock_all();
}

#define CALL(id, slot, Args, ...) \
    void op_##slot(Device *d, const Args *o) { call(d, OP_##id, o); }
DEVICE_OPS(CALL)
