/* weft export: the weights of a run as a separate model directory.
 *
 *     operand + --average --> which checkpoints --> export_model --> DIR, complete or not at all
 *
 * This file decides which directories are read. For an average each of them is first verified completely: the
 * mean would not show that one of five was damaged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export.h"
#include "checkpoint/find.h"
#include "cli/model.h"
#include "cli/terminal.h"

/* A bound for the array below, beyond the number of checkpoints that anybody keeps. */
enum { MOST_AVERAGED = 1000 };

static const Flag flags[] = {
    {"--dtype", 0, "TYPE", "of the weights: fp32 or bf16; default fp32"},
    {"--ema", 0, NULL,
     "the moving average of the weights that the run kept (optimizer.ema), not the last ones"},
    {"--average", 0, "K", "the mean of the K newest good checkpoints of the run; default 1, the newest"},
    {NULL, 0, NULL, NULL},
};

/* Directories, newest first; the caller frees each. */
typedef struct Chosen {
    char *dirs[MOST_AVERAGED];
    size_t count;
} Chosen;

/* From the newest down until there are `wanted`. Every byte is read; damaged ones are skipped with a warning,
 * as when a run resumes. */
static void choose_good(Chosen *c, const CheckpointSet *there, size_t wanted) {
    for (size_t i = there->count; i-- > 0 && c->count < wanted;) {
        Error problem = {.message = ""};
        if (checkpoint_verify(there->items[i].path, &problem) == OK)
            c->dirs[c->count++] = mem_strdup(there->items[i].path);
        else
            log_warn("checkpoint passed over: %s", problem.message);
    }
}

/* A single one is found as in every verb: the newest good checkpoint of a run, a checkpoint, or a model
 * directory (checkpoint_find_model). Several must be a run's, and as many as requested: a mean of fewer would
 * not be the model that the command line asks for. Directories chosen before a failure stay in `c`, which the
 * caller frees. */
static ErrorCode choose(Chosen *c, const char *where, size_t wanted, Error *err) {
    CheckpointSet there = {0};
    char *dir;
    if (wanted == 1) {
        TRY(checkpoint_find_model(where, &c->dirs[0], err));
        c->count = 1;
        return OK;
    }
    TRY(checkpoint_own_directory(where, &dir, err));
    ErrorCode code = checkpoint_candidates(&there, dir, err);
    if (code == OK) choose_good(c, &there, wanted);
    if (code == OK && c->count < wanted)
        code = error_set(
            err, ERR_NOINPUT,
            "%s: %zu good checkpoints, but the average is to be of %zu (checkpoint.keep is how many a "
            "run keeps)",
            dir, c->count, wanted);
    checkpoint_set_free(&there);
    free(dir);
    return code;
}

/* Prints paths, so that a log of the command later shows which checkpoints the weights came from. */
static void report(const Chosen *c, SafeType stored, const char *dir, uint64_t bytes) {
    char size[32];
    terminal_printf("%s: %s of weights in %s, ", dir, text_bytes((double)bytes, size),
                    safe_type_name(stored));
    terminal_printf(c->count > 1 ? "the mean of %zu checkpoints:\n" : "of\n", c->count);
    for (size_t i = 0; i < c->count; i++) terminal_printf("  %s\n", c->dirs[i]);
}

/* Flags first, then checkpoints, then the directory: errors on the command line are reported before gigabytes
 * are read. */
static ErrorCode run_export(const Arguments *args, Error *err) {
    Chosen c = {.count = 0};
    SafeType stored;
    int64_t wanted = 1;
    uint64_t bytes = 0;
    TRY(arguments_int(args, "--average", 1, MOST_AVERAGED, &wanted, err));
    TRY(stored_type(args, &stored, err));
    ErrorCode code = choose(&c, args->operands[0], (size_t)wanted, err);
    if (code == OK)
        code = export_model((const char *const *)c.dirs, c.count, arguments_has(args, "--ema"), stored,
                            args->operands[1], &bytes, err);
    if (code == OK) report(&c, stored, args->operands[1], bytes);
    for (size_t i = 0; i < c.count; i++) free(c.dirs[i]);
    return code;
}

const Verb verb_export = {
    .name = "export",
    .summary = "write a run's weights as a model directory, in another type or averaged",
    .synopsis = "RUN|CHECKPOINT DIR [--dtype bf16] [--ema] [--average K]",
    .details =
        "Makes DIR, a Hugging Face model directory with weights, configuration and tokenizer, and nothing "
        "that only training needs. Weights are exact where --dtype is fp32, also those of a run whose "
        "checkpoints are in bf16 (checkpoint.dtype), which keeps exact ones with the moments.\n\n"
        "With --ema they are the moving average that a run with optimizer.ema keeps in each checkpoint. "
        "With --average the weights are the mean of those of the last K checkpoints of the run. DIR appears "
        "when it is whole.\n\n"
        "Examples:\n"
        "  weft export runs/demo my-model --dtype bf16\n"
        "  weft export runs/demo averaged --average 5",
    .flags = flags,
    .min_operands = 2,
    .max_operands = 2,
    .run = run_export,
};
