/* weft eval: measures how well a model predicts a text.
 *
 * The figures and the code are those of a run's validation: windows of the text, one exact sum over their
 * tokens (engine/evaluate.h).
 *
 *     loss             nats per token, the mean over all tokens
 *     perplexity       exp(loss)
 *     bits per byte    loss in bits over the bytes of text: does not depend on the tokenizer
 *
 * With --tasks it evaluates tasks instead (data/task.h), again with the code of a run's evaluation.
 *
 * Ranks of any mesh share the work, as in a run's validation. All read the same data, which they verify, and
 * rank 0 prints. `weft eval -n 4` starts such ranks, each of which is a `weft eval`. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/signals.h"
#include "cli/model.h"
#include "cli/terminal.h"
#include "checkpoint/fetch.h"
#include "checkpoint/find.h"
#include "comm/launch.h"
#include "engine/evaluate.h"
#include "train/agree.h"
#include "train/phase.h"
#include "train/setup.h"
#include "train/tasks.h"

/* Models for 128 k positions would otherwise use unexpectedly much memory. */
enum { LONGEST_DEFAULT = 2048 }; /* window length by default */

static const Flag flags[] = {
    {"--context", 'c', "N", "tokens of a window; default: what the model is for, at most 2048"},
    {"--batch", 'b', "N", "windows of a pass; default 1"},
    {"--format", 0, "FORMAT", "auto, text, jsonl or chat (answers alone count); default auto"},
    {"--key", 0, "NAME", "JSON lines: the member that holds the text (default text) or the messages"},
    {"--tasks", 0, "FILE.yaml", "instead of a text: the tasks of this configuration's section evaluation"},
    {"--samples", 0, "FILE",
     "with --tasks: the log-likelihood of every choice goes there, a JSON line a document"},
    {"--json", 0, NULL, "one JSON object instead of text"},
    {"--ranks", 'n', "N", "start N processes on this machine, joined by MPI, which share the work"},
    MODEL_FLAGS,
    {NULL, 0, NULL, NULL}};

/* The parsed command line, and the state that results from it. */
typedef struct Job {
    const Arguments *args;
    const char *text; /* NULL: tasks */
    ModelRanks ranks;
    Config asked; /* --tasks: only its section evaluation is used */
    OptionSet set;
    OpenModel model;
    Activity activity;
} Job;

static bool speaks(const Job *j) { return comm_rank(j->ranks.comm) == 0; }

/* In the order of SourceFormat. The words are those of a source's format in a configuration, so that training
 * and evaluation use the same ones. */
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

/* printf prints NaNs with signs. */
static void print_figure(const char *name, int digits, double value, const char *unit) {
    if (isnan(value))
        terminal_printf("%-15snan%s\n", name, unit);
    else
        terminal_printf("%-15s%.*f%s\n", name, digits, value, unit);
}

/* The loss has six digits, since people compare it; perplexity is its exponential, for comparison with
 * papers. Non-finite values are mentioned only if there are any. */
static void print_lines(const Evaluation *e) {
    print_figure("loss", 6, e->loss, " nats a token");
    print_figure("perplexity", 4, exp(e->loss), "");
    print_figure("bits per byte", 5, e->bits_per_byte, "");
    terminal_printf("tokens         %lld\nbytes          %lld\n", (long long)e->tokens, (long long)e->bytes);
    if (e->nonfinite) terminal_printf("not finite     %lld tokens\n", (long long)e->nonfinite);
}

/* The same figures for scripts, always all of them. A non-finite figure is null, since JSON has no NaN. */
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
    terminal_printf("%s\n", out.data);
    text_free(&out);
}

/* Data is tokenized by the model's tokenizer, whatever the run's data was. The mapped token cache outlives
 * its directory, so nothing needs to be removed later. Each rank has its own cache. */
static ErrorCode open_text(Dataset **data, const OpenModel *m, const char *path, DataConfig *config,
                           Error *err) {
    ScratchDir scratch;
    TRY(scratch_take(&scratch, "weft-eval-", err));
    config->cache_dir = scratch.path;
    ErrorCode code = dataset_open(data, config, m->tokenizer, m->plan.spec.positions, 0, err);
    config->cache_dir = NULL;
    scratch_give(&scratch);
    TRY(code);
    if (dataset_validation_samples(*data) > 0) return OK;
    return error_set(err, ERR_DATA, "%s: no text to evaluate on", path);
}

static ErrorCode agree_on_text(const Dataset *data, const OpenModel *m, Error *err) {
    RunFacts facts = {.sums = ""};
    Text files = {0};
    dataset_fingerprint(data, facts.data);
    tokenizer_fingerprint(m->tokenizer, facts.tokenizer);
    dataset_mixture(data, facts.mixture);
    dataset_list(data, &files);
    ErrorCode code = agree_on_data(m->comm, &facts, &files, err);
    text_free(&files);
    return code;
}

/* A failure during passes is local to this rank, and the others may be waiting for it. */
static ErrorCode alone(Comm *c, ErrorCode code, Error *err) {
    if (code != OK && comm_size(c) > 1) comm_fail(c, err);
    return code;
}

static ErrorCode measure_with(Job *j, DataConfig *config, Evaluation *out, Error *err) {
    OpenModel *m = &j->model;
    Dataset *data = NULL;
    activity_enter(&j->activity, PHASE_TOKENIZING, 0);
    ErrorCode code = comm_agree(m->comm, open_text(&data, m, j->text, config, err), err);
    if (code == OK) code = agree_on_text(data, m, err);
    if (code == OK && speaks(j)) dataset_warn(data);
    activity_enter(&j->activity, PHASE_VALIDATION, 0);
    if (code == OK) code = alone(m->comm, evaluate(m->engine, data, m->tokenizer, 0, out, NULL, err), err);
    if (data) dataset_close(data);
    return code;
}

/* The text as a validation source. It is also the training source, since a dataset needs one; no training
 * sample is drawn. Prefetch of 2: one pass is evaluated while the next is read. */
static ErrorCode measure(Job *j, Evaluation *out, Error *err) {
    const Arguments *args = j->args;
    const char *key = arguments_flag(args, "--key"), *tokenizer = arguments_flag(args, "--tokenizer");
    DataSource source = {.path = mem_strdup(j->text), .key = mem_strdup(key ? key : ""), .split = SPLIT_FILE};
    DataConfig config = {.sources = {1, (char *)&source},
                         .validation_sources = {1, (char *)&source},
                         .tokenizer = tokenizer ? (char *)(uintptr_t)tokenizer : j->model.dir,
                         /* As in training by default. */
                         .add_bos = true,
                         .add_eos = true,
                         .prefetch = 2,
                         .remote_dir = FETCH_CACHE};
    ErrorCode code = comm_agree(j->ranks.comm, format_of(args, &source.format, err), err);
    if (code == OK) code = measure_with(j, &config, out, err);
    free(source.path);
    free(source.key);
    return code;
}

/* ---- tasks ---- */

/* Standard errors are in the same row as their figure. */
typedef struct Row {
    const char *figure;
    double value, error;
} Row;
enum { ROWS = 7 };

static void rows_of(const TaskFigures *f, Row out[ROWS]) {
    const double none = (double)NAN;
    const Row rows[ROWS] = {{"acc", f->acc, f->acc_stderr},
                            {"acc_norm", f->acc_norm, f->acc_norm_stderr},
                            {"gold_bits_per_byte", f->gold_bits_per_byte, none},
                            {"perplexity", f->perplexity, f->perplexity_stderr},
                            {"word_perplexity", f->word_perplexity, none},
                            {"byte_perplexity", f->byte_perplexity, none},
                            {"bits_per_byte", f->bits_per_byte, none}};
    memcpy(out, rows, sizeof rows);
}

static void print_task(const Task *t, const TaskFigures *f) {
    Row rows[ROWS];
    const char *name = t->name;
    rows_of(f, rows);
    for (int i = 0; i < ROWS; i++) {
        if (!isfinite(rows[i].value)) continue;
        terminal_printf("%-20s %-20s %10.4f", name, rows[i].figure, rows[i].value);
        if (isfinite(rows[i].error)) terminal_printf(" +- %.4f", rows[i].error);
        terminal_printf("\n");
        name = "";
    }
    if (f->nonfinite)
        terminal_printf("%-20s %-20s %10lld tokens\n", name, "not finite", (long long)f->nonfinite);
}

/* Figures that a task lacks are omitted; `requests` is a digest of all tokens that were evaluated. */
static void put_task(JsonWriter *w, const Task *t, const TaskFigures *f) {
    Row rows[ROWS];
    char key[64];
    rows_of(f, rows);
    json_key(w, t->name);
    json_begin_object(w);
    json_put_string(w, "task", t->format->name);
    json_put_int(w, "documents", f->documents);
    json_put_int(w, "truncated", f->truncated);
    json_put_int(w, "nonfinite", f->nonfinite);
    for (int i = 0; i < ROWS; i++) {
        if (!isfinite(rows[i].value)) continue;
        json_put_double(w, rows[i].figure, rows[i].value);
        snprintf(key, sizeof key, "%s_stderr", rows[i].figure);
        if (isfinite(rows[i].error)) json_put_double(w, key, rows[i].error);
    }
    json_put_string(w, "requests", t->print);
    json_end_object(w);
}

/* One document per line: the figures of its choices, and which one is right. */
static void put_samples(const Task *t, const TaskScore *slots, Text *out) {
    for (size_t i = 0; i < t->documents; i++) {
        const TaskDocument *d = &t->document[i];
        JsonWriter w;
        json_start(&w, out, 0);
        json_begin_object(&w);
        json_put_string(&w, "name", t->name);
        json_put_int(&w, "document", (int64_t)i);
        json_put_int(&w, "gold", d->gold);
        json_key(&w, "sums");
        json_begin_array(&w);
        for (int k = 0; k < d->count; k++) json_double(&w, slots[d->first + (size_t)k].sum);
        json_end_array(&w);
        json_key(&w, "greedy");
        json_begin_array(&w);
        for (int k = 0; k < d->count; k++) json_bool(&w, slots[d->first + (size_t)k].missed == 0);
        json_end_array(&w);
        json_end_object(&w);
        text_puts(out, "\n");
    }
}

static ErrorCode score_all(OpenModel *m, const Tasks *tasks, TaskFigures *figures, Text *samples,
                           Error *err) {
    for (size_t i = 0; i < tasks->count; i++) {
        const Task *t = tasks->items[i];
        TaskScore *slots = mem_alloc_array(t->slots, sizeof *slots);
        ErrorCode code = tasks_measure(m->engine, t, slots, &figures[i], err);
        if (code == OK) put_samples(t, slots, samples);
        free(slots);
        TRY(code);
        if (figures[i].nonfinite)
            log_warn("task %s: the log-likelihoods of %lld tokens are not finite", t->name,
                     (long long)figures[i].nonfinite);
    }
    return OK;
}

static void print_tasks(const Arguments *args, const Tasks *tasks, const TaskFigures *figures) {
    Text out = {0};
    JsonWriter w;
    bool json = arguments_has(args, "--json");
    json_start(&w, &out, 0);
    json_begin_object(&w);
    json_key(&w, "tasks");
    json_begin_object(&w);
    for (size_t i = 0; i < tasks->count; i++) {
        if (json)
            put_task(&w, tasks->items[i], &figures[i]);
        else
            print_task(tasks->items[i], &figures[i]);
    }
    json_end_object(&w);
    json_end_object(&w);
    if (json) terminal_printf("%s\n", out.data);
    text_free(&out);
}

/* All ranks read the tasks, and verify that they are the same. */
static ErrorCode open_tasks(Job *j, Tasks *tasks, Error *err) {
    const OpenModel *m = &j->model;
    Text text = {0};
    ErrorCode code = tasks_open(tasks, &j->asked, m->tokenizer, m->plan.spec.positions, err);
    TRY(comm_agree(m->comm, code, err));
    TRY(tasks_agree(tasks, m->comm, err));
    tasks_describe(tasks, m->plan.spec.positions, &text);
    log_lines(text.data);
    if (speaks(j)) tasks_warn(tasks);
    text_free(&text);
    return OK;
}

static ErrorCode report_tasks(const Job *j, const Tasks *tasks, const TaskFigures *figures,
                              const Text *samples, Error *err) {
    const char *path = arguments_flag(j->args, "--samples");
    if (!speaks(j)) return OK;
    if (path) TRY(file_write_atomic(path, samples->data, samples->length, err));
    print_tasks(j->args, tasks, figures);
    return OK;
}

static ErrorCode run_tasks(Job *j, Error *err) {
    Tasks tasks = {0};
    Text samples = {0};
    TaskFigures *figures = mem_alloc_array(j->asked.evaluation.tasks.count, sizeof *figures);
    ErrorCode code = open_tasks(j, &tasks, err);
    activity_enter(&j->activity, PHASE_VALIDATION, 0);
    if (code == OK) code = alone(j->ranks.comm, score_all(&j->model, &tasks, figures, &samples, err), err);
    if (code == OK) code = comm_agree(j->ranks.comm, report_tasks(j, &tasks, figures, &samples, err), err);
    tasks_close(&tasks);
    text_free(&samples);
    free(figures);
    return code;
}

static ErrorCode measure_text(Job *j, Error *err) {
    Evaluation e;
    TRY(measure(j, &e, err));
    if (!speaks(j)) return OK;
    if (e.nonfinite)
        log_warn("the losses of %lld of %lld tokens are not finite", (long long)e.nonfinite,
                 (long long)e.tokens);
    if (arguments_has(j->args, "--json"))
        print_object(&e);
    else
        print_lines(&e);
    return OK;
}

/* ---- operands ---- */

static bool is_key(const char *word) { return model_is_key(word) && strchr(word, '='); }

/* MODEL [TEXT] [mesh.KEY=N ...] [comm.watchdog_s=N]: a text or tasks, not both. */
static ErrorCode read_operands(Job *j, Error *err) {
    const Arguments *args = j->args;
    int first = 1; /* index of the first key */
    while (first < args->operand_count && !is_key(args->operands[first])) first++;
    bool tasks = arguments_has(args, "--tasks"), text = first > 1;
    j->text = text ? args->operands[1] : NULL;
    j->ranks.key_count = args->operand_count - first;
    j->ranks.keys = args->operands + first;
    if (first > 2)
        return error_set(
            err, ERR_USAGE,
            "eval: expected a model and a text, and keys of mesh or comm.watchdog_s: \"%s\" is one too many",
            args->operands[2]);
    if (!tasks && arguments_has(args, "--samples"))
        return error_set(err, ERR_USAGE, "eval: --samples goes with --tasks");
    if (tasks != text) return OK;
    return error_set(err, ERR_USAGE, "eval: expected %s",
                     tasks ? "a text or --tasks, not both" : "a text to evaluate on, or --tasks FILE.yaml");
}

/* A whole configuration, or a file with that section alone: the rest is ignored. */
static ErrorCode read_tasks(Job *j, Error *err) {
    const char *path = arguments_flag(j->args, "--tasks"), *samples = arguments_flag(j->args, "--samples");
    if (!path) return OK;
    if (samples && speaks(j)) TRY(file_check_write(samples, err));
    TRY(config_load(&j->asked, &j->set, path, 0, NULL, checkpoint_find_shape, err));
    if (j->asked.evaluation.tasks.count > 0) return OK;
    return error_set(err, ERR_CONFIG, "%s: evaluation.tasks is empty: name what to try the model on", path);
}

/* A context beyond the model's is allowed if positions are rotary: one may want to measure how a model fails
 * there. The warnings go to stderr, so --json stays one object. */
static ErrorCode open_for(Job *j, Error *err) {
    OpenModel *m = &j->model;
    int64_t context = 0, batch = 1;
    ErrorCode code = arguments_int(j->args, "--context", 1, 1 << 24, &context, err);
    if (code == OK) code = arguments_int(j->args, "--batch", 1, 1 << 20, &batch, err);
    TRY(comm_agree(j->ranks.comm, code, err));
    PassShape shape = {.context = context, .most = LONGEST_DEFAULT, .sequences = batch};
    activity_enter(&j->activity, PHASE_LOADING, 0);
    TRY(open_model(m, j->args->operands[0], j->args, shape, &j->ranks, err));
    TRY(load_model(m, &(NeedsSpec){.flags = "--batch, --context"}, err));
    if (context > m->plan.model.config.max_position_embeddings)
        log_warn("--context is %lld: this model is for sequences of %lld, and knows no position behind them",
                 (long long)context, (long long)m->plan.model.config.max_position_embeddings);
    return OK;
}

/* ---- processes ---- */

/* There is no state to save, so it exits at once: 130 is the shells' status for an interrupt. The launcher
 * forwards it as SIGUSR1. */
static void on_signal(int number) {
    (void)number;
    launched_end(130);
}

static void catch_signals(void) {
    struct sigaction action = {.sa_handler = on_signal};
    if (!launched_env_find().by_launcher) return;
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGUSR2, &action, NULL);
}

/* Only the first of several ranks prints; a failure that ends all of them is printed by one (comm_agree,
 * comm_fail). */
static ErrorCode evaluate_joined(Job *j, Error *err) {
    activity_enter(&j->activity, PHASE_READING, 0);
    if (!speaks(j)) log_set_level(LOG_ERROR);
    TRY(comm_agree(j->ranks.comm, model_check_ranks(&j->ranks, comm_size(j->ranks.comm), err), err));
    TRY(comm_agree(j->ranks.comm, read_tasks(j, err), err));
    ErrorCode code = open_for(j, err);
    if (code == OK) code = j->text ? measure_text(j, err) : run_tasks(j, err);
    close_model(&j->model);
    return code;
}

/* Invalid keys are refused after the ranks have joined. */
static ErrorCode evaluate_here(Job *j, Error *err) {
    CommWatch watch = {0, activity_describe, &j->activity};
    (void)model_watchdog(&j->ranks, &watch.seconds, NULL);
    catch_signals();
    activity_start(&j->activity);
    TRY(comm_open_watched(&j->ranks.comm, &watch, err));
    ErrorCode code = evaluate_joined(j, err);
    options_free(&j->set);
    if (code != OK) comm_report(j->ranks.comm, err);
    comm_close(j->ranks.comm);
    return code;
}

/* No machine has more than 4,096 cores; a larger number is a mistake. One rank needs no launcher. */
static ErrorCode run_eval(const Arguments *args, Error *err) {
    Job j = {.args = args};
    int64_t ranks = 1;
    TRY(read_operands(&j, err));
    TRY(arguments_int(args, "--ranks", 1, 4096, &ranks, err));
    if (ranks == 1) return evaluate_here(&j, err);
    TRY(model_check_ranks(&j.ranks, (int)ranks, err));
    Config c = {.run.threads = 0};
    TRY(arguments_int(args, "--threads", 0, 4096, &c.run.threads, err));
    double watchdog_s;
    TRY(model_watchdog(&j.ranks, &watchdog_s, err));
    setup_before_ranks(&c, (int)ranks);
    char **words = arguments_words(args, "--ranks", NULL);
    ErrorCode code = launch_ranks(&(LaunchTerms){.ranks = (int)ranks, .watchdog_s = watchdog_s}, words, err);
    arguments_free_words(words);
    return code;
}

const Verb verb_eval = {
    .name = "eval",
    .summary = "loss, perplexity and bits per byte of a model on a text, or how it does at tasks",
    .synopsis = "RUN|CHECKPOINT FILE | RUN|CHECKPOINT --tasks FILE.yaml [-n RANKS] [mesh.KEY=N ...]",
    .details =
        "The text is cut into windows; each token is predicted from those before it in its window. "
        "Bits per byte compare models with\n"
        "different tokenizers.\n\n"
        "With --tasks the model is asked for the likelihood of answers, as EleutherAI's harness does it: "
        "accuracy, perplexity and their standard\n"
        "errors, on files that are there (docs/use/tasks.md).\n\n"
        "With -n N, or started by mpirun or srun, ranks share the work, as the keys of mesh define for "
        "weft train: by default each has a shard of\n"
        "the weights (mesh.dp_shard). The figures have the same bits on any number of them; with mesh.tp and "
        "mesh.cp they are those of\n"
        "numerics.tp_invariant_up_to and numerics.cp_invariant_up_to, which one rank may be given too. "
        "comm.watchdog_s=N is how long they wait for one that hangs.\n\n"
        "Examples:\n"
        "  weft eval runs/demo some-text.txt\n"
        "  weft eval runs/demo held-out.jsonl.zst --context 512 --json\n"
        "  weft eval runs/demo --tasks tasks.yaml\n"
        "  weft eval runs/demo --tasks tasks.yaml -n 4 mesh.pp=2",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_eval,
};
