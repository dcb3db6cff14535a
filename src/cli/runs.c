/* Runs side by side, with the facts that only a checkpoint has.
 *
 * A run directory's own files contain its configuration and its figures (observe/). The content of its data,
 * and the machine and build that computed it, are only in the state of its checkpoints. train/ reads that,
 * and observe/, which is below train/, cannot: so the facts are fetched here and passed down. */
#include "cli/runs.h"

#include "base/log.h"
#include "train/state.h"

/* The content of a text or a tokenizer determines the curve; the order of sums, kernels and build determine
 * its last bits. */
static const struct {
    const char *part, *name;
    size_t offset;
    OptionEffect effect;
} facts[] = {
    {"data", "data (fingerprint)", offsetof(RunFacts, data), EFFECT_CURVE},
    {"data", "tokenizer (fingerprint)", offsetof(RunFacts, tokenizer), EFFECT_CURVE},
    {"data", "mixture", offsetof(RunFacts, mixture), EFFECT_CURVE},
    {"machine", "order of sums", offsetof(RunFacts, sums), EFFECT_SUMS},
    {"machine", "kernels", offsetof(RunFacts, kernels), EFFECT_SUMS},
    {"machine", "build", offsetof(RunFacts, build), EFFECT_SUMS},
};

/* If a checkpoint cannot be read, or disappears meanwhile, only its facts are missing. */
static void add_facts(Runs *runs) {
    RunFacts of[RUNS_MAX];
    for (size_t i = 0; i < runs->count; i++) {
        Error err = {.message = ""};
        if (state_read_facts(&of[i], runs->dirs[i], &err) != OK)
            log_warn("facts of data and machine are not known: %s", err.message);
    }
    for (size_t f = 0; f < sizeof facts / sizeof *facts; f++) {
        const char *values[RUNS_MAX];
        for (size_t i = 0; i < runs->count; i++) values[i] = (const char *)&of[i] + facts[f].offset;
        runs_add_fact(runs, facts[f].part, facts[f].name, options_effect_name(facts[f].effect), values);
    }
}

/* A single run is not compared, so its checkpoints are not opened. */
ErrorCode open_runs(const Arguments *args, Runs *runs, Error *err) {
    TRY(runs_open(runs, args->operands, (size_t)args->operand_count, err));
    if (runs->count > 1) add_facts(runs);
    return OK;
}
