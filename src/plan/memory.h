/* The memory of a rank, computed from its program before anything is allocated.
 *
 * Activations, gathered parameters and the gradients of single microbatches are buffers with lifetimes: a
 * buffer lives from the first action that touches it to the last. Since the program never changes, each
 * buffer gets a fixed offset in its arena, by first fit in order of first use among the buffers that are
 * alive at the same time. A run takes exactly what the plan prints: its pools have these sizes.
 *
 * Elsewhere called: memory estimate, activation memory (memory_plan). */
#ifndef WEFT_PLAN_MEMORY_H
#define WEFT_PLAN_MEMORY_H

#include "device/shapes.h"
#include "model/unit.h"
#include "optimizer/groups.h"
#include "program/program.h"

typedef enum BufferKind {
    /* Arrays of microbatch m: ids, targets, positions and first keys, 4 x [T] int32; losses and z-losses, 2 x
     * [T] fp32. Then in an evaluation [T, splits] LossRecord of each rank of cp; in training, where the head
     * is, [T] int32 targets and [T] fp32 losses of each MTP head, and [T] int32 next ids of an MTP module.
     * First keys cover all ranks of cp */
    BUFFER_BATCH,
    BUFFER_SAVED,  /* saved activations of unit u (model/unit.h); begins with the output of unit u - 1 */
    BUFFER_OUTPUT, /* [T, h] output of u, to be sent to another rank */
    BUFFER_STASH,  /* wgrad stash of u, only where dgrad and wgrad run separately */
    /* [T, h] gradient that travels back through adjacent units of this rank; named by the last of them */
    BUFFER_GRADIENT,
    /* With segments, of a unit with attention; `microbatch` is the first segment's. Keys and values of all of
     * them, from the first forward pass to the last backward pass; and partial sums of their gradients. */
    BUFFER_KEYS,
    BUFFER_KEY_SUMS,
    BUFFER_GATHERED, /* parameters of u; `microbatch` is the index of the gather in the step */
    /* From here on there is one kind for each flat. FLAT_GRADIENTS: fp32 gradients of one microbatch, where
     * they are not added to those of the step at once. FLAT_FIXED: the same in fixed point, on their way over
     * the network. FLAT_PARTIALS: of experts with ep, partial sums of FLAT_GRADIENTS over the ranks of ep;
     * alive in the DISPATCH that makes them. */
    BUFFER_FLAT_GRADIENTS,
    BUFFER_FLAT_FIXED = BUFFER_FLAT_GRADIENTS + GRADIENT_FLATS,
    BUFFER_FLAT_PARTIALS = BUFFER_FLAT_FIXED + GRADIENT_FLATS,
    BUFFER_KINDS = BUFFER_FLAT_PARTIALS + GRADIENT_FLATS
} BufferKind;
enum { BATCH_FIRST_KEY = 3, BATCH_ARRAYS = 6 };
/* Number of MTP heads that this program trains on this rank. */
int program_mtp_heads(const Program *p);
bool program_has_mtp_module(const Program *p);
/* The engine makes the targets of MTP heads and the next ids of an MTP module in host memory: rows of a
 * microbatch, each of its tokens; bytes of a step. */
int64_t program_mtp_rows(const Model *m);
size_t program_mtp_host_bytes(const Program *p, const Model *m);
/* Bytes of host memory that the figures of a step take: the step's record, the tokens routed to each expert,
 * and `fetched` bytes of StepStatistics where they are not in pinned memory. */
size_t step_record_bytes(int64_t routed, size_t fetched);
/* Byte offset of an array in a batch's buffer. BATCH_ARRAYS: of what follows the arrays. */
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
    int first, last;      /* indices of actions */
} Buffer;

/* Values that change from step to step and that ops read from tensor memory. */
typedef struct StepScalars {
    double norm_unit;              /* grad_stats computes powers of values in this unit */
    float inverse_token_count;     /* 1 / target tokens of the step */
    float mtp_inverse_token_count; /* the same for MTP heads, times their loss weight */
    OptimizerStep optimizer[];     /* [parameter groups] */
} StepScalars;
size_t step_scalars_bytes(int groups);

/* Values that ops compute in a step. The host fetches the entire region at once. */
typedef struct StepStatistics {
    LossSum losses, z_losses, balance, mtp[MTP_DEPTH_MAX];
    /* [parameters]; followed by FixedRefusals [parameters]; with noise measurement by GradStats [parameters]
     * of the step's first microbatch alone; by int64_t [layers, E] tokens routed to each expert; by
     * int64_t [step_origins]; and by LossSum [sources] where the data has several sources */
    GradStats gradients[];
} StepStatistics;
size_t step_statistics_bytes(int parameters, bool noise, int64_t routed, int64_t origins, int sources);
/* Number of counters of non-finite values (engine/origin.c): ORIGIN_STAGES of each action, and one of each
 * parameter's gradient in each microbatch. */
enum { ORIGIN_STAGES = 2 };
int64_t step_origins(const Program *p, int parameters);
/* Number of expert counters of a step: layers * E. */
int64_t step_routed(const ModelConfig *c);

typedef struct MemoryPlan {
    int count;
    Buffer *buffers;
    int *index; /* [kind, unit, microbatch] -> 1 + index of the buffer; 0: there is none */
    int units, columns;
    size_t arena[ARENAS];  /* bytes */
    size_t stash, scratch; /* shared regions of model/unit.h in the workspace pool; updates use scratch too */
    bool masters;          /* matrices are held in fp32; false for inference in bf16: only the copy is */
    size_t parameters, copy; /* owned fp32 master weights; their persistent copy in the compute dtype */
    size_t gradients; /* of the step: sums and owned shards; those of microbatches are in their arena */
    size_t optimizer; /* states and averages of owned elements */
    size_t *states;   /* [parameters, PARAM_STATES] offset in bytes of each state of the owned elements */
    size_t constants;
    size_t statistics; /* StepScalars, StepStatistics, and the memory of probes */
    struct {
        /* GradStats of each unit's output and of its gradient for each microbatch, and of each parameter */
        size_t slots;
        size_t wide; /* [local tokens, h] fp32, where states are bf16 */
    } probe;
    size_t reduction; /* workspace of one reduction; each group that sums gradients has COMM_ACTIVE of them */
    int reductions;   /* number of these groups */
    size_t tie;       /* the shard of a tied gradient that the other rank sends */
    size_t exchange;  /* workspace of the sums over tp or cp inside passes */
    size_t device_scratch;
    /* Copy of another rank's state, and its gradients of a step (recovery.partner_copy). */
    struct {
        size_t parameters, optimizer, gradients;
    } partner;
    bool separate_memory; /* pools are in the device's own memory, not in the host's */
    size_t granularity;   /* Device.granularity */
    size_t staging;       /* on the host, outside the pools: copy for checkpoints written during training */
    size_t batches;       /* on the host: of the steps that are read ahead, and of the loader */
    size_t record;        /* on the host: what a step reports */
    size_t pinned;        /* on the host, with a discrete device: for uploads and fetched statistics */
} MemoryPlan;

typedef struct MemorySpec {
    const Program *program;
    const Model *model;
    int64_t positions;
    size_t device_scratch;
    bool separate_memory;         /* Device.separate_memory */
    size_t granularity;           /* Device.granularity */
    size_t pinned;                /* Device.pinned */
    const ParamGroups *optimizer; /* for training: gradients and states too; or NULL */
    bool inference;               /* an evaluation without a training run whose memory it could use */
    bool probes;                  /* training: steps may be probed */
    bool noise;                   /* the gradient noise scale is measured */
    int sources;                  /* of the data, with losses reported separately; 0: not separately */
} MemorySpec;

/* Maximum number of buffers that one action touches. */
#define ACTION_BUFFERS 20
/* Fills `out` with the buffers that an action touches, including `bytes`; returns their number. */
int action_buffers(const Program *p, const Model *m, Action a, Buffer out[ACTION_BUFFERS]);
/* The unit by which the buffer of gradients that travel through `unit` is named. */
int gradient_unit(const Program *p, int unit);

void memory_plan(MemoryPlan *plan, const MemorySpec *spec);
void memory_plan_free(MemoryPlan *plan);
const Buffer *memory_plan_buffer(const MemoryPlan *plan, BufferKind kind, int unit,
                                 int microbatch); /* CHECKs that it exists */

/* Offset in bytes of a flat in the buffer of its gathered unit. */
size_t gathered_offset(const Program *p, const Model *m, int unit, Flat flat);
/* Elements that a buffer needs for a flat's full gradient, including the spare ones of a two-step sum
 * (comm_sum_spare). */
size_t gradient_elements(const Program *p, int unit, Flat flat);
/* Bytes of the rows, one for each split, in which passes accumulate the gradients of a unit's vectors; they
 * come on top of the sums. 0 with one row. */
size_t gradient_partials_bytes(const Program *p, int unit);
/* Persistent gradient memory of a flat of unit u (or of the tied head's gradient).
 * gradient_sums_are_unsharded: whether sums cover all shards, or only this rank's. gradient_sum_bytes: bytes
 * of the sums while they accumulate. gradient_owned_bytes: bytes of the owned fp32 gradient where it is
 * separate memory, else 0. */
bool gradient_sums_are_unsharded(const Program *p);
size_t gradient_sum_bytes(const Program *p, int unit, Flat flat);
size_t gradient_owned_bytes(const Program *p, int unit, Flat flat);

/* Elements of this rank's gradient of a flat that its updates read. With a tied copy of the embedding, that
 * is the sum which TIE makes. */
int64_t gradient_updated(const Partition *p, int unit, Flat flat);
/* Adds the copy of the state of another rank, with this partition and memory. */
void memory_plan_add_partner(MemoryPlan *plan, const Partition *of, const ParamGroups *g,
                             const MemoryPlan *memory);

size_t memory_plan_partner(const MemoryPlan *plan);
size_t memory_plan_buckets(const MemoryPlan *plan); /* of collectives */
size_t memory_plan_communication(const MemoryPlan *plan);
size_t memory_plan_pools(const MemoryPlan *plan);
size_t memory_plan_taken(const MemoryPlan *plan); /* pools, each rounded up to the allocation granularity */
size_t memory_plan_host(const MemoryPlan *plan);  /* outside the pools */
/* Bytes in the memory that holds the pools. They include the host's part, unless the device has separate
 * memory. Every limit of memory refers to this figure. */
size_t memory_plan_total(const MemoryPlan *plan);
/* Appends a table: category, bytes (device, and host where the two are separate), contents. */
void memory_plan_print(const MemoryPlan *plan, const Program *p, const Model *m, const ParamGroups *g,
                       Text *out);

#endif
