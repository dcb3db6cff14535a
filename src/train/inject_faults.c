/* Faults as they happen: a rank kills itself, stops, sleeps, or spoils a bit or a gradient. Only what
 * --inject asked for, and never what is still being saved of the step before. */
#include "train/inject_faults.h"

#include <stdio.h>

#include "base/log.h"

enum { FLOAT_BITS = 32 };

/* Of the master weights that this rank holds; gradients and moments follow from them. */
static uint64_t count_bits(const Engine *e) {
    uint64_t elements = 0;
    for (int i = 0; i < engine_model(e)->table.count; i++)
        elements +=
            (uint64_t)partition_segment(&engine_plan(e)->partition, &engine_model(e)->table.params[i]).count;
    return elements * FLOAT_BITS;
}

/* Through the device, as everything that touches tensor memory. The copy in the compute dtype is made
 * anew, or the flip would be undone in it by nobody noticing. */
static void turn(Engine *e, float *weight, unsigned bit) {
    uint32_t bits;
    device_fetch(engine_device(e), &bits, weight, sizeof bits);
    bits ^= UINT32_C(1) << bit;
    OP(engine_device(e), OP_UPLOAD, upload, weight, &bits, sizeof bits);
    engine_refresh(e);
}

/* place is drawn from 64 bits: the element by its quotient, the bit by its remainder. Walks the table to
 * the parameter in which the element lies. */
void inject_bitflip(Engine *e, uint64_t place, char *where, size_t size) {
    uint64_t element = place % count_bits(e) / FLOAT_BITS;
    unsigned bit = (unsigned)(place % FLOAT_BITS);
    for (int i = 0; i < engine_model(e)->table.count; i++) {
        const Param *p = &engine_model(e)->table.params[i];
        ParamSegment segment = partition_segment(&engine_plan(e)->partition, p);
        if (element < (uint64_t)segment.count) {
            turn(e, engine_master(e, segment) + element, bit);
            snprintf(where, size, "bit %u of element %lld of %s", bit,
                     (long long)segment_run(&segment, (int64_t)element).element, p->name);
            return;
        }
        element -= (uint64_t)segment.count;
    }
}

/* Logged first: a rank that kills itself says nothing after. */
static void inject_one(const Fault *f, Engine *e, StepOptions *options) {
    char where[160] = "";
    if (f->kind == FAULT_BITFLIP) inject_bitflip(e, inject_place(f, count_bits(e)), where, sizeof where);
    /* A gradient is spoiled inside the step, by the engine, where a broken kernel would. */
    if (f->kind == FAULT_NAN) options->poison = true, options->poison_place = inject_place(f, UINT64_MAX);
    log_warn("injected on rank %d, before step %lld: %s%s%s", f->rank, (long long)f->step,
             fault_name(f->kind), where[0] ? ", " : "", where);
    inject_process_fault(f);
}

/* All faults of this rank, step and attempt, in the order of the words. */
void inject_faults(const Inject *in, Engine *e, int64_t step, int attempt, StepOptions *options) {
    for (const Fault *f = NULL; (f = inject_at(in, engine_plan(e)->rank, step, attempt, f));)
        inject_one(f, e, options);
}

void inject_phase_faults(const Inject *in, const FaultPlace *place) {
    for (const Fault *f = NULL; (f = inject_in(in, place, f));) {
        log_warn("injected on rank %d, in %s: %s", f->rank, phase_name(f->phase), fault_name(f->kind));
        inject_process_fault(f);
    }
}
