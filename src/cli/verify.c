/* weft verify: proves the receipts of a run (run.receipts, observe/receipts.h).
 *
 *     --chain     reads the log alone: no line was changed, moved or removed, and none is missing that a
 *                 checkpoint states
 *     --step K    makes the steps from the checkpoint before K to K again, here, and compares the receipts
 *
 * The second runs the trainer in a temporary directory, with the receipts of the same steps
 * (trainer_replay). Levels of processes are those of weft train: with more than one rank this process starts
 * mpirun, and each rank is a `weft verify`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "comm/launch.h"
#include "observe/receipts.h"
#include "train/agree.h"
#include "train/saved.h"
#include "train/setup.h"
#include "train/trainer.h"

static const Flag flags[] = {
    {"--step", 0, "K", "make the steps up to K again, from the checkpoint before it, and compare"},
    {"--chain", 0, NULL, "check the log itself"},
    {"--head", 0, "HASH", "with --chain: a line that must be in the log, by its h"},
    {"--ranks", 'n', "N", "with --step: start N processes on this machine; default: as many as the run had"},
    {NULL, 0, NULL, NULL},
};

/* ---- --chain ---- */

/* Whether the log has the line that a checkpoint states. *stated counts those that state one. */
static ErrorCode check_anchor(const Receipts *r, const CheckpointInfo *at, int *stated, Error *err) {
    enum { LIMIT = 4 << 20 };
    char *path = path_join(at->path, CHECKPOINT_STATE), *text = NULL;
    size_t length;
    RunFacts facts = {.sums = ""};
    ErrorCode code = file_exists(path) ? file_read_own(path, LIMIT, &text, &length, err) : OK;
    if (code == OK && text) code = saved_parse_facts(&facts, text, err);
    free(text);
    free(path);
    TRY(code);
    if (!*facts.receipt) return OK;
    ++*stated;
    if (receipts_have(r, facts.receipt)) return OK;
    return error_set(
        err, ERR_DATA,
        "%s: the receipt %.12s... of the checkpoint of step %lld is missing: lines were cut off, "
        "or the log was rewritten",
        r->path, facts.receipt, (long long)at->step);
}

static ErrorCode check_anchors(const Receipts *r, const char *run, int *stated, Error *err) {
    CheckpointSet set;
    char *dir = checkpoint_directory(run);
    ErrorCode code = checkpoint_list(&set, dir, CHECK_MANIFEST, err);
    free(dir);
    TRY(code);
    for (size_t i = 0; code == OK && i < set.count; i++)
        if (set.items[i].good) code = check_anchor(r, &set.items[i], stated, err);
    checkpoint_set_free(&set);
    return code;
}

static ErrorCode check_head(const Receipts *r, const char *head, Error *err) {
    if (!head || receipts_have(r, head)) return OK;
    return error_set(err, ERR_DATA, "%s: no line has the hash %s: the log was cut or rewritten", r->path,
                     head);
}

static ErrorCode verify_chain(const Arguments *args, Error *err) {
    Receipts r;
    int stated = 0;
    ErrorCode code = receipts_read(&r, args->operands[0], err);
    if (code == OK) code = check_head(&r, arguments_flag(args, "--head"), err);
    if (code == OK) code = check_anchors(&r, args->operands[0], &stated, err);
    if (code == OK && r.count > 0)
        terminal_printf("%s: the chain of %zu receipts is whole, up to step %lld, in %zu attempt%s; %d "
                        "checkpoint%s state%s lines of it%s\nhead %s\n",
                        r.path, r.count, (long long)r.items[r.count - 1].step, r.attempts,
                        r.attempts == 1 ? "" : "s", stated, stated == 1 ? "" : "s", stated == 1 ? "s" : "",
                        r.torn ? "; a torn last line does not count" : "", r.items[r.count - 1].h);
    if (code == OK && r.count == 0) code = error_set(err, ERR_DATA, "%s: there is no receipt", r.path);
    receipts_free(&r);
    return code;
}

/* ---- --step: what is made again ---- */

typedef struct Job {
    const Arguments *args;
    const char *run;
    int64_t step;
    Receipts log;
    char *checkpoint; /* "": from the beginning */
    int64_t from;     /* its step */
    int64_t *steps;   /* with receipts, after `from` */
    size_t count;
} Job;

static void close_job(Job *j) {
    receipts_free(&j->log);
    free(j->checkpoint);
    free(j->steps);
}

/* The newest good one before the step whose own step has a receipt that counts: a later attempt may have gone
 * back behind others. */
static ErrorCode find_checkpoint(Job *j, Error *err) {
    CheckpointSet set;
    char *dir = checkpoint_directory(j->run);
    ErrorCode code = checkpoint_list(&set, dir, CHECK_MANIFEST, err);
    free(dir);
    TRY(code);
    j->checkpoint = path_join("", "");
    for (size_t i = 0; i < set.count; i++) {
        const CheckpointInfo *c = &set.items[i];
        if (!c->good || !c->resumable || c->step >= j->step || !receipts_of_step(&j->log, c->step)) continue;
        free(j->checkpoint);
        j->checkpoint = path_join("", c->path);
        j->from = c->step;
    }
    checkpoint_set_free(&set);
    return OK;
}

static void find_steps(Job *j) {
    j->steps = mem_alloc_array(j->log.valid_count + 1, sizeof *j->steps);
    for (size_t i = 0; i < j->log.valid_count; i++) {
        const Receipt *r = &j->log.items[j->log.valid[i]];
        if (!r->begin && r->step > j->from && r->step <= j->step) j->steps[j->count++] = r->step;
    }
}

/* The steps before and after it that have receipts. */
static ErrorCode refuse_step(const Job *j, Error *err) {
    int64_t before = 0, after = 0;
    for (size_t i = 0; i < j->log.valid_count; i++) {
        const Receipt *r = &j->log.items[j->log.valid[i]];
        if (r->begin) continue;
        if (r->step < j->step) before = r->step;
        if (r->step > j->step && after == 0) after = r->step;
    }
    return error_set(err, ERR_USAGE,
                     "step %lld has no receipt: one is written every metrics.log_freq steps and with each "
                     "checkpoint; near it are those of steps %lld and %lld",
                     (long long)j->step, (long long)before, (long long)after);
}

static ErrorCode open_job(Job *j, Error *err) {
    TRY(receipts_read(&j->log, j->run, err));
    if (!receipts_of_step(&j->log, j->step)) return refuse_step(j, err);
    TRY(find_checkpoint(j, err));
    find_steps(j);
    return OK;
}

/* ---- --step: the verdict, on rank 0 ---- */

/* Facts of another run, and facts that give other last bits. */
static const char *const same_run[] = {"config", "data", "tokenizer", "mixture", "base"};
static const char *const same_bits[] = {"sums", "kernels", "build"};

static const char *unlike(const Receipts *a, const Receipt *x, const Receipts *b, const Receipt *y,
                          const char *const *names, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (strcmp(receipt_fact(a, x, names[i]), receipt_fact(b, y, names[i])) != 0) return names[i];
    return NULL;
}

/* "at step 12 its weights differ": appended for the first step that differs. */
static void find_difference(const Job *j, const Receipts *again, const char *names, Text *out) {
    const Receipt *before = receipts_of_step(&j->log, j->from), *start = &again->items[0];
    if (before && strcmp(before->weights, start->weights) != 0)
        text_printf(out, "the checkpoint of step %lld does not have the weights of its receipt",
                    (long long)j->from);
    for (size_t i = 0; i < j->count && out->length == 0; i++) {
        Text what = {0};
        receipt_compare(receipts_of_step(&j->log, j->steps[i]), receipts_of_step(again, j->steps[i]), names,
                        &what);
        if (what.length) text_printf(out, "at step %lld %s", (long long)j->steps[i], what.data);
        text_free(&what);
    }
}

static ErrorCode refute(const Job *j, const Receipts *again, const Receipt *begin, const Text *difference,
                        Error *err) {
    const char *other =
        unlike(&j->log, begin, again, &again->items[0], same_bits, sizeof same_bits / sizeof *same_bits);
    if (!other)
        return error_set(err, ERR_DIFFERENT, "step %lld is refuted: %s", (long long)j->step,
                         difference->data);
    return error_set(
        err, ERR_UNAVAILABLE,
        "step %lld is neither confirmed nor refuted: %s; but the run had %s \"%s\" and here it is "
        "\"%s\", so last bits may differ: verify on such ranks and kernels, with such a build",
        (long long)j->step, difference->data, other, receipt_fact(&j->log, begin, other),
        receipt_fact(again, &again->items[0], other));
}

static ErrorCode judge(const Job *j, const Receipts *again, Error *err) {
    const Receipt *begin = receipts_begin_of(&j->log, j->step), *here = &again->items[0];
    Text difference = {0};
    const char *other = unlike(&j->log, begin, again, here, same_run, sizeof same_run / sizeof *same_run);
    if (other)
        return error_set(
            err, ERR_CONFIG, "this is not the run of step %lld: its %s was \"%.60s\", here it is \"%.60s\"",
            (long long)j->step, other, receipt_fact(&j->log, begin, other), receipt_fact(again, here, other));
    find_difference(j, again, begin->names, &difference);
    ErrorCode code = difference.length ? refute(j, again, begin, &difference, err) : OK;
    text_free(&difference);
    if (code != OK) return code;
    terminal_printf(
        "step %lld is confirmed: made again from step %lld on %lld rank%s, it has the samples, the "
        "loss, the gradient norm and the weights of its receipt\nweights %s\n",
        (long long)j->step, (long long)j->from, (long long)here->ranks, here->ranks == 1 ? "" : "s",
        receipts_of_step(&j->log, j->step)->weights);
    return OK;
}

/* ---- --step: a rank ---- */

/* Nothing is saved, measured or sent. */
static const char *const quiet[] = {
    "run.receipts=true",         "run.overwrite=false",     "metrics.tensorboard=false",
    "metrics.command=[]",        "metrics.all_ranks=false", "metrics.probe=0",
    "metrics.noise_scale=false", "evaluation.tasks=[]",     "checkpoint.mirror=''",
    "checkpoint.restore=''",     "checkpoint.keep_best=''", "checkpoint.async=false",
    "check.replicas_every=0",    "data.audit=false",        "metrics.trace=''",
    "metrics.profile=false",     "check.replay_every=0",    "check.stragglers_every=0"};
static const char *const flat_mesh[] = {"mesh.pp=1", "mesh.dp_replicate=1", "mesh.dp_shard=-1",
                                        "mesh.cp=1", "mesh.tp=1",           "mesh.ep=1"};
enum { QUIET = sizeof quiet / sizeof *quiet, FLAT = sizeof flat_mesh / sizeof *flat_mesh };

static bool names_mesh(const Arguments *args) {
    for (int i = 1; i < args->operand_count; i++)
        if (strncmp(args->operands[i], "mesh.", 5) == 0) return true;
    return false;
}

/* The run's configuration, its keys above, and those of the command line. On another number of ranks than the
 * run had, the mesh is that of a configuration that says nothing about it. */
static ErrorCode load(const Job *j, int ranks, const char *dir, Config *c, OptionSet *set, Error *err) {
    const Receipt *begin = receipts_begin_of(&j->log, j->step);
    const char **words = mem_alloc_array((size_t)(QUIET + FLAT + 1 + j->args->operand_count), sizeof *words);
    int count = 0;
    char *in = mem_alloc(strlen(dir) + 16);
    sprintf(in, "run.dir=%s", dir);
    for (int i = 0; i < QUIET; i++) words[count++] = quiet[i];
    for (int i = 0; i < FLAT && ranks != begin->ranks && !names_mesh(j->args); i++)
        words[count++] = flat_mesh[i];
    for (int i = 1; i < j->args->operand_count; i++) words[count++] = j->args->operands[i];
    words[count++] = in;
    ErrorCode code = config_load_either(c, set, j->run, count, words, checkpoint_find_shape, err);
    free(in);
    free(words);
    return code;
}

/* The directory is rank 0's. Its name goes to all ranks, since their configurations must be equal. */
static ErrorCode replay(Job *j, Comm *comm, Activity *activity, const ScratchDir *scratch, Error *err) {
    Config c;
    OptionSet set;
    char dir[4096] = "";
    Receipts again = {.path = NULL};
    if (scratch->path) snprintf(dir, sizeof dir, "%s", scratch->path);
    TRY(comm_broadcast(comm, dir, sizeof dir, 0, err));
    Replay replay = {j->checkpoint, j->step, j->steps, j->count};
    ErrorCode code = comm_agree(comm, load(j, comm_size(comm), dir, &c, &set, err), err);
    if (code == OK) code = agree_on_config(comm, &set, err);
    if (code == OK) code = trainer_replay(comm, j->run, &c, &set, &replay, activity, err);
    options_free(&set);
    TRY(code);
    if (comm_rank(comm) == 0) {
        code = receipts_read(&again, dir, err);
        if (code == OK) code = judge(j, &again, err);
        receipts_free(&again);
    }
    return comm_agree(comm, code, err);
}

static ErrorCode verify_here(Job *j, Error *err) {
    Comm *comm;
    Activity activity;
    ScratchDir scratch = {0};
    enum { WATCHDOG_S = 600 };
    TRY(trainer_take_signals(err));
    activity_start(&activity);
    CommWatch watch = {WATCHDOG_S, activity_describe, &activity};
    TRY(comm_open_watched(&comm, &watch, err));
    activity_enter(&activity, PHASE_READING, 0);
    if (log_level() > LOG_WARN) log_set_level(LOG_WARN); /* a run's messages are about a run */
    ErrorCode code = comm_rank(comm) == 0 ? scratch_take(&scratch, "weft-verify-", err) : OK;
    code = comm_agree(comm, code, err);
    if (code == OK) code = replay(j, comm, &activity, &scratch, err);
    scratch_give(&scratch);
    trainer_ignore_signals();
    if (code != OK) comm_report(comm, err);
    comm_close(comm);
    return code;
}

/* ---- --step: processes ---- */

static ErrorCode launch(const Job *j, int ranks, Error *err) {
    Config c;
    OptionSet set;
    ErrorCode code = load(j, ranks, "unused", &c, &set, err);
    if (code == OK) setup_before_ranks(&c, ranks);
    double watchdog_s = code == OK ? c.comm.watchdog_s : 0;
    options_free(&set);
    TRY(code);
    char **words = arguments_words(j->args, "--ranks", NULL);
    code = launch_ranks(&(LaunchTerms){.ranks = ranks, .watchdog_s = watchdog_s}, words, err);
    arguments_free_words(words);
    return code;
}

static ErrorCode verify_step(const Arguments *args, Error *err) {
    Job j = {.args = args, .run = args->operands[0]};
    TRY(arguments_int(args, "--step", 1, INT64_C(1) << 53, &j.step, err));
    ErrorCode code = open_job(&j, err);
    if (code == OK) {
        int64_t ranks = receipts_begin_of(&j.log, j.step)->ranks;
        bool launched = launched_env_find().by_launcher;
        code = arguments_int(args, "--ranks", 1, 4096, &ranks, err);
        if (code == OK) code = launched || ranks == 1 ? verify_here(&j, err) : launch(&j, (int)ranks, err);
    }
    close_job(&j);
    return code;
}

static ErrorCode run_verify(const Arguments *args, Error *err) {
    bool step = arguments_has(args, "--step"), chain = arguments_has(args, "--chain");
    if (step == chain) return error_set(err, ERR_USAGE, "give either --step K or --chain");
    if (chain && args->operand_count > 1)
        return error_set(err, ERR_USAGE, "--chain reads the log alone and takes no keys");
    return chain ? verify_chain(args, err) : verify_step(args, err);
}

const Verb verb_verify = {
    .name = "verify",
    .summary = "prove that a run made its weights from its data",
    .synopsis = "RUN --step K [-n RANKS] [section.key=value ...] | RUN --chain [--head HASH]",
    .details =
        "RUN is the directory of a run with run.receipts: true, which wrote a receipt of each logged step: "
        "hashes of configuration, samples and weights, chained.\n\n"
        "With --step the steps from the checkpoint before K up to K are made again, with the run's own "
        "configuration and data, in a temporary directory, and their receipts are compared. The status is 0 "
        "if step K is confirmed, 1 if it is refuted, 69 if the bits differ but order of sums, kernels or "
        "build do too. Without -n there are as many ranks as the run had; with another number and no key of "
        "mesh, they share the parameters (mesh.dp_shard). Start it where the run was started, since paths of "
        "data may be relative.\n\n"
        "With --chain only the log is read: a changed, moved or removed line is found, and a cut end if a "
        "checkpoint (or --head) states a line that is gone; the status is then 65. It prints the head of the "
        "chain, which whoever wants to prove that the log was not rewritten later keeps elsewhere.\n\n"
        "Examples:\n"
        "  weft verify runs/demo --chain\n"
        "  weft verify runs/demo --step 120\n"
        "  weft verify runs/demo --step 120 -n 4 mesh.pp=2",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_verify,
};
