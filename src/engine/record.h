/* The record that all ranks of a step combine in one small all-reduce: the inputs of the gradient norm, the
 * loss and the decision to update. Combining is commutative and associative to the last bit, so every rank
 * gets the same bytes, whatever tree the all-reduce uses.
 *
 * Every element of the gradient and every token must be in the record of exactly one rank, the one that
 * counts it. */
#ifndef WEFT_ENGINE_RECORD_H
#define WEFT_ENGINE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/exact.h"
#include "device/shapes.h"
#include "model/config.h"
#include "program/program.h"

enum {
    RECORD_STOP = 1,   /* in `any`: some rank was asked to stop */
    RECORD_MEMORY = 2, /* in `any`: some rank's device has less free memory than after its first step */
    RECORD_NOTICE = 4  /* in `any`: the machine of some rank is to be taken away */
};
enum { RECORD_WRITER = 8 /* from this bit on, `any` and `all` are a WriterWord (checkpoint/async.h) */ };

/* All members have 64 bits, so that no byte is padding. */
typedef struct StepRecord {
    ExactSum norm;    /* sum of grad_stats over all elements, in units of record_unit, normalised */
    ExactSum loss;    /* of finite token losses, normalised */
    ExactSum z_loss;  /* the same for the z-loss */
    ExactSum balance; /* and for the balance loss of experts */
    ExactSum mtp[MTP_DEPTH_MAX]; /* and for each MTP head */
    /* Sums of squared gradients over the parameters whose noise is measured: of the step, and of its first
     * microbatch */
    ExactSum noise_all, noise_first;
    double max;            /* max |g| over finite elements */
    int64_t valid;         /* target tokens that are not ignored */
    int64_t first_valid;   /* of these, in the first microbatch of the step */
    int64_t ahead;         /* `valid` of the next step, ... */
    int64_t ahead_unknown; /* ... and the number of ranks that do not know it */
    int64_t nonfinite;     /* gradient elements; GradStats.nonfinite */
    int64_t bad_losses;    /* tokens whose loss is not finite */
    int64_t culprit;       /* lowest parameter index with a non-finite element; -1: none */
    int64_t culprit_rank;  /* the lowest rank that has one in it; -1: none */
    uint64_t any, all;     /* flags, combined by or, and by and */
} StepRecord;
_Static_assert(sizeof(StepRecord) == STEP_RECORD_BYTES, "the plan counts it");

/* Neutral element of record_combine. */
void record_start(StepRecord *r);
void record_add_stats(StepRecord *r, const GradStats *s, int64_t parameter, int64_t rank);
/* Counts elements of a parameter that make the step invalid. */
void record_add_nonfinite(StepRecord *r, int64_t elements, int64_t parameter, int64_t rank);
void record_add_losses(StepRecord *r, const LossSum *s);
void record_add_z_losses(StepRecord *r, const LossSum *s);
void record_add_balance(StepRecord *r, const LossSum *s);
void record_add_mtp(StepRecord *r, int head, const LossSum *s);
/* into += from; neither needs to be normalised, the result is. */
void record_combine(void *into, const void *from);

/* What grad_stats divides gradients by before it takes powers: for powers that need it, the largest |g| of
 * all ranks (or 1 if that is 0); otherwise 1. */
double record_unit(double max, double p);
bool record_needs_max(double p);

/* Results of the combined record. The norm is NaN if a gradient element is not finite, the loss if a token's
 * loss is not; the loss is 0 without targets. */
double record_norm(const StepRecord *r, double p);
double record_loss(const StepRecord *r);
double record_z_loss(const StepRecord *r);
double record_balance(const StepRecord *r);
double record_mtp(const StepRecord *r, int head);

/* Gradient noise: McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1. Let b
 * be the targets in the first microbatch, B those in the step, G_b and G_B their mean gradients per target.
 * Unbiased estimates are
 *     signal = (B |G_B|^2 - b |G_b|^2) / (B - b)        |G|^2 of the true gradient
 *     variance = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)      of a target's gradient, summed over parameters
 * NaN where a step has one microbatch. A single estimate is very noisy; use means of many. */
typedef struct NoiseEstimate {
    double signal, variance;
} NoiseEstimate;
NoiseEstimate record_noise(const StepRecord *r);

#endif
