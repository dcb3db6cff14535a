/* Where a run keeps its checkpoints, and which directory a user means who names a model, a checkpoint or a
 * run.
 *
 *     named               known by          what is meant
 *     a model             config.json       itself; a checkpoint is a model directory, too
 *     an adapter          adapter_config.json   itself, where one may be meant
 *     a run               checkpoints/      the newest good checkpoint in there
 *     its checkpoints     their names       the same */
#include "checkpoint/find.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"

/* The caller's, to free. */
char *checkpoint_directory(const char *run_dir) { return path_join(run_dir, "checkpoints"); }

/* Before anything is removed or written there: a link in its place is refused. *dir is the caller's on
 * success. */
ErrorCode checkpoint_own_directory(const char *run_dir, char **dir, Error *err) {
    *dir = checkpoint_directory(run_dir);
    ErrorCode code = file_check_own_dir(*dir, err);
    if (code != OK) free(*dir);
    return code;
}

/* In this order: a model directory, a run, a directory of checkpoints. Of the latter two the newest good
 * checkpoint is meant; weights are enough. *dir is the caller's on success. */
ErrorCode checkpoint_find_weights(const char *where, char **dir, Error *err) {
    Checkpoint ckpt;
    CheckpointSet there = {0};
    if (!file_exists(where))
        return error_set(err, ERR_NOINPUT, "%s: no such model, checkpoint or run directory", where);
    if (file_holds(where, "config.json") || adapter_is(where)) {
        *dir = mem_strdup(where);
        return OK;
    }
    char *inside = NULL;
    if (file_holds(where, "checkpoints"))
        TRY(checkpoint_own_directory(where, &inside, err));
    else
        inside = mem_strdup(where);
    /* Asked first for the sake of the message: "no checkpoint is good" would be beside the point for a
     * directory that is something else altogether. */
    bool empty = checkpoint_candidates(&there, inside, NULL) == OK && there.count == 0;
    checkpoint_set_free(&there);
    if (empty) {
        free(inside);
        return error_set(err, ERR_NOINPUT,
                         "%s: neither a model directory (it holds no config.json) nor a run with "
                         "checkpoints: expected one of these, or a checkpoint",
                         where);
    }
    ErrorCode code = checkpoint_open(&ckpt, inside, false, err);
    if (code == OK) {
        *dir = mem_strdup(ckpt.path);
        checkpoint_close(&ckpt);
    }
    free(inside);
    return code;
}

ErrorCode checkpoint_find_model(const char *where, char **dir, Error *err) {
    TRY(checkpoint_find_weights(where, dir, err));
    if (!adapter_is(*dir)) return OK;
    error_set(err, ERR_DATA,
              "%s is an adapter, not a model: \"weft merge %s DIR\" makes one of it and its base", *dir,
              where);
    free(*dir);
    *dir = NULL;
    return ERR_DATA;
}

bool checkpoint_keeps_balance(const ModelFiles *optimizer) {
    static const char end[] = ".balance_bias";
    bool found = false;
    for (size_t i = 0; i < optimizer->count && !found; i++) {
        const char *name = optimizer->tensors[i].name;
        found = strlen(name) >= sizeof end && strcmp(name + strlen(name) - (sizeof end - 1), end) == 0;
    }
    return found;
}

void checkpoint_warn_balance(const char *dir) {
    char *path = path_join(dir, CHECKPOINT_OPTIMIZER);
    ModelFiles files = {0};
    Error err;
    bool open = file_exists(path) && modelfiles_open(&files, path, &err) == OK,
         found = open && checkpoint_keeps_balance(&files);
    if (open) modelfiles_close(&files);
    if (found)
        log_warn("%s: experts were trained with a bias that balances them (train.router_bias_speed), which "
                 "files of the family have no place for: the model alone chooses experts without it",
                 dir);
    free(path);
}
