/* A file that is written, synced, dropped from the page cache, and read back. It has no name from the start,
 * so nothing is left behind. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/rng.h"
#include "cli/burn.h"
#include "cli/terminal.h"

enum { BLOCK = 1 << 20, MOST_BLOCKS = 4096 };

typedef struct TestFile {
    const Burn *b;
    int fd, blocks;
    char *written, *read; /* a block each */
    double write_seconds, read_seconds;
} TestFile;

/* Random, since disks may compress; another block for each number. */
static void fill(char *block, int number) {
    uint64_t key = rng_key((uint64_t)number, "burn.file");
    for (int i = 0; i < BLOCK / 8; i++) {
        uint64_t word = rng_u64(key, (uint64_t)i);
        memcpy(block + 8 * i, &word, sizeof word);
    }
}

/* Reads or writes a whole block at its place, and adds to the time of that: blocks are filled and compared
 * outside of it. */
static ErrorCode move_block(TestFile *t, char *block, int number, bool write, Error *err) {
    double start = clock_seconds();
    for (ssize_t at = 0; at < BLOCK;) {
        off_t where = (off_t)number * BLOCK + at;
        size_t rest = (size_t)(BLOCK - at);
        ssize_t n = write ? pwrite(t->fd, block + at, rest, where) : pread(t->fd, block + at, rest, where);
        if (n < 0 && errno == EINTR) continue;
        if (n == 0) errno = EIO;
        if (n <= 0)
            return error_errno(err, ERR_IO, "%s: cannot %s the file of --burn", t->b->directory,
                               write ? "write" : "read");
        at += n;
    }
    *(write ? &t->write_seconds : &t->read_seconds) += clock_seconds() - start;
    return OK;
}

/* At most a tenth of the free space. */
static int most_blocks(const char *directory) {
    struct statvfs info;
    double room = statvfs(directory, &info) == 0 ? (double)info.f_bavail * (double)info.f_frsize / 10 : 0;
    int blocks = room / BLOCK < MOST_BLOCKS ? (int)(room / BLOCK) : MOST_BLOCKS;
    return blocks > 0 ? blocks : 1;
}

static ErrorCode write_blocks(TestFile *t, double until, Error *err) {
    int most = most_blocks(t->b->directory);
    do {
        fill(t->written, t->blocks);
        TRY(move_block(t, t->written, t->blocks++, true, err));
    } while (t->blocks < most && clock_seconds() < until);
    double start = clock_seconds();
    if (fsync(t->fd) != 0)
        return error_errno(err, ERR_IO, "%s: cannot sync the file of --burn", t->b->directory);
    t->write_seconds += clock_seconds() - start;
    posix_fadvise(t->fd, 0, 0, POSIX_FADV_DONTNEED);
    return OK;
}

/* As a broken disk would. */
static ErrorCode break_file(const TestFile *t, Error *err) {
    char byte;
    off_t at = (off_t)(t->b->fault.file % ((int64_t)t->blocks * BLOCK));
    if (t->b->fault.file < 0) return OK;
    if (pread(t->fd, &byte, 1, at) != 1 || (byte ^= 1, pwrite(t->fd, &byte, 1, at) != 1))
        return error_errno(err, ERR_IO, "%s: cannot break the file of --burn", t->b->directory);
    return OK;
}

static ErrorCode read_blocks(TestFile *t, Text *out, int *differ, Error *err) {
    for (int i = 0; i < t->blocks; i++) {
        int at = 0;
        TRY(move_block(t, t->read, i, false, err));
        fill(t->written, i);
        if (memcmp(t->read, t->written, BLOCK) == 0) continue;
        while (t->read[at] == t->written[at]) at++;
        text_printf(out, "file: %s: a block of 1 MiB differs from what was written, first at offset %lld\n",
                    t->b->directory, (long long)i * BLOCK + at);
        ++*differ;
    }
    return OK;
}

static void print_rates(const TestFile *t) {
    char size[32], written[32], read[32];
    double bytes = (double)t->blocks * BLOCK;
    terminal_printf("file              %s in %s, written at %s/s and read at %s/s, in %.1f s\n",
                    text_bytes(bytes, size), t->b->directory, text_bytes(bytes / t->write_seconds, written),
                    text_bytes(bytes / t->read_seconds, read), t->write_seconds + t->read_seconds);
}

ErrorCode burn_file(const Burn *b, double seconds, Text *out, int *differ, Error *err) {
    char *path = path_join(b->directory, ".weft-burn-XXXXXX");
    TestFile t = {.b = b, .fd = mkostemp(path, O_CLOEXEC)};
    if (t.fd >= 0) unlink(path);
    free(path);
    if (t.fd < 0) return error_errno(err, ERR_CANTCREATE, "cannot create a test file in %s", b->directory);
    t.written = mem_alloc(BLOCK);
    t.read = mem_alloc(BLOCK);
    ErrorCode code = write_blocks(&t, clock_seconds() + seconds / 2, err);
    if (code == OK) code = break_file(&t, err);
    if (code == OK) code = read_blocks(&t, out, differ, err);
    if (code == OK) print_rates(&t);
    free(t.written);
    free(t.read);
    close(t.fd);
    return code;
}
