/* Locks bytes of one file instead of one file per cache: a source may have thousands of caches, and a process
 * only 1,024 open files.
 *
 *  U1. Locks belong to the open file description (F_OFD_SETLK): they end with the process however it ends,
 *      work between two users in one process, and NFS passes them to other hosts (flock on NFS locks the
 *      whole file).
 *  U2. A cache is held before it is looked for, and removed only while its byte is claimed: a cache that was
 *      found valid stays.
 *  U3. Two names with the same first 60 bits share a byte; then one is kept too long. */
#include "data/cache_use.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "data/token_cache.h"

struct CacheUse {
    char *cache_dir;
    int fd; /* -1: locks are not supported; a warning was logged */
    char **held;
    size_t count, capacity;
};

static int lock_byte(int fd, const char *name, int type, int command) {
    char digits[16] = {0};
    memcpy(digits, name, strnlen(name, 15));
    struct flock byte = {.l_type = (short)type, .l_whence = SEEK_SET, .l_len = 1};
    byte.l_start = (off_t)strtoull(digits, NULL, 16);
    int result;
    RETRY(result, fcntl(fd, command, &byte));
    return result;
}

static bool is_taken(void) { return errno == EAGAIN || errno == EACCES; }

static ErrorCode open_file(CacheUse **use, const char *cache_dir, int flags, Error *err) {
    char *path = path_join(cache_dir, CACHE_USE_FILE);
    CacheUse *u = mem_alloc(sizeof *u);
    u->cache_dir = mem_strdup(cache_dir);
    u->fd = -1;
    *use = u;
    ErrorCode code = file_open_own(path, flags | O_CREAT, &u->fd, err);
    free(path);
    return code;
}

static void warn(CacheUse *u, const char *why) {
    log_warn("%s: token caches cannot be locked (%s): `weft data prune` elsewhere may remove them in use",
             u->cache_dir, why);
    if (u->fd >= 0) close(u->fd);
    u->fd = -1;
}

/* A shared lock needs only read access, since the directory may belong to somebody else. */
CacheUse *cache_use_open(const char *cache_dir) {
    CacheUse *u;
    Error why = {0};
    if (open_file(&u, cache_dir, O_RDONLY, &why) != OK) warn(u, why.message);
    return u;
}

static bool holds(const CacheUse *u, const char *name) {
    for (size_t i = 0; i < u->count; i++)
        if (strcmp(u->held[i], name) == 0) return true;
    return false;
}

void cache_use_hold(CacheUse *u, const char *name) {
    if (u->fd < 0 || holds(u, name)) return;
    int result = lock_byte(u->fd, name, F_RDLCK, F_OFD_SETLK);
    if (result != 0 && is_taken()) {
        log_info("%s/%s: waiting for `weft data prune`", u->cache_dir, name);
        result = lock_byte(u->fd, name, F_RDLCK, F_OFD_SETLKW);
    }
    if (result != 0) {
        warn(u, strerror(errno));
        return;
    }
    if (u->count == u->capacity) {
        u->capacity = 2 * u->capacity + 16;
        u->held = mem_grow(u->held, u->capacity * sizeof *u->held);
    }
    u->held[u->count++] = mem_strdup(name);
}

/* Touches the caches at the end: a run may take months, and what counts is when it ended. */
void cache_use_close(CacheUse *u) {
    if (!u) return;
    for (size_t i = 0; i < u->count; i++) {
        char *dir = path_join(u->cache_dir, u->held[i]);
        token_cache_touch(dir);
        free(dir);
        free(u->held[i]);
    }
    if (u->fd >= 0) close(u->fd);
    free(u->held);
    free(u->cache_dir);
    free(u);
}

ErrorCode cache_use_open_claims(CacheUse **use, const char *cache_dir, Error *err) {
    ErrorCode code = open_file(use, cache_dir, O_RDWR, err);
    if (code == OK) return OK;
    cache_use_close(*use);
    *use = NULL;
    return error_context(err, "nothing was removed");
}

ErrorCode cache_use_claim(CacheUse *u, const char *name, bool *claimed, Error *err) {
    *claimed = lock_byte(u->fd, name, F_WRLCK, F_OFD_SETLK) == 0;
    if (*claimed || is_taken()) return OK;
    return error_errno(err, ERR_IO, "%s/%s: cannot be locked, so nothing is removed", u->cache_dir,
                       CACHE_USE_FILE);
}

void cache_use_release(CacheUse *u, const char *name) { lock_byte(u->fd, name, F_UNLCK, F_OFD_SETLK); }
