/* Files when system calls are interrupted: every call first fails by a signal, as network file systems may
 * do; and names are synced in the directory where they were made.
 *
 * This file defines open, fsync and so on in place of the C library's, so the calls of base/file.c end up
 * here. */
#include "support/files.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

enum { OPEN, OPENAT, READ, WRITE, FSYNC, MKDIR, RENAME, UNLINKAT, CALLS };

static bool interrupting;
static bool again[CALLS]; /* the next call succeeds */
static int interrupted[CALLS];

/* Fails every other call of a kind. */
static bool interrupt_now(int call) {
    if (!interrupting || (again[call] = !again[call]) == false) return false;
    interrupted[call]++;
    errno = EINTR;
    return true;
}

static ino_t synced[64];
static int synced_count;

static bool was_synced(const char *path) {
    struct stat info;
    assert_int_equal(stat(path, &info), 0);
    for (int i = 0; i < synced_count; i++)
        if (synced[i] == info.st_ino) return true;
    return false;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return interrupt_now(OPEN) ? -1 : (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

int openat(int dir, const char *path, int flags, ...) {
    return interrupt_now(OPENAT) ? -1 : (int)syscall(SYS_openat, dir, path, flags, 0);
}

ssize_t read(int fd, void *data, size_t length) {
    return interrupt_now(READ) ? -1 : (ssize_t)syscall(SYS_read, fd, data, length);
}

ssize_t write(int fd, const void *data, size_t length) {
    return interrupt_now(WRITE) ? -1 : (ssize_t)syscall(SYS_write, fd, data, length);
}

int fsync(int fd) {
    struct stat info;
    if (interrupt_now(FSYNC)) return -1;
    if (synced_count < 64 && fstat(fd, &info) == 0) synced[synced_count++] = info.st_ino;
    return (int)syscall(SYS_fsync, fd);
}

int mkdir(const char *path, mode_t mode) {
    return interrupt_now(MKDIR) ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}

int rename(const char *from, const char *to) {
    return interrupt_now(RENAME) ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlinkat(int dir, const char *path, int flags) {
    return interrupt_now(UNLINKAT) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
}

static void must(ErrorCode code, const Error *err) {
    if (code != OK) fail_msg("%s", err->message);
}

static void every_call_may_be_interrupted(void **state) {
    (void)state;
    static const char *const names[] = {"whole"};
    Error err = {.message = ""};
    const char *dir = files_path("signals/deep"), *whole = files_path("signals/deep/whole");
    const char *lines = files_path("signals/deep/lines"), *own = files_path("signals/own");
    char *data;
    size_t length;
    FileMap map;
    int fd;
    interrupting = true;
    must(file_make_dirs(dir, &err), &err);
    must(file_make_own_dir(own, &err), &err);
    must(file_write_atomic(whole, "content", 7, &err), &err);
    must(file_open_lines(lines, &fd, &err), &err);
    must(file_add_line(fd, lines, "line\n", 5, &err), &err);
    must(file_sync(fd, lines, &err), &err);
    must(file_read(whole, 100, &data, &length, &err), &err);
    assert_string_equal(data, "content");
    must(file_map(&map, lines, &err), &err);
    assert_int_equal(map.length, 5);
    must(file_sync_dir(dir, &err), &err);
    must(file_write_atomic(files_path("signals/deep/whole.1.2.tmp"), "", 0, &err), &err);
    must(file_remove_temporaries(dir, names, 1, &err), &err);
    must(file_remove_tree(files_path("signals"), &err), &err);
    interrupting = false;
    assert_false(file_exists(files_path("signals")));
    for (int i = 0; i < CALLS; i++)
        if (interrupted[i] == 0) fail_msg("no call of kind %d was interrupted", i);
    file_unmap(&map);
    close(fd);
    free(data);
}

static void names_of_directories_are_synced(void **state) {
    (void)state;
    Error err = {.message = ""};
    const char *made[] = {files_root, files_path("a"), files_path("a/b")}, *own = files_path("a/b/c/own");
    synced_count = 0;
    must(file_make_dirs(files_path("a/b/c"), &err), &err);
    for (size_t i = 0; i < 3; i++)
        if (!was_synced(made[i])) fail_msg("%s was not synced", made[i]);
    synced_count = 0;
    must(file_make_own_dir(own, &err), &err);
    assert_true(was_synced(files_path("a/b/c")));
}

static const char *below(char out[64], const char *name) {
    snprintf(out, 64, "temporaries/%s", name);
    return out;
}

/* Only names that file_write_atomic makes, for the given files. */
static void temporaries_are_known_by_their_names(void **state) {
    (void)state;
    static const char *const ours[] = {"config.yaml", "metrics*.jsonl"};
    static const char *const go[] = {"config.yaml.1.2.tmp", "metrics-00003.jsonl.44.0.tmp"};
    static const char *const stay[] = {
        "config.yaml",        "config.yaml.tmp", "config.yaml.1.tmp",  "config.yaml.1.x.tmp", "notes.1.2.tmp",
        "config.yaml.1.2.tm", ".1.2.tmp",        "config.yaml..2.tmp", "xconfig.yaml.1.2.tmp"};
    Error err = {.message = ""};
    char name[64];
    const char *dir = files_mkdir("temporaries");
    for (size_t i = 0; i < sizeof go / sizeof *go; i++) files_text(below(name, go[i]), "");
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++) files_text(below(name, stay[i]), "");
    must(file_remove_temporaries(dir, ours, 2, &err), &err);
    for (size_t i = 0; i < sizeof go / sizeof *go; i++)
        assert_false(file_exists(files_path(below(name, go[i]))));
    for (size_t i = 0; i < sizeof stay / sizeof *stay; i++)
        if (!file_exists(files_path(below(name, stay[i])))) fail_msg("%s went", stay[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_may_be_interrupted),
        cmocka_unit_test(names_of_directories_are_synced),
        cmocka_unit_test(temporaries_are_known_by_their_names),
    };
    return cmocka_run_group_tests(tests, files_setup, files_teardown);
}
