/* weft merge: merges an adapter into its base as a separate model directory.
 *
 *     operand --> adapter (of a run the newest) --> base --> export_merged --> DIR, complete or not at all */
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "checkpoint/export.h"
#include "checkpoint/find.h"
#include "cli/model.h"
#include "cli/terminal.h"

static const Flag flags[] = {
    {"--dtype", 0, "TYPE", "of the weights: fp32 or bf16; default fp32"},
    BASE_FLAG,
    {NULL, 0, NULL, NULL},
};

/* The caller closes the adapter, also after a failure. */
static ErrorCode open_operand(AdapterDir *a, const Arguments *args, Error *err) {
    char *dir;
    TRY(checkpoint_find_weights(args->operands[0], &dir, err));
    ErrorCode code = adapter_is(dir)
                         ? adapter_open(a, dir, arguments_flag(args, "--base"), err)
                         : error_set(err, ERR_DATA,
                                     "%s is a model, not an adapter: there is nothing to merge into it", dir);
    free(dir);
    return code;
}

static ErrorCode run_merge(const Arguments *args, Error *err) {
    AdapterDir a = {.count = 0};
    SafeType stored;
    uint64_t bytes = 0;
    char size[32];
    TRY(stored_type(args, &stored, err));
    ErrorCode code = open_operand(&a, args, err);
    if (code == OK) code = export_merged(&a, stored, args->operands[1], &bytes, err);
    if (code == OK)
        terminal_printf("%s: %s of weights in %s, of\n  %s\nand, on %d of its matrices,\n  %s\n",
                        args->operands[1], text_bytes((double)bytes, size), safe_type_name(stored), a.base,
                        a.count, a.dir);
    adapter_close(&a);
    return code;
}

const Verb verb_merge = {
    .name = "merge",
    .summary = "write an adapter (LoRA) and its base as one model directory",
    .synopsis = "RUN|ADAPTER DIR [--base DIR] [--dtype bf16]",
    .details = "Takes a run with lora.rank, one of its checkpoints, or any adapter of PEFT's, and adds what "
               "it learned to "
               "the matrices of the model that it is for. DIR, a Hugging Face model directory, appears when "
               "it is whole; "
               "tokenizer and chat template are the adapter's where it has them.\n\n"
               "Examples:\n"
               "  weft merge runs/tuned my-model --dtype bf16\n"
               "  weft merge downloads/adapter my-model --base models/Llama-3.2-1B",
    .flags = flags,
    .min_operands = 2,
    .max_operands = 2,
    .run = run_merge,
};
