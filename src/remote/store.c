#include "remote/store.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"

#define ABOUT_FILE ".about.json"
#define ABOUT_LIMIT ((size_t)1 << 16)
#define GIB 1073741824.0

struct RemoteStore {
    char *dir; /* CACHE_DIR/remote */
    uint64_t limit;
    int fd; /* of the lockable bytes; -1: the file system supports no locks, a warning was logged */
    char **held;
    size_t count, capacity;
    atomic_bool said; /* that this process waits */
};

ErrorCode store_open(RemoteStore **store, const char *cache_dir, uint64_t limit, Error *err) {
    RemoteStore *s = mem_alloc(sizeof *s);
    s->dir = path_join(cache_dir, "remote");
    s->limit = limit;
    s->fd = -1;
    char *locks = path_join(s->dir, "in-use");
    ErrorCode code = file_make_dirs(s->dir, err);
    /* In a directory of somebody else, copies can be used, though none be fetched. */
    if (code == OK && file_open_own(locks, O_RDWR | O_CREAT, &s->fd, NULL) != OK)
        code = file_open_own(locks, O_RDONLY, &s->fd, err);
    free(locks);
    if (code != OK) {
        store_close(s);
        s = NULL;
    }
    *store = s;
    return code;
}

void store_close(RemoteStore *s) {
    if (!s) return;
    if (s->fd >= 0) close(s->fd);
    for (size_t i = 0; i < s->count; i++) free(s->held[i]);
    free(s->held);
    free(s->dir);
    free(s);
}

uint64_t store_limit(const RemoteStore *s) { return s->limit; }

void store_name(const char *identity, char out[33]) {
    char hex[65];
    sha256_of(identity, strlen(identity), hex);
    memcpy(out, hex, 32);
    out[32] = '\0';
}

/* It begins with no dot, so it is no name of the store. */
void store_copy_name(const char *name, Text *out) {
    enum { MOST = 128 };
    size_t length = strlen(name), from = 0;
    for (size_t i = 0; i < length; i++)
        if (name[i] == '/') from = i + 1;
    if (length - from > MOST) from = length - MOST;
    if (name[from] == '.' || !name[from]) text_puts(out, "_");
    for (size_t i = from; i < length; i++) {
        bool plain = (name[i] >= 'a' && name[i] <= 'z') || (name[i] >= 'A' && name[i] <= 'Z') ||
                     (name[i] >= '0' && name[i] <= '9') || strchr("._-", name[i]);
        text_add(out, plain ? &name[i] : "_", 1);
    }
}

char *store_path(const RemoteStore *s, const char *entry, const char *name) {
    Text path = {0};
    text_printf(&path, "%s/%s", s->dir, entry);
    if (name) text_printf(&path, "/%s", name);
    return path.data;
}

/* ---- locks ---- */

/* Each entry has one byte for its use, and one for fetching it. They belong to the open file (F_OFD_SETLK):
 * they end with the process however it ends, and NFS passes them to other hosts. */
typedef enum LockedByte { BYTE_USE, BYTE_FETCH } LockedByte;

static int lock_byte(const RemoteStore *s, const char *entry, LockedByte byte, int type) {
    char digits[16] = {0};
    memcpy(digits, entry, strnlen(entry, 15));
    struct flock lock = {.l_type = (short)type, .l_whence = SEEK_SET, .l_len = 1};
    lock.l_start = (off_t)(2 * strtoull(digits, NULL, 16) + (byte == BYTE_FETCH));
    int result;
    RETRY(result, fcntl(s->fd, F_OFD_SETLK, &lock));
    return result;
}

static bool is_taken(void) { return errno == EAGAIN || errno == EACCES; }

static void warn(RemoteStore *s) {
    log_warn("%s: cannot be locked (%s): several processes may fetch a file at once, and remove it in use",
             s->dir, strerror(errno));
    close(s->fd);
    s->fd = -1;
}

/* Polls, so that the watchdog sees that this rank waits for work of another. */
static bool lock(RemoteStore *s, const char *entry, LockedByte byte, int type, const char *url,
                 const atomic_bool *stop) {
    while (s->fd >= 0 && lock_byte(s, entry, byte, type) != 0) {
        if (!is_taken()) {
            warn(s);
            return true;
        }
        if (stop && atomic_load(stop)) return false;
        if (url && !atomic_exchange(&s->said, true))
            log_info("%s: waiting for another process that fetches it", url);
        progress_beat();
        nanosleep(&(struct timespec){0, 100 * 1000 * 1000}, NULL);
    }
    return true;
}

static bool holds(const RemoteStore *s, const char *entry) {
    for (size_t i = s->count; i-- > 0;)
        if (strcmp(s->held[i], entry) == 0) return true;
    return false;
}

/* The time of its about file is the time of an entry's last use. */
static void touch(const RemoteStore *s, const char *entry) {
    char *path = store_path(s, entry, ABOUT_FILE);
    utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
    free(path);
}

ErrorCode store_hold(RemoteStore *s, const char *entry, Error *err) {
    char *dir = store_path(s, entry, NULL);
    ErrorCode code = file_make_own_dir(dir, err);
    free(dir);
    TRY(code);
    lock(s, entry, BYTE_USE, F_RDLCK, NULL, NULL);
    touch(s, entry);
    if (s->count == s->capacity) {
        s->capacity = 2 * s->capacity + 16;
        s->held = mem_grow(s->held, s->capacity * sizeof *s->held);
    }
    s->held[s->count++] = mem_strdup(entry);
    return OK;
}

void store_release(RemoteStore *s, const char *entry) {
    for (size_t i = s->count; i-- > 0;) {
        if (strcmp(s->held[i], entry) != 0) continue;
        free(s->held[i]);
        s->held[i] = s->held[--s->count];
        break;
    }
    if (s->fd >= 0 && !holds(s, entry)) lock_byte(s, entry, BYTE_USE, F_UNLCK);
}

bool store_enter(RemoteStore *s, const char *entry, const char *url, const atomic_bool *stop) {
    return lock(s, entry, BYTE_FETCH, F_WRLCK, url, stop);
}

void store_leave(RemoteStore *s, const char *entry) {
    if (s->fd >= 0) lock_byte(s, entry, BYTE_FETCH, F_UNLCK);
}

/* ---- what an entry is of ---- */

static bool read_about(const cJSON *root, StoredAbout *about) {
    static const char *const names[] = {"url", "etag", "modified", "sha256", "size", "boot"};
    const char *member[6];
    for (int i = 0; i < 6; i++)
        if (json_get_string(root, ABOUT_FILE, names[i], true, &member[i], NULL) != OK) return false;
    size_t digits = strlen(member[3]);
    if ((digits != 0 && digits != 64) || strspn(member[3], "0123456789abcdef") != digits) return false;
    *about = (StoredAbout){mem_strdup(member[0]),
                           mem_strdup(member[1]),
                           mem_strdup(member[2]),
                           strtoull(member[4], NULL, 10),
                           "",
                           mem_strdup(member[5])};
    memcpy(about->sha256, member[3], digits + 1);
    return true;
}

bool store_about(const RemoteStore *s, const char *entry, StoredAbout *about) {
    char *path = store_path(s, entry, ABOUT_FILE), *text = NULL;
    size_t length;
    cJSON *root = NULL;
    *about = (StoredAbout){0};
    bool good = file_read_own(path, ABOUT_LIMIT, &text, &length, NULL) == OK &&
                json_parse(path, text, length, &root, NULL) == OK && read_about(root, about);
    cJSON_Delete(root);
    free(text);
    free(path);
    return good;
}

/* The size as a text: JSON numbers do not hold 64 bits. */
ErrorCode store_set_about(const RemoteStore *s, const char *entry, const StoredAbout *about, Error *err) {
    char *path = store_path(s, entry, ABOUT_FILE), size[24];
    Text text = {0};
    JsonWriter w;
    snprintf(size, sizeof size, "%" PRIu64, about->size);
    json_start(&w, &text, 2);
    json_begin_object(&w);
    json_put_string(&w, "url", about->url);
    json_put_string(&w, "etag", about->etag);
    json_put_string(&w, "modified", about->modified);
    json_put_string(&w, "size", size);
    json_put_string(&w, "sha256", about->sha256);
    json_put_string(&w, "boot", about->boot);
    json_end_object(&w);
    text_puts(&text, "\n");
    ErrorCode code = file_write_atomic(path, text.data, text.length, err);
    text_free(&text);
    free(path);
    return code;
}

void store_about_free(StoredAbout *about) {
    free(about->url);
    free(about->etag);
    free(about->modified);
    free(about->boot);
    *about = (StoredAbout){0};
}

static char boot[64];
static pthread_once_t boot_once = PTHREAD_ONCE_INIT;

static void read_boot(void) {
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file && !fgets(boot, sizeof boot, file)) boot[0] = '\0';
    if (file) fclose(file);
    boot[strcspn(boot, "\n")] = '\0';
}

char *store_boot(void) {
    pthread_once(&boot_once, read_boot);
    return boot;
}

/* ---- space ---- */

static bool is_entry(const char *name) { return hex_is(name, 32); }

bool store_is_about(const char *name) { return strncmp(name, ABOUT_FILE, strlen(ABOUT_FILE)) == 0; }

typedef struct RegularFiles {
    FileEntry *each;
    void *ctx;
} RegularFiles;

static void pass_regular(void *ctx, int dir, const char *name, const struct stat *st) {
    const RegularFiles *r = ctx;
    if (S_ISREG(st->st_mode)) r->each(r->ctx, dir, name, st);
}

void store_walk(const RemoteStore *s, const char *entry, FileEntry *each, void *ctx) {
    char *path = store_path(s, entry, NULL);
    file_walk(AT_FDCWD, path, pass_regular, &(RegularFiles){each, ctx});
    free(path);
}

static void measure(void *ctx, int dir, const char *name, const struct stat *st) {
    StoredCopy *copy = ctx;
    (void)dir;
    if (store_is_about(name))
        copy->used = st->st_mtim;
    else
        copy->bytes += (uint64_t)st->st_size;
}

static void add_copy(const RemoteStore *s, StoredCopies *all, const char *name) {
    StoredCopy copy = {0};
    memcpy(copy.entry, name, sizeof copy.entry);
    store_walk(s, name, measure, &copy);
    if (copy.bytes == 0) return;
    if (all->count == all->capacity) {
        all->capacity = 2 * all->capacity + 64;
        all->items = mem_grow(all->items, all->capacity * sizeof *all->items);
    }
    all->items[all->count++] = copy;
    all->bytes += copy.bytes;
}

static int by_use(const void *a, const void *b) {
    const StoredCopy *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec) return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return (x->used.tv_nsec > y->used.tv_nsec) - (x->used.tv_nsec < y->used.tv_nsec);
}

ErrorCode store_list(const RemoteStore *s, StoredCopies *all, Error *err) {
    *all = (StoredCopies){0};
    DIR *dir = opendir(s->dir);
    if (!dir) return error_errno(err, ERR_IO, "%s: cannot be read", s->dir);
    for (struct dirent *entry; (entry = readdir(dir));)
        if (is_entry(entry->d_name)) add_copy(s, all, entry->d_name);
    closedir(dir);
    if (all->count) qsort(all->items, all->count, sizeof *all->items, by_use);
    return OK;
}

static void remove_copy(void *ctx, int dir, const char *name, const struct stat *st) {
    int *failed = ctx;
    (void)st;
    if (!store_is_about(name) && unlinkat(dir, name, 0) != 0 && errno != ENOENT && !*failed) *failed = errno;
}

ErrorCode store_clear(const RemoteStore *s, const char *entry, Error *err) {
    int failed = 0;
    store_walk(s, entry, remove_copy, &failed);
    errno = failed;
    return failed ? error_errno(err, ERR_IO, "%s/%s: cannot be removed", s->dir, entry) : OK;
}

ErrorCode store_claim(RemoteStore *s, const char *entry, bool *claimed, Error *err) {
    *claimed = s->fd >= 0 && lock_byte(s, entry, BYTE_USE, F_WRLCK) == 0;
    if (*claimed || (s->fd >= 0 && is_taken())) return OK;
    if (s->fd < 0) errno = ENOLCK;
    return error_errno(err, ERR_IO, "%s: cannot be locked, so nothing is removed", s->dir);
}

void store_disclaim(RemoteStore *s, const char *entry) { lock_byte(s, entry, BYTE_USE, F_UNLCK); }

/* Of an entry that nobody holds. This process would get the lock of what it holds itself. */
static ErrorCode evict(RemoteStore *s, const StoredCopy *copy, uint64_t *bytes, Error *err) {
    bool claimed;
    if (holds(s, copy->entry) || store_claim(s, copy->entry, &claimed, NULL) != OK || !claimed) return OK;
    ErrorCode code = store_clear(s, copy->entry, err);
    store_disclaim(s, copy->entry);
    if (code == OK) *bytes -= copy->bytes;
    return code;
}

static ErrorCode check_limit(RemoteStore *s, uint64_t bytes, Error *err) {
    StoredCopies all;
    TRY(store_list(s, &all, err));
    ErrorCode code = OK;
    uint64_t kept = all.bytes;
    for (size_t i = 0; code == OK && i < all.count && kept + bytes > s->limit; i++)
        code = evict(s, &all.items[i], &kept, err);
    free(all.items);
    if (code != OK || kept + bytes <= s->limit) return code;
    return error_set(err, ERR_CONFIG,
                     "%s: data.remote_cache_gib is %.4g GiB, but files in use take %.4g GiB and those to be "
                     "fetched %.4g GiB: make it larger",
                     s->dir, (double)s->limit / GIB, (double)kept / GIB, (double)bytes / GIB);
}

ErrorCode store_make_room(RemoteStore *s, uint64_t bytes, Error *err) {
    struct statvfs fs;
    if (s->limit > 0) TRY(check_limit(s, bytes, err));
    if (statvfs(s->dir, &fs) != 0 || (double)fs.f_bavail * (double)fs.f_frsize >= (double)bytes) return OK;
    return error_set(
        err, ERR_IO,
        "%s: what is to be fetched takes %.4g GiB, but the disk has only %.4g GiB free: free space, or "
        "name another data.cache_dir",
        s->dir, (double)bytes / GIB, (double)fs.f_bavail * (double)fs.f_frsize / GIB);
}
