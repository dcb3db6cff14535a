/* weft train: a run from its configuration to its last checkpoint. */
#include "cli/cli.h"
#include "train/trainer.h"

static ErrorCode run(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    ErrorCode code = config_load(&c, &set, args->operands[0], args->operand_count - 1, args->operands + 1, err);
    if (code == OK) code = trainer_run(&c, &set, err);
    options_free(&set);
    return code;
}

const Verb verb_train = {
    .name = "train",
    .summary = "train a model from text and one configuration file",
    .synopsis = "CONFIG.yaml [section.key=value ...]",
    .details =
        "Prints the plan, takes all its memory, then trains. Everything goes to run.dir. A run that finds a checkpoint there "
        "goes on\n"
        "from it. SIGINT, SIGTERM or SIGUSR1 finish the step, save, and exit with status 75; a second SIGINT exits at once.\n\n"
        "Examples:\n"
        "  weft train configs/demo.yaml\n"
        "  weft train my.yaml run.dir=runs/a optimizer.lr=1e-3 'data.sources=[a.txt, {path: b.jsonl.zst, weight: 2}]'",
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};
