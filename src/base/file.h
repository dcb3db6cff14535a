/* Files. Reading is bounded, writing is atomic: a reader sees the old content or the new one.
 *
 * Links are followed or refused depending on who chose the path. A path that the user names (a text, a
 * tokenizer, run.dir itself) is opened as it is, through any links. Names that weft itself makes inside a
 * run, a checkpoint or a cache are *own* names: they are opened without following a link, and written only if
 * the file has no other name (hard link). So nobody who can create a link in such a directory can make weft
 * read, write or remove anything outside of it. */
#ifndef WEFT_BASE_FILE_H
#define WEFT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* Repeats a system call while signals interrupt it; network file systems allow that for any call. */
#define RETRY(result, call) \
    do { (result) = (call); } while ((result) < 0 && errno == EINTR)

/* Reads a whole regular file into new memory with a NUL after it (not counted). Refuses files of more than
 * `limit` bytes, directories, devices. The caller frees *data. */
ErrorCode file_read(const char *path, size_t limit, char **data, size_t *length, Error *err);
/* The same, appended to a text. */
ErrorCode file_read_text(const char *path, size_t limit, Text *out, Error *err);
/* The same for an own name. */
ErrorCode file_read_own(const char *path, size_t limit, char **data, size_t *length, Error *err);

/* Read-only memory map of a regular file under an own name. An empty file maps to data = NULL, length = 0. */
typedef struct FileMap {
    const unsigned char *data;
    size_t length;
} FileMap;
ErrorCode file_map(FileMap *map, const char *path, Error *err);
void file_unmap(FileMap *map);

/* Writes a temporary file next to `path`, fsyncs it, renames it over `path`, fsyncs the directory. A signal
 * that would end the process is deferred until the temporary file is gone, unless another thread takes it. */
ErrorCode file_write_atomic(const char *path, const void *data, size_t length, Error *err);
/* Removes the leftovers in `dir` of interrupted file_write_atomic calls for `names` (shell patterns). The
 * caller must exclude other writers by a lock. */
ErrorCode file_remove_temporaries(const char *dir, const char *const *names, size_t count, Error *err);

/* Checks that a file can be written there. Call it before long work whose result it will hold. */
ErrorCode file_check_write(const char *path, Error *err);

/* Opens an own name: a regular file that has no other name (so nothing is written through a hard link).
 * `flags` as of open(2), with or without O_CREAT. The caller closes *fd. */
ErrorCode file_open_own(const char *path, int flags, int *fd, Error *err);
/* Everything written is on disk when it returns. */
ErrorCode file_sync(int fd, const char *path, Error *err);

/* Files of lines that are appended to, under own names, with one write(2) in append mode per line: a crash
 * tears at most the last line. Opening appends a newline after a torn line, so that the next one starts
 * cleanly. `line` ends with its newline. */
ErrorCode file_open_lines(const char *path, int *fd, Error *err);
ErrorCode file_add_line(int fd, const char *path, const char *line, size_t length, Error *err);

/* Like mkdir -p; new directories are on disk when it returns. */
ErrorCode file_make_dirs(const char *path, Error *err);
/* Makes one directory under an own name in an existing one. An existing directory is fine, a link is not. */
ErrorCode file_make_own_dir(const char *path, Error *err);
/* Fails if an own name exists and is not a directory. */
ErrorCode file_check_own_dir(const char *path, Error *err);

/* Removes a directory with its content, a file, or a link (not its target). A missing name is fine. Whatever
 * cannot be removed is skipped, and the first such failure is returned. */
ErrorCode file_remove_tree(const char *path, Error *err);
/* The same with another unlinkat(2). */
typedef int FileUnlink(void *ctx, int dir, const char *name, int flags);
ErrorCode file_remove_tree_by(FileUnlink *remove, void *ctx, const char *path, Error *err);
/* Removes the files of a directory whose names match a shell pattern. A missing directory is fine. */
ErrorCode file_remove_matching(const char *dir, const char *pattern, Error *err);
/* Calls `each` for the entries of a directory but "." and "..", with their lstat(2); `dir` is the open
 * directory. A link in place of the directory is not followed. False: it cannot be read as a directory. */
struct stat;
typedef void FileEntry(void *ctx, int dir, const char *name, const struct stat *st);
bool file_walk(int parent, const char *name, FileEntry *each, void *ctx);
bool file_exists(const char *path);
/* Whether it is a URL, not the path of a file. */
bool file_is_url(const char *path);
bool file_holds(const char *dir, const char *name); /* whether `dir` has a file of this name */
bool file_is_dir(const char *path);
/* The error for a path from the user that cannot be opened as a file: errno as open(2) left it, what is there
 * instead, and what to do. */
ErrorCode file_refuse(const char *path, Error *err);
ErrorCode file_size(const char *path, uint64_t *bytes, Error *err);
ErrorCode file_sync_dir(const char *path, Error *err);

/* A temporary directory in $TMPDIR or /tmp. scratch_take first removes directories under the same prefix that
 * killed processes of this user left behind. */
typedef struct ScratchDir {
    char *path; /* NULL: none */
    int lock;
} ScratchDir;
ErrorCode scratch_take(ScratchDir *s, const char *prefix, Error *err);
void scratch_give(ScratchDir *s); /* removes it; no-op if none */

/* Paths matching a shell pattern, sorted bytewise; an error names a pattern that matches nothing. Free with
 * file_glob_free. */
ErrorCode file_glob(const char *pattern, char ***paths, size_t *count, Error *err);
void file_glob_free(char **paths, size_t count);

/* dir + "/" + name; caller frees. An absolute name is returned unchanged; dir "" or NULL means name alone. */
char *path_join(const char *dir, const char *name);

#endif
