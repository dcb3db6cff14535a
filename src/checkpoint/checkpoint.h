/* Checkpoints of a run: directories that Hugging Face opens as they are, and that survive anything.
 *
 *     RUN/checkpoints/latest -> step-00000200
 *     RUN/checkpoints/step-00000200/
 *         config.json, generation_config.json, tokenizer.json, ...          files of the caller
 *         model.safetensors, or shards with model.safetensors.index.json; or adapter_model.safetensors
 *         model.ema.safetensors                                             where an average is kept
 *         optimizer.safetensors            of weights only: what the run has and no model file can hold
 *         state.json                                                        unless weights only
 *         manifest.json
 *
 * How they are committed stands, as invariants, at the top of checkpoint.c. A run directory is written by
 * one process at a time (the run's lock); reading needs no lock. */
#ifndef WEFT_CHECKPOINT_CHECKPOINT_H
#define WEFT_CHECKPOINT_CHECKPOINT_H

#include "checkpoint/modelfiles.h"
#include "model/config.h"

#define CHECKPOINT_STATE "state.json"
#define CHECKPOINT_OPTIMIZER "optimizer.safetensors"
/* Weights, too, by the same names: what transformers opens with variant="ema". */
#define CHECKPOINT_AVERAGE "model.ema.safetensors"

typedef struct CheckpointFile {
    const char *name; /* a plain file name */
    const void *data;
    size_t length;
} CheckpointFile;

typedef struct CheckpointSave {
    int64_t step;
    const TensorList *model;     /* with the pieces that this rank is to write */
    bool adapter;                /* the model is an adapter: ADAPTER_FILE holds it */
    const TensorList *optimizer; /* NULL: none, where weights only */
    const TensorList *average;   /* of the weights; NULL: there is none */
    const char *state;           /* JSON text; NULL when weights only. Rank 0's is taken */
    const CheckpointFile *files; /* config.json and so on; rank 0's are taken */
    int file_count;
    uint64_t shard_bytes; /* 0: SHARD_BYTES */
    int64_t best;         /* step of one that is not removed after this save (CheckpointKeep); 0: none */
} CheckpointSave;

/* Saving by many ranks, each what it holds: three phases, which the caller puts in order. All ranks describe
 * the same tensors in the same order; every element is in a piece of exactly one rank.
 *
 *     checkpoint_begin     rank 0, when the save before is over
 *     checkpoint_write     every rank, when rank 0 has begun
 *     checkpoint_commit    rank 0, when it has the blobs of all ranks
 *
 * Between the phases nothing is kept but files: a process may end anywhere, and what a run saved before
 * stands. A rank that could not write says so in its blob, and then the commit fails with that cause. ops
 * NULL: the system's. */

/* Makes the temporary directory under `dir` (RUN/checkpoints, made if need be in a RUN that is there), the
 * small files, and the tensor files with header and full length. Leaves nothing when it fails. */
ErrorCode checkpoint_begin(const FileOps *ops, const char *dir, const CheckpointSave *save, Error *err);
/* Writes this rank's pieces. Appends to `blob` what rank 0 has to know, also after a failure. */
ErrorCode checkpoint_write(const FileOps *ops, const char *dir, const CheckpointSave *save, Text *blob,
                           Error *err);
/* The blob of a rank that failed before it came to write. */
void checkpoint_blob_failure(const Error *failure, Text *blob);

typedef struct CheckpointBlob {
    const char *data;
    size_t length;
} CheckpointBlob;

/* Checks that the blobs [ranks] fit together: every element of every tensor was written, none twice. Then the
 * checkpoint gets its manifest and its name. `save` is that of checkpoint_begin, with the same bytes. When it
 * fails, the temporary directory goes. *bytes: size of the checkpoint. */
ErrorCode checkpoint_commit(const FileOps *ops, const char *dir, const CheckpointSave *save,
                            const CheckpointBlob *blobs, int ranks, uint64_t *bytes, Error *err);

typedef struct SaveFigures {
    uint64_t bytes;
    double seconds;
} SaveFigures;

/* The three phases in one process that holds everything. One of the same step is replaced. When it fails,
 * what was there before is there still, or the new one is, whole. figures may be NULL. */
ErrorCode checkpoint_save(const FileOps *ops, const char *dir, const CheckpointSave *save,
                          SaveFigures *figures, Error *err);

/* An open checkpoint. Tensors: modelfiles_load(&c.model, list, err), whatever pieces the list has. */
typedef struct Checkpoint {
    char *path;
    int64_t step;
    uint64_t seal; /* of its manifest: the same for no other checkpoint */
    bool resumable;
    char *state; /* NULL when weights only */
    ModelFiles model;
    ModelFiles optimizer; /* empty when weights only */
    ModelFiles average;   /* empty when there is none */
} Checkpoint;

/* `path` is one checkpoint, or a directory of checkpoints, of which the newest good one is taken; each
 * damaged one that is newer is named by a warning. With `resumable`, those with weights only are passed over.
 * Every byte is verified, and the steps of the directory's name, the manifest and the state are the same. */
ErrorCode checkpoint_open(Checkpoint *c, const char *path, bool resumable, Error *err);
void checkpoint_close(Checkpoint *c);

/* Every byte of the checkpoint in this directory is as written. */
ErrorCode checkpoint_verify(const char *path, Error *err);

/* The same in steps, for many ranks that share out the reading: rank 0 finds the candidates and tells their
 * paths one by one, from the last, until every rank has checked its part of one and found it good; then all
 * of them open it.
 *
 *     CheckpointSet set;
 *     checkpoint_candidates(&set, path, err);              rank 0
 *     for (i = set.count; i-- > 0;) {
 *         ... rank 0 sends set.items[i].path ...
 *         checkpoint_check_part(path, rank, ranks, err);   OK on all of them, agreed upon: this one
 *     }
 *     checkpoint_open_verified(&c, path, true, err);       may refuse one with weights only: go on with the
 *                                                          next */

/* Every byte of part `rank` of `ranks` is as written: about as many bytes for each. */
ErrorCode checkpoint_check_part(const char *path, int rank, int ranks, Error *err);
/* Opens one whose parts have all been checked. */
ErrorCode checkpoint_open_verified(Checkpoint *c, const char *path, bool resumable, Error *err);

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

/* What `path` may stand for, ascending by step: one checkpoint, or those in a directory of them. By name;
 * nothing is opened. Names of checkpoints that stand for a link or a file are passed over with a warning. */
ErrorCode checkpoint_candidates(CheckpointSet *set, const char *path, Error *err);
/* A directory that does not exist has no checkpoints. */
ErrorCode checkpoint_list(CheckpointSet *set, const char *dir, CheckLevel level, Error *err);
void checkpoint_set_free(CheckpointSet *set);

/* Which to keep: the last `last` (0: all; never fewer than 2), every one whose step is a multiple of `every`
 * (0: none), and that of step `best` (0: none). */
typedef struct CheckpointKeep {
    int64_t last, every, best;
} CheckpointKeep;

/* Removes what need not be kept. Only good checkpoints count and only they are removed, never the one of step
 * `in_use` (-1 for none). Leftovers of interrupted saves and removals go too. *removed may be NULL. */
ErrorCode checkpoint_prune(const FileOps *ops, const char *dir, CheckpointKeep keep, int64_t in_use,
                           CheckLevel level, int *removed, Error *err);

/* Removes leftovers of saves and removals that were interrupted: when a run starts, which holds its lock. ops
 * NULL: the system's. */
void checkpoint_clean(const FileOps *ops, const char *dir);

/* What differs from the files that a run was given: tokens that keys name, and one that ends answers. */
typedef struct TokenChanges {
    bool bos, eos, pad;
    int64_t answer_end; /* an end more where it is none yet; -1: none */
} TokenChanges;

/* NULL: none. */
typedef struct TokenNames {
    const char *bos, *eos, *pad;
} TokenNames;

/* Texts of the files that transformers wants beside the weights. generation_config.json: that of the
 * directory `base`, if it has one, else made. */
ErrorCode checkpoint_generation_config(const ModelConfig *c, const char *base, const TokenChanges *changes,
                                       Text *out, Error *err);
/* tokenizer_config.json: the file `from`, or, NULL, one that makes AutoTokenizer take tokenizer.json as it
 * is. A model that is `tuned` keeps the longest text of that file; any other has `context`. */
ErrorCode checkpoint_tokenizer_config(const char *from, const TokenNames *names, const TokenChanges *changes,
                                      int64_t context, bool tuned, Text *out, Error *err);

#endif
