/* Finds a run's checkpoint directory, and the model directory for a path that names a model, a checkpoint or
 * a run. */
#ifndef WEFT_CHECKPOINT_FIND_H
#define WEFT_CHECKPOINT_FIND_H

#include "checkpoint/modelfiles.h"
#include "comm/comm.h"

char *checkpoint_directory(const char *run_dir); /* RUN/checkpoints; the caller frees */
/* The same; an error if it is a link or a file. The caller frees *dir. */
ErrorCode checkpoint_own_directory(const char *run_dir, char **dir, Error *err);
/* The model directory for `where`: `where` itself, that of a checkpoint, or that of a run's newest
 * checkpoint; for a URL the copy of a checkpoint (checkpoint/fetch.h), which is fetched. The caller frees
 * *dir. ERR_NOINPUT: it is none of these; ERR_DATA: it is an adapter, not a model. */
ErrorCode checkpoint_find_model(const char *where, char **dir, Error *err);
/* The same, or an adapter (checkpoint/adapter.h). */
ErrorCode checkpoint_find_weights(const char *where, char **dir, Error *err);
/* Where the small files of that model are, config.json and those of the tokenizer: for a URL, its weights are
 * not fetched. */
ErrorCode checkpoint_find_shape(const char *where, const char *cache_dir, char **dir, Error *err);
/* All ranks: `where` itself; for the URL of a run that of its newest checkpoint, as rank 0 finds it. The
 * caller frees *named; NULL after a failure. */
ErrorCode checkpoint_name_on_ranks(const char *where, const char *cache_dir, Comm *comm, char **named,
                                   Error *err);
/* All ranks, before each of them calls the above for *dir: `where` itself; for a URL the copy of that
 * checkpoint, which one rank of each machine fetches. The caller frees *dir. */
ErrorCode checkpoint_find_on_ranks(const char *where, const char *cache_dir, Comm *comm, char **dir,
                                   Error *err);
/* Warns if a checkpoint holds expert biases that its model files cannot store: a consumer of the model files
 * alone routes tokens without them. */
void checkpoint_warn_balance(const char *dir);
/* Whether the checkpoint's optimizer file holds such biases. */
bool checkpoint_keeps_balance(const ModelFiles *optimizer);

#endif
