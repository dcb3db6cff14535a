/* Reading files at any offset, also while they may be truncated; input files of data. */
#ifndef WEFT_FORMATS_STORED_FILE_H
#define WEFT_FORMATS_STORED_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "formats/file_format.h"

typedef struct StoredFile {
    char *path;
    int fd;
    uint64_t size; /* when it was opened */
} StoredFile;

/* Opens a regular file; other kinds are refused (file_refuse). After a failure there is nothing to close. */
ErrorCode stored_open(StoredFile *file, const char *path, Error *err);
void stored_close(StoredFile *file);
/* Reads exactly `count` bytes from byte `at` on. ERR_DATA if the file has become shorter. */
ErrorCode stored_read(const StoredFile *file, uint64_t at, void *out, size_t count, Error *err);
/* The same of an open file. `path` names it in errors. Counts progress, for the watchdog. */
ErrorCode stored_read_at(int fd, const char *path, uint64_t at, void *out, size_t count, Error *err);
/* Its first and last bytes, by which it is recognised. */
ErrorCode stored_ends(const StoredFile *file, FileEnds *ends, Error *err);

#endif
