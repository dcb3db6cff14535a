/* Options of the section `metrics`. */
#include "base/option_rows.h"
#include "config/config.h"

#define TARGET Config
const Option metrics_options[] = {
    /* Logging and records of a run. The frequency also limits how two runs can be compared: by steps that
     * both have recorded. */
    INT("metrics.log_freq", metrics.log_freq, "10", 1, 1e9, NOTHING, "Steps between log lines.",
        ELSEWHERE("logging_steps log_interval log_every logging.freq")),
    BOOL("metrics.tensorboard", metrics.tensorboard, "true", NOTHING, "Write TensorBoard events.",
         ELSEWHERE("enable_tensorboard use_tensorboard sync_tensorboard tensorboard_dir")),
    /* Only marks: nothing is skipped for being unusual. */
    REAL("metrics.spike", metrics.spike, "8", 0, 1e9, NOTHING,
         "Robust deviations of loss or gradient norm that are marked as a spike; 0 marks none."),
    /* McCandlish and others, "An empirical model of large-batch training", 2018. Optional, since it reads the
     * gradients of one rank once more. */
    BOOL("metrics.noise_scale", metrics.noise_scale, "false", NOTHING,
         "Estimate the gradient noise scale, the tokens of a step beyond which more bring little, from the "
         "first microbatch of each step and the whole of it."),
    /* Rank 0 has the figures of all ranks. The lines of the others help to find a slow rank. */
    TEXTS("metrics.log_ranks", metrics.log_ranks, "[0]", NOTHING,
          "Ranks whose lines are printed; the lines begin with [rank N], unless only rank 0 is named."),
    BOOL("metrics.all_ranks", metrics.all_ranks, "false", NOTHING,
         "Keep a metrics file for each rank: metrics-00001.jsonl and so on, next to that of rank 0.",
         ELSEWHERE("save_for_all_ranks rank_0_only")),
    /* For a few steps: the file has an entry for each action of each rank and step. */
    TEXT("metrics.trace", metrics.trace, "", NOTHING,
         "Steps whose actions are timed on every rank, as in 3-5: trace.json, for Perfetto, and a picture in "
         "the report, planned next to measured.",
         ELSEWHERE("enable_profiling profile_freq save_traces_folder trace_folder profiling profiler")),
    /* It only examines values that the passes compute anyway; it runs no additional step. */
    INT("metrics.probe", metrics.probe, "0", 0, 1e12, NOTHING,
        "Steps between probes: size of what each unit puts out, of its gradient, of its weights and of "
        "theirs; 0 means none.",
        ELSEWHERE("probe_freq")),
    /* A list of words, started without a shell, so that nothing in a path or a name is taken as syntax. */
    TEXTS("metrics.command", metrics.command, "", NOTHING,
          "A program and its arguments, started by rank 0 without a shell, that gets every record as a line "
          "of JSON on its standard input; no run waits for it, or ends with it.",
          ELSEWHERE("enable_wandb wandb wandb_project wandb_log report_to logger_name")),
    REAL("metrics.command_wait_s", metrics.command_wait_s, "30", 0, 86400, NOTHING,
         "Seconds that the end of a run waits for the program of metrics.command to end; then it is killed."),
    BOOL("metrics.profile", metrics.profile, "false", NOTHING,
         "Print where the time of the steps went, by operation."),
    TABLE_END};
