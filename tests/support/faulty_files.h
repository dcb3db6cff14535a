/* The calls of saving with one fault among them: a failure, an interruption, a kill; and a trace of all
 * calls. */
#ifndef WEFT_TESTS_FAULTY_FILES_H
#define WEFT_TESTS_FAULTY_FILES_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/text.h"
#include "checkpoint/fileops.h"

typedef enum FaultKind { FAULT_NONE, KILL_BEFORE, KILL_AFTER, FAIL, INTERRUPT, SHORT_WRITES } FaultKind;

typedef struct Faults {
    FaultKind kind;
    int at, error; /* the at-th call fails, with this errno */
    int calls;
    bool no_exchange;
    int slow; /* microseconds per write */
    Text trace;
} Faults;

static bool reached(Faults *f, const char *name) {
    text_printf(&f->trace, "%s ", name);
    return f->calls++ == f->at;
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

/* One call of the table, with its fault if one is due. */
#define CALL(name, real)                                         \
    do {                                                         \
        Faults *f = ctx;                                         \
        bool here = reached(f, name);                            \
        if (here && f->kind == KILL_BEFORE) die();               \
        if (here && (f->kind == FAIL || f->kind == INTERRUPT)) { \
            errno = f->kind == FAIL ? f->error : EINTR;          \
            return -1;                                           \
        }                                                        \
        int result = (real);                                     \
        if (here && f->kind == KILL_AFTER) die();                \
        return result;                                           \
    } while (0)

static const FileOps *const sys = &file_ops_system;

static int faulty_create(void *ctx, const char *path) { CALL("create", sys->create(NULL, path)); }
static int faulty_open(void *ctx, const char *path) { CALL("open", sys->open(NULL, path)); }
static int faulty_resize(void *ctx, int fd, uint64_t length) {
    CALL("resize", sys->resize(NULL, fd, length));
}
static int faulty_write_behind(void *ctx, int fd, uint64_t offset, uint64_t length) {
    CALL("behind", sys->write_behind(NULL, fd, offset, length));
}
static int faulty_sync(void *ctx, int fd) { CALL("sync", sys->sync(NULL, fd)); }
static int faulty_mkdir(void *ctx, const char *path) { CALL("mkdir", sys->mkdir(NULL, path)); }
static int faulty_sync_dir(void *ctx, const char *path) {
    CALL(strstr(path, ".tmp-") ? "sync-temporary" : "sync-parent", sys->sync_dir(NULL, path));
}
static int faulty_rename(void *ctx, const char *from, const char *to) {
    CALL("rename", sys->rename(NULL, from, to));
}
static int faulty_symlink(void *ctx, const char *target, const char *path) {
    CALL("symlink", sys->symlink(NULL, target, path));
}
static int faulty_unlink(void *ctx, int dir, const char *name, int flags) {
    CALL(flags & AT_REMOVEDIR ? "rmdir" : "unlink", sys->unlink(NULL, dir, name, flags));
}

static int faulty_close(void *ctx, int fd) {
    Faults *f = ctx;
    if (reached(f, "close") && f->kind == KILL_BEFORE) die();
    int result = sys->close(NULL, fd);
    bool here = f->calls - 1 == f->at;
    if (here && f->kind == KILL_AFTER) die();
    if (here && (f->kind == FAIL || f->kind == INTERRUPT)) {
        errno = f->kind == FAIL ? f->error : EINTR;
        return -1;
    }
    return result;
}

static int faulty_exchange(void *ctx, const char *a, const char *b) {
    if (((Faults *)ctx)->no_exchange) {
        errno = ENOSYS;
        return -1;
    }
    CALL("exchange", sys->exchange(NULL, a, b));
}

static ssize_t faulty_write(void *ctx, int fd, const void *data, size_t length, uint64_t offset) {
    Faults *f = ctx;
    if (f->slow) usleep((useconds_t)f->slow);
    bool here = reached(f, "write");
    /* A failing device writes half of the bytes before it fails; a kill may happen there too. */
    bool half = here && (f->kind == FAIL || f->kind == KILL_BEFORE);
    if (f->kind == SHORT_WRITES && length > 1) length = 1 + length / 3;
    if (half) {
        ssize_t ignored = sys->write(NULL, fd, data, length / 2, offset);
        (void)ignored;
        if (f->kind == KILL_BEFORE) die();
        errno = f->error;
        return -1;
    }
    if (here && f->kind == INTERRUPT) {
        errno = EINTR;
        return -1;
    }
    ssize_t result = sys->write(NULL, fd, data, length, offset);
    if (here && f->kind == KILL_AFTER) die();
    return result;
}

static inline FileOps faulty_ops(Faults *f) {
    return (FileOps){.ctx = f,
                     .create = faulty_create,
                     .open = faulty_open,
                     .write = faulty_write,
                     .write_behind = faulty_write_behind,
                     .resize = faulty_resize,
                     .sync = faulty_sync,
                     .close = faulty_close,
                     .mkdir = faulty_mkdir,
                     .sync_dir = faulty_sync_dir,
                     .rename = faulty_rename,
                     .exchange = faulty_exchange,
                     .symlink = faulty_symlink,
                     .unlink = faulty_unlink};
}

/* Number of names in a directory that begin like temporary files. */
static int entries_with_dot(const char *dir) {
    char **paths, *pattern = path_join(dir, ".t*");
    size_t count = 0;
    if (file_glob(pattern, &paths, &count, NULL) == OK) file_glob_free(paths, count);
    free(pattern);
    return (int)count;
}

#endif
