/* The commit protocol.
 *
 *  1. A save writes only inside a directory whose name starts with a dot (.tmp-step-N). Nothing that starts
 *     with a dot is ever read as a checkpoint.
 *  2. Every file is complete and synced before the manifest is written. Rank 0 makes the files with their
 *     headers and full lengths and syncs them; then each rank writes its segments into them and syncs what it
 *     wrote. A rank hands over its blob after that. Rank 0 writes the manifest once it has the blobs of all
 *     ranks and they cover every byte exactly once. The manifest holds the size of each file and a checksum
 *     of each header and segment, computed from the bytes as they were written.
 *  3. The manifest is written last and synced, and then the directory is synced: whoever sees the directory
 *     sees all of it.
 *  4. One rename gives the directory its name, step-N. If that name is taken, the two directories are
 *     exchanged atomically, and the old one, now under the dot name, is removed afterwards. On file systems
 *     without exchange, the old one is first renamed to a dot name: then, and only then, step N is missing
 *     for a moment, in which the previous step is the newest.
 *  5. The parent is synced after the rename and before anything older is removed.
 *  6. `latest` is a symbolic link, replaced by rename, after 5. It is for people: nothing here reads it, and
 *     a failure to write it is a warning.
 *  7. Removing renames to a dot name (.trash-step-N) and syncs before it unlinks: a half-removed checkpoint
 *     is never seen.
 *  8. A failure before 4 removes the temporary directory and leaves everything else as it was.
 *  9. A checkpoint exists if and only if it is under its name and its manifest verifies. Loading verifies
 *     every byte first.
 * 10. Ranks other than 0 only write into existing files inside the temporary directory: they neither create
 *     nor remove names. Whatever they write into a directory that rank 0 has abandoned is removed with it.
 * 11. The directory of checkpoints is made only in an existing run directory, and its name is on disk before
 *     anything is in it. Neither it nor its entries are ever entered through a link. A link with one of these
 *     names is an error for reading and writing; where the name is to be removed, the link itself is removed.
 *     Leftovers are entries with exactly the names above. */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"
#include "checkpoint/segments.h"

/* Eight digits, so that names sort by step, up to a hundred million steps; more digits beyond. */
static char *step_path(const char *dir, const char *prefix, int64_t step) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08" PRId64, prefix, step);
    return path_join(dir, name);
}

/* Whatever cannot be removed stays until the next attempt. */
static void remove_tree(const FileOps *ops, const char *path) {
    file_remove_tree_by(ops->unlink, ops->ctx, path, NULL);
}

static ErrorCode sync_dir(const FileOps *ops, const char *dir, Error *err) {
    int result;
    RETRY(result, ops->sync_dir(ops->ctx, dir));
    return result == 0 ? OK : error_errno(err, ERR_IO, "%s: cannot sync the directory", dir);
}

typedef struct Saving {
    const FileOps *ops;
    const CheckpointSave *save;
    const char *dir;
    char *temporary;
    SaveLayout layout;
} Saving;

/* Each call makes the layout again instead of keeping it: it depends only on the lists, the same on every
 * rank, and so a Saving needs no owner that lives as long as a save. */
static Saving saving_make(const FileOps *ops, const char *dir, const CheckpointSave *save) {
    Saving s = {.ops = ops ? ops : &file_ops_system, .save = save, .dir = dir};
    s.temporary = step_path(dir, ".tmp-", save->step);
    savelayout_make(&s.layout, save);
    return s;
}

static void saving_free(Saving *s) {
    savelayout_free(&s->layout);
    free(s->temporary);
}

static ErrorCode put_small(const Saving *s, const char *name, const void *data, size_t length, Error *err) {
    char *path = path_join(s->temporary, name);
    ErrorCode code = fileops_put(s->ops, path, data, length, err);
    free(path);
    return code;
}

/* Invariant 2: the files that rank 0 makes for all ranks. */
static ErrorCode make_temporary(const Saving *s, Error *err) {
    const CheckpointSave *save = s->save;
    int result;
    /* Leftovers of a killed save of this step. Nobody writes there: this process holds the run's lock, and
     * the ranks of an earlier attempt have ended with it. */
    remove_tree(s->ops, s->temporary);
    RETRY(result, s->ops->mkdir(s->ops->ctx, s->temporary));
    if (result != 0) return error_errno(err, ERR_CANTCREATE, "%s: cannot create the directory", s->temporary);
    for (int i = 0; i < save->file_count; i++) {
        /* The program chooses these names, so a bad one is a bug. */
        CHECK(modelfiles_name_is_safe(save->files[i].name));
        TRY(put_small(s, save->files[i].name, save->files[i].data, save->files[i].length, err));
    }
    for (int i = 0; i < s->layout.count; i++)
        TRY(modelfiles_create(s->ops, s->temporary, &s->layout.lists[i], err));
    return save->state == NULL ? OK : put_small(s, CHECKPOINT_STATE, save->state, strlen(save->state), err);
}

/* Invariant 11: makes the directory of checkpoints in an existing run directory. */
static ErrorCode make_home(const Saving *s, Error *err) {
    int result;
    RETRY(result, s->ops->mkdir(s->ops->ctx, s->dir));
    if (result != 0 && errno != EEXIST)
        return error_errno(err, ERR_CANTCREATE, "%s: cannot create the directory", s->dir);
    TRY(file_check_own_dir(s->dir, err));
    /* Also if the directory already exists: its creator may have been killed before this sync. */
    char *parent = path_join(s->dir, "..");
    ErrorCode code = sync_dir(s->ops, parent, err);
    free(parent);
    return code;
}

ErrorCode checkpoint_begin(const FileOps *ops, const char *dir, const CheckpointSave *save, Error *err) {
    Saving s = saving_make(ops, dir, save);
    ErrorCode code = make_home(&s, err);
    if (code != OK) {
        saving_free(&s);
        return code;
    }
    code = make_temporary(&s, err);
    if (code != OK) remove_tree(s.ops, s.temporary);
    saving_free(&s);
    return code;
}

/* A failure of this rank is in its blob, for rank 0, and in the result, for this rank's log. The blob is
 * valid in both cases. */
ErrorCode checkpoint_write(const FileOps *ops, const char *dir, const CheckpointSave *save, Text *blob,
                           Error *err) {
    Saving s = saving_make(ops, dir, save);
    uint64_t *sums[SAVE_LISTS] = {NULL};
    Error failure = {.message = ""};
    for (int i = 0; i < s.layout.count && failure.code == OK; i++) {
        sums[i] = mem_alloc_array((size_t)tensor_segments(s.layout.lists[i].list), sizeof *sums[i]);
        modelfiles_write(s.ops, s.temporary, &s.layout.lists[i], sums[i], &failure);
    }
    if (failure.code == OK)
        blob_write(blob, &s.layout, sums);
    else
        checkpoint_blob_failure(&failure, blob);
    for (int i = 0; i < SAVE_LISTS; i++) free(sums[i]);
    saving_free(&s);
    if (failure.code != OK && err != NULL) *err = failure;
    return failure.code;
}

/* The segments of one tensor, which are the next ones in order; advances *next past them. */
static ManifestTensor list_tensor(const SavedSegments *all, size_t *next, int list, int tensor,
                                  const TensorDesc *t) {
    ManifestTensor out = {.name = mem_strdup(t->name)};
    size_t first = *next;
    while (*next < all->count && all->items[*next].list == list && all->items[*next].tensor == tensor)
        ++*next;
    out.count = *next - first;
    out.segments = mem_alloc_array(out.count > 0 ? out.count : 1, sizeof *out.segments);
    for (size_t i = 0; i < out.count; i++) {
        const SavedSegment *p = &all->items[first + i];
        out.segments[i] =
            (ManifestSegment){(uint64_t)p->count * (uint64_t)safe_type_bits(t->stored) / 8, p->sum};
    }
    /* A tensor without elements has no segment, but has an entry: every tensor of the file is listed. */
    if (out.count == 0) out.segments[0].sum = hash64("", 0);
    if (out.count <= 1) out.count = 1, out.segments[0].bytes = MANIFEST_WHOLE;
    return out;
}

/* The header and the tensors of this file. */
static void list_file(Manifest *m, const ModelLayout *l, int file, const ManifestTensor *tensors) {
    const LayoutFile *f = &l->files[file];
    ManifestTensor *here = mem_alloc_array((size_t)l->list->count, sizeof *here);
    size_t count = 0;
    for (int t = 0; t < l->list->count; t++)
        if (l->file[t] == file) here[count++] = tensors[t];
    manifest_add_safetensors(m, f->name, f->bytes, hash64(f->header.data, f->header.length), here, count);
}

/* Segments are sorted by list, tensor and offset (segments_collect), so a single cursor visits them all. */
static void list_tensors(Manifest *m, const SaveLayout *layout, const SavedSegments *all) {
    size_t next = 0;
    for (int i = 0; i < layout->count; i++) {
        const ModelLayout *l = &layout->lists[i];
        ManifestTensor *tensors = mem_alloc_array((size_t)l->list->count, sizeof *tensors);
        for (int t = 0; t < l->list->count; t++)
            tensors[t] = list_tensor(all, &next, i, t, &l->list->tensors[t]);
        for (int f = 0; f < l->file_count; f++) list_file(m, l, f, tensors);
        if (l->index.length > 0)
            manifest_add_file(m, l->index_name, l->index.length, hash64(l->index.data, l->index.length));
        free(tensors);
    }
}

/* The checksums of small files are computed from the bytes in memory, which were written: reading them back
 * would only test the page cache. */
static void make_manifest(Manifest *m, const Saving *s, const SavedSegments *all) {
    const CheckpointSave *save = s->save;
    *m = (Manifest){.step = save->step, .resumable = save->optimizer != NULL && save->state != NULL};
    clock_iso8601(clock_wall(), m->time);
    for (int i = 0; i < save->file_count; i++)
        manifest_add_file(m, save->files[i].name, save->files[i].length,
                          hash64(save->files[i].data, save->files[i].length));
    list_tensors(m, &s->layout, all);
    if (save->state != NULL)
        manifest_add_file(m, CHECKPOINT_STATE, strlen(save->state), hash64(save->state, strlen(save->state)));
}

/* Invariant 3. */
static ErrorCode seal(const Saving *s, const Manifest *m, Error *err) {
    Text text = {0};
    manifest_write(m, &text);
    ErrorCode code = put_small(s, MANIFEST_FILE, text.data, text.length, err);
    text_free(&text);
    return code == OK ? sync_dir(s->ops, s->temporary, err) : code;
}

/* Error codes of kernels and file systems without RENAME_EXCHANGE; EPERM comes from some network and stacked
 * file systems. */
static bool cannot_exchange(int error) {
    return error == ENOSYS || error == EINVAL || error == ENOTSUP || error == EOPNOTSUPP || error == EPERM;
}

/* Invariant 4, if the name is taken. */
static int replace(const FileOps *ops, const char *dir, const char *temporary, const char *final,
                   int64_t step) {
    int result;
    RETRY(result, ops->exchange(ops->ctx, temporary, final));
    if (result == 0 || !cannot_exchange(errno)) return result;
    char *aside = step_path(dir, ".trash-", step);
    remove_tree(ops, aside);
    RETRY(result, ops->rename(ops->ctx, final, aside));
    if (result == 0) RETRY(result, ops->rename(ops->ctx, temporary, final));
    free(aside);
    return result;
}

/* Invariants 4 and 5. *placed: whether the new checkpoint has the name, also if the sync then failed. */
static ErrorCode place(const Saving *s, bool *placed, Error *err) {
    char *final = step_path(s->dir, "", s->save->step);
    struct stat there;
    int result;
    if (lstat(final, &there) == 0)
        result = replace(s->ops, s->dir, s->temporary, final, s->save->step);
    else
        RETRY(result, s->ops->rename(s->ops->ctx, s->temporary, final));
    *placed = result == 0;
    ErrorCode code =
        result == 0 ? OK : error_errno(err, ERR_CANTCREATE, "%s: cannot give the checkpoint its name", final);
    free(final);
    return code == OK ? sync_dir(s->ops, s->dir, err) : code;
}

/* Invariant 6. A link cannot be replaced in place, only renamed over: it is first made under a dot name. */
static void point_latest(const FileOps *ops, const char *dir, int64_t step) {
    char target[64];
    int result;
    char *link = path_join(dir, "latest"), *fresh = path_join(dir, ".tmp-latest");
    snprintf(target, sizeof target, "step-%08" PRId64, step);
    remove_tree(ops, fresh);
    RETRY(result, ops->symlink(ops->ctx, target, fresh));
    if (result == 0) RETRY(result, ops->rename(ops->ctx, fresh, link));
    if (result == 0) RETRY(result, ops->sync_dir(ops->ctx, dir));
    if (result != 0) log_warn("%s: cannot point it at %s: %s", link, target, strerror(errno));
    free(link);
    free(fresh);
}

static ErrorCode list_and_seal(const Saving *s, const CheckpointBlob *blobs, int ranks, uint64_t *bytes,
                               Error *err) {
    SavedSegments all;
    Manifest m;
    TRY(segments_collect(&all, &s->layout, blobs, ranks, err));
    make_manifest(&m, s, &all);
    *bytes = manifest_bytes(&m);
    ErrorCode code = seal(s, &m, err);
    manifest_free(&m);
    segments_free(&all);
    return code;
}

ErrorCode checkpoint_commit(const FileOps *ops, const char *dir, const CheckpointSave *save,
                            const CheckpointBlob *blobs, int ranks, uint64_t *bytes, Error *err) {
    Saving s = saving_make(ops, dir, save);
    bool placed = false;
    ErrorCode code = list_and_seal(&s, blobs, ranks, bytes, err);
    if (code == OK) code = place(&s, &placed, err);
    if (code == OK) point_latest(s.ops, dir, save->step);
    /* Invariant 8. After an exchange the temporary directory is the old checkpoint, whose successor must be
     * on disk first (invariant 5). */
    if (code == OK || !placed) remove_tree(s.ops, s.temporary);
    saving_free(&s);
    return code;
}

/* The phases of the protocol one after the other, for one rank and without a thread. */
ErrorCode checkpoint_save(const FileOps *ops, const char *dir, const CheckpointSave *save,
                          SaveFigures *figures, Error *err) {
    double start = clock_seconds();
    uint64_t bytes = 0;
    Text blob = {0};
    ErrorCode code = checkpoint_begin(ops, dir, save, err);
    if (code == OK) {
        checkpoint_write(ops, dir, save, &blob, NULL); /* a failure is in the blob */
        code = checkpoint_commit(ops, dir, save, &(CheckpointBlob){blob.data, blob.length}, 1, &bytes, err);
    }
    text_free(&blob);
    if (figures != NULL) *figures = (SaveFigures){bytes, clock_seconds() - start};
    return code == OK ? OK : error_context(err, "saving the checkpoint of step %" PRId64, save->step);
}

/* Invariant 7. */
ErrorCode checkpoint_remove(const FileOps *ops, const char *dir, int64_t step, Error *err) {
    char *path = step_path(dir, "", step), *trash = step_path(dir, ".trash-", step);
    int result;
    remove_tree(ops, trash);
    RETRY(result, ops->rename(ops->ctx, path, trash));
    ErrorCode code =
        result == 0 ? sync_dir(ops, dir, err) : error_errno(err, ERR_IO, "%s: cannot remove", path);
    if (code == OK) remove_tree(ops, trash);
    free(path);
    free(trash);
    return code;
}

/* Only the names of this protocol: ".tmp-step-00000100", ".trash-step-00000100", ".tmp-latest". */
static bool is_leftover(const char *name) {
    int64_t step;
    if (strncmp(name, ".tmp-", 5) == 0)
        return strcmp(name + 5, "latest") == 0 || checkpoint_step(name + 5, &step);
    return strncmp(name, ".trash-", 7) == 0 && checkpoint_step(name + 7, &step);
}

void checkpoint_clean(const FileOps *ops, const char *dir) {
    if (ops == NULL) ops = &file_ops_system;
    DIR *handle = file_check_own_dir(dir, NULL) == OK ? opendir(dir) : NULL;
    if (handle == NULL) return;
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (!is_leftover(entry->d_name)) continue;
        char *path = path_join(dir, entry->d_name);
        remove_tree(ops, path);
        free(path);
    }
    closedir(handle);
}
