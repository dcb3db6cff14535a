/* Choices of keys, shared with other directories. */
#ifndef WEFT_CONFIG_CHOICES_H
#define WEFT_CONFIG_CHOICES_H

#include "base/choices.h"

/* What predicts tokens after the next one. */
#define MTP_KINDS(X) X(MTP_KIND_HEADS, "heads") X(MTP_KIND_MODULE, "module")
typedef enum MtpKind { MTP_KINDS(CHOICE_CONSTANT) } MtpKind;

#define COMPUTE_KINDS(X) X(COMPUTE_AUTO, "auto") X(COMPUTE_BF16, "bf16") X(COMPUTE_FP32, "fp32")
typedef enum ComputeKind { COMPUTE_KINDS(CHOICE_CONSTANT) } ComputeKind;

#define NUMERICS_KINDS(X) X(NUMERICS_FAST, "fast") X(NUMERICS_EXACT, "exact")
typedef enum Numerics { NUMERICS_KINDS(CHOICE_CONSTANT) } Numerics;

/* When gathered parameters are dropped. never: once gathered, they stay until the end of the step (ZeRO-2,
 * ZeRO-1). auto: always, except under pipelines, where each microbatch would gather again. */
#define RESHARD_KINDS(X) X(RESHARD_AUTO, "auto") X(RESHARD_ALWAYS, "always") X(RESHARD_NEVER, "never")
typedef enum Reshard { RESHARD_KINDS(CHOICE_CONSTANT) } Reshard;

/* When gradients are reduced: once per step, once per microbatch, or reduce-scattered once per microbatch and
 * all-reduced over the replicas once per step. auto: of those that send the fewest bytes, the one that takes
 * the least memory; with a memory limit, see plan/sync.h. */
#define SYNC_KINDS(X) \
    X(SYNC_STEP, "step") X(SYNC_MICROBATCH, "microbatch") X(SYNC_REPLICA, "replica") X(SYNC_AUTO, "auto")
typedef enum GradientSync { SYNC_KINDS(CHOICE_CONSTANT) } GradientSync;

/* mesh.cp_comm; never auto once it is resolved. */
#define CP_COMMS(X) \
    X(CP_COMM_AUTO, "auto") X(CP_COMM_ALL_TO_ALL, "all_to_all") X(CP_COMM_ALL_GATHER, "all_gather")
typedef enum CpComm { CP_COMMS(CHOICE_CONSTANT) } CpComm;

/* What follows when a rank dies. */
#define RECOVERY_MODES(X) X(RECOVERY_RESTART, "restart") X(RECOVERY_IN_PLACE, "in_place")
typedef enum RecoveryMode { RECOVERY_MODES(CHOICE_CONSTANT) } RecoveryMode;

#define STORE_TYPES(X) X(STORE_FP32, "fp32") X(STORE_BF16, "bf16")
typedef enum StoreType { STORE_TYPES(CHOICE_CONSTANT) } StoreType;

#endif
