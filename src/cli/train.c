/* weft train: a run from its configuration to its last checkpoint.
 *
 * At most three levels of processes, each of which starts the next with the remaining words:
 *
 *     weft train --restarts 5 -n 4 my.yaml   supervises: starts the next, again if it fails (supervise.c)
 *       weft train -n 4 my.yaml              launches ranks by mpirun, forwards signals (comm/launch.c)
 *         weft train my.yaml                 a rank: joins the others, and trains (trainer.c)
 *
 * Without --restarts or -n that level is omitted. Each level checks the configuration before it starts
 * anything, so that an error is reported once and not by every rank. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/signals.h"
#include "cli/cli.h"
#include "checkpoint/find.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "comm/repair.h"
#include "comm/tell.h"
#include "train/agree.h"
#include "train/lock.h"
#include "train/resize.h"
#include "train/setup.h"
#include "train/state.h"
#include "train/supervise.h"
#include "train/trainer.h"

static const Flag flags[] = {
    {"--ranks", 'n', "N",
     "start N processes on this machine, joined by MPI or sockets (comm.transport); the keys of mesh define "
     "what each does"},
    {"--restarts", 0, "N",
     "start the run again, at most N times, when it is killed or fails in a way that may pass"},
    {"--inject", 0, "FAULTS",
     "break the run on purpose, as in \"kill:rank=1,step=7\" or \"stop:rank=0,phase=saving\"; also slow, "
     "nan, bitflip"},
    {NULL, 0, NULL, NULL},
};

/* The first operand is the file, the others are overrides. */
static ErrorCode load(const Arguments *args, Config *c, OptionSet *set, Error *err) {
    return config_load(c, set, args->operands[0], args->operand_count - 1, args->operands + 1,
                       checkpoint_find_shape, err);
}

/* Who asks for sockets wants what MPI may not do, such as going on without a rank. */
static ErrorCode check_transport(const Comm *comm, const Config *c, Error *err) {
    if (c->comm.transport != TRANSPORT_SOCKETS || strcmp(comm_transport_name(comm), "mpi") != 0) return OK;
    error_set(
        err, ERR_USAGE,
        "comm.transport=sockets, but these ranks are joined by MPI: start them with -n N or weft launch, or "
        "set WEFT_MEET=HOST:PORT for them");
    err->reported = comm_rank(comm) > 0;
    return err->code;
}

/* A rank. It does not report errors of its configuration until the ranks have joined: then all learn of them
 * (comm_agree), one prints, and all end with the same status. If a rank left before, the others would wait
 * for it. */
static ErrorCode train(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Inject inject = {0};
    Comm *comm;
    Activity activity;
    Error unread;
    /* Before MPI, which may take seconds: a Ctrl-C meanwhile is a request to stop like any other. */
    TRY(trainer_take_signals(err));
    activity_start(&activity);
    /* Before the ranks join, since it contains how long they wait for each other. The ranks report its errors
     * together, later. */
    ErrorCode code = load(args, &c, &set, &unread);
    tell_until_begun();
    CommWatch watch = {code == OK ? c.comm.watchdog_s : 0, activity_describe, &activity};
    ErrorCode opened = comm_open_watched(&comm, &watch, err);
    if (opened != OK) {
        options_free(&set);
        return opened;
    }
    activity_enter(&activity, PHASE_READING, 0);
    if (code != OK) *err = unread;
    code = comm_agree(comm, code, err);
    if (code == OK) code = check_transport(comm, &c, err);
    if (code == OK) code = agree_on_config(comm, &set, err);
    if (code == OK)
        code = comm_agree(
            comm,
            inject_parse(&inject, arguments_flag(args, "--inject"), comm_size(comm), c.train.steps, err),
            err);
    if (code == OK) code = trainer_run(comm, args->operands[0], &c, &set, &inject, &activity, err);
    inject_free(&inject);
    options_free(&set);
    /* Only the shutdown is left, which can no longer be stopped. */
    trainer_ignore_signals();
    if (code != OK) comm_report(comm, err);
    comm_dismiss(comm, code);
    comm_close(comm);
    return code;
}

/* ---- with --restarts ---- */

/* Takes and releases the run's lock: the first child takes it again. */
static ErrorCode discard(const Config *c, Error *err) {
    RunLock lock;
    TRY(lock_take(&lock, c->run.dir, err));
    ErrorCode code = state_discard(c->run.dir, err);
    lock_abandon(&lock, c->run.dir);
    return code;
}

/* The configuration is read here only for the pause, for run.overwrite and for its errors, and freed before
 * the first child starts. */
static ErrorCode train_supervised(const Arguments *args, Error *err) {
    Config c;
    OptionSet set;
    Supervision s = {0};
    ErrorCode code = load(args, &c, &set, err);
    char *run_dir = mem_strdup(code == OK ? c.run.dir : "");
    s.backoff_s = c.restart.backoff_s;
    s.run_dir = run_dir;
    if (code == OK) code = arguments_int(args, "--restarts", 0, 1000000, &s.restarts, err);
    if (code == OK && c.run.overwrite) code = discard(&c, err);
    options_free(&set);
    /* run.overwrite applies only once, before the first process. */
    char **words = arguments_words(args, "--restarts", "run.overwrite=false");
    s.words = words;
    if (code == OK) code = supervise(&s, err);
    arguments_free_words(words);
    free(run_dir);
    return code;
}

/* ---- with --ranks ---- */

/* Finds errors of the configuration before anything is started, so that they are reported once. */
static ErrorCode check(const Arguments *args, int64_t ranks, LaunchTerms *terms, Error *err) {
    Config c;
    OptionSet set;
    Mesh mesh;
    Inject inject = {0};
    ErrorCode code = load(args, &c, &set, err);
    if (code == OK) code = mesh_build(&mesh, &c.mesh, (int)ranks, err);
    if (code == OK) setup_before_ranks(&c, (int)ranks);
    int all = (int)ranks + (code == OK ? (int)c.recovery.spares : 0);
    if (code == OK) code = inject_parse(&inject, arguments_flag(args, "--inject"), all, c.train.steps, err);
    *terms = (LaunchTerms){all, c.comm.watchdog_s, c.comm.transport == TRANSPORT_SOCKETS,
                           c.recovery.mode == RECOVERY_IN_PLACE};
    inject_free(&inject);
    options_free(&set);
    return code;
}

/* No machine has more than 4,096 cores; a larger number is a mistake. */
static ErrorCode train_ranks(const Arguments *args, Error *err) {
    int64_t ranks = 1;
    LaunchTerms terms;
    TRY(arguments_int(args, "--ranks", 1, 4096, &ranks, err));
    TRY(check(args, ranks, &terms, err));
    /* One rank needs no launcher. */
    if (terms.ranks == 1) return train(args, err);
    char **words = arguments_words(args, "--ranks", NULL);
    ErrorCode code = launch_ranks(&terms, words, err);
    arguments_free_words(words);
    setup_after_ranks();
    return code;
}

/* ---- another number of ranks, without --restarts ---- */

/* Finds the request in the run's directory. The configuration is read again: no level keeps it to its end. */
static bool take_resize(const Arguments *args, Resize *r) {
    Config c;
    OptionSet set;
    Error unread = {.message = ""};
    bool found = load(args, &c, &set, &unread) == OK && resize_take(r, c.run.dir);
    options_free(&set);
    return found;
}

/* This process becomes the launcher of the other ranks, or the only rank: whoever waits for it goes on
 * waiting. */
static ErrorCode become_resized(const Arguments *args, const Resize *r, Error *err) {
    char cause[200];
    resize_describe(r, cause, sizeof cause);
    log_info("the run goes on with another number of ranks: %s", cause);
    TRY(supervise_announce(supervise_attempt() + 1, cause, true, err));
    char **given = arguments_words(args, "--ranks", NULL), **words = resize_words(given, r);
    arguments_free_words(given);
    signals_unblock();
    fflush(NULL);
    execv("/proc/self/exe", words);
    resize_free_words(words);
    return error_errno(err, ERR_UNAVAILABLE,
                       "cannot start with another number of ranks: everything is saved");
}

/* Restarts are the outermost level: a restart starts the launcher with all its ranks. Only the outermost
 * process acts on a request for other ranks. */
static ErrorCode run_train(const Arguments *args, Error *err) {
    Resize r;
    bool leads = launch_lead();
    if (arguments_has(args, "--restarts")) return train_supervised(args, err);
    ErrorCode code = arguments_has(args, "--ranks") ? train_ranks(args, err) : train(args, err);
    if (code != ERR_STOPPED || !leads || !take_resize(args, &r)) return code;
    code = become_resized(args, &r, err);
    resize_free(&r);
    return code;
}

const Verb verb_train = {
    .name = "train",
    .summary = "train a model from text and one configuration file",
    .synopsis = "CONFIG.yaml [section.key=value ...] [-n RANKS] [--restarts N] [--inject FAULTS]",
    .details =
        "Prints the plan, takes all its memory, then trains. Everything goes to run.dir. A run that finds a "
        "checkpoint there goes on from it. SIGINT, SIGTERM, SIGHUP or SIGUSR1 finish the step, save, and "
        "exit with status 75; a second SIGINT exits at once.\n\n"
        "With --restarts the run is a process of its own, started again from its last checkpoint when a "
        "signal kills it or it fails in a way that may pass; what is wrong with the command line, the "
        "configuration or the data is not tried again.\n\n"
        "With -n N it runs as N processes on this machine, started by mpirun or, with "
        "comm.transport=sockets, "
        "by weft launch; on several machines start it by mpirun, srun or weft launch yourself. The keys of "
        "mesh define how they divide the work.\n\n"
        "Each key below lists what another value of it does to a resumed run: \"on resume: another curve\" "
        "is "
        "refused unless run.allow_changes names the key, other last bits and other figures are reported in "
        "log and journal, and a key without a note keeps the bits. A value that a configuration leaves open "
        "(auto, 0) stays as the run had it.\n\n"
        "--inject kills, stops, slows or corrupts a rank in a given step, or on entering a phase of the run, "
        "to see that it survives that; see docs/use/reliability.md.\n\n"
        "Examples:\n"
        "  weft train configs/demo.yaml\n"
        "  weft train configs/demo.yaml -n 4 mesh.pp=2\n"
        "  weft train configs/demo.yaml --restarts 10\n"
        "  weft train my.yaml run.dir=runs/a optimizer.lr=1e-3 'data.sources=[a.txt, {path: b.jsonl.zst, "
        "weight: 2}]'",
    .flags = flags,
    .options = config_options,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_train,
};
