/* Files: bounded reading, atomic writing.
 *
 * A write goes to a temporary file in the same directory, which is synced before it is renamed, and the
 * directory is synced afterwards: at every moment the name holds the whole old content or the whole new one.
 *
 * There are two kinds of paths. A user's path may be a link; weft's own, inside its run directory, never is
 * (O_NOFOLLOW): through a link there weft would write, or delete, somewhere else. The name of each function
 * tells the kind: file_read and file_make_dirs follow links, *_own and file_map do not.
 *
 * Every path in a message goes through shown(): names of files are untrusted bytes, and terminals interpret
 * escapes. */
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/url.h"

/* Escapes paths for printing, and leaves out what is secret in URLs. */
static const char *shown(const char *path, char out[512]) {
    Text text = {0};
    url_show(path, &text);
    error_escape(out, 512, text.data ? text.data : "", text.length);
    text_free(&text);
    return out;
}

static const char *kind_of(mode_t mode) {
    return S_ISDIR(mode) ? "directory" : S_ISLNK(mode) ? "link" : "device, pipe or socket";
}

/* One message for all of weft's own directories: everything in them must be what weft wrote. */
static ErrorCode refuse_link(const char *path, ErrorCode code, Error *err) {
    char name[512];
    return error_set(
        err, code,
        "%s: expected a regular file, found a link; weft follows none inside its own directories: "
        "put the file itself there, or remove the link",
        shown(path, name));
}

ErrorCode file_refuse(const char *path, Error *err) {
    char name[512];
    struct stat info;
    int number = errno;
    bool there = stat(path, &info) == 0;
    if (!there && url_is(path))
        return error_set(
            err, ERR_NOINPUT,
            "%s: URLs are not read here, only those of data, tasks and checkpoints: download the "
            "file and give its path",
            shown(path, name));
    if (there && S_ISDIR(info.st_mode))
        return error_set(err, ERR_NOINPUT, "%s: a directory: name the files in it, as in %s/*.txt",
                         shown(path, name), name);
    if (there && !S_ISREG(info.st_mode))
        return error_set(err, ERR_NOINPUT, "%s: not a regular file but a %s", shown(path, name),
                         kind_of(info.st_mode));
    errno = number;
    return error_errno(err, ERR_NOINPUT, "%s: cannot open", shown(path, name));
}

/* Opens a regular file; anything else (a directory, a pipe that would block) is refused. O_NONBLOCK makes
 * open return from a pipe without a writer, so that it can be refused here; regular files ignore it. */
static ErrorCode open_regular(const char *path, int extra, int *fd, struct stat *info, Error *err) {
    char name[512];
    RETRY(*fd, open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | extra));
    if (*fd < 0 && errno == ELOOP && (extra & O_NOFOLLOW)) return refuse_link(path, ERR_NOINPUT, err);
    if (*fd < 0 && url_is(path)) return file_refuse(path, err);
    if (*fd < 0) return error_errno(err, ERR_NOINPUT, "%s: cannot open", shown(path, name));
    if (fstat(*fd, info) != 0) {
        ErrorCode code = error_errno(err, ERR_NOINPUT, "%s: cannot stat", shown(path, name));
        close(*fd);
        return code;
    }
    if (S_ISREG(info->st_mode)) return OK;
    close(*fd);
    return error_set(err, ERR_NOINPUT, "%s: expected a regular file, found a %s", shown(path, name),
                     kind_of(info->st_mode));
}

/* Reads until the end, regardless of the expected size: files in /proc report 0, others may be growing. */
static ErrorCode read_all(const char *path, int fd, size_t expect, size_t limit, Text *out, Error *err) {
    char name[512];
    /* One byte more than expected, so that a file of that size ends with a read of 0 and no reallocation. */
    size_t guess = (expect < limit ? expect : limit) + 1;
    for (;;) {
        if (out->length == out->capacity || !out->data) {
            size_t want = out->capacity ? out->capacity * 2 : guess + 1;
            out->data = mem_grow(out->data, want);
            out->capacity = want;
        }
        ssize_t got = read(fd, out->data + out->length, out->capacity - out->length);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0)
            return error_errno(err, ERR_IO, "%s: reading failed at byte %zu", shown(path, name), out->length);
        if (got == 0) return OK;
        out->length += (size_t)got;
        if (out->length > limit)
            return error_set(err, ERR_DATA, "%s: expected at most %zu bytes, found more", shown(path, name),
                             limit);
    }
}

/* *data is set only on success; it ends in a NUL, which *length does not count. */
static ErrorCode read_file(const char *path, int extra, size_t limit, char **data, size_t *length,
                           Error *err) {
    struct stat info;
    int fd;
    char name[512];
    /* So that doubling in read_all cannot overflow. */
    if (limit > SIZE_MAX / 4) limit = SIZE_MAX / 4;
    TRY(open_regular(path, extra, &fd, &info, err));
    Text content = {0};
    ErrorCode code;
    if ((uint64_t)info.st_size > limit)
        code = error_set(err, ERR_DATA, "%s: expected at most %zu bytes, found %lld", shown(path, name),
                         limit, (long long)info.st_size);
    else
        code = read_all(path, fd, (size_t)info.st_size, limit, &content, err);
    close(fd);
    if (code != OK) {
        text_free(&content);
        return code;
    }
    /* Appends the NUL after the content, which every text reader relies on. */
    text_add(&content, "", 0);
    *data = content.data;
    *length = content.length;
    return OK;
}

/* Follows links: the path is the user's. */
ErrorCode file_read(const char *path, size_t limit, char **data, size_t *length, Error *err) {
    return read_file(path, 0, limit, data, length, err);
}

ErrorCode file_read_text(const char *path, size_t limit, Text *out, Error *err) {
    char *data;
    size_t length;
    TRY(file_read(path, limit, &data, &length, err));
    text_add(out, data, length);
    free(data);
    return OK;
}

/* weft never makes a link under an own name; if there is one, somebody else made it. */
ErrorCode file_read_own(const char *path, size_t limit, char **data, size_t *length, Error *err) {
    return read_file(path, O_NOFOLLOW, limit, data, length, err);
}

/* An empty file gives NULL and length 0, since an empty mapping is an error. The map needs no descriptor once
 * it is made. */
ErrorCode file_map(FileMap *map, const char *path, Error *err) {
    struct stat info;
    int fd;
    char name[512];
    *map = (FileMap){0};
    TRY(open_regular(path, O_NOFOLLOW, &fd, &info, err));
    ErrorCode code = OK;
    if (info.st_size > 0) {
        /* If somebody truncates a file while it is mapped, the process ends by SIGBUS. The files mapped here
         * are weft's own, which only grow or are replaced by rename. */
        void *data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED)
            code = error_errno(err, ERR_IO, "%s: cannot map into memory", shown(path, name));
        else
            *map = (FileMap){data, (size_t)info.st_size};
    }
    close(fd);
    return code;
}

/* Also for an empty map; may be called twice. */
void file_unmap(FileMap *map) {
    if (map->data) munmap((void *)(uintptr_t)map->data, map->length);
    *map = (FileMap){0};
}

ErrorCode file_sync(int fd, const char *path, Error *err) {
    char name[512];
    int result;
    RETRY(result, fsync(fd));
    return result == 0 ? OK : error_errno(err, ERR_IO, "%s: cannot sync to the disk", shown(path, name));
}

/* Returns when the bytes are on disk: otherwise the rename could reach the disk first, and a power cut would
 * leave an empty file under the name. */
static ErrorCode write_all(const char *path, int fd, const char *data, size_t length, Error *err) {
    char name[512];
    for (size_t done = 0; done < length;) {
        ssize_t wrote = write(fd, data + done, length - done);
        /* A signal before anything was written. After a short write the loop continues anyway. */
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote < 0)
            return error_errno(err, ERR_IO, "%s: writing failed at byte %zu", shown(path, name), done);
        done += (size_t)wrote;
    }
    return file_sync(fd, path, err);
}

/* Opens a new temporary file next to `path`, "<name>.<process>.<number>.tmp" (file_remove_temporaries
 * recognises that), with the permissions of an ordinary new file. */
static ErrorCode open_sibling(const char *path, Text *temporary, int *fd, Error *err) {
    static atomic_uint serial;
    char name[512];
    for (int attempt = 0; attempt < 100; attempt++) {
        text_clear(temporary);
        text_printf(temporary, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
        RETRY(*fd, open(temporary->data, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
        if (*fd >= 0) return OK;
        /* Left by a killed process with the same process id; the next serial is free. */
        if (errno != EEXIST) break;
    }
    return error_errno(err, ERR_CANTCREATE, "%s: cannot create", shown(path, name));
}

/* Syncs the directory that holds `path`. A name is on disk once its directory is synced; syncing the file is
 * not enough. */
static ErrorCode sync_parent(const char *path, Error *err) {
    const char *slash = strrchr(path, '/');
    if (!slash) return file_sync_dir(".", err);
    Text parent = {0};
    text_add(&parent, path, slash == path ? 1 : (size_t)(slash - path));
    ErrorCode code = file_sync_dir(parent.data, err);
    text_free(&parent);
    return code;
}

/* Called before hours of work whose result goes into this file. It makes and removes a temporary file:
 * permissions could be read in advance, but a full or read-only file system shows only when writing. */
ErrorCode file_check_write(const char *path, Error *err) {
    char name[512];
    Text temporary = {0};
    int fd;
    if (file_is_dir(path))
        return error_set(err, ERR_CANTCREATE, "%s: expected a file, found a directory", shown(path, name));
    ErrorCode code = open_sibling(path, &temporary, &fd, err);
    if (code == OK) {
        close(fd);
        unlink(temporary.data);
    }
    text_free(&temporary);
    return code;
}

/* A signal that ends the process between creating the temporary file and renaming it would leave that file
 * behind. SIGKILL still does, and so does the thread that takes a run's signals when it ends the run at once
 * (a second SIGINT); file_remove_temporaries finds those files. */
static void hold_signals(sigset_t *before) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    sigset_t held;
    sigemptyset(&held);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) sigaddset(&held, numbers[i]);
    pthread_sigmask(SIG_BLOCK, &held, before);
}

/* The content of the two names after each call, and what NAME may hold after a power cut at that moment:
 *
 *                      NAME          NAME.pid.n.tmp       NAME after a power cut
 *     open_sibling     old           empty                old
 *     write_all        old           new, on disk         old
 *     rename           new           gone                 old or new, each complete
 *     sync_parent      new           gone                 new */
ErrorCode file_write_atomic(const char *path, const void *data, size_t length, Error *err) {
    char name[512];
    Text temporary = {0};
    sigset_t before;
    int fd;
    hold_signals(&before);
    ErrorCode code = open_sibling(path, &temporary, &fd, err);
    if (code == OK) {
        code = write_all(path, fd, data, length, err);
        /* Network file systems may report a failed write only here. */
        if (close(fd) != 0 && code == OK)
            code = error_errno(err, ERR_IO, "%s: cannot close", shown(path, name));
        int renamed = 0;
        if (code == OK) RETRY(renamed, rename(temporary.data, path));
        if (renamed != 0) code = error_errno(err, ERR_CANTCREATE, "%s: cannot replace", shown(path, name));
        /* After a rename that is not known to be on disk there is nothing to undo; the error is returned.
         * Otherwise the name still has its old content. */
        if (code != OK)
            unlink(temporary.data);
        else
            code = sync_parent(path, err);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    text_free(&temporary);
    return code;
}

/* Makes one directory of the chain; an existing one is fine. Its name is on disk when this returns. Two ranks
 * may make the same one at once: on EEXIST only the kind of what exists matters. */
static ErrorCode make_dir(const char *path, bool follow, Error *err) {
    char name[512];
    int result;
    RETRY(result, mkdir(path, 0777));
    if (result == 0) return sync_parent(path, err);
    if (errno != EEXIST)
        return error_errno(err, ERR_CANTCREATE, "%s: cannot create the directory", shown(path, name));
    if (!follow) return file_check_own_dir(path, err);
    if (file_is_dir(path)) return OK;
    return error_set(err, ERR_CANTCREATE,
                     "%s: cannot create the directory: a file of that name is in the way", shown(path, name));
}

/* One level only: its parent has been made before, and is weft's own too. */
ErrorCode file_make_own_dir(const char *path, Error *err) { return make_dir(path, false, err); }

ErrorCode file_check_own_dir(const char *path, Error *err) {
    char name[512];
    struct stat info;
    if (lstat(path, &info) != 0)
        return errno == ENOENT || errno == ENOTDIR
                   ? OK
                   : error_errno(err, ERR_NOINPUT, "%s: cannot stat", shown(path, name));
    if (S_ISDIR(info.st_mode)) return OK;
    return error_set(
        err, ERR_CANTCREATE,
        "%s: expected a directory, found a %s; weft follows no links inside its own directories: "
        "put the directory itself there, or remove what is in its place",
        shown(path, name), S_ISREG(info.st_mode) ? "file" : kind_of(info.st_mode));
}

/* Also true for an empty file, and for one that cannot be read: then there is nothing to repair. */
static bool ends_in_newline(int fd) {
    char last;
    off_t end = lseek(fd, 0, SEEK_END);
    return end <= 0 || (pread(fd, &last, 1, end - 1) == 1 && last == '\n');
}

/* Requires that the open file has no other name. A file with two names changes under both: after cp -l of a
 * run directory, the copy would share its records with the original. */
static ErrorCode check_own(int fd, const char *path, Error *err) {
    char name[512];
    struct stat info;
    if (fstat(fd, &info) != 0) return error_errno(err, ERR_CANTCREATE, "%s: cannot stat", shown(path, name));
    if (!S_ISREG(info.st_mode))
        return error_set(err, ERR_CANTCREATE, "%s: expected a regular file, found a %s", shown(path, name),
                         kind_of(info.st_mode));
    if (info.st_nlink <= 1) return OK;
    return error_set(err, ERR_CANTCREATE,
                     "%s: expected a file with this name alone, found one with %llu (hard links): what is "
                     "written here would change there too; put a copy in its place",
                     shown(path, name), (unsigned long long)info.st_nlink);
}

ErrorCode file_open_own(const char *path, int flags, int *fd, Error *err) {
    char name[512];
    RETRY(*fd, open(path, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666));
    if (*fd < 0 && errno == ELOOP) return refuse_link(path, ERR_CANTCREATE, err);
    if (*fd < 0) return error_errno(err, ERR_CANTCREATE, "%s: cannot open for writing", shown(path, name));
    ErrorCode code = check_own(*fd, path, err);
    if (code != OK) {
        close(*fd);
        *fd = -1;
    }
    return code;
}

/* A crash may have torn the last line. The newline ends it, so that the next record starts on a new line and
 * readers skip the torn one. */
ErrorCode file_open_lines(const char *path, int *fd, Error *err) {
    TRY(file_open_own(path, O_RDWR | O_APPEND | O_CREAT, fd, err));
    ErrorCode code = ends_in_newline(*fd) ? OK : file_add_line(*fd, path, "\n", 1, err);
    if (code != OK) {
        close(*fd);
        *fd = -1;
    }
    return code;
}

/* One write: in append mode the system does not interleave it with another process's line, and a kill at most
 * tears it. */
ErrorCode file_add_line(int fd, const char *path, const char *line, size_t length, Error *err) {
    char name[512];
    ssize_t written;
    do { written = write(fd, line, length); } while (written < 0 && errno == EINTR);
    if (written >= 0 && (size_t)written == length) return OK;
    if (written >= 0) errno = ENOSPC; /* a short write to a file: the disk is full */
    return error_errno(err, ERR_IO, "%s: writing a line failed", shown(path, name));
}

ErrorCode file_make_dirs(const char *path, Error *err) {
    char *prefix = mem_strdup(path);
    ErrorCode code = OK;
    /* From the top: cut the path at each slash, make the directory, restore the slash. */
    for (char *p = prefix; *p && code == OK; p++) {
        if (*p != '/' || p == prefix) continue;
        *p = 0;
        code = make_dir(prefix, true, err);
        *p = '/';
    }
    if (code == OK) code = make_dir(prefix, true, err);
    free(prefix);
    return code;
}

/* Follows links; a dangling link does not exist. */
bool file_exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

bool file_is_url(const char *path) { return url_is(path) && !file_exists(path); }

bool file_holds(const char *dir, const char *name) {
    char *path = path_join(dir, name);
    bool there = file_exists(path);
    free(path);
    return there;
}

bool file_walk(int parent, const char *name, FileEntry *each, void *ctx) {
    int fd;
    RETRY(fd, openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        bool dots = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!dots && fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            each(ctx, dirfd(dir), entry->d_name, &st);
    }
    if (dir) closedir(dir);
    return dir != NULL;
}

bool file_is_dir(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* By name, following links: for the user's inputs, before they are opened. */
ErrorCode file_size(const char *path, uint64_t *bytes, Error *err) {
    char name[512];
    struct stat info;
    if (stat(path, &info) != 0 && url_is(path)) return file_refuse(path, err);
    if (stat(path, &info) != 0) return error_errno(err, ERR_NOINPUT, "%s: cannot stat", shown(path, name));
    if (!S_ISREG(info.st_mode)) return file_refuse(path, err);
    *bytes = (uint64_t)info.st_size;
    return OK;
}

ErrorCode file_sync_dir(const char *path, Error *err) {
    char name[512];
    int fd, result;
    RETRY(fd, open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    /* A directory that may be entered but not read (x without r) cannot be synced. */
    if (fd < 0 && errno == EACCES) return OK;
    if (fd < 0) return error_errno(err, ERR_IO, "%s: cannot open the directory", shown(path, name));
    /* Some file systems cannot sync a directory; there is nothing more to do for durability there. */
    ErrorCode code = OK;
    RETRY(result, fsync(fd));
    if (result != 0 && errno != EINVAL)
        code = error_errno(err, ERR_IO, "%s: cannot sync the directory", shown(path, name));
    close(fd);
    return code;
}

static int compare_paths(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static const char *advice_for(const char *pattern) {
    if (strpbrk(pattern, "*?[")) return "nothing matches this pattern";
    if (pattern[0] == '~') return "no such file; ~ is not expanded: write the whole path";
    if (strchr(pattern, '{')) return "no such file; braces stand for several files in URLs only";
    return "no such file";
}

/* Other programs take it for directories of any depth; glob(3) for one, which would leave files out in
 * silence. */
static bool means_any_depth(const char *pattern) {
    const char *stars = strstr(pattern, "**/");
    return stars && (stars == pattern || stars[-1] == '/') && !url_is(pattern);
}

/* The caller owns *paths and each path, and frees them by file_glob_free. After an error there is nothing to
 * free. */
ErrorCode file_glob(const char *pattern, char ***paths, size_t *count, Error *err) {
    char name[512];
    /* An existing file whose name contains brackets or stars is that file, not a pattern. */
    if (file_exists(pattern)) {
        *paths = mem_alloc_array(1, sizeof **paths);
        (*paths)[0] = mem_strdup(pattern);
        *count = 1;
        return OK;
    }
    if (means_any_depth(pattern))
        return error_set(err, ERR_NOINPUT,
                         "%s: ** for directories of any depth is not read: give a pattern for each depth, as "
                         "in a/*.txt, a/*/*.txt",
                         shown(pattern, name));
    glob_t found;
    int status = glob(pattern, GLOB_NOSORT, NULL, &found);
    if (status == GLOB_NOMATCH) {
        if (url_is(pattern)) return file_refuse(pattern, err);
        return error_set(err, ERR_NOINPUT, "%s: %s", shown(pattern, name), advice_for(pattern));
    }
    if (status != 0)
        return error_set(err, ERR_NOINPUT, "%s: cannot read the directory", shown(pattern, name));
    *count = found.gl_pathc;
    *paths = mem_alloc_array(*count, sizeof **paths);
    for (size_t i = 0; i < *count; i++) (*paths)[i] = mem_strdup(found.gl_pathv[i]);
    globfree(&found);
    /* By bytes: glob's own order depends on the locale, and the order of files is the order of the data. */
    qsort(*paths, *count, sizeof **paths, compare_paths);
    return OK;
}

void file_glob_free(char **paths, size_t count) {
    for (size_t i = 0; i < count; i++) free(paths[i]);
    free(paths);
}

/* An absolute name is used alone. */
char *path_join(const char *dir, const char *name) {
    if (!dir || !*dir || name[0] == '/') return mem_strdup(name);
    Text path = {0};
    text_puts(&path, dir);
    if (path.data[path.length - 1] != '/') text_puts(&path, "/");
    text_puts(&path, name);
    return path.data;
}
