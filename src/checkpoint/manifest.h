/* manifest.json: what a checkpoint consists of, to the byte. Each byte of each file is under exactly one
 * checksum: small files as a whole, safetensors by header and by tensor (so that damage is named), the
 * manifest itself by its last line. A tensor that several ranks wrote has a checksum for each piece, in order
 * of place. */
#ifndef WEFT_CHECKPOINT_MANIFEST_H
#define WEFT_CHECKPOINT_MANIFEST_H

#include "checkpoint/safetensors.h"

#define MANIFEST_FILE "manifest.json"

#define MANIFEST_WHOLE UINT64_MAX /* bytes of a piece that is the whole tensor */

typedef struct ManifestSegment {
    uint64_t bytes, sum;
} ManifestSegment;

typedef struct ManifestTensor {
    char *name;
    size_t count;
    ManifestSegment *segments; /* [count], one after the other */
} ManifestTensor;

typedef struct ManifestFile {
    char *name;
    uint64_t bytes;
    uint64_t sum; /* of the whole file, or of a safetensors header with its size field */
    bool is_safetensors;
    size_t count;
    ManifestTensor *tensors; /* [count], ascending by name */
} ManifestFile;

typedef struct Manifest {
    int64_t step;
    uint64_t seal; /* its own checksum, of one that was read: nothing below it can change without it */
    char time[21];
    bool resumable; /* optimizer and state are there, not the weights alone */
    size_t file_count;
    ManifestFile *files;
} Manifest;

void manifest_add_file(Manifest *m, const char *name, uint64_t bytes, uint64_t sum);
/* Takes over the tensors (with names and pieces), in any order. */
void manifest_add_safetensors(Manifest *m, const char *name, uint64_t bytes, uint64_t header,
                              ManifestTensor *tensors, size_t count);
void manifest_write(const Manifest *m, Text *out);
/* Reads and verifies the manifest of a directory; the files it lists are not touched. */
ErrorCode manifest_read(Manifest *m, const char *dir, Error *err);
/* It lists all that its checkpoint consists of: weights, with `resumable` moments and state, and whatever
 * else of the directory weft would read. So no byte of a verified checkpoint that is read went unverified. */
ErrorCode manifest_check_complete(const Manifest *m, const char *dir, Error *err);
/* The files are there, regular, and of the right size. */
ErrorCode manifest_check_sizes(const Manifest *m, const char *dir, Error *err);
/* Every byte of part `rank` of `ranks` is as it was written. The parts, about the same number of bytes each,
 * are everything. */
ErrorCode manifest_check_contents(const Manifest *m, const char *dir, int rank, int ranks, Error *err);
uint64_t manifest_bytes(const Manifest *m);
void manifest_free(Manifest *m);

#endif
