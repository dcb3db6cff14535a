/* The commit protocol.
 *
 *  1. A save writes only inside a directory whose name starts with a dot (.tmp-step-N). Nothing that starts with a dot is ever
 *     read as a checkpoint.
 *  2. Every file is complete and synced before the manifest is written. The manifest holds the size of each file and a checksum
 *     of each header and tensor, made from the bytes as they were written.
 *  3. The manifest is written last, synced, and then the directory is synced: whoever sees the directory sees all of it.
 *  4. One rename gives the directory its name, step-N. Where that name is taken, the two directories change places in one step;
 *     the old one, now under the dot name, is removed after. Where the file system cannot exchange, the old one is first
 * renamed to a dot name: then, and only then, step N is missing for a moment, and the step before it stands in.
 *  5. The parent is synced after the rename and before anything older is removed.
 *  6. `latest` is a symbolic link, replaced by rename, after 5. It is for people: nothing here reads it, and a failure to write
 *     it is a warning.
 *  7. Removing renames to a dot name (.trash-step-N) and syncs before it unlinks: a half-removed checkpoint is never seen.
 *  8. A failure before 4 removes the temporary directory and leaves everything else as it was.
 *  9. A checkpoint exists if and only if it is under its name and its manifest verifies. Loading verifies every byte first. */
#include "checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"

/* Network file systems may interrupt any call. */
#define RETRY(result, call) \
    do (result) = (call);   \
    while ((result) != 0 && errno == EINTR)

static char *step_path(const char *dir, const char *prefix, int64_t step) {
    char name[64];
    snprintf(name, sizeof name, "%sstep-%08" PRId64, prefix, step);
    return path_join(dir, name);
}

/* What the directory holds is ours and flat; whatever cannot be removed stays for the next try. */
static void remove_tree(const FileOps *ops, const char *path) {
    DIR *dir = opendir(path);
    if (dir == NULL) return;
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        char *file = path_join(path, entry->d_name);
        ops->unlink(ops->ctx, file);
        free(file);
    }
    closedir(dir);
    ops->rmdir(ops->ctx, path);
}

typedef struct Saving {
    const FileOps *ops;
    const CheckpointSave *save;
    const char *dir;
    char *temporary;
    Manifest manifest;
    const TensorList *list; /* being written */
} Saving;

static ErrorCode put_small(Saving *s, const char *name, const void *data, size_t length, Error *err) {
    char *path = path_join(s->temporary, name);
    ErrorCode code = fileops_put(s->ops, path, data, length, err);
    if (code == OK) manifest_add_file(&s->manifest, name, length, hash64(data, length));
    free(path);
    return code;
}

static void add_to_manifest(void *ctx, const char *name, const SafeSums *sums, const int *order, int count) {
    Saving *s = ctx;
    if (sums->tensors == NULL)
        manifest_add_file(&s->manifest, name, sums->bytes, sums->header);
    else
        manifest_add_safetensors(&s->manifest, name, sums, s->list, order, count);
}

static ErrorCode put_tensors(Saving *s, const char *stem, const TensorList *list, uint64_t shard_bytes, Error *err) {
    s->list = list;
    return modelfiles_write(s->ops, s->temporary, stem, list, shard_bytes, add_to_manifest, s, err);
}

/* Invariant 2. */
static ErrorCode put_contents(Saving *s, Error *err) {
    const CheckpointSave *save = s->save;
    for (int i = 0; i < save->file_count; i++) {
        CHECK(modelfiles_name_is_safe(save->files[i].name));
        TRY(put_small(s, save->files[i].name, save->files[i].data, save->files[i].length, err));
    }
    TRY(put_tensors(s, "model", save->model, save->shard_bytes ? save->shard_bytes : SHARD_BYTES, err));
    if (save->optimizer != NULL) TRY(put_tensors(s, "optimizer", save->optimizer, UINT64_MAX, err));
    return save->state == NULL ? OK : put_small(s, CHECKPOINT_STATE, save->state, strlen(save->state), err);
}

/* Invariant 3. */
static ErrorCode seal(Saving *s, Error *err) {
    Text text = {0};
    int result;
    s->manifest.step = s->save->step;
    s->manifest.resumable = s->save->optimizer != NULL && s->save->state != NULL;
    clock_iso8601(clock_wall(), s->manifest.time);
    manifest_write(&s->manifest, &text);
    char *path = path_join(s->temporary, MANIFEST_FILE);
    ErrorCode code = fileops_put(s->ops, path, text.data, text.length, err);
    free(path);
    text_free(&text);
    if (code != OK) return code;
    RETRY(result, s->ops->sync_dir(s->ops->ctx, s->temporary));
    return result == 0 ? OK : error_errno(err, ERR_IO, "%s: cannot sync the directory", s->temporary);
}

static ErrorCode sync_parent(const FileOps *ops, const char *dir, Error *err) {
    int result;
    RETRY(result, ops->sync_dir(ops->ctx, dir));
    return result == 0 ? OK : error_errno(err, ERR_IO, "%s: cannot sync the directory", dir);
}

static bool cannot_exchange(int error) {
    return error == ENOSYS || error == EINVAL || error == ENOTSUP || error == EOPNOTSUPP || error == EPERM;
}

/* Invariant 4, where the name is taken. */
static int replace(const FileOps *ops, const char *dir, const char *temporary, const char *final, int64_t step) {
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

/* Invariants 4 and 5. *placed tells whether the new one has the name, also when the sync then failed. */
static ErrorCode place(const Saving *s, bool *placed, Error *err) {
    char *final = step_path(s->dir, "", s->save->step);
    int result;
    if (file_exists(final))
        result = replace(s->ops, s->dir, s->temporary, final, s->save->step);
    else
        RETRY(result, s->ops->rename(s->ops->ctx, s->temporary, final));
    *placed = result == 0;
    ErrorCode code = result == 0 ? OK : error_errno(err, ERR_CANTCREATE, "%s: cannot give the checkpoint its name", final);
    free(final);
    return code == OK ? sync_parent(s->ops, s->dir, err) : code;
}

/* Invariant 6. */
static void point_latest(const FileOps *ops, const char *dir, int64_t step) {
    char target[64];
    int result;
    char *link = path_join(dir, "latest"), *fresh = path_join(dir, ".tmp-latest");
    snprintf(target, sizeof target, "step-%08" PRId64, step);
    ops->unlink(ops->ctx, fresh);
    RETRY(result, ops->symlink(ops->ctx, target, fresh));
    if (result == 0) RETRY(result, ops->rename(ops->ctx, fresh, link));
    if (result == 0) RETRY(result, ops->sync_dir(ops->ctx, dir));
    if (result != 0) log_warn("%s: cannot point it at %s: %s", link, target, strerror(errno));
    free(link);
    free(fresh);
}

static ErrorCode write_temporary(Saving *s, Error *err) {
    int result;
    remove_tree(s->ops, s->temporary);
    RETRY(result, s->ops->mkdir(s->ops->ctx, s->temporary));
    if (result != 0) return error_errno(err, ERR_CANTCREATE, "%s: cannot create the directory", s->temporary);
    TRY(put_contents(s, err));
    return seal(s, err);
}

ErrorCode checkpoint_save(const FileOps *ops, const char *dir, const CheckpointSave *save, SaveFigures *figures, Error *err) {
    Saving s = {.ops = ops ? ops : &file_ops_system, .save = save, .dir = dir};
    double start = clock_seconds();
    bool placed = false;
    TRY(file_make_dirs(dir, err));
    s.temporary = step_path(dir, ".tmp-", save->step);
    ErrorCode code = write_temporary(&s, err);
    if (code == OK) code = place(&s, &placed, err);
    if (code == OK) point_latest(s.ops, dir, save->step);
    /* Invariant 8; after an exchange this is the old one, whose successor must be on the disk first (invariant 5). */
    if (code == OK || !placed) remove_tree(s.ops, s.temporary);
    if (figures != NULL) *figures = (SaveFigures){manifest_bytes(&s.manifest), clock_seconds() - start};
    manifest_free(&s.manifest);
    free(s.temporary);
    return code == OK ? OK : error_context(err, "saving the checkpoint of step %" PRId64, save->step);
}

/* Invariant 7. */
ErrorCode checkpoint_remove(const FileOps *ops, const char *dir, int64_t step, Error *err) {
    char *path = step_path(dir, "", step), *trash = step_path(dir, ".trash-", step);
    int result;
    remove_tree(ops, trash);
    RETRY(result, ops->rename(ops->ctx, path, trash));
    ErrorCode code = result == 0 ? sync_parent(ops, dir, err) : error_errno(err, ERR_IO, "%s: cannot remove", path);
    if (code == OK) remove_tree(ops, trash);
    free(path);
    free(trash);
    return code;
}

void checkpoint_clean(const FileOps *ops, const char *dir) {
    DIR *handle = opendir(dir);
    if (handle == NULL) return;
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (strncmp(entry->d_name, ".tmp-step-", 10) != 0 && strncmp(entry->d_name, ".trash-step-", 12) != 0) continue;
        char *path = path_join(dir, entry->d_name);
        remove_tree(ops, path);
        free(path);
    }
    closedir(handle);
}
