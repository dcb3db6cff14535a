/* Files. Reading is bounded, writing is atomic: a reader sees the old content or the new one.
 *
 * Whose files they are decides about links. A path that the user names (a text, a tokenizer, run.dir itself)
 * is opened as it is, through whatever links. Names that weft itself makes inside a run, a checkpoint or a
 * cache are *own* names: they are opened without following a link, and written only where no other name leads
 * to the same file. So nobody who can put a link into such a directory makes weft read, write or remove
 * anything outside. */
#ifndef WEFT_BASE_FILE_H
#define WEFT_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "base/text.h"

/* A system call again for as long as signals interrupt it, which network file systems let them do to any. */
#define RETRY(result, call) \
    do { (result) = (call); } while ((result) < 0 && errno == EINTR)

/* Whole regular file into fresh memory with a NUL after it (not counted). Refuses more than `limit` bytes,
 * directories, devices. The caller frees *data. */
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

/* Writes a sibling temporary file, fsyncs it, renames it over `path`, fsyncs the directory. A signal that
 * would end the process waits until the temporary file is gone, where no other thread takes it. */
ErrorCode file_write_atomic(const char *path, const void *data, size_t length, Error *err);
/* Removes what interrupted file_write_atomic calls for `names` (shell patterns) have left in `dir`. Only for
 * who keeps other writers out, by a lock. */
ErrorCode file_remove_temporaries(const char *dir, const char *const *names, size_t count, Error *err);

/* Whether a file can be written there, to be known before work whose result it is to hold. */
ErrorCode file_check_write(const char *path, Error *err);

/* Opens an own name: a regular file that has no other name (nothing is written through a hard link either).
 * `flags` as of open(2), with O_CREAT or without. The caller closes *fd. */
ErrorCode file_open_own(const char *path, int flags, int *fd, Error *err);
/* What was written is on the disk when it returns. */
ErrorCode file_sync(int fd, const char *path, Error *err);

/* Files of lines that grow, under own names, one write(2) in append mode a line: a crash tears at most the
 * last one. Opening puts a newline after a torn line, so that the next one starts afresh. `line` ends with
 * its newline. */
ErrorCode file_open_lines(const char *path, int *fd, Error *err);
ErrorCode file_add_line(int fd, const char *path, const char *line, size_t length, Error *err);

/* Like mkdir -p; what is made is on the disk when it returns. */
ErrorCode file_make_dirs(const char *path, Error *err);
/* Makes one directory under an own name, in one that is there. One that is there already is fine, a link is
 * not. */
ErrorCode file_make_own_dir(const char *path, Error *err);
/* Refuses an own name that stands for anything but a directory; none is fine. */
ErrorCode file_check_own_dir(const char *path, Error *err);

/* Removes what has this name: a directory and all in it, or a file, or a link and not what it leads to. None
 * is fine. What cannot be removed is passed over, and the first such is the error. */
ErrorCode file_remove_tree(const char *path, Error *err);
/* The same by another unlinkat(2). */
typedef int FileUnlink(void *ctx, int dir, const char *name, int flags);
ErrorCode file_remove_tree_by(FileUnlink *remove, void *ctx, const char *path, Error *err);
/* Removes the files of a directory whose names match a shell pattern; a directory that is not there has none.
 */
ErrorCode file_remove_matching(const char *dir, const char *pattern, Error *err);
bool file_exists(const char *path);
bool file_holds(const char *dir, const char *name); /* such a file exists in it */
bool file_is_dir(const char *path);
/* The error for a path that the user gave and that is no file that can be opened: errno as open(2) left it,
 * what stands there instead, and what to do. */
ErrorCode file_refuse(const char *path, Error *err);
ErrorCode file_size(const char *path, uint64_t *bytes, Error *err);
ErrorCode file_sync_dir(const char *path, Error *err);

/* A directory for as long as it is used, in $TMPDIR or /tmp. Taking one removes first what killed processes
 * of this user have left under the same prefix. */
typedef struct ScratchDir {
    char *path; /* NULL: none */
    int lock;
} ScratchDir;
ErrorCode scratch_take(ScratchDir *s, const char *prefix, Error *err);
void scratch_give(ScratchDir *s); /* removes it; none is fine */

/* Paths matching a shell pattern, sorted bytewise; an error names a pattern that matches nothing. Free with
 * file_glob_free. */
ErrorCode file_glob(const char *pattern, char ***paths, size_t *count, Error *err);
void file_glob_free(char **paths, size_t count);

/* dir + "/" + name; caller frees. An absolute name stays as it is; dir "" or NULL means name alone. */
char *path_join(const char *dir, const char *name);

#endif
