/* A batch script for Slurm.
 *
 *     sbatch --> script --> srun --> ranks --+-- 0: done
 *       ^          | USR1, `lead` seconds    +-- 2, 65, 66, 69, 78: the user must act
 *       |          | before the limit:       +-- 75, not near the limit: stopped on request
 *       |          +--> srun --> ranks save -+-- 75, near the limit --+
 *       |                                    +-- anything else -------+
 *       +---- scontrol requeue: the same script again, which resumes from the last checkpoint
 *
 *  J1. The script asks ranks to stop by SIGUSR1 to srun, which forwards it; after SIGTERM srun would kill
 *      them.
 *  J2. When a rank fails, srun ends the others (-K), so that nobody waits for the watchdog. The exit statuses
 *      of the others then mean nothing: the journal tells whether a run was stopped in an orderly way.
 *  J3. Near the limit the job is requeued any number of times; after a failure only if Slurm has restarted it
 *      fewer than `restarts` times.
 *  J4. Text from the command line or the configuration is either quoted for the shell or checked
 *      (check_plain). */
#include "cli/job_script.h"

#include <ctype.h>
#include <string.h>

#include "observe/journal.h"
#include "train/supervise.h"

/* ---- words ---- */

static bool is_plain_word(const char *word) {
    if (!*word) return false;
    for (; *word; word++)
        if (!isalnum((unsigned char)*word) && !strchr("._+-=,/:@%", *word)) return false;
    return true;
}

/* Quotes for the shell. A quote inside closes the quotes, is escaped, and opens them again. */
static void put_word(Text *out, const char *word) {
    if (is_plain_word(word)) {
        text_puts(out, word);
        return;
    }
    text_puts(out, "'");
    for (; *word; word++)
        if (*word == '\'')
            text_puts(out, "'\\''");
        else
            text_add(out, word, 1);
    text_puts(out, "'");
}

/* #SBATCH lines are not parsed by a shell: Slurm has its own quoting rules, and a newline would end the
 * line. */
static ErrorCode check_plain(const char *what, const char *value, Error *err) {
    char shown[200];
    for (const char *c = value; *c; c++)
        if ((unsigned char)*c < ' ' || strchr("\"'\\\x7f", *c))
            return error_set(err, ERR_USAGE,
                             "%s is \"%s\": a batch script cannot name it, for its quotes, "
                             "backslashes or control characters",
                             what, error_escape(shown, sizeof shown, value, strlen(value)));
    return OK;
}

/* "#SBATCH --name=value", quoted if the value has blanks. */
static void put_option(Text *out, const char *name, const char *value) {
    const char *quote = strchr(value, ' ') ? "\"" : "";
    text_printf(out, "#SBATCH --%s=%s%s%s\n", name, quote, value, quote);
}

/* ---- options for Slurm ---- */

/* The last component of the run directory, which squeue shows. */
static void put_name(const Job *job, Text *out) {
    const char *slash = strrchr(job->run_dir, '/');
    put_option(out, "job-name", slash && slash[1] ? slash + 1 : job->run_dir);
}

/* %j and the like are Slurm's patterns, so a percent sign of the path is doubled. */
static void put_output(const Job *job, Text *out) {
    Text path = {0};
    for (const char *c = job->run_dir; *c; c++) text_printf(&path, *c == '%' ? "%%%%" : "%c", *c);
    text_puts(&path, job->sweep->members > 1 ? "/slurm-%A_%a.log" : "/slurm-%j.log");
    put_option(out, "output", path.data);
    text_free(&path);
}

/* Slurm computes all tasks as tasks per node times the minimum number of nodes, and then allocates no more
 * nodes of a range. With exclusive nodes --ntasks-per-node can be omitted, since srun passes the number of
 * ranks. */
static void put_options(const Job *job, Text *out) {
    bool range = job->least_nodes < job->nodes;
    put_name(job, out);
    if (range)
        text_printf(out, "#SBATCH --nodes=%lld-%lld\n", (long long)job->least_nodes, (long long)job->nodes);
    else
        text_printf(out, "#SBATCH --nodes=%lld\n", (long long)job->nodes);
    if (!range || job->cores) text_printf(out, "#SBATCH --ntasks-per-node=%lld\n", (long long)job->per_node);
    if (job->cores)
        text_printf(out, "#SBATCH --cpus-per-task=%lld\n", (long long)job->cores);
    else
        text_puts(out, "#SBATCH --exclusive\n");
    if (job->sweep->members > 1) text_printf(out, "#SBATCH --array=0-%zu\n", job->sweep->members - 1);
    if (job->time) put_option(out, "time", job->time);
    if (job->partition) put_option(out, "partition", job->partition);
    if (job->account) put_option(out, "account", job->account);
    text_printf(out, "#SBATCH --signal=B:USR1@%lld\n", (long long)job->lead);
    text_puts(out, "#SBATCH --requeue\n"
                   "#SBATCH --open-mode=append\n");
    put_option(out, "chdir", job->directory);
    put_output(job, out);
}

/* ---- the job's commands ---- */

static void put_assignment(const char *key, const char *value, Text *out) {
    Text word = {0};
    text_printf(&word, "%s=%s", key, value);
    text_puts(out, " ");
    put_word(out, word.data);
    text_free(&word);
}

void job_run_dir(const char *run_dir, const Sweep *sweep, size_t member, Text *out) {
    text_puts(out, run_dir);
    if (sweep->key_count == 0) return;
    text_puts(out, "/");
    sweep_name(sweep, member, out);
}

/* A member's words come after the others, and so override them. */
static void put_members(const Job *job, Text *out) {
    const Sweep *s = job->sweep;
    text_puts(out, "case ${SLURM_ARRAY_TASK_ID:-0} in\n");
    for (size_t m = 0; m < s->members; m++) {
        Text dir = {0};
        job_run_dir(job->run_dir, s, m, &dir);
        text_printf(out, "%zu) run=", m);
        put_word(out, dir.data);
        text_puts(out, " words+=(");
        put_assignment("run.dir", dir.data, out);
        for (size_t k = 0; k < s->key_count; k++) put_assignment(s->keys[k].key, sweep_value(s, m, k), out);
        text_puts(out, ") ;;\n");
        text_free(&dir);
    }
    text_puts(out, "*) echo \"this sweep has no member $SLURM_ARRAY_TASK_ID\" >&2; exit 2 ;;\n"
                   "esac\n");
}

static void put_words(const Job *job, Text *out) {
    text_puts(out, "weft=");
    put_word(out, job->program);
    text_puts(out, "\nrun=");
    put_word(out, job->run_dir);
    text_puts(out, "\nwords=(");
    for (size_t i = 0; i < job->word_count; i++) {
        if (i) text_puts(out, " ");
        put_word(out, job->words[i]);
    }
    text_puts(out, ")\n");
    if (job->sweep->key_count) put_members(job, out);
    text_printf(out, "restarts=%lld\nranks=%lld # of a node\n", (long long)job->restarts,
                (long long)job->per_node);
    if (job->cores)
        text_printf(out, "cores=%lld # of a rank\n", (long long)job->cores);
    else
        text_puts(out, "cores=$((SLURM_CPUS_ON_NODE / ranks)) # of a rank\n"
                       "[ \"$cores\" -gt 0 ] || cores=1\n");
}

static const char before[] =
    "\n"
    "# Started again it goes on; run.overwrite is for the first time.\n"
    "attempt=${SLURM_RESTART_COUNT:-0}\n"
    "[ \"$attempt\" -eq 0 ] || words+=(run.overwrite=false)\n"
    "export WEFT_ATTEMPT=$attempt WEFT_RESTART_CAUSE=\"queued again by Slurm\"\n"
    "\n"
    "# Slurm sends this before the time limit: the ranks finish their step, save and end.\n"
    "asked= step=\n"
    "near_the_limit() { asked=yes; [ -z \"$step\" ] || kill -USR1 \"$step\"; }\n"
    "trap near_the_limit USR1\n"
    "\n"
    "# What the journal says from here on.\n"
    "lines() { wc -l 2>/dev/null <\"$run/" JOURNAL_FILE "\" || echo 0; }\n"
    "said=$(lines 2>/dev/null)\n"
    "\n";

static const char after[] =
    "step=$!\n"
    "[ -z \"$asked\" ] || kill -USR1 \"$step\" # it came before there was a step\n"
    "# A signal ends wait, but not what it waits for.\n"
    "while wait \"$step\"; kill -0 \"$step\" 2>/dev/null; do :; done\n"
    "wait \"$step\"\n"
    "status=$?\n"
    "\n"
    "again() {\n"
    "    echo \"weft slurm: $1: queued again, after $attempt restarts\"\n"
    "    scontrol requeue \"$SLURM_JOB_ID\" && exit \"$status\"\n"
    "    echo \"weft slurm: Slurm does not queue it again; sbatch the same script to go on\" >&2\n"
    "    exit \"$status\"\n"
    "}\n";

/* Statuses that are not worth a restart: the rule of weft train --restarts. */
static void put_final(Text *out) {
    static const int codes[] = {ERR_USAGE,      ERR_DATA,    ERR_NOINPUT,  ERR_UNAVAILABLE, ERR_CONFIG,
                                ERR_DIFFERENT,  ERR_NUMERIC, ERR_REPLICAS, ERR_INTERNAL,    ERR_MEMORY,
                                ERR_CANTCREATE, ERR_IO,      ERR_PEER};
    text_puts(out, "case $status in\n0");
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
        if (!supervise_may_pass(codes[i])) text_printf(out, " | %d", codes[i]);
    text_puts(out, ") exit \"$status\" ;; # done, or nothing that another start would mend\n"
                   "esac\n");
}

static void put_srun(const Job *job, Text *out) {
    text_puts(out, "srun --mpi=");
    put_word(out, job->mpi);
    text_puts(out, " --kill-on-bad-exit=1 --nodes=\"$SLURM_JOB_NUM_NODES\" --ntasks-per-node=\"$ranks\" \\\n"
                   "    --ntasks=$((SLURM_JOB_NUM_NODES * ranks)) --cpus-per-task=\"$cores\" "
                   "--cpu-bind=cores --distribution=block \\\n"
                   "    \"$weft\" train -- \"${words[@]}\" &\n");
}

/* The journal's last entry takes precedence over the status that srun made of the ranks' statuses. */
static void put_ends(Text *out) {
    put_final(out);
    text_printf(
        out,
        "[ -z \"$asked\" ] || again \"the time limit is near\"\n"
        "if tail -n +$((said + 1)) \"$run/%s\" 2>/dev/null | tail -n 1 | grep -q '\"event\": \"%s\"'; then\n"
        "    echo \"weft slurm: stopped on request, all saved; sbatch the same script to go on\"\n"
        "    exit %d\n"
        "fi\n"
        "[ \"$attempt\" -ge \"$restarts\" ] || again \"the run failed, status $status\"\n"
        "echo \"weft slurm: the run failed, status $status; $attempt restarts were made, "
        "$restarts are allowed\" >&2\n"
        "exit \"$status\"\n",
        JOURNAL_FILE, journal_event_name(JOURNAL_STOPPED), ERR_STOPPED);
}

static ErrorCode check_job(const Job *job, Error *err) {
    TRY(check_plain("the directory", job->directory, err));
    TRY(check_plain("run.dir", job->run_dir, err));
    if (job->time) TRY(check_plain("--time", job->time, err));
    if (job->partition) TRY(check_plain("--partition", job->partition, err));
    return job->account ? check_plain("--account", job->account, err) : OK;
}

ErrorCode job_script_write(const Job *job, Text *out, Error *err) {
    TRY(check_job(job, err));
    text_puts(out, "#!/bin/bash\n"
                   "# Written by \"weft slurm\", to be given to sbatch; docs/use/cluster.md explains it.\n");
    put_options(job, out);
    text_puts(out, "\n");
    put_words(job, out);
    text_puts(out, before);
    put_srun(job, out);
    text_puts(out, after);
    put_ends(out);
    return OK;
}
