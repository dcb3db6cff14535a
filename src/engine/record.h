/* What the ranks of a step tell each other in one small all-reduce: what the gradient norm, the loss and the
 * decision to update are made of. Combining is commutative and associative to the last bit, so every rank
 * gets the same bytes, whatever tree an all-reduce uses.
 *
 * Every element of the gradient and every token must be in the record of exactly one rank: the owner puts it
 * there. */
#ifndef WEFT_ENGINE_RECORD_H
#define WEFT_ENGINE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/exact.h"
#include "device/device.h"
#include "model/config.h"
#include "program/program.h"

enum {
    RECORD_STOP = 1,  /* of `any`: some rank was asked to stop */
    RECORD_MEMORY = 2 /* of `any`: less of some rank's device is free than was behind its first step */
};
enum { RECORD_WRITER = 8 /* bits of `any` and `all` from here on are a WriterWord (checkpoint/async.h) */ };

/* 64 bits each, so that no byte is padding. */
typedef struct StepRecord {
    ExactSum norm;    /* sum of grad_stats over all elements, in units of record_unit, normalised */
    ExactSum loss;    /* of finite token losses, normalised */
    ExactSum z_loss;  /* the same of the z-loss */
    ExactSum balance; /* and of the balance loss of experts */
    ExactSum mtp[MTP_DEPTH_MAX]; /* and of each MTP head */
    /* Squares of gradients, of those parameters whose noise is measured: of the step, and of its first
     * microbatch */
    ExactSum noise_all, noise_first;
    double max;            /* max |g| over finite elements */
    int64_t valid;         /* target tokens that are not ignored */
    int64_t first_valid;   /* of these, in the first microbatch of the step */
    int64_t ahead;         /* the same of the next step ... */
    int64_t ahead_unknown; /* ... ranks that do not know */
    int64_t nonfinite;     /* gradient elements; GradStats.nonfinite */
    int64_t bad_losses;    /* tokens whose loss is not finite */
    int64_t culprit;      /* lowest index in the parameter table of one with a non-finite element; -1: none */
    int64_t culprit_rank; /* the lowest rank that has one there; -1 */
    uint64_t any, all;    /* flags, combined by or, and by and */
} StepRecord;
_Static_assert(sizeof(StepRecord) == STEP_RECORD_BYTES, "the plan counts it");

/* The record that changes none that it is combined with. */
void record_start(StepRecord *r);
void record_add_stats(StepRecord *r, const GradStats *s, int64_t parameter, int64_t rank);
/* So many elements of a parameter that make the step useless. */
void record_add_nonfinite(StepRecord *r, int64_t elements, int64_t parameter, int64_t rank);
void record_add_losses(StepRecord *r, const LossSum *s);
void record_add_z_losses(StepRecord *r, const LossSum *s);
void record_add_balance(StepRecord *r, const LossSum *s);
void record_add_mtp(StepRecord *r, int head, const LossSum *s);
/* into += from; neither needs to be normalised, the result is. */
void record_combine(void *into, const void *from);

/* What grad_stats takes powers of: 1, or the largest |g| of all ranks (or 1 where that is 0) for powers that
 * need it. */
double record_unit(double max, double p);
bool record_needs_max(double p);

/* Of the combined record. The norm is NaN when an element is not finite; the loss when a token's is not, 0
 * without targets. */
double record_norm(const StepRecord *r, double p);
double record_loss(const StepRecord *r);
double record_z_loss(const StepRecord *r);
double record_balance(const StepRecord *r);
double record_mtp(const StepRecord *r, int head);

/* McCandlish et al., "An empirical model of large-batch training", 2018, appendix A.1. With b targets in the
 * first microbatch, B in the step, G_b and G_B the mean gradients of a target in them: unbiased estimates of
 *     signal = (B |G_B|^2 - b |G_b|^2) / (B - b)        |G|^2 of the true gradient
 *     variance = (|G_b|^2 - |G_B|^2) / (1/b - 1/B)      of the gradient of a target, summed over parameters
 * NaN where a step has one microbatch. One estimate says little: means of many do. */
typedef struct NoiseEstimate {
    double signal, variance;
} NoiseEstimate;
NoiseEstimate record_noise(const StepRecord *r);

#endif
