/* The lock of a run directory, and cleaning up after a run that was killed.
 *
 * The lock is flock(2) on RUN/lock, which the system releases when the process ends. The file itself stays. A
 * process may lock a file that has lost its name in the meantime (lock_abandon, rm): such a lock excludes
 * nobody, which is_current detects.
 *
 *     lock_take      opens or creates RUN/lock, locks it, writes the process id, removes leftovers
 *     lock_check     does the name still refer to the locked file?
 *     lock_release   the run is over: the file stays, unlocked
 *     lock_abandon   the run failed: removes a directory that it created, if it is empty
 *     lock_holder    for another process: which process trains here, if any */
#include "train/lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "observe/metrics.h"
#include "observe/report.h"
#include "observe/trace.h"
#include "train/resize.h"

/* Uses file_open_own: with a symbolic link of that name it would lock, and write to, a file elsewhere. */
static ErrorCode open_lock(const char *run_dir, int flags, int *fd, Error *err) {
    char *path = path_join(run_dir, "lock");
    ErrorCode code = file_open_own(path, flags, fd, err);
    free(path);
    return code;
}

/* For messages and `weft stop`; 0 if the holder has not written it yet. */
static long read_pid(int fd) {
    char text[32] = {0};
    return pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
}

/* Uses lstat: a symbolic link of that name is not followed, here as elsewhere in a run directory. */
static bool is_here(const char *run_dir, struct stat *found) {
    char *path = path_join(run_dir, "lock");
    bool there = lstat(path, found) == 0;
    free(path);
    return there;
}

/* A lock on a file that its owner has removed (lock_abandon) excludes nobody. */
static bool is_current(int fd, const char *run_dir) {
    struct stat own, named;
    return fstat(fd, &own) == 0 && is_here(run_dir, &named) && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

/* All files that weft rewrites in a run directory; interrupted writers leave temporary files next to them. */
static const char *const written_whole[] = {"config.yaml", "tokenizer.json", METRICS_PATTERN, TRACE_FILE,
                                            REPORT_FILE,   "stop",           RESIZE_FILE,     LAUNCH_FILE};

/* Removes what the previous run has left, however it ended: requests, how it was started, and temporary
 * files. */
static ErrorCode sweep(const RunLock *l, const char *run_dir, Error *err) {
    if (unlink(l->stop) != 0 && errno != ENOENT)
        return error_errno(err, ERR_CANTCREATE, "%s: cannot remove it, and a run stops while it is there",
                           l->stop);
    resize_drop(run_dir);
    launch_remove(run_dir);
    TRY(file_remove_temporaries(run_dir, written_whole, sizeof written_whole / sizeof *written_whole, err));
    char *checkpoints;
    TRY(checkpoint_own_directory(run_dir, &checkpoints, err));
    checkpoint_clean(NULL, checkpoints);
    free(checkpoints);
    return OK;
}

ErrorCode lock_take(RunLock *l, const char *run_dir, Error *err) {
    char pid[32];
    int fd, result;
    struct stat before;
    /* What did not exist before is removed if the run fails before it has begun (lock_abandon): a mistyped
     * run.dir leaves nothing. */
    bool made_dir = !file_exists(run_dir), made_file = !is_here(run_dir, &before);
    TRY(file_make_dirs(run_dir, err));
    TRY(open_lock(run_dir, O_RDWR | O_CREAT, &fd, err));
    RETRY(result, flock(fd, LOCK_EX | LOCK_NB));
    if (result != 0) {
        long holder = read_pid(fd);
        bool busy = errno == EWOULDBLOCK;
        close(fd);
        if (!busy) return error_errno(err, ERR_CANTCREATE, "%s: cannot lock it", run_dir);
        return error_set(err, ERR_CANTCREATE,
                         "%s: process %ld trains in it: wait, stop it (weft stop %s), or use another run.dir",
                         run_dir, holder, run_dir);
    }
    /* Between opening and locking, the name was removed or given to another file: try again with what is
     * there now. */
    if (!is_current(fd, run_dir)) {
        close(fd);
        return lock_take(l, run_dir, err);
    }
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        close(fd);
        return error_errno(err, ERR_IO, "%s: cannot write the lock file", run_dir);
    }
    fsync(fd); /* for ranks on other machines (lock_sees); nothing else depends on it */
    *l =
        (RunLock){.fd = fd, .made_dir = made_dir, .made_file = made_file, .stop = path_join(run_dir, "stop")};
    ErrorCode code = sweep(l, run_dir, err);
    if (code != OK) lock_abandon(l, run_dir);
    return code;
}

/* Called before each save and at the end: files written under a name that now refers to something else would
 * be lost, or would mix with another run's. */
ErrorCode lock_check(const RunLock *l, const char *run_dir, Error *err) {
    if (is_current(l->fd, run_dir)) return OK;
    return error_set(
        err, ERR_IO,
        "%s: no longer holds this run: it was moved, removed or replaced while the run was going on; "
        "what was saved is where it went",
        run_dir);
}

/* Compares the process id in the file: flock says nothing about machines that do not share locks. */
static bool is_held_by(const char *run_dir, long holder) {
    int fd;
    DIR *fresh = opendir(run_dir); /* makes a network file system look up names again */
    if (fresh) closedir(fresh);
    if (open_lock(run_dir, O_RDONLY, &fd, NULL) != OK) return false;
    long pid = read_pid(fd);
    close(fd);
    return pid == holder;
}

/* Waits up to five seconds for network file systems that show a new name late. Beats keep the watchdog from
 * taking the wait for a hang. */
bool lock_sees(const char *run_dir, long holder) {
    enum { TRIES = 50 };
    int tries = 0;
    while (!is_held_by(run_dir, holder) && ++tries < TRIES) {
        progress_beat();
        nanosleep(&(struct timespec){0, 100000000}, NULL);
    }
    return tries < TRIES;
}

/* Closing the descriptor unlocks. Accepts a lock that was never taken. */
void lock_release(RunLock *l) {
    if (l->fd > 0) close(l->fd);
    free(l->stop);
    *l = (RunLock){0};
}

/* If anything else is in the directory, it belongs to somebody, and nothing is removed. */
static bool holds_only_lock(const char *run_dir) {
    DIR *handle = opendir(run_dir);
    bool only = handle != NULL;
    for (struct dirent *entry; only && (entry = readdir(handle)) != NULL;)
        only = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
               strcmp(entry->d_name, "lock") == 0;
    if (handle) closedir(handle);
    return only;
}

/* The file is removed while it is locked: a process that waits for it finds that it is no longer current. */
void lock_abandon(RunLock *l, const char *run_dir) {
    if (l->fd > 0 && l->made_file && holds_only_lock(run_dir)) {
        char *path = path_join(run_dir, "lock");
        unlink(path);
        free(path);
        if (l->made_dir) rmdir(run_dir);
    }
    lock_release(l);
}

/* Called before each step, so it is a single system call. */
bool lock_stop_requested(const RunLock *l) { return access(l->stop, F_OK) == 0; }

/* Tries a shared lock, which succeeds if nobody holds the run, and is released with the descriptor. *pid is 0
 * then. */
ErrorCode lock_holder(const char *run_dir, long *pid, Error *err) {
    struct stat there;
    int fd, result;
    *pid = 0;
    if (!is_here(run_dir, &there) && errno == ENOENT)
        return error_set(err, ERR_NOINPUT, "%s: no run has ever been here", run_dir);
    TRY(open_lock(run_dir, O_RDONLY, &fd, err));
    RETRY(result, flock(fd, LOCK_SH | LOCK_NB));
    if (result != 0) *pid = read_pid(fd);
    close(fd);
    return OK;
}

/* EPERM: the process exists and belongs to another user. */
long lock_last_holder(const char *run_dir) {
    int fd;
    if (open_lock(run_dir, O_RDONLY, &fd, NULL) != OK) return 0;
    long pid = read_pid(fd);
    close(fd);
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM) ? pid : 0;
}

/* The run sees the file at its next step; the next start removes it (sweep). */
ErrorCode lock_request_stop(const char *run_dir, Error *err) {
    char *path = path_join(run_dir, "stop");
    ErrorCode code = file_write_atomic(path, "stop\n", 5, err);
    free(path);
    return code;
}
