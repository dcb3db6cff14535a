/* Checks that all ranks of a run agree on configuration, files and kernels before they do anything together.
 *
 * Ranks are started one by one, on different machines, where a file may be stale. Nothing later would notice
 * a difference: every rank would train on other data or by another rule, and the sums of all would be saved.
 * So each rank hashes what it is going to run. If hashes differ, rank 0 compares the texts behind them, and
 * all ranks end with one error that names ranks and keys.
 *
 *     agree_on_config   configuration and build: as soon as MPI runs, and again when everything is resolved
 *     agree_on_data     contents of files: training and validation text, tokenizer, mixture
 *     agree_on_files    tasks
 *     agree_on_file     a checkpoint to resume from, weights to start from
 *     agree_on_compute  compute: auto, decided once for all ranks
 *     agree_on_rounding kernels of ranks that hold replicas of parameters
 *
 * All ranks call each function, and all return the same code, with err->reported set on all but one. */
#ifndef WEFT_TRAIN_AGREE_H
#define WEFT_TRAIN_AGREE_H

#include "base/options.h"
#include "comm/comm.h"
#include "config/config.h"
#include "train/saved.h"

/* ERR_CONFIG if ranks have different builds, or different values of keys that the table does not mark as
 * local. */
ErrorCode agree_on_config(Comm *comm, const OptionSet *set, Error *err);
/* ERR_DATA. files: dataset_list */
ErrorCode agree_on_data(Comm *comm, const RunFacts *facts, const Text *files, Error *err);
/* ERR_DATA unless all ranks have the same lines "SHA-256 NAME"; the error names those that differ. */
ErrorCode agree_on_files(Comm *comm, const Text *files, const char *advice, Error *err);
/* ERR_DATA unless all ranks have the same `mine`, which stands for the contents of a file of this name. */
ErrorCode agree_on_file(Comm *comm, const char *name, const char *mine, const char *advice, Error *err);
/* Derives train.compute where it is auto: bf16 if the processors of all ranks multiply it natively. */
ErrorCode agree_on_compute(Comm *comm, Config *c, OptionSet *set, const Device *d, Error *err);
/* ERR_CONFIG if ranks that hold replicas of parameters would not keep them equal: each rank updates its
 * replica by itself, and different kernels round differently. products: matrix products are part of the
 * update (device_rounding). set: index, below `sets`, of the set of ranks with replicas of the same
 * parameters, such as a pipeline stage. */
ErrorCode agree_on_rounding(Comm *comm, Device *d, bool products, int set, int sets, Error *err);
/* Names the kernels of all ranks: "avx2", or "avx2 on ranks 0-3, avx512 on rank 4". The caller frees the
 * text. Rank 0 logs differences. */
ErrorCode agree_kernels(Comm *comm, const Device *d, char **kernels, Error *err);

/* Version, compiler and build type of this program, and the hash of its file. The caller frees the text. */
char *agree_build(void);

#endif
