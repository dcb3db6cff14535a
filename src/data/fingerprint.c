/* SHA-256 of source files, cached in the cache directory (data/fingerprint_records.h), so that a corpus is
 * read once and not at each start.
 *
 *  F1. The stamp includes the inode's change time, which nobody can set: a file that is changed in place and
 *      whose modification time is restored, as archives and rsync do, is hashed again.
 *  F2. The hash of a file that changed less than REST_SECONDS ago is not cached: a second write within the
 *      clock's resolution would leave the stamp unchanged.
 *  F3. The stamp is taken before reading and compared afterwards: a file that changes while it is read is an
 *      error. If only the inode's change time differs, as after chmod or a hard link, the content is hashed
 *      again and decides. */
#include "data/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/text.h"
#include "data/fingerprint_records.h"

/* Two seconds is the coarsest clock of file systems in use (FAT). Below QUIET_BYTES a progress bar would be
 * gone before anyone reads it. */
enum { READ_BYTES = 1 << 20, QUIET_BYTES = 256 << 20, REST_SECONDS = 2 };

static ErrorCode stamp_of(const char *path, FileStamp *out, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return file_refuse(path, err);
    *out = (FileStamp){(int64_t)st.st_size,        (int64_t)st.st_mtim.tv_sec,  (int64_t)st.st_mtim.tv_nsec,
                       (int64_t)st.st_ctim.tv_sec, (int64_t)st.st_ctim.tv_nsec, (int64_t)st.st_ino};
    return OK;
}

/* Compares everything but the inode's change time, which also changes with chmod, a hard link or a new owner.
 * The inode detects files that were replaced by others. The device is not compared, since network mounts get
 * another number on each host and at each start. */
static bool nearly_same_stamp(const FileStamp *a, const FileStamp *b) {
    return a->size == b->size && a->mtime_seconds == b->mtime_seconds &&
           a->mtime_nanoseconds == b->mtime_nanoseconds && a->inode == b->inode;
}

static bool same_stamp(const FileStamp *a, const FileStamp *b) {
    return nearly_same_stamp(a, b) && a->ctime_seconds == b->ctime_seconds &&
           a->ctime_nanoseconds == b->ctime_nanoseconds;
}

static bool at_rest(const FileStamp *s) { return clock_wall() >= (double)s->ctime_seconds + REST_SECONDS; }

/* Afterwards the file's position is at the end. Progress counts megabytes. */
static ErrorCode hash_descriptor(int fd, const char *path, Progress *progress, char out[65], Error *err) {
    Sha256 *h = sha256_start();
    char *buffer = mem_alloc(READ_BYTES);
    ssize_t n;
    while ((n = read(fd, buffer, READ_BYTES)) != 0) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        sha256_add(h, buffer, (size_t)n);
        progress_add(progress, (double)n / 1e6);
    }
    ErrorCode code = n < 0 ? error_errno(err, ERR_IO, "%s: reading failed", path) : OK;
    uint8_t digest[32];
    sha256_finish(h, digest);
    sha256_hex(digest, out);
    free(buffer);
    return code;
}

/* O_NONBLOCK: opening a FIFO would wait for a writer. FIFOs were refused before, by their stamp; this is for
 * one that has taken the file's place since. */
static ErrorCode hash_content(const char *path, Progress *progress, char out[65], Error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return file_refuse(path, err);
    ErrorCode code = hash_descriptor(fd, path, progress, out, err);
    close(fd);
    return code;
}

static ErrorCode hash_file(const char *path, Fingerprint *print, Progress *progress, Error *err) {
    TRY(hash_content(path, progress, print->sha256, err));
    return fingerprint_check(path, print, err);
}

/* Tokenization also calls this after the last byte: otherwise text that changed meanwhile would stay in the
 * cache for good. */
ErrorCode fingerprint_check(const char *path, Fingerprint *print, Error *err) {
    FileStamp now = {0};
    char sha256[65] = "";
    TRY(stamp_of(path, &now, err));
    if (same_stamp(&now, &print->stamp)) return OK;
    if (nearly_same_stamp(&now, &print->stamp)) TRY(hash_content(path, NULL, sha256, err));
    if (strcmp(sha256, print->sha256) == 0) {
        print->stamp = now;
        return OK;
    }
    return error_set(err, ERR_DATA, "%s: changed while it was being read; run again once it is complete",
                     path);
}

ErrorCode fingerprint_file(const char *path, Fingerprint *print, Error *err) {
    TRY(stamp_of(path, &print->stamp, err));
    return hash_file(path, print, NULL, err);
}

/* Records are added as soon as a file is hashed, so an interrupted start does not lose them. */
static ErrorCode fill_missing(FingerprintRecords *records, const char *const *paths, size_t count,
                              Fingerprint *out, Progress *progress, Error *err) {
    for (size_t i = 0; i < count; i++) {
        if (out[i].sha256[0]) continue;
        TRY(hash_file(paths[i], &out[i], progress, err));
        if (at_rest(&out[i].stamp)) records_add(records, paths[i], &out[i]);
    }
    return OK;
}

/* Takes the stamps of all files before any is read, so that the progress bar knows the total. */
static ErrorCode print_files(FingerprintRecords *records, const char *const *paths, size_t count,
                             Fingerprint *out, Error *err) {
    double unknown = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = (Fingerprint){0};
        TRY(stamp_of(paths[i], &out[i].stamp, err));
        if (!records_recall(records, paths[i], &out[i])) unknown += (double)out[i].stamp.size;
    }
    Progress *progress = unknown > QUIET_BYTES ? progress_start("reading", unknown / 1e6, "MB") : NULL;
    ErrorCode code = fill_missing(records, paths, count, out, progress, err);
    progress_finish(progress);
    return code;
}

/* Files that were hashed before a failure are recorded too. */
ErrorCode fingerprint_files(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                            Error *err) {
    TRY(file_make_dirs(cache_dir, err));
    FingerprintRecords *records = records_open(cache_dir);
    ErrorCode code = print_files(records, paths, count, out, err);
    records_close(records);
    return code;
}
