/* Checkpoints of a run: directories that Hugging Face transformers can open, and that survive crashes.
 *
 *     RUN/checkpoints/latest -> step-00000200
 *     RUN/checkpoints/step-00000200/
 *         config.json, generation_config.json, tokenizer.json, ...          files of the caller
 *         model.safetensors, or shards with model.safetensors.index.json; or adapter_model.safetensors
 *         model.ema.safetensors                                             with a moving average of weights
 *         optimizer.safetensors            of weights only: state of the run that no model file can hold
 *         state.json                                                        unless weights only
 *         manifest.json
 *
 * The top of checkpoint.c lists the invariants of the commit protocol. Only one process writes to a run
 * directory at a time (it holds the run's lock); reading needs no lock. */
#ifndef WEFT_CHECKPOINT_CHECKPOINT_H
#define WEFT_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/modelfiles.h"
#include "model/config.h"

#define CHECKPOINT_STATE "state.json"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
/* Averaged weights under the same names: transformers opens it with variant="ema". */
#define CHECKPOINT_AVERAGE "model.ema.safetensors"

typedef struct CheckpointFile {
    const char *name; /* a plain file name */
    const void *data;
    size_t length;
} CheckpointFile;

typedef struct CheckpointSave {
    int64_t step;
    const TensorList *model;     /* with the segments that this rank writes */
    bool adapter;                /* the model is an adapter: ADAPTER_FILE holds it */
    const TensorList *optimizer; /* NULL: none, if weights only */
    const TensorList *average;   /* of the weights; NULL: none */
    const char *state;           /* JSON text; NULL when weights only. Only rank 0's is used */
    const CheckpointFile *files; /* config.json and so on; only rank 0's are used */
    int file_count;
    uint64_t shard_bytes; /* 0: SHARD_BYTES */
    int64_t best;         /* step of a checkpoint that this save must not prune (CheckpointKeep); 0: none */
} CheckpointSave;

/* Saving by many ranks, each its local shard: three phases, which the caller puts in order. All ranks
 * describe the same tensors in the same order; every element is in a segment of exactly one rank.
 *
 *     checkpoint_begin     rank 0, when the previous save is over
 *     checkpoint_write     every rank, after rank 0's begin
 *     checkpoint_commit    rank 0, with the blobs of all ranks
 *
 * Between the phases all state is in files: a process may end anywhere, and earlier checkpoints remain. A
 * rank that could not write reports it in its blob, and the commit then fails with that cause. ops NULL: the
 * system's. */

/* Makes the temporary directory under `dir` (RUN/checkpoints, which is made if missing; RUN must exist), the
 * small files, and the tensor files with header and full length. Leaves nothing behind on failure. */
ErrorCode checkpoint_begin(const FileOps *ops, const char *dir, const CheckpointSave *save, Error *err);
/* Writes this rank's segments. Appends to `blob` what rank 0 needs for the commit, also after a failure. */
ErrorCode checkpoint_write(const FileOps *ops, const char *dir, const CheckpointSave *save, Text *blob,
                           Error *err);
/* The blob of a rank that failed before it could write. */
void checkpoint_blob_failure(const Error *failure, Text *blob);

typedef struct CheckpointBlob {
    const char *data;
    size_t length;
} CheckpointBlob;

/* Checks that the blobs [ranks] cover every element of every tensor exactly once, writes the manifest, and
 * renames the checkpoint to its final name. `save` is that of checkpoint_begin, with the same bytes. Removes
 * the temporary directory on failure. *bytes: size of the checkpoint. */
ErrorCode checkpoint_commit(const FileOps *ops, const char *dir, const CheckpointSave *save,
                            const CheckpointBlob *blobs, int ranks, uint64_t *bytes, Error *err);

typedef struct SaveFigures {
    uint64_t bytes;
    double seconds;
} SaveFigures;

/* The three phases in one process that holds everything. Replaces a checkpoint of the same step. On failure,
 * either the previous state is unchanged, or the new checkpoint is complete. figures may be NULL. */
ErrorCode checkpoint_save(const FileOps *ops, const char *dir, const CheckpointSave *save,
                          SaveFigures *figures, Error *err);

/* An open checkpoint. To load tensors: modelfiles_load(&c.model, list, err), with any segments in the
 * list. */
typedef struct Checkpoint {
    char *path;
    int64_t step;
    uint64_t seal; /* checksum of its manifest, which identifies the checkpoint */
    bool resumable;
    char *state; /* NULL when weights only */
    ModelFiles model;
    ModelFiles optimizer; /* empty when weights only */
    ModelFiles average;   /* empty when there is none */
} Checkpoint;

/* `path` is one checkpoint, or a directory of checkpoints; of a directory, the newest good one is opened,
 * with a warning for each newer one that is damaged. `resumable` skips those with weights only. Verifies
 * every byte, and that the steps in the directory's name, the manifest and the state agree. */
ErrorCode checkpoint_open(Checkpoint *c, const char *path, bool resumable, Error *err);
void checkpoint_close(Checkpoint *c);

/* Verifies every byte of the checkpoint in this directory. */
ErrorCode checkpoint_verify(const char *path, Error *err);

/* The same in steps, for many ranks that share the reading. Rank 0 lists the candidates and sends their paths
 * one by one, newest first, until every rank has checked its part of one and found it good; then all of them
 * open it.
 *
 *     CheckpointSet set;
 *     checkpoint_candidates(&set, path, err);              rank 0
 *     for (i = set.count; i-- > 0;) {
 *         ... rank 0 sends set.items[i].path ...
 *         checkpoint_check_part(path, rank, ranks, err);   OK on all ranks (all-reduced): use this one
 *     }
 *     checkpoint_open_verified(&c, path, true, err);       may refuse one with weights only: try the next */

/* Verifies part `rank` of `ranks`; all parts have about as many bytes. */
ErrorCode checkpoint_check_part(const char *path, int rank, int ranks, Error *err);
/* Opens a checkpoint whose parts have all been checked. */
ErrorCode checkpoint_open_verified(Checkpoint *c, const char *path, bool resumable, Error *err);

typedef enum CheckLevel {
    CHECK_MANIFEST, /* the manifest verifies and every file has its size */
    CHECK_CONTENTS  /* every byte is verified, too */
} CheckLevel;

typedef struct CheckpointInfo {
    int64_t step;
    char *path;
    char time[21];
    bool good, resumable;
    uint64_t bytes;
    char problem[512]; /* if not good */
} CheckpointInfo;

typedef struct CheckpointSet {
    size_t count;
    CheckpointInfo *items; /* ascending by step */
} CheckpointSet;

/* The checkpoints at `path`, ascending by step: `path` is one checkpoint, or a directory of them. Selected by
 * name; nothing is opened. Links and files with the name of a checkpoint are skipped with a warning. */
ErrorCode checkpoint_candidates(CheckpointSet *set, const char *path, Error *err);
/* A directory that does not exist has no checkpoints. */
ErrorCode checkpoint_list(CheckpointSet *set, const char *dir, CheckLevel level, Error *err);
void checkpoint_set_free(CheckpointSet *set);

/* The checkpoints to keep: the last `last` (0: all; never fewer than 2), those whose step is a multiple of
 * `every` (0: none), and step `best` (0: none). */
typedef struct CheckpointKeep {
    int64_t last, every, best;
} CheckpointKeep;

/* Removes the checkpoints that need not be kept. Only good checkpoints count and only they are removed, never
 * step `in_use` (-1 for none). Also removes leftovers of interrupted saves and removals. *removed may be
 * NULL. */
ErrorCode checkpoint_prune(const FileOps *ops, const char *dir, CheckpointKeep keep, int64_t in_use,
                           CheckLevel level, int *removed, Error *err);

/* Removes leftovers of interrupted saves and removals. Call it when a run starts, with the run's lock held.
 * ops NULL: the system's. */
void checkpoint_clean(const FileOps *ops, const char *dir);

/* Changes to the tokenizer and generation files that a run was given: special tokens set by configuration
 * keys, and the token that ends an assistant turn. */
typedef struct TokenChanges {
    bool bos, eos, pad;
    int64_t answer_end; /* added to the eos tokens if not among them; -1: none */
} TokenChanges;

/* NULL: none. */
typedef struct TokenNames {
    const char *bos, *eos, *pad;
} TokenNames;

/* Texts of the files that transformers needs along with the weights. generation_config.json: that of the
 * directory `base`, if it has one, else generated. */
ErrorCode checkpoint_generation_config(const ModelConfig *c, const char *base, const TokenChanges *changes,
                                       Text *out, Error *err);
/* tokenizer_config.json: the file `from`, or, if NULL, one that makes AutoTokenizer use tokenizer.json
 * unchanged. A `tuned` model keeps the maximum length of that file; any other has `context`. */
ErrorCode checkpoint_tokenizer_config(const char *from, const TokenNames *names, const TokenChanges *changes,
                                      int64_t context, bool tuned, Text *out, Error *err);

#endif
