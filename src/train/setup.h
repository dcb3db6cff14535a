/* Turns a configuration into the parts of a run: device, shape of the model, options of a step,
 * communication. Shared by train and plan. */
#ifndef WEFT_TRAIN_SETUP_H
#define WEFT_TRAIN_SETUP_H

#include "data/dataset.h"
#include "tokenizer/tokenizer.h"
#include "config/config.h"
#include "engine/engine.h"
#include "optimizer/learning_rate.h"
#include "plan/layout.h"
#include "train/saved.h"

/* Call before ranks are started. OpenMP threads spin while they wait, which takes time from other ranks if
 * ranks have more threads than the machine has cores. OpenMP reads OMP_WAIT_POLICY once, when a process
 * starts, so it must be set in the environment of the ranks. */
void setup_before_ranks(const Config *c, int ranks);
/* Takes it out of the environment again, unless the user had set it: other ranks may follow. */
void setup_after_ranks(void);
/* ERR_CONFIG for what the configuration alone shows to be wrong, before device, tokenizer, text or ranks are
 * there. `weft train` and `weft plan` call it first. */
ErrorCode setup_check(const Config *c, Error *err);
/* Opens the device. If the configuration leaves the number of threads open, the ranks of a machine share its
 * cores, without `spares` of them that only wait; comm NULL: one rank. Warns if they have more threads than
 * cores and nobody set how threads wait. Does not change the configuration, because all ranks must plan the
 * same and machines differ. */
ErrorCode setup_device(const Config *c, const Comm *comm, int spares, Device *d, Error *err);
/* Completes the shape of the model in c and its set: vocabulary (if 0) and ids of BOS and EOS from the
 * tokenizer, the rest from the shape itself. Fails if the vocabulary is smaller than the tokenizer's. */
ErrorCode setup_shape(Config *c, OptionSet *set, const Tokenizer *t, Error *err);
/* ERR_CONFIG if the shape is not that of model.init, as far as its files are there. */
ErrorCode setup_check_init(const Config *c, Error *err);
/* setup_shape where nothing else needs the tokenizer, which may be missing unless the vocabulary is 0.
 * Without data.sources a given vocabulary is not compared with it. */
ErrorCode setup_shape_planned(Config *c, OptionSet *set, Error *err);
/* The same, but the tokenizer is opened only if the vocabulary is 0. */
ErrorCode setup_shape_alone(Config *c, OptionSet *set, Error *err);
/* Derives train.compute if it is auto: bf16 if the processors multiply it natively. */
ErrorCode setup_compute(const Config *c, OptionSet *set, bool native, Error *err);
/* If train.compute is auto, takes the saved run's (`saved`, or NULL). */
ErrorCode setup_keep_compute(const Config *c, OptionSet *set, const Config *saved, Error *err);
/* The same for train.router_bias_speed, with what follows from it. biased: experts have had a bias, which the
 * saved run keeps outside of its model files. */
ErrorCode setup_keep_balance(Config *c, OptionSet *set, const SavedRun *saved, bool biased, Error *err);
/* Derives what the configuration leaves open of a step on `world` ranks: setup_batch, setup_invariance and
 * setup_gradient_sync, in this order. A run and `weft plan` both call it, so both refuse the same. Requires a
 * settled train.compute, and run.most_threads. saved: the run that is resumed, or NULL. limit: bytes of a
 * rank; 0: none. */
ErrorCode setup_settle(const Config *c, OptionSet *set, int world, const SavedRun *saved, double limit,
                       Error *err);
/* Derives tokens and microbatches. train.tokens_per_step: from the saved run, or one
 * microbatch (pipeline.microbatches) per data-parallel rank. train.microbatch: from the saved run if that
 * divides the step, otherwise chosen by config_geometry. train.loss_rows: from the saved run if the
 * microbatch is. */
ErrorCode setup_batch(const Config *c, OptionSet *set, int world, const Config *saved, Error *err);
/* Derives train.gradient_sync if it is auto: as in the saved run, if that reproduces its order of sums;
 * otherwise from configuration and mesh (plan/sync.h). */
ErrorCode setup_gradient_sync(const Config *c, OptionSet *set, int world, const SavedRun *saved, double limit,
                              Error *err);
/* Settles numerics.tp_invariant_up_to: the saved run's (1 if that is older than the key), or mesh.tp;
 * and numerics.etp_invariant_up_to from mesh.etp. With
 * exact numerics, settles numerics.cp_invariant_up_to in the same way. */
ErrorCode setup_invariance(const Config *c, OptionSet *set, const Config *saved, Error *err);
/* Derives train.loss_rows as the plan has it: chosen if it is 0, never more than a microbatch has. */
ErrorCode setup_loss_rows(const Config *c, OptionSet *set, int64_t planned, Error *err);
/* Writes in words the order in which the gradients of a step are summed. Runs with the same text have the
 * same bits, as far as that order determines them. */
void setup_sums(const Config *c, const Layout *l, char *out, size_t size);
/* Warns of settings that are allowed but will not do what was probably meant. */
void setup_remarks(const Config *c, const OptionSet *set, const Dataset *d, const Tokenizer *t);
StepOptions setup_step(const Config *c, int64_t step); /* 0-based */
/* Sets up communication: the groups of the mesh, the device that sums what arrives, and a progress thread if
 * wanted. Collective. */
ErrorCode setup_communication(const Config *c, Comm *comm, const Mesh *mesh, Device *d, Error *err);

#endif
