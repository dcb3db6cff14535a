/* weft checkpoint: lists, verifies and prunes the checkpoints of a run.
 *
 *     action    reads                  takes the run's lock    fails if
 *     list      manifests and sizes    no                      one is damaged, or there is none
 *     verify    every byte             no                      one is damaged, or there is none
 *     prune     every byte             yes                     the run is active, or removing fails
 *
 * list is for a quick look, and must not take as long as reading a disk. verify and prune read every byte, so
 * that a damaged checkpoint never displaces a good one. Reading needs no lock, since a checkpoint gets its
 * name only when it is complete. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "checkpoint/manifest.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "train/lock.h"
#include "train/state.h"

/* RUN or RUN/checkpoints. The caller frees *dir. A run is tried first; any other operand is taken as a
 * directory of checkpoints, and reading it reports what is wrong. */
static ErrorCode checkpoints_of(const char *operand, char **dir, Error *err) {
    TRY(checkpoint_own_directory(operand, dir, err));
    if (file_is_dir(*dir)) return OK;
    free(*dir);
    *dir = mem_strdup(operand);
    return OK;
}

/* A name that is no directory is an error, not a run without checkpoints. */
static ErrorCode list_all(CheckpointSet *set, const char *dir, CheckLevel level, Error *err) {
    if (!file_is_dir(dir))
        return error_set(err, ERR_NOINPUT, "%s: expected a run or its directory of checkpoints", dir);
    return checkpoint_list(set, dir, level, err);
}

/* "good" only if every byte was read, otherwise "complete". */
static void print_info(const CheckpointInfo *info, CheckLevel level, const BestCheckpoint *best) {
    char bytes[32];
    const char *word = level == CHECK_CONTENTS ? "good" : "complete";
    terminal_printf("%-16lld ", (long long)info->step);
    if (info->good)
        terminal_printf("%-20s  %12s  %s%s", info->time, text_bytes((double)info->bytes, bytes), word,
                        info->resumable ? "" : ", weights only");
    if (info->good && best->step == info->step) terminal_printf(", best: %s %.6g", best->figure, best->value);
    if (info->good)
        terminal_printf("\n");
    else
        terminal_printf("%-20s  %12s  damaged: %s\n", "-", "-", info->problem);
}

/* Prints one line each; fails if any is damaged. All are printed first: a damaged checkpoint must not hide
 * the good ones. */
static ErrorCode print_set(const char *dir, CheckLevel level, Error *err) {
    CheckpointSet set;
    BestCheckpoint best;
    size_t bad = 0;
    TRY(list_all(&set, dir, level, err));
    state_read_best(&best, dir);
    for (size_t i = 0; i < set.count; i++) {
        print_info(&set.items[i], level, &best);
        bad += !set.items[i].good;
    }
    size_t count = set.count;
    checkpoint_set_free(&set);
    if (bad > 0) return error_set(err, ERR_DATA, "%s: %zu of %zu checkpoints are damaged", dir, bad, count);
    return count > 0 ? OK : error_set(err, ERR_NOINPUT, "%s: there are no checkpoints", dir);
}

/* A directory with a manifest is one checkpoint; any other is a run, or its directory of checkpoints. For one
 * checkpoint the error describes the damage; for several their lines do, and the error counts them. */
static ErrorCode verify(const char *operand, const char *dir, Error *err) {
    char *manifest = path_join(operand, MANIFEST_FILE);
    bool single = file_exists(manifest);
    free(manifest);
    if (!single) return print_set(dir, CHECK_CONTENTS, err);
    TRY(checkpoint_verify(operand, err));
    terminal_printf("%s: good\n", operand);
    return OK;
}

/* Takes the run's lock, so that the run does not prune at the same time, and a save in progress is not taken
 * for a leftover. A directory of checkpoints outside of a run has no lock. */
static ErrorCode lock_run(RunLock *lock, const char *operand, const char *dir, Error *err) {
    char *run = strcmp(operand, dir) == 0 ? path_join(dir, "..") : mem_strdup(operand);
    char *file = path_join(run, "lock");
    ErrorCode code = file_exists(file) ? lock_take(lock, run, err) : OK;
    free(file);
    free(run);
    return code == OK ? OK : error_context(err, "nothing was removed");
}

/* At least two are left, as in a run (checkpoint.keep): the newest may turn out to be damaged. No step is in
 * use (-1): with the lock held, no run reads them. */
static ErrorCode prune(const Arguments *args, const char *dir, Error *err) {
    RunLock lock = {0};
    CheckpointKeep keep = {.last = 2, .every = 0};
    CheckpointSet set;
    BestCheckpoint best;
    int removed = 0;
    TRY(arguments_int(args, "--keep", 2, INT32_MAX, &keep.last, err));
    TRY(arguments_int(args, "--keep-every", 0, INT32_MAX, &keep.every, err));
    /* Called only for its error: a mistyped name fails before the lock is taken. */
    TRY(list_all(&set, dir, CHECK_MANIFEST, err));
    checkpoint_set_free(&set);
    TRY(lock_run(&lock, args->operands[1], dir, err));
    state_read_best(&best, dir);
    keep.best = best.step;
    /* By content: a damaged newer one must not displace a good older one. */
    ErrorCode code = checkpoint_prune(NULL, dir, keep, -1, CHECK_CONTENTS, &removed, err);
    lock_release(&lock);
    if (code == OK) terminal_printf("%d removed\n", removed);
    return code;
}

/* One verb with three actions rather than three verbs, since they take the same operand. The directory is
 * looked up before the action, which costs nothing and keeps the freeing in one place. */
static ErrorCode run_checkpoint(const Arguments *args, Error *err) {
    const char *action = args->operands[0];
    char *dir;
    ErrorCode code = OK;
    TRY(checkpoints_of(args->operands[1], &dir, err));
    if (strcmp(action, "list") == 0)
        code = print_set(dir, CHECK_MANIFEST, err);
    else if (strcmp(action, "verify") == 0)
        code = verify(args->operands[1], dir, err);
    else if (strcmp(action, "prune") == 0)
        code = prune(args, dir, err);
    else
        code = error_set(err, ERR_USAGE, "checkpoint: unknown action \"%s\", expected list, verify or prune",
                         action);
    free(dir);
    return code;
}

static const Flag flags[] = {
    {"--keep", 'k', "N", "prune: how many of the newest to keep, 2 or more; default 2"},
    {"--keep-every", 0, "N", "prune: also keep every one whose step is a multiple of N"},
    {NULL, 0, NULL, NULL},
};

const Verb verb_checkpoint = {
    .name = "checkpoint",
    .summary = "list, verify or prune the checkpoints of a run",
    .synopsis = "list | verify | prune DIR",
    .details = "DIR is a run or its directory of checkpoints; verify also takes one checkpoint.\n\n"
               "list reads manifests and sizes: a checkpoint that it calls complete may still hold damaged "
               "bytes. verify reads every byte and names what is damaged. prune removes all good checkpoints "
               "but the newest and the best (checkpoint.keep_best); damaged ones neither count nor go. A run "
               "that is training is not pruned: it "
               "does so by itself.\n\n"
               "Examples:\n"
               "  weft checkpoint verify runs/demo\n"
               "  weft checkpoint prune runs/demo --keep 3 --keep-every 1000",
    .flags = flags,
    .min_operands = 2,
    .max_operands = 2,
    .run = run_checkpoint,
};
