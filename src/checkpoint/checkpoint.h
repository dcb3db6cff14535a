/* Checkpoints of a run: directories that Hugging Face opens as they are, and that survive anything.
 *
 *     RUN/checkpoints/latest -> step-00000200
 *     RUN/checkpoints/step-00000200/config.json, generation_config.json, tokenizer.json, ...   (files of the caller)
 *                                   model.safetensors, or shards with model.safetensors.index.json
 *                                   optimizer.safetensors, state.json                          (unless weights only)
 *                                   manifest.json
 *
 * How they are committed stands, as invariants, at the top of checkpoint.c. A run directory is written by one process at a
 * time (the run's lock); reading needs no lock. */
#ifndef WEFT_CHECKPOINT_CHECKPOINT_H
#define WEFT_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/modelfiles.h"
#include "model/config.h"

#define CHECKPOINT_STATE "state.json"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"

typedef struct CheckpointFile {
    const char *name; /* a plain file name */
    const void *data;
    size_t length;
} CheckpointFile;

typedef struct CheckpointSave {
    int64_t step;
    const TensorList *model;
    const TensorList *optimizer; /* NULL: weights only */
    const char *state;           /* JSON text; NULL when weights only */
    const CheckpointFile *files; /* config.json and so on */
    int file_count;
    uint64_t shard_bytes; /* 0: SHARD_BYTES */
} CheckpointSave;

typedef struct SaveFigures {
    uint64_t bytes;
    double seconds;
} SaveFigures;

/* Writes and commits one checkpoint under `dir` (RUN/checkpoints, made if need be). One of the same step is replaced. When it
 * fails, what was there before is there still, or the new one is, whole. ops NULL: the system's. figures may be NULL. */
ErrorCode checkpoint_save(const FileOps *ops, const char *dir, const CheckpointSave *save, SaveFigures *figures, Error *err);

/* An open checkpoint, verified to the last byte. Tensors: modelfiles_load(&c.model, list, err). */
typedef struct Checkpoint {
    char *path;
    int64_t step;
    bool resumable;
    char *state; /* NULL when weights only */
    ModelFiles model;
    ModelFiles optimizer; /* empty when weights only */
} Checkpoint;

/* `path` is one checkpoint, or a directory of checkpoints, of which the newest good one is taken; each damaged one that is
 * newer is named by a warning. With `resumable`, those with weights only are passed over. */
ErrorCode checkpoint_open(Checkpoint *c, const char *path, bool resumable, Error *err);
void checkpoint_close(Checkpoint *c);

/* Every byte of the checkpoint in this directory is as written. */
ErrorCode checkpoint_verify(const char *path, Error *err);

typedef enum CheckLevel {
    CHECK_MANIFEST, /* the manifest verifies and every file has its size */
    CHECK_CONTENTS  /* and every byte is right */
} CheckLevel;

typedef struct CheckpointInfo {
    int64_t step;
    char *path;
    char time[21];
    bool good, resumable;
    uint64_t bytes;
    char problem[512]; /* when not good */
} CheckpointInfo;

typedef struct CheckpointSet {
    size_t count;
    CheckpointInfo *items; /* ascending by step */
} CheckpointSet;

/* A directory that does not exist has no checkpoints. */
ErrorCode checkpoint_list(CheckpointSet *set, const char *dir, CheckLevel level, Error *err);
void checkpoint_set_free(CheckpointSet *set);

/* Which to keep: the last `last` (0: all; never fewer than 2), and every one whose step is a multiple of `every` (0: none). */
typedef struct CheckpointKeep {
    int64_t last, every;
} CheckpointKeep;

/* Removes what need not be kept. Only good checkpoints count and only they are removed, never the one of step `in_use` (-1 for
 * none). Leftovers of interrupted saves and removals go too. *removed may be NULL. */
ErrorCode checkpoint_prune(const FileOps *ops, const char *dir, CheckpointKeep keep, int64_t in_use, CheckLevel level,
                           int *removed, Error *err);

/* Texts of the files that transformers wants beside the weights. */
void checkpoint_generation_config(const ModelConfig *c, Text *out);
/* Makes AutoTokenizer take tokenizer.json as it is; bos and eos may be NULL. */
void checkpoint_tokenizer_config(const char *bos, const char *eos, int64_t context, Text *out);

#endif
