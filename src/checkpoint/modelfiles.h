/* The weights of a Hugging Face model directory: model.safetensors, or model.safetensors.index.json with its
 * shards.
 *
 * Names in the index are untrusted. A shard name is one path component of [A-Za-z0-9._-] that does not start
 * with a dot and ends in .safetensors; the file is opened inside the directory and not through a link. Every
 * tensor of the index is in the shard that the index names, and in no other.
 *
 * Of a model of images and text (the published Llama 4 models) only the text model's tensors are listed,
 * under the names of a text-only model. */
#ifndef WEFT_CHECKPOINT_MODELFILES_H
#define WEFT_CHECKPOINT_MODELFILES_H

#include "checkpoint/safetensors.h"
#include "model/config.h"

#define MODEL_FILE "model.safetensors"
#define MODEL_INDEX "model.safetensors.index.json"
#define ADAPTER_FILE "adapter_model.safetensors" /* replaces both (checkpoint/adapter.h) */
#define SHARD_BYTES ((uint64_t)5000000000)       /* default size limit of a shard, that of transformers */

typedef struct ModelTensor {
    const char *name; /* name of `tensor`, or a suffix of it */
    const SafeTensor *tensor;
    int file;
} ModelTensor;

typedef struct ModelFiles {
    char *where; /* directory or file, escaped */
    int file_count;
    SafeFile *files; /* [file_count] */
    size_t count;
    ModelTensor *tensors; /* [count], ascending by name */
    uint64_t unlisted;    /* tensors that are in a shard but not in the index: not read */
} ModelFiles;

/* Whether it is one path component that is safe to open inside a directory. */
bool modelfiles_name_is_safe(const char *name);

/* `path` is a model directory or one safetensors file. */
ErrorCode modelfiles_open(ModelFiles *m, const char *path, Error *err);
void modelfiles_close(ModelFiles *m);
const ModelTensor *modelfiles_find(const ModelFiles *m, const char *name); /* NULL if none */
ErrorCode modelfiles_read(const ModelFiles *m, const ModelTensor *t, uint64_t offset, void *host,
                          size_t bytes, Error *err);

/* Checks that every tensor of the list exists with its shape, and that there are no others, except tensors
 * that Llama files are known to repeat (a tied head, rotary frequencies). */
ErrorCode modelfiles_check(const ModelFiles *m, const TensorList *list, Error *err);
/* The same for all weights of a model of this shape, in the model directory `dir`. Call it before allocating
 * memory by the sizes in a config.json. Reads headers only, and takes no more memory than they do. */
ErrorCode modelfiles_check_shape(const char *dir, const ModelConfig *c, Error *err);

/* Fills the segments of the list, which passes modelfiles_check, through its `store`, converting to the
 * `memory` type. Reads only these segments from the files. */
ErrorCode modelfiles_load(const ModelFiles *m, const TensorList *list, Error *err);

/* How the tensors of a list are laid out in files: shards of at most shard_bytes, filled in list order. A
 * single shard is just `stem`.safetensors; several get an index. Depends on the descriptions alone, so it is
 * the same on every rank. */
typedef struct LayoutFile {
    char name[96];
    Text header; /* the first 8 + N bytes */
    uint64_t bytes;
} LayoutFile;

typedef struct ModelLayout {
    const TensorList *list;
    int file_count;
    LayoutFile *files; /* [file_count] */
    int *file;         /* [list->count] file of each tensor */
    uint64_t *at;      /* [list->count] its first byte in that file */
    char index_name[96];
    Text index; /* empty for one file */
} ModelLayout;
void modellayout_make(ModelLayout *l, const TensorList *list, const char *stem, uint64_t shard_bytes);
void modellayout_free(ModelLayout *l);

/* Makes the files in an existing directory: index, headers, full lengths. All is on disk when the call
 * returns. */
ErrorCode modelfiles_create(const FileOps *ops, const char *dir, const ModelLayout *l, Error *err);
/* Writes the segments that the list holds into the files that modelfiles_create made. Files without a segment
 * of this list are not touched. sums: [tensor_segments(list)], the checksums of the bytes in the file. */
ErrorCode modelfiles_write(const FileOps *ops, const char *dir, const ModelLayout *l, uint64_t *sums,
                           Error *err);

/* SHA-256 (hex) over names, shapes and values in the order of names, independent of the shards, their order,
 * and the float type: F32, BF16 and F16 are hashed as fp32 values, other types as their bytes. */
ErrorCode modelfiles_digest(const ModelFiles *m, char out[65], Error *err);

/* SHA-256 (hex) to detect whether two sets of files differ, by reading a few MiB however large they are: over
 * names, types and shapes, and for each tensor the bytes of three blocks of SAMPLE_BYTES (first, middle and
 * last; all of the tensor if it is smaller). */
enum { SAMPLE_BYTES = 4096 };
ErrorCode modelfiles_sample(const ModelFiles *m, char out[65], Error *err);

typedef struct TensorFigures {
    double norm, max; /* L2 norm and largest |x| over finite elements */
    uint64_t nonfinite;
    bool known; /* figures are defined for the type: F32, BF16, F16, F64 */
} TensorFigures;
ErrorCode modelfiles_figures(const ModelFiles *m, const ModelTensor *t, TensorFigures *out, Error *err);

#endif
