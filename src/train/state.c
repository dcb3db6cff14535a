/* Every rank reads its part of a checkpoint, and all agree on the result: a checkpoint that is damaged for a
 * single rank is skipped by all. Nothing in the engine is changed before the run has been compared with the
 * file.
 *
 * The trainer's ResumePoint owns what was found. state_close frees it when the weights are loaded, or when
 * the run ends before that.
 *
 *     state_find      the newest checkpoint that is good on all ranks; the run as it was saved
 *     (changes.c)     compares that with the run as it is configured now
 *     state_take_up   weights, optimizer, count of updates
 *     state_discard   instead of all that: a run that starts over */
#include "train/state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/find.h"
#include "observe/audit.h"
#include "observe/journal.h"
#include "observe/listener.h"
#include "observe/metrics.h"
#include "observe/receipts.h"
#include "observe/report.h"
#include "observe/tensorboard.h"
#include "observe/trace.h"
#include "train/agree.h"
#include "train/tensors.h"

/* A checkpoint that was saved without an average has none: the average then begins with the weights. */
static ErrorCode load_average(Engine *e, const Checkpoint *ckpt, Error *err) {
    Tensors *average = tensors_of_average(e, TENSORS_TO_LOAD);
    ErrorCode code = OK;
    if (average && ckpt->average.count > 0)
        code = modelfiles_load(&ckpt->average, &average->list, err);
    else
        engine_start_average(e);
    tensors_free(average);
    return code;
}

static bool has_exact_weights(const ModelFiles *optimizer) {
    static const char exact[] = "master.";
    for (size_t i = 0; i < optimizer->count; i++)
        if (strncmp(optimizer->tensors[i].name, exact, sizeof exact - 1) == 0) return true;
    return false;
}

/* If the model file is bf16, and so rounded, the optimizer file holds the exact weights. engine_refresh
 * updates the compute copies of the master weights. */
static ErrorCode load_tensors(Engine *e, const Checkpoint *ckpt, Error *err) {
    bool rounded = has_exact_weights(&ckpt->optimizer);
    Tensors *model = tensors_of_model(e, TENSORS_TO_LOAD, SAFE_F32);
    Tensors *optimizer = tensors_of_optimizer(e, &ckpt->optimizer, rounded);
    ErrorCode code = rounded ? OK : modelfiles_load(&ckpt->model, &model->list, err);
    if (code == OK) code = modelfiles_load(&ckpt->optimizer, &optimizer->list, err);
    if (code == OK) code = load_average(e, ckpt, err);
    tensors_free(model);
    tensors_free(optimizer);
    engine_refresh(e);
    return code;
}

/* Every rank reads its part of the checkpoint, and all agree on the result. Reading is divided by bytes; each
 * rank opens the files by itself. A rank with a directory of its own reads all of it, because nobody else
 * does. */
static ErrorCode open_together(Checkpoint *ckpt, Comm *comm, bool shared, const char *path, Error *err) {
    int rank = shared ? comm_rank(comm) : 0, ranks = shared ? comm_size(comm) : 1;
    ErrorCode code = checkpoint_check_part(path, rank, ranks, err);
    TRY(comm_agree(comm, code, err));
    code = checkpoint_open_verified(ckpt, path, true, err);
    bool open = code == OK;
    code = comm_agree(comm, code, err);
    /* Another rank could not open it: close it here as well, so that all try the next one. */
    if (code != OK && open) checkpoint_close(ckpt);
    return code;
}

/* Opens the newest good one of those that rank 0 found. */
static ErrorCode open_newest_on_all(Checkpoint *ckpt, Comm *comm, bool shared, const CheckpointSet *set,
                                    int64_t count, Error *err) {
    char path[4096];
    bool speaks = comm_rank(comm) == 0;
    for (int64_t i = count; i-- > 0;) {
        Error problem = {.message = ""};
        if (speaks) snprintf(path, sizeof path, "%s", set->items[i].path);
        TRY(comm_broadcast(comm, path, sizeof path, 0, err));
        ErrorCode code = open_together(ckpt, comm, shared, path, &problem);
        if (code == OK && i + 1 < count && speaks)
            log_warn("going back to %s, the newest good checkpoint", path);
        if (code == OK) return OK;
        if (speaks) log_warn("checkpoint passed over: %s", problem.message);
    }
    error_set(err, ERR_DATA,
              "no checkpoint is good: \"weft checkpoint verify\" names what is damaged; put back a copy, or "
              "start over with run.overwrite=true");
    err->reported = !speaks;
    return ERR_DATA;
}

/* Another checkpoint at the same path on another machine would also pass verification, so the ranks compare
 * checksums. */
static ErrorCode agree_on_checkpoint(const Checkpoint *ckpt, Comm *comm, Error *err) {
    char seal[17];
    snprintf(seal, sizeof seal, "%016llx", (unsigned long long)ckpt->seal);
    return agree_on_file(comm, "the checksum of the checkpoint's manifest", seal,
                         "run.dir must be one directory that all ranks see", err);
}

/* Finding none is no error: the run begins. state_close closes `f` in any case. */
ErrorCode state_find(ResumePoint *f, const char *run_dir, bool shared, Comm *comm, Error *err) {
    CheckpointSet there = {0};
    char *dir = checkpoint_directory(run_dir);
    *f = (ResumePoint){.exists = false};
    ErrorCode code = comm_rank(comm) == 0 ? checkpoint_candidates(&there, dir, err) : OK;
    TRY(comm_agree(comm, code, err));
    int64_t count = (int64_t)there.count;
    code = comm_broadcast(comm, &count, sizeof count, 0, err);
    if (code == OK && count > 0) code = open_newest_on_all(&f->checkpoint, comm, shared, &there, count, err);
    if (code != OK) error_context(err, "%s", dir);
    f->exists = code == OK && count > 0;
    checkpoint_set_free(&there);
    free(dir);
    if (!f->exists) return code;
    TRY(agree_on_checkpoint(&f->checkpoint, comm, err));
    code = saved_parse(&f->saved, f->checkpoint.state, err);
    if (code != OK) error_context(err, "%s", f->checkpoint.path);
    return comm_agree(comm, code, err);
}

ErrorCode state_open(ResumePoint *f, const char *path, Comm *comm, Error *err) {
    *f = (ResumePoint){.exists = false};
    TRY(open_together(&f->checkpoint, comm, true, path, err));
    f->exists = true;
    TRY(agree_on_checkpoint(&f->checkpoint, comm, err));
    ErrorCode code = saved_parse(&f->saved, f->checkpoint.state, err);
    if (code != OK) error_context(err, "%s", f->checkpoint.path);
    return comm_agree(comm, code, err);
}

/* The run was compared before (changes.c), so a mismatch here means a damaged or edited checkpoint. */
ErrorCode state_take_up(const ResumePoint *f, Engine *e, Comm *comm, Error *err) {
    engine_set_updates(e, f->saved.updates);
    ErrorCode code = load_tensors(e, &f->checkpoint, err);
    if (code != OK) error_context(err, "%s", f->checkpoint.path);
    return comm_agree(comm, code, err);
}

void state_close(ResumePoint *f) {
    if (f->exists) {
        saved_free(&f->saved);
        checkpoint_close(&f->checkpoint);
    }
    *f = (ResumePoint){.exists = false};
}

#define STATE_LIMIT (4 << 20)

/* Reads the newest state that exists, good or not: for people who ask what a run was trained on, not for
 * resuming. Facts stay empty if no checkpoint has a state. */
ErrorCode state_read_facts(RunFacts *facts, const char *run_dir, Error *err) {
    CheckpointSet set = {0};
    char *dir = checkpoint_directory(run_dir), *text = NULL;
    *facts = (RunFacts){0};
    ErrorCode code = checkpoint_candidates(&set, dir, err);
    for (size_t i = set.count; code == OK && !text && i-- > 0;) {
        size_t length;
        char *path = path_join(set.items[i].path, CHECKPOINT_STATE);
        if (file_exists(path)) code = file_read_own(path, STATE_LIMIT, &text, &length, err);
        if (text) code = saved_parse_facts(facts, text, err);
        if (code != OK) error_context(err, "%s", set.items[i].path);
        free(path);
    }
    free(text);
    checkpoint_set_free(&set);
    free(dir);
    return code;
}

/* A checkpoint of weights only has no state, and a damaged one cannot be trusted: then the previous one is
 * read. */
void state_read_best(BestCheckpoint *best, const char *checkpoints) {
    CheckpointSet set = {0};
    bool found = false;
    *best = (BestCheckpoint){.step = 0};
    if (checkpoint_candidates(&set, checkpoints, NULL) != OK) return;
    for (size_t i = set.count; !found && i-- > 0;) {
        char *path = path_join(set.items[i].path, CHECKPOINT_STATE), *text = NULL;
        size_t length;
        if (file_exists(path) && file_read_own(path, STATE_LIMIT, &text, &length, NULL) == OK)
            found = saved_parse_best(best, text, NULL) == OK;
        free(text);
        free(path);
    }
    if (!found) *best = (BestCheckpoint){.step = 0};
    checkpoint_set_free(&set);
}

/* Files that readers of the new run would take for its own. */
static const char *const records[] = {METRICS_PATTERN, JOURNAL_FILE, TRACE_FILE,
                                      REPORT_FILE,     LISTENER_LOG, RECEIPTS_FILE};

/* Checkpoints go first: after a crash in between, the directory starts a new run instead of resuming with
 * half of its records. */
ErrorCode state_discard(const char *run_dir, Error *err) {
    char *dir = checkpoint_directory(run_dir);
    ErrorCode code = file_remove_tree(dir, err);
    free(dir);
    for (size_t i = 0; code == OK && i < sizeof records / sizeof *records; i++)
        code = file_remove_matching(run_dir, records[i], err);
    if (code == OK) code = tensorboard_discard(run_dir, err);
    return code == OK ? audit_discard(run_dir, err) : code;
}

/* A hash of samples, not of all bytes: every rank computes it before weights are loaded. */
ErrorCode state_sample_weights(const char *dir, char out[65], Error *err) {
    ModelFiles files;
    TRY(modelfiles_open(&files, dir, err));
    ErrorCode code = modelfiles_sample(&files, out, err);
    modelfiles_close(&files);
    return code;
}

static ErrorCode load_weights(Engine *e, Tensors *model, const char *dir, Error *err) {
    ModelFiles files;
    ErrorCode code = modelfiles_open(&files, dir, err);
    if (code == OK) code = modelfiles_load(&files, &model->list, err);
    tensors_free(model);
    modelfiles_close(&files);
    engine_refresh(e);
    return code;
}

/* Loads the weights of a model directory or checkpoint, in whatever dtype they are stored; each rank reads
 * its shard. */
ErrorCode state_load_weights(Engine *e, const char *dir, Error *err) {
    return load_weights(e, tensors_of_base(e, TENSORS_TO_LOAD), dir, err);
}

ErrorCode state_load_adapter(Engine *e, const char *dir, Error *err) {
    return load_weights(e, tensors_of_model(e, TENSORS_TO_LOAD, SAFE_F32), dir, err);
}
