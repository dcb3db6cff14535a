/* Temporary directories that a process uses and removes.
 *
 *  S1. The user of a directory holds a lock on it (flock), which ends with the process, however that ends. A
 *      directory that can be locked is unused: scratch_take removes such directories first.
 *  S2. Between making and locking its directory, a process may lose it to another one that cleans up. So
 *      after locking it checks that the name still refers to the locked directory, and makes another if
 *      not. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"

/* The same choice as mktemp and most programs. */
static const char *temporary_directory(void) {
    const char *named = getenv("TMPDIR");
    return named && *named ? named : "/tmp";
}

/* Opens and locks the directory of this name; -1 if somebody else has the lock, or if it is not this
 * user's. */
static int lock_own(int parent, const char *name) {
    struct stat held, there;
    int fd, result;
    RETRY(fd, openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd < 0) return -1;
    RETRY(result, fstat(fd, &held) != 0 || held.st_uid != geteuid() ? -1 : flock(fd, LOCK_EX | LOCK_NB));
    if (result == 0 && fstatat(parent, name, &there, AT_SYMLINK_NOFOLLOW) == 0 &&
        there.st_ino == held.st_ino && there.st_dev == held.st_dev)
        return fd;
    close(fd);
    return -1;
}

/* Removes the directories of killed processes. One that cannot be removed stays; it does no harm. */
static void sweep(const char *parent, const char *prefix) {
    DIR *open = opendir(parent);
    for (struct dirent *entry; open && (entry = readdir(open));) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) continue;
        int lock = lock_own(dirfd(open), entry->d_name);
        if (lock < 0) continue;
        char *path = path_join(parent, entry->d_name);
        file_remove_tree(path, NULL);
        free(path);
        close(lock);
    }
    if (open) closedir(open);
}

/* mkdtemp makes a directory that only this user may enter. s->path is set only on success. */
ErrorCode scratch_take(ScratchDir *s, const char *prefix, Error *err) {
    const char *parent = temporary_directory();
    Text path = {0};
    sweep(parent, prefix);
    for (s->lock = -1; s->lock < 0;) {
        text_clear(&path);
        text_printf(&path, "%s/%sXXXXXX", parent, prefix);
        if (!mkdtemp(path.data)) {
            ErrorCode code = error_errno(err, ERR_CANTCREATE, "making a directory in %s", parent);
            text_free(&path);
            return code;
        }
        s->lock = lock_own(AT_FDCWD, path.data);
    }
    s->path = path.data;
    return OK;
}

/* Removed while still locked, so that nobody else starts to remove it meanwhile. */
void scratch_give(ScratchDir *s) {
    if (!s->path) return;
    file_remove_tree(s->path, NULL);
    close(s->lock);
    free(s->path);
    *s = (ScratchDir){.lock = -1};
}
