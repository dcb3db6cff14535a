/* weft tokenize: fills the token cache ahead of time.
 *
 * It makes the same call as a run (dataset_open), so the run finds its cache. Machines that share a cache
 * directory thus need not tokenize, and a run starts with its first step. */
#include <stdio.h>

#include "base/clock.h"
#include "checkpoint/find.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "data/dataset.h"
#include "config/config.h"

static const Flag flags[] = {{"--verify", 0, NULL, "compare all of the cache with its checksums"},
                             {NULL, 0, NULL, NULL}};

/* The same lines as at the start of a run, and the size of an epoch: they show whether the data is what the
 * user expected. */
static void summarise(const Dataset *d, const Config *c, Text *out) {
    char tokens[32], held[32], samples[32], print[65];
    dataset_fingerprint(d, print);
    dataset_describe(d, 0, out);
    text_printf(out, "tokens       %s for training, %s for validation\n",
                text_count((int64_t)dataset_tokens(d), tokens),
                text_count((int64_t)dataset_validation_tokens(d), held));
    text_printf(out, "samples      %s an epoch, of %lld tokens\n",
                text_count((int64_t)dataset_samples_per_epoch(d), samples), (long long)c->train.context);
    text_printf(out, "fingerprint  %s\n", print);
}

/* Checks every block; a run checks each block when it first reads it. */
static ErrorCode verify(const Dataset *d, Error *err) {
    double start = clock_seconds();
    TRY(dataset_verify(d, err));
    char took[16];
    log_info("every block of the cache matches its checksum (%s)",
             clock_duration(clock_seconds() - start, took));
    return OK;
}

/* Opening the data builds the missing parts of the cache. */
static ErrorCode tokenize(const Arguments *args, const Config *c, const Tokenizer *tokenizer, Error *err) {
    Dataset *d;
    TRY(dataset_open(&d, &c->data, tokenizer, c->train.context, (int)c->run.threads, err));
    dataset_warn(d);
    ErrorCode code = arguments_has(args, "--verify") ? verify(d, err) : OK;
    if (code == OK) {
        Text out = {0};
        summarise(d, c, &out);
        terminal_printf("%s", out.data);
        text_free(&out);
    }
    dataset_close(d);
    return code;
}

/* Uses the configuration of the run itself: a cache is found by tokenizer, sources and rules
 * (data/dataset.c). */
static ErrorCode run_tokenize(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Tokenizer *tokenizer = NULL;
    ErrorCode code = config_load(&c, &set, args->operands[0], args->operand_count - 1, args->operands + 1,
                                 checkpoint_find_model, err);
    if (code == OK) code = tokenizer_open_as(&tokenizer, c.data.tokenizer, &c.data.tokenizer_keys, err);
    if (code == OK) code = tokenize(args, &c, tokenizer, err);
    tokenizer_free(tokenizer);
    options_free(&set);
    return code;
}

const Verb verb_tokenize = {
    .name = "tokenize",
    .summary = "fill the token cache of a configuration ahead of time",
    .synopsis = "CONFIG.yaml [section.key=value ...]",
    .details =
        "Tokenizes the sources of data.* that data.cache_dir does not hold yet. May be interrupted and run "
        "again: it goes on where it was. Training does the same by itself; this is for doing it elsewhere, "
        "or before.\n\n"
        "Examples:\n"
        "  weft tokenize configs/demo.yaml\n"
        "  weft tokenize my.yaml data.sources=[more/*.jsonl.zst] --verify",
    .flags = flags,
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_tokenize,
};
