/* A disk that loses power, in the strictest reading of a system's guarantees:
 *
 *   bytes and length of a file    are on disk after a sync of that file; before, each write may or may not be
 *   a name in a directory         is on disk after a sync of that directory; before, each change of a name
 *                                 may or may not be: a rename is two of them, independent of each other
 *
 * The calls of saving are recorded while it actually runs; a cut at any call of the record then makes a
 * directory that such a disk might hold, drawn from a seed. No order is guaranteed among unsynced changes. */
#ifndef WEFT_TESTS_POWER_MODEL_H
#define WEFT_TESTS_POWER_MODEL_H

#include "support/files.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>

#include "checkpoint/fileops.h"

/* ---- the record ---- */

typedef enum CallKind {
    CREATE,
    OPEN,
    WRITE,
    RESIZE,
    SYNC,
    CLOSE,
    MKDIR,
    SYNC_DIR,
    RENAME,
    EXCHANGE,
    SYMLINK,
    UNLINK
} CallKind;

typedef struct Call {
    CallKind kind;
    char a[96], b[96]; /* paths below the root; for SYMLINK b is the target */
    int fd;
    uint64_t offset, length;
    char *data;
} Call;

typedef struct Recorder {
    char root[PATH_MAX];
    bool no_exchange;
    Call *calls;
    int count;
} Recorder;

static const FileOps *const real_calls = &file_ops_system;

static const char *below_root(const Recorder *r, const char *path) {
    size_t length = strlen(r->root);
    assert_memory_equal(path, r->root, length);
    return path[length] == '/' ? path + length + 1 : path + length;
}

static Call *record(Recorder *r, CallKind kind, const char *a, const char *b) {
    if ((r->count & (r->count - 1)) == 0)
        r->calls = mem_grow(r->calls, (size_t)(r->count ? 2 * r->count : 1) * sizeof *r->calls);
    Call *c = &r->calls[r->count++];
    *c = (Call){.kind = kind};
    snprintf(c->a, sizeof c->a, "%s", a ? below_root(r, a) : "");
    snprintf(c->b, sizeof c->b, "%s", b ? b : "");
    return c;
}

static int record_create(void *ctx, const char *path) {
    int fd = real_calls->create(NULL, path);
    if (fd >= 0) record(ctx, CREATE, path, NULL)->fd = fd;
    return fd;
}
static int record_open(void *ctx, const char *path) {
    int fd = real_calls->open(NULL, path);
    if (fd >= 0) record(ctx, OPEN, path, NULL)->fd = fd;
    return fd;
}
static ssize_t record_write(void *ctx, int fd, const void *data, size_t length, uint64_t offset) {
    Call *c = record(ctx, WRITE, NULL, NULL);
    *c = (Call){.kind = WRITE, .fd = fd, .offset = offset, .length = length, .data = mem_alloc(length)};
    memcpy(c->data, data, length);
    ssize_t written = real_calls->write(NULL, fd, data, length, offset);
    assert_int_equal(written, length);
    return written;
}
/* A hint; the model writes any of the bytes at any time as it is. */
static int record_write_behind(void *ctx, int fd, uint64_t offset, uint64_t length) {
    (void)ctx, (void)fd, (void)offset, (void)length;
    return 0;
}
static int record_resize(void *ctx, int fd, uint64_t length) {
    Call *c = record(ctx, RESIZE, NULL, NULL);
    c->fd = fd;
    c->length = length;
    return real_calls->resize(NULL, fd, length);
}
/* The model decides what reaches the disk: nothing is actually synced. */
static int record_sync(void *ctx, int fd) {
    record(ctx, SYNC, NULL, NULL)->fd = fd;
    return 0;
}
static int record_close(void *ctx, int fd) {
    record(ctx, CLOSE, NULL, NULL)->fd = fd;
    return real_calls->close(NULL, fd);
}
static int record_mkdir(void *ctx, const char *path) {
    int result = real_calls->mkdir(NULL, path);
    if (result == 0) record(ctx, MKDIR, path, NULL);
    return result;
}
static int record_sync_dir(void *ctx, const char *path) {
    record(ctx, SYNC_DIR, path, NULL);
    return 0;
}
static int record_rename(void *ctx, const char *from, const char *to) {
    int result = real_calls->rename(NULL, from, to);
    if (result == 0) record(ctx, RENAME, from, below_root(ctx, to));
    return result;
}
static int record_exchange(void *ctx, const char *a, const char *b) {
    if (((Recorder *)ctx)->no_exchange) {
        errno = ENOSYS;
        return -1;
    }
    int result = real_calls->exchange(NULL, a, b);
    if (result == 0) record(ctx, EXCHANGE, a, below_root(ctx, b));
    return result;
}
static int record_symlink(void *ctx, const char *target, const char *path) {
    int result = real_calls->symlink(NULL, target, path);
    if (result == 0) record(ctx, SYMLINK, path, target);
    return result;
}
static int record_unlink(void *ctx, int dir, const char *name, int flags) {
    char where[PATH_MAX], transport[64], path[2 * PATH_MAX];
    if (dir == AT_FDCWD) {
        snprintf(path, sizeof path, "%s", name);
    } else {
        snprintf(transport, sizeof transport, "/proc/self/fd/%d", dir);
        ssize_t length = readlink(transport, where, sizeof where - 1);
        assert_true(length > 0);
        where[length] = 0;
        snprintf(path, sizeof path, "%s/%s", where, name);
    }
    int result = real_calls->unlink(NULL, dir, name, flags);
    if (result == 0) record(ctx, UNLINK, path, NULL);
    return result;
}

static FileOps recording_ops(Recorder *r) {
    return (FileOps){.ctx = r,
                     .create = record_create,
                     .open = record_open,
                     .write = record_write,
                     .write_behind = record_write_behind,
                     .resize = record_resize,
                     .sync = record_sync,
                     .close = record_close,
                     .mkdir = record_mkdir,
                     .sync_dir = record_sync_dir,
                     .rename = record_rename,
                     .exchange = record_exchange,
                     .symlink = record_symlink,
                     .unlink = record_unlink};
}

static void recorder_free(Recorder *r) {
    for (int i = 0; i < r->count; i++) free(r->calls[i].data);
    free(r->calls);
    *r = (Recorder){.count = 0};
}

/* ---- the disk ---- */

enum { MOST_NODES = 1024, MOST_NAMES = 32, MOST_CHANGES = 64, MOST_FDS = 256 };

typedef enum NodeKind { NODE_FILE, NODE_DIR, NODE_LINK } NodeKind;

typedef struct Name {
    char text[64];
    int node; /* of a change: -1 removes the name */
} Name;

/* For a file, `pending` are the unsynced calls, as indices of the record; for a directory, `changes` are
 * those of its names. */
typedef struct Node {
    NodeKind kind;
    char target[96];
    Text durable; /* a file's bytes */
    int pending[MOST_CHANGES];
    Name live[MOST_NAMES], synced[MOST_NAMES], changes[MOST_CHANGES];
    int live_count, synced_count, change_count, pending_count;
} Node;

typedef struct Disk {
    const Recorder *record;
    Node *nodes; /* [MOST_NODES]; 0 is the root */
    int count;
    int of_fd[MOST_FDS];
} Disk;

static int find_name(const Name *names, int count, const char *text) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i].text, text) == 0) return i;
    return -1;
}

static void set_name(Name *names, int *count, const char *text, int node) {
    int at = find_name(names, *count, text);
    if (at >= 0 && node < 0)
        names[at] = names[--*count];
    else if (at >= 0)
        names[at].node = node;
    else if (node >= 0) {
        assert_true(*count < MOST_NAMES);
        snprintf(names[*count].text, sizeof names->text, "%s", text);
        names[(*count)++].node = node;
    }
}

static int new_node(Disk *d, NodeKind kind) {
    assert_true(d->count < MOST_NODES);
    d->nodes[d->count] = (Node){.kind = kind};
    return d->count++;
}

/* The directory of a path and its last component. Paths may only end in "x/..". */
static int parent_of(const Disk *d, const char *path, char last[64]) {
    int at = 0, above = 0;
    char copy[96], *rest = copy, *part;
    snprintf(copy, sizeof copy, "%s", path);
    last[0] = 0;
    while ((part = strsep(&rest, "/")) != NULL) {
        if (last[0]) {
            int found = find_name(d->nodes[at].live, d->nodes[at].live_count, last);
            assert_true(found >= 0);
            above = at;
            at = d->nodes[at].live[found].node;
        }
        bool up = strcmp(part, "..") == 0;
        if (up) at = above;
        snprintf(last, 64, "%s", up ? "" : part);
    }
    return at;
}

static int node_at(const Disk *d, const char *path) {
    char last[64];
    int parent = parent_of(d, path, last);
    if (!last[0]) return parent;
    int found = find_name(d->nodes[parent].live, d->nodes[parent].live_count, last);
    assert_true(found >= 0);
    return d->nodes[parent].live[found].node;
}

/* Changes a name; node -1 removes it. */
static void change_name(Disk *d, const char *path, int node) {
    char last[64];
    Node *dir = &d->nodes[parent_of(d, path, last)];
    set_name(dir->live, &dir->live_count, last, node);
    assert_true(dir->change_count < MOST_CHANGES);
    Name *change = &dir->changes[dir->change_count++];
    memcpy(change->text, last, sizeof last);
    change->node = node;
}

static void apply_bytes(Text *bytes, const Call *c) {
    size_t end = c->kind == WRITE ? c->offset + c->length : c->length;
    while (bytes->length < end) text_add(bytes, "", 1);
    if (c->kind == RESIZE) bytes->length = end;
    if (c->kind == WRITE) memcpy(bytes->data + c->offset, c->data, c->length);
}

static void sync_file(Disk *d, Node *file) {
    for (int i = 0; i < file->pending_count; i++)
        apply_bytes(&file->durable, &d->record->calls[file->pending[i]]);
    file->pending_count = 0;
}

static void sync_names(Node *dir) {
    memcpy(dir->synced, dir->live, sizeof dir->live);
    dir->synced_count = dir->live_count;
    dir->change_count = 0;
}

static void play(Disk *d, int call) {
    const Call *c = &d->record->calls[call];
    Node *file = c->fd > 0 && c->fd < MOST_FDS ? &d->nodes[d->of_fd[c->fd]] : NULL;
    int a, b;
    switch (c->kind) {
    case CREATE: change_name(d, c->a, a = new_node(d, NODE_FILE)), d->of_fd[c->fd] = a; break;
    case OPEN: d->of_fd[c->fd] = node_at(d, c->a); break;
    case WRITE:
    case RESIZE:
        assert_true(file->pending_count < MOST_CHANGES);
        file->pending[file->pending_count++] = call;
        break;
    case SYNC: sync_file(d, file); break;
    case CLOSE: break;
    case MKDIR: change_name(d, c->a, new_node(d, NODE_DIR)); break;
    case SYNC_DIR: sync_names(&d->nodes[node_at(d, c->a)]); break;
    case RENAME:
        a = node_at(d, c->a);
        change_name(d, c->a, -1);
        change_name(d, c->b, a);
        break;
    case EXCHANGE:
        a = node_at(d, c->a), b = node_at(d, c->b);
        change_name(d, c->a, b);
        change_name(d, c->b, a);
        break;
    case SYMLINK:
        a = new_node(d, NODE_LINK);
        snprintf(d->nodes[a].target, sizeof d->nodes[a].target, "%s", c->b);
        change_name(d, c->a, a);
        break;
    case UNLINK: change_name(d, c->a, -1); break;
    }
}

/* ---- the cut ---- */

typedef struct Chance {
    uint64_t state;
    unsigned odds; /* of 16 that an unsynced change is on disk anyway */
} Chance;

/* Nearly all or nearly none of the changes survive as often as half of them. */
static Chance chance_of(uint64_t seed, int cut) {
    static const unsigned odds[] = {8, 1, 15};
    return (Chance){seed * 0x9e3779b97f4a7c15u + (uint64_t)cut + 1, odds[seed % 3]};
}

static bool survives(Chance *chance) {
    chance->state = chance->state * 6364136223846793005u + 1442695040888963407u;
    return (chance->state >> 60) < chance->odds;
}

static void write_node(const Disk *d, int node, const char *path, Chance *chance);

static void write_directory(const Disk *d, const Node *dir, const char *path, Chance *chance) {
    Name names[MOST_NAMES];
    int count = dir->synced_count;
    memcpy(names, dir->synced, sizeof names);
    for (int i = 0; i < dir->change_count; i++)
        if (survives(chance)) set_name(names, &count, dir->changes[i].text, dir->changes[i].node);
    assert_int_equal(mkdir(path, 0777), 0);
    for (int i = 0; i < count; i++) {
        char *below = path_join(path, names[i].text);
        write_node(d, names[i].node, below, chance);
        free(below);
    }
}

static void write_node(const Disk *d, int node, const char *path, Chance *chance) {
    const Node *n = &d->nodes[node];
    Text bytes = {0};
    switch (n->kind) {
    case NODE_DIR: write_directory(d, n, path, chance); return;
    case NODE_LINK: assert_int_equal(symlink(n->target, path), 0); return;
    case NODE_FILE: break;
    }
    text_add(&bytes, n->durable.data ? n->durable.data : "", n->durable.length);
    for (int i = 0; i < n->pending_count; i++)
        if (survives(chance)) apply_bytes(&bytes, &d->record->calls[n->pending[i]]);
    files_write(path, bytes.data, bytes.length);
    text_free(&bytes);
}

/* Makes `path` a possible state of the root after a cut before call `cut`. Calls selected by `lost` have no
 * effect. */
static void power_cut(const Recorder *r, int cut, uint64_t seed, bool (*lost)(const Call *),
                      const char *path) {
    Disk d = {.record = r, .nodes = mem_alloc_array(MOST_NODES, sizeof(Node))};
    Chance chance = chance_of(seed, cut);
    new_node(&d, NODE_DIR);
    for (int i = 0; i < cut; i++)
        if (!lost || !lost(&r->calls[i])) play(&d, i);
    write_node(&d, 0, path, &chance);
    for (int i = 0; i < d.count; i++) text_free(&d.nodes[i].durable);
    free(d.nodes);
}

#endif
