/* Checkpoints of a mirror (checkpoint/mirror.h), in an object store or on a web server, as directories of
 * this machine.
 *
 *     URL/latest                  which step, unless the URL names one
 *     URL/step-N/manifest.json    its files with sizes and checksums; none, or an empty one: not committed
 *     CACHE_DIR/remote/           the files while they are fetched: of one version each, resumed by range
 *     CACHE_DIR/checkpoints/HASH/step-N    all of them, verified; HASH is the manifest's
 *     CACHE_DIR/checkpoints/HASH/described    the small files of the model alone, verified
 *
 * A checkpoint that is replaced in the store has another hash: a copy never changes, and is complete if it is
 * there. */
#ifndef WEFT_CHECKPOINT_FETCH_H
#define WEFT_CHECKPOINT_FETCH_H

#include <stdbool.h>

#include "base/error.h"
#include "base/text.h"

#define FETCH_COPIES "checkpoints"
#define FETCH_CACHE ".weft-cache" /* CACHE_DIR for verbs without a configuration: data.cache_dir's default */

/* The URL of one step: `url` itself, or the newest of the run that it names. The caller frees *step.
 * ERR_NOINPUT: there is none. */
ErrorCode fetch_name_step(const char *url, const char *cache_dir, char **step, Error *err);
/* Appends, one per line, the name in CACHE_DIR/FETCH_COPIES of the copy of the step that a URL names, whether
 * or not it exists, and the path of the copy of its manifest. */
ErrorCode fetch_name_copies(const char *url, const char *cache_dir, Text *names, Error *err);
/* Makes sure that the copy is there, and keeps it from being removed (checkpoint/fetch_prune.h) until this
 * process ends. One process fetches, others wait. The caller frees *dir. ERR_NOINPUT:
 * the URL names no committed checkpoint. */
ErrorCode fetch_checkpoint(const char *url, const char *cache_dir, char **dir, Error *err);

/* The same without weights and training state: a directory with config.json, the tokenizer, other small
 * files. */
ErrorCode fetch_description(const char *url, const char *cache_dir, char **dir, Error *err);

/* Fetches into RUN/checkpoints, `checkpoints`, a checkpoint from which a run can resume. The caller holds the
 * run's lock. An interrupted fetch leaves .fetch there, and the next one goes on with it. */
ErrorCode fetch_into_run(const char *url, const char *checkpoints, Error *err);

#endif
