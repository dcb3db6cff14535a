/* Files by paths and URLs for a reader that takes them one after the other, outside of a dataset. */
#ifndef WEFT_DATA_INPUT_FILES_H
#define WEFT_DATA_INPUT_FILES_H

#include "base/error.h"
#include "remote/remote.h"

/* Where copies of remote files are. */
typedef struct InputCache {
    const char *dir; /* copies are in DIR/remote */
    uint64_t limit;  /* bytes of all copies, 0 for any number */
} InputCache;

typedef struct InputFile {
    char *name; /* as it may be printed */
    char *path; /* of the file, or of its copy */
    bool fetched;
} InputFile;

typedef struct InputFiles {
    InputFile *items; /* [count] */
    size_t count;
    Remote *remote; /* keeps the copies; NULL: there are none */
} InputFiles;

/* A path stands for itself, a URL for its files in the order of their names, which are fetched and stay until
 * input_files_close, also to be called after a failure. */
ErrorCode input_files_open(InputFiles *f, const char *const *wanted, size_t count, const InputCache *cache,
                           Error *err);
void input_files_close(InputFiles *f);
/* Appends the paths of the copies of a URL, one per line, whether or not they exist. Nothing for a path. */
ErrorCode input_files_name(const char *wanted, const InputCache *cache, Text *paths, Error *err);
/* Names the URL in the error of a reader, which knows only the copy. */
ErrorCode input_file_failed(const InputFile *file, ErrorCode code, Error *err);

#endif
