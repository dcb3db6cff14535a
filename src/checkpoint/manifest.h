/* manifest.json: the complete content of a checkpoint. Each byte of each file is covered by exactly one
 * checksum: small files as a whole, safetensors by header and by tensor (so that errors name the damaged
 * tensor), the manifest itself by its last line. A tensor that several ranks wrote has a checksum for each
 * segment, in order of offset. */
#ifndef WEFT_CHECKPOINT_MANIFEST_H
#define WEFT_CHECKPOINT_MANIFEST_H

#include "checkpoint/safetensors.h"

#define MANIFEST_FILE "manifest.json"
#define MANIFEST_LIMIT ((size_t)SAFE_MAX_HEADER) /* bytes */

#define MANIFEST_WHOLE UINT64_MAX /* bytes of a segment that is the whole tensor */

typedef struct ManifestSegment {
    uint64_t bytes, sum;
} ManifestSegment;

typedef struct ManifestTensor {
    char *name;
    size_t count;
    ManifestSegment *segments; /* [count], contiguous */
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
    uint64_t seal; /* its own checksum, if it was read: it changes whenever anything else in the manifest
                      does */
    char time[21];
    bool resumable; /* has optimizer and state, not only the weights */
    size_t file_count;
    ManifestFile *files;
} Manifest;

void manifest_add_file(Manifest *m, const char *name, uint64_t bytes, uint64_t sum);
/* Takes ownership of the tensors (with names and segments), which may be in any order. */
void manifest_add_safetensors(Manifest *m, const char *name, uint64_t bytes, uint64_t header,
                              ManifestTensor *tensors, size_t count);
void manifest_write(const Manifest *m, Text *out);
/* Verifies the text of a manifest; `where` is for messages. */
ErrorCode manifest_parse(Manifest *m, const char *where, const char *text, size_t length, Error *err);
/* Reads and verifies the manifest of a directory; does not open the files it lists. */
ErrorCode manifest_read(Manifest *m, const char *dir, Error *err);
/* Checks that it lists everything a checkpoint consists of: weights, with `resumable` also moments and state,
 * and any other file of the directory that weft would read. Thus every byte that is read from a verified
 * checkpoint was verified. */
ErrorCode manifest_check_complete(const Manifest *m, const char *dir, Error *err);
/* Checks that the files exist, are regular, and have the right size. */
ErrorCode manifest_check_sizes(const Manifest *m, const char *dir, Error *err);
/* Verifies every byte of part `rank` of `ranks`. The parts have about as many bytes each and together cover
 * everything. */
ErrorCode manifest_check_contents(const Manifest *m, const char *dir, int rank, int ranks, Error *err);
/* Verifies one file. */
ErrorCode manifest_check_file(const Manifest *m, size_t file, const char *dir, Error *err);
uint64_t manifest_bytes(const Manifest *m);
void manifest_free(Manifest *m);

#endif
