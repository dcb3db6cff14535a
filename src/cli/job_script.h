/* Generates the batch script of a run under Slurm. job_script.c describes what the script does. */
#ifndef WEFT_CLI_JOB_SCRIPT_H
#define WEFT_CLI_JOB_SCRIPT_H

#include "cli/sweep.h"

typedef struct Job {
    const char *program;   /* path of weft */
    const char *directory; /* where the job runs: paths of the configuration are relative to it */
    const char *run_dir;
    int64_t nodes, least_nodes; /* Slurm allocates between the two, as many as are free */
    int64_t per_node;           /* ranks */
    int64_t cores;              /* per rank; 0: nodes are exclusive, and their ranks share the cores */
    const char *time, *partition, *account; /* NULL: the site's default */
    const char *mpi;                        /* srun --mpi */
    int64_t lead;                           /* seconds before the time limit */
    int64_t restarts;                       /* after failures, at most */
    size_t word_count;
    const char *const *words; /* for "weft train": configuration and overrides */
    const Sweep *sweep;       /* more than one member: an array of jobs */
} Job;

/* ERR_USAGE if a path has bytes that cannot be passed to Slurm in a batch script. */
ErrorCode job_script_write(const Job *job, Text *out, Error *err);

/* Appends a member's run directory: a subdirectory of the configuration's, named by its keys and values. */
void job_run_dir(const char *run_dir, const Sweep *sweep, size_t member, Text *out);

#endif
