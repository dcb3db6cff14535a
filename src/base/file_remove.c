/* Removing trees, files that match a pattern, and leftovers of interrupted writers.
 *
 * Below the first component nothing is ever removed by a path of several components. Each directory is opened
 * in its parent by openat with O_NOFOLLOW, and its entries are removed by unlinkat relative to that
 * descriptor. A link is removed, never entered, even if somebody replaces a directory by a link while this
 * runs. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

typedef struct Removal {
    FileUnlink *unlink;
    void *ctx;
    Error *err;
    ErrorCode code; /* of the first failure */
} Removal;

/* Keeps the first failure; removing continues with the rest. */
static void failed(Removal *r, const char *where) {
    char name[512];
    if (r->code == OK)
        r->code = error_errno(r->err, ERR_IO, "%s: cannot remove it",
                              error_escape(name, 512, where, strlen(where)));
}

static void remove_entry(Removal *r, int dir, const char *name, const char *where);

static bool is_dots(const char *name) { return strcmp(name, ".") == 0 || strcmp(name, "..") == 0; }

/* Removes everything in the directory; takes ownership of fd. */
static void empty_directory(Removal *r, int fd, const char *where) {
    DIR *open = fdopendir(fd);
    if (!open) {
        failed(r, where);
        close(fd);
        return;
    }
    for (struct dirent *entry; (entry = readdir(open));) {
        if (is_dots(entry->d_name)) continue;
        char *path = path_join(where, entry->d_name);
        remove_entry(r, dirfd(open), entry->d_name, path);
        free(path);
    }
    closedir(open);
}

/* Removes the entry, of any kind; `where` is for errors. It is opened first and judged by the open
 * descriptor, since between a check of a name and its use the entry may be replaced. */
static void remove_entry(Removal *r, int dir, const char *name, const char *where) {
    int fd, result;
    RETRY(fd, openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0 && errno == ENOENT) return;
    bool is_directory = fd >= 0;
    if (is_directory) empty_directory(r, fd, where);
    RETRY(result, r->unlink(r->ctx, dir, name, is_directory ? AT_REMOVEDIR : 0));
    /* A directory that may not be read cannot be opened, but can be removed if it is empty. */
    if (result != 0 && errno == EISDIR) RETRY(result, r->unlink(r->ctx, dir, name, AT_REMOVEDIR));
    if (result != 0 && errno != ENOENT) failed(r, where);
}

/* A missing tree is no error. */
ErrorCode file_remove_tree_by(FileUnlink *remove, void *ctx, const char *path, Error *err) {
    Removal r = {.unlink = remove, .ctx = ctx, .err = err};
    remove_entry(&r, AT_FDCWD, path, path);
    return r.code;
}

/* The system's unlinkat; tests replace it by one that fails or records (FileUnlink). */
static int system_unlink(void *ctx, int dir, const char *name, int flags) {
    (void)ctx;
    return unlinkat(dir, name, flags);
}

ErrorCode file_remove_tree(const char *path, Error *err) {
    return file_remove_tree_by(system_unlink, NULL, path, err);
}

/* ---- some files of one directory ---- */

/* Uses unlinkat relative to the open directory, as above. It refuses to remove a directory of that name. */
static ErrorCode remove_where(const char *dir, bool (*wanted)(const void *ctx, const char *name),
                              const void *ctx, Error *err) {
    char name[512];
    DIR *open = opendir(dir);
    ErrorCode code = OK;
    if (!open && errno == ENOENT) return OK;
    if (!open)
        return error_errno(err, ERR_IO, "%s: cannot read the directory",
                           error_escape(name, 512, dir, strlen(dir)));
    /* The first failure ends the loop: a run is about to write these files again. */
    for (struct dirent *entry; code == OK && (entry = readdir(open));) {
        int result = 0;
        if (!wanted(ctx, entry->d_name)) continue;
        RETRY(result, unlinkat(dirfd(open), entry->d_name, 0));
        if (result != 0)
            code = error_errno(err, ERR_IO, "%s/%s: cannot remove it",
                               error_escape(name, 512, dir, strlen(dir)), entry->d_name);
    }
    closedir(open);
    return code;
}

static bool matches(const void *pattern, const char *name) { return fnmatch(pattern, name, 0) == 0; }

/* The pattern is a shell pattern for names, not paths. */
ErrorCode file_remove_matching(const char *dir, const char *pattern, Error *err) {
    return remove_where(dir, matches, pattern, err);
}

/* Names of files that file_write_atomic writes; only their temporary files are leftovers. */
typedef struct Names {
    const char *const *patterns;
    size_t count;
} Names;

/* Strips ".<digits>" from the end of a name of that length; 0 if there is none. end > 1: a name of nothing
 * but ".<digits>" is no temporary file. */
static size_t without_number(const char *name, size_t length) {
    size_t end = length;
    while (end > 0 && name[end - 1] >= '0' && name[end - 1] <= '9') end--;
    return end < length && end > 1 && name[end - 1] == '.' ? end - 1 : 0;
}

/* "<name>.<process>.<number>.tmp", as file_write_atomic makes them. */
static bool is_temporary(const void *ctx, const char *entry) {
    const Names *names = ctx;
    size_t length = strlen(entry);
    if (length < 4 || strcmp(entry + length - 4, ".tmp") != 0) return false;
    length = without_number(entry, length - 4);
    if (length > 0) length = without_number(entry, length);
    if (length == 0) return false;
    char *name = mem_strdup(entry);
    bool found = false;
    name[length] = 0;
    for (size_t i = 0; i < names->count && !found; i++) found = fnmatch(names->patterns[i], name, 0) == 0;
    free(name);
    return found;
}

ErrorCode file_remove_temporaries(const char *dir, const char *const *names, size_t count, Error *err) {
    return remove_where(dir, is_temporary, &(Names){names, count}, err);
}
