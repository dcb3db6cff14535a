/* SHA-256 of source files, remembered in the cache directory by size, time of change, inode and device, so
 * that a corpus is read once and not at each start.
 *
 *  F1. A record is a memory, not a truth: one that is missing, malformed or of another state of the file
 *      only costs reading the file again.
 *  F2. A file that changed less than REST_SECONDS ago is hashed but not remembered: a second write within
 *      the clock's resolution would leave the stamp as it is.
 *  F3. The stamp is taken before the content and compared after it: a file that changes while it is read
 *      is an error.
 *
 * A record, fingerprints/HASH64-OF-PATH.json:
 *
 *   {"path": "...", "stamp": "SIZE SECONDS.NANOSECONDS INODE DEVICE", "sha256": "64 hex digits"} */
#include "data/fingerprint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"

/* Two seconds are the coarsest clock of a file system in use (FAT). Below QUIET_BYTES a bar would be gone
 * before it is read. */
enum { READ_BYTES = 1 << 20, RECORD_BYTES = 4096, QUIET_BYTES = 256 << 20, REST_SECONDS = 2 };

static ErrorCode stamp_of(const char *path, FileStamp *out, Error *err) {
    struct stat st;
    if (stat(path, &st) != 0) return error_errno(err, ERR_NOINPUT, "%s: cannot open", path);
    if (!S_ISREG(st.st_mode))
        return error_set(err, ERR_NOINPUT, "%s: not a regular file; data sources are files", path);
    *out = (FileStamp){(int64_t)st.st_size, (int64_t)st.st_mtim.tv_sec, (int64_t)st.st_mtim.tv_nsec,
                       (int64_t)st.st_ino, (int64_t)st.st_dev};
    return OK;
}

/* Inode and device are there for files that are replaced by others of the same size with the time put
 * back, as archives do. */
static bool same_stamp(const FileStamp *a, const FileStamp *b) {
    return a->size == b->size && a->mtime_seconds == b->mtime_seconds &&
           a->mtime_nanoseconds == b->mtime_nanoseconds && a->inode == b->inode && a->device == b->device;
}

/* Named by a hash of the full path: names of files may be longer than names in a directory can be. */
static char *record_path(const char *cache_dir, const char *path) {
    char *full = realpath(path, NULL);
    const char *name = full ? full : path;
    char file[64];
    snprintf(file, sizeof file, "fingerprints/%016llx.json", (unsigned long long)hash64(name, strlen(name)));
    free(full);
    return path_join(cache_dir, file);
}

/* The stamp as one string: JSON numbers do not hold 64 bits. */
static void stamp_text(const FileStamp *s, char out[128]) {
    snprintf(out, 128, "%lld %lld.%09lld %lld %lld", (long long)s->size, (long long)s->mtime_seconds,
             (long long)s->mtime_nanoseconds, (long long)s->inode, (long long)s->device);
}

/* Through file_read_own: a link there would make weft read, and believe, what someone else put. */
static bool read_record(const char *record, cJSON **root) {
    char *text;
    size_t length;
    if (file_read_own(record, RECORD_BYTES, &text, &length, NULL) != OK) return false;
    bool good = json_parse(record, text, length, root, NULL) == OK;
    free(text);
    return good;
}

/* True when a record of this very file in this very state is there. A record that cannot be read counts as
 * none. */
static bool recall(const char *cache_dir, const char *path, Fingerprint *print) {
    char *record = record_path(cache_dir, path);
    cJSON *root = NULL;
    Error ignored;
    bool found = false;
    if (read_record(record, &root)) {
        const char *stamp = NULL, *sha = NULL;
        char now[128];
        stamp_text(&print->stamp, now);
        json_get_string(root, record, "stamp", true, &stamp, &ignored);
        json_get_string(root, record, "sha256", true, &sha, &ignored);
        found = stamp && sha && strcmp(stamp, now) == 0 && strlen(sha) == 64 &&
                strspn(sha, "0123456789abcdef") == 64;
        if (found) memcpy(print->sha256, sha, 65);
    }
    cJSON_Delete(root);
    free(record);
    return found;
}

/* Failing to write a record is an error although a record is only a memory: it means the cache directory
 * is not writable, which the tokens will need in a moment. */
static ErrorCode remember(const char *cache_dir, const char *path, const Fingerprint *print, Error *err) {
    if (clock_wall() < (double)print->stamp.mtime_seconds + REST_SECONDS) return OK;
    char stamp[128];
    stamp_text(&print->stamp, stamp);
    Text text = {0};
    JsonWriter w;
    json_start(&w, &text, 0);
    json_begin_object(&w);
    json_put_string(&w, "path", path);
    json_put_string(&w, "stamp", stamp);
    json_put_string(&w, "sha256", print->sha256);
    json_end_object(&w);
    char *record = record_path(cache_dir, path);
    ErrorCode code = file_write_atomic(record, text.data, text.length, err);
    free(record);
    text_free(&text);
    return code;
}

/* Returns with the file's position at the end; progress counts megabytes. */
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

/* O_NONBLOCK: opening a FIFO would wait for a writer. Its stamp was refused before; this is for one that
 * took the file's place. */
static ErrorCode hash_file(const char *path, Fingerprint *print, Progress *progress, Error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_errno(err, ERR_NOINPUT, "%s: cannot open", path);
    ErrorCode code = hash_descriptor(fd, path, progress, print->sha256, err);
    close(fd);
    TRY(code);
    return fingerprint_check(path, print, err);
}

/* Also asked by who tokenizes, after the last byte: text that changed under it would be in the cache for
 * good. */
ErrorCode fingerprint_check(const char *path, const Fingerprint *print, Error *err) {
    FileStamp now = {0};
    TRY(stamp_of(path, &now, err));
    if (same_stamp(&now, &print->stamp)) return OK;
    return error_set(err, ERR_DATA, "%s: changed while it was being read; run again once it is complete",
                     path);
}

/* A record is written as soon as its file is hashed: an interrupted start has not read in vain. */
static ErrorCode fill_missing(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                              Progress *progress, Error *err) {
    for (size_t i = 0; i < count; i++) {
        if (out[i].sha256[0]) continue;
        TRY(hash_file(paths[i], &out[i], progress, err));
        TRY(remember(cache_dir, paths[i], &out[i], err));
    }
    return OK;
}

/* The directory of records. Many processes write there at once, and share its lock; who finds himself alone
 * removes what those that were killed have left. A file system that does not lock directories keeps it. */
static ErrorCode open_records(const char *cache_dir, int *lock, Error *err) {
    static const char *const written_whole[] = {"*.json"};
    char *dir = path_join(cache_dir, "fingerprints");
    ErrorCode code = file_make_dirs(cache_dir, err);
    if (code == OK) code = file_make_own_dir(dir, err);
    if (code == OK) {
        RETRY(*lock, open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
        if (*lock < 0) code = error_errno(err, ERR_NOINPUT, "%s: cannot open the directory", dir);
    }
    if (code == OK && flock(*lock, LOCK_EX | LOCK_NB) == 0)
        file_remove_temporaries(dir, written_whole, 1, NULL);
    if (code == OK) flock(*lock, LOCK_SH);
    free(dir);
    return code;
}

/* Stamps of all files are taken before any is read, so that the bar knows how much there is to do. */
static ErrorCode print_files(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                             Error *err) {
    double unknown = 0;
    for (size_t i = 0; i < count; i++) {
        out[i] = (Fingerprint){0};
        TRY(stamp_of(paths[i], &out[i].stamp, err));
        if (!recall(cache_dir, paths[i], &out[i])) unknown += (double)out[i].stamp.size;
    }
    Progress *progress = unknown > QUIET_BYTES ? progress_start("reading", unknown / 1e6, "MB") : NULL;
    ErrorCode code = fill_missing(cache_dir, paths, count, out, progress, err);
    progress_finish(progress);
    return code;
}

/* The shared lock of the directory is held until all records are written: that is what keeps others from
 * sweeping them away half written. */
ErrorCode fingerprint_files(const char *cache_dir, const char *const *paths, size_t count, Fingerprint *out,
                            Error *err) {
    int lock;
    TRY(open_records(cache_dir, &lock, err));
    ErrorCode code = print_files(cache_dir, paths, count, out, err);
    close(lock);
    return code;
}
