/* Copies of committed checkpoints in an object store, made by a thread while training goes on.
 *
 *     s3://BUCKET/PREFIX/step-00000200/FILE     as in RUN/checkpoints; manifest.json comes last
 *     s3://BUCKET/PREFIX/latest                 "step-00000200"
 *     s3://BUCKET/PREFIX/weft                   whose prefix it is: the id in RUN/checkpoints/mirror-id
 *
 * As on disk, a checkpoint counts only with its manifest. Nothing is removed from the store. A checkpoint
 * that cannot be copied is reported, and the run goes on. The checkpoints of another run are not touched. */
#ifndef WEFT_CHECKPOINT_MIRROR_H
#define WEFT_CHECKPOINT_MIRROR_H

#include <stdint.h>

#include "base/error.h"

typedef struct Mirror Mirror;

/* Writes a small object, so that wrong credentials are found now. ERR_CONFIG if the prefix is another run's.
 * dir: RUN/checkpoints. */
ErrorCode mirror_open(Mirror **mirror, const char *url, const char *dir, Error *err);
/* Queues a committed checkpoint, whose files are opened at once: they may be pruned. If one is still waiting,
 * it is passed over, with a warning. -1: the newest, unless the store has it. */
void mirror_add(Mirror *mirror, int64_t step);
/* Waits for what is queued. NULL is fine. */
void mirror_close(Mirror *mirror);

#endif
