/* Choices of keys that the rooms above share. */
#ifndef WEFT_CONFIG_CHOICES_H
#define WEFT_CONFIG_CHOICES_H

#include "base/choices.h"

/* What predicts tokens behind the next one. */
#define MTP_KINDS(X) X(MTP_KIND_HEADS, "heads") X(MTP_KIND_MODULE, "module")
typedef enum MtpKind { MTP_KINDS(CHOICE_CONSTANT) } MtpKind;

#define COMPUTE_KINDS(X) X(COMPUTE_AUTO, "auto") X(COMPUTE_BF16, "bf16") X(COMPUTE_FP32, "fp32")
typedef enum ComputeKind { COMPUTE_KINDS(CHOICE_CONSTANT) } ComputeKind;

#define NUMERICS_KINDS(X) X(NUMERICS_FAST, "fast") X(NUMERICS_EXACT, "exact")
typedef enum Numerics { NUMERICS_KINDS(CHOICE_CONSTANT) } Numerics;

/* When gathered parameters are dropped. Never: once gathered, they stay to the end of the step (ZeRO-2,
 * ZeRO-1). Auto: always, but never under pipelines, where each microbatch would gather anew. */
#define RESHARD_KINDS(X) X(RESHARD_AUTO, "auto") X(RESHARD_ALWAYS, "always") X(RESHARD_NEVER, "never")
typedef enum Reshard { RESHARD_KINDS(CHOICE_CONSTANT) } Reshard;

/* When gradients cross the network: once a step, once a microbatch, or reduce-scatters once a microbatch and
 * all-reduces over the replicas once a step. Auto: what takes the least memory of those that send the fewest
 * bytes; with a limit of memory, plan/sync.h. */
#define SYNC_KINDS(X) \
    X(SYNC_STEP, "step") X(SYNC_MICROBATCH, "microbatch") X(SYNC_REPLICA, "replica") X(SYNC_AUTO, "auto")
typedef enum GradientSync { SYNC_KINDS(CHOICE_CONSTANT) } GradientSync;

/* parallel.context; never auto once it is settled. */
#define CP_COMMS(X) X(CP_COMM_AUTO, "auto") X(CP_COMM_ALL_TO_ALL, "heads") X(CP_COMM_ALL_GATHER, "keys")
typedef enum CpComm { CP_COMMS(CHOICE_CONSTANT) } CpComm;

#define STORE_TYPES(X) X(STORE_FP32, "fp32") X(STORE_BF16, "bf16")
typedef enum StoreType { STORE_TYPES(CHOICE_CONSTANT) } StoreType;

#endif
