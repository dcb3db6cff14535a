/* weft eval: how well a model predicts a text.
 *
 * What is measured is what a run's validation measures, by the same code: windows of the text, one exact
 * sum over their tokens (engine/evaluate.h).
 *
 *     loss             nats a token, the mean over all tokens
 *     perplexity       exp(loss)
 *     bits per byte    loss in bits over the bytes of text: does not depend on the tokenizer */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/model.h"
#include "engine/evaluate.h"

/* Models for 128 k positions would ask for memory that nobody meant to give. */
enum { LONGEST_DEFAULT = 2048 }; /* a window, when none is asked for */

static const Flag flags[] = {
    {"--context", 'c', "N", "tokens of a window; default: what the model is for, at most 2048"},
    {"--batch", 'b', "N", "windows of a pass; default 1"},
    {"--format", 0, "FORMAT", "auto, text, jsonl or chat (answers alone count); default auto"},
    {"--key", 0, "NAME", "JSON lines: the member that holds the text (default text) or the messages"},
    {"--json", 0, NULL, "one JSON object instead of text"},
    MODEL_FLAGS,
    {NULL, 0, NULL, NULL}};

/* In the order of SourceFormat. The choices are those of a source's format in a configuration, so that
 * what trains under a key evaluates under the same word. */
static ErrorCode format_of(const Arguments *args, int *out, Error *err) {
    static const char *const names[] = {"auto", "text", "jsonl", "chat"};
    const char *name = arguments_flag(args, "--format");
    *out = FORMAT_AUTO;
    for (int i = 0; name && i < 4; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = i;
            return OK;
        }
    return name ? error_set(err, ERR_USAGE, "--format is \"%s\": expected auto, text, jsonl or chat", name)
                : OK;
}

/* printf has NaNs with signs. */
static void print_figure(const char *name, int digits, double value, const char *unit) {
    if (isnan(value))
        printf("%-15snan%s\n", name, unit);
    else
        printf("%-15s%.*f%s\n", name, digits, value, unit);
}

/* Six digits of the loss are what people compare; perplexity is its exponential, and is there because
 * papers have it. What is not finite is named only where there is any. */
static void print_lines(const Evaluation *e) {
    print_figure("loss", 6, e->loss, " nats a token");
    print_figure("perplexity", 4, exp(e->loss), "");
    print_figure("bits per byte", 5, e->bits_per_byte, "");
    printf("tokens         %lld\nbytes          %lld\n", (long long)e->tokens, (long long)e->bytes);
    if (e->nonfinite) printf("not finite     %lld tokens\n", (long long)e->nonfinite);
}

/* The same figures for scripts, all of them always. A figure that is no number is null there: JSON has no
 * NaN. */
static void print_object(const Evaluation *e) {
    Text out = {0};
    JsonWriter w;
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_put_double(&w, "loss", e->loss);
    json_put_double(&w, "perplexity", exp(e->loss));
    json_put_double(&w, "bits_per_byte", e->bits_per_byte);
    json_put_int(&w, "tokens", e->tokens);
    json_put_int(&w, "bytes", e->bytes);
    json_put_int(&w, "nonfinite", e->nonfinite);
    json_end_object(&w);
    printf("%s\n", out.data);
    text_free(&out);
}

/* Data is opened with the tokenizer of the model, whatever the run's data was. What the token cache maps
 * stays when its directory goes: from then on nobody has to remove anything. */
static ErrorCode measure_with(OpenModel *m, const char *path, DataConfig *config, Evaluation *out,
                              Error *err) {
    Dataset *data;
    ScratchDir scratch;
    TRY(scratch_take(&scratch, "weft-eval-", err));
    config->cache_dir = scratch.path;
    ErrorCode code = dataset_open(&data, config, m->tokenizer, m->plan.spec.positions, 0, err);
    config->cache_dir = NULL;
    scratch_give(&scratch);
    TRY(code);
    code = dataset_validation_samples(data) > 0
               ? evaluate(m->engine, data, m->tokenizer, 0, out, err)
               : error_set(err, ERR_DATA, "%s: no text to evaluate on", path);
    dataset_close(data);
    return code;
}

/* The text as a validation source. It is the training source too, since a dataset must have one; no sample
 * of that is drawn. Prefetch of 2: one pass is evaluated while the next is read. */
static ErrorCode measure(const Arguments *args, OpenModel *m, Evaluation *out, Error *err) {
    const char *key = arguments_flag(args, "--key"), *tokenizer = arguments_flag(args, "--tokenizer");
    DataSource source = {
        .path = mem_strdup(args->operands[1]), .key = mem_strdup(key ? key : ""), .split = SPLIT_FILE};
    DataConfig config = {.sources = {1, (char *)&source},
                         .validation_sources = {1, (char *)&source},
                         .tokenizer = tokenizer ? (char *)(uintptr_t)tokenizer : m->dir,
                         /* As training does by default. */
                         .add_bos = true,
                         .add_eos = true,
                         .prefetch = 2};
    ErrorCode code = format_of(args, &source.format, err);
    if (code == OK) code = measure_with(m, source.path, &config, out, err);
    free(source.path);
    free(source.key);
    return code;
}

/* A context beyond what the model is for is allowed where positions are angles: how a model fails there is
 * something one may want to measure. The warnings go to stderr, so --json stays one object. */
static ErrorCode run(const Arguments *args, Error *err) {
    OpenModel m = {0};
    Evaluation e;
    int64_t context = 0, batch = 1;
    TRY(arguments_int(args, "--context", 1, 1 << 24, &context, err));
    TRY(arguments_int(args, "--batch", 1, 1 << 20, &batch, err));
    PassShape shape = {.context = context, .most = LONGEST_DEFAULT, .sequences = batch};
    ErrorCode code = open_model(&m, args->operands[0], args, shape, err);
    if (code == OK && context > m.plan.model.config.max_position_embeddings)
        log_warn("--context is %lld: this model is for sequences of %lld, and knows no position behind them",
                 (long long)context, (long long)m.plan.model.config.max_position_embeddings);
    if (code == OK) code = measure(args, &m, &e, err);
    if (code == OK && e.nonfinite)
        log_warn("the losses of %lld of %lld tokens are not finite", (long long)e.nonfinite,
                 (long long)e.tokens);
    if (code == OK && arguments_has(args, "--json")) print_object(&e);
    if (code == OK && !arguments_has(args, "--json")) print_lines(&e);
    close_model(&m);
    return code;
}

const Verb verb_eval = {
    .name = "eval",
    .summary = "loss, perplexity and bits per byte of a model on a text",
    .synopsis = "RUN|CHECKPOINT FILE",
    .details = "The text is cut into windows; each token is predicted from those before it in its window. "
               "Bits per byte compare models with\n"
               "different tokenizers.\n\n"
               "Examples:\n"
               "  weft eval runs/demo some-text.txt\n"
               "  weft eval runs/demo held-out.jsonl.zst --context 512 --json",
    .flags = flags,
    .min_operands = 2,
    .max_operands = 2,
    .run = run,
};
