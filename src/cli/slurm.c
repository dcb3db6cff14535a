/* weft slurm: a batch script for a run, or for a sweep of runs.
 *
 *     configuration, nodes --> checked as a run would --> RUN/slurm.sh --> sbatch, with --submit
 *
 * Errors are reported here and not hours later in the queue: each member's configuration is read, and its
 * mesh and step are laid out for the most and the fewest nodes. */
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/find.h"
#include "cli/cli.h"
#include "cli/job_script.h"
#include "cli/terminal.h"
#include "comm/launcher.h"
#include "comm/launch.h"
#include "comm/mesh.h"
#include "config/config.h"

extern char **environ;

enum { MOST_NODES = 1 << 20, MOST_PER_NODE = 4096 };

static const Flag flags[] = {
    {"--nodes", 'N', "N", "nodes; N-M: as many as Slurm has, between the two"},
    {"--per-node", 0, "R", "ranks of a node; default 1"},
    {"--cores", 0, "C", "cores of a rank; default: nodes are the run's alone, and their cores shared out"},
    {"--time", 't', "TIME", "time limit, as 30, 4:00:00 or 2-12; default: the partition's"},
    {"--partition", 'p', "NAME", "default: the site's"},
    {"--account", 'A', "NAME", "default: the user's"},
    {"--lead", 0, "SECONDS",
     "so long before the time limit the run saves, ends and is queued again; default 180"},
    {"--restarts", 0, "N", "queue it again after a failure that may pass, at most N times; default 10"},
    {"--sweep", 0, "KEY=V,V",
     "an array of runs, one for each value, or combination of values: \"optimizer.lr=1e-3,2e-3; "
     "train.steps=100,200\""},
    {"--mpi", 0, "TYPE", "srun's way to join ranks; default pmix, or pmi2 where weft was built with MPICH"},
    {"--out", 'o', "FILE", "where to write the script; default RUN/slurm.sh; - for standard output"},
    {"--submit", 0, NULL, "give it to sbatch"},
    {NULL, 0, NULL, NULL},
};

/* ---- the command line ---- */

/* "8", "4-8". */
static ErrorCode read_nodes(const char *text, Job *job, Error *err) {
    char shown[80], *end = NULL;
    if (!text) return error_set(err, ERR_USAGE, "slurm: -N is missing: on how many nodes?");
    bool good = *text >= '1' && *text <= '9';
    job->least_nodes = job->nodes = good ? strtoll(text, &end, 10) : 0;
    if (good && *end == '-' && end[1] >= '1' && end[1] <= '9') job->nodes = strtoll(end + 1, &end, 10);
    if (good && !*end && job->least_nodes <= job->nodes && job->nodes <= MOST_NODES) return OK;
    return error_set(err, ERR_USAGE, "slurm: -N is \"%s\": expected a number of nodes as in 8, or 4-8",
                     error_escape(shown, sizeof shown, text, strlen(text)));
}

/* Seconds of a time limit in Slurm's formats, by the number of colons and the presence of days: M, M:S,
 * H:M:S; D-H, D-H:M, D-H:M:S. -1: none of them. */
static double limit_seconds(const char *text) {
    static const double plain[3][3] = {{60}, {60, 1}, {3600, 60, 1}}, units[3] = {3600, 60, 1};
    double numbers[3], days = 0, sum = 0;
    int count = 0;
    for (bool dashed = false;;) {
        char *end;
        if (*text < '0' || *text > '9' || count == 3) return -1;
        numbers[count++] = (double)strtoll(text, &end, 10);
        text = end + 1;
        if (*end == '-' && count == 1 && !dashed) {
            days = numbers[--count] * 86400;
            dashed = true;
        } else if (!*end) {
            const double *unit = dashed ? units : plain[count - 1];
            for (int i = 0; i < count; i++) sum += numbers[i] * unit[i];
            return days + sum;
        } else if (*end != ':') {
            return -1;
        }
    }
}

/* sbatch(1): the signal "may be sent up to 60 seconds earlier than specified". */
enum { SIGNAL_EARLY = 60 };

/* If the lead were as long as the limit, the run would be asked to stop as soon as it starts, again and
 * again. */
static ErrorCode check_time(const Job *job, Error *err) {
    char shown[80];
    if (!job->time) return OK;
    double seconds = limit_seconds(job->time);
    error_escape(shown, sizeof shown, job->time, strlen(job->time));
    if (seconds <= 0)
        return error_set(err, ERR_USAGE,
                         "slurm: --time is \"%s\": expected minutes, H:M:S, or days as in 2-12:00:00", shown);
    if (seconds <= (double)(job->lead + SIGNAL_EARLY))
        return error_set(
            err, ERR_USAGE,
            "slurm: --lead is %lld s, and Slurm may signal %d s before that, but the time limit is "
            "%.0f s: the run would be asked to stop when it starts, again and again",
            (long long)job->lead, SIGNAL_EARLY, seconds);
    return OK;
}

static ErrorCode read_flags(const Arguments *args, Job *job, Error *err) {
    const char *mpi = arguments_flag(args, "--mpi");
    job->per_node = 1;
    job->lead = 180;
    job->restarts = 10;
    TRY(read_nodes(arguments_flag(args, "--nodes"), job, err));
    TRY(arguments_int(args, "--per-node", 1, MOST_PER_NODE, &job->per_node, err));
    TRY(arguments_int(args, "--cores", 1, 4096, &job->cores, err));
    TRY(arguments_int(args, "--lead", 1, 65535, &job->lead, err)); /* Slurm's maximum */
    TRY(arguments_int(args, "--restarts", 0, 1000000, &job->restarts, err));
    job->time = arguments_flag(args, "--time");
    job->partition = arguments_flag(args, "--partition");
    job->account = arguments_flag(args, "--account");
    job->mpi = mpi ? mpi : launcher_kind()->srun;
    job->word_count = (size_t)args->operand_count;
    job->words = args->operands;
    return check_time(job, err);
}

/* ---- checks of the members ---- */

static ErrorCode check_mesh(const Config *c, int64_t ranks, Error *err) {
    Mesh mesh;
    int64_t sequences, microbatches;
    TRY(mesh_build(&mesh, &c->mesh, (int)ranks, err));
    return config_geometry(c, mesh_dp_degree(&mesh), &sequences, &microbatches, err);
}

/* Checks the configuration with a member's values; unless run_dir is NULL, the caller frees *run_dir. */
static ErrorCode check_member(const Job *job, size_t member, char **run_dir, Error *err) {
    size_t count = job->word_count - 1, keys = job->sweep->key_count;
    const char **words = mem_alloc_array(count + keys + 1, sizeof *words);
    Text values[SWEEP_KEYS] = {{0}};
    Config c;
    OptionSet set;
    for (size_t i = 0; i < count; i++) words[i] = job->words[i + 1];
    for (size_t k = 0; k < keys; k++) {
        text_printf(&values[k], "%s=%s", job->sweep->keys[k].key, sweep_value(job->sweep, member, k));
        words[count + k] = values[k].data;
    }
    ErrorCode code =
        config_load(&c, &set, job->words[0], (int)(count + keys), words, checkpoint_find_shape, err);
    if (code == OK) code = check_mesh(&c, job->nodes * job->per_node, err);
    if (code == OK) code = check_mesh(&c, job->least_nodes * job->per_node, err);
    if (code == OK && run_dir) *run_dir = mem_strdup(c.run.dir);
    options_free(&set);
    for (size_t k = 0; k < keys; k++) text_free(&values[k]);
    free(words);
    return code;
}

/* Two members' directory names may be equal if their values have bytes that names replace. */
static ErrorCode check_names(const Job *job, Error *err) {
    const Sweep *s = job->sweep;
    Text a = {0}, b = {0};
    ErrorCode code = OK;
    for (size_t i = 0; i < s->members && code == OK; i++) {
        text_clear(&a);
        job_run_dir(job->run_dir, s, i, &a);
        for (size_t j = 0; j < i && code == OK; j++) {
            text_clear(&b);
            job_run_dir(job->run_dir, s, j, &b);
            if (strcmp(a.data, b.data) == 0)
                code = error_set(err, ERR_USAGE,
                                 "--sweep: two members would train in %s: give their values "
                                 "by names that differ in letters or digits",
                                 a.data);
        }
    }
    text_free(&a);
    text_free(&b);
    return code;
}

static ErrorCode check_members(const Job *job, Error *err) {
    for (size_t m = 0; m < job->sweep->members; m++) {
        ErrorCode code = check_member(job, m, NULL, err);
        if (code != OK && job->sweep->key_count) {
            Text name = {0};
            sweep_name(job->sweep, m, &name);
            error_context(err, "--sweep, member %s", name.data);
            text_free(&name);
        }
        TRY(code);
    }
    return check_names(job, err);
}

/* ---- the script ---- */

/* Without a shell. sbatch's output, the job's number or the reason for refusing it, goes to weft's own
 * output. */
static ErrorCode submit(const char *path, Error *err) {
    char *const words[] = {(char *)(uintptr_t) "sbatch", (char *)(uintptr_t)path, NULL};
    pid_t child;
    int status, failed = posix_spawnp(&child, words[0], NULL, NULL, words, environ);
    if (failed == 0 && waitpid(child, &status, 0) != child) failed = ECHILD;
    if (failed)
        return error_set(err, ERR_UNAVAILABLE, "cannot start sbatch: %s; the script is %s", strerror(failed),
                         path);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return OK;
    return error_set(err, ERR_UNAVAILABLE, "sbatch did not take %s: its message stands above", path);
}

/* Slurm opens the log before the script runs, so the run directory must exist. */
static ErrorCode write_script(const Arguments *args, const Job *job, Error *err) {
    const char *asked = arguments_flag(args, "--out");
    char *path = asked ? mem_strdup(asked) : path_join(job->run_dir, "slurm.sh");
    bool submits = arguments_has(args, "--submit");
    Text script = {0};
    ErrorCode code = job_script_write(job, &script, err);
    if (code == OK) code = file_make_dirs(job->run_dir, err);
    if (code == OK) code = terminal_write_file(path, &script, err);
    if (code == OK && submits) code = submit(path, err);
    text_free(&script);
    free(path);
    return code;
}

static ErrorCode find_paths(char *program, char *directory, size_t size, Error *err) {
    TRY(launch_own_path(program, size, err));
    if (!getcwd(directory, size))
        return error_errno(err, ERR_UNAVAILABLE, "cannot find the path of the current directory");
    return OK;
}

static ErrorCode run_slurm(const Arguments *args, Error *err) {
    static char program[4096], directory[4096];
    Sweep sweep = {0};
    Job job = {.program = program, .directory = directory, .sweep = &sweep};
    char *run_dir = NULL;
    const char *out = arguments_flag(args, "--out");
    if (out && strcmp(out, "-") == 0 && arguments_has(args, "--submit"))
        return error_set(err, ERR_USAGE, "slurm: --out - and --submit do not go together: give one");
    TRY(read_flags(args, &job, err));
    TRY(find_paths(program, directory, sizeof program, err));
    ErrorCode code = sweep_parse(&sweep, arguments_flag(args, "--sweep"), err);
    if (code == OK) code = check_member(&job, 0, &run_dir, err);
    job.run_dir = run_dir;
    if (code == OK) code = check_members(&job, err);
    if (code == OK) code = write_script(args, &job, err);
    sweep_free(&sweep);
    free(run_dir);
    return code;
}

const Verb verb_slurm = {
    .name = "slurm",
    .summary = "write a batch script for Slurm, for one run or a sweep of runs",
    .synopsis = "CONFIG.yaml [section.key=value ...] -N NODES [--per-node R] [--time TIME] [--submit]",
    .details =
        "Checks the configuration for that many ranks and writes RUN/slurm.sh. The script starts the ranks "
        "by srun, bound to cores of their own. Before the time limit (--lead) the run saves, ends, and is "
        "queued again; so it is after a failure that may pass, such as a node that dies. It goes on from its "
        "last checkpoint each time, also on another number of nodes.\n\n"
        "\"weft stop RUN\" or \"scancel --signal=USR1 JOB\" ends it with everything saved, and it is not "
        "queued again. What else Slurm is to know stands on sbatch's own command line, which wins over the "
        "script: sbatch --qos=long runs/mine/slurm.sh.\n\n"
        "With --sweep the script is an array: each member trains in a directory below run.dir that is named "
        "by its keys and values. \"weft report\" and \"weft compare\" take several of them.\n\n"
        "Examples:\n"
        "  weft slurm my.yaml -N 8 --per-node 4 --time 12:00:00 --submit\n"
        "  weft slurm my.yaml -N 4-8 --per-node 2 numerics.mode=exact\n"
        "  weft slurm my.yaml -N 1 --sweep 'optimizer.lr=1e-3,2e-3,4e-3' --submit",
    .flags = flags,
    .options = NULL,
    .min_operands = 1,
    .max_operands = -1,
    .run = run_slurm,
};
