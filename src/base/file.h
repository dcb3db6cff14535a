/* Files. Reading is bounded, writing is atomic: a reader sees the old content or the new one. */
#ifndef WEFT_BASE_FILE_H
#define WEFT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

/* Whole regular file into fresh memory with a NUL after it (not counted). Refuses more than `limit` bytes,
 * directories, devices. The caller frees *data. */
ErrorCode file_read(const char *path, size_t limit, char **data, size_t *length, Error *err);

/* Read-only memory map of a regular file. An empty file maps to data = NULL, length = 0. */
typedef struct FileMap {
    const unsigned char *data;
    size_t length;
} FileMap;
ErrorCode file_map(FileMap *map, const char *path, Error *err);
void file_unmap(FileMap *map);

/* Writes a sibling temporary file, fsyncs it, renames it over `path`, fsyncs the directory. A signal that
 * would end the process waits until the temporary file is gone, where no other thread takes it. */
ErrorCode file_write_atomic(const char *path, const void *data, size_t length, Error *err);

/* Whether a file can be written there, to be known before work whose result it is to hold. */
ErrorCode file_check_write(const char *path, Error *err);

/* Files of lines that grow, one write(2) in append mode a line: a crash tears at most the last one. Opening
 * puts a newline after a torn line, so that the next one starts afresh. `line` ends with its newline. */
ErrorCode file_open_lines(const char *path, int *fd, Error *err);
ErrorCode file_add_line(int fd, const char *path, const char *line, size_t length, Error *err);

ErrorCode file_make_dirs(const char *path, Error *err); /* like mkdir -p */
/* Removes a directory and all in it, following no links; one that is not there is fine. */
ErrorCode file_remove_tree(const char *path, Error *err);
/* Removes the files of a directory whose names match a shell pattern; a directory that is not there has none.
 */
ErrorCode file_remove_matching(const char *dir, const char *pattern, Error *err);
bool file_exists(const char *path);
bool file_is_dir(const char *path);
ErrorCode file_size(const char *path, uint64_t *bytes, Error *err);
ErrorCode file_sync_dir(const char *path, Error *err);

/* Paths matching a shell pattern, sorted bytewise; an error names a pattern that matches nothing. Free with
 * file_glob_free. */
ErrorCode file_glob(const char *pattern, char ***paths, size_t *count, Error *err);
void file_glob_free(char **paths, size_t count);

/* dir + "/" + name; caller frees. An absolute name stays as it is; dir "" or NULL means name alone. */
char *path_join(const char *dir, const char *name);

#endif
