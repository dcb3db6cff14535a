/* What all ranks of a run must have alike, compared before they do anything together.
 *
 * Ranks are started one by one, on machines of their own, where a file may be stale. Nothing later would
 * notice: every rank would train, on other data or by another rule, and the sums of all would be saved. So
 * each rank makes one hash of what it was told to run; where hashes differ, rank 0 tells the ranks apart by
 * the words behind them, and all end with one error that names ranks and keys.
 *
 *     agree_on_config   the configuration and the build, as soon as MPI runs; and again when all is resolved
 *     agree_on_data     what files hold: text and held-out text, tokenizer, mixture
 *     agree_on_files    tasks
 *     agree_on_file     a checkpoint to go on from, weights to start from
 *     agree_on_compute  compute: auto, once for all ranks
 *     agree_on_rounding kernels of ranks that hold copies of parameters
 *
 * All ranks call each; all return the same code, with err->reported set on all but one. */
#ifndef WEFT_TRAIN_AGREE_H
#define WEFT_TRAIN_AGREE_H

#include "base/options.h"
#include "comm/comm.h"
#include "config/config.h"
#include "train/saved.h"

/* ERR_CONFIG when ranks are other builds, or have other values of keys than those that are local in the
 * table. */
ErrorCode agree_on_config(Comm *comm, const OptionSet *set, Error *err);
/* ERR_DATA. files: dataset_list */
ErrorCode agree_on_data(Comm *comm, const RunFacts *facts, const Text *files, Error *err);
/* ERR_DATA unless all ranks have the same lines "SHA-256 NAME"; the error names those that differ. */
ErrorCode agree_on_files(Comm *comm, const Text *files, const char *advice, Error *err);
/* ERR_DATA when `mine`, which stands for what a file of this name holds, is not that of all ranks. */
ErrorCode agree_on_file(Comm *comm, const char *name, const char *mine, const char *advice, Error *err);
/* Derives train.compute where it is auto: bf16 if the processors of all ranks multiply it natively. */
ErrorCode agree_on_compute(Comm *comm, Config *c, OptionSet *set, const Device *d, Error *err);
/* ERR_CONFIG when ranks that hold copies of parameters would not keep them equal: each updates its own, and
 * their kernels round otherwise. products: matrix products are part of that (device_rounding). set: the
 * number, below `sets`, of the set of ranks that hold copies of the same parameters: a pipeline stage's. */
ErrorCode agree_on_rounding(Comm *comm, Device *d, bool products, int set, int sets, Error *err);
/* The kernels of all ranks, to be freed: "avx2", or "avx2 on ranks 0-3, avx512 on rank 4", which rank 0
 * says. */
ErrorCode agree_kernels(Comm *comm, const Device *d, char **kernels, Error *err);

/* What this program was built from and by; the hash of its file is part of it. To be freed. */
char *agree_build(void);

#endif
