/* Finds, verifies, opens and removes checkpoints (invariants 7 and 9 of checkpoint.c).
 *
 *     checkpoint_open         a checkpoint, or the newest good one of a directory of them
 *     checkpoint_candidates   names only: for ranks that share the reading
 *     checkpoint_list         all of them, good or not, for people
 *     checkpoint_prune        removes what is old and good; never what it cannot read
 *
 * A checkpoint is verified as a whole before any of it is opened. Nobody may write to it between the two,
 * which the run's lock ensures. Resharding is in modelvalues.c: modelfiles_load. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "checkpoint/internal.h"
#include "checkpoint/manifest.h"

/* The state is a page of JSON and a few windows of losses; the limit is far above that. */
#define STATE_LIMIT ((size_t)64 << 20)

/* The name must be exactly the one that step_path makes: "step-1" and "step-00000001" cannot both exist. 15
 * digits fit in an int64. */
bool checkpoint_step(const char *name, int64_t *step) {
    char canonical[64];
    if (strncmp(name, "step-", 5) != 0 || strspn(name + 5, "0123456789") != strlen(name + 5) ||
        strlen(name) > 5 + 15)
        return false;
    *step = strtoll(name + 5, NULL, 10);
    snprintf(canonical, sizeof canonical, "step-%08" PRId64, *step);
    return strcmp(name, canonical) == 0;
}

/* The step in the directory's name must be that of its manifest. A copy under another step could be taken for
 * the newest checkpoint, and the run would continue from the wrong step. */
static ErrorCode check_name(const char *path, const Manifest *m, Error *err) {
    int64_t step;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/') end--;
    char *bare = mem_strdup(path);
    bare[end] = 0;
    const char *slash = strrchr(bare, '/');
    bool named = checkpoint_step(slash ? slash + 1 : bare, &step);
    free(bare);
    if (!named || step == m->step) return OK;
    return error_set(err, ERR_DATA,
                     "%s: it holds the checkpoint of step %" PRId64
                     ": a directory that was copied or renamed; give it back its name, or another that does "
                     "not begin with \"step-\"",
                     path, m->step);
}

/* Reads the manifest and checks that it is that of a complete checkpoint with this name. */
static ErrorCode read_manifest(Manifest *m, const char *path, Error *err) {
    TRY(manifest_read(m, path, err));
    ErrorCode code = check_name(path, m, err);
    if (code == OK) code = manifest_check_complete(m, path, err);
    if (code != OK) manifest_free(m);
    return code;
}

/* On success the caller owns the manifest. */
static ErrorCode check(Manifest *m, const char *path, CheckLevel level, Error *err) {
    TRY(read_manifest(m, path, err));
    ErrorCode code = level == CHECK_CONTENTS ? manifest_check_contents(m, path, 0, 1, err)
                                             : manifest_check_sizes(m, path, err);
    if (code != OK) manifest_free(m);
    return code;
}

/* Together the ranks read every byte once; every rank reads the manifest. */
ErrorCode checkpoint_check_part(const char *path, int rank, int ranks, Error *err) {
    Manifest m;
    TRY(read_manifest(&m, path, err));
    ErrorCode code = manifest_check_contents(&m, path, rank, ranks, err);
    manifest_free(&m);
    return code;
}

ErrorCode checkpoint_verify(const char *path, Error *err) { return checkpoint_check_part(path, 0, 1, err); }

/* Ascending, so that the newest is the last. */
static int by_step(const void *a, const void *b) {
    const CheckpointInfo *x = a, *y = b;
    return (x->step > y->step) - (x->step < y->step);
}

/* If something else has the name of a checkpoint, `problem` describes it. It is listed anyway: a link in the
 * place of a checkpoint should be visible, not silently skipped. */
static CheckpointInfo named(const char *dir, const char *name, int64_t step) {
    CheckpointInfo info = {.step = step, .path = path_join(dir, name)};
    Error problem = {.message = ""};
    if (file_check_own_dir(info.path, &problem) != OK)
        snprintf(info.problem, sizeof info.problem, "%.*s", (int)sizeof info.problem - 1, problem.message);
    return info;
}

/* Names only. A missing directory has no checkpoints. */
static ErrorCode scan(CheckpointSet *set, const char *dir, Error *err) {
    *set = (CheckpointSet){0};
    DIR *handle = opendir(dir);
    if (handle == NULL)
        return errno == ENOENT ? OK : error_errno(err, ERR_NOINPUT, "%s: cannot open the directory", dir);
    int64_t step;
    for (struct dirent *entry; (entry = readdir(handle)) != NULL;) {
        if (!checkpoint_step(entry->d_name, &step)) continue;
        set->items = mem_grow(set->items, (set->count + 1) * sizeof *set->items);
        set->items[set->count++] = named(dir, entry->d_name, step);
    }
    closedir(handle);
    if (set->count > 0) qsort(set->items, set->count, sizeof *set->items, by_step);
    return OK;
}

/* A damaged checkpoint is not an error here, since the list reports it. */
static void examine(CheckpointInfo *info, CheckLevel level) {
    Manifest m;
    Error problem = {.message = ""};
    if (info->problem[0]) return;
    ErrorCode code = check(&m, info->path, level, &problem);
    if (code == OK) {
        info->good = true;
        info->resumable = m.resumable;
        info->bytes = manifest_bytes(&m);
        memcpy(info->time, m.time, sizeof info->time);
    }
    if (!info->good)
        snprintf(info->problem, sizeof info->problem, "%.*s", (int)sizeof info->problem - 1, problem.message);
    if (code == OK) manifest_free(&m);
}

/* In ascending steps; the caller frees the set. */
ErrorCode checkpoint_list(CheckpointSet *set, const char *dir, CheckLevel level, Error *err) {
    TRY(scan(set, dir, err));
    for (size_t i = 0; i < set->count; i++) examine(&set->items[i], level);
    return OK;
}

void checkpoint_set_free(CheckpointSet *set) {
    for (size_t i = 0; i < set->count; i++) free(set->items[i].path);
    free(set->items);
    *set = (CheckpointSet){0};
}

/* If the state names a step, it must be the manifest's: neither comes from another checkpoint. The caller
 * checks everything else in it. Older versions of the state name no step. */
static ErrorCode check_state(const Checkpoint *c, Error *err) {
    cJSON *root;
    int64_t step = c->step;
    TRY(json_parse(CHECKPOINT_STATE, c->state, strlen(c->state), &root, err));
    ErrorCode code = json_get_int(root, CHECKPOINT_STATE, "step", false, 0, INT64_C(1) << 53, &step, err);
    cJSON_Delete(root);
    if (code != OK || step == c->step) return code;
    return error_set(err, ERR_DATA, "%s: %s is of step %" PRId64 ", the manifest of step %" PRId64, c->path,
                     CHECKPOINT_STATE, step, c->step);
}

/* Opened if it exists: if the manifest did not list it, the check would have failed. */
static ErrorCode open_average(Checkpoint *c, Error *err) {
    char *path = path_join(c->path, CHECKPOINT_AVERAGE);
    ErrorCode code = file_exists(path) ? modelfiles_open(&c->average, path, err) : OK;
    free(path);
    return code;
}

/* The manifest determines which files are opened; read_manifest has checked that it is complete. */
static ErrorCode open_parts(Checkpoint *c, Error *err) {
    size_t length = 0;
    TRY(modelfiles_open(&c->model, c->path, err));
    if (!c->resumable) return OK;
    char *optimizer = path_join(c->path, CHECKPOINT_OPTIMIZER);
    ErrorCode code = modelfiles_open(&c->optimizer, optimizer, err);
    free(optimizer);
    if (code == OK) code = open_average(c, err);
    if (code == OK) code = fileops_read_in(c->path, CHECKPOINT_STATE, STATE_LIMIT, &c->state, &length, err);
    return code == OK ? check_state(c, err) : code;
}

/* `resumable` requires optimizer and state, not only weights. Contents are not read again: the caller has
 * checked them. *c is empty after a failure. */
ErrorCode checkpoint_open_verified(Checkpoint *c, const char *path, bool resumable, Error *err) {
    Manifest m;
    *c = (Checkpoint){0};
    TRY(read_manifest(&m, path, err));
    *c = (Checkpoint){.path = mem_strdup(path), .step = m.step, .seal = m.seal, .resumable = m.resumable};
    manifest_free(&m);
    ErrorCode code =
        resumable && !c->resumable
            ? error_set(err, ERR_DATA,
                        "%s: holds weights only; it can be evaluated or started from (model.init), but "
                        "not resumed",
                        path)
            : open_parts(c, err);
    if (code != OK) checkpoint_close(c);
    return code;
}

/* A directory with a manifest is a checkpoint, good or not; any other is a directory of checkpoints. */
static bool is_one(const char *path) {
    char *manifest = path_join(path, MANIFEST_FILE);
    bool there = file_exists(manifest);
    free(manifest);
    return there;
}

/* Warns about them once, here: the caller then tries the rest without mentioning them. */
static void drop_strangers(CheckpointSet *set) {
    size_t kept = 0;
    for (size_t i = 0; i < set->count; i++) {
        CheckpointInfo *info = &set->items[i];
        if (info->problem[0]) {
            log_warn("checkpoint passed over: %s", info->problem);
            free(info->path);
        } else {
            set->items[kept++] = *info;
        }
    }
    set->count = kept;
}

/* A path to one checkpoint is a set of one, whatever its name. */
ErrorCode checkpoint_candidates(CheckpointSet *set, const char *path, Error *err) {
    if (!is_one(path)) {
        TRY(scan(set, path, err));
        drop_strangers(set);
        return OK;
    }
    *set = (CheckpointSet){.count = 1, .items = mem_alloc(sizeof *set->items)};
    set->items[0].path = mem_strdup(path);
    return OK;
}

/* Every byte is read twice: all are verified before any is used. */
static ErrorCode open_one(Checkpoint *c, const char *path, bool resumable, Error *err) {
    *c = (Checkpoint){0};
    TRY(checkpoint_verify(path, err));
    return checkpoint_open_verified(c, path, resumable, err);
}

/* The newest good checkpoint, searched backwards. A run thus continues after disk damage or an interrupted
 * copy, loses some steps, and reports it. A read error counts as damage: another checkpoint may be on a
 * readable part of the disk. */
static ErrorCode open_newest(Checkpoint *c, const CheckpointSet *set, bool resumable, Error *err) {
    for (size_t i = set->count; i-- > 0;) {
        Error problem = {.message = ""};
        ErrorCode code = open_one(c, set->items[i].path, resumable, &problem);
        if (code == OK && i + 1 < set->count)
            log_warn("going back to %s, the newest good checkpoint", c->path);
        if (code == OK) return OK;
        log_warn("checkpoint passed over: %s", problem.message);
    }
    if (set->count == 0) return error_set(err, ERR_NOINPUT, "there are no checkpoints");
    return error_set(err, ERR_DATA,
                     "no checkpoint is good: \"weft checkpoint verify\" names what is damaged");
}

/* A checkpoint named explicitly is opened or refused; only a directory of checkpoints has an alternative. */
ErrorCode checkpoint_open(Checkpoint *c, const char *path, bool resumable, Error *err) {
    CheckpointSet set;
    *c = (Checkpoint){0};
    if (is_one(path)) return open_one(c, path, resumable, err);
    TRY(checkpoint_candidates(&set, path, err));
    ErrorCode code = open_newest(c, &set, resumable, err);
    checkpoint_set_free(&set);
    return code == OK ? OK : error_context(err, "%s", path);
}

/* Also for a partially opened one. */
void checkpoint_close(Checkpoint *c) {
    modelfiles_close(&c->model);
    modelfiles_close(&c->optimizer);
    modelfiles_close(&c->average);
    free(c->state);
    free(c->path);
    *c = (Checkpoint){0};
}

/* At least two are kept: if the newest is found damaged later, there is one before it. Only good ones count
 * among the newest, so that damaged ones never displace a good one; they stay for inspection. */
ErrorCode checkpoint_prune(const FileOps *ops, const char *dir, CheckpointKeep keep, int64_t in_use,
                           CheckLevel level, int *removed, Error *err) {
    CheckpointSet set;
    int64_t newer = 0, last = keep.last < 2 ? 2 : keep.last;
    ErrorCode code = OK;
    int count = 0;
    if (ops == NULL) ops = &file_ops_system;
    checkpoint_clean(ops, dir);
    TRY(checkpoint_list(&set, dir, level, err));
    for (size_t i = set.count; i-- > 0 && keep.last > 0 && code == OK;) {
        const CheckpointInfo *info = &set.items[i];
        if (!info->good || newer++ < last || info->step == in_use) continue;
        if (keep.every > 0 && info->step % keep.every == 0) continue;
        if (keep.best > 0 && info->step == keep.best) continue;
        code = checkpoint_remove(ops, dir, info->step, err);
        count++;
    }
    checkpoint_set_free(&set);
    if (removed != NULL) *removed = count;
    return code;
}
