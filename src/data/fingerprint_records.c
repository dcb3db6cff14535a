/* One file for all records: a file per record would cost two syncs each, minutes for a corpus of many small
 * files.
 *
 *  R1. Lines are appended, several with one write, and never changed. A torn line is not JSON and is skipped.
 *  R2. Nothing is synced: a power failure loses at most some records, and hashing restores them.
 *  R3. A path may have several records: hosts that share the directory see files of other states under one
 *      path. With more than PER_PATH records per path on average, only the newest of each path stays. A file
 *      above LIMIT_BYTES is not read, and starts again empty.
 *  R4. The hash table only finds a candidate; path and stamp are compared in full. */
#include "data/fingerprint_records.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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
#include "base/lines.h"
#include "base/log.h"
#include "base/text.h"

#define RECORDS_FILE "fingerprints.jsonl"
enum { LIMIT_BYTES = 1 << 30, BATCH_BYTES = 1 << 16, PER_PATH = 4, FEW = 1000 };
#define BATCH_SECONDS 1.0

/* A line of the file as it was read. */
typedef struct Record {
    uint64_t path, state; /* hashes of the path, and of path and stamp */
    size_t at, length;
} Record;

struct FingerprintRecords {
    char *cache_dir, *file;
    char *text; /* contents of the file as it was read */
    Record *records;
    size_t count, capacity;
    Text batch; /* lines not written yet */
    double written;
    bool broken; /* cannot be written; a warning was logged */
};

/* The stamp as one string: JSON numbers do not hold 64 bits. */
static void stamp_text(const FileStamp *s, char out[128]) {
    snprintf(out, 128, "%" PRId64 " %" PRId64 ".%09" PRId64 " %" PRId64 ".%09" PRId64 " %" PRId64, s->size,
             s->mtime_seconds, s->mtime_nanoseconds, s->ctime_seconds, s->ctime_nanoseconds, s->inode);
}

static uint64_t hash_state(const char *path, const char *stamp) {
    Text both = {0};
    text_printf(&both, "%s\n%s", path, stamp);
    uint64_t hash = hash64(both.data, both.length);
    text_free(&both);
    return hash;
}

/* The members of a line, valid as long as *root; false if it is not a record. */
static bool parse(const char *line, size_t length, cJSON **root, const char *member[3]) {
    static const char *const names[] = {"path", "stamp", "sha256"};
    *root = NULL;
    Error ignored;
    bool good = json_parse(RECORDS_FILE, line, length, root, &ignored) == OK;
    for (int i = 0; i < 3 && good; i++)
        good = json_get_string(*root, RECORDS_FILE, names[i], true, &member[i], &ignored) == OK;
    return good && hex_is(member[2], 64);
}

static void load_line(FingerprintRecords *r, size_t at, size_t length) {
    cJSON *root;
    const char *member[3];
    if (parse(r->text + at, length, &root, member)) {
        if (r->count == r->capacity) {
            r->capacity = 2 * r->capacity + 256;
            r->records = mem_grow(r->records, r->capacity * sizeof *r->records);
        }
        r->records[r->count++] =
            (Record){hash64(member[0], strlen(member[0])), hash_state(member[0], member[1]), at, length};
    }
    cJSON_Delete(root);
}

static int by_state(const void *a, const void *b) {
    uint64_t x = ((const Record *)a)->state, y = ((const Record *)b)->state;
    return (x > y) - (x < y);
}

/* The newest of a path comes first. */
static int by_path(const void *a, const void *b) {
    const Record *x = a, *y = b;
    if (x->path != y->path) return x->path > y->path ? 1 : -1;
    return (x->at < y->at) - (x->at > y->at);
}

/* Moves the newest record of each path to the front; returns their number. */
static size_t newest(FingerprintRecords *r) {
    size_t kept = 0;
    qsort(r->records, r->count, sizeof *r->records, by_path);
    for (size_t i = 0; i < r->count; i++)
        if (kept == 0 || r->records[i].path != r->records[kept - 1].path) {
            Record swapped = r->records[kept];
            r->records[kept++] = r->records[i];
            r->records[i] = swapped;
        }
    return kept;
}

static void rewrite(const FingerprintRecords *r, size_t kept) {
    static const char *const written_whole[] = {RECORDS_FILE};
    Text text = {0};
    for (size_t i = 0; i < kept; i++) {
        text_add(&text, r->text + r->records[i].at, r->records[i].length);
        text_puts(&text, "\n");
    }
    file_remove_temporaries(r->cache_dir, written_whole, 1, NULL);
    file_write_atomic(r->file, text.data, text.length, NULL);
    text_free(&text);
}

/* Keeps the first `kept` records. Only with the directory's lock, so that temporary files of other processes
 * are not removed. Records that others append meanwhile are lost, which costs hashing those files again. */
static void rewrite_alone(const FingerprintRecords *r, size_t kept) {
    int lock;
    RETRY(lock, open(r->cache_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (lock < 0) return;
    if (flock(lock, LOCK_EX | LOCK_NB) == 0) rewrite(r, kept);
    close(lock);
}

static void compact(FingerprintRecords *r) {
    if (r->count <= FEW) return;
    size_t kept = newest(r);
    if (r->count > PER_PATH * kept + FEW) rewrite_alone(r, kept);
}

static bool too_large(const char *file) {
    struct stat st;
    return lstat(file, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > LIMIT_BYTES;
}

static void load(FingerprintRecords *r) {
    size_t length = 0;
    if (too_large(r->file)) rewrite_alone(r, 0);
    if (file_read_own(r->file, LIMIT_BYTES, &r->text, &length, NULL) != OK) r->text = NULL;
    Lines lines = lines_of(r->text, r->text ? length : 0);
    for (Line line; lines_next(&lines, &line);) load_line(r, (size_t)(line.text - r->text), line.length);
    compact(r);
    if (r->count) qsort(r->records, r->count, sizeof *r->records, by_state);
}

FingerprintRecords *records_open(const char *cache_dir) {
    FingerprintRecords *r = mem_alloc(sizeof *r);
    r->cache_dir = mem_strdup(cache_dir);
    r->file = path_join(cache_dir, RECORDS_FILE);
    r->written = clock_seconds();
    load(r);
    return r;
}

/* R4 */
static bool matches(const FingerprintRecords *r, const Record *record, const char *path, const char *stamp,
                    Fingerprint *print) {
    cJSON *root;
    const char *member[3];
    bool same = parse(r->text + record->at, record->length, &root, member) && strcmp(member[0], path) == 0 &&
                strcmp(member[1], stamp) == 0;
    if (same) memcpy(print->sha256, member[2], 65);
    cJSON_Delete(root);
    return same;
}

/* Full path, since runs in several directories share a cache. The caller frees it. */
static char *full_path(const char *path) {
    char *full = realpath(path, NULL);
    return full ? full : mem_strdup(path);
}

bool records_recall(const FingerprintRecords *r, const char *path, Fingerprint *print) {
    char stamp[128], *full = full_path(path);
    stamp_text(&print->stamp, stamp);
    Record wanted = {.state = hash_state(full, stamp)};
    const Record *found = r->count ? bsearch(&wanted, r->records, r->count, sizeof wanted, by_state) : NULL;
    bool known = found && matches(r, found, full, stamp, print);
    free(full);
    return known;
}

/* Logs a failure only once. */
static void flush(FingerprintRecords *r) {
    Error err = {0};
    int fd = -1;
    if (r->batch.length == 0) return;
    ErrorCode code = r->broken ? OK : file_open_lines(r->file, &fd, &err);
    if (fd >= 0) {
        code = file_add_line(fd, r->file, r->batch.data, r->batch.length, &err);
        close(fd);
    }
    if (code != OK)
        log_warn("%s; files will be hashed again at the next start, since what was hashed is not remembered",
                 err.message);
    r->broken |= code != OK;
    r->written = clock_seconds();
    text_clear(&r->batch);
}

void records_add(FingerprintRecords *r, const char *path, const Fingerprint *print) {
    char stamp[128], *full = full_path(path);
    stamp_text(&print->stamp, stamp);
    JsonWriter w;
    json_start(&w, &r->batch, 0);
    json_begin_object(&w);
    json_put_string(&w, "path", full);
    json_put_string(&w, "stamp", stamp);
    json_put_string(&w, "sha256", print->sha256);
    json_end_object(&w);
    text_puts(&r->batch, "\n");
    free(full);
    if (r->batch.length >= BATCH_BYTES || clock_seconds() - r->written > BATCH_SECONDS) flush(r);
}

void records_close(FingerprintRecords *r) {
    flush(r);
    free(r->cache_dir);
    free(r->file);
    free(r->text);
    free(r->records);
    text_free(&r->batch);
    free(r);
}
