#include "train/lock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/file.h"

static int open_lock(const char *run_dir, int flags) {
    char *path = path_join(run_dir, "lock");
    int fd = open(path, flags | O_CLOEXEC, 0644);
    free(path);
    return fd;
}

static long read_pid(int fd) {
    char text[32] = {0};
    return pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
}

ErrorCode lock_take(RunLock *l, const char *run_dir, Error *err) {
    char pid[32];
    int fd = open_lock(run_dir, O_RDWR | O_CREAT);
    if (fd < 0) return error_errno(err, ERR_CANTCREATE, "%s: cannot make a lock file", run_dir);
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        long holder = read_pid(fd);
        bool busy = errno == EWOULDBLOCK;
        close(fd);
        if (!busy) return error_errno(err, ERR_CANTCREATE, "%s: cannot lock it", run_dir);
        return error_set(err, ERR_CANTCREATE,
                         "%s: process %ld trains in it: wait, stop it (weft stop %s), or use another run.dir", run_dir, holder,
                         run_dir);
    }
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        close(fd);
        return error_errno(err, ERR_IO, "%s: cannot write the lock file", run_dir);
    }
    *l = (RunLock){.fd = fd, .stop = path_join(run_dir, "stop")};
    unlink(l->stop);
    return OK;
}

void lock_release(RunLock *l) {
    if (l->fd > 0) close(l->fd);
    free(l->stop);
    *l = (RunLock){0};
}

bool lock_stop_requested(const RunLock *l) { return access(l->stop, F_OK) == 0; }

ErrorCode lock_holder(const char *run_dir, long *pid, Error *err) {
    int fd = open_lock(run_dir, O_RDONLY);
    *pid = 0;
    if (fd < 0)
        return errno == ENOENT ? error_set(err, ERR_NOINPUT, "%s: no run has ever been here", run_dir)
                               : error_errno(err, ERR_NOINPUT, "%s: cannot read its lock", run_dir);
    if (flock(fd, LOCK_SH | LOCK_NB) != 0) *pid = read_pid(fd);
    close(fd);
    return OK;
}

ErrorCode lock_request_stop(const char *run_dir, Error *err) {
    char *path = path_join(run_dir, "stop");
    ErrorCode code = file_write_atomic(path, "stop\n", 5, err);
    free(path);
    return code;
}
