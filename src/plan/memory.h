/* The memory of a rank, read off its program before anything is allocated.
 *
 * Activations, gathered parameters and the gradients of single microbatches are buffers with lifetimes: a
 * buffer lives from the first action that touches it to the last. Since the program never changes, each
 * buffer gets a fixed offset in its arena, by first fit in order of first use over the buffers alive at the
 * same time. What the plan prints is what the run takes: the pools have exactly these sizes. */
#ifndef WEFT_PLAN_MEMORY_H
#define WEFT_PLAN_MEMORY_H

#include "device/device.h"
#include "model/unit.h"
#include "optimizer/groups.h"
#include "program/program.h"

typedef enum BufferKind {
    /* ids, targets, positions, first keys of microbatch m: 4 x [T] int32, then [T] losses and [T] z-losses
     * fp32; behind them in an evaluation [T, splits] LossRecord of each rank of cp, in training and with the
     * head targets [T] int32 and losses [T] fp32 of each MTP head, then of an MTP module next ids [T] int32.
     * First keys are of all ranks of cp */
    BUFFER_BATCH,
    BUFFER_SLAB,   /* slab(u, m) of model/unit.h; its head is the output of unit u - 1 */
    BUFFER_OUTPUT, /* [T, h] output of u, on its way to another rank */
    BUFFER_KEEP,   /* keep(u, m), only when dgrad and wgrad run separately */
    /* [T, h] gradient that travels back through adjacent units here; named by the last of them */
    BUFFER_GRADIENT,
    BUFFER_GATHERED, /* parameters of u, gathered for the how-manieth time */
    /* From here on a kind for each flat. Gradients of one microbatch, fp32, when they do not go straight into
     * those of the step; the same in fixed point, on their way over the network. */
    BUFFER_FLAT_GRADIENTS,
    BUFFER_FLAT_FIXED = BUFFER_FLAT_GRADIENTS + GRADIENT_FLATS,
    BUFFER_KINDS = BUFFER_FLAT_FIXED + GRADIENT_FLATS
} BufferKind;
enum { BATCH_FIRST_KEY = 3, BATCH_ARRAYS = 6 };
/* MTP heads that this rank trains in this program. */
int program_mtp_heads(const Program *p);
bool program_has_mtp_module(const Program *p);
/* Bytes before an array of a batch's buffer; BATCH_ARRAYS: before what is behind them. */
size_t batch_array_offset(const Model *m, int array);
static inline BufferKind buffer_of_flat(BufferKind first, Flat flat) {
    return (BufferKind)((int)first + (int)flat);
}

typedef enum Arena { ARENA_ACTIVATIONS, ARENA_GATHERED, ARENA_GRADIENTS, ARENAS } Arena;
Arena buffer_arena(BufferKind kind);

typedef struct Buffer {
    BufferKind kind;
    int unit, microbatch;
    size_t bytes, offset; /* offset in its arena */
    int first, last;      /* actions */
} Buffer;

/* Figures of a step, in tensor memory: what its ops are told that changes from step to step, ... */
typedef struct StepScalars {
    double norm_unit;              /* what grad_stats takes powers of */
    float inverse_token_count;     /* 1 / valid targets of the step */
    float mtp_inverse_token_count; /* the same for MTP heads, times their weight */
    OptimizerStep optimizer[];     /* [groups of parameters] */
} StepScalars;
size_t step_scalars_bytes(int groups);

/* ... and what they found. The host fetches the whole region at once. */
typedef struct StepStatistics {
    LossSum losses, z_losses, balance, mtp[MTP_DEPTH_MAX];
    /* [parameters]; behind them FixedRefusals [parameters], where the noise is measured GradStats
     * [parameters] of the step's first microbatch alone, choices of experts, int64_t [layers, E], and LossSum
     * [sources] of the data, where there are several */
    GradStats gradients[];
} StepStatistics;
size_t step_statistics_bytes(int parameters, bool noise, int64_t routed, int sources);
/* Counts of choices that a step of the model has: layers * E. */
int64_t step_routed(const ModelConfig *c);

typedef struct MemoryPlan {
    int count;
    Buffer *buffers;
    int *index; /* [kind, unit, microbatch] -> 1 + buffer, 0 if none */
    int units, columns;
    size_t arena[ARENAS]; /* bytes */
    size_t keep, scratch; /* shared regions of model/unit.h, in the workspace pool; scratch also of updates */
    bool masters;         /* matrices are held in fp32; else, for inference in bf16, in the copy alone */
    size_t parameters, copy; /* owned fp32 master weights; their copy in the compute dtype, when it stays */
    size_t gradients;        /* of the step: sums and owned shares; microbatches' own are in their arena */
    size_t optimizer;        /* states of owned elements, and averages */
    size_t *states;          /* [parameters, PARAM_STATES] bytes before each state of what is owned */
    size_t constants;
    size_t statistics; /* StepScalars and StepStatistics, and what probes take */
    struct {
        size_t
            slots; /* GradStats of each unit's output and its gradient, a microbatch, and of each parameter */
        size_t wide; /* [own, h] fp32, where states are bf16 */
    } probe;
    size_t reduction; /* workspace of one reduction; COMM_TURNS of them for each group that sums gradients */
    int reductions;   /* groups that do */
    size_t tie;       /* the other rank's share of a tied gradient */
    size_t exchange;  /* workspace of sums inside passes, over tp or cp */
    size_t device_scratch;
    bool separate_memory; /* pools are in memory of the device's own, not in the host's */
    size_t granularity;   /* Device.granularity */
    size_t staging; /* beside the pools, on the host: copy for checkpoints that are written while training */
    size_t pinned;  /* there, where the device is apart: for uploads, and for what a step fetches */
} MemoryPlan;

typedef struct MemorySpec {
    const Program *program;
    const Model *model;
    int64_t positions;
    size_t device_scratch;
    bool separate_memory;         /* Device.separate_memory */
    size_t granularity;           /* Device.granularity */
    size_t pinned;                /* Device.pinned */
    const ParamGroups *optimizer; /* training: gradients and states too; or NULL */
    bool inference;               /* an evaluation, and no training in whose memory it runs */
    bool probes;                  /* training: steps may be probed */
    bool noise;                   /* of gradients is measured */
    int sources;                  /* of the data, whose losses are told apart; 0: they are not */
} MemorySpec;

/* At most this many buffers does one action touch. */
#define ACTION_BUFFERS 16
/* Names the buffers that an action touches; returns how many. `bytes` of each is filled too. */
int action_buffers(const Program *p, const Model *m, Action a, Buffer out[ACTION_BUFFERS]);
/* The unit that names the buffer of gradients which travel through `unit`. */
int gradient_unit(const Program *p, int unit);

void memory_plan(MemoryPlan *plan, const MemorySpec *spec);
void memory_plan_free(MemoryPlan *plan);
const Buffer *memory_plan_buffer(const MemoryPlan *plan, BufferKind kind, int unit,
                                 int microbatch); /* CHECKs that it exists */

/* Where a flat lies in the buffer of its gathered unit, in bytes. */
size_t gathered_offset(const Program *p, const Model *m, int unit, Flat flat);
/* Elements of a flat's gradient of which this rank may be the sum's owner or not, and what a sum in two steps
 * needs beside (comm_sum_spare). */
size_t gradient_room(const Program *p, int unit, Flat flat);
/* Rows of splits that passes add the gradients of a unit's vectors to, where there are several: beside the
 * sums. */
size_t gradient_partials_bytes(const Program *p, int unit);
/* Persistent gradient memory of a flat of unit u (or of the tied head): whether there are sums of all shards,
 * or of the own one alone; bytes of the sums as they accumulate, and of the owned fp32 gradient where that is
 * not the same memory. */
bool gradient_sums_are_whole(const Program *p);
size_t gradient_sum_bytes(const Program *p, int unit, Flat flat);
size_t gradient_owned_bytes(const Program *p, int unit, Flat flat);

size_t memory_plan_buckets(const MemoryPlan *plan); /* of collectives */
size_t memory_plan_communication(const MemoryPlan *plan);
size_t memory_plan_pools(const MemoryPlan *plan);
size_t memory_plan_taken(const MemoryPlan *plan); /* what pools take, each by itself in whole pieces */
size_t memory_plan_host(const MemoryPlan *plan);  /* beside the pools */
/* Bytes of the memory that the pools are in: all that is beside them, too, unless the device has its own. It
 * is what a limit of memory is of, everywhere. */
size_t memory_plan_total(const MemoryPlan *plan);
/* A table: category, bytes (of the device, and of its host where these are apart), what it holds. */
void memory_plan_print(const MemoryPlan *plan, const Program *p, const Model *m, const ParamGroups *g,
                       Text *out);

#endif
