/* From a configuration to the parts of a run: device, shape of the model, options of a step, communication.
 * Shared by train and plan. */
#ifndef WEFT_TRAIN_SETUP_H
#define WEFT_TRAIN_SETUP_H

#include "data/dataset.h"
#include "tokenizer/tokenizer.h"
#include "config/config.h"
#include "engine/engine.h"
#include "optimizer/learning_rate.h"
#include "plan/layout.h"
#include "train/saved.h"

/* OpenMP's threads spin while they wait, which is time that other ranks miss where ranks have more threads
 * than the machine has cores. Its library reads once, when a process starts, that they shall not: so whoever
 * starts ranks says it first. */
void setup_before_ranks(const Config *c, int ranks);
/* Ranks of one machine share its cores, where the configuration leaves the number of threads open; comm may
 * be NULL: one. Warns where they have more threads than cores and nobody said how to wait. The configuration
 * stays: all ranks must plan the same, and machines differ. */
ErrorCode setup_device(const Config *c, const Comm *comm, Device *d, Error *err);
/* Shape of the model, completed, in c and its set: by what the tokenizer says, the vocabulary (when 0) and
 * the ids of BOS and EOS, and by the shape itself. Refuses a vocabulary that is smaller than the
 * tokenizer's. */
ErrorCode setup_shape(Config *c, OptionSet *set, const Tokenizer *t, Error *err);
/* The same where nothing else needs the tokenizer, which is opened only to ask for the vocabulary. */
ErrorCode setup_shape_alone(Config *c, OptionSet *set, Error *err);
/* Derives train.compute where it is auto: bf16 where processors multiply it natively. */
ErrorCode setup_compute(const Config *c, OptionSet *set, bool native, Error *err);
/* What the run leaves open is what it had when it was saved (`saved`, or NULL): compute: auto. */
ErrorCode setup_keep_compute(const Config *c, OptionSet *set, const Config *saved, Error *err);
/* The same of train.router_bias_speed, with what follows from it. biased: experts have had a bias, which the
 * saved run keeps beside its model files. */
ErrorCode setup_keep_balance(Config *c, OptionSet *set, const SavedRun *saved, bool biased, Error *err);
/* Derives what the configuration leaves open of a step: train.tokens_per_step from the saved run, or as
 * one microbatch (pipeline.microbatches) of each data-parallel rank; train.microbatch from the saved run
 * where that divides the step, or as config_geometry chooses; train.loss_rows from the saved run where the
 * microbatch is. */
ErrorCode setup_batch(const Config *c, OptionSet *set, int world, const Config *saved, Error *err);
/* Derives train.gradient_sync where it is auto, by configuration and mesh (plan/sync.h): as the saved run had
 * it, where its order of sums can so be had again. */
ErrorCode setup_gradient_sync(const Config *c, OptionSet *set, int world, const SavedRun *saved, Error *err);
/* Settles numerics.canonical_tp: what the saved run had (1, if it is older than the key), or mesh.tp; and
 * numerics.canonical_cp in the same way, where numerics are exact. */
ErrorCode setup_canonical(const Config *c, OptionSet *set, const Config *saved, Error *err);
/* Derives train.loss_rows as the plan has it: chosen where it is 0, never more than a microbatch has. */
ErrorCode setup_loss_rows(const Config *c, OptionSet *set, int64_t planned, Error *err);
/* The order in which the gradients of a step are added up, in words: two runs with the same have the same
 * bits, as far as that goes. */
void setup_sums(const Config *c, const Layout *l, char *out, size_t size);
/* Says what was asked for and will not be had: a run that ends well is not what was meant. */
void setup_remarks(const Config *c, const OptionSet *set, const Dataset *d, const Tokenizer *t);
StepOptions setup_step(const Config *c, int64_t step); /* 0-based */
/* Groups of the mesh, who adds up what arrives, and a progress thread where there is to be one. Collective.
 */
ErrorCode setup_communication(const Config *c, Comm *comm, const Mesh *mesh, Device *d, Error *err);

#endif
