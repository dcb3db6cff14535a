/* Finds a run's checkpoint directory, and the model directory for a path that names a model, a checkpoint or
 * a run.
 *
 *     path to             recognised by     result
 *     a model             config.json       itself; a checkpoint is a model directory, too
 *     an adapter          adapter_config.json   itself, if adapters are accepted
 *     a run               checkpoints/      its newest good checkpoint
 *     its checkpoints     their names       the same
 *     a mirror            URL               the copy of its newest checkpoint, or of the step in the URL */
#include "checkpoint/find.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/adapter.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fetch.h"

/* The caller frees the result. */
char *checkpoint_directory(const char *run_dir) { return path_join(run_dir, "checkpoints"); }

/* Called before anything is removed or written there: refuses a link in its place. The caller frees *dir on
 * success. */
ErrorCode checkpoint_own_directory(const char *run_dir, char **dir, Error *err) {
    *dir = checkpoint_directory(run_dir);
    ErrorCode code = file_check_own_dir(*dir, err);
    if (code != OK) free(*dir);
    return code;
}

/* Tried in this order: a model directory, a run, a directory of checkpoints. For the latter two the result is
 * the newest good checkpoint; weights are enough. The caller frees *dir on success. */
ErrorCode checkpoint_find_weights(const char *where, char **dir, Error *err) {
    Checkpoint ckpt;
    CheckpointSet there = {0};
    if (file_is_url(where)) return fetch_checkpoint(where, FETCH_CACHE, dir, err);
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
    /* Checked first for the sake of the message: "no checkpoint is good" would be misleading for an unrelated
     * directory. */
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

/* Frees *dir if it fails. */
static ErrorCode refuse_adapter(const char *where, char **dir, Error *err) {
    if (!adapter_is(*dir)) return OK;
    error_set(err, ERR_DATA,
              "%s is an adapter, not a model: \"weft merge %s DIR\" makes one of it and its base", *dir,
              where);
    free(*dir);
    *dir = NULL;
    return ERR_DATA;
}

ErrorCode checkpoint_find_model(const char *where, char **dir, Error *err) {
    TRY(checkpoint_find_weights(where, dir, err));
    return refuse_adapter(where, dir, err);
}

ErrorCode checkpoint_find_shape(const char *where, const char *cache_dir, char **dir, Error *err) {
    if (!file_is_url(where)) return checkpoint_find_model(where, dir, err);
    TRY(fetch_description(where, cache_dir, dir, err));
    return refuse_adapter(where, dir, err);
}

/* One rank of each machine fetches; the others then find the copy. */
static ErrorCode fetch_on_ranks(const char *step, const char *cache_dir, Comm *comm, char **dir, Error *err) {
    bool first = comm_local_rank(comm) == 0;
    TRY(comm_agree(comm, first ? fetch_checkpoint(step, cache_dir, dir, err) : OK, err));
    return comm_agree(comm, first ? OK : fetch_checkpoint(step, cache_dir, dir, err), err);
}

ErrorCode checkpoint_name_on_ranks(const char *where, const char *cache_dir, Comm *comm, char **named,
                                   Error *err) {
    char *found = NULL;
    *named = NULL;
    if (!file_is_url(where)) {
        *named = mem_strdup(where);
        return OK;
    }
    ErrorCode code = comm_rank(comm) == 0 ? fetch_name_step(where, cache_dir, &found, err) : OK;
    code = comm_agree(comm, code, err);
    if (code == OK) code = comm_broadcast_text(comm, found, named, err);
    free(found);
    return code;
}

ErrorCode checkpoint_find_on_ranks(const char *where, const char *cache_dir, Comm *comm, char **dir,
                                   Error *err) {
    char *named;
    *dir = NULL;
    ErrorCode code = checkpoint_name_on_ranks(where, cache_dir, comm, &named, err);
    if (code == OK && file_is_url(named)) {
        code = fetch_on_ranks(named, cache_dir, comm, dir, err);
        free(named);
    } else {
        *dir = named;
    }
    if (code == OK) return OK;
    free(*dir);
    *dir = NULL;
    return code;
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
