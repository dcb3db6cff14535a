/* weft tokenize: fills the token cache ahead of time.
 *
 * It makes the same call as a run (dataset_open), so the run finds its cache. Machines that share a cache
 * directory thus need not tokenize, and a run starts with its first step. */
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "checkpoint/find.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "data/dataset.h"
#include "data/token_export.h"
#include "config/config.h"

static const Flag flags[] = {
    {"--verify", 0, NULL, "compare all of the cache with its checksums"},
    {"--export", 0, "FORMAT", "write the ids for other programs: npy, or megatron (.bin and .idx)"},
    {"--out", 0, "DIR", "with --export: where the files go; default tokens"},
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

/* ---- export ---- */

enum { EXPORT_NAME = 32 };

/* Sources are numbered, since their paths may be patterns. */
static const char *export_name(const Config *c, size_t i, char out[EXPORT_NAME]) {
    bool trains = i < c->data.sources.count;
    snprintf(out, EXPORT_NAME, "%s-%zu", trains ? "train" : "validation",
             trains ? i : i - c->data.sources.count);
    return out;
}

/* Files that are written: one for each source, and one for what is held out of each by hash. */
static size_t export_files(const Config *c) {
    size_t sources = c->data.sources.count;
    return sources + (c->data.validation_fraction > 0 ? sources : c->data.validation_sources.count);
}

static ErrorCode export_format(const char *word, TokenExportFormat *out, Error *err) {
    static const char *const names[] = {TOKEN_EXPORTS(CHOICE_NAME)};
    for (int i = 0; i < 2; i++) {
        *out = (TokenExportFormat)i;
        if (strcmp(word, names[i]) == 0) return OK;
    }
    return error_set(err, ERR_USAGE, "--export is \"%s\": expected npy or megatron", word);
}

/* Before anything is tokenized. */
static ErrorCode export_check(const TokenExport *e, const Config *c, Error *err) {
    char name[EXPORT_NAME];
    if (data_has_conversations(&c->data))
        return error_set(err, ERR_CONFIG,
                         "a source has conversations: token files of other programs have no place for which "
                         "tokens are learned");
    if (c->data.validation_fraction > 0 && c->data.holdout_by == HOLDOUT_POSITION)
        return error_set(err, ERR_CONFIG,
                         "data.validation_fraction cuts sources into two: export with 0, or draw whole "
                         "documents with data.holdout_by: hash, or hold out files of their own with "
                         "data.validation");
    for (size_t i = 0; i < export_files(c); i++) TRY(token_export_check(e, export_name(c, i, name), err));
    return OK;
}

static ErrorCode export_prepare(const Arguments *args, const Config *c, const Tokenizer *tokenizer,
                                TokenExport *e, Error *err) {
    const char *out = arguments_flag(args, "--out");
    *e = (TokenExport){.dir = out ? out : "tokens",
                       .vocabulary = (uint64_t)tokenizer_vocab_size(tokenizer),
                       .eos = tokenizer_eos(tokenizer)};
    if (!arguments_has(args, "--export"))
        return out ? error_set(err, ERR_USAGE, "--out belongs to --export") : OK;
    if (!e->dir[0]) return error_set(err, ERR_USAGE, "--out is empty: name a directory");
    TRY(export_format(arguments_flag(args, "--export"), &e->format, err));
    return export_check(e, c, err);
}

static ErrorCode export_all(const TokenExport *e, const Config *c, const Dataset *d, Error *err) {
    TRY(file_make_dirs(e->dir, err));
    for (size_t i = 0; i < export_files(c); i++) {
        char name[EXPORT_NAME], tokens[32], documents[32];
        bool held = i >= dataset_inputs(d);
        size_t source = held ? i - dataset_inputs(d) : i;
        const TokenCache *cache = held ? dataset_held_cache(d, source) : dataset_cache(d, source);
        TRY(token_export(e, export_name(c, i, name), cache, err));
        terminal_printf(
            "%s/%s.%s: %s tokens, %s documents of %s\n", e->dir, name,
            e->format == EXPORT_NPY ? "npy" : "bin", text_count((int64_t)token_cache_tokens(cache), tokens),
            text_count((int64_t)token_cache_documents(cache), documents), dataset_input(d, source).path);
    }
    return OK;
}

/* Opening the data builds the missing parts of the cache. */
static ErrorCode tokenize(const Arguments *args, const Config *c, const Tokenizer *tokenizer, Error *err) {
    Dataset *d;
    TokenExport export;
    TRY(export_prepare(args, c, tokenizer, &export, err));
    TRY(dataset_open(&d, &c->data, tokenizer, c->train.context, (int)c->run.threads, err));
    dataset_warn(d);
    ErrorCode code = arguments_has(args, "--verify") ? verify(d, err) : OK;
    if (code == OK && arguments_has(args, "--export")) code = export_all(&export, c, d, err);
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
                                 checkpoint_find_shape, err);
    if (code == OK) code = tokenizer_open_as(&tokenizer, c.data.tokenizer, &c.data.tokenizer_keys, err);
    if (code == OK) code = tokenize(args, &c, tokenizer, err);
    tokenizer_free(tokenizer);
    options_free(&set);
    return code;
}

const Verb verb_tokenize = {
    .name = "tokenize",
    .summary = "fill the token cache of a configuration ahead of time",
    .synopsis = "CONFIG.yaml [section.key=value ...] [--export npy|megatron [--out DIR]]",
    .details =
        "Tokenizes the sources of data.* that data.cache_dir does not hold yet. May be interrupted and run "
        "again: it goes on where it was. Training does the same by itself; this is for doing it elsewhere, "
        "or before.\n\n"
        "With --export, the ids of each source are also written for other programs, as train-0.npy, "
        "train-1.npy, validation-0.npy or the same as .bin and .idx. Nothing is overwritten.\n\n"
        "Examples:\n"
        "  weft tokenize configs/demo.yaml\n"
        "  weft tokenize my.yaml --export megatron --out ids\n"
        "  weft tokenize my.yaml data.sources=[more/*.jsonl.zst] --verify",
    .flags = flags,
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_tokenize,
};
