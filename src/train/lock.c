/* The lock of a run directory, and what its holder does first: leftovers of a run that was killed go.
 *
 * The lock is flock(2) on RUN/lock: the system drops it when the process ends. The file itself stays. Whoever
 * has locked a file that meanwhile lost its name (lock_abandon, rm) has locked nothing: is_current.
 *
 *     lock_take      opens or makes RUN/lock, locks it, writes the process, sweeps leftovers
 *     lock_check     is what is locked still what the name leads to?
 *     lock_release   the run is over: the file stays, unlocked
 *     lock_abandon   the run failed: a directory that it made, and in which there is nothing, goes again
 *     lock_holder    of another process: who trains here, if anybody */
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

/* Through file_open_own: a link of that name would lock, and write into, a file elsewhere. */
static ErrorCode open_lock(const char *run_dir, int flags, int *fd, Error *err) {
    char *path = path_join(run_dir, "lock");
    ErrorCode code = file_open_own(path, flags, fd, err);
    free(path);
    return code;
}

/* For messages and `weft stop`; 0 where the holder has not written it yet. */
static long read_pid(int fd) {
    char text[32] = {0};
    return pread(fd, text, sizeof text - 1, 0) > 0 ? strtol(text, NULL, 10) : 0;
}

/* lstat: a link of that name is not followed, here as elsewhere in a run directory. */
static bool is_here(const char *run_dir, struct stat *found) {
    char *path = path_join(run_dir, "lock");
    bool there = lstat(path, found) == 0;
    free(path);
    return there;
}

/* A lock on a file that its owner has removed (lock_abandon) keeps nobody out. */
static bool is_current(int fd, const char *run_dir) {
    struct stat own, named;
    return fstat(fd, &own) == 0 && is_here(run_dir, &named) && own.st_ino == named.st_ino &&
           own.st_dev == named.st_dev;
}

/* What interrupted writers leave beside these: all that weft writes anew in a run directory. */
static const char *const written_whole[] = {"config.yaml", "tokenizer.json", METRICS_PATTERN,
                                            TRACE_FILE,    REPORT_FILE,      "stop"};

/* What the run before has left, however it ended: a request to stop, and files half written. */
static ErrorCode sweep(const RunLock *l, const char *run_dir, Error *err) {
    if (unlink(l->stop) != 0 && errno != ENOENT)
        return error_errno(err, ERR_CANTCREATE, "%s: cannot remove it, and a run stops while it is there",
                           l->stop);
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
    /* What was not there before goes again if the run fails before it has begun (lock_abandon): a mistyped
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
    /* Between opening and locking its name went to another file, or away: once more, with what is there
     * now. */
    if (!is_current(fd, run_dir)) {
        close(fd);
        return lock_take(l, run_dir, err);
    }
    int length = snprintf(pid, sizeof pid, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, pid, (size_t)length, 0) != length) {
        close(fd);
        return error_errno(err, ERR_IO, "%s: cannot write the lock file", run_dir);
    }
    fsync(fd); /* for ranks on other machines (lock_sees); nothing else hangs on it */
    *l =
        (RunLock){.fd = fd, .made_dir = made_dir, .made_file = made_file, .stop = path_join(run_dir, "stop")};
    ErrorCode code = sweep(l, run_dir, err);
    if (code != OK) lock_abandon(l, run_dir);
    return code;
}

/* Before each save and at the end: files written under a name that now means something else would be lost,
 * or mix with another run's. */
ErrorCode lock_check(const RunLock *l, const char *run_dir, Error *err) {
    if (is_current(l->fd, run_dir)) return OK;
    return error_set(
        err, ERR_IO,
        "%s: no longer holds this run: it was moved, removed or replaced while the run was going on; "
        "what was saved is where it went",
        run_dir);
}

/* By the number in the file: flock says nothing across machines that do not share locks. */
static bool is_held_by(const char *run_dir, long holder) {
    int fd;
    DIR *fresh = opendir(run_dir); /* after which a network file system no longer knows names from before */
    if (fresh) closedir(fresh);
    if (open_lock(run_dir, O_RDONLY, &fd, NULL) != OK) return false;
    long pid = read_pid(fd);
    close(fd);
    return pid == holder;
}

/* Five seconds at most, for network file systems that show a new name late. Beats keep the watchdog from
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

/* Closing the descriptor unlocks. Of a lock that was never taken, too. */
void lock_release(RunLock *l) {
    if (l->fd > 0) close(l->fd);
    free(l->stop);
    *l = (RunLock){0};
}

/* Whatever else is there is somebody's: then nothing goes. */
static bool holds_only_lock(const char *run_dir) {
    DIR *handle = opendir(run_dir);
    bool only = handle != NULL;
    for (struct dirent *entry; only && (entry = readdir(handle)) != NULL;)
        only = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0 ||
               strcmp(entry->d_name, "lock") == 0;
    if (handle) closedir(handle);
    return only;
}

/* The file is removed while it is locked: who waits for it finds that it is no longer current. */
void lock_abandon(RunLock *l, const char *run_dir) {
    if (l->fd > 0 && l->made_file && holds_only_lock(run_dir)) {
        char *path = path_join(run_dir, "lock");
        unlink(path);
        free(path);
        if (l->made_dir) rmdir(run_dir);
    }
    lock_release(l);
}

/* Asked before each step, so it is one system call and no more. */
bool lock_stop_requested(const RunLock *l) { return access(l->stop, F_OK) == 0; }

/* A shared lock is tried: it is had at once if nobody holds the run, and dropped with the descriptor. *pid
 * is 0 then. */
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

/* 0 where that process has ended. EPERM: it lives and is another user's. */
long lock_last_holder(const char *run_dir) {
    int fd;
    if (open_lock(run_dir, O_RDONLY, &fd, NULL) != OK) return 0;
    long pid = read_pid(fd);
    close(fd);
    return pid > 0 && (kill((pid_t)pid, 0) == 0 || errno == EPERM) ? pid : 0;
}

/* The run takes it up with its next step; the file goes with the next start (sweep). */
ErrorCode lock_request_stop(const char *run_dir, Error *err) {
    char *path = path_join(run_dir, "stop");
    ErrorCode code = file_write_atomic(path, "stop\n", 5, err);
    free(path);
    return code;
}
