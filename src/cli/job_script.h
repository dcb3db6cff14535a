/* The batch script of a run under Slurm, as text. What it does at run time is drawn in job_script.c. */
#ifndef WEFT_CLI_JOB_SCRIPT_H
#define WEFT_CLI_JOB_SCRIPT_H

#include "cli/sweep.h"

typedef struct Job {
    const char *program;   /* path of weft */
    const char *directory; /* where the job runs: paths of the configuration are relative to it */
    const char *run_dir;
    int64_t nodes, least_nodes; /* Slurm gives as many as there are, between the two */
    int64_t per_node;           /* ranks */
    int64_t cores;              /* of a rank; 0: nodes are the job's alone, and its ranks share their cores */
    const char *time, *partition, *account; /* NULL: what the site says */
    const char *mpi;                        /* srun --mpi */
    int64_t lead;                           /* seconds before the time limit */
    int64_t restarts;                       /* after failures, at most */
    size_t word_count;
    const char *const *words; /* for "weft train": configuration and overrides */
    const Sweep *sweep;       /* more than one member: an array of jobs */
} Job;

/* ERR_USAGE where a path has bytes that a batch script cannot say to Slurm. */
ErrorCode job_script_write(const Job *job, Text *out, Error *err);

/* A member's run directory, appended to out: below that of the configuration, by its keys and values. */
void job_run_dir(const char *run_dir, const Sweep *sweep, size_t member, Text *out);

#endif
