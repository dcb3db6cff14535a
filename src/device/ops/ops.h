/* All ops, for backends and for wrappers around them. Callers include only the headers of the ops they call.
 *
 *     OP(d, gemm, ...) --> op_gemm --> [runtime.enqueue, of a wrapper] --> op_run --> d->ops->gemm
 *
 * A wrapper gets an op's number and its arguments. With the descriptor it can copy them and run the op later
 * (deferred.c), or describe them in a message (cuda/calls.c), without code for single ops. */
#ifndef WEFT_DEVICE_OPS_OPS_H
#define WEFT_DEVICE_OPS_OPS_H

#include "device/ops/attention.h"
#include "device/ops/experts.h"
#include "device/ops/linear.h"
#include "device/ops/loss.h"
#include "device/ops/memory.h"
#include "device/ops/optimizer.h"
#include "device/ops/recurrence.h"

#define DEVICE_OPS(X) \
    LINEAR_OPS(X) ATTENTION_OPS(X) RECURRENCE_OPS(X) EXPERTS_OPS(X) LOSS_OPS(X) OPTIMIZER_OPS(X) MEMORY_OPS(X)

#define OP_ID(id, ...) OP_##id,
enum { DEVICE_OPS(OP_ID) OP_COUNT };
#undef OP_ID

/* The functions of a backend, one for each op. */
#define OP_SLOT(id, slot, Args, ...) void (*slot)(Device *, const Args *);
struct Ops {
    DEVICE_OPS(OP_SLOT)
};
#undef OP_SLOT

/* Types of arguments that an error message shows. */
typedef enum OpFieldType {
    FIELD_BOOL,
    FIELD_INT,
    FIELD_I64,
    FIELD_SIZE,
    FIELD_DTYPE,
    FIELD_ATTENTION,
    FIELD_RUN,
    FIELD_LATENT,
    FIELD_ROUTE,
    FIELD_ROWS,
    FIELD_MATRIX,
    FIELD_SPLIT
} OpFieldType;

typedef struct OpField {
    const char *name;
    OpFieldType type;
    size_t at; /* offset in the arguments */
} OpField;

typedef struct OpDescriptor {
    const char *name; /* that of the slot */
    size_t bytes;     /* of the arguments */
    int fields;
    const OpField *field;
} OpDescriptor;
enum { OP_BYTES_MAX = 384 }; /* no op has more arguments */

const OpDescriptor *op_descriptor(OpId op);
const char *op_name(OpId op);
/* Calls the backend's function. */
void op_run(Device *d, OpId op, const void *arguments);
/* The same as a call by OP, but the guard is open and the profile kept already: for use inside an op. */
void op_enqueue(Device *d, OpId op, const void *arguments);

#endif
