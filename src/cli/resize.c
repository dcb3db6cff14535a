/* weft resize: asks a run to go on with another number of ranks.
 *
 * The next attempt's configuration is checked here, in the directory in which the run was started, so that a
 * request that cannot be granted stops nothing (train/resize.h). */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/host.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/terminal.h"
#include "train/inject.h"
#include "train/lock.h"
#include "train/resize.h"

extern const Verb verb_train;

static const Flag flags[] = {
    {"--ranks", 'n', "N", "ranks to go on with"},
    {"--wait", 'w', "SECONDS", "wait until the run goes on with them, at most so long"},
    {NULL, 0, NULL, NULL}};

/* ---- the run ---- */

/* ERR_UNAVAILABLE: its ranks are somebody else's. */
static ErrorCode check_launcher(const LaunchRecord *l, const char *run, Error *err) {
    char host[HOST_NAME_BYTES];
    host_name(host, sizeof host);
    if (l->process == 0)
        return error_set(
            err, ERR_UNAVAILABLE,
            "%s: its ranks were started by mpirun or srun, which starts no others: weft stop %s, "
            "then start the same command with the other number of ranks (with Slurm: weft slurm "
            "-n); it goes on from there",
            run, run);
    if (strcmp(host, l->host) != 0)
        return error_set(err, ERR_UNAVAILABLE,
                         "%s: the run was started on host %s: ask for other ranks there", run, l->host);
    if (kill((pid_t)l->process, 0) != 0 && errno == ESRCH)
        return error_set(err, ERR_UNAVAILABLE,
                         "%s: process %lld, which started the ranks, has ended: weft stop %s, then start the "
                         "same command with the other number of ranks",
                         run, (long long)l->process, run);
    return OK;
}

/* The run in this directory, which has begun its steps. */
static ErrorCode find_run(const char *run, LaunchRecord *l, Error *err) {
    long pid;
    TRY(lock_holder(run, &pid, err));
    if (pid == 0)
        return error_set(
            err, ERR_NOINPUT,
            "%s: no run is going on in it: start it with the number of ranks that you want, as in "
            "weft train CONFIG.yaml -n 6; it goes on from its last checkpoint",
            run);
    Error none = {.message = ""};
    ErrorCode code = launch_read(l, run, &none);
    if (code == ERR_NOINPUT)
        return error_set(err, ERR_UNAVAILABLE, "%s: process %ld has not begun its steps yet: try again later",
                         run, pid);
    if (code == OK) return check_launcher(l, run, err);
    *err = none;
    return code;
}

/* ---- the check ---- */

/* The same directory, by whatever names. */
static bool is_same(const char *a, const char *b) {
    char *one = realpath(a, NULL), *other = realpath(b, NULL);
    bool same = one && other && strcmp(one, other) == 0;
    free(one);
    free(other);
    return same;
}

/* Faults of the next attempt must be of ranks that it has, as for any start. */
static ErrorCode check_faults(const Arguments *train, int ranks, int64_t steps, Error *err) {
    Inject inject = {0};
    ErrorCode code = inject_parse(&inject, arguments_flag(train, "--inject"), ranks, steps, err);
    inject_free(&inject);
    return code;
}

/* `run` is an absolute path: this process is in the directory of the run. */
static ErrorCode check_configuration(const Arguments *train, const char *run, const Resize *r, Text *changes,
                                     Error *err) {
    Config c;
    OptionSet set;
    int given = train->operand_count - 1;
    size_t count = (size_t)given + r->keys.count;
    const char **overrides = mem_alloc_array(count + 1, sizeof *overrides);
    for (size_t i = 0; i < count; i++)
        overrides[i] = i < (size_t)given ? train->operands[i + 1] : r->keys.items[i - (size_t)given];
    ErrorCode code =
        config_load(&c, &set, train->operands[0], (int)count, overrides, checkpoint_find_shape, err);
    if (code == OK && !is_same(c.run.dir, run))
        code = error_set(err, ERR_CONFIG,
                         "run.dir is %s now, and the run is going on in %s: it would not go on there",
                         c.run.dir, run);
    if (code == OK) code = check_faults(train, (int)r->ranks, c.train.steps, err);
    if (code == OK) code = resize_check(&c, &set, (int)r->from, (int)r->ranks, changes, err);
    options_free(&set);
    free(overrides);
    return code;
}

/* With the command line of the run, which rank 0 has written down. */
static ErrorCode check(const LaunchRecord *l, const char *run, const Resize *r, Text *changes, Error *err) {
    Arguments train;
    if (chdir(l->directory) != 0)
        return error_errno(err, ERR_NOINPUT, "%s: the run was started in this directory", l->directory);
    if (l->words.count < 3)
        return error_set(err, ERR_DATA, "%s/" LAUNCH_FILE ": \"words\" is no command line of weft train",
                         run);
    ErrorCode code = arguments_parse(&train, &verb_train, (int)l->words.count - 2,
                                     (const char *const *)l->words.items + 2, err);
    if (code == OK) code = check_configuration(&train, run, r, changes, err);
    arguments_free(&train);
    return code;
}

/* ---- the request ---- */

/* Whether another attempt than the one in `was` holds the run, and has begun its steps. */
static bool goes_on(const LaunchRecord *was, const char *run) {
    LaunchRecord now;
    long pid;
    Error none = {.message = ""};
    bool on = launch_read(&now, run, &none) == OK && now.rank0 != was->rank0 &&
              lock_holder(run, &pid, &none) == OK && pid == (long)now.rank0;
    launch_free(&now);
    return on;
}

static ErrorCode wait_for(const LaunchRecord *was, const char *run, int64_t ranks, double seconds,
                          Error *err) {
    for (double until = clock_seconds() + seconds; !goes_on(was, run); usleep(50000)) {
        if (kill((pid_t)was->process, 0) != 0 && errno == ESRCH)
            return error_set(err, ERR_UNAVAILABLE, "%s: process %lld has ended instead", run,
                             (long long)was->process);
        if (clock_seconds() > until)
            return error_set(err, ERR_IO, "%s: the run does not go on with %lld ranks after %g s", run,
                             (long long)ranks, seconds);
    }
    terminal_printf("the run goes on\n");
    return OK;
}

static ErrorCode request(const LaunchRecord *l, const char *run, const Resize *r, Error *err) {
    Text changes = {0};
    char said[200];
    ErrorCode code = check(l, run, r, &changes, err);
    if (code != OK)
        error_context(err, "%s goes on with %lld rank%s", run, (long long)r->from, r->from == 1 ? "" : "s");
    if (code == OK) code = resize_request(run, r, err);
    if (code == OK) code = lock_request_stop(run, err);
    if (code == OK)
        terminal_printf("process %lld will save after its step, and go on %s\n", (long long)l->rank0,
                        resize_describe(r, said, sizeof said));
    if (code == OK && changes.length) terminal_printf("from there on: %s\n", changes.data);
    text_free(&changes);
    return code;
}

static void add_keys(const Arguments *args, Resize *r) {
    r->keys.items = mem_alloc_array((size_t)args->operand_count, sizeof *r->keys.items);
    for (int i = 1; i < args->operand_count; i++)
        r->keys.items[r->keys.count++] = mem_strdup(args->operands[i]);
}

static ErrorCode resize(const Arguments *args, const char *run, LaunchRecord *l, Resize *r, Error *err) {
    double seconds = 0;
    TRY(arguments_double(args, "--wait", 0, 1e6, &seconds, err));
    TRY(arguments_int(args, "--ranks", 1, 4096, &r->ranks, err));
    if (r->ranks == 0)
        return error_set(err, ERR_USAGE, "resize: -n N is missing: how many ranks to go on with");
    TRY(find_run(run, l, err));
    r->from = l->ranks;
    add_keys(args, r);
    if (r->ranks == r->from && r->keys.count == 0)
        return error_set(err, ERR_USAGE, "resize: %s has %lld rank%s already", run, (long long)r->from,
                         r->from == 1 ? "" : "s");
    TRY(request(l, run, r, err));
    return arguments_has(args, "--wait") ? wait_for(l, run, r->ranks, seconds, err) : OK;
}

/* The check changes the working directory, hence an absolute path. */
static ErrorCode run_resize(const Arguments *args, Error *err) {
    LaunchRecord l = {0};
    Resize r = {0};
    long pid;
    char *run = realpath(args->operands[0], NULL);
    ErrorCode code = run ? resize(args, run, &l, &r, err) : lock_holder(args->operands[0], &pid, err);
    launch_free(&l);
    resize_free(&r);
    free(run);
    return code;
}

const Verb verb_resize = {
    .name = "resize",
    .summary = "go on with another number of ranks after a run's step",
    .synopsis = "RUN -n RANKS [mesh.key=value ...]",
    .details =
        "Asks a run that weft train started, with or without -n and --restarts, to save after its step. Its "
        "ranks end, and the same command goes on from there as RANKS processes, with the keys given here in "
        "addition: mesh, pipeline and others that leave the curve as it is. The new configuration is checked "
        "first, as for a start; if it does not fit, the run goes on untouched. docs/use/resuming.md says "
        "which bits stay the same.\n\n"
        "Examples:\n"
        "  weft resize runs/mine -n 6\n"
        "  weft resize runs/mine -n 8 mesh.pp=2 --wait 60",
    .flags = flags,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_resize,
};
